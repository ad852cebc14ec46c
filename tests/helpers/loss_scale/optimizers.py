"""A small numpy optimizer, for classes that wrap one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np


class SGD:
    """Gradient descent on numpy arrays, in place, with the methods of Keras 3 and of TF 2."""

    def __init__(self, learning_rate: float = 1.0) -> None:
        self.learning_rate = learning_rate
        self.iterations = 0

    def apply(self, grads: Iterable[Any], trainable_variables: Iterable[Any]) -> None:
        """Take a step."""
        for grad, variable in zip(grads, trainable_variables, strict=True):
            if grad is not None:
                variable[...] = variable - np.float32(self.learning_rate) * np.asarray(grad)
        self.iterations += 1

    def apply_gradients(self, pairs: Iterable[tuple[Any, Any]]) -> None:
        """Take a step."""
        grads, variables = zip(*pairs, strict=True)
        self.apply(grads, variables)

    def get_config(self) -> dict[str, Any]:
        """Give the config from which it can be made again."""
        return {"learning_rate": self.learning_rate}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> SGD:
        """The optimizer of a config."""
        return cls(**config)
