"""Arrays of bfloat16 and float8 that stay so under arithmetic.

numpy knows no rules for the dtypes of ml_dtypes: ``x + 1.5`` and ``x @ x`` of a bfloat16 array are
float32, ``np.maximum(x, 0)`` is float64, ``np.einsum`` fails, and ``np.sum`` adds in bfloat16,
where 256 + 1 is 256. For float16 it has the rules that one expects. `NarrowArray` brings those to
the others: what is computed of arrays of one narrow dtype, integers and Python's numbers has that
dtype. Layers compute with these, so that their authors need no casts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any

import numpy as np

from castwise._core import cast
from castwise.floating import is_floating

_USER_DTYPE = 2
"""What `dtype.isbuiltin` is for the dtypes of other packages than numpy."""

_STEPWISE = ("reduce", "accumulate", "reduceat")
"""Methods of a ufunc that round after each element, unless they are told to compute in float32."""

_INTEGER_OPERAND = (np.ldexp,)
"""Ufuncs of a float and an integer."""


def is_narrow(dtype: np.dtype[Any]) -> bool:
    """Whether a real float of ml_dtypes."""
    return dtype.isbuiltin == _USER_DTYPE and is_floating(dtype)


def narrowed(value: Any) -> Any:
    """The same memory as a `NarrowArray`, if it is an array of a narrow dtype; else the value."""
    if isinstance(value, np.ndarray) and is_narrow(value.dtype):
        return value.view(NarrowArray)
    return value


def plain(value: Any) -> Any:
    """The same memory as a plain array, if it is a `NarrowArray`; else the value."""
    return value.view(np.ndarray) if isinstance(value, NarrowArray) else value


class NarrowArray(np.ndarray):
    """An array of bfloat16, float8 or another dtype of ml_dtypes that arithmetic does not widen.

    Notes
    -----
    With a wider float the result is as wide as that. Sums, products and what numpy has no loop for
    are computed in float32 and rounded once. `numpy.asarray` gives the same memory as a plain
    array; layers return plain ones.

    Examples
    --------
    >>> x = narrowed(castwise.cast([1.0, -2.0], "bfloat16"))
    >>> np.maximum(x, 0) + 0.5
    NarrowArray([1.5, 0.5], dtype=bfloat16)
    >>> (x @ x).dtype, (x + np.ones(2, np.float32)).dtype
    (dtype(bfloat16), dtype('float32'))

    """

    def __array_ufunc__(
        self, ufunc: np.ufunc, method: Any, *inputs: Any, out: Any = None, **options: Any
    ) -> Any:
        if any(_has_own_rules(x) for x in (*inputs, *(out or ()))):
            return NotImplemented
        operands = [plain(x) for x in inputs]
        targets = None if out is None else tuple(plain(x) for x in out)
        dtype = _common(operands)
        if dtype is None or _is_told(method, options):
            if targets is not None:
                options["out"] = targets
            result = getattr(ufunc, method)(*operands, **options)
        else:
            result = _computed(ufunc, method, operands, options, dtype)
            if targets is not None:
                _store(targets, result)
        if out is not None:
            return out[0] if len(out) == 1 else out
        return _each(result, narrowed)

    def __array_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: Any, kwargs: Any
    ) -> Any:
        dtype = (
            None if _names_a_dtype(args, kwargs) else _common([*_arrays((args, *kwargs.values()))])
        )
        if dtype is None:
            return super().__array_function__(func, types, args, kwargs)
        # np.linalg takes what it does not know for integers, and goes on in float64.
        if not func.__module__.startswith("numpy.linalg"):
            with suppress(TypeError):
                result = super().__array_function__(func, types, args, kwargs)
                return _each(result, lambda value: narrowed(_rounded(value, dtype)))
        # numpy has no loop for the dtype, as in np.einsum.
        wide = func(*_each(args, _widened), **{k: _each(v, _widened) for k, v in kwargs.items()})
        return _each(wide, lambda value: narrowed(_rounded(value, dtype)))


def _names_a_dtype(args: Any, kwargs: dict[str, Any]) -> bool:
    """Whether a function is told the dtype of its result."""
    told = any(isinstance(value, np.dtype | type) for value in args)
    return told or kwargs.get("dtype") is not None


def _has_own_rules(value: Any) -> bool:
    return hasattr(value, "__array_ufunc__") and not isinstance(value, np.ndarray | np.generic)


def _is_told(method: str, options: dict[str, Any]) -> bool:
    """Whether numpy is told how to compute, or where to write."""
    masked = method == "__call__" and options.get("where", True) is not True
    return method == "at" or masked or options.get("dtype") is not None


def _common(operands: list[Any]) -> np.dtype[Any] | None:
    """The narrow dtype that all floats among the operands have, if it is one."""
    dtypes = set()
    for operand in operands:
        if isinstance(operand, np.ndarray | np.generic):
            if operand.dtype.kind not in "iub":
                dtypes.add(operand.dtype)
        elif not isinstance(operand, bool | int | float):
            return None
    if len(dtypes) != 1 or not is_narrow(dtype := dtypes.pop()):
        return None
    return dtype


def _computed(
    ufunc: np.ufunc, method: str, operands: list[Any], options: dict[str, Any], dtype: Any
) -> Any:
    if method in _STEPWISE:
        operands = [_widened(operands[0]), *operands[1:]]
    elif ufunc not in _INTEGER_OPERAND:
        operands = [
            dtype.type(float(x)) if isinstance(x, bool | int | float) else x for x in operands
        ]
    result = getattr(ufunc, method)(*operands, **options)
    return _each(result, lambda value: _rounded(value, dtype))


def _widened(value: Any) -> Any:
    """A narrow array in float32, which holds all of its values."""
    if isinstance(value, np.ndarray) and is_narrow(value.dtype):
        return cast(value, np.float32)
    return value


def _rounded(value: Any, dtype: np.dtype[Any]) -> Any:
    """A float that numpy has widened, as an array or, where numpy gives a scalar, as a scalar."""
    if not isinstance(value, np.ndarray | np.generic) or value.dtype == dtype:
        return value
    if not is_floating(value.dtype):
        return value
    rounded = cast(value, dtype)
    return rounded if isinstance(value, np.ndarray) else rounded[()]


def _store(targets: tuple[Any, ...], result: Any) -> None:
    results = result if isinstance(result, tuple) else (result,)
    for target, value in zip(targets, results, strict=True):
        if target is not None:
            target[...] = value


def _each(value: Any, function: Callable[[Any], Any]) -> Any:
    """The function of a value, or of each in a list or tuple."""
    if isinstance(value, list):
        return [_each(item, function) for item in value]
    if isinstance(value, tuple):
        items = [_each(item, function) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    return function(value)


def _arrays(values: Any) -> Iterator[Any]:
    for value in values:
        if isinstance(value, list | tuple):
            yield from _arrays(value)
        elif isinstance(value, np.ndarray | np.generic):
            yield plain(value)
