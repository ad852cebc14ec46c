"""What apply_policy_map and cast_model leave as it is, and what they tell."""

from __future__ import annotations

import numpy as np
import peers
import pytest
from castwise.adapters.keras import apply_policy_map, cast_model
from castwise.dtype_policies import DTypePolicyMap

# Of Keras' own Variable.__array__.
pytestmark = [
    pytest.mark.usefixtures("keras_state"),
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
]


def test_layers_that_compute_in_integers_stay() -> None:
    keras = peers.keras()
    model = keras.Sequential(
        [keras.Input((2,), dtype="int64"), keras.layers.Hashing(5000, name="hash")], name="net"
    )
    x = np.array([[3001, 3003]])
    before = model(x)
    report = cast_model(model, "float16")
    assert (model.layers[0].dtype_policy.name, model(x).dtype) == ("int64", before.dtype)
    assert model(x).tolist() == before.tolist()
    assert report.notes == ("'net/hash' computes in int64, and keeps its policy.",)
    assert list(report.layers) == ["net"]


def test_values_beyond_the_range_are_reported() -> None:
    keras = peers.keras()
    layer = keras.layers.Dense(2, name="dense")
    layer.build((None, 3))
    layer.kernel.assign(np.full((3, 2), 1e6, np.float32))
    report = cast_model(layer, "bfloat16")
    assert report.notes == ()
    report = cast_model(layer, "float16")
    assert report.notes == (
        "'dense/kernel' held values beyond the range of float16: they are not finite now.",
    )
    assert np.isinf(keras.ops.convert_to_numpy(layer.kernel)).all()
    assert cast_model(layer, "float32").notes == ()


def test_layers_that_keep_the_map_are_reported() -> None:
    keras = peers.keras()
    model = keras.Sequential([keras.layers.Dense(2, name="one")], name="net")
    rules = DTypePolicyMap("float32", {"net/one": "bfloat16"})
    assert "2 layers are not built" in apply_policy_map(model, rules).notes[0]
    model(np.ones((1, 3), np.float32))
    assert apply_policy_map(model, rules).notes == ()
    assert model.layers[0].get_config()["dtype"]["config"] == {"name": "bfloat16"}
    assert cast_model(keras.Sequential([]), "bfloat16").notes == ()


@pytest.mark.parametrize("class_name", ["DTypePolicyMap", "Nope"])
def test_a_dictionary_that_is_no_config_of_a_map(class_name: str) -> None:
    layer = peers.keras().layers.Dense(2)
    with pytest.raises(ValueError, match=r"policy_map=.* is not the config of a map"):
        apply_policy_map(layer, {"class_name": class_name, "config": {}})
