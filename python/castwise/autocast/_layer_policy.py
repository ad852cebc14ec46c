"""Read a layer's policy."""

from __future__ import annotations

from typing import Any


def get_layer_policy(layer: object) -> Any:
    """Return the policy of a layer of any framework.

    Raises
    ------
    ValueError
        `layer` has no policy.

    Examples
    --------
    >>> from castwise import autocast
    >>> class Layer:
    ...     dtype_policy = castwise.DTypePolicy("mixed_float16")
    >>> autocast.get_layer_policy(Layer()).compute_dtype
    'float16'

    """
    policy = getattr(layer, "dtype_policy", None)
    if not hasattr(policy, "compute_dtype"):
        raise ValueError(f"layer={layer!r} has no `dtype_policy`; give a layer that has one")
    return policy
