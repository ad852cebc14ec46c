"""The network of this folder: its data, its shape and its forward pass.

    64 pixels, 0..16 -> (x - input.mean) / input.std -> 128 relu -> 64 relu -> 10 logits

train.py and score.py both take the split from here, so a cast model is always scored on images
that no training run has seen.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

Floats: TypeAlias = NDArray[np.float32]
Labels: TypeAlias = NDArray[np.int64]
Model: TypeAlias = dict[str, NDArray[Any]]

WIDTHS = (64, 128, 64, 10)
SPLIT_SEED = 0
TEST_IMAGES = 599  # a third of the 1,797


def split() -> tuple[Floats, Labels, Floats, Labels]:
    """Training images, training labels, test images, test labels; the same in every process."""
    digits = load_digits()
    train_images, test_images, train_labels, test_labels = train_test_split(
        digits.data.astype(np.float32),
        digits.target.astype(np.int64),
        test_size=TEST_IMAGES,
        stratify=digits.target,
        random_state=SPLIT_SEED,
    )
    return train_images, train_labels, test_images, test_labels


def layer_names() -> list[tuple[str, str]]:
    """Weight and bias names, first layer first."""
    return [(f"layers.{n}.weight", f"layers.{n}.bias") for n in range(len(WIDTHS) - 1)]


def shapes() -> dict[str, tuple[int, ...]]:
    """Every tensor of the model and its shape: what a checkpoint must hold to be scored."""
    expected: dict[str, tuple[int, ...]] = {
        "input.mean": (WIDTHS[0],),
        "input.std": (WIDTHS[0],),
        "classes": (WIDTHS[-1],),
    }
    for (weight, bias), inputs, outputs in zip(layer_names(), WIDTHS, WIDTHS[1:], strict=False):
        expected[weight] = (inputs, outputs)
        expected[bias] = (outputs,)
    return expected


def logits(model: Model, images: Floats) -> Floats:
    """Forward pass in the dtype of the model, which callers have brought to float32."""
    hidden = (images - model["input.mean"]) / model["input.std"]
    *inner, last = layer_names()
    for weight, bias in inner:
        hidden = np.maximum(hidden @ model[weight] + model[bias], 0)
    weight, bias = last
    return np.asarray(hidden @ model[weight] + model[bias], np.float32)


def correct(model: Model, images: Floats, labels: Labels) -> int:
    """Images classified right; one with a NaN or infinite logit has no answer and counts wrong."""
    with np.errstate(all="ignore"):  # a narrow format may have left a zero where we divide
        scores = logits(model, images)
    answered = np.isfinite(scores).all(axis=1)
    predicted = model["classes"][np.nan_to_num(scores).argmax(axis=1)]
    return int(np.count_nonzero(answered & (predicted == labels)))
