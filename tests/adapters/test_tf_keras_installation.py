"""castwise's policies and the layers of documents in real tf_keras."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import peers
import pytest
from castwise.adapters.tf_keras import install, uninstall
from castwise.compat.tf_keras import mixed_precision
from castwise.compat.tf_keras.layers import Layer
from castwise.compat.tf_keras.mixed_precision import Policy, experimental
from castwise.dtype_policies import DTypePolicy, DTypePolicyMap, get

# tf_keras' own, with numpy 2.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

X = np.linspace(-3, 3, 12, dtype=np.float32).reshape(3, 4)
NAMES = ("float32", "half", "bfloat16", "double", "mixed_float16", "mixed_bfloat16")


@pytest.fixture(autouse=True)
def _installed() -> Iterator[None]:
    with install():
        yield
        peers.tf_keras().mixed_precision.set_global_policy(None)
    uninstall()


def state() -> list[Any]:
    """What castwise patches."""
    module, layer = peers.tf_keras().src.mixed_precision.policy, peers.tf_keras().layers.Layer
    functions = (module.get_policy, module.set_global_policy, layer._maybe_cast_inputs)
    names = ("cast_inputs", "_mixed_precision_policy")
    return [
        *(function.__code__ for function in functions),
        *(hasattr(layer, name) for name in names),
        hasattr(module.Policy, "cast_to_lowest"),
    ]


def test_it_is_undone() -> None:
    uninstall()
    before = state()
    with install(), install():
        assert state() != before
    assert state() == before
    assert before[-3:] == [False] * 3
    with pytest.raises(TypeError, match="Policy"):
        peers.tf_keras().layers.Dense(2, dtype=Policy("mixed_float16"))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", [Policy, DTypePolicy])
def test_policies_of_layers_and_for_all(name: str, kind: Any) -> None:
    if kind is DTypePolicy and name in ("half", "double"):
        pytest.skip("names of TensorFlow's only")
    wanted = peers.tf_keras().layers.Dense(
        3, dtype=peers.tf_keras().mixed_precision.Policy(name), kernel_initializer="ones"
    )
    layers = [peers.tf_keras().layers.Dense(3, dtype=kind(name), kernel_initializer="ones")]
    with peers.tf_keras().src.mixed_precision.policy.policy_scope(kind(name)):
        assert (
            type(peers.tf_keras().mixed_precision.global_policy())
            is peers.tf_keras().mixed_precision.Policy
        )
        layers.append(peers.tf_keras().layers.Dense(3, kernel_initializer="ones"))
    peers.tf_keras().mixed_precision.set_global_policy(kind(name))
    layers.append(peers.tf_keras().layers.Dense(3, kernel_initializer="ones"))
    for layer in layers:
        assert layer.dtype_policy.name == wanted.dtype_policy.name
        assert layer.get_config()["dtype"] == wanted.get_config()["dtype"]
        np.testing.assert_array_equal(layer(X), wanted(X))
        assert layer.kernel.dtype == wanted.kernel.dtype
        assert type(layer).from_config(layer.get_config()).compute_dtype == wanted.compute_dtype


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        (DTypePolicyMap("float32"), "is a map"),
        (get("int8_from_float32"), "quantizes"),
        (experimental.Policy("mixed_float16"), "carries a loss scale"),
    ],
)
def test_what_tf_2_has_not_is_refused(policy: Any, words: str) -> None:
    for take in (
        lambda p: peers.tf_keras().layers.Dense(2, dtype=p),
        peers.tf_keras().mixed_precision.set_global_policy,
    ):
        with pytest.raises(ValueError, match=words):
            take(policy)
    assert peers.tf_keras().mixed_precision.global_policy().name == "float32"


def test_the_pages_examples() -> None:
    """`tf.keras.mixed_precision.Policy` in TensorFlow's reference, with castwise's policies."""
    layers = peers.tf_keras().layers
    peers.tf_keras().mixed_precision.set_global_policy(Policy("mixed_float16"))
    first = layers.Dense(10)
    assert first.dtype_policy.name == "mixed_float16"
    second = layers.Dense(10, dtype=Policy("float32"))
    assert second.dtype_policy.name == "float32"
    peers.tf_keras().mixed_precision.set_global_policy(mixed_precision.global_policy())

    layer = layers.MaxPooling2D(dtype=Policy("mixed_float16"))
    images = peers.tensorflow().ones((4, 4, 4, 4), "float64")
    assert layer(images).dtype == "float16"

    class SimpleDense(layers.Layer):
        def build(self, input_shape: Any) -> None:
            self.kernel = self.add_weight("kernel", (input_shape[-1], 3), initializer="ones")

        def call(self, inputs: Any) -> Any:
            assert (inputs.dtype, self.kernel.dtype) == ("float16", "float16")
            return peers.tensorflow().linalg.matmul(inputs, self.kernel)

    dense = SimpleDense(dtype=Policy("mixed_float16"))
    assert dense(X).dtype == "float16"
    assert dense.kernel.dtype == "float32"

    class MyLayer(layers.Layer):
        def call(self, a: Any, b: Any) -> tuple[Any, Any]:
            return a + 1.0, b + 1.0

    found = MyLayer(dtype=Policy("mixed_float16"))(
        peers.tensorflow().constant(1.0), peers.tensorflow().constant(1.0)
    )
    assert [each.dtype for each in found] == ["float16", "float32"]

    model = peers.tf_keras().Sequential(
        [peers.tf_keras().Input((4,)), layers.Dense(2, dtype=Policy("bfloat16"))]
    )
    model.compile("sgd", "mse")
    model.fit(X, np.zeros((3, 2)), verbose=0)
    assert model.predict(X, verbose=0).dtype.name == "bfloat16"


class Guided:
    """A layer as NVIDIA's guide of 2019 shows it, on castwise's `Layer` or on tf_keras'."""

    def cast_inputs(self, inputs: Any) -> Any:
        # Casts to float16, the policy's lowest-precision dtype
        return self._mixed_precision_policy.cast_to_lowest(inputs)  # type: ignore[attr-defined]

    def call(self, inputs: Any, other: Any = None) -> Any:
        (first, count), other = inputs, inputs[0] if other is None else other
        return first * 2, count, other


@pytest.mark.parametrize("name", [*NAMES, "int32"])
def test_a_layer_by_the_guide_of_2019(name: str) -> None:
    counts = np.arange(3)
    outcomes = []
    for base in (Layer, peers.tf_keras().layers.Layer):
        layer = type("Guided", (Guided, base), {})(dtype=Policy(name))
        outcomes.append([np.asarray(each) for each in layer([X, counts], other=X)])
        once = type("Once", (base,), {"call": lambda self, x: self.cast_inputs(x)})
        assert once(dtype=Policy(name))(X).dtype == outcomes[-1][0].dtype
    for ours, theirs in zip(*outcomes, strict=True):
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(ours, theirs)
    wanted = "float32" if name == "int32" else Policy(name).compute_dtype
    assert [each.dtype.name for each in outcomes[0]] == [wanted, "int64", "float32"]


def test_its_own_cast_is_the_one_that_is_called() -> None:
    class Kept(peers.tf_keras().layers.Layer):
        def cast_inputs(self, inputs: Any) -> Any:
            return inputs

        def call(self, inputs: Any) -> Any:
            return inputs

    inputs = peers.tf_keras().Input((4,))
    model = peers.tf_keras().Model(inputs, Kept(dtype=Policy("mixed_float16"))(inputs))
    assert model(X).dtype == "float32"
