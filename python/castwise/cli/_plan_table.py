"""What `castwise cast --dry-run` prints: what would become of every tensor, and the room for it."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator

from castwise import checkpoint
from castwise.checkpoint import CastPlan, CastRow, CastSummary
from castwise.cli._output import json_text, shape_text, show, size_text, table, tensors_text

_HEADER = ("tensor", "file", "shape", "from", "to", "by", "before", "after")


def plan_lines(plan: CastPlan, *, as_json: bool) -> Iterator[str]:
    """Show a plan: a row per tensor, the sizes before and after, and what is free."""
    if as_json:
        yield json_text(plan.to_dict())
        return
    # A file has no column of files.
    columns = [column for column in range(len(_HEADER)) if column != 1 or _has_files(plan)]
    yield from table(
        [_HEADER[column] for column in columns],
        lambda: ([_cells(row)[column] for column in columns] for row in plan.rows),
        text_columns=len(columns) - 2,
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


def show_plan(options: argparse.Namespace, convert: Callable[[], CastSummary]) -> CastPlan:
    """Show what a dry run returns; refuse the file of a report."""
    if options.report is not None:
        raise checkpoint.CheckpointError(
            "--dry-run writes no file, so no --report; for JSON on standard output use --json"
        )
    plan = convert()
    assert isinstance(plan, CastPlan), "by dry_run"  # noqa: S101
    show(plan_lines(plan, as_json=options.json))
    return plan


def _has_files(plan: CastPlan) -> bool:
    return any(row.shard is not None for row in plan.rows)


def _cells(row: CastRow) -> tuple[str, ...]:
    return (
        row.name,
        row.shard or "",
        shape_text(row.shape),
        row.source,
        row.target or "",
        row.pattern or "",
        f"{row.nbytes_before:,}",
        f"{row.nbytes_after:,}",
    )
