"""What the command line prints: tables for people, JSON for programs."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import castwise
from castwise._tables import aligned
from castwise.checkpoint import CastRow, CastSummary, Inspection, TensorInfo

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
_FORMAT_FIELDS = (
    "name",
    "aliases",
    "kind",
    "bits",
    "itemsize",
    "signed",
    "exponent_bits",
    "mantissa_bits",
    "bias",
    "specials",
    "has_infinity",
    "has_nan",
    "max",
    "min",
    "smallest_normal",
    "smallest_subnormal",
    "eps",
    "safetensors",
)
_KILO = 1000
_CELL_CHARACTERS = 72


def json_text(value: Any) -> str:
    """Strict JSON; infinities and NaN, which it has no words for, become the strings of Python."""
    return json.dumps(_plain(value), indent=2, allow_nan=False)


def cast_text(summary: CastSummary) -> str:
    """The account of a cast: a row per tensor that was cast, a total, and what was kept."""
    cast = [row for row in summary.rows if row.report is not None]
    kept = [row for row in summary.rows if row.report is None]
    lines = []
    total = summary.total
    if total is not None:
        rows = [_cast_cells(row, row.report) for row in cast if row.report is not None]
        rows.append(("total", _tensors(len(cast)), "", "", *_report_cells(total)))
        lines.append(_table(_CAST_HEADER, rows, text_columns=4, rule_before_last=True))
    before = sum(row.nbytes_before for row in summary.rows)
    after = sum(row.nbytes_after for row in summary.rows)
    lines.append(
        f"{summary.source} -> {summary.destination}: {_tensors(len(cast))} cast, {len(kept)} kept"
        f"{_kinds(kept)}, {size_text(before)} -> {size_text(after)}"
    )
    if summary.options.get("seed") is not None:
        lines.append(f"seed {summary.options['seed']}")
    return printable_lines(lines)


def inspection_text(inspection: Inspection) -> str:
    """Every tensor, a total for each format, and the metadata."""
    rows = [
        (info.name, _stored_text(info), _shape_text(info.shape), f"{info.nbytes:,}")
        for info in inspection.tensors
    ]
    totals = [
        (label, f"{count:,}", f"{nbytes:,}", size_text(nbytes))
        for label, (count, nbytes) in inspection.totals().items()
    ]
    nbytes = sum(info.nbytes for info in inspection.tensors)
    totals.append(("total", f"{len(inspection.tensors):,}", f"{nbytes:,}", size_text(nbytes)))
    lines = [
        _table(("tensor", "dtype", "shape", "bytes"), rows, text_columns=3),
        "",
        _table(("dtype", "tensors", "bytes", "size"), totals, text_columns=1),
    ]
    if inspection.metadata:
        lines += [
            "",
            "metadata",
            *(f"  {key}: {text}" for key, text in inspection.metadata.items()),
        ]
    return printable_lines(lines)


def formats_text(rows: Sequence[castwise.FormatInfo]) -> str:
    """The table of formats."""
    header = ("format", "kind", "bits", "max", "smallest normal", "eps", "safetensors", "numpy")
    cells = [
        (
            row.name,
            row.kind,
            str(row.bits),
            _number(row, "max"),
            _number(row, "smallest_normal"),
            _number(row, "eps"),
            row.safetensors or "as bytes",
            "yes" if row.dtype is not None else "no",
        )
        for row in rows
    ]
    return _table(header, cells, text_columns=2)


def format_fields(row: castwise.FormatInfo) -> dict[str, Any]:
    """A row of the table as plain values; None for what its kind does not have."""
    fields = {name: getattr(row, name, None) for name in _FORMAT_FIELDS}
    return {**fields, "numpy": row.dtype is not None}


def size_text(nbytes: int) -> str:
    """A number of bytes as people say it, in powers of 1000."""
    if nbytes < _KILO:
        return f"{nbytes} B"
    size, units = nbytes / _KILO, iter(("kB", "MB", "GB", "TB"))
    unit = next(units)
    while size >= _KILO and unit != "TB":
        size, unit = size / _KILO, next(units)
    return f"{size:.1f} {unit}"


def printable(text: str) -> str:
    """`text` with control characters escaped: names come from files that nobody trusts."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else ascii(one)[1:-1] for one in text)


def printable_lines(lines: Iterable[str]) -> str:
    """Lines joined, each of them printable."""
    return "\n".join(printable(line) for text in lines for line in text.split("\n"))


def _cast_cells(row: CastRow, report: castwise.CastReport) -> tuple[str, ...]:
    shape = _shape_text(row.shape)
    return (row.name, shape, row.source, row.target or "", *_report_cells(report))


def _report_cells(report: castwise.CastReport) -> tuple[str, ...]:
    return (
        _percent(report.exact, report.count),
        f"{report.overflowed:,}",
        f"{report.saturated:,}",
        f"{report.underflowed:,}",
        f"{report.nan_in:,}",
        f"{report.nan_out:,}",
        f"{report.max_rel_error:.2e}" if report.max_rel_error else "0",
        "-" if math.isnan(report.sqnr_db) else f"{report.sqnr_db:.1f}",
    )


def _percent(part: int, whole: int) -> str:
    """Rounded down, so that 100 % means all of them."""
    return f"{math.floor(1000 * part / whole) / 10:.1f}%" if whole else "-"


def _kinds(rows: Sequence[CastRow]) -> str:
    counts = Counter(row.source for row in rows)
    return f" ({', '.join(f'{count} {kind}' for kind, count in counts.items())})" if rows else ""


def _tensors(count: int) -> str:
    return f"{count:,} tensor{'' if count == 1 else 's'}"


def _stored_text(info: TensorInfo) -> str:
    """The format, and a note where the container itself knows only bytes."""
    if info.format is None:
        return f"{info.stored} (raw bytes)" if info.kind == "unknown" else info.stored
    stored_as_bytes = (
        info.stored.upper() == "U8" and castwise.finfo(info.format).safetensors != "U8"
    )
    return f"{info.format} (as bytes)" if stored_as_bytes else info.format


def _shortened(cell: str) -> str:
    """A cell without its middle if it is too long for a table."""
    if len(cell) <= _CELL_CHARACTERS:
        return cell
    half = (_CELL_CHARACTERS - 3) // 2
    return f"{cell[:half]}...{cell[-half:]}"


def _shape_text(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape)) if shape else "scalar"


def _number(row: castwise.FormatInfo, attribute: str) -> str:
    value = getattr(row, attribute, None)
    return "" if value is None else f"{value:.7g}" if isinstance(value, float) else str(value)


def _table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    text_columns: int,
    rule_before_last: bool = False,
) -> str:
    """Columns aligned: the first `text_columns` to the left, numbers to the right."""
    safe = [[_shortened(printable(cell)) for cell in row] for row in rows]
    lines = [header, None, *safe]
    if rule_before_last:
        lines.insert(-1, None)
    return aligned(lines, text_columns)


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return value
