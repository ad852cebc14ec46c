"""Let numpy and Python's operators use a variable's value."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NoReturn

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin
from numpy.typing import NDArray

from castwise._core import cast
from castwise.autocast._narrow import narrow, plain

# The methods of arrays that variables have: those that do not change the array.
_OF_THE_VALUE = frozenset(
    ("T", "dot", "max", "mean", "min", "reshape", "size", "sum", "tolist", "transpose")
)


class NumpyProtocol(NDArrayOperatorsMixin):
    """An object whose `value` takes part in arithmetic in its place."""

    path: Any
    value: Any
    ndim: Any

    def __array__(self, dtype: object = None, copy: bool | None = None) -> NDArray[Any]:
        array = self._as_array()
        if dtype is not None and array.dtype != dtype:
            if copy is False:
                raise ValueError(
                    f"copy=False, and dtype={dtype!r} is not {array.dtype}; leave one of them out."
                )
            return cast(array, dtype)
        return np.array(array) if copy else array

    def _as_array(self) -> NDArray[Any]:
        array: NDArray[Any] = plain(self.value)
        return array

    def __array_ufunc__(
        self,
        ufunc: np.ufunc,
        method: str,
        *inputs: object,
        out: tuple[Any, ...] | None = None,
        **options: object,
    ) -> Any:
        if method == "at" and isinstance(inputs[0], NumpyProtocol):
            _refuse_in_place()
        if out is not None:
            if any(isinstance(target, NumpyProtocol) for target in out):
                _refuse_in_place()
            options["out"] = out
        return getattr(ufunc, method)(*map(_value_of, inputs), **options)

    def __array_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: Iterable[object],
        kwargs: Mapping[str, object],
    ) -> Any:
        if isinstance(kwargs.get("out"), NumpyProtocol):
            _refuse_in_place()
        return func(*_value_of(args), **{name: _value_of(value) for name, value in kwargs.items()})

    def __getattr__(self, name: str) -> Any:
        if name in _OF_THE_VALUE:
            return getattr(self.value, name)
        raise AttributeError(
            f"{type(self).__name__!r} object has no attribute {name!r}; its `value` is the array."
        )

    def astype(self, *args: object, **kwargs: object) -> Any:
        """Cast the value, as `numpy.ndarray.astype` does."""
        return narrow(self.value.astype(*args, **kwargs))

    def __getitem__(self, index: object) -> Any:
        return self.value[index]

    def __setitem__(self, index: object, value: object) -> NoReturn:
        _refuse_in_place()

    def __iter__(self) -> Iterator[Any]:
        return iter(self.value)

    def __bool__(self) -> bool:
        raise TypeError(
            f"variable {self.path!r} has no truth value; ask its `value`, with any() or all()."
        )

    def __int__(self) -> int:
        return int(self._single())

    def __float__(self) -> float:
        return float(self._single())

    def _single(self) -> Any:
        if self.ndim:
            raise TypeError(
                f"variable {self.path!r} of {self.ndim} axes is not a single number; take an "
                "element of it."
            )
        return self.value[()]

    def __pos__(self) -> Any:
        return self.value

    def __round__(self, digits: int | None = None) -> Any:
        return np.round(self.value, digits or 0)


def _not_in_place(self: NumpyProtocol, other: object) -> Any:
    """Let ``a += b`` mean ``a = a + b``, as in Keras and TF, without changing the variable."""
    return NotImplemented


for _operator in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul"):
    setattr(NumpyProtocol, f"__i{_operator}__", _not_in_place)
for _operator in ("and", "or", "xor", "lshift", "rshift"):
    setattr(NumpyProtocol, f"__i{_operator}__", _not_in_place)


def _value_of(value: object) -> Any:
    """Replace variables by their values, also in lists and tuples."""
    if isinstance(value, NumpyProtocol):
        return value.value
    if isinstance(value, list):
        return [_value_of(item) for item in value]
    if type(value) is tuple:
        return tuple(_value_of(item) for item in value)
    return value


def _refuse_in_place() -> NoReturn:
    raise TypeError(
        "a variable cannot be written to in place; use assign, assign_add or assign_sub."
    )
