"""TransformerEngine, whose weights are only recognised."""

from __future__ import annotations

from castwise.quantization.producers._layouts import OF_FP8, OF_U8, Layout, Part
from castwise.quantization.producers._producer import Producer

TRANSFORMER_ENGINE = Producer(
    "transformer-engine",
    (
        Layout(
            "fp8_tensor",
            "",
            (*OF_FP8, *OF_U8),
            (Part("/_extra_state", required=True),),
            parameters=("weight",),
        ),
    ),
    is_decoded=False,
)
