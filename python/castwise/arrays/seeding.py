"""Derive the seeds of many arrays from one."""

from __future__ import annotations


def tensor_seed(seed: int, name: str) -> int:
    """Return the seed of one array, from the common seed and the array's name or path.

    A random number depends on the seed and the position of the element. With one seed for all
    arrays, elements at the same position would always be rounded by the same random number.

    Examples
    --------
    >>> castwise.checkpoint.tensor_seed(7, "fc.weight")
    15331570836398896801

    """
    import hashlib  # noqa: PLC0415  (OpenSSL takes milliseconds, for `seed=` alone)

    digest = hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8)
    digest.update(seed.to_bytes(8, "little"))
    return int.from_bytes(digest.digest(), "little")
