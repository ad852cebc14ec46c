"""Cast numpy's arrays for Keras by castwise's kernels, with the same bits as Keras' own casts.

The backends cast differently, but agree with the kernels under two conditions. First, no element
of the result is NaN or infinite: payloads of NaN and warnings of overflows differ. A second pass
checks the kernels' result for that, and leaves other arrays to Keras. Second, float64 is rounded to
float32 before it is rounded to 16 bits, except on the numpy backend to float16, and to bfloat16
from ml_dtypes 0.7 on.
"""

from functools import cache
from typing import Any

import numpy as np

from castwise._core import cast, finfo, formats
from castwise.environment.frameworks import require
from castwise.loss_scale._unscaling import all_finite

# The sizes of the floats that all backends compute in.
_BITS = {
    name: finfo(name).bits
    for name in formats()
    if finfo(name).kind == "float" and finfo(name).bits >= np.finfo(np.float16).bits
}

_DOUBLE = np.finfo(np.float64).bits

# From this many elements on, a kernel and the check take less time than Keras' cast.
_WORTHWHILE = 512

_OF_ML_DTYPES = 2  # numpy's `isbuiltin` of registered dtypes: bfloat16 and the 8-bit floats


@cache
def _rounds_once(dtype: str) -> bool:
    """Return whether numpy rounds float64 to a dtype of 16 bits once, which releases differ in."""
    above_ties = np.array([1 + 2.0**-8, 1 + 2.0**-11]) + 2.0**-40  # of bfloat16 and float16
    y = cast(above_ties, dtype)
    return bool((above_ties.astype(y.dtype) == y).all())


def kernel_cast(x: Any, dtype: Any, backend: str) -> np.ndarray[Any, Any] | None:
    """Cast an array as the backend would; return None where that is left to the backend."""
    if type(x) is not np.ndarray or type(dtype) is not str or x.size < _WORTHWHILE:
        return None
    source = x.dtype.name
    if dtype not in _BITS or source not in _BITS or source == dtype or _BITS[dtype] == _DOUBLE:
        return None
    if _BITS[source] == _DOUBLE:
        if backend == "tensorflow":
            return None
        if dtype != "float32" and not (backend == "numpy" and _rounds_once(dtype)):
            x = cast(x, "float32")
    y: np.ndarray[Any, Any] = cast(x, dtype)
    return y if all_finite(y) else None


def to_tensor(x: np.ndarray[Any, Any], backend: str, dtype: str | None = None) -> Any:
    """Return an array as the backend's tensor, with the same bits."""
    keras = require("keras")
    if backend == "torch" and x.dtype.isbuiltin == _OF_ML_DTYPES:  # torch takes no such arrays
        integers = keras.ops.convert_to_tensor(x.view(f"i{x.dtype.itemsize}"))
        return integers.view(getattr(require("torch"), x.dtype.name))
    return keras.ops.convert_to_tensor(x, dtype)
