# ruff: noqa: PLC0415 - transformers is imported by the tests
"""What the check of consumers says of transformers, beside what transformers does."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from castwise import checkpoint

SIZES: dict[str, Any] = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "initializer_range": 0.1,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 128}
LATENT = {
    "head_dim": 32,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "moe_intermediate_size": 128,
    "first_k_dense_replace": 1,
    "q_lora_rank": 64,
    "kv_lora_rank": 64,
    "qk_rope_head_dim": 32,
    "qk_nope_head_dim": 32,
    "v_head_dim": 32,
}
MODELS: dict[str, dict[str, Any]] = {
    "Llama": {},
    "Mistral": {},
    "Gemma2": {"query_pre_attn_scalar": 64},
    "Qwen2": {},
    "Qwen3": {},
    "Phi3": {},
    "Cohere": {"tie_word_embeddings": True},
    "Olmo2": {},
    "Qwen3Moe": EXPERTS,
    "Mixtral": {"num_local_experts": 4},
    "Olmoe": {"num_experts": 4, "num_experts_per_tok": 2},
    "DeepseekV3": LATENT,
    "GraniteMoe": {"num_local_experts": 4},
}
SCHEMES = ("fp8_channel", "fp8_block", "nvfp4", "mxfp4", "mxfp8_e4m3", "int4_group")

Change = Callable[[dict[str, Any], dict[str, Any]], None]


def save(folder: Path, name: str) -> Path:
    import transformers

    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**{**SIZES, **MODELS[name]})
    model = getattr(transformers, f"{name}ForCausalLM")(config).to(torch.bfloat16)
    model.save_pretrained(folder)
    return folder


def is_loaded(folder: Path, decoded: Path) -> bool:
    """Tell whether transformers computes of a folder what it does of the decoded one."""
    from transformers import AutoModelForCausalLM

    tokens, logits = torch.arange(1, 17)[None], []
    for path in (folder, decoded):
        try:
            model, lacks = AutoModelForCausalLM.from_pretrained(path, output_loading_info=True)
            with torch.no_grad():
                logits.append(model.eval()(tokens).logits)
        except (RuntimeError, ValueError, AttributeError):
            return False
        if lacks["missing_keys"] or lacks["unexpected_keys"] or lacks["mismatched_keys"]:
            return False
    return torch.equal(*logits)


def verdict(folder: Path) -> bool:
    loads = checkpoint.verify_loading(folder, "transformers").loads
    assert loads is not None
    return loads


VERDICTS: set[bool] = set()


@pytest.mark.parametrize("name", MODELS)
def test_the_verdict_is_that_of_transformers(tmp_path: Path, name: str) -> None:
    source = save(tmp_path / "model", name)
    for scheme in SCHEMES:
        result, decoded = tmp_path / scheme, tmp_path / f"{scheme} decoded"
        options: Any = {"recipe": "compressed-tensors"}
        try:
            checkpoint.quantize_file(source, result, scheme, **options)
        except checkpoint.CheckpointError:
            continue  # nobody loads it, or blocks do not fit
        checkpoint.dequantize_file(result, decoded)
        assert verdict(result) == is_loaded(result, decoded), scheme
        VERDICTS.add(verdict(result))


def test_both_verdicts_occur() -> None:
    assert {True, False} == VERDICTS


def forget_ignore(config: dict[str, Any], tensors: dict[str, Any]) -> None:
    del tensors
    config["quantization_config"]["ignore"] = []


def forget_scale(config: dict[str, Any], tensors: dict[str, Any]) -> None:
    del config, tensors["model.layers.1.mlp.up_proj.weight_scale"]


def turn_scale(config: dict[str, Any], tensors: dict[str, Any]) -> None:
    del config
    name = "model.layers.1.mlp.up_proj.weight_scale"
    tensors[name] = tensors[name].reshape(1, -1)


def ignore_quantized(config: dict[str, Any], tensors: dict[str, Any]) -> None:
    del tensors
    config["quantization_config"]["ignore"].append("model.layers.0.self_attn.q_proj")


def target_another_class(config: dict[str, Any], tensors: dict[str, Any]) -> None:
    del tensors
    config["quantization_config"]["config_groups"]["group_0"]["targets"] = ["Embedding"]


def leave_alone(config: dict[str, Any], tensors: dict[str, Any]) -> None:
    del config, tensors


def target_by_expression(config: dict[str, Any], tensors: dict[str, Any]) -> None:
    del tensors
    groups = config["quantization_config"]["config_groups"]
    groups["group_0"]["targets"] = [r"re:model\.layers\.\d+\.(mlp|self_attn)\..*_proj$"]


CHANGES: tuple[Change, ...] = (
    leave_alone,
    target_by_expression,
    forget_ignore,
    forget_scale,
    turn_scale,
    ignore_quantized,
    target_another_class,
)


@pytest.mark.parametrize("scheme", ["fp8_channel", "int8_channel"])
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_what_is_changed_is_found_where_transformers_fails(
    tmp_path: Path, change: Change, scheme: Any
) -> None:
    source = save(tmp_path / "model", "Llama")
    checkpoint.quantize_file(source, tmp_path / "small", scheme, recipe="compressed-tensors")
    checkpoint.dequantize_file(tmp_path / "small", tmp_path / "decoded")
    result = tmp_path / "result"
    shutil.copytree(tmp_path / "small", result)
    config = json.loads((result / "config.json").read_text())
    tensors = checkpoint.load(result)
    change(config, tensors)
    (result / "config.json").write_text(json.dumps(config))
    file = result / "model.safetensors"
    checkpoint.save(file, tensors, metadata=checkpoint.metadata(file), overwrite=True)
    is_right = change in {leave_alone, target_by_expression}
    assert (verdict(result), is_loaded(result, tmp_path / "decoded")) == (is_right, is_right)
