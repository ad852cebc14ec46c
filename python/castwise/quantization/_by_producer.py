"""Decode what one producer alone stores so: gpt-oss, bitsandbytes, ComfyUI."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from castwise._core import decode_blocks, finfo, unswizzle_scales
from castwise.quantization._by_rows import (
    bytes_of_float8,
)
from castwise.quantization._case import (
    E2M1,
    Case,
    Undecodable,
    as_rows,
    json_of,
)
from castwise.quantization._recipes import GLOBAL
from castwise.quantization._slabs import (
    TILE_ROWS,
    Arrays,
    Decoding,
    Part,
    Reshaped,
    WholeTiles,
)

_TILE_COLUMNS = 4


def gpt_oss(case: Case) -> Decoding:
    """Decode gpt-oss' blocks; transformers wants the matrix of each expert transposed."""
    payload, scale = case.payload, case.scale()
    stored = case.shape(payload)
    if len(stored) < 3 or stored[-1] != 16:  # noqa: PLR2004
        raise Undecodable(f"{payload!r} has the shape {stored}, and blocks of 16 bytes end with 16")
    *experts, rows, blocks, _ = stored
    if case.shape(scale) != stored[:-1]:
        raise case.wrong(scale, stored[:-1])
    stack = len(experts)
    options = case.options(
        element=E2M1, bits=4, block=(1, 32), scale_format=case.scale_format(scale)
    )
    if payload.endswith(".blocks"):
        shape: tuple[int, ...] = (*experts, rows, blocks * 32)
        parts = [Part(payload, -3, is_stacked=stack > 0), Part(scale, -2, is_stacked=stack > 0)]

        def decode(arrays: Arrays, out: NDArray[Any]) -> None:
            count = out.shape[0]
            decode_blocks(
                as_rows(arrays[payload], count), as_rows(arrays[scale], count), out, **options
            )

        return case.made(shape, parts, decode, stack=stack)
    if not experts:
        raise Undecodable(f"{payload!r} has the shape {stored}, which is not that of experts")
    parts = [
        Part(payload, -2, Fraction(32), is_stacked=True),
        Part(scale, -1, Fraction(32), is_stacked=True),
    ]

    def decode_transposed(arrays: Arrays, out: NDArray[Any]) -> None:
        decode_blocks(
            as_rows(arrays[payload], rows), as_rows(arrays[scale], rows), out.T, **options
        )

    return case.made((*experts, blocks * 32, rows), parts, decode_transposed, stack=stack, unit=32)


def bitsandbytes(case: Case) -> Decoding:
    """Decode bitsandbytes: int8 with a scale per row, or a map of 16 values in flat blocks."""
    if case.scheme == "int8_channel":
        return _int8_of_bitsandbytes(case)
    return _map_of_bitsandbytes(case)


def _int8_of_bitsandbytes(case: Case) -> Decoding:
    layout = case.part(ending="weight_format")
    if layout is not None and int(case.read(layout).reshape(-1)[0]) != 0:
        raise Undecodable("its rows are reordered for a GPU (weight_format); bitsandbytes reads it")
    payload, scale = case.payload, case.scale()
    rows, columns = case.matrix()
    case.check_grid(scale, (rows,))
    options = case.options(
        element="int8",
        bits=8,
        block=(1, 0),
        global_scale=np.array(127, np.float32),
        global_use="after",
    )

    def decode(arrays: Arrays, out: NDArray[Any]) -> None:
        decode_blocks(arrays[payload], arrays[scale].reshape(-1, 1), out, **options)

    return case.made((rows, columns), [Part(payload, -2), Part(scale, -1)], decode)


def _map_of_bitsandbytes(case: Case) -> Decoding:
    payload, scale = case.payload, case.scale()
    state = _quant_state(case)
    shape, size = _sizes(state.get("shape")), state.get("blocksize")
    kind = case.scheme.removeprefix("bnb_")
    if shape is None or not isinstance(size, int) or size <= 0 or state.get("quant_type") != kind:
        raise Undecodable("its quant_state does not state shape, blocksize and quant_type")
    count = math.prod(shape)
    nbytes = math.prod(case.shape(payload)) * _itemsize(case.format)
    table = case.named(".quant_map")
    if nbytes != -(-count // 2) or size % 2:
        raise Undecodable(
            f"{payload!r} has {nbytes:,} bytes, not those of {count:,} codes in pairs"
        )
    blocks = -(-count // size)
    if math.prod(case.shape(scale)) != blocks:
        raise case.wrong(scale, (blocks,))
    if case.shape(table) != (16,):
        raise case.wrong(table, (16,))
    per_element = Fraction(2 * _itemsize(case.format))
    parts = [Part(payload, -len(case.shape(payload)), per_element), Part(scale, -1, Fraction(size))]
    parts.append(Part(table))
    unit = math.lcm(size, int(per_element))
    nested = case.part(ending=".nested_absmax")
    if (nested is None) == (case.tensors[scale].format == "uint8"):
        raise Undecodable(f"{scale!r} is {case.tensors[scale].format}, and nested scales are uint8")
    scales = partial(_scales_of_blocks, name=scale)
    if nested is not None:
        nested_map = case.named(".nested_quant_map")
        nested_size, offset = state.get("nested_blocksize"), state.get("nested_offset")
        if not isinstance(nested_size, int) or nested_size <= 0 or not isinstance(offset, float):
            raise Undecodable("its quant_state does not state nested_blocksize and nested_offset")
        if case.shape(nested) != (-(-blocks // nested_size),) or case.shape(nested_map) != (256,):
            raise case.wrong(nested, (-(-blocks // nested_size),))
        unit = math.lcm(unit, size * nested_size)
        parts += [Part(nested, -1, Fraction(size * nested_size)), Part(nested_map)]
        scales = partial(
            _nested_scales,
            name=scale,
            nested=nested,
            table=nested_map,
            size=nested_size,
            offset=offset,
        )
    options = case.options(element="map", bits=4, layout="high-first", block=(1, size))

    def decode(arrays: Arrays, out: NDArray[Any]) -> None:
        codes = np.ascontiguousarray(arrays[payload]).reshape(-1).view(np.uint8)
        decode_blocks(
            codes.reshape(1, -1),
            scales(arrays).reshape(1, -1),
            out.reshape(1, -1),
            code_map=np.ascontiguousarray(arrays[table], np.float32),
            **options,
        )

    flat = case.made((count, 1), parts, decode, unit=unit)
    return Reshaped.of(flat, shape)


def _scales_of_blocks(arrays: Arrays, *, name: str) -> NDArray[Any]:
    return arrays[name]


def _nested_scales(
    arrays: Arrays, *, name: str, nested: str, table: str, size: int, offset: float
) -> NDArray[Any]:
    """Decode scales that are quantised themselves, as bitsandbytes does: in steps of float32."""
    outer = np.repeat(arrays[nested], size)[: arrays[name].size]
    product: NDArray[Any] = arrays[table][arrays[name].reshape(-1)] * outer
    return product + np.float32(offset)


def _quant_state(case: Case) -> dict[str, Any]:
    name = case.named(f".quant_state.bitsandbytes__{case.scheme.removeprefix('bnb_')}")
    return json_of(case, name)


def _sizes(value: Any) -> tuple[int, ...] | None:
    if not isinstance(value, list) or not value:
        return None
    if not all(isinstance(one, int) and not isinstance(one, bool) and one >= 0 for one in value):
        return None
    return tuple(value)


def _itemsize(name: str) -> int:
    dtype = finfo(name).dtype
    assert dtype is not None, "it was read"  # noqa: S101
    return int(dtype.itemsize)


_COMFY_PADDING = {"nvfp4": 16, "mxfp8_e4m3": 32}
"""Rows and columns are padded to multiples of so many."""

_COMFY_FORMATS = {
    "float8_e4m3fn": "fp8_tensor",
    "float8_e5m2": "fp8_tensor",
    "nvfp4": "nvfp4",
    "mxfp8": "mxfp8_e4m3",
}


def comfy(case: Case) -> Decoding:
    """Decode ComfyUI's weights: plain float8, or blocks padded to tiles."""
    scheme = case.scheme
    marker = case.part(ending="comfy_quant")
    if marker is not None:
        state = json_of(case, marker)
        form = state.get("format")
        if _COMFY_FORMATS.get(str(form)) != scheme or state.get("convrot"):
            raise Undecodable(f"castwise cannot decode the format {form!r} of ComfyUI yet")
    if scheme == "fp8_tensor":
        return bytes_of_float8(case)
    if scheme not in _COMFY_PADDING:
        raise case.unknown()
    payload, scale, second = case.payload, case.scale(), case.part(GLOBAL)
    padding = _COMFY_PADDING[scheme]
    rows, width = case.matrix()
    per_byte, group = (2, 16) if scheme == "nvfp4" else (1, 32)
    columns = width * per_byte
    if rows % padding or columns % padding:
        raise Undecodable(
            f"{payload!r} has the shape {case.shape(payload)}, which is not padded to {padding}"
        )
    groups = columns // group
    tiles = (-(-rows // TILE_ROWS) * TILE_ROWS, -(-groups // _TILE_COLUMNS) * _TILE_COLUMNS)
    if case.shape(scale) != tiles:
        raise case.wrong(scale, tiles)
    if second is not None and math.prod(case.shape(second)) != 1:
        raise case.wrong(second, "one value")
    shape = (_true_rows(case, padding), columns)
    _check_columns(case, last=0x0F if per_byte > 1 else 0xFF)
    parts = [Part(payload, -2), Part(scale, -2)]
    if second is not None:
        parts.append(Part(second))
    element, bits = (E2M1, 4) if per_byte > 1 else (case.format, 8)
    options = case.options(
        element=element,
        bits=bits,
        block=(1, group),
        layout="high-first" if per_byte > 1 else "dense",
        scale_format=case.scale_format(scale),
    )

    def decode(arrays: Arrays, out: NDArray[Any]) -> None:
        swizzled = arrays[scale].view(np.uint8)
        scales = np.empty((out.shape[0], groups), np.uint8)
        unswizzle_scales(swizzled, scales)
        more: dict[str, Any] = {}
        if second is not None:
            more["global_scale"] = arrays[second].reshape(()).astype(np.float32)
        given = scales.view(arrays[scale].dtype)
        decode_blocks(arrays[payload][: out.shape[0]], given, out, **options, **more)

    decoding = case.made(shape, parts, decode, unit=TILE_ROWS)
    return WholeTiles(*(getattr(decoding, name) for name in Decoding.__slots__))


def _true_rows(case: Case, padding: int) -> int:
    """Return the rows without padding: the bias tells, or the last one is not zeros."""
    rows, width = case.matrix()
    bias = case.tensors.get(case.weight.name.removesuffix("weight") + "bias")
    if bias is not None:
        count = math.prod(bias.shape)
        if -(-count // padding) * padding != rows:
            raise Undecodable(
                f"its bias has {count} elements, and {case.payload!r} has {rows} rows, which are "
                f"multiples of {padding}"
            )
        return count
    last = case.read(case.payload, [(rows - 1, rows), (0, width)])
    if not last.view(np.uint8).any():
        raise Undecodable(
            "its last row is zero, which may be padding, and no bias tells how many rows it has"
        )
    return rows


def _check_columns(case: Case, last: int) -> None:
    """Refuse a weight whose last column may be padding: nothing tells how many columns it has."""
    rows, width = case.matrix()
    for first in range(0, rows, TILE_ROWS):
        ranges = [(first, min(first + TILE_ROWS, rows)), (width - 1, width)]
        if (case.read(case.payload, ranges).view(np.uint8) & last).any():
            return
    raise Undecodable("its last column is zero, which may be padding")
