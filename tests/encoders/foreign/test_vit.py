"""Vision transformers: DINO's, MoCo-v3's and timm's files give the features of the networks that wrote them."""

import math
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import save_file
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn
from torch.nn import functional as F

import carp
from carp.encoders.foreign import BY_NAME, foreign_encoder, read_foreign
from carp.encoders.foreign.vit import VitArchitecture, VitTraits, vit_architecture_of
from carp.errors import CheckpointError, ModelError
from tests.encoders.foreign.layouts import pictures, prefixed
from tests.helpers import tiny_images

Tensors = dict[str, Tensor]
NORM = partial(nn.LayerNorm, eps=1e-6)


def transformer(width: int = 128, heads: int | None = None, *, size: int = 64, **how: Any) -> VisionTransformer:
    """Small, with every parameter random, and as sensitive to its norms as a trained one."""
    options = {"patch_size": 16, "depth": 2, "num_classes": 0, "norm_layer": NORM, "dynamic_img_size": True, **how}
    module = VisionTransformer(img_size=size, embed_dim=width, num_heads=heads or width // 64, **options)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for tensor in module.state_dict().values():
            tensor.copy_(torch.randn(tensor.shape, generator=generator) * (0.5 if tensor.ndim == 1 else 0.1))
    return module.eval()


def dino(state: Tensors, images: Tensor, heads: int) -> Tensor:
    """DINO's forward pass, written out: attention, positions for any size, class token."""
    width, patch = state["patch_embed.proj.weight"].shape[0], state["patch_embed.proj.weight"].shape[-1]

    def norm(x: Tensor, name: str) -> Tensor:
        return F.layer_norm(x, (width,), state[f"{name}.weight"], state[f"{name}.bias"], 1e-6)

    def linear(x: Tensor, name: str) -> Tensor:
        return F.linear(x, state[f"{name}.weight"], state[f"{name}.bias"])

    patches = F.conv2d(images, state["patch_embed.proj.weight"], state["patch_embed.proj.bias"], stride=patch)
    x = torch.cat([state["cls_token"].expand(len(images), 1, width), patches.flatten(2).transpose(1, 2)], dim=1)
    positions, side = state["pos_embed"], math.isqrt(state["pos_embed"].shape[1] - 1)
    if patches.shape[2:] != (side, side):
        square = positions[:, 1:].reshape(1, side, side, width).permute(0, 3, 1, 2)
        factor = tuple((count + 0.1) / side for count in patches.shape[2:])
        other = F.interpolate(square, scale_factor=factor, mode="bicubic").flatten(2).transpose(1, 2)
        positions = torch.cat([positions[:, :1], other], dim=1)
    x = x + positions
    depth = 1 + max(int(name.split(".")[1]) for name in state if name.startswith("blocks."))
    for i in range(depth):
        qkv = linear(norm(x, f"blocks.{i}.norm1"), f"blocks.{i}.attn.qkv")
        q, k, v = qkv.unflatten(2, (3, heads, width // heads)).permute(2, 0, 3, 1, 4)
        attention = (q @ k.transpose(-2, -1) * (width // heads) ** -0.5).softmax(dim=-1)
        x = x + linear((attention @ v).transpose(1, 2).flatten(2), f"blocks.{i}.attn.proj")
        hidden = F.gelu(linear(norm(x, f"blocks.{i}.norm2"), f"blocks.{i}.mlp.fc1"))
        x = x + linear(hidden, f"blocks.{i}.mlp.fc2")
    return norm(x, "norm")[:, 0]


def save(found: Any, path: Path) -> Path:
    torch.save(found, path)
    return path


def dino_file(state: Tensors) -> dict[str, Any]:
    head = {"module.head.mlp.0.weight": torch.randn(8, 8)}
    student = {**prefixed({n: torch.zeros_like(t) for n, t in state.items()}, "module.backbone."), **head}
    teacher = {**prefixed(state, "backbone."), "head.mlp.0.weight": torch.randn(8, 8)}
    return {"student": student, "teacher": teacher, "epoch": 100, "dino_loss": {"center": torch.zeros(1, 8)}}


def moco_file(state: Tensors) -> dict[str, Any]:
    momentum = prefixed({n: torch.zeros_like(t) for n, t in state.items()}, "module.momentum_encoder.")
    head = {"module.base_encoder.head.0.weight": torch.randn(8, 8), "module.predictor.0.weight": torch.randn(8, 8)}
    return {
        "epoch": 300,
        "arch": "vit_small",
        "state_dict": {**prefixed(state, "module.base_encoder."), **head, **momentum},
    }


@pytest.mark.parametrize("shape", [(64, 64), (48, 96), (70, 41), (128, 128), (16, 16)])
def test_dino_at_any_size(shape: tuple[int, int], tmp_path: Path) -> None:
    state = transformer().state_dict()
    encoder, weights = foreign_encoder(save(dino_file(state), tmp_path / "checkpoint.pth"))
    assert (weights.method.name, weights.size, encoder.num_features) == ("dino", 64, 128)
    assert str(weights.architecture) == "ViT/16 of width 128, 2 blocks (2 heads, 64 px)"
    images = torch.randn(2, 3, *shape, generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        torch.testing.assert_close(encoder(images), dino(state, images, 2), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("patch", [8, 16])
def test_dinos_released_file_is_known_by_its_name(patch: int, tmp_path: Path) -> None:
    module = transformer(384, size=32, patch_size=patch, depth=12)
    path = save(module.state_dict(), tmp_path / f"dino_deitsmall{patch}_pretrain.pth")
    encoder, weights = foreign_encoder(path)
    assert (weights.method.name, str(weights.architecture)) == ("dino", f"ViT-S/{patch} (6 heads, 32 px)")
    with torch.inference_mode():
        assert torch.equal(encoder(pictures(32)), module(pictures(32)))


def test_moco_v3_has_twelve_heads_in_its_small_network(tmp_path: Path) -> None:
    module = transformer(384, 12)
    encoder, weights = foreign_encoder(save(moco_file(module.state_dict()), tmp_path / "vit-s-300ep.pth.tar"))
    assert (weights.method.name, weights.architecture.heads) == ("moco-v3", 12)
    assert weights.unexpected == ()
    six = transformer(384, 6)
    with torch.inference_mode():
        assert torch.equal(encoder(pictures()), module(pictures()))
        assert not torch.allclose(encoder(pictures()), six(pictures()), atol=1e-3)


@pytest.mark.parametrize("options", [{}, {"qkv_bias": False}, {"init_values": 1e-5}, {"mlp_ratio": 3.7362}])
@pytest.mark.parametrize("size", [64, 96])
def test_timms_at_any_size(options: dict[str, Any], size: int, tmp_path: Path) -> None:
    module = transformer(192, num_classes=10, **options)
    encoder, weights = foreign_encoder(save(module.state_dict(), tmp_path / "a.pth"), "deit")
    assert weights.leftovers == ("head.weight", "head.bias")
    module.reset_classifier(0)
    with torch.inference_mode():
        assert torch.equal(encoder(pictures(size)), module(pictures(size)))


def test_timms_normalisation(tmp_path: Path) -> None:
    """AugReg's networks take pixels with mean and deviation 0.5; images arrive with ImageNet's."""
    module = transformer(192)
    encoder, _ = foreign_encoder(save({"state_dict": module.state_dict()}, tmp_path / "a.pth"), "timm-vit")
    pixels = torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    mean, std = (torch.tensor(values).view(1, 3, 1, 1) for values in (BY_NAME["dino"].mean, BY_NAME["dino"].std))
    with torch.inference_mode():
        ours, theirs = encoder((pixels - mean) / std), module((pixels - 0.5) / 0.5)
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("head", [True, False])
@pytest.mark.parametrize("entry", [None, "state_dict", "model", "state_dict_ema"])
def test_a_transformer_without_a_name_asks_for_one(head: bool, entry: str | None, tmp_path: Path) -> None:
    state = transformer(num_classes=10 if head else 0).state_dict()
    path = save({entry: state} if entry else state, tmp_path / "a.pth")
    with pytest.raises(CheckpointError) as caught:
        read_foreign(path)
    assert f"timm-vit:{path}" in str(caught.value)
    assert f"deit:{path}" in str(caught.value)
    assert (f"dino:{path}" in str(caught.value)) == (not head and entry is None)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "name", ["vit_tiny", "vit_small", "vit_base", "vit_large", "vit_huge_patch14_224", "vit_giant_patch14_224"]
)
def test_heads_are_timms(name: str) -> None:
    """For the widths that its plain networks have."""
    with torch.device("meta"):
        module = timm.create_model(name if "patch" in name else f"{name}_patch16_224")
        found = vit_architecture_of(module.state_dict(), VitTraits())
    assert isinstance(found, VitArchitecture)
    blocks = module.blocks
    assert (found.heads, found.image_size, found.depth) == (blocks[0].attn.num_heads, 224, len(blocks))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"reg_tokens": 4}, "positions|reg_token"),
        ({"qk_norm": True}, r"blocks\.0\.attn\.q_norm\.weight"),
        ({"pre_norm": True}, r"it lacks patch_embed\.proj\.bias"),
        ({"class_token": False, "global_pool": "avg"}, "."),
        ({"no_embed_class": True}, "16 positions"),
        ({"global_pool": "avg", "fc_norm": True}, "."),
    ],
)
def test_other_transformers_are_refused(change: dict[str, Any], said: str, tmp_path: Path) -> None:
    state = transformer(**change).state_dict()
    for method in (None, "dino", "deit"):
        with pytest.raises(CheckpointError, match=said) as caught:
            read_foreign(save(state, tmp_path / "a.pth"), method)
        assert "\n" not in str(caught.value)


def test_a_width_that_does_not_say_its_heads(tmp_path: Path) -> None:
    state = transformer(100, 4).state_dict()
    with pytest.raises(CheckpointError, match="a width of 100, from which the number of attention heads"):
        read_foreign(save(dino_file(state), tmp_path / "a.pth"))


def test_a_missing_block_and_a_block_far_away(tmp_path: Path) -> None:
    state = transformer(depth=3).state_dict()
    lacking = {n: t for n, t in state.items() if not n.startswith("blocks.1.")}
    with pytest.raises(CheckpointError, match=r"it lacks blocks\.1\.norm1\.weight"):
        read_foreign(save(dino_file(lacking), tmp_path / "a.pth"))
    far = {n.replace("blocks.2.", "blocks.987654321."): t for n, t in state.items()}
    with pytest.raises(CheckpointError, match="block 987654321 without the blocks before it"):
        read_foreign(save(dino_file(far), tmp_path / "a.pth"))


def test_an_image_smaller_than_a_patch(tmp_path: Path) -> None:
    save(dino_file(transformer().state_dict()), tmp_path / "a.pth")
    with pytest.raises(ModelError, match="an image of 8×8 is smaller than a patch"):
        carp.load(tmp_path / "a.pth", size=8).embed(tiny_images(2))


def test_safetensors(tmp_path: Path) -> None:
    module = transformer()
    save_file({n: t.contiguous() for n, t in module.state_dict().items()}, tmp_path / "model.safetensors")
    encoder, _ = foreign_encoder(tmp_path / "model.safetensors", "deit")
    with torch.inference_mode():
        assert torch.equal(encoder(pictures()), module(pictures()))
