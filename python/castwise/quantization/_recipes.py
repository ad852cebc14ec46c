"""The recipes: how each producer names, stores and declares quantised weights.

One row per producer. Rows share layouts, because several producers use the same names for different
things: only a configuration, metadata or shapes then tell them apart.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from castwise._core import finfo, formats

SCALE = "scale"
ACTIVATION = "activation"
GLOBAL = "global scale"
ZERO = "zero point"
OTHER = "other"


def _coded(*codes: str) -> tuple[str, ...]:
    """Name the formats that safetensors has these codes for."""
    return tuple(name for name in formats() if finfo(name).safetensors in codes)


_E4M3 = _coded("F8_E4M3")
_FP8 = _coded("F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ")
_F32 = _coded("F32")
_REAL = _coded("F64", "F32", "BF16", "F16")
_U8, _I8 = _coded("U8"), _coded("I8")
_POWER = _coded("F8_E8M0")
_E8M0 = (*_U8, *_POWER)
_WORD = _coded("I32", "U32")
_U32 = _coded("U32")
_WEIGHT = ("weight",)

E4M3, E8M0, U8, I8 = _E4M3[0], _POWER[0], _U8[0], _I8[0]
BF16 = _coded("BF16")[0]
FLOAT8 = frozenset(_FP8)
BYTES = frozenset((*_U8, *_I8))
WIDE = frozenset((*_REAL, *_coded("I64", "BOOL")))
"""Formats in which no method stores codes."""


@dataclass(frozen=True, slots=True)
class Part:
    """A tensor beside a payload, without which the payload cannot be decoded or used.

    Attributes
    ----------
    name
        What is added to the name of the parameter if it begins with "_" or "."; else, without a
        "/" before it, what stands in the place of its last component.
    role
        "scale", "global scale", "zero point", "activation" (a scale of inputs or outputs) or
        "other".
    formats
        The formats that it may have; any if empty.
    required
        Without it the layout is another one, or damaged.
    distinct
        No tensor of another meaning is named so, whatever the parameter is called.
    use
        What decoding does with a part whose role is "other": "bias", "shape", "group index",
        "code map", "state", "divisor", or "nested " before a use; "marker" if it tells how codes
        are stored, "inputs" if it is only for inputs. "" if castwise cannot decode with it.

    """

    name: str
    role: str = OTHER
    formats: tuple[str, ...] = ()
    required: bool = False
    distinct: bool = False
    use: str = ""


@dataclass(frozen=True, slots=True)
class Storage:
    """Where codes and scales lie in the arrays of a layout.

    Attributes
    ----------
    container
        The dtype of the payload; None for the dtype of a code.
    packing
        Where codes lie in their containers, as `castwise.quantization.pack` names it; the variants
        that the layout may have, the one that is written first.
    excess
        Codes and zero points are stored with half their range added.
    unsigned
        Codes are stored without a sign, beside zero points or a bias.
    zeros
        How zero points are stored: "plain", or packed like codes along "rows" or "columns".
    zeros_add
        What is added to a stored zero point, by variant of the layout, the default one first.
    global_use
        What the global scale does to the scale: "multiply" or "divide".
    divides
        The scales of channels and of whole tensors divide.
    grouped
        Schemes of groups are written so, whatever comes before it.
    after
        The product with the scale is divided by this.
    transposed
        "parts" if the payload and its scales are (in, out) and codes lie along in; "weight" if so
        and codes lie along out; "pairs" if they are (out, in) and codes lie along out.
    flat
        The payload is one row of all elements.
    split
        Payloads have an axis for the containers of a block.
    tile
        Rows and columns that a payload is padded to; its scales are in tiles of 128x4.
    fields
        What a block of bytes holds, in order, with its bytes.
    read_only
        Arrays are not written so.
    positive_zero
        Codes of -0 decode to 0.
    narrow
        Products are rounded to the dtype of the target before a bias is added.
    inner
        The dtype in which the producer multiplies is the target's: scales are rounded to it first.

    """

    container: type[np.generic] | None = None
    packing: tuple[str, ...] = ("dense",)
    excess: bool = False
    unsigned: bool = False
    zeros: str = "plain"
    zeros_add: tuple[tuple[str, int], ...] = ()
    global_use: Literal["multiply", "divide"] = "multiply"
    divides: bool = False
    grouped: bool = False
    after: float | None = None
    transposed: str = ""
    flat: bool = False
    split: bool = False
    tile: tuple[int, int] | None = None
    fields: tuple[tuple[str, int], ...] = ()
    read_only: bool = False
    positive_zero: bool = False
    narrow: bool = False
    inner: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """One way to store a quantised weight as several tensors.

    Attributes
    ----------
    scheme
        What is stored; "{}" stands for tensor, channel, group or block. "" if only a configuration
        says it.
    payload
        The tensor with the codes, named as a part is; "" is the parameter itself.
    formats
        The formats that the payload may have; any if empty.
    parts
        The tensors beside it, first the scale or what holds it. One that does must be there.
    families
        How the schemes begin that a configuration may state for it, besides its own.
    block
        The block that is part of the scheme's definition.
    columns
        Elements of the payload's last axis to those of the scale's, where this tells layouts apart.
    parameters
        Last components of the names of parameters stored so; any if empty.
    storage
        How its arrays are read and written; None if they are only recognised.

    """

    scheme: str
    payload: str
    formats: tuple[str, ...]
    parts: tuple[Part, ...]
    families: tuple[str, ...] = ()
    block: tuple[int, ...] | None = None
    columns: tuple[int, int] | None = None
    parameters: tuple[str, ...] = ()
    storage: Storage | None = None


@dataclass(frozen=True, slots=True)
class Recipe:
    """A producer.

    Attributes
    ----------
    name
        What castwise calls it.
    methods
        Its names as `quant_method` of a configuration.
    layouts
        How it stores weights.
    tiles
        True if scales of blocks may be padded to whole tiles of 128x4 and reordered.
    also
        Other producers that write the same layouts.
    scales
        The dtype of scales that are not of 8 bits; "weight" is that of the weight.
    scalar
        The shape of the scale of a whole tensor, and of a global scale.
    channels
        The axes of the scales of channels: (out, 1) or (out,).

    """

    name: str
    methods: tuple[str, ...]
    layouts: tuple[Layout, ...]
    tiles: bool = False
    also: tuple[str, ...] = ()
    scales: str = "float32"
    scalar: tuple[int, ...] = ()
    channels: int = 2


def _scale(name: str, formats: tuple[str, ...] = _REAL, *, distinct: bool = False) -> Part:
    return Part(name, SCALE, formats, required=True, distinct=distinct)


_INPUTS = tuple(
    Part(name, ACTIVATION)
    for name in ("input_scale", "input_zero_point", "output_scale", "activation_scale")
)
_PRE = Part("pre_quant_scale")
_SECOND = Part("_scale_2", GLOBAL, _F32, required=True)

_PLAIN = Storage()
_BYTES_LOW = Storage(np.uint8)

_FP8_SCALE = Layout(
    "fp8_{}",
    "",
    _FP8,
    (_scale("_scale"), *_INPUTS, Part("input_scale_ub", use="inputs"), _PRE),
    storage=_PLAIN,
)
_FP8_INVERSE = Layout(
    "fp8_{}",
    "",
    _FP8,
    (
        _scale("_scale_inv", (*_REAL, *_E8M0), distinct=True),
        *_INPUTS,
        Part("_activation_scale", ACTIVATION, distinct=True),
    ),
    families=("mxfp8",),
    storage=_PLAIN,
)
_MXFP8 = Layout(
    "mxfp8_e4m3",
    "",
    _E4M3,
    (_scale("_scale", _E8M0), *_INPUTS),
    block=(1, 32),
    storage=_PLAIN,
)
_INT8 = Layout(
    "int8_{}",
    "",
    _I8,
    (_scale("_scale"), Part("_zero_point", ZERO), *_INPUTS, _PRE),
    families=("int", "uint"),
    storage=_PLAIN,
)
_NVFP4 = Layout(
    "nvfp4",
    "",
    _U8,
    (_scale("_scale", _E4M3), _SECOND, *_INPUTS, _PRE),
    block=(1, 16),
    storage=Storage(np.uint8, positive_zero=True),
)
_MXFP4 = Layout(
    "mxfp4",
    "",
    _U8,
    (_scale("_scale", _E8M0), *_INPUTS),
    block=(1, 32),
    storage=_BYTES_LOW,
)
_PACKED_WORDS = Layout(
    "int_{}",
    "_packed",
    _WORD,
    (
        _scale("_scale"),
        Part("_shape", required=True, use="shape"),
        Part("_zero_point", ZERO),
        Part("_g_idx", use="group index"),
        *_INPUTS,
    ),
    storage=Storage(np.int32, ("dense", "padded"), excess=True, zeros="rows", grouped=True),
)
_GPTQ = Layout(
    "int_{}",
    "qweight",
    _WORD,
    (
        _scale("scales"),
        Part("qzeros", ZERO, _WORD),
        Part("g_idx", OTHER, _WORD, use="group index"),
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

_COMFY = (
    replace(_FP8_SCALE, storage=Storage(inner=True)),
    replace(_MXFP8, storage=Storage(tile=(32, 32))),
    replace(_NVFP4, storage=Storage(np.uint8, ("high-first",), tile=(16, 16), inner=True)),
    _INT8,
)

RECIPES = (
    Recipe(
        "compressed-tensors",
        ("compressed-tensors", "sparseml"),
        (
            _FP8_SCALE,
            _INT8,
            _MXFP8,
            _PACKED_WORDS,
            Layout(
                "nvfp4",
                "_packed",
                _U8,
                (
                    _scale("_scale", _E4M3),
                    Part("_global_scale", GLOBAL, _F32, required=True),
                    Part("input_global_scale", ACTIVATION),
                ),
                block=(1, 16),
                storage=Storage(np.uint8, global_use="divide"),
            ),
            *(
                Layout(
                    scheme,
                    "_packed",
                    _U8,
                    (_scale("_scale", _E8M0), *_INPUTS),
                    block=(1, 32),
                    columns=columns,
                    storage=_BYTES_LOW,
                )
                for scheme, columns in (("mxfp4", (16, 1)), ("mxfp6_e2m3", (24, 1)))
            ),
            Layout("marlin-24", "_packed", _WORD, (_scale("scale_packed"), Part("meta"))),
        ),
        scales="weight",
        scalar=(1,),
    ),
    Recipe(
        "modelopt",
        ("modelopt",),
        (
            _FP8_SCALE,
            _INT8,
            _MXFP8,
            _NVFP4,
            _MXFP4,
            Layout(
                "int4_{}",
                "",
                _U8,
                (_scale("_scale"), _PRE, Part("_scale_2", GLOBAL), *_INPUTS),
                storage=Storage(np.uint8, transposed="pairs"),
            ),
            Layout(
                "nvfp4",
                "",
                _U8,
                (
                    *_NVFP4.parts,
                    Part("svdquant_lora_a", required=True),
                    Part("svdquant_lora_b", required=True),
                ),
                block=(1, 16),
            ),
        ),
        channels=1,
    ),
    Recipe("deepseek", ("fp8", "mxfp8"), (_FP8_INVERSE,), also=("transformers",)),
    Recipe(
        "deepseek-v4",
        ("fp8",),
        (
            *(
                Layout(
                    scheme,
                    "",
                    formats,
                    (_scale("scale", _POWER),),
                    block=block,
                    parameters=_WEIGHT,
                    storage=storage,
                )
                for scheme, formats, block, storage in (
                    ("fp8_{}", _FP8, None, _PLAIN),
                    ("mxfp4", _I8, (1, 32), Storage(np.int8)),
                )
            ),
        ),
    ),
    Recipe("autofp8", ("fp8",), (_FP8_SCALE,)),
    Recipe(
        "mistral",
        ("fp8",),
        (
            Layout(
                "fp8_{}",
                "",
                _FP8,
                (_scale("qscale_weight", distinct=True), Part("qscale_act", ACTIVATION)),
                parameters=_WEIGHT,
                storage=_PLAIN,
            ),
        ),
    ),
    Recipe("fbgemm", ("fbgemm_fp8",), (_FP8_SCALE,)),
    Recipe(
        "gpt-oss",
        ("mxfp4",),
        tuple(
            Layout(
                "mxfp4",
                f"{mark}blocks",
                _U8,
                (_scale(f"{mark}scales", _E8M0),),
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
                _WORD,
                (_scale("scales"), Part("qzeros", ZERO, _WORD)),
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
    Recipe("gptq", ("gptq",), (_GPTQ,), scales="float16"),
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
                        Part(".absmax", SCALE, required=True, distinct=True),
                        Part(
                            f".quant_state.bitsandbytes__{kind}",
                            required=True,
                            distinct=True,
                            use="state",
                        ),
                        Part(".quant_map", distinct=True, use="code map"),
                        Part(".nested_absmax", distinct=True, use="nested scale"),
                        Part(".nested_quant_map", distinct=True, use="nested code map"),
                    ),
                    storage=Storage(np.uint8, ("high-first",), flat=True),
                )
                for kind in ("nf4", "fp4")
            ),
            Layout(
                "int8_channel",
                "",
                _I8,
                (_scale("SCB"), Part("weight_format", use="marker")),
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
                    Part("_per_tensor_scale", GLOBAL),
                    Part("_act_per_tensor_scale", ACTIVATION),
                    Part("_act_pre_scale"),
                ),
                families=families,
                storage=storage,
            )
            for scheme, formats, families, storage in (
                ("fp8_{}", _FP8, ("mxfp8",), _PLAIN),
                ("int8_{}", _I8, ("int",), _PLAIN),
                ("", (*_U8, *_WORD), ("int", "mxfp", "nvfp4"), _BYTES_LOW),
            )
        ),
        tiles=True,
    ),
    Recipe(
        "quark",
        ("quark",),
        (_FP8_SCALE, _INT8, _MXFP4, _MXFP8, Layout("int_{}", "", _WORD, _INT8.parts)),
    ),
    Recipe(
        "mlx",
        ("mlx",),
        (
            Layout(
                "int_{}",
                "",
                _U32,
                (_scale("scales"), Part("biases", required=True, use="bias")),
                parameters=_WEIGHT,
                storage=Storage(np.uint32, unsigned=True, narrow=True),
            ),
            Layout(
                "",
                "",
                _U32,
                (_scale("scales", _U8),),
                families=("mxfp", "nvfp4"),
                parameters=_WEIGHT,
                storage=Storage(np.uint32),
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
                _FP8,
                (_scale("scale_weight", distinct=True), Part("scale_input", ACTIVATION)),
                parameters=_WEIGHT,
                storage=Storage(inner=True, read_only=True),
            ),
            *(
                replace(
                    layout,
                    parts=(
                        *layout.parts,
                        Part("comfy_quant", required=True, distinct=True, use="marker"),
                    ),
                    parameters=_WEIGHT,
                )
                for layout in _COMFY
            ),
            Layout(
                "",
                "",
                (*_U8, *_I8),
                (
                    Part("_scale", SCALE),
                    Part("comfy_quant", required=True, distinct=True, use="marker"),
                    Part("_s_rel", SCALE),
                    Part("_s_channel", SCALE),
                    Part("_codebook"),
                    Part("_zeros", ZERO),
                    _PRE,
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
                (*_FP8, *_U8),
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
                    (*_U8, *_I8),
                    (
                        _scale("_scale"),
                        Part("_zero", ZERO),
                        Part("g_idx", use="group index"),
                        Part("awq_scales", use="divisor"),
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

GGUF = Recipe(
    "gguf",
    (),
    tuple(
        Layout(scheme, "blocks", _U8, (), block=block, storage=storage)
        for scheme, block, storage in (
            ("int8_group", (1, 32), Storage(fields=(("scale", 2), ("data", 32)))),
            *(
                (
                    f"int{bits}_group",
                    (1, 32),
                    Storage(
                        np.uint8,
                        ("halves-32",),
                        excess=not bias,
                        unsigned=bool(bias),
                        read_only=True,
                        fields=(("scale", 2), *bias, *high, ("data", 16)),
                    ),
                )
                for bits, high in ((4, ()), (5, (("high", 4),)))
                for bias in ((), (("bias", 2),))
            ),
            (
                "mxfp4",
                (1, 32),
                Storage(np.uint8, ("halves-32",), fields=(("scale", 1), ("data", 16))),
            ),
            (
                "nvfp4",
                (1, 16),
                Storage(
                    np.uint8,
                    ("halves-16",),
                    fields=(("scale", 4), ("data", 32)),
                    read_only=True,
                ),
            ),
        )
    ),
    scales="float16",
)
"""Whose files state the scheme of each tensor, and whose tensors are single parts."""

MODEL_TENSORS = (
    "k_scale",
    "v_scale",
    "q_scale",
    "kv_scale",
    "prob_output_scale",
    "scaled_fp8",
)
"""Names, in a quantised model, of the scales of attention and of markers, which have no payload."""
