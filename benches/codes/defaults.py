"""Do scales of least squared error make better models? `python benches/codes/defaults.py`.

README.md of `benches` says how they are judged. A row is one network with one scheme and one way to
choose scales, beside the scales of the same scheme that the recipe computes.

A row is correct if no weight has a larger squared error than with these. Exit code 1 if one has; 2
if a file cannot be read or written.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import castwise
import numpy as np
import scores
from castwise.quantization import dequantize, quantize, schemes
from networks import Floats, Subject, subjects
from shared import command, files

RECIPE = "compressed-tensors"
"""That of `castwise quantize`, whose weights are bfloat16 as in the files of models."""

SCHEMES = (
    "nvfp4", "mxfp4", "mxfp6_e2m3", "mxfp8_e4m3", "int2_group", "int3_group", "int4_group",
    "int4_group, zero points", "int4_channel", "int5_group", "int6_group", "int8_group",
    "int8_channel",
)  # fmt: skip
AMAX, BEST, WEIGHTED, FOUR_OVER_SIX = "amax", "best", "best, importance", "four_over_six"
WAYS = (AMAX, BEST, WEIGHTED, FOUR_OVER_SIX)
SHARE = 0.9
"""A scheme's `best` should be the default if it is better on at least so many of the networks."""

SLACK = 1e-6
"""Relative: searches leave a scale where another one is better by less than float32 can tell."""

MARKER = "scales-networks"


@dataclass(frozen=True)
class Row:
    """One choice of scales.

    `sqnr` is the ratio of signal to noise of all weights together, in decibels. `error` is the mean
    over examples, `low` and `high` its 95 % interval; `ratio` is that over the error with `amax`,
    and `outcome` says whether the difference excludes zero.
    """

    kind: str
    network: str
    error_of: str
    scheme: str
    scales: str
    weights: int
    sqnr: float = field(metadata={"digits": 5})
    error: float = field(metadata={"digits": 5})
    low: float = field(metadata={"digits": 4})
    high: float = field(metadata={"digits": 4})
    ratio: float | None = field(metadata={"digits": 4})
    outcome: str
    correct: bool


def holding(weights: dict[str, Floats], scheme: str) -> dict[str, Floats]:
    """The weights that a scheme can hold in whole blocks."""
    columns = next(row.block[1] for row in schemes() if row.name == scheme)
    return {
        name: array for name, array in weights.items() if not (columns and array.shape[1] % columns)
    }


def quantized(weight: Floats, scheme: str, scales: str, importance: Floats | None) -> Floats:
    """A weight of bfloat16 with a scheme, decoded to float32."""
    name, _, points = scheme.partition(", ")
    options: dict[str, Any] = {"symmetric": not points, "scales": scales}
    if importance is not None:
        options["importance"] = importance
    stored = quantize(castwise.cast(weight, "bfloat16"), name, recipe=RECIPE, **options)  # type: ignore[arg-type]
    return np.asarray(dequantize(stored, "float32"))


def rows_of(subject: Subject, scheme: str) -> Iterator[Row]:
    """Judge one network with one scheme, each way."""
    weights = holding(subject.weights, scheme.partition(",")[0])
    if not weights:
        return
    rounded = {
        name: castwise.cast(castwise.cast(array, "bfloat16"), "float32")
        for name, array in weights.items()
    }
    signal = sum(float(scores.squares(array).sum()) for array in rounded.values())
    base: tuple[dict[str, float], scores.Sums] | None = None
    for way in WAYS:
        if way == FOUR_OVER_SIX and scheme != "nvfp4":
            continue
        importance = subject.importance if way == WEIGHTED else {}
        if way == WEIGHTED and not importance:
            continue
        changed = {
            name: quantized(array, scheme, BEST if way == WEIGHTED else way, importance.get(name))
            for name, array in weights.items()
        }
        noise = {
            name: float(scores.squares(array - rounded[name]).sum())
            for name, array in changed.items()
        }
        errors = subject.errors(changed)
        base = base or (noise, errors)
        least, theirs = base
        row = Row(
            subject.kind, subject.name, "KL" if subject.is_divergence else "outputs", scheme,
            way, len(weights), 10 * math.log10(signal / sum(noise.values())),
            float(errors.mean()), *scores.mean_interval(errors),
            None if way == AMAX else float(errors.mean() / theirs.mean()),
            "" if way == AMAX else scores.outcome(errors, theirs),
            way != BEST or all(noise[name] <= least[name] * (1 + SLACK) for name in noise),
        )  # fmt: skip
        print(line(row), flush=True)
        yield row


def rows(options: argparse.Namespace, recorded: list[Row]) -> Iterator[Row]:
    """Yield the recorded rows, then those of the networks that the record lacks."""
    yield from recorded
    judged = {(row.kind, row.network, row.scheme) for row in recorded}
    for subject in subjects(options.trained, ["silero"] if options.quick else options.networks):
        for scheme in options.schemes:
            if (subject.kind, subject.name, scheme) not in judged:
                # At once: a scheme of which the record has a part would not be judged to its end.
                yield from list(rows_of(subject, scheme))


def line(row: Row) -> str:
    """One row for the terminal."""
    ratio = "" if row.ratio is None else f"{row.ratio:.3f}"
    return (
        f"{row.kind:<22}{row.network[:30]:<32}{row.scheme:<24}{row.scales:<18}{row.sqnr:>7.2f} dB "
        f"{row.error:.3e} ({row.low:.1e} to {row.high:.1e}) {ratio:>6} {row.outcome:<5}"
        f"{'' if row.correct else 'WORSE WEIGHTS'}"
    )


def run(options: argparse.Namespace) -> tuple[dict[str, str], Iterator[Row]]:
    """Judge everything that the record lacks, printing each row as it is done.

    ValueError: The record is of another machine, or of other versions.
    """
    packages = ("numpy", "torch", "transformers", "scikit-learn")
    versions = {"castwise": castwise.__version__} | {name: version(name) for name in packages}
    facts = files.environment(versions, level=castwise.cpu_level(), threads="1")
    facts, recorded = command.resume(options, facts, Row)
    return facts, rows(options, recorded)


def tables(facts: dict[str, str], judged: list[Row]) -> Iterator[tuple[str, str]]:
    """Give the table of schemes, with its marker: a line for each scheme and way."""
    source = f"{facts['cpu']}, {facts['level']}; {facts['versions']}; {facts['date']}."
    networks = len({(row.kind, row.network) for row in judged})
    lines = [
        f"{networks} networks. {source}",
        "",
        "| scheme | `scales` | SQNR, dB more | networks with less error | won / tied / lost "
        "| ratio of errors | default |",
        "|---|---|--:|--:|--:|--:|---|",
    ]
    by_case = {(row.kind, row.network, row.scheme, row.scales): row for row in judged}
    for scheme in SCHEMES:
        for way in WAYS[1:]:
            mine = [row for row in judged if (row.scheme, row.scales) == (scheme, way)]
            if not mine:
                continue
            ratios = [row.ratio for row in mine if row.ratio is not None]
            better = sum(ratio < 1 for ratio in ratios)
            gains = [row.sqnr - by_case[row.kind, row.network, scheme, AMAX].sqnr for row in mine]
            counts = [
                sum(row.outcome == word for row in mine)
                for word in (scores.WON, scores.TIED, scores.LOST)
            ]
            verdict = ""
            if way == BEST:
                verdict = f"`{BEST if better >= SHARE * len(ratios) else AMAX}`"
            lines.append(
                f"| `{scheme.partition(',')[0]}`{''.join(scheme.partition(',')[1:])} | {way} "
                f"| {np.mean(gains):.2f} | {better} of {len(ratios)} "
                f"| {' / '.join(map(str, counts))} "
                f"| {np.exp(np.mean(np.log(ratios))):.2f} | {verdict} |"
            )
    yield MARKER, "\n".join(lines)


def main() -> int:
    """Judge or load, then report as asked."""
    parser = command.parser(__doc__)
    parser.add_argument(
        "--networks", nargs="*", default=[], help="dense, convolutions, transformer, or real ones"
    )
    parser.add_argument("--schemes", nargs="*", default=SCHEMES, choices=SCHEMES)
    parser.add_argument(
        "--trained", type=Path, metavar="FOLDER", help="keep what torch trains there"
    )
    code: int = command.carry_out(parser.parse_args(), Row, run, line, tables)
    return code


if __name__ == "__main__":
    sys.exit(main())
