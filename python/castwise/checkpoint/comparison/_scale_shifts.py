"""By how many codes the block scales of one weight are above those of another."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from castwise.checkpoint.comparison._scheme_recipes import is_power


def scale_shifts(original: NDArray[Any], copy: NDArray[Any]) -> dict[int, int] | None:
    """Count by how many codes the scales of B are above those of A; None if they are not E8M0."""
    for scales in (original, copy):
        if scales.dtype != np.uint8 and not is_power(scales.dtype.name):
            return None
    if original.shape != copy.shape:
        return None
    first_codes, second_codes = (
        scales.view(np.uint8).astype(np.int16) for scales in (original, copy)
    )
    values, counts = np.unique(second_codes - first_codes, return_counts=True)
    return {int(value): int(count) for value, count in zip(values, counts, strict=True)}


def shifts_text(shifts: Mapping[int, int]) -> str:
    """Say by how many codes block scales differ."""
    total = sum(shifts.values())
    parts = []
    for shift, count in sorted(shifts.items(), key=lambda item: -item[1]):
        if shift:
            codes = "one code" if abs(shift) == 1 else f"{abs(shift)} codes"
            share = (
                "every block scale" if count == total else f"{count:,} of {total:,} block scales"
            )
            parts.append(f"{share} {codes} {'higher' if shift > 0 else 'lower'}")
    return ", ".join(parts)
