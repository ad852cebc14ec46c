"""Does advice choose well? Networks, judged where nothing was chosen: `python benches/advise.py`.

README.md in this folder says how they are judged. A row is one network, budget and way to choose:
castwise's advice, the ways of `advice_rivals.py`, and advice with an importance of each weight.

A row is correct if its choice takes no more bytes than the budget. Exit code 1 if one does; 2 if a
file cannot be read or written.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

import advice_networks
import advice_rivals
import castwise
import command
import files
import numpy as np
from advice_exam import KEEP, Exam
from advice_networks import Network
from numpy.typing import NDArray

SHARES = (0.3, 0.36, 0.42, 0.48, 0.54)
"""Budgets, as shares of the weights that may change in bfloat16."""

QUICK_SHARES = (0.42,)
SAMPLES = 2000
ADVICE = "advice"
WAYS = {
    "uniform": "the best single scheme that fits",
    "random": "random, the median of 15",
    "ends": "first and last layers wide",
    "NNCF": "NNCF's criterion without data",
    "llm-compressor": "llm-compressor's HIGGS heuristic",
    "llm-compressor, relative": "the same with relative errors",
    "Fisher": "advice with importance: Fisher",
    "measured": "advice with importance: measured",
    "bound": "measured divergences, added up",
}
WON, TIED, LOST = "won", "tied", "lost"
MARKERS = ("advise", "advise-transformer")


@dataclass(frozen=True)
class Row:
    """One choice.

    `divergence` is the mean over held-out examples of the Kullback-Leibler divergence from the
    float32 network, `low` and `high` its 95 % interval; `cross_entropy` is against the labels, and
    `rise` is its difference from the float32 network's. `ratio` is the divergence over that of the
    advice within the same bytes, and `outcome` is the advice's.
    """

    kind: str
    shape: str
    seed: int
    share: float
    way: str
    nbytes: int
    divergence: float = field(metadata={"digits": 5})
    low: float = field(metadata={"digits": 4})
    high: float = field(metadata={"digits": 4})
    cross_entropy: float = field(metadata={"digits": 6})
    rise: float = field(metadata={"digits": 4})
    ratio: float = field(metadata={"digits": 4})
    outcome: str
    correct: bool


def networks(quick: bool, kept: Path | None) -> Iterator[Network]:
    """Train all networks; quickly, some, and those of torch hardly and where it is installed."""
    yield from advice_networks.dense_networks(2 if quick else 15)
    if quick and importlib.util.find_spec("torch") is None:
        return
    import advice_torch  # noqa: PLC0415  (not where it is not installed)

    yield from advice_torch.convolutional_networks(*(1, 5, 64) if quick else (3, 300, 599), kept)
    yield from advice_torch.transformers(*(1, 2, 4) if quick else (1, 1200, 128), kept)


def rows(quick: bool, kept: Path | None, ways: Sequence[str]) -> Iterator[Row]:
    """Judge all networks and budgets, and some ways."""
    for network in networks(quick, kept):
        rng = np.random.default_rng(network.seed)
        with tempfile.TemporaryDirectory() as folder:
            exam = Exam(network, Path(folder))
            importances: dict[str, dict[str, float]] = {}
            if "Fisher" in ways:
                importances["Fisher"] = advice_rivals.fisher_importance(exam, rng)
            if "measured" in ways:
                importances["measured"] = advice_rivals.measured_importance(exam)
            for share in QUICK_SHARES if quick else SHARES:
                budget = int(share * exam.size(exam.uniform(KEEP)))
                advised = exam.advised(budget)
                if advised is None:
                    continue
                others = advice_rivals.choices(exam, budget, importances, rng, ways)
                for way, choice in itertools.chain([(ADVICE, advised)], others):
                    yield _row(exam, (share, budget), way, (choice, advised), rng)


def _row(
    exam: Exam,
    limit: tuple[float, int],
    way: str,
    choices: tuple[dict[str, str], dict[str, str]],
    rng: np.random.Generator,
) -> Row:
    network, (share, budget) = exam.network, limit
    marks, ours = map(exam.marks, choices)
    low, high = _interval(marks.divergence, rng)
    size, mean = exam.size(choices[0]), float(marks.divergence.mean())
    entropy = float(marks.cross_entropy.mean())
    return Row(
        *(network.kind, network.shape, network.seed, share, way, size, mean, low, high, entropy),
        entropy - exam.cross_entropy,
        mean / float(ours.divergence.mean()),
        "" if way == ADVICE else _outcome(marks.divergence - ours.divergence, rng),
        size <= budget,
    )


def _interval(values: NDArray[np.float64], rng: np.random.Generator) -> tuple[float, float]:
    """The 95 % interval of a mean, by bootstrap of the examples."""
    places = rng.integers(0, len(values), (SAMPLES, len(values)))
    low, high = np.quantile(values[places].mean(axis=1), (0.025, 0.975))
    return float(low), float(high)


def _outcome(differences: NDArray[np.float64], rng: np.random.Generator) -> str:
    """Whether the advice is better for sure, or worse; tied if the interval includes zero."""
    low, high = _interval(differences, rng)
    return WON if low > 0 else LOST if high < 0 else TIED


def line(row: Row) -> str:
    """One row for the terminal."""
    return (
        f"{row.kind:<22}{row.shape[:24]:<26}{row.seed:>2}{100 * row.share:>5.0f} %  {row.way:<26}"
        f"{row.nbytes:>10,}  {row.divergence:.2e} ({row.low:.1e} to {row.high:.1e})"
        f"{row.ratio:>8.2f}  {row.outcome:<5}{'' if row.correct else 'TOO LARGE'}"
    )


def run(options: argparse.Namespace) -> tuple[dict[str, str], Iterator[Row]]:
    """Judge everything, printing each row as it is done."""
    modules = {
        "numpy": "numpy",
        "ml_dtypes": "ml_dtypes",
        "scikit-learn": "sklearn",
        "torch": "torch",
    }
    versions = {"castwise": castwise.__version__} | {
        name: version(name)
        for name, module in modules.items()
        if importlib.util.find_spec(module) is not None
    }
    facts = files.environment(versions, level=castwise.cpu_level(), threads="1")

    def judged() -> Iterator[Row]:
        for row in rows(options.quick, options.trained, options.ways):
            print(line(row), flush=True)
            yield row

    return facts, judged()


def tables(facts: dict[str, str], judged: list[Row]) -> Iterator[tuple[str, str]]:
    """Give the README's tables, with their markers."""
    kinds = list(dict.fromkeys(row.kind for row in judged))
    source = f"{facts['cpu']}, {facts['level']}; {facts['versions']}; {facts['date']}."
    lines = [
        "Comparisons that the advice won / tied / lost, and the median of the other divergence "
        f"over that of the advice. {source}",
        "",
        f"| beside | {' | '.join(kinds)} |",
        f"|---|{'---|' * len(kinds)}",
    ]
    for way, text in WAYS.items():
        if all(row.way != way for row in judged):
            continue
        cells = [
            _summary([row for row in judged if (row.kind, row.way) == (kind, way)])
            for kind in kinds
        ]
        lines.append(f"| {text} | {' | '.join(cells)} |")
    yield MARKERS[0], "\n".join(lines)
    yield MARKERS[1], _details(judged, kinds[-1])


def _summary(chosen: Sequence[Row]) -> str:
    counts = [sum(row.outcome == word for row in chosen) for word in (WON, TIED, LOST)]
    if not chosen:
        return ""
    return f"{' / '.join(map(str, counts))}, {np.median([row.ratio for row in chosen]):.2f}x"


def _details(judged: Sequence[Row], kind: str) -> str:
    """The divergences by budget, and the rise of cross-entropy with the advice."""
    names = [ADVICE, *WAYS]
    exact = next(row.cross_entropy - row.rise for row in judged if row.kind == kind)
    lines = [
        f"{kind}: mean divergence in thousandths of a nat, by budget; in the last column what the "
        f"advice adds to the cross-entropy, of {exact:.2f} nats in float32.",
        "",
        f"| of bfloat16 | {' | '.join(names)} | added |",
        f"|--:|{'--:|' * (len(names) + 1)}",
    ]
    for share in dict.fromkeys(row.share for row in judged):
        means: list[str] = []
        for name in names:
            chosen = [
                row for row in judged if (row.kind, row.share, row.way) == (kind, share, name)
            ]
            means.append(f"{1000 * np.mean([r.divergence for r in chosen]):.3g}" if chosen else "")
        ours = [row for row in judged if (row.kind, row.share, row.way) == (kind, share, ADVICE)]
        rise = 1000 * np.mean([row.rise for row in ours]) if ours else np.nan
        lines.append(f"| {100 * share:.0f} % | {' | '.join(means)} | {rise:+.2g} |")
    return "\n".join(lines)


def main() -> int:
    """Judge or load, then report as asked."""
    parser = command.parser(__doc__)
    parser.add_argument(
        "--trained", type=Path, metavar="FOLDER", help="keep what torch trains there"
    )
    parser.add_argument("--ways", nargs="*", default=[*WAYS], choices=[*WAYS])
    options = parser.parse_args()
    return command.carry_out(options, Row, run, line, tables)


if __name__ == "__main__":
    sys.exit(main())
