"""The registry of ablations: one row for each. Another ablation is another row.

Published values are in `paper_ablations.yaml`, under the same names.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from carp.errors import ConfigError, nearest, received
from carp.studies.axis_values import LENGTH, SCHEDULE, VIEWS, WHOLE_NUMBER, AxisValue, Form
from carp.studies.points import Point

Texts = str | int | float | Sequence[object] | None
Settings = Mapping[str, Any]


def _unchanged(_given: Settings, _global_size: int) -> Settings:
    return {}


def _local_size(given: Settings, global_size: int) -> Settings:
    """Return local views in the paper's proportion to the global ones (96 of 224 pixels), unless a size is set."""
    return {} if "local_size" in given else {"local_size": max(8, 8 * round(global_size * 96 / 224 / 8))}


@dataclass(frozen=True)
class Ablation:
    """A setting that is varied, and its values.

    Attributes:
        name: Its name on the command line.
        title: Its heading.
        axis: The meaning of the values.
        key: The setting that takes the values.
        form: How values are written.
        grid: The paper's values, or a reasonable range where the paper has none.
        scale: The scale of the axis in plots.
        variants: Settings of the variants by name.
        adapt: Further settings that the ablation needs, derived from the given ones and `global_size`.
    """

    name: str
    title: str
    axis: str
    key: str
    form: Form
    grid: tuple[str, ...]
    scale: Literal["log", "linear", "category"]
    variants: Mapping[str, Settings] = field(default_factory=lambda: {"": {}})
    adapt: Callable[[Settings, int], Settings] = _unchanged

    @property
    def reserved(self) -> set[str]:
        """Settings that only the ablation sets; `epochs` remains a setting, the length of a full run."""
        in_all_variants = set.intersection(*(set(settings) for settings in self.variants.values()))
        return ({self.key} | in_all_variants) - {"epochs"}

    def points(self, values: Texts, variants: Texts, *, epochs: int) -> list[Point]:
        """Return the points of the grid, in order; values that are given twice count once. `epochs` is a full run."""
        texts = self.grid if values is None else split(values)
        if not texts:
            raise ConfigError(f"no values of {self.name} were given. They are {self.form.words}.")
        read = [self._read(text, epochs) for text in texts]
        return [
            Point(
                value.text,
                variant,
                {**value.settings, **self.variants[variant]},
                value.place,
                value.published_as or value.text,
                value.cost,
            )
            for variant in self._variants(variants)
            for value in {value.text: value for value in read}.values()
        ]

    def _read(self, text: str, epochs: int) -> AxisValue:
        value = self.form.read(text, self.key, epochs)
        if value is None:
            raise ConfigError(f"the values of {self.name} are {self.form.words}, received {received(text)}.")
        return value

    def _variants(self, wanted: Texts) -> list[str]:
        known = {name.replace(" ", "-"): name for name in self.variants if name}
        if wanted is None:
            return list(self.variants)
        words = [text.replace(" ", "-") for text in split(wanted)] or [""]
        for word in words:
            if word not in known:
                listed = f"Variants: {', '.join(known)}." if known else f"{self.name} has no variants: leave it out."
                raise ConfigError(f"{self.name} has no variant {received(word)}.{nearest(word, known)} {listed}")
        return [known[word] for word in dict.fromkeys(words)]


def split(texts: Texts) -> list[str]:
    """Split comma-separated text, or a sequence of values, into a list of texts; a schedule may be a pair."""
    if isinstance(texts, str):
        return [part for part in (part.strip() for part in texts.split(",")) if part]
    if not isinstance(texts, Iterable):
        return [str(texts)]
    return [",".join(str(end) for end in one) if isinstance(one, tuple | list) else str(one) for one in texts]


_TEACHER: Mapping[str, Settings] = {"with teacher": {}, "without teacher": {"teacher_momentum": 0.0}}
_LENGTHS = ("25%", "50%", "75%", "100%")

ABLATIONS: Mapping[str, Ablation] = {
    row.name: row
    for row in (
        Ablation(
            "batch-size",
            "Batch size",
            "batch size",
            "batch_size",
            WHOLE_NUMBER,
            ("128", "256", "512", "1024", "2048", "4096"),
            "log",
        ),
        Ablation(
            "prototypes",
            "Number of prototypes",
            "prototypes K",
            "num_prototypes",
            WHOLE_NUMBER,
            ("1024", "2048", "4096", "16384", "65536", "262144"),
            "log",
        ),
        Ablation(
            "block-size",
            "Size of the blocks",
            "block size N_B",
            "block_size",
            WHOLE_NUMBER,
            ("32", "64", "128", "256", "512", "1024", "2048", "4096", "16384", "65536"),
            "log",
            variants=_TEACHER,
        ),
        Ablation(
            "momentum",
            "Momentum of the teacher",
            "momentum η",
            "teacher_momentum",
            SCHEDULE,
            ("0", "0.5", "0.9", "0.99", "0.999", "0.99->1"),
            "category",
        ),
        Ablation(
            "partition",
            "Partition strategy",
            "epochs",
            "epochs",
            LENGTH,
            _LENGTHS,
            "linear",
            variants={"random": {"partition": "random"}, "fixed": {"partition": "fixed"}},
        ),
        Ablation("epochs", "Length of training", "epochs", "epochs", LENGTH, _LENGTHS, "linear"),
        Ablation(
            "views",
            "Number of views",
            "views",
            "local_views",
            VIEWS,
            ("2", "2+2", "2+4", "2+6"),
            "category",
            adapt=_local_size,
        ),
        Ablation(
            "entropy",
            "Weight of the entropy term",
            "entropy weight",
            "entropy_weight",
            SCHEDULE,
            ("0", "0.5", "1", "2", "4", "8", "16"),
            "category",
        ),
    )
}


def find_ablation(name: str) -> Ablation:
    """Return the ablation with this name; a misspelt one raises a `ConfigError` that suggests the nearest."""
    if name not in ABLATIONS:
        raise ConfigError(
            f"there is no ablation '{name}'.{nearest(name, ABLATIONS)} Ablations: {', '.join(ABLATIONS)}."
        )
    return ABLATIONS[name]
