"""Decode payloads whose rows are those of the plain weight: bytes, and codes in bytes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from castwise._core import decode_blocks
from castwise.quantization._case import (
    BYTE_BITS,
    E2M1,
    MATRIX,
    Case,
    Undecodable,
    as_rows,
    grid_of,
)
from castwise.quantization._recipes import GLOBAL, ZERO
from castwise.quantization._slabs import (
    Arrays,
    Decoding,
    Part,
)


def _rows_decoding(case: Case, shape: tuple[int, ...], **options: Any) -> Decoding:
    """Decode a payload whose rows are those of the plain weight, of this shape."""
    payload, scale = case.payload, case.scale()
    block, stored = case.block(), case.shape(scale)
    second = case.part(GLOBAL)
    zero = case.part(ZERO)
    total = math.prod(stored)
    stack = 0
    if total == 1 and block == (0, 0):
        # One scale for all, so that any number of axes is as good as two.
        rows, columns = shape[0] if shape else 1, math.prod(shape[1:])
    else:
        stack = max(len(shape) - MATRIX, 0)
        if len(shape) < MATRIX:
            raise case.wrong(scale, "one scale")
        rows, columns = shape[stack], shape[stack + 1]
    experts = shape[:stack]
    case.check_whole_groups(columns, block[1])
    grid = grid_of(rows, columns, block)
    _check_scales(case, [one for one in (scale, zero) if one is not None], experts, grid, block)
    by_rows = grid[0] > 1
    unit = block[0] if block[0] > 1 else 1

    def along(name: str) -> Part:
        axes = len(case.shape(name))
        is_stacked = stack > 0 and math.prod(case.shape(name)) > 1
        if not by_rows:
            return Part(name, None, is_stacked=is_stacked)
        axis = -1 if axes == stack + 1 else -2
        return Part(name, axis, Fraction(block[0]), is_stacked)

    parts = [
        Part(payload, stack - len(case.shape(payload)) if shape else None, is_stacked=stack > 0)
    ]
    parts.append(along(scale))
    if zero is not None:
        parts.append(along(zero))
    if second is not None:
        count = math.prod(case.shape(second))
        if count not in (1, math.prod(experts)):
            raise case.wrong(second, "one value")
        parts.append(Part(second, is_stacked=count > 1))
    given = case.options(scale_format=case.scale_format(scale), **options)

    def decode(arrays: Arrays, out: NDArray[Any]) -> None:
        count = out.shape[0]
        blocks = grid_of(count, columns, block)
        more = dict(given)
        if zero is not None:
            more["zero_point"] = arrays[zero].reshape(blocks)
        if second is not None:
            more["global_scale"] = arrays[second].reshape(()).astype(np.float32)
        decode_blocks(
            as_rows(arrays[payload], count), arrays[scale].reshape(blocks), out, block=block, **more
        )

    return case.made(shape, parts, decode, stack=stack, unit=unit)


def _check_scales(
    case: Case,
    names: Sequence[str],
    experts: tuple[int, ...],
    grid: tuple[int, int],
    block: tuple[int, int],
) -> None:
    """Refuse scales and zero points that are not one for each block."""
    allowed = {(*experts, *grid)}
    if block[1] == 0:
        allowed.add((*experts, grid[0]))
    if block == (0, 0):
        allowed |= {experts, (*experts, 1)}
    for name in names:
        found = case.shape(name)
        is_one = math.prod(found) == 1 == math.prod((*experts, *grid))
        if found not in allowed and not is_one:
            raise case.wrong(name, (*experts, *grid))


def bytes_of_float8(case: Case) -> Decoding:
    """Decode one float8 per byte."""
    if not case.scheme.startswith(("fp8", "mxfp8_")):
        raise case.unknown()
    shape = case.shape(case.payload)
    return _rows_decoding(case, shape, element=case.format, bits=8)


def bytes_of_int8(case: Case) -> Decoding:
    """Decode one integer per byte."""
    if case.scheme == "mxfp4":
        return packed_floats(case)
    if not case.scheme.startswith("int"):
        raise case.unknown()
    shape = case.shape(case.payload)
    return _rows_decoding(case, shape, element="int8", bits=8)


FLOAT_CODES = {
    "nvfp4": (E2M1, 4),
    "mxfp4": (E2M1, 4),
    "mxfp6_e2m3": ("float6_e2m3fn", 6),
}


def packed_floats(case: Case) -> Decoding:
    """Decode codes of less than a byte, in bytes, the first in the lowest bits."""
    element, bits = FLOAT_CODES[case.scheme]
    *first, width = case.shape(case.payload)
    if width * BYTE_BITS % bits:
        raise Undecodable(f"rows of {width} bytes do not end with a code of {bits} bits")
    second = case.part(GLOBAL)
    if case.scheme == "nvfp4" and second is None:
        raise Undecodable("it has no global scale")
    divides = second is not None and second.endswith("_global_scale")
    return _rows_decoding(
        case,
        (*first, width * BYTE_BITS // bits),
        element=element,
        bits=bits,
        global_use="divide" if divides else "multiply",
    )
