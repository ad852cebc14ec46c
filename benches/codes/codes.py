"""How near are the codes of each library to the weights? `python benches/codes/codes.py`.

README.md of `benches` says how they are judged. A row is one function of one library on one weight,
beside castwise's scales of least squared error in the same format.

A row is correct if each block has no more values than its codes, and castwise's also if the
portable level gives the same bits and no scales of least error are worse than the recipe's. Exit
code 1 if one is wrong; 2 if a file cannot be read or written.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import castwise
import numpy as np
import scores
import torch
from numpy.typing import NDArray
from producers import FORMATS, Castwise, Format, Producer, installed, on_portable

sys.path.append(str(Path(__file__).resolve().parents[1] / "real"))

from shared import command, files

Floats = NDArray[np.float32]

ROWS, COLUMNS = 256, 1024
REAL = {
    "minilm": (
        "encoder.layer.0.attention.self.query.weight", "encoder.layer.3.intermediate.dense.weight",
        "encoder.layer.3.output.dense.weight",
    ),
    "whisper": ("model.decoder.layers.1.fc1.weight", "model.decoder.layers.1.fc2.weight"),
    "gemma": (
        "model.layers.8.self_attn.q_proj.weight", "model.layers.8.mlp.gate_proj.weight",
        "model.layers.8.mlp.down_proj.weight",
    ),
}  # fmt: skip
"""The weights of real models, by the names of their functions in `benches/real/models.py`."""

DRAWN = ("normal", "Laplace", "Student t, 5 degrees")
IMPORTANCE = ", importance"
SLACK = 1e-6
OURS = Castwise.name
BOUND = 0.001
"""Decibels: how near to the least error castwise's searches of integers are, as its page states."""

MARKER = "codes"


@dataclass(frozen=True)
class Case:
    """A weight, and the mean products of its inputs with each other where it has inputs."""

    source: str
    name: str
    values: Floats
    moments: scores.Sums | None


@dataclass(frozen=True)
class Row:
    """One function on one weight.

    `sqnr` is the ratio of signal to noise of the weight in decibels, `output` that of its products
    with the inputs of a calibration. `ahead` is how many decibels castwise's scales of least error
    are above it, `low` and `high` its 95 % interval: of `output` where both have importance.
    """

    source: str
    weight: str
    format: str
    library: str
    function: str
    sqnr: float = field(metadata={"digits": 6})
    output: float | None = field(metadata={"digits": 6})
    ahead: float = field(metadata={"digits": 4})
    low: float = field(metadata={"digits": 4})
    high: float = field(metadata={"digits": 4})
    correct: bool


def cases(quick: bool) -> Iterator[Case]:
    """Draw weights, and take those of real models."""
    rng = np.random.default_rng(0)
    shape = (ROWS, COLUMNS)
    draws = (rng.standard_normal(shape), rng.laplace(size=shape), rng.standard_t(5, shape))
    for name, values in zip(DRAWN, draws, strict=True):
        yield Case("drawn", name, (0.02 * values).astype(np.float32), None)
    if quick:
        return
    import models  # noqa: PLC0415  (of `benches/real`)
    import networks  # noqa: PLC0415  (transformers takes seconds)

    for model, names in REAL.items():
        load = dict(models.models())[model]
        subject = networks.real(load, with_moments=True)
        for name in names:
            weight = subject.weights[name]
            rows = np.ascontiguousarray(weight[:: max(len(weight) // ROWS, 1)][:ROWS])
            yield Case(subject.name, name.removesuffix(".weight"), rows, subject.moments[name])


@dataclass(frozen=True)
class Decoded:
    """What a function made of a weight, with the sums of squares of its errors by row."""

    values: Floats
    noise: scores.Sums
    output_noise: scores.Sums | None


def decoded(case: Case, values: Floats) -> Decoded:
    """Judge what a function made."""
    error = values - case.values
    outputs = None if case.moments is None else scores.squares(error, case.moments)
    return Decoded(values, scores.squares(error), outputs)


def rows_of(case: Case, form: Format, producers: list[Producer]) -> Iterator[Row]:
    """Judge all functions of a format on one weight."""
    if case.values.shape[1] % (form.block or 1):
        return
    importance = None
    if case.moments is not None:
        importance = np.diag(case.moments).astype(np.float32)
    ours: dict[str, Decoded] = {}
    for producer in producers:
        for name, encode in producer.functions(form).items():
            weighs = name.endswith(IMPORTANCE)
            if weighs and importance is None:
                continue
            columns = importance if weighs else None
            found = decoded(case, encode(case.values, columns))
            correct = _is_decoded(found.values, form)
            if isinstance(producer, Castwise):
                ours[name] = found
                portable = on_portable(encode, case.values, columns)
                correct &= portable.tobytes() == found.values.tobytes()
                correct &= found.noise.sum() <= ours["amax"].noise.sum() * (1 + SLACK) or weighs
            best = ours.get(f"best{IMPORTANCE}" if weighs else "best", ours["amax"])
            yield _row(case, form, (producer.name, name), found, best, correct)


def _is_decoded(values: Floats, form: Format) -> bool:
    """Whether no block has more values than there are codes; blocks of blocks are not counted."""
    if not np.isfinite(values).all():
        return False
    if form.kind.endswith("_K"):
        return True
    blocks = np.sort(values.reshape(-1, form.block or values.shape[1]), axis=1)
    return bool((np.diff(blocks, axis=1) != 0).sum(axis=1).max() < 2**form.bits)


def _row(  # noqa: PLR0917
    case: Case,
    form: Format,
    names: tuple[str, str],
    found: Decoded,
    best: Decoded,
    correct: bool,
) -> Row:
    signal = scores.squares(case.values)
    output = None
    pair = best.noise, found.noise
    if case.moments is not None and found.output_noise is not None:
        output = scores.decibels(scores.squares(case.values, case.moments), found.output_noise)
        if names[1].endswith(IMPORTANCE) and best.output_noise is not None:
            pair = best.output_noise, found.output_noise
    ahead = scores.decibels(pair[1], pair[0])
    low, high = scores.decibel_interval(*pair)
    sqnr = scores.decibels(signal, found.noise)
    return Row(case.source, case.name, str(form), *names, sqnr, output, ahead, low, high, correct)


def line(row: Row) -> str:
    """One row for the terminal."""
    output = "" if row.output is None else f"{row.output:.2f}"
    return (
        f"{row.source:<14}{row.weight[-28:]:<30}{row.format:<28}{row.library:<15}"
        f"{row.function:<36}{row.sqnr:>7.2f} dB {output:>6}  {row.ahead:+.3f} "
        f"({row.low:+.3f} to {row.high:+.3f}) {'' if row.correct else 'WRONG'}"
    )


def run(options: argparse.Namespace) -> tuple[dict[str, str], Iterator[Row]]:
    """Judge everything, printing each row as it is done."""
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    producers = list(installed())
    versions: dict[str, str] = {}
    for producer in producers:
        versions |= producer.versions()
    facts = files.environment(versions, level=castwise.cpu_level(), threads="1")

    def rows() -> Iterator[Row]:
        for case in cases(options.quick):
            for form in FORMATS:
                for row in rows_of(case, form, producers):
                    print(line(row), flush=True)
                    yield row

    return facts, rows()


def tables(facts: dict[str, str], found: list[Row]) -> Iterator[tuple[str, str]]:
    """Give the table of formats and libraries, with its marker: each library's best function."""
    producers = [*dict.fromkeys(row.library for row in found if row.library != OURS)]
    header = ["format", f"{OURS}, `amax`", f"{OURS}, `best`", *producers, "won / tied / lost"]
    lines = [
        f"{facts['cpu']}, {facts['level']}; {facts['versions']}; {facts['date']}.",
    ]
    groups = (
        ("Drawn weights, dB of the weights", "drawn", False),
        ("Weights of real models, dB of the weights", "real", False),
        ("Weights of real models with importance, dB of the outputs", "real", True),
    )
    for title, source, weighs in groups:
        rows = [
            row
            for row in found
            if (row.source == "drawn") == (source == "drawn")
            and row.function.endswith(IMPORTANCE) == weighs
        ]
        if not rows:
            continue
        lines += [
            "",
            f"{title}:",
            "",
            f"| {' | '.join(header)} |",
            f"|---{'|--:' * len(header[1:])}|",
        ]
        for form in dict.fromkeys(row.format for row in rows):
            mine = [row for row in rows if row.format == form]
            means = {
                library: _means([row for row in mine if row.library == library])
                for library in (OURS, *producers)
            }
            ours = means.pop(OURS)
            best = next((ours[name] for name in ours if name.startswith("best")), "")
            cells = [ours.get("amax", ""), best]
            cells += [max(each.values(), key=float, default="") for each in means.values()]
            counts = " / ".join(map(str, _outcomes([row for row in mine if row.library != OURS])))
            lines.append(f"| {form} | {' | '.join(cells)} | {counts} |")
    yield MARKER, "\n".join(lines)


def _means(rows: list[Row]) -> dict[str, str]:
    """The mean ratio over weights, by function: of outputs where there is importance."""
    values: dict[str, list[float]] = {}
    for row in rows:
        weighs = row.function.endswith(IMPORTANCE) and row.output is not None
        values.setdefault(row.function, []).append(row.output if weighs else row.sqnr)  # type: ignore[arg-type]
    return {name: f"{np.mean(each):.2f}" for name, each in values.items()}


def _outcomes(rows: list[Row]) -> tuple[int, int, int]:
    """On how many weights, with how many functions, castwise's least error is less, or is more."""
    won = sum(row.low > 0 and row.ahead > BOUND for row in rows)
    lost = sum(row.high < 0 and row.ahead < -BOUND for row in rows)
    return won, len(rows) - won - lost, lost


def main() -> int:
    """Judge or load, then report as asked."""
    code: int = command.carry_out(command.parser(__doc__).parse_args(), Row, run, line, tables)
    return code


if __name__ == "__main__":
    sys.exit(main())
