"""Find the paths of a model's layers, also before Keras has set them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from castwise._frameworks import require


def layers_with_paths(model: Any) -> list[tuple[str, Any]]:
    """Return each layer of a model with its path, the model first; a shared layer once.

    Keras sets the path of a layer when it is built. A layer that is not built, or has nothing to
    build (Dropout), gets the path that Keras would set: beside its siblings if these have paths,
    else below the layer that holds it. Layers of a functional model, which are built outside of it,
    are below no other layer. `InputLayer` is left out: it computes nothing, and an input has its
    own dtype.
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
    """Return the beginning of the paths of a layer's children."""
    for child in children:
        if child.path and f"/{child.path}".endswith(f"/{child.name}"):
            return str(child.path).removesuffix(child.name)
    return "" if _is_functional(layer) else f"{path}/"


def _is_input(layer: Any) -> bool:
    return isinstance(layer, require("keras").layers.InputLayer)


def _is_functional(layer: Any) -> bool:
    """Tell whether the layer is a functional model, whose layers were called before it existed."""
    return hasattr(layer, "_nodes_by_depth")
