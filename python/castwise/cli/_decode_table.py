"""What `castwise dequantize` prints: which weights were decoded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from castwise.checkpoint import CastRow, CastSummary
from castwise.cli._cast_output import GROUPS, group_names, grouped
from castwise.cli._output import size_text, table, tensors_text


def decode_lines(
    summary: CastSummary, *, rows: str = GROUPS, done: str = "decoded"
) -> Iterator[str]:
    """Show what was decoded, or `done` else, a row for all layers, a scheme, or each; a total."""
    decoded = [row for row in summary.rows if row.target is not None]
    groups = grouped(decoded, rows)
    if groups:
        yield from table(
            ("weight", "shape", "from", "to", "tensors", "before", "after"),
            lambda: (_cells(group, rows) for group in groups),
            text_columns=4,
            spare=("shape", "before"),
        )
    before = sum(row.nbytes_before for row in summary.rows)
    after = sum(row.nbytes_after for row in summary.rows)
    yield (
        f"{summary.source} -> {summary.destination}: {tensors_text(len(decoded))} {done}, "
        f"{len(summary.rows) - len(decoded):,} kept, {size_text(before)} -> {size_text(after)}"
    )


def _cells(group: Sequence[CastRow], rows: str) -> tuple[str, ...]:
    """Return a row of the table: name, shape, formats, count and sizes."""
    return (
        *group_names(group, rows),
        f"{len(group):,}",
        f"{sum(row.nbytes_before for row in group):,}",
        f"{sum(row.nbytes_after for row in group):,}",
    )
