"""A device that is not there: tensors that say they are on `mps`, are computed on the CPU, and refuse float64.

Apple's GPUs have no float64: torch raises a TypeError when a tensor of that type is made there. Inside `pretended()`,
`x.to("mps")`, `module.to("mps")` and factory functions with `device="mps"` give such tensors, and every operation on
one gives another one, until it is moved to the CPU. Everything else is the real code. `waits` lists every operation for
which the host would have to wait for the device: values that it reads, and results whose shape depends on values.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import return_and_correct_aliasing
from torch.utils._pytree import tree_map_only

MPS = torch.device("mps", 0)
CPU = torch.device("cpu")
_DATA_DEPENDENT = {"_local_scalar_dense", "nonzero", "masked_select", "_unique2", "bincount", "equal", "is_nonzero"}
waits: list[str] = []
_REFUSED = {torch.float64, torch.complex128}


class OnDevice(Tensor):
    """A tensor of the pretended device; `inner` holds its numbers."""

    inner: Tensor  # type: ignore[assignment]  # hides a method that nothing here uses
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, inner: Tensor) -> "OnDevice":
        """Wrap a tensor of the CPU."""
        if inner.dtype in _REFUSED:
            raise TypeError(f"cannot make a tensor of {inner.dtype} on {MPS}, which does not have that type.")
        made: OnDevice = Tensor._make_wrapper_subclass(
            cls,
            inner.shape,
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            layout=inner.layout,
            device=CPU,  # what torch's own code sees: autograd asks a real device for its queue
            requires_grad=inner.requires_grad,
        )
        made.inner = inner
        return made

    device = MPS

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"OnDevice({self.inner!r})"

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        by_mask = name in {"index", "index_put_"} and any(m is not None and m.dtype == torch.bool for m in args[1])
        if name in _DATA_DEPENDENT or by_mask:
            waits.append(name)
        inner_args, inner_kwargs = tree_map_only(OnDevice, lambda t: t.inner, (args, kwargs))
        found = tree_map_only(Tensor, OnDevice, func(*inner_args, **inner_kwargs))
        return return_and_correct_aliasing(func, args, kwargs, found)  # type: ignore[no-untyped-call]


class _Moves(TorchFunctionMode):
    """What moves tensors to the device and back."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        places = [place for place in map(_device, (*args, kwargs.get("device"))) if place is not None]
        if name == "numpy" and isinstance(args[0], OnDevice):
            raise TypeError(f"cannot make a NumPy array of a tensor on {MPS}: move it to the CPU first.")
        if name in {"cpu", "tolist"} or (places and places[0] == CPU):
            if isinstance(args[0] if args else None, OnDevice):
                waits.append(name)
            inner_args, inner_kwargs = tree_map_only(OnDevice, lambda t: t.inner.clone(), (args, kwargs))
            return func(*inner_args, **inner_kwargs)
        if not places:
            return func(*args, **kwargs)
        on_cpu = [CPU if _device(value) == MPS else value for value in args]
        found = func(*on_cpu, **{**kwargs, **({"device": CPU} if "device" in kwargs else {})})
        if not isinstance(found, Tensor):  # something that only reads or makes the name of a device
            return func(*args, **kwargs)
        return found if isinstance(found, OnDevice) else OnDevice(found)


def _device(value: Any) -> torch.device | None:
    """MPS or the CPU, if the value names one of them."""
    if (isinstance(value, str) and value in {"mps", "mps:0", "cpu"}) or isinstance(value, torch.device):
        return {"mps": MPS, "cpu": CPU}.get(torch.device(value).type)
    return None


@contextmanager
def pretended() -> Iterator[torch.device]:
    """While this is active there is a device `mps`."""
    mps: Any = torch.backends.mps
    is_macos_or_newer = mps.is_macos_or_newer
    mps.is_macos_or_newer = lambda *_: True  # some versions of autocast ask, and fail without the device
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    try:
        with _Moves():
            yield MPS
    finally:
        mps.is_macos_or_newer = is_macos_or_newer
        torch.__future__.set_overwrite_module_params_on_conversion(False)
