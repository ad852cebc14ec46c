"""Compare dtype policies and maps of them with Keras' own: `python benches/policies.py --help`.

README.md in this folder says what is measured and what the columns mean. Exit code 1 if a result is
wrong; 2 if a file cannot be read or written.
"""

from __future__ import annotations

import argparse
import gc
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from pathlib import Path
from timeit import Timer
from typing import Any

import files
import numpy as np
import policy_cases as cases
from measure import Call, block, interleave, ratios
from numpy.typing import NDArray
from policy_cases import QUICK, Builder, Effort, Keys, Lookups

MARKER = "policies"
STATEMENTS_PER_CALL = 1_000
FLAT = 3.0
README_KEYS = "mixed"


@dataclass(frozen=True)
class Row:
    """Castwise and Keras doing the same.

    `keys` and `size` are the map's; without one empty and 0. `paths` and `keras_paths` say how many
    either side looked up in a turn; times are for one. `ratio` is Keras' time over castwise's.
    `wrong` counts wrong answers of both sides, None where nothing was judged.
    """

    what: str
    keys: str
    size: int
    castwise_ns: float = field(metadata={"digits": 4})
    keras_ns: float = field(metadata={"digits": 4})
    ratio: float = field(metadata={"digits": 4})
    paths: int
    keras_paths: int
    wrong: int | None

    @property
    def name(self) -> str:
        """What was measured, in words."""
        return f"{self.what}, {self.size:,} {self.keys} keys" if self.keys else self.what


@dataclass(frozen=True)
class Record:
    """A run: its environment and its rows."""

    environment: dict[str, str]
    rows: list[Row]


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--quick", action="store_true", help="few sizes, paths and turns: does it work at all")
    add("--csv", type=Path, nargs="?", const=Path(), help="record to FILE (default record/...)")
    add("--from", type=Path, dest="source", metavar="CSV", help="show a record, measure nothing")
    add("--readme", type=Path, metavar="FILE", help="put the table into FILE, at its markers")
    return parser.parse_args()


# What is timed.


def rows(effort: Effort) -> Iterator[Row]:
    """Measure everything."""
    if effort.imports:
        yield imports(effort)
    yield from statements(effort)
    for keys in cases.KEYS:
        yield from maps(keys, effort)


def row(what: str, times: NDArray[np.float64], wrong: int | None, **where: Any) -> Row:
    """Make a row of nanoseconds: castwise's turns, then Keras'."""
    own, other = np.median(times, axis=1)
    values: dict[str, Any] = {"keys": "", "size": 0, "paths": 0, "keras_paths": 0} | where
    return Row(
        what=what,
        castwise_ns=float(own),
        keras_ns=float(other),
        ratio=float(ratios(times, reference=0)[1]),
        wrong=wrong,
        **values,
    )


def imports(effort: Effort) -> Row:
    """Import the package in a new process that has imported numpy and ml_dtypes before."""
    with tempfile.TemporaryDirectory() as bytecode:
        turns = range(1 + effort.imports)
        times = [[import_ns(side.name, bytecode) for side in cases.sides()] for _ in turns]
    # The first turn writes the bytecode.
    return row("import after numpy, ml_dtypes", np.array(times[1:]).T, None)


def import_ns(package: str, bytecode: str) -> float:
    """Nanoseconds that a new process needs to import a package, with bytecode in a folder."""
    program = (
        "import numpy, ml_dtypes, time; start = time.perf_counter_ns(); "
        f"import {package}; print(time.perf_counter_ns() - start)"
    )
    variables = {**os.environ, "PYTHONPYCACHEPREFIX": bytecode, "PYTHONDONTWRITEBYTECODE": ""}
    command = [sys.executable, "-c", program]
    return float(subprocess.run(command, check=True, capture_output=True, env=variables).stdout)


def statements(effort: Effort) -> Iterator[Row]:
    """Make a policy, read it."""
    for statement in cases.STATEMENTS:
        spaces = [side.namespace() for side in cases.sides()]
        own, other = (cases.answer(eval(statement, space)) for space in spaces)  # noqa: S307
        # timeit compiles the statement into its loop: no call is timed that the user does not make.
        timers = [Timer(statement, globals=space).timeit for space in spaces]
        calls = [partial(timer, STATEMENTS_PER_CALL) for timer in timers]
        times = interleave(calls, effort.repeats) / STATEMENTS_PER_CALL
        yield row(statement, times, int(own != other))


def maps(keys: Keys, effort: Effort) -> Iterator[Row]:
    """Build maps, look up paths in them; all sizes in turn, so that they can be compared too."""
    builders = [Builder(side, keys, size) for side in cases.sides() for size in effort.sizes]
    calls = [builder.prepare for builder in builders]
    yield from by_size("build", once_each(calls, effort), builders)
    firsts = [partial(builder.prepare, builder.path) for builder in builders]
    yield from by_size("build and first lookup", once_each(firsts, effort), builders)
    for case in cases.LOOKUPS:
        lookups = [Lookups(builder, case, effort) for builder in builders]
        # Few paths, those of few literal keys, are over too soon to be timed once.
        many = [looked for looked in lookups if len(looked.right) == effort.paths]
        if many:
            times = once_each([looked.first_time for looked in many], effort)
            yield from by_size(f"{case}, first time", times, many)
        times = interleave([looked.again for looked in lookups], effort.repeats)
        rounds = np.array([[looked.rounds] for looked in lookups])
        yield from by_size(f"{case}, repeated", times / rounds, lookups)


def by_size(
    what: str, times: NDArray[np.float64], timed: Sequence[Builder | Lookups]
) -> Iterator[Row]:
    """Make a row of each size; castwise's sizes come first, then Keras'."""
    sizes = len(timed) // 2
    for place in range(sizes):
        pair = [place, place + sizes]
        own, other = (timed[side] for side in pair)
        counts = np.array([[max(len(side.paths), 1)] for side in (own, other)])
        yield row(
            what,
            times[pair] / counts,
            own.wrong() + other.wrong(),
            keys=own.keys.name,
            size=own.size,
            paths=len(own.paths),
            keras_paths=len(other.paths),
        )


def once_each(prepare: Sequence[Callable[[], Call]], effort: Effort) -> NDArray[np.float64]:
    """As `interleave`, of calls that are what they are only once and are prepared for each turn."""
    times = np.empty((len(prepare), effort.repeats))
    for turn in range(effort.repeats):
        for place, make in enumerate(prepare):
            call = make()
            gc.disable()
            try:
                times[place, turn] = block(call, 1)
            finally:
                gc.enable()
    return times


# How it is shown.

HEADING = (
    f"{'what':<33}{'keys':<12}{'size':>7} {'castwise ns':>12} {'keras ns':>14} {'ratio':>10} "
    f"{'paths':>13}  correct"
)


def line(found: Row) -> str:
    """One row for the terminal."""
    paths = f"{found.paths:,}/{found.keras_paths:,}" if found.paths else ""
    size = f"{found.size:,}" if found.size else ""
    return (
        f"{found.what:<33}{found.keys:<12}{size:>7} {found.castwise_ns:>12,.0f} "
        f"{found.keras_ns:>14,.0f} {found.ratio:>9,.2f}x {paths:>13}  {verdict(found)}"
    )


def verdict(found: Row) -> str:
    """`yes`, or how many answers are wrong."""
    if found.wrong is None:
        return "not judged"
    return f"NO, {found.wrong} wrong" if found.wrong else "yes"


def flatness(new: Record) -> Iterator[tuple[float, Row]]:
    """Lookups in the largest map: how many times longer they take than in the smallest."""
    lookups: dict[tuple[str, str], list[Row]] = {}
    for found in new.rows:
        if found.paths:
            lookups.setdefault((found.keys, found.what), []).append(found)
    for group in lookups.values():
        by_size = sorted(group, key=lambda found: found.size)
        if len(group) > 1:
            yield by_size[-1].castwise_ns / by_size[0].castwise_ns, by_size[-1]


def summary(new: Record) -> str:
    """Say what to look at: wrong answers, what Keras does faster, and what the size slows down."""
    wrong = [found for found in new.rows if found.wrong]
    behind = sorted((found.ratio, found.name) for found in new.rows if found.ratio < 1)
    lines = [f"{len(new.rows)} measured, {len(wrong)} wrong, {len(behind)} slower than keras"]
    lines += [f"  wrong: {found.name}" for found in wrong]
    lines += [f"  {ratio:.2f}x keras: {name}" for ratio, name in behind]
    lines.append(f"castwise's lookups, largest map over smallest; flat is within {FLAT:g}x:")
    for growth, largest in flatness(new):
        mark = "" if growth <= FLAT else ", NOT FLAT"
        lines.append(f"  {growth:,.2f}x{mark}: {largest.name}")
    return "\n".join(lines)


def figure(value: float) -> str:
    """Format a number with three digits or more."""
    return f"{value:,.{0 if value >= 100 else 1 if value >= 10 else 2}f}"


def duration(ns: float) -> str:
    """Format a time in the unit that fits it."""
    for unit, scale in (("ms", 1e6), ("µs", 1e3)):
        if ns >= scale:
            return f"{figure(ns / scale)} {unit}"
    return f"{figure(ns)} ns"


def markdown(new: Record) -> str:
    """Format the README's table: one policy, maps of mixed keys, and the import."""
    facts = new.environment
    growths = [growth for growth, largest in flatness(new) if largest.keys == README_KEYS]
    lines = [
        "Time of one call; ratios are Keras' times over castwise's. From the smallest map to the "
        f"largest, castwise's lookups grow {min(growths):.1f} to {max(growths):.1f} times as long. "
        f"{facts['cpu']}; {facts['versions']}; {facts['date']}.",
        "",
        "| | keys | castwise | Keras | ratio | same answer |",
        "|---|--:|--:|--:|--:|---|",
    ]
    for found in new.rows:
        if found.keys not in ("", README_KEYS) or found.what.endswith("repeated"):
            continue
        times = f"{duration(found.castwise_ns)} | {duration(found.keras_ns)}"
        what = f"`{found.what}`" if not found.size and found.wrong is not None else found.what
        size = f"{found.size:,}" if found.size else ""
        lines.append(f"| {what} | {size} | {times} | {figure(found.ratio)}x | {verdict(found)} |")
    return "\n".join(lines)


def environment() -> dict[str, str]:
    """Machine and versions; policies have no CPU level, and use one thread."""
    names = ("castwise", "numpy", "ml_dtypes", "keras")
    return files.environment({name: version(name) for name in names})


def run(effort: Effort) -> Record:
    """Measure everything, printing each row as it is done."""
    cases.sides()
    new = Record(environment(), [])
    for name, value in new.environment.items():
        print(f"# {name}: {value}")
    print(HEADING)
    for found in rows(effort):
        print(line(found), flush=True)
        new.rows.append(found)
    return new


def main() -> int:
    """Measure or load, then report as asked."""
    options = arguments()
    try:
        new = (
            Record(*files.read(options.source, Row))
            if options.source
            else run(QUICK if options.quick else Effort())
        )
        print(summary(new))
        if options.csv:
            default = files.default_path(new.environment, "policies")
            path = default if options.csv == Path() else options.csv
            files.write(path, new.environment, new.rows)
            print(f"recorded in {path}")
        if options.readme:
            files.replace_in(options.readme, MARKER, markdown(new))
    except (OSError, ValueError) as error:
        print(f"policies.py: {error}", file=sys.stderr)
        return 2
    return int(any(found.wrong for found in new.rows))


if __name__ == "__main__":
    sys.exit(main())
