"""The course of a run as a picture: loss terms against their limits, and student against teacher."""

import math
from pathlib import Path
from typing import Any

from carp.config import Config
from carp.errors import MissingExtraError
from carp.files import replacing


def plot_run(metrics: list[dict[str, Any]], config: Config, path: Path) -> None:
    """Draw the metrics of a run as a PNG."""
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415 - optional
    except ImportError:
        raise MissingExtraError("matplotlib is not installed. Run `pip install 'carp-ssl[log]'`.") from None
    losses = [m for m in metrics if "loss" in m]
    knn = [m for m in metrics if "knn_student" in m]
    figure = Figure(figsize=(11 if knn else 6, 4), layout="constrained")
    axes = figure.subplots(1, 2 if knn else 1, squeeze=False)[0]
    _draw_losses(axes[0], losses, config)
    if knn:
        _draw_knn(axes[1], knn)
    with replacing(path) as beside:
        figure.savefig(beside, dpi=120, format="png")


def _draw_losses(axis: Any, losses: list[dict[str, Any]], config: Config) -> None:
    steps = [m["step"] for m in losses]
    limit = math.log(max(2, config.block_size))
    axis.plot(steps, [m["consistency"] for m in losses], label="consistency")
    axis.plot(steps, [m["kl_to_uniform"] for m in losses], label="kl_to_uniform")
    axis.axhline(2 * limit, color="C0", ls=":", lw=1, label="uniform assignments (2 ln $N_B$)")
    axis.axhline(limit, color="C1", ls=":", lw=1, label="one prototype takes all (ln $N_B$)")
    axis.set(xlabel="step", title="Loss terms and their limits", ylim=(0, 2.3 * limit))
    axis.legend(fontsize=8)
    axis.grid(alpha=0.3)


def _draw_knn(axis: Any, knn: list[dict[str, Any]]) -> None:
    epochs = [m["epoch"] for m in knn]
    axis.plot(epochs, [100 * m["knn_student"] for m in knn], marker="o", ms=3, label="student (θ)")
    if "knn_teacher" in knn[-1]:
        axis.plot(epochs, [100 * m["knn_teacher"] for m in knn], marker="s", ms=3, label="teacher (ξ)")
    axis.locator_params(axis="x", integer=True, min_n_ticks=1)  # there is no epoch 2.5
    axis.set(xlabel="epoch", ylabel="k-NN top-1 accuracy, %", title="Student and teacher")
    axis.legend(loc="lower right")
    axis.grid(alpha=0.3)
