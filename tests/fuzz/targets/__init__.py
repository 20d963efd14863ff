"""What is fuzzed: a name, a share of all inputs, and a function that makes cases from valid files.

Another kind of input is another function from `Valid` to a `Target`, and a row here.
"""

from collections.abc import Callable
from dataclasses import dataclass

from tests.fuzz.case import Target
from tests.fuzz.targets import images, lists, results, runs, settings, shards, stores, truths, weights
from tests.fuzz.valid import Valid


@dataclass(frozen=True)
class Row:
    """A kind of input."""

    make: Callable[[Valid], Target]
    share: int
    """Parts of all inputs."""


TARGETS = {
    "images": Row(images.target, 30),
    "tar": Row(shards.tar_target, 8),
    "parquet": Row(shards.parquet_target, 4),
    "lists": Row(lists.target, 8),
    "weights": Row(weights.target, 12),
    "truths": Row(truths.target, 6),
    "yaml": Row(settings.yaml_target, 7),
    "settings": Row(settings.words_target, 7),
    "results": Row(results.target, 5),
    "stores": Row(stores.store_target, 6),
    "indexes": Row(stores.index_target, 4),
    "runs": Row(runs.target, 6),
}
