"""Register adapters for one process; packages offer theirs as entry points."""

from castwise.arrays.adapter_registry import GROUP, array_adapter, find, register

__all__ = ["GROUP", "array_adapter", "find", "register"]
