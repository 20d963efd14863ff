"""The columns of a table of results: their headings, their order, and which ones are shown by default."""

import re
from dataclasses import dataclass

from carp.evaluation.data_names import names_in_order, title_of_data
from carp.evaluation.protocols import all_protocols, protocol_of_result
from carp.images.sources.paper.paper_datasets import BY_NAME

_PER_CLASS = "mean_per_class"
_BEST_ON_TEST = "best_top1_on_test"
_MICRO_AP = "micro_ap"
_WORDS = {
    _BEST_ON_TEST: "best top-1 on the test images",
    _MICRO_AP: "micro AP",
    "top1": "top-1",
    "top5": "top-5",
    _PER_CLASS: "mean per class",
    "map": "mAP",
    "ap": "AP",
    "ap50": "AP50",
    "ap75": "AP75",
}
_CAPITALS = frozenset({"nmi", "ami", "ari"})
_COUNTS = frozenset({"empty_clusters"})


@dataclass(frozen=True)
class Column:
    """One measure: a protocol, the data it was evaluated on, and the name of the value."""

    protocol: str
    data: str
    metric: str

    @property
    def is_share(self) -> bool:
        """Whether the value is a fraction, which is shown in percent and compared; counts are neither."""
        return self.metric not in _COUNTS

    @property
    def is_headline(self) -> bool:
        """Whether the paper's tables show it, or the literature does: mean per class on some datasets."""
        row = BY_NAME.get(self.data)
        literature = row is not None and row.metric == "mean per-class"
        metric = self.metric.replace(_PER_CLASS, "top1") if literature else self.metric
        protocol = protocol_of_result(self.protocol)
        return protocol is not None and re.fullmatch(protocol.headline, metric) is not None

    @property
    def words(self) -> tuple[str, ...]:
        """The name of the value in words: `top1_k20` gives top-1 and k = 20."""
        if not self.is_share:
            return (self.metric.replace("_", " "),)
        return tuple(_word(part) for part in self.parts)

    @property
    def parts(self) -> list[str]:
        """The parts of the name of the value: `mean_per_class_k20` gives `mean_per_class` and `k20`."""
        return re.findall(rf"{_PER_CLASS}|{_BEST_ON_TEST}|{_MICRO_AP}|[^_]+", self.metric)

    def __str__(self) -> str:
        return f"{self.protocol} {self.data} {self.metric}"


def column_of(protocol: str, data: str, value_name: str) -> Column:
    """Return the column of a value in any spelling: for k-NN, `knn_top1_k20`, `top1@20` and `top1_k20` are the same.

    `data` is a name that `name_of_data` returned.
    """
    name = protocol.replace("_", "-")
    found = protocol_of_result(name)
    letter = "" if found is None else found.number_letter
    metric = value_name.removeprefix(name.replace("-", "_") + "_")
    return Column(found.name if found else name, data, re.sub(r"@(?=\d)", f"_{letter}", metric).replace("@", "_"))


def protocol_title(name: str) -> str:
    """Return the title of a protocol in tables; its name if this version does not have it."""
    protocol = protocol_of_result(name)
    return name if protocol is None else protocol.title


def in_order(columns: set[Column]) -> list[Column]:
    """Sort columns as in the paper: by protocol, dataset and measure; columns that are not in the paper come last."""
    return sorted(columns, key=_place)


def headline_columns(columns: list[Column]) -> list[Column]:
    """Return the columns that the paper would show; all columns of a protocol and dataset that has none of them."""
    with_headline = {(c.protocol, c.data) for c in columns if c.is_headline}
    return [c for c in columns if c.is_headline or (c.protocol, c.data) not in with_headline]


@dataclass(frozen=True)
class Headings:
    """The headings of a table: its title, and for every column a group and a name, which may be empty."""

    title: str
    groups: tuple[str, ...]
    names: tuple[str, ...]


def headings(columns: list[Column]) -> Headings:
    """Return headings without repetition: parts that all columns share go into the title."""
    protocols = [protocol_title(c.protocol) for c in columns]
    data = [title_of_data(c.data) for c in columns]
    shared_words = set(columns[0].words).intersection(*(c.words for c in columns))
    one_protocol, one_data = len(set(protocols)) == 1, len(set(data)) == 1 and len(columns) > 1
    title = [protocols[0]] * one_protocol + [data[0]] * one_data
    title += [word for word in columns[0].words if word in shared_words]
    groups = [
        " ".join(part for part, shared in ((p, one_protocol), (d, one_data)) if not shared)
        for p, d in zip(protocols, data, strict=True)
    ]
    names = [", ".join(w for w in c.words if w not in shared_words) for c in columns]
    return Headings(", ".join(title), tuple(groups), tuple(names))


def _word(part: str) -> str:
    numbered = re.fullmatch(r"([kn])(\d+)", part)
    if numbered:
        return f"{numbered[1]} = {numbered[2]}"
    if depth := re.fullmatch(r"mp(\d+)", part):
        return f"mP@{depth[1]}"
    return part.upper() if part in _CAPITALS else _WORDS.get(part, part)


def _place(column: Column) -> tuple[object, ...]:
    protocols, data = [protocol.name for protocol in all_protocols()], names_in_order()
    metrics = ["nmi", "ami", "ari", "map", "top1", "top5", _PER_CLASS, "medium", "hard", "ap", "ap50", "ap75"]
    numbers = [int(n) for n in re.findall(r"(?<=[kn])\d+", column.metric)] or [10**9]  # `full` comes after n = 16
    return (
        _index(protocols, column.protocol),
        column.protocol,
        _index(data, column.data),
        column.data,
        [_index(metrics, word) for word in column.parts if not re.fullmatch(r"[kn]\d+", word)][:1],
        numbers,
        [_index(metrics, word) for word in column.parts],
        column.metric,
    )


def _index(known: list[str], word: str) -> int:
    return known.index(word) if word in known else len(known)
