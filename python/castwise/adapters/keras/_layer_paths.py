"""Find the paths of a model's layers, also before Keras has set them, or after it changed them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

from castwise.environment.frameworks import require


class PlacedLayer(NamedTuple):
    """A layer, and the paths under which a map may know it."""

    path: str
    """Keras' path, or the one that it would set."""
    longer: tuple[str, ...]
    """The paths with more of the names of the models and layers that hold it, longest first."""
    layer: Any

    @property
    def shorter(self) -> tuple[str, ...]:
        """The paths with fewer of these names, longest first."""
        return _ends(self.path)


def placed_layers(model: Any) -> list[PlacedLayer]:
    """Return each layer of a model with its paths, the model first; a shared layer once.

    Keras sets the path of a layer when it is built: with the names of what holds it if it is built
    by a call of that, without them if it is built from a config, by itself, as layers of loaded and
    of cloned models are. So the path of a layer changes where a model is saved and loaded.

    A layer that is not built, or has nothing to build (Dropout), gets the path that Keras would
    set: beside its siblings if these have paths, else below the layer that holds it. Layers of a
    functional model, which are built outside of it, are below no other layer. `InputLayer` is left
    out: it computes nothing, and an input has its own dtype.

    Where several layers have one path, each has its longest path alone.
    """
    path = model.path or model.name
    placed = list(_walk(model, path, path, set()))
    counts = Counter(place.path for place in placed)
    return [
        place._replace(path=place.longer[0], longer=())
        if counts[place.path] > 1 and place.longer
        else place
        for place in placed
    ]


def _walk(layer: Any, path: str, full: str, ids: set[int]) -> Iterator[PlacedLayer]:
    ids.add(id(layer))
    longer = (full, *_ends(full)) if full.endswith(f"/{path}") else ()
    yield PlacedLayer(
        path, tuple(longer_path for longer_path in longer if len(longer_path) > len(path)), layer
    )
    children = [child for child in layer._layers if not _is_input(child)]
    prefix = _prefix(layer, path, children)
    above = "" if _is_functional(layer) else f"{full}/"
    for child in children:
        if id(child) not in ids:
            yield from _walk(child, child.path or prefix + child.name, above + child.name, ids)


def _ends(path: str) -> tuple[str, ...]:
    """Return a path without its first name, without its first two, and so on."""
    names = path.split("/")
    return tuple("/".join(names[count:]) for count in range(1, len(names)))


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
