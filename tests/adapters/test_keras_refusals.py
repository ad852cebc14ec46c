"""What castwise.adapters.keras refuses, with argument and remedy; nothing has changed then."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import castwise
import castwise.config
import numpy as np
import peers
import pytest
from castwise.adapters.keras import apply_policy_map, cast_model, from_keras, install, to_keras
from castwise.dtype_policies import DTypePolicy, DTypePolicyMap, get

# Of Keras' own Variable.__array__.
pytestmark = [
    pytest.mark.usefixtures("keras_state"),
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
]


class OwnInputs(DTypePolicy):
    def convert_input(self, x: Any, autocast: bool, dtype: Any) -> Any:
        return x


def keras_policies() -> Any:
    return peers.keras().dtype_policies


def nameless() -> Any:
    """What get_config of a map of Keras leaves of the policies in it."""
    policy = keras_policies().DTypePolicy("float16")
    keras_policies().DTypePolicyMap(None, {"a": policy}).get_config()
    return policy


def own_lookups() -> Any:
    base = keras_policies().DTypePolicyMap
    return type("Own", (base,), {"__getitem__": lambda self, key: self.default_policy})("float32")


WRONG_POLICIES: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (
        lambda: to_keras("ternary_from_float32"),
        ValueError,
        r"refuses it; use another policy, or another release of Keras: Invalid quantization",
    ),
    (lambda: to_keras("float33"), ValueError, "float33"),
    (lambda: to_keras(3), ValueError, "dtype=3 is not a policy"),
    (lambda: to_keras(OwnInputs("float32")), TypeError, "convert_input of its own"),
    (lambda: to_keras(DTypePolicyMap("ternary_from_float32")).compute_dtype, ValueError, "ternary"),
    (lambda: from_keras("float32"), TypeError, "is not a policy of Keras"),
    (lambda: from_keras(None), TypeError, "is not a policy of Keras"),
    (lambda: from_keras(nameless()), ValueError, "no name any more"),
    (lambda: from_keras(own_lookups()), TypeError, "in a way of its own"),
    (
        lambda: from_keras(keras_policies().DTypePolicyMap(None, {"(": DTypePolicy("float16")})),
        ValueError,
        "is not a policy|regular expression",
    ),
]


@pytest.mark.parametrize(("call", "error", "words"), WRONG_POLICIES)
def test_policies(call: Callable[[], Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        call()


def test_a_name_that_keras_reads_differently(monkeypatch: pytest.MonkeyPatch) -> None:
    """As "int" with TensorFlow: 64 bits there."""
    original = keras_policies().DTypePolicy._parse_name

    def parse_name(self: Any, name: str) -> tuple[str, str]:
        return ("int64", "int64") if name == "int" else original(self, name)

    monkeypatch.setattr(keras_policies().DTypePolicy, "_parse_name", parse_name)
    with pytest.raises(ValueError, match="'int' has the compute_dtype int32, and int64 where"):
        to_keras("int")


def small_model() -> Any:
    layers = peers.keras().layers
    model = peers.keras().Sequential(
        [layers.Dense(4, name="one"), layers.Dense(2, name="two"), layers.Dense(2, name="three")],
        name="net",
    )
    model.build((None, 3))
    return model


def quantized_model() -> Any:
    model = small_model()
    model.layers[0].quantize("int8")
    return model


def tied_model() -> Any:
    model = small_model()
    one, two = model.layers[1:]
    one._trainable_variables.append(two._kernel)
    return model


def rules(*items: tuple[str, Any], default: Any = "mixed_bfloat16") -> DTypePolicyMap:
    return DTypePolicyMap(default, dict(items))


WRONG_MODELS: list[tuple[Callable[[], Any], Any, type[Exception], str]] = [
    (small_model, rules(("net/.*", "bfloat16"), (".*/two", "float16")), ValueError, "2 keys"),
    (small_model, "bfloat16", TypeError, "policy_map='bfloat16' is not a map"),
    (small_model, get("bfloat16"), TypeError, "cast_model"),
    (small_model, {"net/one": "bfloat16"}, TypeError, "give DTypePolicyMap"),
    (small_model, None, TypeError, "is not a map"),
    (small_model, rules(("net/two", "gptq/4/8_from_bfloat16")), ValueError, "calibrate"),
    (small_model, rules(("net/two", "awq/4/8_from_bfloat16")), ValueError, "calibrate"),
    (small_model, rules(("net/three", "ternary_from_bfloat16")), ValueError, "ternary"),
    (small_model, rules(("net/three", "int8")), ValueError, "policy of floats"),
    (small_model, rules(("net/three", "complex64")), ValueError, "policy of floats"),
    (quantized_model, rules(), ValueError, "cannot be undone"),
    (quantized_model, rules(default="int4_from_bfloat16"), ValueError, "cannot be undone"),
    (tied_model, rules(("net/two", "bfloat16")), ValueError, "share the variable"),
    (lambda: peers.keras().Sequential([]), rules(default="int8_from_float32"), ValueError, "build"),
    (lambda: None, rules(), TypeError, "model=None is not a model"),
    (lambda: np.ones(3), rules(), TypeError, "give a keras.Model"),
    (lambda: peers.keras().Model, rules(), TypeError, "is not a model"),
    (lambda: peers.tf_keras().Sequential(), rules(), TypeError, "adapters.tf_keras is for"),
]


def state(model: Any) -> Any:
    if not isinstance(model, peers.keras().layers.Layer):
        return None
    policies = [layer.dtype_policy for layer in model._flatten_layers()]
    weights = [(each.path, each.dtype, each.value.tobytes()) for each in model.weights]
    return policies, weights


@pytest.mark.parametrize(("make", "policy_map", "error", "words"), WRONG_MODELS)
def test_models(
    make: Callable[[], Any], policy_map: Any, error: type[Exception], words: str
) -> None:
    model = make()
    before = state(model)
    with pytest.raises(error, match=words):
        apply_policy_map(model, policy_map)
    assert state(model) == before


def test_one_policy_is_no_map() -> None:
    with pytest.raises(ValueError, match="use apply_policy_map"):
        cast_model(small_model(), rules())
    with pytest.raises(ValueError, match="use apply_policy_map"):
        cast_model(small_model(), to_keras(rules()))
    with pytest.raises(ValueError, match="float33"):
        cast_model(small_model(), "float33")


def test_unknown_paths_are_reported() -> None:
    model = small_model()
    report = apply_policy_map(model, rules(("net/onee", "float16"), ("net/two", "bfloat16")))
    assert report.explanation.unused == {"net/onee": "net/one"}
    assert "unused pattern 'net/onee'; nearest is 'net/one'" in str(report)
    assert report.layers["net/two"] == ("float32", "bfloat16")
    assert report.to_dict()["variables"]["net/two/kernel"] == ["float32", "bfloat16"]


def test_casts_in_a_graph_are_reported() -> None:
    keras = peers.keras()
    inputs = keras.Input((3,))
    outputs = keras.layers.Dense(2)(keras.ops.cast(inputs, "float16"))
    report = cast_model(keras.Model(inputs, outputs, name="net"), "float32")
    assert report.notes == (
        "The graph of 'net' holds 1 casts to float16, which stay; if they should not, build the "
        "model again.",
    )


def test_a_quantized_layer_that_keeps_its_policy_is_no_conflict() -> None:
    model = quantized_model()
    apply_policy_map(model, rules(("net/one", "int8_from_float32")))
    assert [layer.dtype_policy.name for layer in model.layers] == [
        "int8_from_float32",
        "mixed_bfloat16",
        "mixed_bfloat16",
    ]


def test_a_policy_that_castwise_refuses_is_not_set_in_keras_either() -> None:
    keras = peers.keras()
    wrong = keras.dtype_policies.QuantizedFloat8DTypePolicy("float8", "float32", 0)
    with install():
        keras.config.set_dtype_policy("float16")
        with pytest.raises(ValueError, match="amax_history_length=0"):
            keras.config.set_dtype_policy(wrong)
        with pytest.raises(ValueError, match="policy"):
            keras.config.set_dtype_policy(3)
        assert keras.config.dtype_policy().name == castwise.config.dtype_policy().name == "float16"
    assert keras.config.dtype_policy().name == "float16"


@pytest.mark.parametrize("name", ["keras", "tf_keras"])
def test_a_framework_that_is_not_installed(name: str) -> None:
    program = (
        f"import sys; sys.modules[{name!r}] = None\n"
        f"import castwise.adapters.{name} as adapter\n"
        "try: adapter.cast_model(None, 'float32')\n"
        "except ImportError as error: print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert f"pip install 'castwise[{name}]'" in done.stdout


@pytest.mark.parametrize("library", ["keras", "tf_keras"])
def test_a_tree_with_a_model_names_what_casts_models(library: str) -> None:
    keras = getattr(peers, library)()
    model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(8)])
    for tree in (model, {"model": model}, [model.layers[0]]):
        with pytest.raises(TypeError, match=r"castwise\.adapters\.\w+\.cast_m"):
            castwise.cast_tree(tree, "bfloat16")
    kept = castwise.cast_tree({"model": model, "w": np.ones(2)}, {"model": "keep", ".*": "float16"})
    assert kept["model"] is model
    assert kept["w"].dtype == np.float16
