"""What a person should know beside the values of an evaluation."""

from collections.abc import Iterable, Sequence

from carp.evaluation.knn import knn
from carp.evaluation.protocols import settings_of
from carp.evaluation.result import Result


def usual_neighbours(most: int) -> list[int]:
    """Those of the usual k that a small bank has; `most` if it has none of them."""
    return [k for k in _usual() if k <= most] or [max(1, most)]


def notes_on(result: Result, given: Iterable[str]) -> list[str]:
    """Notes on a result; `given` are the settings that a person chose."""
    which = f"{result.protocol}, {result.model.get('branch') or result.model['name']}"
    if result.protocol == "knn" and "k" not in given:
        taken = result.settings["k"]
        if left := [k for k in _usual() if k not in taken]:
            return [f"knn: there are too few images for k = {_listed(left)}; taken were k = {_listed(taken)}."]
    if result.protocol == "linear":
        chosen, count = result.details["chosen"], len(result.details["grid"])
        words = f"{chosen['optimiser']}, lr {chosen['lr']:g}, weight decay {chosen['weight_decay']:g}"
        return [f"{which}: chosen of {count} on images held out: {words}; the result file has them all."]
    if result.protocol == "kmeans":
        empty = {run["seed"]: int(run["empty_train"]) for run in result.details["seeds"] if run["empty_train"]}
        return [f"{which}: with seed {seed} {count} clusters hold no training image." for seed, count in empty.items()]
    return []


def _usual() -> Sequence[int]:
    usual: Sequence[int] = settings_of(knn)["k"].default
    return usual


def _listed(numbers: Iterable[int]) -> str:
    return ", ".join(str(number) for number in numbers)
