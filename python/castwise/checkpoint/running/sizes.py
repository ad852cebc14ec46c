"""Sizes in bytes, as users give them."""

import re
from fractions import Fraction

from castwise._numbers import is_integer
from castwise.text.wording import argument, setting

_SIZE = re.compile(r"([0-9]{1,18}(?:\.[0-9]+)?) ?(?:([kKMGT])(i?)B|([kmgt])(i?)b|B)|([0-9]{1,18})")
_POWERS = {"K": 1, "M": 2, "G": 3, "T": 4}


def size_in_bytes(name: str, size: object) -> int:
    """Return the size that an argument of this name says: an int, or text such as "5GB" or "2GiB".

    Text that is a whole number counts bytes, as an int does.

    ValueError, TypeError: it is not the size of anything.
    """
    if isinstance(size, str):
        match = _SIZE.fullmatch(size.strip())
        if match is None:
            raise ValueError(
                setting(name, size) + " is not a size in bytes such as 33000000, '5GB' or '2GiB'"
            )
        number, unit, binary = match[1] or match[6], match[2] or match[4], match[3] or match[5]
        power = _POWERS[unit.upper()] if unit else 0
        size = int(Fraction(number) * (1024 if binary else 1000) ** power)
    if not is_integer(size):
        raise TypeError(argument(name) + f" must be an int or a str, not {size!r}")
    if size <= 0:
        raise ValueError(argument(name) + f" must be positive, not {size}")
    return int(size)


def shard_bytes(size: object) -> int | None:
    """Return the size of a shard in bytes; None for shards of any size.

    ValueError, TypeError: as `size_in_bytes`.
    """
    return None if size is None else size_in_bytes("max_shard_size", size)
