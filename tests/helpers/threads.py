"""Work of several threads that start at the same moment."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

THREADS = 8
LIMIT = 60.0  # seconds; a file of tests takes a tenth of that


@contextmanager
def short_turns() -> Iterator[None]:
    """Let threads take turns often, so that one is stopped in the middle of everything."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def together(work: Callable[[int], Any], threads: int = THREADS) -> list[Any]:
    """Run work(0), work(1), ... in threads that start at the same moment; give what they return.

    A deadlock is an error like any other: they are waited for with a limit.
    """
    barrier = threading.Barrier(threads)
    results: list[Any] = [None] * threads
    errors: list[BaseException] = []

    def run(number: int) -> None:
        barrier.wait()
        try:
            results[number] = work(number)
        except BaseException as error:
            errors.append(error)

    running = [threading.Thread(target=run, args=(n,), daemon=True) for n in range(threads)]
    with short_turns():
        for thread in running:
            thread.start()
        for thread in running:
            thread.join(LIMIT)
    assert not any(thread.is_alive() for thread in running), "a thread hangs"
    if errors:
        raise errors[0]
    return results
