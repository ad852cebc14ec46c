"""Decode quantized arrays: what the core needs to know of their parts."""

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple, get_args

import numpy as np
from numpy.typing import DTypeLike, NDArray

from castwise._core import (
    BlockDecoder,
    arrays_finite,
    cast,
    decode_blocks,
    finfo,
    formats,
    in_default_environment,
)
from castwise._numbers import BYTE_BITS
from castwise._options import Arithmetic
from castwise.quantization.arrays.row_slices import rows_of
from castwise.quantization.arrays.views import Array, StoredArray, Views, format_of_bytes, views_of
from castwise.quantization.producers.block_types import decode_type
from castwise.quantization.producers.layouts import E4M3, MATRIX, dtype_of
from castwise.quantization.producers.schemes import Scheme

_ARITHMETIC = get_args(Arithmetic)
# Parts by which products are changed one by one.
_STEPS = frozenset(("factor", "float8 scale"))

# Bounds of magnitudes of which nothing is known.
_UNKNOWN = (0.0, np.inf)
# Parts by which products are changed at all.
_FURTHER = _STEPS | {"divisor"}

# Options of the core that change the values of codes, but not which of them are 0.
_SCALING = frozenset(
    ("scale_format", "scale_divides", "global_scale", "global_use", "bias", "divisor")
)

# The largest float8_e4m3fn, and up to which maximum ModelOpt takes 1 in its place.
_LARGEST, _NO_AMAX = np.float32(448), np.float32(2.0**-24)
_NAMES = (str, type, np.dtype)
_PARTS = ("data", "scale", "global_scale", "zero_point")
_UNSIGNED, _INT8 = np.dtype(np.uint8).name, np.dtype(np.int8).name


def decode_array(
    q: StoredArray,
    dtype: DTypeLike,
    *,
    arithmetic: Arithmetic,
    out: Array | None = None,
    threads: int | None = None,
) -> Array:
    """Decode a quantized array, as `castwise.quantization.dequantize` does."""
    if arithmetic not in _ARITHMETIC:
        raise ValueError(f"arithmetic={arithmetic!r} is not valid; use {' or '.join(_ARITHMETIC)}.")
    decoder = q._ready.get(arithmetic)
    if out is None:
        key: Any = dtype if isinstance(dtype, _NAMES) else np.dtype(dtype)
        out = np.empty(q.shape or (), _target(key))
    if decoder is not None and decoder.decode(out, threads):
        return out
    if not isinstance(out, np.ndarray):
        raise TypeError(f"out must be an ndarray, not {type(out).__name__}.")
    elif out.shape != q.shape:
        raise ValueError(f"out has shape {out.shape}; use {q.shape}.")
    elif finfo(out.dtype).kind != "float":
        raise TypeError(f"out has dtype {out.dtype}; use a real float dtype, as float32.")
    if not out.size:
        return out
    if not out.dtype.isnative:
        out[...] = decode_array(
            q, out.dtype.newbyteorder("="), arithmetic=arithmetic, threads=threads
        )
        return out
    views = views_of(q)
    if views.storage.block_type:
        return _decode_whole_blocks(q, out, arithmetic, threads)
    if not is_at_once(q):
        is_plain = _STEPS.isdisjoint(q.extras)
        level = q.global_scale
        if not is_plain or level is None or level.size != math.prod(views.core_shape[:-MATRIX]):
            by = _in_steps if level is None or level.size <= 1 else _by_matrices
            return by(q, out, arithmetic=arithmetic, threads=threads)
    data, scale, options = core_decoding(q, views, out.dtype, arithmetic)
    options["threads"] = threads
    decoder = _decode_into(q, views, out, data, scale, options)
    if (
        decoder is not None
        and out.flags.c_contiguous
        and not views.storage.inner
        and _only_views(q, options | {"data": data, "scale": scale})
    ):
        q._ready[arithmetic] = decoder
    return out


def _decode_whole_blocks(q: StoredArray, out: Array, arithmetic: str, threads: int | None) -> Array:
    """Decode blocks that hold their scales, as llama.cpp does: in float32, then rounded once."""
    if arithmetic != "peer":
        raise ValueError(
            f"arithmetic={arithmetic!r} is not valid for {q.scheme}, whose values llama.cpp "
            "computes in float32; use 'peer'."
        )
    views = views_of(q)
    shape = views.core_shape
    rows = q.data.reshape(math.prod(shape[:-1]), -1)
    values = decode_type(rows, views.storage.block_type).reshape(shape)
    views.of_weight(out)[...] = cast(values, out.dtype, threads=threads)
    return out


def is_at_once(q: StoredArray) -> bool:
    """Return True if the core decodes all of an array in one call."""
    several = q.global_scale is not None and q.global_scale.size > 1
    return not several and _STEPS.isdisjoint(q.extras)


def core_decoding(
    q: StoredArray,
    views: Views,
    dtype: np.dtype[Any],
    arithmetic: str,
    *,
    # Whether a map turns -0 into 0 where the peer does so. It takes longer than the format.
    drops_signs: bool = True,
) -> tuple[Array, Array, dict[str, Any]]:
    """Return codes and scales in the core's form, and the options of its decoding."""
    if views.storage.inner and dtype == np.float64:
        arithmetic = "exact"  # as are the recipe's products in float64
    is_peer = arithmetic == "peer"
    inner = views.storage.inner and is_peer
    data, scale = views.of_data(q.data), _scales(q, views, dtype, inner=inner)
    options = _decoding(q, views, inner=inner, drops_signs=is_peer and drops_signs)
    options["arithmetic"] = "narrow" if views.storage.narrow and is_peer else arithmetic
    return data, scale, options


def _decode_into(  # noqa: PLR0917
    q: StoredArray, views: Views, out: Array, data: Array, scale: Array, options: dict[str, Any]
) -> BlockDecoder | None:
    """Let the core decode; return the decoder to use again, or None if `out` was copied to."""
    target = out
    if views.storage.flat and not (view := np.moveaxis(out, q.axis, -1)).flags.c_contiguous:
        target = np.moveaxis(np.empty(view.shape, out.dtype), -1, q.axis)
    weight = views.of_weight(target)
    decoder = decode_blocks(data, scale, weight, shape=q.shape, **options)
    if target is out:
        return decoder
    out[...] = target
    return None


def decoded_codes(q: StoredArray) -> Array:
    """Return what the codes stand for without their scales, in float32."""
    views = views_of(q)
    codes: Array = np.empty(views.shape, np.float32)
    options = _decoding(q, views, inner=False, drops_signs=True)
    options = {name: value for name, value in options.items() if name not in _SCALING}
    ones = np.broadcast_to(np.float32(1), views.grid)  # a group index is one of blocks of scales
    _decode_into(q, views, codes, views.of_data(q.data), ones, options | {"threads": 1})
    return codes


def product_range(q: StoredArray, *, reads_codes: bool = False) -> tuple[float, float]:
    """Bound the magnitudes of products of a code that is not 0 and its scale, as real numbers."""
    # Bounds are 0 and infinity where nothing is known: a scale is 0 or not finite, codes may be
    # infinite or NaN, which only reading them tells, or other parts change the products.
    if not _FURTHER.isdisjoint(q.extras):
        return _UNKNOWN
    views = views_of(q)
    options = _decoding(q, views, inner=False, drops_signs=True)
    scale = _scales(q, views, np.dtype(np.float32), inner=False)
    if options["scale_format"] is not None:
        scale = scale.view(dtype_of(options["scale_format"]))
    magnitudes = np.abs(cast(scale, np.float64, threads=1))
    bounds = float(magnitudes.min(initial=np.inf)), float(magnitudes.max(initial=0))
    if not 0 < bounds[0] <= bounds[1] < np.inf:  # NaN is neither
        return _UNKNOWN
    if options["scale_divides"]:
        bounds = 1 / bounds[1], 1 / bounds[0]
    levels = np.abs(np.asarray(options.get("global_scale", 1), np.float64))
    low, high = float(levels.min()), float(levels.max())
    if not 0 < low <= high < np.inf:
        return _UNKNOWN
    if options.get("global_use", "multiply") != "multiply":
        low, high = 1 / high, 1 / low
    least, most = _code_range(options, q.data if reads_codes else None)
    return bounds[0] * low * least, bounds[1] * high * most


def _code_range(options: Mapping[str, Any], codes: Array | None) -> tuple[float, float]:
    """Bound the magnitudes of codes that are not 0; of integers, those of their differences."""
    # `codes` are looked through for those that are not finite, unless they are None.
    if options["element"] == "map":
        values = np.abs(options["code_map"]).astype(np.float64)
        return float(values[values > 0].min(initial=np.inf)), float(values.max())
    element = finfo(options["element"])
    if element.kind != "float":
        return 1.0, 2.0 ** (element.bits + 1)
    is_finite = not (element.has_infinity or element.has_nan)
    if not is_finite and codes is not None and codes.dtype == dtype_of(element.name):
        is_finite = arrays_finite(lambda _: "codes", [codes], 1)
    return element.smallest_subnormal, float(element.max) if is_finite else np.inf


def _by_matrices(
    q: StoredArray, out: Array, *, arithmetic: Arithmetic, threads: int | None
) -> Array:
    """Decode each matrix of a stack by itself, as each has a global scale."""
    *stack, rows, _ = out.shape
    for place in np.ndindex(*stack):
        matrix = rows_of(q, 0, rows, place)
        decode_array(matrix, out.dtype, arithmetic=arithmetic, out=out[place], threads=threads)
    return out


def _in_steps(q: StoredArray, out: Array, *, arithmetic: Arithmetic, threads: int | None) -> Array:
    """Decode an array, and change its products one by one."""
    check_steps(q, arithmetic)
    extras = {name: part for name, part in q.extras.items() if name not in _STEPS}
    plain = replace(q, extras=extras)
    level, factor = (q.extras.get(name) for name in ("float8 scale", "factor"))
    wide = np.float64 if arithmetic == "exact" else np.float32
    float8_level = level if arithmetic == "peer" else None
    dtype = wide if float8_level is None else out.dtype
    product = decode_array(plain, dtype, arithmetic=arithmetic, threads=threads)
    if float8_level is not None:
        product = cast(in_default_environment(_as_float8, product, float8_level), wide)
    if factor is not None:
        columns = np.moveaxis(product, q.axis, -1)
        in_default_environment(np.multiply, columns, cast(factor.reshape(-1), wide), columns)
    out[...] = cast(product, out.dtype)
    return out


def _as_float8(values: Array, level: Array) -> Array:
    """Round values to multiples of float8, as ModelOpt does (`fp8_eager`), to their own dtype."""
    amax = _LARGEST * level.astype(np.float32).reshape(())
    # Its quotient is a product with a reciprocal.
    scale = np.float32(1) / (np.float32(1) if amax <= _NO_AMAX else amax) * _LARGEST
    quotients = np.clip(cast(values, np.float32) * scale, -_LARGEST, _LARGEST)
    codes = cast(cast(quotients, E4M3), np.float32)
    return cast(codes * (np.float32(1) / scale), values.dtype)


def check_steps(q: StoredArray, arithmetic: Arithmetic) -> None:
    """Refuse factors and float8 scales by which products cannot be changed."""
    factor, level = (q.extras.get(name) for name in ("factor", "float8 scale"))
    if level is not None and not np.abs(level) <= np.finfo(np.float32).max / _LARGEST:
        raise ValueError(
            f"extras['float8 scale'] is {np.asarray(level).reshape(())}, which leaves no number "
            "finite; fetch the checkpoint again."
        )
    if factor is None or arithmetic == "peer":
        return
    if factor.dtype.itemsize > np.dtype(np.float16).itemsize:
        raise ValueError(
            f"arithmetic={arithmetic!r} is not valid with factors of {factor.dtype}: float64 has "
            "no room for the products; use 'peer'."
        )


@cache
def _target(dtype: str | type | np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype to decode into; refuse one that is not of real floats."""
    info = finfo(dtype)
    if info.kind != "float":
        raise TypeError(f"dtype={info.name!r} is not valid; use a real float dtype, as 'float32'.")
    return dtype_of(info.name)


def _only_views(q: StoredArray, operands: dict[str, Any]) -> bool:
    """Return True if every operand of the core is a view of its part, and none a copy."""
    parts = zip(_PARTS, (q.data, q.scale, q.global_scale, q.zero_point), strict=True)
    # Nested scales are not given to the core; the scales made of them share memory with no part.
    return all(
        part is None
        or (operand := operands.get(name.replace(" ", "_"))) is None
        or part is operand
        or np.may_share_memory(part, operand)
        for name, part in (*parts, *q.extras.items())
    )


def _scales(q: StoredArray, views: Views, dtype: np.dtype[Any], *, inner: bool) -> Array:
    """Return the scales in the core's form, decoded where they are quantized themselves."""
    scale: Array = q.scale
    if "nested scale" in q.extras:
        flat = np.empty((1, scale.size), np.float32)
        decode_blocks(
            scale.reshape(1, -1),
            q.extras["nested scale"].reshape(1, -1),
            flat,
            element="map",
            bits=BYTE_BITS,
            block=(1, int(q.extras["nested block"])),
            code_map=q.extras["nested code map"].astype(np.float32).reshape(-1),
            bias=np.full((1, q.extras["nested scale"].size), q.extras["nested bias"], np.float32),
        )
        scale = flat
    scale = views.to_core(scale)
    if inner and finfo(scale.dtype).bits > BYTE_BITS:
        scale = cast(scale, dtype)
    elif inner and q.global_scale is not None:
        # The product of both scales is formed in the target's dtype.
        block_scale = cast(scale, np.float32)
        global_scale = cast(cast(q.global_scale, dtype), np.float32)
        if global_scale.size > 1:  # of each matrix
            global_scale = global_scale.reshape(*scale.shape[:-MATRIX], 1, 1)
        with np.errstate(over="ignore", invalid="ignore"):  # what is stored decides
            product = in_default_environment(np.multiply, block_scale, global_scale)
        scale = cast(product, dtype)
    return scale


def _decoding(q: StoredArray, views: Views, *, inner: bool, drops_signs: bool) -> dict[str, Any]:
    """Return the options of the core's decoding."""
    storage, scheme = views.storage, views.scheme
    half = 1 << (scheme.bits - 1)
    payload_format = finfo(q.data.dtype)
    element = payload_format.name if payload_format.kind == "float" else _element(scheme)
    options: dict[str, Any] = {
        "element": _UNSIGNED if storage.excess or storage.is_unsigned else element,
        "bits": scheme.bits - views.high_bits,
        "block": views.core_block,
        "layout": views.packing,
        "scale_format": format_of_bytes(q.scale.dtype, scheme)
        if "nested scale" not in q.extras
        else None,
        "scale_divides": storage.divides and not scheme.name.endswith("_group"),
        "offset": half if storage.excess and q.zero_point is None else 0,
    }
    if views.high_bits:
        high = q.extras["high"]
        options["high"] = high[None] if len(views.shape) == 1 else high
    if storage.divisor_after is not None:
        divisor = np.array(storage.divisor_after, np.float32)
        options |= {"global_scale": divisor, "global_use": "after"}
    elif scheme.unit != 1:
        options["global_scale"] = np.array(scheme.unit, np.float32)
    elif q.global_scale is not None and not inner:
        level = np.asarray(q.global_scale, np.float32)
        level = level.reshape(() if level.size == 1 else views.core_shape[:-MATRIX])
        if storage.global_unit != 1:
            level = np.asarray(level / np.float32(storage.global_unit))
        options |= {"global_scale": level, "global_use": storage.global_use}
    if q.zero_point is not None:
        options["zero_point"] = views.zeros_to_core(q.zero_point, added_to_zeros(q))
    if "bias" in q.extras:
        options["bias"] = views.to_core(q.extras["bias"])
    if "group index" in q.extras:
        options["group_index"] = q.extras["group index"].astype(np.int64).reshape(-1)
    if "divisor" in q.extras:
        options["divisor"] = q.extras["divisor"].reshape(-1)
    if scheme.code_map is not None:
        code_map = q.extras.get("code map", np.array(scheme.code_map))
        options["code_map"] = code_map.astype(np.float32, copy=False).reshape(-1)
    elif storage.positive_zero and drops_signs:
        options |= {"element": "map", "code_map": _positive_values(scheme.element)}
    elif options["element"] == _INT8 and scheme.bits < BYTE_BITS:
        options |= {"element": "map", "code_map": _signed_values(scheme.bits)}
    return options


def wrapped_zeros(q: StoredArray) -> int:
    """Count zero points that are 0 only because what is added to them wraps."""
    if q.zero_point is None or not (add := added_to_zeros(q)):
        return 0
    return int((views_of(q).zeros_to_core(q.zero_point, add) == 0).sum())


def added_to_zeros(q: StoredArray) -> int:
    adds, variant = dict(views_of(q).storage.zeros_add), str(q.variant or "")
    return adds.get(variant or next(iter(adds), ""), 0)


def _element(scheme: Scheme) -> str:
    """Return the format of a code: of integers, that of so many bits."""
    name = f"int{scheme.bits}"
    return name if scheme.name.startswith("int") and name in formats() else scheme.element


@cache
def _positive_values(element: str) -> Array:
    """Return the values of all codes of a format of 4 bits, with 0 for -0."""
    # A format of 4 bits has 16 codes, one in a byte as numpy and ml_dtypes hold them.
    values = np.arange(16, dtype=np.uint8).view(dtype_of(element)).astype(np.float32)
    return np.where(values == 0, np.float32(0), values)


@cache
def _signed_values(bits: int) -> Array:
    """Return the values of all codes that are integers with a sign."""
    values = np.arange(1 << bits, dtype=np.float32)
    # Two's complement: the upper half of the codes is negative.
    return np.where(values < values.size // 2, values, values - np.float32(values.size))


# What decoding loses


# Products are rounded a few times on their way, so they may go beyond their bounds a little.
_MARGIN = 4


class DecodingLosses(NamedTuple):
    """What became of the codes of a slab."""

    # Values that are infinite, and that are NaN.
    infinite: int = 0
    nan: int = 0
    # Codes that are not 0, and whose product with their scale is.
    zeroed: int = 0
    # Codes that are 0, as far as they were counted: where nothing is lost they are not.
    zeros: int = 0


NOTHING = DecodingLosses()


def losses_of(
    q: StoredArray,
    values: NDArray[Any],
    arithmetic: Arithmetic,
    certainties: tuple[bool, bool] | None = None,
) -> DecodingLosses:
    """Count what decoding a quantized array into `values` lost."""
    # Most slabs lose nothing, which the scales tell in little time: `certainties`, if known.
    if not values.size:
        return NOTHING
    keeps, is_finite = certainties or scales_tell(q, values.dtype)
    if keeps and (is_finite or arrays_finite(lambda _: "values", [values], 1)):
        return NOTHING
    wide = cast(values, np.float32)
    products = wide if "bias" not in q.extras else _products(q, values.dtype, arithmetic)
    codes = decoded_codes(q)
    return DecodingLosses(
        infinite=int(np.count_nonzero(np.isinf(wide))),
        nan=int(np.count_nonzero(np.isnan(wide))),
        zeroed=int(np.count_nonzero((products == 0) & (codes != 0))),
        zeros=int(np.count_nonzero(codes == 0)),
    )


def scales_tell(
    q: StoredArray, dtype: np.dtype[Any], *, reads_codes: bool = False
) -> tuple[bool, bool]:
    """Return whether no product becomes 0 for certain, and whether all values are finite."""
    (least, most), row = product_range(q, reads_codes=reads_codes), finfo(dtype)
    is_finite = "bias" not in q.extras and most <= float(row.max) / _MARGIN
    return least >= row.smallest_subnormal * _MARGIN, is_finite


def _products(q: StoredArray, dtype: np.dtype[Any], arithmetic: Arithmetic) -> NDArray[Any]:
    """Decode without what is added to products."""
    extras = {name: part for name, part in q.extras.items() if name != "bias"}
    products = decode_array(q._with(extras=extras), dtype, arithmetic=arithmetic, threads=1)
    return cast(products, np.float32)
