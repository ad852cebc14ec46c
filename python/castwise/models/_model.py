"""A model: the role of each of its tensors, its axes, and what engines join."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping
from typing import Any

from castwise.models._structure import (
    IN_OUT_TYPES,
    JOINED,
    is_embedding_name,
    is_left_name,
    is_stack_name,
    lookup_role,
)

MATRIX, STACK = 2, 3
"""The axes of a matrix, and of those of all experts."""

WEIGHT = ".weight"
LINEAR, EXPERTS, OTHER = "linear", "experts", "other"

_HEAD = "lm_head"
_EXPERTS_OF_LAYER = re.compile(r"(?:^|\.)(?:experts|switch_mlp)\.")
_LAST_OUTPUTS = re.compile(r"(?:.*[./])?(?:kernel|vars/[0-9]+)", re.DOTALL)


class Model:
    """What the tensors of a model are.

    Parameters
    ----------
    config
        Its parsed `config.json`; empty if it has none.
    shapes
        The shapes of its tensors, by their names.

    """

    def __init__(self, config: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> None:
        kind = config.get("model_type")
        self._shapes = shapes
        self._in_out_type = kind if isinstance(kind, str) and kind in IN_OUT_TYPES else None

    @property
    def in_out_type(self) -> str | None:
        """The type of a model that keeps its matrices as (in, out); None for others."""
        return self._in_out_type

    def role(self, name: str) -> str:
        """Return the role of a tensor."""
        if is_stack_name(name):
            return EXPERTS
        if (lookup := lookup_role(name)) is not None:
            return lookup
        return LINEAR if name.endswith(WEIGHT) and not is_left_name(name) else OTHER

    def is_matrix(self, name: str) -> bool:
        """Return True for what may be the weight of a linear layer, or those of experts."""
        shape = self._shapes[name]
        if not all(shape):
            return False
        if len(shape) == STACK:
            return self.role(name) == EXPERTS
        return len(shape) == MATRIX and name.endswith(WEIGHT)

    def is_kept(self, name: str) -> bool:
        """Return True for a weight that stays as it is unless it is named."""
        return is_left_name(name)

    def partners(self, name: str) -> tuple[str, ...]:
        """Name the weights that engines join with one, itself among them."""
        stem = name.removesuffix(WEIGHT)
        prefix, dot, module = stem.rpartition(".")
        tail = name[len(stem) :]
        return tuple(f"{prefix}{dot}{part}{tail}" for part in JOINED.get(module, (module,)))

    def layer_of_expert(self, name: str) -> str | None:
        """Name the layer of whose experts a weight is, one or all in one tensor; else None."""
        match = _EXPERTS_OF_LAYER.search(name)
        return None if match is None else name[: match.start()]

    def excepted(self, names: Iterable[str], modules: Container[str]) -> list[str]:
        """Return the modules that a configuration excepts, given the weights that stay."""
        stems = (name.removesuffix(WEIGHT) for name in names)
        excepted = [stem for stem in stems if not is_embedding_name(stem)]
        if _HEAD not in modules and _HEAD not in excepted:
            excepted.append(_HEAD)  # tied to the embedding
        return excepted


def has_last_outputs(name: str) -> bool:
    """Return True for the kernel of a layer of Keras or flax, whose last axis is its outputs."""
    return _LAST_OUTPUTS.fullmatch(name) is not None
