"""What `castwise dequantize` prints: which weights were decoded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from castwise.checkpoint import CastRow, CastSummary
from castwise.cli._cast_output import ALL, GROUPS
from castwise.cli._output import group_name, shape_text, size_text, table, tensors_text


def decode_lines(summary: CastSummary, *, rows: str = GROUPS) -> Iterator[str]:
    """Show the decoded weights, a row for those of all layers, a scheme, or each; a total."""
    decoded = [row for row in summary.rows if row.target is not None]
    groups: dict[Any, list[CastRow]] = {}
    for index, row in enumerate(decoded):
        key: Any = index if rows == ALL else (row.source, row.target)
        if rows == GROUPS:
            key = (group_name(row.name), row.shape, *key)
        groups.setdefault(key, []).append(row)
    if groups:
        yield from table(
            ("weight", "shape", "from", "to", "tensors", "before", "after"),
            lambda: (_cells(group, rows) for group in groups.values()),
            text_columns=4,
        )
    before = sum(row.nbytes_before for row in summary.rows)
    after = sum(row.nbytes_after for row in summary.rows)
    yield (
        f"{summary.source} -> {summary.destination}: {tensors_text(len(decoded))} decoded, "
        f"{len(summary.rows) - len(decoded):,} kept, {size_text(before)} -> {size_text(after)}"
    )


def _cells(group: Sequence[CastRow], rows: str) -> tuple[str, ...]:
    first = group[0]
    whole = rows not in (GROUPS, ALL)
    return (
        "*" if whole else group_name(first.name) if len(group) > 1 else first.name,
        "" if whole else shape_text(first.shape),
        first.source,
        first.target or "",
        f"{len(group):,}",
        f"{sum(row.nbytes_before for row in group):,}",
        f"{sum(row.nbytes_after for row in group):,}",
    )
