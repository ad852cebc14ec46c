"""A change of the whole process that several callers can ask for, and take back."""

import os
import threading
from collections.abc import Callable
from typing import ClassVar, Self


class Switch:
    """A change, and the count of calls that ask for it.

    `turn_on`: Makes the change, and returns a function that undoes it. If it raises, nothing was
    changed.
    """

    def __init__(self, turn_on: Callable[[], Callable[[], object]]) -> None:
        self._turn_on = turn_on
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
