"""Where adapters come from: entry points of packages, or `register` for one process."""

from castwise._adapter_registry import GROUP, array_adapter, find, register

__all__ = ["GROUP", "array_adapter", "find", "register"]
