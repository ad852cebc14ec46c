"""What a survey takes, beside a copy: `python benches/surveys.py`.

README.md in this folder says how it is measured. A row is one format and size: the survey on one
thread and on several, beside `np.copyto` of the same array, which one thread makes.

A survey is right if its counts add up, and if several threads count what one counts.

Exit code 1 if a survey is wrong; 2 if a file cannot be read or written.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version

import castwise
import command
import files
import numpy as np
from measure import interleave

FORMATS = ("float32", "bfloat16", "float16", "float64")
SIZES = (1 << 16, 1 << 20, 1 << 24, 1 << 26)
QUICK_SIZES = (1 << 16,)
COLUMNS = 1 << 12
MARKER = "surveys"


@dataclass(frozen=True)
class Row:
    """One format; ratios are times of a copy over those of the survey."""

    source: str
    size: int
    ns: float = field(metadata={"digits": 4})
    ratio: float = field(metadata={"digits": 4})
    threads_ratio: float = field(metadata={"digits": 4})
    correct: bool


def rows(sizes: tuple[int, ...], threads: int, repeats: int) -> Iterator[Row]:
    """Measure everything, by turns."""
    for size in sizes:
        numbers = np.random.default_rng(0).standard_normal((size // COLUMNS, COLUMNS), np.float32)
        for source in FORMATS:
            x = castwise.cast(numbers, source)
            calls: list[Callable[[], object]] = [
                partial(castwise.survey, x, threads=1),
                partial(castwise.survey, x, threads=threads),
                partial(np.copyto, np.empty_like(x), x),
            ]
            times = interleave(calls, repeats)
            alone, several = (castwise.survey(x, threads=count) for count in (1, threads))
            counted = int(alone.binades.counts.sum()) + alone.zeros
            yield Row(
                source,
                size,
                float(np.median(times[0])) / size,
                float(np.median(times[2] / times[0])),
                float(np.median(times[2] / times[1])),
                alone == several and counted == size,
            )


def line(row: Row) -> str:
    """One row for the terminal."""
    return (
        f"{row.source:<12}{row.size:>10}{row.ns:>9.2f} ns  copy {row.ratio:>5.2f}  "
        f"threads {row.threads_ratio:>5.2f}  {'correct' if row.correct else 'WRONG'}"
    )


def run(options: argparse.Namespace) -> tuple[dict[str, str], list[Row]]:
    """Measure everything, printing each row as it is done."""
    versions = {name: version(name) for name in ("numpy", "ml_dtypes", "castwise")}
    level, threads = castwise.cpu_level(), str(options.threads)
    facts = files.environment(versions, level=level, threads=threads)
    for name, value in facts.items():
        print(f"# {name}: {value}")
    return facts, command.print_rows(
        rows(QUICK_SIZES if options.quick else SIZES, options.threads, options.repeats), line
    )


def tables(facts: dict[str, str], measured: list[Row]) -> Iterator[tuple[str, str]]:
    """Give the README's table, with its marker."""
    lines = [
        f"Times of a copy by one thread over those of a survey by one and by {facts['threads']}. "
        f"{facts['cpu']}, {facts['cores']} cores, {facts['level']}; {facts['versions']}; "
        f"{facts['date']}.",
        "",
        "| elements | format | survey, an element | one thread | threads | counts right |",
        "|--:|---|--:|--:|--:|---|",
    ]
    for row in measured:
        cells = (
            f"{row.size:,}",
            row.source,
            f"{row.ns:.2f} ns",
            f"{row.ratio:.2f}",
            f"{row.threads_ratio:.2f}",
            "yes" if row.correct else "NO",
        )
        lines.append(f"| {' | '.join(cells)} |")
    yield MARKER, "\n".join(lines)


def main() -> int:
    """Measure or load, then report as asked."""
    parser = command.parser(__doc__)
    parser.set_defaults(threads=2)
    return command.carry_out(parser.parse_args(), Row, run, line, tables)


if __name__ == "__main__":
    sys.exit(main())
