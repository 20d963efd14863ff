"""Sums of gradients over processes, most of which travel while the backward pass still runs.

Gradients travel in buckets, whose content and order follow from the list of parameters alone, so that all processes
agree on them. The backward pass computes the gradients of the last parameters first, so their bucket is sent first. A
bucket is sent as soon as its gradients are complete and the bucket before it has been sent.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from carp.compute import distributed


class GradientSum:
    """Adds up the gradients of `parameters`, and averages the tensors `averaged`, over all processes."""

    def __init__(self, parameters: Sequence[Tensor], averaged: Sequence[Tensor] = ()) -> None:
        self._parameters, self._averaged = list(parameters), list(averaged)
        self._buckets = list[list[Tensor]]()
        if distributed.world_size() == 1:
            return
        late = {id(tensor) for tensor in averaged}  # they are complete only at the end
        found = list(distributed.buckets([*parameters, *averaged]))[::-1]
        self._buckets = sorted(found, key=lambda bucket: any(id(tensor) in late for tensor in bucket))

    @contextmanager
    def overlapping(self, passes: int, *, once: Sequence[Tensor] = ()) -> Iterator[None]:
        """Compute gradients in the block; after it, they are the sums over all processes.

        Args:
            passes: The number of backward passes in the block that add to a gradient.
            once: Parameters to which only one of the passes adds.
        """
        if not self._buckets:
            yield
            return
        self._missing = {id(parameter): passes for parameter in self._parameters} | {id(p): 1 for p in once}
        self._missing |= {id(tensor): 1 for tensor in self._averaged}
        self._sent = list[distributed.SumInFlight]()
        hooks = [
            parameter.register_post_accumulate_grad_hook(self._arrived)  # type: ignore[no-untyped-call]
            for parameter in self._parameters
        ]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()
        if self._averaged:
            torch._foreach_div_(self._averaged, distributed.world_size())
        self._missing = {}
        self._send_complete()
        for sum_ in self._sent:
            sum_.wait()
        self._sent = []

    def _arrived(self, parameter: Tensor) -> None:
        """Note that a backward pass has added to the gradient of a parameter."""
        self._missing[id(parameter)] -= 1
        if self._missing[id(parameter)] == 0:
            self._send_complete()

    def _send_complete(self) -> None:
        """Send the next buckets in order, up to the first that is not complete."""
        for bucket in self._buckets[len(self._sent) :]:
            if any(self._missing.get(id(tensor), 0) > 0 for tensor in bucket):
                return
            self._sent.append(distributed.SumInFlight([self._content(tensor) for tensor in bucket]))

    def _content(self, tensor: Tensor) -> Tensor:
        """Return what travels: a gradient, zeros for a parameter without one, or a tensor to be averaged."""
        if any(tensor is other for other in self._averaged):
            return tensor
        return torch.zeros_like(tensor) if tensor.grad is None else tensor.grad
