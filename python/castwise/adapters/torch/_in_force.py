"""Which autocasts are in force: in the process, or where a checkpointed call runs again."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol
from weakref import WeakSet


class AutocastLike(Protocol):
    """What changes the calls of modules, and has an end.

    Attributes
    ----------
    number
        When it began; the last that is in force decides.
    is_begun
        Whether it has begun and has not ended.

    """

    number: int
    is_begun: bool

    def link(self) -> None:
        """Change the calls of the modules, unless they are changed; `unlink` as often."""

    def unlink(self) -> None:
        """Undo a `link`; after the last the modules compute as before."""

    def follow(self, module: Any, dtype: Any) -> bool:
        """Count a copy of a module among the modules, unless it has ended."""

    def run(self, call: Any, dtype: Any, args: Any, kwargs: Any) -> Any:
        """Run a call of a module with its inputs and variables cast to `dtype`."""


_PROCESS: WeakSet[AutocastLike] = WeakSet()
_thread = threading.local()
_numbers = itertools.count()
_lock = threading.RLock()


def is_in_force(autocast: AutocastLike) -> bool:
    """Tell whether an autocast is in force for the calls of this thread."""
    rerun: set[AutocastLike] | None = getattr(_thread, "rerun", None)
    return autocast.is_begun if rerun is None else autocast in rerun


def autocasts_in_force() -> tuple[AutocastLike, ...]:
    """Return all autocasts that are in force for the calls of this thread."""
    rerun: set[AutocastLike] | None = getattr(_thread, "rerun", None)
    with _lock:
        return tuple(_PROCESS if rerun is None else rerun)


def begin(autocast: AutocastLike) -> None:
    """Put an autocast in force, as the last; in all threads."""
    with _lock:
        autocast.number = next(_numbers)
        if not autocast.is_begun:
            autocast.is_begun = True
            _PROCESS.add(autocast)
            autocast.link()
    rerun: set[AutocastLike] | None = getattr(_thread, "rerun", None)
    if rerun is not None:
        rerun.add(autocast)


def end(autocast: AutocastLike) -> None:
    """Let an autocast be in force no longer."""
    rerun: set[AutocastLike] | None = getattr(_thread, "rerun", None)
    if rerun is not None:
        rerun.discard(autocast)
    with _lock:
        if autocast.is_begun:
            autocast.is_begun = False
            _PROCESS.discard(autocast)
            autocast.unlink()


@contextmanager
def in_force_again(autocasts: Iterable[AutocastLike]) -> Iterator[None]:
    """Put these autocasts, and no others, in force in this thread for a block.

    Those that begin within the block are in force in it as well.
    """
    linked = tuple(autocasts)
    previous = getattr(_thread, "rerun", None)
    with _lock:
        for autocast in linked:
            autocast.link()
    _thread.rerun = set(linked)
    try:
        yield
    finally:
        _thread.rerun = previous
        with _lock:
            for autocast in linked:
                autocast.unlink()
