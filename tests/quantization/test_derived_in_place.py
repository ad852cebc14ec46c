"""A quantized folder that is decoded loses nothing that lies beside its model."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from castwise import checkpoint
from torch_files import Storage, state_dict, tensor, torch_file

WEIGHTS = {"type": "int", "num_bits": 8, "strategy": "channel", "symmetric": True}
CONFIG = {
    "quant_method": "compressed-tensors",
    "format": "int-quantized",
    "config_groups": {"group_0": {"targets": ["Linear"], "weights": WEIGHTS}},
}


def write_model(folder: Path, **entries: Any) -> Path:
    """Write a quantized model as a file of torch, with entries beside its tensors."""
    folder.mkdir()
    codes = tensor((2, 4), (4, 1), storage=Storage("torch CharStorage", "1", 8))
    weights = {"l.weight": codes, "l.weight_scale": tensor((2, 1), (1, 1), 1)}
    content = torch_file({"state_dict": state_dict(**weights), **entries}, data__1=bytes(range(8)))
    (folder / "pytorch_model.bin").write_bytes(content)
    (folder / "config.json").write_text(json.dumps({"quantization_config": CONFIG}))
    return folder


@pytest.mark.parametrize(
    ("entries", "lost"),
    [
        ({"epoch": 3}, r"epoch"),
        ({"optimizer": {"m": tensor((8,), (1,))}}, r"optimizer \(1 tensor\)"),
    ],
)
def test_nothing_is_lost(tmp_path: Path, entries: dict[str, Any], lost: str) -> None:
    folder = write_model(tmp_path / "model", **entries)
    names = sorted(os.listdir(folder))
    content = (folder / "pytorch_model.bin").read_bytes()
    for convert in (checkpoint.dequantize_file, checkpoint.cast_file):
        with pytest.raises(checkpoint.CheckpointError, match=f"also holds {lost}, which would be"):
            convert(folder, folder, "float32", overwrite=True)
        assert sorted(os.listdir(folder)) == names
        assert (folder / "pytorch_model.bin").read_bytes() == content
    checkpoint.dequantize_file(folder, tmp_path / "out", "float32")
    assert checkpoint.load(tmp_path / "out").keys() == {"l.weight"}


def test_a_file_of_the_model_alone_is_replaced(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model")
    checkpoint.dequantize_file(folder, folder, "float32", overwrite=True)
    assert checkpoint.load(folder)["l.weight"].tolist() == [[0, 1, 2, 3], [8, 10, 12, 14]]


@pytest.mark.parametrize("name", ["l.weight", "l.lora_A.weight"])
def test_an_adapter_has_no_name_that_decoding_gives(tmp_path: Path, name: str) -> None:
    """Castwise itself would refuse to read what was written."""
    weight = np.linspace(-1, 1, 512, dtype=np.float32).reshape(16, 32)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "config.json").write_text('{"model_type": "llama"}')
    checkpoint.save(tmp_path / "in" / "model.safetensors", {"l.weight": weight})
    checkpoint.quantize_file(tmp_path / "in", tmp_path / "small", "nvfp4")
    adapter = tmp_path / "small" / "adapter_model.safetensors"
    checkpoint.save(adapter, {name: np.ones((1, 2), np.float16)})
    out = tmp_path / "out"
    if name == "l.weight":
        with pytest.raises(checkpoint.CheckpointError, match=r"'l.weight' is in .* an adapter by"):
            checkpoint.dequantize_file(tmp_path / "small", out)
        assert not out.exists()
    else:
        checkpoint.dequantize_file(tmp_path / "small", out)
        assert checkpoint.load(out).keys() == {"l.weight", name}
