"""GPTQ and AWQ of the real Keras are decoded to the kernels that its layers compute with.

Keras 3.14 and 3.15 leave the zero points out of what they save, and so cannot load it. They are put
in here where Keras' `load_own_variables` reads them, as 3.13 saved them; Keras then loads the file.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import keras
import numpy as np
import pytest
from castwise import checkpoint
from castwise.checkpoint import CheckpointError
from keras import layers, ops, quantizers
from keras.src.quantizers.awq import AWQ
from keras.src.quantizers.gptq import GPTQ
from keras_files import changed, leaves, put
from numpy.typing import NDArray

Array = NDArray[Any]

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

GPTQ_CONFIG, AWQ_CONFIG = quantizers.GPTQConfig, quantizers.AWQConfig
MODES: dict[str, Any] = {
    "gptq, 4 bits": lambda: GPTQ_CONFIG(None, None, group_size=4),
    "gptq, by activations": lambda: GPTQ_CONFIG(None, None, group_size=4, activation_order=True),
    "gptq, 8 bits of all inputs": lambda: GPTQ_CONFIG(None, None, weight_bits=8, group_size=-1),
    "gptq, 3 bits": lambda: GPTQ_CONFIG(None, None, weight_bits=3, group_size=8),
    "gptq, 2 bits, symmetric": lambda: GPTQ_CONFIG(
        None, None, weight_bits=2, group_size=4, symmetric=True
    ),
    "awq": lambda: AWQ_CONFIG(None, None, group_size=4),
    "awq of all inputs": lambda: AWQ_CONFIG(None, None, group_size=-1),
}


def dense() -> Any:
    """Give dense layers with and without a bias, of an odd number of outputs."""
    return keras.Sequential(
        [
            keras.Input((8,)),
            layers.Dense(16, bias_initializer="normal"),
            layers.LayerNormalization(),
            layers.Dense(7, use_bias=False),
        ]
    )


def mixed() -> Any:
    """Give kernels of three axes, whose longest axis is the first, the last and in the middle."""
    inputs = keras.Input((6, 16))
    x = layers.EinsumDense("abc,cde->abde", (6, 4, 2), bias_axes="de", name="heads")(inputs)
    x = layers.EinsumDense("abde,def->abf", (6, 20), name="merge")(x)
    return keras.Model(inputs, layers.Dense(5, name="dense", bias_initializer="normal")(x))


def attention() -> Any:
    """Give attention layers whose longest axis is the inputs, and one where it is the heads."""
    inputs = keras.Input((6, 8))
    same = layers.MultiHeadAttention(2, 4, name="same")
    shared = layers.GroupQueryAttention(4, 4, 2, use_gate=True, use_bias=False, name="shared")
    many = layers.MultiHeadAttention(16, 4, value_dim=8, name="many")
    x = shared(same(inputs, inputs), inputs)
    return keras.Model(inputs, layers.Dense(4, name="query")(many(x, x)))


def calibrated(make: Callable[[], Any], mode: str) -> Any:
    """Quantize each layer by the algorithm of Keras, on random inputs."""
    keras.utils.set_random_seed(3)
    model, draw = make(), np.random.default_rng(4)
    for layer in leaves(model):
        if not hasattr(layer, "kernel"):
            continue
        config, shape = MODES[mode](), layer.kernel.shape
        is_first = len(shape) == 2 or shape.index(max(shape)) == 0
        inputs = math.prod(shape[:1] if is_first else shape[:2])
        batch = ops.array(draw.standard_normal((64, inputs)).astype("float32"))
        layer.quantize(config.mode, config=config)
        if config.mode == "gptq":
            gptq = GPTQ(layer, config)
            gptq.update_hessian_with_batch(batch)
            gptq.quantize_and_correct_layer()
        else:
            awq = AWQ(layer, config)
            awq.update_activation_magnitudes(batch)
            awq.quantize_layer()
    return model


def placed(model: Any) -> dict[str, Any]:
    """Give the layers that are no models by where they are: below an attention layer, or not."""
    return {(one.path or one.name).removeprefix(f"{model.name}/"): one for one in leaves(model)}


def kernels(model: Any) -> dict[str, Array]:
    """Compute the kernels as `_gptq_call` and `_awq_call` of Keras' layers do."""
    found = {}
    for path, layer in placed(model).items():
        if not hasattr(layer, "quantized_kernel"):
            continue
        codes, outputs = layer.quantized_kernel, layer.kernel_scale.shape[0]
        if codes.shape[0] != outputs:
            codes = quantizers.unpack_int4(codes, outputs, axis=0, dtype="uint8")
        values = keras.src.quantizers.dequantize_with_sz_map(
            codes, layer.kernel_scale, layer.kernel_zero, layer.g_idx
        )
        kernel = ops.transpose(values)
        if hasattr(layer, "awq_scales"):
            kernel = ops.divide(kernel, ops.expand_dims(layer.awq_scales, -1))
        shape = getattr(layer, "original_kernel_shape", kernel.shape)
        found[path] = np.asarray(kernel).reshape(shape)
    return found


def with_zeros(model: Any) -> Callable[[Any], None]:
    """Put the zero points of a model into its HDF5 file, after the scales."""
    zeros = {path: one for path, one in placed(model).items() if hasattr(one, "kernel_zero")}

    def change(tree: Any) -> None:
        found: list[tuple[Any, Any]] = []

        def visit(_: str, group: Any) -> None:
            outer = group.parent.parent.get("vars")
            path = ("" if outer is None else f"{outer.attrs['name']}/") + group.attrs.get(
                "name", ""
            )
            if path in zeros:
                found.append((group, zeros[path]))

        tree.visititems(visit)
        assert len(found) == len(zeros)
        for group, layer in found:
            place = 2 + (layer.bias is not None)
            for number in range(len(group), place, -1):
                group.move(str(number - 1), str(number))
            group[str(place)] = np.asarray(layer.kernel_zero)

    return change


def saved(model: Any, folder: Path) -> Path:
    model.save(folder / "saved.keras")
    return changed(folder / "saved.keras", folder / "in.keras", weights=with_zeros(model))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("make", [dense, mixed])
def test_keras_loads_what_is_decoded(tmp_path: Path, make: Callable[[], Any], mode: str) -> None:
    model = calibrated(make, mode)
    expected, source = kernels(model), saved(model, tmp_path)
    again = kernels(keras.saving.load_model(source))
    assert expected.keys() == again.keys()
    for name, kernel in expected.items():
        np.testing.assert_array_equal(again[name], kernel)
    summary = checkpoint.dequantize_file(source, tmp_path / "out.keras", "float32")
    assert len([row for row in summary.rows if row.target is not None]) == len(expected)
    plain = keras.saving.load_model(tmp_path / "out.keras")
    assert len(plain.weights) == len(make().weights)
    inputs = np.random.default_rng(5).standard_normal((3, *model.input_shape[1:]), "float32")
    np.testing.assert_allclose(plain.predict(inputs), model.predict(inputs), rtol=1e-4, atol=1e-4)
    checkpoint.dequantize_file(source, tmp_path / "out.weights.h5", "float32")
    other = make()
    other.load_weights(tmp_path / "out.weights.h5")
    for found in (plain, other):
        for one, (path, layer) in zip(leaves(found), placed(model).items(), strict=True):
            assert one.dtype_policy.name == "float32"
            if path in expected:
                np.testing.assert_array_equal(np.asarray(one.kernel), expected[path])
            if getattr(layer, "bias", None) is not None:
                np.testing.assert_array_equal(np.asarray(one.bias), np.asarray(layer.bias))


@pytest.mark.parametrize("mode", MODES)
def test_attention(tmp_path: Path, mode: str) -> None:
    """Keras 3.13 writes such files whole, and cannot load them: it states the outer layer alone."""
    model = calibrated(attention, mode)
    source = saved(model, tmp_path)
    with pytest.raises(ValueError, match="could not be loaded"):
        keras.saving.load_model(source)
    checkpoint.dequantize_file(source, tmp_path / "out.keras", "float32")
    plain = keras.saving.load_model(tmp_path / "out.keras")
    found, expected = placed(plain), kernels(model)
    assert len(expected) == 4 + 5 + 4 + 1
    for path, kernel in expected.items():
        np.testing.assert_array_equal(np.asarray(found[path].kernel), kernel)
    for path, one in placed(model).items():
        if getattr(one, "bias", None) is not None:
            np.testing.assert_array_equal(np.asarray(found[path].bias), np.asarray(one.bias))


@pytest.mark.parametrize("mode", ["gptq, 4 bits", "awq"])
def test_attention_without_zero_points(tmp_path: Path, mode: str) -> None:
    calibrated(attention, mode).save(source := tmp_path / "in.keras")
    with pytest.raises(CheckpointError, match=r"Keras 3\.14 and 3\.15 leave the zero points"):
        checkpoint.dequantize_file(source, tmp_path / "out.keras")


@pytest.mark.parametrize("mode", ["gptq, 4 bits", "awq"])
def test_projections_of_another_shape(tmp_path: Path, mode: str) -> None:
    source = saved(calibrated(attention, mode), tmp_path)
    source = changed(
        source, tmp_path / "no.keras", lambda text: text.replace('"num_heads": 2', '"num_heads": 3')
    )
    with pytest.raises(CheckpointError, match=r"'layers/multi_head_attention/.*needs"):
        checkpoint.dequantize_file(source, tmp_path / "out.keras")


@pytest.mark.parametrize("mode", ["gptq, by activations", "awq"])
def test_weights_alone(tmp_path: Path, mode: str) -> None:
    """Those of dense layers are certain; those of others may have any shape."""
    for make in (dense, mixed):
        model = calibrated(make, mode)
        model.save_weights(source := tmp_path / "in.weights.h5")
        with h5py.File(source, "r+") as tree:
            with_zeros(model)(tree)
        out = tmp_path / f"{make.__name__}.weights.h5"
        if make is mixed:
            with pytest.raises(CheckpointError, match=r"'.*einsum_dense.*shapes do not tell"):
                checkpoint.dequantize_file(source, out, "float32")
            continue
        checkpoint.dequantize_file(source, out, "float32")
        plain = dense()
        plain.load_weights(out)
        for one, kernel in zip(
            (one for one in leaves(plain) if hasattr(one, "kernel")),
            kernels(model).values(),
            strict=True,
        ):
            np.testing.assert_array_equal(np.asarray(one.kernel), kernel)


@pytest.mark.parametrize("mode", ["gptq, 4 bits", "awq"])
def test_what_this_keras_saves_lacks_zero_points(tmp_path: Path, mode: str) -> None:
    model = calibrated(dense, mode)
    model.save(source := tmp_path / "in.keras")
    with pytest.raises(CheckpointError, match=r"Keras 3\.14 and 3\.15 leave the zero points"):
        checkpoint.dequantize_file(source, tmp_path / "out.keras")
    with pytest.raises(ValueError, match=r"expected \d variables"):
        keras.saving.load_model(source)


def test_a_scale_without_axes_is_refused(tmp_path: Path) -> None:
    source = saved(calibrated(dense, "gptq, 4 bits"), tmp_path)
    change = put("layers/dense/vars/2", lambda scale: scale[0, 0])
    source = changed(source, tmp_path / "no.keras", weights=change)
    with pytest.raises(CheckpointError, match=r"vars/2' has the shape \(\), and .* two axes is"):
        checkpoint.dequantize_file(source, tmp_path / "out.keras")


FAULTS: dict[str, tuple[str, str, str]] = {
    "other units": ('"units": 16', '"units": 18', "needs"),
    "groups of another size": ("gptq/4/4", "gptq/4/3", "needs"),
    "codes of other bits": ("gptq/4/4", "gptq/8/4", "needs"),
    "another method": (
        '"GPTQDTypePolicy", "config": {"mode": "gptq/4/4"',
        '"AWQDTypePolicy", "config": {"mode": "awq/4/4"',
        "5 variables.* layer of 6",
    ),
    "no bias": ('"use_bias": true', '"use_bias": false', "5 variables.* layer of 4"),
    "not quantized": ('"mode": "gptq/4/4", ', "", "None of Keras' Dense"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_refused(tmp_path: Path, fault: str) -> None:
    old, new, words = FAULTS[fault]
    model = calibrated(dense, "gptq, 4 bits")
    source = saved(model, tmp_path)
    source = changed(source, tmp_path / "no.keras", lambda text: text.replace(old, new, 1))
    with pytest.raises(CheckpointError, match=words):
        checkpoint.dequantize_file(source, tmp_path / "out.keras")
    assert not (tmp_path / "out.keras").exists()
