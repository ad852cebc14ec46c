"""Decode integers that are packed into words of 32 bits."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from castwise._core import decode_blocks, unpack_codes
from castwise.quantization._by_rows import (
    FLOAT_CODES,
)
from castwise.quantization._case import (
    BYTE_BITS,
    MATRIX,
    WORD_BITS,
    Case,
    Undecodable,
    as_rows,
    grid_of,
)
from castwise.quantization._recipes import E4M3, E8M0, U8, ZERO
from castwise.quantization._slabs import (
    Arrays,
    Decoding,
    Part,
)


def packed_words(case: Case) -> Decoding:
    """Decode compressed-tensors' integers in words of 32 bits."""
    if case.scheme.startswith("marlin"):
        raise case.unknown()
    payload, scale = case.payload, case.scale()
    bits = _bits(case)
    shape = _stated_shape(case)
    *experts, rows, columns = shape
    stack = len(experts)
    width = case.shape(payload)[-1]
    layout = _layout(bits, columns, width)
    if layout is None or case.shape(payload)[:-1] != (*experts, rows):
        raise Undecodable(
            f"{payload!r} has the shape {case.shape(payload)}, into which {bits}-bit codes of the "
            f"shape {shape} do not fit"
        )
    block = case.block()
    case.check_whole_groups(columns, block[1])
    index = case.part(ending="_g_idx")
    groups = case.shape(scale)[-1] if index is not None else None
    grid = grid_of(rows, columns, block)
    if groups is not None:
        block, grid = (1, block[1]), (rows, grid_of(rows, columns, block)[1])
        if case.shape(index or "") != (columns,):
            raise case.wrong(index or "", (columns,))
    case.check_grid(scale, (*experts, *grid))
    zero = case.part(ZERO)
    per_word = Fraction(WORD_BITS, bits) if layout == "dense" else Fraction(WORD_BITS // bits)
    unit = max(block[0], 1)
    parts = [
        Part(payload, -2, is_stacked=stack > 0),
        Part(scale, -2, Fraction(max(block[0], 1)), stack > 0)
        if grid[0] > 1
        else Part(scale, is_stacked=stack > 0),
    ]
    if zero is not None:
        words = math.ceil(grid[0] / per_word)
        case.check_grid(zero, (*experts, words, grid[1]))
        unit = math.lcm(unit, (per_word * per_word.denominator).numerator)
        parts.append(Part(zero, -2, per_word, stack > 0))
    if index is not None:
        parts.append(Part(index))
    offset = 1 << (bits - 1)
    options = case.options(element=U8, bits=bits, offset=offset, layout=layout)

    def decode(arrays: Arrays, out: NDArray[Any]) -> None:
        count = out.shape[0]
        blocks = (grid_of(count, columns, block)[0], grid[1])
        more = dict(options)
        if zero is not None:
            words = arrays[zero].reshape(-1, grid[1])
            codes = np.empty((grid[1], blocks[0]), np.uint8)
            unpack_codes(words.T, codes, bits=bits, layout=layout)
            more["zero_point"] = codes.T.astype(np.int16) - offset
        if index is not None:
            more["group_index"] = arrays[index]
        decode_blocks(
            as_rows(arrays[payload], count), arrays[scale].reshape(blocks), out, block=block, **more
        )

    return case.made(shape, parts, decode, stack=stack, unit=unit)


def _bits(case: Case) -> int:
    name = case.scheme.removeprefix("u").removeprefix("int").partition("_")[0]
    if not case.scheme.startswith(("int", "uint")) or not name.isdigit():
        raise Undecodable("nothing states of how many bits its codes are")
    bits = int(name)
    if not 1 <= bits <= BYTE_BITS:
        raise Undecodable(f"castwise cannot decode codes of {bits} bits")
    return bits


def _stated_shape(case: Case) -> tuple[int, ...]:
    """Read the shape that stands beside packed words."""
    name = case.named("_shape")
    if math.prod(case.shape(name)) not in range(MATRIX, 5):
        raise Undecodable(f"{name!r} is not a shape")
    shape = tuple(int(one) for one in case.read(name).reshape(-1))
    experts = case.shape(case.payload)[:-2]
    if any(one < 0 for one in shape):
        raise Undecodable(f"{name!r} has negative sizes")
    return shape if len(shape) > MATRIX else (*experts, *shape)


def _layout(bits: int, columns: int, width: int) -> str | None:
    """Tell how so many codes are packed into so many words; None if they are not.

    Without gaps, as compressed-tensors packs now, or only whole codes in each word, as before.
    """
    per_word = WORD_BITS // bits
    dense = width == -(-columns * bits // WORD_BITS)
    padded = width == -(-columns // per_word)
    if dense and padded and WORD_BITS % bits and width > 1:
        raise Undecodable(
            f"{columns} codes of {bits} bits fill {width} words both with and without gaps, and "
            "nothing tells which it is"
        )
    return "dense" if dense else "padded" if padded else None


def _group_size(case: Case, rows: int) -> int:
    """Return how many inputs share a scale."""
    if case.scheme.endswith("_channel"):
        return rows
    block = case.weight.block
    if block is None:
        raise Undecodable("nothing states how many elements share a scale")
    return block[1]


def awq(case: Case) -> Decoding:
    """Decode AutoAWQ's "gemm": 8 outputs in a word, in an order of their own."""
    version = str(case.section.get("version", "gemm")).lower()
    bits = _bits(case)
    if version != "gemm" or bits != 4:  # noqa: PLR2004
        raise Undecodable(
            f"castwise cannot decode the version {version!r} of AWQ with {bits} bits; AutoAWQ or "
            "GPTQModel read it"
        )
    payload, scale, zero = case.payload, case.scale(), case.named("qzeros")
    inputs, words = case.matrix()
    outputs = words * 8
    group = _group_size(case, inputs)
    case.check_whole_groups(inputs, group)
    groups = -(-inputs // group)
    case.check_grid(scale, (groups, outputs))
    case.check_grid(zero, (groups, words))
    parts = [Part(payload, -1, Fraction(8)), Part(scale, -1), Part(zero, -1, Fraction(8))]
    options = case.options(element=U8, bits=4, layout="awq", block=(group, 1))

    def decode(arrays: Arrays, out: NDArray[Any]) -> None:
        zeros = np.empty((groups, out.shape[0]), np.uint8)
        unpack_codes(arrays[zero], zeros, bits=4, layout="awq")
        decode_blocks(arrays[payload], arrays[scale], out.T, zero_point=zeros, **options)

    return case.made((outputs, inputs), parts, decode, unit=8)


def gptq(case: Case) -> Decoding:
    """Decode AutoGPTQ's words: packed along the inputs, zero points along the outputs."""
    form = case.section.get("checkpoint_format", "gptq")
    method = case.section.get("quant_method", "gptq")
    bits = _bits(case)
    if form not in ("gptq", "gptq_v2") or method != "gptq" or bits not in (2, 3, 4, 8):
        raise Undecodable(
            f"castwise cannot decode the checkpoint_format {form!r} of GPTQ with {bits} bits; "
            "GPTQModel reads it"
        )
    payload, scale, zero = case.payload, case.scale(), case.named("qzeros")
    words, outputs = case.matrix()
    index = case.part(ending="g_idx")
    if words * WORD_BITS % bits:
        raise Undecodable(f"columns of {words} words do not end with a code of {bits} bits")
    inputs = words * WORD_BITS // bits
    group = _group_size(case, inputs)
    groups = -(-inputs // group)
    case.check_grid(scale, (groups, outputs))
    case.check_grid(zero, (groups, -(-outputs * bits // WORD_BITS)))
    if index is None:
        case.check_whole_groups(inputs, group)
    if index is None and case.section.get("desc_act") is True:
        raise Undecodable("it has no g_idx, and desc_act says that it is needed")
    if index is not None and case.shape(index) != (inputs,):
        raise case.wrong(index, (inputs,))
    per_word = Fraction(WORD_BITS, bits)
    parts = [Part(payload, -1), Part(scale, -1), Part(zero, -1, per_word)]
    if index is not None:
        parts.append(Part(index))
    add = 1 if form == "gptq" else 0
    options = case.options(element=U8, bits=bits, block=(1, group))

    def decode(arrays: Arrays, out: NDArray[Any]) -> None:
        zeros = np.empty((groups, out.shape[0]), np.uint8)
        unpack_codes(arrays[zero], zeros, bits=bits, add=add)
        more: dict[str, Any] = {} if index is None else {"group_index": arrays[index]}
        decode_blocks(
            arrays[payload].T, arrays[scale].T, out, zero_point=zeros.T, **options, **more
        )

    return case.made((outputs, inputs), parts, decode, unit=per_word.numerator)


def mlx(case: Case) -> Decoding:
    """Decode MLX' words: a stream of codes, with a scale and a bias for each group."""
    payload, scale = case.payload, case.scale()
    *experts, rows, words = case.shape(payload)
    bias = case.part(ending="biases")
    if bias is not None:
        bits = _bits(case)
        options: dict[str, Any] = {"element": U8, "bits": bits}
    elif case.scheme in FLOAT_CODES:
        element, bits = FLOAT_CODES[case.scheme]
        scale_format = E4M3 if case.scheme == "nvfp4" else E8M0
        options = {"element": element, "bits": bits, "scale_format": scale_format}
    elif case.scheme == "mxfp8_e4m3":
        bits = 8
        options = {"element": E4M3, "bits": bits, "scale_format": E8M0}
    else:
        raise case.unknown()
    if words * WORD_BITS % bits:
        raise Undecodable(f"rows of {words} words do not end with a code of {bits} bits")
    columns = words * WORD_BITS // bits
    stack = len(experts)
    block = case.block()
    case.check_whole_groups(columns, block[1])
    grid = grid_of(rows, columns, block)
    parts = [Part(payload, -2, is_stacked=stack > 0)]
    for name in (scale, bias):
        if name is not None:
            case.check_grid(name, (*experts, *grid))
            parts.append(Part(name, -2, is_stacked=stack > 0))
    given = case.options(block=block, **options)

    def decode(arrays: Arrays, out: NDArray[Any]) -> None:
        blocks = (out.shape[0], grid[1])
        more: dict[str, Any] = {} if bias is None else {"bias": arrays[bias].reshape(blocks)}
        decode_blocks(
            as_rows(arrays[payload], out.shape[0]),
            arrays[scale].reshape(blocks),
            out,
            **given,
            **more,
        )

    return case.made((*experts, rows, columns), parts, decode, stack=stack)
