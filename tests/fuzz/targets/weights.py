"""Files of weights: damaged ones of every format, and pickles that would run code or fill the memory."""

import io
import json
import pickle
import struct
import zipfile
from random import Random

import torch
from safetensors.torch import save
from torch import Tensor

from carp.encoders.foreign.cifar_resnet import CifarResNet
from tests.fuzz import hostile
from tests.fuzz.case import IN, OUT, Case, Target
from tests.fuzz.mutate import mutate, mutate_text, to_bytes
from tests.fuzz.valid import Valid

_DETECTRON2 = {"model": {"stem.conv1.weight": 0}, "__author__": "CARP", "matching_heuristics": True, "carp": "{}"}


def target(valid: Valid) -> Target:
    """Cases for `weights`, `embed` and `export`."""
    seeds = _seeds(valid)
    pickles, bombs = list(hostile.pickles()), list(hostile.bombs())
    flat, run = valid.flat, valid.run
    tables = [pickle.dumps(_DETECTRON2, protocol=protocol) for protocol in (2, 4, 5)]

    def content(rng: Random) -> bytes:
        chance = rng.random()
        if chance < 0.5:
            data = rng.choice(seeds)
            if data[:2] == b"PK" and rng.random() < 0.6:
                return _damaged_member(rng, data)
            if data[8:9] == b"{" and rng.random() < 0.5:
                return _damaged_header(rng, data)
            return mutate(rng, data, seeds)
        program = rng.choice(pickles) if chance < 0.85 else rng.choice(bombs)
        if rng.random() < 0.3:
            program = mutate(rng, program, pickles)
        wrapping = rng.random()
        if wrapping < 0.5:
            return _zipped(program, rng.choice((b"3\n", b"", b"x" * 100)))
        return _legacy(rng, program) if wrapping < 0.8 else program

    def case(rng: Random) -> Case:
        if rng.random() < 0.1:  # what stands where an export is to be written is looked at first
            data = mutate(rng, rng.choice(tables), tables) if rng.random() < 0.5 else content(rng)
            form, suffix = rng.choice(
                (("detectron2", ".pkl"), ("safetensors", ".safetensors"), ("torchvision", ".pth"))
            )
            words = ("export", str(run), "--format", form, "--out", f"{OUT}/export{suffix}")
            return Case(words, {f"{OUT}/export{suffix}": data}, "in the place of an export")
        name = f"{IN}/weights{rng.choice(('.pth', '.pth.tar', '.safetensors', '.bin', '.npz', '.pkl'))}"
        files = {name: content(rng)}
        chance = rng.random()
        if chance < 0.75:
            return Case(("weights", name, *rng.choice(((), ("--json",)))), files)
        if chance < 0.9:
            model = rng.choice((name, f"moco:{name}", f"cifar-resnet:{name}", f"supervised:{name}"))
            return Case(("embed", model, "--data", str(flat), "--out", f"{OUT}/features", "--size", "16"), files)
        return Case(("export", name, "--format", "safetensors", "--out", f"{OUT}/export.safetensors"), files)

    return case


def _seeds(valid: Valid) -> list[bytes]:
    torch.manual_seed(0)
    cifar = CifarResNet((1, 1, 1), (4, 8, 16)).state_dict() | {"linear.weight": torch.zeros(3, 16)}
    plain = dict(_resnet())
    moco = {f"module.encoder_q.{name}": tensor for name, tensor in plain.items()}
    moco |= {"module.encoder_q.fc.0.weight": torch.zeros(8, 8), "module.queue": torch.zeros(8, 8)}
    half = {name: tensor.half() if tensor.is_floating_point() else tensor for name, tensor in plain.items()}
    contents: list[object] = [
        plain, cifar, half, {"state_dict": moco, "epoch": 200, "arch": "resnet50"},
        {"state_dict": {f"module.{name}": tensor for name, tensor in cifar.items()}, "best_prec1": 0.9},
    ]  # fmt: skip
    seeds = [
        save(plain),
        save(cifar, metadata={"format": "pt"}),
        valid.export("safetensors", ".safetensors").read_bytes(),
    ]
    for zipped in (True, False):
        for content in contents:
            file = io.BytesIO()
            torch.save(content, file, _use_new_zipfile_serialization=zipped)
            seeds.append(file.getvalue())
    return seeds


def _resnet() -> dict[str, Tensor]:
    from timm.models.resnet import BasicBlock, ResNet

    network = ResNet(BasicBlock, (1, 1, 1, 1), num_classes=3, channels=(4, 4, 8, 8), stem_width=4)
    return dict(network.state_dict())


def _damaged_member(rng: Random, data: bytes) -> bytes:
    """A file in the archive is damaged, and the archive is true to it."""
    made = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as archive, zipfile.ZipFile(made, "w") as other:
        members = archive.infolist()
        chosen = (
            next(m for m in members if m.filename.endswith("data.pkl")) if rng.random() < 0.7 else rng.choice(members)
        )
        for member in members:
            content = archive.read(member)
            name = member.filename
            if member is chosen:
                content = mutate(rng, content)
                name = rng.choice((name, name, name, name, name + "x", "../" + name, "\x1b[31m" + name))
            other.writestr(zipfile.ZipInfo(name), content, rng.choice((0, 0, 0, 0, 8)))
    return made.getvalue()


def _damaged_header(rng: Random, data: bytes) -> bytes:
    """Another header of safetensors, with a length that fits."""
    length = int.from_bytes(data[:8], "little")
    header = to_bytes(mutate_text(rng, data[8 : 8 + length].decode()))
    if rng.random() < 0.2:
        names = json.loads(data[8 : 8 + length])
        names |= {"\x1b[31m": {"dtype": "F64", "shape": [2**40, 2**40], "data_offsets": [0, 8]}}
        header = json.dumps(names).encode()
    return struct.pack("<Q", len(header)) + header + data[8 + length :]


def _zipped(program: bytes, version: bytes) -> bytes:
    """The archive that `torch.save` makes, around any pickle."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr("archive/data.pkl", program)
        archive.writestr("archive/version", version)
        archive.writestr("archive/data/0", bytes(64))
    return made.getvalue()


def _legacy(rng: Random, program: bytes) -> bytes:
    """What `torch.save` wrote before 2020, with a pickle in the place of one of its five."""
    parts = [pickle.dumps(part, protocol=2) for part in (0x1950A86A20F9469CFC6C, 1001, {"little_endian": True}, {}, [])]
    parts[rng.choice((1, 2, 3, 3, 3, 4))] = program
    return b"".join(parts)
