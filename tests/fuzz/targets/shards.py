"""Damaged tar shards and Parquet files."""

import io
import json
import tarfile
from pathlib import Path
from random import Random

from tests.fuzz.case import IN, OUT, Case, Outcome, Target
from tests.fuzz.mutate import mutate, mutate_text, to_bytes
from tests.fuzz.targets.images import seed_images
from tests.fuzz.valid import Valid

_BLOCK = 512


def _commands(valid: Valid, rng: Random, name: str, data: bytes) -> Case:
    chance = rng.random()
    if chance < 0.75:
        words = ("data", "check", name, "--json", "--recipe", str(valid.recipe))
        return Case(words, {name: data}, check=_counted, codes=frozenset({0, 1, 2}))
    if chance < 0.9:
        words = ("views", name, "--out", f"{OUT}/views.png", "--recipe", str(valid.recipe), "--draws", "1")
        return Case(words, {name: data})
    return Case(("embed", str(valid.run), "--data", name, "--out", f"{OUT}/features"), {name: data})


def _counted(outcome: Outcome, _folder: Path) -> str | None:
    if outcome.code not in {0, 1}:
        return None
    found = json.loads(outcome.stdout)
    accounted = len(found["broken"]) + sum(found["formats"].values())
    return None if accounted == found["looked_at"] == found["images"] else "images are not accounted for"


def tar_target(valid: Valid) -> Target:
    """Shards in WebDataset layout: plain, with long names, with labels."""
    images = [item for item in seed_images() if len(item[1]) < 2000]
    seeds = [_tar(images, form, labels) for form in (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT) for labels in (0, 1, 2)]  # fmt: skip  # noqa: E501
    _ = valid.run

    def case(rng: Random) -> Case:
        data = mutate(rng, rng.choice(seeds), seeds)
        if rng.random() < 0.5:
            data = _damage_header(rng, data)
        return _commands(valid, rng, f"{IN}/shard.tar", data)

    return case


def _tar(images: list[tuple[str, bytes]], form: int, labels: int) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=form) as archive:
        for number, (suffix, data) in enumerate(images[:: 5 - form]):
            name = f"folder/{'long' * 40 if number % 3 == 2 and form != tarfile.USTAR_FORMAT else ''}{number:03d}"
            members = [(suffix, data)]
            if labels == 1:
                members.append((".cls", str(number % 2).encode()))
            if labels == 2:
                members.append((".json", json.dumps({"label": f"class {number % 2}"}).encode()))
            for ending, content in members:
                info = tarfile.TarInfo(name + ending)
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
    return file.getvalue()


def _damage_header(rng: Random, data: bytes) -> bytes:
    """A false field in the head of a member, with a checksum that fits."""
    heads = [place for place in range(0, len(data) - _BLOCK, _BLOCK) if data[place + 257 : place + 262] == b"ustar"]
    if not heads:
        return data
    start = rng.choice(heads)
    head = bytearray(data[start : start + _BLOCK])
    kind = rng.randrange(4)
    if kind == 0:  # size: octal, base 256, negative, no number
        head[124:136] = rng.choice((b"77777777777\0", b"\x80" + b"\xff" * 11, b"\xff" * 12, b"-0000000001\0", b"zzz" * 4, bytes(12), b"\x80" + bytes(6) + b"\x7f" * 5))  # fmt: skip  # noqa: E501
    elif kind == 1:
        head[156:157] = rng.choice((b"0", b"1", b"2", b"3", b"5", b"6", b"L", b"K", b"x", b"g", b"S", b"\xff", b"V"))
    elif kind == 2:  # name
        head[0:100] = rng.choice((b"\x1b[31mred.png", b"../../../etc/x.png", b"\xff\xfe.jpg", b"/abs.png", b"", b"a" * 100)).ljust(100, b"\0")  # fmt: skip  # noqa: E501
    else:
        head[rng.randrange(_BLOCK)] = rng.randrange(256)
    head[148:156] = b" " * 8
    head[148:156] = b"%06o\0 " % sum(head)
    return data[:start] + bytes(head) + data[start + _BLOCK :]


def parquet_target(valid: Valid) -> Target:
    """Images as bytes or as structs, with labels or without; compressed in different ways."""
    seeds = _parquet_files(valid)
    _ = valid.run

    def case(rng: Random) -> Case:
        data = rng.choice(seeds)
        if rng.random() < 0.4:  # the footer, where everything about the columns stands
            length = int.from_bytes(data[-8:-4], "little") + 8
            data = data[:-length] + mutate(rng, data[-length:], seeds)
        else:
            data = mutate(rng, data, seeds)
        if rng.random() < 0.3 and len(data) > 12:
            data = b"PAR1" + data[4:-4] + b"PAR1"
        return _commands(valid, rng, f"{IN}/images.parquet", data)

    return case


def _parquet_files(valid: Valid) -> list[bytes]:
    """Written by another process: pyarrow starts threads, and this one is forked."""
    import multiprocessing

    folder = valid.folder / "parquet"
    if not folder.exists():
        folder.mkdir()
        writer = multiprocessing.get_context("fork").Process(target=_write_parquet, args=(folder,))
        writer.start()
        writer.join()
        assert writer.exitcode == 0
    return [path.read_bytes() for path in sorted(folder.iterdir())]


def _write_parquet(folder: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    images = [data for suffix, data in seed_images() if suffix in {".jpg", ".png"}][:6]
    labels = [number % 2 for number in range(len(images))]
    structs = [{"bytes": data, "path": f"{number}.jpg"} for number, data in enumerate(images)]
    tables = {
        "plain": pa.table({"image": images}),
        "labels": pa.table({"image": images, "label": labels}),
        "names": pa.table({"image": structs, "label": [f"class {label}" for label in labels]}),
    }
    for name, table in tables.items():
        for compression in ("none", "snappy", "gzip", "zstd"):
            pq.write_table(table, folder / f"{name}-{compression}.parquet", compression=compression, row_group_size=3)


def text_of(rng: Random, text: str) -> bytes:
    """A damaged text: sometimes its characters, sometimes its bytes."""
    return to_bytes(mutate_text(rng, text)) if rng.random() < 0.7 else mutate(rng, text.encode())
