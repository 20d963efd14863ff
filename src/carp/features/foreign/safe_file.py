"""Checkpoints from elsewhere as plain data: nothing in them is ever run.

A file is known by its first bytes, not by its name. safetensors hold tensors only. PyTorch's files are pickles, and a
pickle names what it wants to call: these names are listed first, without executing anything. Names of classes that
people keep beside their weights (`argparse.Namespace`, NumPy scalars, paths, configurations) are answered with inert
stand-ins; with any other name the file is refused. What remains is read by PyTorch's own `weights_only` reader, which
knows tensors and containers and nothing else.
"""

import pickle
import pickletools
import re
import warnings
import zipfile
from _compat_pickle import IMPORT_MAPPING, NAME_MAPPING
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch.serialization import safe_globals

from carp.errors import CheckpointError
from carp.regular_file import open_regular

_MAGIC = 0x1950A86A20F9469CFC6C  # the number that opens what `torch.save` wrote before it wrote ZIP archives
_LEGACY_PICKLES = 5  # magic number, version, machine, the object, keys of its storages

# Left to PyTorch's reader, which knows the harmless ones.
_PYTORCH = re.compile(r"torch\..+|_codecs\.encode|collections\.(OrderedDict|Counter)|builtins\.(bytearray|complex|set)")

# Kept beside weights by common training code; they become objects that hold nothing and do nothing.
_INERT = re.compile(
    r"argparse\.Namespace"
    r"|types\.SimpleNamespace"
    r"|pathlib\.(_local\.)?(Pure)?(Posix|Windows)?Path"
    r"|datetime\.(date|datetime|timedelta|timezone)"
    r"|typing\.\w+"
    r"|copyreg\._reconstructor"
    r"|builtins\.(object|list|tuple|int|float|bool|str|bytes|slice|range|frozenset)"
    r"|numpy\.(_?core\.multiarray\.(scalar|_reconstruct)|dtype|ndarray|bool_?|u?int\d+|float\d+|dtypes\.\w+DType)"
    r"|omegaconf\.(\w+\.)*\w+"
    r"|torch\.optim\.(\w+\.)*\w+"
    r"|(pytorch_lightning|lightning|lightning_fabric)\.(\w+\.)*[A-Z]\w*"
    r"|__main__\.\w+"  # functions of the training script, named in the state of its optimiser
)
_INERT_MAPPING = re.compile(
    r"builtins\.dict|collections\.defaultdict|easydict\.EasyDict|addict\.(\w+\.)*Dict|yacs\.config\.CfgNode"
    r"|(mmcv|mmengine)\.(\w+\.)*ConfigDict|vissl\.(\w+\.)*AttrDict"
    r"|(pytorch_lightning|lightning|lightning_fabric)\.(\w+\.)*AttributeDict"
)
_WHOLE_MODEL = re.compile(r"torch\.nn\.(modules|parallel)\.|torchvision\.models\.|timm\.|torch\.jit\.")
_StandIns = list[Callable[..., Any] | tuple[Callable[..., Any], str]]  # as `safe_globals` takes them


class _Inert:
    """Stands for an object that is not wanted: takes any arguments and state, and keeps none."""

    def __new__(cls, *_arguments: object) -> "_Inert":
        return super().__new__(cls)

    def __init__(self, *_arguments: object) -> None:
        pass

    def __setstate__(self, _state: object) -> None:
        pass


class _InertMapping:
    """Stands for a kind of dictionary: its items are kept in a plain one."""

    def __new__(cls, *_arguments: object) -> Any:
        return OrderedDict()


def read_checkpoint(path: Path) -> Any:
    """What the file holds: a tensor, or dictionaries and lists of tensors, numbers and text."""
    kind = _kind(path)
    if kind == "safetensors":
        try:
            return load_file(path)
        except (SafetensorError, ValueError) as error:
            raise _damaged(path, error) from error
    try:
        names = _zip_names(path) if kind == "zip" else _legacy_names(path)
    except (zipfile.BadZipFile, ValueError, EOFError, IndexError, KeyError, NotImplementedError) as error:
        raise _damaged(path, error) from error
    return _load(path, _stand_ins(path, names))


def _kind(path: Path) -> str:
    """`safetensors`, `zip` or `pickle`, by the first bytes."""
    if path.is_dir():
        raise CheckpointError(f"{path} is a folder: give the file with the weights.")
    try:
        with open_regular(path) as file:
            head = file.read(512)
    except OSError as error:
        raise CheckpointError(f"cannot read the weights {path}: {error.strerror}.") from error
    if not head:
        raise CheckpointError(f"{path} is empty: download it again.")
    if head.startswith(b"PK\x03\x04"):
        return "zip"
    if head[:1] == b"\x80" and len(head) > 1 and head[1] <= pickle.HIGHEST_PROTOCOL:
        return "pickle"
    if head[8:9] == b"{" and int.from_bytes(head[:8], "little") < path.stat().st_size:
        return "safetensors"
    if head[257:262] == b"ustar":
        raise CheckpointError(f"{path} is a tar archive: unpack it and give the file with the weights inside.")
    raise CheckpointError(
        f"{path} is not a file of weights: it begins with {head[:8]!r}; expected what torch.save or safetensors write."
    )


def _zip_names(path: Path) -> set[str]:
    """The names that a file of today's `torch.save` calls, once its directory is known to be true."""
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        claimed, real = sum(m.file_size for m in members), path.stat().st_size
        pickles = [m for m in members if m.filename.endswith("/data.pkl") or m.filename == "data.pkl"]
        if any(m.filename.endswith("/constants.pkl") for m in members):
            raise CheckpointError(f"{path} is a TorchScript program, not weights: save its state_dict() instead.")
        if len(pickles) != 1:
            first = members[0].filename if members else "nothing"
            raise CheckpointError(
                f"{path} is a ZIP archive that torch.save did not write (it holds {first}): unpack it and give the "
                "file with the weights inside."
            )
        if claimed > real or any(m.compress_type != zipfile.ZIP_STORED for m in members):
            raise CheckpointError(
                f"{path} is refused: it has {real:,} bytes and would unpack to {claimed:,}; torch.save never "
                "compresses. Get the file from its source page again."
            )
        with archive.open(pickles[0]) as file:
            return set(_names(file))


def _legacy_names(path: Path) -> set[str]:
    """The names that a file of `torch.save` before 2020 calls, or any other pickle."""
    with path.open("rb") as file:
        first = next((arg for op, arg, _ in pickletools.genops(file) if op.name.startswith("LONG")), None)
        if first != _MAGIC:
            file.seek(0)
            _stand_ins(path, set(_names(file)))
            raise CheckpointError(
                f"{path} is a pickle that torch.save did not write: load it with the program that wrote it and save "
                "its tensors with torch.save or safetensors."
            )
        return {name for _ in range(_LEGACY_PICKLES - 1) for name in _names(file)}


def _names(file: IO[bytes]) -> Iterator[str]:
    """The full name of everything that one pickle imports; the pickle is read, not executed."""
    texts: list[str] = []  # pushed, by themselves or from the memo; STACK_GLOBAL takes the last two
    memo: dict[int, str] = {}
    remembered, pushed = 0, ""
    for op, arg, _ in pickletools.genops(file):
        if op.name in {"GLOBAL", "INST"}:
            yield _full_name(*str(arg).split(" ", 1))
        elif op.name == "STACK_GLOBAL":
            yield _full_name(*texts[-2:]) if len(texts) > 1 else "?"
        elif op.name.startswith("EXT"):
            yield f"copyreg extension {arg}"
        elif op.name.endswith("PUT") or op.name == "MEMOIZE":
            memo[int(arg) if arg is not None else remembered] = pushed
            remembered += 1
        elif op.name.endswith("GET"):
            texts.append(memo.get(int(arg or 0), ""))
        pushed = arg if isinstance(arg, str) and op.name not in {"GLOBAL", "INST"} else ""
        texts += [pushed] if pushed else []


def _full_name(module: str, name: str) -> str:
    """The name in Python 3; pickles of protocol 2 have Python 2's."""
    module, name = NAME_MAPPING.get((module, name), (IMPORT_MAPPING.get(module, module), name))
    return f"{module}.{name}"


def _stand_ins(path: Path, names: set[str]) -> _StandIns:
    """An inert class for every name that needs one; an error for a name that has no business in weights."""
    inert: _StandIns = []
    refused = []
    for name in sorted(names):
        if _INERT_MAPPING.fullmatch(name):
            inert.append((_InertMapping, name))
        elif _INERT.fullmatch(name):
            inert.append((_Inert, name))
        elif not _PYTORCH.fullmatch(name) or _WHOLE_MODEL.match(name):
            refused.append(name)
    if refused and all(_WHOLE_MODEL.match(name) for name in refused):
        raise CheckpointError(
            f"{path} is a whole model ({refused[0]}), not its weights: save its state_dict() instead."
        )
    if refused:
        more = f" and {len(refused) - 1} more" if len(refused) > 1 else ""
        raise CheckpointError(
            f"{path} is refused: loading it would call {refused[0]}{more}, which weights do not need. Nothing was "
            "run. Get the file from its source page, or have its owner save the tensors alone (safetensors)."
        )
    return inert


def _load(path: Path, inert: _StandIns) -> Any:
    try:
        with safe_globals(inert), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.load(path, map_location="cpu", weights_only=True)  # noqa: TID251 - the one safe way in
    except pickle.UnpicklingError as error:
        reason = _first_line(error)
        if "Unsupported operand" in reason:
            raise CheckpointError(
                f"{path} is refused: its pickle protocol cannot be read without running it. Nothing was run. Have its "
                "tensors saved with safetensors, or by torch.save without a protocol."
            ) from error
        raise CheckpointError(
            f"{path} is refused: it is not made of tensors and plain data ({reason}). Nothing was run."
        ) from error
    except Exception as error:  # a damaged file can fail in any way inside the reader
        raise _damaged(path, error) from error


def _damaged(path: Path, error: Exception) -> CheckpointError:
    return CheckpointError(
        f"{path} is damaged or cut short ({type(error).__name__}: {_first_line(error)}): download it again."
    )


def _first_line(error: Exception) -> str:
    text = " ".join(str(error).split()).split("WeightsUnpickler error: ")[-1]  # PyTorch's advice stands before it
    return (re.split(r"\. | was not an allowed ", text)[0][:120] or "no reason given").rstrip(".")
