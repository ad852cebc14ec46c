"""Quantised models of the real Keras are decoded to what Keras itself makes of their codes."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import keras
import numpy as np
import pytest
from castwise import checkpoint
from castwise.checkpoint import CheckpointError, _plain
from keras import layers, ops, quantizers
from numpy.typing import NDArray

Array = NDArray[Any]

# Keras on numpy makes arrays of variables in a way that numpy 2 no longer likes; its models warn of
# every layer that they do not quantise.
pytestmark = [
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize` method:UserWarning"),
]

INT4 = quantizers.Int4QuantizationConfig
MODES: dict[str, dict[str, Any]] = {
    "int8": {"mode": "int8"},
    "int4 of channels": {"config": INT4(block_size=-1)},
    "int4 of blocks": {"config": INT4(block_size=4)},
    "int4": {"mode": "int4"},
}


def sequential() -> Any:
    """Give dense layers, one without a bias, of odd sizes."""
    return keras.Sequential(
        [
            keras.Input((10,)),
            layers.Dense(7, bias_initializer="normal"),
            layers.LayerNormalization(),
            layers.Dense(5, use_bias=False),
            layers.Dense(1),
        ]
    )


def functional() -> Any:
    """Give every kind of layer that is decoded, one model inside of another."""
    inner_input = keras.Input((6, 9))
    heads = layers.EinsumDense("abc,cde->abde", (6, 3, 5), bias_axes="de", name="heads")
    merge = layers.EinsumDense("abde,def->abf", (6, 7), name="merge")
    inner = keras.Model(inner_input, merge(heads(inner_input)), name="inner")
    tokens = keras.Input((6,), dtype="int32")
    x = layers.Embedding(13, 9, name="embedding")(tokens)
    x = layers.EinsumDense("abc,cd->abd", (6, 9), bias_axes="d", name="einsum")(inner(x))
    return keras.Model(tokens, layers.Dense(4, name="dense")(x))


def quantised(make: Callable[[], Any], policy: str = "float32", **options: Any) -> Any:
    """Make a model, and quantise it."""
    keras.utils.set_random_seed(1)
    keras.config.set_dtype_policy(policy)
    try:
        model = make()
    finally:
        keras.config.set_dtype_policy("float32")
    model.quantize(**options)
    return model


def leaves(model: Any) -> list[Any]:
    """Give the layers that are no models."""
    return [one for one in model._flatten_layers() if not isinstance(one, keras.Model)]


def decoded(layer: Any) -> Array | None:
    """Compute the weight of a quantised layer as Keras does to merge LoRA weights, in float32."""
    codes = getattr(
        layer, "_embeddings" if isinstance(layer, layers.Embedding) else "_kernel", None
    )
    mode = getattr(layer, "quantization_mode", None)
    if codes is None or mode not in ("int8", "int4"):
        return None
    is_rows = isinstance(layer, layers.Embedding)
    scale, zero = (
        getattr(layer, ("embeddings_" if is_rows else "kernel_") + what, None)
        for what in ("scale", "zero")
    )
    scale = ops.cast(scale, "float32")
    if mode == "int4":
        is_einsum = isinstance(layer, layers.EinsumDense)
        size = layer._int4_unpacked_column_size if is_einsum else layer._orig_output_dim
        codes = quantizers.unpack_int4(codes, size, axis=-1)
        if zero is not None:
            axis = -1 if is_rows else 0
            values = keras.src.quantizers.dequantize_with_sz_map(
                codes, scale, zero, layer.g_idx, axis
            )
        else:
            scale = scale[:, None] if is_rows else scale
            values = ops.divide(ops.cast(codes, "float32"), scale)
        return np.asarray(values).reshape(layer.original_kernel_shape if is_einsum else codes.shape)
    if isinstance(layer, layers.EinsumDense):
        scale = layer._adjust_scale_for_dequant(scale)
    scale = scale[:, None] if is_rows else scale
    return np.asarray(ops.divide(ops.cast(codes, "float32"), scale))


def variables(layer: Any) -> list[Array]:
    return [np.asarray(one) for one in layer.get_weights()]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("make", [sequential, functional])
def test_keras_loads_what_is_decoded(
    tmp_path: Path, make: Callable[[], Any], mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The weights of the plain model have the bits that Keras computes; so has their file alone."""
    model = quantised(make, **MODES[mode])
    source = tmp_path / "in.keras"
    model.save(source)
    summary = checkpoint.dequantize_file(source, tmp_path / "out.keras", "float32")
    expected = {one.name: value for one in leaves(model) if (value := decoded(one)) is not None}
    assert len(expected) == len([row for row in summary.rows if row.target is not None])
    plain = keras.saving.load_model(tmp_path / "out.keras")
    assert len(plain.weights) == len(make().weights)
    for layer in leaves(plain):
        assert layer.dtype_policy.name == "float32"
        if layer.name in expected:
            np.testing.assert_array_equal(variables(layer)[0], expected[layer.name])
    biases = {
        one.name: np.asarray(one.bias)
        for one in leaves(model)
        if hasattr(one, "bias") and one.bias is not None
    }
    for layer in leaves(plain):
        if layer.name in biases:
            np.testing.assert_array_equal(np.asarray(layer.bias), biases[layer.name])
    monkeypatch.setattr(_plain, "_SLAB_ELEMENTS", 16)
    checkpoint.dequantize_file(source, tmp_path / "out.weights.h5", "float32")
    other = make()
    other.load_weights(tmp_path / "out.weights.h5")
    for one, two in zip(plain.weights, other.weights, strict=True):
        np.testing.assert_array_equal(np.asarray(one), np.asarray(two))
    report = checkpoint.verify(source, tmp_path / "out.keras")
    assert report.equal


def test_policies_and_everything_else_of_the_file(tmp_path: Path) -> None:
    model = quantised(sequential, "mixed_bfloat16", mode="int8")
    model.save(source := tmp_path / "in.keras")
    checkpoint.dequantize_file(source, tmp_path / "out.keras")
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(tmp_path / "out.keras") as new:
        assert sorted(new.namelist()) == sorted(old.namelist())
        assert new.read("metadata.json") == old.read("metadata.json")
        text = new.read("config.json").decode()
    assert "Quantized" not in text
    assert "int8" not in text
    sequential_again = keras.saving.load_model(tmp_path / "out.keras")
    assert {one.dtype_policy.name for one in leaves(sequential_again) if one.weights} == {
        "mixed_bfloat16"
    }
    assert json.loads(text)["config"]["layers"][1]["config"]["quantization_config"] is None


@pytest.mark.parametrize("mode", ["int8", "int4 of blocks"])
@pytest.mark.parametrize("policy", ["bfloat16", "mixed_bfloat16"])
def test_scales_of_every_dtype(tmp_path: Path, mode: str, policy: str) -> None:
    model = quantised(sequential, policy, **MODES[mode])
    model.save(source := tmp_path / "in.keras")
    checkpoint.dequantize_file(source, out := tmp_path / "out.safetensors", "float32")
    found = checkpoint.load(out)
    for place, layer in enumerate(one for one in leaves(model) if isinstance(one, layers.Dense)):
        path = "layers/dense" + (f"_{place}" if place else "")
        np.testing.assert_array_equal(found[f"{path}/vars/0"], decoded(layer))


def test_float8_loses_its_scales(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = quantised(sequential, mode="float8")
    model.save(source := tmp_path / "in.keras")
    summary = checkpoint.dequantize_file(source, tmp_path / "out.keras")
    assert "left out, as a plain model has none" in caplog.text
    assert all(row.target is None for row in summary.rows)
    plain = keras.saving.load_model(tmp_path / "out.keras")
    wanted = [np.asarray(one.kernel) for one in leaves(model) if hasattr(one, "kernel")]
    got = [np.asarray(one.kernel) for one in leaves(plain) if hasattr(one, "kernel")]
    for one, two in zip(wanted, got, strict=True):
        np.testing.assert_array_equal(one, two)
    assert {one.dtype_policy.name for one in leaves(plain)} == {"float32"}
    model.save_weights(source := tmp_path / "in.weights.h5")
    checkpoint.dequantize_file(source, tmp_path / "out.weights.h5")
    plain = sequential()
    plain.load_weights(tmp_path / "out.weights.h5")
    np.testing.assert_array_equal(np.asarray(plain.layers[0].kernel), wanted[0])


def test_weights_alone(tmp_path: Path) -> None:
    """int8 of dense layers is certain; what may have another shape is refused."""
    dense = keras.Sequential([keras.Input((10,)), layers.Dense(7), layers.Dense(7)])
    dense.quantize("int8")
    dense.save_weights(source := tmp_path / "in.weights.h5")
    checkpoint.dequantize_file(source, out := tmp_path / "out.safetensors", "float32")
    found = checkpoint.load(out)
    for place, layer in enumerate(dense.layers):
        path = "layers/dense" + (f"_{place}" if place else "")
        np.testing.assert_array_equal(found[f"{path}/vars/0"], decoded(layer))
        np.testing.assert_array_equal(found[f"{path}/vars/1"], np.asarray(layer.bias))
    assert len(found) == 4
    for model, options in (
        (sequential, {"mode": "int8"}),  # the last layer has one output, as int4 of one or two
        (sequential, {"mode": "int4"}),
        (functional, {"mode": "int8"}),
    ):
        quantised(model, **options).save_weights(source)
        with pytest.raises(CheckpointError, match=r"shapes do not tell.*\.keras"):
            checkpoint.dequantize_file(source, tmp_path / "no.weights.h5")
        assert not (tmp_path / "no.weights.h5").exists()


def changed(source: Path, target: Path, config: Any = None, weights: Any = None) -> Path:
    """Write a `.keras` file anew, with changes."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        for name in old.namelist():
            data = old.read(name)
            if name == "config.json" and config is not None:
                text = data.decode()
                data = config(text).encode()
                assert data.decode() != text
            if name == "model.weights.h5" and weights is not None:
                path = target.with_suffix(".h5")
                path.write_bytes(data)
                with h5py.File(path, "r+") as tree:
                    weights(tree)
                data = path.read_bytes()
            new.writestr(name, data)
    return target


def drop(name: str) -> Callable[[Any], None]:
    def change(tree: Any) -> None:
        del tree[name]

    return change


def put(name: str, change: Callable[[Array], Any]) -> Callable[[Any], None]:
    def apply(tree: Any) -> None:
        value = change(tree[name][...])
        attributes = dict(tree[name].attrs)
        del tree[name]
        tree[name] = value
        tree[name].attrs.update(attributes)

    return apply


FIRST = "layers/dense/vars"
FAULTS: dict[str, tuple[str, dict[str, Any], str]] = {
    "other units": (
        "int8",
        {"config": lambda text: text.replace('"units": 7', '"units": 8')},
        "needs",
    ),
    "no scale": ("int8", {"weights": drop(f"{FIRST}/2")}, "2 variables.* layer of 3"),
    "short scale": ("int8", {"weights": put(f"{FIRST}/2", lambda x: x[:-1])}, "shape"),
    "scale of int": (
        "int8",
        {"weights": put(f"{FIRST}/2", lambda x: x.astype(np.int32))},
        "scale",
    ),
    "another name": (
        "int8",
        {"config": lambda text: text.replace('"name": "dense"', '"name": "other"')},
        "states nothing of the layer",
    ),
    "no zeros": (
        "int4 of blocks",
        {"weights": drop(f"{FIRST}/3")},
        "4 variables.* layer of 5",
    ),
    "no groups": ("int4 of blocks", {"weights": drop(f"{FIRST}/4")}, "4 variables.* layer of 5"),
    "groups in another order": (
        "int4 of blocks",
        {"weights": put(f"{FIRST}/4", lambda x: x[::-1])},
        "not the indices of blocks of 4",
    ),
    "blocks of another size": (
        "int4 of blocks",
        {"config": lambda text: text.replace("int4/4", "int4/5")},
        "not the indices of blocks of 5",
    ),
    "blocks that are not stated": (
        "int4 of blocks",
        {"config": lambda text: text.replace("int4/4", "int4/-1")},
        "5 variables.* layer of 3",
    ),
    "zeros of channels": (
        "int4 of channels",
        {"config": lambda text: text.replace("int4/-1", "int4/4")},
        "3 variables.* layer of 5",
    ),
    "not quantised, says the model": (
        "int8",
        {
            "config": lambda text: text.replace(
                '"QuantizedDTypePolicy", "config": {"mode": "int8", "source_name": "float32"}',
                '"DTypePolicy", "config": {"name": "float32"}',
                1,
            )
        },
        "None of Keras' Dense",
    ),
    "a layer of another class": (
        "int8",
        {"config": lambda text: text.replace('"class_name": "Dense"', '"class_name": "Own"')},
        "int8 of Keras' Own",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_refused(tmp_path: Path, name: str) -> None:
    mode, change, words = FAULTS[name]

    def make() -> Any:
        return keras.Sequential(
            [keras.Input((10,)), layers.Dense(7, name="dense"), layers.Dense(5, name="dense_1")]
        )

    model = quantised(make, **MODES[mode])
    model.save(tmp_path / "in.keras")
    checkpoint.dequantize_file(tmp_path / "in.keras", tmp_path / "fine.keras")
    source = changed(tmp_path / "in.keras", tmp_path / "changed.keras", **change)
    with pytest.raises(CheckpointError, match=words):
        checkpoint.dequantize_file(source, tmp_path / "out.keras")
    assert not (tmp_path / "out.keras").exists()


@pytest.mark.parametrize(
    ("old", "new"),
    [('"class_name": "Sequential"', '"class_name": []'), ('"dtype": "float32"', '"dtype": null')],
)
def test_what_is_not_known_of_other_layers_is_kept(tmp_path: Path, old: str, new: str) -> None:
    model = quantised(sequential, mode="int8")
    model.save(tmp_path / "in.keras")
    source = changed(
        tmp_path / "in.keras", tmp_path / "a.keras", lambda text: text.replace(old, new)
    )
    checkpoint.dequantize_file(source, out := tmp_path / "out.keras", "float32")
    with zipfile.ZipFile(out) as file:
        assert new in file.read("config.json").decode()
    found = checkpoint.load(out)["layers/dense/vars/0"]
    np.testing.assert_array_equal(found, decoded(model.layers[0]))


def test_only_is_refused(tmp_path: Path) -> None:
    """One policy of a model can be of any layer, but castwise changes them all."""
    quantised(sequential, mode="int8").save(source := tmp_path / "in.keras")
    with pytest.raises(CheckpointError, match="decode all of it"):
        checkpoint.dequantize_file(source, tmp_path / "out.keras", only="layers/dense/vars/0")


def test_layers_of_one_name_that_are_not_alike(tmp_path: Path) -> None:
    inner = keras.Sequential([keras.Input((4,)), layers.Dense(6, name="same")], name="inner")
    model = keras.Sequential([keras.Input((3,)), layers.Dense(4, name="same"), inner])
    model.quantize("int8")
    model.save(source := tmp_path / "in.keras")
    with pytest.raises(CheckpointError, match="2 layers of its name"):
        checkpoint.dequantize_file(source, tmp_path / "out.keras")


def test_modes_that_are_not_decoded(tmp_path: Path) -> None:
    attention = layers.MultiHeadAttention(2, 3, name="attention")
    tokens = keras.Input((4, 6))
    model = keras.Model(tokens, attention(tokens, tokens))
    model.quantize("int8")
    model.save(source := tmp_path / "in.keras")
    with pytest.raises(CheckpointError, match=r"shapes do not tell|yet"):
        checkpoint.dequantize_file(source, tmp_path / "out.keras")
