"""The folder of a run: what it contains, whether it can be resumed, and how to read it.

config.yaml      the resolved configuration
run.json         command, versions, seed, git state, data
metrics.jsonl    one line per measurement
threads.jsonl    one line per change of the number of threads
quarantine.jsonl one line per image that could not be read, with the reason
checkpoints/     the newest few, and those of the epochs in keep_epochs; with a start, also epoch 0 and the best one
index/           cached positions of the images (rebuilt when missing)
plots.png        curves, drawn at the end
report/          a page about the run (report.html), and the figures of `carp report`
features/        features that evaluations and the report left
"""

import importlib.metadata
import json
import platform
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from shlex import quote
from typing import Any

from carp._version import __version__
from carp.compute import distributed
from carp.config import METRICS_KEYS, Config, decisive, differences, resolve
from carp.config.recipe import read_yaml, to_yaml
from carp.console.addresses import without_secrets
from carp.errors import CarpError, CarpWarning, CheckpointError
from carp.files.atomic import remove, write_atomic
from carp.files.lock import NFS_LEASE, LockHeldError, NoLocksError, held
from carp.files.regular import read_text
from carp.images.loading.order import steps_in_epoch
from carp.images.source import Source
from carp.runs.checkpoint import Checkpoint, is_best, is_milestone, list_checkpoints, load, load_newest, step_of
from carp.runs.epoch_argument import split_epoch
from carp.runs.thread_log import THREADS

INDEX = "index"  # of the run folder: cached positions of the images
LOCK = "lock"
QUARANTINE = "quarantine.jsonl"  # images that could not be read
_PACKAGES = ("torch", "torchvision", "timm", "numpy", "pillow", "safetensors", "pydantic")


@dataclass(frozen=True)
class Run:
    """An opened run folder, in its current state or as it was at the end of an epoch."""

    folder: Path
    config: Config
    info: dict[str, Any]
    epoch: int | None = None
    """The epoch of its checkpoint, from 1; None is the best one of a run with a start, otherwise the newest one."""
    last: bool = False
    """Whether to use the newest checkpoint in any case."""

    def __repr__(self) -> str:
        images = f"{self.info['data']['images']:,} images of {self.info['data']['name']}"
        at = "" if self.epoch is None else f"@{self.epoch}"
        return f"Run('{self.folder}{at}', {self.config.encoder}, {self.config.epochs} epochs, {images})"

    @property
    def checkpoints(self) -> Path:
        """The folder of the checkpoints."""
        return self.folder / "checkpoints"

    @property
    def steps_per_epoch(self) -> int:
        """The number of steps in an epoch."""
        images = int(self.info["data"]["images"]) - self.config.held_out
        return max(1, steps_in_epoch(images, self.config.batch_size))

    def epochs(self) -> dict[int, Path]:
        """Return the epochs that have a checkpoint at their end, in order; 0 is the start, if it was given weights."""
        steps = {path: step for path in list_checkpoints(self.checkpoints) if (step := step_of(path)) is not None}
        return {step // self.steps_per_epoch: path for path, step in steps.items() if step % self.steps_per_epoch == 0}

    def kept_epochs(self) -> list[int]:
        """Return the epochs whose checkpoints are never removed (`keep_epochs`), and the newest one."""
        found = {epoch: path for epoch, path in self.epochs().items() if epoch}
        return [epoch for epoch, path in found.items() if is_milestone(path) or epoch == max(found)]

    def checkpoint(self) -> Checkpoint:
        """Load the checkpoint of the epoch, the best one, or the newest intact one."""
        path = self.checkpoint_path()
        checkpoint = self._newest() if path is None else load(path)
        self._refuse_changed_settings(checkpoint)
        return checkpoint

    def checkpoint_path(self) -> Path | None:
        """Return the checkpoint of the epoch, or raise if there is none; the best one; None for the newest one."""
        if self.epoch is None:
            best = [] if self.last else [path for path in list_checkpoints(self.checkpoints) if is_best(path)]
            return best[-1] if best else None
        found = self.epochs()
        if self.epoch not in found:
            existing = f"Epochs that exist: {', '.join(map(str, found))}" if found else "No epoch has one"
            raise CheckpointError(
                f"the run {self.folder} has no checkpoint at the end of epoch {self.epoch}. {existing}; train with "
                "keep_epochs to keep others."
            )
        return found[self.epoch]

    def _newest(self) -> Checkpoint:
        checkpoint, problems = load_newest(self.checkpoints)
        if checkpoint is None:
            why = " ".join(problems) or "it has not written one yet."
            raise CheckpointError(f"the run {self.folder} has no checkpoint to load: {why}")
        for problem in problems:
            warnings.warn(problem, CarpWarning, stacklevel=3)
        return checkpoint

    def _refuse_changed_settings(self, checkpoint: Checkpoint) -> None:
        """Compare the settings that a checkpoint was trained with to config.yaml, which may have been edited since."""
        now, then = decisive(self.config), checkpoint.state.get("settings", {})  # older versions stored none
        for key in now.keys() & then.keys():
            if now[key] != then[key]:
                raise CheckpointError(
                    f"{self.folder / 'config.yaml'} has {key}: {now[key]!r}, but the run was trained with "
                    f"{then[key]!r}. Restore that value."
                )


def is_run(path: Path | str) -> bool:
    """Return whether a path is a run folder, or `RUN@25`."""
    return (split_epoch(path)[0] / "config.yaml").is_file()


def open_run(run: Path | str) -> Run:
    """Read the configuration and description of a run; `RUN@25` is the run at the end of epoch 25."""
    folder, epoch = split_epoch(run)
    config_path, info_path = folder / "config.yaml", folder / "run.json"
    if not config_path.is_file():
        what = "there is no folder or file" if not folder.exists() else "this is not a run folder (no config.yaml):"
        raise CheckpointError(
            f"{what} {folder}. Give the --out folder of `carp train`, or a weights file that `carp weights` lists."
        )
    try:
        info = json.loads(read_text(info_path))
        data = info["data"]
        num_images = int(data["images"])
        if not isinstance(data["name"], str) or not isinstance(data["fingerprint"], str):
            raise TypeError("the name and the fingerprint of the images must be text")
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise CheckpointError(f"cannot read {info_path}: {type(error).__name__}, {error}") from error
    return Run(folder, resolve(read_yaml(config_path), num_images=num_images), info, epoch)


def config_of(folder: Path | None) -> Config | None:
    """Return the configuration of a run that has a checkpoint; None if there is no such run to resume."""
    if folder is None or not list_checkpoints(folder / "checkpoints"):
        return None
    return open_run(folder).config


def prepare_run(folder: Path, config: Config, source: Source) -> Run:
    """Create a run folder, or check that an existing one belongs to this configuration and data.

    A run without a checkpoint starts again.
    """
    if list_checkpoints(folder / "checkpoints"):
        run = open_run(folder)
        _refuse_other_images(folder, run.info["data"], source)  # first: `auto` settings follow from the images
        _refuse_other_settings(folder, differences(config, run.config))
        return run
    info = {
        "command": [without_secrets(word) for word in sys.argv],
        "seed": config.seed,
        "data": {"name": source.name, "images": len(source), "fingerprint": source.fingerprint},
        "versions": versions(),
        "git": _git_state(),
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomic(folder / "run.json", json.dumps(info, indent=1))
        write_atomic(folder / "config.yaml", to_yaml(config))
    except OSError as error:
        raise CheckpointError(
            f"cannot write the run folder {folder}: {error.strerror}. Free some space, or use another --out."
        ) from error
    return Run(folder, config, info)


def versions() -> dict[str, str]:
    """Return the versions of everything that a result may depend on."""
    packages = {name: importlib.metadata.version(name) for name in _PACKAGES}
    return {"carp": __version__, "python": platform.python_version(), **packages}


def _refuse_other_settings(folder: Path, changed: dict[str, str]) -> None:
    if not changed:
        return
    logged = [key for key in changed if key in METRICS_KEYS]
    why = f" {' and '.join(logged)} must not change, because they decide the lines of metrics.jsonl." if logged else ""
    raise CheckpointError(
        f"{folder} belongs to a run with other settings ({'; '.join(f'{k}: {v}' for k, v in changed.items())}). "
        f"Use another --out, or resume it with its own settings: --recipe {quote(str(folder / 'config.yaml'))}.{why}"
    )


def _refuse_other_images(folder: Path, before: dict[str, Any], source: Source) -> None:
    if before["fingerprint"] == source.fingerprint:
        return
    count = f"{before['images']} before, {len(source)} now"
    if before["images"] == len(source):
        count = f"{len(source)} as before, but other names or contents"
    moved = f" (then {before['name']})" if before["name"] != source.name else ""
    raise CheckpointError(
        f"{folder} belongs to a run on other images: {source.name}{moved} has {count}. "
        f"Restore the images to resume, or use another --out to start a new run.{_bad_images(folder)}"
    )


def _bad_images(folder: Path) -> str:
    """Point to the list of images that vanished or were damaged during the run."""
    path = folder / QUARANTINE
    return f" {path} lists images that could not be read during the run." if path.exists() else ""


@contextmanager
def held_run(folder: Path, config: Config, source: Source) -> Iterator[None]:
    """Create or check a run folder and lock it. Only the first process does this; the others wait for it."""
    with locked(folder) if distributed.is_first() else nullcontext():
        if distributed.is_first():
            prepare_run(folder, config, source)
            source.keep_index(folder / INDEX)
            if not list_checkpoints(folder / "checkpoints"):  # a new start, possibly with other images
                for record in (QUARANTINE, THREADS):
                    (folder / record).unlink(missing_ok=True)
        distributed.barrier()
        yield


@contextmanager
def nothing_left_if_refused(folder: Path) -> Iterator[None]:
    """Remove what the first of several processes wrote for the others, if the run is refused before it has a folder."""
    made = [path for path in (folder / INDEX, folder / LOCK) if not path.exists()]
    made_folder = not folder.exists()
    try:
        yield
    except CarpError:
        if distributed.is_first() and folder.exists() and not (folder / "config.yaml").exists():
            with suppress(CarpError, OSError), locked(folder):  # another process may have begun a run there
                for path in made:
                    remove(path)
                if made_folder:
                    folder.rmdir()
        raise


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock the run folder, so that no second process trains in it at the same time."""
    is_run = (folder / LOCK).exists() or (folder / "config.yaml").exists()
    if folder.is_file() or (folder.is_dir() and not is_run and any(folder.iterdir())):
        raise CheckpointError(f"{folder} exists and is not a run folder. Use another --out.")
    with ExitStack() as stack:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            stack.enter_context(held(folder / LOCK, patience=NFS_LEASE, waiting=partial(_announce, folder)))
        except NoLocksError as error:
            raise CheckpointError(
                f"the file system of {folder} does not support locks: {error.strerror}. This does not mean that "
                "another process is training there. Mount it with locks (NFS: version 4, without nolock), or use "
                "another --out."
            ) from error
        except LockHeldError as holder:
            raise CheckpointError(
                f"another process is training in {folder}: {holder}. Wait for it, stop it, or use another --out."
            ) from None
        except OSError as error:
            raise CheckpointError(
                f"cannot write the run folder {folder}: {error.strerror}. Free some space, or use another --out."
            ) from error
        yield


def _announce(folder: Path, holder: str) -> None:
    warnings.warn(
        f"{folder} is locked by {holder}. Waiting up to {NFS_LEASE:.0f} s: the lock of a lost machine expires then.",
        CarpWarning,
        stacklevel=2,
    )


def _git_state() -> dict[str, str] | None:
    """Return the commit of the working folder and whether it has changes; None outside a repository.

    Git's optional lock is not taken, because a run that is killed or out of disk space would leave it behind.
    """
    try:
        commit, changes = (
            subprocess.run(
                ["git", "--no-optional-locks", *arguments], capture_output=True, text=True, timeout=10, check=True
            ).stdout.strip()
            for arguments in (["rev-parse", "HEAD"], ["status", "--porcelain", "--untracked-files=no"])
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return {"commit": commit, "changes": "yes" if changes else "no"}
