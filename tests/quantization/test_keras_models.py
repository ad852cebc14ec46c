"""Quantized models of the real Keras are decoded to what Keras itself makes of their codes."""

from __future__ import annotations

import io
import json
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import keras
import numpy as np
import pytest
from castwise import checkpoint
from castwise.checkpoint import CheckpointError
from castwise.checkpoint.planning.decode import decode
from keras import layers, ops, quantizers
from keras_files import changed, leaves, put
from numpy.typing import NDArray

Array = NDArray[Any]

# Keras on numpy makes arrays of variables in a way that numpy 2 no longer likes; its models warn of
# every layer that they do not quantize.
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


def quantized(make: Callable[[], Any], policy: str = "float32", **options: Any) -> Any:
    """Make a model, and quantize it."""
    keras.utils.set_random_seed(1)
    keras.config.set_dtype_policy(policy)
    try:
        model = make()
    finally:
        keras.config.set_dtype_policy("float32")
    model.quantize(**options)
    return model


def decoded(layer: Any) -> Array | None:
    """Compute the weight of a quantized layer as Keras does to merge LoRA weights, in float32."""
    codes = getattr(
        layer, "_embeddings" if isinstance(layer, layers.Embedding) else "_kernel", None
    )
    mode = getattr(layer, "quantization_mode", None)
    if codes is None or mode not in ("int8", "int4"):
        return None
    is_rows = isinstance(layer, layers.Embedding)  # also a ReversibleEmbedding
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


def attention() -> Any:
    """Give attention layers of all kinds, with projections of every form."""
    tokens = keras.Input((6, 9))
    other = keras.Input((5, 7))
    same = layers.MultiHeadAttention(3, 5, name="same")
    unlike = layers.MultiHeadAttention(
        2, 3, value_dim=4, output_shape=(4, 2), use_bias=False, name="unlike"
    )
    shared = layers.GroupQueryAttention(4, 6, 2, use_gate=True, name="shared")
    wide = layers.MultiHeadAttention(1, 2, name="wide", attention_axes=(1, 2))
    x = shared(same(tokens, tokens), tokens)
    square = layers.Reshape((3, 2, 9))(x)
    named = layers.Dense(4, name="query")(unlike(x, other))  # as what attention layers make
    return keras.Model([tokens, other], [named, wide(square, square)])


def variables(layer: Any) -> list[Array]:
    return [np.asarray(one) for one in layer.get_weights()]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("make", [sequential, functional])
def test_keras_loads_what_is_decoded(
    tmp_path: Path, make: Callable[[], Any], mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The weights of the plain model have the bits that Keras computes; so has their file alone."""
    model = quantized(make, **MODES[mode])
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
    monkeypatch.setattr(decode, "_SLAB_ELEMENTS", 16)
    checkpoint.dequantize_file(source, tmp_path / "out.weights.h5", "float32")
    other = make()
    other.load_weights(tmp_path / "out.weights.h5")
    for one, two in zip(plain.weights, other.weights, strict=True):
        np.testing.assert_array_equal(np.asarray(one), np.asarray(two))
    report = checkpoint.verify(source, tmp_path / "out.keras")
    assert report.equal


@pytest.mark.parametrize("mode", MODES)
def test_attention(tmp_path: Path, mode: str) -> None:
    """Keras states the attention layer alone, and cannot load its file; the plain one it can."""
    model = quantized(attention, **MODES[mode])
    model.save(source := tmp_path / "in.keras")
    with pytest.raises(ValueError, match="could not be loaded"):
        keras.saving.load_model(source)
    summary = checkpoint.dequantize_file(source, tmp_path / "out.keras", "float32")
    expected = {one.path: found for one in leaves(model) if (found := decoded(one)) is not None}
    assert len(expected) == 4 + 4 + 5 + 4 + 1
    assert len(expected) == len([row for row in summary.rows if row.target is not None])
    plain = keras.saving.load_model(tmp_path / "out.keras")
    found = {one.path: one for one in leaves(plain)}
    for path, value in expected.items():
        np.testing.assert_array_equal(variables(found[path])[0], value)
    biases = {one.path: one.bias for one in leaves(model) if getattr(one, "bias", None) is not None}
    for path, value in biases.items():
        np.testing.assert_array_equal(np.asarray(found[path].bias), np.asarray(value))
    assert checkpoint.verify(source, tmp_path / "out.keras").equal


class CachedMultiHeadAttention(layers.MultiHeadAttention):
    """As KerasHub's, which states and builds what Keras' does."""


class OfHub(layers.ReversibleEmbedding):
    """KerasHub's ReversibleEmbedding, which is Keras' by another module's name."""


OfHub.__name__ = "ReversibleEmbedding"


def of_hub(embedding: Any = layers.ReversibleEmbedding, **options: Any) -> Any:
    """Give what KerasHub's models have: a cached attention, and an embedding for both ways."""
    tokens = keras.Input((6,), dtype="int32")
    table = embedding(13, 9, name="table", **options)
    cached = CachedMultiHeadAttention(3, 5, name="cached")
    x = table(tokens)
    return keras.Model(tokens, table(cached(x, x), reverse=True))


@pytest.mark.parametrize("mode", MODES)
def test_layers_of_keras_hub(tmp_path: Path, mode: str) -> None:
    model = quantized(of_hub, **MODES[mode])
    model.save(source := tmp_path / "in.keras")
    checkpoint.dequantize_file(source, tmp_path / "out.keras", "float32")
    custom = {"CachedMultiHeadAttention": CachedMultiHeadAttention}
    plain = keras.saving.load_model(tmp_path / "out.keras", custom_objects=custom)
    expected = {one.path: found for one in leaves(model) if (found := decoded(one)) is not None}
    assert len(expected) == 5
    for path, value in expected.items():
        (layer,) = (one for one in leaves(plain) if one.path == path)
        np.testing.assert_array_equal(variables(layer)[0], value)


def test_embeddings_of_two_tables_are_refused(tmp_path: Path) -> None:
    model = quantized(lambda: of_hub(tie_weights=False), mode="int8")
    model.save(source := tmp_path / "in.keras")
    with pytest.raises(CheckpointError, match=r"ReversibleEmbedding with weights of their own"):
        checkpoint.dequantize_file(source, tmp_path / "out.keras")
    assert not (tmp_path / "out.keras").exists()


def test_subclasses_that_keras_does_not_quantize(tmp_path: Path) -> None:
    """KerasHub's embedding stays as it is in a model that is quantized."""
    model = quantized(lambda: of_hub(OfHub), mode="int8")
    model.save(source := tmp_path / "in.keras")
    checkpoint.dequantize_file(source, tmp_path / "out.keras", "float32")
    with h5py_of(tmp_path / "out.keras") as found, h5py_of(source) as old:
        path = "layers/reversible_embedding/vars/0"
        np.testing.assert_array_equal(found[path][...], old[path][...])
        assert found[path].dtype == np.float32


def h5py_of(path: Path) -> Any:
    """Open the weights of a `.keras` file."""
    with zipfile.ZipFile(path) as archive:
        return h5py.File(io.BytesIO(archive.read("model.weights.h5")))


def test_attention_of_float8(tmp_path: Path) -> None:
    model = quantized(attention, mode="float8")
    model.save(source := tmp_path / "in.keras")
    checkpoint.dequantize_file(source, tmp_path / "out.keras")
    plain = keras.saving.load_model(tmp_path / "out.keras")
    kernels = {one.path: one for one in leaves(model) if hasattr(one, "kernel")}
    found = {one.path: one for one in leaves(plain) if hasattr(one, "kernel")}
    assert found.keys() == kernels.keys()
    for path, one in kernels.items():
        np.testing.assert_array_equal(np.asarray(found[path].kernel), np.asarray(one.kernel))


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("mode", MODES)
def test_lora_is_merged_by_keras(tmp_path: Path, mode: str, when: str) -> None:
    """Keras saves codes of the sum, and loads adapters of zeros beside them."""
    keras.utils.set_random_seed(1)
    model = functional()
    kinds = (layers.Dense, layers.EinsumDense, layers.Embedding)
    # Keras cannot adapt an embedding of int4.
    adapted = [one for one in leaves(model) if isinstance(one, kinds[: 2 + (mode == "int8")])]

    def adapt() -> None:
        for number, one in enumerate(adapted):
            one.enable_lora(2)
            own = one.lora_embeddings_b if hasattr(one, "lora_embeddings_b") else one.lora_kernel_b
            drawn = np.random.default_rng(number).normal(size=own.shape)
            own.assign(drawn.astype(np.float32))

    if when == "before":
        adapt()
    model.quantize(**MODES[mode])
    if when == "after":
        adapt()
    model.save(source := tmp_path / "in.keras")
    again = keras.saving.load_model(source)
    checkpoint.dequantize_file(source, tmp_path / "out.keras", "float32")
    plain = keras.saving.load_model(tmp_path / "out.keras")
    expected = {one.name: found for one in leaves(again) if (found := decoded(one)) is not None}
    assert expected.keys() >= {one.name for one in adapted}
    for layer in leaves(plain):
        if layer.name in expected:
            assert layer.lora_enabled == (layer.name in {one.name for one in adapted})
            kernel = getattr(layer, "_embeddings", None)
            kernel = layer._kernel if kernel is None else kernel
            np.testing.assert_array_equal(np.asarray(kernel), expected[layer.name])
    unadapted = {one.name: decoded(one) for one in leaves(quantized(functional, **MODES[mode]))}
    assert not any(np.array_equal(unadapted[one.name], expected[one.name]) for one in adapted)


def test_policies_and_everything_else_of_the_file(tmp_path: Path) -> None:
    model = quantized(sequential, "mixed_bfloat16", mode="int8")
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
    model = quantized(sequential, policy, **MODES[mode])
    model.save(source := tmp_path / "in.keras")
    checkpoint.dequantize_file(source, out := tmp_path / "out.safetensors", "float32")
    found = checkpoint.load(out)
    for place, layer in enumerate(one for one in leaves(model) if isinstance(one, layers.Dense)):
        path = "layers/dense" + (f"_{place}" if place else "")
        np.testing.assert_array_equal(found[f"{path}/vars/0"], decoded(layer))


def test_float8_loses_its_scales(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = quantized(sequential, mode="float8")
    model.save(source := tmp_path / "in.keras")
    summary = checkpoint.dequantize_file(source, tmp_path / "out.keras")
    assert "left out, as an unquantized model has none" in caplog.text
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
        quantized(model, **options).save_weights(source)
        with pytest.raises(CheckpointError, match=r"shapes do not tell.*\.keras"):
            checkpoint.dequantize_file(source, tmp_path / "no.weights.h5")
        assert not (tmp_path / "no.weights.h5").exists()


def drop(name: str) -> Callable[[Any], None]:
    def change(tree: Any) -> None:
        del tree[name]

    return change


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
    "not quantized, says the model": (
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

    refuses(tmp_path, quantized(make, **MODES[mode]), change, words)


def refuses(folder: Path, model: Any, change: dict[str, Any], words: str) -> None:
    """Decode a model as it is saved, and be refused when its file is changed."""
    model.save(folder / "in.keras")
    checkpoint.dequantize_file(folder / "in.keras", folder / "fine.keras")
    source = changed(folder / "in.keras", folder / "changed.keras", **change)
    with pytest.raises(CheckpointError, match=words):
        checkpoint.dequantize_file(source, folder / "out.keras")
    assert not (folder / "out.keras").exists()


@pytest.mark.parametrize(
    ("old", "new"),
    [('"class_name": "Sequential"', '"class_name": []'), ('"dtype": "float32"', '"dtype": null')],
)
def test_what_is_not_known_of_other_layers_is_kept(tmp_path: Path, old: str, new: str) -> None:
    model = quantized(sequential, mode="int8")
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
    quantized(sequential, mode="int8").save(source := tmp_path / "in.keras")
    with pytest.raises(CheckpointError, match="decode all of it"):
        checkpoint.dequantize_file(source, tmp_path / "out.keras", only="layers/dense/vars/0")


def test_layers_of_one_name_that_are_not_alike(tmp_path: Path) -> None:
    inner = keras.Sequential([keras.Input((4,)), layers.Dense(6, name="same")], name="inner")
    model = keras.Sequential([keras.Input((3,)), layers.Dense(4, name="same"), inner])
    model.quantize("int8")
    model.save(source := tmp_path / "in.keras")
    with pytest.raises(CheckpointError, match="2 layers of its name"):
        checkpoint.dequantize_file(source, tmp_path / "out.keras")


ATTENTION_FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "other heads": (
        {"config": lambda text: text.replace('"num_heads": 2', '"num_heads": 3')},
        r"the shape \(6, 2, 3\), and the model states a kernel of \(6, 3, 3\)",
    ),
    "no shape": (
        {"config": lambda text: text.replace('"query_shape": [null, 4, 6]', '"query_shape": 6')},
        r"states a kernel of \(2, 3\)",
    ),
    "no shapes": (
        {"config": lambda text: re.sub(r'"shapes_dict": {.*?}', '"shapes_dict": []', text)},
        r"states a kernel of \(2, 3\)",
    ),
    "many outputs": (
        {
            "config": lambda text: text.replace(
                '"output_shape": null', f'"output_shape": {[1] * 4000}'
            )
        },
        r"states a kernel of \(2, 3, 1, 1, 1, 1, \.\.\.\)",
    ),
    "no scale": (
        {"weights": drop("layers/multi_head_attention/query_dense/vars/2")},
        "2 variables.* layer of 3",
    ),
    "another class": (
        {"config": lambda text: text.replace('"MultiHeadAttention"', '"Own"')},
        "nothing states how|states nothing of the layer",
    ),
}


@pytest.mark.parametrize("name", ATTENTION_FAULTS)
def test_a_fault_of_attention_is_refused(tmp_path: Path, name: str) -> None:
    change, words = ATTENTION_FAULTS[name]
    tokens = keras.Input((4, 6))
    model = keras.Model(tokens, layers.MultiHeadAttention(2, 3, name="attention")(tokens, tokens))
    model.quantize("int8")
    refuses(tmp_path, model, change, words)


def test_groups_of_attention_begin_with_0(tmp_path: Path) -> None:
    model = quantized(attention, **MODES["int4 of blocks"])
    model.save(tmp_path / "in.keras")
    found: list[str] = []
    with zipfile.ZipFile(tmp_path / "in.keras") as file, file.open("model.weights.h5") as weights:
        h5py.File(weights).visit(found.append)
    groups = next(name for name in found if name.endswith("/query_dense/vars/4"))
    source = changed(
        tmp_path / "in.keras", tmp_path / "changed.keras", weights=put(groups, np.ones_like)
    )
    with pytest.raises(CheckpointError, match="names no input of group 0; save"):
        checkpoint.dequantize_file(source, tmp_path / "out.keras")
