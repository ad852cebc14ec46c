"""The layouts that several producers write."""

from __future__ import annotations

import numpy as np

from castwise.quantization.producers.layouts import (
    ACTIVATION,
    GLOBAL,
    OF_E4M3,
    OF_E8M0,
    OF_F32,
    OF_FP8,
    OF_I8,
    OF_REAL,
    OF_U8,
    OTHER,
    SCALE,
    ZERO,
    Layout,
    Part,
    Storage,
)


def scale_part(name: str, formats: tuple[str, ...] = OF_REAL, *, distinct: bool = False) -> Part:
    """Describe a scale that must be there."""
    return Part(name, SCALE, formats, is_required=True, distinct=distinct)


INPUTS = tuple(
    Part(name, ACTIVATION)
    for name in (
        "input_scale",
        "input_zero_point",
        "output_scale",
        "output_zero_point",
        "activation_scale",
    )
)
PRE = Part("pre_quant_scale", OTHER, OF_REAL, distinct=True, use="factor")
SECOND = Part("_scale_2", GLOBAL, OF_F32, is_required=True)

PLAIN = Storage()
BYTES_LOW = Storage(np.uint8)

FP8_SCALE = Layout(
    "fp8_{}",
    "",
    OF_FP8,
    (scale_part("_scale"), *INPUTS, Part("input_scale_ub", use="inputs"), PRE),
    storage=PLAIN,
)
MXFP8 = Layout(
    "mxfp8_e4m3",
    "",
    OF_E4M3,
    (scale_part("_scale", OF_E8M0), *INPUTS),
    block=(1, 32),
    storage=PLAIN,
)
INT8 = Layout(
    "int8_{}",
    "",
    OF_I8,
    (scale_part("_scale"), Part("_zero_point", ZERO, OF_I8), *INPUTS, PRE),
    families=("int", "uint"),
    storage=PLAIN,
)
NVFP4 = Layout(
    "nvfp4",
    "",
    OF_U8,
    (scale_part("_scale", OF_E4M3), SECOND, *INPUTS, PRE),
    block=(1, 16),
    storage=Storage(np.uint8, positive_zero=True),
)
MXFP4 = Layout(
    "mxfp4",
    "",
    OF_U8,
    (scale_part("_scale", OF_E8M0), *INPUTS),
    block=(1, 32),
    columns=(16, 1),
    storage=BYTES_LOW,
)
