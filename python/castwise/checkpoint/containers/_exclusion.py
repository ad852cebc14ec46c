"""How errors say that a file of a folder may be left out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from castwise.text.wording import argument

_has_argument: ContextVar[bool] = ContextVar("has_argument", default=True)


def exclusion() -> str:
    """Say how a file is left out: by the argument, if the function or command has it."""
    return argument("exclude") if _has_argument.get() else "move it elsewhere"


@contextmanager
def excluded_by(*, has_argument: bool) -> Iterator[None]:
    """Word the errors of a block for a function that has the argument, or has not."""
    token = _has_argument.set(has_argument)
    try:
        yield
    finally:
        _has_argument.reset(token)
