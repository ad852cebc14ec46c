"""castwise's policies in tf_keras: models are what tf_keras builds under the same policies."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import peers
import pytest
from castwise.adapters.tf_keras import (
    apply_policy_map,
    cast_model,
    from_tf_keras,
    from_tf_keras_optimizer,
    to_tf_keras,
    to_tf_keras_optimizer,
)
from castwise.compat.tf_keras import mixed_precision
from castwise.compat.tf_keras.mixed_precision import LossScaleOptimizer, Policy, experimental
from castwise.dtype_policies import DTypePolicy, DTypePolicyMap, get

# tf_keras' own, with numpy 2.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    yield
    peers.tf_keras().mixed_precision.set_global_policy(None)


NAMES = ("float32", "half", "bfloat16", "double", "mixed_float16", "mixed_bfloat16", "_infer")


@pytest.mark.parametrize("name", NAMES)
def test_policies_become_each_other(name: str) -> None:
    original = peers.tf_keras().mixed_precision.Policy
    theirs = to_tf_keras(Policy(name))
    assert type(theirs) is original
    assert (theirs.name, theirs.compute_dtype) == (name, original(name).compute_dtype)
    assert from_tf_keras(theirs) == Policy(name)
    assert to_tf_keras(theirs) is theirs
    ours = from_tf_keras(original(name))
    assert from_tf_keras(ours) is ours


def test_policies_of_keras_3_become_those_of_tf_2() -> None:
    assert to_tf_keras("mixed_float16").name == "mixed_float16"
    assert to_tf_keras(DTypePolicy("bfloat16")).variable_dtype == "bfloat16"


def own_class() -> Any:
    base = peers.tf_keras().mixed_precision.Policy
    return type("Own", (base,), {"compute_dtype": "float16"})("float32")


WRONG_POLICIES: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: to_tf_keras("int8_from_float32"), ValueError, "quantizes"),
    (lambda: to_tf_keras(DTypePolicyMap("float32")), ValueError, "use apply_policy_map"),
    (lambda: to_tf_keras(experimental.Policy("mixed_float16")), ValueError, "loss scale"),
    (lambda: to_tf_keras("int"), ValueError, "TF 2 has no such policy"),
    (lambda: to_tf_keras(3), ValueError, "dtype=3"),
    (lambda: from_tf_keras("float32"), TypeError, "is not a policy of tf_keras"),
    (lambda: from_tf_keras(get("float32")), TypeError, "is not a policy of tf_keras"),
    (lambda: from_tf_keras(own_class()), ValueError, "compute_dtype float16"),
]


@pytest.mark.parametrize(("call", "error", "words"), WRONG_POLICIES)
def test_wrong_policies(call: Callable[[], Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        call()


# ---------------------------------------------------------------------------------- models


def convolutional() -> tuple[Any, np.ndarray]:
    """Functional, with a shared layer, operations on tensors, and a model within."""
    keras = peers.tf_keras()
    layers = keras.layers
    inputs = keras.Input((6, 6, 2))
    x = layers.Conv2D(4, 3, activation="relu", name="conv")(inputs)
    x = layers.Flatten(name="flat")(layers.BatchNormalization(name="norm")(x))
    shared = layers.Dense(8, activation="relu", name="shared")
    head = keras.Sequential([layers.Dense(4, name="one"), layers.Dense(2, name="two")], name="head")
    model = keras.Model(inputs, head(shared(x) + shared(x * 2.0)), name="net")
    return model, np.random.default_rng(0).standard_normal((8, 6, 6, 2)).astype(np.float32)


def recurrent() -> tuple[Any, np.ndarray]:
    """Sequential, built by its first call, with layers that hold others."""
    keras = peers.tf_keras()
    layers = keras.layers
    model = keras.Sequential(
        [
            layers.Embedding(10, 4, name="embed"),
            layers.LayerNormalization(name="norm"),
            layers.Bidirectional(layers.GRU(3, name="recur"), name="both"),
            layers.Dense(2, name="last"),
        ]
    )
    x = np.random.default_rng(0).integers(0, 10, (4, 5)).astype(np.int32)
    model(x)
    return model, x


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "float16", "float64"])
@pytest.mark.parametrize("make", [convolutional, recurrent])
def test_a_cast_model_is_one_built_so(make: Callable[[], Any], policy: str) -> None:
    model, x = make()
    before = [(each.name, each.numpy().tobytes()) for each in model.weights]
    clone, report = cast_model(model, policy)
    peers.tf_keras().mixed_precision.set_global_policy(policy)
    fresh, _ = make()
    fresh.set_weights(model.get_weights())
    assert [each.dtype for each in clone.weights] == [each.dtype for each in fresh.weights]
    for ours, theirs in zip(clone.weights, fresh.weights, strict=True):
        assert ours.numpy().tobytes() == theirs.numpy().tobytes(), ours.name
    ours, theirs = clone(x).numpy(), fresh(x).numpy()
    assert (ours.dtype, ours.tobytes()) == (theirs.dtype, theirs.tobytes())
    assert clone.dtype_policy.name == policy
    assert [(each.name, each.numpy().tobytes()) for each in model.weights] == before
    assert bool(report.variables) == (not policy.startswith("mixed"))


def test_paths_decide_and_what_matches_nothing_is_reported() -> None:
    model, x = convolutional()
    rules = DTypePolicyMap(
        "float32", {"head/.*": "mixed_float16", "conv": "bfloat16", "hed": "float16"}
    )
    clone, report = apply_policy_map(model, rules)
    assert report.explanation.unused == {"hed": "head"}
    assert set(report.layers) == {"head/one", "head/two", "conv"}
    assert set(report.variables) == {"conv/kernel:0", "conv/bias:0"}
    dtypes = {layer.name: layer.compute_dtype for layer in clone._flatten_layers()}
    assert (dtypes["conv"], dtypes["two"], dtypes["shared"]) == ("bfloat16", "float16", "float32")
    assert clone(x).dtype == "float16"
    sequence, ids = recurrent()
    clone, report = apply_policy_map(
        sequence, DTypePolicyMap("float32", {"both(/.*)?": "mixed_bfloat16"})
    )
    assert set(report.explanation.paths) >= {"both", "both/recur"}
    assert clone.layers[2].forward_layer.compute_dtype == "bfloat16"
    assert clone(ids).dtype == "float32"


def test_a_model_is_compiled_and_trained_afterwards() -> None:
    model, x = convolutional()
    model.compile("sgd", "mse")
    clone, report = cast_model(model, "mixed_float16")
    assert "compile it" in report.notes[0]
    clone.compile("sgd", "mse")
    assert type(clone.optimizer).__name__ == "LossScaleOptimizerV3"
    loss = clone.fit(x, np.ones((8, 2), np.float32), verbose=0).history["loss"]
    assert np.isfinite(loss).all()


def subclassed() -> Any:
    return type("Own", (peers.tf_keras().Model,), {})()


def with_subclassed() -> Any:
    return peers.tf_keras().Sequential([subclassed()])


WRONG_MODELS: list[tuple[Callable[[], Any], Any, type[Exception], str]] = [
    (lambda: convolutional()[0], "float16", TypeError, "policy_map='float16' is not a map"),
    (lambda: convolutional()[0], DTypePolicyMap("int8_from_float32"), ValueError, "quantizes"),
    (
        lambda: convolutional()[0],
        DTypePolicyMap("float32", {"co.*": "float16", ".*nv": "float16"}),
        ValueError,
        "2 keys",
    ),
    (subclassed, DTypePolicyMap("float16"), ValueError, "is a subclassed model"),
    (with_subclassed, DTypePolicyMap("float16"), ValueError, "is a subclassed model"),
    (lambda: None, DTypePolicyMap("float16"), TypeError, "model=None"),
    (lambda: peers.keras().Sequential([]), DTypePolicyMap("float16"), TypeError, "adapters.keras"),
]


@pytest.mark.parametrize(("make", "policy_map", "error", "words"), WRONG_MODELS)
def test_wrong_models(
    make: Callable[[], Any], policy_map: Any, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        apply_policy_map(make(), policy_map)


def test_an_open_policy_is_for_no_model() -> None:
    with pytest.raises(ValueError, match="leaves the dtypes open"):
        cast_model(convolutional()[0], mixed_precision.Policy("_infer"))


# ------------------------------------------------------------------------------ loss scaling


def step(optimizer: Any, variable: Any, gradient: float) -> None:
    scaled = optimizer.get_scaled_loss(peers.tensorflow().constant([gradient]))
    gradients = optimizer.get_unscaled_gradients([scaled])
    optimizer.apply_gradients([(gradients[0], variable)])


@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize("options", [{"initial_scale": 8.0, "dynamic_growth_steps": 3}, {}, None])
def test_optimizers_change_sides_in_the_midst_of_training(options: Any, legacy: bool) -> None:
    keras, tensorflow = peers.tf_keras(), peers.tensorflow()
    options = {"dynamic": False, "initial_scale": 8.0} if options is None else options
    optimizers = keras.optimizers.legacy if legacy else keras.optimizers
    alone, changing = (
        keras.mixed_precision.LossScaleOptimizer(optimizers.SGD(0.1, momentum=0.9), **options)
        for _ in range(2)
    )
    variables = [tensorflow.Variable([1.0]) for _ in range(2)]
    for number, gradient in enumerate([1.0, 2.0, np.inf, 1.0, 3.0, 1.0, 1.0]):
        if not alone.dynamic and not np.isfinite(gradient):
            continue
        if number % 2:
            ours = from_tf_keras_optimizer(changing)
            assert isinstance(ours, LossScaleOptimizer)
            changing = to_tf_keras_optimizer(ours)
            assert type(changing) is type(alone)
        for optimizer, variable in zip((alone, changing), variables, strict=True):
            step(optimizer, variable, gradient)
        assert float(changing.loss_scale) == float(alone.loss_scale)
        if alone.dynamic:
            assert int(changing.dynamic_counter) == int(alone.dynamic_counter)
        assert variables[0].numpy() == variables[1].numpy()
    names = [
        each.inner_optimizer._self_unconditional_dependency_names for each in (alone, changing)
    ]
    assert set(names[0]) == set(names[1])


@pytest.mark.parametrize("wrong", [None, 3, "sgd"])
def test_what_is_no_optimizer(wrong: Any) -> None:
    with pytest.raises(TypeError, match="not a LossScaleOptimizer"):
        from_tf_keras_optimizer(wrong)
    with pytest.raises(TypeError, match="not a LossScaleOptimizer"):
        to_tf_keras_optimizer(wrong)


def test_an_optimizer_of_tf_keras_that_scales_nothing() -> None:
    with pytest.raises(TypeError, match="not a LossScaleOptimizer"):
        from_tf_keras_optimizer(peers.tf_keras().optimizers.SGD())
    with pytest.raises(TypeError, match="around an optimizer of another library"):
        to_tf_keras_optimizer(LossScaleOptimizer(Foreign()))


class Foreign:
    def apply_gradients(self, pairs: Any) -> None:
        """Apply nothing."""


def test_what_layers_have_learned_is_given_on() -> None:
    keras = peers.tf_keras()
    layers, rows = keras.layers, np.array([[1.0, 2.0], [3.0, 9.0]], np.float32)
    normal, bins = layers.Normalization(), layers.Discretization(num_bins=3)
    normal.adapt(rows)
    bins.adapt(rows)
    words = layers.TextVectorization(output_sequence_length=2)
    words.adapt(["b a", "b"])
    rare = layers.StringLookup(output_mode="tf_idf")
    rare.adapt([["b", "a"], ["b", "c"]])
    texts = np.array([["a b"], ["b"]], dtype=object)
    for layer, x in ((normal, rows), (bins, rows), (words, texts), (rare, texts)):
        dtype = "string" if x is texts else "float32"
        model = keras.Sequential([keras.Input(x.shape[1:], dtype=dtype), layer])
        expected = model(x).numpy()
        clone, _ = cast_model(model, "float64")
        found = clone(x).numpy()
        assert type(clone.layers[-1]) is type(layer)
        assert clone.layers[-1] is not layer
        np.testing.assert_allclose(found, expected, rtol=1e-6)
        assert (found.dtype == np.float64) is (expected.dtype == np.float32)


def test_layers_that_compute_in_integers_stay() -> None:
    keras = peers.tf_keras()
    model = keras.Sequential([keras.layers.Hashing(5000, name="hash")])
    x = np.array([[3001, 3003]])
    clone, report = cast_model(model, "float16")
    assert clone(x).numpy().tolist() == model(x).numpy().tolist()
    assert clone.layers[0].dtype_policy.name == model.layers[0].dtype_policy.name
    assert "hash" not in report.layers


def test_a_graph_whose_dtypes_would_differ() -> None:
    keras = peers.tf_keras()
    inputs = keras.Input((3,))
    model = keras.Model(inputs, inputs + keras.layers.Dense(3)(inputs), name="net")
    with pytest.raises(ValueError, match=r"(?s)'net' cannot be copied with these.*promote"):
        cast_model(model, "mixed_bfloat16")
    with pytest.raises(ValueError, match=r"policy_map=.* is not the config of a map"):
        apply_policy_map(model, {"class_name": "DTypePolicyMap", "config": {}})
