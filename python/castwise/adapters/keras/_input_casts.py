"""numpy's arrays on their way into Keras, cast with castwise's kernels to the bits of Keras' own.

Each backend casts in a way of its own, and all agree with the kernels on two conditions. One: no
element of the result is NaN or infinite, for those have payloads, and overflows have warnings. The
kernels' result is checked for that in a pass of its own, and Keras does the rest. Two: float64 goes
to 16 bits by way of float32, rounded twice, but for float16 on the numpy backend.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from castwise._core import cast, finfo, formats
from castwise._frameworks import require
from castwise.loss_scale._unscaling import all_finite

_BITS = {
    name: finfo(name).bits
    for name in formats()
    if finfo(name).kind == "float" and finfo(name).bits >= np.finfo(np.float16).bits
}
"""How wide the floats are that all backends compute in."""

_DOUBLE = np.finfo(np.float64).bits

_WORTHWHILE = 512
"""Elements from which a kernel and the check take less time than what Keras does."""

_OF_ML_DTYPES = 2
"""What numpy says of dtypes that others have registered: bfloat16 and the 8-bit floats."""


def kernel_cast(x: Any, dtype: Any, backend: str) -> np.ndarray[Any, Any] | None:
    """An array as the backend would cast it; None where that is left to the backend.

    Parameters
    ----------
    x : any object
        Arrays of numpy, of no subclass, are cast.
    dtype : any object
        The names of dtypes are known here, as layers give them.
    backend : {"numpy", "jax", "torch", "tensorflow"}
        TensorFlow flushes float32's subnormals when it makes them of float64.

    """
    if type(x) is not np.ndarray or type(dtype) is not str or x.size < _WORTHWHILE:
        return None
    source = x.dtype.name
    if dtype not in _BITS or source not in _BITS or source == dtype or _BITS[dtype] == _DOUBLE:
        return None
    if _BITS[source] == _DOUBLE:
        if backend == "tensorflow":
            return None
        if dtype != "float32" and (dtype, backend) != ("float16", "numpy"):
            x = cast(x, "float32")
    y: np.ndarray[Any, Any] = cast(x, dtype)
    return y if all_finite(y) else None


def to_tensor(x: np.ndarray[Any, Any], backend: str, dtype: str | None = None) -> Any:
    """An array as the backend's tensor, bit by bit."""
    keras = require("keras")
    if backend == "torch" and x.dtype.isbuiltin == _OF_ML_DTYPES:  # torch takes no such arrays
        integers = keras.ops.convert_to_tensor(x.view(f"i{x.dtype.itemsize}"))
        return integers.view(getattr(require("torch"), x.dtype.name))
    return keras.ops.convert_to_tensor(x, dtype)
