"""Tell which leaves of trees are arrays to `cast`, though no adapter is for their library."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Mapping, Sequence, Set
from typing import Any

import numpy as np

from castwise._trees import is_node, is_registered
from castwise.arrays.host_arrays import host_array

_PROTOCOLS = ("__array__", "__array_interface__", "__array_struct__")
"""What numpy reads an array by; others are buffers."""

_BUFFERS = (memoryview, array)
_NO_ARRAYS = (type, str, bytes, bytearray, range)


def is_rebuilt(node: object) -> bool:
    """Tell whether a value is a node of a tree, of a class that can be rebuilt.

    An array that is a dataclass, as of zarr, is not, nor is a mapping with attributes beside its
    items, as a dataset of xarray or a group of HDF5; unless jax knows how to rebuild it.
    """
    if isinstance(node, dict | list | tuple):
        return True
    if not is_node(node):
        return False
    return is_registered(node) or not (_is_array(node) or _has_attributes(node))


def array_dtype(leaf: object) -> np.dtype[Any] | None:
    """Return the dtype of a leaf if it is an array for numpy, of numbers; None if it is not.

    TypeError: It is an array that numpy cannot read, or a container of arrays; the message names
    its class.
    """
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
