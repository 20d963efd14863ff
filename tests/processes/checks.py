"""What is checked inside processes that torchrun started; every function is called by all of them.

torchrun --nproc-per-node 3 -m tests.processes.checks
"""

import copy
import datetime
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, get_args
from unittest import mock

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from carp.compute import distributed
from carp.compute.gradient_sum import GradientSum
from carp.config import resolve
from carp.images.loading.loader import make_loader
from carp.images.loading.order import Order
from carp.images.sources.array import ArraySource
from carp.model.batch_norm import synchronise
from carp.model.carp import Embedded
from carp.model.head import Uniformity
from carp.model.loss import carp_loss
from carp.model.partition import random_partition
from carp.model.shared_loss import sharded_loss, shared_loss
from carp.training import step as step_module
from carp.training.loop import build_model
from carp.training.micro_batch import divide
from carp.training.optimiser import build_optimiser
from carp.training.schedules import Schedules
from carp.training.step import Stepper
from tests.helpers import TINY, tiny_images

CPU = torch.device("cpu")
DELAY, LAYERS = 0.05, 4  # seconds of a slow operation, and how many there are


def own(rows: Tensor) -> Tensor:
    return rows[slice(*distributed.share(len(rows), distributed.rank()))]


def sums_and_rows() -> None:
    rank, world = distributed.rank(), distributed.world_size()
    tensors = [torch.full((3,), float(rank)), torch.ones(2, 3, dtype=torch.float64), torch.full((2, 2), 1 + rank).t()]
    distributed.all_reduce_sum(tensors)
    total = world * (world - 1) // 2
    assert tensors[0].tolist() == [total] * 3
    assert tensors[1].tolist() == [[world] * 3] * 2
    assert tensors[2].tolist() == [[total + world] * 2] * 2
    assert distributed.all_reduce_max([rank, -rank]) == [world - 1, 0]
    assert distributed.all_gather_rows(torch.full((rank, 2), rank)).tolist() == [
        [r] * 2 for r in range(world) for _ in range(r)
    ]
    rows = torch.arange(7.0) + 10 * rank
    first, last = distributed.share(7, rank)
    assert torch.equal(distributed.reduce_scatter_rows(rows, last - first), own(world * torch.arange(7.0) + 10 * total))
    assert distributed.gather(None) == [None] * world
    assert distributed.gather([rank, "ü"] if rank else None) == [None, *([r, "ü"] for r in range(1, world))]


def gradients() -> None:
    """The gradient of all processes, summed, is that of one process with the whole batch: to the last digits."""
    for uniformity in get_args(Uniformity):
        _gradients({"entropy_weight": 2.0, "uniformity": uniformity})
        _gradients({"entropy_weight": 2.0, "uniformity": uniformity, "koleo_weight": 0.5, "koleo_distance": 0.3})


def _gradients(options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    B, F_in, D, K, N = 7, 5, 6, 48, 8  # 7 images on 3 processes: 2, 2 and 3
    x = torch.randn(3, B, F_in, dtype=torch.float64)
    w = 3 * torch.randn(2, B, D, dtype=torch.float64)
    weight = (3 * torch.randn(F_in, D, dtype=torch.float64)).requires_grad_()
    prototypes = F.normalize(torch.randn(K, D, dtype=torch.float64), dim=-1).requires_grad_()
    teacher = F.normalize(torch.randn(K, D, dtype=torch.float64), dim=-1)
    shard = slice(*distributed.share(K, distributed.rank()))

    inside = torch.cat([random_partition(16, N) + 16 * s for s in range(3)])  # of three shards
    whole = carp_loss(x @ weight, w, prototypes, teacher, inside, **options)
    expected = torch.autograd.grad(whole.total, [weight, prototypes])
    z = [own(view) @ weight for view in x]
    own_w = [own(view) for view in w]

    terms = shared_loss(Embedded(z, own_w, prototypes, teacher), inside, images=B, **options)
    found = list(torch.autograd.grad(terms.total, [weight, prototypes]))
    distributed.all_reduce_sum(found)
    _assert_close([*terms, *found], [*whole, *expected])

    z = [own(view) @ weight for view in x]
    held = prototypes[shard].detach().requires_grad_()
    local = inside[2 * distributed.rank() : 2 * distributed.rank() + 2] - shard.start
    terms = sharded_loss(Embedded(z, own_w, held, teacher[shard]), local, images=B, **options)
    on_weight, on_shard = torch.autograd.grad(terms.total, [weight, held])
    distributed.all_reduce_sum([on_weight])
    _assert_close([*terms, on_weight, on_shard], [*whole, expected[0], expected[1][shard]])


def batch_norms() -> None:
    """Synchronised batch norm is batch norm of all images: output, gradients, running statistics."""
    torch.manual_seed(1)
    half_dead = 5 + 3 * torch.randn(7, 4, 3, 5)
    half_dead[:4, 1] = 0  # all values of the first process are equal, and all values of a channel
    half_dead[:, 2] = 1
    for plain, values in (
        (nn.BatchNorm2d(4), 5 + 3 * torch.randn(7, 4, 3, 5)),
        (nn.BatchNorm2d(4), half_dead),
        (nn.BatchNorm1d(4, affine=False, momentum=None), torch.randn(7, 4)),
        (nn.BatchNorm1d(4), torch.randn(distributed.world_size(), 4)),  # one image per process
    ):
        plain.double()
        norm = synchronise(nn.Sequential(copy.deepcopy(plain)))[0]
        for shift in (0.0, 0.5):
            x = values.double() + shift
            upstream = torch.randn_like(x)
            all_x, own_x = x.clone().requires_grad_(), own(x).clone().requires_grad_()
            y, own_y = plain(all_x), norm(own_x)
            (y * upstream).sum().backward()
            (own_y * own(upstream)).sum().backward()
            _assert_close([own_y, own_x.grad], [own(y), own(all_x.grad)])
        found = [p.grad for p in norm.parameters()]
        distributed.all_reduce_sum(found)
        _assert_close(found, [p.grad for p in plain.parameters()])
        assert norm.state_dict().keys() == plain.state_dict().keys()
        _assert_close(list(norm.state_dict().values()), list(plain.state_dict().values()))
        _assert_close([norm.eval()(own(x))], [own(plain.eval()(x))])


def order() -> None:
    """Every image of every step belongs to one process, and its views are those that one process would make."""
    source = ArraySource(tiny_images(64))
    config = resolve({**TINY, "batch_size": 14, "micro_batch": 3}, num_images=64)
    views = [torch.zeros(0)] * 2
    whole = [indices for _, _, indices in Order.of_source(source, config).steps(0, 9)]
    for batch in make_loader(source, config).batches(0, 9):
        parts = divide(batch, config.micro_batch)
        assert len(parts) == 2  # ceil(5 / 3), also where there are 4 images
        assert sum(part.images for part in parts) == batch.num_images == 14
        assert sum(len(part.views[0]) for part in parts) == len(batch.indices)
        joined = distributed.all_gather_rows(torch.from_numpy(batch.indices))
        np.testing.assert_array_equal(joined.numpy(), whole[batch.step])
        views = [distributed.all_gather_rows(view.contiguous()) for view in batch.views]
    world_size, distributed.world_size = distributed.world_size, lambda: 1
    rank, distributed.rank = distributed.rank, lambda: 0
    try:
        *_, last = make_loader(source, config).batches(0, 9)
    finally:
        distributed.world_size, distributed.rank = world_size, rank
    for ours, theirs in zip(views, last.views, strict=True):
        assert torch.equal(ours, theirs)


def overflow() -> None:
    """A gradient that overflows in one process skips the step in all, also if it is that of a shard."""
    last = distributed.rank() == distributed.world_size() - 1
    for shards in ({}, {"prototypes": "sharded", "prototype_shards": 3}):
        config = resolve({**TINY, "num_prototypes": 96, "precision": "fp16", **shards}, num_images=64)
        model = build_model(config, CPU).train()
        loader = make_loader(ArraySource(tiny_images(64)), config)
        stepper = Stepper(model, build_optimiser(model, config), Schedules(config, 4), config, CPU)
        directions = model.student.assigner.directions_KD
        hook = directions.register_hook(lambda gradient: gradient * (float("inf") if last else 1.0))
        before = {name: p.detach().clone() for name, p in model.named_parameters()}
        first, second = loader.batches(0, 2)
        result = stepper(first)
        assert result.finite
        assert not result.applied
        assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())
        hook.remove()
        assert stepper(second).applied
        assert distributed.gather(stepper.loss_scale.value) == [2.0**15] * distributed.world_size()


def early_sums() -> None:
    """Gradients that travel during the backward pass have the bits of gradients that are added up after it."""

    class Afterwards(GradientSum):
        @contextmanager
        def overlapping(self, _passes: int, *, once: object = ()) -> Iterator[None]:
            yield
            for tensor in self._averaged:
                tensor.div_(distributed.world_size())
            gradients = [p.grad for p in self._parameters if p.grad is not None]
            distributed.all_reduce_sum([*gradients, *self._averaged])

    for settings in (
        {},
        {"micro_batch": 4},
        {"micro_batch": 4, "accumulate": "fast", "local_views": 1, "local_size": 16},
        {"sync_batch_norm": False, "micro_batch": 4},
        {"prototypes": "sharded", "prototype_shards": 3},
    ):
        config = resolve({**TINY, "num_prototypes": 96, **settings}, num_images=64)
        ends = []
        for kind in (GradientSum, Afterwards):
            with (
                mock.patch.object(step_module, "GradientSum", kind),
                mock.patch.object(distributed, "_BUCKET_BYTES", 4096),
            ):
                model = build_model(config, CPU).train()
                stepper = Stepper(model, build_optimiser(model, config), Schedules(config, 4), config, CPU)
                assert len(stepper.gradient_sum._buckets) > 3
                for batch in make_loader(ArraySource(tiny_images(64)), config).batches(0, 2):
                    stepper(batch)
            ends.append(model.state_dict())
        assert all(torch.equal(value, ends[1][name]) for name, value in ends[0].items()), settings


class Slow(torch.autograd.Function):
    """The identity; its backward pass takes a while."""

    @staticmethod
    def forward(_ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(_ctx: Any, gradient: Tensor) -> Tensor:
        time.sleep(DELAY)
        return gradient


class SlowNetwork:
    """Adds a delay to every sum, one after the other."""

    def __init__(self) -> None:
        self.real, self.free_at = torch.distributed.all_reduce, 0.0

    def all_reduce(self, tensor: Tensor, **options: Any) -> Any:
        work = self.real(tensor, **options)
        end = self.free_at = max(time.monotonic(), self.free_at) + DELAY

        def wait() -> None:
            work.wait()
            time.sleep(max(0.0, end - time.monotonic()))

        return SimpleNamespace(wait=wait)


def overlap() -> None:
    """Sums over a slow network take place during a slow backward pass: together they take less than their sum."""
    layers = nn.Sequential(*[nn.Linear(8, 8, bias=False) for _ in range(LAYERS)])
    parameters = list(layers.parameters())

    def backward() -> None:
        x = torch.ones(2, 8)
        for layer in layers:
            x = Slow.apply(layer(x))
        x.sum().backward()

    def seconds(work: Callable[[], None]) -> float:
        distributed.barrier()
        start = time.monotonic()
        work()
        return time.monotonic() - start

    with mock.patch.object(distributed, "_BUCKET_BYTES", 1):
        sums = GradientSum(parameters)
    alone = seconds(backward)
    with mock.patch.object(torch.distributed, "all_reduce", SlowNetwork().all_reduce):
        network = seconds(lambda: [distributed.all_reduce_sum([p.grad]) for p in parameters] and None)
        layers.zero_grad()

        def both() -> None:
            with sums.overlapping(1):
                backward()

        together = seconds(both)
    assert alone > LAYERS * DELAY
    assert network > LAYERS * DELAY
    assert together < alone + network - 2 * DELAY, (together, alone, network)


def _assert_close(ours: list[Tensor | None], theirs: list[Tensor | None]) -> None:
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-14)


CHECKS = (sums_and_rows, gradients, batch_norms, order, overflow, early_sums, overlap)


def main() -> None:
    distributed.start(CPU, timeout=datetime.timedelta(seconds=60))
    for check in CHECKS:
        check()
        distributed.barrier()
        if distributed.is_first():
            print("passed:", check.__name__, flush=True)
    distributed.stop()


if __name__ == "__main__":
    main()
