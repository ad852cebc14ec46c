"""How the stored tensors of one weight become the weight of a plain model.

What they mean, a producer's layout says: a function for each kind of layout tells which part of
each tensor belongs to rows of the plain weight, and decodes such a slab.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from castwise.quantization._by_producer import bitsandbytes, comfy, gpt_oss
from castwise.quantization._by_rows import (
    FLOAT_CODES,
    bytes_of_float8,
    bytes_of_int8,
    packed_floats,
)
from castwise.quantization._by_type import gguf
from castwise.quantization._by_words import awq, gptq, mlx, packed_words
from castwise.quantization._case import Case, Read, Tensor
from castwise.quantization._found import QuantizedWeight
from castwise.quantization._recipes import FLOAT8, I8
from castwise.quantization._slabs import Decoding

_FAMILIES: Mapping[tuple[str, ...], Callable[[Case], Decoding]] = {
    ("gpt-oss",): gpt_oss,
    ("awq",): awq,
    ("gptq",): gptq,
    ("mlx",): mlx,
    ("bitsandbytes",): bitsandbytes,
    ("comfy",): comfy,
    ("gguf",): gguf,
}
"""Producers whose layouts are their own."""


def decoding(
    weight: QuantizedWeight,
    tensors: Mapping[str, Tensor],
    read: Read,
    section: Mapping[str, Any],
    *,
    arithmetic: str,
) -> Decoding:
    """Plan how a weight is decoded.

    Parameters
    ----------
    weight
        What was recognised.
    tensors
        All tensors of the checkpoint, by name.
    read
        Reads one of them; asked only for those that describe the weight, such as its shape.
    section
        What states the method of quantisation, as its producer writes it.
    arithmetic
        "peer" or "exact".

    Raises
    ------
    Undecodable
        Its parts do not fit each other, or castwise cannot decode its kind.

    """
    case = Case(weight, tensors, read, section, arithmetic)
    case.check_parts()
    return _family(case)(case)


def _family(case: Case) -> Callable[[Case], Decoding]:
    """Choose by recipe, payload and scheme."""
    recipes, scheme = set(case.weight.recipes), case.scheme
    tail = case.payload.rpartition(".")[2]
    for names, family in _FAMILIES.items():
        if not recipes.isdisjoint(names):
            if not recipes <= set(names):
                raise case.unknown()
            return family
    if tail == "qweight" or recipes & {"torchao", "transformer-engine", "keras"}:
        raise case.unknown()
    if case.format in FLOAT8:
        return bytes_of_float8
    if tail.endswith("_packed") and "32" in case.format:
        return packed_words
    if scheme in FLOAT_CODES:
        return packed_floats
    if case.format == I8:
        return bytes_of_int8
    raise case.unknown()
