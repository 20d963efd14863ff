"""`carp import`: a run folder from a checkpoint of CARP's authors, to continue its training."""

import warnings
from pathlib import Path
from typing import Any

from carp.config import DataSettings, check_keys, resolve, resolve_part
from carp.console.progress import Display
from carp.encoders.authors_checkpoint import AuthorsCheckpoint, read_authors
from carp.encoders.authors_settings import settings_of_authors
from carp.encoders.model_argument import split_weights
from carp.errors import CarpWarning, CheckpointError, ConfigError, received
from carp.files.outputs import check_output_folder
from carp.images.open_source import open_images
from carp.images.source import Openable
from carp.runs.run_folder import Run
from carp.training.imported_run import write_imported_run


def import_run(file: str | Path, data: Openable, *, out: str | Path, **overrides: Any) -> Run:
    """Write a run folder that continues training from a checkpoint of CARP's authors.

    The folder has the weights of student and teacher with projector and prototypes, the momentum of LARS if the file
    has it, and the settings that the file records. `train` resumes it, and every function that takes a run reads it.

    Args:
        file: The checkpoint (`student`, `teacher`, `optimizer`, `epoch`, `args`). Nothing in it is executed.
        data: The images to train on.
        out: The new run folder.
        **overrides: Any setting of the configuration except those that the weights determine.

    Returns:
        The run. Warnings report what the file lacks.
    """
    check_output_folder(out)
    check_keys(overrides)
    found = read_authors(split_weights(file)[1].expanduser())
    settings, missing = _settings(found, overrides)
    if found.epoch is None:
        raise CheckpointError(
            f"{found.path} cannot be continued: it does not record the number of finished epochs (epoch). Give a "
            "checkpoint that was saved during training."
        )
    where = resolve_part(DataSettings, settings)
    source = open_images(
        data, Display(), kind=where.source, root=where.root, download=where.download, cache_gb=where.cache_gb
    )
    try:
        config = resolve(settings, num_images=len(source))
    except ConfigError as error:
        raise ConfigError(f"{error} The settings come from {found.path}; override them with key=value.") from None
    fits = config.optimiser == "lars"
    run = write_imported_run(
        Path(out),
        config,
        source,
        epoch=found.epoch,
        branches=found.branches,
        moments=found.moments if fits else {},
    )
    for note in _notes(found, missing, run, uses_momentum=fits):
        warnings.warn(note, CarpWarning, stacklevel=2)
    return run


def _settings(found: AuthorsCheckpoint, overrides: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return all settings, and those that the file does not record and that were not given."""
    for key, value in found.model_settings.items():
        if key in overrides and overrides[key] != value:
            given = received(overrides[key])
            raise ConfigError(f"{key} is {received(value)} in {found.path}, received {given}. Leave it out.")
    recorded, missing = settings_of_authors(found.arguments)
    return {**recorded, **found.model_settings, **overrides}, [key for key in missing if key not in overrides]


def _notes(found: AuthorsCheckpoint, missing: list[str], run: Run, *, uses_momentum: bool) -> list[str]:
    notes = []
    if missing:
        notes.append(
            f"{found.path} does not record {', '.join(missing)}: the paper's values are used. Override them with "
            "key=value."
        )
    if found.no_moments:
        notes.append(f"the momentum of the optimiser starts at 0: {found.no_moments}.")
    elif not uses_momentum:
        notes.append("the momentum of the optimiser starts at 0, because the file has the momentum of lars.")
    if found.epoch is not None and found.epoch >= run.config.epochs:
        notes.append(
            f"all {run.config.epochs} epochs are done. To train longer, import the file again with epochs=N, where "
            f"N is more than {found.epoch}."
        )
    return notes
