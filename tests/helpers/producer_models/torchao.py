"""torchao."""

from __future__ import annotations

from ._headers import Recorded

RECORDED: Recorded = {
    "torchao int8": (
        "int8_channel",
        None,
        "torchao",
        7,
        {"_weight_scale", "_weight_zero_point"},
    ),
    "torchao float8": ("fp8_channel", None, "torchao", 7, {"_weight_scale"}),
    "torchao nvfp4": (
        "nvfp4",
        (1, 16),
        "torchao",
        7,
        {"_weight_scale", "_weight_per_tensor_scale"},
    ),
}
