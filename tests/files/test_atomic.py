"""Files are replaced whole or not at all, and what killed writers left is known and removed."""

import errno
import multiprocessing
import os
import signal
import stat
import threading
from pathlib import Path

import pytest

from carp.files.atomic import is_unfinished, remove_unfinished, replacing, scratch_folder, write_atomic


def no_space(*_args: object, **_kwargs: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("place", ["os.fsync", "pathlib.Path.replace", "pathlib.Path.write_bytes"])
def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    path = tmp_path / "config.yaml"
    write_atomic(path, "old")
    with monkeypatch.context() as patch:
        patch.setattr(place, no_space)
        with pytest.raises(OSError, match="No space"):
            write_atomic(path, "new")
    assert path.read_text() == "old"
    assert names(tmp_path) == ["config.yaml"]
    write_atomic(path, b"new")
    assert path.read_bytes() == b"new"


def test_bytes_and_folder_are_synced_around_the_rename(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []
    real_sync, real_replace = os.fsync, Path.replace

    def sync(descriptor: int) -> None:
        events.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)
        real_sync(descriptor)

    def replace(self: Path, target: Path) -> Path:
        events.append(f"{self.name} -> {target.name}")
        return real_replace(self, target)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(Path, "replace", replace)
    write_atomic(tmp_path / "a", "text")
    temporary, renamed, folder = events
    assert temporary.startswith(".unfinished-")
    assert temporary.endswith("-a")
    assert (renamed, folder) == (f"{temporary} -> a", tmp_path.name)


def test_a_folder_takes_the_place_of_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "export"

    def write(text: str) -> None:
        with replacing(path) as beside:
            beside.mkdir()
            (beside / "inside").mkdir()
            (beside / "inside" / "file").write_text(text)

    write("one")
    write("two")
    assert (path / "inside" / "file").read_text() == "two"
    real_replace, calls = Path.replace, []

    def fail_at_the_second(self: Path, target: Path) -> Path:
        calls.append(target)
        return no_space() if len(calls) == 2 else real_replace(self, target)  # type: ignore[return-value]

    monkeypatch.setattr(Path, "replace", fail_at_the_second)
    with pytest.raises(OSError, match="No space"):
        write("three")
    assert (path / "inside" / "file").read_text() == "two"
    assert names(tmp_path) == ["export"]


def test_a_kill_between_the_two_renames_of_a_folder_loses_nothing(tmp_path: Path) -> None:
    (tmp_path / ".unfinished-old-export").mkdir()
    (tmp_path / ".unfinished-old-export" / "file").write_text("old")

    def write(*, fail: bool) -> None:
        with replacing(tmp_path / "export") as beside:
            beside.mkdir()
            (beside / "file").write_text("new")
            if fail:
                no_space()

    with pytest.raises(OSError, match="No space"):
        write(fail=True)
    assert (tmp_path / "export" / "file").read_text() == "old"
    write(fail=False)
    assert (tmp_path / "export" / "file").read_text() == "new"
    assert names(tmp_path) == ["export"]


def test_what_a_killed_writer_left_is_replaced_by_the_next_one(tmp_path: Path) -> None:
    (tmp_path / ".unfinished-a").mkdir()
    (tmp_path / ".unfinished-a" / "half").write_text("")
    write_atomic(tmp_path / "a", "whole")
    assert names(tmp_path) == ["a"]


def test_devices_and_pipes_are_written_and_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_atomic(pipe, "through")
    assert os.read(reader, 100) == b"through"
    os.close(reader)
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    write_atomic(Path("/dev/null"), "gone")
    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)


def test_a_symbolic_link_stays_and_its_target_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    target, link = tmp_path / "elsewhere" / "table.md", tmp_path / "table.md"
    target.write_text("old")
    link.symlink_to(target)
    write_atomic(link, "new")
    assert link.is_symlink()
    assert target.read_text() == "new"


def test_the_longest_name_that_a_file_can_have(tmp_path: Path) -> None:
    path = tmp_path / f"{'ä' * 125}.json"  # 255 bytes
    write_atomic(path, "text")
    assert names(tmp_path) == [path.name]


def test_leftovers_are_removed_unless_a_running_process_writes_them(tmp_path: Path) -> None:
    for name in (".unfinished-a", ".unfinished-999999999-b", f".unfinished-{os.getpid()}-c", "keep", ".keep"):
        (tmp_path / name).write_text("")
    being_written = tmp_path / f".unfinished-{os.getppid()}-d"
    being_written.write_text("")
    assert is_unfinished(being_written)
    remove_unfinished(tmp_path)
    assert names(tmp_path) == sorted([".keep", being_written.name, "keep"])
    remove_unfinished(tmp_path / "missing")


def test_processes_and_threads_that_write_one_path_do_not_share_a_temporary_name(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    other = multiprocessing.get_context("fork").Process(target=write_atomic, args=(path, "process"))
    thread = threading.Thread(target=write_atomic, args=(path, "thread"))
    with replacing(path) as beside:
        beside.write_text("first to begin, last to finish")
        for writer, text in ((other, "process"), (thread, "thread")):
            writer.start()
            writer.join()
            assert path.read_text() == text
            assert beside.exists()
    assert path.read_text() == "first to begin, last to finish"
    assert names(tmp_path) == ["result.json"]


def test_the_temporary_file_of_another_machine_is_a_leftover_after_a_day(tmp_path: Path) -> None:
    left, written = (tmp_path / f".unfinished-{number}.ffffff-a" for number in (999999998, 999999999))
    for path in (left, written):
        path.write_text("")
    os.utime(left, (0, 0))
    write_atomic(tmp_path / "b", "text")
    assert names(tmp_path) == sorted([written.name, "b"])


def test_a_scratch_folder_is_removed_at_its_end_or_after_a_kill_by_the_next_one(tmp_path: Path) -> None:
    write_atomic(tmp_path / "kept", "text")  # this process has already looked for leftovers here

    def be_killed() -> None:
        with scratch_folder(tmp_path, "doctor") as folder:
            (folder / "file").write_text("")
            os.kill(os.getpid(), signal.SIGKILL)

    killed = multiprocessing.get_context("fork").Process(target=be_killed)
    killed.start()
    killed.join()
    assert [name.endswith("-doctor") for name in names(tmp_path)] == [True, False]
    with pytest.raises(ZeroDivisionError), scratch_folder(tmp_path, "doctor") as folder:
        assert names(tmp_path) == sorted([folder.name, "kept"])
        assert is_unfinished(folder)
        raise ZeroDivisionError
    assert names(tmp_path) == ["kept"]


def test_what_a_kill_between_the_two_renames_of_a_folder_leaves_is_removed(tmp_path: Path) -> None:
    left = tmp_path / ".unfinished-old-export"
    left.mkdir()
    (left / "file").write_text("old")
    with replacing(tmp_path / "export") as beside:
        beside.mkdir()
        (beside / "file").write_text("new")
    assert [path.name for path in tmp_path.iterdir()] == ["export"]
    assert (tmp_path / "export" / "file").read_text() == "new"


def test_the_first_write_into_a_folder_removes_leftovers_of_dead_processes_only(tmp_path: Path) -> None:
    with replacing(tmp_path / "a") as beside:
        machine = beside.name.split(".")[2].partition("-")[0]
        beside.write_text("")
    folder = tmp_path / "folder"
    folder.mkdir()
    alive, notes = f".unfinished-{os.getppid()}.{machine}-b", ".unfinished-notes"
    for name in (f".unfinished-999999999.{machine}-b", alive, notes):
        (folder / name).write_text("")
    write_atomic(folder / "c", "text")
    assert names(folder) == sorted([alive, notes, "c"])
