"""Which weights and layers a file lacks, by the kinds of layers that its class of models has.

For modules of one name, as of all layers, the table of architectures has the parts that only some
of them have, and which of these each kind has. All other parts are in all of them, or in none: a
flag brings those. Of classes without such rows, as users' files may be, nothing is reported.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from castwise.checkpoint.loading.modules import WEIGHT, LoadingProblem, Module
from castwise.models.architecture import (
    OPTIONAL_ROLES,
    UNEQUAL,
    Architecture,
    Kinds,
    current_name,
    normalize_name,
    stated_number,
)

_EXPERTS = "experts.#"
_MOST_DIGITS = 9  # Python reads no number of thousands of digits


@dataclass(slots=True, eq=False)
class _LayerPart:
    """A layer, `model.layers.3`, or a module in it, and what a file has of it."""

    name: str
    # The normalized name that the table has of it.
    pattern: str
    parts: set[str] = field(default_factory=set)
    # Parts here or in the modules around that the table does not have, as those of layers that
    # predict a further token: such layers are compared with each other.
    unknown_parts: frozenset[str] = frozenset()


def layer_problems(
    architecture: Architecture,
    config: Mapping[str, Any],
    modules: Sequence[Module],
    # The names of tensors that the architecture has no row of.
    unknown_names: Iterable[str],
) -> Iterator[LoadingProblem]:
    """Yield the weights and the layers that a file lacks beside others of their kind."""
    if not architecture.lists:
        return
    layers = _layers_of(architecture, modules)
    _mark_unknown_parts(layers, unknown_names)
    needed_names = _needed_names(architecture)
    groups: dict[str, dict[frozenset[str], list[_LayerPart]]] = {}
    for layer in layers.values():
        groups.setdefault(layer.pattern, {}).setdefault(layer.unknown_parts, []).append(layer)
    for pattern, alike in groups.items():
        kinds = architecture.kinds.get(pattern, frozenset())
        for group in alike.values() if _list_of(pattern) in architecture.lists else ():
            for layer, part, other in _lacking_parts(group, kinds):
                if f"{pattern}.{part}" in needed_names:
                    yield _lacking_part(layer, part, other, layers)
        if (
            pattern in needed_names
            and (count := architecture.lists.get(pattern, UNEQUAL)) != UNEQUAL
        ):
            names = (layer.name for group in alike.values() for layer in group)
            yield from _lacking_layers(names, stated_number(config, count) if count else None)


def _needed_names(architecture: Architecture) -> set[str]:
    """Return the rows that files must have, and the modules that have such rows."""
    rows = architecture.parameters.values()
    shared_names = {row.tied for row in rows if row.tied}
    names: set[str] = set()
    for row in rows:
        if row.role in OPTIONAL_ROLES or row.tied or row.name in shared_names:
            continue
        name = row.name
        while "#" in name and name not in names:
            names.add(name)
            name = name.rpartition(".")[0]
    return names


def _layers_of(architecture: Architecture, modules: Iterable[Module]) -> dict[str, _LayerPart]:
    """Return the layers of a file, and all modules in them, by their names."""
    layers: dict[str, _LayerPart] = {}
    for module in modules:
        row = module.parameter
        if row.role in OPTIONAL_ROLES or row.name not in architecture.parameters:
            continue
        name, row_name = current_name(module.weight), row.name
        # A norm may have its bias alone; a bias of another module is no weight.
        if row_name.endswith(WEIGHT) and row.role != "norm":
            name, row_name = name.removesuffix(WEIGHT), row_name.removesuffix(WEIGHT)
        while "#" in (pattern := row_name.rpartition(".")[0]):
            name, part = name.rpartition(".")[0], row_name[len(pattern) + 1 :]
            row_name = pattern
            layer = layers.get(name)
            if layer is not None:
                layer.parts.add(part)
                break
            layers[name] = _LayerPart(name, pattern, {part})
    return layers


def _mark_unknown_parts(layers: Mapping[str, _LayerPart], unknown_names: Iterable[str]) -> None:
    """Add to layers the parts that the table has no rows of, and to all modules in them."""
    parts: dict[str, set[str]] = defaultdict(set)
    for name in unknown_names:
        outer, _, part = name.rpartition(".")
        while outer and outer not in layers:
            outer, _, part = outer.rpartition(".")
        if outer and (part := normalize_name(part)) not in layers[outer].parts:
            parts[outer].add(f"{layers[outer].pattern}.{part}")
    for layer in layers.values() if parts else ():
        outer = layer.name
        while outer in layers:
            layer.unknown_parts |= parts.get(outer, set())
            outer = outer.rpartition(".")[0]


def _list_of(pattern: str) -> str:
    before, number, _ = pattern.rpartition("#")
    return before + number


def _lacking_parts(
    layers: Sequence[_LayerPart], kinds: Kinds
) -> Iterator[tuple[_LayerPart, str, str]]:
    """Yield the layers that lack parts, with each part, and the name of a layer that has it."""
    by_parts: dict[frozenset[str], list[_LayerPart]] = {}
    for layer in layers:
        by_parts.setdefault(frozenset(layer.parts), []).append(layer)
    varying = frozenset[str]().union(*kinds)
    all_parts = frozenset[str]().union(*by_parts)
    # A file may lack what a flag brings to one kind, and may have no layer of some kinds.
    kinds_here = {kind & all_parts for kind in kinds if not kind or kind & all_parts}
    counts = Counter(
        (_number(layer), frozenset(layer.parts & varying)) for layer in layers if kinds
    )
    for parts, lacking_layers in by_parts.items():
        own_kind, fixed_parts = parts & varying, parts - varying
        others = (other - varying for other in by_parts if fixed_parts < other - varying)
        lacking_parts = max(others, key=len, default=fixed_parts) - fixed_parts
        wider = [kind for kind in kinds_here if own_kind < kind and own_kind not in kinds_here]
        for layer in lacking_layers if lacking_parts or wider else ():
            # Of kinds of as many parts, that of the same number: blocks of T5 begin with attention.
            ranks = {kind: (len(kind), -counts[_number(layer), kind]) for kind in wider}
            kind = min(sorted(wider, key=sorted), key=ranks.__getitem__, default=own_kind)
            for part in sorted(lacking_parts | (kind - own_kind)):
                other = next(each for inner, each in by_parts.items() if part in inner)
                yield layer, part, other[0].name


def _number(layer: _LayerPart) -> str:
    return layer.name.rpartition(".")[2]


def _lacking_part(
    layer: _LayerPart, part: str, other: str, layers: Mapping[str, _LayerPart]
) -> LoadingProblem:
    """Describe a part that a layer lacks, and which another has, by its one weight or its name."""
    end = f".{part}"
    while (inner := layers.get(other + end)) is not None and len(inner.parts) == 1:
        end += f".{next(iter(inner.parts))}"
    noun = "experts" if layer.pattern.endswith(_EXPERTS) else "layers"
    name = (layer.name + end.partition(".#")[0]).removesuffix(WEIGHT)
    return _problem(name, f"the file has it of other {noun}, and not of this one")


def _lacking_layers(names: Iterable[str], stated_count: int | None) -> Iterator[LoadingProblem]:
    """Yield the first layer of each list, and the first expert, of which a file has nothing."""
    # A file may have more layers than the configuration states: those that predict further tokens.
    lists: dict[str, set[int]] = {}
    for name in names:
        digits = len(name) - len(name.rstrip("0123456789"))
        if digits <= _MOST_DIGITS:
            lists.setdefault(name[:-digits], set()).add(int(name[-digits:]))
    longest = max((max(numbers) + 1 for numbers in lists.values()), default=0)
    count = longest if stated_count is None else stated_count
    reason = "there are others" if stated_count is None else f"config.json states {stated_count}"
    for stem, numbers in lists.items():
        # With several gaps that no number tells of, a file may be a part of a model.
        if stated_count is None and count - len(numbers) > 1:
            continue
        number = next((number for number in range(count) if number not in numbers), None)
        if number is not None:
            yield _problem(f"{stem}{number}", f"{reason}, and the file has no tensor of this one")


def _problem(name: str, reason: str) -> LoadingProblem:
    return LoadingProblem(
        name, reason, "write the model anew with all its weights", is_lacking=True
    )
