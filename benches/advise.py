"""Does advice choose well? Networks on scikit-learn's digits: `python benches/advise.py`.

Fifteen networks (three shapes, five seeds) are trained on two thirds of the images, in a minute.
For each of five budgets `castwise.checkpoint.advise` chooses a scheme for each layer, without data.
The result is judged by the mean Kullback-Leibler divergence of its predictions from those of the
float32 network, on the images that nothing was chosen on; beside it:

- uniform: of the single schemes that fit, the one with the least divergence on these very images;
- random: the median of 15 random assignments that fit, and fill 95 % of the budget;
- ends: the first and the last layer as wide as fits, the others as narrow.

A comparison is won or lost if the 95 % interval of the mean difference, by 2,000 bootstrap samples
of the images, excludes zero; else it is a tie. Exit code 2 if a file cannot be read or written.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import castwise
import files
import numpy as np
from castwise import checkpoint
from castwise.quantization import dequantize, quantize
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

SHAPES = ((64, 128, 64, 10), (64, 128, 128, 64, 64, 10), (64, 256, 256, 10))
SEEDS = range(5)
SCHEMES = (
    "nvfp4",
    "mxfp4",
    "mxfp6_e2m3",
    "mxfp8_e4m3",
    "fp8_channel",
    "int4_channel",
    "int8_channel",
)
SHARES = (0.3, 0.36, 0.42, 0.48, 0.54)
"""Budgets, as shares of the weights in bfloat16."""

TEST_IMAGES = 599  # a third of the 1,797
RECIPE: Any = "compressed-tensors"
RANDOM = 15
SAMPLES = 2000
STEPS = 600
MARKER = "advise"
Floats = NDArray[np.float32]
Network = dict[str, Floats]


def train(widths: Sequence[int], seed: int, images: Floats, labels: NDArray[np.int64]) -> Network:
    """Train a network of ReLU layers by Adam on whole batches of 256 images."""
    rng = np.random.default_rng(seed)
    weights = {
        f"layers.{layer}.weight": rng.standard_normal((after, before)).astype(np.float32)
        * np.float32(np.sqrt(2 / before))
        for layer, (before, after) in enumerate(itertools.pairwise(widths))
    }
    moments = {name: [np.zeros_like(weight)] * 2 for name, weight in weights.items()}
    for step in range(1, STEPS + 1):
        places = rng.integers(0, len(images), 256)
        x, wanted = images[places], np.eye(10, dtype=np.float32)[labels[places]]
        outputs = [x]
        for name, weight in weights.items():
            x = outputs[-1] @ weight.T
            outputs.append(x if name == last(weights) else np.maximum(x, 0))
        slope = (probabilities(outputs[-1]) - wanted) / len(places)
        for layer, name in reversed(list(enumerate(weights))):
            gradient = slope.T @ outputs[layer]
            slope = (slope @ weights[name]) * (outputs[layer] > 0)
            first, second = moments[name]
            first, second = 0.9 * first + 0.1 * gradient, 0.99 * second + 0.01 * gradient**2
            moments[name] = [first, second]
            size = (first / (1 - 0.9**step)) / (np.sqrt(second / (1 - 0.99**step)) + 1e-8)
            weights[name] = (weights[name] - 2e-3 * size).astype(np.float32)
    return weights


def last(weights: Mapping[str, Any]) -> str:
    """The name of the last layer."""
    return list(weights)[-1]


def probabilities(logits: Floats) -> Floats:
    """The softmax of rows."""
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    result: Floats = powers / powers.sum(axis=1, keepdims=True)
    return result


def predict(weights: Network, x: Floats) -> Floats:
    """What a network predicts."""
    for name, weight in weights.items():
        x = x @ weight.T
        if name != last(weights):
            x = np.maximum(x, 0)
    return probabilities(x)


class Case:
    """A network, its layers by every scheme, and their bytes."""

    def __init__(self, weights: Network, images: Floats) -> None:
        self.images = images
        self.exact = predict(weights, images)
        # As a checkpoint of 16 bits, from which schemes are made.
        rounded = {name: castwise.cast(array, "bfloat16") for name, array in weights.items()}
        self.source = rounded
        self.layers: dict[str, dict[str, Floats]] = {}
        self.nbytes: dict[str, dict[str, int]] = {}
        for name, weight in rounded.items():
            self.layers[name] = {"keep": weight.astype(np.float32)}
            self.nbytes[name] = {"keep": weight.nbytes}
            for scheme in SCHEMES:
                stored: Any = quantize(weight, scheme, recipe=RECIPE)  # type: ignore[arg-type]
                self.layers[name][scheme] = np.asarray(dequantize(stored, "float32"))
                self.nbytes[name][scheme] = stored.nbytes

    def size(self, choice: Mapping[str, str]) -> int:
        """The bytes of a choice."""
        return sum(self.nbytes[name][target] for name, target in choice.items())

    def divergences(self, choice: Mapping[str, str]) -> NDArray[np.float64]:
        """The divergence of each image's prediction."""
        network = {name: layers[choice[name]] for name, layers in self.layers.items()}
        exact = self.exact.astype(np.float64)
        ratio = np.log((exact + 1e-12) / (predict(network, self.images) + 1e-12))
        result: NDArray[np.float64] = (exact * ratio).sum(axis=1)
        return result

    def advised(self, folder: Path, budget: int) -> dict[str, str] | None:
        """What castwise advises."""
        path = folder / "network.safetensors"
        if not path.exists():
            checkpoint.save(path, self.source)
        whole = checkpoint.advise(path, budget="1GB", formats=SCHEMES, recipe=RECIPE)
        beside = whole.nbytes - sum(choice.nbytes for choice in whole.choices)
        try:
            advice = checkpoint.advise(path, budget=budget + beside, formats=SCHEMES, recipe=RECIPE)
        except checkpoint.CheckpointError:
            return None
        return {name: choice.target for choice in advice.choices for name in choice.tensors}

    def peers(self, budget: int, rng: np.random.Generator) -> Iterator[tuple[str, NDArray[Any]]]:
        """The divergences of the other ways to choose."""
        uniform = [dict.fromkeys(self.layers, scheme) for scheme in SCHEMES]
        fitting = [self.divergences(choice) for choice in uniform if self.size(choice) <= budget]
        yield "uniform", min(fitting, key=np.mean)
        assignments: list[NDArray[np.float64]] = []
        while len(assignments) < RANDOM:
            choice = {name: str(rng.choice(["keep", *SCHEMES])) for name in self.layers}
            if 0.95 * budget <= self.size(choice) <= budget:
                assignments.append(self.divergences(choice))
        yield "random", sorted(assignments, key=np.mean)[RANDOM // 2]
        names = list(self.layers)
        choice = min((dict.fromkeys(names, scheme) for scheme in SCHEMES), key=self.size)
        for name in (names[0], names[-1], *names[1:-1]):
            for target in sorted(self.nbytes[name], key=lambda target: -self.nbytes[name][target]):
                if self.size({**choice, name: target}) <= budget:
                    choice[name] = target
                    break
        yield "ends", self.divergences(choice)


def outcome(ours: NDArray[Any], theirs: NDArray[Any], rng: np.random.Generator) -> str:
    """Whether the advice is better, for sure."""
    difference = theirs - ours
    places = rng.integers(0, len(difference), (SAMPLES, len(difference)))
    low, high = np.quantile(difference[places].mean(axis=1), (0.025, 0.975))
    return "won" if low > 0 else "lost" if high < 0 else "tied"


def compared(networks: int) -> list[dict[str, Any]]:
    """Compare all networks and budgets."""
    digits = load_digits()
    images, test_images, labels, _ = train_test_split(
        digits.data.astype(np.float32),
        digits.target.astype(np.int64),
        test_size=TEST_IMAGES,
        stratify=digits.target,
        random_state=0,
    )
    mean, deviation = images.mean(axis=0), images.std(axis=0) + 1
    rows: list[dict[str, Any]] = []
    cases = list(itertools.product(SHAPES, SEEDS))[:networks]
    for widths, seed in cases:
        rng = np.random.default_rng(seed)
        weights = train(widths, seed, (images - mean) / deviation, labels)
        case = Case(weights, ((test_images - mean) / deviation).astype(np.float32))
        whole = case.size(dict.fromkeys(case.layers, "keep"))
        with tempfile.TemporaryDirectory() as folder:
            for share in SHARES:
                budget = int(share * whole)
                choice = case.advised(Path(folder), budget)
                if choice is None:
                    continue
                if case.size(choice) > budget:
                    raise AssertionError(f"advice takes {case.size(choice)} bytes of {budget}")
                ours = case.divergences(choice)
                for name, theirs in case.peers(budget, rng):
                    ratio = float(theirs.mean() / ours.mean())
                    rows.append(
                        {"widths": widths, "seed": seed, "share": share, "peer": name}
                        | {"ours": float(ours.mean()), "theirs": float(theirs.mean())}
                        | {"ratio": ratio, "outcome": outcome(ours, theirs, rng)}
                    )
        print(widths, seed, "done", flush=True)
    return rows


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """The table of the README."""
    lines = [
        "| share of bfloat16 | beside | won | tied | lost | their divergence over ours, median |",
        "|--:|---|--:|--:|--:|--:|",
    ]
    for share, peer in itertools.product(SHARES, ("uniform", "random", "ends")):
        chosen = [row for row in rows if (row["share"], row["peer"]) == (share, peer)]
        if chosen:
            counts = [
                sum(row["outcome"] == word for row in chosen) for word in ("won", "tied", "lost")
            ]
            median = float(np.median([row["ratio"] for row in chosen]))
            cells = (f"{100 * share:.0f} %", peer, *map(str, counts), f"{median:.2f}")
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> int:
    """Compare, print the table, and keep it where asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="two networks")
    parser.add_argument("--json", type=Path, help="write all comparisons")
    parser.add_argument("--readme", type=Path, help="put the table into this file")
    options = parser.parse_args()
    rows = compared(2 if options.quick else len(SHAPES) * len(SEEDS))
    text = table(rows)
    print(text)
    if options.json is not None:
        options.json.write_text(json.dumps(rows, indent=1), "utf-8")
    if options.readme is not None:
        files.replace_in(options.readme, MARKER, text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
