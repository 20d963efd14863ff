"""Workers prepare chunks of a batch: the same views, little shared memory, and an error where it is too little."""

import os
import threading
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch

from carp.compute import distributed
from carp.config import resolve
from carp.errors import ConfigError
from carp.images.loading import chunks
from carp.images.loading.chunks import PREFETCH, Assembly, chunk_size, free_shared_memory, in_chunks
from carp.images.loading.loader import PhotoLoader
from carp.images.sources.array import ArraySource
from carp.images.sources.folder import FolderSource
from tests.helpers import TINY, tiny_images, write_images

SHARED = Path("/dev/shm")
needs_shared_memory = pytest.mark.skipif(not SHARED.is_dir(), reason="this system has no /dev/shm")


@pytest.mark.parametrize(
    ("images", "workers", "expected"),
    [(4096, 0, 4096), (4096, 16, 107), (4096, 1, 1715), (256, 2, 128), (7, 3, 3), (2, 8, 1)],
)
def test_all_workers_share_a_batch_and_at_most_a_gibibyte_is_on_its_way(
    images: int, workers: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunks, "free_shared_memory", lambda: 2**40)
    size = chunk_size(images, 313_000, workers)
    assert size == expected
    assert workers == 0 or size * workers * PREFETCH * 313_000 <= 2**30


def test_a_container_with_little_shared_memory_gets_smaller_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "free_shared_memory", lambda: 64 * 2**20)
    size = chunk_size(4096, 313_000, 16)
    assert size == 5
    assert size * 16 * PREFETCH * 313_000 <= 0.8 * 64 * 2**20


def test_too_little_shared_memory_is_an_error_with_the_workers_that_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "free_shared_memory", lambda: 4 * 2**20)
    with pytest.raises(ConfigError, match=r"workers=16 .*at least .*only 4\.0 MiB is free.*workers=5\."):
        chunk_size(4096, 313_000, 16)
    assert chunk_size(4096, 313_000, 5) == 1


@needs_shared_memory
def test_processes_on_one_machine_share_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = free_shared_memory()
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    shared = free_shared_memory()
    assert alone is not None
    assert shared == pytest.approx(alone / 4, rel=0.05)


@pytest.mark.parametrize("size", [1, 3, 5, 16])
def test_an_assembly_is_the_batch_in_its_layout(size: int) -> None:
    images = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (16, 8, 8, 3), dtype=np.uint8))
    whole = [images.permute(0, 3, 1, 2), images[:, :4, :4].contiguous().permute(0, 3, 1, 2)]
    assembly = Assembly(16)
    for rows in in_chunks(np.arange(16), size):
        assembly.add([view[torch.from_numpy(rows)] for view in whole])
    for made, expected in zip(assembly.views, whole, strict=True):
        assert torch.equal(made, expected)
        assert made.stride() == expected.stride()


def config(**changes: object) -> object:
    return resolve({**TINY, "global_size": 72, "blur": [1, 0.1, 0.5], **changes}, num_images=64)


@pytest.mark.parametrize("limit", [1, 40_000, 10**9])
def test_any_size_of_the_chunks_gives_the_same_views(
    limit: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = FolderSource(write_images(tmp_path / "images", tiny_images(40)))
    expected = list(PhotoLoader(source, config(workers=0)).batches(0, 3))
    one_image = 2 * 3 * 72**2
    monkeypatch.setattr(chunks, "_MOST_BYTES", max(limit, 2 * 2 * one_image))
    found = list(PhotoLoader(source, config(workers=2)).batches(0, 3))
    assert len(found) == len(expected) == 3
    for ours, theirs in zip(found, expected, strict=True):
        assert np.array_equal(ours.indices, theirs.indices)
        for a, b in zip(ours.views, theirs.views, strict=True):
            assert torch.equal(a, b)
            assert a.stride() == b.stride()


@pytest.mark.parametrize(
    ("workers", "processes", "own"), [(0, 1, 0), (0, 8, 0), (2, 1, 2), (16, 8, 2), (17, 8, 2), (3, 4, 1)]
)
def test_the_processes_of_a_machine_divide_its_workers(
    workers: int, processes: int, own: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(processes))
    assert distributed.share_here(workers) == own
    loader = PhotoLoader(ArraySource(tiny_images(64)), config(global_size=144, workers=workers, batch_size=64))
    assert loader._chunk == chunk_size(64, 2 * 3 * 144**2, own)


@needs_shared_memory
def test_shared_memory_stays_below_the_cap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a slow consumer, so that the workers prepare as much as they may."""
    source = FolderSource(write_images(tmp_path / "images", tiny_images(64)))
    image = 2 * 3 * 144**2
    monkeypatch.setattr(chunks, "_MOST_BYTES", 3 * 2 * 2 * image)  # chunks of three images
    before, most, done = _used(), 0, threading.Event()

    def watch() -> None:
        nonlocal most
        while not done.wait(0.002):
            most = max(most, _used())

    watcher = threading.Thread(target=watch)
    watcher.start()
    loader = PhotoLoader(source, config(global_size=144, workers=2, batch_size=32))
    for _ in loader.batches(0, 2):
        time.sleep(0.3)
    done.set()
    watcher.join()
    whole_batches = 2 * 2 * 32 * image
    assert 0 < most - before < whole_batches / 4


def _used() -> int:
    """Bytes of shared memory of this process and its workers; torch unlinks its files, but keeps descriptors open."""
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    sizes = dict[int, int]()
    for process in ("self", *children):
        with suppress(OSError):  # it may have ended
            for descriptor in Path(f"/proc/{process}/fd").iterdir():
                with suppress(OSError):
                    if str(descriptor.readlink()).startswith(f"{SHARED}/torch_"):
                        about = descriptor.stat()
                        sizes[about.st_ino] = about.st_size
    return sum(sizes.values())
