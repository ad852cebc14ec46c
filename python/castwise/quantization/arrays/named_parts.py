"""The parts of quantized arrays under the names that producers give them."""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from castwise._core import finfo
from castwise._numbers import BYTE_BITS
from castwise.quantization.arrays.views import Array, StoredArray, Views, geometry, views_of
from castwise.quantization.producers.layouts import (
    BF16,
    GLOBAL,
    MATRIX,
    OTHER,
    SCALE,
    ZERO,
    Layout,
    Part,
    dtype_of,
)
from castwise.quantization.producers.names import name_part
from castwise.quantization.producers.producer import Producer
from castwise.quantization.producers.registry import find_recipe, written_layout
from castwise.quantization.producers.schemes import Scheme

_HEAD = "weight"


def named_parts(q: StoredArray, recipe: str | None) -> dict[str, Array]:
    """Return the parts of a quantized array by a producer's names."""
    if recipe is not None and find_recipe(recipe) is not views_of(q).recipe:
        q = _stored_alike(q, find_recipe(recipe))
    views = views_of(q)
    layout = views.layout
    if not _is_named(views) or layout.storage is None:
        remedy = _without_names(q, views)
        raise ValueError(f"recipe={q.recipe!r} has no names for the parts of {q.scheme}; {remedy}.")
    if views.storage.fields:
        return {layout.payload: _blocks(q, views)}
    stem = stem_of(layout)
    parts = {bare(name_part(layout.payload, stem) if layout.payload else stem): q.data}
    roles: set[str] = set()
    for part in layout.parts:
        value = None if part.role in roles else _value(q, part, views)
        if value is not None:
            roles |= {part.role} - {OTHER}
            parts[bare(name_part(part.name, stem))] = value
    return parts


def _without_names(q: StoredArray, views: Views) -> str:
    """Say how the parts are got that a producer has no names for."""
    names = [name for name in ("data", "scale", "global_scale", "zero_point") if _has(q, name)]
    symmetric = q.zero_point is None and "bias" not in q.extras
    remedy = f"use q.{', q.'.join(names)}"
    others = [
        name for name in views.scheme.recipes if has_names(views.scheme, name, symmetric=symmetric)
    ]
    if not others:
        return f"{remedy}, as no producer has"
    return f"{remedy}, or quantize with recipe={' or '.join(map(repr, others))}"


def _has(q: StoredArray, name: str) -> bool:
    return getattr(q, name) is not None


def has_names(scheme: Scheme, recipe: str, *, symmetric: bool = True) -> bool:
    """Return True if `parts` names the parts of arrays that are quantized by a recipe."""
    layout = written_layout(recipe, scheme, symmetric=symmetric)
    size = max(scheme.block)
    shape = (max(size, MATRIX), max(size, MATRIX))
    block = scheme.block if layout.block is None else layout.block
    views = geometry(scheme.name, recipe, layout, shape=shape, axis=-1, block=block)
    return layout.storage is not None and _is_named(views)


def _is_named(views: Views) -> bool:
    recipe = views.recipe
    if recipe is None or views.layout not in recipe.layouts:
        return False
    formats = None if recipe.marker is None else recipe.marker.formats
    return formats is None or views.scheme.name in formats.values()


def _stored_alike(q: StoredArray, recipe: Producer) -> StoredArray:
    views = views_of(q)
    symmetric = q.zero_point is None and "bias" not in q.extras
    layout = written_layout(recipe.name, views.scheme, symmetric=symmetric)
    target = geometry(
        q.scheme,
        recipe.name,
        layout,
        shape=views.shape,
        axis=q.axis,
        block=views.block,
        variant=q.variant,
    )
    problem = next(_differences(q, views, target), None)
    if problem is not None:
        raise ValueError(
            f"recipe={recipe.name!r} is not valid: {problem}. castwise transcode converts "
            "checkpoints of some producers; else dequantize, and quantize with "
            f"recipe={recipe.name!r}."
        )
    shapes = {"data": target.data_shape, "scale": target.scale_shape, "global_scale": recipe.scalar}
    dtypes = {"data": _dtype_of_codes(q, target), "scale": _dtype_of_scales(q, target)}
    parts = {name: getattr(q, name) for name in shapes}
    for name, part in parts.items():
        if name in dtypes and part.dtype != dtypes[name]:
            parts[name] = np.ascontiguousarray(part).view(dtypes[name])
        # Each matrix of a stack may have a scale of its own.
        if part is not None and math.prod(shapes[name]) == parts[name].size:
            parts[name] = parts[name].reshape(shapes[name])
    parts |= {"recipe": recipe.name, "layout": layout}
    return replace(q, **parts)


def _dtype_of_codes(q: StoredArray, target: Views) -> np.dtype[Any]:
    """Return the dtype that a producer has for the bytes of a payload."""
    is_own = target.storage.container is None and finfo(q.data.dtype).kind == "float"
    return q.data.dtype if is_own else target.container


def _dtype_of_scales(q: StoredArray, target: Views) -> np.dtype[Any]:
    formats = target.layout.parts[0].formats if q.scale.dtype.itemsize == 1 else ()
    name = next((candidate for candidate in formats if finfo(candidate).bits == BYTE_BITS), None)
    return q.scale.dtype if name is None else dtype_of(name)


def _differences(q: StoredArray, views: Views, target: Views) -> Iterator[str]:
    """Say which bytes another producer does not store alike; the first reason is the best one."""
    of, by, layout = q.recipe or "q", target.recipe.name if target.recipe else "", target.layout
    needs_metadata = target.recipe is None or target.recipe.needs_metadata
    if layout.storage is None or not _is_named(target) or needs_metadata:
        yield f"{by} has no names for the parts of {q.scheme} alone"
    roles = {part.role for part in layout.parts} | {part.use for part in layout.parts}
    parts_of_q = {GLOBAL: q.global_scale, ZERO: q.zero_point, **q.extras}
    required_roles = {part.role for part in layout.parts if part.is_required}
    for name, part in parts_of_q.items():
        article, count = ("a", "none") if part is None else ("no", "one")
        if name in required_roles if part is None else name not in roles:
            yield f"{by} has {article} {name} for {q.scheme}, and {of} has {count}"
    verbs = [
        {"multiply": "multiplies", "divide": "divides"}[side.storage.global_use]
        for side in (views, target)
    ]
    if q.global_scale is not None and verbs[0] != verbs[1]:
        yield f"the global scale of {of} {verbs[0]}, and that of {by} {verbs[1]}"
    if q.global_scale is not None and views.storage.global_unit != target.storage.global_unit:
        yield f"the global scale of {of} is a multiple of that of {by}"
    is_last = q.axis % len(views.shape) == len(views.shape) - 1
    size = math.prod(target.data_shape) * target.container.itemsize
    same_order = views.storage._replace(**_ALIKE) == target.storage._replace(**_ALIKE)
    if not (is_last and same_order and views.packing == target.packing and size == q.data.nbytes):
        yield f"{by} stores {q.scheme} in another order than {of}"
    codes, scale = finfo(_dtype_of_codes(q, target)), finfo(q.scale.dtype)
    of_scales = layout.parts[0].formats if scale.bits > BYTE_BITS and layout.parts else ()
    of_codes = layout.formats if target.storage.container is None else ()
    for noun, info, formats in (("codes", codes, of_codes), ("scales", scale, of_scales)):
        if formats and info.name not in formats:
            yield f"{by} stores no {noun} of {info.name}"


# What of a storage changes no byte of codes and scales of blocks: names of dtypes, shapes, what the
# global scale does, and how products are rounded.
_ALIKE: dict[str, Any] = {
    "global_use": "multiply",
    "container": None,
    "split": False,
    "has_groups": False,
    "read_only": False,
    "positive_zero": False,
    "unsigned_scales": False,
    "narrow": False,
    "inner": False,
}


def stem_of(layout: Layout) -> str:
    if layout.payload in ("_blocks", ".blocks"):
        return ""
    return layout.parameters[0] if layout.parameters else _HEAD


@lru_cache(maxsize=1024)  # of the parts of all layouts
def bare(name: str) -> str:
    """Strip the separator from what is added to a name."""
    return name.lstrip("._")


def _value(q: StoredArray, part: Part, views: Views) -> Array | None:
    values = {SCALE: q.scale, GLOBAL: q.global_scale, ZERO: q.zero_point}
    value = values.get(part.role)
    if part.role != OTHER:
        return value
    if part.use == "shape":
        return np.array(views.shape, np.int64)
    if part.use == "state":
        return _state(q, views)
    if part.use == "marker" and (marker := marker_of(views)) is not None:
        return marker
    value = q.extras.get(part.use) if part.use else None
    return value


def _json_bytes(value: Mapping[str, object]) -> Array:
    return np.frombuffer(json.dumps(value).encode(), np.uint8)


def marker_of(views: Views) -> Array | None:
    """Return what a producer stores beside a weight to name its scheme, None if it does not."""
    form = None if views.recipe is None else views.recipe.marker
    if form is None or form.state is None:
        return None
    state = dict(form.state(views.scheme))
    if form.shape_key is not None and views.storage.tile is not None:
        state[form.shape_key] = list(views.shape)
    return _json_bytes(state)


def _state(q: StoredArray, views: Views) -> Array:
    """Write what bitsandbytes stores beside codes of 4 bits."""
    state: dict[str, Any] = {
        "quant_type": q.scheme.rpartition("_")[2],
        "blocksize": views.block[1],
        "dtype": BF16,
        "shape": list(views.shape),
    }
    if "nested scale" in q.extras:
        state |= {
            "nested_blocksize": int(q.extras["nested block"]),
            "nested_dtype": "float32",
            "nested_offset": float(q.extras["nested bias"]),
        }
    return _json_bytes(state)


def _blocks(q: StoredArray, views: Views) -> Array:
    """Join the fields of blocks of bytes."""
    parts = {"scale": q.scale, "data": q.data, **q.extras}
    lead = q.data.shape[:-1]
    pieces = [
        np.ascontiguousarray(parts[name]).view(np.uint8).reshape(*lead, size)
        for name, size in views.storage.fields
    ]
    blocks = np.concatenate(pieces, axis=-1)
    return blocks.reshape(*lead[:-1], lead[-1] * blocks.shape[-1])
