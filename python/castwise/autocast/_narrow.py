"""Arrays of bfloat16 and float8 that keep their dtype in arithmetic.

numpy has no rules for the dtypes of ml_dtypes: ``x + 1.5`` and ``x @ x`` of a bfloat16 array are
float32, ``np.maximum(x, 0)`` is float64, ``np.einsum`` fails, and ``np.sum`` adds in bfloat16,
where 256 + 1 is 256. Nor does numpy know that they are floats: ``np.nansum`` and ``np.nan_to_num``
leave NaNs, ``np.sort`` and ``np.median`` do not detect them. Arrays of float16 keep their dtype.
`NarrowArray` gives the others the same rules: what is computed from arrays of one narrow dtype,
integers and Python's numbers has that dtype. Layers compute with these, so that their authors need
no casts.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.lib import stride_tricks
from numpy.typing import NDArray

from castwise._core import cast, finfo
from castwise._numbers import is_floating

_USER_DTYPE = 2  # `dtype.isbuiltin` of dtypes that other packages have registered

# numpy has the last two from 2.2 on.
_OF_SUMS = tuple(
    getattr(np, name) for name in ("matmul", "vecdot", "matvec", "vecmat") if hasattr(np, name)
)
_STEPWISE = ("reduce", "accumulate", "reduceat")
"""Ufuncs and methods of ufuncs that are computed in float32: of several steps, or with a BLAS."""

_INTEGER_OPERAND = (np.ldexp,)  # ufuncs of a float and an integer

# Methods that do not call `NarrowArray.__array_function__`, as numpy's functions do.
_METHODS = ("argpartition", "argsort", "dot", "mean", "searchsorted", "std", "var")

# numpy's functions that move or copy elements, but do not compute with them.
_VIEWS = """
    array_split atleast_1d atleast_2d atleast_3d broadcast_arrays broadcast_to diag diagonal dsplit
    expand_dims flip fliplr flipud hsplit imag ix_ matrix_transpose meshgrid moveaxis permute_dims
    ravel real reshape rollaxis rot90 split squeeze swapaxes transpose trim_zeros unstack vsplit
"""
_COPIES = """
    astype compress copy delete empty_like extract full_like ones_like repeat resize roll take
    take_along_axis tile tril triu zeros_like
"""
_WRITES = "copyto fill_diagonal place put put_along_axis putmask"
_DESCRIBES = """
    array2string array_repr array_str can_cast iscomplexobj isrealobj may_share_memory
    min_scalar_type ndim result_type save savetxt savez savez_compressed shape shares_memory size
"""

# Functions whose results are views of an argument, copies of its elements, or without elements, and
# functions that write elements into an argument. Those that join arrays are not among them: numpy
# has no common dtype of a narrow float and a 64-bit integer.
_MOVES = frozenset(
    getattr(np, name)
    for names in (_VIEWS, _COPIES, _WRITES, _DESCRIBES)
    for name in names.split()
    if hasattr(np, name)  # some exist in newer versions only
) | {
    stride_tricks.as_strided,
    stride_tricks.sliding_window_view,
    np.linalg.diagonal,
    np.linalg.matrix_transpose,
}

# Classes of arrays that become a `NarrowArray`; other subclasses have their own rules.
_WITHOUT_RULES = frozenset((np.ndarray, np.memmap))


def is_narrow(dtype: np.dtype[Any]) -> bool:
    """Tell whether a dtype is a real float of ml_dtypes."""
    return dtype.isbuiltin == _USER_DTYPE and is_floating(dtype)


def narrow(value: object) -> Any:
    """View an array of a narrow dtype as a `NarrowArray`; return other values as they are."""
    # A scalar becomes an array of no axes: scalars of ml_dtypes have the rules of ml_dtypes.
    if type(value) in _WITHOUT_RULES and isinstance(value, np.ndarray):
        return value.view(NarrowArray) if is_narrow(value.dtype) else value
    if isinstance(value, np.generic) and is_narrow(value.dtype):
        return np.asarray(value).view(NarrowArray)
    return value


def plain(value: object) -> Any:
    """View a `NarrowArray` as a plain array; return other values as they are."""
    return value.view(np.ndarray) if isinstance(value, NarrowArray) else value


class NarrowArray(np.ndarray):
    """An array of bfloat16, float8 or another dtype of ml_dtypes that keeps it in arithmetic.

    Notes
    -----
    With a wider float, the result has the wider dtype. Sums, products of matrices and all numpy
    functions that do more than move elements are computed in float32 and rounded once. Elements,
    and results such as a sum, are arrays without axes. `numpy.asarray` gives a plain array that
    shares the memory; layers return plain arrays.

    Examples
    --------
    >>> x = narrow(castwise.cast([1.0, -2.0], "bfloat16"))
    >>> np.maximum(x, 0) + 0.5
    NarrowArray([1.5, 0.5], dtype=dtype(bfloat16))
    >>> (x @ x).dtype, (x.mean() * 0.5).dtype, (x + np.ones(2, np.float32)).dtype
    (dtype(bfloat16), dtype(bfloat16), dtype('float32'))

    """

    def __getitem__(self, index: Any) -> Any:
        return narrow(super().__getitem__(index))

    def __iter__(self) -> Iterator[Any]:
        return map(narrow, super().__iter__())

    def __repr__(self) -> str:
        return "Narrow" + repr(plain(self)).replace("array", "Array", 1).replace(
            "\n", "\n" + " " * 6
        )

    def __str__(self) -> str:
        return str(plain(self))

    def sort(self, *args: Any, **kwargs: Any) -> None:
        """Sort in place, NaN last, as `numpy.ndarray.sort`."""
        self[...] = np.sort(self, *args, **kwargs)

    def partition(self, *args: Any, **kwargs: Any) -> None:
        """Partition in place, NaN last, as `numpy.ndarray.partition`."""
        self[...] = np.partition(self, *args, **kwargs)

    def __array_ufunc__(
        self,
        ufunc: np.ufunc,
        method: str,
        *inputs: object,
        out: tuple[Any, ...] | None = None,
        **options: object,
    ) -> Any:
        if any(_has_own_rules(x) for x in (*inputs, *(out or ()))):
            return NotImplemented
        operands = [plain(x) for x in inputs]
        dtype = _common(operands)
        if dtype is None or _is_told(method, options):
            if out is not None:
                options["out"] = tuple(plain(x) for x in out)
            result = getattr(ufunc, method)(*operands, **options)
        else:
            result = _compute(ufunc, method, operands, options, dtype)
            if out is not None:
                _store(out, result, options.get("casting", "same_kind"))
        if out is None:
            return _map_items(result, narrow)
        results = result if isinstance(result, tuple) else (result,)
        outputs = [narrow(x) if y is None else y for x, y in zip(results, out, strict=True)]
        return tuple(outputs) if isinstance(result, tuple) else outputs[0]

    def __array_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: Iterable[object],
        kwargs: Mapping[str, object],
    ) -> Any:
        values = [value for name, value in kwargs.items() if name != "out"]
        dtype = None if _names_a_dtype(func, args, kwargs) else _common([*_arrays((args, values))])
        copies = _Widened()
        if func not in _MOVES:
            args = _map_items(args, copies.of)
            kwargs = {name: _map_items(value, copies.of) for name, value in kwargs.items()}
        result = super().__array_function__(func, types, args, kwargs)
        if result is kwargs.get("out", copies):
            dtype = None  # other than those of the inputs
        return _map_items(result, lambda value: copies.written(value, dtype))


def _method(name: str) -> Callable[..., Any]:
    def method(self: NarrowArray, *args: object, **kwargs: object) -> Any:
        return getattr(np, name)(self, *args, **kwargs)

    return method


for _name in _METHODS:
    setattr(NarrowArray, _name, _method(_name))


class _Widened:
    """Convert a function's arguments to float32, and write back what it wrote into them."""

    def __init__(self) -> None:
        self._pairs: dict[int, tuple[NDArray[Any], NDArray[Any]]] = {}

    def of(self, value: object) -> Any:
        """Return a narrow array in float32, always the same one, and other values as they are."""
        if not isinstance(value, np.ndarray) or not is_narrow(value.dtype):
            return value
        if id(value) not in self._pairs:
            wide = cast(plain(value), np.float32)
            wide.flags.writeable = value.flags.writeable
            self._pairs[id(value)] = value, wide
        return self._pairs[id(value)][1]

    def written(self, value: object, dtype: np.dtype[Any] | None) -> Any:
        """Round a result; if it is one of the arguments (as ``out=``), return that argument."""
        for original, wide in self._pairs.values():
            if value is wide:
                if wide.flags.writeable:
                    original[...] = wide
                return original
        return narrow(value if dtype is None else _round(value, dtype))


def _names_a_dtype(func: object, args: Iterable[object], kwargs: Mapping[str, object]) -> bool:
    """Tell whether a call says the dtype of its result."""
    if kwargs.get("dtype") is not None:
        return True
    # In the subscripts of einsum, letters are axes.
    return func is not np.einsum and any(_is_dtype(value) for value in args)


def _is_dtype(value: object) -> bool:
    if not isinstance(value, str):
        return isinstance(value, np.dtype | type)
    try:
        finfo(value)
    except TypeError:
        return False
    return len(value) > 1  # "F" is an order of elements


def _has_own_rules(value: object) -> bool:
    return hasattr(value, "__array_ufunc__") and not isinstance(value, np.ndarray | np.generic)


def _is_told(method: str, options: dict[str, Any]) -> bool:
    """Tell whether a call says the dtype of the computation, or has an ``out``."""
    is_masked = method == "__call__" and options.get("where", True) is not True
    return method == "at" or is_masked or options.get("dtype") is not None


def _common(operands: list[Any]) -> np.dtype[Any] | None:
    """Return the narrow dtype of all floats among the operands, or None if they have several."""
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


def _compute(
    ufunc: np.ufunc, method: str, operands: list[Any], options: dict[str, Any], dtype: np.dtype[Any]
) -> Any:
    if ufunc in _OF_SUMS:
        operands = [_widen(x) for x in operands]
    elif method in _STEPWISE:
        operands = [_widen(operands[0]), *operands[1:]]
    elif ufunc not in _INTEGER_OPERAND:
        operands = [
            cast(float(x), dtype) if isinstance(x, bool | int | float) else x for x in operands
        ]
    result = getattr(ufunc, method)(*operands, **options)
    return _map_items(result, lambda value: _round(value, dtype))


def _widen(value: object) -> Any:
    """Return a narrow array in float32, which holds all of its values."""
    if isinstance(value, np.ndarray | np.generic) and is_narrow(value.dtype):
        return cast(value, np.float32)
    return value


def _round(value: object, dtype: np.dtype[Any]) -> Any:
    """Return an array of a float that numpy has widened."""
    if not isinstance(value, np.ndarray | np.generic) or value.dtype == dtype:
        return value
    return cast(value, dtype) if is_floating(value.dtype) else value


def _store(targets: tuple[Any, ...], result: object, casting: Any) -> None:
    results = result if isinstance(result, tuple) else (result,)
    for target, value in zip(targets, results, strict=True):
        if target is not None:
            # Widened, because numpy does not know that a narrow dtype is a float.
            np.copyto(
                plain(target),
                value if target.dtype == value.dtype else _widen(value),
                casting=casting,
            )


def _map_items(value: object, function: Callable[[Any], Any]) -> Any:
    """Apply a function to a value, or to each value of a list or tuple."""
    if isinstance(value, list):
        return [_map_items(item, function) for item in value]
    if isinstance(value, tuple):
        items = [_map_items(item, function) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    return function(value)


def _arrays(values: Iterable[object]) -> Iterator[Any]:
    for value in values:
        if isinstance(value, list | tuple):
            yield from _arrays(value)
        elif isinstance(value, np.ndarray | np.generic):
            yield plain(value)
