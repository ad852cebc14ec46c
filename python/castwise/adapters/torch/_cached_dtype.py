"""Keep torch's cache of cast tensors to one dtype.

That cache is one for all threads, and finds a cast by its source alone: a second dtype would get
the casts to the first.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

_dtypes: list[Any] = []
"""The dtype of each block that caches."""

_lock = threading.RLock()


@contextmanager
def cached_dtypes(dtypes: Collection[Any]) -> Iterator[bool]:
    """Tell whether torch may cache in a block that casts to these: no other dtype is cached."""
    with _lock:
        is_free = len({*dtypes, *_dtypes}) <= 1
        if is_free:
            _dtypes.extend(dtypes)
    try:
        yield is_free
    finally:
        with _lock:
            for dtype in dtypes if is_free else ():
                _dtypes.remove(dtype)
