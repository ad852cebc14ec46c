"""Compare castwise.cast with its peers: `python benches/cast.py --help`.

README.md in this folder says what is measured and what the columns mean. Exit code 1 if a result is
wrong or, with --compare, something got slower; 2 if the arguments make no sense.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import avx2
import cases
import castwise
import competitors
import files
import numpy as np
import record
import report
from cases import Case
from expected import expected, wrong
from measure import Call, interleave, ratios
from numpy.typing import NDArray
from peers import CALLS, Astype, Castwise, Peer, Prepared
from record import Record, Row

REPEATS = 15
FEW_REPEATS = 3
BEHIND = 1.5
"""A peer that takes so many times as long as castwise is timed in few turns."""
FAR_BEHIND = 3.0
"""Pairs whose every peer takes so many times as long are not timed at larger sizes."""


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--pairs", default=None, help="source:target,... with wildcards, as 'float32:float8_*'")
    add("--all-pairs", action="store_true", help="every pair that castwise and astype both have")
    add("--sizes", type=numbers, default=None, help="elements, as 1,256,65536,1048576")
    add("--layouts", type=layouts, default=cases.LAYOUTS, help=",".join(cases.LAYOUTS))
    add("--peers", type=words, default=None, help="torch,... besides astype; default all installed")
    add("--threads", type=int, default=1, help="threads each peer may use (default 1)")
    add("--avx2", action="store_true", help="hold castwise and all peers to AVX2")
    add("--repeats", type=int, default=None, help=f"turns per case (default {REPEATS})")
    add("--quick", action="store_true", help="few pairs, sizes and turns: does it work at all")
    add("--csv", type=Path, nargs="?", const=Path(), help="record to FILE (default record/...)")
    add("--from", type=Path, dest="source", metavar="CSV", help="show a record, measure nothing")
    add("--compare", type=Path, metavar="OLD.csv", help="name what got slower since that record")
    add("--tolerance", type=float, default=0.15, help="growth that --compare forgives (0.15)")
    add("--readme", type=Path, metavar="FILE", help="put the table into FILE, at its markers")
    return parser.parse_args()


def numbers(text: str) -> tuple[int, ...]:
    """`1,256` as numbers above zero."""
    found = tuple(int(part.replace("_", "")) for part in text.split(","))
    if min(found) < 1:
        raise argparse.ArgumentTypeError("sizes are 1 or more")
    return found


def words(text: str) -> tuple[str, ...]:
    """`a,b` as names; none at all for an empty text."""
    return tuple(filter(None, text.split(",")))


def layouts(text: str) -> tuple[str, ...]:
    """Names of layouts, all known."""
    found = tuple(text.split(","))
    for name in set(found) - set(cases.LAYOUTS):
        raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(cases.LAYOUTS)}")
    return found


def chosen_pairs(options: argparse.Namespace) -> list[tuple[str, str]]:
    """List the pairs to time; with --all-pairs those that both sides can cast."""
    if not options.all_pairs:
        default = cases.QUICK_PAIRS if options.quick else cases.DEFAULT_PAIRS
        return cases.select_pairs(options.pairs or default)
    return [pair for pair in cases.select_pairs("*:*") if both_cast(*pair)]


def both_cast(source: str, target: str) -> bool:
    """Whether castwise and astype accept the pair (complex to real, say, castwise refuses)."""
    kinds = [castwise.finfo(name).kind for name in (source, target)]
    if kinds[0] == "complex" != kinds[1]:
        return False
    one = np.ones(1, cases.dtype(source))
    return all(peer.prepare(one, cases.dtype(target)) for peer in (Castwise(), Astype()))


def measure(case: Case, peers: Sequence[Peer], repeats: int) -> Iterator[Row]:
    """All peers on one case: check first, then time, fresh and into an existing array."""
    x, target = case.array(), cases.dtype(case.target)
    right = expected(x, target)
    prepared = {peer.name: peer.prepare(x, target) for peer in peers}
    for call in CALLS:
        calls = {name: found[call] for name, found in prepared.items() if call in found}
        errors = [check(ready, right) for ready in calls.values()]
        medians, relative = timed([ready.run for ready in calls.values()], repeats)
        for name, ns, ratio, error in zip(calls, medians, relative, errors, strict=True):
            yield Row(
                source=case.source,
                target=case.target,
                size=case.size,
                layout=case.layout,
                call=call,
                peer=name,
                ns=float(ns),
                gb_per_s=case.bytes / float(ns),
                ratio=float(ratio),
                wrong=error,
            )


def timed(calls: Sequence[Call], repeats: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Median nanoseconds of each call, and its ratio to the first; more turns where it is close."""
    times = interleave(calls, min(repeats, FEW_REPEATS))
    medians, relative = np.median(times, axis=1), ratios(times, reference=0)
    close = np.flatnonzero(relative < BEHIND).tolist()
    if repeats > FEW_REPEATS and len(close) > 1:
        times = interleave([calls[i] for i in close], repeats)
        medians[close], relative[close] = np.median(times, axis=1), ratios(times, reference=0)
    return medians, relative


def check(ready: Prepared, right: NDArray[Any] | None) -> int | None:
    """Elements that one call gets wrong; None where there is nothing to compare."""
    if ready.result is None or right is None:
        return None
    return wrong(ready.result(ready.run()), right)


def is_close(rows: Sequence[Row]) -> bool:
    """Whether a peer came near castwise in some call."""
    return any(
        row.ratio < FAR_BEHIND for row in rows if row.peer not in (Castwise.name, competitors.LIMIT)
    )


def run(options: argparse.Namespace) -> Record:
    """Measure everything asked for, printing each case as it is done."""
    peers = competitors.load(options.peers, options.threads)
    facts = record.environment(peers, options.threads)
    others = [peer.name for peer in peers[1:]]
    sizes = options.sizes or (cases.QUICK_SIZES if options.quick else cases.DEFAULT_SIZES)
    repeats = options.repeats or (FEW_REPEATS if options.quick else REPEATS)
    pairs = chosen_pairs(options)
    for name, value in facts.items():
        print(f"# {name}: {value}")
    print(report.heading(others))
    rows: list[Row] = []
    large = cases.large_pairs(pairs)
    for case in cases.cases(pairs, sizes, options.layouts):
        if case.size >= cases.LARGE and (case.source, case.target) not in large:
            continue
        found = list(measure(case, peers, repeats))
        if case.size == cases.IN_CACHE and is_close(found):
            large.add((case.source, case.target))
        for key, by_peer in Record(facts, found).by_peer().items():
            print(report.line(*key, by_peer, others), flush=True)
        rows += found
    return Record(facts, rows)


def main() -> int:
    """Measure or load, then report as asked."""
    options = arguments()
    if options.avx2:
        avx2.hold()
    try:
        old = record.read(options.compare) if options.compare else None
        with np.errstate(all="ignore"):
            new = record.read(options.source) if options.source else run(options)
        print(report.summary(new))
        if options.csv:
            path = record.default_path(new.environment) if options.csv == Path() else options.csv
            record.write(new, path)
            print(f"recorded in {path}")
        if options.readme:
            files.replace_in(options.readme, report.MARKER, report.markdown(new))
        if old:
            print(f"calls that {options.compare} has too: {record.compared(old, new)}")
    except (OSError, ValueError) as error:
        print(f"cast.py: {error}", file=sys.stderr)
        return 2
    behind = list(record.slower(old, new, options.tolerance)) if old else []
    for text in behind:
        print(f"slower than {options.compare}: {text}")
    return int(bool(behind) or any(row.wrong for row in new.rows if row.peer == "castwise"))


if __name__ == "__main__":
    sys.exit(main())
