"""The report of a step whose loss or gradient was not finite."""

import json
import math
from pathlib import Path
from typing import Any

from torch import nn

from carp.compute import distributed
from carp.errors import NonFiniteError
from carp.files.atomic import write_atomic
from carp.images.loading.loader import Batch
from carp.training.health import Diagnosis
from carp.training.step import StepResult


def post_mortem(
    folder: Path, model: nn.Module, batch: Batch, result: StepResult, diagnosis: Diagnosis | None
) -> NonFiniteError:
    """Write `post-mortem.json` into the run folder and return the error to raise. Every process calls this."""
    bad = [name for name, p in model.named_parameters() if p.grad is not None and not bool(p.grad.isfinite().all())]
    report: dict[str, Any] = {
        "step": batch.step,
        "epoch": batch.epoch,
        "loss": repr(result.loss),
        "consistency": repr(result.consistency),
        "kl_to_uniform": repr(result.kl_to_uniform),
        "gradient_norm": repr(result.gradient_norm),
        "lr": result.lr,
        "loss_scale": result.loss_scale,
        "last_diagnosis": str(diagnosis) if diagnosis else None,
        "parameters_with_bad_gradients": bad,
        "images": [index for part in distributed.gather(batch.indices.tolist()) for index in part],
    }
    path = folder / "post-mortem.json"
    if distributed.is_first():
        write_atomic(path, json.dumps(report, indent=1))
    what = "the gradient" if math.isfinite(result.loss) else "the loss"
    return NonFiniteError(
        f"{what} is not finite at step {batch.step}: the step was not applied, and {path} has the details. Lower lr, "
        "add warmup_epochs, set clip_gradient, or use precision=fp32."
    )
