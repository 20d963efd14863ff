"""`carp doctor`: find out what would go wrong in a run, before you pay for it."""

import tempfile
from pathlib import Path
from typing import Any

from carp.compute import distributed
from carp.console.progress import Display
from carp.errors import ConfigError
from carp.files.atomic import scratch_folder
from carp.files.outputs import check_output_folder, nearest_existing
from carp.images.source import Openable
from carp.readiness.examination import Examination, examine
from carp.readiness.subject import open_subject


def doctor(
    data: Openable | None = None,
    recipe: str | Path | None = None,
    *,
    out: str | Path | None = None,
    procs: int | None = None,
    quiet: bool = True,
    **overrides: Any,
) -> Examination:
    """Check whether this machine is ready for a planned run; this takes about a minute on two idle cores.

    Args:
        data: The images of the planned run; without them, noise is used, and the time of the run is not predicted.
        recipe: Name of the recipe, or a YAML file; None is `adapt` with a start, and `folder` without.
        out: The folder of the planned run, to examine its file system. Nothing remains in it.
        procs: Number of processes that will share the run on this machine; by default the number of GPUs, or 2.
        quiet: Show no progress.
        **overrides: Any setting of the configuration.

    Returns:
        The findings; `ok` is true if none of them failed.
    """
    if distributed.world_size() > 1:
        raise ConfigError(
            f"the doctor starts its own processes, received {distributed.world_size()} from torchrun. Run it once on "
            "each machine, with --procs."
        )
    folder = None if out is None else Path(out).expanduser()
    place = Path(tempfile.gettempdir())
    if folder is not None:
        check_output_folder(folder)
        place = nearest_existing(folder)
    display = Display(quiet=quiet)
    with scratch_folder(place, "doctor") as scratch:
        subject = open_subject(data, recipe, overrides, out=folder, scratch=scratch, procs=procs, display=display)
        return examine(subject, display)
