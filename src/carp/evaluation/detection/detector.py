"""Faster R-CNN on a ResNet in the C4 layout: the last stage of the encoder processes every box.

Images pass through the first three stages. Proposals, cut from their output as 14 × 14 boxes, pass through the fourth
stage and, as in MoCo's evaluation, one more batch norm, and are averaged. All layers are fine-tuned.
"""

from collections.abc import Sequence
from copy import deepcopy
from typing import Any, cast

import torch
from torch import Tensor, nn
from torchvision.models.detection import FasterRCNN
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.faster_rcnn import FastRCNNPredictor
from torchvision.ops import MultiScaleRoIAlign

from carp.encoders.exports.exportable import ExportableEncoder
from carp.errors import ModelError

_STEM, _STAGES = ("conv1", "bn1", "act1", "maxpool"), ("layer1", "layer2", "layer3", "layer4")
_BOX = 14  # side of a proposal, before the last stage halves it


class _Trunk(nn.Sequential):
    """Stem and three stages; torchvision reads the number of channels."""

    def __init__(self, parts: Sequence[nn.Module], out_channels: int) -> None:
        super().__init__(*parts)
        self.out_channels = out_channels


class _LastStage(nn.Module):
    """The fourth stage of the encoder on boxes [B, C, 14, 14], to features [B, F]."""

    def __init__(self, stage: nn.Module, num_features: int) -> None:
        super().__init__()
        self.stage, self.norm = stage, nn.BatchNorm2d(num_features)

    def forward(self, boxes: Tensor) -> Tensor:
        return cast(Tensor, self.norm(self.stage(boxes)).mean(dim=(2, 3)))


def build_detector(
    encoder: ExportableEncoder, *, num_classes: int, anchor_sizes: Sequence[int], max_size: int, test_size: int
) -> nn.Module:
    """Build the detector from a copy of the encoder's weights and new heads; `num_classes` includes the background."""
    lacking = [part for part in (*_STEM, *_STAGES) if not hasattr(encoder.module, part)]
    if lacking:
        raise ModelError(
            f"detection needs a ResNet with four stages: {encoder.architecture} has no {lacking[0]}. Export it for a "
            "detection library of your choice (carp export)."
        )
    network = cast(Any, deepcopy(encoder.module)).requires_grad_(True)
    trunk = [getattr(network, part) for part in (*_STEM, *_STAGES[:3])]
    with torch.inference_mode():
        channels = int(nn.Sequential(*trunk).eval()(torch.zeros(1, 3, 64, 64)).shape[1])
    detector: nn.Module = FasterRCNN(
        _Trunk(trunk, channels),
        rpn_anchor_generator=AnchorGenerator((tuple(anchor_sizes),), ((0.5, 1.0, 2.0),)),
        rpn_pre_nms_top_n_train=12_000,
        rpn_post_nms_top_n_train=2_000,
        rpn_pre_nms_top_n_test=6_000,
        rpn_post_nms_top_n_test=1_000,
        box_roi_pool=MultiScaleRoIAlign(["0"], output_size=_BOX, sampling_ratio=0),
        box_head=_LastStage(network.layer4, encoder.num_features),
        box_predictor=FastRCNNPredictor(encoder.num_features, num_classes),
        min_size=test_size,
        max_size=max_size,
        image_mean=list(encoder.mean),
        image_std=list(encoder.std),
        _skip_resize=True,  # in training, where images already have their final size
    )
    return detector


def parameter_groups(detector: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Return all parameters in two groups; those of batch norm have no weight decay."""
    norms = [
        parameter
        for module in detector.modules()
        if isinstance(module, nn.modules.batchnorm._BatchNorm)
        for parameter in module.parameters(recurse=False)
    ]
    known = {id(parameter) for parameter in norms}
    others = [parameter for parameter in detector.parameters() if id(parameter) not in known]
    return [{"params": others, "weight_decay": weight_decay}, {"params": norms, "weight_decay": 0.0}]
