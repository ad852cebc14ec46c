"""Maps on models whose layers' paths Keras changes: loaded, made from configs, cloned."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import peers
import pytest
from castwise.adapters.keras import apply_policy_map
from castwise.adapters.tf_keras import apply_policy_map as apply_in_tf
from castwise.dtype_policies import DTypePolicyMap

# Of Keras' own Variable.__array__, and of tf_keras with numpy 2.
pytestmark = [
    pytest.mark.usefixtures("keras_state"),
    pytest.mark.filterwarnings(
        "ignore:__array__ implementation:DeprecationWarning",
        "ignore::DeprecationWarning",
        "ignore::FutureWarning",
    ),
]

ONES = np.ones((1, 4), np.float32)


def block(keras: Any) -> Any:
    """A layer that holds others."""

    @keras.saving.register_keras_serializable("castwise_tests")
    class Block(keras.layers.Layer):  # type: ignore[misc,name-defined]
        def __init__(self, **options: Any) -> None:
            super().__init__(**options)
            self.dense = keras.layers.Dense(4, name="dense")
            self.norm = keras.layers.LayerNormalization(name="norm")

        def build(self, shape: Any) -> None:
            self.dense.build(shape)
            self.norm.build((*shape[:-1], 4))

        def call(self, x: Any) -> Any:
            return self.norm(self.dense(x))

        def compute_output_shape(self, shape: Any) -> Any:
            return (*shape[:-1], 4)

        def get_config(self) -> dict[str, Any]:
            return {"name": self.name}

    return Block(name="block")


def sequential() -> Any:
    """With an input, so that it is built at once, and a model within."""
    keras = peers.keras()
    layers = keras.layers
    inner = keras.Sequential([layers.Dense(2, name="in")], name="inner")
    each = [keras.Input((4,)), layers.Dense(4, name="one"), block(keras), inner]
    return keras.Sequential([*each, layers.Dropout(0.1, name="drop")], name="net")


def deferred() -> Any:
    """Built by its first call."""
    layers = peers.keras().layers
    each = [layers.Dense(4, name="one"), block(peers.keras()), layers.Dense(2, name="two")]
    model = peers.keras().Sequential(each, name="net")
    model(ONES)
    return model


def functional() -> Any:
    """With a model within, whose layer has the name of one outside, and a wrapper."""
    keras = peers.keras()
    layers = keras.layers
    inputs = keras.Input((4,))
    inner = keras.Sequential([layers.Dense(4, name="dense")], name="inner")
    x = inner(block(keras)(layers.Dense(4, name="dense")(inputs)))
    x = layers.Reshape((2, 2), name="rows")(x)
    return keras.Model(inputs, layers.Bidirectional(layers.GRU(2, name="gru"), name="both")(x))


def subclassed(named: bool = True) -> Any:
    """Its config has its name, or not."""
    keras = peers.keras()

    @keras.saving.register_keras_serializable(f"castwise_tests_{named}")
    class Net(keras.Model):  # type: ignore[misc,name-defined]
        def __init__(self, **options: Any) -> None:
            super().__init__(**options)
            self.block = block(keras)
            self.heads = [keras.layers.Dense(3, name="one"), keras.layers.Dense(3, name="two")]

        def call(self, x: Any) -> Any:
            x = self.block(x)
            return self.heads[0](x) + self.heads[1](x)

        def get_config(self) -> dict[str, Any]:
            return {"name": self.name} if named else {}

    model = Net(name="net" if named else "mine")
    model(ONES)
    return model


def saved(model: Any, folder: Path) -> Any:
    model.save(folder / "model.keras")
    return peers.keras().saving.load_model(folder / "model.keras")


WAYS: dict[str, Callable[[Any, Path], Any]] = {
    "saved": saved,
    "saved twice": lambda model, folder: saved(saved(model, folder), folder),
    "called": lambda model, folder: [loaded := saved(model, folder), loaded(ONES)][0],
    "config": lambda model, _: type(model).from_config(model.get_config()),
    "cloned": lambda model, _: peers.keras().models.clone_model(model),
    "cloned after": lambda model, folder: peers.keras().models.clone_model(saved(model, folder)),
}

MODELS: dict[str, tuple[Callable[[], Any], dict[str, str]]] = {
    "sequential": (
        sequential,
        {"net/one": "bfloat16", "net/block/.*": "float16", "net/inner/in": "mixed_bfloat16"},
    ),
    "whole": (sequential, {"net(/.*)?": "bfloat16"}),
    "deferred": (deferred, {"net/.*": "bfloat16"}),
    "functional": (functional, {"dense": "bfloat16", "inner/.*": "float16", "both/.*": "float16"}),
    "homonyms": (functional, {"dense": "bfloat16", "block": "float16"}),
    "subclassed": (subclassed, {"net/block(/.*)?": "bfloat16", "net/(one|two)": "float16"}),
}


def policies(model: Any) -> list[tuple[str, str]]:
    """The policies of all layers, in the order in which the model holds them."""
    return [
        (layer.name, layer.dtype_policy.name)
        for layer in model._flatten_layers()
        if type(layer).__name__ != "InputLayer"
    ]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", MODELS)
def test_a_map_that_matched_before_matches_after(kind: str, way: str, tmp_path: Path) -> None:
    make, keys = MODELS[kind]
    rules = DTypePolicyMap("float32", keys)
    model = make()
    other = WAYS[way](model, tmp_path)
    if kind == "subclassed" and way != "saved":
        other(ONES)
    report = apply_policy_map(model, rules)
    assert report.explanation.unused == {}
    assert not any("matched by the path" in note for note in report.notes)
    found = apply_policy_map(other, rules)
    assert found.explanation.keys == report.explanation.keys
    assert policies(other) == policies(model)
    assert len(found.layers) == len(report.layers)


def test_the_report_names_the_paths() -> None:
    model = sequential()
    loaded = type(model).from_config(model.get_config())
    report = apply_policy_map(loaded, DTypePolicyMap("float32", {"net/one": "bfloat16"}))
    assert report.layers == {"net/one": ("float32", "bfloat16")}
    assert report.notes == (
        "1 layer is matched by the path of a model that is not loaded or cloned, such as 'net/one' "
        "of the paths 'one' and 'net/one'.",
    )
    report = apply_policy_map(loaded, DTypePolicyMap("float32", {"one|in": "float16"}))
    assert report.notes == (
        "2 layers are matched by the path of a model that is loaded or cloned, such as 'one' of "
        "the paths 'one' and 'net/one'.",
    )


def test_a_map_of_which_no_key_matches() -> None:
    model = sequential()
    before = policies(model)
    for keys, words in (
        ({"one": "float16"}, r"'one' matches 'net/one' only without .* write '\(\.\*/\)\?one' for"),
        ({"old/one": "float16"}, r"'old/one' matches 'net/one' only in a model named 'old'"),
        ({"onee": "float16", "tow": "int8"}, r"the path nearest to 'onee' is 'net/one'"),
    ):
        with pytest.raises(ValueError, match=f"(?s)no layer of the model.*{words}"):
            apply_policy_map(model, DTypePolicyMap("bfloat16", keys))
    assert policies(model) == before
    report = apply_policy_map(
        model, DTypePolicyMap("float32", {"net/inner": "float16", "block/.*": "bfloat16"})
    )
    assert report.notes == (
        "The key 'block/.*' matches 'net/block/dense' only without its first names, which layers "
        "of loaded models lack; write '(.*/)?block/.*' for both.",
    )


def test_a_model_that_loses_its_name(tmp_path: Path) -> None:
    model = subclassed(named=False)
    rules = DTypePolicyMap("float32", {"mine/block/.*": "bfloat16"})
    loaded = saved(model, tmp_path)
    apply_policy_map(model, rules)
    with pytest.raises(ValueError, match=r"model named 'mine', and this one is named 'net"):
        apply_policy_map(loaded, rules)


def test_keys_that_disagree_on_the_paths_of_one_layer() -> None:
    model = sequential()
    loaded = type(model).from_config(model.get_config())
    keys = {"net/one": "bfloat16", "one": "float16"}
    before = policies(loaded)
    with pytest.raises(ValueError, match="two of its paths, 'one' by 'one' and 'net/one' by"):
        apply_policy_map(loaded, DTypePolicyMap("float32", keys))
    assert policies(loaded) == before
    apply_policy_map(loaded, DTypePolicyMap("float32", keys, on_overlap="first"))
    assert dict(policies(loaded))["one"] == "float16"


@pytest.mark.parametrize("suffix", [".keras", ""])
def test_paths_in_tf_keras_stay(suffix: str, tmp_path: Path) -> None:
    keras = peers.tf_keras()
    layers = keras.layers
    inner = keras.Sequential([layers.Dense(2, name="in")], name="inner")
    model = keras.Sequential([keras.Input((4,)), layers.Dense(4, name="one"), inner], name="net")
    rules = DTypePolicyMap("float32", {"one": "bfloat16", "inner/.*": "float16"})
    wanted, report = apply_in_tf(model, rules)
    model.save(tmp_path / f"model{suffix}")
    for other in (
        keras.models.load_model(tmp_path / f"model{suffix}"),
        type(model).from_config(model.get_config()),
        keras.models.clone_model(model),
        wanted,
    ):
        clone, found = apply_in_tf(other, rules)
        assert found.explanation.paths == report.explanation.paths
        assert policies(clone) == policies(wanted)
    with pytest.raises(ValueError, match="the path nearest to 'net/one' is 'inner/in'"):
        apply_in_tf(model, DTypePolicyMap("bfloat16", {"net/one": "float16"}))
