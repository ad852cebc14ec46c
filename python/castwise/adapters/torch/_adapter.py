"""What `castwise.cast` and `castwise.cast_tree` do with tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from castwise._adapter_registry import Adapter
from castwise._frameworks import require
from castwise.adapters.torch._bridge import from_numpy, numpy_dtype, to_numpy
from castwise.adapters.torch._casting import cast, refuse_module

torch: Any = require("torch")

__all__ = ["ADAPTER", "TorchAdapter"]


class TorchAdapter(Adapter):
    """torch's tensors; CPU tensors are cast in their own memory, others by torch."""

    def is_array(self, value: Any) -> bool:
        """Whether a tensor."""
        return isinstance(value, torch.Tensor)

    def dtype_of(self, array: Any) -> Any:
        """The numpy dtype of a tensor; None for those that only torch has."""
        return numpy_dtype(array.dtype)

    def to_host(self, array: Any) -> NDArray[Any]:
        """The elements, detached; copied from other devices only."""
        return to_numpy(array.detach().cpu().resolve_conj().resolve_neg())

    def from_host(self, array: NDArray[Any], like: Any) -> Any:
        """The array as a tensor on the device of another."""
        return from_numpy(array, copy=None).to(like.device)

    def cast(self, array: Any, dtype: Any = None, **options: Any) -> Any:
        """As `castwise.adapters.torch.cast`."""
        return cast(array, dtype, **options)

    def children(self, node: Any) -> Sequence[tuple[Any, Any]] | None:
        """None: tensors are in dicts, lists and tuples. TypeError for a module."""
        if isinstance(node, torch.nn.Module):
            refuse_module(node)
        return None


ADAPTER = TorchAdapter()
"""What `castwise.adapters.registry` names."""
