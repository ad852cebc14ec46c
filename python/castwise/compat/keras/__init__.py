"""Keras 3's modules for policies, layers and loss scaling, with castwise's objects.

>>> from castwise.compat.keras import mixed_precision
>>> mixed_precision.Policy("mixed_float16")
<DTypePolicy "mixed_float16">
"""

from castwise.autocast import AutoCastVariable as Variable
from castwise.compat.keras import config, dtype_policies, layers, mixed_precision
from castwise.dtype_policies import DTypePolicy, FloatDTypePolicy

__all__ = [
    "DTypePolicy",
    "FloatDTypePolicy",
    "Variable",
    "config",
    "dtype_policies",
    "layers",
    "mixed_precision",
]


def __dir__() -> list[str]:
    return __all__
