"""Check the argument of `apply_policy_map`, for both adapters of Keras."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from castwise.dtype_policies import DTypePolicy, DTypePolicyMap, Explanation, get


def as_policy_map(policy_map: Any, example: Any) -> DTypePolicyMap:
    """Return a map, given as a map or as the config of one.

    TypeError: It is neither a map nor a config. ValueError: No map can be made from the config.
    """
    if isinstance(policy_map, dict) and "class_name" in policy_map:
        try:
            policy_map = get(policy_map)
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(
                f"policy_map={example!r} is not the config of a map ({error!r}); "
                "castwise.dtype_policies.serialize(policy_map) makes one"
            ) from error
    if isinstance(policy_map, DTypePolicyMap):
        return policy_map
    remedy = (
        "cast_model(model, policy) is for one policy of all layers"
        if isinstance(policy_map, DTypePolicy | str)
        else "give DTypePolicyMap(default_policy, {path or pattern: policy, ...})"
    )
    raise TypeError(f"policy_map={example!r} is not a map of policies; {remedy}")


def refuse_unused(explanation: Explanation, reasons: Iterable[str] = ()) -> None:
    """Raise ValueError if a map has keys and uses none of them; say why, if that is known."""
    if not explanation.unused or len(explanation.unused) < len(explanation.keys):
        return
    key, nearest = next(iter(explanation.unused.items()))
    why = "; ".join(reasons) or f"the path nearest to {key!r} is {nearest!r}"
    raise ValueError(
        f"policy_map: no layer of the model matches any of its keys, and nothing was changed: {why}"
    )
