"""Which dtypes are real floats: numpy's `issubdtype` does not know those of ml_dtypes."""

from __future__ import annotations

from typing import Any

import numpy as np

from castwise._core import finfo


def is_floating(dtype: np.dtype[Any]) -> bool:
    """Whether a real float; one without a format (longdouble) is left to `cast` to refuse."""
    try:
        return finfo(dtype).kind == "float"
    except TypeError:
        return dtype.kind == "f"
