"""The networks of `advise.py`: on scikit-learn's digits in numpy, and what they all offer."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

SHAPES = ((64, 128, 64, 10), (64, 128, 128, 64, 64, 10), (64, 256, 256, 10))
SEEDS = 5
STEPS = 600
BATCH = 256
CLASSES = 10
TEST_IMAGES = 599  # a third of the 1,797
CALIBRATION = 256

Floats = NDArray[np.float32]
Weights = Mapping[str, Floats]


class Examples(NamedTuple):
    """What a network is shown: inputs, and the right class of each prediction.

    `labels` has a row for each example and a column for each of its predictions.
    """

    inputs: NDArray[Any]
    labels: NDArray[np.int64]


@dataclass(frozen=True)
class Network:
    """A trained network, its data, and how to ask it.

    `log_probabilities` gives those of all classes, of shape (examples, predictions, classes).
    `fisher` gives the trace of the Fisher information of each weight, from labels that the network
    itself draws. Nothing was trained or chosen on the held-out examples.
    """

    kind: str
    shape: str
    seed: int
    weights: dict[str, Floats]
    log_probabilities: Callable[[Weights, NDArray[Any]], Floats]
    fisher: Callable[[NDArray[Any], np.random.Generator], dict[str, float]]
    calibration: Examples
    held_out: Examples


class Split(NamedTuple):
    """The images for training and those held out, standardized, in rows of 64."""

    training: Examples
    held_out: Examples


def digits() -> Split:
    """Split the images of scikit-learn's digits, the same way each time."""
    bunch = load_digits()
    images, held_out, labels, held_out_labels = train_test_split(
        bunch.data.astype(np.float32),
        bunch.target.astype(np.int64),
        test_size=TEST_IMAGES,
        stratify=bunch.target,
        random_state=0,
    )
    mean, deviation = images.mean(axis=0), images.std(axis=0) + 1
    return Split(
        Examples(((images - mean) / deviation).astype(np.float32), labels[:, None]),
        Examples(((held_out - mean) / deviation).astype(np.float32), held_out_labels[:, None]),
    )


def dense_networks(count: int) -> Iterator[Network]:
    """Train networks of ReLU layers without biases, three shapes by five seeds at most."""
    split = digits()
    for widths, seed in list(itertools.product(SHAPES, range(SEEDS)))[:count]:
        weights = _train(widths, seed, split.training)

        def fisher(
            images: NDArray[Any], rng: np.random.Generator, weights: Weights = weights
        ) -> dict[str, float]:
            return _fisher(weights, images, rng)

        yield Network(
            "digits, dense",
            "-".join(map(str, widths)),
            seed,
            weights,
            _log_probabilities,
            fisher,
            Examples(*(part[:CALIBRATION] for part in split.training)),
            split.held_out,
        )


def log_softmax(logits: NDArray[Any]) -> NDArray[Any]:
    """The logarithm of the softmax over the last axis."""
    shifted = logits - logits.max(axis=-1, keepdims=True)
    result: NDArray[Any] = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return result


def _train(widths: Sequence[int], seed: int, data: Examples) -> dict[str, Floats]:
    """Train by Adam on batches of images that are drawn at random."""
    rng = np.random.default_rng(seed)
    weights = {
        f"layers.{layer}.weight": rng.standard_normal((after, before)).astype(np.float32)
        * np.float32(np.sqrt(2 / before))
        for layer, (before, after) in enumerate(itertools.pairwise(widths))
    }
    moments = {name: [np.zeros_like(weight)] * 2 for name, weight in weights.items()}
    for step in range(1, STEPS + 1):
        places = rng.integers(0, len(data.inputs), BATCH)
        outputs = layer_outputs(weights, data.inputs[places])
        slopes = _slopes(weights, outputs, data.labels[places, 0])
        for layer, (name, slope) in enumerate(zip(weights, slopes, strict=True)):
            gradient = slope.T @ outputs[layer] / BATCH
            first, second = moments[name]
            first, second = 0.9 * first + 0.1 * gradient, 0.99 * second + 0.01 * gradient**2
            moments[name] = [first, second]
            size = (first / (1 - 0.9**step)) / (np.sqrt(second / (1 - 0.99**step)) + 1e-8)
            weights[name] = (weights[name] - 2e-3 * size).astype(np.float32)
    return weights


def layer_outputs(weights: Weights, images: NDArray[Any]) -> list[Floats]:
    """Return the inputs of each layer, and last the logits."""
    outputs = [images]
    for layer, weight in enumerate(weights.values(), 1):
        product = outputs[-1] @ weight.T
        outputs.append(product if layer == len(weights) else np.maximum(product, 0))
    return outputs


def _slopes(weights: Weights, outputs: Sequence[Floats], labels: NDArray[np.int64]) -> list[Floats]:
    """The slope of each image's cross-entropy by the outputs of each layer."""
    slope = np.exp(log_softmax(outputs[-1])) - np.eye(CLASSES, dtype=np.float32)[labels]
    slopes = [slope]
    for layer, weight in reversed(list(enumerate(weights.values()))[1:]):
        slopes.append((slopes[-1] @ weight) * (outputs[layer] > 0))
    return slopes[::-1]


def _log_probabilities(weights: Weights, images: NDArray[Any]) -> Floats:
    result: Floats = log_softmax(layer_outputs(weights, images)[-1])[:, None]
    return result


def _fisher(weights: Weights, images: NDArray[Any], rng: np.random.Generator) -> dict[str, float]:
    """The mean squared norm of the gradients of images, each of a label that is drawn."""
    outputs = layer_outputs(weights, images)
    powers = np.exp(log_softmax(outputs[-1])).cumsum(axis=1)
    drawn = (powers < rng.random((len(images), 1))).sum(axis=1).clip(max=CLASSES - 1)
    slopes = _slopes(weights, outputs, drawn)
    # The gradient of one image is an outer product, whose norm is the product of two norms.
    return {
        name: float(((slope**2).sum(axis=1) * (inputs**2).sum(axis=1)).mean())
        for name, slope, inputs in zip(weights, slopes, outputs[:-1], strict=True)
    }
