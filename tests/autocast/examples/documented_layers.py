"""The custom layers that Keras' and TF's pages on mixed precision show, on numpy.

`python tests/autocast/examples/documented_layers.py` prints what each computes in. None of them
has a cast in its `call`, but for the one that shows why one might want it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from castwise.autocast import Layer
from numpy.typing import NDArray

Array = NDArray[Any]


class SimpleDense(Layer):
    """Inputs times a kernel, plus a bias: the layer that every page on layers begins with."""

    def __init__(self, units: int = 4, **options: Any) -> None:
        super().__init__(**options)
        self.units = units

    def build(self, input_shape: tuple[int, ...]) -> None:
        self.kernel = self.add_weight((input_shape[-1], self.units), "ones", name="kernel")
        self.bias = self.add_weight((self.units,), "zeros", name="bias")

    def call(self, inputs: Array) -> Array:
        return np.maximum(inputs @ self.kernel + self.bias, 0)


class MyLayer(Layer):
    """Two arguments: Keras 3 casts both, TF 2 the first only.

    With ``dialect="tf_keras"`` and a mixed policy, `b` stays float32, and so does what it gives.
    """

    def call(self, a: Array, b: Array) -> tuple[Array, Array]:
        return a + 1.0, b + 1.0


class AddRandom(Layer):
    """Adds noise, which is drawn in float64: what `call` makes takes its dtype from the inputs.

    Without that, numpy would compute the sum, and all after it, in float64.
    """

    def __init__(self, seed: int = 0, **options: Any) -> None:
        super().__init__(**options)
        self.generator = np.random.default_rng(seed)

    def call(self, inputs: Array) -> Array:
        noise = self.generator.standard_normal(inputs.shape)
        return inputs + noise.astype(inputs.dtype)


class WideBias(Layer):
    """A product in the compute dtype, and a bias that is added in float32.

    ``autocast=False`` (TF's older name for it is ``experimental_autocast``) keeps the bias as it is
    stored; adding it widens the product.
    """

    def __init__(self, units: int = 4, **options: Any) -> None:
        super().__init__(**options)
        self.units = units

    def build(self, input_shape: tuple[int, ...]) -> None:
        self.kernel = self.add_weight((input_shape[-1], self.units), "ones", name="kernel")
        self.bias = self.add_weight((self.units,), "ones", autocast=False, name="bias")

    def call(self, inputs: Array) -> Array:
        return (inputs @ self.kernel).astype(self.bias.dtype) + self.bias


class Model(Layer):
    """Layers in a layer: each obeys its own policy."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.hidden = [SimpleDense(8, dtype=self.dtype_policy) for _ in range(2)]
        self.logits = SimpleDense(3, dtype="float32", name="logits")

    def call(self, inputs: Array) -> Array:
        for layer in self.hidden:
            inputs = layer(inputs)
        return self.logits(inputs)


POLICIES = ("float32", "float64", "mixed_float16", "mixed_bfloat16", "float8_from_mixed_bfloat16")


def main() -> None:
    """Print the dtype of the outputs of each layer under each policy."""
    x = np.ones((2, 3), np.float32)
    for policy in POLICIES:
        outputs = {
            kind.__name__: kind(dtype=policy)(*[x] * inputs)
            for kind, inputs in ((SimpleDense, 1), (MyLayer, 2), (AddRandom, 1), (WideBias, 1))
        }
        outputs["Model"] = Model(dtype=policy)(x)
        outputs["MyLayer"] = outputs["MyLayer"][1]
        print(f"{policy:<28}", *(f"{name}: {y.dtype}" for name, y in outputs.items()), sep="  ")


if __name__ == "__main__":
    main()
