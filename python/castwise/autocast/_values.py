"""What variables are made of: check names, shapes and values, or make them."""

import functools
import inspect
import math
import operator
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

from castwise._core import cast, finfo, read_array
from castwise.autocast._scope import numpy_dtype
from castwise.environment.defaults import floatx

_Method = TypeVar("_Method", bound=Callable[..., Any])

_SHOWN = 8  # messages show arrays of up to this many elements

Shape: TypeAlias = tuple[int, ...]
Initializer: TypeAlias = Callable[..., Any]

_lock = threading.Lock()
_counts: Counter[str] = Counter()


def numbers(argument: str, value: object, dtype: np.dtype[Any], owner: str) -> NDArray[Any]:
    """Copy a value to a new array, in the dtype of the variable `owner`."""
    try:
        array = read_array(argument, value)
        info = finfo(array.dtype)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{argument}={short(value)} of {type(value).__name__} is not an array of numbers, "
            f"as variable {owner!r} is: {error}"
        ) from None
    if info.kind == "complex" and finfo(dtype).kind != "complex":
        raise ValueError(
            f"{argument}={short(value)} is complex, and variable {owner!r} {dtype.name}; "
            "give its real or its imaginary part."
        )
    elements = cast(array, dtype)
    # As numpy: Python's integers must not overflow, because the caller chose no dtype.
    counts = (
        array.dtype.kind in "iu" and elements.dtype.kind in "iu" and not hasattr(value, "dtype")
    )
    if counts and not np.array_equal(elements, array):
        raise ValueError(
            f"{argument}={short(value)} does not fit in {dtype.name}, which variable {owner!r} "
            "is; give dtype= or smaller numbers."
        )
    return elements


def checked_shape(
    shape: Iterable[Any], wrong_type: type[Exception] = ValueError
) -> tuple[int, ...]:
    """Return a shape as a tuple. ValueError for negative sizes, `wrong_type` for other values."""
    error = ValueError
    try:
        sizes = tuple(map(operator.index, [None] if isinstance(shape, str | bytes) else shape))
        if min(sizes, default=0) >= 0:
            return sizes
    except TypeError:
        error = wrong_type  # type: ignore[assignment]
    raise error(
        f"shape={shape!r} is not a shape; give a tuple of integers of 0 or more, such as (64, 10)."
    )


def given_once(add_weight: _Method) -> _Method:
    """Raise Keras' ValueError for an argument that is given by position and by name."""

    @functools.wraps(add_weight)
    def wrapper(self: object, *args: object, **options: object) -> Any:
        for name, value in zip(("shape", "initializer", "dtype"), args, strict=False):
            if name in options:
                raise ValueError(
                    f"{name}= is given twice, as {value!r} and as {options[name]!r}; pass the name "
                    "of a weight as name=."
                )
        return add_weight(self, *args, **options)

    return wrapper  # type: ignore[return-value]


def natural_dtype(value: object) -> np.dtype[Any]:
    """Return the default dtype for a value: its own, or Keras' for a Python value."""
    dtype = getattr(value, "dtype", None)
    if isinstance(dtype, np.dtype):
        return dtype.newbyteorder("=")
    try:
        kind = np.asarray(value).dtype.kind
    except (TypeError, ValueError):
        kind = "O"  # refused later
    standard: str = {"b": "bool", "i": "int32", "u": "int32", "c": "complex64"}.get(kind, floatx())
    default: np.dtype[Any] = numpy_dtype(standard)
    return default


def short(value: object) -> str:
    """Write a value for a message, large arrays by their dtype only."""
    if isinstance(value, np.ndarray) and value.size > _SHOWN:
        return f"array of {value.dtype}"
    return repr(value)


def zeros(shape: Shape, dtype: DTypeLike) -> NDArray[Any]:
    return np.zeros(shape, dtype)


def ones(shape: Shape, dtype: DTypeLike) -> NDArray[Any]:
    return np.ones(shape, dtype)


def random_normal(shape: Shape, dtype: DTypeLike) -> NDArray[Any]:
    """Draw from a normal distribution with a standard deviation of 0.05."""
    # The default of Keras' RandomNormal.
    return np.random.normal(0.0, 0.05, shape)


def random_uniform(shape: Shape, dtype: DTypeLike) -> NDArray[Any]:
    """Draw from a uniform distribution between -0.05 and 0.05."""
    # The defaults of Keras' RandomUniform.
    return np.random.uniform(-0.05, 0.05, shape)


def glorot_uniform(shape: Shape, dtype: DTypeLike) -> NDArray[Any]:
    """Draw from a uniform distribution with a variance of 2 / (inputs + outputs)."""
    # The variance of a uniform distribution within a limit is a third of its square.
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


# The names that may be given. Random ones draw from numpy's global generator, which
# `numpy.random.seed` sets.
NAMED: dict[str, Initializer] = {
    function.__name__: function
    for function in (zeros, ones, random_normal, random_uniform, glorot_uniform, he_normal)
}


def initializer_of(identifier: object) -> Initializer | None:
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


def call_initializer(
    make: Initializer, argument: object, shape: Shape, dtype: np.dtype[Any]
) -> Any:
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


def check_name(name: object, wrong_type: type[Exception] = ValueError) -> str:
    if not isinstance(name, str) or not name or "/" in name:
        raise (ValueError if isinstance(name, str) else wrong_type)(
            f"name={name!r} is not a name; give a str that is not empty and has no '/', which "
            "separates the names in a path."
        )
    return name


def automatic_name(kind: str) -> str:
    """Return the name of the next thing of a kind: ``dense``, ``dense_1``, ...

    Numbers are counted in the whole process, as Keras counts them in a thread.

    >>> automatic_name("AveragePooling"), automatic_name("AveragePooling")
    ('average_pooling', 'average_pooling_1')
    """
    stem = re.sub(r"\W+", "", kind)
    stem = re.sub("(.)([A-Z][a-z]+)", r"\1_\2", stem)
    stem = re.sub("([a-z])([A-Z])", r"\1_\2", stem).lower()
    with _lock:
        number = _counts[stem]
        _counts[stem] += 1
    return f"{stem}_{number}" if number else stem
