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

from carp.errors import CheckpointError
from carp.features.foreign import read_foreign
from carp.features.foreign.safe_file import read_checkpoint
from tests.features.foreign.layouts import narrow


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
    """An allow-list: classes become stand-ins that hold nothing, dictionaries stay dictionaries."""
    state = narrow().state_dict()
    beside = {
        "args": Namespace(data=Path("/data"), betas=(0.9, 0.99), when=datetime(2023, 1, 1, tzinfo=UTC)),
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
        assert not isinstance(found["args"], Namespace)
        assert vars(found["args"]) == {}
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


@pytest.mark.parametrize("protocol", [4, 5])
def test_protocols_that_cannot_be_read_safely(protocol: int, tmp_path: Path) -> None:
    torch.save(narrow().state_dict(), tmp_path / "a.pth", pickle_protocol=protocol)
    assert "its pickle protocol cannot be read without running it. Nothing was run." in message_of(tmp_path / "a.pth")


def test_functions_of_pytorch_are_refused_by_name(tmp_path: Path) -> None:
    torch.save({"a": Call(torch.save, 1, str(tmp_path / "marker"))}, tmp_path / "a.pth")
    message = message_of(tmp_path / "a.pth")
    assert message.endswith("(Unsupported global: GLOBAL torch.serialization.save). Nothing was run.")


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
    assert any(words in message_of(path) for words in ("is damaged or cut short", "is not a file of weights"))


def test_not_weights(tmp_path: Path) -> None:
    path = tmp_path / "a.pth"
    Image.new("RGB", (64, 64)).save(tmp_path / "a.jpg")
    (tmp_path / "a.jpg").rename(path)
    assert r"it begins with b'\xff\xd8\xff" in message_of(path)
    path.write_text("<!DOCTYPE html><html>Too many downloads</html>" * 9)
    assert "it begins with b'<!DOCTYP'" in message_of(path)
    path.write_bytes(b"")
    assert "is empty: download it again" in message_of(path)
    path.write_bytes(bytes(range(256)) * 20)
    assert "is not a file of weights" in message_of(path)
    path.unlink()
    assert "cannot read the weights" in message_of(path)
    path.mkdir()
    assert "is a folder" in message_of(path)


def test_archives(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("weights.pth.tar", b"x" * 100)
    assert "a ZIP archive that torch.save did not write (it holds weights.pth.tar): unpack it" in message_of(path)
    with tarfile.open(path, "w") as archive:
        archive.add(__file__, "storages")
    assert "is a tar archive: unpack it" in message_of(path)


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
    assert "is damaged or cut short" in message_of(tmp_path / "b.pth")


def test_the_allow_list_does_not_stay_open(tmp_path: Path) -> None:
    before = torch.serialization.get_safe_globals()
    torch.save({"state_dict": narrow().state_dict(), "args": Namespace(a=1)}, tmp_path / "a.pth")
    read_foreign(tmp_path / "a.pth")
    assert torch.serialization.get_safe_globals() == before
