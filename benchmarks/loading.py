"""Memory and speed of the loader of photographs, with generated JPEGs: the table of docs/scaling.md.

    python -m benchmarks.loading [--batch-size 256] [--workers 4] [--rounds 3]

First a consumer waits until the workers have prepared all that they may, which is the peak of memory. Then it takes
batches as fast as they come. The CPU time of all processes is less sensitive to other programs than the rate.
"""

import argparse
import json
import os
import resource
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import numpy as np
from PIL import Image, ImageFilter

from carp.config import resolve
from carp.config.recipe import read_settings
from carp.images.loading.loader import PhotoLoader
from carp.images.sources.folder import FolderSource
from carp.images.sources.subset import Subset

SHARED = "/dev/shm/torch_"
DIFFERENT = 256  # photographs, repeated as often as a batch needs
QUIET_SECONDS = 3.0  # without growth, after which the workers have prepared all that they may


def write_photographs(folder: Path, count: int) -> None:
    """Write smooth noise of the usual size of a photograph in ImageNet, as JPEG."""
    folder.mkdir()
    generator = np.random.default_rng(0)
    for number in range(count):
        pixels = generator.integers(0, 256, (375, 500, 3), dtype=np.uint8)
        Image.fromarray(pixels).filter(ImageFilter.GaussianBlur(2)).save(folder / f"{number:05d}.jpg", quality=90)


def processes() -> list[str]:
    """This process and its workers."""
    return ["self", *Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]


def shared_bytes() -> int:
    """Bytes of shared memory on the way: torch unlinks its files, so that only descriptors and maps lead to them."""
    found = dict[str, int]()
    for process in processes():
        with suppress(OSError):
            for line in Path(f"/proc/{process}/maps").read_text().splitlines():
                if SHARED in line:
                    place, _, _, _, inode, *_ = line.split()
                    first, last = (int(address, 16) for address in place.split("-"))
                    found[inode] = last - first
        with suppress(OSError):
            for descriptor in Path(f"/proc/{process}/fd").iterdir():
                with suppress(OSError):
                    if str(descriptor.readlink()).startswith(SHARED):
                        about = descriptor.stat()
                        found[str(about.st_ino)] = about.st_size
    return sum(found.values())


def resident_bytes() -> int:
    """Resident memory of all processes; pages that they share count once."""
    total = 0
    for process in processes():
        with suppress(OSError):
            words = Path(f"/proc/{process}/smaps_rollup").read_text().split()
            total += 1024 * int(words[words.index("Pss:") + 1])
    return total


def cpu_seconds() -> float:
    """CPU time of this process and of the workers that have ended."""
    return sum(
        used.ru_utime + used.ru_stime
        for used in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    )


def peak(loader: PhotoLoader) -> Iterator[tuple[str, float]]:
    """Take one batch, then wait until nothing grows."""
    start, before = time.monotonic(), resident_bytes()
    with closing(loader.batches(0, 100)) as batches:
        next(batches)
        yield "first batch, seconds", time.monotonic() - start
        shared, resident, grown_at = 0, 0, time.monotonic()
        while time.monotonic() - grown_at < QUIET_SECONDS:
            if (now := shared_bytes()) > shared:
                shared, grown_at = now, time.monotonic()
            resident = max(resident, resident_bytes())
            time.sleep(0.2)
    yield "shared memory, MB", shared / 1e6
    yield "resident memory, MB", (resident - before) / 1e6


def rates(loader: PhotoLoader, batches: int, batch_size: int) -> tuple[float, float]:
    """Images per second, and CPU milliseconds per image."""
    start, used = time.monotonic(), cpu_seconds()
    for _ in loader.batches(0, batches):
        pass
    images = batches * batch_size
    return images / (time.monotonic() - start), 1000 * (cpu_seconds() - used) / images


def main() -> None:
    """Print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=("memory", "speed"))
    options = parser.parse_args()
    given = {"batch_size": options.batch_size, "micro_batch": None, "workers": options.workers, "device": "cpu"}
    with tempfile.TemporaryDirectory() as folder:
        write_photographs(Path(folder) / "photographs", DIFFERENT)
        source = Subset(FolderSource(Path(folder) / "photographs"), np.arange(options.batch_size) % DIFFERENT)
        config = resolve(read_settings("imagenet-100", given), num_images=len(source))
        found: dict[str, float] = {}
        if options.only != "speed":
            found |= dict(peak(PhotoLoader(source, config)))
        if options.only != "memory":
            measured = [
                rates(PhotoLoader(source, config), 2 * options.workers, options.batch_size)
                for _ in range(options.rounds)
            ]
            found |= {"images/s": max(rate for rate, _ in measured), "CPU ms per image": min(ms for _, ms in measured)}
    print(json.dumps({name: round(value, 2) for name, value in found.items()}))


if __name__ == "__main__":
    main()
