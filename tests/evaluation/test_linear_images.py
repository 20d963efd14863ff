"""Linear classifiers on crops: against plain PyTorch, and against the promises about choice, resuming and mistakes."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from carp.errors import BadImagesError, CarpError, ConfigError, DataError, Interrupted
from carp.evaluation.linear.choice import choose_held_out
from carp.evaluation.linear.grid import Classifier, LinearGrid
from carp.evaluation.linear.grid_training import OneGrid
from carp.evaluation.linear.over_crops import linear_on_images
from carp.evaluation.protocols.linear import LinearSettings
from carp.evaluation.result import Result
from carp.features.extract import extract
from carp.images.loading.loader import normalise
from carp.images.loading.order import even_batches
from carp.images.sources.array import ArraySource
from carp.images.sources.folder import FolderSource
from carp.images.views.batch_views import batch_views
from carp.images.views.crops import Crops
from carp.images.views.interpolation import Interpolation
from carp.images.views.view_parameters import crop_and_flip
from carp.runs.checkpoint import list_checkpoints, load_newest
from tests.helpers import assert_same_bits, tiny_images, write_images

CPU = torch.device("cpu")
CLASSES, TRAIN, TEST = 7, 140, 70
EPOCHS, BATCH, SEED = 4, 32, 2


def make_encoder() -> nn.Module:
    """A small network with batch norm, in training mode, which must not matter."""
    generator = torch.Generator().manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 12, 5, stride=2), nn.BatchNorm2d(12), nn.ReLU(), nn.Conv2d(12, 24, 3, stride=2), nn.ReLU(),
        nn.AdaptiveAvgPool2d(2), nn.Flatten(),
    )  # fmt: skip
    for parameter in net.parameters():
        nn.init.normal_(parameter, std=0.2, generator=generator)
    return net


def part(name: str, count: int) -> ArraySource:
    """Noise in the colours of seven classes that are not far apart."""
    rng = np.random.default_rng(len(name))
    labels = np.arange(count) % CLASSES
    colours = 128 + np.random.default_rng(0).normal(0, 20, (CLASSES, 1, 1, 3))
    shades = rng.normal(0, 15, (count, 1, 1, 3)) + rng.normal(0, 50, (count, 32, 32, 3))
    images = np.clip(colours[labels] + shades, 0, 255).astype(np.uint8)
    return ArraySource(images, labels, tuple("abcdefg"), name=name)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Case:
    """Everything that a call needs."""

    def __init__(self) -> None:
        self.encoder = make_encoder()
        self.train, self.test = part("train", TRAIN), part("test", TEST)
        self.features, self.test_features = (
            extract(self.encoder, source, size=32, device=CPU).features for source in (self.train, self.test)
        )

    def __call__(self, **changes: Any) -> Result:
        arguments = {
            "train": self.features,
            "train_labels": self.train.labels,
            "test": self.test_features,
            "test_labels": self.test.labels,
            "encoder": self.encoder,
            "source": self.train,
            "size": 32,
            "device": CPU,
            "epochs": EPOCHS,
            "batch_size": BATCH,
            "seed": SEED,
            "weights_hash": "small",
            "workers": 0,
        }
        return linear_on_images(**{**arguments, **changes})


@pytest.fixture(scope="module")
def case() -> Case:
    return Case()


def final_state(folder: Path) -> dict[str, Tensor]:
    (place,) = folder.iterdir()
    found, problems = load_newest(place)
    assert found is not None
    assert not problems
    return found.tensors


def plain(
    case: Case,
    classifier: Classifier,
    seen: np.ndarray,
    interpolation: Interpolation = "bicubic",
    after_epoch: Callable[[nn.Linear], None] = lambda _: None,
    epochs: int = EPOCHS,
) -> nn.Linear:
    """One classifier in a loop of PyTorch over the same crops, each image rendered alone."""
    layer = nn.Linear(case.features.shape[1], CLASSES)
    start = LinearGrid([classifier], case.features.shape[1], CLASSES, seed=SEED)
    layer.load_state_dict({"weight": start.weight_SCF[0], "bias": start.bias_SC[0]})
    groups = [{"params": [layer.weight], "weight_decay": classifier.weight_decay}, {"params": [layer.bias]}]
    optimiser = (Lars if classifier.optimiser == "lars" else torch.optim.SGD)(groups, lr=classifier.lr, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, epochs)
    order = Crops(case.train, np.arange(TRAIN), size=32, batch_size=BATCH, seed=SEED)
    for epoch in range(epochs):
        indices = order.of_epoch(epoch)
        for batch in even_batches(TRAIN, BATCH):
            rows = [i for i in indices[batch] if seen[i]]
            kind = crop_and_flip(32, interpolation)
            images = [
                batch_views(case.train.images[[i]], [kind], seed=SEED, epoch=epoch, indices=np.array([i]))[0]
                for i in rows
            ]
            with torch.no_grad():
                features = case.encoder.eval()(normalise(torch.cat(images), CPU))
            optimiser.zero_grad()
            F.cross_entropy(layer(features), torch.from_numpy(case.train.labels[rows])).backward()
            optimiser.step()
        schedule.step()
        after_epoch(layer)
    return layer


class Lars(torch.optim.Optimizer):
    """LARS as in the authors' linear evaluation: trust 0.001; vectors are neither decayed nor adapted."""

    def __init__(self, params: Any, lr: float, momentum: float) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": 0.0})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                update = parameter.grad.clone()
                if parameter.ndim > 1:
                    update += group["weight_decay"] * parameter
                    update *= 0.001 * parameter.norm() / update.norm()
                mean = self.state[parameter].setdefault("mean", torch.zeros_like(parameter))
                mean.mul_(group["momentum"]).add_(update)
                parameter.sub_(group["lr"] * mean)


def top1_of(layer: nn.Linear, features: np.ndarray, labels: np.ndarray) -> float:
    return float(np.mean(layer(torch.from_numpy(features)).argmax(dim=1).numpy() == labels))


def test_a_classifier_equals_plain_pytorch_over_the_same_crops(case: Case, tmp_path: Path) -> None:
    one = {"optimisers": ("sgd",), "lrs": (3.0,), "weight_decays": (1e-3,)}
    case.encoder.train()
    result = case(**one, state=tmp_path / "state")
    assert case.encoder.training
    held = choose_held_out(case.train.labels, 0.1, SEED)
    classifier = Classifier("sgd", 3.0 * BATCH / 256, 1e-3)
    state = final_state(tmp_path / "state")
    choosing, final = plain(case, classifier, ~held), plain(case, classifier, np.ones(TRAIN, dtype=bool))
    for name, layer in (("choosing", choosing), ("final", final)):
        assert torch.allclose(state[f"{name}.weight"][0], layer.weight, rtol=1e-4, atol=1e-5), name
        assert torch.allclose(state[f"{name}.bias"][0], layer.bias, rtol=1e-4, atol=1e-5), name
    (row,) = result.details["grid"]
    assert row["held_out_top1"] == top1_of(choosing, case.features[held], case.train.labels[held])
    assert row["test_top1"] == result.values["top1"] == top1_of(final, case.test_features, case.test.labels)
    assert result.values["top1"] > 2 / CLASSES
    assert result.settings["cached"] is False


def test_the_authors_preset_equals_plain_pytorch_over_the_same_crops(case: Case, tmp_path: Path) -> None:
    """One LARS at its learning rate, no grid, bilinear crops, and the best epoch on the test images."""
    authors = {key: LinearSettings.presets["authors"][key] for key in LinearSettings.presets["authors"]}
    assert authors.pop("batch_size") == 2048
    authors["lrs"], epochs = (2.0,), 12  # so that these few steps learn something, and not always more
    result = case(**authors, epochs=epochs, state=tmp_path / "state", predict=True)
    top1: list[float] = []
    weights: list[Tensor] = []

    def after_epoch(layer: nn.Linear) -> None:
        top1.append(top1_of(layer, case.test_features, case.test.labels))
        weights.append(layer.weight.detach().clone())

    plain(case, Classifier("lars", 2.0), np.ones(TRAIN, dtype=bool), "bilinear", after_epoch, epochs)
    best = int(np.argmax(top1))
    assert best < epochs - 1, "the last epoch is the best: nothing is tested"
    (row,) = result.details["grid"]
    assert result.values["top1"] == row["test_top1"] == max(top1) > 1.5 / CLASSES
    assert row["best_epoch"] == best + 1
    assert result.details["chosen"] == row
    assert "best_top1_on_test" not in result.values
    assert "held_out_top1" not in row
    state = final_state(tmp_path / "state")
    assert torch.allclose(state["best.weight"][0], weights[best], rtol=1e-3, atol=1e-4)
    assert torch.allclose(state["final.weight"][0], weights[-1], rtol=1e-3, atol=1e-4)
    assert np.mean(result.predicted[""].classes == case.test.labels) == max(top1)
    recorded = {key: result.settings[key] for key in ("optimisers", "lr_scaling", "choose_on", "crop_interpolation")}
    assert recorded == {
        "optimisers": ["lars"],
        "lr_scaling": "none",
        "choose_on": "test",
        "crop_interpolation": "bilinear",
    }


def test_the_best_epoch_survives_an_interruption(case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"optimisers": ("sgd",), "lrs": (0.1, 30.0), "weight_decays": (0.0,), "choose_on": "test", "epochs": 6}
    whole = case(**settings)
    step, steps = OneGrid.step, 0

    def interrupted(*values: Any, **named: Any) -> None:
        nonlocal steps
        steps += 1
        if steps == 22:
            os.kill(os.getpid(), signal.SIGTERM)
        step(*values, **named)

    monkeypatch.setattr(OneGrid, "step", interrupted)
    with pytest.raises(Interrupted, match="resume"):
        case(**settings, state=tmp_path)
    assert 0 < steps < 6 * 5
    continued = case(**settings, state=tmp_path)
    assert continued.details == whole.details
    assert continued.values == whole.values
    assert any(row["best_epoch"] < 5 for row in whole.details["grid"]), "nothing that was kept before is the best"


def test_the_whole_grid_is_chosen_from_by_what_was_held_out(case: Case) -> None:
    result = case()
    rows = result.details["grid"]
    assert len(rows) == 40
    assert result.details["chosen"]["held_out_top1"] == max(row["held_out_top1"] for row in rows)
    assert result.values["top1"] == result.details["chosen"]["test_top1"]
    assert result.values["best_top1_on_test"] == max(row["test_top1"] for row in rows) >= result.values["top1"]
    assert result.values["top5"] >= result.values["top1"]
    assert len({row["test_top1"] for row in rows}) > 3, "classifiers must differ"
    other = case(test_labels=(case.test.labels + 1) % CLASSES)
    ours, theirs = (
        {key: value for key, value in found.details["chosen"].items() if not key.startswith("test_")}
        for found in (result, other)
    )
    assert ours == theirs


def test_what_is_held_out_teaches_nothing_to_the_grid_that_it_chooses_from(case: Case, tmp_path: Path) -> None:
    held = choose_held_out(case.train.labels, 0.1, SEED)
    images = case.train.images.copy()
    images[held] = tiny_images(int(held.sum()))
    changed = ArraySource(images, case.train.labels, case.train.classes)
    one = {"optimisers": ("sgd",), "lrs": (1.0,), "weight_decays": (0.0,)}
    case(**one, state=tmp_path / "before")
    case(**one, source=changed, state=tmp_path / "after")
    before, after = final_state(tmp_path / "before"), final_state(tmp_path / "after")
    for name in before:
        assert torch.equal(before[name], after[name]) == name.startswith("choosing."), name


def test_a_classifier_that_diverges_harms_no_other(case: Case) -> None:
    one = {"optimisers": ("sgd",), "weight_decays": (0.0,)}
    good, bad = case(lrs=(1.0, 1e39), **one).details["grid"]
    assert bad["diverged"]
    assert bad["test_top1"] == bad["held_out_top1"] == 0
    assert good == case(lrs=(1.0,), **one).details["grid"][0]


def test_fewer_images_than_a_batch_are_one_batch(case: Case) -> None:
    one = {"optimisers": ("lars",), "weight_decays": (0.0,)}
    exact = case(batch_size=TRAIN, lrs=(256 / TRAIN,), **one)
    larger = case(batch_size=1000, lrs=(256 / 1000,), **one)
    assert exact.details == larger.details


def test_bf16_is_near(case: Case) -> None:
    one = {"optimisers": ("sgd",), "lrs": (1.0,), "weight_decays": (0.0,), "precision": "bf16"}
    seen: list[torch.dtype] = []
    hook = case.encoder[0].register_forward_hook(lambda _m, _i, output: seen.append(output.dtype))
    value = case(**one).values["top1"]
    hook.remove()
    assert set(seen) == {torch.bfloat16}
    assert value == pytest.approx(case(**{**one, "precision": "fp32"}).values["top1"], abs=0.1)


def test_progress_counts_images(case: Case, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    case(progress=lambda *at: seen.append(at), state=tmp_path)
    assert seen[0] == (even_batches(TRAIN, BATCH)[0].stop, EPOCHS * TRAIN)
    assert [done for done, _ in seen] == sorted({done for done, _ in seen})
    assert seen[-1] == (EPOCHS * TRAIN, EPOCHS * TRAIN)
    seen.clear()
    case(progress=lambda *at: seen.append(at), state=tmp_path)
    assert not seen  # all was done before


def killed_run(folder: Path) -> None:
    """What the process does that is killed: a save after every step."""
    Case()(state=folder, save_seconds=0.0, epochs=60)


@pytest.mark.slow
def test_a_killed_run_continues_to_the_same_bits(case: Case, tmp_path: Path) -> None:
    code = "import sys, torch; from pathlib import Path; torch.set_num_threads(1)\n"
    code += "from tests.evaluation.test_linear_images import killed_run; killed_run(Path(sys.argv[1]))"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "killed")], env=environment)
    end = time.monotonic() + 120
    while not any(step_of(path) > 7 for path in (tmp_path / "killed").glob("*/step-*")):
        assert process.poll() is None, "it ended by itself"
        assert time.monotonic() < end
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    (place,) = (tmp_path / "killed").iterdir()
    steps = 60 * -(-TRAIN // BATCH)
    assert 7 < step_of(list_checkpoints(place)[-1]) < steps
    seen: list[int] = []
    continued = case(state=tmp_path / "killed", epochs=60, progress=lambda done, _all: seen.append(done))
    assert seen[0] > 7 * even_batches(TRAIN, BATCH)[0].stop
    whole = case(state=tmp_path / "whole", epochs=60)
    assert json.dumps(asdict(continued)) == json.dumps(asdict(whole))
    assert_same_bits(final_state(tmp_path / "killed"), final_state(tmp_path / "whole"))


def step_of(path: Path) -> int:
    return int(path.name.removeprefix("step-"))


def test_a_state_is_continued_by_the_same_call_only(case: Case, tmp_path: Path) -> None:
    one: dict[str, Any] = {"optimisers": ("sgd",), "lrs": (1.0,), "weight_decays": (0.0,), "epochs": 2}
    fewer = np.arange(TRAIN - 1)
    calls = [
        {},
        {"seed": 3},
        {"weights_hash": "other"},
        {"epochs": 3},
        {"precision": "bf16"},
        {"lrs": (0.5,)},
        {"train_labels": case.train.labels[::-1].copy()},
        {"train": case.features[fewer], "train_labels": case.train.labels[fewer], "indices": fewer},
    ]
    for number, changes in enumerate(calls, start=1):
        case(**{**one, **changes}, state=tmp_path)
        assert len(list(tmp_path.iterdir())) == number
    with pytest.raises(ConfigError, match="weights_hash"):
        case(weights_hash="", state=tmp_path)


def test_a_damaged_state_is_passed_over(case: Case, tmp_path: Path) -> None:
    whole = case(state=tmp_path, save_seconds=0.0)
    (place,) = tmp_path.iterdir()
    newest = list_checkpoints(place)[-1] / "tensors.safetensors"
    newest.write_bytes(newest.read_bytes()[:-1] + b"x")
    told: list[str] = []
    assert case(state=tmp_path, warn=told.append).values == whole.values
    assert len(told) == 1
    assert "Using the previous one" in told[0]


def photographs(folder: Path) -> FolderSource:
    return FolderSource(write_images(folder, tiny_images(60, 80), classes=3))


def on_photographs(source: FolderSource, indices: np.ndarray, **changes: Any) -> Result:
    net = make_encoder()
    found = extract(net, source, size=72, device=CPU)
    rows = np.flatnonzero(np.isin(found.indices, indices))
    images = found.indices[rows]
    return linear_on_images(
        found.features[rows], source.labels[images], found.features[rows], source.labels[images], encoder=net,
        source=source, indices=images, size=72, device=CPU,
        **{"workers": 0, "epochs": 2, "batch_size": 16, "lrs": (1.0,), **changes},
    )  # fmt: skip


def test_photographs_with_any_number_of_workers(tmp_path: Path) -> None:
    source = photographs(tmp_path)
    results = [on_photographs(source, np.arange(60), workers=workers) for workers in (0, 2)]
    assert results[0] == results[1]


def test_images_without_features_are_not_used_and_one_that_is_lost_is_left_out(tmp_path: Path) -> None:
    source = photographs(tmp_path)
    paths = [Path(source.place(i)) for i in range(60)]
    without = on_photographs(source, np.arange(1, 60))
    paths[0].write_bytes(b"")
    told: list[str] = []
    assert on_photographs(source, np.arange(60), warn=told.append) == without
    assert not told  # the extractor has told

    def lose(numbers: list[int]) -> Any:
        """Images vanish after their features were made."""

        def progress(_done: int, _all: int) -> None:
            for i in numbers:
                paths[i].write_bytes(b"")

        return progress

    on_photographs(source, np.arange(60), warn=told.append, progress=lose([1, 2]))
    assert len(told) == 1
    assert told[0].startswith("2 of 59 training images cannot be read and are left out; the first is ")
    with pytest.raises(BadImagesError, match=r"of 57 training images cannot be read .* restore them and run the same"):
        on_photographs(source, np.arange(60), progress=lose(list(range(60))))


MISTAKES: list[tuple[dict[str, Any], str]] = [
    ({"train_labels": np.zeros(TRAIN, dtype=np.int64)}, "only one class"),
    ({"train_labels": None}, "the training images have no labels"),
    ({"indices": np.arange(3)}, "received 140 rows and 3 images of train"),
    ({"indices": np.arange(TRAIN) // 2}, "must be different images of train, which has 140"),
    ({"indices": np.arange(TRAIN) + 1}, "must be different images of train"),
    ({"source": part("test", TEST)}, "received 140 rows and 70 images of test"),
    ({"encoder": nn.Sequential(make_encoder(), nn.Linear(96, 5))}, r"features of shape \[5\], but .* length 96"),
]


@pytest.mark.parametrize(("changes", "message"), MISTAKES, ids=[message[:30] for _, message in MISTAKES])
def test_mistakes_are_told_in_one_line(case: Case, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(CarpError, match=message) as told:
        case(**changes)
    assert "\n" not in str(told.value)


def test_nothing_to_read(case: Case, tmp_path: Path) -> None:
    source = photographs(tmp_path)
    features = np.ones((60, 96), dtype=np.float32)
    for path in tmp_path.glob("*/*.png"):
        path.write_bytes(b"")
    for size, wanted in ((72, BadImagesError), (32, DataError)):
        with pytest.raises(wanted, match="the file is empty"):
            case(source=source, train=features, train_labels=source.labels, test=features, test_labels=source.labels,
                 size=size)  # fmt: skip
