"""The parts of quantised arrays: what producers call them, and which layout some parts are."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import ml_dtypes
import numpy as np

from castwise._core import finfo
from castwise.quantization._names import beside, owner, tail
from castwise.quantization._recipes import (
    ACTIVATION,
    GLOBAL,
    OTHER,
    SCALE,
    ZERO,
    Layout,
    Part,
    Recipe,
    Storage,
)
from castwise.quantization._schemes import Scheme, find_recipe, find_scheme, may_hold, schemes
from castwise.quantization._views import TILE, Array, Views, ceil_div, pair, views_of

_BYTE = 8
_WORD_BITS = 32
_HEAD = "weight"
Made = TypeVar("Made")


def fields_of(views: Views, blocks: Array) -> dict[str, Array]:
    """View the fields of blocks of bytes."""
    found: dict[str, Array] = {}
    begin = 0
    for name, size in views.storage.fields:
        part = blocks[..., begin : begin + size]
        begin += size
        if name == "data":
            part = part.view(views.container)
        elif name != "high":
            half = size == np.dtype(np.float16).itemsize
            part = part.view(np.float16)[..., 0] if half else part
            part = part[..., 0] if size == 1 else part
        found[name] = part
    return found


def named_parts(q: Any, recipe: str | None) -> dict[str, Array]:
    """Return the parts of a quantised array by its producer's names."""
    views = views_of(q)
    if recipe is not None and find_recipe(recipe) is not views.recipe:
        raise ValueError(
            f"recipe={recipe!r} is not valid: the parts are those of {q.recipe}. Dequantise, and "
            f"quantise with recipe={recipe!r}."
        )
    layout = views.layout
    if views.recipe is None or layout.storage is None or layout not in views.recipe.layouts:
        raise ValueError(f"recipe={q.recipe!r} has no names for the parts of {q.scheme}.")
    if views.storage.fields:
        return {layout.payload: _blocks(q, views)}
    stem = _stem(layout)
    found = {_plain(beside(layout.payload, stem) if layout.payload else stem): q.data}
    for part in layout.parts:
        value = _value(q, part, views)
        if value is not None:
            found[_plain(beside(part.name, stem))] = value
    return found


def _stem(layout: Layout) -> str:
    """Return what a parameter of a layout is called."""
    if layout.payload in ("_blocks", ".blocks"):
        return ""
    return layout.parameters[0] if layout.parameters else _HEAD


def _plain(name: str) -> str:
    return name.lstrip("._")


def _value(q: Any, part: Part, views: Views) -> Array | None:
    """Return the array of a part, or None if there is none."""
    values = {SCALE: q.scale, GLOBAL: q.global_scale, ZERO: q.zero_point}
    found = values.get(part.role)
    if part.role != OTHER:
        return found
    if part.use == "shape":
        return np.array(views.shape, np.int64)
    if part.use == "state":
        return _state(q, views)
    if part.name == "comfy_quant":
        return _json_bytes({"format": _comfy_format(views.scheme)})
    found = q.extras.get(part.use) if part.use else None
    return found


def _json_bytes(value: Any) -> Array:
    return np.frombuffer(json.dumps(value).encode(), np.uint8)


def _comfy_format(scheme: Scheme) -> str:
    """Name a scheme as ComfyUI does."""
    named = {"fp8_tensor": scheme.element, "mxfp8_e4m3": "mxfp8", "int8_tensor": "int8_tensorwise"}
    return named.get(scheme.name, scheme.name)


def _state(q: Any, views: Views) -> Array:
    """Write what bitsandbytes stores beside codes of 4 bits."""
    state: dict[str, Any] = {
        "quant_type": q.scheme.removeprefix("bnb_"),
        "blocksize": views.block[1],
        "dtype": np.dtype(ml_dtypes.bfloat16).name,
        "shape": list(views.shape),
    }
    if "nested scale" in q.extras:
        state |= {
            "nested_blocksize": int(q.extras["nested block"]),
            "nested_dtype": "float32",
            "nested_offset": float(q.extras["nested bias"]),
        }
    return _json_bytes(state)


def _blocks(q: Any, views: Views) -> Array:
    """Join the fields of blocks of bytes."""
    parts = {"scale": q.scale, "data": q.data, **q.extras}
    lead = q.data.shape[:-1]
    found = [
        np.ascontiguousarray(parts[name]).view(np.uint8).reshape(*lead, size)
        for name, size in views.storage.fields
    ]
    joined = np.concatenate(found, axis=-1)
    return joined.reshape(*lead[:-1], -1)


# Reading


def recognized_parts(
    make: Callable[..., Made],
    parts: Mapping[str, Array],
    recipe: str,
    shape: Sequence[int] | None,
    *,
    scheme: str | None,
    block: int | Sequence[int] | None,
    axis: int | None,
    variant: str | None,
) -> Made:
    """Make the quantised array that some parts are."""
    row = find_recipe(recipe)
    if scheme is not None:
        find_scheme(scheme)
    named = {name: np.asarray(part) for name, part in parts.items()}
    if not named:
        raise ValueError("parts is empty.")
    matches = list(_matches(named, row, scheme))
    if not matches:
        raise ValueError(_no_layout(named, row))
    most = max(len(match.used) for match in matches)
    matches = [match for match in matches if len(match.used) == most]
    left = [name for name in named if name not in matches[0].used]
    if left:
        raise ValueError(
            f"parts has {left[0]!r}, which is not a part of how {row.name} stores "
            f"{matches[0].payload!r}."
        )
    stated = None if shape is None else tuple(int(n) for n in shape)
    sizes = None if block is None else pair(block)
    where = (0 if row.name == "keras" else -1) if axis is None else axis
    problems: dict[str, None] = {}
    found: dict[tuple[Any, ...], Made] = {}
    for match in matches:
        stated_of = _Stated(row, scheme, stated, sizes, where, variant)
        for one in _candidates(match, stated_of):
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


def _is_exact(q: Any) -> bool:
    """Return True if scales have the very axes that the producer gives them."""
    return bool(q.scale.shape == views_of(q).scale_shape)


class _Match:
    """A layout with the arrays that play each part of it."""

    def __init__(self, layout: Layout, payload: str, used: dict[str, Part | None]) -> None:
        self.layout, self.payload, self.used = layout, payload, used
        self.named: Mapping[str, Array] = {}


def _matches(named: Mapping[str, Array], recipe: Recipe, scheme: str | None) -> Iterator[_Match]:
    """Find the layouts of a producer whose required parts are there."""
    for layout in recipe.layouts:
        if layout.storage is None or (scheme is not None and not may_hold(layout, scheme)):
            continue
        for name, array in named.items():
            found = _match(layout, name, array, named)
            if found is not None:
                found.named = named
                yield found


def _match(layout: Layout, name: str, array: Array, named: Mapping[str, Array]) -> _Match | None:
    if layout.formats and finfo(array.dtype).name not in layout.formats:
        return None
    weight = owner(layout.payload, name)
    if weight is None:
        weight = "" if _plain(layout.payload) == name else None
    if weight is None or (layout.parameters and tail(weight) not in layout.parameters):
        return None
    used: dict[str, Part | None] = {name: None}
    for part in layout.parts:
        full = beside(part.name, weight)
        other = full if full in named else _plain(full)
        known = other in named and other != name
        if known and (not part.formats or finfo(named[other].dtype).name in part.formats):
            used[other] = part
        elif part.required:
            return None
    if layout.parts and all(part is None or part.role == ACTIVATION for part in used.values()):
        return None
    return _Match(layout, name, used)


def _no_layout(named: Mapping[str, Array], recipe: Recipe) -> str:
    """Say what is missing: most often a scale beside its payload, or a payload beside its scale."""
    have = ", ".join(f"{name} ({a.dtype}, {a.shape})" for name, a in named.items())
    needed = {
        (_plain(beside(one.payload, _stem(one)) if one.payload else _stem(one)), *_required(one))
        for one in recipe.layouts
        if one.storage is not None
    }
    wanted = "; ".join(" + ".join(names) for names in sorted(needed))
    return f"parts has {have}, which {recipe.name} does not store together; it stores {wanted}."


def _required(layout: Layout) -> list[str]:
    stem = _stem(layout)
    return [_plain(beside(part.name, stem)) for part in layout.parts if part.required]


@dataclass(frozen=True)
class _Stated:
    """What the caller says of some parts."""

    recipe: Recipe
    scheme: str | None
    shape: tuple[int, ...] | None
    block: tuple[int, int] | None
    axis: int
    variant: str | None


def _candidates(match: _Match, stated: _Stated) -> Iterator[dict[str, Any]]:
    """Make the arguments of each scheme that a layout may hold."""
    arrays = _arrays(match)
    storage = match.layout.storage or Storage()
    names = [row.name for row in schemes() if may_hold(match.layout, row.name)]
    for name in names if stated.scheme is None else [stated.scheme]:
        row = find_scheme(name)
        block = stated.block or pair(match.layout.block or row.block)
        block, shape = _from_state(match, block, _own_shape(match, stated.shape))
        known = stated.variant in storage.packing
        # Words without filler bits are packed alike.
        alike = _WORD_BITS % row.bits == 0
        for packing in (stated.variant,) if known else storage.packing[: 1 if alike else None]:
            variant = packing if packing != storage.packing[0] else stated.variant
            made = {
                "scheme": name,
                "recipe": stated.recipe.name,
                "block": block,
                "axis": stated.axis,
                "layout": match.layout,
                "variant": variant,
                **arrays,
            }
            room = shape if shape is not None else _room(made, row)
            more = None if room is None else _split(made, stated.recipe, room)
            if more is not None:
                yield made | {"shape": room} | more


def _own_shape(match: _Match, shape: tuple[int, ...] | None) -> tuple[int, ...] | None:
    """Return the shape that the parts state, or what the caller states."""
    for name, part in match.used.items():
        if part is not None and part.use == "shape":
            own = tuple(int(n) for n in match.named[name].reshape(-1))
            if shape is not None and shape != own:
                raise ValueError(f"shape={shape} is not valid; the parts state {own}.")
            return own
    return shape


def _arrays(match: _Match) -> dict[str, Any]:
    """Return the arguments that the parts are."""
    found: dict[str, Any] = {"data": match.named[match.payload], "extras": {}}
    keys = {SCALE: "scale", GLOBAL: "global_scale", ZERO: "zero_point"}
    for name, part in match.used.items():
        if part is None:
            continue
        if part.role in keys:
            found[keys[part.role]] = match.named[name]
        elif part.use and part.use not in ("shape", "state"):
            found["extras"][part.use] = match.named[name]
        elif part.use == "state":
            state = _parsed(match.named[name])
            if "nested_offset" in state:
                found["extras"]["nested bias"] = np.array(state["nested_offset"], np.float32)
                found["extras"]["nested block"] = np.array(state.get("nested_blocksize", 256))
    return found


def _parsed(array: Array) -> dict[str, Any]:
    found = json.loads(array.astype(np.uint8).tobytes())
    return found if isinstance(found, dict) else {}


def _from_state(
    match: _Match, block: tuple[int, int], shape: tuple[int, ...] | None
) -> tuple[tuple[int, int], tuple[int, ...] | None]:
    """Return the block and shape that a state of bitsandbytes has."""
    for name, part in match.used.items():
        if part is not None and part.use == "state":
            state = _parsed(match.named[name])
            block = (1, int(state.get("blocksize", block[1])))
            if "shape" in state:
                shape = tuple(int(n) for n in state["shape"])
    return block, shape


def _views(made: Mapping[str, Any], recipe: Recipe) -> Views:
    packings, variant = made["layout"].storage.packing, made["variant"]
    return Views(
        find_scheme(made["scheme"]),
        recipe,
        made["layout"],
        made["shape"],
        made["axis"],
        made["block"],
        variant if variant in packings else packings[0],
    )


def _room(made: Mapping[str, Any], scheme: Scheme) -> tuple[int, ...] | None:
    """Return the shape of the codes that a payload has room for."""
    storage, data = made["layout"].storage, made["data"]
    if data.ndim == 0 or storage.flat:
        return data.shape if storage.flat else None
    if storage.fields:
        each = sum(size for _, size in storage.fields)
        codes = dict(storage.fields)["data"] * _BYTE // (scheme.bits - _high(storage))
        if data.shape[-1] % each:
            return None
        return *data.shape[:-1], data.shape[-1] // each * codes
    shape = data.shape
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


def _high(storage: Storage) -> int:
    return int("high" in dict(storage.fields))


def _split(
    made: Mapping[str, Any], recipe: Recipe, shape: tuple[int, ...]
) -> dict[str, Any] | None:
    """Return the fields of blocks of bytes as arguments; None if they are not whole blocks."""
    views = _views({**made, "shape": shape}, recipe)
    if not views.storage.fields:
        return {}
    data = made["data"]
    each = sum(size for _, size in views.storage.fields)
    if data.ndim == 0 or data.shape[-1] % each:
        return None
    found = fields_of(views, data.reshape(*data.shape[:-1], -1, each))
    extras = {name: found[name] for name in ("bias", "high") if name in found}
    return {"data": found["data"], "scale": found["scale"], "extras": extras}


def row_step(q: Any) -> int:
    """Return the rows of which slabs of a matrix are multiples."""
    views = views_of(q)
    storage = views.storage
    rows, columns = views.shape[0], views.shape[-1]
    steps = [views.block[0] or max(rows, 1)]
    if views.block == (0, 0):
        steps = [1]
    if storage.tile is not None:
        steps.append(TILE[0])
    if storage.zeros != "plain" or storage.transposed in ("weight", "pairs"):
        steps.append(_WORD_BITS // math.gcd(_WORD_BITS, views.scheme.bits))
    if storage.flat:
        nested = int(q.extras["nested block"]) if "nested block" in q.extras else 1
        unit = views.block[1] * nested
        steps.append(unit // math.gcd(unit, max(columns, 1)))
    return math.lcm(*steps)


def rows_of(q: Any, start: int, stop: int) -> Any:
    """Return rows of a matrix as a quantised array that shares memory.

    Raises
    ------
    ValueError
        The rows are not whole steps, or the array is not a matrix whose axis is the last.

    """
    views = views_of(q)
    rank = 2
    rows = views.shape[0]
    if len(views.shape) != rank or q.axis % rank != 1:
        raise ValueError(
            f"rows of shape {views.shape} along axis {q.axis} cannot be decoded apart."
        )
    step = row_step(q)
    if not 0 <= start <= stop <= rows or start % step or (stop % step and stop != rows):
        raise ValueError(f"rows {start} to {stop} of {rows} are not whole blocks of {step}.")
    return replace(q, **_cut(q, views, start, stop))


def _cut(q: Any, views: Views, start: int, stop: int) -> dict[str, Any]:
    """Cut each part: along rows, or where the matrix is stored turned, along columns."""
    storage, bits = views.storage, views.scheme.bits
    high = views.block[0] or stop - start or 1
    blocks = slice(start // high, ceil_div(stop, high))
    rows = slice(start, stop)
    columns = views.shape[1]

    def packed(part: Array) -> slice:
        width = part.dtype.itemsize * _BYTE
        return slice(start * bits // width, ceil_div(stop * bits, width))

    def cut(part: Array, where: slice) -> Array:
        along_columns = storage.transposed in ("parts", "weight")
        return part[..., where] if along_columns and part.ndim > 1 else part[where]

    def of_block(part: Array) -> Array:
        if views.block == (0, 0):
            return part
        if storage.flat:
            size = views.block[1]
            return part[start * columns // size : ceil_div(stop * columns, size)]
        if storage.tile is not None and 0 not in views.block:
            return part[start : ceil_div(stop, TILE[0]) * TILE[0]]
        return cut(part, blocks)

    data = q.data
    if storage.flat:
        data = data[start * columns * bits // _BYTE : ceil_div(stop * columns * bits, _BYTE)]
    elif storage.transposed in ("weight", "pairs"):
        data = cut(data, packed(data))
    elif storage.tile is not None:
        data = data[start : ceil_div(stop, storage.tile[0]) * storage.tile[0]]
    else:
        data = cut(data, rows)
    zero = q.zero_point
    if zero is not None:
        zero = of_block(zero) if storage.zeros == "plain" else cut(zero, packed(zero))
    extras = dict(q.extras)
    for name in ("bias", "high"):
        if name in extras:
            extras[name] = of_block(extras[name]) if name == "bias" else extras[name][rows]
    if "nested scale" in extras:
        unit = views.block[1] * int(extras["nested block"])
        first, last = start * columns // unit, ceil_div(stop * columns, unit)
        extras["nested scale"] = extras["nested scale"][first:last]
    return {
        "data": data,
        "scale": of_block(q.scale),
        "zero_point": zero,
        "shape": (stop - start, columns),
        "extras": extras,
    }
