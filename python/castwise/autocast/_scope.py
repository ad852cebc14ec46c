"""Scopes: the dtype that variables are seen in, and the layer that is being called.

Both are stored in a context variable: each thread and each asyncio task has its own value, and the
end of a scope, also by an exception, restores the value before it.
"""

from __future__ import annotations

from contextvars import ContextVar
from functools import cache
from threading import get_ident
from typing import Any, NamedTuple

import numpy as np

from castwise._core import finfo
from castwise.dtype_policies._keras_objects import standardize_dtype
from castwise.environment.switch import Block, begin, end_here, open_frame

FLOATS = ("float", "bfloat")  # the beginnings of floating dtypes' names


class Frame(NamedTuple):
    """The state that each scope and each call of a layer enters."""

    # The thread that entered it: some interpreters start threads in a copy of the context.
    thread: int

    scope: AutocastScope | None
    path: str  # the path of the layer whose call or build this is; "" outside of layers

    in_call: bool
    outer: Frame | None
    # That of a scope; None for a call. A generator may leave its scope after others began.
    block: Block | None = None


_OUTSIDE = Frame(0, None, "", False, None)
_frame: ContextVar[Frame] = ContextVar("castwise_autocast", default=_OUTSIDE)


def current() -> Frame:
    """Return the frame of this thread or task, or the one outside of all scopes."""
    frame: Frame = open_frame(_frame.get())
    return frame if frame.thread == get_ident() else _OUTSIDE


def enter(scope: AutocastScope | None, path: str, in_call: bool) -> Frame:
    """Enter a frame; return a token for `leave`."""
    frame: Frame = open_frame(_frame.get())
    _frame.set(Frame(get_ident(), scope, path, in_call, frame))
    return frame


def leave(frame: Frame) -> None:
    """Restore the frame before an `enter`, whatever has been entered since."""
    _frame.set(frame)


class AutocastScope:
    """A `with` block in which floating variables are seen in another dtype.

    Parameters
    ----------
    dtype : dtype or None
        A floating dtype, as for `castwise.config.standardize_dtype`. None: that in which they are
        stored, whatever scope is around this one.

    Raises
    ------
    ValueError
        There is no such dtype, or it is not a float.
    TypeError
        The argument cannot be hashed.

    Notes
    -----
    Scopes nest, and the innermost is used. They belong to the thread or asyncio task that entered
    them, and no other thread can leave them. Calls of layers enter their own scopes; this class is
    for other code that computes with a layer's variables. One scope may be entered many times, by
    many threads.

    Examples
    --------
    >>> from castwise.autocast import AutoCastVariable
    >>> kernel = AutoCastVariable(np.ones(2, np.float32))
    >>> with AutocastScope("float16"):
    ...     (kernel * 2).dtype, kernel.dtype
    (dtype('float16'), 'float16')
    >>> (kernel * 2).dtype
    dtype('float32')

    """

    __slots__ = ("_blocks", "_dtype", "_numpy_dtype")

    def __init__(self, dtype: object) -> None:
        self._blocks: list[Block] = []
        self._dtype: str | None = None
        self._numpy_dtype: np.dtype[Any] | None = None
        if dtype is not None:
            self._dtype = standardize_dtype(dtype)
            if not self._dtype.startswith(FLOATS):
                raise ValueError(
                    f"dtype={dtype!r} is not a floating dtype; variables can be cast to float16, "
                    "bfloat16 and the like, or to none with dtype=None."
                )
            self._numpy_dtype = numpy_dtype(self._dtype)

    @property
    def dtype(self) -> str | None:
        """The dtype that variables are cast to, or None."""
        return self._dtype

    @property
    def numpy_dtype(self) -> np.dtype[Any] | None:
        """The same dtype as numpy's."""
        return self._numpy_dtype

    def __enter__(self) -> AutocastScope:
        frame_here, block = current(), Block(get_ident())
        outer = open_frame(_frame.get())
        begin(_frame, Frame(block.thread, self, frame_here.path, frame_here.in_call, outer, block))
        self._blocks.append(block)
        return self

    def __exit__(self, *_: object) -> None:
        mine = [block for block in self._blocks if block.thread == get_ident()]
        innermost = self._innermost_of(mine)
        # Else an asynchronous generator is closed in another context than that of its block.
        candidates = mine[::-1] if innermost is None else [innermost]
        block = next((block for block in candidates if end_here(_frame, block)), None)
        if block is None and candidates:
            block = candidates[0]
            block.has_ended = True
        if block is not None:
            self._blocks.remove(block)

    def _innermost_of(self, blocks: list[Block]) -> Block | None:
        """Return the innermost of its blocks that is open here."""
        frame: Frame | None = current()
        while frame is not None and frame.block not in blocks:
            frame = frame.outer
        return None if frame is None else frame.block

    def __repr__(self) -> str:
        return f"<AutocastScope {self._dtype!r}>"


DISABLED = AutocastScope(None)  # the scope in which variables are not cast


@cache
def scope_of(dtype: str) -> AutocastScope:
    """Return the scope of a floating dtype, by its name; DISABLED for another."""
    if not dtype.startswith(FLOATS):
        return DISABLED
    scope = AutocastScope(None)
    scope._dtype, scope._numpy_dtype = dtype, numpy_dtype(dtype)  # TF has more floats than Keras
    return scope


def get_autocast_scope() -> AutocastScope | None:
    """Return the innermost scope, or None.

    >>> with AutocastScope("bfloat16"):
    ...     get_autocast_scope().dtype
    'bfloat16'
    """
    return current().scope


def enable_auto_cast_variables(dtype: Any) -> AutocastScope:
    """Make TF 2's scope: an `AutocastScope`, but dtypes other than floats disable casting.

    Raises
    ------
    ValueError, TypeError
        There is no such dtype.

    Examples
    --------
    >>> with enable_auto_cast_variables("int32"):
    ...     get_autocast_scope().dtype is None
    True

    """
    if dtype is None:
        return DISABLED
    try:
        name = finfo(dtype).name
    except TypeError:
        name = standardize_dtype(dtype)
    return scope_of(name)


@cache
def numpy_dtype(name: str) -> np.dtype[Any]:
    try:
        dtype = finfo(name).dtype
    except (TypeError, ValueError):
        dtype = None
    if dtype is None:
        raise ValueError(
            f"dtype={name!r} is not one that arrays can have here; use a dtype of numbers or bools."
        )
    return dtype
