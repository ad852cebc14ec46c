"""The recipes: how each producer names, stores and declares quantised weights.

One row per producer. Rows share layouts, because several producers use the same names for different
things: only a configuration, metadata or shapes then tell them apart.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from castwise.quantization.producers._layouts import (
    ACTIVATION,
    BF16,
    E4M3,
    GLOBAL,
    I8,
    OF_E4M3,
    OF_E8M0,
    OF_F32,
    OF_FP8,
    OF_I8,
    OF_POWER,
    OF_REAL,
    OF_U8,
    OF_U32,
    OF_WORD,
    OTHER,
    SCALE,
    U8,
    ZERO,
    Layout,
    Part,
    Recipe,
    Storage,
)
from castwise.quantization.producers._shared_layouts import (
    BYTES_LOW,
    FP8_INVERSE,
    FP8_SCALE,
    GPTQ,
    INPUTS,
    INT8,
    MXFP4,
    MXFP8,
    NVFP4,
    PACKED_WORDS,
    PLAIN,
    PRE,
    experts,
    scale_part,
)

__all__ = [
    "BF16",
    "BIASES",
    "E4M3",
    "I8",
    "MARKERS",
    "MODULE_PARAMETERS",
    "RECIPES",
    "U8",
]

_WEIGHT = ("weight",)

_MARKER = Part("comfy_quant", OTHER, OF_U8, required=True, distinct=True, use="marker")
_COMFY = (
    replace(FP8_SCALE, storage=Storage(inner=True)),
    replace(MXFP8, storage=Storage(tile=(32, 32))),
    replace(NVFP4, storage=Storage(np.uint8, ("high-first",), tile=(16, 16), inner=True)),
    INT8,
)

RECIPES = (
    Recipe(
        "compressed-tensors",
        ("compressed-tensors", "sparseml"),
        (
            FP8_SCALE,
            INT8,
            MXFP8,
            PACKED_WORDS,
            Layout(
                "nvfp4",
                "_packed",
                OF_U8,
                (
                    scale_part("_scale", OF_E4M3),
                    Part("_global_scale", GLOBAL, OF_F32, required=True),
                    Part("input_global_scale", ACTIVATION),
                    Part("output_global_scale", ACTIVATION),
                ),
                block=(1, 16),
                storage=Storage(np.uint8, global_use="divide"),
            ),
            *(
                Layout(
                    scheme,
                    "_packed",
                    OF_U8,
                    (scale_part("_scale", OF_E8M0), *INPUTS),
                    block=(1, 32),
                    columns=columns,
                    storage=BYTES_LOW,
                )
                for scheme, columns in (("mxfp4", (16, 1)), ("mxfp6_e2m3", (24, 1)))
            ),
            Layout("marlin-24", "_packed", OF_WORD, (scale_part("scale_packed"), Part("meta"))),
        ),
        scales="weight",
        scalar=(1,),
    ),
    Recipe(
        "modelopt",
        ("modelopt",),
        (
            FP8_SCALE,
            replace(INT8, parts=tuple(part for part in INT8.parts if part.role != ZERO)),
            MXFP8,
            NVFP4,
            MXFP4,
            Layout(
                "int4_{}",
                "",
                OF_U8,
                (
                    scale_part("_scale"),
                    PRE,
                    Part("_scale_2", OTHER, OF_F32, use="float8 scale"),
                    *INPUTS,
                ),
                storage=Storage(np.uint8, transposed="pairs"),
            ),
            Layout(
                "nvfp4",
                "",
                OF_U8,
                (
                    *NVFP4.parts,
                    Part("svdquant_lora_a", required=True),
                    Part("svdquant_lora_b", required=True),
                ),
                block=(1, 16),
            ),
            experts(FP8_SCALE),
            experts(MXFP8),
            experts(MXFP4),
            # Along the inputs, which come before the outputs; last of all in Megatron's order.
            experts(NVFP4, "parts", (1, 1)),
            experts(NVFP4, columns=(8, 1)),
        ),
        channels=1,
        blocks=4,
    ),
    Recipe("deepseek", ("fp8", "mxfp8"), (FP8_INVERSE,), also=("transformers",)),
    Recipe(
        "deepseek-v4",
        ("fp8",),
        (
            *(
                Layout(
                    scheme,
                    "",
                    formats,
                    (scale_part("scale", OF_POWER, distinct=True),),
                    block=block,
                    parameters=_WEIGHT,
                    storage=storage,
                )
                for scheme, formats, block, storage in (
                    ("fp8_{}", OF_FP8, None, PLAIN),
                    ("mxfp4", OF_I8, (1, 32), Storage(np.int8)),
                )
            ),
        ),
    ),
    Recipe("autofp8", ("fp8",), (FP8_SCALE,)),
    Recipe(
        "mistral",
        ("fp8",),
        (
            Layout(
                "fp8_{}",
                "",
                OF_FP8,
                (
                    scale_part("qscale_weight", distinct=True),
                    Part("qscale_act", ACTIVATION, distinct=True),
                ),
                parameters=_WEIGHT,
                storage=PLAIN,
            ),
        ),
    ),
    Recipe("fbgemm", ("fbgemm_fp8",), (FP8_SCALE,)),
    Recipe(
        "gpt-oss",
        ("mxfp4",),
        tuple(
            Layout(
                "mxfp4",
                f"{mark}blocks",
                OF_U8,
                (scale_part(f"{mark}scales", OF_E8M0, distinct=True),),
                block=(1, 32),
                storage=Storage(np.uint8, split=True),
            )
            for mark in ("_", ".")
        ),
    ),
    Recipe(
        "awq",
        ("awq",),
        (
            Layout(
                "int4_{}",
                "qweight",
                OF_WORD,
                (scale_part("scales"), Part("qzeros", ZERO, OF_WORD, distinct=True)),
                families=("int",),
                columns=(1, 8),
                storage=Storage(
                    np.int32,
                    ("awq",),
                    unsigned=True,
                    zeros="columns",
                    transposed="weight",
                ),
            ),
        ),
        scales="float16",
    ),
    Recipe("gptq", ("gptq",), (GPTQ,), scales="float16"),
    Recipe(
        "bitsandbytes",
        ("bitsandbytes",),
        (
            *(
                Layout(
                    f"bnb_{kind}",
                    "",
                    (),
                    (
                        Part(".absmax", SCALE, (*OF_F32, *OF_U8), required=True, distinct=True),
                        Part(
                            f".quant_state.bitsandbytes__{kind}",
                            OTHER,
                            OF_U8,
                            required=True,
                            distinct=True,
                            use="state",
                        ),
                        *(
                            Part(f".{name}", OTHER, OF_F32, distinct=True, use=use)
                            for name, use in (
                                ("quant_map", "code map"),
                                ("nested_absmax", "nested scale"),
                                ("nested_quant_map", "nested code map"),
                            )
                        ),
                    ),
                    storage=Storage(np.uint8, ("high-first",), flat=True),
                )
                for kind in ("nf4", "fp4")
            ),
            Layout(
                "int8_channel",
                "",
                OF_I8,
                (scale_part("SCB", distinct=True), Part("weight_format", use="marker")),
                parameters=_WEIGHT,
                storage=Storage(after=127.0),
            ),
        ),
        channels=1,
    ),
    Recipe(
        "torchao",
        ("torchao",),
        tuple(
            Layout(
                scheme,
                "_qdata",
                formats,
                (
                    Part("_scale", SCALE),
                    Part("_zero_point", ZERO),
                    Part("_scale_and_zero", SCALE),
                    Part("_group_scale", SCALE),
                    Part("_group_zero", ZERO),
                    Part("_row_scale", SCALE),
                    Part("_per_tensor_scale", GLOBAL, OF_F32),
                    Part("_act_per_tensor_scale", ACTIVATION),
                    Part("_act_pre_scale"),
                ),
                families=families,
                storage=storage,
            )
            for scheme, formats, families, storage in (
                ("fp8_{}", OF_FP8, ("mxfp8",), PLAIN),
                ("int8_{}", OF_I8, ("int",), PLAIN),
                ("", (*OF_U8, *OF_WORD), ("int", "mxfp", "nvfp4"), BYTES_LOW),
            )
        ),
        tiles=True,
    ),
    Recipe(
        "quark",
        ("quark",),
        (
            FP8_SCALE,
            INT8,
            MXFP4,
            replace(MXFP4, scheme="", families=("mxfp6",), columns=(24, 1), storage=None),
            MXFP8,
            Layout("int_{}", "", OF_WORD, INT8.parts),
        ),
    ),
    Recipe(
        "mlx",
        ("mlx",),
        (
            Layout(
                "int_{}",
                "",
                OF_U32,
                (scale_part("scales"), Part("biases", OTHER, OF_REAL, required=True, use="bias")),
                parameters=_WEIGHT,
                storage=Storage(np.uint32, unsigned=True, narrow=True),
            ),
            Layout(
                "",
                "",
                OF_U32,
                (scale_part("scales", OF_U8, distinct=True),),
                families=("mxfp", "nvfp4"),
                parameters=_WEIGHT,
                storage=Storage(np.uint32),
            ),
            Layout(
                "nvfp4",
                "",
                OF_U32,
                (
                    scale_part("scales", OF_U8, distinct=True),
                    Part("global_scale", GLOBAL, OF_F32, required=True),
                ),
                block=(1, 16),
                parameters=_WEIGHT,
                # It stores the largest magnitude, which is 448 * 6 of its unit.
                storage=Storage(np.uint32, global_unit=2688.0, read_only=True),
            ),
        ),
        scales="weight",
    ),
    Recipe(
        "comfy",
        (),
        (
            Layout(
                "fp8_tensor",
                "",
                OF_FP8,
                (scale_part("scale_weight", distinct=True), Part("scale_input", ACTIVATION)),
                parameters=_WEIGHT,
                storage=Storage(inner=True, read_only=True),
            ),
            *(
                replace(
                    layout,
                    parts=(
                        *layout.parts,
                        _MARKER,
                    ),
                    parameters=_WEIGHT,
                )
                for layout in _COMFY
            ),
            Layout(
                "",
                "",
                (*OF_U8, *OF_I8),
                (
                    Part("_scale", SCALE),
                    _MARKER,
                    Part("_s_rel", SCALE),
                    Part("_s_channel", SCALE),
                    Part("_codebook"),
                    Part("_zeros", ZERO),
                    PRE,
                ),
                families=("int",),
                parameters=_WEIGHT,
            ),
            *_COMFY,
        ),
        tiles=True,
    ),
    Recipe(
        "transformer-engine",
        (),
        (
            Layout(
                "fp8_tensor",
                "",
                (*OF_FP8, *OF_U8),
                (Part("/_extra_state", required=True),),
                parameters=_WEIGHT,
            ),
        ),
    ),
    Recipe(
        "keras",
        (),
        (
            *(
                Layout(
                    "int_{}",
                    "",
                    (*OF_U8, *OF_I8),
                    (
                        scale_part("_scale"),
                        Part("_zero", ZERO, (*OF_U8, *OF_I8)),
                        Part("g_idx", OTHER, OF_REAL, use="group index"),
                        Part("awq_scales", OTHER, OF_REAL, use="divisor"),
                    ),
                    parameters=parameters,
                    storage=storage,
                )
                for parameters, storage in (
                    (("kernel",), Storage(np.int8, divides=True, transposed="weight")),
                    (("embeddings",), Storage(np.int8, divides=True)),
                    (("quantized_kernel",), Storage(np.uint8, unsigned=True, transposed="pairs")),
                )
            ),
        ),
        scales="weight",
        channels=1,
    ),
)
"""Every producer whose tensors tell how they are stored; the order decides nothing."""

MODULE_PARAMETERS = (
    "gate_up_proj",
    "gate_proj",
    "up_proj",
    "down_proj",
    *("w1", "w2", "w3", "v1"),
    *("mlp1_weight", "mlp2_weight"),
    *("embeddings", "reverse_embeddings", "kernel"),
)
"""Parameters of which a module may have several, so that one beside a payload is not part of it."""

BIASES = ("bias", "e_score_correction_bias")
"""Names of biases, the second one that of routers, which nothing quantises."""

MARKERS = {"scaled_fp8": "comfy"}
"""Names of tensors that say, whatever else there is, whose a quantised model is."""
