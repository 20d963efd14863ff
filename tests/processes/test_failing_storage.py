"""Storage that fails now and then changes no result; storage that goes on failing stops the run, which continues."""

import errno
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from carp.errors import DataError, StorageError
from carp.images.decoding import transient
from carp.images.decoding.transient import TRIES, is_transient, retrying
from tests.processes.conftest import ENVIRONMENT


class Reader:
    """Fails some times, then reads."""

    def __init__(self, error: BaseException, times: int) -> None:
        self.error, self.times, self.calls = error, times, 0

    def __call__(self) -> str:
        self.calls += 1
        if self.calls <= self.times:
            raise self.error
        return "read"


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long was waited, without waiting."""
    found = list[float]()
    monkeypatch.setattr(transient, "sleep", found.append)
    monkeypatch.setattr(transient, "_outage", transient._Outage())
    return found


@pytest.mark.parametrize(
    "error",
    [
        *(OSError(number, "") for number in (errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EAGAIN)),
        *(OSError(number, "") for number in (errno.ENETUNREACH, errno.ECONNRESET, errno.EMFILE, errno.ENOTCONN)),
        TimeoutError("no number"),
        ConnectionResetError("no number"),
    ],
)
def test_the_storage_gets_more_chances_with_growing_pauses(
    error: OSError, pauses: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    reader = Reader(error, TRIES - 1)
    assert retrying(reader, "image.jpg") == "read"
    assert reader.calls == TRIES
    assert pauses == [transient.FIRST_PAUSE * 2**n for n in range(TRIES - 1)]
    assert capsys.readouterr().err.count("cannot read image.jpg") == 1


def test_after_the_last_chance_it_is_an_error_that_names_file_cause_and_remedy(pauses: list[float]) -> None:
    reader = Reader(OSError(errno.ESTALE, "Stale file handle"), 100)
    with pytest.raises(StorageError, match=r"image\.jpg: Stale file handle.*same command"):
        retrying(reader, "image.jpg")
    assert reader.calls == TRIES
    assert len(pauses) == TRIES - 1, "it waits between attempts only"
    other = Reader(OSError(errno.ESTALE, "Stale file handle"), 100)
    with pytest.raises(StorageError):
        retrying(other, "other.jpg")
    assert other.calls == 1, "other threads do not go through the same outage once more"


@pytest.mark.parametrize(
    "error",
    [FileNotFoundError(errno.ENOENT, ""), PermissionError(errno.EACCES, ""), OSError("truncated"), DataError("bad")],
)
def test_other_errors_are_raised_at_once(error: Exception, pauses: list[float]) -> None:
    reader = Reader(error, 1)
    with pytest.raises(type(error)):
        retrying(reader, "image.jpg")
    assert reader.calls == 1
    assert not pauses
    assert not is_transient(error)


@pytest.fixture(scope="module")
def failing_reads(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library that lets reads fail."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None or not sys.platform.startswith("linux"):
        pytest.skip("there is no C compiler, or this is not Linux")
    library = tmp_path_factory.mktemp("failing_reads") / "failing_reads.so"
    source = Path(__file__).with_name("failing_reads.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
    return library


def passed(name: str, folder: Path, library: Path) -> list[str]:
    """What `tests.processes.failing_storage` says of a scenario that must end well."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.processes.failing_storage", name, str(folder)],
        env={**ENVIRONMENT, "LD_PRELOAD": str(library)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=500,
    )
    assert done.returncode == 0, done.stdout
    return [line for line in done.stdout.splitlines() if line.startswith("passed: ")]


@pytest.mark.slow
def test_a_run_on_a_failing_disk_ends_in_the_same_bits(failing_reads: Path, tmp_path: Path) -> None:
    assert passed("folder_of_images", tmp_path, failing_reads) == ["passed: folder"]


@pytest.mark.slow
def test_a_file_that_stays_unreadable_stops_the_run_and_the_same_command_continues(
    failing_reads: Path, tmp_path: Path
) -> None:
    assert passed("stops", tmp_path, failing_reads)


@pytest.mark.slow
def test_lists_shards_parquet_files_and_images_in_memory_end_in_the_same_bits(
    failing_reads: Path, tmp_path: Path
) -> None:
    assert len(passed("other_sources", tmp_path, failing_reads)) == 5


@pytest.mark.slow
@pytest.mark.parametrize("scenario", ["stops_all_processes", "permanent", "unlike", "embedding"])
def test_more_of_failing_storage(scenario: str, failing_reads: Path, tmp_path: Path) -> None:
    assert passed(scenario, tmp_path, failing_reads)
