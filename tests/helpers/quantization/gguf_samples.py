"""GGUF files of plain weights: one of a few shapes, and those of models whose mixes differ."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
from numpy.typing import NDArray
from producer_models.gguf import header, text

Array = NDArray[Any]
KINDS = {np.float32: 0, np.float16: 1, ml_dtypes.bfloat16: 30}
WIDTH = 256
SHAPES = {
    "token_embd.weight": (40, WIDTH),
    "output_norm.weight": (WIDTH,),
    "output.weight": (40, WIDTH),
    "blk.0.attn_norm.weight": (WIDTH,),
    "blk.0.attn_q.weight": (24, 2 * WIDTH),
    "blk.0.attn_q.bias": (24,),
    "blk.0.ffn_gate_inp.weight": (2, WIDTH),
    "blk.0.ffn_gate_exps.weight": (2, 12, WIDTH),
    "blk.1.ffn_down.weight": (16, WIDTH),
}


def key(name: str, kind: int, value: bytes) -> bytes:
    return text(name) + struct.pack("<I", kind) + value


FIRST = (
    key("general.architecture", 8, text("llama")),
    key("general.alignment", 4, struct.pack("<I", 64)),
    key("llama.block_count", 4, struct.pack("<I", 2)),
)
LAST = (
    key("llama.rope.freq_base", 6, struct.pack("<f", 1e4)),
    key("tokenizer.ggml.scores", 9, struct.pack("<IQ2f", 6, 2, 1, 2)),
    key("tokenizer.ggml.tokens", 9, struct.pack("<IQ", 8, 2) + text("é") + text("")),
    key("some.signed", 11, struct.pack("<q", -5)),
)
FILE_TYPE = key("general.file_type", 4, struct.pack("<I", 1))


def weights(dtype: Any = np.float16) -> dict[str, Array]:
    rng = np.random.default_rng(0)
    return {
        name: rng.standard_normal(shape).astype(dtype if len(shape) > 1 else np.float32)
        for name, shape in SHAPES.items()
    }


def plain_file(path: Path, tensors: dict[str, Array]) -> Path:
    """Write a file whose tensors stand at multiples of 64."""
    rows, data = [], b""
    for name, array in tensors.items():
        data += bytes(-len(data) % 64)
        rows.append((name, array.shape, KINDS[array.dtype.type], len(data)))
        data += array.tobytes()
    pairs = [*FIRST, FILE_TYPE, *LAST]
    start = header(rows, b"".join(pairs), len(pairs))
    path.write_bytes(start + bytes(-len(start) % 64) + data)
    return path


class Case(NamedTuple):
    """A model: its numbers, and the rows of its tensors."""

    architecture: str = "llama"
    layers: int = 2
    heads: int = 8
    values: int = 8
    experts: int = 0
    is_fused: bool = False
    is_tied: bool = False
    width: int = 256
    inner: int = 256
    has_biases: bool = False

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes of all matrices, by name."""
        wide = (32, self.width)
        shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": wide}
        if not self.is_tied:
            shapes["output.weight"] = wide
        stack = (self.experts,) * bool(self.experts)
        for layer in range(self.layers):
            names = ["attn_qkv"] if self.is_fused else ["attn_q", "attn_k", "attn_v"]
            for name in (*names, "attn_output"):
                shapes[f"blk.{layer}.{name}.weight"] = wide
            end = "_exps" if self.experts else ""
            for name, columns in (("gate", self.width), ("up", self.width), ("down", self.inner)):
                shapes[f"blk.{layer}.ffn_{name}{end}.weight"] = (*stack, 32, columns)
        return shapes

    def stated(self) -> dict[str, Any]:
        """Return the hyperparameters that decide."""
        numbers = {
            "block_count": self.layers,
            "attention.head_count": self.heads,
            "attention.head_count_kv": self.values,
            "expert_count": self.experts,
        }
        named = {f"{self.architecture}.{key}": value for key, value in numbers.items()}
        return {"general.architecture": self.architecture, **named}

    def beside(self) -> list[str]:
        """Return the names of tensors that llama.cpp does not quantize."""
        weights = [name for name in self.shapes() if name.startswith("blk.") and self.has_biases]
        biases = [name.removesuffix("weight") + "bias" for name in weights]
        return [*biases, "output_norm.weight", "blk.0.ffn_down_norm.weight", "blk.0.ffn_down.scale"]


CASES = {
    "llama of 2": Case(),
    "llama of 11, tied": Case(layers=11, is_tied=True),
    "llama of 26": Case(layers=26, values=2),
    "llama of 33, tied": Case(layers=33, values=1, is_tied=True),
    "llama of 80": Case(layers=80, values=1),
    "llama of 80 with all heads": Case(layers=80),
    "narrow": Case(layers=9, values=4, inner=352),
    "narrow embeddings": Case(layers=3, is_tied=True, width=96),
    "8 experts": Case(layers=16, values=2, experts=8),
    "4 experts": Case(layers=17, values=2, experts=4),
    "8 experts of 80": Case(layers=80, values=1, experts=8),
    "qwen2": Case("qwen2", 24, 8, 2, is_tied=True),
    "qwen2 of 80": Case("qwen2", 80),
    "phi3": Case("phi3", 20, is_fused=True),
    "falcon": Case("falcon", 32, 8, 1, is_fused=True),
    "gemma3": Case("gemma3", 18, 4, 1, is_tied=True),
    "starcoder2 with biases": Case("starcoder2", 12, 8, 2, is_tied=True, has_biases=True),
    "gpt2 with biases": Case("gpt2", 12, is_fused=True, is_tied=True, has_biases=True),
    "phi2 with biases": Case("phi2", 32, is_fused=True, has_biases=True),
    "qwen2vl of 80": Case("qwen2vl", 80),
    "deci of 80": Case("deci", 80),
}


def file_of(path: Path, case: Case) -> dict[str, NDArray[np.float16]]:
    """Write a plain file of a model; return its matrices."""
    rng = np.random.default_rng(0)
    shapes = case.shapes()
    if case.has_biases:
        shapes |= dict.fromkeys(case.beside(), (32,))
    tensors = {
        name: rng.standard_normal(shape).astype(np.float16) for name, shape in shapes.items()
    }
    rows, data = [], b""
    for name, array in tensors.items():
        data += bytes(-len(data) % 32)
        rows.append((name, array.shape, 1, len(data)))
        data += array.tobytes()
    pairs = []
    for key, value in {**case.stated(), "general.file_type": 1}.items():
        is_text = isinstance(value, str)
        kind, packed = (8, text(value)) if is_text else (4, struct.pack("<I", value))
        pairs.append(text(key) + struct.pack("<I", kind) + packed)
    start = header(rows, b"".join(pairs), len(pairs))
    path.write_bytes(start + bytes(-len(start) % 32) + data)
    return tensors
