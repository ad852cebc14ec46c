"""Decode blocks of GGUF, whose files state the type of each tensor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from castwise.quantization._arrays import QuantizedArray
from castwise.quantization._case import Case, Undecodable
from castwise.quantization._found import QuantizedWeight
from castwise.quantization._gguf import GGUF, TYPES
from castwise.quantization._layouts import Layout
from castwise.quantization._schemes import find_scheme


def weight_of(name: str, stored: str) -> QuantizedWeight:
    """Describe a tensor of a type, which is all of its weight."""
    layout = TYPES[stored]
    return QuantizedWeight(name, layout.scheme, layout.block, (GGUF.name,), name, {})


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
    layout = next(
        one
        for one in GGUF.layouts
        if one.scheme == case.scheme and sum(_fields(one).values()) == size
    )
    fields = _fields(layout)
    columns = blocks * (fields["data"] * 8 // (scheme.bits - int("high" in fields)))
    seen = payload if leading else payload.reshape((1, blocks, size))

    def rows(slab: Any) -> QuantizedArray:
        raw = seen[*slab.place, slab.start : slab.stop]
        parts = {layout.payload: raw.reshape(len(raw), blocks * size)}
        shape = (len(raw), columns)
        return QuantizedArray.from_parts(
            parts, GGUF.name, shape, scheme=case.scheme, block=layout.block
        )

    return (*leading, columns), rows
