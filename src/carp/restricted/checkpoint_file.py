"""Reads untrusted weights as plain data: safetensors, and the current and legacy (before 2020) formats of `torch.save`.

The format is recognised by the first bytes, not by the name. The file is memory-mapped, and tensors are views of it
that take memory only when they are used. Their storages cannot extend beyond the file.
"""

import pickle
import re
import struct
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from carp.errors import CheckpointError
from carp.files.regular import check_regular, open_regular
from carp.restricted.archive import Archive, map_file
from carp.restricted.budget import Budget, Damaged, Refused
from carp.restricted.machine import Buffer, Machine
from carp.restricted.objects import Dropped
from carp.restricted.tensors import TorchNames, WholeModelError

_MAGIC = 0x1950A86A20F9469CFC6C  # the first value in the legacy format of `torch.save`
_LARGEST_HEADER = 25_000_000  # bytes of a safetensors header: more than 100,000 tensors


def read_checkpoint(path: Path) -> Any:
    """Return the content of the file: a tensor, or dictionaries and lists of tensors, numbers and strings."""
    try:
        return {"safetensors": _safetensors, "zip": _zip, "pickle": _legacy}[_kind(path)](path)
    except WholeModelError as model:
        raise CheckpointError(
            f"{path} is a whole model ({model}), not its weights. Save its state_dict() instead."
        ) from None
    except Refused as reason:
        raise CheckpointError(f"{path} is refused: {_one_line(reason, 400)}.") from None
    except OSError as error:
        raise CheckpointError(f"cannot read the weights {path}: {error.strerror or error}.") from error
    except MemoryError as error:
        raise CheckpointError(f"{path} does not fit into memory. Use a machine with more memory.") from error
    except (Damaged, SafetensorError, ArithmeticError, LookupError, RuntimeError, TypeError, ValueError) as error:
        said = f"{_one_line(error, 120) or type(error).__name__}"
        raise CheckpointError(f"{path} is damaged or incomplete ({said}). Download it again.") from error


def refuse_claims(path: Path, tensors: Iterable[Tensor], remedy: str) -> None:
    """Refuse tensors larger than the file: one number repeated over a large shape could exhaust memory."""
    held, size = sum(t.numel() * t.element_size() for t in tensors), path.stat().st_size
    if held > size:
        raise CheckpointError(
            f"{path} is refused: it has {size:,} bytes but claims {held:,} bytes of weights. {remedy}"
        )


def _kind(path: Path) -> str:
    """Return `safetensors`, `zip` or `pickle`, judging by the first bytes."""
    if path.is_dir():
        raise CheckpointError(f"{path} is a folder. Give the file with the weights.")
    size = check_regular(path)
    with open_regular(path) as file:
        head = file.read(512)
    if not head:
        raise CheckpointError(f"{path} is empty. Download it again.")
    if head.startswith(b"PK\x03\x04"):
        return "zip"
    if head[:1] == b"\x80" and len(head) > 1 and head[1] <= pickle.HIGHEST_PROTOCOL:
        return "pickle"
    if head[8:9] == b"{" and int.from_bytes(head[:8], "little") < size:
        return "safetensors"
    if head[257:262] == b"ustar":
        raise CheckpointError(f"{path} is a tar archive. Unpack it and give the weights file that it contains.")
    raise CheckpointError(
        f"{path} is not a weights file: it begins with {head[:8]!r}. Give a file written by torch.save or safetensors."
    )


def _safetensors(path: Path) -> Any:
    with open_regular(path) as file:
        header = int.from_bytes(file.read(8), "little")
    if header > _LARGEST_HEADER:
        raise Refused(f"its header has {header:,} bytes; the limit is {_LARGEST_HEADER:,}")
    return load_file(path)


def _zip(path: Path) -> Any:
    archive = Archive(path)
    if any(name.endswith("/constants.pkl") for name in archive.members):
        raise CheckpointError(f"{path} is a TorchScript program, not weights. Save its state_dict() instead.")
    name = archive.pickle_name()
    if name is None:
        first = next(iter(archive.members), "nothing")
        raise CheckpointError(
            f"{path} is a ZIP archive that torch.save did not write (it contains {first[:80]}). Unpack it and give the "
            "weights file that it contains."
        )
    root = name.removesuffix("data.pkl")
    if f"{root}byteorder" in archive.members and archive.read(f"{root}byteorder") != b"little":
        raise Refused("its numbers are big-endian. Save it again on a little-endian machine")
    storages: dict[str, Tensor] = {}

    def read(key: str, dtype: torch.dtype, count: int, _budget: Budget) -> Tensor:
        member_name = f"{root}data/{key}"
        if member_name not in archive.members:
            raise Damaged(f"the storage {key[:40]} is missing")
        member = archive.members[member_name]
        if not 0 <= count * dtype.itemsize <= member.size:
            raise Damaged(f"the storage {key[:40]} claims {count:,} numbers but has {member.size:,} bytes")
        if member_name not in storages:
            archive.check(member, member_name)
            storages[member_name] = _view(archive.mapped, member.start, torch.uint8, member.size)
        return _as_type(storages[member_name], dtype, count)

    budget = Budget()
    raw = archive.read(name)
    budget.charge(len(raw))
    return Machine(raw, TorchNames(read), budget).run()


def _legacy(path: Path) -> Any:
    """Read five pickles (magic number, version, system, object, keys of its storages), then the storages."""
    mapped, budget = map_file(path), Budget()
    names = TorchNames(_no_storage)
    first = Machine(mapped, names, budget)
    if first.run() != _MAGIC:
        raise CheckpointError(
            f"{path} is a pickle that torch.save did not write. Load it with the program that wrote it and save its "
            "tensors with torch.save or safetensors."
        )
    version = Machine(mapped, names, budget, first.position)
    version.run()
    about = Machine(mapped, names, budget, version.position)
    system = about.run()
    if isinstance(system, dict) and system.get("little_endian") is False:
        raise Refused("its numbers are big-endian. Save it again on a little-endian machine")
    wanted: dict[str, torch.dtype] = {}

    def note(key: str, dtype: torch.dtype, _count: int, _budget: Budget) -> Any:
        if wanted.setdefault(key, dtype) != dtype:
            raise Damaged(f"the storage {key[:40]} has two types")
        return Dropped()

    dry = Machine(mapped, TorchNames(note), budget, about.position)  # the positions of the storages follow the object
    dry.run()
    keys = Machine(mapped, names, budget, dry.position)
    storages = _legacy_storages(mapped, keys.run(), keys.position, wanted)

    def read(key: str, dtype: torch.dtype, count: int, _budget: Budget) -> Tensor:
        if key not in storages or not 0 <= count <= storages[key].numel():
            raise Damaged(f"the storage {key[:40]} is missing or has fewer numbers than it claims")
        return _as_type(storages[key].view(torch.uint8), dtype, count)

    return Machine(mapped, TorchNames(read), Budget(), about.position).run()


def _legacy_storages(mapped: Buffer, keys: Any, place: int, types: dict[str, torch.dtype]) -> dict[str, Tensor]:
    """Return views of the storages, each of which is preceded by its number of elements."""
    if not isinstance(keys, list) or not all(isinstance(key, str) and key in types for key in keys):
        raise Damaged("the list of its storages is damaged")
    found: dict[str, Tensor] = {}
    for key in keys:
        if len(mapped) - place < 8:
            raise Damaged(f"the storage {key[:40]} is missing")
        (count,) = struct.unpack("<q", mapped[place : place + 8])
        size = count * types[key].itemsize
        if not 0 <= size <= len(mapped) - place - 8 or key in found:
            raise Damaged(f"the storage {key[:40]} claims {count:,} numbers, more than the file has")
        found[key] = _view(mapped, place + 8, types[key], count)
        place += 8 + size
    return found


def _no_storage(_key: str, _dtype: torch.dtype, _count: int, _budget: Budget) -> Any:
    raise Damaged("it has tensors where none belong")


def _view(mapped: Buffer, start: int, dtype: torch.dtype, count: int) -> Tensor:
    """Return a view of elements of the file, or a copy if they are not aligned."""
    if count == 0:
        return torch.empty(0, dtype=dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns about read-only memory
        if start % 8:
            copied = bytearray(mapped[start : start + count * dtype.itemsize])
            return torch.frombuffer(copied, dtype=dtype, count=count)
        return torch.frombuffer(mapped, dtype=dtype, count=count, offset=start)


def _as_type(raw: Tensor, dtype: torch.dtype, count: int) -> Tensor:
    part = raw[: count * dtype.itemsize]
    return part.view(dtype) if count else torch.empty(0, dtype=dtype)


def _one_line(error: Exception, longest: int) -> str:
    text = " ".join("".join(c if c.isprintable() else " " for c in str(error)).split())
    return re.split(r"\. (?=Get |Exception)", text)[0][:longest].rstrip(".") if longest < 200 else text[:longest]
