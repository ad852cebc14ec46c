"""The parts of quantised arrays under the names that producers give them."""

from __future__ import annotations

import json
from typing import Any

import ml_dtypes
import numpy as np

from castwise.quantization._layouts import GLOBAL, OTHER, SCALE, ZERO, Layout, Part
from castwise.quantization._names import beside
from castwise.quantization._schemes import Scheme, find_recipe
from castwise.quantization._views import Array, Views, views_of

_HEAD = "weight"


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
    stem = stem_of(layout)
    found = {bare(beside(layout.payload, stem) if layout.payload else stem): q.data}
    for part in layout.parts:
        value = _value(q, part, views)
        if value is not None:
            found[bare(beside(part.name, stem))] = value
    return found


def stem_of(layout: Layout) -> str:
    """Return what a parameter of a layout is called."""
    if layout.payload in ("_blocks", ".blocks"):
        return ""
    return layout.parameters[0] if layout.parameters else _HEAD


def bare(name: str) -> str:
    """Return what is added to a name as a name of its own."""
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
        return comfy_marker(views.scheme)
    found = q.extras.get(part.use) if part.use else None
    return found


def _json_bytes(value: Any) -> Array:
    return np.frombuffer(json.dumps(value).encode(), np.uint8)


def comfy_marker(scheme: Scheme) -> Array:
    """Return what ComfyUI stores beside a weight: what it calls its scheme."""
    named = {"fp8_tensor": scheme.element, "mxfp8_e4m3": "mxfp8", "int8_tensor": "int8_tensorwise"}
    return _json_bytes({"format": named.get(scheme.name, scheme.name)})


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
    return joined.reshape(*lead[:-1], lead[-1] * joined.shape[-1])
