"""Why float16 needs a loss scale: `python benches/digits/train_float16.py`, in seconds.

Trains the digits network of this folder three times, from the same start: in float32; with weights,
activations and gradients rounded to float16 on the way (the weights that are updated stay float32);
and with castwise's loss scale around the same. Each line is one run: images of the test set read
right, and the share of gradient elements that float16 rounded to zero.

The loss is a mean over 512 * 512 terms for each image, as segmentation has one for each pixel: so
gradients are small from the start.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import castwise
import network
import numpy as np
from castwise.loss_scale import DynamicLossScale, LossScaler, select_tree, unscale
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits  # of scikit-learn
from train import initial

STEPS = 600
BATCH = 128
TERMS = 512 * 512  # of the loss, for each image; all but one are constant here
LEARNING_RATE = 0.1 * TERMS
SEED = 20

Array = NDArray[Any]
Round = Callable[[Array], Array]


def keep(array: Array) -> Array:
    """float32 throughout."""
    return array


def to_half(array: Array) -> Array:
    """What is left of an array that passed through float16; products below stay float32's."""
    return castwise.cast(castwise.cast(array, np.float16), np.float32)


def backward(
    model: network.Model, images: Array, labels: Array, scale: float, rounded: Round
) -> network.Model:
    """Gradients of the scaled loss."""
    layers = network.layer_names()
    weights = {name: rounded(model[name]) for pair in layers for name in pair}
    activations = [rounded((images - model["input.mean"]) / model["input.std"])]
    for weight, bias in layers[:-1]:
        activations.append(
            rounded(np.maximum(activations[-1] @ weights[weight] + weights[bias], 0))
        )
    scores = activations[-1] @ weights[layers[-1][0]] + weights[layers[-1][1]]
    scores = np.exp(scores - scores.max(axis=1, keepdims=True))
    delta = scores / scores.sum(axis=1, keepdims=True)
    delta[np.arange(len(labels)), labels] -= 1
    delta *= np.float32(scale / (len(labels) * TERMS))
    found: network.Model = {}
    for (weight, bias), active in zip(reversed(layers), reversed(activations), strict=True):
        delta = rounded(delta)
        found[weight] = rounded(active.T @ delta)
        found[bias] = rounded(delta.sum(axis=0))
        delta = (delta @ weights[weight].T) * (active > 0)
    return found


def lost(found: network.Model, exact: network.Model) -> float:
    """The share of elements that are zero and should not be."""
    wanted = [exact[name] != 0 for name in found]
    zeros = [(found[name] == 0) & want for name, want in zip(found, wanted, strict=True)]
    return sum(map(np.count_nonzero, zeros)) / sum(map(np.count_nonzero, wanted))


def train(
    data: tuple[Array, Array], rounded: Round, scaler: LossScaler
) -> tuple[network.Model, float, int]:
    """The model after all steps, the mean share of lost gradients, and the steps left out."""
    images, labels = data
    rng = np.random.default_rng(SEED)
    model = initial(rng, images)
    trained = [name for pair in network.layer_names() for name in pair]
    shares, skipped = [], 0
    for _ in range(STEPS):
        chosen = rng.choice(len(labels), BATCH, replace=False)
        scale = scaler.scale
        with np.errstate(over="ignore", invalid="ignore"):  # a scale that is too large shows itself
            scaled = backward(model, images[chosen], labels[chosen], scale, rounded)
            exact = backward(model, images[chosen], labels[chosen], 1.0, keep)
        grads, finite = unscale(scaled, scale)
        applies = scaler.update(finite)
        with np.errstate(invalid="ignore"):
            rate = np.float32(LEARNING_RATE)
            stepped = {name: model[name] - rate * grads[name] for name in trained}
        model.update(select_tree(applies, stepped, {name: model[name] for name in trained}))
        shares.append(lost(scaled, exact))
        skipped += not applies
    return model, float(np.mean(shares)), skipped


def main() -> None:
    """Train three times and print a line for each."""
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    train_images, train_labels, test_images, test_labels = network.split()
    runs: dict[str, tuple[Round, LossScaler]] = {
        "float32": (keep, LossScaler(None)),
        "float16": (to_half, LossScaler(None)),
        "float16, loss scale": (to_half, LossScaler(DynamicLossScale(growth_interval=100))),
    }
    print(f"{'':<20}  correct  accuracy  lost to zero  skipped  scale at the end")
    with threadpool_limits(limits=1):
        for title, (rounded, scaler) in runs.items():
            model, share, skipped = train((train_images, train_labels), rounded, scaler)
            right = network.correct(model, test_images, test_labels)
            print(
                f"{title:<20}  {right}/{len(test_labels)}  {right / len(test_labels):>8.2%}  "
                f"{share:>12.2%}  {skipped:>7}  {scaler.scale:>16g}"
            )


if __name__ == "__main__":
    main()
