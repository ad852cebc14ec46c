"""The layers of a model with their paths, also where Keras has not given them any yet."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from castwise._frameworks import require


def layers_with_paths(model: Any) -> list[tuple[str, Any]]:
    """Each layer within a model, the model first, with its path; a shared layer once.

    A layer has a path of Keras' once it is built. One that is not, or that has nothing to build
    (Dropout), is placed where Keras would place it: beside its siblings if these have paths, else
    under the layer that holds it; the layers of a functional model, built outside of it, under
    none. `InputLayer` is left out: it computes nothing, and the dtype of an input is its own.
    """
    return list(_walk(model, model.path or model.name, set()))


def _walk(layer: Any, path: str, seen: set[int]) -> Iterator[tuple[str, Any]]:
    seen.add(id(layer))
    yield path, layer
    children = [child for child in layer._layers if not _is_input(child)]
    prefix = _prefix(layer, path, children)
    for child in children:
        if id(child) not in seen:
            yield from _walk(child, child.path or prefix + child.name, seen)


def _prefix(layer: Any, path: str, children: list[Any]) -> str:
    """What stands before the names of a layer's children in their paths."""
    for child in children:
        if child.path and f"/{child.path}".endswith(f"/{child.name}"):
            return str(child.path).removesuffix(child.name)
    return "" if _is_functional(layer) else f"{path}/"


def _is_input(layer: Any) -> bool:
    return isinstance(layer, require("keras").layers.InputLayer)


def _is_functional(layer: Any) -> bool:
    """Whether the layer is a model made of symbolic tensors, whose layers were called before it."""
    return hasattr(layer, "_nodes_by_depth")
