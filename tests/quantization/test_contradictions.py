"""A configuration that states one thing twice and differently is refused, and both are named."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from castwise import checkpoint
from castwise.checkpoint import CheckpointError
from castwise.cli import main
from producer_models import MODELS, write

KEY = "quantization_config"
DEEPSEEK = "deepseek, scales of float32"


def changed(config: dict[str, Any], **keys: Any) -> dict[str, Any]:
    section = deepcopy(config[KEY])
    for name, value in keys.items():
        if value is None:
            section.pop(name, None)
        else:
            section[name] = value
    return {KEY: section}


CASES: dict[str, tuple[str, dict[str, Any], str]] = {
    "blocks": (DEEPSEEK, {"weight_block_size": [64, 64]}, "weight_block_size"),
    "none": (DEEPSEEK, {"weight_block_size": None}, "weight_block_size"),
    "powers of two": (DEEPSEEK, {"scale_fmt": "ue8m0"}, "scale_fmt"),
    "another method": (DEEPSEEK, {"quant_method": "compressed-tensors"}, "quant_method"),
    "bits": ("gptq, 4 bits", {"bits": 8}, "bits"),
    "zero points": ("gptq, v2", {"checkpoint_format": None}, "checkpoint_format"),
    "groups": ("awq", {"group_size": 8}, "group_size"),
    "packing": ("awq", {"version": "gemv"}, "version"),
    "an algorithm": ("modelopt, nvfp4", {"quant_algo": "FP8"}, "quant_algo"),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
@pytest.mark.parametrize("part", ["text_config", "thinker.text_config"])
def test_a_model_and_its_part(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    case: tuple[str, dict[str, Any], str],
    part: str,
) -> None:
    recipe, keys, named = case
    model = MODELS[recipe]()
    inner: dict[str, Any] = changed(model.config, **keys)
    for name in reversed(part.split(".")):
        inner = {name: inner}
    model.config |= inner
    source = write(tmp_path / "in", model)
    for command in (["dequantize"], ["transcode", "--to", "compressed-tensors"], ["verify"]):
        target = source if command == ["verify"] else tmp_path / "out"
        assert main([command[0], str(source), str(target), *command[1:]]) == 2
        said = capsys.readouterr().err
        assert f"{named!r} ({KEY} and {part}.{KEY})" in said
        assert "remove the one that does not hold" in said
    assert not (tmp_path / "out").exists()
    found = checkpoint.inspect(source).quantization
    assert found is not None
    assert all("states twice" in (one.problem or "") for one in found.weights)
    assert found.weights


@pytest.mark.parametrize("recipe", [DEEPSEEK, "gptq, 4 bits", "awq", "modelopt, nvfp4"])
def test_the_same_twice_is_no_contradiction(tmp_path: Path, recipe: str) -> None:
    """Neither are lists of modules, whose names may begin with the part, and the making."""
    model = MODELS[recipe]()
    model.config["text_config"] = changed(
        model.config, modules_to_not_convert=["lm_head"], quantization_status="frozen"
    )
    source = write(tmp_path / "in", model)
    checkpoint.dequantize_file(source, tmp_path / "out")
    assert checkpoint.inspect(tmp_path / "out").quantization is None
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["text_config"] == {}


def test_parts_may_differ_where_no_weight_can_belong_to_both(tmp_path: Path) -> None:
    text, audio = MODELS[DEEPSEEK](), MODELS["awq"]()
    text.tensors |= {f"audio.{name}": array for name, array in audio.tensors.items()}
    text.config = {"text_config": text.config, "audio_config": audio.config}
    checkpoint.dequantize_file(write(tmp_path / "in", text), tmp_path / "out")
    other = MODELS[DEEPSEEK]()
    other.config = {
        "text_config": other.config,
        "vision_config": changed(other.config, weight_block_size=[64, 64]),
    }
    with pytest.raises(CheckpointError, match=r"text_config\.\w+ and vision_config\.\w+"):
        checkpoint.dequantize_file(write(tmp_path / "other", other), tmp_path / "no")


def test_both_sections_of_mlx(tmp_path: Path) -> None:
    model = MODELS["mlx, 4 bits"]()
    section = model.config["quantization"]
    model.config[KEY] = dict(section)
    checkpoint.dequantize_file(write(tmp_path / "in", model), tmp_path / "out")
    model.config[KEY] = {**section, "bits": 8}
    with pytest.raises(CheckpointError, match=rf"'bits' \(quantization and {KEY}\)"):
        checkpoint.dequantize_file(write(tmp_path / "other", model), tmp_path / "no")
