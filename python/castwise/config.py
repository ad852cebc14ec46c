"""The defaults of layers and calls: the dtype policy in force, and floatx.

As in Keras 3, floatx belongs to the process. The policy belongs to the thread: another thread
neither sees nor changes it, and starts with a policy made of floatx at its first read.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from castwise import _global_state as global_state
from castwise._core import floatx_dtypes
from castwise._global_state import floatx
from castwise._standard_dtype import is_float_dtype, is_int_dtype, standardize_dtype
from castwise.dtype_policies._configs import get, named, of_other_library
from castwise.dtype_policies._policy import DTypePolicy, dtype_policy

__all__ = [
    "clear_dtype_policy",
    "dtype_policy",
    "dtype_policy_scope",
    "floatx",
    "is_float_dtype",
    "is_int_dtype",
    "set_dtype_policy",
    "set_floatx",
    "standardize_dtype",
]


def set_dtype_policy(policy: DTypePolicy | str) -> None:
    """Put a policy in force in this thread; inside a `dtype_policy_scope`, until it ends.

    Raises
    ------
    ValueError
        `policy` is neither a policy nor the name of one.

    Examples
    --------
    >>> set_dtype_policy("mixed_float16")
    >>> dtype_policy()
    <DTypePolicy "mixed_float16">
    >>> set_dtype_policy("float32")

    """
    if isinstance(policy, str):
        policy = named(policy)
    if not isinstance(policy, DTypePolicy):
        policy = of_other_library(policy) or policy
    if not isinstance(policy, DTypePolicy):
        raise ValueError(  # noqa: TRY004 - as Keras
            f"policy={policy!r} is not a policy; give a DTypePolicy or the name of one, "
            "such as 'mixed_float16'"
        )
    global_state.set_current_policy(policy)


@contextmanager
def dtype_policy_scope(policy: Any) -> Iterator[DTypePolicy]:
    """Put a policy in force for a `with` block, in this thread or asyncio task only.

    Parameters
    ----------
    policy : policy, str, dict or dtype
        As for `castwise.dtype_policies.get`.

    Examples
    --------
    >>> with dtype_policy_scope("mixed_bfloat16") as policy:
    ...     policy.compute_dtype
    'bfloat16'

    """
    policy = get(policy)
    with global_state.policy_scope(policy):
        yield policy


def clear_dtype_policy() -> None:
    """Forget this thread's policy; the next read makes one of floatx.

    `keras.utils.clear_session` does the same, also for other threads.
    """
    global_state.set_current_policy(None)


def set_floatx(value: str) -> None:
    """Set the dtype of floats, for the whole process.

    Raises
    ------
    ValueError
        Not one of "bfloat16", "float16", "float32", "float64".
    TypeError
        The value cannot be hashed.

    """
    hash(value)  # as Keras: a list is a wrong type, anything else a wrong value
    valid = floatx_dtypes("keras")
    if not isinstance(value, str) or value not in valid:
        raise ValueError(f"value={value!r} is not a floatx; use one of {', '.join(valid)}")
    global_state.set_floatx(str(value))
