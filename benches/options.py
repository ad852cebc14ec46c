"""What the options of `castwise.cast` cost: `python benches/options.py`.

README.md in this folder says how it is measured. A row is one pair of formats with one option, into
an existing array, beside the plain cast of the same array in the same turns. A result is right if
the `portable` level gives the same bits (and the same report).

Exit code 1 if a result is wrong; 2 if a file cannot be read or written.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import castwise
import files
import numpy as np
from castwise import _core
from measure import interleave, ratios

OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "report": {"report": True},
    "saturate": {"overflow": "saturate"},
    "raise": {"overflow": "raise"},
    "nan zero": {"nan": "zero"},
    "scale 1.5": {"scale": 1.5},
    "scale 0.1": {"scale": 0.1},
    "away": {"rounding": "nearest-away"},
    "to zero": {"rounding": "towards-zero"},
    "positive": {"rounding": "towards-positive"},
    "stochastic": {"rounding": "stochastic", "seed": 1},
}
PAIRS = (
    ("float32", "bfloat16"),
    ("float32", "float16"),
    ("float32", "float8_e4m3fn"),
    ("float32", "float8_e5m2"),
    ("bfloat16", "float8_e4m3fn"),
    ("float16", "float8_e5m2"),
    ("bfloat16", "float32"),
    ("float16", "float32"),
    ("float8_e4m3fn", "float32"),
    ("float8_e4m3fn", "bfloat16"),
    ("float32", "float32"),
    ("int8", "float32"),
)
SIZES = (1, 4096, 65_536, 1 << 20, 1 << 24)
README_SIZES = (1, 4096, 1 << 20, 1 << 24)
MARKER = "options"


@dataclass(frozen=True)
class Row:
    """One option of one pair; `cost` is its time over the plain cast's."""

    source: str
    target: str
    size: int
    option: str
    us: float = field(metadata={"digits": 4})
    cost: float = field(metadata={"digits": 4})
    correct: bool


def values(dtype: str, size: int) -> Any:
    """Normal values, with a fixed seed; integers of the whole range."""
    rng = np.random.default_rng(0)
    numbers = rng.standard_normal(size, np.float32)
    return castwise.cast(numbers * 40 if dtype == "int8" else numbers, dtype)


def right(x: Any, target: str, option: Mapping[str, Any]) -> bool:
    """Whether the level in use gives what the portable one gives."""
    level, x = castwise.cpu_level(), x[: 1 << 16]
    found = []
    try:
        for name in (level, "portable"):
            _core.set_cpu_level(name)
            found.append(castwise.cast(x, target, **option))
    finally:
        _core.set_cpu_level(level)
    if "report" in option:
        (got, report), (wanted, expected) = found
        return bool(got.tobytes() == wanted.tobytes() and report == expected)
    return bool(found[0].tobytes() == found[1].tobytes())


def rows(sizes: list[int], repeats: int) -> Iterator[Row]:
    """Measure everything asked for; the first row of a pair is the plain cast."""
    for size in sizes:
        for source, target in PAIRS:
            x = values(source, size)
            out = castwise.cast(x, target)
            options = {"plain": {}, **OPTIONS}
            calls = [partial(castwise.cast, x, out=out, **option) for option in options.values()]
            times = interleave(calls, repeats)
            found = zip(options, np.median(times, axis=1), ratios(times, 0), strict=True)
            for name, ns, cost in found:
                correct = right(x, target, options[name])
                yield Row(source, target, size, name, float(ns / 1e3), float(cost), correct)


def line(row: Row) -> str:
    """One row for the terminal."""
    pair = f"{row.source} -> {row.target}"
    return (
        f"{pair:<28}{row.size:>9} {row.option:<11}{row.us:>11.2f} us  cost {row.cost:>6.2f}"
        f"  {'correct' if row.correct else 'WRONG'}"
    )


def run(options: argparse.Namespace) -> tuple[dict[str, str], list[Row]]:
    """Measure everything, printing each row as it is done."""
    castwise.set_num_threads(options.threads)
    versions = {name: version(name) for name in ("numpy", "ml_dtypes", "castwise")}
    level, threads = castwise.cpu_level(), str(options.threads)
    facts, found = files.environment(versions, level=level, threads=threads), []
    for name, value in facts.items():
        print(f"# {name}: {value}")
    print("# cost: its time over the plain cast's")
    for row in rows(options.sizes or ([4096] if options.quick else list(SIZES)), options.repeats):
        print(line(row), flush=True)
        found.append(row)
    return facts, found


def markdown(facts: dict[str, str], found: list[Row]) -> str:
    """Format the README's table: a line for each size and pair."""
    shown = [row for row in found if row.size in README_SIZES]
    costs = {(row.size, row.source, row.target, row.option): row for row in shown}
    lines = [
        f"Times over the plain cast's, into an existing array. {facts['cpu']}, {facts['level']}, "
        f"threads: {facts['threads']}; {facts['versions']}; {facts['date']}.",
        "",
        f"| elements | from | to | {' | '.join(OPTIONS)} | bits right |",
        f"|--:|---|---|{'--:|' * len(OPTIONS)}---|",
    ]
    for size, source, target in dict.fromkeys(key[:3] for key in costs):
        cells = [costs[size, source, target, option] for option in OPTIONS]
        correct = "yes" if all(row.correct for row in cells) else "NO"
        texts = [f"{size:,}", source, target, *(f"{row.cost:.2f}" for row in cells), correct]
        lines.append(f"| {' | '.join(texts)} |")
    return "\n".join(lines)


def main() -> int:
    """Measure or load, then report as asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--threads", type=int, default=1, help="threads (default 1)")
    add("--repeats", type=int, default=9, help="turns per case (default 9)")
    add("--sizes", type=lambda text: [int(size) for size in text.split(",")])
    add("--quick", action="store_true", help="small arrays: does it work at all")
    add("--csv", type=Path, nargs="?", const=Path(), help="record to FILE (default record/...)")
    add("--from", type=Path, dest="source", metavar="CSV", help="show a record, measure nothing")
    add("--readme", type=Path, metavar="FILE", help="put the table into FILE, at its markers")
    options = parser.parse_args()
    try:
        facts, found = files.read(options.source, Row) if options.source else run(options)
        if options.source:
            print("\n".join(map(line, found)))
        if options.csv:
            several = "" if facts["threads"] == "1" else f"-{facts['threads']}-threads"
            default = files.default_path(facts, f"options{several}")
            path = default if options.csv == Path() else options.csv
            files.write(path, facts, found)
            print(f"recorded in {path}")
        if options.readme:
            files.replace_in(options.readme, MARKER, markdown(facts, found))
    except (OSError, ValueError) as error:
        print(f"options.py: {error}", file=sys.stderr)
        return 2
    return int(not all(row.correct for row in found))


if __name__ == "__main__":
    sys.exit(main())
