"""Codes that are products with a scale: that of the largest magnitude along axes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from castwise import _core
from castwise._core import cast
from castwise._keras_objects import checked_arguments, plain_number
from castwise._standard_dtype import standardize_dtype
from castwise.compat.keras.quantizers._steps import (
    BFLOAT16,
    EPSILON,
    INT8,
    Array,
    Steps,
    code_dtype,
    floats_of,
    undisturbed,
)


@undisturbed
def abs_max_quantize(  # noqa: PLR0917 - as Keras
    inputs: Any,
    axis: int | Sequence[int] | None,
    value_range: Sequence[Any] = (-127, 127),
    dtype: Any = INT8,
    epsilon: float = EPSILON,
    to_numpy: bool = False,
) -> tuple[Array, Array]:
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
    x = floats_of("inputs", inputs, in_numpy=to_numpy)
    low, high, codes_dtype = code_dtype(value_range, dtype)
    axes = tuple(axis) if isinstance(axis, list | tuple) else axis
    if isinstance(axes, tuple) and len(axes) == 1:
        (axes,) = axes
    usual = (x.dtype.name, codes_dtype, low, high, epsilon)
    is_axis = isinstance(axes, int) and -x.ndim <= axes < x.ndim
    if usual == ("float32", INT8, -127, 127, EPSILON) and is_axis and x.size:
        codes, scale = _in_one_pass(x, axes)
        if not np.isnan(scale).any():  # which stands for what is not finite
            return codes, scale
    step = Steps(np.float32 if to_numpy and x.dtype.name == BFLOAT16 else x.dtype)
    values = step.of(x)
    largest, smallest = values.max(axes, keepdims=True), values.min(axes, keepdims=True)
    amax = np.abs(np.maximum(largest, -smallest))
    scale = step(step.of(high) / step(amax + step.of(epsilon)))
    codes = np.clip(np.rint(step(values * scale)), low, high)
    return cast(step(codes), codes_dtype), cast(scale, x.dtype)


def _in_one_pass(x: Array, axis: Any) -> tuple[Array, Array]:
    """Quantise float32 to int8 along an axis; a NaN among the scales means: no result."""
    axis %= x.ndim
    codes = np.empty(x.shape, np.int8)
    scale = np.empty((*x.shape[:axis], 1, *x.shape[axis + 1 :]), np.float32)
    before, after = math.prod(x.shape[:axis]), math.prod(x.shape[axis + 1 :])
    _core.encode_blocks(
        *(
            array.reshape(before, -1, after).swapaxes(1, 2)
            if after > 1
            else array.reshape(before, -1)
            for array in (x, codes, scale)
        ),
        scheme="int8_channel",
        recipe="keras",
        block=(1, 0),
        nonfinite="nan",
    )
    return codes, scale


class Quantizer:
    """The base class of quantizers: it returns what it is given."""

    def __init__(self, output_dtype: Any = INT8) -> None:
        self.output_dtype = output_dtype

    def __call__(self, x: Any) -> Any:
        """Return the codes of an array; in this class, the array."""
        return x

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Any:
        """Make a quantizer of its config, the arguments."""
        return cls(**checked_arguments(cls, config))

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
        epsilon: float = EPSILON,
        output_dtype: Any = INT8,
    ) -> None:
        super().__init__(output_dtype)
        if isinstance(axis, int | np.integer):
            axis = (int(axis),)
        self.axis = None if axis is None else tuple(map(plain_number, axis))
        self.value_range = value_range
        self.epsilon = epsilon
        if output_dtype == INT8:
            code_dtype(value_range, output_dtype)

    def __call__(
        self, x: Any, axis: int | Sequence[int] | None = None, to_numpy: bool = False
    ) -> tuple[Array, Array]:
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
            "value_range": _plain_numbers(self.value_range),
            "epsilon": plain_number(self.epsilon),
            "output_dtype": _named(self.output_dtype),
        }
        return config if self.axis is None else {**config, "axis": self.axis}


def _plain_numbers(numbers: Sequence[Any]) -> Sequence[Any]:
    """Return a list or tuple of Python's numbers."""
    plain = [plain_number(number) for number in numbers]
    return plain if isinstance(numbers, list) else tuple(plain)


def _named(dtype: Any) -> Any:
    """Return the name of a dtype object, and names as they are."""
    return dtype if isinstance(dtype, str) or dtype is None else standardize_dtype(dtype)
