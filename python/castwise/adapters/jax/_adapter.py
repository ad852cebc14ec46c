"""The adapter by which `castwise.cast` and `castwise.cast_tree` cast jax's arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from castwise.adapters.jax._casting import cast, from_host, to_host
from castwise.arrays.adapter_registry import Adapter
from castwise.environment.frameworks import require

jax: Any = require("jax")

__all__ = ["ADAPTER", "JaxAdapter"]


class JaxAdapter(Adapter):
    """Cast arrays of jax, also traced ones."""

    def is_array(self, value: Any) -> bool:
        """Tell whether a value is an array, or is traced as one."""
        return isinstance(value, jax.Array)

    def dtype_of(self, array: Any) -> Any:
        """Return the numpy dtype; None for jax's random keys."""
        return array.dtype if isinstance(array.dtype, np.dtype) else None

    def to_host(self, array: Any) -> NDArray[Any]:
        """Return the elements as a numpy array that is read-only."""
        return to_host(array)

    def from_host(self, array: NDArray[Any], like: Any) -> Any:
        """Return the array on the devices of `like`."""
        return from_host(array, like)

    def cast(self, array: Any, dtype: Any = None, **options: Any) -> Any:
        """Cast by `castwise.adapters.jax.cast`, on the host or by XLA."""
        return cast(array, dtype, **options)


ADAPTER = JaxAdapter()
"""`castwise` names this object in the registry of adapters."""
