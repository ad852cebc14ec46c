"""What is quantized loads in transformers, and decodes there to what it decodes to here."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from castwise import checkpoint
from plain_models import CONFIGS, TEXT, same_results

Framework = Callable[[str], ModuleType]
SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_experts_per_tok": 2}


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_float8_of_deepseek(
    tmp_path: Path, framework: Framework, monkeypatch: pytest.MonkeyPatch, dtype: str
) -> None:
    torch, transformers = framework("torch"), framework("transformers")
    kind = getattr(torch, dtype)
    config = transformers.LlamaConfig(**{**TEXT, **SIZES})
    transformers.LlamaModel(config).to(kind).save_pretrained(tmp_path / "plain")
    checkpoint.quantize_file(tmp_path / "plain", tmp_path / "model", "fp8_block", block=(32, 32))
    checkpoint.dequantize_file(tmp_path / "model", tmp_path / "out", dtype)
    ours = transformers.LlamaModel.from_pretrained(tmp_path / "out", dtype=kind)
    quantizer = transformers.quantizers.auto.AUTO_QUANTIZER_MAPPING["fp8"]
    # It refuses a machine without a GPU; decoding needs none.
    monkeypatch.setattr(quantizer, "validate_environment", lambda *_, **__: None)
    peer = transformers.LlamaModel.from_pretrained(
        tmp_path / "model",
        quantization_config=transformers.FineGrainedFP8Config(
            weight_block_size=(32, 32), dequantize=True
        ),
        dtype=kind,
    )
    same_results(torch, ours, peer)


def test_experts_of_gpt_oss(tmp_path: Path, framework: Framework) -> None:
    torch, transformers = framework("torch"), framework("transformers")
    config = transformers.GptOssConfig(**{**CONFIGS["GptOssModel"], **TEXT, **SIZES})
    model = transformers.GptOssModel(config).to(torch.bfloat16)
    model.save_pretrained(tmp_path / "plain")
    summary = checkpoint.quantize_file(
        tmp_path / "plain", tmp_path / "model", "mxfp4", recipe="gpt-oss"
    )
    assert sum(row.target == "mxfp4" for row in summary.rows) == 2
    checkpoint.dequantize_file(tmp_path / "model", tmp_path / "out")
    ours = transformers.GptOssModel.from_pretrained(tmp_path / "out")
    peer = transformers.GptOssModel.from_pretrained(
        tmp_path / "model",
        quantization_config=transformers.Mxfp4Config(dequantize=True),
        dtype=torch.bfloat16,
    )
    same_results(torch, ours, peer)


def test_what_transformers_leaves(tmp_path: Path, framework: Framework) -> None:
    """The weights that are quantized are those of its linear layers, without routers and heads."""
    torch, transformers = framework("torch"), framework("transformers")
    settings = {**CONFIGS["DeepseekV3Model"], "hidden_size": 64, "first_k_dense_replace": 1}
    settings |= {"num_hidden_layers": 2, "kv_lora_rank": 32, "q_lora_rank": 32, "v_head_dim": 32}
    config = transformers.DeepseekV3Config(**settings)
    model = transformers.DeepseekV3ForCausalLM(config).to(torch.bfloat16)
    model.save_pretrained(tmp_path / "plain")
    checkpoint.quantize_file(tmp_path / "plain", tmp_path / "model", "fp8_block")
    found = checkpoint.inspect(tmp_path / "model").quantization
    assert found is not None
    layers = {
        f"{name}.weight"
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear) and name != "lm_head"
    }
    quantized = {one.name for one in found.weights}
    assert layers <= quantized
    assert all(".experts." in name for name in quantized - layers)
    section = json.loads((tmp_path / "model" / "config.json").read_text())["quantization_config"]
    assert sorted(section["modules_to_not_convert"]) == ["lm_head", "model.layers.1.mlp.gate"]
    plain = checkpoint.load(tmp_path / "plain")
    checkpoint.dequantize_file(tmp_path / "model", tmp_path / "out", "float32")
    for name, array in checkpoint.load(tmp_path / "out").items():
        wide = plain[name].astype(np.float32)
        assert np.abs(array - wide).max() <= np.abs(wide).max() / 16
