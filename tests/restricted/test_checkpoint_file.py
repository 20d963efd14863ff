"""Files that are damaged, disguised or made to run something: refused in one line, and nothing runs."""

import io
import os
import pickle
import struct
import subprocess
import sys
import tarfile
import zipfile
from argparse import Namespace
from collections import defaultdict
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import nn

from carp.encoders.foreign import read_foreign
from carp.errors import CheckpointError
from carp.restricted.checkpoint_file import read_checkpoint
from carp.restricted.objects import Arguments, Dropped
from tests.encoders.foreign.layouts import narrow


class Call:
    """A pickle of this calls a function while it is loaded."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.function, self.arguments = function, arguments

    def __call__(self) -> None:
        """A function that is itself the outcome of a call must look like one."""

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return self.function, self.arguments


def attacks(marker: Path) -> dict[str, Any]:
    """Objects that create the marker when they are unpickled."""
    write = f"open({str(marker)!r}, 'w').close()"
    return {
        "os.system": Call(os.system, f"touch {marker}"),
        "eval": Call(eval, write),
        "exec": Call(exec, write),
        "subprocess": Call(subprocess.check_call, ["touch", str(marker)]),
        "getattr": Call(Call(getattr, Path(marker), "touch")),
        "import": Call(Call(getattr, Call(__import__, "os"), "system"), f"touch {marker}"),
        "torch": Call(torch.save, 1, str(marker)),
        "namespace": Namespace(lr=0.1, hidden=[Call(os.system, f"touch {marker}")]),
        "open": Call(open, str(marker), "w"),
    }


def message_of(path: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        read_foreign(path)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)
    return str(caught.value)


KINDS = list(attacks(Path()))
TYPES = (
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
    torch.uint8, torch.bool, torch.complex64, torch.complex128,
)  # fmt: skip
NEW_TYPES = (torch.float8_e4m3fn, torch.uint16)  # the old format has none of these


class _Unrestricted(pickle.Unpickler):
    """What every careless reader does; it shows that an attack works."""

    def persistent_load(self, pid: Any) -> Any:
        return pid


@pytest.mark.parametrize("kind", KINDS)
def test_the_attacks_are_real(kind: str, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    _Unrestricted(io.BytesIO(pickle.dumps(attacks(marker)[kind]))).load()
    assert marker.exists()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", ["zip", "legacy", "pickle", "protocol 4 in a zip", "protocol 5"])
def test_nothing_runs(kind: str, form: str, tmp_path: Path) -> None:
    marker, path = tmp_path / "marker", tmp_path / "a.pth"
    found = {"epoch": 3, "args": attacks(marker)[kind], "state_dict": dict(narrow().state_dict())}
    if form == "zip":
        torch.save(found, path)
    elif form == "legacy":
        torch.save(found, path, _use_new_zipfile_serialization=False)
    elif form == "protocol 4 in a zip":
        torch.save(found, path, pickle_protocol=4)
    else:
        path.write_bytes(pickle.dumps(found["args"], protocol=2 if form == "pickle" else 5))
    created = marker.exists()  # "torch" saves into the marker only when it is called
    message = message_of(path)
    assert not created
    assert not marker.exists()
    assert "is refused: " in message or "is a pickle that torch.save did not write" in message


def test_the_name_of_what_would_be_called_is_told(tmp_path: Path) -> None:
    torch.save({"a": Call(eval, "1")}, tmp_path / "a.pth")
    assert "loading it would call builtins.eval, which weights do not need. Nothing was run." in message_of(
        tmp_path / "a.pth"
    )


@pytest.mark.parametrize("head", [b"\x80\x02", b"\x80\x04", b""])
def test_raw_opcodes(head: bytes, tmp_path: Path) -> None:
    """Other ways to import and call: INST, STACK_GLOBAL from the memo, EXT."""
    marker, path = tmp_path / "marker", tmp_path / "a.pth"
    touch = f"touch {marker}".encode()
    inst = b"(S'" + touch + b"'\nios\nsystem\n."
    stack = b"\x8c\x02os\x94\x8c\x06system\x940h\x00h\x01\x93\x8c" + bytes([len(touch)]) + touch + b"\x85R."
    extension = b"\x82\x01)R."
    for body in (inst, stack, extension):
        path.write_bytes(head + body)
        message_of(path)
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("a/data.pkl", (head or b"\x80\x02") + body)
            archive.writestr("a/version", "3\n")
        message_of(path)
        assert not marker.exists()


def test_what_training_scripts_keep_is_harmless_and_read(tmp_path: Path) -> None:
    """An allow-list: classes become stand-ins that hold nothing, or plain values; dictionaries stay dictionaries."""
    state = narrow().state_dict()
    beside = {
        "args": Namespace(
            data=Path("/data"),
            betas=(0.9, 0.99),
            when=datetime(2023, 1, 1, tzinfo=UTC),
            nested=[[1]],
            tensor=torch.ones(1),
        ),
        "config": SimpleNamespace(depth=50),
        "best": np.float64(0.7),
        "array": np.arange(3),
        "counts": defaultdict(int, a=1),
        "device": torch.device("cpu"),
        "kind": torch.float16,
        "words": {"a", "b"},
    }
    for i, zipped in enumerate((True, False)):
        path = tmp_path / f"{i}.pth"
        torch.save({"state_dict": state, **beside}, path, _use_new_zipfile_serialization=zipped)
        assert set(read_foreign(path).beside) == set(beside)
        found = read_checkpoint(path)
        assert isinstance(found["args"], Arguments)
        assert found["args"].values == {"betas": (0.9, 0.99)}
        assert isinstance(found["config"], Dropped)
        assert not hasattr(found["args"], "__dict__")
        assert not hasattr(found["config"], "__dict__")
        assert dict(found["counts"]) == {"a": 1}


def test_functions_of_a_training_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Barlow Twins and VICReg keep `__main__.exclude_bias_and_norm` in the state of their optimiser."""

    def exclude_bias_and_norm(_parameter: Any) -> bool:
        raise AssertionError("it was called")

    exclude_bias_and_norm.__module__, exclude_bias_and_norm.__qualname__ = "__main__", "exclude_bias_and_norm"
    monkeypatch.setattr(sys.modules["__main__"], "exclude_bias_and_norm", exclude_bias_and_norm, raising=False)
    found = {"model": narrow().state_dict(), "optimizer": {"weight_decay_filter": exclude_bias_and_norm}}
    torch.save(found, tmp_path / "checkpoint.pth")
    assert read_foreign(tmp_path / "checkpoint.pth").method.name == "resnet"
    assert read_checkpoint(tmp_path / "checkpoint.pth")["optimizer"]["weight_decay_filter"] is not exclude_bias_and_norm


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("zipped", [True, False])
def test_every_protocol_is_read(protocol: int, zipped: bool, tmp_path: Path) -> None:
    state = narrow().state_dict()
    torch.save(state, tmp_path / "a.pth", pickle_protocol=protocol, _use_new_zipfile_serialization=zipped)
    found = read_checkpoint(tmp_path / "a.pth")
    assert found.keys() == state.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in state.items())


def test_functions_of_pytorch_are_refused_by_name(tmp_path: Path) -> None:
    torch.save({"a": Call(torch.save, 1, str(tmp_path / "marker"))}, tmp_path / "a.pth")
    message = message_of(tmp_path / "a.pth")
    assert "loading it would call torch.serialization.save, which weights do not need. Nothing was run." in message


def test_a_whole_model(tmp_path: Path) -> None:
    torch.save(nn.Sequential(nn.Conv2d(3, 4, 3)), tmp_path / "a.pth")
    assert "is a whole model (torch.nn.modules.c" in message_of(tmp_path / "a.pth")
    torch.save(narrow(), tmp_path / "a.pth")
    assert "is a whole model (" in message_of(tmp_path / "a.pth")


@pytest.mark.parametrize("form", ["zip", "legacy", "safetensors"])
@pytest.mark.parametrize("share", [0.0005, 0.01, 0.5, 0.95, 0.999])
def test_cut_short(form: str, share: float, tmp_path: Path) -> None:
    path = tmp_path / "a.pth"
    state = {name: tensor.contiguous() for name, tensor in narrow().state_dict().items()}
    if form == "safetensors":
        save_file(state, path)
    else:
        torch.save(state, path, _use_new_zipfile_serialization=form == "zip")
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])
    assert any(words in message_of(path) for words in ("is damaged or incomplete", "is not a weights file"))


def test_not_weights(tmp_path: Path) -> None:
    path = tmp_path / "a.pth"
    Image.new("RGB", (64, 64)).save(tmp_path / "a.jpg")
    (tmp_path / "a.jpg").rename(path)
    assert r"it begins with b'\xff\xd8\xff" in message_of(path)
    path.write_text("<!DOCTYPE html><html>Too many downloads</html>" * 9)
    assert "it begins with b'<!DOCTYP'" in message_of(path)
    path.write_bytes(b"")
    assert "is empty. Download it again" in message_of(path)
    path.write_bytes(bytes(range(256)) * 20)
    assert "is not a weights file" in message_of(path)
    path.unlink()
    assert "cannot read the weights" in message_of(path)
    path.mkdir()
    assert "is a folder" in message_of(path)


def test_archives(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("weights.pth.tar", b"x" * 100)
    assert "a ZIP archive that torch.save did not write (it contains weights.pth.tar). Unpack it" in message_of(path)
    with tarfile.open(path, "w") as archive:
        archive.add(__file__, "storages")
    assert "is a tar archive. Unpack it" in message_of(path)


def test_a_program(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    with zipfile.ZipFile(path, "w") as archive:
        for name in ("a/data.pkl", "a/constants.pkl", "a/code/model.py"):
            archive.writestr(name, b"\x80\x02N.")
    assert "is a TorchScript program, not weights" in message_of(path)


def test_a_bomb_that_is_compressed(tmp_path: Path) -> None:
    path = tmp_path / "a.pth"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a/data.pkl", b"\x80\x02N.")
        archive.writestr("a/data/0", bytes(50_000_000))
    assert path.stat().st_size < 100_000
    assert "is refused: it has " in message_of(path)


def test_a_bomb_that_claims_to_be_huge(tmp_path: Path) -> None:
    """The directory says 4 GB, the file has a few hundred bytes."""
    path = tmp_path / "a.pth"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a/data.pkl", b"\x80\x02N.")
    content = bytearray(path.read_bytes())
    place = content.rindex(b"PK\x01\x02")
    content[place + 24 : place + 28] = struct.pack("<I", 0xFFFFFFF0)  # the size once unpacked
    path.write_bytes(content)
    assert "would unpack to 4,294,967,280" in message_of(path)


def test_a_storage_that_claims_more_than_it_has(tmp_path: Path) -> None:
    torch.save({"conv1.weight": torch.zeros(100_000)}, tmp_path / "a.pth")
    with zipfile.ZipFile(tmp_path / "a.pth") as old, zipfile.ZipFile(tmp_path / "b.pth", "w") as new:
        for member in old.infolist():
            content = old.read(member)
            new.writestr(member.filename, content[:16] if member.filename.endswith("data/0") else content)
    assert "is damaged or incomplete" in message_of(tmp_path / "b.pth")


@pytest.mark.parametrize("zipped", [True, False])
def test_tensors_are_those_of_pytorchs_own_reader(zipped: bool, tmp_path: Path) -> None:
    """Types, strides, shared and empty storages, parameters and numbers."""
    base = torch.arange(24, dtype=torch.float32)
    found = {
        **{str(dtype): torch.arange(5).to(dtype) for dtype in TYPES + (NEW_TYPES if zipped else ())},
        "view": base.view(4, 6)[1:3, ::2],
        "again": base[3:],
        "transposed": base.view(4, 6).t(),
        "empty": torch.empty(0, 3),
        "number": torch.tensor(7.5),
        "parameter": nn.Parameter(torch.ones(2)),
        "expanded": torch.ones(1).expand(4),
        "nested": {"list": [torch.zeros(2), 1, "text", None, 2.5, True, (1, 2), b"bytes", 10**20]},
        "odd": torch.arange(3, dtype=torch.uint8),  # moves what follows off its boundary
        "last": torch.randn(9, dtype=torch.float64),
    }
    torch.save(found, tmp_path / "a.pth", _use_new_zipfile_serialization=zipped)
    ours = read_checkpoint(tmp_path / "a.pth")
    theirs = torch.load(tmp_path / "a.pth", weights_only=True)  # noqa: TID251 - to compare with
    assert ours.keys() == theirs.keys()
    assert ours["nested"]["list"][1:] == theirs["nested"]["list"][1:]
    for name in set(theirs) - {"nested"}:
        assert (ours[name].dtype, ours[name].shape) == (theirs[name].dtype, theirs[name].shape), name
        assert ours[name].stride() == theirs[name].stride() or not ours[name].numel(), name
        assert torch.equal(ours[name], theirs[name].detach()), name


def test_what_is_read_does_not_hang_on_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.pth"
    torch.save(narrow().state_dict(), path)
    tensors = read_foreign(path).tensors
    before = {name: tensor.clone() for name, tensor in tensors.items()}
    path.write_bytes(bytes(path.stat().st_size))
    assert all(torch.equal(tensors[name], tensor) for name, tensor in before.items())


def test_a_flipped_bit_is_found_by_the_checksum(tmp_path: Path) -> None:
    torch.save(narrow().state_dict(), tmp_path / "a.pth")
    content = bytearray((tmp_path / "a.pth").read_bytes())
    content[len(content) // 2] ^= 1
    (tmp_path / "a.pth").write_bytes(content)
    assert "is damaged or incomplete (the checksum of " in message_of(tmp_path / "a.pth")


def test_a_writer_that_leaves_checksums_out(tmp_path: Path) -> None:
    torch.serialization.set_crc32_options(False)
    try:
        torch.save(narrow().state_dict(), tmp_path / "a.pth")
    finally:
        torch.serialization.set_crc32_options(True)
    assert read_foreign(tmp_path / "a.pth").method.name == "resnet"


def test_a_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.pth")
    assert "it is a named pipe" in message_of(tmp_path / "a.pth")
