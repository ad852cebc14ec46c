"""Which layout of a producer some parts are, and of what scheme and shape the weight is."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple, TypeVar

import numpy as np

from castwise._core import finfo, read_array
from castwise.quantization.arrays._arguments import MAX_SIZE, block_pair, integer, shape_of
from castwise.quantization.arrays._lazy import LazyArray
from castwise.quantization.arrays._parts import bare, stem_of
from castwise.quantization.arrays._views import fields_of, geometry, views_of
from castwise.quantization.producers._configs import COMFY
from castwise.quantization.producers._layouts import (
    ACTIVATION,
    GLOBAL,
    OTHER,
    SCALE,
    ZERO,
    Layout,
    Recipe,
    Storage,
)
from castwise.quantization.producers._matching import Match, matched
from castwise.quantization.producers._names import beside
from castwise.quantization.producers._schemes import (
    Scheme,
    find_recipe,
    find_scheme,
    may_hold,
    schemes,
)

_BYTE = 8
_WORD_BITS = 32
_MATRIX = 2
_MAX_AXES = 4
_MAX_STATE_BYTES = 10_000
_ARGUMENTS = {SCALE: "scale", GLOBAL: "global_scale", ZERO: "zero_point"}
_EXTRAS = (
    "bias",
    "group index",
    "code map",
    "divisor",
    "factor",
    "float8 scale",
    "nested scale",
    "nested code map",
)
Made = TypeVar("Made")


class _Named(NamedTuple):
    """A part as it was given."""

    name: str
    array: Any
    format: str


def recognized_parts(
    make: Callable[..., Made],
    parts: Mapping[str, Any],
    recipe: str,
    shape: Sequence[int] | None,
    *,
    scheme: str | None,
    block: int | Sequence[int] | None,
    axis: int | None,
    variant: str | None,
) -> Made:
    """Make the quantised array that some parts are, which may be lazy."""
    row = find_recipe(recipe)
    if scheme is not None:
        find_scheme(scheme)
    if axis is not None:
        axis = integer("axis", axis, -MAX_SIZE, MAX_SIZE)
    if not isinstance(parts, Mapping):
        raise TypeError(f"parts must map names to arrays, not be of {type(parts).__name__}.")
    named = {name: _named(name, part) for name, part in parts.items()}
    if not named:
        raise ValueError("parts is empty; give all tensors of a weight, by their names.")
    matches = list(_matches(named, row, scheme))
    if not matches:
        raise ValueError(_no_layout(named, row))
    most = max(len(match.parts) for match in matches)
    matches = [match for match in matches if len(match.parts) == most]
    _check_parts(matches[0], named, row)
    stated = _Stated(
        row,
        scheme,
        None if shape is None else shape_of(shape),
        None if block is None else block_pair(block),
        (0 if row.name == "keras" else -1) if axis is None else axis,
        variant,
    )
    problems: dict[str, None] = {}
    found: dict[tuple[Any, ...], Made] = {}
    for one in (one for match in matches for one in _candidates(match, stated)):
        try:
            made = make(**one)
        except ValueError as error:
            problems[str(error)] = None
        else:
            found.setdefault((one["scheme"], one["block"], one.get("variant")), made)
    exact = {key: one for key, one in found.items() if _is_exact(one)}
    found = exact if len(exact) == 1 else found
    if len(found) == 1:
        return next(iter(found.values()))
    if not found:
        raise ValueError(next(iter(problems), _no_layout(named, row)))
    fits = ", ".join(
        f"{name} in blocks of {size}" + (f" ({how})" if how else "") for name, size, how in found
    )
    raise ValueError(f"parts fit several: {fits}. State scheme=, block=, shape= or variant=.")


def _named(name: str, part: Any) -> _Named:
    array = part if isinstance(part, LazyArray) else read_array(f"part {name!r}", part)
    try:
        return _Named(name, array, finfo(array.dtype).name)
    except TypeError as error:
        raise TypeError(f"part {name!r}: {error}") from None


def _is_exact(q: Any) -> bool:
    """Return True if scales have the very axes that the producer gives them."""
    return bool(q.scale.shape == views_of(q).scale_shape)


def _matches(
    named: Mapping[str, _Named], recipe: Recipe, scheme: str | None
) -> Iterator[Match[_Named]]:
    """Find the layouts of a producer whose required parts are there."""
    for layout in recipe.layouts:
        if layout.storage is None or (scheme is not None and not may_hold(layout, scheme)):
            continue
        for name in named:
            found = matched(layout, name, named, bare)
            if found is not None:
                yield found


def _check_parts(match: Match[_Named], named: Mapping[str, _Named], recipe: Recipe) -> None:
    """Refuse parts that are not of the layout, and those that decoding would leave out."""
    payload = match.payload.name
    for name in named:
        if name != payload and name not in match.parts:
            raise ValueError(
                f"parts has {name!r}, which is not a part of how {recipe.name} stores {payload!r}."
            )
    for name, (part, _) in match.parts.items():
        if part.role == OTHER and not part.use:
            raise ValueError(
                f"{name!r} is part of it, and castwise cannot decode a weight with that yet; "
                f"{recipe.name} reads it."
            )


def _no_layout(named: Mapping[str, _Named], recipe: Recipe) -> str:
    """Say what is missing: most often a scale beside its payload, or a payload beside its scale."""
    have = ", ".join(f"{n} ({one.array.dtype}, {one.array.shape})" for n, one in named.items())
    wanted: set[tuple[str, ...]] = set()
    for one in recipe.layouts:
        if one.storage is not None:
            stem = stem_of(one)
            payload = beside(one.payload, stem) if one.payload else stem
            required = [beside(part.name, stem) for part in one.parts if part.required]
            wanted.add(tuple(map(bare, (payload, *required))))
    stores = "; ".join(" + ".join(names) for names in sorted(wanted))
    return f"parts has {have}, which {recipe.name} does not store together; it stores {stores}."


@dataclass(frozen=True)
class _Stated:
    """What the caller says of some parts."""

    recipe: Recipe
    scheme: str | None
    shape: tuple[int, ...] | None
    block: tuple[int, int] | None
    axis: int
    variant: str | None


def _candidates(match: Match[_Named], stated: _Stated) -> Iterator[dict[str, Any]]:
    """Make the arguments of each scheme that a layout may hold."""
    arrays = _arrays(match)
    layout, storage = match.layout, match.layout.storage or Storage()
    state = _state(match)
    marked = _marked(match, stated.scheme)
    shape = state.get("shape") or _own_shape(match, stated.shape)
    for name in _schemes(layout) if stated.scheme is None else (stated.scheme,):
        if marked not in (None, name):
            continue
        row = find_scheme(name)
        block = state.get("block") or stated.block or block_pair(layout.block or row.block)
        known = stated.variant in storage.packing
        # Words without filler bits are packed alike.
        alike = _WORD_BITS % row.bits == 0
        for packing in (stated.variant,) if known else storage.packing[: 1 if alike else None]:
            made = {
                "scheme": name,
                "recipe": stated.recipe.name,
                "block": block,
                "axis": stated.axis,
                "layout": layout,
                "variant": packing if packing != storage.packing[0] else stated.variant,
                **arrays,
            }
            room = shape if shape is not None else _room(made, row)
            more = None if room is None else _split(made, stated.recipe, room)
            if more is not None:
                yield made | {"shape": room} | more


@cache
def _schemes(layout: Layout) -> tuple[str, ...]:
    """Name the schemes that a layout may hold."""
    return tuple(row.name for row in schemes() if may_hold(layout, row.name))


def _own_shape(match: Match[_Named], shape: tuple[int, ...] | None) -> tuple[int, ...] | None:
    """Return the shape that the parts state, or what the caller states."""
    for part, one in match.parts.values():
        if part.use == "shape":
            if one.array.size not in range(_MATRIX, _MAX_AXES + 1):
                raise ValueError(
                    f"{one.name!r} has {one.array.size} numbers, which is not the shape of a "
                    "matrix or a stack of them; fetch the checkpoint again."
                )
            own = tuple(int(n) for n in np.asarray(one.array).reshape(-1))
            if min(own) < 0:
                raise ValueError(f"{one.name!r} has negative sizes, {own}.")
            if len(own) == _MATRIX:  # of one matrix of a stack
                own = (*match.payload.array.shape[:-_MATRIX], *own)
            if shape is not None and shape != own:
                raise ValueError(f"shape={shape} is not valid; the parts state {own}.")
            return own
    return shape


def _arrays(match: Match[_Named]) -> dict[str, Any]:
    """Return the arguments that the parts are."""
    found: dict[str, Any] = {"data": match.payload.array, "extras": _state(match).get("extras", {})}
    for part, one in match.parts.values():
        if part.role in _ARGUMENTS:
            found[_ARGUMENTS[part.role]] = one.array
        elif part.role != ACTIVATION and part.use in _EXTRAS:
            found["extras"][part.use] = one.array
    return found


def _state(match: Match[_Named]) -> dict[str, Any]:
    """Return the block, the shape and what else a state of bitsandbytes says."""
    one = next((one for part, one in match.parts.values() if part.use == "state"), None)
    if one is None:
        return {}
    state = json_of(one.name, one.array)
    shape, size = state.get("shape"), state.get("blocksize", -1)
    kind = match.layout.scheme.rpartition("_")[2]
    sizes = shape if isinstance(shape, list) and shape else [None]
    are_counts = all(map(_is_count, [*sizes, size]))
    if state.get("quant_type") != kind or not are_counts or size % 2:
        raise ValueError(f"{one.name!r} does not state shape, blocksize and quant_type.")
    found: dict[str, Any] = {"shape": tuple(sizes), "block": (1, size), "extras": {}}
    if any(part.use == "nested scale" for part, _ in match.parts.values()):
        nested, offset = state.get("nested_blocksize"), state.get("nested_offset")
        if not (_is_count(nested) and nested and isinstance(offset, float)):
            raise ValueError(f"{one.name!r} does not state nested_blocksize and nested_offset.")
        found["extras"] = {
            "nested bias": np.array(offset, np.float32),
            "nested block": np.array(nested),
        }
    return found


def _marked(match: Match[_Named], wanted: str | None) -> str | None:
    """Return the scheme that ComfyUI's marker names; refuse codes that a marker says are changed.

    Raises
    ------
    ValueError
        Rows are reordered, or codes rotated, or the marker names another scheme than is wanted.

    """
    one = next((one for part, one in match.parts.values() if part.use == "marker"), None)
    if one is None:
        return None
    if one.name.endswith("weight_format"):
        layout = np.asarray(one.array)
        if layout.size != 1:
            raise ValueError(
                f"{one.name!r} has the shape {layout.shape}, not that of one number; "
                "fetch the checkpoint again."
            )
        if layout.any():
            raise ValueError(f"{one.name!r} says that rows are reordered; bitsandbytes reads them.")
        return None
    state = json_of(one.name, one.array)
    form = state.get("format")
    scheme = COMFY.get(form) if isinstance(form, str) else None
    if scheme is None or state.get("convrot"):
        raise ValueError(
            f"castwise cannot decode the format {form!r} of ComfyUI yet, which {one.name!r} names."
        )
    if not may_hold(match.layout, wanted or scheme) or wanted not in (None, scheme):
        raise ValueError(f"{one.name!r} names the format {form!r}, and the tensors are of another.")
    return scheme


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def json_of(name: str, array: Any) -> dict[str, Any]:
    """Parse the bytes of a tensor as JSON of an object.

    Raises
    ------
    ValueError
        They are not, or too many.

    """
    if array.size > _MAX_STATE_BYTES:
        raise ValueError(f"{name!r} has more than {_MAX_STATE_BYTES:,} bytes.")
    try:
        state = json.loads(np.asarray(array).astype(np.uint8).tobytes())
        return dict(**state)
    except (ValueError, TypeError, RecursionError) as error:
        raise ValueError(f"{name!r} is not JSON of an object.") from error


def _room(made: Mapping[str, Any], scheme: Scheme) -> tuple[int, ...] | None:
    """Return the shape of the codes that a payload has room for."""
    storage, data = made["layout"].storage, made["data"]
    if data.ndim == 0 or storage.flat:
        return data.shape if storage.flat else None
    if storage.fields:
        sizes = dict(storage.fields)
        each = sum(sizes.values())
        codes = sizes["data"] * _BYTE // (scheme.bits - int("high" in sizes))
        if data.shape[-1] % each:
            return None
        return *data.shape[:-1], data.shape[-1] // each * codes
    shape = data.shape
    needed = _MATRIX if storage.split or storage.transposed else 1
    if len(shape) < needed:
        return None
    if storage.split:
        shape = (*shape[:-2], shape[-2] * shape[-1])
    if storage.transposed in ("parts", "pairs"):
        shape = (*shape[:-2], shape[-1], shape[-2])
    bits = data.dtype.itemsize * _BYTE
    packing = made.get("variant", storage.packing[0])
    each_word = (
        bits // scheme.bits * shape[-1] if packing == "padded" else shape[-1] * bits // scheme.bits
    )
    shape = (*shape[:-1], each_word)
    if storage.transposed in ("weight", "pairs"):
        shape = (*shape[:-2], shape[-1], shape[-2])
    axis = made["axis"] % len(shape)
    return (*shape[:axis], shape[-1], *shape[axis:-1])


def _split(
    made: Mapping[str, Any], recipe: Recipe, shape: tuple[int, ...]
) -> dict[str, Any] | None:
    """Return the fields of blocks of bytes as arguments; None if they are not whole blocks."""
    layout, data = made["layout"], made["data"]
    if not layout.storage.fields:
        return {}
    views = geometry(
        made["scheme"], recipe.name, layout, shape=shape, axis=made["axis"], block=made["block"]
    )
    each = sum(size for _, size in views.storage.fields)
    if data.ndim == 0 or data.shape[-1] % each:
        return None
    found = fields_of(views, data.reshape(*data.shape[:-1], data.shape[-1] // each, each))
    extras = {name: found[name] for name in ("bias", "high") if name in found}
    return {"data": found["data"], "scale": found["scale"], "extras": extras}
