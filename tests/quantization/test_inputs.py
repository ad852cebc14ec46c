"""What checkpoints state of the inputs of layers, and what is refused."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from castwise import checkpoint
from castwise.checkpoint import CheckpointError
from castwise.cli import main
from castwise.quantization import Quantization, consumers
from castwise.quantization.producers.registry import WRITTEN, WRITTEN_WITH_INPUTS
from castwise.quantization.weights.recognition import recognize
from checkpoint_samples import assert_same
from small_llama import DOWN, GATE, KEPT, OUT, WEIGHTS, Q, weight, write

CT = "compressed-tensors"
SCHEMES = [row.scheme for row in WRITTEN_WITH_INPUTS if row.inputs == "dynamic"]
OF_TOKENS = {"dynamic": True, "strategy": "token", "group_size": None, "symmetric": True}


def section_of(folder: Path) -> dict[str, Any]:
    config = json.loads((folder / "config.json").read_text("utf-8"))
    section: dict[str, Any] = config["quantization_config"]
    return section


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("inputs") / "model")


@pytest.mark.parametrize("scheme", SCHEMES)
def test_weights_have_the_values_that_they_have_without(
    tmp_path: Path, model: Path, scheme: str
) -> None:
    plain, dynamic = tmp_path / "plain", tmp_path / "dynamic"
    checkpoint.quantize_file(model, plain, scheme, recipe=CT)
    checkpoint.quantize_file(model, dynamic, scheme, recipe=CT, inputs="dynamic")
    assert checkpoint.verify(plain, dynamic, arithmetic="exact").equal
    group = section_of(dynamic)["config_groups"]["group_0"]
    assert section_of(plain)["config_groups"]["group_0"]["weights"] == group["weights"]
    assert group["input_activations"]["dynamic"] is True
    states = {}
    for folder in (plain, dynamic):
        found = checkpoint.inspect(folder).quantization
        assert found is not None
        assert {one.scheme for one in found.weights} == {scheme}
        assert not found.orphans
        states[folder.name] = found.inputs
    assert states == {"plain": None, "dynamic": "dynamic"}


def test_integers_have_a_code_a_byte(tmp_path: Path, model: Path) -> None:
    """As the preset W8A8 stores them, and W8A16 does not."""
    checkpoint.quantize_file(model, tmp_path / "out", "int8_channel", recipe=CT, inputs="dynamic")
    tensors = checkpoint.load(tmp_path / "out")
    assert tensors[Q].dtype == np.int8
    assert tensors[Q].shape == WEIGHTS[Q].shape
    assert tensors[f"{Q}_scale"].shape == (len(WEIGHTS[Q]), 1)
    assert {*tensors} == {*KEPT, *WEIGHTS, *(f"{name}_scale" for name in WEIGHTS)}
    assert section_of(tmp_path / "out")["format"] == "int-quantized"


def test_several_schemes_each_with_its_inputs(tmp_path: Path, model: Path) -> None:
    mapping = {r".*o_proj\.weight": "mxfp8_e4m3", r".*down_proj\.weight": "keep"}
    options: Any = {"recipe": CT, "dtype_map": mapping, "inputs": "dynamic"}
    checkpoint.quantize_file(model, tmp_path / "out", "fp8_channel", **options)
    first, second = section_of(tmp_path / "out")["config_groups"].values()
    assert first["input_activations"].items() >= {**OF_TOKENS, "num_bits": 8}.items()
    assert second["input_activations"]["group_size"] == 32
    mapping[r".*gate_proj\.weight"] = "nvfp4"
    with pytest.raises(CheckpointError, match=r"inputs of nvfp4 are quantized .* another scheme"):
        checkpoint.quantize_file(model, tmp_path / "again", "fp8_channel", **options)


def test_a_file_states_them_in_its_metadata(tmp_path: Path, model: Path) -> None:
    out = tmp_path / "out.safetensors"
    checkpoint.quantize_file(model, out, "fp8_channel", recipe=CT, inputs="dynamic")
    found = checkpoint.inspect(out)
    assert found.quantization is not None
    assert found.quantization.inputs == found.to_dict()["quantization"]["inputs"] == "dynamic"
    assert "inputs are quantized while the model runs" in str(found)
    assert "inputs are quantized while the model runs" in str(found.quantization)


@pytest.mark.parametrize(
    ("scheme", "options", "recipe"),
    [
        ("fp8_block", {}, "fp8"),
        ("fp8_block", {"inputs": "dynamic"}, "fp8"),
        ("fp8_block", {"inputs": "none"}, CT),
        ("fp8_channel", {"inputs": "dynamic"}, CT),
        ("fp8_channel", {"inputs": "dynamic", "recipe": "modelopt"}, "modelopt"),
        ("mxfp8_e4m3", {"inputs": "dynamic", "recipe": "modelopt"}, "modelopt"),
        ("nvfp4", {"inputs": "none", "recipe": "modelopt"}, "modelopt"),
    ],
)
def test_the_first_recipe_that_states_it(
    tmp_path: Path, model: Path, scheme: str, options: dict[str, Any], recipe: str
) -> None:
    checkpoint.quantize_file(model, tmp_path / "out", scheme, **options)
    assert section_of(tmp_path / "out")["quant_method"] == recipe
    found = checkpoint.inspect(tmp_path / "out").quantization
    assert found is not None
    is_dynamic = options.get("inputs", "dynamic") == "dynamic"
    assert found.inputs == ("dynamic" if is_dynamic else None)


REFUSALS: list[tuple[str, dict[str, Any], str]] = [
    ("nvfp4", {"inputs": "dynamic"}, "inputs of nvfp4 are quantized while the model runs; leave"),
    ("fp8_tensor", {"inputs": "dynamic", "recipe": CT}, f"{CT} does not .*fp8_channel, fp8_block"),
    ("int8_group", {"inputs": "dynamic"}, r"use another scheme \(.*int8_channel"),
    ("mxfp4", {"inputs": "dynamic", "recipe": "mlx"}, rf"use another recipe \({CT}\)"),
    ("fp8_block", {"inputs": "none", "recipe": "deepseek"}, rf"recipe \({CT}, modelopt\)"),
    ("fp8_channel", {"inputs": "none", "recipe": "modelopt"}, "fp8_channel are not quantized"),
    ("fp8_tensor", {"inputs": "none", "recipe": "comfy"}, "comfy does not state that inputs"),
    ("fp8_channel", {"inputs": "static"}, "is not valid; use none, dynamic, float8, or a number"),
    ("nvfp4", {"inputs": 10**400}, "is not valid; use none, dynamic, float8, or a number"),
    ("fp8_channel", {"inputs": 1.0}, "are quantized with a constant scale; leave it out, or use"),
    ("nvfp4", {"inputs": 0}, "inputs 0 is not valid; use none, dynamic, float8, or a number from"),
    ("nvfp4", {"inputs": -1.0}, "is not valid; use none, dynamic, float8, or a number from"),
    ("nvfp4", {"inputs": math.nan}, "inputs nan is not valid"),
    ("nvfp4", {"inputs": math.inf}, "inputs inf is not valid"),
    ("nvfp4", {"inputs": 1e-39}, "is not valid; use none, dynamic, float8, or a number from"),
    ("nvfp4", {"inputs": True}, "inputs True is not valid"),
    ("nvfp4", {"inputs": 1.0, "recipe": "mlx"}, rf"another recipe \({CT}, modelopt\)"),
    ("nvfp4", {"inputs": 1.0, "consumer": "mlx-lm"}, "does not load nvfp4 with inputs=1.0; it"),
    ("fp8_block", {"inputs": "dynamic", "recipe": CT, "block": (64, 64)}, "64x64 .* use 128x128"),
    ("int4_group", {"inputs": "dynamic", "block": 32}, "1x32 is not one of .* use 1x128"),
    ("int8_group", {"inputs": "dynamic", "consumer": "vllm"}, "vllm' does not load int8_group"),
    ("mxfp4", {"inputs": "dynamic", "consumer": "sglang"}, "it loads .*fp8_channel, fp8_block"),
    ("fp8_block", {"inputs": "none", "consumer": "vllm", "recipe": CT}, "does not load fp8_block"),
    ("fp8_block", {"inputs": "none", "consumer": "sglang"}, "sglang' does not load fp8_block"),
    ("mxfp4", {"inputs": "float8", "consumer": "vllm"}, "vllm' does not load mxfp4 with inputs="),
    (
        "nvfp4",
        {"inputs": "float8"},
        r"quantized to float8 while the model runs; .*scheme \(mxfp4\)",
    ),
]


@pytest.mark.parametrize(("scheme", "options", "text"), REFUSALS)
def test_what_nobody_can_state_is_refused(
    tmp_path: Path, model: Path, scheme: str, options: dict[str, Any], text: str
) -> None:
    with pytest.raises(CheckpointError, match=text) as caught:
        checkpoint.quantize_file(model, tmp_path / "out", scheme, **options)
    assert "inputs" in str(caught.value)
    assert not (tmp_path / "out").exists()


PRESETS = {
    "FP8_DYNAMIC": (8, "float", "channel", "token"),
    "fp8_block": None,
    "W8A8": (8, "int", "channel", "token"),
    "W8A16": (8, "int", "group", None),
    "W4A16": (4, "int", "group", None),
    "W4A16_ASYM": (4, "int", "group", None),
    "W4AFP8": (4, "int", "group", "token"),
    "NVFP4A16": (4, "float", "tensor_group", None),
    "MXFP4A16": (4, "float", "group", None),
    "MXFP4XFP8": (4, "float", "group", "group"),
    "MXFP6A16": (6, "float", "group", None),
    "MXFP6A8": (6, "float", "group", "group"),
    "MXFP8A16": (8, "float", "group", None),
    "mxfp8": (8, "float", "group", "group"),
}
"""What the presets of compressed-tensors 0.20 state of weights and of inputs."""


@pytest.mark.parametrize(("name", "stated"), PRESETS.items())
def test_a_preset_names_its_scheme(
    tmp_path: Path, model: Path, name: str, stated: tuple[Any, ...] | None
) -> None:
    if stated is None:  # a scheme of castwise, too
        checkpoint.quantize_file(model, tmp_path / "out", name)
        return
    with pytest.raises(CheckpointError, match="is a preset of llm-compressor") as raised:
        checkpoint.quantize_file(model, tmp_path / "out", name)
    words: dict[str, Any] = dict(re.findall(r"(\w+)='(\w+)'", str(raised.value)))
    words |= dict.fromkeys(re.findall(r"(\w+)=True", str(raised.value)), True)
    checkpoint.quantize_file(model, tmp_path / "out", **words, recipe=CT)
    group = section_of(tmp_path / "out")["config_groups"]["group_0"]
    inputs = group["input_activations"] or {}
    weights = (group["weights"][key] for key in ("num_bits", "type", "strategy"))
    assert group["weights"]["symmetric"] is not words.get("zero_points", False)
    assert (*weights, inputs.get("strategy")) == stated


def test_a_name_formed_like_a_preset(tmp_path: Path, model: Path) -> None:
    """compressed-tensors 0.20 has none of this name."""
    text = "'W8A16_ASYM' is no preset of llm-compressor; its weights are here scheme='int8_group' b"
    with pytest.raises(CheckpointError, match=text):
        checkpoint.quantize_file(model, tmp_path / "out", "W8A16_ASYM")
    checkpoint.quantize_file(model, tmp_path / "out", "int8_group", zero_points=True)


@pytest.mark.parametrize(
    ("words", "options"),
    [
        (["MXFP4"], "--scheme mxfp4 --inputs dynamic"),
        (["NVFP4"], "--scheme nvfp4 --inputs SCALE"),
        (["FP8_BLOCK"], "--scheme fp8_block --inputs dynamic --recipe compressed-tensors"),
        (["mxfp4"], None),
        (["MXFP4", "--inputs", "dynamic"], None),
        (["MXFP4", "--for", "llama.cpp"], None),  # which calls its own type so
        (["MXFP4", "--quiet"], None),
    ],
)
def test_a_scheme_in_capitals_is_no_preset(
    tmp_path: Path,
    model: Path,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    options: str | None,
) -> None:
    assert main(["quantize", str(model), str(tmp_path / "out"), "--scheme", *words]) == 0
    said = capsys.readouterr().err
    if options is None:
        assert "preset" not in said
    else:
        assert f"; the preset {words[0]} of llm-compressor is {options}" in said


def test_methods_that_need_data_are_named(tmp_path: Path, model: Path) -> None:
    with pytest.raises(CheckpointError, match="needs data, which castwise does not take: use llm-"):
        checkpoint.quantize_file(model, tmp_path / "out", "gptq")


def test_the_command(tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["quantize", str(model), str(tmp_path / "out"), "--quiet", "--scheme"]
    with pytest.raises(SystemExit):
        main([*words, "nvfp4", "--inputs", "static"])
    assert "'static' is neither none, dynamic, float8 nor a scale" in capsys.readouterr().err
    assert main([*words, "fp8_tensor", "--inputs", "0.5"]) == 0
    assert section_of(tmp_path / "out")["quant_algo"] == "FP8"
    words.insert(1, "--overwrite")
    assert main([*words, "nvfp4", "--inputs", "dynamic"]) == 2
    assert "--inputs dynamic: a checkpoint does not state that" in capsys.readouterr().err
    assert main([*words, "fp8_channel", "--inputs", "dynamic"]) == 0
    assert main(["inspect", str(tmp_path / "out")]) == 0
    assert "\n  inputs are quantized while the model runs\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("recipe", "scheme", "part", "value"),
    [
        (CT, "nvfp4", "input_global_scale", np.array([4], np.float32)),
        ("modelopt", "nvfp4", "input_scale", np.array(0.25, np.float32)),
        ("modelopt", "fp8_tensor", "input_scale", np.array(0.25, np.float32)),
    ],
)
def test_a_constant_scale_is_stored_beside_each_weight(  # noqa: PLR0917
    tmp_path: Path, model: Path, recipe: Any, scheme: Any, part: str, value: Any
) -> None:
    plain, out = tmp_path / "plain", tmp_path / "out"
    checkpoint.quantize_file(model, plain, scheme, recipe=recipe)
    checkpoint.quantize_file(model, out, scheme, recipe=recipe, inputs=0.25)
    tensors, without = checkpoint.load(out), checkpoint.load(plain)
    for name in WEIGHTS:
        assert_same(tensors.pop(name.removesuffix("weight") + part), value)
    assert {*tensors} == {*without}
    for name, array in without.items():
        assert_same(tensors[name], array)
    assert checkpoint.verify(plain, out).equal
    (stated,) = section_of(out)["config_groups"].values()
    is_local = "local" if recipe == CT else False
    assert stated["input_activations"] == {**stated["weights"], "dynamic": is_local}
    found = checkpoint.inspect(out).quantization
    assert found is not None
    assert not found.orphans
    assert {len(one.activations) for one in found.weights} == {1}


def test_a_constant_scale_of_a_weight_of_another_name(tmp_path: Path) -> None:
    checkpoint.save(tmp_path / "model.safetensors", {"a.kernel": weight(64, 64)})
    out, mapping = tmp_path / "out.safetensors", {r"a\.kernel": "nvfp4"}
    checkpoint.quantize_file(
        tmp_path / "model.safetensors", out, dtype_map=mapping, recipe="modelopt", inputs=2.0
    )
    parts = {"a.kernel", "a.kernel_scale", "a.kernel_scale_2", "a.input_scale"}
    assert {*checkpoint.load(out)} == parts
    found = checkpoint.inspect(out).quantization
    assert found is not None
    assert [one.activations for one in found.weights] == [["a.input_scale"]]
    assert not found.orphans


def test_a_constant_scale_goes_to_the_other_producer(tmp_path: Path, model: Path) -> None:
    stored, out, wanted = (tmp_path / name for name in ("stored", "out", "wanted"))
    checkpoint.quantize_file(model, stored, "nvfp4", recipe="modelopt", inputs=0.5)
    checkpoint.transcode_file(stored, out, CT)
    checkpoint.quantize_file(model, wanted, "nvfp4", recipe=CT, inputs=0.5)
    assert section_of(out) == section_of(wanted)
    tensors = checkpoint.load(out)
    for name, array in checkpoint.load(wanted).items():
        if "input" in name:
            assert_same(tensors[name], array)


@pytest.mark.parametrize("consumer", ["vllm", "sglang"])
def test_a_consumer_that_loads_a_scheme_only_so(
    tmp_path: Path, model: Path, consumer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    out = tmp_path / "out"
    options: Any = {"recipe": CT, "overwrite": True, "ignore": r".*down_proj"}
    checkpoint.quantize_file(model, out, "fp8_block", consumer=consumer, **options)
    group = section_of(out)["config_groups"]["group_0"]
    assert group["input_activations"].items() >= {"strategy": "group", "group_size": 128}.items()
    mapping = {r".*o_proj\.weight": "fp8_block"}
    options["dtype_map"] = mapping
    checkpoint.quantize_file(model, out, "fp8_channel", consumer=consumer, **options)
    first, second = section_of(out)["config_groups"].values()
    assert (first["input_activations"], second["input_activations"]["dynamic"]) == (None, True)


def test_the_table_of_consumers_has_what_is_written() -> None:
    written = {(row.recipe, row.scheme, row.inputs) for row in (*WRITTEN, *WRITTEN_WITH_INPUTS)}
    for consumer in consumers():
        for loading in consumer.loads:
            for kind in ("dynamic", "float8", "constant"):
                names = getattr(loading, kind)
                assert {(loading.recipe, name, kind) for name in names} <= written
            assert {*loading.only_dynamic} <= {*loading.dynamic} <= {*loading.schemes}
            assert loading.with_inputs(1.0) == loading.constant
            assert loading.with_inputs("float8") == loading.float8
            assert not {*loading.with_inputs("none")} & {*loading.only_dynamic}


def found(section: dict[str, Any]) -> Quantization:
    quantization = recognize([], {"config.json": {"quantization_config": section}}, {})
    assert quantization is not None
    return quantization


def group(inputs: object) -> dict[str, Any]:
    weights = {"num_bits": 8, "type": "float", "strategy": "channel"}
    return {"targets": ["Linear"], "weights": weights, "input_activations": inputs}


@pytest.mark.parametrize(
    ("section", "is_dynamic"),
    [
        *(
            ({"quant_method": CT, "config_groups": {"group_0": group(inputs)}}, is_dynamic)
            for inputs, is_dynamic in (
                (None, False),
                ({"dynamic": False}, False),
                ({"dynamic": True}, True),
                ({"dynamic": "local"}, True),
                ({"dynamic": ["local"]}, False),
                ("dynamic", False),
            )
        ),
        ({"quant_method": CT, "config_groups": {"group_0": 1}}, False),
        ({"quant_method": CT, "config_groups": []}, False),
        ({"quant_method": "fp8", "activation_scheme": "dynamic"}, True),
        ({"quant_method": "fp8", "activation_scheme": "static"}, False),
        ({"quant_method": "fbgemm_fp8"}, True),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, False),
        ({"quant_method": "modelopt", "quant_algo": "MXFP8"}, True),
        ({"quant_method": "modelopt", "quant_algo": ["MXFP8"]}, False),
        (
            {
                "quant_method": "modelopt",
                "quant_algo": "MIXED_PRECISION",
                "quantized_layers": {"a": 1, "b": {"quant_algo": "fp8_per_channel_per_token"}},
            },
            True,
        ),
        ({"quant_method": "quark", "global_quant_config": {"input_tensors": None}}, False),
        (
            {
                "quant_method": "quark",
                "global_quant_config": {"input_tensors": {"is_dynamic": True}},
            },
            True,
        ),
        (
            {
                "quant_method": "quark",
                "layer_quant_config": {"*mlp*": {"input_tensors": {"is_dynamic": True}}},
            },
            True,
        ),
        ({"quant_method": "mxfp4"}, False),
    ],
)
def test_what_others_state_is_reported(section: dict[str, Any], is_dynamic: bool) -> None:
    assert found(section).inputs == ("dynamic" if is_dynamic else None)


TENSORS = {name: weight(256, 256, seed=seed) for seed, name in enumerate((Q, OUT, GATE, DOWN))}
TINY = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 256,
    "intermediate_size": 256,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "vocab_size": 32,
}


@pytest.mark.parametrize(
    ("scheme", "consumer", "loads"),
    [
        ("fp8_channel", "sglang", True),
        ("int8_channel", "sglang", True),
        ("mxfp8_e4m3", "sglang", False),
        ("int4_group", "sglang", False),
        ("int4_group", "vllm", True),
        ("mxfp4", "vllm", True),
        ("mxfp6_e2m3", "vllm", False),
        ("mxfp6_e2m3", "transformers", True),
    ],
)
def test_who_loads_them(tmp_path: Path, scheme: str, consumer: Any, loads: bool) -> None:
    layers = {name: array for name, array in WEIGHTS.items() if name not in TENSORS}
    shapes = {name: weight(256, 256, seed=7) for name in layers}
    norms = {f"model.layers.0.{name}.weight": weight(256) for name in ("input_layernorm",)}
    norms["model.layers.0.post_attention_layernorm.weight"] = norms["model.norm.weight"] = weight(
        256
    )
    tables = {name: weight(32, 256) for name in ("model.embed_tokens.weight", "lm_head.weight")}
    source = write(tmp_path / "model", {**TENSORS, **shapes, **norms, **tables}, **TINY)
    checkpoint.quantize_file(source, tmp_path / "out", scheme, recipe=CT, inputs="dynamic")
    check = checkpoint.verify_loading(tmp_path / "out", consumer)
    assert check.loads is loads, check.problems


@pytest.mark.parametrize("scheme", ["fp8_channel", "mxfp8_e4m3"])
def test_transcoding_states_them_as_quantizing_does(
    tmp_path: Path, model: Path, scheme: str
) -> None:
    stored, out, wanted = (tmp_path / name for name in ("stored", "out", "wanted"))
    checkpoint.quantize_file(model, stored, scheme, recipe="modelopt")
    checkpoint.transcode_file(stored, out, CT, inputs="dynamic")
    checkpoint.quantize_file(model, wanted, scheme, recipe=CT, inputs="dynamic")
    assert section_of(out) == section_of(wanted)
    assert checkpoint.verify(stored, out, arithmetic="exact").equal
    checkpoint.transcode_file(out, tmp_path / "back", "modelopt", inputs="dynamic")
    assert section_of(tmp_path / "back") == section_of(stored)


@pytest.mark.parametrize(
    ("scheme", "recipe", "to", "inputs", "text"),
    [
        ("nvfp4", "modelopt", CT, "dynamic", f"of {CT} does not state that inputs of nvfp4"),
        ("fp8_channel", CT, "modelopt", "none", "inputs of fp8_channel are not quantized"),
        ("mxfp4", CT, "gguf", "dynamic", "a checkpoint of gguf states no inputs; leave it out"),
        ("fp8_channel", "modelopt", CT, "static", "is not valid; use one of none, dynamic, float8"),
    ],
)
def test_what_no_form_states_is_refused(  # noqa: PLR0917
    tmp_path: Path, model: Path, scheme: str, recipe: Any, to: Any, inputs: Any, text: str
) -> None:
    checkpoint.quantize_file(model, tmp_path / "stored", scheme, recipe=recipe)
    with pytest.raises(CheckpointError, match=f"inputs '{inputs}'.* {text}|{text}"):
        checkpoint.transcode_file(tmp_path / "stored", tmp_path / "out", to, inputs=inputs)
    assert not (tmp_path / "out").exists()


def test_constant_scales_are_no_other_inputs(tmp_path: Path, model: Path) -> None:
    """Scales of inputs that are stored state themselves what inputs are."""
    stored = tmp_path / "stored.safetensors"
    checkpoint.quantize_file(model, stored, "fp8_tensor", recipe="modelopt")
    tensors = checkpoint.load(stored)
    for name in [name for name in tensors if name.endswith(".weight_scale")]:
        tensors[name.replace("weight_scale", "input_scale")] = np.array(2, np.float32)
    metadata = checkpoint.inspect(stored).metadata
    checkpoint.save(stored, tensors, metadata=metadata, overwrite=True)
    with pytest.raises(CheckpointError, match=r"inputs 'none': it has scales of inputs, which are"):
        checkpoint.transcode_file(stored, tmp_path / "out.safetensors", CT, inputs="none")


def test_a_statement_that_no_tensor_is_stored_by(tmp_path: Path) -> None:
    section = {"quant_method": "fp8", "activation_scheme": "dynamic"}
    source = write(tmp_path / "model", quantization_config=section)
    surveyed = {row.name for row in checkpoint.survey_file(source).tensors}
    assert {*WEIGHTS} <= surveyed
    checkpoint.dequantize_file(source, tmp_path / "out")
    assert "quantization_config" not in (tmp_path / "out" / "config.json").read_text("utf-8")
