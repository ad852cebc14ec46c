"""Mixes of llama.cpp: the types that its own `llama_model_quantize` gives tensors, as recorded.

The record is of llama-cpp-cffi 0.4.44 (llama.cpp of April 2025): digests of the lines "name type"
of the tensors that are quantized, in order. That release took IQ4_NL for rows of Q2_K and Q3_K that
are no whole blocks, and later ones take Q4_0 (`tensor_type_fallback`), which stands in the digests.
It makes Q2_K_S only with an importance matrix, and had one of ones.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import pytest
from castwise import checkpoint
from castwise.checkpoint.containers.gguf.mixes import mix_types
from castwise.checkpoint.containers.gguf.reader import GgufReader
from castwise.cli import main
from castwise.quantization.producers.block_types import BLOCK_TYPES, FALLBACKS, MIXES
from numpy.typing import NDArray
from producer_models.gguf import header, text
from recorded import FOLDER
from whole_models import dense

Framework = Callable[[str], ModuleType]
RECORD = FOLDER / "quantization" / "mixes.json"
DIGITS = 16  # of a digest


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


def digest(types: dict[str, str]) -> str:
    lines = "\n".join(f"{name} {types[name]}" for name in sorted(types))
    return hashlib.sha256(lines.encode()).hexdigest()[:DIGITS]


def fitting(name: str, columns: int) -> str:
    """Return the type that rows of so many columns have in its place."""
    return FALLBACKS[name] if columns % BLOCK_TYPES[name][1] else name


@pytest.mark.parametrize("case", CASES)
def test_types_are_those_of_llama(case: str) -> None:
    row = CASES[case]
    shapes = row.shapes()
    digests = {}
    for mix in MIXES:
        types = mix_types(mix, row.stated(), [*shapes, *row.beside()])
        assert types.keys() == shapes.keys()
        digests[mix] = digest(
            {name: fitting(types[name].upper(), shape[-1]) for name, shape in shapes.items()}
        )
    assert digests == json.loads(RECORD.read_text())[case]


def test_numbers_of_files_are_those_of_the_package(framework: Framework) -> None:
    kinds = framework("gguf").LlamaFileType
    for mix, (_, number) in MIXES.items():
        stem, _, size = mix.upper().rpartition("_")
        assert int(kinds[f"MOSTLY_{stem}_{size}"]) == number


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


def types_of(path: Path) -> tuple[dict[str, str], int]:
    with GgufReader(path) as reader:
        types = {name: info.stored for name, info in reader.tensors.items()}
        return types, reader.values()["general.file_type"]


@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize(
    "case",
    ["llama of 2", "narrow", "narrow embeddings", "8 experts", "starcoder2 with biases"],
)
def test_files_have_the_types(tmp_path: Path, mix: str, case: str) -> None:
    source, out = tmp_path / "model.gguf", tmp_path / "out.gguf"
    tensors = file_of(source, CASES[case])
    assert main(["quantize", str(source), str(out), "--scheme", mix.upper(), "--quiet"]) == 0
    types, number = types_of(out)
    blocks = {name: kind for name, kind in types.items() if kind in BLOCK_TYPES}
    assert digest(blocks) == json.loads(RECORD.read_text())[case][mix]
    assert (number, types.keys()) == (MIXES[mix][1], tensors.keys())
    for name in (mix, mix.upper()):
        assert checkpoint.verify(source, out, dtype_map={"default": name}).equal


def test_maps_and_options_change_a_mix(tmp_path: Path) -> None:
    source, out = tmp_path / "model.gguf", tmp_path / "out.gguf"
    file_of(source, CASES["llama of 2"])
    options: dict[str, Any] = {
        "dtype_map": {r"blk\.1\..*": "q8_0"},
        "quantize_embeddings": False,
        "ignore": r".*attn_k.*",
    }
    checkpoint.quantize_file(source, out, "q4_k_m", **options)
    types, number = types_of(out)
    assert types["blk.1.ffn_up.weight"] == "Q8_0"
    assert types["blk.0.ffn_down.weight"] == "Q4_K"
    assert types["token_embd.weight"] == types["blk.0.attn_k.weight"] == np.dtype("f2").name
    assert number == MIXES["q4_k_m"][1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"recipe": "modelopt"}, "scheme 'q4_k_m', a mix.*recipe 'modelopt'"),
        ({"block": 64}, "scheme 'q4_k_m', a mix.*block 1x64"),
        ({"consumer": "vllm"}, "scheme 'q4_k_m', a mix.*consumer 'vllm' does not load"),
        ({"dtype_map": {".*attn_k.*": "Q5_K_S"}}, "attn_k.*: q5_k_s is a mix.* only.*as q5_k$"),
        ({"threads": 0}, "^threads"),
    ],
)
def test_refusals_name_the_mix(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    source = tmp_path / "model.gguf"
    file_of(source, CASES["llama of 2"])
    with pytest.raises(ValueError, match=message):
        checkpoint.quantize_file(source, tmp_path / "out.gguf", "Q4_K_M", **options)
    assert [path.name for path in tmp_path.iterdir()] == [source.name]


@pytest.mark.parametrize("mix", MIXES)
def test_folders_become_files_of_a_mix(tmp_path: Path, mix: str) -> None:
    """With the types of the file that the same folder becomes first."""
    folder = tmp_path / "model"
    dense(folder, {})
    first, out = (tmp_path / f"{name}.gguf" for name in ("first", "out"))
    checkpoint.quantize_file(folder, first, "q8_0")
    checkpoint.quantize_file(folder, out, mix)
    types, number = types_of(out)
    with GgufReader(first) as reader:
        expected = mix_types(mix, reader.values(), [*reader.tensors])
    shown = {name: kind for name, kind in types.items() if kind in BLOCK_TYPES}
    assert shown
    with GgufReader(out) as reader:
        columns = {name: reader.logical_shape(name)[-1] for name in shown}
    assert shown == {name: fitting(expected[name].upper(), columns[name]) for name in shown}
    assert number == MIXES[mix][1]
