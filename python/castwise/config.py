"""The defaults of layers and calls: the dtype policy in force, and floatx.

As in Keras 3, floatx belongs to the process. The policy belongs to the thread: another thread
neither sees nor changes it, and starts with a policy made of floatx at its first read.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager, ContextDecorator
from typing import Any, TypeVar

from castwise._core import floatx_dtypes
from castwise.dtype_policies._configs import get, of_other_library, policy_named
from castwise.dtype_policies._keras_objects import is_float_dtype, is_int_dtype, standardize_dtype
from castwise.dtype_policies._policy import DTypePolicy, dtype_policy
from castwise.environment import defaults as global_state
from castwise.environment.defaults import floatx
from castwise.text.brief import short

_Function = TypeVar("_Function", bound=Callable[..., Any])

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


def __dir__() -> list[str]:
    return __all__


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
        policy = policy_named(policy)
    if not isinstance(policy, DTypePolicy):
        policy = of_other_library(policy) or policy
    if not isinstance(policy, DTypePolicy):
        raise ValueError(  # noqa: TRY004 - as Keras
            f"policy={policy!r} is not a policy; give a DTypePolicy or the name of one, "
            "such as 'mixed_float16'"
        )
    global_state.set_current_policy(policy)


class dtype_policy_scope(ContextDecorator):  # noqa: N801 - used as a function
    """Put a policy in force for a `with` block, in this thread or asyncio task only.

    Parameters
    ----------
    policy : policy, str, dict or dtype
        As for `castwise.dtype_policies.get`.

    Raises
    ------
    ValueError
        At the beginning of the block: there is no such policy.
    RuntimeError
        A second block begins with the same scope.
    TypeError
        It decorates a generator or coroutine, whose body would run after the block.

    Notes
    -----
    A block may be left in another task or thread than it began in, as that of an asynchronous
    generator that is not exhausted is: then the scope ends for all. As a decorator it makes a
    block of each call.

    Examples
    --------
    >>> with dtype_policy_scope("mixed_bfloat16") as policy:
    ...     policy.compute_dtype
    'bfloat16'

    """

    def __init__(self, policy: object) -> None:
        self._policy = policy
        self._block: AbstractContextManager[None] | None = None

    def __repr__(self) -> str:
        return f"dtype_policy_scope({short(self._policy)})"

    def __enter__(self) -> DTypePolicy:
        if self._block is not None:
            raise RuntimeError(
                f"{self!r} is for one with block, and is used a second "
                "time; make a new one for each block"
            )
        policy = get(self._policy)
        self._block = global_state.policy_scope(policy)
        self._block.__enter__()
        return policy

    def __exit__(self, *_: object) -> None:
        if self._block is not None:
            self._block.__exit__(None, None, None)

    def __call__(self, function: _Function) -> _Function:
        """Decorate a function, whose calls then are blocks of their own."""
        runs_later = (
            inspect.iscoroutinefunction(function)
            or inspect.isgeneratorfunction(function)
            or inspect.isasyncgenfunction(function)
        )
        if runs_later:
            raise TypeError(
                f"dtype_policy_scope cannot decorate {function.__name__}, whose body runs after "
                "the call; write a with block inside it"
            )
        return super().__call__(function)

    def _recreate_cm(self) -> dtype_policy_scope:
        return type(self)(self._policy)


def clear_dtype_policy() -> None:
    """Forget this thread's policy; the next read makes one of floatx.

    `keras.utils.clear_session` does the same, also for other threads.

    Examples
    --------
    >>> set_dtype_policy("mixed_float16")
    >>> clear_dtype_policy()
    >>> dtype_policy()
    <DTypePolicy "float32">

    """
    global_state.set_current_policy(None)


def set_floatx(value: str) -> None:
    """Set the dtype of floats, for the whole process.

    A thread's default policy is made of it when it is first read, and stays so, as in Keras, until
    `clear_dtype_policy`.

    Raises
    ------
    ValueError
        Not one of "bfloat16", "float16", "float32", "float64".
    TypeError
        The value cannot be hashed.

    Examples
    --------
    >>> set_floatx("bfloat16")
    >>> clear_dtype_policy()
    >>> dtype_policy()
    <DTypePolicy "bfloat16">
    >>> set_floatx("float32")
    >>> clear_dtype_policy()

    """
    hash(value)  # as Keras: a list is a wrong type, anything else a wrong value
    valid = floatx_dtypes("keras")
    if not isinstance(value, str) or value not in valid:
        raise ValueError(f"value={value!r} is not a floatx; use one of {', '.join(valid)}")
    global_state.set_floatx(str(value))
