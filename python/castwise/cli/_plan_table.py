"""What `castwise cast --dry-run` prints: what would become of every tensor, and the room for it."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence

from castwise import checkpoint
from castwise.checkpoint import CastPlan, CastRow, CastSummary
from castwise.cli._cast_output import GROUPS, group_names, grouped, report_lines
from castwise.cli._output import json_text, show, size_text, table, tensors_text

_HEADER = ("tensor", "file", "shape", "from", "to", "by", "tensors", "before", "after")


def plan_lines(plan: CastPlan, *, rows: str = GROUPS) -> Iterator[str]:
    """Show a plan: a row for all layers, a pair of formats, or each tensor; sizes; what is free."""
    groups = grouped(plan.rows, rows)
    if groups:
        left_out = set() if len(groups) < len(plan.rows) else {"tensors"}
        left_out |= set() if any(row.shard is not None for row in plan.rows) else {"file"}
        header = [name for name in _HEADER if name not in left_out]
        yield from table(
            header,
            lambda: (
                [cell for name, cell in _cells(group, rows).items() if name in header]
                for group in groups
            ),
            text_columns=sum(name not in {"tensors", "before", "after"} for name in header),
            spare=("file", "before", "shape", "from", "by"),
        )
    before = sum(row.nbytes_before for row in plan.rows)
    after = sum(row.nbytes_after for row in plan.rows)
    count = sum(row.target is not None for row in plan.rows)
    yield (
        f"{plan.source} -> {plan.destination}: {tensors_text(count)} would be cast, "
        f"{len(plan.rows) - count:,} kept, {size_text(before)} -> {size_text(after)}"
    )
    free = "unknown" if plan.free_bytes is None else size_text(plan.free_bytes)
    yield f"to be written: {size_text(plan.needed_bytes)}; free: {free}"
    if plan.left_out:
        yield f"left out: {', '.join(plan.left_out)}"


def show_plan(
    options: argparse.Namespace, convert: Callable[[], CastSummary], rows: str
) -> CastPlan:
    """Show what a dry run returns; refuse the file of a report."""
    if options.report is not None:
        raise checkpoint.CheckpointError(
            "--dry-run writes no file, so no --report; for JSON on standard output use --json"
        )
    plan = convert()
    assert isinstance(plan, CastPlan), "by dry_run"  # noqa: S101
    if options.json:
        show([json_text(plan.to_dict())])
    else:
        if options.measure:
            show(report_lines(plan, rows=rows, done="measured"))
        show(plan_lines(plan, rows=rows))
    return plan


def _cells(group: Sequence[CastRow], rows: str) -> dict[str, str]:
    """Return a row by column: a name, file or key if the group has one only, else how many."""
    name, shape, source, target = group_names(group, rows)
    files = {row.shard or "" for row in group}
    patterns = {row.pattern or "" for row in group}
    return dict(
        zip(
            _HEADER,
            (
                name,
                files.pop() if len(files) == 1 else f"{len(files):,} files",
                shape,
                source,
                target,
                patterns.pop() if len(patterns) == 1 else f"{len(patterns):,} keys",
                f"{len(group):,}",
                f"{sum(row.nbytes_before for row in group):,}",
                f"{sum(row.nbytes_after for row in group):,}",
            ),
            strict=True,
        )
    )
