# ruff: noqa: PLC0415 - a library is imported by the tests that need it
"""Models that ModelOpt exports, with experts in one tensor, and experts of comfy-kitchen."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from castwise import checkpoint
from checkpoint_samples import assert_same
from producer_libraries import array

SIZES = {
    "vocab_size": 64,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "num_local_experts": 3,
    "num_experts_per_tok": 1,
}
CONFIGS = (
    "NVFP4_DEFAULT_CFG",
    "W4A16_NVFP4_CFG",
    "FP8_DEFAULT_CFG",
    "FP8_PER_CHANNEL_PER_TOKEN_CFG",
    "W4A8_MXFP4_FP8_CFG",
    "MXFP8_DEFAULT_CFG",
)


def exported(folder: Path, model: str, config: str) -> dict[str, Any]:
    """Quantize a small model by ModelOpt; returns the tensors that it exports."""
    import modelopt.torch.quantization as mtq
    import transformers
    from modelopt.torch.export import export_hf_checkpoint
    from safetensors.torch import load_file

    sizes: dict[str, Any] = dict(SIZES)
    kind = "Llama4Text" if model == "Llama4" else model
    if model == "Llama4":
        sizes |= {"intermediate_size_mlp": 96, "interleave_moe_layer_step": 1}
    tokens = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    own = getattr(transformers, f"{kind}Config")(**sizes, **tokens)
    torch.manual_seed(0)
    made = getattr(transformers, f"{model}ForCausalLM")(own).to(torch.bfloat16)
    made.config.architectures = [type(made).__name__]
    for name, one in made.named_parameters():
        if one.dim() == 3:
            torch.nn.init.normal_(one, std=0.05 if "gate" in name else 0.2)
    mtq.quantize(made, getattr(mtq, config), lambda one: one(torch.arange(16).reshape(2, 8)))
    export_hf_checkpoint(made, export_dir=folder)
    return load_file(folder / "model.safetensors")


WEIGHTS_ALONE = {
    "mxfp4": "W4A8_MXFP4_FP8_CFG",
    "int8_channel": "INT8_WEIGHT_ONLY_CFG",
    "int4_group": "INT4_BLOCKWISE_WEIGHT_ONLY_CFG",
    "fp8_block": "FP8_2D_BLOCKWISE_WEIGHT_ONLY_CFG",
}
"""Presets whose exports need no data, by scheme."""


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("scheme", WEIGHTS_ALONE)
def test_quantized_as_exported(tmp_path: Path, scheme: str, dtype: str) -> None:
    """Names, bytes and what is stated are those of ModelOpt's own export of the same model."""
    import modelopt.torch.quantization as mtq
    from modelopt.torch.export import export_hf_checkpoint
    from safetensors.torch import load_file
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = SIZES | {"hidden_size": 256, "intermediate_size": 384, "head_dim": 64}
    made = LlamaForCausalLM(LlamaConfig(**sizes)).to(getattr(torch, dtype))
    made.config.architectures = ["LlamaForCausalLM"]
    for number, one in enumerate(made.parameters()):
        with torch.no_grad():  # blocks of zeros, of subnormal and of other magnitudes
            one[: number % 3] = 0
            one[5:7] *= 1e-38
            one[7:9] *= 1e30
    plain, out, model = tmp_path / "plain", tmp_path / "out", tmp_path / "model"
    made.save_pretrained(plain)
    checkpoint.quantize_file(plain, out, scheme, recipe="modelopt")
    config = getattr(mtq, WEIGHTS_ALONE[scheme])
    mtq.quantize(made, config, lambda one: one(torch.arange(8)[None]))
    export_hf_checkpoint(made, dtype=made.dtype, export_dir=model)
    found, tensors = checkpoint.load(out), load_file(model / "model.safetensors")
    assert set(found) == set(tensors)
    for name, one in tensors.items():
        assert_same(found[name], array(one))
    ours, theirs = (
        json.loads((folder / "hf_quant_config.json").read_text())["quantization"]
        for folder in (out, model)
    )
    assert ours.pop("weight_block_size", [128, 128]) == [128, 128]  # which ModelOpt leaves out
    assert set(theirs.pop("exclude_modules")) - {"model.embed_tokens"} == {"lm_head"}
    assert ours.pop("exclude_modules") == ["lm_head"]
    assert ours == theirs


def decoded(payload: Any, scale: Any, second: Any) -> Any:
    """Decode experts by ModelOpt's own classes."""
    from modelopt.torch.quantization.qtensor import MXFP4QTensor, MXFP8QTensor, NVFP4QTensor

    options = {"dtype": torch.bfloat16}
    if second is not None:  # along the inputs, which come first
        turned, scale = (one.transpose(-1, -2).contiguous() for one in (payload, scale))
        q = NVFP4QTensor((*turned.shape[:-1], turned.shape[-1] * 2), torch.bfloat16, turned)
        options |= {"scale": scale, "double_scale": second, "block_sizes": {-1: 16}}
        return q.dequantize(**options).transpose(-1, -2).contiguous()
    if scale.dtype == torch.uint8 and payload.dtype == torch.uint8:
        shape = (*payload.shape[:-1], payload.shape[-1] * 2)
        q = MXFP4QTensor(shape, torch.bfloat16, payload)
        return q.dequantize(**options, scale=scale.reshape(-1, 1), block_sizes={-1: 32}).reshape(
            shape
        )
    if scale.dtype == torch.uint8:
        q = MXFP8QTensor(payload.shape, torch.bfloat16, payload)
        return q.dequantize(**options, scale=scale, block_sizes={-1: 32})
    return (payload.float() * scale.reshape(-1, 1, 1)).bfloat16()


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("model", ["Llama4", "GptOss"])
def test_modelopt(tmp_path: Path, model: str, config: str) -> None:
    tensors = exported(tmp_path / "model", model, config)
    checkpoint.dequantize_file(tmp_path / "model", tmp_path / "out")
    found = checkpoint.load(tmp_path / "out")
    names = [name for name in tensors if name.endswith(("experts.gate_up_proj", "down_proj"))]
    assert len(names) == 2
    for name in names:
        scale, second = (tensors.get(f"{name}_weight_scale{one}") for one in ("", "_2"))
        plain = decoded(tensors[name], scale, second)
        if second is None and tensors[name].dtype == torch.uint8:
            plain = plain + 0.0  # castwise's -0 is ModelOpt's 0, or the other way around
            found[name] = found[name] + found[name].dtype.type(0)
        assert_same(found[name], array(plain))
    assert not any(name.endswith(("_weight_scale", "_weight_scale_2")) for name in found)


def test_blocks(tmp_path: Path) -> None:
    """ModelOpt states no block; where a user does, ragged weights are what ModelOpt computes."""
    import modelopt.torch.quantization as mtq
    from modelopt.torch.export import export_hf_checkpoint
    from modelopt.torch.quantization.qtensor import FP8QTensor
    from safetensors.torch import load_file
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = SIZES | {"hidden_size": 192, "intermediate_size": 320, "head_dim": 64}
    made = LlamaForCausalLM(LlamaConfig(**sizes)).to(torch.bfloat16)
    made.config.architectures = ["LlamaForCausalLM"]
    mtq.quantize(made, mtq.FP8_2D_BLOCKWISE_WEIGHT_ONLY_CFG, lambda one: one(torch.arange(8)[None]))
    model, out = tmp_path / "model", tmp_path / "out"
    export_hf_checkpoint(made, export_dir=model)
    with pytest.raises(checkpoint.CheckpointError, match="ModelOpt states no block"):
        checkpoint.dequantize_file(model, out)
    for name, key in (
        ("config.json", "quantization_config"),
        ("hf_quant_config.json", "quantization"),
    ):
        config = json.loads((model / name).read_text())
        config[key]["weight_block_size"] = [128, 128]
        (model / name).write_text(json.dumps(config))
    checkpoint.dequantize_file(model, out)
    found, tensors = checkpoint.load(out), load_file(model / "model.safetensors")
    names = [name for name in tensors if f"{name}_scale" in tensors]
    assert len(names) == 7
    for name in names:
        weight, scale = tensors[name], tensors[f"{name}_scale"]
        q = FP8QTensor(weight.shape, torch.bfloat16, weight)
        plain = q.dequantize(
            scale=scale.reshape(scale.shape[::2]),
            block_sizes={-1: 128, -2: 128},
            dtype=torch.float32,
        )
        assert_same(found[name], array(plain.bfloat16()))


def test_w4a8(tmp_path: Path) -> None:
    """Integers become float8 before products; all but ties of codes are what ModelOpt simulates."""
    import modelopt.torch.quantization as mtq
    from modelopt.torch.export import export_hf_checkpoint
    from modelopt.torch.quantization.tensor_quant import fp8_eager
    from safetensors.torch import load_file
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = SIZES | {"hidden_size": 128, "intermediate_size": 256, "head_dim": 32}
    made = LlamaForCausalLM(LlamaConfig(**sizes)).to(torch.bfloat16)
    made.config.architectures = ["LlamaForCausalLM"]
    mtq.quantize(made, mtq.W4A8_AWQ_BETA_CFG, lambda one: one(torch.arange(32).reshape(4, 8)))
    name = "model.layers.0.mlp.down_proj"
    linear = made.get_submodule(name)
    simulated = linear.weight_quantizer(linear.weight).detach().clone()
    export_hf_checkpoint(made, export_dir=tmp_path / "model")
    tensors = load_file(tmp_path / "model" / "model.safetensors")
    checkpoint.dequantize_file(tmp_path / "model", tmp_path / "out")
    found = checkpoint.load(tmp_path / "out")
    for key in [key for key in tensors if key.endswith("weight_scale_2")]:
        layer = key.removesuffix(".weight_scale_2")
        packed, scale = tensors[f"{layer}.weight"], tensors[f"{layer}.weight_scale"]
        codes = torch.stack([packed & 15, packed >> 4], 1).reshape(-1, packed.shape[1])
        values = torch.where(codes > 7, codes.float() - 16, codes.float())
        plain = (values * scale.repeat_interleave(values.shape[1] // scale.shape[1], 1)).bfloat16()
        twice = fp8_eager(plain, tensors[key] * 448)
        if layer == name:
            assert (twice == simulated).float().mean() > 0.999
        factor = tensors.get(f"{layer}.pre_quant_scale", torch.ones(1))
        assert_same(found[f"{layer}.weight"], array((twice.float() * factor.float()).bfloat16()))


@pytest.mark.parametrize("form", ["nvfp4", "mxfp8", "float8_e4m3fn"])
@pytest.mark.parametrize("rows", [160, 136])
def test_comfy(tmp_path: Path, form: str, rows: int) -> None:
    import comfy_kitchen as ck
    from comfy_kitchen.tensor.fp8 import TensorCoreFP8Layout
    from comfy_kitchen.tensor.mxfp8 import TensorCoreMXFP8Layout
    from comfy_kitchen.tensor.nvfp4 import TensorCoreNVFP4Layout
    from safetensors.torch import save_file

    layout = {"nvfp4": TensorCoreNVFP4Layout, "mxfp8": TensorCoreMXFP8Layout}.get(
        form, TensorCoreFP8Layout
    )
    torch.manual_seed(1)
    weights = [(torch.randn(rows, 64) * 0.02 * (one + 1)).bfloat16() for one in range(3)]
    with ck.registry.use_backend("eager"):
        some = [layout.quantize(one, scale="recalculate") for one in weights]
        plain = torch.stack([layout.dequantize(q, p)[:rows] for q, p in some])
    parts = {"": [q for q, _ in some], "_scale": [p.scale for _, p in some]}
    if form == "nvfp4":
        parts |= {"_scale": [p.block_scale for _, p in some], "_scale_2": parts["_scale"]}
    tensors = {f"a.weight{name}": torch.stack(some) for name, some in parts.items()}
    if form == "mxfp8":
        tensors["a.weight_scale"] = tensors["a.weight_scale"].view(torch.uint8)
    text = json.dumps({"format": form, "num_experts": 3}).encode()
    tensors |= {"a.comfy_quant": torch.tensor(list(text), dtype=torch.uint8)}
    tensors["a.bias"] = torch.zeros(3, rows, dtype=torch.bfloat16)
    save_file(tensors, source := tmp_path / "in.safetensors")
    checkpoint.dequantize_file(source, tmp_path / "out.safetensors")
    assert_same(checkpoint.load(tmp_path / "out.safetensors")["a.weight"], array(plain))
