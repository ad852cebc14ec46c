"""Keras 3's modules for dtype policies, holding castwise's objects.

>>> from castwise.compat.keras import mixed_precision
>>> mixed_precision.Policy("mixed_float16")
<DTypePolicy "mixed_float16">
"""

from castwise.compat.keras import config, dtype_policies, mixed_precision
from castwise.dtype_policies import DTypePolicy, FloatDTypePolicy

__all__ = ["DTypePolicy", "FloatDTypePolicy", "config", "dtype_policies", "mixed_precision"]
