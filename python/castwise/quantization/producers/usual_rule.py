"""What a weight is whose producer stores it as most do: from formats, shapes and statements."""

from __future__ import annotations

import math

from castwise.quantization.producers.geometry import MATRIX
from castwise.quantization.producers.layouts import FLOAT8, I8, OF_E8M0, U8
from castwise.quantization.producers.schemes import schemes
from castwise.quantization.producers.stored_weight import StoredWeight, Undecodable, WeightForm

_BYTE = 8

FLOAT_BITS = {
    row.name: row.bits for row in schemes() if row.element.startswith("float") and row.bits < _BYTE
}

GRANULARITY = {(0, 0): "tensor", (1, 0): "channel"}


def usual(case: StoredWeight) -> WeightForm:
    """Describe codes in bytes whose rows are those of the plain weight, and integers in words."""
    tail, scheme = case.payload.rpartition(".")[2], case.scheme
    if tail == "qweight" or not case.weight.recipes:
        raise case.unknown()
    if case.format in FLOAT8:
        return _bytes(case, _of_float8(case))
    if tail.endswith("_packed") and "32" in case.format:
        return _words(case)
    if scheme in FLOAT_BITS:
        axis = _axis_of_codes(case)
        case.whole(FLOAT_BITS[scheme], case.length(axis), 8)
        return WeightForm(scheme, case.block(), axis=axis)
    if case.format == I8 and scheme.startswith("int"):
        return _bytes(case, "int8_{}")
    if case.format == U8 and scheme.startswith("int4_"):
        return WeightForm(scheme, case.block())
    raise case.unknown()


def _axis_of_codes(case: StoredWeight) -> int:
    """Return the axis that codes are packed along: their scales are fewer along it."""
    payload, scale = case.shape(case.payload), case.shape(case.scale())
    across = len(payload) > MATRIX and len(scale) == len(payload) and scale[-1] == payload[-1]
    return -2 if across else -1


def _of_float8(case: StoredWeight) -> str:
    """Return the scheme of one float8 per byte; "{}" stands for what shares a scale."""
    if case.scheme.startswith("mxfp8_") and case.tensors[case.scale()].format in OF_E8M0:
        names = [
            row.name for row in schemes() if row.element == case.format and row.name[:2] == "mx"
        ]
        if names:
            return names[0]
    if not case.scheme.startswith(("fp8", "mxfp8_")):
        raise case.unknown()
    return "fp8_{}"


def _bytes(case: StoredWeight, scheme: str) -> WeightForm:
    """Describe one code per byte."""
    block, shape = case.block(), case.shape(case.payload)
    kind = GRANULARITY.get(block, "block" if scheme[0] == "f" else "group")
    if block == (0, 0) and len(shape) != MATRIX and math.prod(case.shape(case.scale())) == 1:
        # One scale for all, so that any number of axes is as good as two.
        matrix = (shape[0] if shape else 1, math.prod(shape[1:]))
        return WeightForm(scheme.format(kind), block, matrix, plain=shape)
    if len(shape) < MATRIX:
        raise case.wrong(case.scale(), "one scale")
    return WeightForm(scheme.format(kind), block, shape)


def _words(case: StoredWeight) -> WeightForm:
    """Describe compressed-tensors' integers in words of 32 bits."""
    bits, block = case.bits(), case.block()
    name = case.require_part("_shape")
    shape = [int(n) for n in case.lazy(name)[...].reshape(-1)]
    if len(shape) < MATRIX:
        raise Undecodable(f"{name!r} has {len(shape)} numbers, which is not the shape of a matrix")
    if 0 in block and (case.part("_g_idx") is not None or block == (0, 0)):
        block = (block[0] or shape[-2], shape[-1])
    return WeightForm(f"int{bits}_{'channel' if block == (1, 0) else 'group'}", block)


def matrices(case: StoredWeight) -> tuple[int, ...]:
    """Return the shape of a matrix, or of the matrices of experts, all of one shape."""
    shape = case.shape(case.payload)
    return shape if len(shape) == MATRIX + 1 else case.matrix()
