"""Does a consumer load a checkpoint? Found from headers, of faults that castwise wrote before."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from castwise import checkpoint
from castwise.checkpoint import CheckpointError
from castwise.cli import main

OUT, IN, EXPERTS = 64, 64, 2
ENGINES = ("vllm", "sglang")
CT, DEEPSEEK, GPT_OSS = "compressed-tensors", "fp8", "mxfp4"
BF16, E4M3 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn
ATTENTION = tuple(f"self_attn.{name}_proj" for name in "qkvo")
MLP = tuple(f"mlp.{name}_proj" for name in ("gate", "up", "down"))
NORMS = ("input_layernorm", "post_attention_layernorm")

Arrays = dict[str, Any]


def weight(name: str, scheme: str, shape: tuple[int, ...] = (OUT, IN)) -> Arrays:
    """Return the tensors of one weight, as its producer names them; all zeros."""
    *outer, rows, columns = shape
    match scheme:
        case "plain":
            return {name: np.zeros(shape, BF16)}
        case "fp8_channel":
            return {
                name: np.zeros(shape, E4M3),
                f"{name}_scale": np.zeros((*outer, rows, 1), BF16),
            }
        case "fp8_block":
            return {
                name: np.zeros(shape, E4M3),
                f"{name}_scale_inv": np.zeros((*outer, 1, 1), np.float32),
            }
        case "nvfp4":
            return {
                f"{name}_packed": np.zeros((*outer, rows, columns // 2), np.uint8),
                f"{name}_scale": np.zeros((*outer, rows, columns // 16), E4M3),
                f"{name}_global_scale": np.ones(1, np.float32),
            }
        case "int4_group":
            return {
                f"{name}_packed": np.zeros((*outer, rows, columns // 8), np.int32),
                f"{name}_scale": np.zeros((*outer, rows, columns // 32), BF16),
                f"{name}_shape": np.array([rows, columns], np.int64),
            }
    return {
        f"{name}_blocks": np.zeros((*outer, rows, columns // 32, 16), np.uint8),
        f"{name}_scales": np.zeros((*outer, rows, columns // 32), np.uint8),
    }


ARGUMENTS: dict[str, dict[str, Any]] = {
    "fp8_channel": {"num_bits": 8, "type": "float", "strategy": "channel"},
    "nvfp4": {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16},
    "int4_group": {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32},
}
FORMS = {
    "fp8_channel": "naive-quantized",
    "nvfp4": "nvfp4-pack-quantized",
    "int4_group": "pack-quantized",
}


def stated(method: str, groups: Mapping[str, list[str]], ignore: list[str]) -> dict[str, Any]:
    """Return the section of a configuration."""
    if method == CT:
        return {
            "quant_method": CT,
            "format": "mixed-precision",
            "quantization_status": "compressed",
            "config_groups": {
                f"group_{number}": {
                    "targets": targets,
                    "weights": ARGUMENTS[scheme],
                    "format": FORMS[scheme],
                }
                for number, (scheme, targets) in enumerate(groups.items())
            },
            "ignore": ignore,
        }
    section: dict[str, Any] = {"quant_method": method, "modules_to_not_convert": ignore}
    return section | (
        {"weight_block_size": [128, 128], "activation_scheme": "dynamic"}
        if method == DEEPSEEK
        else {}
    )


def write(
    folder: Path,
    architecture: str,
    tensors: Mapping[str, Any],
    section: Mapping[str, Any] | None,
    **config: Any,
) -> Path:
    folder.mkdir(parents=True)
    checkpoint.save(folder / "model.safetensors", dict(tensors))
    values = {"architectures": [architecture], "dtype": "bfloat16", **config}
    if section is not None:
        values["quantization_config"] = section
    (folder / "config.json").write_text(json.dumps(values))
    return folder


def decoder(
    layers: Mapping[str, Arrays], scheme: str, attention: tuple[str, ...] = ATTENTION
) -> Arrays:
    """Return a decoder of one layer: its attention quantized, and what else is in it."""
    prefix = "model.layers.0."
    tensors: Arrays = {
        "model.embed_tokens.weight": np.zeros((OUT, IN), BF16),
        "model.norm.weight": np.zeros(IN, BF16),
        "lm_head.weight": np.zeros((OUT, IN), BF16),
    }
    for name in NORMS:
        tensors[f"{prefix}{name}.weight"] = np.zeros(IN, BF16)
    for name in attention:
        tensors |= weight(f"{prefix}{name}.weight", scheme)
    for name, arrays in layers.items():
        tensors |= {f"{prefix}{name}{end}": array for end, array in arrays.items()}
    return tensors


def part(scheme: str, shape: tuple[int, ...] = (OUT, IN), name: str = ".weight") -> Arrays:
    """Return the tensors of a weight by what follows its module."""
    return weight(name, scheme, shape)


DENSE = {name: part("fp8_channel") for name in MLP}
STACK = (EXPERTS, 2 * OUT, IN)
QWEN3_5 = ("linear_attn.in_proj_qkv", "linear_attn.in_proj_z", "linear_attn.out_proj")


def embedding_as_linear() -> tuple[str, Arrays, dict[str, Any], dict[str, Any]]:
    tensors = decoder(DENSE, "fp8_channel") | weight("model.embed_tokens.weight", "fp8_channel")
    section = stated(CT, {"fp8_channel": ["Linear"]}, ["lm_head"])
    return "LlamaForCausalLM", tensors, section, {}


def plain_stack(
    architecture: str, *names: str
) -> tuple[str, Arrays, dict[str, Any], dict[str, Any]]:
    stacks = {
        name.removesuffix(".weight"): part("plain", STACK, ".weight" if ".weight" in name else "")
        for name in names
    }
    tensors = decoder(stacks, "fp8_channel")
    section = stated(CT, {"fp8_channel": ["Linear"]}, ["lm_head"])
    return architecture, tensors, section, {}


def stack_in_blocks(
    architecture: str, name: str
) -> tuple[str, Arrays, dict[str, Any], dict[str, Any]]:
    tensors = decoder({name: part("fp8_block", STACK, "")}, "fp8_block")
    return architecture, tensors, stated(DEEPSEEK, {}, ["lm_head"]), {}


def as_gpt_oss(
    architecture: str, shape: tuple[int, ...]
) -> tuple[str, Arrays, dict[str, Any], dict[str, Any]]:
    tensors = decoder({"mlp.experts.gate_up_proj": part("gpt-oss", shape, "")}, "plain")
    sizes = {"hidden_size": IN, "intermediate_size": 3 * OUT}
    return architecture, tensors, stated(GPT_OSS, {}, ["lm_head"]), sizes


def joined_schemes() -> tuple[str, Arrays, dict[str, Any], dict[str, Any]]:
    layers = {name: part("nvfp4" if name.endswith("_z") else "int4_group") for name in QWEN3_5}
    tensors = decoder({**layers, **{name: part("int4_group") for name in MLP}}, "int4_group", ())
    groups = {"nvfp4": [r"re:.*in_proj_z$"], "int4_group": ["Linear"]}
    return "Qwen3_5ForCausalLM", tensors, stated(CT, groups, ["lm_head"]), {}


def joined_scales() -> tuple[str, Arrays, dict[str, Any], dict[str, Any]]:
    layers = {name: part("nvfp4") for name in (*QWEN3_5, *MLP)}
    tensors = decoder(layers, "nvfp4", ())
    tensors["model.layers.0.linear_attn.in_proj_z.weight_global_scale"] += 1
    return "Qwen3_5ForCausalLM", tensors, stated(CT, {"nvfp4": ["Linear"]}, ["lm_head"]), {}


def indexer() -> tuple[str, Arrays, dict[str, Any], dict[str, Any]]:
    names = ("self_attn.o_proj", "self_attn.indexer.wq_b", "self_attn.indexer.weights_proj", *MLP)
    tensors = decoder({name: part("fp8_channel") for name in names}, "fp8_channel", ())
    section = stated(CT, {"fp8_channel": ["Linear"]}, ["lm_head"])
    return "DeepseekV32ForCausalLM", tensors, section, {}


FAULTS: dict[str, tuple[Any, tuple[str, ...], str]] = {
    "embedding under Linear": (
        embedding_as_linear(),
        ("transformers", *ENGINES),
        "model.embed_tokens",
    ),
    "granitemoe": (
        plain_stack(
            "GraniteMoeForCausalLM",
            "block_sparse_moe.input_linear.weight",
            "block_sparse_moe.output_linear.weight",
        ),
        ENGINES,
        "model.layers.0.block_sparse_moe.input_linear",
    ),
    "step3p5, of whose experts the table has no row": (
        (
            *plain_stack("Step3p5ForCausalLM", "moe.gate_proj.weight", "moe.down_proj.weight")[:3],
            {"model_type": "step3p5"},
        ),
        ENGINES,
        "model.layers.0.moe.gate_proj",
    ),
    "llama4 plain": (
        plain_stack("Llama4ForCausalLM", "feed_forward.experts.gate_up_proj"),
        ("transformers", *ENGINES),
        "model.layers.0.feed_forward.experts.gate_up_proj",
    ),
    "gpt_oss in blocks": (
        stack_in_blocks("GptOssForCausalLM", "mlp.experts.gate_up_proj"),
        ("transformers", *ENGINES),
        "model.layers.0.mlp.experts.gate_up_proj",
    ),
    "llama4 in blocks": (
        stack_in_blocks("Llama4ForCausalLM", "feed_forward.experts.gate_up_proj"),
        ("transformers", *ENGINES),
        "model.layers.0.feed_forward.experts.gate_up_proj",
    ),
    "qwen3_moe in one tensor": (
        stack_in_blocks("Qwen3MoeForCausalLM", "mlp.experts.gate_up_proj"),
        ("transformers", *ENGINES),
        "model.layers.0.mlp.experts.gate_up_proj",
    ),
    "qwen3_5_moe as gpt-oss": (
        as_gpt_oss("Qwen3_5MoeForCausalLM", (EXPERTS, IN, 2 * OUT)),
        ("transformers", *ENGINES),
        "model.layers.0.mlp.experts.gate_up_proj",
    ),
    "gpt_oss along the outputs": (
        as_gpt_oss("GptOssForCausalLM", (EXPERTS, IN, 6 * OUT)),
        ("transformers", *ENGINES),
        "model.layers.0.mlp.experts.gate_up_proj",
    ),
    "schemes of what is joined": (
        joined_schemes(),
        ENGINES,
        "model.layers.0.linear_attn.in_proj_qkv",
    ),
    "global scales of what is joined": (
        joined_scales(),
        ENGINES,
        "model.layers.0.linear_attn.in_proj_qkv",
    ),
    "indexer": (indexer(), ENGINES, "model.layers.0.self_attn.indexer.weights_proj"),
}
"""The kinds of fault of which castwise wrote files: a file, who does not load it, and a module."""


@pytest.mark.parametrize("kind", FAULTS)
def test_a_fault_is_found_and_names_the_module(tmp_path: Path, kind: str) -> None:
    (architecture, tensors, section, config), consumers, module = FAULTS[kind]
    folder = write(tmp_path / "model", architecture, tensors, section, **config)
    for consumer in consumers:
        found = checkpoint.verify_loading(folder, consumer)  # type: ignore[arg-type]
        assert found.loads is False, consumer
        named = {problem.module for problem in found.problems}
        assert any(name.startswith(module) or module.startswith(name) for name in named - {""}), (
            consumer,
            named,
        )


def right(kind: str) -> tuple[str, Arrays, dict[str, Any]]:
    """Return the same models as they are loaded."""
    ignore = ["lm_head"]
    match kind:
        case "embedding":
            return (
                "LlamaForCausalLM",
                decoder(DENSE, "fp8_channel"),
                stated(CT, {"fp8_channel": ["Linear"]}, ignore),
            )
        case "granitemoe":
            layers = {
                f"block_sparse_moe.{name}": part("plain", STACK)
                for name in ("input_linear", "output_linear")
            }
            ignore.append(r"re:.*block_sparse_moe\..*")
            return (
                "GraniteMoeForCausalLM",
                decoder(layers, "fp8_channel"),
                stated(CT, {"fp8_channel": ["Linear"]}, ignore),
            )
        case "joined":
            layers = {name: part("nvfp4") for name in (*QWEN3_5, *MLP)}
            return (
                "Qwen3_5ForCausalLM",
                decoder(layers, "nvfp4", ()),
                stated(CT, {"nvfp4": ["Linear"]}, ignore),
            )
    experts = {
        f"mlp.experts.{number}.{name}_proj": part("int4_group")
        for number in range(EXPERTS)
        for name in ("gate", "up", "down")
    }
    experts["mlp.gate"] = part("plain", (EXPERTS, IN))
    ignore.append("model.layers.0.mlp.gate")
    return (
        "Qwen3MoeForCausalLM",
        decoder(experts, "int4_group"),
        stated(CT, {"int4_group": ["Linear"]}, ignore),
    )


@pytest.mark.parametrize("consumer", ["transformers", *ENGINES])
@pytest.mark.parametrize("kind", ["embedding", "granitemoe", "joined", "experts"])
def test_what_is_right_is_loaded(tmp_path: Path, kind: str, consumer: Any) -> None:
    folder = write(tmp_path / "model", *right(kind))
    found = checkpoint.verify_loading(folder, consumer)
    assert found.loads is True, found.problems
    assert main(["verify", str(folder), "--for", consumer]) == 0


DAMAGE: dict[str, tuple[str, str, str]] = {
    "no scale": ("q_proj.weight_scale", "", "it needs 'weight_scale', and the file has none"),
    "no shape": ("q_proj.weight_shape", "", "it needs 'weight_shape', and the file has none"),
    "another dtype": ("q_proj.weight_packed", "uint8", "its codes are uint8"),
    "another shape": ("q_proj.weight_scale", "shape", "its scales have the shape (64, 1)"),
    "plain": ("q_proj.weight", "plain", "the file has it as bfloat16"),
    "a scale too many": ("embed_tokens.weight_scale", "more", "embedding"),
}


@pytest.mark.parametrize("consumer", ["transformers", *ENGINES])
@pytest.mark.parametrize("kind", DAMAGE)
def test_a_tensor_that_is_missing_or_another_is_found(
    tmp_path: Path, kind: str, consumer: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    architecture, tensors, section = right("experts")
    end, change, reason = DAMAGE[kind]
    names = [name for name in tensors if name.endswith(end)]
    match change:
        case "":
            for name in names:
                del tensors[name]
        case "uint8":
            tensors[names[0]] = np.zeros((OUT, IN // 2), np.uint8)
        case "shape":
            tensors[names[0]] = np.zeros((OUT, 1), BF16)
        case "plain":
            prefix = "model.layers.0.self_attn.q_proj.weight"
            for suffix in ("_packed", "_scale", "_shape"):
                del tensors[prefix + suffix]
            tensors[prefix] = np.zeros((OUT, IN), BF16)
        case _:
            tensors["model.embed_tokens.weight_scale"] = np.zeros((OUT, 1), BF16)
    folder = write(tmp_path / "model", architecture, tensors, section)
    assert main(["verify", str(folder), "--for", consumer]) == 1
    assert reason in capsys.readouterr().out


def test_another_dtype_is_an_option_that_is_said(tmp_path: Path) -> None:
    folder = write(tmp_path / "model", *right("joined"), dtype="float32")
    (problem,) = checkpoint.verify_loading(folder, "transformers").problems
    assert problem.option == "dtype=bfloat16"
    assert checkpoint.verify_loading(folder, "vllm").loads


@pytest.mark.parametrize("config", [{"architectures": ["NobodyKnows"]}, {"model_type": "new"}])
def test_a_model_that_is_not_known_is_no_failure(
    tmp_path: Path, config: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write(tmp_path / "model", "NobodyKnows", {"fc.weight": np.zeros((4, 4), BF16)}, None)
    (folder / "config.json").write_text(json.dumps(config))
    assert checkpoint.verify_loading(folder, "vllm").loads is None
    assert main(["verify", str(folder), "--for", "vllm"]) == 0
    (line,) = capsys.readouterr().out.strip().splitlines()
    assert "castwise does not know the architecture" in line


@pytest.mark.parametrize(
    ("kind", "config", "shapes"),
    [
        (
            "Gemma3ForConditionalGeneration",
            {},
            {
                "vision_tower.head.attention.in_proj_weight": (3 * IN, IN),
                "vision_tower.encoder.layers.0.self_attn.q_proj.weight": (IN, IN),
            },
        ),
        (
            "Glm5NextForConditionalGeneration",
            {},
            {
                f"model.language_model.layers.0.self_attn.{end}.weight": (OUT, IN)
                for end in ("q_proj", "k_proj", "v_proj", "b_proj", "f_a_proj", "g_a_proj")
            },
        ),
        (
            "InklingForCausalLM",
            {"ignore": ".*shared_experts.*"},
            {
                "model.layers.0.mlp.shared_experts.gate_up_proj": STACK,
                "model.layers.0.mlp.shared_experts.down_proj": (EXPERTS, IN, OUT),
            },
        ),
    ],
)
@pytest.mark.parametrize("consumer", ENGINES)
def test_what_stays_by_itself_is_not_refused(
    tmp_path: Path,
    kind: str,
    config: dict[str, Any],
    shapes: Mapping[str, tuple[int, ...]],
    consumer: Any,
) -> None:
    shapes = shapes | {"model.language_model.layers.3.mlp.down_proj.weight": (OUT, IN)}
    tensors = {name: np.zeros(shape, BF16) for name, shape in shapes.items()}
    source, out = write(tmp_path / "in", kind, tensors, None), tmp_path / "out"
    checkpoint.quantize_file(source, out, "fp8_channel", consumer=consumer, **config)
    assert checkpoint.verify_loading(out, consumer).loads is True


def test_a_model_of_diffusers_is_not_called_loaded(tmp_path: Path) -> None:
    folder = write(tmp_path / "unet", "UNet2DConditionModel", weight("a.weight", "plain"), None)
    (folder / "config.json").write_text('{"_class_name": "UNet2DConditionModel"}')
    found = checkpoint.verify_loading(folder, "transformers")
    assert found.loads is None
    assert "a model of diffusers (UNet2DConditionModel)" in found.unknown[0]


@pytest.mark.parametrize("method", ["awq", "a_method_of_tomorrow"])
@pytest.mark.parametrize("consumer", ["transformers", "vllm", "sglang"])
def test_a_method_without_rules_is_not_called_loaded(
    tmp_path: Path, consumer: Any, method: str
) -> None:
    tensors = decoder({"mlp.down_proj": part("plain")}, "plain")
    folder = write(tmp_path / "model", "LlamaForCausalLM", tensors, {"quant_method": method})
    found = checkpoint.verify_loading(folder, consumer)
    assert (found.loads, found.problems) == (None, [])
    assert f"the quantization method {method!r}" in found.unknown[0]


def test_names_of_the_language_model_are_not_those_of_a_tower(tmp_path: Path) -> None:
    name = "language_model.model.layers.0.self_attn.q_proj.weight"
    section = stated(CT, {"fp8_channel": ["Linear"]}, ["lm_head"])
    folder = write(
        tmp_path / "model",
        "Llama4ForConditionalGeneration",
        weight(name, "fp8_channel"),
        section,
    )
    assert checkpoint.verify_loading(folder, "vllm").loads


def test_tensors_of_other_names_are_not_called_loaded(tmp_path: Path) -> None:
    folder = write(tmp_path / "bert", "BertModel", decoder(DENSE, "plain"), None)
    found = checkpoint.verify_loading(folder, "transformers")
    assert (found.loads, found.tensors) == (None, 0)
    assert "config.json states BertModel, and no tensor has a name of that" in found.unknown[0]
    name, tensors, section = right("embedding")
    extra = {"v_head.weight": np.zeros((4, IN), BF16)}
    folder = write(tmp_path / "llama", name, tensors | extra, section)
    found = checkpoint.verify_loading(folder, "vllm")
    assert (found.loads, found.tensors) == (True, len(tensors))
    assert "1 tensor" in found.unknown[0]
    assert "'v_head.weight'" in found.unknown[0]


def test_a_type_that_is_not_that_of_the_class_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tensors, text = decoder({}, "plain"), "the model_type 'gpt2' and LlamaForCausalLM, a class of"
    folder = write(tmp_path / "gpt2", "LlamaForCausalLM", tensors, None, model_type="gpt2")
    assert text in checkpoint.verify_loading(folder, "transformers").unknown[-1]
    checkpoint.quantize_file(folder, tmp_path / "out", "int8_channel")
    assert text in caplog.text
    caplog.clear()
    folder = write(tmp_path / "llama", "LlamaForCausalLM", tensors, None, model_type="llama")
    assert not checkpoint.verify_loading(folder, "transformers").unknown
    checkpoint.quantize_file(folder, tmp_path / "out2", "int8_channel")
    assert "model_type" not in caplog.text


def test_an_architecture_of_a_user_is_checked(tmp_path: Path) -> None:
    tensors = weight("blocks.0.fc.weight", "plain") | weight("blocks.0.table.weight", "fp8_channel")
    section = stated(CT, {"fp8_channel": ["Linear"]}, ["blocks.0.fc"])
    folder = write(tmp_path / "model", "Frob", tensors, section)
    file = tmp_path / "frob.txt"
    file.write_text(
        "# castwise architectures 1\n\nblocks.#.fc.weight linear\n"
        "blocks.#.table.weight embedding\n\nfrob - - Frob=0\n"
    )
    assert checkpoint.verify_loading(folder, "vllm").loads is None
    assert checkpoint.verify_loading(folder, "vllm", architecture=file).loads is False
    assert main(["verify", str(folder), "--for", "vllm", "--architecture", str(file)]) == 1


def test_what_does_not_go_together_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write(tmp_path / "model", *right("embedding"))
    for words, reason in (
        ([], "add B, or name a consumer"),
        ([str(folder), "--for", "vllm"], "--for and B do not go together"),
        (["--map", "m.toml", "--for", "vllm"], "--for and --map do not go together"),
        (["--for", "comfyui"], "castwise has no rules of how it loads"),
        (["--for", "vlm"], "'vllm'"),
    ):
        assert main(["verify", str(folder), *words]) == 2
        assert reason in capsys.readouterr().err


@pytest.mark.parametrize("scheme", ["fp8_channel", "int4_group", "nvfp4"])
def test_quantize_refuses_what_its_consumer_does_not_load(tmp_path: Path, scheme: Any) -> None:
    """A matrix that a map names, and the consumer builds without quantization."""
    plain = {name.removesuffix(".weight"): part("plain") for name in MLP}
    source = write(tmp_path / "model", "LlamaForCausalLM", decoder(plain, "plain"), None)
    options: Any = {"dtype_map": {r"model\.embed_tokens\.weight": scheme}}
    for consumer in ("transformers", "sglang"):
        with pytest.raises(CheckpointError, match=r"model\.embed_tokens"):
            checkpoint.quantize_file(
                source, tmp_path / "out", scheme, consumer=consumer, recipe=CT, **options
            )
        assert not (tmp_path / "out").exists()


HRM = [f"model.H_module.layers.0.{name}" for name in ("attn.gqkv_proj", "mlp.gate_up_proj")]


@pytest.mark.parametrize(
    ("architecture", "names", "recipe", "scheme", "module"),
    [
        ("HrmTextForCausalLM", HRM, CT, "fp8_channel", None),
        ("HrmTextForCausalLM", HRM, CT, "int4_group", HRM[0]),
        ("HrmTextForCausalLM", HRM, "deepseek", "fp8_block", HRM[0]),
        ("HrmTextForCausalLM", HRM[:1], CT, "fp8_channel", "gate_up_proj"),
        ("Dinov2Model", ["encoder.layer.0.mlp.fc1"], CT, "fp8_channel", "weights_in"),
    ],
)
def test_transformers_parts_weights_whose_scales_are_of_rows(  # noqa: PLR0917
    tmp_path: Path, architecture: str, names: list[str], recipe: Any, scheme: Any, module: Any
) -> None:
    tensors = {f"{name}.weight": np.ones((4 * OUT, 2 * IN), BF16) for name in names}
    source = write(tmp_path / "model", architecture, tensors, None)
    options: Any = {"recipe": recipe, "consumer": "transformers"}
    if module is None:
        checkpoint.quantize_file(source, tmp_path / "out", scheme, **options)
        return
    with pytest.raises(CheckpointError, match=module):
        checkpoint.quantize_file(source, tmp_path / "out", scheme, **options)
    assert not (tmp_path / "out").exists()


def test_what_layers_share_is_left_and_excepted_by_all_names(tmp_path: Path) -> None:
    """Numbered layers, of which the file has one name: the other was built quantized."""
    stored = [f"model.decoder.{name}" for name in ("bbox_embed.1.layers.2", "layers.1.fc1")]
    tensors = {f"{name}.weight": np.ones((OUT, IN), BF16) for name in stored}
    source = write(tmp_path / "model", "RTDetrV2ForObjectDetection", tensors, None)
    options: Any = {"recipe": CT, "consumer": "transformers"}
    checkpoint.quantize_file(source, tmp_path / "out", "fp8_channel", **options)
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert {stored[0], "bbox_embed.1.layers.2"} <= {*config["quantization_config"]["ignore"]}
    assert stored[1] not in config["quantization_config"]["ignore"]


def test_quantize_says_who_does_not_load_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    experts = {
        f"mlp.experts.{number}.{name}_proj": part("plain")
        for number in range(EXPERTS)
        for name in ("gate", "up", "down")
    }
    source = write(tmp_path / "model", "Qwen3MoeForCausalLM", decoder(experts, "plain"), None)
    checkpoint.quantize_file(source, tmp_path / "out", "nvfp4", recipe=CT)
    assert "not for transformers" in caplog.text
    assert "not for vllm" not in caplog.text
    assert checkpoint.verify_loading(tmp_path / "out", "vllm").loads
    with pytest.raises(CheckpointError, match="transformers decodes no experts from nvfp4"):
        checkpoint.quantize_file(
            source, tmp_path / "other", "nvfp4", recipe=CT, consumer="transformers"
        )
    assert not (tmp_path / "other").exists()


def plain_model(folder: Path, *, experts: bool = False, columns: int = 4 * IN) -> Path:
    """Write a model of one layer that is not quantized."""
    names = [f"mlp.experts.{n}.{name}" for n in range(EXPERTS) for name in ("gate", "up", "down")]
    layers = {f"{name}_proj": part("plain") for name in names} if experts else {}
    layers |= {} if experts else {name: part("plain", (OUT, columns)) for name in MLP}
    architecture = "Qwen3MoeForCausalLM" if experts else "LlamaForCausalLM"
    return write(folder, architecture, decoder(layers, "plain"), None)


MIXED = "all layers but experts by one group .* choose one scheme for them, or no zero points"


@pytest.mark.parametrize(
    ("scheme", "experts", "options", "consumer", "text"),
    [
        *(
            ("int4_group", False, {"dtype_map": {r".*mlp.*": other}}, "transformers", MIXED)
            for other in ("int8_group", "fp8_channel")
        ),
        ("int4_group", True, {}, "sglang", "no method for experts of int4_group with zero points"),
        ("int8_group", False, {}, "sglang", "linear layers of int8_group with zero points"),
    ],
)
def test_zero_points_that_a_consumer_does_not_load(  # noqa: PLR0917
    tmp_path: Path, scheme: Any, experts: bool, options: Any, consumer: Any, text: str
) -> None:
    source = plain_model(tmp_path / "model", experts=experts)
    options = {"recipe": CT, "block": 32, **options}
    with pytest.raises(CheckpointError, match=text):
        checkpoint.quantize_file(
            source, tmp_path / "out", scheme, consumer=consumer, zero_points=True, **options
        )
    assert not (tmp_path / "out").exists()
    checkpoint.quantize_file(source, tmp_path / "out", scheme, zero_points=True, **options)
    found = checkpoint.verify_loading(tmp_path / "out", consumer)
    assert found.problems
    assert all(re.search(text, str(row)) and row.option is None for row in found.problems)
    # Without zero points, the same is loaded.
    checkpoint.quantize_file(source, tmp_path / "plain", scheme, consumer=consumer, **options)
    assert checkpoint.verify_loading(tmp_path / "plain", consumer).loads


@pytest.mark.parametrize("scheme", ["int4_group", "int8_group"])
def test_zero_points_of_one_scheme_are_loaded(tmp_path: Path, scheme: Any) -> None:
    source = plain_model(tmp_path / "model")
    options: Any = {"recipe": CT, "zero_points": True, "block": 32}
    mapping: Any = {r".*mlp.*": "keep"}
    checkpoint.quantize_file(source, tmp_path / "out", scheme, dtype_map=mapping, **options)
    (problem,) = checkpoint.verify_loading(tmp_path / "out", "transformers").problems
    assert problem.option == "dequantize=True"
    assert checkpoint.verify_loading(tmp_path / "out", "vllm").loads
    loads = checkpoint.verify_loading(tmp_path / "out", "sglang").loads
    assert loads is (scheme == "int4_group")


@pytest.mark.parametrize("symmetric", [True, False])
def test_vllm_reads_no_zero_points_of_embeddings(tmp_path: Path, symmetric: bool) -> None:
    tensors = weight("blocks.0.fc.weight", "plain") | weight("blocks.0.table.weight", "int4_group")
    section = stated(CT, {"int4_group": [r"re:.*table$"]}, [])
    if not symmetric:
        group = section["config_groups"]["group_0"]
        group["weights"] = {**group["weights"], "symmetric": False}
        zeros = np.zeros((OUT // 8, IN // 32), np.int32)
        tensors["blocks.0.table.weight_zero_point"] = zeros
    folder = write(tmp_path / "model", "Frob", tensors, section)
    file = tmp_path / "frob.txt"
    file.write_text(
        "# castwise architectures 1\n\nblocks.#.fc.weight linear\n"
        "blocks.#.table.weight embedding\n\nfrob - - Frob=0\n"
    )
    found = checkpoint.verify_loading(folder, "vllm", architecture=file)
    assert found.loads is symmetric
    assert [row.module for row in found.problems] == ([] if symmetric else ["blocks.0.table"])


@pytest.mark.parametrize(("scheme", "inputs"), [("mxfp4", "float8"), ("fp8_block", "dynamic")])
@pytest.mark.parametrize("columns", [256, 192])
def test_inputs_in_groups_that_columns_are_no_multiple_of(
    tmp_path: Path, scheme: Any, inputs: str, columns: int
) -> None:
    source = plain_model(tmp_path / "model", columns=columns)
    mapping: Any = {r".*self_attn.*": "keep"}
    options: Any = {"recipe": CT, "inputs": inputs, "dtype_map": mapping}
    checkpoint.quantize_file(source, tmp_path / "out", scheme, **options)
    found = checkpoint.verify_loading(tmp_path / "out", "transformers")
    if columns == 256:
        assert found.loads
        return
    assert {row.module.rpartition(".")[2] for row in found.problems} == {
        "gate_proj",
        "up_proj",
        "down_proj",
    }
    with pytest.raises(CheckpointError, match="quantizes its inputs in groups of 128"):
        checkpoint.quantize_file(
            source, tmp_path / "other", scheme, consumer="transformers", **options
        )
    assert not (tmp_path / "other").exists()


def test_vllm_takes_no_float8_inputs_beside_mxfp4(tmp_path: Path) -> None:
    source = plain_model(tmp_path / "model")
    options: Any = {"recipe": CT}
    checkpoint.quantize_file(source, tmp_path / "mx", "mxfp4", inputs="dynamic", **options)
    assert checkpoint.verify_loading(tmp_path / "mx", "vllm").loads
    checkpoint.quantize_file(source, tmp_path / "out", "mxfp4", inputs="float8", **options)
    found = checkpoint.verify_loading(tmp_path / "out", "vllm")
    assert found.loads is False
    assert "linear layers of mxfp4 with float8 inputs" in str(found.problems[0])


def mlx_weight(name: str, bits: int = 4, group: int = 32) -> Arrays:
    return {
        f"{name}.weight": np.zeros((OUT, IN * bits // 32), np.uint32),
        f"{name}.scales": np.zeros((OUT, IN // group), BF16),
        f"{name}.biases": np.zeros((OUT, IN // group), BF16),
    }


MLX_NAMES = tuple(f"model.layers.0.{name}" for name in (*ATTENTION, *MLP))
MLX_DAMAGE: dict[str, tuple[Arrays, dict[str, Any], str | None]] = {
    "right": ({}, {}, None),
    "an embedding": (mlx_weight("model.embed_tokens"), {}, None),
    "no scales": ({}, {"model.norm": {"group_size": 32, "bits": 4}}, "model.norm"),
    "a norm": ({"model.norm.scales": np.zeros(2, BF16)}, {}, "model.norm"),
    "no bias": ({f"{MLX_NAMES[0]}.biases": None}, {}, MLX_NAMES[0]),
    "other bits": ({}, {MLX_NAMES[1]: {"group_size": 32, "bits": 8}}, MLX_NAMES[1]),
    "excepted": ({}, {MLX_NAMES[2]: False}, MLX_NAMES[2]),
}


@pytest.mark.parametrize("kind", MLX_DAMAGE)
def test_mlx_lm(tmp_path: Path, kind: str) -> None:
    more, entries, module = MLX_DAMAGE[kind]
    tensors = decoder({}, "plain", ())
    for name in MLX_NAMES:
        tensors |= mlx_weight(name)
    tensors = {name: array for name, array in (tensors | more).items() if array is not None}
    section = {"group_size": 32, "bits": 4, "mode": "affine", **entries}
    folder = write(tmp_path / "model", "LlamaForCausalLM", tensors, None, quantization=section)
    check = checkpoint.verify_loading(folder, "mlx-lm")
    assert {problem.module for problem in check.problems} == ({module} if module else set())


PLAIN_STATEMENTS: dict[str, tuple[dict[str, Any], str]] = {
    "a method that mlx-lm passes over": ({"quant_method": "quanto"}, ""),
    "fp8": ({"quant_method": "fp8", "weight_block_size": [128, 128]}, ""),
    "a format that it reads": ({"quant_method": CT, "format": "pack-quantized"}, ""),
    "another format": ({"quant_method": CT, "format": "float-quantized"}, "'float-quantized'"),
    "an algorithm that it reads": ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, ""),
    "another algorithm": ({"quant_method": "modelopt", "quant_algo": "FP8"}, "NVFP4"),
    "awq": ({"quant_method": "awq", "bits": 4}, "needs quantized weights for 'awq'"),
    "bitnet": ({"quant_method": "bitnet"}, "needs quantized weights for 'bitnet'"),
    "no method": ({"bits": 4}, "needs the quant_method"),
}
"""What a configuration states of plain weights, and what of it mlx-lm 0.32.2 refuses."""


@pytest.mark.parametrize("kind", PLAIN_STATEMENTS)
def test_mlx_lm_and_a_statement_of_plain_weights(tmp_path: Path, kind: str) -> None:
    section, reason = PLAIN_STATEMENTS[kind]
    tensors = decoder({}, "plain", (*ATTENTION, *MLP))
    folder = write(tmp_path / "model", "LlamaForCausalLM", tensors, section)
    problems = checkpoint.verify_loading(folder, "mlx-lm").problems
    assert len(problems) == bool(reason)
    assert all(reason in problem.problem for problem in problems)


WRONG_TYPES: dict[str, tuple[str, dict[str, Any], str]] = {
    "a number of names": (DEEPSEEK, {"ignored_layers": 5}, "ignored_layers as 5"),
    "a text of names": (DEEPSEEK, {"modules_to_not_convert": "lm_head"}, "list of names"),
    "a number in names": (CT, {"ignore": ["lm_head", 5]}, "list of names"),
    "no expression": (CT, {"ignore": ["re:("]}, "list of names"),
    "more than an expression can have": (CT, {"ignore": ["re:a{99999999999999999999}"]}, "list of"),
    "too deep an expression": (CT, {"ignore": [f"re:{'(' * 5000}{')' * 5000}"]}, "list of names"),
    "a side of a block": (DEEPSEEK, {"weight_block_size": [128]}, "two positive"),
    "a block of nothing": (DEEPSEEK, {"weight_block_size": [0, 0]}, "two positive"),
    "a text of bits": (
        CT,
        {"config_groups": {"a": {"targets": ["Linear"], "weights": {"num_bits": "x"}}}},
        "config_groups.a.weights.num_bits as 'x'",
    ),
    "targets of ModelOpt": ("modelopt", {"exclude_modules": True}, "exclude_modules as True"),
}


@pytest.mark.parametrize("consumer", ["transformers", *ENGINES])
@pytest.mark.parametrize("kind", WRONG_TYPES)
def test_a_field_of_another_type_is_named(tmp_path: Path, kind: str, consumer: Any) -> None:
    method, fields, reason = WRONG_TYPES[kind]
    tensors = decoder({}, "plain", (*ATTENTION, *MLP))
    section = {"quant_method": method, **fields}
    folder = write(tmp_path / "model", "LlamaForCausalLM", tensors, section)
    (problem,) = checkpoint.verify_loading(folder, consumer).problems
    assert reason in problem.problem
    assert problem.remedy == "correct it"


@pytest.mark.parametrize("consumer", ["transformers", *ENGINES])
def test_names_are_expressions_in_transformers_alone(tmp_path: Path, consumer: Any) -> None:
    tensors = decoder({}, "plain", (*ATTENTION, *MLP))
    section = {"quant_method": DEEPSEEK, "modules_to_not_convert": ["*.mlp"]}
    folder = write(tmp_path / "model", "LlamaForCausalLM", tensors, section)
    problems = checkpoint.verify_loading(folder, consumer).problems
    is_named = any("modules_to_not_convert" in problem.problem for problem in problems)
    assert is_named == (consumer == "transformers")


def test_a_block_may_be_a_text_in_files_of_compressed_tensors(tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    write(plain, *right("embedding")[:1], decoder({}, "plain", (*ATTENTION, *MLP)), None)
    checkpoint.quantize_file(plain, tmp_path / "model", "fp8_block", recipe=CT, inputs="dynamic")
    config = json.loads((tmp_path / "model/config.json").read_text())
    group = config["quantization_config"]["config_groups"]["group_0"]
    assert group["weights"]["block_structure"] == [128, 128]
    group["weights"]["block_structure"] = "128x128"
    (tmp_path / "model/config.json").write_text(json.dumps(config))
    for consumer in ("vllm", "sglang"):
        assert not checkpoint.verify_loading(tmp_path / "model", consumer).problems
    group["input_activations"] = None  # whose groups of 128 these columns do not fill
    (tmp_path / "model/config.json").write_text(json.dumps(config))
    assert not checkpoint.verify_loading(tmp_path / "model", "transformers").problems
    found = checkpoint.inspect(tmp_path / "model").quantization
    assert found is not None
    assert {weight.block for weight in found.weights} == {(128, 128)}


def test_llama_cpp_reads_gguf_alone(tmp_path: Path) -> None:
    folder = write(tmp_path / "model", *right("embedding"))
    (problem,) = checkpoint.verify_loading(folder, "llama.cpp").problems
    assert "transcode" in problem.remedy


CONSUMERS = ("transformers", *ENGINES)
EXPERT_PARTS = ("w1", "w2", "w3")


def mixture(scheme: str, layers: int = 4, experts: int = 3) -> Arrays:
    """Return a Mixtral of some layers, its router and its head unquantized."""
    tensors = {
        "model.embed_tokens.weight": np.ones((OUT, IN), BF16),
        "model.norm.weight": np.ones(IN, BF16),
        "lm_head.weight": np.ones((OUT, IN), BF16),
    }
    for layer in range(layers):
        stem = f"model.layers.{layer}"
        tensors |= {f"{stem}.{name}.weight": np.ones(IN, BF16) for name in NORMS}
        tensors[f"{stem}.block_sparse_moe.gate.weight"] = np.ones((experts, IN), BF16)
        names = [f"block_sparse_moe.experts.{n}.{p}" for n in range(experts) for p in EXPERT_PARTS]
        for name in (*ATTENTION, *names):
            tensors |= weight(f"{stem}.{name}.weight", scheme)
    return tensors


EXPERT = "block_sparse_moe.experts"
LACKING: dict[str, tuple[str, str]] = {
    "a weight of a layer": (r"model.layers.2.self_attn.o_proj.weight", "of other layers"),
    "a weight of the last layer": ("model.layers.3.self_attn.q_proj.weight", "of other layers"),
    "a router": (f"model.layers.1.{EXPERT.partition('.')[0]}.gate.weight", "of other layers"),
    "a router of the last layer": (
        f"model.layers.3.{EXPERT.partition('.')[0]}.gate.weight",
        "of other layers",
    ),
    "a norm": ("model.layers.1.input_layernorm.weight", "of other layers"),
    "a norm of the first layer": ("model.layers.0.input_layernorm.weight", "of other layers"),
    "a weight of an expert": (f"model.layers.1.{EXPERT}.1.w2.weight", "of other experts"),
    "a weight of the last expert": (f"model.layers.1.{EXPERT}.2.w3.weight", "of other experts"),
    "an expert": (f"model.layers.0.{EXPERT}.1.", "config.json states 3"),
    "the last expert of a layer": (f"model.layers.2.{EXPERT}.2.", "config.json states 3"),
    "a layer": ("model.layers.1.", "config.json states 4"),
    "the last layer": ("model.layers.3.", "config.json states 4"),
}
"""What a file lacks, and what the check says of it."""


@pytest.mark.parametrize("consumer", CONSUMERS)
@pytest.mark.parametrize("kind", LACKING)
def test_a_weight_that_is_not_there_with_its_scale_is_named(
    tmp_path: Path, kind: str, consumer: Any
) -> None:
    start, reason = LACKING[kind]
    section = stated(CT, {"int4_group": ["Linear"]}, ["lm_head", "re:.*block_sparse_moe.gate"])
    tensors = mixture("int4_group")
    config: dict[str, Any] = {"num_hidden_layers": 4, "num_local_experts": 3}
    whole = write(tmp_path / "whole", "MixtralForCausalLM", tensors, section, **config)
    assert checkpoint.verify_loading(whole, consumer).problems == []
    parts = {name: array for name, array in tensors.items() if not name.startswith(start)}
    assert len(parts) < len(tensors)
    folder = write(tmp_path / "lacking", "MixtralForCausalLM", parts, section, **config)
    (problem,) = checkpoint.verify_loading(folder, consumer).problems
    assert problem.module == start.removesuffix(".weight").removesuffix(".")
    assert reason in problem.problem


@pytest.mark.parametrize("layers", [(1,), (1, 2)])
@pytest.mark.parametrize("expert", [1, 2])
def test_experts_that_no_configuration_counts_are_as_many_in_each_layer(
    tmp_path: Path, expert: int, layers: tuple[int, ...]
) -> None:
    tensors = mixture("plain")
    for layer in layers:
        for name in EXPERT_PARTS:
            del tensors[f"model.layers.{layer}.{EXPERT}.{expert}.{name}.weight"]
    folder = write(tmp_path / "model", "MixtralForCausalLM", tensors, None)
    named = {each.module for each in checkpoint.verify_loading(folder, "vllm").problems}
    assert named == {f"model.layers.{layer}.{EXPERT}.{expert}" for layer in layers}


def test_a_number_of_thousands_of_digits_is_no_failure(tmp_path: Path) -> None:
    number = "1" * 5000
    names = (f"{number}.self_attn.q_proj", f"0.{EXPERT}.{number}.w1")
    tensors = {f"model.layers.{name}.weight": np.ones((OUT, IN), BF16) for name in names}
    folder = write(tmp_path / "model", "MixtralForCausalLM", tensors, None)
    assert checkpoint.verify_loading(folder, "vllm").problems == []


def layers_of(ends: Mapping[int, tuple[str, ...]], stem: str = "model.layers") -> Arrays:
    """Return the matrices of layers, each with its own."""
    return {
        f"{stem}.{layer}.{end}.weight": np.ones((OUT, IN), BF16)
        for layer, names in ends.items()
        for end in names
    }


DEEPSEEK_ATTENTION = ("self_attn.q_proj", "self_attn.kv_b_proj", "self_attn.o_proj")
OF_EXPERTS = (
    "mlp.gate",
    *(
        f"mlp.experts.{number}.{name}_proj"
        for number in range(2)
        for name in ("gate", "up", "down")
    ),
)
NEXT_TOKENS = ("eh_proj", "shared_head.head")
T5_BLOCK = tuple(f"layer.0.SelfAttention.{name}" for name in "qkvo")
KINDS: dict[str, tuple[str, Arrays, dict[str, Any]]] = {
    "dense layers first, and one of next tokens last": (
        "DeepseekV3ForCausalLM",
        layers_of(
            {0: (*DEEPSEEK_ATTENTION, *MLP)}
            | dict.fromkeys((1, 2, 3), (*DEEPSEEK_ATTENTION, *OF_EXPERTS))
            | {4: (*DEEPSEEK_ATTENTION, *OF_EXPERTS[:1], *NEXT_TOKENS)}
        ),
        {"num_hidden_layers": 4, "n_routed_experts": 2},
    ),
    "a kind of layer that the table does not know": (
        "MixtralForCausalLM",
        layers_of(
            dict.fromkeys((1, 2, 3), (*ATTENTION, "block_sparse_moe.gate"))
            | {0: (*ATTENTION, "block_sparse_moe.dense")}
        ),
        {},
    ),
    "attention of two kinds": (
        "Qwen3NextForCausalLM",
        layers_of(
            dict.fromkeys((0, 1, 2, 4), ("linear_attn.in_proj_qkvz", "linear_attn.out_proj"))
            | {3: ATTENTION}
        ),
        {"num_hidden_layers": 5},
    ),
    "a norm of all layers but the first": (
        "ModernBertModel",
        layers_of({0: ("attn.Wo",)} | dict.fromkeys((1, 2, 3), ("attn.Wo", "attn_norm")), "layers"),
        {"num_hidden_layers": 4},
    ),
    "a table of the first layer alone": (
        "T5EncoderModel",
        layers_of(
            {0: (*T5_BLOCK, "layer.0.SelfAttention.relative_attention_bias")}
            | dict.fromkeys((1, 2, 3), T5_BLOCK),
            "encoder.block",
        ),
        {"num_layers": 4},
    ),
    "layers that share keys and values": (
        "Gemma3nForCausalLM",
        layers_of(dict.fromkeys((0, 1, 2), ATTENTION) | {3: (ATTENTION[0], ATTENTION[3])}),
        {"num_hidden_layers": 4},
    ),
    "one layer of full attention, whose keys are its values": (
        "Gemma4ForCausalLM",
        layers_of(dict.fromkeys(range(4), ATTENTION) | {4: (*ATTENTION[:2], ATTENTION[3])}),
        {"layer_types": ["sliding_attention"] * 4 + ["full_attention"]},
    ),
    "a bias of one layer": (
        "LlamaForCausalLM",
        layers_of(dict.fromkeys(range(4), ATTENTION))
        | {"model.layers.2.self_attn.q_proj.bias": np.ones(OUT, BF16)},
        {"num_hidden_layers": 4, "tie_word_embeddings": True},
    ),
    "experts that pass their inputs on, as transformers saves them": (
        "LongcatFlashForCausalLM",
        layers_of(
            dict.fromkeys(
                range(2),
                tuple(
                    f"mlp.experts.{number}.{name}_proj"
                    for number in range(3)
                    for name in ("gate", "up", "down")[: 3 if number < 2 else 2]
                ),
            )
        ),
        {"n_routed_experts": 2, "zero_expert_num": 1, "num_layers": 2},
    ),
    "convolutions, of which one is none": (
        "DPTForDepthEstimation",
        layers_of(
            dict.fromkeys((0, 1, 3), ("projection", "resize")) | {2: ("projection",)},
            "neck.reassemble_stage.layers",
        ),
        {"num_hidden_layers": 12},
    ),
    "fewer blocks of convolutions than are stated": (
        "EfficientNetForImageClassification",
        layers_of(
            dict.fromkeys(
                range(7),
                (
                    "expansion.expand_conv",
                    "depthwise_conv.depthwise_conv",
                    "squeeze_excite.reduce",
                    "squeeze_excite.expand",
                    "projection.project_conv",
                ),
            ),
            "efficientnet.encoder.blocks",
        ),
        {"num_hidden_layers": 8},
    ),
    "a decoder alone, of fewer layers than its encoder": (
        "BartForCausalLM",
        layers_of(
            dict.fromkeys(range(9), (*(f"self_attn.{n}_proj" for n in "qkv"), "fc1", "fc2")),
            "model.decoder.layers",
        ),
        {
            "num_hidden_layers": 12,
            "encoder_layers": 12,
            "decoder_layers": 9,
            "part": {"encoder_layers": []},
        },
    ),
    "a router whose first one has no scale of states before it": (
        "ZayaForCausalLM",
        layers_of(dict.fromkeys(range(4), ("self_attn.o_proj", "mlp.gate.down_proj")))
        | {f"model.layers.{n}.mlp.gate.router_states_scale": np.ones(IN, BF16) for n in (1, 2, 3)},
        {"num_hidden_layers": 4},
    ),
    "fewer layers than a part states of another": (
        "LlamaForCausalLM",
        layers_of(dict.fromkeys(range(4), ATTENTION)),
        {"text_config": {"num_hidden_layers": 9}, "num_hidden_layers": "many"},
    ),
}


@pytest.mark.parametrize("consumer", CONSUMERS)
@pytest.mark.parametrize("kind", KINDS)
def test_layers_of_other_kinds_lack_nothing(tmp_path: Path, kind: str, consumer: Any) -> None:
    architecture, tensors, config = KINDS[kind]
    folder = write(tmp_path / "model", architecture, tensors, None, **config)
    assert checkpoint.verify_loading(folder, consumer).problems == []


T5_LAYERS = layers_of(
    dict.fromkeys(
        range(3),
        (*T5_BLOCK, "layer.0.layer_norm", "layer.1.DenseReluDense.wi", "layer.1.layer_norm"),
    ),
    "encoder.block",
)
LACKING_OF_KINDS: dict[str, tuple[str, Arrays, str, set[str]]] = {
    "several weights of several layers": (
        "LlamaForCausalLM",
        layers_of(dict.fromkeys(range(4), (*ATTENTION, *MLP))),
        r"layers\.[02]\.self_attn\.[qo]_proj",
        {f"model.layers.{layer}.self_attn.{name}_proj" for layer in (0, 2) for name in "qo"},
    ),
    "more than one other layer": (
        "LlamaForCausalLM",
        layers_of(dict.fromkeys(range(4), (*ATTENTION, *MLP))),
        r"layers\.[012]\.self_attn\.q_proj|layers\.0\.self_attn\.k_proj",
        {
            f"model.layers.{name}_proj"
            for name in ("0.self_attn.k", *(f"{n}.self_attn.q" for n in range(3)))
        },
    ),
    "a weight of one of the dense layers": (
        "DeepseekV3ForCausalLM",
        layers_of(
            dict.fromkeys((0, 1), (*DEEPSEEK_ATTENTION, *MLP))
            | dict.fromkeys((2, 3), (*DEEPSEEK_ATTENTION, *OF_EXPERTS))
        ),
        r"layers\.1\.mlp\.up_proj",
        {"model.layers.1.mlp.up_proj"},
    ),
    "the experts of a layer": (
        "DeepseekV3ForCausalLM",
        layers_of(
            {0: (*DEEPSEEK_ATTENTION, *MLP)}
            | dict.fromkeys((1, 2), (*DEEPSEEK_ATTENTION, *OF_EXPERTS))
        ),
        r"layers\.2\.mlp\.experts",
        {"model.layers.2.mlp.experts"},
    ),
    "the values of a layer that has keys": (
        "Gemma3nForCausalLM",
        layers_of(dict.fromkeys((0, 1), ATTENTION) | {2: (ATTENTION[0], ATTENTION[3])}),
        r"layers\.1\.self_attn\.v_proj",
        {"model.layers.1.self_attn.v_proj"},
    ),
    "either attention of a layer": (
        "Qwen3NextForCausalLM",
        layers_of(
            dict.fromkeys((0, 1), ("linear_attn.out_proj", "mlp.gate"))
            | {2: ("self_attn.o_proj", "mlp.gate")}
        ),
        r"layers\.1\.linear_attn",
        {"model.layers.1.linear_attn.out_proj"},
    ),
    "the weight of a norm that has its bias": (
        "ViTMSNModel",
        {
            f"encoder.layer.{layer}.layernorm_after.{end}": np.ones(IN, BF16)
            for layer in range(2)
            for end in ("weight", "bias")
        },
        r"layer\.1\.layernorm_after\.weight",
        {"encoder.layer.1.layernorm_after"},
    ),
    "the attention of a block": (
        "T5EncoderModel",
        T5_LAYERS,
        r"block\.1\.layer\.0\.SelfAttention",
        {"encoder.block.1.layer.0.SelfAttention"},
    ),
}
"""Of which class, what a file of it has, what it is without, and the modules that are named."""


@pytest.mark.parametrize("kind", LACKING_OF_KINDS)
def test_weights_that_layers_of_a_kind_lack_are_named(tmp_path: Path, kind: str) -> None:
    architecture, tensors, lacking, modules = LACKING_OF_KINDS[kind]
    whole = write(tmp_path / "whole", architecture, tensors, None)
    assert checkpoint.verify_loading(whole, "vllm").problems == []
    parts = {name: array for name, array in tensors.items() if not re.search(lacking, name)}
    folder = write(tmp_path / "lacking", architecture, parts, None)
    assert {each.module for each in checkpoint.verify_loading(folder, "vllm").problems} == modules


USERS = """# castwise architectures 1

layers.#.q_proj.weight linear
layers.#.k_proj.weight linear

mine - Mine =0
"""


@pytest.mark.parametrize(
    ("block", "modules"),
    [
        ("", set()),
        ("layers.# =depth", {"layers.1.k_proj", "layers.3"}),
        ("layers.# =depth k_proj -", {"layers.3"}),
        ("layers.# * k_proj -", set()),
    ],
)
def test_a_users_file_may_describe_layers(tmp_path: Path, block: str, modules: set[str]) -> None:
    file = tmp_path / "mine.txt"
    text = USERS.replace("mine -", f"{block}\n\nmine -").replace("=0", "=0+1") if block else USERS
    file.write_text(text)
    ends = dict.fromkeys((0, 2), ("q_proj", "k_proj")) | {1: ("q_proj",)}
    folder = write(tmp_path / "model", "Mine", layers_of(ends, "layers"), None, depth=4)
    check = checkpoint.verify_loading(folder, "vllm", architecture=file)
    assert {each.module for each in check.problems} == modules


@pytest.mark.parametrize("name", ["model", "model-00001-of-00003"])
def test_a_model_is_quantized_whatever_its_layers_lack(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The source lacks it, too: it was pruned, or its last layer goes on in the next shard."""
    ends = dict.fromkeys(range(3), (*ATTENTION, *MLP)) | {3: (*ATTENTION, *MLP[:2])}
    folder = write(tmp_path / "model", "LlamaForCausalLM", layers_of(ends), None)
    (folder / "model.safetensors").rename(folder / f"{name}.safetensors")
    checkpoint.quantize_file(folder, tmp_path / "out", "fp8_channel", consumer="vllm")
    assert "lacks weights, and the result will, too: 'model.layers.3.mlp.down_proj'" in caplog.text
    (problem,) = checkpoint.verify_loading(tmp_path / "out", "vllm").problems
    assert (problem.module, problem.is_lacking) == ("model.layers.3.mlp.down_proj", True)


def test_vision_towers_stay_in_models_of_modelopt_for_vllm(tmp_path: Path) -> None:
    """Of those from ModelOpt vLLM builds none quantized, and does from compressed-tensors."""
    towers = [
        f"vision_tower.vision_model.encoder.layers.0.self_attn.{name}_proj.weight" for name in "qkv"
    ]
    names = [*towers, "language_model.model.layers.0.self_attn.o_proj.weight"]
    tensors = {name: np.ones((OUT, IN), BF16) for name in names}
    source = write(tmp_path / "model", "LlavaForConditionalGeneration", tensors, None)
    for recipe, quantized in (("modelopt", names[3:]), (CT, names)):
        out = tmp_path / recipe
        options: Any = {"recipe": recipe, "consumer": "vllm"}
        checkpoint.quantize_file(source, out, "nvfp4", **options)
        found = checkpoint.inspect(out).quantization
        assert found is not None
        assert sorted(weight.name for weight in found.weights) == sorted(quantized)
