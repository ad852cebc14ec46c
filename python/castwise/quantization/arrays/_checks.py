"""Refuse parts of a quantized array that do not fit each other."""

import math
from collections.abc import Iterator

import numpy as np

from castwise._core import finfo
from castwise._numbers import BYTE_BITS, WORD_BITS
from castwise.quantization.arrays.views import Array, StoredArray, Views, fields_of, views_of
from castwise.quantization.producers.layouts import (
    E4M3,
    E8M0,
    GLOBAL,
    ceil_div,
    grid_of_scales,
    without_ones,
)
from castwise.quantization.producers.stored_weight import LazyArray


def check(q: StoredArray) -> None:
    """Refuse parts whose shapes or dtypes are not those that the block and the shape call for."""
    for text in faults(q):
        raise ValueError(text)


def faults(q: StoredArray) -> Iterator[str]:
    """Yield what does not fit of the parts of a quantized array; nothing if all of it does."""
    for name in ("data", "scale", "global_scale", "zero_point"):
        part = getattr(q, name)
        if not hasattr(part, "dtype") and (part is not None or name in {"data", "scale"}):
            raise TypeError(f"{name} must be an ndarray, not {type(part).__name__}.")
    views = views_of(q)
    rank = len(views.shape)
    if not isinstance(q.axis, int | np.integer) or not -rank <= q.axis < rank:
        yield f"axis={q.axis} is not valid; the shape is {views.shape}."
    yield from _block_faults(views)
    yield from _dtypes_faults(q, views)
    storage = views.storage
    variants = (*storage.packing, *dict(storage.zeros_add))
    if q.variant is not None and q.variant not in variants:
        yield f"variant={q.variant!r} is not valid; use one of {', '.join(variants)}."
    yield from _shape_faults("data", q.data, views.data_shape, views)
    matrices = math.prod(views.core_shape[:-2])
    if views.block != (0, 0) or q.scale.size != matrices:
        yield from _shape_faults("scale", q.scale, views.scale_shape, views)
    if q.zero_point is not None:
        yield from _shape_faults("zero_point", q.zero_point, views.zero_shape, views)
    if storage.block_type:
        yield from _block_scale_faults(q, views)
    if q.global_scale is not None and q.global_scale.size not in (1, matrices):
        yield from _shape_faults("global_scale", q.global_scale, (), views)
    yield from _extras_faults(q, views)
    if views.scheme.global_scale and q.global_scale is None and views.recipe is not None:
        requires_level = any(
            part.role == GLOBAL and part.is_required for part in views.layout.parts
        )
        if requires_level:
            yield f"global_scale=None is not valid; {q.recipe} stores one for {q.scheme}."
    if storage.is_unsigned and q.zero_point is None and "bias" not in q.extras:
        yield (
            f"zero_point=None is not valid; {q.recipe} stores {q.scheme} without a sign, so that "
            "codes mean nothing without zero points or biases."
        )


def _block_scale_faults(q: StoredArray, views: Views) -> Iterator[str]:
    """Yield what is wrong of scales beside the blocks that hold them, which decoding reads."""
    size = sum(size for _, size in views.storage.fields)
    scale = fields_of(views, np.ascontiguousarray(q.data).reshape(-1, size))["scale"]
    if q.scale.dtype != scale.dtype or q.scale.tobytes() != scale.tobytes():
        yield f"scale is not that of data, whose blocks of {q.scheme} hold it; quantize x anew."


def _extras_faults(q: StoredArray, views: Views) -> Iterator[str]:
    """Yield what is wrong of the shapes of extra parts, which decoding needs."""
    columns, blocks = views.shape[q.axis], math.prod(views.grid)
    shapes = {
        "group index": (columns,),
        "divisor": (columns,),
        "factor": (columns,),
        "float8 scale": (),
        "bias": views.scale_shape,
        "code map": (1 << views.scheme.bits,),
    }
    extras = q.extras
    if "nested scale" in extras:
        size = int(extras.get("nested block", 0))
        if size < 1 or not {"nested code map", "nested bias"} <= extras.keys():
            yield ("extras has a nested scale, which needs a nested code map, bias and block.")
        shapes |= {"nested scale": (ceil_div(blocks, size),), "nested code map": (1 << BYTE_BITS,)}
    if views.storage.flat and ("nested scale" in extras) != (q.scale.dtype.itemsize == 1):
        yield (
            f"{_label('scale', q.scale)} has dtype {q.scale.dtype}; nested scales are bytes, and "
            "no others."
        )
    for name, shape in shapes.items():
        if name in extras:
            yield from _shape_faults(name, extras[name], shape, views)


def _block_faults(views: Views) -> Iterator[str]:
    """Yield what is wrong of a block: it is none of the scheme's."""
    scheme, block = views.scheme, views.block
    if block == scheme.block:
        return
    free = scheme.name.endswith(("_group", "_block")) or scheme.code_map is not None
    # ModelOpt's W4A8 has nvfp4 in blocks of 32; blocks of rows are stored as blocks of one.
    free = free or (scheme.global_scale and block[0] == 1)
    if not free or min(block) < 1:
        use = "(rows, columns)" if free else scheme.block
        yield f"block={block} is not valid for {scheme.name}; use {use}."


def _dtypes_faults(q: StoredArray, views: Views) -> Iterator[str]:
    """Yield what is wrong of the dtypes of payloads and scales."""
    scheme, payload_dtype = views.scheme, q.data.dtype
    is_float8 = scheme.name.startswith("fp8_")
    format_of_payload = finfo(payload_dtype)
    fits = payload_dtype == views.container or (
        is_float8 and format_of_payload.kind == "float" and payload_dtype.itemsize == 1
    )
    if views.storage.container is not None and not views.storage.block_type:
        is_whole = format_of_payload.bits == views.container.itemsize * BYTE_BITS
        fits = is_whole and format_of_payload.kind.endswith("int")
    if not fits:
        yield (
            f"{_label('data', q.data)} has dtype {payload_dtype}, but {scheme.name} needs "
            f"{views.container}; view it as that."
        )
    if scheme.scale in (E8M0, E4M3):
        if q.scale.dtype != np.uint8 and finfo(q.scale.dtype).name != scheme.scale:
            yield (
                f"{_label('scale', q.scale)} has dtype {q.scale.dtype}, but {scheme.name} stores "
                f"{scheme.scale}; give the bytes as they are stored."
            )
    elif q.scale.dtype != np.uint8 or not (is_float8 or views.storage.flat):
        yield from _kind_faults("scale", q.scale, "float")
    yield from _kind_faults("global_scale", q.global_scale, "float")
    yield from _kind_faults("zero_point", q.zero_point, "int")
    for name in _FLOATS.intersection(q.extras):
        yield from _kind_faults(name, q.extras[name], "float")


def _kind_faults(name: str, part: Array | None, kind: str) -> Iterator[str]:
    """Yield what is wrong of elements that would be taken for numbers of a kind, and are others."""
    if part is None:
        return
    row = finfo(part.dtype)
    if not row.kind.endswith(kind) or row.bits > WORD_BITS:
        yield f"{_label(name, part)} has dtype {part.dtype}; it must be of {_KINDS[kind]}."


_KINDS = {"float": "floats of at most 32 bits", "int": "integers of at most 32 bits"}
# What else decodes weights and is of floats.
_FLOATS = frozenset(("bias", "code map", "divisor", "factor", "float8 scale", "nested code map"))


def _label(name: str, part: object) -> str:
    return f"{name} {part.name!r}" if isinstance(part, LazyArray) else name


def _shape_faults(name: str, part: Array, shape: tuple[int, ...], views: Views) -> Iterator[str]:
    """Yield what is wrong of a shape; axes of one element, and those inside a row, may differ."""
    if without_ones(part.shape) == without_ones(shape):
        if not isinstance(part, LazyArray) or part.size <= 1:
            return
        grid = grid_of_scales(shape, views.data_shape)
        if part.shape in (shape, (*shape, 1), grid) or (*part.shape, 1) == shape:
            return
    rows = len(shape) - 1
    inner = math.prod(part.shape[rows:]) == shape[-1] if shape else False
    if inner and part.shape[:rows] == shape[:rows]:
        return
    block = "x".join(str(n or "all") for n in views.block)
    # Who gave arrays may give another axis; what a checkpoint has follows from its producer.
    is_chosen = not isinstance(part, LazyArray) and len(views.shape) > 1
    along = f" along axis={views.axis}" if is_chosen else ""
    yield (
        f"{_label(name, part)} has shape {part.shape}, but {views.scheme.name} of shape "
        f"{views.shape} in blocks of {block}{along} needs {shape}."
    )
