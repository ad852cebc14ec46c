"""`typing.assert_type` at run time."""

from __future__ import annotations

from typing import Any, get_args, get_origin


def assert_type(value: Any, kind: Any) -> None:
    """Check the class of a value, and of what dicts, lists and tuples hold."""
    origin, inner = get_origin(kind) or kind, get_args(kind)
    # From numpy 2.5 on NDArray is an alias with a name.
    alias = getattr(origin, "__value__", origin)
    origin = get_origin(alias) or alias
    assert isinstance(value, origin), (value, kind)
    if origin is tuple and inner[-1] is not ...:
        for item, each in zip(value, inner, strict=True):
            assert_type(item, each)
    elif origin in (dict, list, tuple):
        held = value.values() if origin is dict else value
        for item in held:
            assert_type(item, inner[1] if origin is dict else inner[0])
