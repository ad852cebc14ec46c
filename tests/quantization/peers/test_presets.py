"""What castwise states of inputs is what compressed-tensors' presets state, and runs alike."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from castwise import checkpoint
from castwise.quantization.producers.registry import WRITTEN_WITH_INPUTS
from castwise.quantization.producers.schemes import NO_PRESETS
from castwise.quantization.producers.schemes import PRESETS as PRESETS_BY_NAME
from producer_libraries import llama

CT = "compressed-tensors"
PRESETS = {
    "fp8_channel": "FP8_DYNAMIC",
    "fp8_block": "FP8_BLOCK",
    "mxfp4": "MXFP4",
    "mxfp6_e2m3": "MXFP6A8",
    "mxfp8_e4m3": "MXFP8",
    "int8_channel": "W8A8",
    "int4_group": "W4AFP8",
}


OF_FLOAT8 = {"mxfp4": "MXFP4XFP8"}
"""The presets whose inputs are float8, and whose weights are not."""

WITH_INPUTS = [
    *((scheme, preset, "dynamic") for scheme, preset in PRESETS.items()),
    *((scheme, preset, "float8") for scheme, preset in OF_FLOAT8.items()),
]

OF_WEIGHTS = {
    "nvfp4": "NVFP4A16",
    "mxfp4": "MXFP4A16",
    "mxfp6_e2m3": "MXFP6A16",
    "mxfp8_e4m3": "MXFP8A16",
    "int4_group": "W4A16",
    "int8_group": "W8A16",
}
"""The presets without a statement of inputs."""


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "plain"
    torch.manual_seed(0)
    llama().save_pretrained(folder)
    return folder


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model.eval()(torch.arange(1, 17)[None]).logits
    return found


def with_preset(preset: str, scheme_format: str) -> Any:
    """Make a configuration of compressed-tensors alone."""
    from compressed_tensors.quantization import (  # noqa: PLC0415
        QuantizationConfig,
        preset_name_to_scheme,
    )

    scheme = preset_name_to_scheme(preset, ["Linear"])
    scheme.format = scheme_format
    return QuantizationConfig(
        config_groups={"group_0": scheme},
        format=scheme_format,
        quantization_status="compressed",
        ignore=["lm_head"],
    )


def test_each_scheme_has_its_preset() -> None:
    for inputs, presets in (("dynamic", PRESETS), ("float8", OF_FLOAT8)):
        rows = [row for row in WRITTEN_WITH_INPUTS if row.inputs == inputs]
        assert {(row.recipe, row.scheme) for row in rows} == {(CT, scheme) for scheme in presets}


def test_names_that_are_presets() -> None:
    from compressed_tensors.quantization.quant_scheme import PRESET_SCHEMES  # noqa: PLC0415

    assert PRESETS_BY_NAME.keys() <= PRESET_SCHEMES.keys()
    assert NO_PRESETS.keys().isdisjoint(PRESET_SCHEMES)


@pytest.mark.parametrize(
    ("scheme", "preset", "inputs"),
    [
        *WITH_INPUTS,
        ("int4_group", "W4A16_ASYM", None),
        *((scheme, preset, None) for scheme, preset in OF_WEIGHTS.items()),
    ],
)
def test_the_configuration_is_that_of_the_preset(
    tmp_path: Path, plain: Path, scheme: str, preset: str, inputs: Any
) -> None:
    from compressed_tensors.compressors.format import infer_module_format  # noqa: PLC0415
    from compressed_tensors.quantization import QuantizationConfig  # noqa: PLC0415

    options: Any = {"recipe": CT, "inputs": inputs, "zero_points": preset.endswith("_ASYM")}
    checkpoint.quantize_file(plain, tmp_path / "model", scheme, **options)
    config = json.loads((tmp_path / "model" / "config.json").read_text("utf-8"))
    section = config["quantization_config"]
    wanted = with_preset(preset, section["format"])
    found = QuantizationConfig.model_validate(section)
    assert found.model_dump() == wanted.model_dump()
    if preset != "W4AFP8":  # whose bytes are those that vLLM's kernel of W4AFP8 loads
        group = wanted.config_groups["group_0"]
        assert section["format"] == infer_module_format(torch.nn.Linear, group).value


def logits_of_preset(decoded: Path, preset: str, scale: float | None) -> list[torch.Tensor]:
    """Return what decoded weights give, without and with the preset's inputs."""
    from compressed_tensors.quantization import (  # noqa: PLC0415
        QuantizationStatus,
        apply_quantization_config,
    )

    model = llama(decoded)
    without = logits(model)
    config = with_preset(preset, "dense")
    for group in config.config_groups.values():
        group.weights = None
    config.quantization_status = QuantizationStatus.FROZEN
    apply_quantization_config(model, config)
    for name, parameter in model.named_parameters():
        if name.endswith("input_global_scale"):
            parameter.data.fill_(scale)
    return [without, logits(model)]


@pytest.mark.parametrize(("scheme", "preset", "inputs"), WITH_INPUTS)
def test_transformers_quantizes_the_inputs(
    tmp_path: Path, plain: Path, scheme: str, preset: str, inputs: Any
) -> None:
    """It computes what it does with the decoded weights and the preset's inputs, to the bit."""
    from transformers import AutoModelForCausalLM  # noqa: PLC0415

    model, decoded = tmp_path / "model", tmp_path / "decoded"
    checkpoint.quantize_file(plain, model, scheme, recipe=CT, inputs=inputs)
    checkpoint.dequantize_file(model, decoded)
    found = logits(AutoModelForCausalLM.from_pretrained(model))
    without, wanted = logits_of_preset(decoded, preset, None)
    assert torch.equal(found, wanted)
    assert not torch.equal(found, without)


@pytest.mark.parametrize("scheme", ["int4_group", "int8_group"])
@pytest.mark.parametrize("scales", ["amax", "best"])
def test_transformers_decodes_zero_points(
    tmp_path: Path, plain: Path, scheme: Any, scales: Any
) -> None:
    """With the option that the check names: it takes a zero point for each row without it."""
    from transformers import AutoModelForCausalLM, CompressedTensorsConfig  # noqa: PLC0415

    model, decoded = tmp_path / "model", tmp_path / "decoded"
    options: Any = {"recipe": CT, "zero_points": True, "scales": scales}
    checkpoint.quantize_file(plain, model, scheme, **options)
    checkpoint.dequantize_file(model, decoded)
    (problem,) = checkpoint.verify_loading(model, "transformers").problems
    assert "dequantize=True" in str(problem)
    with pytest.raises(RuntimeError, match="ignore_mismatched_sizes"):
        AutoModelForCausalLM.from_pretrained(model)
    config = CompressedTensorsConfig(dequantize=True)
    found = logits(AutoModelForCausalLM.from_pretrained(model, quantization_config=config))
    assert torch.equal(found, logits(llama(decoded)))
    assert not torch.equal(found, logits(llama(plain)))


@pytest.mark.parametrize("other", ["int8_group", "fp8_channel"])
def test_transformers_decodes_zero_points_of_one_scheme_alone(
    tmp_path: Path, plain: Path, other: Any
) -> None:
    """It decodes all layers by the first group: to other weights, or not at all."""
    from transformers import AutoModelForCausalLM, CompressedTensorsConfig  # noqa: PLC0415

    model, decoded = tmp_path / "model", tmp_path / "decoded"
    mapping = {r".*mlp.*": other, "default": "int4_group"}
    written: Any = {"dtype_map": mapping, "recipe": CT, "zero_points": True}
    checkpoint.quantize_file(plain, model, **written)
    checkpoint.dequantize_file(model, decoded)
    (problem,) = checkpoint.verify_loading(model, "transformers").problems
    assert problem.option is None
    options: Any = {"quantization_config": CompressedTensorsConfig(dequantize=True)}
    if other == "fp8_channel":
        with pytest.raises(RuntimeError):
            AutoModelForCausalLM.from_pretrained(model, **options)
        return
    found = logits(AutoModelForCausalLM.from_pretrained(model, **options))
    assert not torch.allclose(found, logits(llama(decoded)), rtol=0.1)


@pytest.mark.parametrize("scale", [1.0, 0.03])
def test_a_constant_scale_of_inputs(tmp_path: Path, plain: Path, scale: float) -> None:
    """compressed-tensors divides by what it stores, so that is the reciprocal."""
    from transformers import AutoModelForCausalLM  # noqa: PLC0415

    model, decoded = tmp_path / "model", tmp_path / "decoded"
    checkpoint.quantize_file(plain, model, "nvfp4", recipe=CT, inputs=scale)
    checkpoint.dequantize_file(model, decoded)
    found = logits(AutoModelForCausalLM.from_pretrained(model))
    without, wanted = logits_of_preset(decoded, "NVFP4", 1 / scale)
    assert torch.equal(found, wanted)
    assert not torch.equal(found, without)
