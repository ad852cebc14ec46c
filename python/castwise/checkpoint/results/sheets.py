"""What conversions show: a row for the tensors of all layers, a pair of formats, or each tensor."""

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

from castwise._core import CastReport
from castwise.checkpoint.results.report import CastRow, DecodeReport
from castwise.quantization.producers.block_types import BLOCK_TYPES
from castwise.rendering.sheet import Lines, Section, Sheet, Table
from castwise.rendering.text import group_name, shape_text, size_text
from castwise.text.brief import counted

# What a row of a table stands for.
GROUPS, TOTALS, ALL = "groups", "totals", "all"

# What is done to weights alone, so that others are cast; transcoding makes scales anew, too.
_OF_WEIGHTS = ("quantized", "decoded")

_NAMES = ("tensor", "shape", "from", "to")
_LOSSES = (
    "SQNR dB",
    "exact",
    "overflowed",
    "saturated",
    "underflowed",
    "NaN in",
    "NaN out",
    "max rel error",
)
_WEIGHTED = "weighted dB"
# Columns in which any number is a loss, and is marked as one.
_LOST = frozenset(("overflowed", "underflowed", "NaN out"))
_SPARE = ("shape", "max rel error", "from", "exact", "tensors")
_PLAN = ("tensor", "file", "shape", "from", "to", "by", "tensors", "before", "after")
_PLAN_SIZES = frozenset(("tensors", "before", "after"))


def conversion_sheet(
    rows: Sequence[CastRow], paths: tuple[str, str], *, detail: str, action: str, seed: int | None
) -> Sheet:
    """Show what was done to tensors, the worst first, a total, and what was kept."""
    is_decoded = not _has_casts(rows)
    new_rows = converted_rows(rows)
    cast_rows = [row for row in rows if row.target is not None] if is_decoded else new_rows
    groups = group_rows(cast_rows, detail)
    if not groups:
        tables: list[Table | Section] = []
    elif is_decoded:
        tables = [_decode_table(groups, detail)]
    else:
        groups = sorted(groups, key=_severity)
        tables = [_cast_table(groups, detail, cast_rows), *_sections(groups, detail)]
    old_rows = [row for row in rows if row.target is None]
    kinds = "" if is_decoded else _kinds(old_rows)
    lines = [f"{paths[0]} -> {paths[1]}: {counts_text(rows, action)}{kinds}, {_sizes(rows)}"]
    if seed is not None:
        lines.append(f"seed {seed}")
    return [*tables, Lines(lines)]


def converted_rows(rows: Sequence[CastRow]) -> list[CastRow]:
    """Return the tensors that a summary counts: of quantized weights their payloads alone."""
    if _has_casts(rows):
        return [row for row in rows if isinstance(row.report, CastReport)]
    # What is new, such as a scale, had no bytes.
    return [
        row
        for row in rows
        if row.target is not None and (row.nbytes_before or not row.nbytes_after)
    ]


def counts_text(rows: Sequence[CastRow], action: str, verb: str = "") -> str:
    """Write how many tensors were converted, how many were cast beside those, and how many stay."""
    # `verb` stands before what was done to them.
    new_rows = converted_rows(rows)
    casts = sum(not row.has_scheme for row in new_rows) if action in _OF_WEIGHTS else 0
    old_count = sum(row.target is None for row in rows)
    texts = [f"{counted(len(new_rows) - casts, 'tensor')} {verb}{action}"]
    return ", ".join([*texts, *([f"{casts:,} cast"] if casts else []), f"{old_count:,} kept"])


def _has_casts(rows: Iterable[CastRow]) -> bool:
    reports = {type(row.report) for row in rows}
    return CastReport in reports and DecodeReport not in reports


def plan_sheet(
    rows: Sequence[CastRow],
    paths: tuple[str, str],
    *,
    detail: str,
    action: str,
    room: tuple[int, int | None],
    left_out: Sequence[str],
) -> Sheet:
    """Show a plan: what tensors would become, the bytes needed and free, what is left out."""
    groups = group_rows(rows, detail)
    absent = set() if len(groups) < len(rows) else {"tensors"}
    absent |= set() if any(row.shard is not None for row in rows) else {"file"}
    header = [name for name in _PLAN if name not in absent]
    table = Table(
        header,
        lambda: (
            [
                cell
                for name, cell in zip(_PLAN, _plan_cells(group, detail), strict=True)
                if name in header
            ]
            for group in groups
        ),
        text_columns=sum(name not in _PLAN_SIZES for name in header),
        spare=("file", "before", "shape", "from", "by"),
        ranked=True,
    )
    nbytes, free = room
    lines = [
        f"{paths[0]} -> {paths[1]}: {counts_text(rows, action, 'would be ')}, {_sizes(rows)}",
        f"to be written: {size_text(nbytes)}; free: "
        f"{'unknown' if free is None else size_text(free)}",
    ]
    if left_out:
        lines.append(f"left out: {', '.join(left_out)}")
    return [*([table] if groups else []), Lines(lines)]


def group_rows(rows: Iterable[CastRow], detail: str) -> Collection[Sequence[CastRow]]:
    """Collect the tensors of each row of a table."""
    groups: dict[Any, list[CastRow]] = {}
    for index, row in enumerate(rows):
        key: Any = index if detail == ALL else (row.source, row.target)
        if detail == GROUPS:
            key = (group_name(row.name), row.shape, *key)
        groups.setdefault(key, []).append(row)
    return groups.values()


def _cast_table(
    groups: Collection[Sequence[CastRow]], detail: str, rows: Sequence[CastRow]
) -> Table:
    """Return the table of casts, with the number of tensors if a row is for several."""
    is_counted = len(groups) < len(rows)
    weighted = _weighted_column(rows)
    header = (*_NAMES, *(["tensors"] if is_counted else []), *_LOSSES, *weighted)

    def cells(group: Sequence[CastRow], names: Sequence[str]) -> tuple[str, ...]:
        counts = [f"{len(group):,}"] if is_counted else []
        return (*names, *counts, *_loss_cells(group), *_weighted_cells(group)[: len(weighted)])

    total = ("total", "" if is_counted else counted(len(rows), "tensor"), "", "")
    return Table(
        header,
        lambda: (cells(group, _group_names(group, detail)) for group in groups),
        text_columns=len(_NAMES),
        total=cells(rows, total),
        spare=_SPARE,
        losses=_LOST,
        ranked=True,
    )


def _sections(groups: Collection[Sequence[CastRow]], detail: str) -> Iterator[Section]:
    """Return the tensors of each group, the worst first."""
    for group in groups:
        if detail == GROUPS and len(group) > 1:
            name, shape, source, target = _group_names(group, detail)
            title = f"{name} ({shape}, {source} to {target}): {counted(len(group), 'tensor')}"
            yield Section(title, [_group_table(group)])


def _group_table(group: Sequence[CastRow]) -> Table:
    weighted = _weighted_column(group)
    return Table(
        ("tensor", *_LOSSES, *weighted),
        lambda: (
            (row.name, *_loss_cells([row]), *_weighted_cells([row])[: len(weighted)])
            for row in sorted(group, key=lambda row: _severity([row]))
        ),
        text_columns=1,
        losses=_LOST,
    )


def _decode_table(groups: Collection[Sequence[CastRow]], detail: str) -> Table:
    return Table(
        ("weight", "shape", "from", "to", "tensors", "before", "after"),
        lambda: (
            (
                *_group_names(group, detail),
                f"{len(group):,}",
                f"{sum(row.nbytes_before for row in group):,}",
                f"{sum(row.nbytes_after for row in group):,}",
            )
            for group in groups
        ),
        text_columns=4,
        spare=("shape", "before"),
        ranked=True,
    )


def _group_names(group: Sequence[CastRow], detail: str) -> tuple[str, ...]:
    """Return what a row of a table is called: name, shape and formats."""
    row = group[0]
    name, shape = row.name, shape_text(_weight_shape(row))
    if detail == TOTALS:
        name, shape = "*", ""
    elif len(group) > 1:
        name = group_name(name)
    return (name, shape, row.source, row.target or "")


def _weight_shape(row: CastRow) -> tuple[int, ...]:
    """Return the shape of a weight, also if its codes are packed along the last axes."""
    elements = row.report.count if row.report is not None and row.has_scheme else 0
    _, block, block_bytes = BLOCK_TYPES.get((row.target or "").upper(), (0, 0, 0))
    if block and row.shape[-1] == block_bytes and elements == math.prod(row.shape[:-1]) * block:
        return (*row.shape[:-2], row.shape[-2] * block)  # the last axes are blocks and bytes
    rows = math.prod(row.shape[:-1])
    is_packed = elements > math.prod(row.shape) and rows and not elements % rows
    return (*row.shape[:-1], elements // rows) if is_packed else row.shape


def _plan_cells(group: Sequence[CastRow], detail: str) -> tuple[str, ...]:
    """Return a row of a plan: a file or key if the group has one only, else how many."""
    name, *others = _group_names(group, detail)
    files = {row.shard or "" for row in group}
    patterns = {row.pattern or "" for row in group}
    return (
        name,
        files.pop() if len(files) == 1 else f"{len(files):,} files",
        *others,
        patterns.pop() if len(patterns) == 1 else f"{len(patterns):,} keys",
        f"{len(group):,}",
        f"{sum(row.nbytes_before for row in group):,}",
        f"{sum(row.nbytes_after for row in group):,}",
    )


def _total(group: Sequence[CastRow]) -> CastReport:
    report, *more_reports = (row.report for row in group if isinstance(row.report, CastReport))
    return sum(more_reports, report)


def _severity(group: Sequence[CastRow]) -> tuple[float, ...]:
    """Return the key by which groups are sorted, the worst first: losses, ratio, zeros."""
    total = _total(group)
    losses = max(total.overflowed, total.nan_out - total.nan_in, 0)
    ratio = total.sqnr_db
    return (-losses, math.inf if math.isnan(ratio) else ratio, -total.underflowed)


def _loss_cells(group: Sequence[CastRow]) -> tuple[str, ...]:
    """Return what a group lost, under the names of `_LOSSES`."""
    total = _total(group)
    return (
        "-" if math.isnan(total.sqnr_db) else f"{total.sqnr_db:.1f}",
        _percent(total.exact, total.count),
        f"{total.overflowed:,}",
        f"{total.saturated:,}",
        f"{total.underflowed:,}",
        f"{total.nan_in:,}",
        f"{total.nan_out:,}",
        f"{total.max_rel_error:.2e}" if total.max_rel_error else "0",
    )


def _weighted_column(rows: Iterable[CastRow]) -> Sequence[str]:
    """Return the column of the weighted ratio; nothing if no row has one."""
    return (_WEIGHTED,) * any(row.weighted is not None for row in rows)


def _weighted_cells(group: Sequence[CastRow]) -> tuple[str]:
    reports = [row.weighted for row in group if row.weighted is not None]
    return (f"{sum(reports[1:], reports[0]).sqnr_db:.1f}" if reports else "-",)


def _percent(part: int, whole: int) -> str:
    """Rounded down, so that 100 % means all of them."""
    return f"{math.floor(1000 * part / whole) / 10:.1f}%" if whole else "-"


def _kinds(rows: Sequence[CastRow]) -> str:
    """Write how many tensors of each format were kept, in parentheses."""
    counts = Counter(row.source for row in rows)
    return f" ({', '.join(f'{count} {kind}' for kind, count in counts.items())})" if rows else ""


def _sizes(rows: Sequence[CastRow]) -> str:
    """Write the bytes of the tensors before and after."""
    old_size = sum(row.nbytes_before for row in rows)
    new_size = sum(row.nbytes_after for row in rows)
    return f"{size_text(old_size)} -> {size_text(new_size)}"
