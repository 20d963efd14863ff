"""What a run folder records about a run, as a page shows it: facts, the history of its diagnosis, its settings."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from carp.config import Config
from carp.console.quantities import counted, duration
from carp.evaluation.result import Result, read_result
from carp.files.atomic import is_unfinished
from carp.report.pages.template import Fact
from carp.runs.checkpoint import list_checkpoints, step_of
from carp.runs.metrics_log import read_metrics
from carp.runs.run_folder import Run

_GOOD, _BAD = ("healthy",), ("collapsed", "not learning")
_NEWEST = 12  # verdicts


@dataclass(frozen=True)
class Verdict:
    """A verdict of the diagnosis, and how long it lasted."""

    since: str
    name: str
    tone: str
    """`good`, `bad`, `plain`, or nothing for a warning."""
    cause: str


@dataclass(frozen=True)
class Setting:
    """A setting of the configuration."""

    name: str
    value: str
    about: str
    changed: bool
    """Whether it differs from its default."""


class RunRecords:
    """A run, and the files that it wrote while it trained."""

    def __init__(self, run: Run) -> None:
        self.run, self.config = run, run.config
        at = "" if run.epoch is None else f"@{run.epoch}"
        self.name = f"{run.folder.resolve().name}{at}"

    @cached_property
    def metrics(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl, up to the epoch that was asked for."""
        path = self.run.folder / "metrics.jsonl"
        lines = read_metrics(path) if path.exists() else []
        last = None if self.run.epoch is None else self.run.epoch * self.run.steps_per_epoch
        return [line for line in lines if last is None or line["step"] < last]

    @cached_property
    def results(self) -> list[Result]:
        """The results of evaluations that are kept with the run."""
        files = sorted((self.run.folder / "results").glob("*.json"))
        return [read_result(file) for file in files if not is_unfinished(file)]

    def epoch_of(self, step: int) -> float:
        """The epochs that are done after a step."""
        return (step + 1) / self.run.steps_per_epoch

    @property
    def history(self) -> list[Verdict]:
        """The newest verdicts of the diagnosis, where they changed, the last one first; each with its last cause."""
        found: list[Verdict] = []
        for line in self.metrics:
            if "cause" not in line:
                continue
            name = str(line["health"])
            tone = "good" if name in _GOOD else "bad" if name in _BAD else "plain" if "early" in name else ""
            since = f"epoch {self.epoch_of(line['step']):.1f}"
            if found and found[-1].name == name:
                since = found.pop().since
            found.append(Verdict(since, name, tone, str(line["cause"])))
        return found[: -_NEWEST - 1 : -1]

    @property
    def settings(self) -> list[Setting]:
        """All settings, those that differ from their defaults first."""
        rows = []
        for name, about in Config.model_fields.items():
            value = getattr(self.config, name)
            default = about.get_default(call_default_factory=False)
            rows.append(Setting(name, _plain(value), about.description or "", changed=_plain(value) != _plain(default)))
        return sorted(rows, key=lambda row: not row.changed)

    @property
    def knn(self) -> tuple[float | None, float | None]:
        """The last k-NN accuracy during training, of the better branch, and that of the untrained encoder."""
        lines = [line for line in self.metrics if "knn_student" in line]
        ends = [lines[-1][key] for key in ("knn_student", "knn_teacher") if key in lines[-1]] if lines else []
        start = next((line["knn_untrained"] for line in self.metrics if "knn_untrained" in line), None)
        return max(ends, default=None), start

    @property
    def facts(self) -> list[Fact]:
        """The most important numbers."""
        config, data = self.config, self.run.info["data"]
        done = self.epoch_of(max((line["step"] for line in self.metrics), default=-1))
        facts = [
            Fact("images", f"{data['images']:,}", str(data["name"])),
            Fact("epochs", f"{done:.3g}", f"of {config.epochs:,}, {counted(self.run.steps_per_epoch, 'step')} each"),
            Fact("encoder", config.encoder, f"{config.global_size} px"),
            Fact("prototypes", f"{config.num_prototypes:,}", f"in blocks of {config.block_size:,}"),
        ]
        last, start = self.knn
        if last is not None:
            facts.append(Fact("k-NN", f"{last:.1%}", "" if start is None else f"untrained {start:.1%}"))
        if self.used is not None:
            facts.append(Fact("checkpoint", self.used, f"the best one, beside {config.start}; all commands use it"))
        if (taken := self.seconds) is not None:
            facts.append(Fact("time", duration(taken), "by the dates of its files"))
        return facts

    @property
    def used(self) -> str | None:
        """The checkpoint that commands use, of a run that is compared with its start; None for other runs."""
        path = None if self.config.start is None or self.run.epoch is not None else self.run.checkpoint_path()
        step = None if path is None else step_of(path)
        if step is None:
            return None
        return f"epoch {step // self.run.steps_per_epoch}" if step else "the start"

    @property
    def seconds(self) -> float | None:
        """From the start of the run to its last checkpoint, by the dates of its files."""
        points = list_checkpoints(self.run.checkpoints)
        if not points:
            return None
        return max(0.0, points[-1].stat().st_mtime - (self.run.folder / "run.json").stat().st_mtime)

    @property
    def origin(self) -> list[tuple[str, str]]:
        """What the run is made of: data, command, versions."""
        info = self.run.info
        git, command = info.get("git"), info.get("command", [])
        rows = [
            ("folder", str(self.run.folder.resolve())),
            ("images", f"{info['data']['name']}, fingerprint {info['data']['fingerprint'][:16]}"),
            ("command", " ".join([*(Path(str(word)).name for word in command[:1]), *map(str, command[1:])])),
            ("started", _date((self.run.folder / "run.json").stat().st_mtime)),
            ("seed", str(info.get("seed", ""))),
            ("versions", ", ".join(f"{name} {version}" for name, version in info.get("versions", {}).items())),
            ("commit", f"{git['commit'][:12]}{', with changes' if git['changes'] == 'yes' else ''}" if git else ""),
        ]
        return [(name, value) for name, value in rows if value]


def setting_differences(runs: Sequence[RunRecords]) -> list[tuple[str, list[str]]]:
    """The settings that differ between runs, with the value of each run."""
    values = {name: [_plain(getattr(run.config, name)) for run in runs] for name in Config.model_fields}
    return [(name, each) for name, each in values.items() if len(set(each)) > 1]


def _plain(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple | list):
        return f"[{', '.join(_plain(each) for each in value)}]"
    if isinstance(value, dict):
        return ", ".join(f"{key}: {_plain(each)}" for key, each in value.items()) or "{}"
    return "null" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _date(stamp: float) -> str:
    return f"{datetime.fromtimestamp(stamp, UTC):%Y-%m-%d %H:%M} UTC"
