"""Sizes in bytes, as users give them."""

from __future__ import annotations

import re

from castwise._wording import argument, given

_SIZE = re.compile(r"([0-9]{1,18}(?:\.[0-9]+)?) ?(?:([kKMGT])(i?)B|([kmgt])(i?)b|B)")
_POWERS = {"K": 1, "M": 2, "G": 3, "T": 4}


def size_in_bytes(name: str, size: object) -> int:
    """Return the size that an argument of this name says: an int, or text such as "5GB" or "2GiB".

    Raises
    ------
    ValueError, TypeError
        It is not the size of anything.

    """
    if isinstance(size, str):
        match = _SIZE.fullmatch(size.strip())
        if match is None:
            raise ValueError(f"{given(name, size)} is not a size in bytes such as '5GB' or '2GiB'")
        number, unit, binary = match[1], match[2] or match[4], match[3] or match[5]
        power = _POWERS[unit.upper()] if unit else 0
        size = int(float(number) * (1024 if binary else 1000) ** power)
    if isinstance(size, bool) or not isinstance(size, int):
        raise TypeError(f"{argument(name)} must be an int or a str, not {size!r}")
    if size <= 0:
        raise ValueError(f"{argument(name)} must be positive, not {size}")
    return size


def shard_bytes(size: object) -> int | None:
    """Return the size of a shard in bytes; None for shards of any size.

    Raises
    ------
    ValueError, TypeError
        As `size_in_bytes`.

    """
    return None if size is None else size_in_bytes("max_shard_size", size)
