"""Mixed-precision training with castwise's layers: `python benches/digits/train_mixed.py`, seconds.

Trains the digits network of this folder as a model of `castwise.autocast` layers, from the same
start under several dtype policies. The layers have no cast in them: under "mixed_float16" they
compute in float16 while their weights stay in float32. Keras' LossScaleOptimizer, castwise's,
scales the loss, and leaves out the steps whose gradients are not finite. Each line is one run.

The loss is a mean over 1024 * 1024 terms for each image, as segmentation has one for each pixel:
its gradients are so small that float16 loses most of them without a loss scale.
"""

from __future__ import annotations

import argparse
from typing import Any

import castwise
import network
import numpy as np
from castwise.autocast import AutocastScope, AutoCastVariable, Layer
from castwise.compat.keras.mixed_precision import LossScaleOptimizer
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits  # of scikit-learn

STEPS = 500
BATCH = 32
TERMS = 1024 * 1024  # of the loss, for each image; all but one are constant here
LEARNING_RATE = 0.1 * TERMS
SEED = 20

Array = NDArray[Any]


class Dense(Layer):
    """Inputs times a kernel plus a bias, and what is not positive cut off."""

    def __init__(self, units: int, rng: np.random.Generator, relu: bool, **options: Any) -> None:
        super().__init__(**options)
        self.units, self.rng, self.relu = units, rng, relu

    def build(self, input_shape: tuple[int, ...]) -> None:
        """Make the weights."""
        shape = (input_shape[-1], self.units)
        first = self.rng.standard_normal(shape) * np.sqrt(2 / shape[0])
        self.kernel = self.add_weight(shape, first, name="kernel")
        self.bias = self.add_weight((self.units,), "zeros", name="bias")

    def call(self, inputs: Array) -> Array:
        """Compute the outputs, and keep what the gradients need."""
        outputs = inputs @ self.kernel + self.bias
        self.seen = inputs, np.maximum(outputs, 0) if self.relu else outputs
        return self.seen[1]

    def backward(self, delta: Array) -> tuple[Array, list[Array]]:
        """Gradients of the inputs, and of kernel and bias, computed in the dtype of the call."""
        inputs, outputs = self.seen
        with AutocastScope(self.compute_dtype):
            delta = self.cast_inputs(delta)
            if self.relu:
                delta = delta * (outputs > 0)
            return delta @ self.kernel.T, [inputs.T @ delta, delta.sum(axis=0)]


class Network(Layer):
    """Three layers; the last one in float32, as what follows is sensitive."""

    def __init__(self, images: Array, **options: Any) -> None:
        super().__init__(**options)
        rng, std = np.random.default_rng(SEED), images.std(axis=0)
        self.mean, self.std = images.mean(axis=0), np.where(std > 0, std, 1)
        *hidden, last = network.WIDTHS[1:]
        self.layers = [Dense(units, rng, True, dtype=self.dtype_policy) for units in hidden]
        self.layers.append(Dense(last, rng, False, dtype="float32"))

    def cast_inputs(self, inputs: Array) -> Array:
        """Standardize pixels before they are rounded."""
        scaled: Array = super().cast_inputs((inputs - self.mean) / self.std)
        return scaled

    def call(self, images: Array) -> Array:
        """Compute the logits."""
        hidden = images
        for layer in self.layers:
            hidden = layer(hidden)
        return hidden

    def backward(self, delta: Array) -> list[Array]:
        """Gradients of all variables, in their order."""
        found: list[Array] = []
        for layer in reversed(self.layers):
            delta, grads = layer.backward(delta)
            found = grads + found
        return found


class GradientDescent:
    """An optimizer of one line."""

    def apply(self, grads: list[Array], trainable_variables: list[AutoCastVariable]) -> None:
        """Step down the gradients: float32 here, whatever the layers compute in."""
        for grad, variable in zip(grads, trainable_variables, strict=True):
            variable.assign_sub(np.float32(LEARNING_RATE) * grad)


def loss_gradient(logits: Array, labels: Array) -> Array:
    """The gradient of the mean cross entropy by the logits, in float32."""
    scores = np.exp(logits - logits.max(axis=1, keepdims=True))
    delta = scores / scores.sum(axis=1, keepdims=True)
    delta[np.arange(len(labels)), labels] -= 1
    found: Array = delta / np.float32(len(labels) * TERMS)
    return found


def train(policy: str, scaled: bool) -> tuple[int, float, int, float]:
    """Images read right, share of gradient elements that are 0, steps left out, and the scale."""
    images, labels, test_images, test_labels = network.split()
    model, rng = Network(images, dtype=policy, name="digits"), np.random.default_rng(SEED)
    optimizer = LossScaleOptimizer(GradientDescent(), dynamic_growth_steps=100)
    skipped, zeros = 0, []
    with np.errstate(over="ignore", invalid="ignore"):  # a scale that is too large shows itself
        for _ in range(STEPS):
            chosen = rng.choice(len(labels), BATCH, replace=False)
            delta = loss_gradient(model(images[chosen]), labels[chosen])
            variables = model.trainable_variables
            grads = model.backward(optimizer.scale_loss(delta) if scaled else delta)
            zeros.append(np.mean([np.mean(grad == 0) for grad in grads]))
            if scaled:
                skipped += not optimizer.check_finite(grads)
                optimizer.apply(grads, variables)
            else:
                exact = [castwise.cast(grad, np.float32) for grad in grads]
                GradientDescent().apply(exact, variables)
    right = int(np.count_nonzero(model(test_images).argmax(axis=1) == test_labels))
    scale = float(optimizer.dynamic_scale) if scaled else 1.0
    return right, float(np.mean(zeros)), skipped, scale


def main() -> None:
    """Train under each policy and print a line for each."""
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    runs = [("float32", False), ("mixed_float16", False), ("mixed_float16", True)]
    runs += [("mixed_bfloat16", False)]
    print(f"{'':<28}  correct  accuracy  zero gradients  skipped  scale at the end")
    with threadpool_limits(limits=1):
        for policy, scaled in runs:
            right, zeros, skipped, scale = train(policy, scaled)
            title = f"{policy}{', loss scale' if scaled else ''}"
            print(
                f"{title:<28}  {right}/{network.TEST_IMAGES}  "
                f"{right / network.TEST_IMAGES:>8.2%}  {zeros:>14.2%}  {skipped:>7}  {scale:>16g}"
            )


if __name__ == "__main__":
    main()
