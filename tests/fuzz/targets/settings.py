"""Configurations: YAML files and key=value words, from a grammar of everything that a setting is not, and damaged."""

import string
from collections.abc import Callable
from random import Random

import yaml

from carp.config import Config
from tests.fuzz.case import BUDGET, IN, OUT, Case, Target
from tests.fuzz.mutate import HUGE_NUMBERS, mutate_text
from tests.fuzz.targets.shards import text_of
from tests.fuzz.valid import Valid

_KEYS = tuple(Config.model_fields)
_SCALARS = (
    "auto", "none", "yes", "2024-01-01", "0o17", "1e3", "0.5", "2", "7", "64", "cuda", "cpu:1", "mps", "resnet18",
    "vit_tiny", "no_such_model", "''", '"\\x1b[31m"', "~", "!!python/object/apply:os.system [id]",
    "!!binary aGVsbG8=", "&a [*a]", "*b", "!!float nope", "1:30:00", "?", "|", ">", "@x", "`x`", "%x", "{a: 1",
    "[1, 2", "'", "\t", "<<: 1", "=", "a: b: c", "0x10", "-", "--", "...", "---", "inf", "-.inf", ".nan", "+.inf",
    "\u0663", "\ud800", "x" * 5000,
)  # fmt: skip
_OPTIONS = (
    "{channels: [4, 4, 8, 8]}", "{channels: [0]}", "{channels: [-1, 2, 3, 4]}", "{block: nonsense}", "{layers: [1]}",
    "{pretrained: true}", "{pretrained_cfg: {url: 'http://127.0.0.1:9/x.pth'}}", "{checkpoint_path: /etc/passwd}",
    "{stem_width: 99999999999}", "{drop_rate: 1e308}", "{no_such: 1}", "{1: 2}", "{null: 1}", "{in_chans: 0}",
    "{num_classes: -1}", "{act_layer: os.system}", "{norm_layer: nonsense}", "{output_stride: 7}", "{hf_hub_id: a/b}",
    "{features_only: true}", "{cache_dir: /}", "{img_size: 100000}", "{channels: [100000000, 1, 1, 1]}", "[1]",
    "text", "{scriptable: true}",
)  # fmt: skip


def value(rng: Random) -> str:
    """Anything in the place of a setting's value, as YAML."""
    return rng.choices(_VALUES, _WEIGHTS)[0](rng)


def _list(rng: Random) -> str:
    return "[" + ", ".join(value(rng)[:60] for _ in range(rng.choice((0, 1, 2, 3, 10)))) + "]"


def _nested(rng: Random) -> str:
    return rng.choice(("[", "{a: ", "- ", "(")) * rng.choice((10, 1000, 10_000))


def _number(rng: Random) -> str:
    return str(rng.choice((rng.randrange(-100, 100_000), rng.random(), 2 ** rng.randrange(70))))


def _characters(rng: Random) -> str:
    return "".join(rng.choice(string.printable) for _ in range(rng.randrange(12)))


_VALUES: tuple[Callable[[Random], str], ...] = (
    lambda rng: rng.choice(HUGE_NUMBERS),
    lambda rng: rng.choice(_SCALARS),
    lambda rng: rng.choice(_OPTIONS),
    _list,
    _nested,
    _number,
    _characters,
)
_WEIGHTS = (8, 6, 2, 2, 1, 1, 1)


def key(rng: Random) -> str:
    """Mostly a setting, else something like one."""
    chosen = rng.choice(_KEYS)
    if rng.random() < 0.9:
        return chosen
    return rng.choice(
        (chosen.upper(), chosen + "s", chosen[:-1], "1", "null", "", "[a]", "? x", "{b: 1}", "\x1b[31m", "é", "<<")
    )


def yaml_target(valid: Valid) -> Target:
    """Recipes."""
    whole = valid.recipe.read_text()
    settings = yaml.safe_load(whole)

    def recipe(rng: Random) -> bytes:
        if rng.random() < 0.4:
            return text_of(rng, whole)
        lines = {
            name: yaml.safe_dump(setting, default_flow_style=True).split("\n")[0] for name, setting in settings.items()
        }
        lines |= {key(rng): value(rng) for _ in range(rng.choice((1, 1, 2, 4)))}
        text = "\n".join(f"{name}: {setting}" for name, setting in lines.items()) + "\n"
        return (mutate_text(rng, text) if rng.random() < 0.2 else text).encode("utf-8", "surrogatepass")

    def case(rng: Random) -> Case:
        name = f"{IN}/recipe.yaml"
        return _command(rng, valid, ("--recipe", name), {name: recipe(rng)}, ("recipes", name))

    return case


def words_target(valid: Valid) -> Target:
    """Settings of training and of protocols, as words of a command."""
    recipe, images, store = valid.recipe, valid.images, valid.store

    def word(rng: Random) -> str:
        if rng.random() < 0.1:
            return mutate_text(rng, f"{key(rng)}={value(rng)}").replace("\0", "")
        return f"{key(rng)}={value(rng)}"

    def case(rng: Random) -> Case:
        if rng.random() < 0.3:
            protocol, names = rng.choice(
                (
                    ("knn", ("k", "temperature")),
                    ("kmeans", ("k", "runs", "seed")),
                    ("linear", ("lr", "batch_size")),
                )
            )
            setting = f"{rng.choice((*names, 'nonsense'))}={value(rng)}"[:100_000].encode(errors="replace").decode()
            cached = ("--cached",) if protocol == "linear" else ()
            fast = ("epochs=1",) if protocol == "linear" else ()  # who asks for 10¹⁶ epochs gets them
            words = ("eval", protocol, "--data", str(store), "--out", OUT, *cached, *fast, setting.replace("\0", ""))
            return Case(words, budget=2 * BUDGET)
        # no single word of a command may be longer than 128 kB
        words = tuple(word(rng)[:100_000].encode(errors="replace").decode() for _ in range(rng.choice((1, 1, 2, 3))))
        return _command(
            rng,
            valid,
            ("--recipe", str(recipe), *words),
            {},
            ("data", "check", str(images), "--recipe", str(recipe), *words),
        )

    return case


def _command(rng: Random, valid: Valid, more: tuple[str, ...], files: dict[str, bytes], other: tuple[str, ...]) -> Case:
    chance = rng.random()
    if chance < 0.4:
        return Case(other, files, budget=2 * BUDGET, codes=frozenset({0, 1, 2}))
    if chance < 0.8:
        words = ("views", str(valid.images), "--out", f"{OUT}/views.png", "--draws", "1", "--images", "1", *more)
        return Case(words, files, budget=2 * BUDGET)
    return Case(("train", str(valid.images), "--dry-run", *more), files, budget=2 * BUDGET)
