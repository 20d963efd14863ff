"""The evaluations behind the paper's tables: what protocols declare, the work they estimate, and finished results."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from carp.encoders.frozen_encoder import Encoder
from carp.evaluation.paper_tables.measured_speed import Speed
from carp.evaluation.paper_tables.request import FinishedResults, request_of
from carp.evaluation.paper_tables.work_amount import Sizes, Work
from carp.evaluation.protocols import all_protocols, find_protocol
from carp.evaluation.result import Result
from carp.features.feature_options import FeatureOptions
from carp.images.sources.paper.detection_data import VOC0712, look_for_boxes
from carp.images.sources.paper.paper_datasets import BY_NAME
from carp.report.tables.paper import evaluation_layouts
from tests.evaluation.voc_tree import write_voc

SIZES = Sizes(train=1000, test=100, classes=10, features=64, pixels=32 * 32)


def declared() -> set[tuple[str, str]]:
    ours = [protocol for protocol in all_protocols() if protocol.__module__.startswith("carp.")]
    return {(protocol.name, name) for protocol in ours for name in protocol.in_paper}


def test_protocols_declare_exactly_the_evaluations_of_the_papers_tables() -> None:
    assert declared() == {pair for table in evaluation_layouts().values() for pair in table.evaluations}


def test_the_table_of_datasets_names_the_same_protocols() -> None:
    for name, row in BY_NAME.items():
        assert {protocol for protocol, data in declared() if data == name} == set(row.protocols), name


@pytest.mark.parametrize(("protocol", "name"), sorted(declared()))
def test_the_work_is_at_least_one_pass_over_the_images(protocol: str, name: str) -> None:
    chosen = find_protocol(protocol)
    work = chosen(chosen.settings_type()).work(SIZES)
    assert work.pixels >= (SIZES.train + SIZES.test) * SIZES.pixels
    more = chosen(chosen.settings_type()).work(replace(SIZES, train=2 * SIZES.train, test=2 * SIZES.test))
    assert more.pixels > work.pixels


def work_of(protocol: str, **settings: Any) -> Work:
    chosen = find_protocol(protocol)
    return chosen(chosen.settings_type(**settings)).work(SIZES)


def test_the_work_follows_the_settings() -> None:
    assert work_of("knn").multiply_adds == 1000 * 100 * 64
    assert work_of("kmeans", redos=2, iterations=5, seeds=(0,)).multiply_adds == 2 * 5 * 1000 * 10 * 64
    assert work_of("kmeans", redos=1, iterations=1, seeds=0, images_per_cluster=7).multiply_adds == 70 * 10 * 64
    passes = work_of("linear", epochs=9).pixels - work_of("linear", epochs=9, cached=True).pixels
    assert passes == 9 * 1000 * SIZES.pixels
    assert work_of("few-shot", shots="1,full", runs=3).multiply_adds > work_of("few-shot", shots=1).multiply_adds
    assert work_of("few-shot", shots=1, runs=3, crops=True).pixels == (1100 + 20 * 30) * SIZES.pixels
    assert work_of("retrieval", max_side=512).pixels == pytest.approx(1100 * 512 * 384)
    assert work_of("retrieval", max_side=512, multi_scale=True).pixels == pytest.approx(1.75 * 1100 * 512 * 384)
    assert work_of("copies", side=10).pixels == 1100 * 100
    assert work_of("detection", trials=1).pixels == pytest.approx(work_of("detection", trials=5).pixels / 5)


def test_speed_is_measured_and_times_are_proportional_to_the_work() -> None:
    module = torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten())
    speed = Speed(Encoder(module, size=16, device=torch.device("cpu")), "fp32")
    assert speed.num_features == 3
    once = speed.seconds(Work(1e6, 1e6))
    assert once > 0
    assert speed.seconds(Work(2e6, 2e6)) == pytest.approx(2 * once)
    assert speed.seconds(Work(1e6), per_pixel=1.0) == 1e6


def test_a_result_is_found_by_its_request_and_its_weights(tmp_path: Path) -> None:
    knn, options = find_protocol("knn"), FeatureOptions(size=32)
    request = request_of(knn(knn.settings_type()), "dataset:pets", None, options)
    result = Result("knn", {"top1@20": 0.5}, model={"hash": "abc"}, request=request)
    result.write(tmp_path / "one.json")
    replace(result, values={"top1@20": 0.75}).write(tmp_path / "newer.json")
    (tmp_path / "damaged.json").write_text("{")
    finished = FinishedResults(tmp_path)
    found = finished.find("knn", request, "abc")
    assert found is not None
    assert found.values == {"top1@20": 0.75}
    assert finished.find("kmeans", request, "abc") is None
    assert finished.find("knn", request, "abd") is None
    same = options.model_copy(update={"device": "cuda", "root": "elsewhere"})
    assert request_of(knn(knn.settings_type(preset="paper")), "dataset:pets", None, same) == request
    for protocol, data, used in (
        (knn(knn.settings_type(k=20)), "dataset:pets", options),
        (knn(knn.settings_type()), "dataset:stl10", options),
        (knn(knn.settings_type()), "dataset:pets", FeatureOptions(size=64)),
    ):
        assert finished.find("knn", request_of(protocol, data, None, used), "abc") is None
    assert request_of(knn(knn.settings_type()), np.zeros((2, 8, 8, 3), np.uint8), None, options) == {}


def test_boxes_are_found_in_both_years_or_what_is_missing_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert look_for_boxes(tmp_path).state == "absent"
    write_voc(tmp_path)
    assert "the lists name 8 train images, not 16,551" in look_for_boxes(tmp_path).reason
    monkeypatch.setattr(type(VOC0712), "images", lambda _, part: {"train": 8, "test": 4}[part])
    assert look_for_boxes(tmp_path).state == "present"
    missing = tmp_path / "VOCdevkit" / "VOC2012" / "ImageSets" / "Main" / "trainval.txt"
    missing.unlink()
    found = look_for_boxes(tmp_path)
    assert (found.state, found.reason) == ("absent", f"there is no {missing}")
