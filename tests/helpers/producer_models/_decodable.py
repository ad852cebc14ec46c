"""What a small model is: its tensors, what is stated of them, and what they must become."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from castwise import checkpoint
from checkpoint_samples import write_sharded
from numpy.typing import NDArray
from scheme_oracle import decode_peer, pack, spread

Array = NDArray[Any]
BF16, E4M3, E8M0 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e8m0fnu
E2M1, E2M3 = ml_dtypes.float4_e2m1fn, ml_dtypes.float6_e2m3fn


@dataclass
class Decodable:
    """Tensors, what is stated of them, and the plain tensors that they become."""

    tensors: dict[str, Array]
    plain: dict[str, Array]
    config: dict[str, Any] = field(default_factory=dict)
    files: dict[str, Any] = field(default_factory=dict)
    metadata: dict[str, str] = field(default_factory=dict)


class Draw:
    """Random codes and scales."""

    def __init__(self, seed: int = 0) -> None:
        self._generator = np.random.default_rng(seed)

    def float8(self, *shape: int) -> Array:
        raw = self._generator.integers(0, 256, shape, np.uint8)
        raw[(raw & 0x7F) == 0x7F] = 0x3A  # not NaN
        return raw.view(E4M3)

    def codes(self, bits: int, *shape: int) -> Array:
        return self._generator.integers(0, 1 << bits, shape, np.uint8)

    def scales(self, *shape: int, dtype: Any = np.float32) -> Array:
        # By float32, as ml_dtypes before 0.7 rounds: digests of what is made of them are recorded.
        return (self._generator.random(shape) / 50 + 0.001).astype(np.float32).astype(dtype)

    def powers(self, *shape: int) -> Array:
        return self._generator.integers(115, 132, shape, np.uint8)

    def floats(self, *shape: int) -> Array:
        return self._generator.normal(size=shape).astype(np.float32).astype(BF16)


def powers_of(raw: Array) -> Array:
    """Decode E8M0 bytes."""
    return np.ldexp(np.float32(1), raw.view(np.uint8).astype(np.int32) - 127)


def decoded(
    values: Array, scale: Array, block: tuple[int, int], dtype: Any = BF16, **more: Any
) -> Array:
    """Multiply a matrix, or a stack of them, by the scales of its blocks; rounded once."""
    if values.ndim > 2:
        return np.stack([decoded(v, s, block, dtype) for v, s in zip(values, scale, strict=True)])
    block = (block[0] or len(values), block[1] or values.shape[1])
    scale = spread(np.asarray(scale, np.float32), values.shape, block)
    return decode_peer(values.astype(np.float32), scale, dtype, **more)


def stated(**section: Any) -> dict[str, Any]:
    return {"quantization_config": section}


def fp8(shape: tuple[int, ...], scale: Array, block: tuple[int, int], **names: str) -> Decodable:
    """One float8 weight in blocks, as DeepSeek names it."""
    weight = Draw(1).float8(*shape)
    name = names.get("weight", "a.weight")
    real = powers_of(scale) if scale.dtype in (np.uint8, E8M0) else scale
    return Decodable(
        {name: weight, names.get("beside", f"{name}_scale_inv"): scale},
        {name: decoded(weight, real.reshape(scale.shape or (1, 1)), block)},
        stated(quant_method="fp8", weight_block_size=list(block) if all(block) else None),
    )


KEPT = {"norm.weight": np.arange(4, dtype=np.float32), "ids": np.arange(3)}


def microscaled(bits: int) -> tuple[Array, Array, Array]:
    """Return packed codes of 4 or 6 bits, their powers of two, and what they mean."""
    draw = Draw()
    codes, scale = draw.codes(bits, 24, 96), draw.powers(24, 3)
    values = codes.view({4: E2M1, 6: E2M3}[bits]).astype(np.float32)
    return pack(codes, bits), scale, decoded(values, powers_of(scale), (1, 32))


def codes_of_nvfp4(size: int = 16) -> tuple[Array, Array, Array]:
    """Return codes of 4 bits, float8 scales of groups, and the scale of all as a divisor."""
    draw = Draw()
    codes, scale = draw.codes(4, 24, 64), np.abs(draw.float8(24, 64 // size).astype(np.float32))
    return codes, scale.astype(E4M3), np.array([2688 / 3], np.float32)


def write(folder: Path, model: Decodable, **more: Any) -> Path:
    """Write a model in one file, with tensors that are not quantized."""
    folder.mkdir()
    tensors = model.tensors | KEPT | more
    checkpoint.save(folder / "model.safetensors", tensors, metadata=model.metadata)
    config = {"model_type": "llama", "dtype": "float32", **model.config}
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    for name, value in model.files.items():
        (folder / name).write_text(json.dumps(value))
    return folder


def write_in_shards(folder: Path, model: Decodable) -> Path:
    """Write weights and scales in two shards."""
    tensors = model.tensors
    first = next(iter(tensors))
    rest = {name: array for name, array in tensors.items() if name != first}
    other = {"norm.weight": np.ones(4, np.float32)}
    write_sharded(
        folder,
        {
            "model-00001-of-00003.safetensors": {first: tensors[first]},
            "model-00002-of-00003.safetensors": rest,
            "model-00003-of-00003.safetensors": other,
        },
    )
    (folder / "config.json").write_text(json.dumps(model.config))
    return folder
