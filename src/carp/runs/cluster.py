"""`carp train --submit`: queue a run on a cluster with submitit; docs/train.sbatch does the same without it."""

import signal
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import yaml

from carp.errors import ConfigError, Interrupted, MissingExtraError, nearest


@dataclass(frozen=True)
class Resources:
    """What a job requests from the cluster."""

    cluster: str = "slurm"  # local: processes of this machine
    nodes: int = 1
    tasks: int = 1  # processes per node: one per GPU
    gpus: int | None = None  # per node; as many as tasks if None
    cpus: int = 8  # per process
    hours: float = 24.0
    partition: str | None = None


def parse_resources(text: str) -> Resources:
    """Read `nodes=2 tasks=8 hours=48`."""
    known = {field.name: field.type for field in fields(Resources)}
    values: dict[str, Any] = {}
    for word in text.replace(",", " ").split():
        key, sign, value = word.partition("=")
        if not sign or key not in known:
            raise ConfigError(
                f"--submit takes key=value pairs, received '{word}'.{nearest(key, known)} Keys: {', '.join(known)}."
            )
        values[key] = yaml.safe_load(value)
        if key in {"cluster", "partition"}:
            continue
        least, kind = (0 if key == "gpus" else 1), ("number" if key == "hours" else "whole number")
        allowed = int | float if key == "hours" else int
        if isinstance(values[key], bool) or not isinstance(values[key], allowed) or values[key] < least:
            raise ConfigError(f"--submit {key} must be a {kind} of at least {least}, received '{value}'.")
    if values.get("cluster", "slurm") not in {"slurm", "local"}:
        raise ConfigError(f"--submit cluster must be slurm or local, received '{values['cluster']}'.")
    return Resources(**values)


@dataclass(frozen=True)
class Job:
    """A run as a cluster job: called in every process, and called again after a time limit or a preemption."""

    train: Callable[[], object]

    def __call__(self) -> None:
        """Start the run, or resume it."""
        from submitit.helpers import TorchDistributedEnvironment  # noqa: PLC0415 - optional

        TorchDistributedEnvironment().export(overwrite=True)
        try:
            self.train()
        except Interrupted as stopped:
            number = stopped.exit_code - 128
            if number not in {signal.SIGUSR1, signal.SIGUSR2}:
                raise
            # Everything is saved: now submitit handles the signal and queues the job again in its first process
            signal.raise_signal(number)

    def checkpoint(self) -> Any:
        """Return what to queue again: the same job, because a run resumes from its newest checkpoint."""
        from submitit.helpers import DelayedSubmission  # noqa: PLC0415 - optional

        return DelayedSubmission(self)


def submit(job: Job, out: Path, resources: Resources) -> str:
    """Queue a run and return the number of the job. The output of its processes goes to OUT.jobs."""
    try:
        import submitit  # noqa: PLC0415 - optional
    except ImportError:
        raise MissingExtraError(
            "--submit needs submitit, which is not installed. Run `pip install 'carp-ssl[cluster]'`, or use "
            "docs/train.sbatch."
        ) from None
    folder = out.resolve().with_name(f"{out.name}.jobs")  # the run folder itself must be new
    try:
        executor = submitit.AutoExecutor(folder=folder, cluster=resources.cluster)
        executor.update_parameters(**parameters(resources, out.name))
        return str(executor.submit(job).job_id)
    except (RuntimeError, ValueError, OSError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"the job could not be submitted to {resources.cluster}: {reason}") from error


def parameters(resources: Resources, name: str) -> dict[str, Any]:
    """Return the resources as submitit's parameters."""
    gpus = resources.tasks if resources.gpus is None else resources.gpus
    found: dict[str, Any] = {
        "name": name,
        "nodes": resources.nodes,
        "tasks_per_node": resources.tasks,
        "gpus_per_node": 0 if resources.cluster == "local" and resources.gpus is None else gpus,
        "timeout_min": int(60 * resources.hours),
    }
    if resources.cluster == "slurm":
        found |= {"cpus_per_task": resources.cpus, "slurm_additional_parameters": {"requeue": True}}
        if resources.partition is not None:
            found["slurm_partition"] = resources.partition
    return found
