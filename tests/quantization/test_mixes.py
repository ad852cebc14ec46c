"""Mixes of llama.cpp: the types that its own `llama_model_quantize` gives tensors, as recorded.

The record is of llama-cpp-cffi 0.4.44 (llama.cpp of April 2025): digests of the lines "name type"
of the tensors that are quantized, in order. That release took IQ4_NL for rows of Q2_K and Q3_K that
are no whole blocks, and later ones take Q4_0 (`tensor_type_fallback`), which stands in the digests.
It makes Q2_K_S only with an importance matrix, and had one of ones.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from castwise import checkpoint
from castwise.checkpoint.containers.gguf.mixes import mix_types
from castwise.checkpoint.containers.gguf.reader import GgufReader
from castwise.cli import main
from castwise.quantization.producers.block_types import BLOCK_TYPES, FALLBACKS, MIXES
from gguf_samples import CASES, file_of
from recorded import FOLDER
from whole_models import dense

Framework = Callable[[str], ModuleType]
RECORD = FOLDER / "quantization" / "mixes.json"
DIGITS = 16  # of a digest


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
