"""Checkpoints come back bit for bit, or not at all."""

import errno
import os
import pkgutil
from pathlib import Path

import pytest
import torch

from carp.errors import CheckpointError
from carp.runs import checkpoint
from carp.runs.checkpoint import Checkpoint, is_best, is_milestone, list_checkpoints, load, load_newest, save, step_of
from tests.helpers import assert_same_bits

TENSORS = {
    "fp32": torch.randn(5, 7, generator=torch.Generator().manual_seed(0)),
    "special": torch.tensor([float("nan"), float("inf"), -float("inf"), -0.0, 1e-45]),
    "bf16": torch.randn(3, 4, generator=torch.Generator().manual_seed(1)).bfloat16(),
    "fp64": torch.tensor(1 / 3, dtype=torch.float64),
    "int64": torch.tensor([-(2**63), 2**63 - 1]),
    "uint8": torch.arange(4, dtype=torch.uint8),
    "bool": torch.tensor([True, False]),
    "scalar": torch.tensor(7),
    "empty": torch.empty(0, 3),
    "transposed": torch.arange(6.0).view(2, 3).T,
    "channels last": torch.arange(24.0).view(1, 2, 3, 4).to(memory_format=torch.channels_last),
    "parameter": torch.nn.Parameter(torch.ones(2)),
}


def point(step: int, tensors: dict[str, torch.Tensor] | None = None) -> Checkpoint:
    return Checkpoint(step, {"x": torch.full((3,), float(step))} if tensors is None else tensors, {"note": "ü"})


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def test_tensors_of_every_type_come_back_bit_for_bit(tmp_path: Path) -> None:
    state = {"metrics_length": 12, "nested": {"list": [1, 2.5, None, "text"]}, "large": 2**60}
    path = save(tmp_path, Checkpoint(123, TENSORS, state), keep=3)
    assert path.name == "step-00000123"
    loaded = load(path)
    assert loaded.step == 123
    assert loaded.state == state
    assert_same_bits(loaded.tensors, {name: tensor.detach() for name, tensor in TENSORS.items()})


def test_no_tensors_at_all_are_a_checkpoint_too(tmp_path: Path) -> None:
    loaded = load(save(tmp_path, point(0, {}), keep=2))
    assert loaded.tensors == {}
    assert loaded.state == {"note": "ü"}


def test_the_same_state_gives_the_same_bytes(tmp_path: Path) -> None:
    first, second = (save(tmp_path / name, Checkpoint(1, TENSORS, {"a": 1}), keep=2) for name in "ab")
    for name in ("tensors.safetensors", "manifest.json"):
        assert (first / name).read_bytes() == (second / name).read_bytes()


@pytest.mark.parametrize("keep", [1, 2, 3])
def test_the_newest_few_are_kept(tmp_path: Path, keep: int) -> None:
    for step in (5, 90, 100, 1000):
        save(tmp_path, point(step), keep=keep)
    expected = [5, 90, 100, 1000][-keep:]
    assert [load(p).step for p in list_checkpoints(tmp_path)] == expected
    assert names(tmp_path) == [f"step-{step:08d}" for step in expected]


def test_saving_a_step_again_replaces_it(tmp_path: Path) -> None:
    save(tmp_path, point(5), keep=3)
    save(tmp_path, point(5, {"x": torch.zeros(1)}), keep=3)
    (only,) = list_checkpoints(tmp_path)
    assert torch.equal(load(only).tensors["x"], torch.zeros(1))


def test_what_was_just_written_is_never_the_one_that_is_removed(tmp_path: Path) -> None:
    """After damage a run goes back; checkpoints of later steps must not push out the ones it writes now."""
    for step in (10, 20, 30):
        save(tmp_path, point(step), keep=3)
    for step in (20, 30):
        (tmp_path / f"step-{step:08d}" / "tensors.safetensors").write_bytes(b"damaged")
    save(tmp_path, point(12), keep=2)
    found, _ = load_newest(tmp_path)
    assert found is not None
    assert found.step == 12


def test_remains_of_any_killed_write_are_removed_by_the_next(tmp_path: Path) -> None:
    (tmp_path / ".unfinished-step-00000007").mkdir()
    (tmp_path / ".unfinished-step-00000007" / "tensors.safetensors").write_bytes(bytes(1000))
    assert load_newest(tmp_path) == (None, [])
    save(tmp_path, point(8), keep=2)
    assert names(tmp_path) == ["step-00000008"]


def no_space(*_args: object, **_kwargs: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def fail_at(number: int, function):
    """The function, which fails when it is called for the `number`-th time."""
    calls = 0

    def wrapper(*args, **kwargs):
        nonlocal calls
        calls += 1
        return no_space() if calls == number else function(*args, **kwargs)

    return wrapper


PLACES = [
    ("carp.runs.checkpoint.save_file", 1),
    ("carp.files.atomic.os.fsync", 1),  # the manifest
    ("carp.files.atomic.os.fsync", 2),  # the tensors
    ("carp.files.atomic.os.fsync", 3),  # their folder
    ("pathlib.Path.mkdir", 1),
    ("pathlib.Path.mkdir", 2),
    ("pathlib.Path.replace", 1),
]


@pytest.mark.parametrize(("place", "number"), PLACES)
def test_a_write_that_fails_leaves_everything_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, number: int
) -> None:
    for step in (1, 2):
        save(tmp_path, point(step), keep=2)
    content = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    owner, _, name = place.rpartition(".")
    real = pkgutil.resolve_name(owner)
    with monkeypatch.context() as patch:
        patch.setattr(place, fail_at(number, getattr(real, name)))
        with pytest.raises(CheckpointError) as raised:
            save(tmp_path, point(3), keep=2)
    message = str(raised.value)
    assert "step-00000003" in message
    assert "No space left on device" in message
    assert "intact" in message
    assert "\n" not in message
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == content
    assert names(tmp_path) == ["step-00000001", "step-00000002"]
    save(tmp_path, point(3), keep=2)
    assert load_newest(tmp_path)[0].step == 3


def test_everything_is_on_the_disk_before_the_name_appears(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []
    real_sync, real_replace = os.fsync, Path.replace

    def sync(descriptor: int) -> None:
        events.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)
        real_sync(descriptor)

    def replace(self: Path, target: Path) -> Path:
        assert (self / "manifest.json").exists()
        events.append("rename")
        return real_replace(self, target)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(Path, "replace", replace)
    save(tmp_path / "checkpoints", point(1), keep=2)
    temporary = events.pop(2)
    assert temporary.startswith(".unfinished-")
    assert temporary.endswith("-step-00000001")
    assert events == ["manifest.json", "tensors.safetensors", "rename", "checkpoints"]


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").write_text("a file")
    with pytest.raises(CheckpointError, match=r"cannot write the checkpoint .*step-00000001"):
        save(tmp_path / "checkpoints", point(1), keep=2)


def test_a_folder_without_checkpoints_has_none(tmp_path: Path) -> None:
    assert load_newest(tmp_path / "missing") == (None, [])
    (tmp_path / "step-00000001").write_text("a file of that name is no checkpoint")
    assert list_checkpoints(tmp_path) == []


def test_a_later_format_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "FORMAT", 99)
        path = save(tmp_path, point(1), keep=2)
    with pytest.raises(CheckpointError, match=r"format 99; this version of CARP reads 1"):
        load(path)


def test_milestones_stay_while_others_are_removed(tmp_path: Path) -> None:
    for step in range(1, 9):
        save(tmp_path, point(step), keep=2, milestone=step // 3 if step % 3 == 0 else None)
    assert names(tmp_path) == ["step-00000003-epoch-1", "step-00000006-epoch-2", "step-00000007", "step-00000008"]
    assert [step_of(path) for path in list_checkpoints(tmp_path)] == [3, 6, 7, 8]
    assert [is_milestone(path) for path in list_checkpoints(tmp_path)] == [True, True, False, False]
    newest, problems = load_newest(tmp_path)
    assert newest is not None
    assert (newest.step, problems) == (8, [])


def test_a_damaged_milestone_after_the_state_that_is_used_is_removed(tmp_path: Path) -> None:
    save(tmp_path, point(1), keep=2)
    damaged = save(tmp_path, point(2), keep=2, milestone=1)
    (damaged / "tensors.safetensors").write_bytes(b"")
    newest, _ = load_newest(tmp_path)
    assert newest is not None
    assert newest.step == 1
    save(tmp_path, point(2), keep=2, milestone=1)
    assert load(damaged).step == 2
    save(tmp_path, point(1), keep=2)  # back again: what is later was skipped
    assert names(tmp_path) == ["step-00000001"]


def test_a_folder_with_another_name_has_no_step(tmp_path: Path) -> None:
    assert step_of(tmp_path / "step-x") is None
    assert not is_milestone(tmp_path / "step-00000001-epoch-")


def test_the_best_checkpoint_is_kept_until_another_takes_its_place(tmp_path: Path) -> None:
    def write(step: int, *, best: bool = False, milestone: int | None = None) -> list[str]:
        save(tmp_path, point(step), keep=2, best=best, milestone=milestone)
        return [path.name for path in list_checkpoints(tmp_path)]

    assert write(0, best=True, milestone=0) == ["step-00000000-epoch-0-best"]
    write(1)
    write(2)
    assert write(3)[0] == "step-00000000-epoch-0-best"
    assert write(4, best=True) == ["step-00000000-epoch-0", "step-00000003", "step-00000004-best"]
    write(5)
    write(6)
    assert write(7) == ["step-00000000-epoch-0", "step-00000004-best", "step-00000006", "step-00000007"]
    assert [is_best(path) for path in list_checkpoints(tmp_path)] == [False, True, False, False]
    assert load(tmp_path / "step-00000004-best").step == 4
