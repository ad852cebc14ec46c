"""The report of a conversion: how far it is, and what each tensor became and lost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from castwise._core import CastReport


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run is: bytes of the source, and the tensor that is next or being cast.

    The name is None at the end.
    """

    done: int
    total: int
    name: str | None


class ProgressMeter:
    """Adds up the bytes of the source and tells a listener."""

    def __init__(self, total: int, listener: Callable[[Progress], None] | None) -> None:
        self._total = total
        self._done = 0
        self._listener = listener

    def starts(self, name: str | None) -> None:
        """Say that the tensor `name` is next; None when there is no other."""
        self.reaches(0, name)

    def reaches(self, nbytes: int, name: str | None) -> None:
        """Say that `nbytes` of the tensor `name` have been taken."""
        if self._listener is not None:
            self._listener(Progress(self._done + nbytes, self._total, name))

    def finished(self, nbytes: int) -> None:
        """Count a tensor of `nbytes` as done."""
        self._done += nbytes


@dataclass(frozen=True, slots=True)
class CastRow:
    """One tensor of a checkpoint that was cast.

    Attributes
    ----------
    name
        Key of the tensor; `shard` is the file of a sharded folder that holds it, else None.
    shape
        Number of elements along each axis.
    source
        Its format before, as the source's container calls it if castwise knows no name.
    target
        Its format now, None if it was kept as it was.
    nbytes_before
        Its size in the source, in bytes, uncompressed.
    nbytes_after
        Its size in the result.
    report
        What the cast lost, None if it was kept.

    """

    name: str
    shape: tuple[int, ...]
    source: str
    target: str | None
    nbytes_before: int
    nbytes_after: int
    report: CastReport | None
    shard: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "name": self.name,
            "shard": self.shard,
            "shape": list(self.shape),
            "from": self.source,
            "to": self.target,
            "nbytes_before": self.nbytes_before,
            "nbytes_after": self.nbytes_after,
            "report": self.report.to_dict() if self.report else None,
        }


@dataclass(frozen=True, slots=True)
class CastSummary:
    """What `cast_file` did.

    Attributes
    ----------
    source
        The checkpoint that was read.
    destination
        The one that was written.
    options
        Rounding, overflow, nan and seed as they were used. A seed that nobody chose is
        here too, so that every run can be repeated.
    rows
        Every tensor, in the order in which it was written.
    total
        The sum of the reports, None if nothing was cast.
    unused_patterns
        Keys of the map that matched no tensor.

    """

    source: str
    destination: str
    options: dict[str, Any]
    rows: Sequence[CastRow]
    unused_patterns: Sequence[str] = field(default_factory=list)

    @property
    def total(self) -> CastReport | None:
        """The sum of the reports of all tensors that were cast."""
        reports = [row.report for row in self.rows if row.report is not None]
        if not reports:
            return None
        total = reports[0]
        for report in reports[1:]:
            total = total + report
        return total

    @property
    def out_of_range(self) -> int:
        """Values that became infinite or NaN, and integers that wrapped."""
        return sum(
            max(int(row.report.overflowed), int(row.report.nan_out - row.report.nan_in))
            for row in self.rows
            if row.report is not None
        )

    @property
    def nan_lost(self) -> int:
        """NaN that became numbers, where the format has none and `nan="zero"` did not ask for it.

        float4, float6, the integers and bool have no NaN.
        """
        if self.options.get("nan") == "zero":
            return 0
        return sum(
            max(int(row.report.nan_in - row.report.nan_out), 0)
            for row in self.rows
            if row.report is not None
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return summary_dict(self, [row.to_dict() for row in self.rows])


def summary_dict(summary: CastSummary, tensors: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a summary as plain values, with these in the place of its rows."""
    total = summary.total
    return {
        "source": summary.source,
        "destination": summary.destination,
        "options": dict(summary.options),
        "tensors": tensors,
        "total": total.to_dict() if total else None,
        "nbytes_before": sum(row.nbytes_before for row in summary.rows),
        "nbytes_after": sum(row.nbytes_after for row in summary.rows),
        "unused_patterns": list(summary.unused_patterns),
        "out_of_range": summary.out_of_range,
        "nan_lost": summary.nan_lost,
    }
