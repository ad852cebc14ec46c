"""Weights that are quantized by their types alone."""

from collections.abc import Iterable, Mapping
from typing import Protocol

from castwise.quantization.producers.block_types import BLOCK_TYPES, ROLES, TYPES, names_beside
from castwise.quantization.producers.foreign import with_foreign
from castwise.quantization.producers.found import Quantization, QuantizedWeight
from castwise.quantization.producers.layouts import OF_F32
from castwise.quantization.producers.names import Described
from castwise.quantization.producers.registry import TYPED


class TypedTensor(Described, Protocol):
    """A tensor whose type its file states by name."""

    @property
    def stored(self) -> str: ...


def quantization_by_types(tensors: Iterable[TypedTensor], place: str) -> Quantization:
    """Return what is quantized by the types of tensors, each of which is all of its weight."""
    # `place` stands before what states it.
    by_name = {info.name: info for info in tensors}
    weights = {
        name: QuantizedWeight(
            name,
            *_scheme_and_block(info.stored),
            (TYPED,),
            name,
            {one: role for one, role in roles.items() if by_name[one].format in OF_F32},
            problem=_problem([by_name[one] for one in roles]),
        )
        for name, info in by_name.items()
        if info.stored in BLOCK_TYPES
        for roles in [_roles_beside(name, by_name)]
    }
    known_names = {*weights, *(part for weight in weights.values() for part in weight.parts)}
    weights = with_foreign(weights, {name: name for name in weights}, by_name, known_names)
    return Quantization((f"{place}{TYPED}",), weights=tuple(weights.values()))


def _roles_beside(weight: str, tensors: Mapping[str, Described]) -> dict[str, str]:
    """Return what is beside a weight, also where the rows of two alternate, each with its role."""
    return {
        name: role
        for ending, role in ROLES.items()
        for count in (1, 2)
        for name in names_beside(weight, ending, count)
        if name in tensors
    }


def _problem(neighbors: Iterable[TypedTensor]) -> str | None:
    """Say which tensor beside a weight is not of the format that llama.cpp reads there."""
    return next(
        (
            f"{info.name!r} belongs to it and is {info.stored}, and converters write it as float32 "
            "(F32); convert that tensor to float32, since without it the weight may be scaled "
            "wrongly"
            for info in neighbors
            if info.format not in OF_F32
        ),
        None,
    )


def _scheme_and_block(type_name: str) -> tuple[str, tuple[int, ...] | None]:
    """Return the scheme and the block of a type, which is a scheme itself if it has no layout."""
    layout = TYPES.get(type_name)
    if layout is None:
        _, elements, _ = BLOCK_TYPES[type_name]
        return type_name, (1, elements)
    return layout.scheme, layout.block
