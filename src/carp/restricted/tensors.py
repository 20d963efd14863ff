"""The names in PyTorch's pickles: tensors become views of the file, other objects become empty placeholders.

Classes that people store with their weights (NumPy scalars, paths, configurations) are replaced by empty objects, and
special dictionaries by plain ones. An `argparse.Namespace` keeps its plain values. A file with any other name is
refused.
"""

import re
from _compat_pickle import IMPORT_MAPPING, NAME_MAPPING
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from carp.restricted.arrays import latin1_bytes
from carp.restricted.budget import Budget, Damaged, Refused
from carp.restricted.objects import Arguments, Dropped, Named, check_key

_TENSOR = 2000  # bytes of a tensor's description
_MAPPING = 600
_DIMENSIONS = 64
METADATA = "_metadata"  # where PyTorch keeps the versions of modules in a state dict
ReadStorage = Callable[[str, torch.dtype, int, Budget], Tensor]  # (key, type, number of elements) → flat tensor

_INERT = re.compile(
    r"types\.SimpleNamespace"
    r"|pathlib\.(_local\.)?(Pure)?(Posix|Windows)?Path"
    r"|datetime\.(date|datetime|timedelta|timezone)"
    r"|typing\.\w+"
    r"|copyreg\._reconstructor"
    r"|builtins\.(object|list|tuple|int|float|bool|str|bytes|slice|range|complex)"
    r"|numpy\.(_?core\.(multiarray\.(scalar|_reconstruct)|numeric\._frombuffer)|dtype|ndarray|bool_?|u?int\d+|float\d+"
    r"|dtypes\.\w+DType)"
    r"|omegaconf\.(\w+\.)*\w+"
    r"|torch\.optim\.(\w+\.)*\w+"
    r"|torch\.(device|torch_version\.TorchVersion|serialization\._get_layout|_utils\._rebuild_(sparse|qtensor|meta)\w*)"
    r"|(pytorch_lightning|lightning|lightning_fabric)\.(\w+\.)*[A-Z]\w*"
    r"|__main__\.\w+"  # functions of the training script that the state of its optimiser names
)
_INERT_MAPPING = re.compile(
    r"builtins\.dict|collections\.(defaultdict|Counter)|easydict\.EasyDict|addict\.(\w+\.)*Dict|yacs\.config\.CfgNode"
    r"|(mmcv|mmengine)\.(\w+\.)*ConfigDict|vissl\.(\w+\.)*AttrDict"
    r"|(pytorch_lightning|lightning|lightning_fabric)\.(\w+\.)*AttributeDict"
)
_WHOLE_MODEL = re.compile(r"torch\.nn\.(modules|parallel)\.|torchvision\.models\.|timm\.|torch\.jit\.")
_STORAGES = {
    f"torch.{name}Storage": dtype
    for name, dtype in {
        "Double": torch.float64, "Float": torch.float32, "Half": torch.float16, "BFloat16": torch.bfloat16,
        "Long": torch.int64, "Int": torch.int32, "Short": torch.int16, "Char": torch.int8, "Byte": torch.uint8,
        "Bool": torch.bool, "ComplexFloat": torch.complex64, "ComplexDouble": torch.complex128,
    }.items()
}  # fmt: skip


class WholeModelError(Exception):
    """The file contains a module, not its tensors."""


class StateDict(OrderedDict[Any, Any]):
    """A dictionary that keeps PyTorch's metadata, and no other state."""

    _metadata: Any = None


class Storage:
    """The type of a storage; its elements are read when a tensor needs them."""

    def __init__(self, dtype: torch.dtype | None) -> None:
        self.dtype = dtype


_CONSTANTS: dict[str, Any] = {
    **{name: Storage(dtype) for name, dtype in _STORAGES.items()},
    **{name: Storage(None) for name in ("torch.storage.UntypedStorage", "torch.UntypedStorage")},
    **{f"torch.{name}": value for name, value in vars(torch).items() if isinstance(value, torch.dtype)},
}


class TorchNames:
    """The vocabulary of one file; `read` returns the elements of a storage."""

    def __init__(self, read: ReadStorage) -> None:
        self._read = read
        self._calls: dict[str, Callable[..., Any]] = {
            "torch._utils._rebuild_tensor": self._tensor,
            "torch._utils._rebuild_tensor_v2": self._tensor,
            "torch._utils._rebuild_tensor_v3": self._typed_tensor,
            "torch._utils._rebuild_parameter": lambda data, *_rest: data,
            "torch._utils._rebuild_parameter_with_state": lambda data, *_rest: data,
            "torch._tensor._rebuild_from_type_v2": self._from_type,
            "torch.nn.parameter.Parameter": lambda data=None, *_rest: data,
            "torch.Size": lambda sizes=(): sizes if isinstance(sizes, tuple) else (),
        }

    def find(self, module: str, name: str, budget: Budget) -> Any:
        """Return the type of a storage, a function that creates a tensor or a container, or an empty placeholder."""
        full = full_name(module, name)
        if full in _CONSTANTS:
            return _CONSTANTS[full]
        if full in self._calls:
            call = self._calls[full]

            def charged(*arguments: Any) -> Any:
                budget.charge(_TENSOR)
                return call(*arguments)

            return Named(full, charged)
        containers: dict[str, Callable[..., Any]] = {
            "collections.OrderedDict": lambda pairs=(): _mapping(pairs, budget),
            "_codecs.encode": lambda text="", encoding="latin1": latin1_bytes(text, encoding, budget),
            "builtins.set": lambda items=(): _set(items, budget),
            "builtins.frozenset": lambda items=(): _set(items, budget),
            "builtins.bytearray": lambda raw=b"", *_rest: _bytes(raw, budget),
        }
        if full in containers:
            return Named(full, containers[full])
        if full == "argparse.Namespace":
            return Named(full, lambda *_arguments: Arguments())
        if _INERT_MAPPING.fullmatch(full):
            return Named(full, lambda *_arguments: _mapping((), budget))
        if _INERT.fullmatch(full):
            return Named(full, lambda *_arguments: Dropped())
        if _WHOLE_MODEL.match(full):
            raise WholeModelError(full[:150])
        raise Refused(
            f"loading it would call {full[:150]}, which weights do not need. Nothing was run. Get the file from its "
            "source page, or ask its owner to save only the tensors (safetensors)"
        )

    def build(self, target: Any, state: Any, _budget: Budget) -> None:
        """Keep the metadata of a state dict and the plain values of a namespace; drop all other state."""
        if isinstance(target, Named | type(None) | str | int | float | bytes | tuple):
            raise Refused(f"it sets the state of a {type(target).__name__}")
        if isinstance(target, StateDict) and isinstance(state, dict):
            target._metadata = state.get(METADATA)
        if isinstance(target, Arguments):
            target.keep(state)

    def persistent(self, number: Any, budget: Budget) -> Any:
        """Return the elements of a storage."""
        match number:
            case ("storage", Storage() as storage, str(key), _, int(count), *views):
                if any(view is not None for view in views):
                    raise Refused("it uses views of storages, which torch.save has not written since 2017")
                dtype = storage.dtype or torch.uint8
                return self._read(key, dtype, count, budget)
            case ("module", *_):
                raise WholeModelError("a module with its source")
        raise Refused("it refers to an object outside the pickle that is not a storage")

    def _tensor(self, storage: Any, offset: Any, size: Any, stride: Any, *_rest: Any) -> Any:
        if isinstance(storage, Dropped):
            return storage
        numbers = [offset, *size, *stride] if isinstance(size, tuple) and isinstance(stride, tuple) else [None]
        if not isinstance(storage, Tensor) or not all(type(n) is int and 0 <= n < 2**62 for n in numbers):
            raise Damaged("a tensor has no storage, or its shape does not consist of integers")
        if len(size) != len(stride) or len(size) > _DIMENSIONS:
            raise Damaged("a tensor has too many dimensions, or a different number of strides")
        last = offset + sum((side - 1) * step for side, step in zip(size, stride, strict=True))
        if 0 not in size and last >= storage.numel():
            raise Damaged(f"a tensor of {list(size)} claims more numbers than its storage has ({storage.numel():,})")
        return storage.as_strided(size, stride, offset if 0 not in size else 0)

    def _typed_tensor(self, *arguments: Any) -> Any:
        storage, offset, size, stride, _grad, _hooks, dtype, *_rest = arguments
        if isinstance(storage, Dropped):
            return storage
        if not isinstance(storage, Tensor) or not isinstance(dtype, torch.dtype):
            raise Damaged("a tensor has no storage or no type")
        raw = storage.view(torch.uint8) if storage.dtype != torch.uint8 else storage
        if raw.numel() % dtype.itemsize:
            raise Damaged("the size of a storage is not a multiple of its element size")
        return self._tensor(raw.view(dtype), offset, size, stride)

    def _from_type(self, function: Any, _type: Any, arguments: Any, _state: Any) -> Any:
        if not isinstance(function, Named) or function.name not in self._calls or not isinstance(arguments, tuple):
            raise Refused("it creates a tensor in a way that torch.save never uses")
        return self._calls[function.name](*arguments)


def full_name(module: str, name: str) -> str:
    """Return the Python 3 name; pickles of protocol 2 have the names of Python 2."""
    module, name = NAME_MAPPING.get((module, name), (IMPORT_MAPPING.get(module, module), name))
    return f"{module}.{name}"


def _mapping(pairs: Any, budget: Budget) -> StateDict:
    budget.charge(_MAPPING)
    made = StateDict()
    for pair in pairs if isinstance(pairs, list | tuple) else ():
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            raise Damaged("a dictionary is not built from pairs")
        budget.charge(_MAPPING // 2)
        made[check_key(pair[0])] = pair[1]
    return made


def _set(items: Any, budget: Budget) -> set[Any]:
    if not isinstance(items, list | tuple | set):
        raise Damaged("a set is not built from a list")
    budget.charge(_MAPPING + 100 * len(items))
    return {check_key(item) for item in items}


def _bytes(raw: Any, budget: Budget) -> bytearray:
    if not isinstance(raw, bytes | bytearray | str):
        raise Refused("it asks for bytes that it does not contain")
    budget.charge(len(raw))
    return bytearray(raw.encode("latin1") if isinstance(raw, str) else raw)
