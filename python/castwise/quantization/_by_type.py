"""Decode the blocks of GGUF, whose files state the type of each tensor."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from castwise._core import decode_blocks
from castwise.quantization._case import Case, Undecodable
from castwise.quantization._found import QuantizedWeight
from castwise.quantization._recipes import E4M3, E8M0, GGUF, U8, Layout, Storage
from castwise.quantization._schemes import find_scheme
from castwise.quantization._slabs import Arrays, Decoding, Part

TYPES = {
    "Q4_0": ("int4_group", 18),
    "Q4_1": ("int4_group", 20),
    "Q5_0": ("int5_group", 22),
    "Q5_1": ("int5_group", 24),
    "Q8_0": ("int8_group", 34),
    "MXFP4": ("mxfp4", 17),
    "NVFP4": ("nvfp4", 36),
}
"""The scheme of each type, and the bytes of a block."""

_SCALE_FORMATS = {"mxfp4": E8M0, "nvfp4": E4M3}


def weight_of(name: str, stored: str) -> QuantizedWeight:
    """Describe a tensor of a type, which is all of its weight."""
    scheme, _ = TYPES[stored]
    return QuantizedWeight(name, scheme, _layout(stored).block, (GGUF.name,), name, {})


def _layout(stored: str) -> Layout:
    scheme, size = TYPES[stored]
    return next(
        one
        for one in GGUF.layouts
        if one.scheme == scheme and sum(dict(_storage(one).fields).values()) == size
    )


def _storage(layout: Layout) -> Storage:
    return layout.storage or Storage()


def gguf(case: Case) -> Decoding:
    """Decode blocks of bytes: scales, perhaps minima and high bits, and codes."""
    payload = case.payload
    *leading, blocks, size = case.shape(payload)
    stored = next(name for name, row in TYPES.items() if row == (case.scheme, size))
    second = payload.removesuffix("weight") + "scale"
    if case.scheme == "nvfp4" and second in case.tensors:
        raise Undecodable(f"{second!r} scales it, which castwise cannot decode yet")
    layout, scheme = _layout(stored), find_scheme(case.scheme)
    storage, group = _storage(layout), (layout.block or (1, 32))[1]
    fields = dict(storage.fields)
    high_bits = int("high" in fields)
    codes = fields["data"] * 8 // (scheme.bits - high_bits)
    columns = blocks * codes
    options = case.options(
        element=U8 if storage.excess or storage.unsigned else scheme.element,
        bits=scheme.bits - high_bits,
        offset=1 << (scheme.bits - 1) if storage.excess else 0,
        layout=storage.packing[0],
        block=(1, group),
        scale_format=_SCALE_FORMATS.get(case.scheme),
    )

    def decode(arrays: Arrays, out: NDArray[Any]) -> None:
        rows = out.shape[0]
        raw = arrays[payload].reshape(rows, blocks, size)
        parts: dict[str, NDArray[Any]] = {}
        begin = 0
        for name, count in storage.fields:
            parts[name] = raw[..., begin : begin + count]
            begin += count
        for name in ("scale", "bias"):
            if fields.get(name) == 2 and case.scheme not in _SCALE_FORMATS:  # noqa: PLR2004
                parts[name] = np.ascontiguousarray(parts[name]).view("<f2")[..., 0]
        scale = np.ascontiguousarray(parts.pop("scale")).reshape(rows, -1)
        data = parts.pop("data")
        more: dict[str, Any] = dict(parts)
        if "bias" in parts:
            more["bias"] = parts["bias"].reshape(rows, -1)
        decode_blocks(data, scale, out, **options, **more)

    return case.made(
        (*leading, columns),
        [Part(payload, -3 if leading else None, is_stacked=len(leading) > 1)],
        decode,
        stack=max(len(leading) - 1, 0),
    )
