"""Keep torch's cache of cast weights to one dtype for each weight.

That cache is one for all threads, and finds a weight's cast by the weight alone: a second dtype
would get the cast in the first.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from castwise._frameworks import require

torch: Any = require("torch")

_dtypes: dict[int, Any] = {}
_uses: Counter[int] = Counter()
_lock = threading.RLock()


@contextmanager
def cached_weights(weights: Sequence[tuple[Any, Any]], devices: Sequence[str]) -> Iterator[bool]:
    """Tell whether torch may cache these casts for a block: no other dtype of a weight is cached.

    Parameters
    ----------
    weights
        Parameters, each with the dtype to which it is cast.
    devices
        The types of the devices for which torch's own autocast, where it is on, caches already.

    """
    around = {torch.get_autocast_dtype(each) for each in devices if torch.is_autocast_enabled(each)}
    dtypes = {id(parameter): dtype for parameter, dtype in weights}
    with _lock:
        is_free = all(
            dtypes[id(parameter)] == dtype == _dtypes.get(id(parameter), dtype)
            and around <= {dtype}
            for parameter, dtype in weights
        )
        if is_free:
            _dtypes.update(dtypes)
            _uses.update(dtypes.keys())
    try:
        yield is_free
    finally:
        with _lock:
            for key in dtypes if is_free else ():
                _uses[key] -= 1
                if not _uses[key]:
                    del _uses[key], _dtypes[key]
