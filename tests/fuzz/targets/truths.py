"""What says which images belong together: ground truths as pickles or JSON, relevance files, manifests of copies."""

import json
import pickle
from random import Random

from tests.fuzz import hostile
from tests.fuzz.case import IN, OUT, Case, Target
from tests.fuzz.mutate import mutate
from tests.fuzz.targets.shards import text_of
from tests.fuzz.valid import Valid, as_arrays, ground_truth


def target(valid: Valid) -> Target:
    """Cases for `eval retrieval` and `eval copies`."""
    run, flat = valid.run, valid.flat
    names = [path.stem for path in sorted(flat.iterdir())]
    truth = ground_truth(names)
    seeds = [pickle.dumps(made, protocol=p) for made in (truth, as_arrays(truth)) for p in range(6)]
    attacks = [*hostile.pickles(), *hostile.bombs()]
    relevance_csv = "query,image\n" + "".join(f"{a}.png,{b}.png,relevant\n" for a in names[:3] for b in names[3:6])
    relevance_json = json.dumps({name: {"relevant": names[4:6], "junk": names[6:7]} for name in names[:3]})
    copies = valid.copies

    def case(rng: Random) -> Case:
        chance = rng.random()
        if chance < 0.15:
            manifest = text_of(rng, (copies / "manifest.json").read_text())
            words = (
                "eval",
                "copies",
                str(run),
                "--data",
                f"{IN}/copies",
                "--branch",
                "teacher",
                "--out",
                OUT,
                "side=16",
            )
            return Case(words, {f"{IN}/copies": copies, f"{IN}/copies/manifest.json": manifest}, "a manifest")
        more: tuple[str, ...] = ()
        if chance < 0.6:
            data = rng.choice(seeds) if rng.random() < 0.6 else rng.choice(attacks)
            name, data = f"{IN}/gnd.pkl", mutate(rng, data, seeds) if rng.random() < 0.7 else data
        elif chance < 0.75:
            name, data = f"{IN}/gnd.json", text_of(rng, json.dumps(truth))
        elif chance < 0.88:
            name, data = f"{IN}/relevance.csv", text_of(rng, relevance_csv)
        else:
            name, data, more = f"{IN}/relevance.json", text_of(rng, relevance_json), ("--queries", str(flat))
        words = (
            "eval",
            "retrieval",
            str(run),
            "--data",
            str(flat),
            "--truth",
            name,
            *more,
            "--branch",
            "teacher",
            "--out",
            OUT,
        )
        return Case(words, {name: data})

    return case
