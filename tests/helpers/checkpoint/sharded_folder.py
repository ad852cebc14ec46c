"""A folder of three shards, ways to cast it, and what a folder holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoint_samples import floats, write_sharded

OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {"dtype": "bfloat16"},
    "stochastic": {"dtype": "float8_e4m3fn", "rounding": "stochastic", "seed": 3},
}


def tensors(seed: int) -> dict[str, Any]:
    return {
        "large": 10 * floats(40_000, seed).reshape(200, 200),
        "bias": floats(7, seed + 1),
        "empty": np.zeros((0, 4), np.float32),
        "half": floats(5000, seed + 2).astype(np.float16),
        "step": np.arange(9000) + seed,
    }


@pytest.fixture(name="folder")
def sharded_folder(tmp_path: Path) -> Path:
    names = [f"model-{one:05d}-of-00003.safetensors" for one in (1, 2, 3)]
    shards = {
        name: {f"{index}.{key}": value for key, value in tensors(index).items()}
        for index, name in enumerate(names)
    }
    write_sharded(tmp_path / "source", shards)
    return tmp_path / "source"


def contents(path: Path) -> dict[str, bytes]:
    return {
        str(one.relative_to(path)): one.read_bytes() for one in path.rglob("*") if one.is_file()
    }
