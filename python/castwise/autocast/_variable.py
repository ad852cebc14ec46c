"""`AutoCastVariable`: stored in one dtype, seen in that of a scope."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from castwise._core import cast
from castwise._numbers import is_floating
from castwise.autocast._narrow import narrow, plain
from castwise.autocast._numpy_protocol import NumpyProtocol
from castwise.autocast._scope import current, numpy_dtype
from castwise.autocast._values import (
    automatic_name,
    call_initializer,
    check_name,
    checked_shape,
    initializer_of,
    natural_dtype,
    numbers,
    short,
)
from castwise.dtype_policies._keras_objects import standardize_dtype
from castwise.environment.defaults import floatx
from castwise.text.brief import short_array


class AutoCastVariable(NumpyProtocol):
    """An array that is stored in one dtype and seen in the dtype of the scope.

    Parameters
    ----------
    initializer : array_like, str, number or callable
        The first value, or an initializer: "zeros", "ones", "glorot_uniform" and the like, or a
        callable of ``shape`` and ``dtype``, such as `numpy.zeros`.
    shape : int sequence, optional
        Needed where `initializer` is a name or a callable.
    dtype : dtype, optional
        The dtype in which it is stored, as for `castwise.config.standardize_dtype`. By default that
        of an array, and floatx or int32 for other values.
    trainable : bool
        Whether an optimizer is to change it.
    autocast : bool
        False: it is seen in the dtype in which it is stored, whatever the scope.
    name : str, optional
        Without "/".

    Raises
    ------
    ValueError
        A value that does not fit the dtype, no shape or another shape than the value's, unknown
        dtypes and initializers, a name with "/".

    Notes
    -----
    Inside an `AutocastScope`, and so inside the call of a layer, arithmetic, indexing, numpy's
    functions, `value`, `numpy()` and `dtype` see the variable cast to the dtype of the scope, if it
    is a float and has `autocast`. `assign`, `assign_add` and `assign_sub` have the precision of the
    stored value, also there. Values are read-only; a variable changes by assignment only.

    Examples
    --------
    >>> from castwise.autocast import AutocastScope
    >>> rate = AutoCastVariable(0.1, name="rate")
    >>> with AutocastScope("float16"):
    ...     seen, _ = rate * 1, rate.assign_add(1e-6)
    >>> seen, rate.value
    (np.float16(0.1), array(0.100001, dtype=float32))

    """

    def __init__(
        self,
        initializer: object,
        shape: Iterable[int] | None = None,
        dtype: object = None,
        trainable: bool = True,
        autocast: bool = True,
        *,
        name: str | None = None,
        path: str = "",
    ) -> None:
        self._name = check_name(name) if name else automatic_name("variable")
        self._path = f"{path}/{self._name}" if path else self._name
        self.trainable = bool(trainable)
        self._overwrite_with_gradient = False
        self._regularizer: Callable[..., Any] | None = None
        self._constraint: Callable[..., Any] | None = None
        self._autocast = bool(autocast)
        self._array = _freeze(self._first_value(initializer, shape, dtype))
        self._true_dtype: str = self._array.dtype.name
        self._casts = self._autocast and is_floating(self._array.dtype)

    def _first_value(
        self, initializer: object, shape: Iterable[int] | None, dtype: object
    ) -> NDArray[Any]:
        target = None if dtype is None else self._named_dtype(dtype)
        sizes = None if shape is None else checked_shape(shape)
        make = initializer_of(initializer)
        if make is not None:
            if sizes is None:
                raise ValueError(
                    f"initializer={initializer!r} makes a value of any shape; give shape=, too."
                )
            target = target or numpy_dtype(floatx())
            initializer = call_initializer(make, initializer, sizes, target)
        array = self._numbers(
            "initializer", initializer, target or natural_dtype(_array_of(initializer))
        )
        if sizes is not None and array.shape != sizes:
            raise ValueError(
                f"initializer={short(initializer)} has the shape {array.shape} and variable "
                f"{self._path!r} shape={sizes}; give a value of that shape, or its shape."
            )
        return array

    @staticmethod
    def _named_dtype(dtype: object) -> np.dtype[Any]:
        return numpy_dtype(standardize_dtype(dtype))

    # Attributes.

    @property
    def name(self) -> str:
        """Its name within its layer."""
        return self._name

    @property
    def path(self) -> str:
        """The path of its layer and its name."""
        return self._path

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the stored array."""
        shape: tuple[int, ...] = self._array.shape
        return shape

    @property
    def ndim(self) -> int:
        """The number of axes of the stored array."""
        ndim: int = self._array.ndim
        return ndim

    @property
    def autocast(self) -> bool:
        """Whether scopes cast it, if it is a float."""
        return self._autocast

    @property
    def overwrite_with_gradient(self) -> bool:
        """Whether an optimizer is to store the gradient itself; TypeError if set to another."""
        return self._overwrite_with_gradient

    @overwrite_with_gradient.setter
    def overwrite_with_gradient(self, value: bool) -> None:
        if not isinstance(value, bool):
            raise TypeError(f"overwrite_with_gradient={value!r} is not valid; use True or False.")
        self._overwrite_with_gradient = value

    @property
    def regularizer(self) -> Callable[..., Any] | None:
        """What an optimizer's loop may add to a loss; nothing here calls it."""
        return self._regularizer

    @regularizer.setter
    def regularizer(self, value: Callable[..., Any] | None) -> None:
        self._regularizer = _callable_or_none("regularizer", value)

    @property
    def constraint(self) -> Callable[..., Any] | None:
        """What an optimizer may apply after a step; nothing here calls it."""
        return self._constraint

    @constraint.setter
    def constraint(self, value: Callable[..., Any] | None) -> None:
        self._constraint = _callable_or_none("constraint", value)

    @property
    def true_dtype(self) -> str:
        """The dtype in which it is stored."""
        return self._true_dtype

    @property
    def dtype(self) -> str:
        """The dtype in which it is seen here."""
        scope = current().scope if self._casts else None
        stored_dtype = self._true_dtype
        return stored_dtype if scope is None else scope.dtype or stored_dtype

    @property
    def value(self) -> Any:
        """The array, in the dtype of the scope; read-only."""
        if not self._casts:
            return self._array
        scope = current().scope
        if scope is None or scope.numpy_dtype is None or scope.numpy_dtype == self._array.dtype:
            return self._array
        return _freeze(cast(self._array, scope.numpy_dtype))

    def read_value(self) -> Any:
        """Return the same as `value`, under TF's name."""
        return self.value

    def numpy(self) -> NDArray[Any]:
        """Return a copy of the value."""
        return np.array(plain(self.value))

    # Assignments.

    def assign(self, value: object) -> Any:
        """Store another value, rounded once to the dtype of the storage; returns it as stored.

        Raises
        ------
        ValueError
            It has another shape, or is not an array of numbers. The variable is not changed.

        """
        array = self._numbers("value", value, self._array.dtype)
        if array.shape != self.shape:
            raise ValueError(
                f"value={short(value)} has the shape {array.shape}, and variable {self._path!r} "
                f"{self.shape}; the shapes must be equal."
            )
        self._array = _freeze(array)
        return self._array

    def assign_add(self, value: object) -> Any:
        """Add to what is stored, in its precision; raises as `assign`."""
        return self._assign_result(np.add, value)

    def assign_sub(self, value: object) -> Any:
        """Subtract from what is stored, in its precision; raises as `assign`."""
        return self._assign_result(np.subtract, value)

    def _assign_result(self, ufunc: Callable[..., Any], value: object) -> Any:
        # Floats round the delta to the stored dtype first; for integers 1 - 0.5 is 0, not 1.
        keeps = is_floating(self._array.dtype)
        delta = self._numbers(
            "value", value, self._array.dtype if keeps else natural_dtype(_array_of(value))
        )
        try:
            np.broadcast_to(delta, self.shape)
        except ValueError:
            raise ValueError(
                f"value={short(value)} has the shape {delta.shape}, which cannot be added to "
                f"variable {self._path!r} of the shape {self.shape}; give one that can."
            ) from None
        return self.assign(ufunc(self._array, narrow(delta)))

    def _numbers(self, argument: str, value: object, dtype: np.dtype[Any]) -> NDArray[Any]:
        return numbers(argument, _array_of(value), dtype, self._path)

    # As in Keras, these are logical for elements of every dtype.

    def __and__(self, other: ArrayLike) -> Any:
        return np.logical_and(self, other)

    def __rand__(self, other: ArrayLike) -> Any:
        return np.logical_and(other, self)

    def __or__(self, other: ArrayLike) -> Any:
        return np.logical_or(self, other)

    def __ror__(self, other: ArrayLike) -> Any:
        return np.logical_or(other, self)

    def __xor__(self, other: ArrayLike) -> Any:
        return np.logical_xor(self, other)

    def __rxor__(self, other: ArrayLike) -> Any:
        return np.logical_xor(other, self)

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        _freeze(self._array)  # copies of arrays, also by pickle, are writable

    def __repr__(self) -> str:
        return (
            f"<AutoCastVariable path={self._path}, shape={self.shape}, dtype={self.dtype}, "
            f"true_dtype={self._true_dtype}, value={short_array(plain(self.value))}>"
        )


def _array_of(value: object) -> Any:
    """Return the stored value of a variable, and other values as they are."""
    return value._array if isinstance(value, AutoCastVariable) else value


def _freeze(array: NDArray[Any]) -> Any:
    array.flags.writeable = False
    return narrow(array)


def _callable_or_none(name: str, value: object) -> Any:
    if value is not None and not callable(value):
        raise ValueError(f"{name}={value!r} is not valid; use a callable or None.")
    return value
