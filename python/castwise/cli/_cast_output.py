"""What `castwise cast` prints: the report as a table or as JSON."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

from castwise._core import CastReport
from castwise.checkpoint import CastRow, CastSummary
from castwise.checkpoint.report import summary_dict
from castwise.cli._output import group_name, json_text, shape_text, size_text, table, tensors_text

GROUPS, TOTALS, ALL = "groups", "totals", "all"
"""What a row of the table stands for."""

_CAST_HEADER = (
    "tensor",
    "shape",
    "from",
    "to",
    "exact",
    "overflowed",
    "saturated",
    "underflowed",
    "NaN in",
    "NaN out",
    "max rel error",
    "SQNR dB",
)
_SPARE = ("shape", "max rel error", "from", "SQNR dB")
"""Columns that may be left out on a narrow terminal, the first first."""


def report_lines(summary: CastSummary, *, rows: str = GROUPS, done: str = "cast") -> Iterator[str]:
    """Show the report: rows of what was cast, or what else was done, a total, and what was kept.

    A row is for the tensors of all layers, for those of a pair of formats, or for one tensor.
    """
    cast_rows = [row for row in summary.rows if isinstance(row.report, CastReport)]
    kept_rows = [row for row in summary.rows if row.target is None]
    groups = grouped(cast_rows, rows)
    if groups:
        counted = len(groups) < len(cast_rows)
        header = (*_CAST_HEADER[:4], *(["tensors"] if counted else []), *_CAST_HEADER[4:])
        names = ("total", "" if counted else tensors_text(len(cast_rows)), "", "")
        yield from table(
            header,
            lambda: (_cells(group, group_names(group, rows), counted=counted) for group in groups),
            text_columns=4,
            total=_cells(cast_rows, names, counted=counted),
            spare=_SPARE,
        )
    before = sum(row.nbytes_before for row in summary.rows)
    after = sum(row.nbytes_after for row in summary.rows)
    yield (
        f"{summary.source} -> {summary.destination}: {tensors_text(len(cast_rows))} {done}, "
        f"{len(kept_rows)} kept{_kinds(kept_rows)}, {size_text(before)} -> {size_text(after)}"
    )
    if summary.options.get("seed") is not None:
        yield f"seed {summary.options['seed']}"


def json_lines(summary: CastSummary, max_zeros: float) -> Iterator[str]:
    """Make the JSON of a report row by row: as a whole it takes 8 KiB for each tensor."""
    # In a string of JSON a quote follows a backslash, so this stands once.
    before, _, after = json_text(summary_dict(summary, [], max_zeros=max_zeros)).partition(
        '"tensors": []'
    )
    if not summary.rows:
        yield f'{before}"tensors": []{after}'
        return
    yield f'{before}"tensors": ['
    last_index = len(summary.rows) - 1
    for index, row in enumerate(summary.rows):
        text = json_text(row.to_dict()).replace("\n", "\n    ")
        yield f"    {text}{',' if index < last_index else ''}"
    yield f"  ]{after}"


def grouped(cast: Iterable[CastRow], rows: str) -> Collection[Sequence[CastRow]]:
    """Collect the tensors of each row of the table."""
    groups: dict[Any, list[CastRow]] = {}
    for index, row in enumerate(cast):
        key: Any = index if rows == ALL else (row.source, row.target)
        if rows == GROUPS:
            key = (group_name(row.name), row.shape, *key)
        groups.setdefault(key, []).append(row)
    return groups.values()


def group_names(group: Sequence[CastRow], rows: str) -> tuple[str, ...]:
    """Return what a row of the table is called: name, shape and formats."""
    row = group[0]
    name, shape = row.name, shape_text(row.shape)
    if rows == TOTALS:
        name, shape = "*", ""
    elif len(group) > 1:
        name = group_name(name)
    return (name, shape, row.source, row.target or "")


def _cells(group: Sequence[CastRow], names: tuple[str, ...], *, counted: bool) -> tuple[str, ...]:
    """Return a row of the table, with the number of tensors if `counted`."""
    report, *more_reports = (row.report for row in group if isinstance(row.report, CastReport))
    total = sum(more_reports, report)
    return (
        *names,
        *([f"{len(group):,}"] if counted else []),
        _percent(total.exact, total.count),
        f"{total.overflowed:,}",
        f"{total.saturated:,}",
        f"{total.underflowed:,}",
        f"{total.nan_in:,}",
        f"{total.nan_out:,}",
        f"{total.max_rel_error:.2e}" if total.max_rel_error else "0",
        "-" if math.isnan(total.sqnr_db) else f"{total.sqnr_db:.1f}",
    )


def _percent(part: int, whole: int) -> str:
    """Rounded down, so that 100 % means all of them."""
    return f"{math.floor(1000 * part / whole) / 10:.1f}%" if whole else "-"


def _kinds(rows: Sequence[CastRow]) -> str:
    """Write how many tensors of each format were kept, in parentheses."""
    counts = Counter(row.source for row in rows)
    return f" ({', '.join(f'{count} {kind}' for kind, count in counts.items())})" if rows else ""
