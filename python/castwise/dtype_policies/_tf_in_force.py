"""TF 2's policy in force in the process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from castwise.dtype_policies._tf_policy import Policy
from castwise.environment.defaults import floatx
from castwise.text.argument_names import rename_arguments

_in_force: dict[str, Policy | None] = {"policy": None}


def global_policy() -> Policy:
    """Return the policy in force; if none was set, a new one of `castwise.config.floatx`.

    >>> global_policy()
    <Policy "float32">
    """
    return _in_force["policy"] or Policy(floatx())


def set_global_policy(policy: Policy | str | None) -> None:
    """Put a policy in force in the whole process; None returns to floatx.

    Raises
    ------
    ValueError
        There is no such policy, or it computes in another dtype than a float.
    TypeError
        `policy` is neither a policy, a str nor None.

    """
    if policy is not None and not isinstance(policy, Policy):
        with rename_arguments(name="policy"):
            policy = Policy(policy)
    compute = None if policy is None else policy.compute_dtype
    if policy is not None and compute is not None and not compute.startswith(("float", "bfloat")):
        raise ValueError(
            f"policy={policy.name!r} computes in {compute}; only floating-point policies can be in "
            "force for all layers, such as 'mixed_float16'"
        )
    _in_force["policy"] = policy


@contextmanager
def policy_scope(policy: Policy | str | None) -> Iterator[None]:
    """Put a policy in force, in the whole process, until the end of a `with` block.

    >>> with policy_scope("mixed_float16"):
    ...     global_policy()
    <Policy "mixed_float16">
    """
    previous = _in_force["policy"]
    set_global_policy(policy)
    try:
        yield
    finally:
        _in_force["policy"] = previous
