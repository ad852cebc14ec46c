"""Weights that are quantised by their types alone, as the files of GGUF state them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from castwise.quantization.producers._foreign import with_foreign
from castwise.quantization.producers._found import Quantization, QuantizedWeight
from castwise.quantization.producers._names import Described
from castwise.quantization.producers.gguf import GGUF, GGUF_BLOCKS, TYPES


class TypedTensor(Described, Protocol):
    """A tensor whose type its file states."""

    @property
    def stored(self) -> str:
        """The name of the type."""


def quantization_by_types(tensors: Iterable[TypedTensor], place: str) -> Quantization:
    """Return what is quantised by the types of tensors, each of which is all of its weight.

    `place` stands before what states it.
    """
    by_name = {info.name: info for info in tensors}
    weights = {
        name: QuantizedWeight(name, *_scheme_and_block(info.stored), (GGUF.name,), name, {})
        for name, info in by_name.items()
        if info.stored in GGUF_BLOCKS
    }
    # As llama.cpp writes beside NVFP4.
    inputs = {name for name in by_name if name.endswith(".input_scale")}
    weights = with_foreign(weights, {name: name for name in weights}, by_name, inputs | {*weights})
    return Quantization((f"{place}{GGUF.name}",), weights=tuple(weights.values()))


def _scheme_and_block(stored: str) -> tuple[str, tuple[int, ...] | None]:
    """Return the scheme and the block of a type, which is a scheme itself if it has no layout."""
    layout = TYPES.get(stored)
    if layout is None:
        _, elements, _ = GGUF_BLOCKS[stored]
        return stored, (1, elements)
    return layout.scheme, layout.block
