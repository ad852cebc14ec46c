"""ComfyUI: float8, and blocks padded to tiles, each weight beside a tensor that names its form."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from castwise.quantization.producers.layouts import (
    ACTIVATION,
    FP8_SCALE,
    INT8,
    MATRIX,
    MXFP8,
    NVFP4,
    OF_FP8,
    OF_I8,
    OF_U8,
    PRE,
    SCALE,
    TILE,
    ZERO,
    Layout,
    Part,
    Storage,
    ceil_div,
    padded_shape,
    scale_part,
)
from castwise.quantization.producers.names import Described
from castwise.quantization.producers.producer import (
    Configuration,
    Marker,
    Producer,
    Statements,
    Transcoding,
    Writing,
    Written,
    same_schemes,
)
from castwise.quantization.producers.schemes import Scheme
from castwise.quantization.producers.stated import (
    Describe,
    Stated,
    Stored,
    json_of,
    object_at,
    parsed_object,
    unknown_key,
)
from castwise.quantization.producers.stored_weight import (
    FLOAT_BITS,
    StoredWeight,
    Undecodable,
    WeightForm,
    matrices,
    usual,
)

_NAME = "comfy"
_TILE_ROWS = TILE[0]

# Rows and columns are padded to multiples of so many.
_PADDING = {"nvfp4": 16, "mxfp8_e4m3": 32}


def _tile(scheme: str) -> tuple[int, int]:
    return _PADDING[scheme], _PADDING[scheme]


# Under which converters for ComfyUI state the shape without padding.
_SHAPE_KEY = "orig_shape"

# Of `convrot` the value decides: rotated codes are refused.
_KEYS = frozenset(
    (
        "format",
        "full_precision_matrix_mult",
        "num_experts",
        "group_size",
        "orig_dtype",
        _SHAPE_KEY,
        "convrot",
        "convrot_groupsize",
    )
)

# The schemes that ComfyUI names as formats of layers.
_SCHEMES = {
    "fp8": "fp8_tensor",  # as ModelOpt writes it for ComfyUI
    "float8_e4m3fn": "fp8_tensor",
    "float8_e5m2": "fp8_tensor",
    "nvfp4": "nvfp4",
    "mxfp8": "mxfp8_e4m3",
    "int8_tensorwise": "int8_tensor",
    "awq_w4a16": "int4_group",
}

_MARKER = Part("comfy_quant", formats=OF_U8, is_required=True, distinct=True, use="marker")

_LAYOUTS = (
    replace(FP8_SCALE, storage=Storage(inner=True)),
    replace(MXFP8, storage=Storage(tile=_tile("mxfp8_e4m3"))),
    replace(NVFP4, storage=Storage(np.uint8, ("high-first",), tile=_tile("nvfp4"), inner=True)),
    INT8,
)

_WRITTEN = (
    Written("fp8_tensor", inputs=""),
    *(Written(scheme, tile=_tile(scheme), step=_TILE_ROWS, inputs="") for scheme in _PADDING),
)


def _read(layers: Mapping[str, Any]) -> Describe:
    def describe(module: str, payload: str | None) -> Stated:
        entry = object_at(layers, module)
        name, problem = entry.get("format"), unknown_key(entry, _KEYS)
        if entry.get("convrot"):
            problem = "states convrot of it, so that its codes are rotated; ComfyUI reads it"
        return Stated(_SCHEMES.get(name) if isinstance(name, str) else None, problem=problem)

    return describe


_METADATA_KEY = "_quantization_metadata"


def _metadata_section(metadata: Mapping[str, str]) -> Mapping[str, Any] | None:
    layers = parsed_object(metadata.get(_METADATA_KEY)).get("layers")
    return layers if isinstance(layers, dict) else None


def _mark(scheme: Scheme) -> Mapping[str, Any]:
    codes = {"fp8_tensor": scheme.element, "mxfp8_e4m3": "mxfp8", "int8_tensor": "int8_tensorwise"}
    return {"format": codes.get(scheme.name, scheme.name)}


def _read_marker(name: str, array: Stored) -> str:
    state = json_of(name, array)
    form = state.get("format")
    scheme = _SCHEMES.get(form) if isinstance(form, str) else None
    if scheme is None or state.get("convrot"):
        raise ValueError(
            f"castwise cannot decode the format {form!r} of ComfyUI yet, which {name!r} names."
        )
    return scheme


def _rule(case: StoredWeight) -> WeightForm:
    """Describe ComfyUI's weights: plain float8, or blocks padded to tiles."""
    scheme, marker = case.scheme, case.part("comfy_quant")
    module = case.payload.removesuffix(".weight")
    state = object_at(case.section, module)
    if marker is not None:
        state = case.json(marker)
        if (unknown := unknown_key(state, _KEYS)) is not None:
            raise Undecodable(f"{marker!r} {unknown}; ComfyUI reads it")
        experts, shape = state.get("num_experts"), case.shape(case.payload)
        if experts is not None and (len(shape) != MATRIX + 1 or shape[0] != experts):
            raise Undecodable(
                f"{marker!r} states num_experts={experts!r}, and {case.payload!r} has the shape "
                f"{shape}"
            )
    if scheme == "fp8_tensor":
        return usual(case)
    if scheme not in _PADDING:
        raise case.unknown()
    padding, (*experts, rows, width) = _PADDING[scheme], matrices(case)
    columns = width * 8 // FLOAT_BITS.get(scheme, 8)
    if rows % padding or columns % padding:
        raise Undecodable(
            f"{case.payload!r} has the shape {case.shape(case.payload)}, which is not padded to "
            f"{padding}"
        )
    if (stated_shape := state.get(_SHAPE_KEY)) is not None:
        _check_shape(case, stated_shape, (*experts, rows, columns))
        return WeightForm(scheme, case.block(), tuple(stated_shape))
    true_shape = (*experts, _true_rows(case, padding), columns)
    _check_columns(case, last=0x0F if columns > width else 0xFF)
    return WeightForm(scheme, case.block(), true_shape)


def _check_shape(case: StoredWeight, shape: object, payload_shape: tuple[int, ...]) -> None:
    """Refuse a shape without padding that is not that of the payload, or of the bias."""
    lengths = shape if isinstance(shape, list) else []
    padding = _PADDING[case.scheme]
    counts = [count if type(count) is int and count > 0 else 0 for count in lengths]
    multiples = [1] * len(counts[:-MATRIX]) + [padding] * len(counts[-MATRIX:])
    if padded_shape(counts, multiples) != payload_shape:
        raise Undecodable(
            f"{_SHAPE_KEY}={shape!r} is stated of {case.payload!r}, which has the shape "
            f"{payload_shape}, padded to {padding}"
        )
    bias = _bias(case)
    if bias is not None and bias.shape[-1:] != (counts[-MATRIX],):
        raise Undecodable(
            f"{_SHAPE_KEY}={shape!r} is stated of {case.payload!r}, and its bias has the shape "
            f"{bias.shape}"
        )


def _bias(case: StoredWeight) -> Described | None:
    return case.tensors.get(case.weight.name.removesuffix("weight") + "bias")


def _true_rows(case: StoredWeight, padding: int) -> int:
    """Return the rows without padding: the bias tells, or some last row is not zeros."""
    *experts, rows, _ = matrices(case)
    bias = _bias(case)
    if bias is not None:
        if experts and bias.shape[:-1] != (*experts,):
            raise case.wrong(bias.name, f"({experts[0]}, rows)")
        count = bias.shape[-1] if experts else math.prod(bias.shape)
        if ceil_div(count, padding) * padding != rows:
            raise Undecodable(
                f"its bias has {count} elements, and {case.payload!r} has {rows} rows, which are "
                f"multiples of {padding}"
            )
        return count
    payload = case.lazy(case.payload)
    lasts = (payload[*place, rows - 1] for place in np.ndindex(*experts) if rows)
    if not any(row.view(np.uint8).any() for row in lasts):
        raise Undecodable(
            "its last row is zero, which may be padding, and no bias tells how many rows it has"
        )
    return rows


def _check_columns(case: StoredWeight, last: int) -> None:
    """Refuse a weight whose last column may be padding: nothing tells how many columns it has."""
    payload, (*experts, rows, width) = case.lazy(case.payload), matrices(case)
    for place in np.ndindex(*experts):
        for start in range(0, rows, _TILE_ROWS):
            column = payload[*place, start : start + _TILE_ROWS, width - 1 : width]
            if (column.view(np.uint8) & last).any():
                return
    raise Undecodable("its last column is zero, which may be padding")


_FORMS = same_schemes("nvfp4", "mxfp8_e4m3", "fp8_tensor")

COMFY = Producer(
    _NAME,
    (
        Layout(
            "fp8_tensor",
            "",
            OF_FP8,
            (scale_part("scale_weight", distinct=True), Part("scale_input", ACTIVATION)),
            parameters=("weight",),
            storage=Storage(inner=True, read_only=True),
        ),
        *(
            replace(layout, parts=(*layout.parts, _MARKER), parameters=("weight",))
            for layout in _LAYOUTS
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
            parameters=("weight",),
        ),
        *_LAYOUTS,
    ),
    tiles=True,
    rule=_rule,
    model_marker="scaled_fp8",
    is_evident=True,
    configuration=Configuration(
        metadata_key=_METADATA_KEY, metadata_section=_metadata_section, metadata_reader=_read
    ),
    # Every weight states it for itself, in a tensor.
    writing=Writing(rows=_WRITTEN, write=lambda _: Statements(), states_several=True),
    transcoding=Transcoding(forms_from=_FORMS, forms_to=_FORMS, is_fused=False),
    marker=Marker(formats=_SCHEMES, state=_mark, read=_read_marker, shape_key=_SHAPE_KEY),
)
