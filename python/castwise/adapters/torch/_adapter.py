"""The adapter by which `castwise.cast` and `castwise.cast_tree` cast tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from castwise.adapters.torch._bridge import from_numpy, numpy_dtype, to_numpy
from castwise.adapters.torch._casting import cast, refuse_module
from castwise.arrays.adapter_registry import Adapter
from castwise.environment.frameworks import require

torch: Any = require("torch")

__all__ = ["ADAPTER", "TorchAdapter"]


class TorchAdapter(Adapter):
    """Cast torch's tensors: on the CPU by castwise's kernels, on other devices by torch."""

    def is_array(self, value: Any) -> bool:
        """Tell whether a value is a tensor."""
        return isinstance(value, torch.Tensor)

    def dtype_of(self, array: Any) -> Any:
        """Return the numpy dtype of a tensor; None for those that only torch has."""
        return numpy_dtype(array.dtype)

    def to_host(self, array: Any) -> NDArray[Any]:
        """Return the elements, detached; only those on other devices are copied."""
        return to_numpy(array.detach().cpu().resolve_conj().resolve_neg())

    def from_host(self, array: NDArray[Any], like: Any) -> Any:
        """Return the array as a tensor on the device of `like`."""
        return from_numpy(array, copy=None).to(like.device)

    def cast(self, array: Any, dtype: Any = None, **options: Any) -> Any:
        """Cast by `castwise.adapters.torch.cast`, which keeps the device and the graph."""
        return cast(array, dtype, **options)

    def children(self, node: Any) -> Sequence[tuple[Any, Any]] | None:
        """Return None, because torch has no containers but modules. TypeError for a module."""
        if isinstance(node, torch.nn.Module):
            refuse_module(node)
        return None


ADAPTER = TorchAdapter()
"""`castwise` names this object in the registry of adapters."""
