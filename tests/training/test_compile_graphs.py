"""`compile: true` compiles every network as one graph, and no step after the first compiles anything again."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch._dynamo.utils import counters

from carp.compute.compilation import compilation_explained, compile_networks
from carp.config import resolve
from carp.errors import ConfigError
from carp.images.loading.loader import make_loader
from carp.images.sources.array import ArraySource
from carp.training.loop import build_model
from carp.training.optimiser import build_optimiser
from carp.training.schedules import Schedules
from carp.training.step import Stepper
from tests.helpers import TINY, tiny_images

CPU = torch.device("cpu")


def losses(steps: int, counter: CompileCounterWithBackend | None, **changes: Any) -> tuple[list[float], list[int]]:
    """The losses of some steps, and how many graphs had been compiled after each."""
    config = resolve({**TINY, **changes}, num_images=64)
    model = build_model(config, CPU).train()
    if counter is not None:
        branches = [model.student, model.teacher]
        compile_networks([part for branch in branches for part in (branch.encoder, branch.projector)], counter)
    stepper = Stepper(model, build_optimiser(model, config), Schedules(config, 4), config, CPU)
    found, graphs = [], []
    for batch in make_loader(ArraySource(tiny_images(64)), config).batches(0, steps):
        found.append(stepper(batch).loss)
        graphs.append(0 if counter is None else counter.frame_count)
    return found, graphs


@pytest.mark.parametrize(
    "changes",
    [{}, pytest.param({"micro_batch": 8, "local_views": 1, "local_size": 16}, marks=pytest.mark.slow)],
    ids=["whole", "micro-batches, two sizes"],
)
def test_graphs_are_whole_and_compiled_in_the_first_step_only(changes: dict[str, Any]) -> None:
    torch._dynamo.reset()
    counters.clear()
    counter = CompileCounterWithBackend("eager")  # traces as for the compiler, and runs the graphs as they are
    compiled, graphs = losses(3, counter, **changes)
    assert graphs[0] >= 4, "encoder and projector of both branches"
    assert graphs == [graphs[0]] * 3, "a later step compiled again"
    assert not counters["graph_break"]
    assert compiled == losses(3, None, **changes)[0]


class Breaks(nn.Module):
    """Decides by a value, which no graph can contain."""

    def forward(self, x: Tensor) -> Tensor:
        return x if float(x.sum()) > 0 else -x


def test_a_network_that_cannot_be_compiled_is_an_error_with_the_remedy() -> None:
    torch._dynamo.reset()
    network = Breaks()
    compile_networks([network], "eager")
    with (
        pytest.raises(ConfigError, match=r"^compile=true is not possible: .*compile=false.$"),
        compilation_explained(True),
    ):
        network(torch.ones(3))
    with pytest.raises(ZeroDivisionError), compilation_explained(True):
        raise ZeroDivisionError


class Twice(nn.Linear):
    """Not a layer of torch, which some versions would not compile by itself."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(x)


def test_without_a_compiler_the_error_has_the_remedy() -> None:
    torch._dynamo.reset()

    def missing(*_: object) -> None:
        raise RuntimeError("no C++ compiler")

    network = Twice(2, 2)
    compile_networks([network], missing)
    with pytest.raises(ConfigError, match=r"no C\+\+ compiler.*compile=false"), compilation_explained(True):
        network(torch.ones(3, 2))
