"""Result files: what `carp table` is given."""

import json
from random import Random

from tests.fuzz.case import IN, OUT, Case, Target
from tests.fuzz.targets.shards import text_of
from tests.fuzz.valid import Valid


def target(valid: Valid) -> Target:
    """A damaged file alone, or beside one that is whole, in every format of a table."""
    whole = valid.result.read_bytes()
    text = json.dumps(json.loads(whole))

    def case(rng: Random) -> Case:
        name = f"{IN}/results/knn-damaged.json"
        files: dict[str, bytes] = {name: text_of(rng, rng.choice((text, whole.decode())))}
        given = rng.choice(((name,), (IN,), (name, name)))
        if rng.random() < 0.5:
            files[f"{IN}/results/knn-whole.json"] = whole
        form = rng.choice(
            ((), ("--format", "md"), ("--format", "csv"), ("--format", "latex"), ("--out", f"{OUT}/table.png"))
        )
        more = rng.choice(((), (), ("--with-paper",), ("--all",), ("--layout", "knn")))
        return Case(("table", *given, *form, *more), files)

    return case
