"""The argument of `apply_policy_map`, in every adapter of Keras."""

from __future__ import annotations

from typing import Any

from castwise.dtype_policies import DTypePolicy, DTypePolicyMap, get


def as_policy_map(policy_map: Any, shown: Any) -> DTypePolicyMap:
    """A map, or the config of one, as a map.

    Parameters
    ----------
    policy_map : any object
        The argument, or what an adapter has made of it.
    shown : any object
        The argument as it was given, for the messages.

    Raises
    ------
    TypeError
        It is neither.
    ValueError
        It is a config that no policy can be made of.

    """
    if isinstance(policy_map, dict) and "class_name" in policy_map:
        try:
            policy_map = get(policy_map)
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(
                f"policy_map={shown!r} is not the config of a map ({error!r}); "
                "castwise.dtype_policies.serialize(policy_map) makes one"
            ) from error
    if isinstance(policy_map, DTypePolicyMap):
        return policy_map
    remedy = (
        "cast_model(model, policy) is for one policy of all layers"
        if isinstance(policy_map, DTypePolicy | str)
        else "give DTypePolicyMap(default_policy, {path or pattern: policy, ...})"
    )
    raise TypeError(f"policy_map={shown!r} is no map of policies; {remedy}")
