"""The layouts that several producers write."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np

from castwise.quantization.producers._layouts import (
    ACTIVATION,
    GLOBAL,
    OF_COUNTS,
    OF_E4M3,
    OF_E8M0,
    OF_F32,
    OF_FP8,
    OF_I8,
    OF_REAL,
    OF_U8,
    OF_WORD,
    OTHER,
    SCALE,
    ZERO,
    Layout,
    Part,
    Storage,
)


def scale_part(name: str, formats: tuple[str, ...] = OF_REAL, *, distinct: bool = False) -> Part:
    """Describe a scale that must be there."""
    return Part(name, SCALE, formats, required=True, distinct=distinct)


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
SECOND = Part("_scale_2", GLOBAL, OF_F32, required=True)

PLAIN = Storage()
BYTES_LOW = Storage(np.uint8)

FP8_SCALE = Layout(
    "fp8_{}",
    "",
    OF_FP8,
    (scale_part("_scale"), *INPUTS, Part("input_scale_ub", use="inputs"), PRE),
    storage=PLAIN,
)
FP8_INVERSE = Layout(
    "fp8_{}",
    "",
    OF_FP8,
    (
        scale_part("_scale_inv", (*OF_REAL, *OF_E8M0), distinct=True),
        *INPUTS,
        Part("_activation_scale", ACTIVATION, distinct=True),
    ),
    families=("mxfp8",),
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
_EXPERTS = {
    "_scale": "_weight_scale",
    SECOND.name: f"_weight{SECOND.name}",
    "input_scale": "_input_scale",
}


def experts(
    layout: Layout, transposed: Literal["", "parts"] = "", columns: tuple[int, int] | None = None
) -> Layout:
    """Describe experts that ModelOpt exports in one tensor, those of Llama 4 and gpt-oss.

    Names of parts follow that of the parameter, which has no "weight" of its own.
    """
    storage = replace(layout.storage or Storage(), transposed=transposed, read_only=True)
    parts = (
        replace(part, name=_EXPERTS[part.name]) for part in layout.parts if part.name in _EXPERTS
    )
    return replace(
        layout,
        parts=tuple(parts),
        parameters=("gate_up_proj", "down_proj"),
        columns=columns,
        storage=storage,
    )


PACKED_WORDS = Layout(
    "int_{}",
    "_packed",
    OF_WORD,
    (
        scale_part("_scale"),
        Part("_shape", OTHER, OF_COUNTS, required=True, use="shape"),
        Part("_zero_point", ZERO, OF_WORD),
        Part("_g_idx", OTHER, OF_WORD, use="group index"),
        *INPUTS,
    ),
    storage=Storage(np.int32, ("dense", "padded"), excess=True, zeros="rows", grouped=True),
)
GPTQ = Layout(
    "int_{}",
    "qweight",
    OF_WORD,
    (
        scale_part("scales"),
        Part("qzeros", ZERO, OF_WORD, distinct=True),
        Part("g_idx", OTHER, OF_WORD, distinct=True, use="group index"),
    ),
    columns=(1, 1),
    storage=Storage(
        np.int32,
        unsigned=True,
        zeros="columns",
        zeros_add=(("gptq", 1), ("gptq_v2", 0)),
        transposed="parts",
    ),
)
