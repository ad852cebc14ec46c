"""Existing `astype` code on our kernels."""

from __future__ import annotations

import os
import threading
from types import TracebackType
from typing import NamedTuple, Self

from castwise._core import accelerated_pairs, set_accelerated

ENVIRONMENT = "CASTWISE_ACCELERATE"


class _State:
    """How many calls of `accelerate` are in force, and which `restore` they came after."""

    calls = 0
    epoch = 0
    lock = threading.Lock()

    @classmethod
    def renew_lock(cls) -> None:
        """Forget who held the lock: after a fork, a thread that does not exist may."""
        cls.lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_State.renew_lock)


class CastPair(NamedTuple):
    """The names of two formats."""

    source: str
    target: str


class Acceleration:
    """One call of `accelerate`; as a context manager, it is undone at the end of the block."""

    def __init__(self) -> None:
        self._epoch: int | None = None
        self._begin()

    def _begin(self) -> None:
        with _State.lock:
            if self._epoch != _State.epoch:
                set_accelerated(True)
                _State.calls += 1
                self._epoch = _State.epoch

    @property
    def pairs(self) -> tuple[CastPair, ...]:
        """The casts that run on castwise's kernels."""
        return tuple(CastPair(*pair) for pair in accelerated_pairs()[0])

    @property
    def left_alone(self) -> tuple[CastPair, ...]:
        """The casts of ml_dtypes that are not replaced.

        Those that compilers turn into vectors already (between integers, from bfloat16 to wider
        types); complex to real; and any whose results a release of ml_dtypes has changed.
        """
        return tuple(CastPair(*pair) for pair in accelerated_pairs()[1])

    def __enter__(self) -> Self:
        self._begin()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with _State.lock:
            if self._epoch != _State.epoch:
                return  # restore() has undone it
            self._epoch = None
            _State.calls -= 1
            if _State.calls == 0:
                set_accelerated(False)

    def __repr__(self) -> str:
        pairs, left_alone = (len(each) for each in accelerated_pairs())
        return f"<castwise.accelerate(): {pairs} casts accelerated, {left_alone} left alone>"


def accelerate() -> Acceleration:
    """Run the casts between numpy's and ml_dtypes' dtypes on castwise's kernels.

    From here on ``x.astype(ml_dtypes.bfloat16)``, ``out[...] = x``, ``np.copyto``, ufuncs of mixed
    dtypes and whatever else lets numpy cast, in any thread, gives the same bits, warnings included,
    in less time. Casts that ml_dtypes does not take part in (float32 to float16) are numpy's own
    and stay as they are, and so do those listed by ``left_alone`` of the result.

    Calling it again changes nothing. `restore` undoes all calls; as a context manager, a call
    undoes itself. The environment variable ``CASTWISE_ACCELERATE=1`` makes ``import castwise``
    call it.

    Returns
    -------
    Acceleration
        A context manager; `pairs` and `left_alone` say which casts are meant.

    Examples
    --------
    >>> import ml_dtypes
    >>> with castwise.accelerate():
    ...     y = np.linspace(0, 1, 1000).astype(ml_dtypes.float8_e4m3fn)

    """
    return Acceleration()


def restore() -> None:
    """Put back every cast function that `accelerate` has replaced, however often it was called."""
    with _State.lock:
        _State.epoch += 1
        _State.calls = 0
        set_accelerated(False)


def accelerate_from_environment() -> None:
    """Do what the environment variable asks for."""
    value = os.environ.get(ENVIRONMENT, "").strip()
    if value not in ("", "0", "1"):
        raise ValueError(f"environment variable {ENVIRONMENT}={value!r} is not valid; use 1 or 0.")
    if value == "1":
        accelerate()
