"""Run folders: a damaged one is refused or reported, and what success gives is what the undamaged run gives."""

from pathlib import Path
from random import Random

from tests.fuzz.case import IN, OUT, Case, Outcome, Target
from tests.fuzz.targets.stores import damaged, not_called_ok, unchanged_or_reported
from tests.fuzz.valid import Valid

_LAST = "step-00000003"


def target(valid: Valid) -> Target:
    """Damage in any file of a run, met by `embed`, by `export`, and by `train` that continues it."""
    run, images, recipe = valid.run, valid.images, valid.recipe
    names = [path.relative_to(run) for path in sorted(run.rglob("*")) if path.is_file() and path.name != "lock"]
    unfinished = [name for name in names if _LAST not in name.parts]
    embed = ("embed", f"{IN}/run", "--data", str(valid.flat), "--out", f"{OUT}/features")
    _, features = valid.undamaged(Case(embed, {f"{IN}/run": run}), _features)
    embedded = unchanged_or_reported(features, _features)
    trained = unchanged_or_reported(_trained(None, run.parent, where=run), _trained)
    train = ("train", str(images), "--recipe", str(recipe), "--out", f"{OUT}/run")
    export = ("export", f"{IN}/run", "--format", "safetensors", "--out", f"{OUT}/x.safetensors")
    _, encoder = valid.undamaged(Case(export, {f"{IN}/run": run}), _exported)
    exported = unchanged_or_reported(encoder, _exported)

    def case(rng: Random) -> Case:
        chance = rng.random()
        if chance < 0.75:
            name = rng.choice(names)
            data = damaged(rng, run / name)
            files: dict[str, bytes | Path] = {f"{IN}/run": run, f"{IN}/run/{name}": data}
            if chance < 0.1:
                below = name.parts[0]
                noticed = not_called_ok(run / name, data, below) if below == "checkpoints" else None
                return Case(("check", f"{IN}/run"), files, str(name), check=noticed, codes=frozenset({0, 1, 2}))
            words, check = (embed, embedded) if chance < 0.6 else (export, exported)
            return Case(words, files, str(name), check=check)
        name = rng.choice(unfinished)
        copies: dict[str, bytes | Path] = {f"{OUT}/run/{other}": run / other for other in unfinished}
        return Case(train, {**copies, f"{OUT}/run/{name}": damaged(rng, run / name)}, str(name), check=trained)

    return case


def _features(_outcome: Outcome, folder: Path) -> object:
    return (folder / OUT / "features" / "features.npy").read_bytes()


def _exported(_outcome: Outcome, folder: Path) -> object:
    """The tensors, which stand behind a header that names the run."""
    data = (folder / OUT / "x.safetensors").read_bytes()
    return data[8 + int.from_bytes(data[:8], "little") :]


def _trained(_outcome: Outcome | None, folder: Path, *, where: Path | None = None) -> object:
    run = where or folder / OUT / "run"
    return (run / "checkpoints" / _LAST / "tensors.safetensors").read_bytes(), (run / "metrics.jsonl").read_bytes()
