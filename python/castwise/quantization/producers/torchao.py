"""torchao: tensors of its classes, described in metadata of safetensors files."""

import json
from collections.abc import Mapping
from typing import Any

from castwise._numbers import BYTE_BITS
from castwise.quantization.producers.layouts import (
    ACTIVATION,
    BYTES_LOW,
    FLOAT8,
    GLOBAL,
    I8,
    MATRIX,
    OF_F32,
    OF_FP8,
    OF_I8,
    OF_REAL,
    OF_U8,
    OF_WORD,
    PLAIN,
    SCALE,
    TILE,
    U8,
    ZERO,
    Layout,
    Part,
    padded_shape,
    without_ones,
)
from castwise.quantization.producers.producer import Configuration, Producer
from castwise.quantization.producers.schemes import schemes
from castwise.quantization.producers.stated import (
    Describe,
    Stated,
    group_block,
    no_statements,
    object_at,
    pair_of_sizes,
    parsed_object,
)
from castwise.quantization.producers.stored_weight import (
    GRANULARITY,
    StoredWeight,
    Undecodable,
    WeightForm,
    matrices,
)

_NAME = "torchao"

_ELEMENTS = {
    "Float8Tensor": "fp8",
    "Int8Tensor": "int8",
    "IntxUnpackedToInt8Tensor": "int8",
    "Int4Tensor": "int4",
    "NVFP4Tensor": "nvfp4",
}

# The schemes of torchao's `MXTensor`, by what it calls its elements.
_MX_SCHEMES = {
    "float4_e2m1fn_x2": "mxfp4",
    "fp6_e2m3": "mxfp6_e2m3",
    "fp6_e3m2": "mxfp6_e3m2",
    "float8_e4m3fn": "mxfp8_e4m3",
    "float8_e5m2": "mxfp8_e5m2",
}

# The classes of tensors that are decoded.
_CLASSES = ("Float8Tensor", "Int8Tensor", "IntxUnpackedToInt8Tensor")

# Those in blocks of rows, with their parts.
_PARTS_OF_BLOCKS = {
    "MXTensor": frozenset(("qdata", "scale")),
    "NVFP4Tensor": frozenset(("qdata", "scale", "per_tensor_scale", "act_per_tensor_scale")),
}

_PARTS = frozenset(("qdata", "scale", "zero_point"))
_METADATA_KEY = "tensor_names"


def _described_tensors(metadata: Mapping[str, str]) -> list[str]:
    """Name the tensors that metadata of torchao describe, each under its own name."""
    try:
        names = json.loads(metadata.get(_METADATA_KEY, "[]"))
    except (ValueError, RecursionError):
        return []
    return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []


def _dtype(value: object) -> object:
    """Return the name of a dtype as torchao states it: torch's in an object, others by name."""
    return value.get("_data") if isinstance(value, dict) else value


def _read(metadata: Mapping[str, str]) -> Describe:
    def describe(module: str, payload: str | None) -> Stated:
        entry = parsed_object(metadata.get(f"{module}.weight"))
        data = object_at(entry, "_data")
        block = data.get("block_size")
        if entry.get("_type") == "MXTensor":
            return Stated(_MX_SCHEMES.get(str(_dtype(data.get("elem_dtype")))), group_block(block))
        element = _ELEMENTS.get(str(entry.get("_type")))
        if element == "nvfp4":
            return Stated(element, (1, 16))
        return Stated(f"{element}_" + "{}" if element else None, pair_of_sizes(block))

    return describe


def _rule(case: StoredWeight) -> WeightForm:
    """Describe one code per byte, as the metadata of torchao's safetensors files state it."""
    entry = parsed_object(case.section.get(case.weight.name))
    kind, data, names = (entry.get(key) for key in ("_type", "_data", "_tensor_data_names"))
    if not isinstance(data, dict) or not isinstance(names, list):
        raise Undecodable(
            f"no metadata state {case.weight.name!r}, so its block is not known; torchao reads it"
        )
    if kind not in (*_CLASSES, *_PARTS_OF_BLOCKS):
        raise Undecodable(f"castwise cannot decode torchao's {kind} yet; torchao reads it")
    prefix = case.payload.removesuffix("qdata")
    part_names = {prefix + str(name) for name in names}
    stored_names = {case.payload, *case.weight.parts}
    if part_names != stored_names:
        raise Undecodable(
            f"its metadata state {', '.join(sorted(part_names))}, and there are "
            f"{', '.join(sorted(stored_names))}; save it with torchao again"
        )
    usable = _PARTS if kind in _CLASSES else _PARTS_OF_BLOCKS[kind]
    if rest := sorted({str(name) for name in names} - usable):
        raise Undecodable(f"castwise cannot decode with its {rest[0]} yet; torchao reads it")
    if kind in _PARTS_OF_BLOCKS:
        return _blocks(case, kind, data)
    element = "fp8" if case.format in FLOAT8 else I8
    if (element == "fp8") != (kind == "Float8Tensor") or case.format not in (*FLOAT8, I8):
        raise Undecodable(f"its metadata state {kind}, and {case.payload!r} is {case.format}")
    block = _block(case, data.get("block_size"))
    several = "block" if element == "fp8" else "group"
    shape = case.shape(case.payload)
    return WeightForm(f"{element}_{GRANULARITY.get(block, several)}", block, shape)


def _blocks(case: StoredWeight, kind: str, data: Mapping[str, Any]) -> WeightForm:
    """Describe float4 and float8 in blocks of rows, whose scales may be in tiles."""
    element, size = _dtype(data.get("elem_dtype")), data.get("block_size")
    scheme = "nvfp4" if kind == "NVFP4Tensor" else _MX_SCHEMES.get(str(element), "")
    is_tiled = data.get("is_swizzled_scales", False)
    row = next((known_row for known_row in schemes() if known_row.name == scheme), None)
    if row is None:
        raise Undecodable(f"castwise cannot decode torchao's {kind} of {element} yet")
    if size != row.block[1] or not isinstance(is_tiled, bool):
        raise Undecodable(
            f"its metadata state block_size={size!r} and is_swizzled_scales={is_tiled!r}; blocks "
            f"of {scheme} are of {row.block[1]}, and the other is true or false"
        )
    payload = row.element if row.bits == BYTE_BITS else U8
    loose = row.bits if row.bits not in (4, BYTE_BITS) else None
    for name, expected_format in ((case.payload, payload), (case.scale(), row.scale)):
        if case.tensors[name].format != expected_format:
            raise Undecodable(
                f"{name!r} is {case.tensors[name].format}, and torchao's {kind} of {scheme} "
                f"has {expected_format}"
            )
    *stack, rows, width = matrices(case)
    columns = width if loose else case.whole(row.bits, width, BYTE_BITS)
    grid = *stack, rows, columns // size
    if is_tiled:  # 128x4 of scales as 32x16
        high, wide = padded_shape((rows, grid[-1]), TILE)
        grid = *stack, high // 4, wide * 4
    if columns % size or case.shape(case.scale()) != grid:
        raise case.wrong(case.scale(), f"the shape {grid}")
    if is_tiled and stack and rows % TILE[0]:
        raise Undecodable(
            f"{case.scale()!r} has tiles of {TILE[0]} rows, and {case.payload!r} matrices of {rows}"
        )
    return WeightForm(scheme, row.block, (*stack, rows, columns), has_tiles=is_tiled, loose=loose)


def _block(case: StoredWeight, block_size: object) -> tuple[int, int]:
    """Return the block of a matrix, or of one of a stack; refuse parts of another shape."""
    shape, sizes = case.shape(case.payload), block_size if isinstance(block_size, list) else []
    are_sizes = all(type(size) is int and size > 0 for size in sizes)
    if len(shape) < MATRIX or len(sizes) != len(shape) or not are_sizes:
        raise Undecodable(f"its metadata state block_size={block_size!r} of the shape {shape}")
    *outer, rows, columns = sizes
    if any(count % size for count, size in zip(shape, sizes, strict=True)) or {*outer} - {1}:
        raise Undecodable(
            f"its blocks of {sizes} do not divide the shape {shape}, or hold several matrices"
        )
    grid = tuple(count // size for count, size in zip(shape, sizes, strict=True))
    for name, role in case.weight.parts.items():
        formats = (I8,) if role == ZERO else OF_REAL[1:]
        if case.tensors[name].format not in formats:
            raise Undecodable(
                f"{name!r} is {case.tensors[name].format}, and torchao's is {' or '.join(formats)}"
            )
        if without_ones(case.shape(name)) != without_ones(grid):
            raise case.wrong(name, f"the shape {grid}")
    if (rows, columns) == shape[-MATRIX:]:
        return 0, 0
    return rows, 0 if (rows, columns) == (1, shape[-1]) else columns


TORCHAO = Producer(
    _NAME,
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
    rule=_rule,
    needs_metadata=True,
    configuration=Configuration(
        {_NAME: no_statements},
        metadata_key=_METADATA_KEY,
        metadata_reader=_read,
        described_tensors=_described_tensors,
    ),
)
