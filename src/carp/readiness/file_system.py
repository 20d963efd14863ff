"""The file system of the run folder: kind, space, locks, renames, and the time that a checkpoint takes."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from carp.console.quantities import duration, in_bytes
from carp.files.atomic import replacing, write_atomic
from carp.files.lock import LockHeldError, held
from carp.readiness.finding import Finding, judged
from carp.readiness.subject import Subject
from carp.training.planning.estimate import estimate

_WRITTEN = 2**25  # bytes, to measure the speed
_LONG = 60.0  # seconds for a checkpoint, during which all processes wait
_TEMPORARY = {"tmpfs": "at a restart", "ramfs": "at a restart", "overlay": "with the container"}
_TRY_LOCK = """
import sys
from pathlib import Path
from carp.files.lock import LockHeldError, held
try:
    with held(Path(sys.argv[1])):
        print("free")
except LockHeldError:
    print("held")
"""


def check_file_system(subject: Subject) -> Iterator[Finding]:
    """Yield findings about the file system that will hold the run folder."""
    if subject.out is None:
        yield Finding("run folder", "n/a", "not examined", "give the folder of the planned run with --out")
        return
    yield _kind(subject.scratch)
    yield _lock(subject.scratch)
    yield _rename(subject.scratch)
    needs = estimate(subject.config)
    checkpoint = needs.weights_bytes  # weights, teacher, moments; without the gradients, so it is an upper bound
    yield _space(subject, checkpoint)
    yield _speed(subject, checkpoint)


def _kind(folder: Path) -> Finding:
    kind = file_system_of(folder)
    if kind is None:
        return Finding("file system", "n/a", "its kind is unknown on this system")
    where = _TEMPORARY.get(kind)
    return judged(
        "file system",
        where is None,
        kind if where is None else f"{kind}, whose files are lost {where}",
        "put --out on a disk or a shared volume",
        otherwise="warn",
    )


def file_system_of(folder: Path) -> str | None:
    """Return the type of the file system that a folder belongs to, such as ext4 or nfs4; None if unknown."""
    try:
        lines = Path("/proc/self/mounts").read_text().splitlines()
    except OSError:
        return None
    best, kind = "", None
    for line in lines:
        _, point, found, *_ = line.split()
        point = point.replace("\\040", " ")
        inside = folder.resolve().is_relative_to(point)
        if inside and len(point) >= len(best):
            best, kind = point, found
    return kind


def _lock(folder: Path) -> Finding:
    """Hold a lock and let another process try to take it."""
    path = folder / "lock"
    remedy = "mount it with locks (NFS: version 4, without nolock), or use another --out"

    def other() -> str:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        done = subprocess.run(
            [sys.executable, "-c", _TRY_LOCK, path],
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        return done.stdout.strip() or "an error"

    try:
        with held(path):
            during = other()
        after = other()
    except LockHeldError as holder:
        return Finding("lock", "fail", f"a new lock file is held by {holder}", remedy)
    except OSError as error:
        return Finding("lock", "fail", f"locks are not supported: {error.strerror}", remedy)
    measured = f"another process finds the lock {during}, and {after} after its release"
    return judged("lock", (during, after) == ("held", "free"), measured, remedy)


def _rename(folder: Path) -> Finding:
    """Replace a file that is open; who reads it must see the old content, and the path the new one."""
    path = folder / "renamed"
    write_atomic(path, "old")
    with path.open() as reader:
        write_atomic(path, "new")
        seen, now = reader.read(), path.read_text()
    good = (seen, now) == ("old", "new") and not [p for p in folder.iterdir() if p.name.startswith(".unfinished-")]
    return judged(
        "rename", good, f"an open file that is replaced reads '{seen}', its path '{now}'", "use another --out"
    )


def _space(subject: Subject, checkpoint: int) -> Finding:
    free = shutil.disk_usage(subject.scratch).free
    needed = (subject.config.keep_checkpoints + 1) * checkpoint  # one more while the newest is written
    return judged(
        "space",
        free > needed,
        f"{in_bytes(free)} is free; checkpoints need up to {in_bytes(needed)}",
        "free some space, lower keep_checkpoints, or use another --out",
        values={"free_bytes": free, "needed_bytes": needed},
    )


def _speed(subject: Subject, checkpoint: int) -> Finding:
    content = os.urandom(_WRITTEN)
    start = time.perf_counter()
    with replacing(subject.scratch / "speed") as beside:
        beside.write_bytes(content)
    speed = _WRITTEN / (time.perf_counter() - start)
    seconds = checkpoint / speed
    return judged(
        "write speed",
        seconds < min(_LONG, 0.1 * 60 * subject.config.checkpoint_minutes),
        f"{in_bytes(int(speed))}/s, synced: a checkpoint of {in_bytes(checkpoint)} takes about {duration(seconds)}",
        "use a faster --out, or raise checkpoint_minutes and checkpoint_steps",
        otherwise="warn",
        values={"bytes_per_second": speed, "seconds_per_checkpoint": seconds},
    )
