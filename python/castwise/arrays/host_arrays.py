"""Read another library's arrays as numpy's: by their adapter, else as numpy reads them.

Numpy reads nulls as NaN or zero, and integers beside nulls as rounded float64. So the elements that
are not null are read alone, and frames column by column. Leaves of trees may be such arrays.
"""

from array import array
from collections import deque
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any

import numpy as np
from numpy.typing import NDArray

from castwise._trees import is_node, is_registered
from castwise.arrays.adapter_registry import array_adapter, elements_of

# Methods that yield the columns of a frame: of polars, of pyarrow.
_COLUMNS = ("iter_columns", "itercolumns")

# Methods that tell which elements are null, with those that leave these out: of polars and of
# pyarrow; of pandas.
_NULLS = {"is_null": ("drop_nulls", "drop_null"), "isna": ("dropna",)}


def host_array(x: Any) -> tuple[NDArray[Any], bool]:  # noqa: ANN401
    """Return the elements that are not null, as numpy's array, and whether others are null."""
    # Integers of a frame's columns that no dtype of numpy holds together are refused, not rounded.
    if isinstance(x, np.ndarray):
        return x, False
    if (adapter := array_adapter(x)) is not None:
        return elements_of(adapter, x), False
    cls = type(x)
    if hasattr(cls, "__dask_graph__"):
        x = x.compute()
    if hasattr(cls, "dims") and hasattr(cls, "data"):  # of xarray, which may hold those of pandas
        return host_array(x.data)
    if hasattr(cls, "to_native"):  # of narwhals, around those of another library
        return host_array(x.to_native())
    columns = _columns(x)
    return _series(x) if columns is None else _frame(x, columns)


def _columns(x: Any) -> Iterable[Any] | None:  # noqa: ANN401
    for name in _COLUMNS:
        if hasattr(type(x), name):
            columns: Iterable[Any] = getattr(x, name)()
            return columns
    if hasattr(type(x), "iloc") and hasattr(type(x), "columns"):  # of pandas, with names repeated
        return (x.iloc[:, index] for index in range(x.shape[1]))
    return None


def _frame(x: Any, columns: Iterable[Any]) -> tuple[NDArray[Any], bool]:  # noqa: ANN401
    arrays, nulls = zip(*map(host_array, columns), strict=True) if len(x.columns) else ((), ())
    common = np.result_type(*arrays) if arrays else None
    if any(nulls):
        return np.empty(0, common), True
    if all(array.dtype == common for array in arrays):
        whole = np.asanyarray(x)  # a view, where the columns lie in one block
        if common in (None, whole.dtype):
            return whole, False
    for column in arrays:
        if column.dtype.kind in "iu" and common is not None and common.kind == "f":
            limit = 2 ** (np.finfo(common).nmant + 1)
            if ((column > limit) | (column < -limit)).any():
                raise TypeError(
                    f"a column of {column.dtype} has integers that {common}, the dtype for all "
                    "columns, rounds; cast each column by itself"
                )
    return np.stack(arrays, axis=1), False


def _series(x: Any) -> tuple[NDArray[Any], bool]:  # noqa: ANN401
    for name, dropping in _NULLS.items():
        if hasattr(type(x), name) and _may_have_nulls(x) and _has_nulls(x, name):
            drop = next(method for method in dropping if hasattr(type(x), method))
            return np.asanyarray(getattr(x, drop)()), True
    if _is_of_records(x):
        return host_array(x.struct.unnest())
    return np.asanyarray(x), False


def _has_nulls(x: Any, name: str) -> bool:  # noqa: ANN401
    """Tell whether elements are null, or what is inside of them: of arrays and of records."""
    if np.asarray(getattr(x, name)()).any():
        return True
    if hasattr(getattr(x, "dtype", None), "inner"):  # of polars, as are the records
        return _has_nulls(x.explode(), name)
    return _is_of_records(x) and any(
        _has_nulls(column, name) for column in x.struct.unnest().iter_columns()
    )


def _is_of_records(x: Any) -> bool:  # noqa: ANN401
    dtype = getattr(x, "dtype", None)
    return not isinstance(dtype, np.dtype) and hasattr(dtype, "fields") and hasattr(x, "struct")


def _may_have_nulls(x: Any) -> bool:  # noqa: ANN401
    """Tell whether what a library calls null can be more than a NaN among floats."""
    dtype = getattr(x, "dtype", None)
    if isinstance(dtype, np.dtype):
        return False
    is_nan = isinstance(getattr(dtype, "na_value", None), float)
    return not (is_nan and getattr(dtype, "kind", None) in ("f", "c"))


# What numpy reads an array by; others are buffers.
_PROTOCOLS = ("__array__", "__array_interface__", "__array_struct__")

_BUFFERS = (memoryview, array)
# Leaves that are no arrays, though numpy makes arrays of them.
_NO_ARRAYS = (type, str, bytes, bytearray, range)


def is_rebuilt(node: object) -> bool:
    """Tell whether a value is a node of a tree, of a class that can be rebuilt."""
    # An array that is a dataclass, as of zarr, is not, nor is a mapping with attributes beside its
    # items, as a dataset of xarray or a group of HDF5; unless jax knows how to rebuild it.
    if isinstance(node, dict | list | tuple):
        return True
    if not is_node(node):
        return False
    return is_registered(node) or not (_is_array(node) or _has_attributes(node))


def array_dtype(leaf: object) -> np.dtype[Any] | None:
    """Return the dtype of a leaf if it is an array for numpy, of numbers; None if it is not."""
    if isinstance(leaf, np.ndarray | np.generic):
        return leaf.dtype
    if isinstance(leaf, _NO_ARRAYS):
        return None
    is_container = isinstance(leaf, Mapping) and _has_attributes(leaf)
    if not is_container and (isinstance(leaf, _BUFFERS) or _is_array(leaf)):
        return _dtype_of(leaf)
    name = _class_name(leaf)
    if hasattr(leaf, "__dlpack__"):
        raise TypeError(
            f"a {name} is read by DLPack only, not by numpy; give numpy.from_dlpack of it."
        )
    if _has_attributes(leaf):
        raise TypeError(
            f"a {name} is a container with attributes, which a cast would lose; give a dict of its "
            "arrays."
        )
    if hasattr(leaf, "shape") and hasattr(leaf, "dtype"):
        raise TypeError(f"a {name} is not an array that numpy can read; give a numpy array.")
    if isinstance(leaf, Sequence | Set | deque) and any(map(_is_array, leaf)):
        raise TypeError(f"a {name} of arrays is not a node of a tree; give a list.")
    return None


def _is_array(value: object) -> bool:
    return any(hasattr(value, name) for name in _PROTOCOLS)


def _has_attributes(value: object) -> bool:
    return hasattr(type(value), "attrs")


def _class_name(leaf: object) -> str:
    """Return what messages call the class of a leaf; one made where no module runs has none."""
    cls = type(leaf)
    return f"{getattr(cls, '__module__', '')}.{cls.__qualname__}".lstrip(".")


def _dtype_of(leaf: object) -> np.dtype[Any] | None:
    """Return the dtype of what numpy reads, without reading it where it has one of numpy's."""
    dtype = getattr(leaf, "dtype", None)
    if not isinstance(dtype, np.dtype):
        name = _class_name(leaf)
        try:
            dtype = host_array(leaf)[0].dtype
        except (TypeError, ValueError, RuntimeError) as error:
            if type(error) not in (TypeError, ValueError, RuntimeError):
                error.add_note(f"in a {name}, which numpy reads")
                raise
            raise type(error)(
                f"numpy cannot read a {name} ({error}); give a numpy array."
            ) from error
    return dtype
