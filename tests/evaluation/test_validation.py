"""k-NN during training: the accuracy of each encoder alone, from images that are decoded once."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from carp.config import resolve
from carp.evaluation.during_training.validation import Validation
from carp.evaluation.nearest_neighbours import knn_accuracy, knn_leave_one_out
from carp.features.extract import extract
from carp.images.decoding.decode import Stored
from carp.images.sources.folder import FolderSource
from carp.readiness.pretended_device import pretended, waits
from carp.training.loop import build_model
from tests.helpers import TINY, tiny_images, write_images

CPU = torch.device("cpu")


class Counting(FolderSource):
    """Counts how often each image is fetched."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.fetched = Counter[int]()

    def fetch(self, index: int) -> Stored:
        self.fetched[index] += 1
        return super().fetch(index)


def test_every_image_is_decoded_once_for_student_and_teacher(tmp_path: Path) -> None:
    folder = write_images(tmp_path / "images", tiny_images(24), classes=2)
    config = resolve({**TINY, "batch_size": 8}, num_images=24)
    bank, queries = FolderSource(folder), Counting(folder)
    model = build_model(config, CPU)
    with torch.no_grad():
        for parameter in model.teacher.parameters():  # so that the two differ
            parameter.mul_(1 + torch.rand_like(parameter))
    validation = Validation(config, bank, queries, CPU)
    queries.fetched.clear()  # one image was read to see whether any can be
    values = validation(model)
    assert queries.fetched == Counter(range(24))
    for name, branch in (("knn_student", model.student), ("knn_teacher", model.teacher)):
        features = extract(branch.encoder, bank, size=config.global_size, device=CPU).features
        assert values[name] == knn_accuracy(features, bank.labels, features, bank.labels, k=20)


@pytest.mark.parametrize("alone", [False, True], ids=["bank", "leave one out"])
def test_neighbours_on_a_device_are_those_of_the_cpu_and_one_copy_returns(alone: bool) -> None:
    rng = np.random.default_rng(0)
    bank, queries = (rng.normal(size=(n, 16)).astype(np.float32) for n in (700, 90))
    labels, asked = rng.integers(0, 5, 700), rng.integers(0, 5, 90)

    def accuracy(device: torch.device) -> float:
        if alone:
            return knn_leave_one_out(bank, labels, k=7, device=device)
        return knn_accuracy(bank, labels, queries, asked, k=7, device=device)

    expected = accuracy(CPU)
    with pretended() as device:
        waits.clear()
        found = accuracy(device)
        returned = [name for name in waits if name == "cpu"]
    assert found == expected
    assert returned == ["cpu"]
