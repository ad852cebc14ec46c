"""Weights that differ in their names alone share a plan of decoding, each with its own tensors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from castwise import checkpoint
from castwise.quantization import dequantize, quantize
from castwise.quantization.producers.registry import TYPED, WRITTEN
from oracle import Array

NAMES = [f"layers.{number}.mlp.{kind}.weight" for number in range(3) for kind in ("up", "down")]
MATRICES = [
    (row.scheme, row.recipe) for row in WRITTEN if not row.is_transposed and row.recipe != TYPED
]
CONFIG = {
    "quantization_config": {
        "quant_method": "compressed-tensors",
        "format": "float-quantized",
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": {"num_bits": 8, "type": "float", "strategy": "tensor"},
            }
        },
    }
}


def decode(folder: Path, weights: dict[str, Array], scheme: str, recipe: Any) -> dict[str, Array]:
    """Quantize weights in a folder, and decode them."""
    source = folder / "plain"
    source.mkdir(parents=True)
    checkpoint.save(source / "model.safetensors", weights)
    (source / "config.json").write_text("{}")
    checkpoint.quantize_file(source, folder / "stored", scheme, recipe=recipe)
    checkpoint.dequantize_file(folder / "stored", folder / "decoded", "float32")
    return dict(checkpoint.load(folder / "decoded"))


@pytest.mark.parametrize(("scheme", "recipe"), MATRICES)
def test_each_is_decoded_of_its_own_tensors(tmp_path: Path, scheme: str, recipe: Any) -> None:
    draw = np.random.default_rng(5)
    weights = {
        name: draw.standard_normal((256, 256), np.float32) * np.float32(2) ** number
        for number, name in enumerate(NAMES)
    }
    decoded = decode(tmp_path / "together", weights, scheme, recipe)
    for name, weight in weights.items():
        alone = decode(tmp_path / name, {name: weight}, scheme, recipe)[name]
        np.testing.assert_array_equal(decoded[name], alone)


@pytest.mark.parametrize("shape", [(24,), (6, 8), (4, 6, 8), (2, 2, 6, 8)])
def test_one_scale_for_any_number_of_axes(tmp_path: Path, shape: tuple[int, ...]) -> None:
    draw = np.random.default_rng(6)
    tensors: dict[str, Any] = {}
    for number, name in enumerate(NAMES):
        codes = draw.standard_normal(shape, np.float32) * 50
        tensors[name] = codes.astype(ml_dtypes.float8_e4m3fn)
        tensors[f"{name}_scale"] = np.array([number + 1], np.float32)
    source = tmp_path / "stored"
    source.mkdir()
    checkpoint.save(source / "model.safetensors", tensors)
    (source / "config.json").write_text(json.dumps(CONFIG))
    checkpoint.dequantize_file(source, tmp_path / "decoded", "float32")
    decoded = checkpoint.load(tmp_path / "decoded")
    for name in NAMES:
        expected = tensors[name].astype(np.float32) * tensors[f"{name}_scale"]
        np.testing.assert_array_equal(decoded[name], expected)


def test_each_weight_is_transcoded_of_its_own_tensors(tmp_path: Path) -> None:
    draw = np.random.default_rng(7)
    weights = {name: draw.standard_normal((32, 64), np.float32) for name in NAMES}
    source, stored = tmp_path / "plain.safetensors", tmp_path / "stored.safetensors"
    checkpoint.save(source, weights)
    checkpoint.quantize_file(source, stored, "fp8_channel", recipe="compressed-tensors")
    checkpoint.transcode_file(stored, tmp_path / "new.safetensors", "modelopt")
    tensors = checkpoint.load(tmp_path / "new.safetensors")
    for name, weight in weights.items():
        q = quantize(weight, "fp8_channel", recipe="modelopt")
        parts = {"weight": tensors[name], "weight_scale": tensors[f"{name}_scale"]}
        made = dequantize(type(q).from_parts(parts, "modelopt"), "float32")
        np.testing.assert_array_equal(made, dequantize(q, "float32"))
