"""Tell numbers from True and False, which Python counts as 1 and 0."""

from typing import TypeGuard

import numpy as np


def is_integer(value: object) -> TypeGuard[int]:
    """Return True for an int of Python or numpy."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def is_real(value: object) -> TypeGuard[float]:
    """Return True for an int or float of Python or numpy."""
    return is_integer(value) or isinstance(value, float | np.floating)
