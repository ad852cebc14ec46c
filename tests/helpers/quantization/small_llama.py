"""A small Llama whose weights are not quantized, and the recipes that quantize all of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from checkpoint_samples import write_sharded
from numpy.typing import NDArray

Array = NDArray[Any]
BF16 = ml_dtypes.bfloat16
LAYER = "model.layers.0."
Q, K, V, OUT = (f"{LAYER}self_attn.{one}_proj.weight" for one in "qkvo")
GATE, UP, DOWN = (f"{LAYER}mlp.{one}_proj.weight" for one in ("gate", "up", "down"))
ROUTER, HEAD, EMBEDDING = f"{LAYER}mlp.router.weight", "lm_head.weight", "model.embed_tokens.weight"
INDEX = "model.safetensors.index.json"
FIRST, SECOND = (f"model-0000{one}-of-00002.safetensors" for one in (1, 2))
GROUP = {"int4_group": 128, "int8_group": 128}


def weight(*shape: int, seed: int = 0, dtype: Any = BF16) -> Array:
    """Draw a weight with heavy tails."""
    generator = np.random.default_rng([seed, *shape])
    # By float32, as ml_dtypes before 0.7 rounds: digests of what is made of them are recorded.
    return (generator.standard_t(4, size=shape) * 0.02).astype(np.float32).astype(dtype)


WEIGHTS = {
    Q: weight(256, 128),
    K: weight(64, 128, seed=1) * BF16(4),
    V: weight(64, 128, seed=2),
    OUT: weight(128, 256),
    GATE: weight(160, 128, seed=3),
    UP: weight(160, 128, seed=4) * BF16(3),
    DOWN: weight(128, 384, dtype=np.float32),
}
KEPT = {
    EMBEDDING: weight(32, 128),
    HEAD: weight(32, 128, seed=5),
    ROUTER: weight(8, 128),
    f"{LAYER}input_layernorm.weight": weight(128),
    f"{LAYER}self_attn.q_proj.bias": weight(256),
    "steps": np.arange(3),
}
RECIPES = [
    ("deepseek", "fp8_block"),
    ("transformers", "fp8_block"),
    *(("compressed-tensors", f"fp8_{one}") for one in ("tensor", "channel", "block")),
    *(("compressed-tensors", one) for one in ("nvfp4", "mxfp4", "mxfp6_e2m3", "mxfp8_e4m3")),
    *(("compressed-tensors", one) for one in ("int4_channel", *GROUP)),
    *(("modelopt", one) for one in ("fp8_tensor", "fp8_channel", "nvfp4", "mxfp8_e4m3", "mxfp4")),
    *(("modelopt", one) for one in ("int8_channel", "int4_group", "fp8_block")),
    *(("comfy", one) for one in ("fp8_tensor", "nvfp4", "mxfp8_e4m3")),
    *(("mlx", one) for one in ("int4_group", "int3_group", "mxfp4", "mxfp8_e4m3", "nvfp4")),
]


def write(folder: Path, tensors: dict[str, Array] | None = None, **config: Any) -> Path:
    """Write a plain model in two shards."""
    tensors = {**WEIGHTS, **KEPT} if tensors is None else tensors
    names = sorted(tensors)
    halves = names[::2], names[1::2]  # what is fused is torn apart
    write_sharded(
        folder,
        {
            shard: {name: tensors[name] for name in some}
            for shard, some in zip((FIRST, SECOND), halves, strict=True)
        },
    )
    text = json.dumps({"model_type": "llama", "dtype": "bfloat16", **config}, indent=2)
    (folder / "config.json").write_text(text + "\n")
    return folder


def options(recipe: str, scheme: str) -> dict[str, Any]:
    """Give ModelOpt blocks of which no weight is one alone."""
    return {"block": (64, 64)} if (recipe, scheme) == ("modelopt", "fp8_block") else {}
