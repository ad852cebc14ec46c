"""What a weight of a checkpoint is: its scheme, block and shape, from what is stated and stored.

How its parts are laid out is said by the table of recipes; a rule says what its producer states
otherwise, and refuses the variants that castwise does not know.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from castwise.quantization.arrays._views import TILE, ceil_div
from castwise.quantization.producers._configs import (
    TORCHAO_MX,
    modelopt_values,
    parsed,
    torchao_dtype,
)
from castwise.quantization.producers._gptq import tensors_of
from castwise.quantization.producers._layer_keys import COMFY as COMFY_KEYS
from castwise.quantization.producers._layer_keys import unknown_key
from castwise.quantization.producers._layouts import FLOAT8, I8, OF_E8M0, OF_REAL, U8, ZERO
from castwise.quantization.producers._schemes import schemes
from castwise.quantization.weights._case import MATRIX, Case, Given, Undecodable
from castwise.quantization.weights._keras import keras

_BYTE = 8
_TILE_ROWS = TILE[0]
_FLOAT_BITS = {
    row.name: row.bits for row in schemes() if row.element.startswith("float") and row.bits < _BYTE
}


def usual(case: Case) -> Given:
    """Describe codes in bytes whose rows are those of the plain weight, and integers in words."""
    tail, scheme = case.payload.rpartition(".")[2], case.scheme
    if tail == "qweight" or not case.weight.recipes:
        raise case.unknown()
    if case.format in FLOAT8:
        return _bytes(case, _of_float8(case))
    if tail.endswith("_packed") and "32" in case.format:
        return _words(case)
    if scheme in _FLOAT_BITS:
        axis = _axis_of_codes(case)
        case.whole(_FLOAT_BITS[scheme], case.length(axis), 8)
        return Given(scheme, case.block(), axis=axis)
    if case.format == I8 and scheme.startswith("int"):
        return _bytes(case, "int8_{}")
    if case.format == U8 and scheme.startswith("int4_"):
        return Given(scheme, case.block())
    raise case.unknown()


def _axis_of_codes(case: Case) -> int:
    """Return the axis that codes are packed along: their scales are fewer along it."""
    payload, scale = case.shape(case.payload), case.shape(case.scale())
    across = len(payload) > MATRIX and len(scale) == len(payload) and scale[-1] == payload[-1]
    return -2 if across else -1


def _of_float8(case: Case) -> str:
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


def _bytes(case: Case, scheme: str) -> Given:
    """Describe one code per byte."""
    block, shape = case.block(), case.shape(case.payload)
    kind = _GRANULARITY.get(block, "block" if scheme[0] == "f" else "group")
    if block == (0, 0) and len(shape) != MATRIX and math.prod(case.shape(case.scale())) == 1:
        # One scale for all, so that any number of axes is as good as two.
        cut = (shape[0] if shape else 1, math.prod(shape[1:]))
        return Given(scheme.format(kind), block, cut, plain=shape)
    if len(shape) < MATRIX:
        raise case.wrong(case.scale(), "one scale")
    return Given(scheme.format(kind), block, shape)


def _words(case: Case) -> Given:
    """Describe compressed-tensors' integers in words of 32 bits."""
    bits, block = case.bits(), case.block()
    name = case.named("_shape")
    shape = [int(n) for n in np.asarray(case.lazy(name)).reshape(-1)]
    if len(shape) < MATRIX:
        raise Undecodable(f"{name!r} has {len(shape)} numbers, which is not the shape of a matrix")
    if 0 in block and (case.part("_g_idx") is not None or block == (0, 0)):
        block = (block[0] or shape[-2], shape[-1])
    return Given(f"int{bits}_{'channel' if block == (1, 0) else 'group'}", block)


def modelopt(case: Case) -> Given:
    """Refuse what ModelOpt stores and states of FP8 and of integers that would be a guess."""
    payload, is_float = case.payload, case.format in FLOAT8
    factor, second = f"{payload}_pre_quant_scale", f"{case.weight.scale}_2"
    if factor in case.tensors and (is_float or case.scheme in _FLOAT_BITS):
        raise Undecodable(
            f"castwise does not multiply experts in one tensor by a factor of inputs, as "
            f"{factor!r} is"
        )
    if (
        case.scheme == "fp8_block"
        and case.weight.block is None
        and math.prod(case.shape(case.scale())) > 1
    ):
        raise Undecodable(
            f"ModelOpt states no block for {case.scheme}; if it is that of its preset, add "
            '"weight_block_size": [128, 128] to the quantization_config (in hf_quant_config.json, '
            "to its quantization)"
        )
    if is_float and case.scheme == "fp8_channel" and case.scale() == f"{payload}_weight_scale":
        raise Undecodable(
            f"{case.scale()!r} has the shape {case.shape(case.scale())}, and nothing tells "
            f"whether its scales are those of the rows or of the columns of {payload!r}"
        )
    stated = modelopt_values(case.section, payload.rpartition(".")[0])
    is_packed = case.format == U8 and case.scheme.startswith("int4_")
    if is_packed and second in case.tensors and stated.get("quant_algo") == "W4A16_AWQ":
        raise Undecodable(f"W4A16_AWQ is stated, and {second!r} is a scale of W4A8_AWQ")
    return usual(case)


def quark(case: Case) -> Given:
    """Refuse codes of 6 bits: Quark 0.9 packs their upper two bits apart, and later ones do not."""
    if case.scheme.startswith("mxfp6_"):
        raise Undecodable(
            f"castwise cannot decode {case.scheme} of Quark, whose releases pack it in several "
            "orders; the release that wrote it reads it"
        )
    return usual(case)


def gpt_oss(case: Case) -> Given:
    """Describe gpt-oss' blocks; transformers wants the matrix of each expert transposed."""
    stored = case.shape(case.payload)
    if len(stored) < 3 or stored[-1] != 16:  # noqa: PLR2004
        raise Undecodable(
            f"{case.payload!r} has the shape {stored}, and blocks of 16 bytes end with 16"
        )
    if case.payload.endswith(".blocks"):
        return Given(case.scheme, case.block())
    if len(stored) == 3:  # noqa: PLR2004
        raise Undecodable(f"{case.payload!r} has the shape {stored}, which is not that of experts")
    return Given(case.scheme, case.block(), axis=-2)


def awq(case: Case) -> Given:
    """Describe AutoAWQ's "gemm": 8 outputs in a word, in an order of their own."""
    version = str(case.section.get("version", "gemm")).lower()
    bits = case.bits()
    if version != "gemm" or bits != 4:  # noqa: PLR2004
        raise Undecodable(
            f"castwise cannot decode the version {version!r} of AWQ with {bits} bits; AutoAWQ or "
            "GPTQModel read it"
        )
    case.named("qzeros")
    return Given("int4_group", case.group(case.matrix()[0]))


def gptq(case: Case) -> Given:
    """Describe AutoGPTQ's words: packed along the inputs, zero points along the outputs."""
    form = case.section.get("checkpoint_format", "gptq")
    method = tensors_of(case.section.get("quant_method", "gptq"), case.section)
    if case.section.get("is_marlin_format"):  # as AutoGPTQ wrote before it stated a form
        form = "marlin"
    bits = case.bits()
    if form not in ("gptq", "gptq_v2") or method != "gptq" or bits not in (2, 3, 4, 8):
        raise Undecodable(
            f"castwise cannot decode the checkpoint_format {form!r} of GPTQ with {bits} bits; "
            "GPTQModel reads it"
        )
    case.named("qzeros")
    if case.part("g_idx") is None and case.section.get("desc_act") is True:
        raise Undecodable("it has no g_idx, and desc_act says that it is needed")
    inputs = case.whole(bits, case.matrix()[0])
    return Given(f"int{bits}_group", case.group(inputs), variant=form)


def mlx(case: Case) -> Given:
    """Describe MLX' words: a stream of codes, with a scale and perhaps a bias for each group."""
    is_affine = case.part("biases") is not None
    bits_of = {row.name: row.bits for row in schemes()}
    bits = case.bits() if is_affine else bits_of.get(case.scheme)
    if bits is None:
        raise case.unknown()
    case.whole(bits, case.length(-1))
    return Given(f"int{bits}_group" if is_affine else case.scheme, case.block())


def bitsandbytes(case: Case) -> Given:
    """Describe bitsandbytes: int8 with a scale per row, or a map of 16 values in flat blocks."""
    if case.scheme != "int8_channel":
        case.named(".quant_map")
        return Given(case.scheme)
    return Given(case.scheme, (1, 0), case.matrix())


_COMFY_PADDING = {"nvfp4": 16, "mxfp8_e4m3": 32}
"""Rows and columns are padded to multiples of so many."""


def comfy(case: Case) -> Given:
    """Describe ComfyUI's weights: plain float8, or blocks padded to tiles."""
    scheme, marker = case.scheme, case.part("comfy_quant")
    if marker is not None:
        state = case.json(marker)
        if (unknown := unknown_key(state, COMFY_KEYS)) is not None:
            raise Undecodable(f"{marker!r} {unknown}; ComfyUI reads it")
        experts, shape = state.get("num_experts"), case.shape(case.payload)
        if experts is not None and (len(shape) != MATRIX + 1 or shape[0] != experts):
            raise Undecodable(
                f"{marker!r} states num_experts={experts!r}, and {case.payload!r} has the shape "
                f"{shape}"
            )
    if scheme == "fp8_tensor":
        return usual(case)
    if scheme not in _COMFY_PADDING:
        raise case.unknown()
    padding, (*experts, rows, width) = _COMFY_PADDING[scheme], _matrices(case)
    columns = width * 8 // _FLOAT_BITS.get(scheme, 8)
    if rows % padding or columns % padding:
        raise Undecodable(
            f"{case.payload!r} has the shape {case.shape(case.payload)}, which is not padded to "
            f"{padding}"
        )
    shape = (*experts, _true_rows(case, padding), columns)
    _check_columns(case, last=0x0F if columns > width else 0xFF)
    return Given(scheme, case.block(), shape)


def _matrices(case: Case) -> tuple[int, ...]:
    """Return the shape of a matrix, or of the matrices of experts, all of one shape."""
    shape = case.shape(case.payload)
    return shape if len(shape) == MATRIX + 1 else case.matrix()


def _true_rows(case: Case, padding: int) -> int:
    """Return the rows without padding: the bias tells, or some last row is not zeros."""
    *experts, rows, _ = _matrices(case)
    bias = case.tensors.get(case.weight.name.removesuffix("weight") + "bias")
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


def _check_columns(case: Case, last: int) -> None:
    """Refuse a weight whose last column may be padding: nothing tells how many columns it has."""
    payload, (*experts, rows, width) = case.lazy(case.payload), _matrices(case)
    for place in np.ndindex(*experts):
        for start in range(0, rows, _TILE_ROWS):
            column = payload[*place, start : start + _TILE_ROWS, width - 1 : width]
            if (column.view(np.uint8) & last).any():
                return
    raise Undecodable("its last column is zero, which may be padding")


def torchao(case: Case) -> Given:
    """Describe one code per byte, as the metadata of torchao's safetensors files state it."""
    entry = parsed(case.section.get(case.weight.name))
    kind, data, names = (entry.get(key) for key in ("_type", "_data", "_tensor_data_names"))
    if not isinstance(data, dict) or not isinstance(names, list):
        raise Undecodable(
            f"no metadata state {case.weight.name!r}, so its block is not known; torchao reads it"
        )
    if kind not in (*_TORCHAO, *_TORCHAO_BLOCKS):
        raise Undecodable(f"castwise cannot decode torchao's {kind} yet; torchao reads it")
    prefix = case.payload.removesuffix("qdata")
    stated, stored = {prefix + str(name) for name in names}, {case.payload, *case.weight.parts}
    if stated != stored:
        raise Undecodable(
            f"its metadata state {', '.join(sorted(stated))}, and there are "
            f"{', '.join(sorted(stored))}; save it with torchao again"
        )
    known = _TORCHAO_PARTS if kind in _TORCHAO else _TORCHAO_BLOCKS[kind]
    if unused := sorted({str(name) for name in names} - known):
        raise Undecodable(f"castwise cannot decode with its {unused[0]} yet; torchao reads it")
    if kind in _TORCHAO_BLOCKS:
        return _torchao_blocks(case, kind, data)
    element = "fp8" if case.format in FLOAT8 else I8
    if (element == "fp8") != (kind == "Float8Tensor") or case.format not in (*FLOAT8, I8):
        raise Undecodable(f"its metadata state {kind}, and {case.payload!r} is {case.format}")
    block = _torchao_block(case, data.get("block_size"))
    several = "block" if element == "fp8" else "group"
    shape = case.shape(case.payload)
    return Given(f"{element}_{_GRANULARITY.get(block, several)}", block, shape)


def _torchao_blocks(case: Case, kind: str, data: Mapping[str, Any]) -> Given:
    """Describe float4 and float8 in blocks of rows, whose scales may be in tiles."""
    element, size = torchao_dtype(data.get("elem_dtype")), data.get("block_size")
    scheme = "nvfp4" if kind == "NVFP4Tensor" else TORCHAO_MX.get(str(element), "")
    tiled = data.get("is_swizzled_scales", False)
    row = next((known_row for known_row in schemes() if known_row.name == scheme), None)
    if row is None:
        raise Undecodable(f"castwise cannot decode torchao's {kind} of {element} yet")
    if size != row.block[1] or not isinstance(tiled, bool):
        raise Undecodable(
            f"its metadata state block_size={size!r} and is_swizzled_scales={tiled!r}; blocks of "
            f"{scheme} are of {row.block[1]}, and the other is true or false"
        )
    payload = row.element if row.bits == _BYTE else U8
    loose = row.bits if row.bits not in (4, _BYTE) else None
    for name, expected in ((case.payload, payload), (case.scale(), row.scale)):
        if case.tensors[name].format != expected:
            raise Undecodable(
                f"{name!r} is {case.tensors[name].format}, and torchao's {kind} of {scheme} "
                f"has {expected}"
            )
    *stack, rows, width = _matrices(case)
    columns = width if loose else case.whole(row.bits, width, _BYTE)
    grid = *stack, rows, columns // size
    if tiled:  # 128x4 of scales as 32x16
        high, wide = TILE[0] // 4, TILE[1] * 4
        grid = *stack, ceil_div(rows, TILE[0]) * high, ceil_div(grid[-1], TILE[1]) * wide
    if columns % size or case.shape(case.scale()) != grid:
        raise case.wrong(case.scale(), f"the shape {grid}")
    if tiled and stack and rows % TILE[0]:
        raise Undecodable(
            f"{case.scale()!r} has tiles of {TILE[0]} rows, and {case.payload!r} matrices of {rows}"
        )
    return Given(scheme, row.block, (*stack, rows, columns), tiled=tiled, loose=loose)


def _torchao_block(case: Case, stated: Any) -> tuple[int, int]:
    """Return the block of a matrix, or of one of a stack; refuse parts of another shape."""
    shape, sizes = case.shape(case.payload), stated if isinstance(stated, list) else []
    are_sizes = all(type(size) is int and size > 0 for size in sizes)
    if len(shape) < MATRIX or len(sizes) != len(shape) or not are_sizes:
        raise Undecodable(f"its metadata state block_size={stated!r} of the shape {shape}")
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
        if _without_ones(case.shape(name)) != _without_ones(grid):
            raise case.wrong(name, f"the shape {grid}")
    if (rows, columns) == shape[-MATRIX:]:
        return 0, 0
    return rows, 0 if (rows, columns) == (1, shape[-1]) else columns


def _without_ones(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(count for count in shape if count != 1)


_GRANULARITY = {(0, 0): "tensor", (1, 0): "channel"}
_TORCHAO = ("Float8Tensor", "Int8Tensor", "IntxUnpackedToInt8Tensor")
"""The classes of tensors that are decoded."""

_TORCHAO_BLOCKS = {
    "MXTensor": frozenset(("qdata", "scale")),
    "NVFP4Tensor": frozenset(("qdata", "scale", "per_tensor_scale", "act_per_tensor_scale")),
}
"""Those in blocks of rows, with their parts."""

_TORCHAO_PARTS = frozenset(("qdata", "scale", "zero_point"))

RULES: Mapping[str, Callable[[Case], Given]] = {
    "modelopt": modelopt,
    "gpt-oss": gpt_oss,
    "awq": awq,
    "gptq": gptq,
    "mlx": mlx,
    "quark": quark,
    "bitsandbytes": bitsandbytes,
    "comfy": comfy,
    "keras": keras,
    "torchao": torchao,
}
"""Producers whose layouts are their own; the layouts of all others are `usual`."""

NOT_DECODED = frozenset(("transformer-engine",))
