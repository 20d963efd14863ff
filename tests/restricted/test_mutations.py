"""Hundreds of damaged and hostile files, in a child with a limit of memory: one line each, and the declared budget."""

import io
import pickle
import struct
import zipfile
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save

from carp.encoders.exports import detectron2_file, torchvision_file
from carp.encoders.foreign import read_foreign
from carp.encoders.read_export import read_own
from carp.errors import CarpError
from carp.restricted import read_plain_pickle
from carp.restricted.budget import VALUES
from tests.encoders.foreign.layouts import narrow
from tests.restricted.forked import MEBIBYTE, in_child

LENGTHS = (b"\xff\xff\xff\xff", b"\xff\xff\xff\x7f", b"\x00\x00\x00\x80", b"\xfe\xff\xff\xff", b"\x00\x00\x00\x00")
TRUTH = {
    "imlist": [f"image_{i}" for i in range(40)],
    "qimlist": ["q", "r"],
    "gnd": [{"easy": np.arange(3), "hard": [4, 5], "junk": [], "bbx": np.array([1.5, 2.0, 3.0, 4.0])}] * 2,
}


def saved(**how: Any) -> bytes:
    file = io.BytesIO()
    found = {"state_dict": narrow().state_dict(), "args": Namespace(lr=0.1), "best": np.float64(0.5), "epoch": 3}
    torch.save(found, file, **how)
    return file.getvalue()


def safetensors() -> bytes:
    return save({name: tensor.contiguous() for name, tensor in narrow().state_dict().items()})


def detectron2() -> bytes:
    file = io.BytesIO()
    arrays = {f"res2.{i}.conv1.weight": np.ones((4, 4), dtype=np.float32) for i in range(5)}
    detectron2_file._Pickler(file, protocol=4).dump({"model": arrays, "__author__": "x", "carp": "{}"})
    return file.getvalue()


WHOLE: dict[str, Callable[[], bytes]] = {
    "zip": saved,
    "zip, protocol 4": lambda: saved(pickle_protocol=4),
    "legacy": lambda: saved(_use_new_zipfile_serialization=False),
    "safetensors": safetensors,
    "detectron2": detectron2,
    **{f"truth, protocol {p}": lambda p=p: pickle.dumps(TRUTH, p) for p in (0, 2, 3, 4, 5)},
}


def structural(content: bytes, kind: str) -> list[tuple[int, int]]:
    """Where the bytes lie that are not numbers of tensors."""
    if kind.startswith("zip"):
        place = content.index(b"data.pkl") + 8
        return [(0, place + 6_000), (content.index(b"PK\x01\x02"), len(content))]
    if kind == "legacy":
        return [(0, 12_000), (0, 200)]
    if kind == "safetensors":
        return [(0, 8), (8, 8 + int.from_bytes(content[:8], "little"))]
    return [(0, len(content))]


def mutated(content: bytes, kind: str, count: int) -> Iterator[bytes]:
    """Bytes changed, lengths replaced, parts removed, doubled or exchanged, the end cut off; always the same ones."""
    draw = np.random.default_rng(sum(kind.encode()))
    for i in range(count):
        first, last = structural(content, kind)[i % len(structural(content, kind))]
        last = min(last, len(content))
        place = int(draw.integers(first, last))
        length = int(draw.integers(1, 64))
        changed = bytearray(content)
        match i % 7:
            case 0 | 1:
                for spot in draw.integers(first, last, 1 + i % 3):
                    changed[spot] = draw.integers(256)
            case 2 | 3:
                changed[place : place + 4] = LENGTHS[int(draw.integers(len(LENGTHS)))]
            case 4:
                del changed[place : place + length]
            case 5:
                changed[place:place] = content[place : place + length]
            case 6:
                changed = changed[:place]
        yield bytes(changed)


def outcome(kind: str, content: bytes, path: Path) -> str:
    """`read`, `refused`, or the exception that no user should see."""
    try:
        if kind.startswith("truth"):
            read_plain_pickle(content, "it")
        else:
            path.write_bytes(content)
            if kind == "detectron2":
                return "read" if detectron2_file.is_carp_file(path) else "refused"
            torchvision_file.is_carp_file(path)
            if read_own(path) is None:
                read_foreign(path)
    except CarpError as error:
        return "refused" if "\n" not in str(error) else f"more than a line: {error}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "read"


@pytest.mark.parametrize("kind", WHOLE)
def test_mutated_files(kind: str, tmp_path: Path) -> None:
    content = WHOLE[kind]()
    assert outcome(kind, content, tmp_path / "file") == "read"
    count = 350 if kind.startswith("truth") else 150

    def all_outcomes() -> list[str]:
        return [outcome(kind, changed, tmp_path / "file") for changed in mutated(content, kind, count)]

    outcomes, grown = in_child(all_outcomes, more=2 * VALUES)
    found = Counter(outcomes)
    assert set(found) <= {"read", "refused"}, found
    assert found["refused"] > count // 4
    assert grown < VALUES


def memo_of_arrays() -> bytes:
    """One megabyte of bytes that 3,000 arrays share: as lists they would take 24 GB."""
    head = b"\x80\x03B" + struct.pack("<I", 2**20) + bytes(2**20) + b"q\x00]"
    kind = b"cnumpy\ndtype\n\x8c\x02b1\x85Rq\x01"
    array = b"cnumpy.core.multiarray\n_reconstruct\n)R(K\x01J" + struct.pack("<i", 2**20) + b"\x85h\x01\x89h\x00tba"
    return b"\x80\x04" + head[2:-1] + kind + b"0]" + array * 3_000 + b"."


BOMBS: dict[str, Callable[[], bytes]] = {
    "four megabytes of lists": lambda: b"\x80\x02" + b"]" * 2**22 + b".",
    "four megabytes of dictionaries": lambda: b"\x80\x02" + b"}" * 2**22 + b".",
    "four megabytes of sets": lambda: b"\x80\x04" + b"\x8f" * 2**22 + b".",
    "four megabytes of marks": lambda: b"\x80\x02" + b"(" * 2**22 + b".",
    "four megabytes of things remembered": lambda: b"\x80\x04N" + b"\x94" * 2**22 + b".",
    "arrays that share their bytes": memo_of_arrays,
    "bytes that are encoded again and again": lambda: (
        b"\x80\x02X" + struct.pack("<I", 2**20) + b"a" * 2**20 + b"q\x000]"
        b"" + b"c_codecs\nencode\nh\x00X\x06\x00\x00\x00latin1\x86Ra" * 5_000 + b"."
    ),
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name.endswith(("marks", "sets")) else []) for name in BOMBS]
)
def test_bombs_in_ground_truths(name: str) -> None:
    raw = BOMBS[name]()

    def message() -> str:
        with pytest.raises(CarpError) as caught:
            read_plain_pickle(raw, "truth.pkl")
        return str(caught.value)

    said, grown = in_child(message, more=4 * VALUES)
    assert "limit of 256 MiB" in said
    assert "\n" not in said
    assert grown < VALUES


def test_nine_bytes_that_would_take_gigabytes(tmp_path: Path) -> None:
    """A place in the memory of the unpickler so far behind that all before it would be reserved."""
    (tmp_path / "a.pkl").write_bytes(b"\x80\x02Nr\xff\xff\xff\x3f.")
    known, grown = in_child(lambda: detectron2_file.is_carp_file(tmp_path / "a.pkl"), more=256 * MEBIBYTE)
    assert known is False
    assert grown < 32 * MEBIBYTE


def zipped(path: Path, pickled: bytes, storages: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a/data.pkl", pickled)
        for key, raw in storages.items():
            archive.writestr(f"a/data/{key}", raw)
    return path


def tensor(numel: int, offset: int, size: tuple[int, ...], stride: tuple[int, ...]) -> bytes:
    """A pickle of one tensor with these claims."""

    def number(n: int) -> bytes:
        raw = n.to_bytes(n.bit_length() // 8 + 1, "little", signed=True)
        return b"\x8a" + bytes([len(raw)]) + raw

    sides, steps = (b"(" + b"".join(map(number, values)) + b"t" for values in (size, stride))
    storage = b"(U\x07storagectorch\nFloatStorage\nU\x010U\x03cpu" + number(numel) + b"tQ"
    return (
        b"\x80\x02}U\x01actorch._utils\n_rebuild_tensor_v2\n(" + storage + number(offset) + sides + steps + b"\x89NtRs."
    )


@pytest.mark.parametrize(
    ("numel", "offset", "size", "stride"),
    [
        (2**40, 0, (2,), (1,)),
        (-5, 0, (2,), (1,)),
        (4, 0, (2**40,), (1,)),
        (4, 0, (-1,), (1,)),
        (4, -1, (2,), (1,)),
        (4, 2**62, (2,), (1,)),
        (4, 0, (2, 2), (1,)),
        (4, 0, (2,), (2**61,)),
        (4, 0, (2,), (-1,)),
        (4, 0, (2**31, 2**31, 2**31), (2**40, 1, 1)),
        (4, 0, (1,) * 200, (1,) * 200),
        (4, 4, (1,), (1,)),
    ],
)
def test_tensors_with_false_claims(
    numel: int, offset: int, size: tuple[int, ...], stride: tuple[int, ...], tmp_path: Path
) -> None:
    path = zipped(tmp_path / "a.pth", tensor(numel, offset, size, stride), {"0": bytes(16)})

    def said() -> str:
        return outcome("zip", path.read_bytes(), path)

    answer, grown = in_child(said, more=256 * MEBIBYTE)
    assert answer == "refused"
    assert grown < 32 * MEBIBYTE


def test_repeated_numbers_are_no_weights(tmp_path: Path) -> None:
    """A shape of terabytes over one number is a view; nobody copies it."""
    path = zipped(tmp_path / "a.pth", tensor(4, 0, (2**20, 2**20), (0, 0)), {"0": bytes(16)})
    answer, grown = in_child(lambda: outcome("zip", path.read_bytes(), path), more=256 * MEBIBYTE)
    assert answer == "refused"
    assert grown < 32 * MEBIBYTE


def test_a_directory_that_is_larger_than_the_archive(tmp_path: Path) -> None:
    """In its old record, and in the one for large archives that torch.save writes as well."""
    whole = saved()
    old, large = whole.rindex(b"PK\x05\x06"), whole.rindex(b"PK\x06\x06")
    for place, length in [
        (old + 12, LENGTHS[1]),
        (old + 12, LENGTHS[2]),
        (large + 40, LENGTHS[0]),
        (large + 44, LENGTHS[1]),
    ]:
        content = bytearray(whole)
        content[place : place + 4] = length
        answer, grown = in_child(
            lambda content=bytes(content): outcome("zip", content, tmp_path / "a.pth"), more=256 * MEBIBYTE
        )
        assert answer == "refused"
        assert grown < 64 * MEBIBYTE


def test_dictionaries_made_of_one_list_again_and_again(tmp_path: Path) -> None:
    pairs = b"](" + b"".join(b"J" + struct.pack("<i", i + 2**20) + b"N\x86" for i in range(10_000)) + b"eq\x000"
    raw = b"\x80\x02" + pairs + b"]" + b"ccollections\nOrderedDict\nh\x00\x85Ra" * 2_000 + b"."
    path = zipped(tmp_path / "a.pth", raw, {})

    def message() -> str:
        with pytest.raises(CarpError) as caught:
            read_foreign(path)
        return str(caught.value)

    said, grown = in_child(message, more=4 * VALUES)
    assert "limit of 256 MiB" in said
    assert grown < VALUES
