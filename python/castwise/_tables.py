"""Print tables as text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from castwise._wording import quoted

_Rows = Iterable[Sequence[str] | None]


def aligned(rows: Sequence[Sequence[str] | None], text_columns: int | None = None) -> str:
    """Align cells in columns; a row that is None becomes a line of dashes.

    Parameters
    ----------
    rows : sequence of sequences of str, or None
        The header is one of them.
    text_columns : int, optional
        How many columns are aligned to the left, the others to the right. By default all.

    """
    return "\n".join(aligned_lines(lambda: rows, text_columns))


def aligned_lines(make_rows: Callable[[], _Rows], text_columns: int | None = None) -> Iterator[str]:
    """Align cells as `aligned` does, line by line; rows are made twice, and none is kept."""
    widths: list[int] = []
    for row in make_rows():
        if row is not None:
            widths = [
                max(pair) for pair in zip(widths or [0] * len(row), map(len, row), strict=True)
            ]
    rule = ["-" * width for width in widths]
    left = len(widths) if text_columns is None else text_columns
    for row in make_rows():
        yield "  ".join(
            cell.ljust(width) if index < left else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row or rule, widths, strict=True))
        ).rstrip()


def unused_lines(unused: Mapping[str, str | None]) -> list[str]:
    """Write a line for each unused pattern, with the name that it may have meant."""
    return [
        f"unused pattern {quoted(pattern)}"
        + ("" if nearest is None else f"; nearest is {quoted(nearest)}")
        for pattern, nearest in unused.items()
    ]
