"""The timm arguments that `encoder_options` may contain: those that describe a network, with plain values.

A run folder may come from an untrusted source, and timm's other arguments load weights from a URL, a hub or a path, or
name classes.
"""

import re
from collections.abc import Mapping
from typing import Any

import timm
from torch import nn

from carp.errors import ModelError, nearest

_NAMES = """
aa_layer aa_stem_only act_layer all_local always_partition attn_drop_rate attn_layer avg_down base_width block_args
block_config block_reduce_first block_size bn_size cardinality channel_divisor channel_min channel_multiplier
channels class_token conv_bias conv_mlp cross_attn depth depths dims down_kernel_size drop_block_rate drop_path_rate
drop_rate dynamic_img_pad dynamic_img_size embed_dim embed_dims expand_ratio fc_norm final_norm fix_init fix_stem
global_pool groups growth_rate head_conv_bias head_dim head_drop_rate head_hidden_size head_init_scale
head_norm_first hidden_dim img_size init_values init_scale kernel_sizes layers layer_scale_init_value
local_up_to_layer locality_strength ls_init_value memory_efficient mlp_layer mlp_ratio mlp_ratios nlhb
no_embed_class norm_eps norm_layer num_blocks num_features num_heads num_layers output_stride pad_type
patch_drop_rate patch_size pool_include_prefix pos_drop_rate pos_embed pre_norm proj_bias proj_drop_rate qk_norm
qkv_bias qkv_fused ref_feat_shape reg_tokens rel_pos_type replace_stem_pool scale_attn_norm scale_mlp_norm se_layer
se_ratio stem_channels stem_chs stem_kernel_size stem_norm stem_size stem_stride stem_type stem_width
strict_img_size use_abs_pos_emb use_grn use_rel_pos_bias use_shared_rel_pos_bias weight_init width widths
window_ratio window_size zero_init_last
"""
ARCHITECTURE_OPTIONS = frozenset(_NAMES.split())
_WORD = re.compile(r"[A-Za-z0-9_.+-]{0,64}")  # excludes paths and URLs
_DEPTH = 4  # of lists inside lists


def create_timm(name: str, options: Mapping[str, Any]) -> nn.Module:
    """Create a timm network without its classifier, with random weights; nothing is read or downloaded."""
    check_options(name, options)
    network: nn.Module = timm.create_model(name, pretrained=False, num_classes=0, **options)
    return network


def check_options(name: str, options: Mapping[str, Any]) -> None:
    """Reject arguments that do more than describe a network."""
    for option, value in options.items():
        if option not in ARCHITECTURE_OPTIONS:
            shown = str(option)[:60]
            read = re.match(r"pretrained|checkpoint|cache|model_cfg|url|hf_|file", shown) is not None
            why = " CARP trains from random weights and does not load weights that a run names." if read else ""
            raise ModelError(
                f"encoder_options of '{name}' must not contain '{shown}': only timm options that describe the network "
                f"are accepted.{why or nearest(shown, ARCHITECTURE_OPTIONS)} Remove it from encoder_options."
            )
        if not _is_plain(value, _DEPTH):
            raise ModelError(
                f"encoder_options of '{name}': '{option}' must be a number, a word, true, false, null or a list of "
                f"these, received {str(value)[:60]!r}."
            )


def _is_plain(value: Any, depth: int) -> bool:
    if isinstance(value, str):
        return _WORD.fullmatch(value) is not None
    if isinstance(value, list | tuple):
        return depth > 0 and all(_is_plain(item, depth - 1) for item in value)
    if isinstance(value, dict):
        words = all(isinstance(key, str) and _WORD.fullmatch(key) for key in value)
        return words and depth > 0 and all(_is_plain(item, depth - 1) for item in value.values())
    return value is None or isinstance(value, bool | int | float)
