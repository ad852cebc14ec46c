"""What states a quantization that no tensor has, and methods that castwise does not decode."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from castwise import checkpoint
from castwise.checkpoint import CheckpointError
from castwise.cli import main
from checkpoint_samples import assert_same, floats
from producer_models import LAYOUTS, RECORDED, Model, recorded, write_zeros
from support import log_of_command

KEY = "quantization_config"
MODEL = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "torch_dtype": "bfloat16"}
WEIGHT, NORM = "model.layers.0.mlp.up_proj.weight", "model.norm.weight"
TENSORS = {
    WEIGHT: floats(64 * 64).reshape(64, 64).astype(ml_dtypes.bfloat16),
    NORM: np.ones(64, ml_dtypes.bfloat16),
}

STALE: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "blocks": ({KEY: {"quant_method": "fp8", "weight_block_size": [128, 128]}}, {}, "fp8"),
    "inputs, too": ({KEY: {"quant_method": "fp8", "activation_scheme": "dynamic"}}, {}, "fp8"),
    "a method that castwise does not know": ({KEY: {"quant_method": "aqlm"}}, {}, "aqlm"),
    "the method by another key": ({KEY: {"method": "svdquant"}}, {}, "svdquant"),
    "to be quantized on loading": ({KEY: {"load_in_4bit": True}}, {}, "bitsandbytes"),
    "a key of its own": ({"quantization": {"bits": 4, "group_size": 64}}, {}, "mlx"),
    "a part": ({"text_config": {KEY: {"quant_method": "gptq", "bits": 4}}}, {}, "gptq"),
    "a file": ({}, {"hf_quant_config.json": {"quantization": {"quant_algo": "FP8"}}}, "modelopt"),
    "two files": (
        {KEY: {"quant_method": "awq", "bits": 4}},
        {"quant_config.json": {"w_bit": 4}},
        "config.json: awq, quant_config.json: awq",
    ),
}


def write(folder: Path, config: dict[str, Any], files: dict[str, Any], **more: Any) -> Path:
    folder.mkdir()
    checkpoint.save(folder / "model.safetensors", {**TENSORS, **more})
    for name, content in {"config.json": {**MODEL, **config}, **files}.items():
        (folder / name).write_text(json.dumps(content))
    return folder


@pytest.mark.parametrize("case", STALE.values(), ids=STALE)
def test_dequantize_removes_a_stale_statement(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    case: tuple[dict[str, Any], Any, str],
) -> None:
    """Every other command names the one that does, and leaves the statement as it is."""
    config, files, method = case
    source, out = write(tmp_path / "in", config, files), tmp_path / "out"
    for command in (["quantize", "--scheme", "nvfp4"], ["transcode", "--to", "compressed-tensors"]):
        assert main([command[0], str(source), str(tmp_path / "no"), *command[1:]]) == 2
        said = capsys.readouterr().err
        assert method in said
        assert "castwise dequantize of the folder removes that" in said
    assert not (tmp_path / "no").exists()
    assert main(["cast", str(source), str(tmp_path / "cast"), "--dtype", "float16"]) == 0
    assert f"{method} stays" in caplog.text
    assert "castwise dequantize removes that" in log_of_command(caplog)
    assert checkpoint.inspect(tmp_path / "cast").quantization is not None

    assert main(["dequantize", str(source), str(out)]) == 0
    assert f"{method} states; the statement is left out" in caplog.text
    found = checkpoint.load(out)
    for name, array in TENSORS.items():
        assert_same(found[name], array)
    assert checkpoint.inspect(out).quantization is None
    assert sorted(path.name for path in out.iterdir()) == ["config.json", "model.safetensors"]
    assert json.loads((out / "config.json").read_text()) == MODEL | (
        {"text_config": {}} if "text_config" in config else {}
    )
    checkpoint.quantize_file(out, tmp_path / "quantized", "fp8_tensor")


@pytest.mark.parametrize("case", STALE.values(), ids=STALE)
def test_commands_that_write_nothing(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    case: tuple[dict[str, Any], Any, str],
) -> None:
    """They treat the model as the plain one that it is, and say what states otherwise."""
    config, files, method = case
    source, plain = write(tmp_path / "in", config, files), write(tmp_path / "plain", {}, {})
    assert main(["survey", str(source), "--targets", "float16"]) == 0
    assert f"{method} states: castwise dequantize removes that" in log_of_command(caplog)
    surveyed = checkpoint.survey_file(source, ["float16"])
    assert surveyed.tensors == checkpoint.survey_file(plain, ["float16"]).tensors
    capsys.readouterr()
    assert main(["inspect", str(source)]) == 0
    assert "no tensor is stored so" in capsys.readouterr().out
    for command in ("diff", "verify"):
        caplog.clear()
        assert main([command, str(plain), str(source)]) == 0
        assert "no weight is quantized as" in caplog.text
        assert "removed" not in caplog.text
    assert main(["advise", str(source), "--error", "0.1"]) == 2
    said = capsys.readouterr().err
    assert "no weight is quantized, and" in said
    assert "castwise dequantize of the folder removes that" in said


def test_survey_of_one_file_of_a_folder(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What is stated beside it may be of another file, so nothing is said of it."""
    source = write(tmp_path / "in", {KEY: {"quant_method": "fp8"}}, {})
    checkpoint.survey_file(source / "model.safetensors", ["float16"])
    assert not caplog.records


def test_null_states_nothing(tmp_path: Path) -> None:
    """A key whose value is null neither stops a cast's dtype nor stays beside a statement."""
    source = write(tmp_path / "in", {KEY: None}, {})
    checkpoint.cast_file(source, tmp_path / "cast", "float16")
    assert json.loads((tmp_path / "cast" / "config.json").read_text())["torch_dtype"] == "float16"
    checkpoint.quantize_file(source, tmp_path / "out", "fp8_tensor")
    text = (tmp_path / "out" / "config.json").read_text()
    assert text.count(KEY) == 1
    assert json.loads(text)[KEY]["quant_method"] == "compressed-tensors"


def test_a_stale_statement_in_metadata(tmp_path: Path) -> None:
    source, out = tmp_path / "in.safetensors", tmp_path / "out.safetensors"
    stated = {KEY: json.dumps({"quant_method": "fp8"}), "author": "a"}
    checkpoint.save(source, TENSORS, metadata=stated)
    checkpoint.dequantize_file(source, out)
    assert checkpoint.metadata(out) == {"author": "a"}
    for name, array in TENSORS.items():
        assert_same(checkpoint.load(out)[name], array)


def test_one_file_of_a_folder_is_no_whole_model(tmp_path: Path) -> None:
    """What is stated beside it may be of another file."""
    source = write(tmp_path / "in", {KEY: {"quant_method": "fp8"}}, {}) / "model.safetensors"
    with pytest.raises(CheckpointError, match="no weight in it is quantized"):
        checkpoint.dequantize_file(source, tmp_path / "out.safetensors")


@pytest.mark.parametrize(
    "command",
    [
        ["dequantize"],
        ["quantize", "--scheme", "nvfp4"],
        ["transcode", "--to", "modelopt"],
        ["cast", "--dtype", "float16"],
    ],
)
def test_a_frozen_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    """compressed-tensors saves scales beside plain weights where nothing was compressed."""
    weights = {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True}
    section = {
        "quant_method": "compressed-tensors",
        "format": "dense",
        "quantization_status": "frozen",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
    }
    scale = {f"{WEIGHT}_scale": np.ones((64, 1), ml_dtypes.bfloat16)}
    source = write(tmp_path / "in", {KEY: section}, {}, **scale)
    assert main([command[0], str(source), str(tmp_path / "out"), *command[1:]]) == 2
    said = capsys.readouterr().err
    assert (
        f"{WEIGHT}_scale' is a scale of {WEIGHT!r}, which holds plain numbers and no codes" in said
    )
    assert "'frozen'" in said
    assert "without its payload" not in said
    assert not (tmp_path / "out").exists()


UNKNOWN: dict[str, dict[str, Any]] = {
    name: {KEY: section}
    for name, section in {
        "aqlm": {"quant_method": "aqlm"},
        "svdquant": {"method": "svdquant"},
        "auto-round": {"quant_method": "auto-round", "packing_format": "auto_round:marlin"},
        "unnamed": {"bits": 4},
    }.items()
}


def models() -> dict[str, Model]:
    """Every layout that is known, and methods that are not."""
    codes: Any = {"a.codes": ("I8", (8, 2)), "norm.weight": ("F32", (8,))}
    unknown = {name: Model(codes, {"config.json": config}, {}) for name, config in UNKNOWN.items()}
    return {name: layout[0] for name, layout in LAYOUTS.items()} | unknown


@pytest.mark.parametrize("name", [*models(), *RECORDED])
def test_no_command_names_one_that_refuses(tmp_path: Path, name: str) -> None:
    model = recorded(name) if name in RECORDED else models()[name]
    source = write_zeros(tmp_path / "model", model)
    try:
        checkpoint.dequantize_file(source, tmp_path / "plain", dry_run=True)
    except CheckpointError as error:
        reason: str | None = str(error).partition(" cannot be decoded: ")[2] or str(error)
    else:
        reason = None
    with pytest.raises(CheckpointError) as refused:
        checkpoint.cast_file(source, tmp_path / "out", dict.fromkeys(model.tensors, "float64"))
    text = str(refused.value)
    if reason is None:
        assert "To decode it: checkpoint.dequantize_file" in text
    else:
        assert f"checkpoint.dequantize_file refuses it: {reason}" in text
        assert "To decode it" not in text
        with pytest.raises(CheckpointError) as refused:
            checkpoint.quantize_file(source, tmp_path / "out", "nvfp4")
        assert "decode it" not in str(refused.value)
        with pytest.raises(CheckpointError) as refused:
            checkpoint.transcode_file(source, tmp_path / "out", "comfy")
        assert "decode it" not in str(refused.value)
    if name in UNKNOWN:
        assert f"config.json: {name}" in text
