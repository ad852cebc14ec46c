"""Runs of several processes plan the same, in whatever order each of them has its sets."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
from castwise import checkpoint

SEEDS, SHARDS = 6, 5


def test_parts_of_processes_with_other_hashes(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    name = "layers.{}.mlp.up_proj.weight".format
    plain, source, out = tmp_path / "plain", tmp_path / "fp8", tmp_path / "out"
    plain.mkdir()
    (plain / "config.json").write_text("{}")
    weights = {name(n): draw.standard_normal((64, 64), np.float32) for n in range(SHARDS)}
    checkpoint.save(plain / "model.safetensors", weights)
    fp8 = {"scheme": "fp8_channel", "recipe": "compressed-tensors"}
    checkpoint.quantize_file(plain, source, **fp8)
    # The codes lie in one shard, and the scales of each in another one.
    arrays = checkpoint.load(source / "model.safetensors")
    (source / "model.safetensors").unlink()
    codes = {key: array for key, array in arrays.items() if not key.endswith("scale")}
    shards = [codes, *({key: arrays[key]} for key in arrays if key not in codes)]
    files = [f"model-{n + 1:05}-of-{len(shards):05}.safetensors" for n in range(len(shards))]
    for file, shard in zip(files, shards, strict=True):
        checkpoint.save(source / file, shard)
    places = {key: file for file, shard in zip(files, shards, strict=True) for key in shard}
    index = {"metadata": {}, "weight_map": places}
    (source / "model.safetensors.index.json").write_text(json.dumps(index))
    command = [sys.executable, "-m", "castwise", "dequantize", source, out, "--max-shard-size"]
    for part in range(1, SEEDS + 1):
        environment = {**os.environ, "PYTHONHASHSEED": str(part)}
        run = [*command, "40kB", "--part", f"{part}/{SEEDS}"]
        result = subprocess.run(run, env=environment, capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stderr
    checkpoint.finish(out)
    checkpoint.dequantize_file(source, tmp_path / "whole", max_shard_size="40kB")
    for path in (tmp_path / "whole").glob("*.safetensors"):
        assert path.read_bytes() == (out / path.name).read_bytes()
