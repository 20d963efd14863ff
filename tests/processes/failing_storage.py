"""`carp` on storage that fails now and then: `LD_PRELOAD=… python -m tests.processes.failing_storage NAME FOLDER`.

`failing_reads.c` lets reads fail; everything else is the real command line in a process of its own.
"""

import errno
import json
import os
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import carp
import carp.commands.embed
import carp.commands.train
from carp import cli
from carp.compute import distributed
from carp.config import resolve
from carp.errors import DataError
from carp.images.decoding import transient
from carp.images.loading.order import Order
from carp.images.open_source import open_source
from tests.helpers import TINY, assert_same_run, steps_of, tiny_images, write_images, write_recipe
from tests.processes.conftest import own_lines
from tests.processes.forked import in_processes

transient.FIRST_PAUSE = 0.02
IMAGES = 24
ALWAYS = 1_000_000
PHOTOS = {"epochs": 2, "batch_size": 8, "global_size": 72, "workers": 2, "checkpoint_steps": 1000}
SMALLER = {"encoder_options": {"layers": [1, 1, 1, 1], "channels": [4, 4, 8, 8], "stem_type": "deep", "stem_width": 4}}


def prepare(folder: Path) -> dict[str, Path]:
    """The same 24 photographs as a folder, a list, tar shards and Parquet files."""
    root = folder / "storage"
    photos = np.repeat(np.repeat(tiny_images(IMAGES, 20), 4, axis=1), 4, axis=2)
    files = sorted(write_images(root / "photos", photos).iterdir())
    (root / "list.txt").write_text("".join(f"{file}\n" for file in files))
    for part in range(2):
        own = files[part::2]
        with tarfile.open(root / f"{part}.tar", "w") as shard:
            for file in own:
                shard.add(file, file.name)
        table = pa.table({"image": [file.read_bytes() for file in own]})
        pq.write_table(table, root / f"{part}.parquet", row_group_size=4)
    write_recipe(folder / "photos.yaml", **PHOTOS, **SMALLER)
    return {"folder": root / "photos", "list": root / "list.txt", "tar": root / "*.tar", "parquet": root / "*.parquet"}


def command(*words: object, faults: str = "", output: Path) -> tuple[int, str]:
    """`carp words…` in a process of its own: exit code, and both streams together."""
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        become(*words, faults=faults, output=output)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return code, output.read_text()


def become(*words: object, faults: str, output: Path) -> None:
    """The rest of this process is `carp words…`."""
    file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(file, stream)
    os.environ["FAULTS"] = faults
    sys.argv = ["carp", *map(str, words)]
    code = 0
    try:
        cli.main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def train(folder: Path, data: Path, name: str, *words: str, faults: str = "") -> tuple[int, str]:
    settings = ["train", data, "--recipe", folder / "photos.yaml", "--out", folder / name, *words]
    return command(*settings, faults=faults, output=folder / f"{name}.txt")


def changes_nothing(folder: Path, data: Path, name: str, fault: int, *words: str) -> None:
    """Two reads of every file fail in every process; the run ends in the bits of one without faults."""
    code, said = train(folder, data, f"{name}-good", *words)
    assert code == 0, said
    assert "Retrying" not in said, "there was a fault where none should be"
    code, said = train(folder, data, f"{name}-faulty", *words, faults=f"{folder}/storage/:{fault}:2")
    assert code == 0, said
    assert os.strerror(fault) in said
    assert "Retrying" in said
    assert_same_run(folder / f"{name}-faulty", folder / f"{name}-good")
    assert not (folder / f"{name}-faulty" / "quarantine.jsonl").exists()
    print("passed:", name, flush=True)


def folder_of_images(folder: Path) -> None:
    changes_nothing(folder, prepare(folder)["folder"], "folder", errno.EIO)


def other_sources(folder: Path) -> None:
    data = prepare(folder)
    changes_nothing(folder, data["folder"], "busy", errno.EAGAIN, "workers=1")
    changes_nothing(folder, data["list"], "list", errno.ESTALE)
    changes_nothing(folder, data["tar"], "tar", errno.ETIMEDOUT)
    changes_nothing(folder, data["parquet"], "parquet", errno.ENETUNREACH)
    changes_nothing(folder, data["folder"], "in memory", errno.ECONNRESET, "global_size=32", "blur=[0, 0, 0]")


def due_at(data: Path, step: int) -> str:
    """The name of an image that is not read before a step, nor by the look at the sizes of some images."""
    source = open_source(data)
    config = resolve({**TINY, **PHOTOS}, num_images=IMAGES)
    steps = list(Order.of_source(source, config).steps(0, step + 1))
    looked_at = set(np.linspace(0, IMAGES - 1, 16).astype(int).tolist())
    return Path(source.place(next(i for i in steps[-1][2].tolist() if i not in looked_at))).name


def stops(folder: Path) -> None:
    """A file that cannot be read at all: the run is saved and stops, and the same command continues it."""
    data = prepare(folder)["folder"]
    name = due_at(data, 2)
    code, said = train(folder, data, "undisturbed")
    assert code == 0, said
    code, said = train(folder, data, "stopped", faults=f"{name}:{errno.EIO}:{ALWAYS}")
    assert code == 7, said
    (line,) = own_lines(said)
    for word in (name, "Input/output error", "same command"):
        assert word in line, line
    assert "Traceback" not in said
    assert steps_of(folder / "stopped") == [2]
    assert not (folder / "stopped" / "quarantine.jsonl").exists()
    code, said = train(folder, data, "stopped")
    assert code == 0, said
    assert_same_run(folder / "stopped", folder / "undisturbed")
    print("passed: stops", flush=True)


def stops_all_processes(folder: Path) -> None:
    """The same where two processes share the run and one of them meets the fault; here the pauses are the real ones."""
    data = prepare(folder)["folder"]
    name = due_at(data, 2)
    code, said = train(folder, data, "undisturbed", "--procs", "2")
    assert code == 0, said
    code, said = train(folder, data, "stopped", "--procs", "2", faults=f"{name}:{errno.EIO}:{ALWAYS}")
    assert code == 7, said
    (line,) = own_lines(said)
    assert name in line
    assert steps_of(folder / "stopped") == [2]
    assert not (folder / "stopped" / "quarantine.jsonl").exists()
    code, said = train(folder, data, "stopped", "--procs", "2")
    assert code == 0, said
    assert_same_run(folder / "stopped", folder / "undisturbed")
    print("passed: stops all", flush=True)


def permanent(folder: Path) -> None:
    """A file that may not be read is a bad image, as ever."""
    data = prepare(folder)["folder"]
    name = due_at(data, 2)
    code, said = train(folder, data, "run", "max_bad_share=0.1", faults=f"{name}:{errno.EACCES}:{ALWAYS}")
    assert code == 0, said
    assert "Retrying" not in said
    (bad,) = map(json.loads, (folder / "run" / "quarantine.jsonl").read_text().splitlines())
    assert name in bad["place"]
    assert bad["reason"] == os.strerror(errno.EACCES)
    print("passed: permanent", flush=True)


def unlike(folder: Path) -> None:
    """A file that only one of two processes may read: they would not train on the same images."""
    data = prepare(folder)["folder"]

    def run() -> None:
        if not distributed.is_first():
            os.environ["FAULTS"] = f"003.png:{errno.EACCES}:{ALWAYS}"
        with pytest.raises(DataError, match="process 1 cannot read the same images"):
            carp.train(data, folder / "run", folder / "photos.yaml", quiet=True, global_size=32, blur=[0, 0, 0])

    in_processes(2, run)
    print("passed: unlike", flush=True)


def embedding(folder: Path) -> None:
    """Features are those without faults, or there are none."""
    data = prepare(folder)["folder"]
    carp.train(tiny_images(), folder / "run", quiet=True, **{**TINY, "epochs": 1})
    words = ["embed", folder / "run", "--data", data, "--batch-size", "5"]
    for name, faults, expected in (
        ("good", "", 0),
        ("faulty", f"{folder}/storage/:{errno.EIO}:2", 0),
        ("stopped", f"{sorted(data.iterdir())[17].name}:{errno.ESTALE}:{ALWAYS}", 7),
        ("stopped", "", 0),
    ):
        code, said = command(*words, "--out", folder / name, faults=faults, output=folder / f"{name}.txt")
        assert code == expected, said
        assert "Traceback" not in said
        if code:
            assert len(own_lines(said)) == 1
            continue
        ours, theirs = ((folder / run / "features.npy").read_bytes() for run in (name, "good"))
        assert ours == theirs
        assert json.loads((folder / name / "store.json").read_text())["unreadable"] == []
    print("passed: embedding", flush=True)


RUNS: dict[str, Callable[[Path], None]] = {
    run.__name__: run
    for run in (folder_of_images, other_sources, stops, stops_all_processes, permanent, unlike, embedding)
}

if __name__ == "__main__":
    RUNS[sys.argv[1]](Path(sys.argv[2]))
