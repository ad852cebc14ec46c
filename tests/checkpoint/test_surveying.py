"""Surveys of checkpoints: byte orders, and what they refuse."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from castwise import checkpoint
from castwise.checkpoint import CheckpointError
from gguf_samples import plain_file
from gguf_samples import weights as gguf_weights
from oracle import Array

SWAPPED = np.dtype(np.float32).newbyteorder()


def weights() -> dict[str, Array]:
    """Few elements are measured, as are those of which no prediction knows."""
    draw = np.random.default_rng(11)
    return {
        "few.weight": draw.standard_normal((32, 64), np.float32),
        "many.weight": draw.standard_normal((256, 256), np.float32),
        "alike.weight": np.full((130, 160), 3.71, np.float32),
    }


def save(path: Path, arrays: dict[str, Array]) -> Path:
    if path.suffix == ".npy":
        np.save(path, arrays["alike.weight"])
    else:
        np.savez(path, **arrays)  # type: ignore[arg-type]
    return path


@pytest.mark.parametrize("suffix", [".npz", ".npy"])
def test_arrays_in_another_byte_order(tmp_path: Path, suffix: str) -> None:
    native = weights()
    swapped = {name: array.astype(SWAPPED) for name, array in native.items()}
    paths = [
        save(tmp_path / f"{order}{suffix}", arrays)
        for order, arrays in (("native", native), ("swapped", swapped))
    ]
    targets = ["bfloat16", "fp8_channel", "fp8_tensor", "nvfp4"]
    surveys = [checkpoint.survey_file(path, targets).tensors for path in paths]
    if suffix == ".npz":
        assert repr(surveys[0]) == repr(surveys[1])
        advice = [checkpoint.advise(path, bits=9) for path in paths]
        assert repr(advice[0].choices) == repr(advice[1].choices)
        made = [tmp_path / f"{path.stem}.safetensors" for path in paths]
        for path, target in zip(paths, made, strict=True):
            checkpoint.quantize_file(path, target, "fp8_channel")
        assert made[0].read_bytes() == made[1].read_bytes()
    assert surveys[0][0].predictions == surveys[1][0].predictions


def test_a_configuration_that_cannot_be_read(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    checkpoint.save(folder / "model.safetensors", {"fc.weight": np.ones((4, 4), np.float32)})
    (folder / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"cannot be read: config\.json: ") as error:
        checkpoint.survey_file(folder)
    assert "is quantized" not in str(error.value)


@pytest.mark.parametrize("targets", [5, 0.5])
def test_targets_of_another_type(targets: Any) -> None:
    with pytest.raises(TypeError, match=rf"^targets {targets} is not a list of names$"):
        checkpoint.survey_file("absent.safetensors", targets)


def test_types_of_llama_are_no_targets() -> None:
    with pytest.raises(CheckpointError, match=r"'q4_k' is neither a format nor a scheme") as error:
        checkpoint.survey_file("absent.safetensors", ["q4_k"])
    assert str(error.value).endswith("int5_group, int6_group")


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_files_of_llama(tmp_path: Path, dtype: Any) -> None:
    """A plain one is surveyed as the same arrays are elsewhere; of others the types are named."""
    tensors = gguf_weights(dtype)
    source = plain_file(tmp_path / "model.gguf", tensors)
    checkpoint.save(tmp_path / "model.safetensors", tensors)
    other = checkpoint.survey_file(tmp_path / "model.safetensors")
    rows = {row.name: row for row in checkpoint.survey_file(source).tensors}
    assert rows.keys() == tensors.keys()
    # No other file says of its tensors that one is the matrices of all experts.
    assert all(rows[row.name] == row for row in other.tensors if "_exps" not in row.name)
    for scheme in ("q4_k", "q5_0"):
        checkpoint.quantize_file(source, out := tmp_path / "out.gguf", scheme, overwrite=True)
        with pytest.raises(CheckpointError, match=rf"is quantized \({scheme}\): .* dequantize"):
            checkpoint.survey_file(out)
