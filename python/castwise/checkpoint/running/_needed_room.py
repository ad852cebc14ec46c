"""The bytes that files take, as far as headers tell."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from math import prod

from castwise.checkpoint._tensors import Planned, format_info
from castwise.checkpoint.running._output_files import OutputFile

_BYTE_BITS = 8


def least_nbytes(tensors: Iterable[Planned]) -> int:
    """Return the bytes that tensors take at least."""
    return sum(_least_nbytes(tensor) for tensor in tensors)


def meanwhile_nbytes(targets: Sequence[OutputFile], following: int = 0) -> int:
    """Return how many bytes more files take as they are written, one by one, than in the end.

    They are those of temporary files, for tensors that are brought into another order;
    `following` is how many bytes are written after the files.
    """
    most = 0
    if any(target.has_other_orders for target in targets):
        sizes = [size for target in targets for size in target.sizes()]
        for nbytes, temporary in reversed(sizes):
            most = max(most, temporary - following)
            following += nbytes
    return most


def _least_nbytes(plan: Planned) -> int:
    if plan.target is None:
        return plan.info.nbytes
    return prod(plan.info.shape) * _least_bits(plan.target) // _BYTE_BITS


@lru_cache
def _least_bits(name: str) -> int:
    """Return the bits of an element in the container that packs it most densely."""
    info = format_info(name)
    return _BYTE_BITS if info.kind == "bool" else int(info.bits)
