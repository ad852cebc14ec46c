"""Advice for llama.cpp: a type for each tensor, in a file within its bytes."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from castwise import checkpoint
from castwise.checkpoint import CheckpointError, advise, survey_file, surveying
from castwise.checkpoint._tensors import TensorInfo
from castwise.checkpoint.containers.gguf._architectures import architecture_of
from castwise.checkpoint.containers.gguf.reader import GgufReader
from castwise.cli import main
from castwise.models.model import Model
from castwise.quantization import dequantize, quantize
from castwise.quantization.producers.block_types import BLOCK_TYPES
from gguf_samples import CASES, SHAPES, Array, file_of, plain_file, weights
from producer_models import Draw
from whole_models import AT, INNER, OF_QWEN, QWEN, TOKENS, WIDTH, write

LLAMA: Any = {"consumer": "llama.cpp"}
CLOSE = 0.3  # decibels between a sample of blocks and all of them
LARGE = (512, 768)


def decibels(array: Any, scheme: Any, scales: Any = "amax") -> float:
    """Return the ratio of signal to noise of all elements, by float64."""
    values = array.astype(np.float64)
    lost = dequantize(quantize(array, scheme, scales=scales), "float32") - values
    return float(10 * np.log10(np.square(values).sum() / np.square(lost).sum()))


@pytest.mark.parametrize("case", ["llama of 11, tied", "narrow", "4 experts"])
@pytest.mark.parametrize("options", [{"bits": 4.5}, {"error": 1e-2}, {"bits": 6, **LLAMA}])
def test_files_have_the_advised_types_within_the_bytes(
    tmp_path: Path, case: str, options: dict[str, Any]
) -> None:
    source, out = tmp_path / "model.gguf", tmp_path / "out.gguf"
    file_of(source, CASES[case])
    advice = advise(source, **options)
    assert advice.recipe == "gguf"
    checkpoint.quantize_file(source, out, dtype_map=advice.map)
    with GgufReader(out) as reader:
        types = {name: info.stored for name, info in reader.tensors.items()}
    targets = {name: choice.target for choice in advice.choices for name in choice.tensors}
    assert {name for name, kind in types.items() if kind in BLOCK_TYPES} == {
        name for name, target in targets.items() if target != "keep"
    }
    assert all(types[name] == target.upper() for name, target in targets.items() if target in TYPES)
    paddings = 32 * len(targets) + 64
    assert advice.nbytes - paddings <= out.stat().st_size <= advice.nbytes


TYPES = {name.lower() for name in BLOCK_TYPES}


def test_alignment_of_the_source_counts(tmp_path: Path) -> None:
    """Tensors of this file stand at multiples of 64."""
    source, out = plain_file(tmp_path / "model.gguf", weights()), tmp_path / "out.gguf"
    advice = advise(source, bits=6, **LLAMA)
    checkpoint.quantize_file(source, out, dtype_map=advice.map, **LLAMA)
    assert advice.nbytes - 64 * len(SHAPES) <= out.stat().st_size <= advice.nbytes


@pytest.mark.parametrize("scales", ["amax", "best"])
def test_errors_are_those_of_all_elements(tmp_path: Path, scales: Any) -> None:
    """Of a weight that is sampled, with rows of different size, and of one that is read whole."""
    rng, source = np.random.default_rng(3), tmp_path / "model.gguf"
    tensors = weights(np.float32)
    large = rng.standard_normal(LARGE) * rng.uniform(0.5, 1.5, (LARGE[0], 1))
    tensors["blk.0.attn_q.weight"] = large.astype(np.float32)
    plain_file(source, tensors)
    for scheme in ("q4_0", "q5_1", "q8_0", "q2_k", "q4_k", "q6_k"):
        choices = advise(source, error=1.0, formats=[scheme], scales=scales).choices
        ratios = {name: choice.sqnr_db for choice in choices for name in choice.tensors}
        name, small = "blk.0.attn_q.weight", "blk.1.ffn_down.weight"
        assert abs(ratios[name] - decibels(tensors[name], scheme, scales)) < CLOSE
        assert math.isclose(
            ratios[small], decibels(tensors[small], scheme, scales), rel_tol=1e-4
        ), scheme


def head_rows(case: str) -> Array:
    """Return a weight of heads of 128 rows whose first ones differ from all others."""
    rng = np.random.default_rng(4)
    matrix = rng.standard_normal((1024, 1024)) * 0.02
    if case == "first rows are zero":
        matrix[::128] = 0
    elif case == "first rows alone have no outliers":
        matrix[np.arange(1024) % 128 > 0] *= np.where(rng.random(1024) < 0.02, 30, 1)
    else:
        matrix[517, 300] = 300  # no sample has the element that decides
    return matrix.astype(np.float32)


@pytest.mark.parametrize(
    "case", ["first rows are zero", "first rows alone have no outliers", "one element decides"]
)
def test_samples_stand_for_the_whole_weight(tmp_path: Path, case: str) -> None:
    source, matrix = tmp_path / "model.gguf", head_rows(case)
    plain_file(source, weights(np.float32) | {"blk.0.attn_q.weight": matrix})
    for scheme in ("q4_0", "q8_0", "q2_k"):
        choices = advise(source, error=1.0, formats=[scheme]).choices
        (ratio,) = (row.sqnr_db for row in choices if "blk.0.attn_q.weight" in row.tensors)
        assert abs(ratio - decibels(matrix, scheme)) < 2 * CLOSE  # by rows: 3 to infinite


@pytest.mark.parametrize("shape", [(416, 224), (3, 416, 96)])
def test_pieces_of_transposed_weights_differ_in_width(
    tmp_path: Path, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """GPT-2 has its inputs first, which pieces cut; its survey counts all elements."""
    monkeypatch.setattr(surveying, "_BYTES", 1 << 16)
    name = "h.0.attn.c_attn.weight"
    if len(shape) > 2:
        name = "model.layers.0.mlp.experts.gate_up_proj"
    model = {"model_type": "gpt2" if len(shape) == 2 else "gpt_oss", "num_hidden_layers": 1}
    (tmp_path / "config.json").write_text(json.dumps(model))
    matrix = np.random.default_rng(5).standard_normal(shape).astype(np.float32)
    empty = np.zeros((5, 0), np.float32)
    checkpoint.save(tmp_path / "model.safetensors", {name: matrix, "empty": empty})
    rows = {row.name: row for row in survey_file(tmp_path).tensors}
    assert rows[name].count == matrix.size
    assert rows["empty"].count == 0


EXPERTS = 4
IN_GGUF = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    f"{AT}input_layernorm": "blk.0.attn_norm",
    f"{AT}post_attention_layernorm": "blk.0.ffn_norm",
    f"{AT}self_attn.o_proj": "blk.0.attn_output",
    **{f"{AT}self_attn.{part}_proj": f"blk.0.attn_{part}" for part in "qkv"},
    **{f"{AT}self_attn.{part}_norm": f"blk.0.attn_{part}_norm" for part in "qk"},
    **{f"{AT}mlp.{part}_proj": f"blk.0.ffn_{part}" for part in ("gate", "up", "down")},
    f"{AT}mlp.gate": "blk.0.ffn_gate_inp",
}


def both_forms(tmp_path: Path, *, tied: bool, experts: bool) -> tuple[Path, Path]:
    """Write a model as a folder of transformers, and as a plain .gguf file."""
    halves = {"gate": (INNER, WIDTH), "up": (INNER, WIDTH), "down": (WIDTH, INNER)}
    shapes = OF_QWEN | ({} if tied else {"lm_head.weight": (TOKENS, WIDTH)})
    if experts:
        shapes[f"{AT}mlp.gate.weight"] = (EXPERTS, WIDTH)
    for half, shape in halves.items():
        within = [f"experts.{number}." for number in range(EXPERTS)] if experts else [""]
        shapes |= {f"{AT}mlp.{place}{half}_proj.weight": shape for place in within}
    # Heads, experts and the rest lose differently, and the experts of a layer are equal.
    powers = {"embed_tokens": 3, "lm_head": 3, "experts": 5}
    tensors = {
        name: Draw().floats(*shape) ** next((n for part, n in powers.items() if part in name), 1)
        for name, shape in shapes.items()
    }
    config = {key: value for key, value in QWEN.items() if key != "quantization_config"}
    config |= {"num_local_experts": EXPERTS} if experts else {"model_type": "qwen3"}
    folder = write(tmp_path / "model", tensors, config | {"tie_word_embeddings": tied})
    of_gguf: dict[str, Any] = {}
    for name, array in tensors.items():
        stem, _, part = name.removesuffix(".weight").partition("experts.")
        if part:
            half = part.partition(".")[2].removesuffix("_proj")
            of_gguf.setdefault(f"blk.0.ffn_{half}_exps.weight", []).append(array)
        else:
            of_gguf[f"{IN_GGUF[stem]}.weight"] = array
    stacks = {
        name: np.stack([*arrays]) if "_exps" in name else arrays for name, arrays in of_gguf.items()
    }
    return folder, plain_file(tmp_path / "model.gguf", stacks)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("experts", [True, False])
def test_weights_count_as_those_of_the_folder(tmp_path: Path, *, tied: bool, experts: bool) -> None:
    sources = both_forms(tmp_path, tied=tied, experts=experts)
    options: dict[str, Any] = {"formats": ["q4_0"], "error": 1.0, **LLAMA}
    errors = [advise(source, **options).error for source in sources]
    assert errors[0] == pytest.approx(errors[1], rel=1e-6)


@pytest.mark.parametrize("kind", ["t5encoder", "bert"])
def test_embeddings_of_encoders_are_no_heads(kind: str) -> None:
    stated = {"general.architecture": kind, "bert.attention.causal": "False"}
    embedding = TensorInfo("token_embd.weight", "float16", "float", "F16", (40, 64), 5120)
    shapes = {embedding.name: embedding.shape}
    assert not Model({}, shapes, architecture_of(stated, [embedding])).is_head(embedding.name)
    stated = {"general.architecture": "gemma3"}
    assert Model({}, shapes, architecture_of(stated, [embedding])).is_head(embedding.name)


def test_no_weights_share_a_type(tmp_path: Path) -> None:
    source = tmp_path / "model.gguf"
    file_of(source, CASES["llama of 2"])
    choices = advise(source, bits=5, **LLAMA).choices
    assert all(len(choice.tensors) == 1 for choice in choices)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"consumer": "vllm"}, "castwise quantize makes another .gguf file"),
        ({"recipe": "mlx"}, "castwise quantize makes another .gguf file"),
        ({"formats": ["q4_k", "float16"]}, "'float16' is not a candidate: a .gguf file keeps"),
        ({"formats": ["mxfp4"]}, "'mxfp4' is not a candidate: gguf writes none of it"),
        ({"bits": 1.0}, r"less than the [\d,]+ bytes .* of the smallest choices: linear"),
    ],
)
def test_what_cannot_be_advised(tmp_path: Path, options: dict[str, Any], text: str) -> None:
    source = tmp_path / "model.gguf"
    file_of(source, CASES["llama of 2"])
    with pytest.raises(CheckpointError, match=text):
        advise(source, **{"bits": 5, **options})


@pytest.mark.parametrize("options", [LLAMA, {"recipe": "gguf"}, {"formats": ["q4_0"], **LLAMA}])
def test_rows_without_whole_blocks_have_no_other_types(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    source = plain_file(tmp_path / "model.gguf", {"blk.0.attn_q.weight": np.ones((8, 40), "f4")})
    text = "blocks have 32 elements or more, and no row in it has whole ones; keep it as it is$"
    with pytest.raises(CheckpointError, match=text):
        advise(source, error=1.0, **options)


def test_another_type_is_named_where_one_may_fit(tmp_path: Path) -> None:
    source = plain_file(tmp_path / "model.gguf", {"blk.0.attn_q.weight": np.ones((8, 64), "f4")})
    with pytest.raises(CheckpointError, match=r"may become q4_k; name others \(formats\)$"):
        advise(source, error=1.0, formats=["q4_k"])
    assert set(advise(source, error=1.0, formats=["q4_0"]).map.values()) == {"q4_0"}


def test_quantized_files_are_refused(tmp_path: Path) -> None:
    source, out = tmp_path / "model.gguf", tmp_path / "out.gguf"
    file_of(source, CASES["llama of 2"])
    checkpoint.quantize_file(source, out, "q8_0")
    with pytest.raises(CheckpointError, match="it is quantized already"):
        advise(out, bits=5)


def test_a_scale_beyond_float16_is_no_choice(tmp_path: Path) -> None:
    source = tmp_path / "model.gguf"
    tensors = weights(np.float32)
    tensors["blk.0.attn_q.weight"] *= np.float32(1e20)
    plain_file(source, tensors)
    targets = {
        name: row.target for row in advise(source, error=1e-2).choices for name in row.tensors
    }
    assert targets["blk.0.attn_q.weight"] == "keep"
    assert targets["blk.1.ffn_down.weight"] in TYPES


def test_the_command_names_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, map_file = tmp_path / "model.gguf", tmp_path / "map.toml"
    file_of(source, CASES["llama of 2"])
    words = ["advise", str(source), "--bits", "5", "--scales", "best", "-o", str(map_file)]
    assert main(words) == 0
    command = f"castwise quantize {source} DST.gguf --map {map_file} --recipe gguf --scales best"
    assert capsys.readouterr().err.strip().endswith(command)
