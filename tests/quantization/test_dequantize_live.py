"""What is decoded loads in transformers, and computes what its own decoding computes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from castwise import checkpoint
from checkpoint_samples import assert_same
from plain_models import CONFIGS, TEXT, same_results, save
from producer_models import Draw
from scheme_oracle import pack

Framework = Callable[[str], ModuleType]


def put_scales_beside_experts(path: Path) -> None:
    """Name the scales of experts as the models on hubs do.

    transformers 5.23 saves the weights of experts one by one, and their scales as one tensor.
    """
    tensors = checkpoint.load(path)
    for name in [name for name in tensors if ".experts." in name and name.endswith("_scale_inv")]:
        fused = tensors.pop(name)
        prefix, _, tail = name.removesuffix("_scale_inv").rpartition(".")
        parts = ["gate_proj", "up_proj"] if tail == "gate_up_proj" else [tail]
        for expert, scales in enumerate(fused):
            for part, scale in zip(parts, np.split(scales, len(parts)), strict=True):
                tensors[f"{prefix}.{expert}.{part}.weight_scale_inv"] = scale
    checkpoint.save(path, tensors, metadata={"format": "pt"}, overwrite=True)


@pytest.mark.parametrize("architecture", ["LlamaModel", "Qwen3MoeModel"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_float8_of_transformers(
    tmp_path: Path,
    framework: Framework,
    monkeypatch: pytest.MonkeyPatch,
    architecture: str,
    dtype: str,
) -> None:
    torch, transformers = framework("torch"), framework("transformers")
    save(architecture, tmp_path / "plain")
    settings = tmp_path / "plain" / "config.json"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"num_experts_per_tok": 2}))
    quantizer = transformers.quantizers.auto.AUTO_QUANTIZER_MAPPING["fp8"]
    # It refuses a machine without a GPU; quantizing needs none.
    monkeypatch.setattr(quantizer, "validate_environment", lambda *_, **__: None)
    model = getattr(transformers, architecture)
    config = transformers.FineGrainedFP8Config(weight_block_size=(8, 8))
    made = model.from_pretrained(
        tmp_path / "plain", quantization_config=config, dtype=getattr(torch, dtype)
    )
    made.save_pretrained(tmp_path / "model")
    put_scales_beside_experts(tmp_path / "model" / "model.safetensors")
    summary = checkpoint.dequantize_file(tmp_path / "model", tmp_path / "out", dtype)
    assert any(row.source == "fp8_block" for row in summary.rows)
    ours = model.from_pretrained(tmp_path / "out", dtype=getattr(torch, dtype))
    config = transformers.FineGrainedFP8Config(weight_block_size=(8, 8), dequantize=True)
    peer = model.from_pretrained(
        tmp_path / "model", quantization_config=config, dtype=getattr(torch, dtype)
    )
    same_results(torch, ours, peer)
    assert checkpoint.verify(tmp_path / "model", tmp_path / "out").equal


def test_gpt_oss(tmp_path: Path, framework: Framework) -> None:
    torch, transformers = framework("torch"), framework("transformers")
    settings = {**CONFIGS["GptOssModel"], **TEXT, "hidden_size": 64, "intermediate_size": 96}
    settings["num_experts_per_tok"] = 2
    config = transformers.GptOssConfig(**settings)
    transformers.GptOssModel(config).to(torch.bfloat16).save_pretrained(tmp_path / "model")
    path = tmp_path / "model" / "model.safetensors"
    tensors = checkpoint.load(path)
    draw = Draw()
    for name in [name for name in tensors if name.endswith(("gate_up_proj", "down_proj"))]:
        experts, inputs, outputs = tensors.pop(name).shape
        codes = draw.codes(4, experts, outputs, inputs)
        blocks = pack(codes, 4).reshape(experts, outputs, inputs // 32, 16)
        tensors[f"{name}_blocks"] = blocks
        tensors[f"{name}_scales"] = draw.powers(experts, outputs, inputs // 32) - np.uint8(8)
    checkpoint.save(path, tensors, metadata={"format": "pt"}, overwrite=True)
    stated = json.loads((tmp_path / "model" / "config.json").read_text())
    stated["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": []}
    (tmp_path / "model" / "config.json").write_text(json.dumps(stated))
    checkpoint.dequantize_file(tmp_path / "model", tmp_path / "out")
    ours = transformers.GptOssModel.from_pretrained(tmp_path / "out")
    peer = transformers.GptOssModel.from_pretrained(
        tmp_path / "model",
        quantization_config=transformers.Mxfp4Config(dequantize=True),
        dtype=torch.bfloat16,
    )
    same_results(torch, ours, peer)


def test_slices_of_large_experts(tmp_path: Path) -> None:
    """Scales are read with the rows that they belong to."""
    draw = Draw()
    weight, scale = draw.float8(2, 3000, 1100), draw.scales(2, 24, 9)
    folder = tmp_path / "model"
    folder.mkdir()
    names = ("experts.down_proj", "experts.down_proj_scale_inv")
    checkpoint.save(folder / "model.safetensors", dict(zip(names, (weight, scale), strict=True)))
    section = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    (folder / "config.json").write_text(json.dumps({"quantization_config": section}))
    checkpoint.dequantize_file(folder, tmp_path / "out", "float32")
    wide = np.repeat(np.repeat(scale, 128, 1), 128, 2)[:, :3000, :1100]
    expected = weight.astype(np.float32) * wide
    assert_same(checkpoint.load(tmp_path / "out")[names[0]], expected)
