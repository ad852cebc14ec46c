"""Check the names of layers and variables, or make them."""

from __future__ import annotations

import re
import threading
from collections import Counter

_lock = threading.Lock()
_counts: Counter[str] = Counter()


def check_name(name: object, wrong_type: type[Exception] = ValueError) -> str:
    """Return a name, once it is checked.

    ValueError if it is empty or would make a path ambiguous, `wrong_type` if it is not a str.
    """
    if not isinstance(name, str) or not name or "/" in name:
        raise (ValueError if isinstance(name, str) else wrong_type)(
            f"name={name!r} is not a name; give a str that is not empty and has no '/', which "
            "separates the names in a path."
        )
    return name


def automatic(kind: str) -> str:
    """Return the name of the next thing of a kind: ``dense``, ``dense_1``, ...

    Numbers are counted in the whole process, as Keras counts them in a thread.

    >>> automatic("AveragePooling"), automatic("AveragePooling")
    ('average_pooling', 'average_pooling_1')
    """
    stem = re.sub(r"\W+", "", kind)
    stem = re.sub("(.)([A-Z][a-z]+)", r"\1_\2", stem)
    stem = re.sub("([a-z])([A-Z])", r"\1_\2", stem).lower()
    with _lock:
        number = _counts[stem]
        _counts[stem] += 1
    return f"{stem}_{number}" if number else stem
