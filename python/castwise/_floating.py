"""Tell real floats from other dtypes: numpy's `issubdtype` does not know those of ml_dtypes."""

from typing import Any

import numpy as np

from castwise._core import finfo


def is_floating(dtype: np.dtype[Any]) -> bool:
    """Tell whether a dtype is a real float, also one that `cast` refuses (longdouble)."""
    try:
        return finfo(dtype).kind == "float"
    except TypeError:
        return dtype.kind == "f"
