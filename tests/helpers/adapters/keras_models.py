"""Small models of every shape that Keras has, to be cast: with each a batch of inputs.

Imported in processes whose Keras has any backend; nothing here imports Keras before it is used.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Model = Any


def convolutional() -> tuple[Model, np.ndarray]:
    """Functional, with a model within the model, a layer called twice, and batch statistics."""
    import keras  # noqa: PLC0415 - by then, the process has chosen a backend

    layers = keras.layers
    inputs = keras.Input((6, 6, 2))
    x = layers.Conv2D(4, 3, activation="relu", name="conv")(inputs)
    x = layers.BatchNormalization(name="norm")(x)
    x = layers.Dropout(0.1, name="drop")(layers.Flatten(name="flat")(x))
    shared = layers.Dense(8, activation="relu", name="shared")
    head = keras.Sequential([layers.Dense(4, name="one"), layers.Dense(2, name="two")], name="head")
    x = layers.Add(name="add")([shared(x), shared(2.0 * x)])
    return keras.Model(inputs, head(x), name="conv_net"), _normal(8, 6, 6, 2)


def sequential() -> tuple[Model, np.ndarray]:
    """Sequential, built from the shape of its inputs."""
    import keras  # noqa: PLC0415

    layers = keras.layers
    model = keras.Sequential(
        [layers.Dense(8, activation="relu", name="one"), layers.Dense(2, name="two")], name="mlp"
    )
    model.build((None, 5))
    return model, _normal(8, 5)


def attention(built: bool = True) -> tuple[Model, np.ndarray]:
    """Subclassed, with layers that make layers of their own when they are built."""
    import keras  # noqa: PLC0415

    class Attention(keras.Model):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__(name="text")
            self.embed = keras.layers.Embedding(10, 8, name="embed")
            self.norm = keras.layers.LayerNormalization(name="norm")
            self.attend = keras.layers.MultiHeadAttention(2, 4, dropout=0.1, name="attend")
            self.recur = keras.layers.GRU(3, name="recur", recurrent_initializer="glorot_uniform")
            self.last = [keras.layers.Dense(2, name="last")]

        def call(self, x: Any) -> Any:
            x = self.norm(self.embed(x))
            return self.last[0](self.recur(self.attend(x, x)))

    model = Attention()
    x = np.random.default_rng(0).integers(0, 10, (8, 6)).astype(np.int32)
    if built:
        model(x)
    return model, x


MODELS: tuple[Callable[[], tuple[Model, np.ndarray]], ...] = (convolutional, sequential, attention)


def _normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)
