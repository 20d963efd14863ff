"""Every compared method trains, from the same encoder, with a range around its published setting."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("lightly", reason="the extra `bench` is not installed")

from benchmarks.compare.methods import IDEAS, KNOWN, METHODS
from benchmarks.compare.methods.decorrelation import BarlowTwins, VICReg
from benchmarks.compare.ranges import Choice, LogUniform, trial_settings
from benchmarks.compare.training import MethodTraining
from lightly.loss import BarlowTwinsLoss, VICRegLoss

from carp.config import resolve
from carp.config.recipe import read_recipe
from carp.errors import CheckpointError
from carp.images.loading.loader import Batch
from carp.training.loop import build_model
from carp.training.optimiser import build_optimiser
from carp.training.step import Stepper
from tests.benchmarks.compared import BATCH, SIZE, coloured, training


def weights(run: MethodTraining) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in run._tensors().items()}


def same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("name", KNOWN)
def test_every_method_learns_a_batch_with_the_gradient_of_every_parameter(name: str) -> None:
    run = training(name, coloured(BATCH), epochs=100)
    (batch,) = run.loader.batches(0, 1)
    batch = replace(batch, step=50)  # after warm-up and frozen layers
    losses = list[float]()
    for _ in range(12):
        run.step(batch)
        losses.append(run.last_loss)
        trained = {key: p.grad for key, p in run.method.named_parameters() if p.requires_grad}
        assert not [key for key, gradient in trained.items() if gradient is None or not gradient.isfinite().all()]
    start = 4 if name in {"moco", "carp-memory"} else 0  # what they remember is random at first
    assert losses[-1] < losses[start]


def test_all_methods_start_from_the_same_encoder() -> None:
    found = [training(name, coloured(BATCH)).method.encoders() for name in KNOWN]
    first = found[0]["student"].state_dict()
    for encoders in found:
        for encoder in encoders.values():
            assert same(first, encoder.state_dict())


def test_carp_here_is_the_carp_that_users_train() -> None:
    source = coloured(4 * BATCH)
    run = training("carp", source, epochs=1)
    run.run()
    model = build_model(run.config, torch.device("cpu"))
    theirs = Stepper(model, build_optimiser(model, run.config), run.schedules, run.config, torch.device("cpu"))
    for batch in run.loader.batches(0, run.num_steps):
        theirs(batch)
    ours = run.method.get_submodule("model").state_dict()
    assert same(ours, model.state_dict())


@pytest.mark.parametrize(
    ("name", "lightly_loss"), [("barlow", BarlowTwinsLoss(0.0051)), ("vicreg", VICRegLoss(25.0, 25.0, 1.0))]
)
@pytest.mark.parametrize("images", [3, 12])
def test_decorrelation_is_that_of_lightly(name: str, lightly_loss: torch.nn.Module, images: int) -> None:
    """With fewer images than dimensions, with as many, and with dimensions that are nearly constant."""
    method = training(name, coloured(BATCH)).method
    assert isinstance(method, BarlowTwins | VICReg)
    generator = torch.Generator().manual_seed(images)
    scales = torch.logspace(-3, 0.5, 12, dtype=torch.float64)
    both = scales * torch.randn(2, images, 12, generator=generator, dtype=torch.float64) + 0.5
    ours, theirs = both.clone().requires_grad_(), both.clone().requires_grad_()
    own, other = method.loss_of(*ours), lightly_loss(*theirs)
    torch.testing.assert_close(own, other)
    own.backward()  # type: ignore[no-untyped-call]
    other.backward()
    torch.testing.assert_close(ours.grad, theirs.grad)


def test_teachers_follow_and_others_have_none() -> None:
    for name in METHODS:
        run = training(name, coloured(2 * BATCH), epochs=1)
        before = {branch: first_weights(encoder) for branch, encoder in run.method.encoders().items()}
        run.run()
        assert ("teacher" in before) == (name in {"carp", "dino", "byol", "moco"})
        after = {branch: first_weights(encoder) for branch, encoder in run.method.encoders().items()}
        moved = {branch: float((after[branch] - before[branch]).norm()) for branch in after}
        assert moved["student"] > moved.get("teacher", 0.0)
        assert moved.get("teacher", 1.0) > 0


def first_weights(encoder: torch.nn.Module) -> torch.Tensor:
    return next(encoder.parameters()).detach().clone()


class KilledError(Exception):
    pass


@pytest.mark.parametrize("name", ["carp", "carp-memory", "dino", "moco", "swav"])
def test_a_killed_training_resumes_to_the_same_bits(name: str, tmp_path: Path) -> None:
    """Queues and centres are part of the state."""
    source = coloured(6 * BATCH)
    whole = training(name, source, epochs=1)
    assert whole.run() == 0
    again = training(name, source, epochs=1)
    take = again.step

    def step(batch: Batch) -> None:
        if batch.step == 5:
            raise KilledError
        take(batch)

    again.step = step  # type: ignore[method-assign]
    with pytest.raises(KilledError):
        again.run(tmp_path, save_steps=4)
    resumed = training(name, source, epochs=1)
    assert resumed.run(tmp_path) == 4
    assert same(weights(whole), weights(resumed))


def test_a_checkpoint_of_other_settings_is_refused(tmp_path: Path) -> None:
    source = coloured(6 * BATCH)
    training("byol", source, epochs=1).run(tmp_path, save_steps=4)
    with pytest.raises(CheckpointError, match=r"trained with other settings. Move that folder away"):
        training("byol", source, epochs=1, seed=1).run(tmp_path)
    other = training("byol", source, epochs=1)
    other.trial["lr"] = 0.7
    with pytest.raises(CheckpointError, match="other settings"):
        other.run(tmp_path)
    assert training("byol", source, epochs=1).run(tmp_path) > 0


def test_draws_stay_inside_the_range_and_begin_with_the_published_setting() -> None:
    for name, method in KNOWN.items():
        assert all(values.published in values for values in method.search.values())
        published = {key: values.published for key, values in method.search.items()}
        drawn = [trial_settings(name, method.search, number, trials=40, seed=0) for number in range(40)]
        assert drawn[0] == published
        assert all(settings[key] in method.search[key] for settings in drawn for key in settings)
        again = [trial_settings(name, method.search, number, trials=40, seed=0) for number in range(1, 40)]
        assert drawn[1:] == again
        searched = any(not isinstance(values, Choice) or len(values.values) > 1 for values in method.search.values())
        assert (drawn[1] != trial_settings(name, method.search, 1, trials=40, seed=1)) == searched
        assert searched == (not name.startswith("lightly-"))


@pytest.mark.parametrize("trials", [2, 8, 30])
def test_draws_are_spread_evenly_over_every_range(trials: int) -> None:
    for name, method in KNOWN.items():
        settings = [trial_settings(name, method.search, number, trials=trials, seed=0) for number in range(1, trials)]
        for key, values in method.search.items():
            drawn = [one[key] for one in settings]
            if isinstance(values, LogUniform):
                places = [math.log(value / values.low) / math.log(values.high / values.low) for value in drawn]
                parts = sorted(place * (trials - 1) for place in places)
                assert all(part - 0.05 <= value <= part + 1.05 for part, value in enumerate(parts))  # three digits
            else:
                assert isinstance(values, Choice)
                counts = [drawn.count(value) for value in values.values]
                assert max(counts) - min(counts) <= 1 + len(counts) // 2
    search = METHODS["carp"].search
    one, other = (
        [trial_settings("carp", search, n, trials=30, seed=0)[key] for n in range(1, 30)]
        for key in ("lr", "entropy_weight")
    )
    assert abs(np.corrcoef(np.log(one), np.log(other))[0, 1]) < 0.5


def test_the_recipe_is_inside_the_range_of_carp() -> None:
    recipe = read_recipe("cifar10-cpu")
    for key, values in METHODS["carp"].search.items():
        value = recipe[key][0] if isinstance(recipe[key], list) else recipe[key]
        assert value in values, key
    for key in ("embedding", "num_prototypes", "block_size"):
        assert METHODS["carp"].fixed[key] == recipe[key]


def test_small_crops_take_fewer_steps() -> None:
    source = coloured(2 * BATCH)
    plain, crops = (training(name, source, epochs=10) for name in ("carp", "carp-crops"))
    assert crops.num_steps == 0.7 * plain.num_steps
    (batch,) = crops.loader.batches(0, 1)
    assert [view.shape[-1] for view in batch.views] == [SIZE] * 2 + [crops.config.local_size] * 4


def test_an_idea_without_effect_is_carp() -> None:
    source, runs = coloured(2 * BATCH), list[MethodTraining]()
    for name, changes in (("carp", {}), ("carp-sharp", {"sharpening": 1.0})):
        run = training(name, source, epochs=1)
        for key, value in changes.items():
            assert hasattr(run.method, key)
            setattr(run.method, key, value)
        run.run()
        runs.append(run)
    assert all(same(weights(runs[0]), weights(run)) for run in runs[1:])
    assert all(issubclass(idea, type(runs[0].method)) for idea in IDEAS.values())


def test_the_spread_is_the_weight_of_koleo() -> None:
    run = training("carp-spread", coloured(2 * BATCH), epochs=1)
    weight = IDEAS["carp-spread"].search["spread"].published
    assert run.config.koleo_weight == weight > 0
    plain = training("carp", coloured(2 * BATCH), epochs=1)
    assert plain.config.koleo_weight == 0
    for each in (plain, run):
        (batch,) = each.loader.batches(0, 1)
        each.step(batch)
    assert run.last_loss != plain.last_loss


def test_strong_koleo_is_weak_between_close_neighbours() -> None:
    losses = []
    for distance in (1e-4, 0.5):
        run = training("carp-koleo", coloured(2 * BATCH), epochs=1)
        assert (run.config.koleo_distance, run.config.embedding_length) == (0.5, 22.6)
        run.method.config = run.config.model_copy(update={"koleo_distance": distance})
        (batch,) = run.loader.batches(0, 1)
        run.step(batch)
        losses.append(run.last_loss)
    assert losses[1] < losses[0]


@pytest.mark.parametrize("recipe", ["folder", "small-images"])
def test_the_first_trial_of_the_recipe_is_what_the_recipe_says(recipe: str) -> None:
    config, written = training("carp-recipe", coloured(BATCH), small=False).config, read_recipe(recipe)
    head = [key for key in IDEAS["carp-recipe"].fixed if key in written]
    compared = [*head, *IDEAS["carp-recipe"].search, "prototype_lr"]
    assert {"koleo_distance", "entropy_weight", "num_prototypes", "teacher_momentum"} <= set(head)
    resolved = resolve(written, num_images=1000)
    assert {key: getattr(config, key) for key in compared} == {key: getattr(resolved, key) for key in compared}


def test_the_memory_holds_the_newest_embeddings_and_has_no_gradient() -> None:
    run = training("carp-memory", coloured(2 * BATCH), epochs=1)
    before = run.method.get_buffer("memory_KD").clone()
    (batch,) = run.loader.batches(0, 1)
    run.step(batch)
    after = run.method.get_buffer("memory_KD")
    assert torch.equal(after[2 * BATCH :], before[: -2 * BATCH])
    assert torch.allclose(after.norm(dim=1), torch.ones(len(after)), atol=1e-5)
    assert not torch.equal(after[: 2 * BATCH], before[: 2 * BATCH])
    assert not after.requires_grad
