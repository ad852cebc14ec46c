"""Seeds for many arrays from one."""

from __future__ import annotations

import hashlib


def tensor_seed(seed: int, name: str) -> int:
    """The seed for one array of many, from the seed for all and the array's name or path.

    A draw depends on the seed and the position of the element. With one seed for all, elements at
    the same position in different arrays would always be rounded by the same draw.
    """
    digest = hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8)
    digest.update(seed.to_bytes(8, "little"))
    return int.from_bytes(digest.digest(), "little")
