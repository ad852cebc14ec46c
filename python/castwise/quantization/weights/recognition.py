"""Find the quantized weights of a checkpoint from names, formats, shapes and what is stated."""

import math
import re
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from castwise.quantization.producers.configs import (
    Contradiction,
    Statement,
    contradictions,
    has_dynamic_inputs,
    statements,
)
from castwise.quantization.producers.foreign import scale_of_attention, with_foreign
from castwise.quantization.producers.found import Orphan, Quantization, QuantizedWeight
from castwise.quantization.producers.keras import KERAS_FLOAT8, numbered_kernel, plain_names
from castwise.quantization.producers.layouts import (
    ACTIVATION,
    BYTES,
    FLOAT8,
    FP8_SCALE,
    MATRIX,
    OF_WORD,
    OTHER,
    SCALE,
    WIDE,
    Layout,
    block_grid,
    grid_of_scales,
)
from castwise.quantization.producers.names import (
    Described,
    Match,
    match_layout,
    may_be_payload,
    name_part,
    owner,
    tail,
)
from castwise.quantization.producers.producer import Producer
from castwise.quantization.producers.registry import MARKERS, PRODUCERS, lasts
from castwise.quantization.producers.schemes import may_hold
from castwise.quantization.producers.stated import Stated

_WEIGHT = "weight"

# The length of what the name of a payload ends with, and what stands there in that of a part.
_Need = tuple[int, str]
# Scheme, block, what contradicts the block, and whether shapes alone tell these.
_Verdict = tuple[str | None, tuple[int, ...] | None, str | None, bool]


def recognize(
    tensors: Iterable[Described],  # all tensors of the checkpoint
    # Parsed files beside it, by name; see `castwise.quantization.producers.configs.CONFIGS`
    configs: Mapping[str, Any],
    metadata: Mapping[str, str],  # its metadata
) -> Quantization | None:
    """Return what is quantized; None if nothing is, and nothing says that it is."""
    sources = statements(configs, metadata)
    quantization = _Search(tensors, sources, [*contradictions(configs)]).find_weights()
    return None if quantization == Quantization() else quantization


class _Search:
    """The search in one checkpoint."""

    def __init__(
        self,
        tensors: Iterable[Described],
        statements: Sequence[Statement],
        contradictions: Sequence[Contradiction],
    ) -> None:
        self._tensors = plain_names(tensors)
        self._sources = statements
        self._contradictions = contradictions
        self._tails = lasts(self._tensors)
        self._parameters: dict[str, str] = {}
        """The parameter that each payload is, by the name of the payload."""
        # The producers of rows of the table: of the best ones, and of all.
        self._producers: dict[tuple[Layout | None, ...], tuple[tuple[str, ...], set[str]]] = {}
        self._verdicts: dict[tuple[object, ...], _Verdict] = {}
        self._neighbors: set[str] = set()
        """The tensors beside payloads that are named as parts, whatever their format."""
        recipe_names = {name for statement in statements for name in statement.recipes}
        self._recipes = tuple(recipe for recipe in PRODUCERS if recipe.name in recipe_names)

    def find_weights(self) -> Quantization:
        """Find the quantized weights, what belongs to them, and what lacks a part."""
        weights = self._weights(self._recipes or PRODUCERS, {})
        if self._recipes:
            # What is not stored as stated is recognized all the same, and the contradiction named.
            methods, beside_stated = ", ".join(self._texts()), self._neighbors
            for name, weight in self._weights(PRODUCERS, weights).items():
                problem = (
                    f"{methods} is stated, but it is stored as by {' or '.join(weight.recipes)}"
                )
                weights[name] = replace(weight, problem=problem)
            self._neighbors = beside_stated
        for contradiction in self._contradictions:
            for name, weight in weights.items():
                if contradiction.is_about(weight.recipes):
                    weights[name] = replace(weight, problem=contradiction.text)
        names = {name for weight in weights.values() for name in weight.recipes}
        names |= {MARKERS[marker] for marker in map(tail, self._tensors) if marker in MARKERS}
        active = self._recipes or tuple(recipe for recipe in PRODUCERS if recipe.name in names)
        used = {name for weight in weights.values() for name in (weight.payload, *weight.parts)}
        beside_weights = [
            info.name
            for name, info in self._tensors.items()
            if (name.endswith(KERAS_FLOAT8) and tail(name) in KERAS_FLOAT8)
            or (
                active
                and info.name not in used
                and (tail(name) in MARKERS or scale_of_attention(name) is not None)
            )
        ]
        known_names = used.union(beside_weights, self._neighbors)
        weights = with_foreign(weights, self._parameters, self._tensors, known_names)
        foreign = {name for weight in weights.values() for name in weight.foreign}
        orphans = self._orphans(active, known_names | foreign)
        return Quantization(
            self._texts(),
            self._unknown(),
            tuple(weights[info.name] for info in self._tensors.values() if info.name in weights),
            tuple(orphans),
            tuple(beside_weights),
            inputs="dynamic" if any(map(has_dynamic_inputs, self._sources)) else None,
        )

    def _texts(self) -> tuple[str, ...]:
        return tuple(
            dict.fromkeys(f"{statement.origin}: {statement.method}" for statement in self._sources)
        )

    def _unknown(self) -> str | None:
        """Name a stated method that is not known, if some tensor may be stored by it."""
        if all(info.format in WIDE for info in self._tensors.values()):
            return None
        return next((source.method for source in self._sources if not source.recipes), None)

    def _weights(
        self, recipes: Sequence[Producer], known_payloads: Container[str]
    ) -> dict[str, QuantizedWeight]:
        """Find the weights stored as one of the recipes says, by the name of the payload."""
        # Weights with `known_payloads` are left out.
        self._producers, self._verdicts = {}, {}
        owners: dict[Layout, list[str]] = {}
        for recipe in recipes:
            for layout in recipe.layouts:
                if self._may_hold(layout):
                    owners.setdefault(layout, []).append(recipe.name)
        weights: dict[str, QuantizedWeight] = {}
        self._neighbors = set()
        # Layouts of each kind of payloads, behind what the name of one needs beside it.
        likely: dict[tuple[str | None, str], list[tuple[_Need, list[Layout]]]] = {}
        for name, info in self._tensors.items() if owners else ():
            if info.name in known_payloads:
                continue
            kind = info.format, tail(name)
            if kind not in likely:
                layouts = (layout for layout in owners if may_be_payload(layout, *kind))
                likely[kind] = [(need, [*rows]) for need, rows in groupby(layouts, _need_of)]
            candidates = [
                match
                for (length, ending), rows in likely[kind]
                if not ending or name[: len(name) - length] + ending in self._tensors
                for layout in rows
                if (match := match_layout(layout, name, self._tensors)) is not None
            ]
            if candidates:
                weights[info.name] = self._weight(info, candidates, owners)
        return weights

    def _may_hold(self, layout: Layout) -> bool:
        """Return False if no tensor is named as one that the layout requires."""
        required_names = [part.name for part in layout.parts if part.is_required]
        return all(
            any(ending.endswith(tail(name)) for ending in self._tails)
            for name in required_names or [layout.payload]
        )

    def _weight(
        self,
        info: Described,
        candidates: Sequence[Match[Described]],
        owners: Mapping[Layout, Sequence[str]],
    ) -> QuantizedWeight:
        best_matches = candidates if len(candidates) == 1 else _best(candidates)
        best_match = best_matches[0]
        self._parameters[info.name] = best_match.weight
        layouts = tuple([match.layout for match in best_matches])
        # Rows of the table: all of them, and the best.
        rows = (*[match.layout for match in candidates], None, *layouts)
        if (names := self._producers.get(rows)) is None:
            names = self._producers[rows] = (
                tuple(dict.fromkeys(name for row in best_matches for name in owners[row.layout])),
                {name for match in candidates for name in owners[match.layout]},
            )
        recipes, possible = names
        statement, problem = self._describe(info, best_matches, recipes, possible)
        # What follows from formats and shapes is the same for weights that differ in names alone.
        kind = (
            *(rows, statement, info.format, info.shape),
            *[
                (part, tensor.shape)
                for match in best_matches
                for part, tensor in match.parts.values()
            ],
        )
        if (verdict := self._verdicts.get(kind)) is None:
            verdict = self._verdicts[kind] = self._verdict(info, best_matches, statement, recipes)
        scheme, block, block_problem, is_evident = verdict
        missing = self._missing(best_match, statement)
        return QuantizedWeight(
            numbered_kernel(info.name)
            or name_part(tail(best_match.weight).removeprefix("_"), best_match.weight),
            scheme,
            block,
            recipes,
            info.name,
            {tensor.name: part.role for part, tensor in best_match.parts.values()},
            problem or block_problem or missing,
            by_shapes=is_evident,
            layouts=layouts,
        )

    def _verdict(
        self,
        info: Described,
        matches: Sequence[Match[Described]],
        statement: Stated,
        recipes: Sequence[str],
    ) -> _Verdict:
        schemes = {_scheme(match, statement, info.shape) for match in matches}
        scheme = schemes.pop() if len(schemes) == 1 else None
        block, problem = _block(matches[0], scheme, statement, info, recipes)
        evident = None if self._sources or scheme is None else _evident_block(matches[0], info)
        if scheme == "fp8_block":
            block = block or evident
        return scheme, block, problem, evident is not None

    def _scales_of(self, layout: Layout, name: str, info: Described, is_named: bool) -> list[str]:
        """Name what a payload of this name and format lacks: the scale, if all else is there."""
        weight = owner(layout.payload, name)
        is_named = is_named or layout.payload != ""
        if weight is None or not is_named or info.format not in (layout.formats or BYTES):
            return []
        if not layout.payload and not _is_usual(weight, layout) and info.format not in FLOAT8:
            return []
        scale = name_part(layout.parts[0].name, weight)
        names = [
            scale,
            *(name_part(part.name, weight) for part in layout.parts if part.is_required),
        ]
        return [next((part_name for part_name in names if part_name not in self._tensors), scale)]

    def _missing(self, match: Match[Described], statement: Stated) -> str | None:
        """Name what is beside the payload in another format, or stated to be there, and is not."""
        wrong = None
        matched_parts = {part for part, _ in match.parts.values()}
        for part in match.layout.parts:
            if part in matched_parts or not part.formats:  # any format fits what is there
                continue
            tensor = self._tensors.get(name_part(part.name, match.weight))
            if tensor is None or tensor is match.payload:
                continue
            self._neighbors.add(tensor.name)
            if part.formats and tensor.format not in part.formats:
                formats = " or ".join(part.formats)
                wrong = f"{tensor.name!r} is {tensor.format}; decoding needs {formats}"
        needs = (
            need
            for need in statement.needs
            if not any(
                need == part.role or name.endswith(need) for name, (part, _) in match.parts.items()
            )
        )
        if wrong is None and (need := next(needs, None)) is not None:
            return f"its configuration states that it has a {need}, and it has none"
        return wrong

    def _describe(
        self,
        info: Described,
        matches: Sequence[Match[Described]],
        recipes: Iterable[str],
        possible: set[str],
    ) -> tuple[Stated, str | None]:
        """Put together what is stated of a weight; what contradicts its layout does not count."""
        # `possible` are the producers whose names and formats its tensors have.
        module = matches[0].weight.rpartition(".")[0]
        result, problem = Stated(), None
        spoken: list[tuple[str, Stated]] = []
        for statement in self._sources:
            if not set(statement.recipes).intersection(recipes):
                if (
                    spoken
                    and not possible.isdisjoint(statement.recipes)
                    and statement.origin != spoken[0][0]
                ):
                    problem = problem or _differing(
                        spoken[0][0], statement.origin, "another method"
                    )
                continue
            claim = statement.describe(module, info.format)
            elsewhere = claim.elsewhere
            if elsewhere is not None and f"{elsewhere}.{_WEIGHT}" not in self._tensors:
                problem = problem or (
                    f"{statement.origin} states {elsewhere!r} apart, and the module is {module!r} "
                    "here; rename that entry"
                )
            if claim.problem is not None:
                problem = problem or f"{statement.origin} {claim.problem}"
            if claim.scheme is None or any(
                may_hold(match.layout, claim.scheme) for match in matches
            ):
                problem = problem or _contradiction(spoken, statement.origin, claim)
                result = Stated(
                    result.scheme or claim.scheme,
                    result.block or claim.block,
                    result.needs or claim.needs,
                )
            else:
                parts = " and ".join(map(tail, matches[0].parts))
                # Words hold codes of any width: the parts beside them tell what they are.
                kind = f"beside {parts}" if info.format in OF_WORD and parts else info.format
                problem = problem or (
                    f"{statement.origin} states {claim.scheme}, but the payload is {kind}"
                )
            spoken.append((statement.origin, claim))
        return result, problem

    def _orphans(self, recipes: Sequence[Producer], used: set[str]) -> list[Orphan]:
        """List what lacks the rest of a weight."""
        # Where nothing is quantized otherwise, those that have names of their own: of all recipes.
        is_quantized = bool(recipes)
        layouts = dict.fromkeys(
            layout for recipe in recipes or PRODUCERS for layout in recipe.layouts
        )
        orphans = []
        for name, info in self._tensors.items():
            if info.name in used or not (is_quantized or tail(name) in self._tails):
                continue
            payloads = [
                weight_name
                for row in layouts
                for weight_name in _payloads_of(row, name, info, is_quantized)
            ]
            scales = [
                weight_name
                for row in layouts
                for weight_name in self._scales_of(row, name, info, is_quantized)
            ]
            if missing := payloads or scales:
                plain = (
                    name
                    for name in payloads
                    if name in self._tensors and self._tensors[name].format in WIDE
                )
                names = tuple(dict.fromkeys(missing))
                orphans.append(Orphan(info.name, not payloads, names, next(plain, None)))
        return orphans


def _differing(origin: str, second: str, difference: str) -> str:
    return f"{origin} and {second} state {difference}; remove or mend the one that is wrong"


def _contradiction(spoken: Sequence[tuple[str, Stated]], origin: str, claim: Stated) -> str | None:
    """Say in what a statement differs from those before it, where neither leaves it open."""
    details = dict(claim.details)
    for other, earlier in spoken:
        if other == origin:  # of which `contradictions` tells
            continue
        for name, value_before, value in (
            ("scheme", earlier.scheme, claim.scheme),
            ("block", earlier.block, claim.block),
            *((key, value, details.get(key)) for key, value in earlier.details),
        ):
            if None not in (value_before, value) and value_before != value:
                return _differing(other, origin, f"another {name} each, {value_before} and {value}")
    return None


def _need_of(layout: Layout) -> _Need:
    """Return the name of a part without which a payload has another layout; "" if none is known."""
    payload = layout.payload
    names = [part.name for part in layout.parts if part.is_required and part.name[0] == "_"]
    return (len(payload), names[0]) if names and payload[:1] in ("", "_") else (0, "")


def _best(matches: Sequence[Match[Described]]) -> list[Match[Described]]:
    ranks = [*map(_rank, matches)]
    best = max(ranks)
    return [match for match, rank in zip(matches, ranks, strict=True) if rank == best]


def _rank(match: Match[Described]) -> tuple[int, bool, bool]:
    """Return what decides between layouts: how many parts, the parameter's name, the columns."""
    layout, payload, scale = match.layout, match.payload.shape, _scale(match)
    fits = False
    if layout.columns is not None and scale and payload:
        codes, count = layout.columns
        fits = payload[-1] * count == scale[-1] * codes
    return len(match.parts), bool(layout.parameters), fits


def _scale(match: Match[Described]) -> tuple[int, ...]:
    return () if match.scale is None else grid_of_scales(match.scale.shape, match.payload.shape)


def _scheme(match: Match[Described], statement: Stated, shape: tuple[int, ...]) -> str | None:
    """Return what is stated if the layout may hold it, else what the layout itself says."""
    template = match.layout.scheme
    if statement.scheme is not None and may_hold(match.layout, statement.scheme):
        template = statement.scheme
    if template == "fp8_channel" and match.layout.parameters and shape[:-2] == _scale(match):
        return "fp8_tensor"  # as ModelOpt calls one scale for each expert too
    if template.endswith("{}"):
        granularity = _granularity(template, shape, _scale(match), statement.block)
        return template.format(granularity).removesuffix("_")
    return template or None


def _granularity(
    template: str, shape: tuple[int, ...], scale: tuple[int, ...], block: tuple[int, ...] | None
) -> str:
    """Say what shares a scale, "" if the shapes do not tell: each expert has its own scales."""
    experts, rows = shape[:-2], shape[-2:-1]
    if math.prod(scale) == 1 or (experts and math.prod(scale) == math.prod(experts)):
        # A single block has a scale of as many axes as the weight.
        return "tensor" if len(scale) < len(shape) else ""
    if scale in ((*experts, *rows), (*experts, *rows, 1)) or len(scale) == 1:
        return "channel"
    if not template.startswith("fp"):
        return "group"
    return "group" if block is not None and block[0] == 1 else "block"


def _block(
    match: Match[Described],
    scheme: str | None,
    statement: Stated,
    info: Described,
    recipes: Iterable[str],
) -> tuple[tuple[int, ...] | None, str | None]:
    """Return the block that is stated, with its contradiction; else the scheme's, if it fits."""
    # Scales in tiles are not compared: their shape is not that of the blocks.
    if scheme is not None and scheme.endswith(("_tensor", "_channel")):
        return None, None
    block = statement.block or match.layout.block
    grid = None if block is None else _grid(match, scheme, block, info)
    tiling_recipes = {recipe.name for recipe in PRODUCERS if recipe.tiles}
    if grid is None or tiling_recipes.issuperset(recipes) or _scale(match) == grid:
        return block, None
    if math.prod(_scale(match)) == math.prod(grid) == 1:
        return block, None
    if statement.block is None:
        return None, None
    if not tiling_recipes.isdisjoint(recipes):
        return block, None
    sizes = "x".join(map(str, statement.block))
    return block, f"blocks of {sizes} need a scale of shape {grid}, and it has {_scale(match)}"


def _evident_block(match: Match[Described], info: Described) -> tuple[int, int] | None:
    """Return the block of float8 beside one scale per tensor, row or square of the matrix."""
    # The result is None if other blocks have such scales, too: a square is of a power of two that
    # divides both axes, and scales of one axis are those of rows only where the columns are not as
    # many.
    roles = {part.role for part, _ in match.parts.values() if part.use != "inputs"}
    is_plain = match.layout.scheme == FP8_SCALE.scheme and not roles - {SCALE, ACTIVATION}
    if not is_plain or match.layout.parts[0] != FP8_SCALE.parts[0] or match.scale is None:
        return None
    shape, scale = info.shape, match.scale.shape
    if len(shape) != MATRIX or 0 in shape:
        return None
    if math.prod(scale) == 1:
        return 0, 0
    if scale == (shape[0], 1) or (scale == shape[:1] and shape[0] != shape[1]):
        return 1, 0
    if len(scale) != MATRIX or 0 in scale:
        return None
    size, *others = {length / count for length, count in zip(shape, scale, strict=True)}
    is_square = not others and size > 1 and math.frexp(size)[0] == 0.5  # noqa: PLR2004
    return (int(size), int(size)) if is_square else None


def _grid(
    match: Match[Described], scheme: str | None, block: tuple[int, ...], info: Described
) -> tuple[int, ...] | None:
    """Count the blocks along each axis; None where the payload's axes are not the weight's."""
    codes = _codes_in_byte(scheme or "")
    is_in_bytes = match.layout.payload in ("", "_packed", "_qdata") and "32" not in str(info.format)
    if codes is None or not is_in_bytes or len(info.shape) < len(block):
        return None
    *experts, rows, columns = info.shape
    if match.layout.storage is not None and match.layout.storage.orientation == "parts":
        return block_grid((*experts, rows * codes, columns), block[::-1])
    return block_grid((*experts, rows, columns * codes), block)


def _codes_in_byte(scheme: str) -> int | None:
    """Return how many codes of a scheme share a byte, None if that depends on the producer."""
    match = re.match(r"(int|[a-z]*fp)([48])(?![0-9])", scheme)
    if match is None or match[0] == "int4":
        return None
    return 8 // int(match[2])


def _payloads_of(layout: Layout, name: str, info: Described, is_quantized: bool) -> list[str]:
    """Name the payloads that a scale of this name and format may belong to."""
    # `is_quantized` says that the model is, so that names that others have too are taken for it.
    names = []
    for part in layout.parts:
        weight = owner(part.name, name)
        if weight is None:
            continue
        fits, is_usual = info.format in (part.formats or [info.format]), _is_usual(weight, layout)
        # A name that begins with that of a weight says enough, whatever the format.
        is_named = part.name[0] == "_" or (is_quantized and fits and part.role != OTHER)
        if (fits and part.distinct) or (is_usual and is_named):
            names.append(name_part(layout.payload, weight) if layout.payload else weight)
    return names


def _is_usual(weight: str, layout: Layout) -> bool:
    """Return True if weights of a layout are called so, as other parameters need not be."""
    return tail(weight).removeprefix("_") in (layout.parameters or (_WEIGHT,))
