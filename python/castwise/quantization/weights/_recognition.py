"""Find the quantised weights of a checkpoint from names, formats, shapes and what is stated."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from castwise.quantization.arrays._views import grid_of_scales
from castwise.quantization.producers._attention import scale_of_attention
from castwise.quantization.producers._configs import Stated, Statement, statements
from castwise.quantization.producers._contradictions import Contradiction, contradictions
from castwise.quantization.producers._foreign import with_foreign
from castwise.quantization.producers._found import Orphan, Quantization, QuantizedWeight
from castwise.quantization.producers._layouts import (
    BYTES,
    FLOAT8,
    OF_WORD,
    OTHER,
    WIDE,
    Layout,
    Recipe,
)
from castwise.quantization.producers._matching import Match, matched
from castwise.quantization.producers._names import (
    KERAS_FLOAT8,
    Described,
    beside,
    lasts,
    numbered_kernel,
    owner,
    plain_names,
    tail,
)
from castwise.quantization.producers._recipes import MARKERS, RECIPES
from castwise.quantization.producers._schemes import may_hold

_WEIGHT = "weight"


def recognized(
    tensors: Iterable[Described],
    configs: Mapping[str, Any],
    metadata: Mapping[str, str],
) -> Quantization | None:
    """Return what is quantised; None if nothing is, and nothing says that it is.

    Parameters
    ----------
    tensors
        All tensors of the checkpoint.
    configs
        Parsed files beside it, by name; see `castwise.quantization.producers._configs.CONFIGS`.
    metadata
        Its metadata.

    """
    stated = statements(configs, metadata)
    found = _Search(tensors, stated, [*contradictions(configs)]).run()
    return None if found == Quantization() else found


class _Search:
    """The search in one checkpoint."""

    def __init__(
        self,
        tensors: Iterable[Described],
        stated: Sequence[Statement],
        contradictions: Sequence[Contradiction],
    ) -> None:
        self._tensors = plain_names(tensors)
        self._stated = stated
        self._contradictions = contradictions
        self._tails = lasts(self._tensors)
        self._parameters: dict[str, str] = {}
        """The parameter that each payload is, by the name of the payload."""
        self._beside: set[str] = set()
        """The tensors beside payloads that are named as parts, whatever their format."""
        known = {name for one in stated for name in one.recipes}
        self._recipes = tuple(recipe for recipe in RECIPES if recipe.name in known)

    def run(self) -> Quantization:
        """Find everything."""
        weights = self._weights(RECIPES)
        if self._recipes:
            # What is not stored as stated is recognised all the same, and the contradiction named.
            methods = ", ".join(self._texts())
            for name, one in weights.items():
                problem = f"{methods} is stated, but it is stored as by {' or '.join(one.recipes)}"
                weights[name] = replace(one, problem=problem)
            weights |= self._weights(self._recipes)
        for contradiction in self._contradictions:
            for name, one in weights.items():
                if contradiction.is_about(one.recipes):
                    weights[name] = replace(one, problem=contradiction.text)
        found = {name for weight in weights.values() for name in weight.recipes}
        found |= {MARKERS[one] for one in map(tail, self._tensors) if one in MARKERS}
        active = self._recipes or tuple(recipe for recipe in RECIPES if recipe.name in found)
        used = {name for weight in weights.values() for name in (weight.payload, *weight.parts)}
        others = [
            info.name
            for name, info in self._tensors.items()
            if (name.endswith(KERAS_FLOAT8) and tail(name) in KERAS_FLOAT8)
            or (
                active
                and info.name not in used
                and (tail(name) in MARKERS or scale_of_attention(name) is not None)
            )
        ]
        known = used.union(others, self._beside)
        weights = with_foreign(weights, self._parameters, self._tensors, known)
        foreign = {name for weight in weights.values() for name in weight.foreign}
        orphans = self._orphans(active, known | foreign)
        return Quantization(
            self._texts(),
            self._unknown(),
            tuple(weights[info.name] for info in self._tensors.values() if info.name in weights),
            tuple(orphans),
            tuple(others),
        )

    def _texts(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(f"{one.origin}: {one.method}" for one in self._stated))

    def _unknown(self) -> str | None:
        """Name a stated method that is not known, if some tensor may be stored by it."""
        if all(info.format in WIDE for info in self._tensors.values()):
            return None
        return next((one.method for one in self._stated if not one.recipes), None)

    def _weights(self, recipes: Sequence[Recipe]) -> dict[str, QuantizedWeight]:
        """Find the weights stored as one of the recipes says, by the name of the payload."""
        owners: dict[Layout, list[str]] = {}
        for recipe in recipes:
            for layout in recipe.layouts:
                if self._may_hold(layout):
                    owners.setdefault(layout, []).append(recipe.name)
        found: dict[str, QuantizedWeight] = {}
        self._beside = set()
        for name, info in self._tensors.items() if owners else ():
            candidates = [
                one
                for layout in owners
                if (one := matched(layout, name, self._tensors)) is not None
            ]
            if candidates:
                found[info.name] = self._weight(info, candidates, owners)
        return found

    def _may_hold(self, layout: Layout) -> bool:
        """Return False if no tensor is named as one that the layout requires."""
        required = [part.name for part in layout.parts if part.required]
        return all(
            any(one.endswith(tail(name)) for one in self._tails)
            for name in required or [layout.payload]
        )

    def _weight(
        self,
        info: Described,
        candidates: Sequence[Match[Described]],
        owners: Mapping[Layout, Sequence[str]],
    ) -> QuantizedWeight:
        best = max(map(_rank, candidates))
        chosen = [one for one in candidates if _rank(one) == best]
        first = chosen[0]
        self._parameters[info.name] = first.weight
        recipes = dict.fromkeys(name for one in chosen for name in owners[one.layout])
        possible = {name for one in candidates for name in owners[one.layout]}
        stated, problem = self._describe(info, chosen, recipes, possible)
        schemes = {_scheme(one, stated, info.shape) for one in chosen}
        scheme = schemes.pop() if len(schemes) == 1 else None
        block, misshaped = _block(first, scheme, stated, info, recipes)
        missing = self._missing(first, stated)
        return QuantizedWeight(
            numbered_kernel(info.name)
            or beside(tail(first.weight).removeprefix("_"), first.weight),
            scheme,
            block,
            tuple(recipes),
            info.name,
            {one.name: part.role for part, one in first.parts.values()},
            problem or misshaped or missing,
        )

    def _scales_of(self, layout: Layout, name: str, info: Described, known: bool) -> list[str]:
        """Name what a payload of this name and format lacks: the scale, if all else is there."""
        weight = owner(layout.payload, name)
        is_named = known or layout.payload != ""
        if weight is None or not is_named or info.format not in (layout.formats or BYTES):
            return []
        if not layout.payload and not _is_usual(weight, layout) and info.format not in FLOAT8:
            return []
        scale = beside(layout.parts[0].name, weight)
        needed = [scale, *(beside(one.name, weight) for one in layout.parts if one.required)]
        return [next((one for one in needed if one not in self._tensors), scale)]

    def _missing(self, one: Match[Described], stated: Stated) -> str | None:
        """Name what is beside the payload in another format, or stated to be there, and is not."""
        wrong = None
        for part in one.layout.parts:
            there = self._tensors.get(beside(part.name, one.weight))
            if there is None or there is one.payload:
                continue
            self._beside.add(there.name)
            if part.formats and there.format not in part.formats:
                needed = " or ".join(part.formats)
                wrong = f"{there.name!r} is {there.format}; decoding needs {needed}"
        needs = (
            need
            for need in stated.needs
            if not any(
                need == part.role or name.endswith(need) for name, (part, _) in one.parts.items()
            )
        )
        if wrong is None and (need := next(needs, None)) is not None:
            return f"its configuration states that it has a {need}, and it has none"
        return wrong

    def _describe(
        self,
        info: Described,
        chosen: Sequence[Match[Described]],
        recipes: Iterable[str],
        possible: set[str],
    ) -> tuple[Stated, str | None]:
        """Put together what is stated of a weight; what contradicts its layout does not count.

        `possible` are the producers whose names and formats its tensors have.
        """
        module = chosen[0].weight.rpartition(".")[0]
        result, problem = Stated(), None
        spoken: list[tuple[str, Stated]] = []
        for one in self._stated:
            if not set(one.recipes).intersection(recipes):
                if spoken and not possible.isdisjoint(one.recipes) and one.origin != spoken[0][0]:
                    problem = problem or _differing(spoken[0][0], one.origin, "another method")
                continue
            stated = one.describe(module, info.format)
            elsewhere = stated.elsewhere
            if elsewhere is not None and f"{elsewhere}.{_WEIGHT}" not in self._tensors:
                problem = problem or (
                    f"{one.origin} states {elsewhere!r} apart, and the module is {module!r} here; "
                    "rename that entry"
                )
            if stated.problem is not None:
                problem = problem or f"{one.origin} {stated.problem}"
            if stated.scheme is None or any(
                may_hold(each.layout, stated.scheme) for each in chosen
            ):
                problem = problem or _contradiction(spoken, one.origin, stated)
                result = Stated(
                    result.scheme or stated.scheme,
                    result.block or stated.block,
                    result.needs or stated.needs,
                )
            else:
                parts = " and ".join(map(tail, chosen[0].parts))
                # Words hold codes of any width: the parts beside them tell what they are.
                kind = f"beside {parts}" if info.format in OF_WORD and parts else info.format
                problem = problem or (
                    f"{one.origin} states {stated.scheme}, but the payload is {kind}"
                )
            spoken.append((one.origin, stated))
        return result, problem

    def _orphans(self, recipes: Sequence[Recipe], used: set[str]) -> list[Orphan]:
        """List what lacks the rest of a weight.

        Where nothing is quantised otherwise, those that have names of their own: of all recipes.
        """
        known = bool(recipes)
        layouts = dict.fromkeys(one for recipe in recipes or RECIPES for one in recipe.layouts)
        orphans = []
        for name, info in self._tensors.items():
            if info.name in used or not (known or tail(name) in self._tails):
                continue
            payloads = [one for row in layouts for one in _payloads_of(row, name, info, known)]
            scales = [one for row in layouts for one in self._scales_of(row, name, info, known)]
            if missing := payloads or scales:
                orphans.append(Orphan(info.name, not payloads, tuple(dict.fromkeys(missing))))
        return orphans


def _differing(first: str, second: str, what: str) -> str:
    return f"{first} and {second} state {what}; remove or mend the one that is wrong"


def _contradiction(spoken: Sequence[tuple[str, Stated]], origin: str, stated: Stated) -> str | None:
    """Say in what a statement differs from those before it, where neither leaves it open."""
    details = dict(stated.details)
    for other, earlier in spoken:
        if other == origin:  # of which `contradictions` tells
            continue
        for name, first, second in (
            ("scheme", earlier.scheme, stated.scheme),
            ("block", earlier.block, stated.block),
            *((key, value, details.get(key)) for key, value in earlier.details),
        ):
            if None not in (first, second) and first != second:
                return _differing(other, origin, f"another {name} each, {first} and {second}")
    return None


def _rank(one: Match[Described]) -> tuple[int, bool, bool]:
    """Return what decides between layouts: how many parts, the parameter's name, the columns."""
    layout, payload, scale = one.layout, one.payload.shape, _scale(one)
    fits = False
    if layout.columns is not None and scale and payload:
        codes, count = layout.columns
        fits = payload[-1] * count == scale[-1] * codes
    return len(one.parts), bool(layout.parameters), fits


def _scale(one: Match[Described]) -> tuple[int, ...]:
    """Return the shape of the first scale."""
    return () if one.scale is None else grid_of_scales(one.scale.shape, one.payload.shape)


def _scheme(one: Match[Described], stated: Stated, shape: tuple[int, ...]) -> str | None:
    """Return what is stated if the layout may hold it, else what the layout itself says."""
    template = one.layout.scheme
    if stated.scheme is not None and may_hold(one.layout, stated.scheme):
        template = stated.scheme
    if template == "fp8_channel" and one.layout.parameters and shape[:-2] == _scale(one):
        return "fp8_tensor"  # as ModelOpt calls one scale for each expert too
    if template.endswith("{}"):
        granularity = _granularity(template, shape, _scale(one), stated.block)
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
    one: Match[Described],
    scheme: str | None,
    stated: Stated,
    info: Described,
    recipes: Iterable[str],
) -> tuple[tuple[int, ...] | None, str | None]:
    """Return the block that is stated, with what contradicts it; else the scheme's own, if it fits.

    Scales in tiles are not compared: their shape is not that of the blocks.
    """
    if scheme is not None and scheme.endswith(("_tensor", "_channel")):
        return None, None
    block = stated.block or one.layout.block
    grid = None if block is None else _grid(one, scheme, block, info)
    tiled = {recipe.name for recipe in RECIPES if recipe.tiles}
    if grid is None or tiled.issuperset(recipes) or _scale(one) == grid:
        return block, None
    if math.prod(_scale(one)) == math.prod(grid) == 1:
        return block, None
    if stated.block is None:
        return None, None
    if not tiled.isdisjoint(recipes):
        return block, None
    sizes = "x".join(map(str, stated.block))
    return block, f"blocks of {sizes} need a scale of shape {grid}, and it has {_scale(one)}"


def _grid(
    one: Match[Described], scheme: str | None, block: tuple[int, ...], info: Described
) -> tuple[int, ...] | None:
    """Count the blocks along each axis; None where the payload's axes are not the weight's."""
    codes = _codes_in_byte(scheme or "")
    is_in_bytes = one.layout.payload in ("", "_packed", "_qdata") and "32" not in str(info.format)
    if codes is None or not is_in_bytes or len(info.shape) < len(block):
        return None
    *experts, rows, columns = info.shape
    if one.layout.storage is not None and one.layout.storage.transposed == "parts":
        return (*experts, -(-rows * codes // block[1]), -(-columns // block[0]))
    return (*experts, -(-rows // block[0]), -(-columns * codes // block[1]))


def _codes_in_byte(scheme: str) -> int | None:
    """Return how many codes of a scheme share a byte, None if that depends on the producer."""
    found = re.match(r"(int|[a-z]*fp)([48])(?![0-9])", scheme)
    if found is None or found[0] == "int4":
        return None
    return 8 // int(found[2])


def _payloads_of(layout: Layout, name: str, info: Described, known: bool) -> list[str]:
    """Name the payloads that a scale of this name and format may belong to.

    `known` says that the model is quantised, so that names that others have too are taken for it.
    """
    found = []
    for part in layout.parts:
        weight = owner(part.name, name)
        if weight is None:
            continue
        fits, is_usual = info.format in (part.formats or [info.format]), _is_usual(weight, layout)
        # A name that begins with that of a weight says enough, whatever the format.
        is_named = part.name[0] == "_" or (known and fits and part.role != OTHER)
        if (fits and part.distinct) or (is_usual and is_named):
            found.append(beside(layout.payload, weight) if layout.payload else weight)
    return found


def _is_usual(weight: str, layout: Layout) -> bool:
    """Return True if weights of a layout are called so, as other parameters need not be."""
    return tail(weight).removeprefix("_") in (layout.parameters or (_WEIGHT,))
