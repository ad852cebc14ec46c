"""The blocks of GGUF, whose files state the type of each tensor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from castwise.quantization._arrays import QuantizedArray
from castwise.quantization._case import Case, Undecodable
from castwise.quantization._found import QuantizedWeight
from castwise.quantization._recipes import GGUF, Layout
from castwise.quantization._schemes import find_scheme

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


def weight_of(name: str, stored: str) -> QuantizedWeight:
    """Describe a tensor of a type, which is all of its weight."""
    scheme, _ = TYPES[stored]
    return QuantizedWeight(name, scheme, _layout(stored).block, (GGUF.name,), name, {})


def _layout(stored: str) -> Layout:
    scheme, size = TYPES[stored]
    return next(
        one for one in GGUF.layouts if one.scheme == scheme and sum(_fields(one).values()) == size
    )


def _fields(layout: Layout) -> dict[str, int]:
    return {} if layout.storage is None else dict(layout.storage.fields)


def gguf(case: Case) -> tuple[tuple[int, ...], Callable[[Any], QuantizedArray]]:
    """Return the shape of blocks of bytes, and what reads the rows of a slab."""
    payload = case.lazy(case.payload)
    *leading, blocks, size = payload.shape
    scheme = find_scheme(case.scheme)
    second = case.payload.removesuffix("weight") + "scale"
    if scheme.global_scale and second in case.tensors:
        raise Undecodable(f"{second!r} scales it, which castwise cannot decode yet")
    stored = next(name for name, row in TYPES.items() if row == (case.scheme, size))
    layout = _layout(stored)
    fields = _fields(layout)
    columns = blocks * (fields["data"] * 8 // (scheme.bits - int("high" in fields)))
    seen = payload if leading else payload.reshape((1, blocks, size))

    def rows(slab: Any) -> QuantizedArray:
        raw = seen[*slab.place, slab.start : slab.stop]
        shape = (len(raw), columns)
        parts = {layout.payload: raw.reshape(len(raw), blocks * size)}
        return QuantizedArray.from_parts(
            parts, GGUF.name, shape, scheme=case.scheme, block=layout.block
        )

    return (*leading, columns), rows
