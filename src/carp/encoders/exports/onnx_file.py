"""Exports to ONNX, for any number of images and, if the network allows, any image size; verified with onnxruntime.

PyTorch's older exporter is used: it needs neither onnxscript nor a second file for the weights, it names the axes, and
it takes seconds.
"""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from carp.encoders.exports.exportable import ExportableEncoder
from carp.encoders.exports.probes import takes_other_sizes
from carp.encoders.read_export import MARK
from carp.errors import MissingExtraError

_INPUT, _OUTPUT = "images", "features"
_OPSET = 17


def write(exportable: ExportableEncoder, path: Path) -> None:
    """Trace the network and write it with its description in the metadata."""
    onnx, _ = _libraries()
    axes = {0: "batch"} | ({2: "height", 3: "width"} if takes_other_sizes(exportable) else {})
    example = torch.zeros(2, 3, exportable.size, exportable.size)
    with warnings.catch_warnings(), torch.inference_mode():
        warnings.simplefilter("ignore")  # about the older exporter, and about sizes that become constants of the graph
        torch.onnx.export(
            exportable.module,
            (example,),
            str(path),
            input_names=[_INPUT],
            output_names=[_OUTPUT],
            dynamic_axes={_INPUT: axes, _OUTPUT: {0: "batch"}},
            opset_version=_OPSET,
            dynamo=False,
        )
    graph = onnx.load(path)
    graph.metadata_props.add(key=MARK, value=exportable.about_text())
    onnx.checker.check_model(graph, full_check=True)
    onnx.save(graph, path)


def reload(_exportable: ExportableEncoder, path: Path) -> Callable[[Tensor], Tensor]:
    """Load it with onnxruntime on the CPU."""
    _, onnxruntime = _libraries()
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])

    def run(images: Tensor) -> Tensor:
        return torch.from_numpy(session.run(None, {_INPUT: images.numpy()})[0])

    return run


def is_carp_file(path: Path) -> bool:
    """Return whether the metadata contain CARP's mark."""
    onnx, _ = _libraries()
    try:
        return any(entry.key == MARK for entry in onnx.load(path, load_external_data=False).metadata_props)
    except Exception:  # the protobuf parser raises its own exceptions
        return False


def _libraries() -> tuple[Any, Any]:
    try:
        import onnx  # noqa: PLC0415 - optional
        import onnxruntime  # noqa: PLC0415
    except ImportError:
        raise MissingExtraError(
            "--format onnx needs onnx and onnxruntime. Run `pip install 'carp-ssl[onnx]'`."
        ) from None
    return onnx, onnxruntime
