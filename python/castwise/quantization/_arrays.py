"""Quantise arrays, and decode them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from types import MappingProxyType
from typing import Any, Literal, Self

import ml_dtypes
import numpy as np
from numpy.typing import DTypeLike, NDArray

from castwise import _core
from castwise._core import finfo, formats
from castwise._options import Rounding
from castwise.quantization._parts import (
    fields_of,
    named_parts,
    recognized_parts,
    row_step,
    rows_of,
)
from castwise.quantization._recipes import E4M3, E8M0, Layout
from castwise.quantization._report import QuantizationReport, compared
from castwise.quantization._schemes import (
    Scheme,
    find_recipe,
    find_scheme,
    has_bias,
    known_recipe,
    written_layout,
)
from castwise.quantization._views import (
    Array,
    Views,
    dtype_of,
    pair,
    scale_dtype,
    views_of,
)

Arithmetic = Literal["peer", "exact"]
_BYTE = 8
_UNSIGNED = np.dtype(np.uint8).name


@dataclass(frozen=True, slots=True, eq=False)
class QuantizedArray:
    """A weight as codes that share scales, in the arrays that its producer stores.

    Parameters
    ----------
    scheme : str
        One of `schemes()`.
    data : ndarray
        The packed codes, as the producer stores them.
    scale : ndarray
        The scales as stored: E8M0 as uint8 or float8_e8m0fnu, never decoded values.
    global_scale : ndarray of float32, optional
        The scale of the scales of nvfp4, of shape () or (1,). compressed-tensors divides by it, all
        others multiply.
    zero_point : ndarray, optional
        As stored: int8 of the scales' shape, or packed as codes are.
    shape : tuple of int
        Of the array that was quantised. By default what `data` has room for.
    recipe : str, optional
        The producer in whose form the arrays are. None: codes in bytes, low bits first, beside
        plain scales.
    block : int or tuple of int, optional
        The (rows, columns) that share a scale, 0 for the whole axis; one number is columns. By
        default the scheme's.
    axis : int
        The axis along which the columns of a block lie; the rows of a block lie along the last of
        the other axes. Any further axes are a stack.
    extras : mapping of str to ndarray
        What else decoding needs: "bias", "group index", "code map", "divisor", and for nested
        scales "nested scale", "nested code map", "nested bias", "nested block".
    variant : str, optional
        Of the producer's layout: "dense" or "padded" words of compressed-tensors, "gptq" or
        "gptq_v2" zero points. By default the one that is written today.

    Raises
    ------
    ValueError
        An unknown scheme or recipe; a part that has another shape than the ceiling division of
        `shape` by `block` says.

    Examples
    --------
    >>> q = quantize(np.ones((2, 64), np.float32), "mxfp4")
    >>> q.data.shape, q.scale.shape, q.bits_per_weight
    ((2, 32), (2, 2), 4.25)
    >>> dequantize(q)[0, :2]
    array([1, 1], dtype=bfloat16)

    """

    scheme: str
    data: Array
    scale: Array
    global_scale: Array | None = None
    zero_point: Array | None = None
    shape: tuple[int, ...] | None = None
    recipe: str | None = field(default=None, kw_only=True)
    block: int | Sequence[int] | None = field(default=None, kw_only=True)
    axis: int = field(default=-1, kw_only=True)
    extras: Mapping[str, Array] = field(default_factory=dict, kw_only=True, repr=False)
    variant: str | None = field(default=None, kw_only=True)
    layout: Layout | None = field(default=None, kw_only=True, repr=False)
    """Private: the row of the table of layouts."""
    _ready: dict[str, _Ready] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        scheme = find_scheme(self.scheme)
        if self.layout is None:
            symmetric = self.zero_point is None and "bias" not in self.extras
            layout = written_layout(self.recipe, scheme, symmetric=symmetric)
            object.__setattr__(self, "layout", layout)
        block = scheme.block if self.block is None else pair(self.block)
        object.__setattr__(self, "block", block)
        if self.shape is None:
            raise ValueError("shape=None is not valid; name the shape of the weight.")
        object.__setattr__(self, "shape", tuple(int(n) for n in self.shape))
        object.__setattr__(self, "extras", MappingProxyType(dict(self.extras)))
        _check(self)

    @property
    def dtype_of_codes(self) -> str:
        """The format of a code by name; "map" if codes are indices into a code map."""
        return find_scheme(self.scheme).element

    @property
    def nbytes(self) -> int:
        """The bytes of all parts."""
        parts = (self.data, self.scale, self.global_scale, self.zero_point, *self.extras.values())
        return sum(part.nbytes for part in parts if part is not None)

    @property
    def bits_per_weight(self) -> float:
        """The bits of all parts over the elements of the weight."""
        elements = math.prod(views_of(self).shape)
        return self.nbytes * _BYTE / elements if elements else math.nan

    def parts(self, recipe: str | None = None) -> dict[str, Array]:
        """Return the arrays by the names that a producer gives them.

        Parameters
        ----------
        recipe : str, optional
            The producer; by default the one in whose form the arrays are.

        Returns
        -------
        dict of str to ndarray
            From the producer's suffix, as ``"weight_packed"``, to the array as it is stored.

        Raises
        ------
        ValueError
            The producer stores this scheme otherwise, or has no names for it.

        """
        return named_parts(self, recipe)

    @classmethod
    def from_parts(
        cls,
        parts: Mapping[str, Array],
        recipe: str,
        shape: Sequence[int] | None = None,
        *,
        scheme: str | None = None,
        block: int | Sequence[int] | None = None,
        axis: int | None = None,
        variant: str | None = None,
    ) -> Self:
        """Make a quantised array from the arrays that a producer stored.

        Parameters
        ----------
        parts : mapping of str to ndarray
            All tensors of one weight, by their names or by suffix: ``weight_packed``,
            ``weight_scale``, .... Scales of inputs may be among them and are left out.
        recipe : str
            The producer.
        shape : sequence of int, optional
            Of the weight. By default what the parts state, or have room for, padding included.
        scheme : str, optional
            What is stored, where the parts fit several: the bits of integers, say.
        block : int or sequence of int, optional
            As stated by the configuration. By default the scheme's.
        axis : int, optional
            As for `quantize`. By default the producer's.
        variant : str, optional
            As for `QuantizedArray`.

        Returns
        -------
        QuantizedArray

        Raises
        ------
        ValueError
            A payload without its scale, or a scale without its payload; parts that no layout of the
            producer has, that fit several schemes or packings, or whose shapes are not the ceiling
            division of `shape` by the block.

        """
        return recognized_parts(
            cls, parts, recipe, shape, scheme=scheme, block=block, axis=axis, variant=variant
        )

    def report(self, x: Any, *, arithmetic: Arithmetic = "peer") -> QuantizationReport:
        """Compare the decoded values with the array that was quantised.

        Parameters
        ----------
        x : array_like
            Of the shape of the weight, any real float dtype.
        arithmetic : {"peer", "exact"}
            As for `dequantize`.

        Returns
        -------
        QuantizationReport

        Raises
        ------
        ValueError
            `x` has another shape.

        """
        return compared(self, np.asarray(x), partial(dequantize, arithmetic=arithmetic))

    @property
    def _row_step(self) -> int:
        """The rows of which slabs are multiples: whole blocks, whole words, whole tiles."""
        return row_step(self)

    def _rows(
        self,
        start: int,
        stop: int,
        dtype: DTypeLike = ml_dtypes.bfloat16,
        *,
        arithmetic: Arithmetic = "peer",
        out: Array | None = None,
    ) -> Array:
        """Decode some rows of a matrix whose axis is the last.

        `start` is a multiple of `_row_step`, and `stop` is one or the end.
        """
        return dequantize(rows_of(self, start, stop), dtype, arithmetic=arithmetic, out=out)


def _check(q: QuantizedArray) -> None:
    """Refuse parts whose shapes or dtypes are not those that the block and the shape call for."""
    views = views_of(q)
    rank = len(views.shape)
    if not rank or not -rank <= q.axis < rank:
        raise ValueError(f"axis={q.axis} is not valid; the shape is {views.shape}.")
    _check_block(views)
    _check_dtypes(q, views)
    storage = views.storage
    variants = (*storage.packing, *dict(storage.zeros_add))
    if q.variant is not None and q.variant not in variants:
        raise ValueError(f"variant={q.variant!r} is not valid; use one of {', '.join(variants)}.")
    _check_shape("data", q.data, views.data_shape, views)
    if "nested scale" not in q.extras or q.scale.size != math.prod(views.grid):
        _check_shape("scale", q.scale, views.scale_shape, views)
    if q.zero_point is not None:
        _check_shape("zero_point", q.zero_point, views.zero_shape, views)
    if views.scheme.global_scale and q.global_scale is None and views.recipe is not None:
        needed = any(part.role == "global scale" and part.required for part in views.layout.parts)
        if needed:
            raise ValueError(
                f"global_scale=None is not valid; {q.recipe} stores one for {q.scheme}."
            )
    if storage.unsigned and q.zero_point is None and "bias" not in q.extras:
        raise ValueError(
            f"zero_point=None is not valid; {q.recipe} stores {q.scheme} without a sign, so that "
            "codes mean nothing without zero points or biases."
        )


def _check_block(views: Views) -> None:
    """Refuse a block that is not one of the scheme's."""
    scheme, block = views.scheme, views.block
    if block == scheme.block:
        return
    free = scheme.name.endswith(("_group", "_block")) or scheme.code_map is not None
    if not free or min(block) < 1:
        use = "(rows, columns)" if free else scheme.block
        raise ValueError(f"block={block} is not valid for {scheme.name}; use {use}.")


def _check_dtypes(q: QuantizedArray, views: Views) -> None:
    """Refuse payloads and scales of a dtype that the scheme does not have."""
    scheme, found = views.scheme, q.data.dtype
    own = finfo(found).kind == "float" and scheme.name.startswith("fp8_")
    fits = found == views.container or (own and found.itemsize == 1)
    if views.storage.container is not None:
        fits = found.itemsize == views.container.itemsize and finfo(found).kind != "float"
    if not fits:
        raise ValueError(
            f"data has dtype {found}, but {scheme.name} needs {views.container}; view it as that."
        )
    in_bytes = scheme.scale in (E8M0, E4M3)
    if in_bytes and q.scale.dtype.itemsize != 1:
        raise ValueError(
            f"scale has dtype {q.scale.dtype}, but {scheme.name} stores {scheme.scale}; give the "
            "bytes as they are stored."
        )


def _squeezed(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(n for n in shape if n != 1)


def _check_shape(name: str, part: Array, shape: tuple[int, ...], views: Views) -> None:
    """Refuse another shape; axes of one element and the axes inside a row do not matter."""
    if _squeezed(part.shape) == _squeezed(shape):
        return
    rows = len(shape) - 1
    inner = math.prod(part.shape[rows:]) == shape[-1] if shape else False
    if inner and part.shape[:rows] == shape[:rows]:
        return
    block = "x".join(str(n or "all") for n in views.block)
    raise ValueError(
        f"{name} has shape {part.shape}, but {views.scheme.name} of shape {views.shape} in blocks "
        f"of {block} needs {shape}."
    )


def quantize(
    x: Any,
    scheme: str,
    *,
    recipe: str | None = None,
    block: int | Sequence[int] | None = None,
    axis: int = -1,
    scale_rule: str | None = None,
    rounding: Rounding | None = None,
    amax: float | None = None,
    nonfinite: Literal["raise", "nan"] = "raise",
    symmetric: bool = True,
    four_over_six: Literal["mse", "mae", "abs_max"] | None = None,
    seed: int = 0,
    threads: int | None = None,
) -> QuantizedArray:
    """Quantise an array: scales, codes and packing in one pass.

    Parameters
    ----------
    x : array_like
        Any real float dtype, rank 1 or more, any strides. Leading axes are a stack of matrices.
        float64 is computed in float64, and results are rounded once.
    scheme : str
        One of `schemes()`.
    recipe : str, optional
        Whose arithmetic is used, bit for bit, and in whose form the parts are stored. By default
        the first of the scheme's `recipes`.
    block : int or sequence of int, optional
        The (rows, columns) that share a scale; one number is columns. By default the scheme's. The
        last block along an axis may be shorter. (16, 16) of nvfp4 stores each scale 16 times.
    axis : int
        The axis along which the columns of a block lie: the one that a matrix product sums over.
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
    four_over_six : {"mse", "mae", "abs_max"}, optional
        Each block of nvfp4 takes the scale with the smaller error of two: largest magnitude 6 or 4.
    seed : int
        For ``rounding="stochastic"``.
    threads : int, optional
        The most threads.

    Returns
    -------
    QuantizedArray

    Raises
    ------
    TypeError
        `x` is not of a real float dtype.
    ValueError
        An unknown name, a block that the scheme cannot have, an infinite or NaN element (its index
        is named).

    Examples
    --------
    >>> x = np.linspace(-1, 1, 256, dtype=np.float32).reshape(2, 128)
    >>> quantize(x, "nvfp4", recipe="modelopt").parts()["weight_scale"].shape
    (2, 8)

    """
    row = find_scheme(scheme)
    array = np.asarray(x)
    if finfo(array.dtype).kind != "float":
        raise TypeError(f"x has dtype {array.dtype}; give an array of a real float dtype.")
    producer = row.recipes[0] if recipe is None else recipe
    if producer not in row.recipes:
        find_recipe(producer)
        known = ", ".join(row.recipes)
        raise ValueError(f"recipe={recipe!r} is not valid for {scheme}; use one of {known}.")
    if array.ndim == 0:
        raise ValueError("x has no axes; reshape it to (1,).")
    layout = written_layout(producer, row, symmetric=symmetric)
    if layout.storage is not None and layout.storage.read_only:
        raise ValueError(f"recipe={producer!r} is not valid for {scheme}, which is only read.")
    size = row.block if block is None else _allowed_block(row, pair(block), array.shape)
    if layout.block is not None and layout.storage is not None and layout.storage.fields:
        size = pair(layout.block)
    stored = (1, size[1]) if row.global_scale else size
    recipe_row = known_recipe(producer)
    packing = layout.storage.packing[0] if layout.storage is not None else "dense"
    views = Views(row, recipe_row, layout, array.shape, axis, stored, packing)
    return _encoded(
        array,
        views,
        producer,
        size,
        powers=scale_rule is not None,
        bias=has_bias(layout),
        zeros=not symmetric and not has_bias(layout),
        amax=amax,
        four_over_six=four_over_six,
        rule=scale_rule,
        rounding=rounding,
        seed=seed,
        nonfinite=nonfinite,
        threads=threads,
    )


def _allowed_block(
    scheme: Scheme, block: tuple[int, int], shape: tuple[int, ...]
) -> tuple[int, int]:
    """Refuse a block that the scheme cannot have."""
    rows, columns = scheme.block
    grouped = scheme.name.endswith(("_group", "_block")) or scheme.code_map is not None
    if block == scheme.block:
        return block
    if scheme.global_scale and block == (columns, columns):
        return block
    if grouped and block[1] > 0 and block[0] > 0 and (block[0] == 1 or rows > 1):
        return block
    text = f"({rows}, {columns})" + (f" or ({columns}, {columns})" if scheme.global_scale else "")
    raise ValueError(f"block={block} is not valid for {scheme.name} of shape {shape}; use {text}.")


def _encoded(
    x: Array,
    views: Views,
    producer: str,
    block: tuple[int, int],
    *,
    powers: bool,
    bias: bool,
    zeros: bool,
    amax: float | None,
    four_over_six: str | None,
    **options: Any,
) -> QuantizedArray:
    """Allocate the parts and have the core fill them."""
    storage, scheme = views.storage, views.scheme
    weight = views.of_weight(x)
    grid = Views(*_with_block(views, block)).grid
    dtype = scale_dtype(views, x.dtype, powers=powers and scheme.rule is None)
    scale = np.empty(grid, dtype)
    if views.storage.fields:
        _check_columns(views)
    data, stored_scale, stored_bias = _allocated(views, dtype, bias=bias)
    half = 1 << (scheme.bits - 1)
    more: dict[str, Any] = {}
    kind = _format_of_bytes(scale, scheme)
    if kind is not None:
        more["scale_format"] = kind
    biases = np.empty(grid, dtype) if bias else None
    zero = np.empty(grid, np.int8) if zeros else None
    second = None
    if scheme.global_scale and producer != "mlx":
        largest = 256.0 if four_over_six is not None else 448.0
        found = _core.block_amax(np.atleast_2d(x)) if amax is None else float(amax)
        # A NaN or an infinity is named by the core, with its index.
        safe = found if math.isfinite(found) else 1.0
        level = _core.global_scale(safe, recipe=producer, dtype=x.dtype, global_max=largest)
        second = np.array(level, np.float32)
        more |= {"global_scale": second, "global_max": largest, "four_over_six": four_over_six}
        more["amax"] = safe
    elif block == (0, 0):
        more["amax"] = _whole_amax(x, weight) if amax is None else float(amax)
    elif amax is not None:
        raise ValueError(f"amax={amax} is not valid for {scheme.name}, which has many scales.")
    encode = _core.encode_blocks if x.size else _nothing
    encode(
        weight,
        views.of_data(data),
        scale,
        scheme=scheme.name,
        recipe=producer,
        block=block[::-1] if views.turned else block,
        layout=views.packing,
        offset=half if storage.excess else 0,
        zero_point=zero,
        bias=biases,
        **more,
        **options,
    )
    if block != views.block:
        scale = np.repeat(scale, block[0], axis=-2)[..., : views.grid[-2], :]
    views.to_stored(scale, stored_scale)
    extras: dict[str, Array] = {}
    if biases is not None:
        views.to_stored(biases, stored_bias)
        extras["bias"] = stored_bias
    if scheme.code_map is not None:
        extras["code map"] = np.array(scheme.code_map, np.float32)
    stored_zero = None
    if zero is not None:
        kind_of_zero = np.int8 if storage.zeros == "plain" else views.container
        stored_zero = np.zeros(views.zero_shape, kind_of_zero)
        views.zeros_to_stored(zero, stored_zero, half)
    if second is not None and views.recipe is not None:
        second = second.reshape(views.recipe.scalar)
    return QuantizedArray(
        scheme.name,
        data,
        stored_scale,
        second,
        stored_zero,
        views.shape,
        recipe=producer,
        block=views.block,
        axis=views.axis,
        extras=extras,
        layout=views.layout,
    )


def _nothing(*_: Any, **__: Any) -> None:
    """Take the place of the core where there are no elements."""


def _with_block(views: Views, block: tuple[int, int]) -> tuple[Any, ...]:
    return (
        views.scheme,
        views.recipe,
        views.layout,
        views.shape,
        views.axis,
        block,
        views.packing,
    )


def _whole_amax(x: Array, weight: Array) -> float | None:
    """Return the largest magnitude of a stack, for which the core would take one per matrix."""
    if math.prod(weight.shape[:-2]) == 1:
        return None
    found = _core.block_amax(x)
    return found if math.isfinite(found) else None


def _check_columns(views: Views) -> None:
    columns, size = views.core_shape[-1], views.bytes_of_codes
    if columns % size:
        name = views.recipe.name if views.recipe is not None else "the layout"
        raise ValueError(
            f"x has {columns} columns, and {name} stores {views.scheme.name} in whole blocks of "
            f"{size}."
        )


def _allocated(views: Views, dtype: np.dtype[Any], *, bias: bool) -> tuple[Array, Array, Array]:
    """Make the arrays that are stored: the payload, scales and biases."""
    fields = views.storage.fields
    if not fields:
        data = np.zeros(views.data_shape, views.container)
        return (
            data,
            np.empty(views.scale_shape, dtype),
            np.empty(views.scale_shape if bias else 0, dtype),
        )
    *stack, rows, columns = views.core_shape
    count = columns // views.bytes_of_codes
    blocks = np.zeros((*stack, rows, count, sum(size for _, size in fields)), np.uint8)
    if len(views.shape) == 1:
        blocks = blocks[0]
    found = fields_of(views, blocks)
    return found["data"], found["scale"], found.get("bias", found["scale"])


def _format_of_bytes(scale: Array, scheme: Scheme) -> str | None:
    """Name the format of scales that are stored as plain bytes."""
    if scale.dtype != np.uint8:
        return None
    return E4M3 if scheme.scale == E4M3 else E8M0


def dequantize(
    q: QuantizedArray,
    dtype: DTypeLike = ml_dtypes.bfloat16,
    *,
    arithmetic: Arithmetic = "peer",
    out: NDArray[Any] | None = None,
    threads: int | None = None,
) -> NDArray[Any]:
    """Decode a quantised array, in one pass.

    Parameters
    ----------
    q : QuantizedArray
        What to decode.
    dtype : dtype
        Any real float dtype. Ignored if `out` is given.
    arithmetic : {"peer", "exact"}
        "peer" computes as the producer does: the float32 product, rounded once to `dtype` (into
        float32: the float32 product itself). "exact" rounds the real product once.
    out : ndarray, optional
        Of the shape of the weight, any strides and real float dtype; written and returned.
    threads : int, optional
        The most threads.

    Returns
    -------
    ndarray
        The values, of the shape of the weight.

    Raises
    ------
    TypeError
        `q` is not a QuantizedArray, or the dtype is not a real float dtype.
    ValueError
        `out` has another shape, or `arithmetic` is unknown.

    Examples
    --------
    >>> q = quantize(np.full((1, 32), 3.0, np.float32), "mxfp8_e4m3")
    >>> dequantize(q, "float32")[0, :2]
    array([3., 3.], dtype=float32)

    """
    if not isinstance(q, QuantizedArray):
        raise TypeError(f"q is a {type(q).__name__}; use a castwise.quantization.QuantizedArray.")
    if out is None:
        key: Any = dtype if isinstance(dtype, str | type | np.dtype) else np.dtype(dtype)
        out = np.empty(_shape(q), _target(key))
    elif out.shape != q.shape:
        raise ValueError(f"out has shape {out.shape}; use {q.shape}.")
    else:
        _target(out.dtype)
    if not out.size:
        return out
    ready = q._ready.get(arithmetic)
    if ready is not None:
        _core.decode_blocks(ready.data, ready.scale, out, threads=threads, **ready.options)
        return out
    views = views_of(q)
    inner = views.storage.inner and arithmetic == "peer"
    data, scale = views.of_data(q.data), _scales(q, views, out.dtype, inner=inner)
    options = _decoding(q, views, inner=inner)
    options["arithmetic"] = arithmetic
    if views.storage.narrow and arithmetic == "peer":
        options["arithmetic"] = "narrow"
    moved = np.moveaxis(out, q.axis, -1)
    target = out
    if views.storage.flat and not moved.flags.c_contiguous:
        target = np.moveaxis(np.empty(moved.shape, out.dtype), -1, q.axis)
    weight = views.of_weight(target)
    _core.decode_blocks(data, scale, weight, threads=threads, **options)
    if target is not out:
        out[...] = target
    if weight is out and _only_views(q, scale, inner=inner):
        q._ready[arithmetic] = _Ready(data, scale, options)
    return out


def _shape(q: QuantizedArray) -> Any:
    return q.shape


@cache
def _target(dtype: Any) -> np.dtype[Any]:
    """Return a dtype to decode into."""
    info = finfo(dtype)
    if info.kind != "float":
        raise TypeError(f"dtype={info.name!r} is not valid; use a real float dtype, as 'float32'.")
    return dtype_of(info.name)


@dataclass(frozen=True, slots=True)
class _Ready:
    """The core's arguments for an array that was decoded before; arrays are views of its parts."""

    data: Array
    scale: Array
    options: dict[str, Any]


def _only_views(q: QuantizedArray, scale: Array, *, inner: bool) -> bool:
    """Return True if a change of a part is a change of what the core is given."""
    level = q.global_scale is None or q.global_scale.dtype == np.float32
    plain = level and q.zero_point is None and not q.extras and not inner
    return plain and np.shares_memory(scale, q.scale)


def _scales(q: QuantizedArray, views: Views, dtype: np.dtype[Any], *, inner: bool) -> Array:
    """Return the scales in the core's form, decoded where they are quantised themselves."""
    scale = q.scale
    if "nested scale" in q.extras:
        flat = np.empty((1, scale.size), np.float32)
        _core.decode_blocks(
            scale.reshape(1, -1),
            q.extras["nested scale"].reshape(1, -1),
            flat,
            element="map",
            bits=_BYTE,
            block=(1, int(q.extras["nested block"])),
            code_map=q.extras["nested code map"].astype(np.float32),
            bias=np.full((1, q.extras["nested scale"].size), q.extras["nested bias"], np.float32),
        )
        scale = flat
    scale = views.to_core(scale)
    if inner and finfo(scale.dtype).bits > _BYTE:
        scale = _core.cast(scale, dtype)
    elif inner and q.global_scale is not None:
        # The product of both scales is formed in the target's dtype.
        first = _core.cast(scale, np.float32)
        scale = _core.cast(first * _core.cast(_core.cast(q.global_scale, dtype), np.float32), dtype)
    return scale


def _decoding(q: QuantizedArray, views: Views, *, inner: bool) -> dict[str, Any]:
    """Return the options of the core's decoding."""
    storage, scheme = views.storage, views.scheme
    half = 1 << (scheme.bits - 1)
    stored = finfo(q.data.dtype)
    own = stored.name if stored.kind == "float" else _element(scheme)
    found: dict[str, Any] = {
        "element": _UNSIGNED if storage.excess or storage.unsigned else own,
        "bits": scheme.bits - views.high_bits,
        "block": views.core_block,
        "layout": views.packing,
        "scale_format": _format_of_bytes(q.scale, scheme)
        if "nested scale" not in q.extras
        else None,
        "scale_divides": storage.divides and not scheme.name.endswith("_group"),
        "offset": half if storage.excess and q.zero_point is None else 0,
    }
    if views.high_bits:
        found["high"] = fields_high(q, views)
    if storage.after is not None:
        found |= {"global_scale": np.array(storage.after, np.float32), "global_use": "after"}
    elif scheme.name == "mxint8":
        # Codes have six fraction bits.
        found["global_scale"] = np.array(2.0**-6, np.float32)
    elif q.global_scale is not None and not inner:
        level = np.asarray(q.global_scale, np.float32).reshape(())
        found |= {"global_scale": level, "global_use": storage.global_use}
    if q.zero_point is not None:
        adds = dict(storage.zeros_add)
        add = adds.get(q.variant or next(iter(adds), ""), 0)
        found["zero_point"] = views.zeros_to_core(q.zero_point, add)
    if "bias" in q.extras:
        found["bias"] = views.to_core(q.extras["bias"])
    if "group index" in q.extras:
        found["group_index"] = q.extras["group index"].astype(np.int64)
    if "divisor" in q.extras:
        found["divisor"] = q.extras["divisor"]
    if scheme.code_map is not None:
        found["code_map"] = q.extras.get("code map", np.array(scheme.code_map, np.float32))
    elif storage.positive_zero:
        found |= {"element": "map", "code_map": _positive(scheme.element)}
    return found


def _element(scheme: Scheme) -> str:
    """Return the format of a code: of integers, that of so many bits."""
    name = f"int{scheme.bits}"
    return name if scheme.name.startswith("int") and name in formats() else scheme.element


@cache
def _positive(element: str) -> Array:
    """Return the values of all codes of a format of 4 bits, with 0 for -0."""
    values = np.arange(16, dtype=np.uint8).view(dtype_of(element)).astype(np.float32)
    return np.where(values == 0, np.float32(0), values)


def fields_high(q: QuantizedArray, views: Views) -> Array:
    """Return the bits that stand apart from the other bits of codes, in the core's form."""
    high = q.extras["high"]
    return high[None] if len(views.shape) == 1 else high
