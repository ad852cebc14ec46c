"""Quantize arrays: plan what follows from the arguments, and let the core fill the parts."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache, partial
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from castwise._core import (
    BlockEncoder,
    UnfitError,
    block_amax,
    cast,
    encode_blocks,
    in_default_environment,
    read_array,
    report_losses,
)
from castwise._core import global_scale as fit_global_scale
from castwise._options import (
    BlockTypeName,
    Nonfinite,
    Recipe,
    Rounding,
    ScaleRule,
    Scales,
    SchemeName,
)
from castwise.quantization.arrays._arguments import (
    MAX_SEED,
    block_pair,
    check_float,
    integer,
    magnitude,
    native,
)
from castwise.quantization.arrays.arrays import QuantizedArray
from castwise.quantization.arrays.scale_range import amax_bounds, amax_near_one, warn_of_scales
from castwise.quantization.arrays.views import (
    Array,
    StoredArray,
    Views,
    fields_of,
    format_of_bytes,
    geometry,
    scale_dtype,
    views_of,
)
from castwise.quantization.producers.block_types import (
    BLOCK_TYPES,
    FALLBACKS,
    WHOLE_BLOCKS,
    BeyondFloat16Error,
    encode_type,
    has_importance,
    type_of_scheme,
)
from castwise.quantization.producers.layouts import MATRIX, ZERO, Storage
from castwise.quantization.producers.registry import TYPED, find_recipe, written_layout
from castwise.quantization.producers.schemes import (
    Scheme,
    check_scales,
    find_scheme,
    has_bias,
    has_global_scale,
    scheme_of_files,
)
from castwise.text.wording import check_switch

# Elements that are encoded, and compared with others, sooner than the core is told how.
_SMALL = 1 << 14


def quantize(
    x: ArrayLike,
    scheme: SchemeName | BlockTypeName,
    *,
    recipe: Recipe | None = None,
    block: int | Sequence[int] | None = None,
    axis: int | None = None,
    scale_rule: ScaleRule | None = None,
    rounding: Rounding | None = None,
    amax: float | None = None,
    nonfinite: Nonfinite = "raise",
    symmetric: bool = True,
    scales: Scales = "amax",
    importance: ArrayLike | None = None,
    seed: int = 0,
    threads: int | None = None,
) -> QuantizedArray:
    """Quantize an array: scales, codes and packing in one pass.

    Parameters
    ----------
    x : array_like
        Any real float dtype, rank 1 or more, any strides; one in the other byte order is copied.
        Leading axes are a stack of matrices.
        float64 is computed in float64, and results are rounded once.
    scheme : str
        One of `schemes()`; or a block type of llama.cpp: "q4_0", "q4_1", "q5_0", "q5_1", "q8_0",
        "q2_k", "q3_k", "q4_k", "q5_k" or "q6_k". Its blocks are those of llama.cpp, bit for bit,
        also with `importance`; rows have whole ones, and only `axis`, `scales` and `importance`
        apply; x is rounded to float32 first.
    recipe : str, optional
        Whose arithmetic is used, bit for bit, and in whose form the parts are stored. By default
        the first of the scheme's `recipes`.
    block : int or sequence of int, optional
        The (rows, columns) that share a scale; one number is columns. By default the scheme's. The
        last block along an axis may be shorter. (16, 16) of nvfp4 stores each scale 16 times.
    axis : int, optional
        The axis along which the columns of a block lie: the one that a matrix product sums over.
        By default that of the recipe's weights: the last, but the first with recipe="keras", whose
        kernels are (inputs, outputs).
    scale_rule : {"floor", "rceil", "ceil", "even", "ct"}, optional
        How a scale that is a power of two is found from the largest magnitude; by default as the
        recipe does. With float8 it also makes scales powers of two.
    rounding : str, optional
        Of codes, as in `castwise.cast`. By default the recipe's.
    amax : float, optional
        In place of the largest magnitude of the whole array: of all arrays that share a scale, say.
        For schemes with one scale, or a global one.
    nonfinite : {"raise", "nan"}
        What infinities and NaN do: they are refused, or their block gets a scale of NaN.
    symmetric : bool
        False gives each block of integers a zero point (or, in some layouts, a minimum).
    scales : {"amax", "best", "four_over_six"}
        Which scale each block gets: the one that the recipe computes from the largest magnitude;
        with nvfp4, MX and integers, the stored one of least squared error (never a larger error
        than with "amax"), with the zero point of a block, if it has one; with block types, the best
        that a search finds (never a larger error than llama.cpp's); or with nvfp4, the better
        one of two: the largest magnitude becomes 6, or 4. With recipe="compressed-tensors", scales
        of integers may be negative: all who load its files multiply by them.
    importance : array_like, optional
        What squared errors are multiplied by where scales are searched, or what llama.cpp takes
        for an importance matrix in its own search of a block type: a float for each index
        along `axis`, such as the mean square of that input of a matrix product; or so many for
        each matrix of a stack. They are read as float32, finite and not negative. Blocks of which
        all are 0 are searched without them. With block types this holds for a matrix of a stack;
        in other matrices such a block becomes zeros with some types, as llama.cpp makes it.
    seed : int
        For ``rounding="stochastic"``.
    threads : int, optional
        The most threads.

    Returns
    -------
    QuantizedArray

    Warns
    -----
    RuntimeWarning
        Scales are beyond the range of the format that the recipe stores them in, so that the result
        keeps at least 1 dB less than the scheme does of such a weight at magnitude 1.

    Raises
    ------
    TypeError
        `x` or `importance` is not of a real float dtype, or has a mask.
    ValueError
        An unknown name, a block that the scheme cannot have, an option that does not apply to the
        scheme, an infinite or NaN element (its index is named), an importance of another shape, of
        zeros only, or with a number that is negative or not finite. It is an `UnfitError` if the
        scheme cannot hold such an array: its shape, such blocks, or an element.

    Examples
    --------
    >>> x = np.linspace(-1, 1, 256, dtype=np.float32).reshape(2, 128)
    >>> quantize(x, "nvfp4", recipe="modelopt").parts()["weight_scale"].shape
    (2, 8)

    """
    array = native(x if type(x) is np.ndarray else read_array("x", x))
    check_switch("symmetric", symmetric)
    block_type = type_of_scheme(scheme.lower()) if isinstance(scheme, str) else None
    if block_type is not None:
        integer("seed", seed, 0, MAX_SEED)
        options = {
            "recipe": (recipe, TYPED),
            "block": (block, scheme_of_files(block_type.lower()).block[1]),
            "scale_rule": (scale_rule, None),
            "rounding": (rounding, None),
            "amax": (amax, None),
            "nonfinite": (nonfinite, "raise"),
            "symmetric": (bool(symmetric), True),
            "scales": (scales, "best" if isinstance(scales, str) and scales == "best" else "amax"),
        }
        weights = None if importance is None else _read_importance(importance)

        def encode_blocks_of(x: Array, _: int = 0) -> QuantizedArray:
            return _of_block_type(
                x, block_type, -1 if axis is None else axis, options, threads, importance=weights
            )

        blocks = encode_blocks_of(array)
        in_default_environment(warn_of_scales, array, blocks, encode_blocks_of, threads)
        return blocks
    request = (
        scheme,
        recipe,
        None if block is None else block_pair(block),
        axis,
        array.shape,
        array.dtype,
        bool(symmetric),
        scale_rule,
        rounding,
        nonfinite,
        scales,
        seed,
    )
    weights = None if importance is None else _read_importance(importance)
    q, plan = _planned_and_made(array, request, amax, threads, weights)
    if plan.is_bounded:

        def encode(x: Array, exponent: int) -> QuantizedArray:
            return _encode(x, plan, amax_near_one(amax, exponent), threads, weights)

        in_default_environment(warn_of_scales, array, q, encode, threads)
    if amax is not None and q.global_scale is not None and not np.isfinite(q.global_scale).all():
        raise ValueError(
            f"amax={amax} is not valid for {scheme}: no float32 holds its global scale; divide x "
            "and amax by a number."
        )
    return q


def _of_block_type(
    x: Array,
    name: str,
    axis: int,
    options: Mapping[str, tuple[object, object]],
    threads: int | None,
    *,
    importance: Array | None,
) -> QuantizedArray:
    """Quantize an array to blocks of a type of llama.cpp, which has few ways to do so."""
    # `options` have the value that each option was set to, and the only one that it may have.
    row = scheme_of_files(name.lower())
    check_float(x.shape, x.dtype)
    axis = integer("axis", axis, -x.ndim, x.ndim - 1)
    for option, (value, default) in options.items():
        if value is not None and (not np.isscalar(value) or value != default):
            setting = f"{option}={value!r}" if np.isscalar(value) else option
            raise ValueError(
                f"{setting} is not valid for {row.name}, whose blocks are those that "
                "llama.cpp makes; leave it out."
            )
    columns, elements = x.shape[axis], row.block[1]
    if columns % elements:
        fallback = FALLBACKS.get(name, name)
        fits = columns % BLOCK_TYPES[fallback][1] == 0
        use = f", or use {fallback.lower()!r}" if fits else ""
        raise UnfitError(
            f"x has {columns} elements along axis {axis}, and {row.name} needs whole blocks of "
            f"{elements}; pad them{use}."
        )
    layout = WHOLE_BLOCKS[name]
    views = geometry(row.name, TYPED, layout, shape=x.shape, axis=axis, block=row.block)
    matrix = views.of_weight(x).reshape(math.prod(views.core_shape[:-1]), columns)
    if not math.isfinite(block_amax(matrix)):
        index = tuple(map(int, np.argwhere(~np.isfinite(cast(x, np.float64)))[0]))
        raise UnfitError(
            f"x has {x[index]} at index {list(index)}, for which no scale is right; mend it."
        )
    scales = str(options["scales"][0])
    if importance is not None:
        importance = _checked_importance(importance, x.shape, axis)
        wrong = np.argwhere(~(np.isfinite(importance) & (importance >= 0)))
        if len(wrong):
            index = tuple(map(int, wrong[0]))
            raise ValueError(
                f"importance{list(index)} is {importance[index]}, by which no error can be "
                "weighted; give finite numbers that are not negative."
            )
        if not has_importance(row.name, scales):
            raise ValueError(
                f"importance is not valid for {row.name}, whose scales llama.cpp does not search; "
                "leave it out, or add scales='best'."
            )
        if columns:
            rows = importance.reshape(-1, columns)
            # As llama-quantize has it of experts that no token reached.
            importance = np.where(rows.any(axis=1, keepdims=True), rows, np.float32(1))
    try:
        blocks = encode_type(matrix, name, threads, importance=importance, scales=scales)
        blocks = blocks.reshape(views.data_shape)
    except BeyondFloat16Error as error:
        raise UnfitError(f"x cannot be {row.name}: {error}; divide x by a number.") from error
    fields = fields_of(views, blocks)
    names: dict[str, Any] = {"scheme": row.name, "recipe": TYPED}
    return QuantizedArray(
        data=fields["data"], scale=fields["scale"], shape=x.shape, axis=axis, **names
    )


def quantize_slab(
    x: Array,
    scheme: str,
    *,
    recipe: str | None,
    block: tuple[int, int] | None = None,
    axis: int = -1,
    scale_rule: str | None = None,
    scales: str = "amax",
    symmetric: bool = True,
    amax: float | Sequence[float] | None = None,
    importance: Array | None = None,
    threads: int | None = None,
) -> QuantizedArray:
    """Quantize an array, as `quantize` does, without a warning of its scales."""
    # `amax` may have a number for each matrix of a stack, each of which then has a global scale.
    # `importance` has float32 numbers, perhaps only zeros, as a matrix of a stack may.
    rest = (scale_rule, None, "raise", scales, 0)
    request = (scheme, recipe, block, axis, x.shape, x.dtype, symmetric, *rest)
    if not x.size and not isinstance(amax, Sequence):
        return _planned_and_made(x, request, amax, threads, importance)[0]
    return _encode(x, _known_plan(*request), amax, threads, importance)


def quantize_each(
    x: Array, scheme: str, *, recipe: str | None, scales: str = "amax", threads: int | None = None
) -> QuantizedArray | None:
    """Quantize each matrix of a stack alone by a scheme with a scale of the whole, in one call."""
    # Returns None where the core takes one matrix at a time.
    rest = (None, None, "raise", scales, 0)
    plan = _known_plan(scheme, recipe, None, -1, x.shape, x.dtype, True, *rest)
    if plan.bias or plan.arithmetic in plan.scheme.single_recipes:
        return None
    options, levels = plan.options, None
    if plan.scheme.global_scale:
        rows = [_with_amax(plan, options, matrix, matrix, None) for matrix in x]
        levels = np.array([level for _, level in rows], np.float32)
        options = {**rows[0][0], "global_scale": levels, "amax": None}
    data, scale, _ = _allocate_parts(plan)
    weight, codes = (x, data) if plan.as_given else _as_seen(x, data, plan)
    core_scale = np.zeros(plan.grid, plan.dtype)
    encode_blocks(weight, codes, core_scale, **options, threads=threads)
    if plan.block == (0, 0):
        return _result(plan, data, core_scale)
    if plan.block != plan.views.block:
        return None
    plan.views.to_stored(core_scale, scale)
    return _result(plan, data, scale, levels)


def _read_importance(importance: ArrayLike) -> Array:
    """Read numbers that weight errors as float32; refuse other ones than floats, and only zeros."""
    array = read_array("importance", importance)
    check_float(array.shape, array.dtype, "importance", ValueError)
    with np.errstate(over="ignore"):  # what becomes infinite is refused by its index
        numbers = array.astype(np.float32, copy=False)
    if numbers.size and not numbers.any():
        raise ValueError("importance has only zeros, which weight no error; give one above 0.")
    return numbers


def _checked_importance(importance: Array, shape: Sequence[int], axis: int) -> Array:
    """Refuse numbers of another shape than those of the indices along an axis."""
    others = [length for index, length in enumerate(shape) if index != axis % len(shape)]
    stack, columns = others[:-1], shape[axis]
    if importance.shape not in {(columns,), (*stack, columns)}:
        stacked = f", or {(*stack, columns)}" if stack else ""
        raise ValueError(
            f"importance has shape {importance.shape}; give a number for each index along axis "
            f"{axis} of x, of shape {(columns,)}{stacked}."
        )
    return importance


def _importance_of_elements(importance: Array, plan: _Plan, data: Array) -> Array:
    """Broadcast numbers for the indices along an axis to a weight, as the core sees that."""
    shape, axis = plan.views.shape, plan.views.axis
    others = [length for index, length in enumerate(shape) if index != axis % len(shape)]
    importance = _checked_importance(importance, shape, axis)
    rows = importance[..., None, :] if others else importance
    of_elements = np.moveaxis(np.broadcast_to(rows, (*others, shape[axis])), -1, axis)
    return of_elements if plan.as_given else _as_seen(of_elements, data, plan)[0]


def _planned_and_made(
    array: Array,
    request: tuple[Any, ...],
    amax: float | None,
    threads: int | None,
    importance: Array | None,
) -> tuple[QuantizedArray, _Plan]:
    try:
        plan = _known_plan(*request)
    except TypeError:  # of what has no hash, too, which its own check names
        plan = _plan_of(*request)
    if not array.size and plan.block == (0, 0):
        return _of_nothing(array, plan, request, amax), plan
    largest = None if amax is None else magnitude(amax)
    return _encode(array, plan, largest, threads, importance), plan


class _Plan(NamedTuple):
    """What follows from all arguments but the elements."""

    scheme: Scheme  # what is made, and whose arithmetic it is
    arithmetic: str
    views: Views  # where the parts lie
    as_given: bool  # whether the core sees the array and the payload as they are
    block: tuple[int, int]  # the (rows, columns) that share a scale as it is computed
    # Whether the core sees a stack as one matrix: blocks of the whole array have one range
    as_one: bool
    grid: tuple[int, ...]  # the blocks along each axis, as the core sees them
    dtype: np.dtype[Any]  # of scales
    bias: bool  # whether blocks have a bias, or a zero point
    zeros: bool
    at_once: bool  # whether the core writes scales where they are stored
    fills: bool  # whether codes fill the payload: else what is left of it is 0
    is_bounded: bool  # whether there are magnitudes that scales do not reach
    options: dict[str, Any]  # of the core
    fields: dict[str, Any]  # of the result
    # One that makes all parts of arrays in C order, once such an array was encoded
    encoders: list[BlockEncoder]


def _plan_of(  # noqa: PLR0917  (keywords take longer to look up)
    scheme: str,
    recipe: str | None,
    block: tuple[int, int] | None,
    axis: int | None,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    symmetric: bool,
    scale_rule: str | None,
    rounding: Rounding | None,
    nonfinite: str,
    scales: str,
    seed: int,
) -> _Plan:
    check_float(shape, dtype)
    row = find_scheme(scheme)
    if axis is not None:
        axis = integer("axis", axis, -len(shape), len(shape) - 1)
    seed = integer("seed", seed, 0, MAX_SEED)
    if not row.recipes:
        raise ValueError(f"scheme={scheme!r} is only read; use one of `schemes()`.")
    producer = row.recipes[0] if recipe is None else recipe
    if producer not in row.recipes:
        find_recipe(producer)
        names = ", ".join(row.recipes)
        raise ValueError(f"recipe={recipe!r} is not valid for {scheme}; use one of {names}.")
    axis = find_recipe(producer).axis_of(len(shape)) if axis is None else axis
    check_scales(scales, row, producer)
    if scale_rule is not None and row.rule is None and not row.name.startswith("fp8_"):
        raise ValueError(
            f"scale_rule={scale_rule!r} is not valid for {scheme}; leave it out, or use a scheme "
            "of MX or fp8."
        )
    if not symmetric and not _may_be_asymmetric(row, producer):
        names = " or ".join(repr(name) for name in row.recipes if _may_be_asymmetric(row, name))
        raise ValueError(
            f"symmetric=False is not valid for {row.name} as recipe={producer!r} stores it, which "
            f"is without zero points; leave it out{f', or use recipe={names}' if names else ''}."
        )
    layout = written_layout(producer, row, symmetric=symmetric)
    storage = layout.storage or Storage()
    bias = has_bias(layout)
    size = row.block if block is None else _allowed_block(row, block, shape)
    if layout.block is not None and storage.fields:
        size = block_pair(layout.block)
    stored_block = (1, size[1]) if row.global_scale else size
    views = geometry(row.name, producer, layout, shape=shape, axis=axis, block=stored_block)
    _check_shape(views)
    as_one = size == (0, 0) and (bias or not symmetric) and len(shape) > MATRIX and 0 not in shape
    grid = (1, 1) if as_one else replace(views, block=size).grid
    powers = scale_rule is not None and row.rule is None
    stored_scales = scale_dtype(views, dtype, powers=powers)
    options: dict[str, Any] = {
        "scheme": row.name,
        "recipe": producer,
        "block": size[::-1] if views.is_transposed else size,
    }
    further_options: dict[str, tuple[Any, Any]] = {
        "layout": (views.packing, "dense"),
        "offset": (1 << (row.bits - 1) if storage.excess else 0, 0),
        "scale_format": (format_of_bytes(stored_scales, row), None),
        "rule": (scale_rule, None),
        "rounding": (rounding, None),
        "scales": (scales, "amax"),
        "nonfinite": (nonfinite, "raise"),
        "seed": (seed, 0),
    }
    # The core takes longer to be told what it assumes than a small array. It lists the names that
    # it takes, if another value is given.
    options |= {
        name: value if name in {"offset", "seed"} else str(value)
        for name, (value, default) in further_options.items()
        if value != default
    }
    moves = storage.tile is not None or storage.fields or storage.orientation in ("parts", "pairs")
    is_moved = views.is_transposed or storage.flat or axis not in (-1, len(shape) - 1)
    # A copy of a dict that has all keys takes a fifth of what it takes to make one.
    fields: dict[str, Any] = {
        **dict.fromkeys(("data", "scale", "global_scale", "zero_point", "_ready")),
        "scheme": row.name,
        "shape": shape,
        "recipe": producer,
        "block": views.block,
        "axis": axis,
        "extras": MappingProxyType({}),
        "variant": None,
        "layout": layout,
    }
    return _Plan(
        row,
        producer,
        views,
        not (moves or is_moved or as_one) and len(shape) > 1,
        size,
        as_one,
        grid,
        stored_scales,
        bias=bias,
        zeros=not symmetric and not bias,
        at_once=not moves and math.prod(grid) == math.prod(views.scale_shape) > 0,
        fills=storage.tile is None and not storage.fields and math.prod(shape) > 0,
        is_bounded=amax_bounds(views, stored_scales, dtype, is_affine=bias or not symmetric)
        is not None,
        options=options,
        fields=fields,
        encoders=[],
    )


_known_plan = lru_cache(1 << 10, typed=True)(_plan_of)


def _may_be_asymmetric(scheme: Scheme, recipe: str) -> bool:
    """Return True if a producer stores zero points, or a bias, beside the scales of a scheme."""
    layout = written_layout(recipe, scheme, symmetric=False)
    divides = layout.storage is not None and layout.storage.divides  # Keras: only groups have some
    has_zeros = any(part.role == ZERO for part in layout.parts) and not divides
    return scheme.zero_point and (has_bias(layout) or has_zeros)


def _allowed_block(
    scheme: Scheme, block: tuple[int, int], shape: tuple[int, ...]
) -> tuple[int, int]:
    rows, columns = scheme.block
    has_free_blocks = scheme.name.endswith(("_group", "_block")) or scheme.code_map is not None
    if block == scheme.block:
        return block
    if scheme.global_scale and block == (columns, columns):
        return block
    if has_free_blocks and block[1] > 0 and block[0] > 0 and (block[0] == 1 or rows > 1):
        return block
    text = f"({rows}, {columns})" + (f" or ({columns}, {columns})" if scheme.global_scale else "")
    raise UnfitError(f"block={block} is not valid for {scheme.name} of shape {shape}; use {text}.")


def _encode(
    x: Array,
    plan: _Plan,
    amax: float | Sequence[float] | None,
    threads: int | None,
    importance: Array | None = None,
) -> QuantizedArray:
    """Have the core fill the parts: those that it allocates, once such an array was encoded."""
    for known_encoder in plan.encoders if amax is None and importance is None else ():
        if (arrays := known_encoder.encode(x, threads)) is not None:
            return _result(plan, *arrays)
    views, scheme, grid = plan.views, plan.scheme, plan.grid
    data, stored_scale, stored_bias = _allocate_parts(plan)
    weight, codes = (x, data) if plan.as_given else _as_seen(x, data, plan)
    options = plan.options if threads is None else {**plan.options, "threads": threads}
    scale = stored_scale.reshape(grid) if plan.at_once else np.zeros(grid, plan.dtype)
    biases = np.empty(grid, plan.dtype) if plan.bias else None
    zero = np.empty(grid, np.int8) if plan.zeros else None
    options, second = _with_amax(plan, options, x, weight, amax)
    if zero is not None:
        options = {**options, "zero_point": zero}
    if biases is not None:
        options = {**options, "bias": biases}
    if importance is not None:
        options = {**options, "importance": _importance_of_elements(importance, plan, data)}
    if second is not None and views.recipe is not None and not second.ndim:
        second = second.reshape(views.recipe.scalar)
    if x.size:
        in_order = all(part.flags.c_contiguous for part in (x, weight, codes))
        is_steady = in_order and plan.at_once and plan.fills and amax is None
        # An encoder that runs again finds the largest magnitude itself, and takes 1 beside NaN.
        is_steady &= second is None or options.get("nonfinite") != "nan"
        parts = (x, data, stored_scale, second)
        stored_parts = [part for part in parts if part is not None] if is_steady else None
        with _caller_index(x.shape, plan):
            encoder = encode_blocks(weight, codes, scale, stored=stored_parts, **options)
        if encoder is not None:
            plan.encoders[:] = [encoder]
    if not plan.at_once:
        if plan.block != views.block:
            scale = np.repeat(scale, plan.block[0], axis=-2)[..., : views.grid[-2], :]
        views.to_stored(scale, stored_scale)
    if biases is not None and stored_bias is not None:
        views.to_stored(biases, stored_bias)
    stored_zero = None
    if zero is not None:
        zero_dtype = np.int8 if views.storage.zeros == "plain" else views.container
        stored_zero = np.zeros(views.zero_shape, zero_dtype)
        views.zeros_to_stored(zero, stored_zero, 1 << (scheme.bits - 1))
    return _result(plan, data, stored_scale, second, stored_zero, stored_bias)


def _find_scale(
    plan: _Plan,
    options: dict[str, Any],
    x: Array,
    weight: Array,
    amax: float | Sequence[float] | None,
) -> tuple[dict[str, Any], Array | None]:
    """Add what follows from the largest magnitude to the options of the core; the global scale."""
    if plan.scheme.global_scale and has_global_scale(plan.views.layout):
        largest = 256.0 if plan.options.get("scales") == "four_over_six" else 448.0
        level_of = partial(
            fit_global_scale, recipe=plan.arithmetic, dtype=x.dtype, global_max=largest
        )
        if isinstance(amax, Sequence):
            second = np.array([level_of(value) for value in amax], np.float32)
            safe = max(amax)
        else:
            largest_value = block_amax(weight) if amax is None else amax
            # The core names a NaN or an infinity, with its index, or its block gets a scale of NaN.
            is_finite = math.isfinite(largest_value)
            safe = largest_value if is_finite else report_losses(weight, weight).amax
            second = np.array(level_of(safe), np.float32)
        return {**options, "global_scale": second, "global_max": largest, "amax": safe}, second
    if plan.block == (0, 0):
        return {**options, "amax": _whole_amax(x, weight) if amax is None else amax}, None
    if amax is not None:
        raise ValueError(f"amax={amax} is not valid for {plan.scheme.name}, which has many scales.")
    return options, None


# A process may flush subnormal numbers, which global scales may be.
_with_amax = partial(in_default_environment, _find_scale)


def core_encoding(
    x: Array,
    q: StoredArray,
    options: Mapping[str, Any],
    amax: float | None,
    *,
    keeps_level: bool = False,
) -> dict[str, Any] | bool:
    """Return what the core encodes a matrix by, given options of `quantize_slab`."""
    # For a small one, whether it has the codes and scales of another array; False if those of the
    # other one lie otherwise, or mean others. With `keeps_level` the global scale is that of the
    # other array, which `has_level_of` compares with the recipe's.
    block, rule = options["block"], options["scale_rule"]
    rest = (-1, x.shape, x.dtype, True, rule, None, "raise", "amax", 0)
    plan = _known_plan(options["scheme"], options["recipe"], block, *rest)
    is_own = plan.block == plan.views.block and not (plan.bias or plan.as_one)
    is_own &= options.get("scales", "amax") == "amax"
    if not (is_own and lie_alike(plan.views, views_of(q))):
        return False
    if x.size <= _SMALL and not keeps_level:
        names, encoded = ("data", "scale", "global_scale"), _encode(x, plan, amax, 1)
        return all(_have_same_bits(getattr(encoded, name), getattr(q, name)) for name in names)
    scales = format_of_bytes(q.scale.dtype, plan.scheme) or q.scale.dtype.name
    # Where scales are rounded before they multiply, the core does not see those that are stored.
    is_seen = not plan.views.storage.inner
    if not is_seen or scales != plan.options.get("scale_format", plan.dtype.name):
        return False
    level = q.global_scale
    if keeps_level and level is not None:
        encoding, _ = _with_amax(plan, plan.options, x, x, 1.0)
        return {**encoding, "global_scale": np.asarray(level, np.float32).reshape(()), "amax": None}
    encoding, second = _with_amax(plan, plan.options, x, x, amax)
    if second is None or level is None:
        return encoding if second is level else False
    return encoding if _is_level(second, level) else False


def has_level_of(
    amax: float, q: StoredArray, dtype: np.dtype[Any], options: Mapping[str, Any]
) -> bool:
    """Return True if the global scale of a matrix is that of a largest magnitude of a dtype."""
    rest = (-1, q.shape, dtype, True, options["scale_rule"], None, "raise", "amax", 0)
    plan = _known_plan(options["scheme"], options["recipe"], options["block"], *rest)
    nothing = np.empty(0, dtype)
    _, level = _with_amax(plan, plan.options, nothing, nothing, amax)
    return level is not None and _is_level(level, q.global_scale)


def _is_level(level: Array, stored_level: Array | None) -> bool:
    """Return True if two global scales of a matrix have the same bits."""
    return _have_same_bits(level.reshape(()), np.asarray(stored_level, np.float32).reshape(()))


def _have_same_bits(one: Array | None, other: Array | None) -> bool:
    """Return True if arrays, perhaps of other shapes, have the same bits, or there are none."""
    if one is None or other is None:
        return one is other
    return one.dtype == other.dtype and one.tobytes() == other.tobytes()


@lru_cache(1 << 10)
def lie_alike(views: Views, form: Views) -> bool:
    """Return True if codes and scales lie as others, and mean the same."""
    return views is form or (
        (views.scheme, views.storage) == (form.scheme, form.storage)
        and (views.core_shape, views.block) == (form.core_shape, form.block)
        and (views.packing, views.axis % 2) == (form.packing, form.axis % 2)
    )


def _of_nothing(
    x: Array, plan: _Plan, request: tuple[Any, ...], amax: float | None
) -> QuantizedArray:
    """Give an array without elements the scale of a zero."""
    zero = np.zeros((1,) * x.ndim, x.dtype)
    like: list[Any] = [zero.shape if value == x.shape else value for value in request]
    quantized_zero = _encode(zero, _plan_of(*like), None if amax is None else magnitude(amax), None)
    data, scale, bias = _allocate_parts(plan)
    scale[...] = quantized_zero.scale
    if bias is not None:
        bias[...] = quantized_zero.extras["bias"]
    return _result(plan, data, scale, quantized_zero.global_scale, quantized_zero.zero_point, bias)


def _result(  # noqa: PLR0917
    plan: _Plan,
    data: Array,
    scale: Array,
    global_scale: Array | None = None,
    zero_point: Array | None = None,
    bias: Array | None = None,
) -> QuantizedArray:
    fields = plan.fields.copy()
    fields["data"], fields["scale"], fields["_ready"] = data, scale, {}
    fields["global_scale"], fields["zero_point"] = global_scale, zero_point
    if bias is not None:
        fields["extras"] = MappingProxyType({"bias": bias})
    elif plan.scheme.code_map is not None:
        code_map = np.array(plan.scheme.code_map, np.float32)
        fields["extras"] = MappingProxyType({"code map": code_map})
    return QuantizedArray._of_fields(fields)


def _as_seen(x: Array, data: Array, plan: _Plan) -> tuple[Array, Array]:
    """Return an array and a view of its payload as the core sees them."""
    weight, codes = plan.views.of_weight(x), plan.views.of_data(data)
    if not plan.as_one:
        return weight, codes
    rows = math.prod(weight.shape[:-1])
    return weight.reshape(rows, weight.shape[-1]), codes.reshape(rows, codes.shape[-1])


@contextmanager
def _caller_index(shape: tuple[int, ...], plan: _Plan) -> Iterator[None]:
    """Name an element of the caller's array where the core names one of its view."""
    try:
        yield
    except UnfitError as error:
        match = re.search(r"(?<=at index \[)[\d, ]+", str(error))
        if match is None or plan.as_given:
            raise
        index = tuple(int(number) for number in match[0].split(","))
        axes = (np.broadcast_to(axis, shape) for axis in np.ogrid[*map(slice, shape)])
        views = [plan.views.of_weight(axis) for axis in axes]
        if plan.as_one:
            views = [view.reshape(-1, view.shape[-1]) for view in views]
        indices = ", ".join(str(view[index]) for view in views)
        raise UnfitError(str(error).replace(match[0], indices)) from None


def _whole_amax(x: Array, weight: Array) -> float | None:
    """Return the largest magnitude of a stack, for which the core would take one per matrix."""
    if math.prod(weight.shape[:-2]) == 1:
        return None
    amax = block_amax(x)
    return amax if math.isfinite(amax) else None


def _check_shape(views: Views) -> None:
    """Refuse a weight that the layout has no place for."""
    columns, size = views.core_shape[-1], views.bytes_of_codes
    name = views.recipe.name if views.recipe is not None else "the layout"
    is_whole = views.storage.fields or (views.storage.split and columns > size)
    if is_whole and columns % size:
        raise UnfitError(
            f"x has {columns} columns, and {name} stores {views.scheme.name} in whole blocks of "
            f"{size}; pad them, or use another recipe."
        )
    if (views.storage.tile is not None or views.is_transposed) and len(views.shape) == 1:
        raise UnfitError(
            f"x has shape {views.shape}, and {name} stores {views.scheme.name} in rows and "
            "columns; give a matrix, as x[None]."
        )


def _allocate_parts(plan: _Plan) -> tuple[Array, Array, Array | None]:
    """Make the arrays that are stored: the payload, scales and biases."""
    views, dtype = plan.views, plan.dtype
    fields = views.storage.fields
    if not fields:
        make = np.empty if plan.fills else np.zeros
        return (
            make(views.data_shape, views.container),
            np.empty(views.scale_shape, dtype),
            np.empty(views.scale_shape, dtype) if plan.bias else None,
        )
    *stack, rows, columns = views.core_shape
    count = columns // views.bytes_of_codes
    blocks = np.zeros((*stack, rows, count, sum(size for _, size in fields)), np.uint8)
    if len(views.shape) == 1:
        blocks = blocks[0]
    parts = fields_of(views, blocks)
    return parts["data"], parts["scale"], parts.get("bias")
