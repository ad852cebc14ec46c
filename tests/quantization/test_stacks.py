"""Small weights of one kind are made as a stack: each becomes what it becomes by itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from castwise import checkpoint
from castwise.checkpoint import CheckpointError
from castwise.quantization.producers.registry import TYPED, WRITTEN
from oracle import Array

SHAPE, OTHER = (256, 128), (128, 256)
SCHEMES = [
    (row.scheme, row.recipe) for row in WRITTEN if not row.is_transposed and row.recipe != TYPED
]


def names(count: int) -> list[str]:
    parts = ("gate_proj", "up_proj", "down_proj")
    return [f"layers.{number // 3}.mlp.{parts[number % 3]}.weight" for number in range(count)]


def weights(dtype: Any = np.float32) -> dict[str, Array]:
    """Weights of many magnitudes, one of zeros, and between them one of another shape."""
    draw = np.random.default_rng(11)
    arrays = {
        name: (draw.standard_normal(SHAPE, np.float32) * np.float32(2) ** -number).astype(dtype)
        for number, name in enumerate(names(9))
    }
    arrays[names(9)[4]][:] = 0
    arrays[names(9)[5]] = draw.standard_normal(OTHER, np.float32).astype(dtype)
    return arrays


def folder(path: Path, tensors: dict[str, Array]) -> Path:
    path.mkdir(parents=True)
    checkpoint.save(path / "model.safetensors", tensors)
    (path / "config.json").write_text("{}")
    return path


def rows(summary: Any) -> dict[str, Any]:
    return {row["name"]: row["report"] for row in summary.to_dict()["tensors"]}


def check_alone(path: Path, plain: dict[str, Array], convert: Any, *, shares: bool) -> None:
    """Compare what weights become together with what each becomes alone, or beside its layer."""
    reports = rows(convert(folder(path / "plain", plain), path / "together"))
    tensors = checkpoint.load(path / "together")
    groups: dict[str, dict[str, Array]] = {}
    for name, array in plain.items():
        groups.setdefault(name.split(".")[1] if shares else name, {})[name] = array
    for group, arrays in groups.items():
        target = path / f"{group}-out"
        reports_alone = rows(convert(folder(path / group, arrays), target))
        for part, array in checkpoint.load(target).items():
            assert tensors[part].tobytes() == array.tobytes(), part
            assert reports[part] == reports_alone[part], part


@pytest.mark.parametrize(("scheme", "recipe"), SCHEMES)
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
def test_quantized(tmp_path: Path, scheme: Any, recipe: Any, dtype: Any) -> None:
    def convert(source: Path, target: Path) -> Any:
        return checkpoint.quantize_file(source, target, scheme, recipe=recipe)

    check_alone(tmp_path, weights(dtype), convert, shares=scheme == "nvfp4")


@pytest.mark.parametrize(("scheme", "recipe"), SCHEMES)
def test_decoded(tmp_path: Path, scheme: Any, recipe: Any) -> None:
    def convert(source: Path, target: Path) -> Any:
        stored = target.with_suffix(".stored")
        checkpoint.quantize_file(source, stored, scheme, recipe=recipe)
        return checkpoint.dequantize_file(stored, target, "float16")

    check_alone(tmp_path, weights(), convert, shares=scheme == "nvfp4")


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("scheme", ["fp8_channel", "nvfp4"])
def test_a_refusal_names_the_weight(tmp_path: Path, scheme: Any, bad: float) -> None:
    tensors = weights()
    name = names(9)[7]
    tensors[name][3, 5] = bad
    with pytest.raises(CheckpointError, match=name.replace(".", r"\.")):
        checkpoint.quantize_file(
            folder(tmp_path / "plain", tensors),
            tmp_path / "out",
            scheme,
            recipe="compressed-tensors",
        )
    assert not (tmp_path / "out").exists()
