"""What do schemes and advice do to real models? `python benches/real/judge.py`.

README.md of `benches` says how they are judged. A row is one model with a scheme for all its
weights, or with what castwise advises within a budget.

A row is correct if it takes no more bytes than its budget. Exit code 1 if one does; 2 if a file
cannot be read or written.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import castwise
import models
import numpy as np
import torch
from castwise import checkpoint
from castwise.quantization import dequantize, quantize, schemes
from models import Floats, RealModel
from numpy.typing import NDArray
from shared import command, files

RECIPE: Literal["compressed-tensors"] = "compressed-tensors"
ADVICE, WON, TIED, LOST = "advice", "won", "tied", "lost"
SCHEMES = (
    "int4_channel", "int4_group", "mxfp4", "nvfp4", "mxfp6_e2m3", "int8_channel", "fp8_channel",
    "mxfp8_e4m3", "int8_group",
)  # fmt: skip
SHARES = (0.3, 0.36, 0.42, 0.48, 0.54)
"""Budgets, as shares of the bytes of the weights that may change in 16 bits."""

LAST = (ADVICE, SHARES[-1])
"""The choice and the share of a model's last row."""

WIDE = "float16"
ENTRIES = 1000
"""Of the parts of a weight in headers, more than they are."""

SLACK = 200
ROUNDS = 8
SAMPLES = 2000
MARKERS = ("real", "real-schemes")

Choice = dict[str, str]

torch.set_num_threads(1)
torch.set_grad_enabled(False)


@dataclass(frozen=True)
class Row:
    """One choice.

    `nbytes` are of weights that may change; `predicted` and `measured` are the ratios of signal
    to noise of the weights, in decibels: by the advice, and of what was decoded. `error` is the
    mean over examples, `low` and `high` its 95 % interval; `figure` is that of the task. `ratio` is
    the error over that of the best scheme that fits, and `outcome` is the advice's.
    """

    model: str
    kind: str
    choice: str
    share: float | None
    nbytes: int
    predicted: float | None = field(metadata={"digits": 4})
    measured: float = field(metadata={"digits": 4})
    error: float = field(metadata={"digits": 4})
    low: float = field(metadata={"digits": 3})
    high: float = field(metadata={"digits": 3})
    figure: float = field(metadata={"digits": 4})
    ratio: float | None = field(metadata={"digits": 3})
    outcome: str
    correct: bool


class Judge:
    """A model, as a checkpoint, with what choices of its weights do."""

    def __init__(self, model: RealModel, folder: Path) -> None:
        self.model = model
        self._source = folder / "model"
        self._source.mkdir()
        checkpoint.save(self._source / "model.safetensors", model.weights)
        (self._source / "config.json").write_text(json.dumps(model.config))
        narrowest = checkpoint.advise(self._source, error=1e9, recipe=RECIPE)
        named = {row.name for row in schemes()}
        choices = [choice for choice in narrowest.choices if choice.target in named]
        self.names = [name for choice in choices for name in choice.tensors]
        self.exact = model.answer(self._tensors({}))
        self._marks: dict[Any, tuple[NDArray[np.float64], float]] = {}
        self._noise: dict[tuple[str, str], tuple[float, int]] = {}

    def _holds(self, name: str, scheme: str) -> bool:
        """Whether a scheme can hold a weight, in whole blocks."""
        shape = self.model.weights[name].shape
        columns = next(row.block[1] for row in schemes() if row.name == scheme)
        return len(shape) == 2 and not (columns and shape[1] % columns)

    def _stored(self, name: str, target: Any) -> tuple[Floats, int]:
        """A weight once decoded, and its bytes."""
        weight = self.model.weights[name]
        if target == WIDE:
            return castwise.cast(weight, target).astype(np.float32), 2 * weight.size
        stored = quantize(weight, target, recipe=RECIPE)
        nbytes = sum(part.nbytes for part in stored.parts().values())
        return np.asarray(dequantize(stored), np.float32), nbytes

    def noise(self, name: str, target: str) -> tuple[float, int]:
        """The relative squared error of a weight, and its bytes."""
        if (name, target) not in self._noise:
            decoded, nbytes = self._stored(name, target)
            weight = self.model.weights[name]
            noise, signal = (
                sum(float(np.square(rows, dtype=np.float64).sum()) for rows in values)
                for values in (map(np.subtract, decoded, weight), weight)
            )
            self._noise[name, target] = noise / signal, nbytes
        return self._noise[name, target]

    def _tensors(self, choice: Choice) -> dict[str, torch.Tensor]:
        arrays = dict(self.model.weights)
        for name, target in choice.items():
            arrays[name] = self._stored(name, target)[0]
        return {name: torch.from_numpy(array) for name, array in arrays.items()}

    def uniform(self, scheme: str) -> Choice:
        """One scheme, and 16 bits for weights that it cannot hold."""
        return {name: scheme if self._holds(name, scheme) else WIDE for name in self.names}

    def size(self, choice: Choice) -> int:
        """The bytes of a choice."""
        return sum(self.noise(name, target)[1] for name, target in choice.items())

    def advised(self, budget: int) -> tuple[Choice, float] | None:
        """What castwise advises within these bytes of the weights, and the error predicted."""
        rest = sum(array.nbytes for array in self.model.weights.values())
        rest -= sum(self.model.weights[name].nbytes for name in self.names)
        limit = budget + rest + ENTRIES * len(self.model.weights)
        best: tuple[Choice, float] | None = None
        for _ in range(ROUNDS):
            try:
                advice = checkpoint.advise(
                    self._source, budget=limit, formats=[*SCHEMES, WIDE], recipe=RECIPE
                )
            except checkpoint.CheckpointError:
                break
            choice = {name: row.target for row in advice.choices for name in row.tensors}
            choice = {name: choice[name] for name in self.names}
            choice = {name: WIDE if to == "keep" else to for name, to in choice.items()}
            size = self.size(choice)
            worst = [10 ** (-row.sqnr_db / 10) for row in advice.choices for _ in row.tensors]
            if size <= budget:
                if best is not None and np.mean(worst) >= best[1]:
                    break
                best = choice, float(np.mean(worst))
            limit += budget - size if size <= budget else min(budget - size, -SLACK)
        return best

    def marks(self, choice: Choice) -> tuple[NDArray[np.float64], float]:
        """The errors of examples, and the figure of the task."""
        key = tuple(choice.items())
        if key not in self._marks:
            outputs = self.model.answer(self._tensors(choice))
            self._marks[key] = self.model.mark(self.exact, outputs), self.model.figure(outputs)
        return self._marks[key]


def rows(names: list[str], recorded: list[Row]) -> Iterator[Row]:
    """Yield the recorded rows of models that were judged to the end, then judge the others."""
    judged = {row.model for row in recorded if (row.choice, row.share) == LAST}
    yield from (row for row in recorded if row.model in judged)
    for name, load in models.models():
        if names and name not in names:
            continue
        model = load()
        if model.name in judged:
            continue
        with tempfile.TemporaryDirectory() as folder:
            for row in _model_rows(Judge(model, Path(folder))):
                print(line(row), flush=True)
                yield row


def _model_rows(judge: Judge) -> Iterator[Row]:
    rng = np.random.default_rng(0)
    uniforms = {scheme: judge.uniform(scheme) for scheme in SCHEMES}
    for scheme, choice in uniforms.items():
        yield _row(judge, scheme, (None, None), choice, None, rng)
    half = sum(2 * judge.model.weights[name].size for name in judge.names)
    for share in SHARES:
        budget = int(share * half)
        fitting = [choice for choice in uniforms.values() if judge.size(choice) <= budget]
        advised = judge.advised(budget)
        if advised is None:
            continue
        best = min(fitting, key=lambda choice: judge.marks(choice)[0].mean(), default=None)
        yield _row(judge, ADVICE, (share, advised[1]), advised[0], best, rng)


def _row(  # noqa: PLR0917
    judge: Judge,
    name: str,
    limit: tuple[float | None, float | None],
    choice: Choice,
    best: Choice | None,
    rng: np.random.Generator,
) -> Row:
    marks, figure = judge.marks(choice)
    low, high = _interval(marks, rng)
    noise = float(np.mean([judge.noise(*pair)[0] for pair in choice.items()]))
    share, predicted = limit
    ratio, outcome = None, ""
    if best is not None:
        theirs, _ = judge.marks(best)
        ratio = float(marks.mean() / theirs.mean()) if theirs.any() else 1.0
        below, above = _interval(marks - theirs, rng)
        outcome = WON if above < 0 else LOST if below > 0 else TIED
    return Row(
        judge.model.name, judge.model.kind, name, share, judge.size(choice),
        None if predicted is None else -10 * math.log10(predicted), -10 * math.log10(noise),
        float(marks.mean()), low, high, figure, ratio, outcome, True,
    )  # fmt: skip


def _interval(values: NDArray[np.float64], rng: np.random.Generator) -> tuple[float, float]:
    """The 95 % interval of a mean, by bootstrap of the examples."""
    places = rng.integers(0, len(values), (SAMPLES, len(values)))
    low, high = np.quantile(values[places].mean(axis=1), (0.025, 0.975))
    return float(low), float(high)


def line(row: Row) -> str:
    """One row for the terminal."""
    share = "" if row.share is None else f"{100 * row.share:.0f} %"
    predicted = "" if row.predicted is None else f"{row.predicted:.1f}"
    return (
        f"{row.model:<20}{row.choice:<14}{share:>5}{row.nbytes:>12,}{predicted:>6}"
        f"{row.measured:>6.1f} dB  {row.error:.2e} ({row.low:.1e} to {row.high:.1e})"
        f"{row.figure:>8.3f}  {'' if row.ratio is None else f'{row.ratio:.2f}'} {row.outcome}"
    )


def run(options: argparse.Namespace) -> tuple[dict[str, str], Iterator[Row]]:
    """Judge everything that the record lacks, printing each row as it is done.

    ValueError: The record is of another machine, or of other versions.
    """
    packages = ("numpy", "torch", "transformers", "onnxruntime")
    versions = {"castwise": castwise.__version__} | {name: version(name) for name in packages}
    facts = files.environment(versions, level=castwise.cpu_level(), threads="1")
    facts, recorded = command.resume(options, facts, Row)
    return facts, rows(["silero"] if options.quick else options.models, recorded)


def tables(
    beside: list[Path], facts: dict[str, str], judged: list[Row]
) -> Iterator[tuple[str, str]]:
    """Give the README's tables, with their markers; `beside` has models that the record lacks."""
    source = f"{facts['cpu']}, {facts['level']}; {facts['versions']}; {facts['date']}."
    for path in beside:
        other, rows = files.read(path, Row)
        known = {row.model for row in judged}
        added = [row for row in rows if row.model not in known]
        judged = [*judged, *added]
        models_added = ", ".join(dict.fromkeys(row.model for row in added))
        source += f" {models_added}: {other['cpu']}, {other['level']}; {other['date']}."
    names = list(dict.fromkeys(row.model for row in judged))
    count = {word: sum(row.outcome == word for row in judged) for word in (WON, TIED, LOST)}
    lines = [
        f"The error with advice over that of the best single scheme that fits: won {count[WON]}, "
        f"tied {count[TIED]}, lost {count[LOST]}. {source}",
        "",
        f"| model | kind | {' | '.join(f'{100 * share:.0f} %' for share in SHARES)} |",
        f"|---|---|{'--:|' * len(SHARES)}",
    ]
    for name in names:
        mine = {row.share: row for row in judged if row.model == name and row.choice == ADVICE}
        cells = [
            f"{row.ratio:.2g}, {row.outcome}" if row is not None and row.ratio is not None else ""
            for row in map(mine.get, SHARES)
        ]
        kind = next(row.kind for row in judged if row.model == name)
        lines.append(f"| {name} | {kind} | {' | '.join(cells)} |")
    yield MARKERS[0], "\n".join(lines)
    yield MARKERS[1], _details(judged, names)


def _details(judged: list[Row], names: list[str]) -> str:
    """Errors, figures and the ratios of signal to noise, by model and choice."""
    lines = [
        "| model | choice | MB | SQNR predicted | measured | error | task |",
        "|---|---|--:|--:|--:|--:|--:|",
    ]
    for name, row in itertools.product(names, judged):
        if row.model == name:
            share = "" if row.share is None else f", {100 * row.share:.0f} %"
            predicted = "" if row.predicted is None else f"{row.predicted:.1f} dB"
            lines.append(
                f"| {name} | {row.choice}{share} | {row.nbytes / 1e6:.2f} | {predicted} | "
                f"{row.measured:.1f} dB | {row.error:.1e} | {row.figure:.3f} |"
            )
    return "\n".join(lines)


def main() -> int:
    """Judge or load, then report as asked."""
    parser = command.parser(__doc__)
    parser.add_argument(
        "--models", nargs="*", default=[], help="the names of functions in models.py"
    )
    parser.add_argument(
        "--beside", nargs="*", type=Path, default=[], help="records with other models, for tables"
    )
    options = parser.parse_args()
    code: int = command.carry_out(options, Row, run, line, partial(tables, options.beside))
    return code


if __name__ == "__main__":
    sys.exit(main())
