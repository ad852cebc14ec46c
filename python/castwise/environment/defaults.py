"""The defaults in force: floatx of the process, the dtype policy of each thread, and `CASTWISE_*`.

As in Keras, floatx belongs to the process and the policy to the thread. A scope belongs to the
thread or asyncio task that opened it, and hides the thread's policy while it is open.
"""

from __future__ import annotations

import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

from castwise._core import environment_errors
from castwise.environment.acceleration import accelerate_from_environment
from castwise.environment.switch import Block, begin, end, open_frame


class _Scoped(NamedTuple):
    """The state that each scope enters."""

    policy: Any
    # With the thread that entered it: some interpreters start threads in a copy of the context.
    block: Block

    outer: _Scoped | None


_process = {"floatx": "float32"}
_thread = threading.local()
_scope: ContextVar[_Scoped | None] = ContextVar("castwise_dtype_policy", default=None)
"""The open scope; None outside of scopes."""


def floatx() -> str:
    """Return the dtype of floats, which the whole process shares.

    Examples
    --------
    >>> castwise.config.floatx()
    'float32'

    """
    return _process["floatx"]


def set_floatx(name: str) -> None:
    """Set the dtype of floats; the caller has checked the name."""
    _process["floatx"] = name


def current_policy() -> Any:  # noqa: ANN401  (of any library)
    """Return the policy of the open scope or of this thread; None if none was set."""
    scope = _scope_here()
    return getattr(_thread, "policy", None) if scope is None else scope.policy


def default_policy(make: Callable[[str], Any]) -> Any:  # noqa: ANN401  (as it is made)
    """Return the thread's default policy: made of floatx once, and again after a policy was set."""
    policy = getattr(_thread, "default", None)
    if policy is None:
        policy = _thread.default = make(floatx())
    return policy


def set_current_policy(policy: object) -> None:
    """Put a policy in force: in the scope that is open here, else in this thread."""
    _thread.default = None
    scope = _scope_here()
    if scope is None:
        _thread.policy = policy
    else:
        _scope.set(scope._replace(policy=policy))


def in_scope() -> bool:
    return _scope_here() is not None


def _scope_here() -> _Scoped | None:
    scope: _Scoped | None = open_frame(_scope.get())
    return scope if scope is not None and scope.block.thread == threading.get_ident() else None


@contextmanager
def policy_scope(policy: object) -> Iterator[None]:
    """Put a policy in force until the end of a `with` block, however and wherever it ends."""
    block = Block(threading.get_ident())
    begin(_scope, _Scoped(policy, block, open_frame(_scope.get())))
    try:
        yield
    finally:
        end(_scope, block)


# A sentence for each variable whose value is not valid: its name, the value and the remedy.
ERRORS = list(environment_errors)


def follow_environment() -> None:
    """Obey the variables at import; warn of each value that is not valid, and ignore it."""
    # The command line refuses to work instead, with one message and no warning before it.
    try:
        accelerate_from_environment()
    except ValueError as error:
        ERRORS.append(str(error))
    if not _is_command_line():
        for sentence in ERRORS:
            warnings.warn(f"{sentence} It is ignored.", RuntimeWarning, stacklevel=3)


def _is_command_line() -> bool:
    """Return True if this process runs `castwise` or `python -m castwise`."""
    program = sys.argv[0] if getattr(sys, "argv", None) else ""
    name = os.path.splitext(os.path.basename(program))[0]
    return name == "castwise" or (program == "-m" and "castwise" in sys.orig_argv)
