"""Changes that are taken back: of the whole process by several callers, of a context by blocks.

A `with` block of a context variable ends wherever, and in whatever order, it is left.
"""

import os
import threading
from collections.abc import Callable
from contextvars import ContextVar, Token
from typing import Any, ClassVar, Protocol, Self


# An asynchronous generator that is left early is closed in another context than the one it ran in,
# and a block may be closed by another thread. Neither can change the context in which the block
# began, so the block itself is marked as ended.
class Block:
    """The block of a frame, and the thread in which it began."""

    __slots__ = ("has_ended", "thread", "token")

    def __init__(self, thread: int) -> None:
        self.thread = thread
        self.has_ended = False
        self.token: Token[Any] | None = None


class AnyFrame(Protocol):
    """A frame of a chain, whatever else it holds."""

    @property
    def block(self) -> Block | None: ...
    @property
    def outer(self) -> Self | None: ...
    def _replace(self, *, outer: Self | None) -> Self: ...


def begin(variable: ContextVar[Any], frame: AnyFrame) -> None:
    assert frame.block is not None, "by the caller"  # noqa: S101
    frame.block.token = variable.set(frame)


def open_frame(frame: AnyFrame | None) -> Any:  # noqa: ANN401  (the frame's own class)
    """Return a frame, or the innermost one around it whose block has not ended."""
    while frame is not None and frame.block is not None and frame.block.has_ended:
        frame = frame.outer
    return frame


def end(variable: ContextVar[Any], block: Block) -> None:
    """Take the frame of a block out of its variable; those inside stay."""
    # Where this is another context than that of the beginning, the block has ended in all.
    if not end_here(variable, block):
        block.has_ended = True


def end_here(variable: ContextVar[Any], block: Block) -> bool:
    """Take the frame of a block out if it began in this context; return whether it did."""
    chain = variable.get()
    try:
        variable.reset(block.token)  # type: ignore[arg-type]  # it has begun
    except ValueError:  # its token is of another context
        return False
    variable.set(_without(chain, block))
    return True


def _without(chain: AnyFrame | None, block: Block) -> AnyFrame | None:
    inner, frame = [], chain
    while frame is not None and frame.block is not block:
        inner.append(frame)
        frame = frame.outer
    if frame is None:
        return chain
    rest = frame.outer
    for inner_frame in reversed(inner):
        rest = inner_frame._replace(outer=rest)
    return rest


class Switch:
    """A change, and the count of calls that ask for it."""

    def __init__(self, turn_on: Callable[[], Callable[[], object]]) -> None:
        self._turn_on = turn_on  # returns what undoes the change; if it raises, nothing was changed
        self._undo: Callable[[], object] | None = None
        self._calls = 0
        self._epoch = 0  # of calls that `turn_off` has not taken back yet
        self._renew_lock()
        if hasattr(os, "register_at_fork"):
            # A thread that held the lock does not exist in the child.
            os.register_at_fork(after_in_child=self._renew_lock)

    def _renew_lock(self) -> None:
        self._lock = threading.RLock()

    def begin(self, since: int | None) -> int:
        """Count a call, unless it was counted in this epoch; return the epoch."""
        with self._lock:
            if since != self._epoch:
                if self._undo is None:
                    self._undo = self._turn_on()
                self._calls += 1
            return self._epoch

    def end(self, since: int | None) -> None:
        """Take a call back, unless `turn_off` has done so."""
        with self._lock:
            if since == self._epoch:
                self._calls -= 1
                if self._calls == 0:
                    self._put_back()

    def turn_off(self) -> None:
        """Take all calls back."""
        with self._lock:
            self._epoch += 1
            self._calls = 0
            self._put_back()

    def _put_back(self) -> None:
        undo, self._undo = self._undo, None
        if undo is not None:
            undo()


class Turn:
    """A call that asks for the change; as a context manager, it is taken back after the block."""

    switch: ClassVar[Switch]

    def __init__(self) -> None:
        self._since: int | None = None
        self.__enter__()

    def __enter__(self) -> Self:
        self._since = self.switch.begin(self._since)
        return self

    def __exit__(self, *_: object) -> None:
        since, self._since = self._since, None
        self.switch.end(since)
