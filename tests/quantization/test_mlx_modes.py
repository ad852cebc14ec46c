"""What MLX states of single layers, and its scale of a whole matrix."""

from __future__ import annotations

import re
from copy import deepcopy
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from castwise import checkpoint
from castwise.checkpoint import CheckpointError
from castwise.cli import main
from castwise.quantization import QuantizedArray, dequantize
from producer_models import MODELS, Decodable, write

MODES = ("mxfp4", "nvfp4", "mxfp8")
SECTIONS = ("quantization", "quantization_config")


def experts(mode: str, entry: Any, gate: str = "mlx, 8 bits") -> Decodable:
    """A model of a mode, with a gate that is stated apart, as `mlx_lm` writes it for experts."""
    model, other = deepcopy(MODELS[f"mlx, {mode}"]()), MODELS[gate]()
    model.tensors |= {name.replace("a.", "mlp.gate."): one for name, one in other.tensors.items()}
    model.plain |= {"mlp.gate.weight": other.plain["a.weight"]}
    for section in SECTIONS:
        model.config[section] = {**model.config[section], "mlp.gate": entry}
    return model


def decoded(folder: Path, model: Decodable) -> None:
    checkpoint.dequantize_file(write(folder / "in", model), folder / "out")
    made = checkpoint.load(folder / "out")
    for name, plain in model.plain.items():
        np.testing.assert_array_equal(made[name], plain)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("gate", "entry"),
    [
        ("mlx, 8 bits", {"group_size": 64, "bits": 8}),
        ("mlx, 8 bits", {"bits": 8}),
        ("mlx, 4 bits", {"group_size": 64}),
        ("mlx, 4 bits", {}),
    ],
)
def test_an_entry_without_a_mode_is_affine(
    tmp_path: Path, mode: str, gate: str, entry: dict[str, int]
) -> None:
    decoded(tmp_path, experts(mode, entry, gate))


@pytest.mark.parametrize("mode", MODES)
def test_an_entry_with_a_mode_alone(tmp_path: Path, mode: str) -> None:
    model = experts(mode, {"group_size": 64, "bits": 8})
    for section in SECTIONS:
        entries = {"a": {"mode": mode}, "mlp.gate": {"group_size": 64, "bits": 8}}
        model.config[section] = {"group_size": 64, "bits": 4, **entries}
    decoded(tmp_path, model)


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ({"mode": "nvfp4"}, "states nvfp4, but the payload is beside scales and biases"),
        ({"mode": "fp2"}, "states the mode 'fp2'"),
        ({"bits": 8, "zeta": 2}, "'zeta'"),
        (False, "is not quantized"),
    ],
)
def test_refusals(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], entry: Any, said: str
) -> None:
    source = write(tmp_path / "in", experts("mxfp4", entry))
    assert main(["dequantize", str(source), str(tmp_path / "out")]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("prefix", ["language_model.mlp.gate", "gate"])
def test_an_entry_under_another_prefix(tmp_path: Path, prefix: str) -> None:
    model = experts("mxfp4", {"bits": 8})
    for section in SECTIONS:
        model.config[section][prefix] = model.config[section].pop("mlp.gate")
    with pytest.raises(CheckpointError, match=rf"'{re.escape(prefix)}'.*'mlp.gate'"):
        checkpoint.dequantize_file(write(tmp_path / "in", model), tmp_path / "out")


def test_a_key_of_the_model_that_is_not_known(tmp_path: Path) -> None:
    model = experts("nvfp4", {"bits": 8})
    for section in SECTIONS:
        model.config[section]["zeta"] = 3
    with pytest.raises(CheckpointError, match="'zeta'"):
        checkpoint.dequantize_file(write(tmp_path / "in", model), tmp_path / "out")


def scaled(place: str) -> Decodable:
    """NVFP4 with a scale of each matrix; `place` says where the configuration states it."""
    model = deepcopy(MODELS["mlx, nvfp4"]())
    codes, scales = (np.stack([model.tensors[f"a.{name}"]] * 2) for name in ("weight", "scales"))
    level = np.array([0.0884, 3.0], np.float32)
    parts = {"weight": codes, "scales": scales}
    values = dequantize(QuantizedArray.from_parts(parts, "mlx", scheme="nvfp4"), np.float32)
    steps = scales.view(ml_dtypes.float8_e4m3fn).astype(np.float32).repeat(16, -1)
    with np.errstate(divide="ignore", invalid="ignore"):
        units = np.where(steps == 0, np.float32(0), values / steps)
    products = units * (steps * (level / np.float32(2688))[:, None, None])
    model.tensors = {"a.weight": codes, "a.scales": scales, "a.global_scale": level}
    model.plain = {"a.weight": products.astype(ml_dtypes.bfloat16)}
    for section in SECTIONS:
        whole = model.config[section] = dict(model.config[section])
        if place == "layer":
            whole["a"] = {"group_size": 16, "bits": 4, "mode": "nvfp4", "global_scale": True}
        elif place == "model":
            whole["global_scale"] = True
    return model


@pytest.mark.parametrize("place", ["layer", "model", "nowhere"])
def test_a_global_scale(tmp_path: Path, place: str) -> None:
    decoded(tmp_path, scaled(place))
    with pytest.raises(CheckpointError, match="nvfp4"):
        checkpoint.transcode_file(tmp_path / "in", tmp_path / "other", "modelopt")


def test_a_global_scale_that_is_stated_and_missing(tmp_path: Path) -> None:
    model = scaled("layer")
    del model.tensors["a.global_scale"]
    with pytest.raises(CheckpointError, match="has a global scale, and it has none"):
        checkpoint.dequantize_file(write(tmp_path / "in", model), tmp_path / "out")


@pytest.mark.parametrize("dtype", ["int32", "float16"])
def test_a_global_scale_of_another_format(tmp_path: Path, dtype: str) -> None:
    model = scaled("layer")
    model.tensors["a.global_scale"] = np.ones(2, dtype)
    with pytest.raises(CheckpointError, match="global_scale"):
        checkpoint.dequantize_file(write(tmp_path / "in", model), tmp_path / "out")


def test_a_global_scale_of_another_shape(tmp_path: Path) -> None:
    model = scaled("layer")
    model.tensors["a.global_scale"] = np.ones(3, np.float32)
    with pytest.raises(CheckpointError, match="global_scale"):
        checkpoint.dequantize_file(write(tmp_path / "in", model), tmp_path / "out")


def test_its_parts_are_those_of_no_other_producer() -> None:
    model = scaled("layer")
    parts = {name.removeprefix("a."): one for name, one in model.tensors.items()}
    q = QuantizedArray.from_parts(parts, "mlx")
    made = dequantize(q, ml_dtypes.bfloat16)
    np.testing.assert_array_equal(made, model.plain["a.weight"])
    assert q.parts().keys() == parts.keys()
    with pytest.raises(ValueError, match="multiple"):
        q.parts("modelopt")
