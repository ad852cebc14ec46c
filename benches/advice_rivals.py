"""Other ways to choose a scheme for each weight, beside which `advise.py` puts castwise's.

All are written here from what their projects say or do; none of these projects is called. Where a
way leaves something open, it gets the best of its variants, chosen on the very examples that judge.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import numpy as np
from advice_exam import KEEP, NARROW, SCHEMES, Choice, Exam
from numpy.typing import NDArray

RANDOM = 15
FULL = 0.95
"""A random choice takes at least this part of the budget."""

_WIDE = (KEEP, "mxfp8_e4m3", "fp8_channel", "int8_channel")
_BACKUP = "int8_channel"
_LAYER = re.compile(r"layers\.(\d+)\.")

Costs = Callable[[Sequence[str], str], float]
"""What a target costs a group of weights."""


def uniform(exam: Exam, budget: int) -> Choice:
    """The best single scheme that fits."""
    return _best(exam, budget, map(exam.uniform, SCHEMES))


def ends(exam: Exam, budget: int) -> Choice:
    """From the first and the last weights inwards, each wide while that fits; the others narrow."""
    groups = exam.groups
    inwards = [groups[-place // 2 if place % 2 else place // 2] for place in range(len(groups))]
    choices: list[Choice] = []
    for narrow in NARROW:
        for wide in _WIDE:
            choice = exam.uniform(narrow)
            for group in inwards:
                if wide in exam.targets(group):
                    wider = choice | dict.fromkeys(group, wide)
                    choice = wider if exam.size(wider) <= budget else choice
            choices.append(choice)
    return _best(exam, budget, choices)


def random(exam: Exam, budget: int, rng: np.random.Generator) -> Choice:
    """The median of random choices that fill the budget."""
    choices = [_random(exam, budget, rng) for _ in range(RANDOM)]
    return sorted(choices, key=lambda choice: _divergence(exam, choice))[RANDOM // 2]


def _random(exam: Exam, budget: int, rng: np.random.Generator) -> Choice:
    """Walk at random to a choice that fills the budget."""

    def drawn(group: Sequence[str]) -> Choice:
        return dict.fromkeys(group, str(rng.choice(exam.targets(group))))

    def distance(choice: Choice) -> float:
        size = exam.size(choice)
        return max(FULL * budget - size, size - budget, 0.0)

    choice = {name: target for group in exam.groups for name, target in drawn(group).items()}
    while distance(choice) > 0:
        moved = choice | drawn(exam.groups[int(rng.integers(len(exam.groups)))])
        if distance(moved) <= distance(choice) or rng.random() < 0.1:
            choice = moved
    return choice


def nncf(exam: Exam, budget: int) -> Choice | None:
    """NNCF's criterion without data: the weights that lose most in 8 bits go to 4 bits first.

    Its score of a weight is one over the error of asymmetric int8 by row: the largest of the rows'
    mean squared errors. Weights of the least score become narrow until the rest fits as int8. Each
    weight is chosen alone.
    """
    order = sorted(exam.names, key=lambda name: -_int8_error(exam.values[name][KEEP]))
    choices: list[Choice] = []
    for narrow in NARROW:
        choice = exam.uniform(_BACKUP)
        for name in order:
            if exam.size(choice) <= budget:
                break
            if narrow in exam.nbytes[name]:
                choice[name] = narrow
        choices.append(choice)
    fitting = [choice for choice in choices if exam.size(choice) <= budget]
    return _best(exam, budget, fitting) if fitting else None


def _int8_error(weight: NDArray[np.float32]) -> float:
    low, high = weight.min(axis=1, keepdims=True), weight.max(axis=1, keepdims=True)
    step = np.maximum(high - low, np.finfo(np.float32).tiny) / 255
    zero = np.round(-low / step)
    codes = np.clip(np.round(weight / step) + zero, 0, 255)
    return float((((codes - zero) * step - weight) ** 2).mean(axis=1).max())


def llm_compressor(exam: Exam, budget: int) -> Choice | None:
    """Its heuristic for HIGGS: the least sum of mean squared errors, each times its location's.

    Location counts as the logarithm of the size, 5 % more with each layer, and by the kind of
    layer. The whole problem is solved exactly, as its integer program is.
    """

    def cost(group: Sequence[str], target: str) -> float:
        squares = {name: float((exam.values[name][KEEP] ** 2).mean()) for name in group}
        return sum(
            location(name, exam) * squares[name] * exam.noise(name, target) for name in group
        )

    return allocate(exam, cost, budget)


def llm_compressor_relative(exam: Exam, budget: int) -> Choice | None:
    """The same with relative squared errors."""

    def cost(group: Sequence[str], target: str) -> float:
        return sum(location(name, exam) * exam.noise(name, target) for name in group)

    return allocate(exam, cost, budget)


def location(name: str, exam: Exam) -> float:
    """How much llm-compressor lets the error of a weight count, by size, depth and kind."""
    match = _LAYER.search(name)
    depth = int(match[1]) if match else 0
    kind = 1.2 if "attn" in name else 0.9 if "mlp" in name else 1.0
    return math.log(exam.values[name][KEEP].size + 1) * (1 + 0.05 * depth) * kind


def single_divergences(exam: Exam) -> Costs:
    """What each group alone costs by each target, measured on the examples that judge."""
    kept = exam.uniform(KEEP)
    base = _divergence(exam, kept)

    def cost(group: Sequence[str], target: str) -> float:
        return _divergence(exam, kept | dict.fromkeys(group, target)) - base

    return cost


def bound(exam: Exam, budget: int) -> Choice | None:
    """The best that adding up can do: the least sum of divergences measured where it is judged."""
    return allocate(exam, single_divergences(exam), budget)


def fisher_importance(exam: Exam, rng: np.random.Generator) -> dict[str, float]:
    """The loss that a relative error of each weight makes to second order, from the gradients.

    Half the mean diagonal of the Fisher information times the sum of squares of the weight; the
    half is left out, as it is the same for all.
    """
    traces = exam.network.fisher(exam.network.calibration.inputs, rng)
    return {
        name: traces[name] * float((exam.values[name][KEEP] ** 2).mean()) for name in exam.names
    }


def measured_importance(exam: Exam) -> dict[str, float]:
    """The divergence that each weight alone makes in 4 bits, over its relative error there."""
    kept, calibration = exam.uniform(KEEP), exam.network.calibration
    base = exam.marks(kept, calibration).divergence.mean()
    importance: dict[str, float] = {}
    for name in exam.names:
        probe = next(target for target in ("mxfp4", "int4_channel") if target in exam.nbytes[name])
        divergence = exam.marks(kept | {name: probe}, calibration).divergence.mean() - base
        importance[name] = max(float(divergence), 0.0) / exam.noise(name, probe)
    return importance


def allocate(exam: Exam, cost: Costs, budget: int) -> Choice | None:
    """The choice of the least sum of costs that fits, by dynamic programming over bytes."""
    rows = [
        {target: sum(exam.nbytes[name][target] for name in group) for target in exam.targets(group)}
        for group in exam.groups
    ]
    unit = math.gcd(*(size for row in rows for size in row.values()))
    capacity = budget // unit
    least = np.zeros(capacity + 1)
    picks: list[NDArray[np.intp]] = []
    for group, row in zip(exam.groups, rows, strict=True):
        sums = np.full((len(row), capacity + 1), np.inf)
        for number, (target, size) in enumerate(row.items()):
            if size <= budget:
                sums[number, size // unit :] = least[: capacity + 1 - size // unit]
                sums[number] += cost(group, target)
        picks.append(sums.argmin(axis=0))
        least = sums.min(axis=0)
    if not math.isfinite(least[capacity]):
        return None
    choice: Choice = {}
    for group, row, pick in reversed(list(zip(exam.groups, rows, picks, strict=True))):
        target = list(row)[pick[capacity]]
        choice |= dict.fromkeys(group, target)
        capacity -= row[target] // unit
    return choice


def _divergence(exam: Exam, choice: Choice) -> float:
    return float(exam.marks(choice).divergence.mean())


def _best(exam: Exam, budget: int, choices: Iterator[Choice] | Sequence[Choice]) -> Choice:
    fitting = [choice for choice in choices if exam.size(choice) <= budget]
    return min(fitting, key=lambda choice: _divergence(exam, choice))


def choices(
    exam: Exam,
    budget: int,
    importances: Mapping[str, Mapping[str, float]],
    rng: np.random.Generator,
    ways: Sequence[str],
) -> Iterator[tuple[str, Choice]]:
    """Those of some ways that find a choice within a budget, by name."""
    by_way: dict[str, Callable[[], Choice | None]] = {
        "uniform": lambda: uniform(exam, budget),
        "random": lambda: random(exam, budget, rng),
        "ends": lambda: ends(exam, budget),
        "NNCF": lambda: nncf(exam, budget),
        "llm-compressor": lambda: llm_compressor(exam, budget),
        "llm-compressor, relative": lambda: llm_compressor_relative(exam, budget),
        "bound": lambda: bound(exam, budget),
    }
    for name, values in importances.items():
        by_way[name] = partial(exam.advised, budget, values)
    for name, make in by_way.items():
        if name in ways and (choice := make()) is not None:
            yield name, choice
