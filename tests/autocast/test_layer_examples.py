"""The examples: the layers of Keras' and TF's documents, and a training in mixed precision."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from layer_systems import dtype_of, peers

sys.path.append(str(Path(__file__).with_name("examples")))
from documented_layers import POLICIES, AddRandom, Model, MyLayer, SimpleDense, WideBias

ROOT = Path(__file__).parents[2]
X = np.array([[1.0, 2.0, 3.0], [-0.5, 0.25, 8.0]], np.float32)


def of_keras(name: str) -> Any:
    """The same layer, as one writes it in Keras."""
    ops, base = peers.keras().ops, peers.keras().layers.Layer

    class Dense(base):  # type: ignore[misc, valid-type]
        def build(self, input_shape: Any) -> None:
            wide = name == "WideBias"
            self.kernel = self.add_weight(shape=(input_shape[-1], 4), initializer="ones")
            first = "ones" if wide else "zeros"
            self.bias = self.add_weight(shape=(4,), initializer=first, autocast=not wide)

        def call(self, x: Any) -> Any:
            product = ops.matmul(x, self.kernel)
            if name == "WideBias":
                return ops.add(ops.cast(product, self.bias.dtype), self.bias)
            return ops.relu(ops.add(product, self.bias))

        _float8_call = call

    class Two(base):  # type: ignore[misc, valid-type]
        def call(self, a: Any, b: Any) -> Any:
            return ops.add(a, 1.0), ops.add(b, 1.0)

        _float8_call = call

    return {"MyLayer": Two}.get(name, Dense)


@pytest.mark.parametrize("policy", [name for name in POLICIES if name != "float64"])
def test_outputs_are_those_of_keras(policy: str) -> None:
    for layer in (SimpleDense, WideBias, MyLayer):
        arguments = [X, X * 2] if layer is MyLayer else [X]
        ours = layer(dtype=policy)(*arguments)
        theirs = of_keras(layer.__name__)(dtype=policy)(*arguments)
        for mine, original in zip(np.atleast_1d(ours), np.atleast_1d(theirs), strict=True):
            assert mine.dtype == original.dtype, layer
            assert mine.tobytes() == original.tobytes(), layer


@pytest.mark.parametrize("policy", ["float32", "float64", "mixed_float16", "mixed_bfloat16"])
def test_tfs_rules_on_the_same_layers(policy: str) -> None:
    """The second argument is not cast."""

    class Two(peers.tf_keras().layers.Layer):  # type: ignore[misc, name-defined]
        def call(self, a: Any, b: Any) -> Any:
            return a + 1.0, b + 1.0

    ours = MyLayer(dtype=policy, dialect="tf_keras")(X, X)
    theirs = Two(dtype=policy)(X, X)
    assert [dtype_of(y) for y in ours] == [dtype_of(y) for y in theirs]
    assert [np.asarray(y).tolist() for y in ours] == [np.asarray(y).tolist() for y in theirs]
    dense = SimpleDense(dtype=policy, dialect="tf_keras")
    assert dtype_of(dense(X)) == dense.compute_dtype


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_is_obeyed(policy: str) -> None:
    for layer in (SimpleDense(dtype=policy), AddRandom(dtype=policy)):
        outputs = layer(X)
        assert type(outputs) is np.ndarray
        assert outputs.dtype.name == layer.compute_dtype
        assert all(weight.dtype == layer.variable_dtype for weight in layer.weights)
    model = Model(dtype=policy)
    assert model(X).dtype == np.float32
    assert len(model.trainable_variables) == 6


def test_noise_is_drawn_anew() -> None:
    layer = AddRandom(dtype="mixed_float16")
    assert not np.array_equal(layer(X), layer(X))


def test_the_example_prints_its_table() -> None:
    example = Path(__file__).with_name("examples") / "documented_layers.py"
    printed = subprocess.run(
        [sys.executable, example], check=True, capture_output=True, text=True
    ).stdout
    assert [line.split()[0] for line in printed.splitlines()] == list(POLICIES)


def test_training_in_mixed_precision_reaches_the_accuracy_of_float32() -> None:
    peers.need("sklearn")  # has the digits
    example = ROOT / "benches" / "digits" / "train_mixed.py"
    printed = subprocess.run(
        [sys.executable, example], check=True, capture_output=True, text=True, timeout=300
    ).stdout
    correct = {
        title: int(right)
        for title, right in re.findall(r"^(\S+(?:, .*?)?) +(\d+)/599", printed, re.M)
    }
    assert correct["float32"] > 560
    assert correct["mixed_float16"] < correct["float32"] - 30
    for title in ("mixed_float16, loss scale", "mixed_bfloat16"):
        assert abs(correct[title] - correct["float32"]) < 10, title
