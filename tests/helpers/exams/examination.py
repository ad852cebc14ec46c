"""Count what another library was asked, and see that each difference stands in exams.md.

Every exam gives a mask of results that differ, and a mask for each reason of which
`tests/exams/exams.md` has a row: the two must be the same. The summary of a run adds up the cases.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import oracle
from oracle import Array, Format

PAGE = (Path(__file__).parents[2] / "exams" / "exams.md").read_text("utf-8")
Record = Callable[[str, object], None]
"""pytest's fixture `record_property`."""


def differing(codes: Array, others: Array, row: Format) -> Array:
    """Tell which codes differ; any NaN is as good as another."""
    return (codes != others) & ~(oracle.decode(codes, row).nan & oracle.decode(others, row).nan)


def differing_values(values: Array, others: Array) -> Array:
    """Tell which float64 values differ, zeros by their signs too."""
    bits = (values.view(np.uint64), others.view(np.uint64))
    return (bits[0] != bits[1]) & ~(np.isnan(values) & np.isnan(others))


def examine(
    record: Record, x: Array, different: Array, explained: Mapping[str, Array] | None = None
) -> None:
    """Check that results differ where there is a reason, and nowhere else; count them.

    Parameters
    ----------
    record
        The fixture `record_property`.
    x, different
        What was cast, and whether the results differ.
    explained
        For each reason, named as in exams.md, where it makes results differ.

    """
    expected = np.zeros(different.shape, bool)
    for reason, mask in (explained or {}).items():
        assert f"| {reason} |" in PAGE, f"exams.md has no row {reason!r}"
        expected |= mask
    wrong = np.flatnonzero(different != expected)
    numbers = x.reshape(different.size, -1)[wrong[:5]]
    assert not wrong.size, f"{wrong.size} of {different.size}: {numbers!r}"
    record("cases", different.size)
    record("differences", int(different.sum()))
