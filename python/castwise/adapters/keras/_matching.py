"""Match the keys of a map with the layers of a model, also where loading changed their paths."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from castwise.dtype_policies import DTypePolicy, DTypePolicyMap, Explanation, get
from castwise.environment.frameworks import require


class PlacedLayer(NamedTuple):
    """A layer, and the paths under which a map may know it."""

    path: str  # Keras' path, or the one that it would set
    # The paths with more of the names of the models and layers that hold it, longest first.
    longer: tuple[str, ...]
    layer: Any

    @property
    def shorter(self) -> tuple[str, ...]:
        """The paths with fewer of these names, longest first."""
        return _ends(self.path)


def placed_layers(model: Any) -> list[PlacedLayer]:
    """Return each layer of a model with its paths, the model first; a shared layer once."""
    # Keras sets the path of a layer when it is built: with the names of what holds it if a call of
    # that builds it, without them if it is built by itself, from a config, as layers of loaded and
    # of cloned models are. So the path of a layer changes where a model is saved and loaded.
    path = model.path or model.name
    placed = list(_walk(model, path, path, set()))
    counts = Counter(place.path for place in placed)
    # Where several layers have one path, each has its longest path alone.
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
    # InputLayer computes nothing, and an input has its own dtype.
    input_layer = require("keras").layers.InputLayer
    children = [child for child in layer._layers if not isinstance(child, input_layer)]
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
    """Return the beginning of the paths of a layer's children, as Keras would set them."""
    # A layer that is not built, or has nothing to build (Dropout), is beside its siblings if these
    # have paths, else below the layer that holds it. Layers of a functional model, which are built
    # outside of it, are below no other layer.
    for child in children:
        if child.path and f"/{child.path}".endswith(f"/{child.name}"):
            return str(child.path).removesuffix(child.name)
    return "" if _is_functional(layer) else f"{path}/"


def _is_functional(layer: Any) -> bool:
    """Tell whether the layer is a functional model, whose layers were called before it existed."""
    return hasattr(layer, "_nodes_by_depth")


@dataclass(frozen=True, slots=True)
class Matching:
    """The layers of a model, each with the path under which a map has its policy."""

    explanation: Explanation  # the report on these paths
    layers: list[tuple[str, Any]]  # the layers with these paths
    # The paths of layers that only another path of theirs matched, with that path.
    renamed: dict[str, str]
    # The paths that a key matches, of layers whose longer paths none does, with the longest.
    shortened: dict[str, str]
    # For unused keys that other paths of layers would match, why they do not.
    reasons: tuple[str, ...]


def match_layers(policy_map: DTypePolicyMap, layers: list[PlacedLayer]) -> Matching:
    """Look up each layer by its path, else by the paths that it has where it is not loaded."""
    all_paths = policy_map.explain(path for place in layers for path in (place.path, *place.longer))
    paths, shortened = [], {}
    for place in layers:
        candidates = (place.path, *place.longer)
        matched = {
            path: all_paths.paths[path].key for path in candidates if all_paths.paths[path].matches
        }
        _refuse_several(policy_map, place, matched)
        paths.append(next(iter(matched), place.path))
        if place.longer and [*matched] == [place.path]:
            shortened[place.path] = place.longer[0]
    explanation = policy_map.explain(paths)
    _refuse_ambiguous(explanation)
    reasons = tuple(_reasons(policy_map, explanation, layers))
    if all(place.layer.built for place in layers):
        refuse_unused(explanation, reasons)
    pairs = list(zip(paths, layers, strict=True))
    return Matching(
        explanation,
        [(path, place.layer) for path, place in pairs],
        {place.path: path for path, place in pairs if path != place.path},
        shortened,
        reasons,
    )


def _refuse_several(
    policy_map: DTypePolicyMap, place: PlacedLayer, matched: dict[str, str | None]
) -> None:
    """Refuse a layer of which different keys match different paths."""
    paths: dict[str | None, str] = {}
    for path, key in matched.items():
        paths.setdefault(key, path)
    if len(paths) > 1 and policy_map.on_overlap == "raise" and None not in paths:
        pairs = " and ".join(f"{path!r} by {key!r}" for key, path in paths.items())
        raise ValueError(
            f"the layer {place.path!r} is matched under two of its paths, {pairs}: it has the "
            "longer one where its model is not loaded from a config; nothing was changed. "
            'Make the keys disjoint, or use on_overlap="first" for that of its present path'
        )


def _refuse_ambiguous(explanation: Explanation) -> None:
    paths = [path for path, match in explanation.paths.items() if match.ambiguous]
    if paths:
        keys = explanation.paths[paths[0]].matches
        more = f", and {len(paths) - 1} more paths by several" if paths[1:] else ""
        raise ValueError(
            f"{paths[0]!r} is matched by {len(keys)} keys, {', '.join(map(repr, keys))}{more}; "
            'nothing was changed. Make the keys disjoint, or use on_overlap="first" or "longest"'
        )


def _reasons(
    policy_map: DTypePolicyMap, explanation: Explanation, layers: list[PlacedLayer]
) -> Iterator[str]:
    """Write of unused keys that layers match by fewer names, or under another name of the model."""
    name = layers[0].path
    for key in explanation.unused:
        keys_map = DTypePolicyMap("float32", {key: "float32"}, match=policy_map.match)
        model_name = key.partition("/")[0]
        shorter = {end: place.path for place in layers for end in place.shorter}
        renamed = {
            model_name + path.removeprefix(name): path
            for place in layers
            for path in (place.path, *place.longer)
            if path.startswith(f"{name}/")
        }
        if (path := _first_match(keys_map, shorter)) is not None:
            yield (
                f"the key {key!r} matches {path!r} only without its first names, which layers of "
                f"loaded models lack; write '(.*/)?{key}' for both"
            )
        elif (path := _first_match(keys_map, renamed)) is not None:
            yield (
                f"the key {key!r} matches {path!r} only in a model named {model_name!r}, and this "
                f"one is named {name!r}; give it that name, also in its get_config"
            )


def _first_match(policy_map: DTypePolicyMap, paths: dict[str, str]) -> str | None:
    matches = policy_map.explain(paths).paths
    return next((paths[path] for path, match in matches.items() if match.matches), None)


def as_policy_map(policy_map: Any, example: Any) -> DTypePolicyMap:
    """Return a map, given as a map or as the config of one."""
    if isinstance(policy_map, dict) and "class_name" in policy_map:
        try:
            policy_map = get(policy_map)
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(
                f"policy_map={example!r} is not the config of a map ({error!r}); "
                "castwise.dtype_policies.serialize(policy_map) makes one"
            ) from error
    if isinstance(policy_map, DTypePolicyMap):
        return policy_map
    remedy = (
        "cast_model(model, policy) is for one policy of all layers"
        if isinstance(policy_map, DTypePolicy | str)
        else "give DTypePolicyMap(default_policy, {path or pattern: policy, ...})"
    )
    raise TypeError(f"policy_map={example!r} is not a map of policies; {remedy}")


def refuse_unused(explanation: Explanation, reasons: Iterable[str] = ()) -> None:
    """Raise ValueError if a map has keys and uses none of them; say why, if that is known."""
    if not explanation.unused or len(explanation.unused) < len(explanation.keys):
        return
    key, nearest = next(iter(explanation.unused.items()))
    why = "; ".join(reasons) or f"the path nearest to {key!r} is {nearest!r}"
    raise ValueError(
        f"policy_map: no layer of the model matches any of its keys, and nothing was changed: {why}"
    )
