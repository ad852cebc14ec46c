"""What the options of `castwise.cast` cost: `python benches/options.py`.

README.md in this folder says how it is measured. A row is one pair of formats with one option, into
an existing array, beside the plain cast of the same array in the same turns; for one element also
`castwise.caster`, new arrays, and numpy's copy between two of its own types. A result is right if
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
from timeit import Timer
from typing import Any

import castwise
import command
import files
import numpy as np
from castwise import _core
from measure import Call, interleave, ratios

PLAIN = "plain"
REPORT = "report"
OPTIONS: Mapping[str, Mapping[str, Any]] = {
    REPORT: {"report": True},
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
    ("float32", "int8"),
    ("int8", "float32"),
)
SIZES = (1, 4096, 65_536, 1 << 20, 1 << 24)
README_SIZES = (4096, 1 << 20, 1 << 24)
COPY = "np.copyto"
SMALL_CALLS = {
    COPY: "copyto(half, numbers, casting='unsafe')",
    "new array": "cast(x, out.dtype)",
    "caster": "caster(x, out=out)",
    "caster, new array": "caster(x)",
    "saturating caster": "saturating(x, out=out)",
}
"""What is timed for one element beside the options; `numbers` are float32, and `half` float16."""
SMALL_MARKER = "small-calls"
CALLS_AT_ONCE = 1_000
LEAST_CALLS = 5
"""A large source comes back to a shared last cache within so many calls."""


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


def scope(source: str, target: str, size: int) -> dict[str, Any]:
    """Make the names of the statements that are timed."""
    x, numbers = values(source, size), values("float32", size)
    return {
        "x": x,
        "out": castwise.cast(x, target),
        "numbers": numbers,
        "half": np.empty(size, np.float16),
        "cast": castwise.cast,
        "copyto": np.copyto,
        "caster": castwise.caster(source, target),
        "saturating": castwise.caster(source, target, overflow="saturate"),
    }


def calls(names: dict[str, Any], size: int) -> tuple[dict[str, Call], int]:
    """Make a call of each statement, and say how many times it runs it.

    A short one runs in a loop of timeit's: a call around it would be most of what is timed.
    """
    statements = {PLAIN: "cast(x, out=out)"} | {
        name: f"cast(x, out=out, {', '.join(f'{key}={value!r}' for key, value in option.items())})"
        for name, option in OPTIONS.items()
    }
    if size > 1:
        timed = {name: eval(f"lambda: {text}", names) for name, text in statements.items()}  # noqa: S307
        return timed, 1
    statements |= SMALL_CALLS
    timers = {name: Timer(text, globals=names) for name, text in statements.items()}
    return {name: partial(it.timeit, CALLS_AT_ONCE) for name, it in timers.items()}, CALLS_AT_ONCE


def on_portable(x: Any, target: str, option: Mapping[str, Any]) -> Any:
    """Cast on the portable level."""
    level = castwise.cpu_level()
    _core.set_cpu_level("portable")
    try:
        return castwise.cast(x, target, **option)
    finally:
        _core.set_cpu_level(level)


def right(names: dict[str, Any], target: str, name: str) -> bool:
    """Whether the level in use gives what the portable one gives."""
    x, option = names["x"][: 1 << 16], dict(OPTIONS.get(name, {}))
    if name in SMALL_CALLS:
        got: Any = eval(SMALL_CALLS[name], names)  # noqa: S307
        if name == COPY:
            got, x, target = names["half"], names["numbers"], "float16"
        if name == "saturating caster":
            option = {"overflow": "saturate"}
    else:
        got = castwise.cast(x, target, **option)
    wanted = on_portable(x, target, option)
    if REPORT in option:
        (got, report), (wanted, expected) = got, wanted
        return bool(got.tobytes() == wanted.tobytes() and report == expected)
    return bool(got.tobytes() == wanted.tobytes())


def costs(timed: dict[str, Call], repeats: int, at_once: int) -> list[tuple[str, float, float]]:
    """Time calls by turns: the name of each, its nanoseconds and its cost over the first's."""
    times = interleave(list(timed.values()), repeats, LEAST_CALLS) / at_once
    # What a short call takes beyond its least time is the machine's doing.
    least = times.min(axis=1)
    short = at_once > 1
    taken = least if short else np.median(times, axis=1)
    cost = least / least[0] if short else ratios(times, 0)
    return list(zip(timed, taken.tolist(), cost.tolist(), strict=True))


def rows(sizes: list[int], repeats: int) -> Iterator[Row]:
    """Measure everything asked for; the first row of a pair is the plain cast."""
    for size in sizes:
        for source, target in PAIRS:
            names = scope(source, target, size)
            timed, at_once = calls(names, size)
            # A report displaces the source from the last cache, which takes calls to come back.
            alone = {PLAIN: timed[PLAIN], REPORT: timed.pop(REPORT)}
            found = [*costs(timed, repeats, at_once), costs(alone, repeats, at_once)[1]]
            for name, ns, cost in found:
                correct = right(names, target, name)
                yield Row(source, target, size, name, ns / 1e3, cost, correct)


def line(row: Row) -> str:
    """One row for the terminal."""
    pair = f"{row.source} -> {row.target}"
    return (
        f"{pair:<28}{row.size:>9} {row.option:<18}{row.us:>13.4f} us  cost {row.cost:>6.2f}"
        f"  {'correct' if row.correct else 'WRONG'}"
    )


def run(options: argparse.Namespace) -> tuple[dict[str, str], list[Row]]:
    """Measure everything, printing each row as it is done."""
    castwise.set_num_threads(options.threads)
    versions = {name: version(name) for name in ("numpy", "ml_dtypes", "castwise")}
    level, threads = castwise.cpu_level(), str(options.threads)
    facts = files.environment(versions, level=level, threads=threads)
    for name, value in facts.items():
        print(f"# {name}: {value}")
    print("# cost: its time over the plain cast's")
    return facts, command.print_rows(
        rows(options.sizes or ([4096] if options.quick else list(SIZES)), options.repeats), line
    )


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


def small_calls(facts: dict[str, str], found: list[Row]) -> str:
    """Format the README's table of one element: a line for each pair."""
    times = {(row.source, row.target, row.option): row for row in found if row.size == 1}
    columns = (PLAIN, *(name for name in SMALL_CALLS if name != COPY))
    lines = [
        f"Times of one element over that of `np.copyto` from float32 to float16. {facts['cpu']}, "
        f"{facts['level']}; {facts['versions']}; {facts['date']}.",
        "",
        f"| from | to | np.copyto | {' | '.join(columns)} | bits right |",
        f"|---|---|--:|{'--:|' * len(columns)}---|",
    ]
    for source, target in dict.fromkeys(key[:2] for key in times):
        copy = times[source, target, COPY]
        cells = [times[source, target, name] for name in columns]
        correct = "yes" if all(row.correct for row in (copy, *cells)) else "NO"
        texts = [f"{row.us / copy.us:.2f}" for row in cells]
        shown = (source, target, f"{copy.us * 1e3:.0f} ns", *texts, correct)
        lines.append(f"| {' | '.join(shown)} |")
    return "\n".join(lines)


def tables(facts: dict[str, str], found: list[Row]) -> Iterator[tuple[str, str]]:
    """Give the README's tables, those of which something was measured, with their markers."""
    if any(row.size > 1 for row in found):
        yield f"options-{facts['level']}", markdown(facts, found)
    if any(row.option == COPY for row in found):
        yield SMALL_MARKER, small_calls(facts, found)


def main() -> int:
    """Measure or load, then report as asked."""
    parser = command.parser(__doc__)
    parser.add_argument("--sizes", type=lambda text: [int(size) for size in text.split(",")])
    return command.carry_out(parser.parse_args(), Row, run, line, tables)


if __name__ == "__main__":
    sys.exit(main())
