"""LARS against numbers worked out by hand and against the loops; who is decayed; saving and loading state."""

import numpy as np
import pytest
import torch
from torch import nn

from carp.config import Config
from carp.model.assigner import Assigner
from carp.training.optimiser import (
    LARS,
    build_optimiser,
    load_optimiser_tensors,
    optimiser_tensors,
    set_hyperparameters,
)
from tests.reference import carp_numpy


def parameter(values, gradient=None):
    p = nn.Parameter(torch.tensor(values, dtype=torch.float64))
    p.grad = None if gradient is None else torch.tensor(gradient, dtype=torch.float64)
    return p


def network(dtype=torch.float64):
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 5)]
    return nn.Sequential(*layers).to(dtype)


def backward(module, seed):
    x = torch.randn(6, 3, 4, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    dtype = next(module.parameters()).dtype
    module.zero_grad()
    module(x.to(dtype)).square().mean().backward()


def config(**settings):
    return Config(**{"batch_size": 256, "lr": 0.5, "weight_decay": 0.1, **settings})


# LARS


def test_a_step_by_hand():
    # ‖p‖ = 5, u = g = (0, 2), ‖u‖ = 2: the update is (0, 2) · 0.01 · 5 / 2 = (0, 0.05), and 10 times that is taken.
    p = parameter([[3.0, 4.0]], [[0.0, 2.0]])
    optimiser = LARS([p], lr=10.0, momentum=0.9, weight_decay=0.0, trust=0.01)
    optimiser.step()
    assert p.tolist() == [[3.0, pytest.approx(3.5, abs=1e-12)]]
    # Again, now ‖p‖ = √(9 + 12.25) = 4.6097722, so u = (0, 0.046097722) and m = 0.9 · 0.05 + u = 0.091097722.
    optimiser.step()
    assert p.tolist() == [[3.0, pytest.approx(3.5 - 0.91097722, abs=1e-7)]]


def test_weight_decay_by_hand():
    # u = g + 0.5 p = (1.5, 0) + (1.5, 2) = (3, 2), ‖u‖ = √13; the ratio is 0.1 · 5 / √13 = 0.138675.
    p = parameter([[3.0, 4.0]], [[1.5, 0.0]])
    LARS([p], lr=1.0, momentum=0.0, weight_decay=0.5, trust=0.1).step()
    assert p.tolist() == [[pytest.approx(3 - 0.4160251, abs=1e-7), pytest.approx(4 - 0.2773501, abs=1e-7)]]


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_several_steps_with_momentum_equal_the_loops(weight_decay):
    rng = np.random.default_rng(0)
    shapes = [(4, 3), (2, 3, 3, 3), (5,), (1, 1)]
    tensors = [rng.normal(size=shape) for shape in shapes]
    buffers = [np.zeros(shape) for shape in shapes]
    params = [parameter(values) for values in tensors]
    settings = {"lr": 0.3, "momentum": 0.9, "trust": 0.02}
    optimiser = LARS(params, weight_decay=weight_decay, **settings)
    for _ in range(6):
        for i, p in enumerate(params):
            gradient = rng.normal(size=shapes[i])
            p.grad = torch.from_numpy(gradient)
            tensors[i], buffers[i] = carp_numpy.lars_step(
                tensors[i], gradient, buffers[i], weight_decay=weight_decay, **settings
            )
        optimiser.step()
    for p, expected in zip(params, tensors, strict=True):
        np.testing.assert_allclose(p.detach().numpy(), expected, rtol=1e-12, atol=1e-12)


def test_a_whole_network_moves_as_the_loops_say_matrices_adapted_and_vectors_not():
    module = network()
    optimiser = build_optimiser(module, config(optimiser="lars", trust=0.01))
    values = {name: p.detach().numpy().copy() for name, p in module.named_parameters()}
    buffers = {name: np.zeros_like(v) for name, v in values.items()}
    for step in range(4):
        lr = 0.5 / (step + 1)
        set_hyperparameters(optimiser, lr=lr, weight_decay=0.1)
        backward(module, step)
        for name, p in module.named_parameters():
            matrix = p.ndim > 1
            values[name], buffers[name] = carp_numpy.lars_step(
                values[name],
                p.grad.numpy(),
                buffers[name],
                lr=lr,
                momentum=0.9,
                weight_decay=0.1 if matrix else 0.0,
                trust=0.01,
                adapt=matrix,
            )
        optimiser.step()
    for name, p in module.named_parameters():
        np.testing.assert_allclose(p.detach().numpy(), values[name], rtol=1e-10, atol=1e-12, err_msg=name)


def test_vectors_are_neither_decayed_nor_adapted():
    module = network()
    optimiser = build_optimiser(module, config(optimiser="lars"))
    set_hyperparameters(optimiser, lr=0.5, weight_decay=100.0)
    backward(module, 0)
    before = {name: p.detach().clone() for name, p in module.named_parameters()}
    optimiser.step()
    for name in ("0.bias", "1.weight", "1.bias", "4.bias"):
        p = module.get_parameter(name)
        torch.testing.assert_close(p.detach(), before[name] - 0.5 * p.grad, rtol=1e-12, atol=1e-15)


def test_the_length_of_an_adapted_step_is_trust_times_the_norm_of_the_weight():
    p = parameter([[3.0, 4.0]], [[1e-9, -2e-9]])
    LARS([p], lr=1.0, momentum=0.0, trust=0.001).step()
    moved = p.detach() - torch.tensor([[3.0, 4.0]], dtype=torch.float64)
    assert float(moved.norm()) == pytest.approx(0.005, rel=1e-12)


def test_a_zero_gradient_moves_nothing_and_is_not_nan():
    p = parameter([[3.0, 4.0]], [[0.0, 0.0]])
    LARS([p], lr=1.0, momentum=0.9, weight_decay=0.0).step()
    assert p.tolist() == [[3.0, 4.0]]


def test_a_zero_gradient_with_weight_decay_shrinks_by_trust():
    p = parameter([[3.0, 4.0]], [[0.0, 0.0]])
    LARS([p], lr=1.0, momentum=0.0, weight_decay=0.1, trust=0.01).step()
    torch.testing.assert_close(p.detach(), torch.tensor([[3.0, 4.0]], dtype=torch.float64) * 0.99)


def test_a_zero_weight_moves_by_its_plain_gradient():
    p = parameter([[0.0, 0.0]], [[1.0, -2.0]])
    LARS([p], lr=0.5, momentum=0.9, weight_decay=0.1).step()
    assert p.tolist() == [[-0.5, 1.0]]


def test_a_parameter_without_gradient_is_left_alone():
    still, moving = parameter([[1.0]]), parameter([[1.0]], [[1.0]])
    LARS([still, moving], lr=1.0, trust=0.1).step()
    assert still.tolist() == [[1.0]]
    assert moving.tolist() == [[pytest.approx(0.9)]]


def test_one_tensor_does_not_change_the_step_of_another():
    alone, together = (parameter([[3.0, 4.0]], [[0.0, 2.0]]) for _ in range(2))
    LARS([alone], lr=1.0).step()
    LARS([parameter([[1e6]], [[1e6]]), together], lr=1.0).step()
    assert together.tolist() == alone.tolist()


# The choice among three


@pytest.mark.parametrize("name", ["lars", "sgd", "adamw"])
def test_weight_decay_falls_on_matrices_only(name):
    module = network()
    optimiser = build_optimiser(module, config(optimiser=name))
    set_hyperparameters(optimiser, lr=0.5, weight_decay=0.1)
    decay = {id(p): group["weight_decay"] for group in optimiser.param_groups for p in group["params"]}
    expected = {"0.weight": 0.1, "0.bias": 0.0, "1.weight": 0.0, "1.bias": 0.0, "4.weight": 0.1, "4.bias": 0.0}
    assert {name: decay[id(p)] for name, p in module.named_parameters()} == expected
    assert all(group["lr"] == 0.5 for group in optimiser.param_groups)


@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_without_gradient_sgd_and_adamw_shrink_matrices_and_keep_vectors(name):
    module = network()
    optimiser = build_optimiser(module, config(optimiser=name))
    set_hyperparameters(optimiser, lr=0.5, weight_decay=0.1)
    before = {name: p.detach().clone() for name, p in module.named_parameters()}
    for p in module.parameters():
        p.grad = torch.zeros_like(p)
    optimiser.step()
    for key, p in module.named_parameters():
        factor = 0.95 if p.ndim > 1 else 1.0
        torch.testing.assert_close(p.detach(), before[key] * factor, rtol=1e-12, atol=0)


@pytest.mark.parametrize("name", ["lars", "sgd", "adamw"])
def test_frozen_parameters_are_not_given_to_the_optimiser(name):
    module = network()
    module[0].requires_grad_(False)
    optimiser = build_optimiser(module, config(optimiser=name))
    held = {id(p) for group in optimiser.param_groups for p in group["params"]}
    assert held == {id(p) for p in (*module[1].parameters(), *module[4].parameters())}


# Saving and loading


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("name", ["lars", "sgd", "adamw"])
def test_state_saved_and_loaded_continues_to_the_same_bits(name, channels_last):
    layout = torch.channels_last if channels_last else torch.contiguous_format

    def made():
        module = network(torch.float32).to(memory_format=layout)
        return module, build_optimiser(module, config(optimiser=name))

    def steps(module, optimiser, numbers):
        for number in numbers:
            set_hyperparameters(optimiser, lr=0.05, weight_decay=0.1)
            backward(module, number)
            optimiser.step()

    module, optimiser = made()
    steps(module, optimiser, range(3))
    weights = {k: v.clone() for k, v in module.state_dict().items()}
    # What goes through a file comes back contiguous
    saved = {k: v.clone().contiguous() for k, v in optimiser_tensors(optimiser, module).items()}
    steps(module, optimiser, range(3, 6))

    other, continued = made()
    other.load_state_dict(weights)
    load_optimiser_tensors(continued, other, saved)
    for p in other.parameters():
        for slot, value in continued.state[p].items():
            if isinstance(value, torch.Tensor) and value.shape == p.shape:
                assert value.stride() == p.stride(), slot
                assert not value.requires_grad
    steps(other, continued, range(3, 6))
    for (key, p), q in zip(module.named_parameters(), other.parameters(), strict=True):
        assert torch.equal(p, q), key


@pytest.mark.parametrize("name", ["lars", "sgd"])
def test_state_is_named_by_parameter_and_slot(name):
    module = network()
    optimiser = build_optimiser(module, config(optimiser=name))
    assert optimiser_tensors(optimiser, module) == {}
    backward(module, 0)
    optimiser.step()
    expected = {f"{key}/momentum_buffer" for key, _ in module.named_parameters()}
    assert set(optimiser_tensors(optimiser, module)) == expected


def test_loaded_state_does_not_share_memory_with_what_was_loaded():
    module = network()
    optimiser = build_optimiser(module, config(optimiser="lars"))
    saved = {"0.weight/momentum_buffer": torch.ones(4, 3, 3, 3, dtype=torch.float64)}
    load_optimiser_tensors(optimiser, module, saved)
    saved["0.weight/momentum_buffer"].zero_()
    assert float(optimiser.state[module[0].weight]["momentum_buffer"].sum()) == 4 * 27


# The pace of the prototypes


@pytest.mark.parametrize("name", ["lars", "sgd"])
def test_prototypes_move_at_their_own_pace_and_everything_else_does_not(name):
    moved = {}
    for pace in (1.0, 0.1, 0.0):
        torch.manual_seed(0)
        module = nn.ModuleDict({"linear": nn.Linear(4, 4), "assigner": Assigner(8, 4)})
        before = {key: p.detach().clone() for key, p in module.named_parameters()}
        optimiser = build_optimiser(module, config(optimiser=name, prototype_lr=pace))
        set_hyperparameters(optimiser, lr=20.0 if name == "lars" else 0.5, weight_decay=0.0)
        (module["linear"](torch.ones(2, 4)) @ module["assigner"]().T).square().sum().backward()
        optimiser.step()
        moved[pace] = {key: p.detach() - before[key] for key, p in module.named_parameters()}
    for key, full in moved[1.0].items():
        share = 0.1 if key.startswith("assigner") else 1.0
        torch.testing.assert_close(moved[0.1][key], share * full, rtol=1e-4, atol=1e-7)
    assert float(moved[0.0]["assigner.directions_KD"].abs().max()) == 0
