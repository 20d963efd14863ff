"""What verification costs when a feature store is opened: python -m benchmarks.open_store [--folder DIR]."""

import argparse
import json
import tempfile
import time
from pathlib import Path

import numpy as np

from carp.features.store import FEATURES, LABELS, PLACES, Origin, Store, open_store, read_manifest, store_files
from carp.features.store import write_manifest as complete

FEATURES_PER_IMAGE, TIMES = 2048, 5


def make(folder: Path, images: int) -> Store:
    """A store of random features."""
    folder.mkdir(parents=True)
    chance = np.random.default_rng(0)
    features = np.lib.format.open_memmap(folder / FEATURES, "w+", np.dtype(np.float32), (images, FEATURES_PER_IMAGE))
    for start in range(0, images, 1000):
        features[start : start + 1000] = chance.standard_normal(features[start : start + 1000].shape, np.float32)
    features.flush()
    np.save(folder / LABELS, chance.integers(0, 100, images))
    (folder / PLACES).write_text("".join(json.dumps(f"/images/{i:08d}.jpg") + "\n" for i in range(images)))
    origin = Origin(
        {"hash": "random", "layer": "encoder", "name": "random", "branch": ""},
        {},
        {"name": "random", "fingerprint": "random", "images": images},
    )
    complete(Store(folder, origin, tuple(map(str, range(100))), []))
    return open_store(folder)


def main() -> None:
    """Stores of several sizes, warm in the page cache."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, help="Where to write about 1 GB. Default: the temporary folder.")
    with tempfile.TemporaryDirectory(dir=parser.parse_args().folder) as home:
        for images in (1_000, 8_000, 100_000):
            store = make(Path(home) / str(images), images)
            size = sum((store.folder / name).stat().st_size for name in store_files(store))
            opened, unverified, whole = [], [], []
            for _ in range(TIMES):
                start = time.perf_counter()
                read_manifest(store.folder)
                unverified.append(time.perf_counter() - start)
                start = time.perf_counter()
                open_store(store.folder)
                opened.append(time.perf_counter() - start)
                start = time.perf_counter()
                for name in store_files(store):
                    store.check(name, everything=True)
                whole.append(time.perf_counter() - start)
            times = [1000 * float(np.median(taken)) for taken in (unverified, opened, whole)]
            print(
                f"{images:>9,} images, {size / 1e6:7.1f} MB: manifest {times[0]:6.1f} ms, open (verified) "
                f"{times[1]:6.1f} ms, everything (carp check) {times[2]:7.1f} ms"
            )


if __name__ == "__main__":
    main()
