"""What a cast would do, from headers alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from castwise.checkpoint.results.sheets import GROUPS, plan_sheet
from castwise.checkpoint.results.summary import CastSummary, importance_lines, kept_lines
from castwise.rendering.sheet import Sheet


@dataclass(frozen=True, slots=True, kw_only=True)
class CastPlan(CastSummary):
    """The result of a dry run: the rows of a conversion, without reports.

    Attributes
    ----------
    needed_bytes
        The least number of bytes of the result: its tensors and copied files, without those that an
        interrupted run has kept if this run would resume it.
    free_bytes
        Free bytes in the file system of the destination; None if it does not report them.
    left_out
        Files and folders of the source that would be copied only with `include`.

    """

    _VERB: ClassVar[str] = "to be "

    needed_bytes: int
    free_bytes: int | None
    left_out: Sequence[str]

    __repr__ = CastSummary.__repr__

    def __sheet__(self) -> Sheet:
        """Return a table of what would become of the tensors, and the room for it."""
        return preview_sheet(self)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            **CastSummary.to_dict(self),
            "dry_run": True,
            "needed_bytes": self.needed_bytes,
            "free_bytes": self.free_bytes,
            "left_out": list(self.left_out),
        }


def preview_sheet(plan: CastPlan, detail: str = GROUPS) -> Sheet:
    """Return the tables of a plan; see `plan_sheet`."""
    sheet = plan_sheet(
        plan.rows,
        (str(plan.source), str(plan.destination)),
        detail=detail,
        action=plan.action,
        room=(plan.needed_bytes, plan.free_bytes),
        left_out=plan.left_out,
    )
    return [*sheet, *kept_lines(plan.kept), *importance_lines(plan.importance)]
