"""Make the first values of variables, by name, or by a callable of a shape and a dtype."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import DTypeLike, NDArray

Shape: TypeAlias = tuple[int, ...]
Initializer: TypeAlias = Callable[..., Any]


def zeros(shape: Shape, dtype: DTypeLike) -> NDArray[Any]:
    """Make an array of zeros."""
    return np.zeros(shape, dtype)


def ones(shape: Shape, dtype: DTypeLike) -> NDArray[Any]:
    """Make an array of ones."""
    return np.ones(shape, dtype)


def random_normal(shape: Shape, dtype: DTypeLike) -> NDArray[Any]:
    """Draw from a normal distribution with a standard deviation of 0.05."""
    return np.random.normal(0.0, 0.05, shape)


def random_uniform(shape: Shape, dtype: DTypeLike) -> NDArray[Any]:
    """Draw from a uniform distribution between -0.05 and 0.05."""
    return np.random.uniform(-0.05, 0.05, shape)


def glorot_uniform(shape: Shape, dtype: DTypeLike) -> NDArray[Any]:
    """Draw from a uniform distribution with a variance of 2 / (inputs + outputs)."""
    limit = math.sqrt(6 / max(1, sum(_fans(shape))))
    return np.random.uniform(-limit, limit, shape)


def he_normal(shape: Shape, dtype: DTypeLike) -> NDArray[Any]:
    """Draw from a normal distribution with a variance of 2 / inputs."""
    return np.random.normal(0.0, math.sqrt(2 / max(1, _fans(shape)[0])), shape)


def _fans(shape: Shape) -> tuple[int, int]:
    """Count the inputs and outputs of a kernel of this shape; a bias has as many of both."""
    if not shape:
        return 1, 1
    around = math.prod(shape[:-2])
    return (shape[0],) * 2 if len(shape) == 1 else (around * shape[-2], around * shape[-1])


NAMED: dict[str, Initializer] = {
    function.__name__: function
    for function in (zeros, ones, random_normal, random_uniform, glorot_uniform, he_normal)
}
"""The names that may be given. Random ones draw from numpy's global generator, which
`numpy.random.seed` sets."""


def get(identifier: object) -> Initializer | None:
    """Return the callable for a name or callable; None for a value, ValueError for other names."""
    if isinstance(identifier, str):
        if identifier not in NAMED:
            raise ValueError(
                f"initializer={identifier!r} is not an initializer; use one of {', '.join(NAMED)}, "
                "a callable of shape and dtype, or a value."
            )
        return NAMED[identifier]
    if isinstance(identifier, type):
        identifier = identifier()  # as Keras: a class of initializers
    return identifier if callable(identifier) else None


def call(make: Initializer, argument: object, shape: Shape, dtype: np.dtype[Any]) -> Any:
    """Return a value from an initializer. TypeError if it does not take a shape and a dtype."""
    try:
        inspect.signature(make).bind(shape, dtype=dtype)
    except ValueError:
        pass  # written in C, without a signature
    except TypeError as error:
        raise TypeError(
            f"initializer={argument!r} cannot be called with a shape and dtype= ({error}); give a "
            "function of both, such as numpy.zeros."
        ) from None
    return make(shape, dtype=dtype)
