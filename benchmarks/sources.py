"""Finding and fetching images: the index of a million files beside ImageFolder's, workers' memory, shards beside files.

    python -m benchmarks.sources                    # a table
    python -m benchmarks.sources --json             # the same, and a last line of JSON with the targets
    python -m benchmarks.sources --shards FOLDER    # only the index of the tar shards in a folder

The contenders take turns in one process, and the best of several rounds counts. Files are written to a temporary folder
(`--scratch`), a million of them nearly empty; what is fetched are JPEG photographs of 500 × 375 drawn for the purpose.
The memory of a worker is what it shares with no other process (USS) after it has fetched a few hundred images, compared
with a worker whose source is tiny. The index of tar shards is built with CARP's parser of headers and with the standard
library's `tarfile`, with the same checks.
"""

import argparse
import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision.datasets import ImageFolder

from benchmarks.shared import judged
from carp.images.open_source import open_source
from carp.images.remote.shard import Reader, ReaderFile
from carp.images.source import Source, read
from carp.images.sources import tar_shards
from carp.images.sources.folder import FolderSource
from carp.images.sources.tar_headers import BrokenTarError, Member, members
from carp.images.sources.tar_shards import TarSource

FILES, QUICK_FILES = 1_000_000, 50_000
PER_FOLDER, PER_SHARD = 1000, 100
PHOTOS, QUICK_PHOTOS = 1000, 200
FETCHED_BY_WORKER = 600
MEGABYTE = 2**20


def write_files(root: Path, count: int) -> None:
    """Nearly empty files with names like ImageNet's, a thousand in a class."""
    for start in range(0, count, PER_FOLDER):
        name = f"n{start // PER_FOLDER * 7919:08d}"
        (root / name).mkdir(parents=True)
        for i in range(PER_FOLDER):
            (root / name / f"{name}_{37 * i}.JPEG").write_bytes(b"x" * (i % 7))


def write_photos(root: Path, count: int) -> None:
    """The same photographs as files below `folder` and as members of shards in `shards`."""
    (root / "folder").mkdir(parents=True)
    (root / "shards").mkdir()
    for start in range(0, count, PER_SHARD):
        with tarfile.open(root / "shards" / f"{start // PER_SHARD:04d}.tar", "w") as shard:
            for i in range(start, start + PER_SHARD):
                photo = _photo(i)
                (root / "folder" / f"{i:06d}.jpg").write_bytes(photo)
                member = tarfile.TarInfo(f"{i:06d}.jpg")
                member.size = len(photo)
                shard.addfile(member, io.BytesIO(photo))


def _photo(seed: int) -> bytes:
    """Structure at several scales, and about as many bytes as a photograph has."""
    random, pixels = np.random.default_rng(seed), np.zeros((375, 500, 3))
    for side, strength in ((4, 90), (25, 40), (125, 25)):
        coarse = random.integers(0, 256, (side * 3 // 4, side, 3), dtype=np.uint8)
        pixels += (
            strength / 128 * (np.array(Image.fromarray(coarse).resize((500, 375), Image.Resampling.BICUBIC)) - 128.0)
        )
    buffer = io.BytesIO()
    Image.fromarray(np.clip(pixels + 128, 0, 255).astype(np.uint8)).save(buffer, "jpeg", quality=90)
    return buffer.getvalue()


def best_of(rounds: int, contenders: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Seconds of every contender, the best of rounds in which they take turns."""
    best = dict.fromkeys(contenders, float("inf"))
    for _ in range(rounds):
        for name, run in contenders.items():
            start = time.perf_counter()
            made = run()
            best[name] = min(best[name], time.perf_counter() - start)
            del made
    return best


def measure_index(files: Path, scratch: Path, rounds: int) -> dict[str, float]:
    """Seconds to find all images: anew by either library, and again with the index that was kept."""
    source = FolderSource(files)
    source.keep_index(scratch / "index")
    return best_of(
        rounds,
        {
            "ours": lambda: FolderSource(files),
            "ImageFolder": lambda: ImageFolder(files),
            "ours, kept": lambda: FolderSource(files, index=scratch / "index"),
        },
    )


def members_by_tarfile(file: Reader) -> Iterator[Member]:
    """What `tar_headers.members` yields, with the standard library and the same checks for truncation and damage."""
    length = file.size
    with io.BufferedReader(ReaderFile(file)) as opened:
        opened.seek(0)
        try:
            with tarfile.open(fileobj=opened, mode="r:") as archive:
                while (member := archive.next()) is not None:
                    archive.members.clear()  # type: ignore[attr-defined]  # or memory grows with the shard
                    if member.offset_data + member.size > length or member.issparse():
                        raise BrokenTarError(f"it is truncated or sparse at byte {member.offset:,}")
                    if member.isreg():
                        yield Member(member.name, member.offset_data, member.size)
                end = archive.offset
        except tarfile.TarError as error:
            raise BrokenTarError(str(error)) from None
        opened.seek(end)
        if opened.read(512) != bytes(512):  # `tarfile` takes a damaged header after the first for the end
            raise BrokenTarError(f"there is no end mark at byte {end:,}")


def measure_shard_index(shards: Path, rounds: int) -> dict[str, float]:
    """Seconds to index all shards of a folder, with either parser; both must give the same index."""
    files, fingerprints = sorted(shards.glob("*.tar")), set()

    def build(parser: Callable[[Reader], Iterator[Member]]) -> None:
        with patch.object(tar_shards, "members", parser):
            fingerprints.add(TarSource(files, name=str(shards)).fingerprint)

    seconds = best_of(rounds, {"ours": lambda: build(members), "tarfile": lambda: build(members_by_tarfile)})
    assert len(fingerprints) == 1, "the parsers disagree"
    return seconds


def shard_rows(shards: Path, rounds: int) -> Iterator[tuple[str, float, float, bool]]:
    """The row about the index of tar shards."""
    seconds = measure_shard_index(shards, rounds)
    count = len(open_source(shards))
    print(f"| parser of headers | seconds to index {count:,} images in tar shards |\n| --- | --- |")
    print("".join(f"| {name} | {value:.3f} |\n" for name, value in seconds.items()), flush=True)
    yield "index of shards, ours / tarfile", seconds["ours"] / seconds["tarfile"], 0.9, False


def measure_fetching(photos: Path, rounds: int) -> dict[str, float]:
    """Images a second, in one random order for all; the cache is warm after the first round."""
    sources: dict[str, Source] = {"folder": open_source(photos / "folder"), "shards": open_source(photos / "shards")}
    order = np.random.default_rng(0).permutation(len(sources["folder"])).tolist()

    def fetch(source: Source) -> None:
        for i in order:
            source.fetch(i)

    def fetch_and_decode(source: Source) -> None:
        for i in order[: len(order) // 4]:
            read(source, i)

    fetched = best_of(10 * rounds, {name: lambda s=source: fetch(s) for name, source in sources.items()})  # type: ignore[misc]
    decoded = best_of(rounds, {name: lambda s=source: fetch_and_decode(s) for name, source in sources.items()})  # type: ignore[misc]
    return {
        **{f"{name}, fetch": len(order) / seconds for name, seconds in fetched.items()},
        **{f"{name}, fetch and decode": len(order) // 4 / seconds for name, seconds in decoded.items()},
    }


class _Fetched(Dataset[tuple[int, float]]):
    """What a worker holds: (process, its own memory in MB) after every image that it fetched."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, index: int) -> tuple[int, float]:
        self._source.fetch(index)
        self._source.place(index)
        return os.getpid(), own_memory()


def own_memory() -> float:
    """Megabytes that this process shares with no other."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) * 1024 / MEGABYTE


def worker_memory(files: Path, scratch: Path) -> float:
    """The memory of the worker that holds most, in a run on these files."""
    source = open_source(files, index=scratch)
    source.keep_index(scratch)
    indices = np.random.default_rng(0).integers(0, len(source), FETCHED_BY_WORKER).tolist()
    loader = DataLoader(_Fetched(source), sampler=indices, num_workers=2, batch_size=None)
    last: dict[int, float] = dict(tuple(item) for item in loader)
    return max(last.values())


def memory_apart(files: Path, scratch: Path) -> float:
    """`worker_memory` in a process of its own, where nothing else was done before."""
    words = [sys.executable, "-m", "benchmarks.sources", "--memory-of", str(files), "--scratch", str(scratch)]
    return float(subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()[-1])


def rows_of(arguments: argparse.Namespace, scratch: Path) -> Iterator[tuple[str, float, float, bool]]:
    """(measure, value, target, whether the value must be at least the target)."""
    if arguments.shards:
        yield from shard_rows(arguments.shards, arguments.rounds)
        return
    files = arguments.files or scratch / "files"
    if arguments.files is None:
        write_files(files, QUICK_FILES if arguments.quick else FILES)
    count = len(FolderSource(files))
    index = measure_index(files, scratch, arguments.rounds)
    print(f"| contender | seconds to find {count:,} images |\n| --- | --- |")
    print("".join(f"| {name} | {seconds:.2f} |\n" for name, seconds in index.items()), flush=True)
    yield "index, ours / ImageFolder", index["ours"] / index["ImageFolder"], 0.5, False

    write_files(scratch / "few", PER_FOLDER)
    memory = {name: memory_apart(folder, scratch) for name, folder in (("few", scratch / "few"), ("all", files))}
    print(f"| source | MB of a worker's own |\n| --- | --- |\n| {PER_FOLDER:,} images | {memory['few']:.1f} |")
    print(f"| {count:,} images | {memory['all']:.1f} |\n", flush=True)
    yield "MB of a worker for the index", memory["all"] - memory["few"], 20.0, False

    write_photos(scratch / "photos", QUICK_PHOTOS if arguments.quick else PHOTOS)
    yield from shard_rows(scratch / "photos" / "shards", arguments.rounds)
    rates = measure_fetching(scratch / "photos", arguments.rounds)
    print("| source | images/s |\n| --- | --- |")
    print("".join(f"| {name} | {rate:,.0f} |\n" for name, rate in rates.items()), flush=True)
    yield "images/s, shards / folder, fetch", rates["shards, fetch"] / rates["folder, fetch"], 1.0, True
    both = "fetch and decode"
    yield f"images/s, shards / folder, {both}", rates[f"shards, {both}"] / rates[f"folder, {both}"], 1.0, True


def main() -> None:
    """Parse the command line and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    parser.add_argument("--quick", action="store_true", help="fewer files")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--scratch", type=Path, help="folder for temporary files")
    parser.add_argument("--files", type=Path, help="find the images of this folder instead of writing a million")
    parser.add_argument("--shards", type=Path, help="only index the tar shards of this folder")
    parser.add_argument("--memory-of", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.memory_of:
        print(worker_memory(arguments.memory_of, arguments.scratch))
        return
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(dir=arguments.scratch) as name:
        for measure, value, target, at_least in rows_of(arguments, Path(name)):
            results[measure] = judged(value, target, at_least=at_least)
    print("| measure | value | target |\n| --- | --- | --- |")
    for measure, row in results.items():
        print(f"| {measure} | {row['value']} | {row['target']} |")
    if arguments.json:
        print(json.dumps(results))


if __name__ == "__main__":
    main()
