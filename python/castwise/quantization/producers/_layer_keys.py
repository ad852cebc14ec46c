"""The keys that producers state of single layers; a layer with any other is not decoded."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

MLX = frozenset(("bits", "group_size", "mode", "global_scale", "quantize_input"))
MODELOPT = frozenset(
    (
        "quant_algo",
        "group_size",
        "has_zero_point",
        "pre_quant_scale",
        "awq_block_size",
        "weight_block_size",
        "kv_cache_quant_algo",
        "exclude_modules",
    )
)
COMFY = frozenset(
    (
        "format",
        "full_precision_matrix_mult",
        "num_experts",
        "group_size",
        "orig_dtype",
        "orig_shape",
        "convrot",
        "convrot_groupsize",
    )
)
"""Of `convrot` the value decides: rotated codes are refused."""

COMPRESSED = frozenset(
    (
        "num_bits",
        "type",
        "symmetric",
        "group_size",
        "strategy",
        "block_structure",
        "dynamic",
        "actorder",
        "scale_dtype",
        "zp_dtype",
        "observer",
        "observer_kwargs",
    )
)
"""The fields of `QuantizationArgs`."""

QUARK = frozenset(
    (
        "dtype",
        "qscheme",
        "ch_axis",
        "group_size",
        "block_size",
        "symmetric",
        "round_method",
        "scale_type",
        "scale_format",
        "scale_calculation_mode",
        "mx_element_dtype",
        "zero_point_type",
        "is_dynamic",
        "is_scale_quant",
        "observer_cls",
        "qat_spec",
    )
)
"""The fields of Quark's `QTensorConfig`."""

GPTQ = frozenset(
    (
        "bits",
        "group_size",
        "sym",
        "desc_act",
        "act_group_aware",
        "static_groups",
        "true_sequential",
        "damp_percent",
        "damp_auto_increment",
        "mse",
    )
)
"""Those that change bits, groups or order, and those that only say how codes were chosen."""

AUTO_ROUND = frozenset(
    (
        "bits",
        "group_size",
        "sym",
        "data_type",
        "act_bits",
        "act_group_size",
        "act_sym",
        "act_data_type",
        "act_dynamic",
    )
)


def unknown_key(stated: Mapping[str, Any], known: Collection[str]) -> str | None:
    """Say which key of a layer is not known; None if all are. Values of None state nothing."""
    for key, value in stated.items():
        if key not in known and value is not None:
            return f"states {key!r} of it, which castwise does not know"
    return None
