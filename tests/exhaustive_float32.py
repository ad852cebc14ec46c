"""All 2**32 float32 inputs, to every format, against the oracle. Takes hours; not part of CI.

    python tests/exhaustive_float32.py [--targets bfloat16,float8_e4m3fn] [--roundings nearest-even]
                                       [--overflows ieee,saturate] [--levels avx2] [--threads 2]

A cast is a monotone step function; to formats of 16 bits or fewer its steps begin at the target's
values, its midpoints, and the float32 numbers next to these. So the oracle is asked for the first
and the last input of each step (they must be equal), and its answer is repeated along the step.
To wider formats it is asked for every input. Every result is compared, on every level.
Lists are separated by commas or spaces. Progress goes to stderr, disagreements to stdout.
Exit code: 0 all equal, 1 not.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import castwise
import numpy as np
import oracle

sys.path.append(str(Path(__file__).with_name("helpers")))

from comparison import first_wrong, wrong
from oracle import DETERMINISTIC, FORMATS, OVERFLOWS, ROUNDINGS, Array, Expected, Format
from sources import distinct, turning_points
from support import AVAILABLE, LEVELS, array_of, at_level, codes_of

SOURCE = FORMATS["float32"]
CHUNK = 1 << 20
INPUTS = 1 << 32


def step_starts(target: Format) -> Array | None:
    """List the float32 codes where a step of the cast begins; None if there are too many."""
    wraps = target.kind in ("int", "uint") and target.bits < 8
    if wraps or oracle.component(target).bits > 16:
        return None
    with np.errstate(over="ignore", under="ignore"):
        points = turning_points(target).astype(np.float32)
    first = [0, SOURCE.infinity, SOURCE.infinity + 1, SOURCE.magnitude_mask]  # type: ignore[operator]
    codes = np.concatenate([points.view(np.uint32), -points.view(np.uint32), first])
    magnitudes = distinct(codes.astype(np.uint64) & np.uint64(SOURCE.magnitude_mask))
    starts = np.concatenate([magnitudes, magnitudes + np.uint64(1)])
    return distinct(np.concatenate([starts, starts | np.uint64(SOURCE.sign_bit)]))


def expectations(
    codes: Array, target: Format, rounding: str, overflow: str
) -> tuple[Expected, ...]:
    cast = oracle.cast(codes, SOURCE, target)
    if rounding in DETERMINISTIC:
        return (cast.expected(rounding, overflow),)
    return cast.candidates(overflow)


def along_steps(
    codes: Array, starts: Array | None, target: Format, rounding: str, overflow: str
) -> tuple[Expected, ...]:
    """Compute what consecutive codes must become."""
    if starts is None:
        return expectations(codes, target, rounding, overflow)
    inside = starts[(starts > codes[0]) & (starts <= codes[-1])] - np.uint64(codes[0])
    bounds = np.concatenate([[0], inside.astype(np.int64), [codes.size]])
    firsts = expectations(codes[bounds[:-1]], target, rounding, overflow)
    lasts = expectations(codes[bounds[1:] - 1], target, rounding, overflow)
    for one, other in zip(firsts, lasts, strict=True):
        if not all(np.array_equal(*columns) for columns in zip(one, other, strict=True)):
            raise AssertionError(f"the steps to {target.name} are not where this script has them")
    lengths = np.diff(bounds)
    return tuple(Expected(*(np.repeat(column, lengths) for column in each)) for each in firsts)


def disagreement(
    codes: Array, right: tuple[Expected, ...], target: Format, options: dict[str, Any]
) -> str:
    """Describe what is wrong with one cast of consecutive codes; give "" if nothing is."""
    raises = options["overflow"] == "raise"
    seed = None if options["rounding"] in DETERMINISTIC else int(codes[0])
    must = np.logical_and.reduce([each.overflows for each in right]).any()
    may = np.logical_or.reduce([each.overflows for each in right]).any()
    try:
        result = castwise.cast(array_of(codes, SOURCE), target.name, seed=seed, **options)
    except OverflowError as error:
        return "" if raises and may else f"raised {error}"
    if raises and must:
        return "did not raise"
    got = codes_of(result, target)
    if target.part:
        if got[:, 1].any():
            return "has an imaginary part"
        got = got[:, 0]
    bad = wrong(got, codes, SOURCE, target, *right)
    return first_wrong(bad, codes, got, *right)


def chunks(what: str) -> Iterator[Array]:
    """Generate the codes of all inputs, and show the progress."""
    began = time.monotonic()
    for start in range(0, INPUTS, CHUNK):
        yield np.arange(start, start + CHUNK, dtype=np.uint64).astype(np.uint32)
        if sys.stderr.isatty():
            share = (start + CHUNK) / INPUTS
            print(
                f"\r{what}: {share:6.1%}, {time.monotonic() - began:.0f} s", end="", file=sys.stderr
            )
    print(f"\r{what}: done in {time.monotonic() - began:.0f} s", file=sys.stderr)


def compare_all(target: Format, levels: list[str], options: dict[str, Any]) -> int:
    """Compare one cast of every input on these levels; return how many chunks disagreed."""
    failures, starts = 0, step_starts(target)
    what = f"float32 to {target.name}, {options['rounding']}, {options['overflow']}"
    for codes in chunks(what):
        right = along_steps(codes, starts, target, options["rounding"], options["overflow"])
        for level in levels:
            with at_level(level):
                found = disagreement(codes, right, target, options)
            if found:
                failures += 1
                print(f"{what}, {level}: {found}", flush=True)
    return failures


class Listed(argparse.Action):
    """Accept words apart or joined by commas, each one of the choices."""

    def __init__(self, *, valid: tuple[str, ...], **options: Any) -> None:
        super().__init__(nargs="+", default=list(valid), metavar="NAME", **options)
        self.valid = valid

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option: str | None = None,
    ) -> None:
        words = [word for value in values for word in value.split(",") if word]
        for word in words:
            if word not in self.valid:
                parser.error(f"{option}: {word!r} is none of {', '.join(self.valid)}")
        setattr(namespace, self.dest, words)


def main() -> int:
    parser = argparse.ArgumentParser(description="All float32 inputs against the oracle.")
    names = tuple(row.name for row in AVAILABLE)
    for option, valid in (
        ("targets", names),
        ("roundings", ROUNDINGS),
        ("overflows", OVERFLOWS),
        ("levels", LEVELS),
    ):
        parser.add_argument(f"--{option}", action=Listed, valid=valid, help=", ".join(valid))
    parser.add_argument("--threads", type=int, default=1)
    chosen = parser.parse_args()
    began, failures = time.monotonic(), 0
    for name in chosen.targets:
        for rounding in chosen.roundings:
            for overflow in chosen.overflows:
                options = {"rounding": rounding, "overflow": overflow, "threads": chosen.threads}
                failures += compare_all(FORMATS[name], chosen.levels, options)
    print(f"{failures} disagreements, {time.monotonic() - began:.0f} s", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
