"""Which evaluations the paper's tables need, which of them are done, and how long the others will take."""

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from carp.compute import distributed
from carp.compute.device import choose_device
from carp.encoders.frozen_encoder import Encoder
from carp.encoders.load import load_encoder
from carp.errors import CarpError
from carp.evaluation.data_names import title_of_data
from carp.evaluation.paper_tables.measured_speed import Speed
from carp.evaluation.paper_tables.request import FinishedResults, request_of
from carp.evaluation.paper_tables.work_amount import Sizes
from carp.evaluation.protocol import OPTIONS, AnyProtocol
from carp.evaluation.protocols import find_protocol
from carp.evaluation.result import Result
from carp.evaluation.runner import with_preset
from carp.features.feature_options import ENCODER, FeatureOptions
from carp.images.source import Opening
from carp.images.sources.paper.dataset_source import look, open_split, read_name
from carp.images.sources.paper.detection_data import VOC0712, look_for_boxes
from carp.images.sources.paper.paper_datasets import BY_NAME, PREFIX, Dataset, ListedDataset, Presence

Pair = tuple[str, str]
"""The name of a protocol, and the name of a dataset in tables."""


@dataclass(frozen=True)
class Evaluation:
    """One evaluation of the paper: a protocol with its settings, on one dataset, and whether it can run."""

    protocol: AnyProtocol
    name: str
    """The name of the dataset in tables."""
    data: str
    """The value of --data for `carp eval`."""
    options: FeatureOptions
    dataset: ListedDataset
    """The dataset, and whether it is in the folder of datasets."""
    result: Result | None = None
    """The result, if the evaluation is done."""
    seconds: float = 0.0
    """Estimated time, if it has not been done yet."""

    @property
    def pair(self) -> Pair:
        """The protocol and the dataset, as the columns of tables name them."""
        return self.protocol.name, self.name

    @property
    def state(self) -> str:
        """`done`, `to do`, or that of the dataset: `absent`, `broken`."""
        if self.result is not None:
            return "done"
        return "to do" if self.presence.state == "present" else self.presence.state

    @property
    def presence(self) -> Presence:
        """Whether the dataset is in the folder of datasets."""
        assert self.dataset.found is not None
        return self.dataset.found

    @property
    def title(self) -> str:
        """The title in messages."""
        return f"{self.protocol.title} on {title_of_data(self.name)}"

    @property
    def images(self) -> int:
        """The number of its images."""
        return sum(_counts(self))

    def command(self, model: str | Path, branch: str, out: str | Path | None) -> str:
        """Return the command that runs only this evaluation."""
        words = ["carp", "eval", self.protocol.name, str(model), "--data", self.data, "--branch", branch]
        if out is not None:
            words += ["--out", str(out)]
        for key in OPTIONS[self.protocol.needs]:
            value = getattr(self.options, key)
            if value != FeatureOptions.model_fields[key].default:
                words += [f"--{key}", str(value)]
        given = self.protocol.settings.model_dump(mode="json", exclude_unset=True)
        return shlex.join([*words, *(f"{key}={value}" for key, value in given.items())])


def plan(
    pairs: Iterable[Pair],
    model: str | Path,
    root: Path,
    *,
    preset: str,
    branch: str,
    options: FeatureOptions,
    results: Path,
) -> list[Evaluation]:
    """Look up every evaluation: its data, its result if it is done, otherwise its time on this machine.

    Args:
        pairs: The protocols and datasets of the tables.
        model: A run folder, or weights.
        root: The folder of datasets.
        preset: Settings of the protocols that have such a preset.
        branch: The encoder of a run.
        options: How features are extracted; a protocol uses those that it has.
        results: The folder of result files.
    """
    distributed.start(choose_device(options.device))
    encoder, finished = load_encoder(model, branch, options), FinishedResults(results)
    found = dict[str, ListedDataset]()
    evaluations = []
    for protocol, name in pairs:
        if name not in found:
            found[name] = _listed(name, root)
        evaluations.append(_evaluation(protocol, name, root, preset, options, found[name]))
    plain = encoder if options.layer == ENCODER else load_encoder(model, branch, FeatureOptions(device=options.device))
    of = {"features": encoder, "images": encoder, "boxes": plain}
    evaluations = [_with_result(one, finished, of[one.protocol.needs]) for one in evaluations]
    if any(one.state == "to do" for one in evaluations):
        evaluations = _with_times(evaluations, root, encoder, options)
    return evaluations


def _evaluation(
    protocol_name: str, name: str, root: Path, preset: str, options: FeatureOptions, dataset: ListedDataset
) -> Evaluation:
    protocol = find_protocol(protocol_name)
    data = protocol.in_paper[name]
    used = options.model_dump(include=set(OPTIONS[protocol.needs]))
    assert dataset.found is not None
    if data.count(":") > 1 and dataset.found.state == "present" and data not in dataset.found.lists:
        _, subset = read_name(data)
        file = root / name / dataset.dataset.lists[subset].file
        dataset = replace(dataset, found=Presence("absent", reason=f"there is no {file}, which lists {subset} of it"))
    settings: dict[str, Any] = {"preset": preset} if "preset" in protocol.settings_type.model_fields else {}
    chosen = protocol(protocol.settings_type(**settings))
    extraction = with_preset(FeatureOptions(**used), chosen)
    return Evaluation(chosen, name, data.replace("ROOT", str(root)), extraction, dataset)


def _listed(name: str, root: Path) -> ListedDataset:
    if name == VOC0712.name:
        return ListedDataset(VOC0712, look_for_boxes(root))
    return ListedDataset(BY_NAME[name], look(BY_NAME[name], root))


def _counts(evaluation: Evaluation) -> tuple[int, int]:
    """Return the numbers of training and test images."""
    row: Dataset = evaluation.dataset.dataset
    part = evaluation.data.removeprefix(PREFIX).partition(":")[2] or "train"
    return row.images(part), row.images("test")


def _with_result(evaluation: Evaluation, finished: FinishedResults, encoder: Encoder) -> Evaluation:
    request = request_of(evaluation.protocol, evaluation.data, None, evaluation.options)
    return replace(evaluation, result=finished.find(evaluation.protocol.name, request, encoder.hash))


def _with_times(
    evaluations: Sequence[Evaluation], root: Path, encoder: Encoder, options: FeatureOptions
) -> list[Evaluation]:
    """Measure the machine and estimate the time of the remaining work. All processes use the first one's estimates."""
    speed = Speed(encoder, options.precision)
    per_pixel: dict[str, float] = {}
    seconds = []
    for one in evaluations:
        train, test = _counts(one)
        row = one.dataset.dataset
        several = row.layout == "voc"
        sizes = Sizes(train, test, row.classes, speed.num_features, encoder.size**2, several_labels=several)
        if one.protocol.needs == "features" and one.state == "to do" and one.name not in per_pixel:
            per_pixel[one.name] = _per_pixel(one, root, speed)
        work = one.protocol.work(sizes)
        seconds.append(speed.seconds(work, per_pixel.get(one.name)) if one.state == "to do" else 0.0)
    agreed = distributed.gather(seconds)[0]
    return [replace(one, seconds=time) for one, time in zip(evaluations, agreed, strict=True)]


def _per_pixel(evaluation: Evaluation, root: Path, speed: Speed) -> float:
    """Measure with images of the smaller split, which has been opened once already."""
    row = evaluation.dataset.dataset
    try:
        return speed.measure(open_split(row, min(("train", "test"), key=row.images), root, Opening()))
    except CarpError:  # damage is reported when the evaluation runs
        return speed.per_pixel
