"""Selects the output that serves as features: the pooled output, the embedding, or that of a named layer.

Shapes: B images, F features, T tokens.
"""

import hashlib
from collections.abc import Mapping

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from carp.errors import ModelError, nearest
from carp.features.feature_options import ENCODER, PROJECTOR
from carp.model.own_normalisation import without_normalisation


class NamedLayer(nn.Module):
    """The output of one layer of an encoder, averaged over positions or tokens: [B, F]."""

    def __init__(self, encoder: nn.Module, name: str) -> None:
        super().__init__()
        network = without_normalisation(encoder)
        layers = {layer for layer, _ in network.named_modules() if layer}
        if name not in layers:
            shown = ", ".join([ENCODER, PROJECTOR, *(child for child, _ in network.named_children())])
            raise ModelError(
                f"the encoder has no layer '{name}'.{nearest(name, layers)} Layers: {shown}, and their sub-layers."
            )
        self.encoder, self._name = encoder, name

    def forward(self, images: Tensor) -> Tensor:
        """Run the encoder and return the output of the layer."""
        kept: list[object] = []
        layer = without_normalisation(self.encoder).get_submodule(self._name)
        hook: RemovableHandle = layer.register_forward_hook(lambda _layer, _inputs, output: kept.append(output))
        try:
            self.encoder(images)
        finally:
            hook.remove()
        if not kept or not isinstance(kept[-1], Tensor) or not 2 <= kept[-1].ndim <= 4:
            raise ModelError(
                f"the output of the layer '{self._name}' is not one vector, map or list of tokens per image. Give "
                "another layer."
            )
        output = kept[-1].float()
        return output.mean(dim=tuple(range(2, 4))) if output.ndim == 4 else _average_tokens(output)


def _average_tokens(output: Tensor) -> Tensor:
    """Average [B, T, F] to [B, F]."""
    return output.mean(dim=1) if output.ndim == 3 else output


def weights_hash(module: nn.Module) -> str:
    """Return a hash of all weights and of the structure of the network (strides, for example, are not weights)."""
    return tensors_hash(module.state_dict(), repr(module))


def tensors_hash(tensors: Mapping[str, Tensor], of: str = "") -> str:
    """Return a hash of named tensors, and of a text that precedes them."""
    digest = hashlib.sha256(of.encode())
    for name, value in sorted(tensors.items()):
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        digest.update(value.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()
