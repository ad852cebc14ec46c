"""What libraries are given: every code of narrow formats, and values around changes of result."""

from __future__ import annotations

import castwise
import numpy as np
from oracle import FORMATS, Array
from sources import all_codes, sources_around
from support import array_of

NAMES = [name for name in castwise.formats() if castwise.finfo(name).dtype is not None]
PAIRS = [
    (source, target)
    for source in NAMES
    for target in NAMES
    if source != target and not (FORMATS[source].part and not FORMATS[target].part)
]
"""The pairs of different formats that `castwise.cast` casts."""


def library_source(source: str, target: str) -> Array:
    """Choose what is cast: every code of 16 bits or fewer, or those around halfway points."""
    left, right = FORMATS[source], FORMATS[target]
    if left.part:
        codes = sources_around(left, right)
        return array_of(np.stack([codes, codes[::-1]], axis=-1), left)
    return array_of(all_codes(left) if left.bits <= 16 else sources_around(left, right), left)
