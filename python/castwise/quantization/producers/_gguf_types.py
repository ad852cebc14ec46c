"""Weights that are quantised by their types alone, as the files of GGUF state them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from castwise.quantization.producers._foreign import with_foreign
from castwise.quantization.producers._found import Quantization, QuantizedWeight
from castwise.quantization.producers._names import Described
from castwise.quantization.producers.gguf import GGUF, TYPES


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
        name: QuantizedWeight(name, layout.scheme, layout.block, (GGUF.name,), name, {})
        for name, info in by_name.items()
        if (layout := TYPES.get(info.stored)) is not None
    }
    # As llama.cpp writes beside NVFP4.
    inputs = {name for name in by_name if name.endswith(".input_scale")}
    weights = with_foreign(weights, {name: name for name in weights}, by_name, inputs | {*weights})
    return Quantization((f"{place}{GGUF.name}",), weights=tuple(weights.values()))
