"""Which weights and layers a file lacks that its other layers, and its configuration, have.

No table tells what layers of a class are without, so a file's own layers do. A part that all layers
have but one is lacking there, unless that layer is of another kind: it has a part that few others
have, as a dense layer among those of experts; it lacks several of one module, as one that shares
keys and values; or a list of the configuration has a value for it alone. Of the first and the last
layer only what is within their modules is compared: many classes leave out a norm there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from castwise.checkpoint.loading._modules import WEIGHT, Module
from castwise.checkpoint.loading.problem import LoadingProblem
from castwise.models.architecture import Architecture, normalize_name

# Layers that have a part, beside the one that does not: of fewer, each may be of its own kind.
_LEAST_OTHERS = 2
# Layers, and weights of each, by which a list is one of layers and not of convolutions.
_LEAST_LAYERS, _LEAST_WEIGHTS = 3, 4
# The share of the stated layers that a file has, if it is not one that repeats some.
_LEAST_SHARE = 0.75
# Roles of weights that each layer of a kind has; what else a router has may be of some layers
# alone: ZAYA's first one has no `router_states_scale`.
_REQUIRED = frozenset(("linear", "experts", "norm"))
# Lists without a weight of these roles are of convolutions, each of its own kind: the third one of
# DPT's `resize` keeps the size, and has no weight.
_OF_MATRICES = frozenset(("linear", "experts"))
_EXPERTS = "experts"
_COUNTS = frozenset(("num_hidden_layers", "n_layer", "num_layers", "n_layers"))
# Those of the two sides of a model; "num_hidden_layers" is the encoder's, also beside a decoder.
_COUNTS_OF_SIDES = frozenset(
    ("encoder_layers", "decoder_layers", "num_encoder_layers", "num_decoder_layers")
)
_EXPERT_COUNTS = frozenset(
    ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
)
_MOST_DIGITS = 9  # Python reads no number of thousands of digits


@dataclass(slots=True)
class _LayerPart:
    """A weight or a module of layers, `model.layers.#.mlp`, and the layers that have it."""

    name: str
    layers: set[str] = field(default_factory=set)
    children: dict[str, _LayerPart] = field(default_factory=dict)
    # True if a file must have it: the table has a row of such a weight in it.
    is_needed: bool = False
    # True if it has a weight of a linear layer, or of experts.
    is_linear: bool = False

    @property
    def is_layer(self) -> bool:
        """True for the layer itself, or an expert."""
        return self.name.endswith("#")

    @property
    def is_expert(self) -> bool:
        """True for one of the experts of a layer."""
        return self.is_layer and self.name.rpartition(".")[0].endswith(_EXPERTS)


def layer_problems(
    architecture: Architecture,
    config: Mapping[str, Any],
    modules: Sequence[Module],
    # The names of tensors that the architecture has no row of.
    unknown_names: Iterable[str],
) -> Iterator[LoadingProblem]:
    """Yield the weights and the layers that a file lacks beside others of their kind."""
    weights: dict[str, _LayerPart] = {}
    depths: dict[str, int] = {}
    shared_names = {row.tied for row in architecture.parameters.values() if row.tied}
    for module in modules:
        pattern = module.pattern
        if pattern not in weights:
            row = module.parameter
            is_shared = bool(row.tied) or row.name in shared_names
            is_router = row.role == "router" and module.weight.endswith(WEIGHT)
            name = pattern + module.weight.removeprefix(module.name)
            weights[pattern] = _LayerPart(
                name,
                is_needed=not is_shared and (row.role in _REQUIRED or is_router),
                is_linear=row.role in _OF_MATRICES,
            )
            depths[pattern] = _depth(pattern)
        if (depth := depths[pattern]) >= 0:
            weights[pattern].layers.add(module.name.rsplit(".", depth)[0])
    for name in unknown_names:
        pattern = normalize_name(name)
        if (depth := _depth(pattern)) >= 0:
            weights.setdefault(pattern, _LayerPart(pattern)).layers.add(name.rsplit(".", depth)[0])
    parts = _tree(weight for weight in weights.values() if weight.layers)
    odd_numbers = _odd_numbers(config)
    for part in parts.values():
        if parts[_list_of(part.name)].is_linear:
            yield from _lacking_parts(part, odd_numbers)
    yield from _lacking_layers(parts, config)


def _depth(pattern: str) -> int:
    """Return how many names follow the last number of a name; -1 if it has none."""
    _, number, end = pattern.rpartition("#")
    return end.count(".") if number else -1


def _tree(weights: Iterable[_LayerPart]) -> dict[str, _LayerPart]:
    """Return the parts of layers by their names: weights, and all modules around them."""
    parts: dict[str, _LayerPart] = {}
    for weight in weights:
        part = parts.setdefault(weight.name, weight)
        part.layers |= weight.layers
        part.is_needed |= weight.is_needed
        part.is_linear |= weight.is_linear
        while "#" in (name := part.name.rpartition(".")[0]):
            parent = parts.setdefault(name, _LayerPart(name))
            parent.children[part.name] = part
            parent.is_needed |= weight.is_needed
            parent.is_linear |= weight.is_linear
            part = parent
    for part in sorted(parts.values(), key=lambda part: -part.name.count(".")):
        for child in part.children.values():
            # The layers of a list within the part are cut down to those of the part.
            depth = child.name[len(_list_of(part.name)) :].count(".") if child.is_layer else 0
            part.layers |= {layer.rsplit(".", depth)[0] for layer in child.layers}
    return parts


def _lacking_parts(part: _LayerPart, odd_numbers: Container[int]) -> Iterator[LoadingProblem]:
    """Yield what a part has in all layers but one; in experts, in more than it has not."""
    children = [child for child in part.children.values() if not child.is_layer]
    odd_layers = _odd_layers(part, children, odd_numbers)
    for child in children:
        lacking_layers = part.layers - child.layers
        if part.is_expert:
            lacking_layers = _before_last(lacking_layers, child.layers)
        most_layers = len(child.layers) if part.is_expert else 1
        if (
            not child.is_needed
            or len(child.layers) < _LEAST_OTHERS
            or len(lacking_layers) > most_layers
        ):
            continue
        noun = "experts" if part.is_expert else "layers"
        end = _only_weight(child).removeprefix(_list_of(child.name))
        for layer in sorted(lacking_layers - odd_layers):
            yield _problem(layer + end, f"the file has it of other {noun}, and not of this one")


def _before_last(layers: Iterable[str], others: Iterable[str]) -> set[str]:
    """Return the experts whose numbers are at most the highest of some others.

    LongCat's last experts pass their inputs on: as transformers saves them, they lack `down_proj`.
    """
    last = max((number for numbers in _numbers(others).values() for number in numbers), default=-1)
    return {
        f"{stem}{number}"
        for stem, numbers in _numbers(layers).items()
        for number in numbers
        if number <= last
    }


def _odd_layers(
    part: _LayerPart, children: Sequence[_LayerPart], odd_numbers: Container[int]
) -> set[str]:
    """Return the layers whose part is of another kind than that of most."""
    odd_layers = {
        layer
        for child in children
        if 2 * len(child.layers) <= len(part.layers)
        for layer in child.layers
    }
    if part.is_expert:
        return odd_layers
    lacking_layers = (part.layers - child.layers for child in children)
    counts = Counter(layer for layers in lacking_layers if len(layers) == 1 for layer in layers)
    odd_layers |= {
        layer for layer, count in counts.items() if count > 1 or _first_number(layer) in odd_numbers
    }
    return odd_layers | _ends(part.layers) if part.is_layer else odd_layers


def _first_number(layer: str) -> int | None:
    """Return the number of the outermost layer."""
    digits = next((part for part in layer.split(".") if part.isdecimal()), "")
    return int(digits) if 0 < len(digits) <= _MOST_DIGITS else None


def _odd_numbers(config: Mapping[str, Any]) -> set[int]:
    """Return the numbers of layers for which alone a list of their kinds has a value."""
    numbers: set[int] = set()
    for section in _sections(config):
        for values in (value for value in section.values() if isinstance(value, list)):
            counts = Counter(map(repr, values))
            if 2 * len(counts) <= len(values):
                numbers |= {n for n, value in enumerate(values) if counts[repr(value)] == 1}
    return numbers


def _sections(config: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return a configuration, and all within it."""
    sections = [config]
    for section in sections:
        sections += [value for value in section.values() if isinstance(value, Mapping)]
    return sections


def _list_of(pattern: str) -> str:
    before, number, _ = pattern.rpartition("#")
    return before + number


def _only_weight(part: _LayerPart) -> str:
    """Return the name of the one weight in a module; its own if it has several."""
    while len(part.children) == 1 and not (child := next(iter(part.children.values()))).is_layer:
        part = child
    return part.name.removesuffix(WEIGHT)


def _ends(layers: Iterable[str]) -> set[str]:
    """Return the first and the last layer of each list."""
    return {
        f"{stem}{number}"
        for stem, numbers in _numbers(layers).items()
        for number in (min(numbers), max(numbers))
    }


def _numbers(layers: Iterable[str]) -> dict[str, set[int]]:
    """Return the numbers of layers, by what is before them: `model.layers.`, `expert_`."""
    numbers: dict[str, set[int]] = {}
    for layer in layers:
        digits = len(layer) - len(layer.rstrip("0123456789"))
        if digits <= _MOST_DIGITS:
            numbers.setdefault(layer[:-digits], set()).add(int(layer[-digits:]))
    return numbers


def _lacking_layers(
    parts: Mapping[str, _LayerPart], config: Mapping[str, Any]
) -> Iterator[LoadingProblem]:
    """Yield the first layer of each list, and the first expert, of which a file has nothing.

    A file may have more layers than the configuration states: those that predict further tokens.
    """
    lists = [part for part in parts.values() if part.is_layer and part.is_needed and part.is_linear]
    outermost = [part for part in lists if part.name.count("#") == 1 and _is_of_layers(part)]
    stated_count = _stated_number(config, _COUNTS) if len(outermost) == 1 else None
    if any(count != stated_count for count in _stated_numbers(config, _COUNTS_OF_SIDES)):
        stated_count = None
    for part in outermost:
        for stem, numbers in _numbers(part.layers).items():
            count = (
                stated_count if stated_count and len(numbers) >= _LEAST_SHARE * stated_count else 0
            )
            has_one_gap = len(numbers) == max(numbers)
            number = _first_absent(numbers, max(count, *numbers))
            if number is not None and (has_one_gap or number < count):
                yield _lacking_layer(f"{stem}{number}", count)
    stated_count = _stated_number(config, _EXPERT_COUNTS)
    for part in lists:
        if not part.is_expert:
            continue
        lists_of_experts = _numbers(part.layers)
        lengths = [max(numbers) + 1 for numbers in lists_of_experts.values()]
        count = stated_count if stated_count in lengths else 0
        longest = max(lengths, default=0)
        is_one_shorter = lengths.count(longest) == len(lengths) - 1 >= _LEAST_OTHERS
        length = count or (longest if is_one_shorter else 0)
        for stem, numbers in lists_of_experts.items():
            number = _first_absent(numbers, max(length, *numbers))
            if number is not None:
                yield _lacking_layer(f"{stem}{number}", count)


def _is_of_layers(part: _LayerPart) -> bool:
    """Return True for a list of layers, most of which have several weights."""
    weights, parts = 0, [part]
    while parts:
        for child in parts.pop().children.values():
            if not child.is_layer and 2 * len(child.layers) > len(part.layers):
                weights += child.is_needed and not child.children
                parts.append(child)
    return len(part.layers) >= _LEAST_LAYERS and weights >= _LEAST_WEIGHTS


def _stated_number(config: Mapping[str, Any], names: Container[str]) -> int | None:
    """Return the one number of these names that a configuration has; None if it has several."""
    counts = _stated_numbers(config, names)
    return counts[0] if len(counts) == 1 and type(counts[0]) is int else None


def _stated_numbers(config: Mapping[str, Any], names: Container[str]) -> list[Any]:
    """Return what a configuration, and all within it, has under these names."""
    return [value for part in _sections(config) for name, value in part.items() if name in names]


def _first_absent(numbers: Container[int], count: int) -> int | None:
    return next((number for number in range(count) if number not in numbers), None)


def _lacking_layer(layer: str, count: int) -> LoadingProblem:
    reason = f"config.json states {count}" if count else "there are others"
    return _problem(layer, f"{reason}, and the file has no tensor of this one")


def _problem(name: str, reason: str) -> LoadingProblem:
    return LoadingProblem(
        name, reason, "write the model anew with all its weights", is_lacking=True
    )
