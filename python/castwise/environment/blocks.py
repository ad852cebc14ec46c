"""`with` blocks in a context variable: they end wherever, and in whatever order, they are left.

The variable holds a chain of frames, the innermost first. A frame is a named tuple with the fields
`block` and `outer`, of which `block` is None for what is entered and left by other means.
"""

from contextvars import ContextVar, Token
from typing import Any, Protocol, Self


class Block:
    """The block of a frame, and the thread in which it began.

    An asynchronous generator that is left early is closed in another context than the one it ran
    in, and a block may be closed by another thread. Neither can change the context in which the
    block began, so the block itself is marked as ended.
    """

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
    """Put a frame with a block into its variable."""
    assert frame.block is not None, "by the caller"  # noqa: S101
    frame.block.token = variable.set(frame)


def open_frame(frame: AnyFrame | None) -> Any:  # noqa: ANN401  (the frame's own class)
    """Return a frame, or the innermost one around it whose block has not ended."""
    while frame is not None and frame.block is not None and frame.block.has_ended:
        frame = frame.outer
    return frame


def end(variable: ContextVar[Any], block: Block) -> None:
    """Take the frame of a block out of its variable; those inside stay.

    Where this is another context than that of the beginning, the block has ended in all.
    """
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
