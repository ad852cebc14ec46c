"""Tell numbers from what Python and numpy take for them, and floats from other dtypes.

Python counts True and False as 1 and 0; numpy's `issubdtype` does not know the floats of ml_dtypes.
"""

from typing import Any, TypeGuard

import numpy as np

from castwise._core import finfo

# The bits of what holds codes: below a byte they are packed, and packed words are int32 or uint32.
BYTE_BITS, WORD_BITS = 8, 32


def is_integer(value: object) -> TypeGuard[int]:
    """Return True for an int of Python or numpy."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def is_real(value: object) -> TypeGuard[float]:
    """Return True for an int or float of Python or numpy."""
    return is_integer(value) or isinstance(value, float | np.floating)


def is_floating(dtype: np.dtype[Any]) -> bool:
    """Tell whether a dtype is a real float, also one that `cast` refuses (longdouble)."""
    try:
        return finfo(dtype).kind == "float"
    except TypeError:
        return dtype.kind == "f"
