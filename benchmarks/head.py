"""The prototype head beside the paper's pseudo-code and beside its bare matrix products.

    python -m benchmarks.head            # a table of ratios
    python -m benchmarks.head --json     # the same, and a last line of JSON with the targets

Every contender has a process of its own, so that its peak memory is its own. The contenders of a case take turns, round
after round, so that a slow spell of the machine hits all of them; times are the best of the rounds. `bare products`
multiplies the same matrices as the head, in buffers that it keeps, and does nothing else: the limit of the possible.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

import carp
from benchmarks.shared import judged
from carp.model.head import blocks_per_chunk

EMBEDDING, BLOCK = 256, 512
CONTENDERS = ("pseudo-code", "ours", "bare products")
MEGABYTE = 2**20


class Case(NamedTuple):
    """One size of the problem."""

    images: int
    prototypes: int
    views: int

    def __str__(self) -> str:
        return f"{self.images} × {self.prototypes:,}, {self.views} views"


class Inputs(NamedTuple):
    """Leaf tensors of one case."""

    z: Tensor
    w: Tensor
    prototypes: Tensor
    teacher: Tensor
    partition: Tensor


CASES = (
    Case(256, 65_536, 2),
    Case(256, 65_536, 8),
    Case(1024, 65_536, 2),
    Case(256, 262_144, 2),
    Case(256, 1_048_576, 2),
)


def make_inputs(case: Case) -> Inputs:
    """Random embeddings whose logits have a deviation of about three, and unit prototypes."""
    torch.manual_seed(0)
    z = (3 * torch.randn(case.views, case.images, EMBEDDING)).requires_grad_()
    w = 3 * torch.randn(2, case.images, EMBEDDING)
    prototypes = F.normalize(torch.randn(case.prototypes, EMBEDDING), dim=-1)
    partition = carp.random_partition(case.prototypes, BLOCK)
    return Inputs(z, w, prototypes.clone().requires_grad_(), prototypes, partition)


def ours(x: Inputs) -> None:
    """The head of CARP, forward and backward."""
    carp.carp_loss(*x).total.backward()  # type: ignore[no-untyped-call]


def pseudo_code(x: Inputs) -> None:
    """The paper's listing: all logits, gathered, split, stacked, normalised; then the loss; then autograd."""
    block_ids = list(torch.split(x.partition.flatten(), BLOCK))

    def assign(embeddings: Tensor, prototypes: Tensor) -> Tensor:
        logits = embeddings @ prototypes.T
        grouped = torch.split(logits[:, torch.cat(block_ids)], BLOCK, dim=1)
        return torch.softmax(torch.stack(grouped), dim=-1)

    predictions = [assign(z, x.prototypes) for z in x.z]
    with torch.no_grad():
        targets = [assign(w, x.teacher) for w in x.w]
    pairs = [(u, v) for v in range(2) for u in range(len(predictions)) if u != v]
    agreement = [-torch.log(torch.einsum("knc,knc->kn", predictions[u], targets[v])).mean() for u, v in pairs]
    mean = torch.cat([*predictions, *targets], dim=1).mean(dim=1)
    kl = (torch.log(torch.tensor(float(BLOCK))) + (mean * mean.log()).sum(dim=-1)).mean()
    (2 * torch.stack(agreement).mean() + kl).backward()  # type: ignore[no-untyped-call]


def bare_products(x: Inputs) -> None:
    """The matrix products of the head in the same order and sizes, in memory that is allocated once."""
    z, w = x.z.detach().flatten(0, 1), x.w.flatten(0, 1)
    grad_z, grad_prototypes = torch.zeros_like(z), torch.empty_like(x.teacher)
    chunk = blocks_per_chunk(len(x.z) + 2, x.z.shape[1], BLOCK)
    own, their, a, b = (z.new_empty(*shape) for shape in _shapes(len(z), len(w), chunk * BLOCK))
    for rows in torch.split(x.partition, chunk):
        indices, c = rows.flatten(), rows.numel()
        torch.index_select(x.prototypes.detach(), 0, indices, out=own[:c])
        torch.index_select(x.teacher, 0, indices, out=their[:c])
        logits = torch.mm(z, own[:c].T, out=a.view(-1)[: len(z) * c].view(len(z), c))
        torch.mm(w, their[:c].T, out=b.view(-1)[: len(w) * c].view(len(w), c))
        grad_z.addmm_(logits, own[:c])
        grad_prototypes.index_copy_(0, indices, torch.mm(logits.T, z, out=own[:c]))


def _shapes(z: int, w: int, chunk: int) -> tuple[tuple[int, int], ...]:
    return (chunk, EMBEDDING), (chunk, EMBEDDING), (z, chunk), (w, chunk)


RUN: dict[str, Callable[[Inputs], None]] = dict(zip(CONTENDERS, (pseudo_code, ours, bare_products), strict=True))


def serve(contender: str, case: Case) -> None:
    """Run once for every line on standard input; answer with the seconds and the peak of memory in megabytes.

    Memory is counted beyond the inputs and the gradients.
    """
    x = make_inputs(case)
    gradients = 4 * (x.z.numel() + x.prototypes.numel())
    before = _status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    print("ready", flush=True)
    for _ in sys.stdin:
        x.z.grad = x.prototypes.grad = None
        start = time.perf_counter()
        RUN[contender](x)
        seconds = time.perf_counter() - start
        print(json.dumps([seconds, max(0.0, _status("VmHWM") - before - gradients) / MEGABYTE]), flush=True)


def _status(field: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * float(next(line for line in lines if line.startswith(field)).split()[1])


class Contender:
    """A contender in its own process; it has no result when the case does not fit into memory."""

    def __init__(self, name: str, case: Case, threads: int) -> None:
        words = [sys.executable, "-m", "benchmarks.head", "--contender", name, "--case", *map(str, case)]
        self._process = subprocess.Popen(
            [*words, "--threads", str(threads)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._results: list[tuple[float, float]] = []
        self._alive = self._answer() == "ready"

    def _answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def run(self) -> None:
        """Take part in a round."""
        if not self._alive:
            return
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        answer = self._answer()
        self._alive = bool(answer)
        if self._alive:
            self._results.append(tuple(json.loads(answer)))

    def best(self) -> dict[str, float] | None:
        """Best time and peak memory; ends the process."""
        self._process.communicate()
        if not self._alive:
            return None
        seconds, megabytes = zip(*self._results, strict=True)
        return {"seconds": min(seconds), "megabytes": max(megabytes)}


def compare(case: Case, rounds: int, threads: int) -> dict[str, dict[str, float] | None]:
    """All contenders on one case, taking turns; the slow one sits out most rounds of the large cases."""
    contenders = {name: Contender(name, case, threads) for name in CONTENDERS}
    for turn in range(rounds):
        for name, contender in contenders.items():
            if name != "pseudo-code" or case.prototypes <= 65_536 or turn < 2:  # up to a minute each
                contender.run()
    return {name: contender.best() for name, contender in contenders.items()}


def main() -> None:
    """Parse the command line; measure one contender, or all of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    parser.add_argument("--quick", action="store_true", help="the smallest size only")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--contender", choices=CONTENDERS, help=argparse.SUPPRESS)
    parser.add_argument("--case", type=int, nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    if arguments.contender:
        limit = int(0.8 * 2**10 * int(Path("/proc/meminfo").read_text().split("MemAvailable:")[1].split()[0]))
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))  # fail here rather than be killed
        serve(arguments.contender, Case(*arguments.case))
        return
    compare_all(arguments)


def compare_all(arguments: argparse.Namespace) -> None:
    """Measure every contender on every case and print the ratios."""
    results: dict[Case, dict[str, dict[str, float] | None]] = {}
    print("| size | contender | seconds | × ours | MB beyond inputs and gradients |\n| --- | --- | --- | --- | --- |")
    for case in CASES[:1] if arguments.quick else CASES:
        found = results[case] = compare(case, arguments.rounds, arguments.threads)
        mine = found["ours"]
        assert mine is not None, "ours did not finish"
        for name, one in found.items():
            if one is None:
                print(f"| {case} | {name} | out of memory | | |")
            else:
                ratio = one["seconds"] / mine["seconds"]
                print(f"| {case} | {name} | {one['seconds']:.3f} | {ratio:.2f} | {one['megabytes']:.0f} |", flush=True)
    if arguments.json:
        print(json.dumps(targets(results)))


def targets(results: dict[Case, dict[str, dict[str, float] | None]]) -> dict[str, dict[str, float | bool]]:
    """The measures that have a target, from whatever was measured."""

    def ratio(case: Case, above: str, below: str, field: str = "seconds") -> float | None:
        over, under = (results.get(case, {}).get(name) for name in (above, below))
        return over[field] / max(under[field], 1e-9) if over and under else None

    def value(case: Case, field: str) -> float | None:
        one = results.get(case, {}).get("ours")
        return one[field] if one else None

    two, eight, large, _, huge = CASES
    per_prototype = [value(c, "seconds") for c in (huge, two)]
    growth = (
        (per_prototype[0] / huge.prototypes) / (per_prototype[1] / two.prototypes)
        if per_prototype[0] and per_prototype[1]
        else None
    )
    rows: list[tuple[str, float | None, float, bool]] = [
        ("pseudo-code / ours, 2 views", ratio(two, "pseudo-code", "ours"), 3.2, True),
        ("pseudo-code / ours, 8 views", ratio(eight, "pseudo-code", "ours"), 4.0, True),
        ("memory, pseudo-code / ours", ratio(large, "pseudo-code", "ours", "megabytes"), 20.0, True),
        ("ours / bare products, 2 views", ratio(two, "ours", "bare products"), 1.2, False),
        ("ours / bare products, 8 views", ratio(eight, "ours", "bare products"), 1.3, False),
        ("time per prototype, 1,048,576 / 65,536", growth, 1.15, False),
        ("MB at 256 × 1,048,576", value(huge, "megabytes"), 300.0, False),
    ]
    return {name: judged(x, target, at_least=at_least) for name, x, target, at_least in rows if x is not None}


if __name__ == "__main__":
    main()
