# ruff: noqa: PLC0415 - each library is imported by what needs it
"""MLX: what it writes for a weight, decodes from it, and saves of a model."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from scheme_oracle import Array

from ._arrays import Parts, Producer


def mlx(x: Array, mode: str, bits: int = 4, group: int = 32) -> tuple[Parts, Array | None]:
    import mlx.core as mx

    if x.dtype == np.float32:
        weight = mx.array(x)
    else:
        weight = mx.array(x.astype(np.float32)).astype(
            {"bfloat16": mx.bfloat16, "float16": mx.float16}[x.dtype.name]
        )
    found = mx.quantize(weight, group_size=group, bits=bits, mode=mode)
    decoded = mx.dequantize(*found, group_size=group, bits=bits, mode=mode, dtype=weight.dtype)
    names = ("weight", "scales", "biases")
    parts = {name: _from_mlx(part, x.dtype) for name, part in zip(names, found, strict=False)}
    return parts, _from_mlx(decoded, x.dtype)


def _from_mlx(part: Any, dtype: Any) -> Array:
    import mlx.core as mx

    if part.dtype == mx.bfloat16:
        return np.array(part.astype(mx.float32)).astype(dtype)
    return np.array(part)


SCHEMES = {
    **{
        f"affine {bits} g{group}": Producer(
            f"int{bits}_group",
            "",
            partial(mlx, mode="affine", bits=bits, group=group),
            options={"block": group},
            columns=group,
            dtypes=("float32", "bfloat16", "float16"),
        )
        for bits in (2, 3, 4, 5, 6, 8)
        for group in (32, 64, 128)
    },
    "mxfp4": Producer("mxfp4", "", partial(mlx, mode="mxfp4")),
    "mxfp8": Producer("mxfp8_e4m3", "", partial(mlx, mode="mxfp8", bits=8)),
    "nvfp4": Producer(
        "nvfp4",
        "",
        partial(mlx, mode="nvfp4", group=16),
        columns=16,
    ),
}


def written(**options: Any) -> Callable[[Path, Path], None]:
    def make(plain: Path, out: Path) -> None:
        del plain
        import mlx.core as mx
        from mlx import nn
        from mlx.utils import tree_flatten

        model = nn.Sequential(nn.Linear(128, 64), nn.LayerNorm(64), nn.Linear(64, 64))
        nn.quantize(model, **options)
        out.mkdir()
        weights = dict(tree_flatten(model.parameters()))
        mx.save_safetensors(str(out / "model.safetensors"), weights, metadata={"format": "mlx"})
        section = {"mode": "affine", **options}  # as mlx_lm writes both
        text = json.dumps({"quantization": section, "quantization_config": section})
        (out / "config.json").write_text(text)

    return make


WRITERS = {
    "mlx affine": written(group_size=64, bits=4),
    "mlx mxfp4": written(group_size=32, bits=4, mode="mxfp4"),
    "mlx nvfp4": written(group_size=16, bits=4, mode="nvfp4"),
}
