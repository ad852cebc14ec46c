"""`keras.quantizers`: its functions on numpy arrays, with the bits of Keras' numpy backend.

>>> codes, scale = abs_max_quantize(np.array([[0, 1, -2], [0.5, -0.25, 3]], np.float32), axis=-1)
>>> codes
array([[   0,   64, -127],
       [  21,  -11,  127]], dtype=int8)

Beside what `keras.quantizers` exports there are `compute_quantization_parameters`,
`quantize_with_sz_map` and `dequantize_with_sz_map`, which Keras' layers call. What a model is
quantised by (`QuantizationConfig` and its kinds) is Keras' own.

Arrays are float16, bfloat16, float32 or float64, and every step is rounded to the dtype in which
Keras takes it. Python's numbers, and lists of them, count as ``floatx()``. float64 is taken as
float32, as Keras does but on TensorFlow. Where C leaves it open what a cast gives, so do Keras'
backends: a NaN becomes the integer 0 here, as on numpy's of x86; a zero point beyond uint8 wraps,
as on those of numpy, torch and TensorFlow (on jax it is 0).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial, wraps
from typing import Any, ParamSpec, TypeVar

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from castwise import _core
from castwise._core import cast, finfo, in_default_environment
from castwise._global_state import floatx
from castwise._standard_dtype import standardize_dtype
from castwise.loss_scale import DelayedScaling
from castwise.quantization import pack, unpack

__all__ = [
    "AbsMaxQuantizer",
    "Quantizer",
    "abs_max_quantize",
    "abs_max_quantize_grouped_with_zero_point",
    "compute_float8_amax_history",
    "compute_float8_scale",
    "compute_quantization_parameters",
    "dequantize_with_sz_map",
    "fake_quant_with_min_max_vars",
    "pack_int4",
    "quantize_and_dequantize",
    "quantize_with_sz_map",
    "unpack_int4",
]

_Array = NDArray[Any]
_P = ParamSpec("_P")
_R = TypeVar("_R")

_BFLOAT16 = np.dtype(ml_dtypes.bfloat16).name
_FLOATS = ("float16", _BFLOAT16, "float32", "float64")
_INT8 = np.dtype(np.int8).name
_BYTES = (_INT8, np.dtype(np.uint8).name)
_EPSILON = 1e-7
_MATRIX = 2


def _undisturbed(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Compute in the default floating-point environment, without numpy's warnings."""

    @wraps(function)
    def called(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        with np.errstate(all="ignore"):
            return in_default_environment(partial(function, *args, **kwargs))

    return called


class _Steps:
    """Arithmetic of a dtype: values are held in float32 or float64, and rounded after each step."""

    def __init__(self, *dtypes: Any) -> None:
        """Take the dtype of the result of floats of these dtypes."""
        names = {np.dtype(dtype) for dtype in dtypes}
        single = np.dtype(np.float32)
        self.dtype = single if len(names) > 1 else names.pop()
        self.wide = self.dtype if self.dtype == np.float64 else single

    def of(self, value: Any) -> _Array:
        """Round values or a number to the dtype."""
        array = value if isinstance(value, np.ndarray | np.generic) else np.array(value, self.dtype)
        return cast(cast(array, self.dtype, copy=False), self.wide, copy=False)

    def __call__(self, held: Any) -> _Array:
        """Round the result of a step."""
        return held if self.dtype == self.wide else self.of(held)

    def stored(self, held: Any) -> _Array:
        """Return values that are held, in the dtype."""
        return cast(held, self.dtype, copy=False)


def _array(value: Any) -> _Array:
    array = np.asarray(value)
    return array if hasattr(value, "dtype") else cast(array, floatx())


def _floats(name: str, value: Any, *, in_numpy: bool = False) -> _Array:
    """Return an array, or raise ValueError if Keras computes with no floats of its dtype.

    float64 becomes float32, unless Keras computes `in_numpy`, outside of its backend.
    """
    array = _array(value)
    if array.dtype.name not in _FLOATS:
        raise ValueError(
            f"{name} has dtype {array.dtype}, which is not valid; cast it to one of "
            f"{', '.join(_FLOATS)} first."
        )
    # By its name, so that bytes are in the order of this machine.
    name = array.dtype.name
    return cast(array, "float32" if name == "float64" and not in_numpy else name, copy=False)


def _float_dtype(name: str, value: Any) -> np.dtype[Any]:
    found = standardize_dtype(value)
    if finfo(found).kind != "float":
        raise ValueError(f"{name}={value!r} is not valid; use a float, such as 'float32'.")
    return np.dtype(np.float32 if found == "float64" else finfo(found).dtype)


def _code_dtype(value_range: Sequence[Any], dtype: Any) -> tuple[Any, Any, str]:
    """Return the smallest and the largest code and their dtype, which must hold them."""
    low, high = value_range
    name = standardize_dtype(dtype)
    info = finfo(name)
    if not info.min <= low <= high <= info.max:
        raise ValueError(
            f"value_range={tuple(value_range)} is not valid for {name}; use numbers from "
            f"{info.min} to {info.max}, the smaller one first."
        )
    return low, high, name


@_undisturbed
def abs_max_quantize(  # noqa: PLR0917 - as Keras
    inputs: Any,
    axis: int | Sequence[int] | None,
    value_range: Sequence[Any] = (-127, 127),
    dtype: Any = _INT8,
    epsilon: float = _EPSILON,
    to_numpy: bool = False,
) -> tuple[_Array, _Array]:
    """Quantise by the largest magnitude along axes: codes are products with the scale.

    Parameters
    ----------
    inputs : array_like
        Of a float dtype, any shape.
    axis : int, sequence of int, or None
        Along which elements share a scale; None: all do.
    value_range : (number, number)
        The smallest and the largest code.
    dtype : dtype
        Of the codes; it holds `value_range`.
    epsilon : float
        What is added to the largest magnitude.
    to_numpy : bool
        Keras' other way to compute, which takes the steps of bfloat16 in float32, and float64 as
        it is.

    Returns
    -------
    codes, scale : ndarray
        Codes of the shape of `inputs`. Scales of its dtype, of length 1 along `axis`; codes are
        divided by them to be decoded.

    Raises
    ------
    ValueError
        `inputs` is not of float16, bfloat16, float32 or float64, or is empty; `dtype` does not hold
        `value_range`; an axis is out of bounds.

    """
    x = _floats("inputs", inputs, in_numpy=to_numpy)
    low, high, codes_dtype = _code_dtype(value_range, dtype)
    axes = tuple(axis) if isinstance(axis, list | tuple) else axis
    if isinstance(axes, tuple) and len(axes) == 1:
        (axes,) = axes
    usual = (x.dtype.name, codes_dtype, low, high, epsilon)
    is_axis = isinstance(axes, int) and -x.ndim <= axes < x.ndim
    if usual == ("float32", _INT8, -127, 127, _EPSILON) and is_axis and x.size:
        codes, scale = _in_one_pass(x, axes)
        if not np.isnan(scale).any():  # which stands for what is not finite
            return codes, scale
    step = _Steps(np.float32 if to_numpy and x.dtype.name == _BFLOAT16 else x.dtype)
    held = step.of(x)
    largest, smallest = held.max(axes, keepdims=True), held.min(axes, keepdims=True)
    amax = np.abs(np.maximum(largest, -smallest))
    scale = step(step.of(high) / step(amax + step.of(epsilon)))
    codes = np.clip(np.rint(step(held * scale)), low, high)
    return cast(step(codes), codes_dtype), cast(scale, x.dtype)


def _in_one_pass(x: _Array, axis: Any) -> tuple[_Array, _Array]:
    """Quantise float32 to int8 along an axis; a NaN among the scales means: no result."""
    axis %= x.ndim
    codes = np.empty(x.shape, np.int8)
    scale = np.empty((*x.shape[:axis], 1, *x.shape[axis + 1 :]), np.float32)
    before, after = math.prod(x.shape[:axis]), math.prod(x.shape[axis + 1 :])
    _core.encode_blocks(
        *(
            one.reshape(before, -1, after).swapaxes(1, 2) if after > 1 else one.reshape(before, -1)
            for one in (x, codes, scale)
        ),
        scheme="int8_channel",
        recipe="keras",
        block=(1, 0),
        nonfinite="nan",
    )
    return codes, scale


@_undisturbed
def abs_max_quantize_grouped_with_zero_point(  # noqa: PLR0917 - as Keras
    inputs: Any,
    block_size: int,
    value_range: Sequence[int] = (-8, 7),
    dtype: Any = _INT8,
    epsilon: float = _EPSILON,
    to_numpy: bool = False,
) -> tuple[_Array, _Array, _Array]:
    """Quantise a matrix in groups of rows, each with a scale and a zero point for every column.

    Zero points are limited to `value_range`, so a group whose values have one sign is decoded to
    other values, in Keras too.

    Parameters
    ----------
    inputs : array_like
        (rows, columns), of a float dtype.
    block_size : int
        1 or more: rows of a group. The last one is filled up with zeros.
    value_range, dtype, epsilon
        As for `abs_max_quantize`; `epsilon` is added to the range of a group.
    to_numpy : bool
        Keras' other way to compute: a group of equal values has the scale of `epsilon`, not of the
        range from one below to one above, and the last group's zeros count even if it is the only
        one. The steps of bfloat16 are taken in float32, and float64 as it is.

    Returns
    -------
    codes, scale, zero_point : ndarray
        (rows, columns) of `dtype`; (groups, columns) of the dtype of `inputs`, and of int8. Codes
        are decoded as ``(codes - zero_point) * scale``.

    Raises
    ------
    ValueError
        As for `abs_max_quantize`; `inputs` is not a matrix; `block_size` is less than 1.

    """
    x = _floats("inputs", inputs, in_numpy=to_numpy)
    low, high, codes_dtype = _code_dtype(value_range, dtype)
    if x.ndim != _MATRIX:
        raise ValueError(f"inputs has shape {x.shape}; give a matrix, (rows, columns).")
    if block_size < 1:
        raise ValueError(f"block_size={block_size!r} is not valid; use 1 or more.")
    step = first = _Steps(x.dtype)
    groups = _groups(step.of(x), 0, block_size)
    if to_numpy:
        smallest, largest = groups.min(1), groups.max(1)
        step = _Steps(np.float32) if x.dtype.name == _BFLOAT16 else first
        reach = step(first(largest - smallest) + step.of(epsilon))
        scale = step(reach / step.of(high - low))
        zero = step(step(np.rint(step(-smallest / scale))) + step.of(low))
        zero = step(np.clip(zero, low, high))
    else:
        stored, codes_of_zero, _ = compute_quantization_parameters(
            x.T,
            bits=int(math.log2(high - low + 1)),
            per_channel=True,
            group_size=block_size,
            compute_dtype=x.dtype,
            epsilon=epsilon,
            signed=True,
        )
        scale, zero = step.of(stored.T), step.of(codes_of_zero.T)
    codes = np.rint(step(groups / scale[:, np.newaxis]))
    codes = np.clip(step(codes + zero[:, np.newaxis]), low, high)
    whole = codes.reshape(-1, x.shape[1])[: len(x)]
    return cast(step(whole), codes_dtype), cast(scale, x.dtype), cast(zero, np.int8)


def _groups(x: _Array, axis: int, size: int) -> _Array:
    """Cut an axis into two, of groups and of `size`; zeros fill the last group up."""
    missing = -x.shape[axis] % size
    if missing:
        x = np.pad(x, [(0, missing if place == axis else 0) for place in range(x.ndim)])
    return x.reshape(*x.shape[:axis], -1, size, *x.shape[axis + 1 :])


class Quantizer:
    """The base class of quantizers: it returns what it is given."""

    def __init__(self, output_dtype: Any = _INT8) -> None:
        self.output_dtype = output_dtype

    def __call__(self, x: Any) -> Any:
        """Return the codes of an array; in this class, the array."""
        return x

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Any:
        """Make a quantizer of its config, the arguments."""
        return cls(**config)

    def get_config(self) -> dict[str, Any]:
        """Return the arguments; NotImplementedError in this class."""
        raise NotImplementedError(f"{type(self).__name__} has no get_config(); write one.")


class AbsMaxQuantizer(Quantizer):
    """`abs_max_quantize` with arguments that are kept.

    Parameters
    ----------
    axis : int or sequence of int, optional
        For calls that name none; -1 if neither does.
    value_range, epsilon, output_dtype
        As for `abs_max_quantize`.

    Raises
    ------
    ValueError
        int8 does not hold `value_range`.

    """

    def __init__(
        self,
        axis: int | Sequence[int] | None = None,
        value_range: Sequence[Any] = (-127, 127),
        epsilon: float = _EPSILON,
        output_dtype: Any = _INT8,
    ) -> None:
        super().__init__(output_dtype)
        if isinstance(axis, int):
            axis = (axis,)
        self.axis = None if axis is None else tuple(axis)
        self.value_range = value_range
        self.epsilon = epsilon
        if output_dtype == _INT8:
            _code_dtype(value_range, output_dtype)

    def __call__(
        self, x: Any, axis: int | Sequence[int] | None = None, to_numpy: bool = False
    ) -> tuple[_Array, _Array]:
        """Return the codes and the scale of an array."""
        axes = self.axis if axis is None else axis
        return abs_max_quantize(
            x,
            -1 if axes is None else axes,
            self.value_range,
            self.output_dtype,
            self.epsilon,
            to_numpy,
        )

    def get_config(self) -> dict[str, Any]:
        """Return the arguments, as Keras writes them into files."""
        config: dict[str, Any] = {
            "value_range": self.value_range,
            "epsilon": self.epsilon,
            "output_dtype": self.output_dtype,
        }
        return config if self.axis is None else {**config, "axis": self.axis}


@_undisturbed
def fake_quant_with_min_max_vars(  # noqa: PLR0917 - as Keras
    inputs: Any,
    min_vals: Any,
    max_vals: Any,
    num_bits: int = 8,
    narrow_range: bool = False,
    axis: int | None = None,
) -> _Array:
    """Quantise to integers between two limits, and decode.

    The limits are moved so that 0 is a code. There are no gradients here.

    Parameters
    ----------
    inputs : array_like
        Of a float dtype.
    min_vals, max_vals : array_like
        Numbers, or one for each index along `axis`.
    num_bits : int
        Bits of a code.
    narrow_range : bool
        Codes begin at 1, not at 0.
    axis : int, optional
        Of `inputs`, that vectors of limits lie along; the last one by default.

    Returns
    -------
    ndarray
        Of the shape and dtype of `inputs`.

    Raises
    ------
    ValueError
        `inputs` is not of a float dtype; `axis` is out of bounds; shapes do not fit.

    """
    x, lowest, highest = _floats("inputs", inputs), _array(min_vals), _array(max_vals)
    step = _Steps(np.float32)
    if axis is not None:
        lowest, highest = (_along(x, axis, one) for one in (lowest, highest))
    low, high = int(narrow_range), (1 << int(num_bits)) - 1
    smallest, largest = step.of(lowest), step.of(highest)
    reach = largest - smallest
    scale, inverse = reach / step.of(high - low), step.of(high - low) / reach
    zero = np.rint(np.clip(low - smallest / scale, low, high))
    nudged, limit = (low - zero) * scale, (high - zero) * scale
    code_of_zero = np.floor(-nudged * inverse + step.of(0.5))
    shifted = np.clip(step.of(x), nudged, limit) - nudged
    codes = np.floor(shifted * inverse - code_of_zero + step.of(0.5))
    return cast(codes * scale, x.dtype)


def _along(x: _Array, axis: int, limits: _Array) -> _Array:
    """Let a vector lie along an axis of x."""
    if not -x.ndim <= axis < x.ndim:
        raise ValueError(f"axis={axis} is not valid for inputs of shape {x.shape}.")
    return limits.reshape(-1, *[1] * (x.ndim - axis % x.ndim - 1)) if limits.ndim == 1 else limits


@_undisturbed
def compute_float8_scale(amax: Any, scale: Any, dtype_max: Any, margin: int = 0) -> _Array:
    """Return the next scale of delayed scaling: what codes are multiplied by to be decoded.

    Parameters
    ----------
    amax, scale : array_like
        The largest magnitude of a history, and the scale of before, which stays if `amax` is 0,
        infinite or NaN.
    dtype_max : number
        The largest value of the float8: 448, 57344.
    margin : int
        Powers of two to leave above `amax`.

    Returns
    -------
    ndarray
        ``amax / dtype_max * 2 ** margin``, computed by reciprocals, or `scale`.

    """
    found, before = _floats("amax", amax), _floats("scale", scale)
    others = [_floats("dtype_max", dtype_max).dtype] if hasattr(dtype_max, "dtype") else []
    step, own = _Steps(found.dtype, *others), _Steps(before.dtype)
    factor = step(step(step.of(dtype_max) / step.of(found)) / step.of(2.0**margin))
    result = _Steps(step.dtype, own.dtype)
    is_used = (found > 0) & np.isfinite(found)
    return result.stored(1 / np.where(is_used, factor, own(1 / own.of(before))))


@_undisturbed
def compute_float8_amax_history(x: Any, amax_history: Any) -> _Array:
    """Return a history with the largest magnitude of an array: the newest first, the oldest second.

    Parameters
    ----------
    x : array_like
        Of a float dtype, not empty.
    amax_history : array_like
        (length,), of 1 or more.

    Returns
    -------
    ndarray
        Of the shape and dtype of `amax_history`, which is not changed.

    Raises
    ------
    ValueError
        One of them is empty, or not of a float dtype.

    """
    values, history = (
        _floats("x", x, in_numpy=True),
        _floats("amax_history", amax_history, in_numpy=True),
    )
    for name, array in (("x", values), ("amax_history", history)):
        if not array.size:
            raise ValueError(f"{name} has shape {array.shape}; give at least one number.")
    amax = _core.block_amax(np.atleast_2d(values))
    after = np.roll(history, -1)
    after[0] = cast(np.float64(amax), history.dtype)
    return after


@_undisturbed
def quantize_and_dequantize(
    inputs: Any, scale: Any, quantized_dtype: Any, compute_dtype: Any
) -> _Array:
    """Divide by a scale, round to a float8, and multiply by the scale.

    Parameters
    ----------
    inputs : array_like
        Of a float dtype. What is beyond the range of the float8 gets its largest value.
    scale : array_like
        A number, or what can be broadcast.
    quantized_dtype : dtype
        "float8_e4m3fn", "float8_e5m2", or another float.
    compute_dtype : dtype
        Of the steps and of the result.

    Returns
    -------
    ndarray
        Of the shape of `inputs`.

    Raises
    ------
    ValueError
        An array or a dtype is not a float, or not one that Keras knows.

    """
    x = _floats("inputs", inputs)
    codes_dtype = _float_dtype("quantized_dtype", quantized_dtype)
    then = _Steps(_float_dtype("compute_dtype", compute_dtype))
    step, factor = _Steps(x.dtype, then.dtype), then.of(_array(scale))
    if step.dtype == then.dtype == np.float32 and codes_dtype.itemsize == 1 and _is_one(factor, x):
        machine = DelayedScaling(1, dtype=codes_dtype, preset="keras")
        state = machine.state_dict() | {"scale": float(factor.reshape(()))}
        machine = machine.with_state(state)
        return machine.dequantize(machine.quantize(x)[0])
    limit = then.of(finfo(codes_dtype).max)
    codes = cast(np.clip(step(step.of(x) / factor), -limit, limit), codes_dtype)
    return then.stored(then.of(codes) * factor)


def _is_one(factor: _Array, x: _Array) -> bool:
    """Tell whether a scale is one positive number, which changes no shape."""
    return factor.size == 1 and factor.ndim <= x.ndim and bool(0 < factor.reshape(()) < math.inf)


def pack_int4(arr: Any, axis: int = 0, dtype: Any = _INT8) -> tuple[_Array, tuple[int, ...], int]:
    """Pack pairs of integers of 4 bits along an axis: the first one into the low bits.

    Parameters
    ----------
    arr : ndarray
        Of `dtype`, any rank; the low four bits of each element are packed.
    axis : int
        Along which pairs lie; a 0 follows the last one of an odd number.
    dtype : {"int8", "uint8"}
        Of `arr` and of the result.

    Returns
    -------
    packed : ndarray
        Of half the length along `axis`, rounded up.
    shape : tuple of int
        Its shape.
    length : int
        Of `arr` along `axis`.

    Raises
    ------
    ValueError
        An unknown `dtype`; an axis out of bounds.
    TypeError
        `arr` has another dtype.

    """
    array = np.asarray(arr)
    _check_byte(dtype)
    if array.dtype.name != dtype:
        raise TypeError(f"arr has dtype {array.dtype}, not dtype={dtype!r}; cast arr to it first.")
    moved = np.moveaxis(array, axis, -1)
    packed = np.moveaxis(pack(moved, 4, dtype=dtype), -1, axis)
    return packed, packed.shape, moved.shape[-1]


def unpack_int4(packed: Any, orig_len: int, axis: int = 0, dtype: Any = _INT8) -> _Array:
    """Unpack what `pack_int4` has packed.

    Parameters
    ----------
    packed : ndarray
        Of int8 or uint8.
    orig_len : int
        The length along `axis` before packing.
    axis : int
        As for `pack_int4`.
    dtype : {"int8", "uint8"}
        int8: from -8 to 7; uint8: from 0 to 15.

    Returns
    -------
    ndarray
        Of `dtype`.

    Raises
    ------
    ValueError
        An unknown `dtype`; an axis out of bounds; more elements than are packed.
    TypeError
        `packed` is not of int8 or uint8.

    """
    array = np.asarray(packed)
    _check_byte(dtype)
    if array.dtype.name not in _BYTES:
        raise TypeError(f"packed has dtype {array.dtype}; give int8 or uint8.")
    moved = np.moveaxis(array, axis, -1)
    room = moved.shape[-1] * 2
    if not 0 <= orig_len <= room:
        raise ValueError(f"orig_len={orig_len} is not valid; {room} elements are packed.")
    return np.moveaxis(unpack(moved, 4, columns=orig_len, signed=dtype == _INT8), -1, axis)


def _check_byte(dtype: Any) -> None:
    if dtype not in _BYTES:
        raise ValueError(f"dtype={dtype!r} is not valid; use 'int8' or 'uint8'.")


@_undisturbed
def compute_quantization_parameters(
    x: Any,
    *,
    bits: int,
    symmetric: bool = False,
    per_channel: bool = False,
    group_size: int = -1,
    compute_dtype: Any = "float32",
    epsilon: float = 0.0,
    signed: bool = False,
) -> tuple[_Array, _Array, _Array]:
    """Return scales and zero points for the rows of a matrix, or for groups of their elements.

    Parameters
    ----------
    x : array_like
        (outputs, inputs, ...), of a float dtype, not empty.
    bits : int
        Of a code.
    symmetric : bool
        The range is the same on both sides of 0.
    per_channel : bool
        Each row has its own scale; else all have the same one.
    group_size : int
        With `per_channel`, elements of a group along axis 1; -1: a whole row.
    compute_dtype : dtype
        Of `maxq`, and of scales if it is wider than that of `x`.
    epsilon : float
        What is added to the range.
    signed : bool
        Codes from ``-2 ** (bits - 1)``, and zero points of int8, limited to what is a code; else
        codes from 0, and zero points of uint8, which wrap if the values of a group are far from 0.

    Returns
    -------
    scale, zero : ndarray
        (outputs, groups).
    maxq : ndarray
        ``2 ** bits - 1``, of `compute_dtype`.

    Raises
    ------
    ValueError
        `x` is None, is empty, has fewer than two axes, or is not of a float dtype.

    """
    if x is None:
        raise ValueError("x=None is not valid; give a matrix.")
    array = _floats("x", x)
    if array.ndim < _MATRIX or not array.size:
        raise ValueError(f"x has shape {array.shape}; give two axes or more, and elements.")
    own, computed = _Steps(array.dtype), _float_dtype("compute_dtype", compute_dtype)
    step, held, rows = _Steps(own.dtype, computed), own.of(array), len(array)
    if per_channel and 0 < group_size < array.shape[1]:
        held = _groups(held, 1, group_size)
        smallest, largest = held.min(2), held.max(2)
    else:
        held = held.reshape(rows if per_channel else 1, -1)
        smallest, largest = held.min(1, keepdims=True), held.max(1, keepdims=True)
    if symmetric:
        largest = np.maximum(np.abs(smallest), largest)
        smallest = np.where(smallest < 0, -largest, smallest)
    is_one = smallest == largest
    smallest = np.where(is_one, own(smallest - own.of(1)), smallest)
    largest = np.where(is_one, own(largest + own.of(1)), largest)
    reach = own(largest - smallest)
    if epsilon > 0:
        reach = own(reach + own.of(epsilon))
    maxq = np.array(2**bits - 1, finfo(standardize_dtype(compute_dtype)).dtype)
    scale = step(reach / step.of(maxq))
    scale = np.where(scale <= 0, step.of(1e-8), scale)
    half = 1 << (bits - 1)
    zero = np.full_like(scale, half) if symmetric else np.rint(step(-smallest / scale))
    if signed:
        zero = np.clip(step(zero - half), -half, half - 1)
    integers = cast(zero, np.int8) if signed else _wrapped(zero)
    shape = (rows, scale.shape[1])
    return (
        step.stored(np.broadcast_to(scale, shape)),
        np.broadcast_to(integers, shape).copy(),
        maxq,
    )


def _wrapped(zero: _Array) -> _Array:
    """Return the lowest 8 bits of integers; 0 for those beyond an int32, as on x86."""
    beyond = 2.0**31
    return cast(cast(np.where(np.abs(zero) < beyond, zero, 0), np.int64), np.uint8)


@_undisturbed
def quantize_with_sz_map(  # noqa: PLR0917 - as Keras
    weights_matrix: Any, scale: Any, zero: Any, g_idx: Any, maxq: Any, group_axis: int = -1
) -> _Array:
    """Quantise a matrix by the scales and zero points of groups.

    Parameters
    ----------
    weights_matrix : array_like
        Of a float dtype.
    scale, zero : array_like
        A column (`group_axis` -1) or a row (0) for each group; `scale` of a float dtype.
    g_idx : array_like
        The group of each element of `weights_matrix` along `group_axis`; floats are cut off.
    maxq : number
        The largest code; the smallest is 0.
    group_axis : int
        Of `scale` and `zero`.

    Returns
    -------
    ndarray
        Codes, of the shape of `weights_matrix`, in the float dtype of the quotients.

    Raises
    ------
    ValueError
        An array is not of a float dtype; shapes do not fit.
    IndexError
        There is no such group.

    """
    x, scales = _floats("weights_matrix", weights_matrix), _floats("scale", scale)
    own, step = _Steps(scales.dtype), _Steps(x.dtype, scales.dtype)
    by_group = own.of(scales)
    by_group = np.where(by_group == 0, own.of(1e-8), by_group)
    divisors, zeros = (
        np.take(one, _group_numbers(g_idx), axis=group_axis)
        for one in (by_group, own.of(_array(zero)))
    )
    codes = np.rint(step(step(step.of(x) / divisors) + zeros))
    return step.stored(np.clip(codes, 0, _array(maxq).astype(step.wide)))


@_undisturbed
def dequantize_with_sz_map(
    weights_matrix: Any, scale: Any, zero: Any, g_idx: Any, group_axis: int = -1
) -> _Array:
    """Decode a matrix by the scales and zero points of groups: ``(codes - zero) * scale``.

    Parameters
    ----------
    weights_matrix : array_like
        Codes, of integers or of a float dtype.
    scale, zero, g_idx, group_axis
        As for `quantize_with_sz_map`.

    Returns
    -------
    ndarray
        Of the shape of `weights_matrix`, of the dtype of `scale` if codes are integers.

    Raises
    ------
    ValueError, IndexError
        As for `quantize_with_sz_map`.

    """
    codes, scales, zeros = _array(weights_matrix), _floats("scale", scale), _array(zero)
    groups = _group_numbers(g_idx)
    if (done := _decoded(codes, scales, zeros, groups, group_axis)) is not None:
        return done
    own = _Steps(scales.dtype)
    is_float = codes.dtype.name in _FLOATS
    step = _Steps(codes.dtype, scales.dtype) if is_float else own
    factors, shifts = (
        np.take(one, groups, axis=group_axis) for one in (own.of(scales), own.of(zeros))
    )
    return step.stored(step(step.of(codes) - shifts) * factors)


def _group_numbers(g_idx: Any) -> _Array:
    return cast(np.asarray(g_idx), np.int32)


def _decoded(
    codes: _Array, scales: _Array, zeros: _Array, groups: _Array, axis: int
) -> _Array | None:
    """Decode bytes with float32 scales in one pass; None if the arrays are not such."""
    are_bytes = codes.dtype.name in _BYTES and zeros.dtype.name in _BYTES
    if not are_bytes or scales.dtype != np.float32 or axis not in (-1, 0, 1):
        return None
    along = axis % _MATRIX
    is_turned = along == 0
    if not (codes.ndim == scales.ndim == _MATRIX and scales.shape == zeros.shape):
        return None
    if scales.shape[1 - along] != codes.shape[1 - along] or not codes.size:
        return None
    if (
        groups.shape != (codes.shape[along],)
        or not 0 <= groups.min() <= groups.max() < (scales.shape[along])
    ):
        return None
    out = np.empty(codes.shape, np.float32)
    rows, factors, shifts, values = (
        one.T if is_turned else one for one in (codes, scales, zeros, out)
    )
    _core.decode_blocks(
        rows,
        factors,
        values,
        element=codes.dtype.name,
        bits=8,
        block=(1, 1),
        zero_point=shifts,
        group_index=groups,
    )
    return out
