"""Convert policies from castwise to TF 2 and back."""

from __future__ import annotations

from typing import Any

from castwise.compat.tf_keras.mixed_precision import Policy
from castwise.dtype_policies import DTypePolicy, DTypePolicyMap, get
from castwise.environment.frameworks import require


def to_tf_keras(policy: Any) -> Any:
    """Return the policy of tf_keras that means the same.

    Parameters
    ----------
    policy : Policy of `castwise.compat.tf_keras`, DTypePolicy, or the name or config of one
        A policy of tf_keras is returned as it is.

    Returns
    -------
    tf_keras.mixed_precision.Policy

    Raises
    ------
    ValueError
        TF 2 has no such policy: it quantizes, is a map, or carries a loss scale (in TF 2 since
        2.4, the optimizer does); or TensorFlow reads its name differently.
    ImportError
        tf_keras is not installed.

    Examples
    --------
    >>> from castwise.adapters.tf_keras import to_tf_keras
    >>> to_tf_keras("mixed_float16")
    <Policy "mixed_float16">

    """
    original = require("tf_keras").mixed_precision.Policy
    if isinstance(policy, original):
        return policy
    if not isinstance(policy, Policy):
        policy = get(policy)
    _refuse(policy)
    try:
        policy_of_other = original(policy.name)
    except ValueError as error:
        raise ValueError(f"policy={policy.name!r}: TF 2 has no such policy: {error}") from error
    _check_dtypes(policy, policy_of_other)
    return policy_of_other


def from_tf_keras(policy: Any) -> Policy:
    """Return the policy of castwise that means the same as one of tf_keras.

    Parameters
    ----------
    policy : tf_keras.mixed_precision.Policy, or a Policy of `castwise.compat.tf_keras`
        One of castwise is returned as it is.

    Returns
    -------
    castwise.compat.tf_keras.mixed_precision.Policy

    Raises
    ------
    TypeError
        `policy` is neither.
    ValueError
        The class of `policy` has other dtypes than its name says.
    ImportError
        tf_keras is not installed.

    Examples
    --------
    >>> import tf_keras
    >>> from castwise.adapters.tf_keras import from_tf_keras
    >>> from_tf_keras(tf_keras.mixed_precision.Policy("mixed_float16")).compute_dtype
    'float16'

    """
    if isinstance(policy, Policy):
        return policy
    if not isinstance(policy, require("tf_keras").mixed_precision.Policy):
        raise TypeError(
            f"policy={policy!r} is not a policy of tf_keras; give a tf_keras.mixed_precision.Policy"
        )
    policy_of_other = Policy(policy.name)
    _check_dtypes(policy, policy_of_other)
    return policy_of_other


def _refuse(policy: Any) -> None:
    """Refuse maps, policies that quantize, and those with a loss scale of TF before 2.4."""
    if isinstance(policy, DTypePolicyMap):
        raise ValueError(  # noqa: TRY004 - a policy, but of more than one
            f"policy={policy!r} is a map, which layers of TF 2 do not take; use apply_policy_map"
        )
    if isinstance(policy, DTypePolicy) and policy.quantization_mode is not None:
        raise ValueError(
            f"policy={policy.name!r} quantizes, which layers of TF 2 cannot do; "
            "give the plain policy in it"
        )
    if getattr(policy, "loss_scale", None) is not None:
        raise ValueError(
            f"policy={policy!r} carries a loss scale, which policies do not have since TF 2.4; "
            f"give Policy({policy.name!r}), and wrap the optimizer in a LossScaleOptimizer"
        )


def _check_dtypes(source: Any, policy_of_other: Any) -> None:
    """Refuse a policy whose name means other dtypes in the other library."""
    for role in ("compute_dtype", "variable_dtype"):
        if getattr(source, role) != getattr(policy_of_other, role):
            raise ValueError(
                f"policy={source!r} has the {role} {getattr(source, role)}, and its name means "
                f"{getattr(policy_of_other, role)} on the other side; name the dtype"
            )
