"""The table of export formats: how to write one, how its library reads it back, how to recognise CARP's files."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from carp.encoders.exports import detectron2_file, hf_folder, onnx_file, safetensors_file, timm_folder, torchvision_file
from carp.encoders.exports.exportable import ExportableEncoder

Network = Callable[[Tensor], Tensor]  # normalised images [B, 3, H, W] to features [B, F]


@dataclass(frozen=True)
class Format:
    """A row of the table."""

    name: str
    suffix: str
    """The suffix of the file; empty for a folder."""
    write: Callable[[ExportableEncoder, Path], None]
    """Writes the export; raises an error before writing anything if the library has no such network."""
    reload: Callable[[ExportableEncoder, Path], Network]
    """Reads the export in the target library."""
    is_carp_file: Callable[[Path], bool]
    """Whether CARP wrote the existing file; no other file is ever replaced."""
    use: str
    """How to load it, on one line; {path} and {network} are filled in."""


FORMATS = (
    Format(
        "torchvision", ".pth", torchvision_file.write, torchvision_file.reload, torchvision_file.is_carp_file,
        "net = torchvision.models.{network}(); net.fc = torch.nn.Identity(); "
        "net.load_state_dict(torch.load('{path}', weights_only=True))",
    ),
    Format(
        "timm", "", timm_folder.write, timm_folder.reload, timm_folder.is_carp_file,
        "timm.create_model('local-dir:{path}', pretrained=True)",
    ),
    Format(
        "hf", "", hf_folder.write, hf_folder.reload, hf_folder.is_carp_file,
        "timm.create_model('local-dir:{path}', pretrained=True), or transformers.AutoModel.from_pretrained('{path}')",
    ),
    Format(
        "safetensors", ".safetensors", safetensors_file.write, safetensors_file.reload, safetensors_file.is_carp_file,
        "carp.load('{path}'), or its tensors alone: safetensors.torch.load_file('{path}')",
    ),
    Format(
        "onnx", ".onnx", onnx_file.write, onnx_file.reload, onnx_file.is_carp_file,
        "onnxruntime.InferenceSession('{path}').run(None, {{'images': images}})",
    ),
    Format(
        "detectron2", ".pkl", detectron2_file.write, detectron2_file.reload, detectron2_file.is_carp_file,
        "MODEL.WEIGHTS {path}",
    ),
)  # fmt: skip
BY_NAME = {format.name: format for format in FORMATS}
