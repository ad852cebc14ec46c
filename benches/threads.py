"""What several threads gain over one, beside copies: `python benches/threads.py`.

README.md in this folder says how it is measured. A row is one pair of formats, into an existing
array: castwise on one thread and on several, and a copy that reads and writes as many bytes, by one
thread and by as many, each with a part of it. Where several copies are no faster, nothing is.

A result is right if several threads give what one gives.

Exit code 1 if a result is wrong; 2 if a file cannot be read or written.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from typing import Any

import castwise
import command
import files
import numpy as np
from measure import interleave

PAIRS = (
    ("float32", "bfloat16"),
    ("float32", "float16"),
    ("float32", "float8_e4m3fn"),
    ("bfloat16", "float8_e4m3fn"),
    ("bfloat16", "float32"),
    ("float8_e4m3fn", "bfloat16"),
    ("float32", "int8"),
    ("float64", "float32"),
)
SIZES = (1 << 20, 1 << 24, 1 << 27)
QUICK_SIZES = (1 << 16,)
PERIOD = 1 << 20
MARKER = "threads"


@dataclass(frozen=True)
class Row:
    """One pair; gains are times of one thread over those of several."""

    source: str
    target: str
    size: int
    us: float = field(metadata={"digits": 4})
    gain: float = field(metadata={"digits": 4})
    copy_gain: float = field(metadata={"digits": 4})
    correct: bool


def cast_on(threads: int, x: Any, out: Any) -> None:
    """Cast on so many threads."""
    castwise.set_num_threads(threads)
    castwise.cast(x, out=out)


def copy_on(pool: ThreadPoolExecutor, parts: list[tuple[Any, Any]]) -> None:
    """Copy each part on a thread of its own."""
    list(pool.map(lambda part: np.copyto(*part), parts))


def rows(sizes: tuple[int, ...], threads: int, repeats: int) -> Iterator[Row]:
    """Measure everything, by turns."""
    numbers = np.random.default_rng(0).standard_normal(PERIOD, np.float32)
    with ThreadPoolExecutor(threads) as pool:
        for size in sizes:
            for source, target in PAIRS:
                x = np.resize(castwise.cast(numbers, source), size)
                out = castwise.cast(x, target)
                moved = (x.nbytes + out.nbytes) // 2
                halves = np.ones(moved, np.uint8), np.empty(moved, np.uint8)
                parts = list(zip(*(np.array_split(each, threads) for each in halves), strict=True))
                several, alone = np.empty_like(out), out
                calls = [
                    partial(cast_on, 1, x, alone),
                    partial(cast_on, threads, x, several),
                    partial(np.copyto, halves[1], halves[0]),
                    partial(copy_on, pool, parts),
                ]
                times = interleave(calls, repeats)
                gain, copy_gain = (float(np.median(times[i] / times[i + 1])) for i in (0, 2))
                correct = alone.tobytes() == several.tobytes()
                us = float(np.median(times[0])) / 1e3
                yield Row(source, target, size, us, gain, copy_gain, correct)


def line(row: Row) -> str:
    """One row for the terminal."""
    pair = f"{row.source} -> {row.target}"
    return (
        f"{pair:<28}{row.size:>10}{row.us:>13.1f} us  gain {row.gain:>5.2f}  "
        f"copies {row.copy_gain:>5.2f}  {'correct' if row.correct else 'WRONG'}"
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


def tables(facts: dict[str, str], found: list[Row]) -> Iterator[tuple[str, str]]:
    """Give the README's table, with its marker."""
    lines = [
        f"Times of one thread over those of {facts['threads']}, into an existing array. "
        f"{facts['cpu']}, {facts['cores']} cores, {facts['level']}; {facts['versions']}; "
        f"{facts['date']}.",
        "",
        "| elements | from | to | one thread | castwise | copies | bits right |",
        "|--:|---|---|--:|--:|--:|---|",
    ]
    for row in found:
        times = (f"{row.us / 1e3:.2f} ms", f"{row.gain:.2f}", f"{row.copy_gain:.2f}")
        cells = (f"{row.size:,}", row.source, row.target, *times, "yes" if row.correct else "NO")
        lines.append(f"| {' | '.join(cells)} |")
    yield MARKER, "\n".join(lines)


def main() -> int:
    """Measure or load, then report as asked."""
    parser = command.parser(__doc__)
    parser.set_defaults(threads=2)
    return command.carry_out(parser.parse_args(), Row, run, line, tables)


if __name__ == "__main__":
    sys.exit(main())
