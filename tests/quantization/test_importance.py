"""Importance of input channels: what it does to scales, whose numbers are taken, and refusals."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from castwise import checkpoint
from castwise.checkpoint import CheckpointError
from castwise.checkpoint.containers.gguf._names import name_map
from castwise.checkpoint.containers.gguf.imatrix import input_names, is_stored_name
from castwise.cli import main
from castwise.quantization import quantize
from checkpoint_samples import assert_same
from imatrix import write_imatrix, write_sums
from sharded_folder import contents
from small_llama import DOWN, GATE, LAYER, OUT, UP, WEIGHTS, Array, K, Q, V, weight, write
from support import run_castwise

Framework = Callable[[str], ModuleType]
STORED = {
    Q: "blk.0.attn_q.weight",
    K: "blk.0.attn_k.weight",
    V: "blk.0.attn_v.weight",
    OUT: "blk.0.attn_output.weight",
    GATE: "blk.0.ffn_gate.weight",
    UP: "blk.0.ffn_up.weight",
    DOWN: "blk.0.ffn_down.weight",
}
SHARED = dict.fromkeys((Q, K, V), Q) | dict.fromkeys((GATE, UP), GATE)
BEST: dict[str, Any] = {"scheme": "nvfp4", "scales": "best"}


def squares(name: str, rows: int = 1) -> Array:
    """Mean squares of the inputs of a weight, which those that share them have, too."""
    name = SHARED.get(name, name)
    rng = np.random.default_rng([*name.encode()])
    numbers = np.exp(2 * rng.standard_normal((rows, WEIGHTS[name].shape[1]))).astype(np.float32)
    return numbers if rows > 1 else numbers[0]


NUMBERS = {name: squares(name) for name in WEIGHTS}


def weighted_errors(folder: Path, scratch: Path, numbers: Mapping[str, Array]) -> dict[str, float]:
    """What decoding a folder loses of each weight, by its numbers."""
    checkpoint.dequantize_file(folder, scratch, "float32")
    decoded = checkpoint.load(scratch)
    return {
        name: float((numbers[name] * (decoded[name] - array.astype(np.float64)) ** 2).sum())
        for name, array in WEIGHTS.items()
    }


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("importance") / "model")


@pytest.fixture(scope="module")
def numbers_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("importance") / "numbers.npz"
    np.savez(path, **NUMBERS)
    return path


@pytest.mark.parametrize(
    ("recipe", "scheme"),
    [
        ("compressed-tensors", "nvfp4"),
        ("compressed-tensors", "mxfp4"),
        ("compressed-tensors", "mxfp8_e4m3"),
        ("modelopt", "nvfp4"),
        ("comfy", "nvfp4"),
        ("mlx", "nvfp4"),
        ("mlx", "mxfp4"),
    ],
)
def test_no_weight_has_a_larger_weighted_error(
    tmp_path: Path, model: Path, numbers_file: Path, recipe: str, scheme: str
) -> None:
    errors = []
    for name, options in (("plain", {}), ("weighted", {"importance": numbers_file})):
        out = tmp_path / name
        checkpoint.quantize_file(model, out, scheme, recipe=recipe, scales="best", **options)
        errors.append(weighted_errors(out, tmp_path / f"{name}.safetensors", NUMBERS))
    plain, weighted = errors
    for name in WEIGHTS:
        assert weighted[name] <= plain[name] * (1 + 1e-9), name
    has_fewer = sum(weighted.values()) < sum(plain.values())
    assert has_fewer or scheme == "mxfp8_e4m3"  # which any scale but one saturates


def test_codes_are_those_of_arrays(tmp_path: Path, model: Path, numbers_file: Path) -> None:
    """Each weight alone, as MXFP4 shares nothing, with any number of threads."""
    for threads in (1, 3):
        out = tmp_path / f"{threads}"
        checkpoint.quantize_file(
            model, out, "mxfp4", scales="best", importance=numbers_file, threads=threads
        )
    assert contents(tmp_path / "1") == contents(tmp_path / "3")
    tensors = checkpoint.load(tmp_path / "1")
    for name, array in WEIGHTS.items():
        options: Any = {"recipe": "compressed-tensors", "scales": "best"}
        q = quantize(array, "mxfp4", **options, importance=NUMBERS[name])
        for key, part in q.parts().items():
            assert_same(tensors[name.removesuffix("weight") + key], part)
        plain = quantize(array, "mxfp4", **options)
        assert (plain.data != q.data).any()


def test_all_files_with_the_same_numbers_make_the_same(
    tmp_path: Path, model: Path, numbers_file: Path, framework: Framework
) -> None:
    """By the model's names and by llama.cpp's; half precision and JSON hold these numbers too."""
    checkpoint.quantize_file(model, tmp_path / "out", **BEST, importance=numbers_file)
    expected = contents(tmp_path / "out")
    files = {
        "own.safetensors": lambda path: checkpoint.save(path, NUMBERS),
        "stored.npz": lambda path: np.savez(path, **{STORED[n]: NUMBERS[n] for n in NUMBERS}),
        "wide.npz": lambda path: np.savez(
            path, **{n: a[None].astype(float) for n, a in NUMBERS.items()}
        ),
        "lists.json": lambda path: path.write_text(
            json.dumps({name: array.tolist() for name, array in NUMBERS.items()})
        ),
        "imatrix.gguf": lambda path: write_imatrix(
            framework("gguf"), path, {STORED[name]: NUMBERS[name] for name in NUMBERS}
        ),
    }
    for name, make in files.items():
        make(tmp_path / name)
        out = tmp_path / f"{name}.out"
        arguments = ["quantize", model, out, "--scheme", "nvfp4", "--scales", "best", "--quiet"]
        assert main([*map(str, [*arguments, "--importance", tmp_path / name])]) == 0
        assert contents(out) == expected, name


def test_what_shares_inputs_shares_numbers(
    tmp_path: Path, model: Path, numbers_file: Path, framework: Framework
) -> None:
    """Of q, k and v one is enough, and what llama.cpp joined is theirs; others are listed."""
    checkpoint.quantize_file(model, tmp_path / "out", **BEST, importance=numbers_file)
    names = {
        "blk.0.attn_qkv.weight": NUMBERS[Q],
        **{STORED[n]: NUMBERS[n] for n in (OUT, UP, DOWN)},
    }
    path = write_imatrix(framework("gguf"), tmp_path / "joined.gguf", names)
    summary = checkpoint.quantize_file(model, tmp_path / "joined", **BEST, importance=path)
    assert contents(tmp_path / "joined") == contents(tmp_path / "out")
    assert summary.importance is not None
    assert summary.importance.weighted == len(WEIGHTS)
    assert not summary.importance.unweighted
    assert not summary.importance.unused
    other = {K: NUMBERS[K], V: NUMBERS[K] * 2, DOWN: NUMBERS[DOWN]}
    np.savez(tmp_path / "other.npz", **other)
    summary = checkpoint.quantize_file(
        model, tmp_path / "other", **BEST, importance=tmp_path / "other.npz"
    )
    assert summary.importance is not None
    assert {*summary.importance.unweighted} == {Q, OUT, GATE, UP}  # k and v differ: not guessed


@pytest.mark.parametrize(
    ("module", "parts", "config"),
    [
        ("decoder.layers.0.encoder_attn", ("q_proj", "k_proj", "v_proj"), {"model_type": "bart"}),
        ("down_blocks.0.attn2", ("to_q", "to_k", "to_v"), {"model_type": ""}),
        (
            "language_model.model.layers.3.cross_attn",
            ("q_proj", "k_proj", "v_proj"),
            {"architectures": ["MllamaForConditionalGeneration"], "model_type": "mllama"},
        ),
        ("blocks.0.attn", ("q_proj", "k_proj", "v_proj"), {"model_type": "nobody's"}),
    ],
)
def test_queries_of_other_inputs_get_no_numbers(
    tmp_path: Path, module: str, parts: Sequence[str], config: dict[str, Any]
) -> None:
    """Those of keys and values are none of theirs in cross attention, which names may not tell."""
    query, key, value = (f"{module}.{part}.weight" for part in parts)
    tensors = {query: weight(64, 128), key: weight(64, 128, seed=1), value: weight(64, 128, seed=2)}
    model = write(tmp_path / "model", tensors, **config)
    np.savez(tmp_path / "i.npz", **dict.fromkeys((key, value), squares(Q)))
    out, plain = tmp_path / "out", tmp_path / "plain"
    options: Any = {"scheme": "mxfp4", "recipe": "compressed-tensors", "scales": "best"}
    options["dtype_map"] = {r".*": "mxfp4"}
    summary = checkpoint.quantize_file(model, out, **options, importance=tmp_path / "i.npz")
    checkpoint.quantize_file(model, plain, **options)
    assert summary.importance is not None
    assert summary.importance.weighted == 2
    assert {*summary.importance.unweighted} == {query}
    packed = query.replace("weight", "weight_packed")
    assert_same(checkpoint.load(out)[packed], checkpoint.load(plain)[packed])


def test_partners_of_another_width_have_other_inputs(tmp_path: Path) -> None:
    tensors = {Q: weight(64, 128), K: weight(64, 256, seed=1), V: weight(64, 128, seed=2)}
    model = write(tmp_path / "model", tensors)
    np.savez(tmp_path / "i.npz", **{K: np.arange(256.0)})
    options: Any = {"scheme": "mxfp4", "scales": "best"}
    summary = checkpoint.quantize_file(
        model, tmp_path / "out", **options, importance=tmp_path / "i.npz"
    )
    assert summary.importance is not None
    assert {*summary.importance.unweighted} == {Q, V}
    assert not summary.importance.unused


def test_names_that_fit_two_components(tmp_path: Path, framework: Framework) -> None:
    """Those of llama.cpp name no folder; the checkpoint's own do."""
    pipeline, out = tmp_path / "pipeline", tmp_path / "out"
    pipeline.mkdir()
    for part in ("one", "two"):
        write(pipeline / part)
    path = write_imatrix(framework("gguf"), tmp_path / "i.gguf", {STORED[Q]: NUMBERS[Q]})
    text = rf"'{STORED[Q]}' is a name of llama\.cpp, .* fit 'one/{Q}' and 'two/{Q}'; quantize the"
    with pytest.raises(CheckpointError, match=text):
        checkpoint.quantize_file(pipeline, out, **BEST, importance=path)
    assert not out.exists()
    np.savez(tmp_path / "own.npz", **{f"two/{Q}": NUMBERS[Q]})
    summary = checkpoint.quantize_file(pipeline, out, **BEST, importance=tmp_path / "own.npz")
    assert summary.importance is not None
    assert summary.importance.weighted == len((Q, K, V))


def test_what_has_no_numbers_and_what_is_no_weight(
    tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    numbers = {DOWN: NUMBERS[DOWN], Q: NUMBERS[Q], "model.layers.7.x.weight": np.ones(4)}
    numbers[f"{LAYER}mlp.router.weight"] = np.ones(128)  # a weight that stays
    np.savez(tmp_path / "some.npz", **numbers)
    arguments = [str(model), str(tmp_path / "out"), "--scheme", "nvfp4", "--scales", "best"]
    arguments += ["--importance", str(tmp_path / "some.npz")]
    assert main(["quantize", *arguments, "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert main(["quantize", *arguments, "--report", str(tmp_path / "report.json")]) == 0
    assert "the scales of 4 weights are searched" in said
    for text in (said, capsys.readouterr().out):
        lines = " ".join(text.split())
        assert "searched without importance, since the file has no numbers of it: " in lines
        assert "names in it that match no searched weight: model.layers.7.x.weight" in lines
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["importance"]["unweighted"].keys() == {OUT, GATE, UP}
    assert {*report["importance"]["unused"]} == numbers.keys() - {DOWN, Q}
    assert report["options"]["importance"] == "some.npz"
    alone = tmp_path / "alone"
    checkpoint.quantize_file(model, alone, **BEST)
    plain, some = checkpoint.load(alone), checkpoint.load(tmp_path / "out")
    for name in (OUT, GATE, UP):
        packed = name.replace("weight", "weight_packed")
        assert_same(plain[packed], some[packed])


EXPERTS = 4


def write_experts(folder: Path) -> Path:
    """Write a model whose experts are tensors of their own."""
    tensors = {"model.embed_tokens.weight": weight(32, 64)}
    for expert in range(EXPERTS):
        for number, (part, shape) in enumerate(
            (("gate", (96, 64)), ("up", (96, 64)), ("down", (64, 96)))
        ):
            name = f"{LAYER}mlp.experts.{expert}.{part}_proj.weight"
            tensors[name] = weight(*shape, seed=10 * expert + number)
    return write(folder, tensors, model_type="qwen3_moe", architectures=["Qwen3MoeForCausalLM"])


def expert_numbers() -> dict[str, Array]:
    rng = np.random.default_rng(5)
    joint = np.exp(rng.standard_normal((EXPERTS, 64))).astype(np.float32)
    down = np.exp(rng.standard_normal((EXPERTS, 96))).astype(np.float32)
    stems = {"gate": joint, "up": joint, "down": down}
    return {f"blk.0.ffn_{stem}_exps.weight": rows for stem, rows in stems.items()}


def test_experts_have_rows(tmp_path: Path, framework: Framework) -> None:
    """One that saw no input is searched without numbers, and listed."""
    model = write_experts(tmp_path / "model")
    numbers = expert_numbers()
    path = write_imatrix(framework("gguf"), tmp_path / "i.gguf", numbers, counts=[3, 5, 0, 1000])
    summary = checkpoint.quantize_file(
        model, tmp_path / "out", "mxfp4", scales="best", importance=path, consumer=None
    )
    tensors, source = checkpoint.load(tmp_path / "out"), checkpoint.load(model)
    assert summary.importance is not None
    assert summary.importance.unweighted == {
        name: "the file counted no inputs of it" for name in source if ".experts.2." in name
    }
    for name, array in source.items():
        if ".experts." not in name:
            continue
        _, _, _, _, _, expert, part, _ = name.split(".")
        rows = numbers[f"blk.0.ffn_{part.removesuffix('_proj')}_exps.weight"]
        counted = int(expert) != 2
        count = np.float32([3, 5, 0, 1000][int(expert)])
        importance = rows[int(expert)] * count / count if counted else None
        q = quantize(
            array, "mxfp4", recipe="compressed-tensors", scales="best", importance=importance
        )
        assert_same(tensors[name.replace("weight", "weight_packed")], q.parts()["weight_packed"])


def test_experts_whose_layers_are_joined(tmp_path: Path, framework: Framework) -> None:
    model, numbers = write_experts(tmp_path / "model"), expert_numbers()
    joint = {"blk.0.ffn_gate_up_exps.weight": numbers["blk.0.ffn_up_exps.weight"]}
    joint["blk.0.ffn_down_exps.weight"] = numbers["blk.0.ffn_down_exps.weight"]
    results = []
    for name, rows in (("apart", numbers), ("joint", joint)):
        path = write_imatrix(framework("gguf"), tmp_path / f"{name}.gguf", rows)
        checkpoint.quantize_file(model, tmp_path / name, **BEST, importance=path)
        results.append(contents(tmp_path / name))
    assert results[0] == results[1]


@pytest.mark.parametrize(
    ("name", "model_type", "stored"),
    [
        (f"{LAYER}self_attn.o_proj.weight", "llama", "blk.0.attn_output.weight"),
        (f"{LAYER}self_attn.o_proj.weight", "plamo", None),  # its heads are in another order
        ("model.language_model.layers.7.linear_attn.out_proj.weight", "qwen3_5_text", None),
        ("model.language_model.layers.7.mlp.up_proj.weight", "qwen3_5_text", "blk.7.ffn_up.weight"),
        ("layers.12.mlp.up_proj.weight", "qwen2", "blk.12.ffn_up.weight"),
        ("model.layers.3.block_sparse_moe.experts.w2.weight", "", "blk.3.ffn_down_exps.weight"),
        ("model.layers.3.mlp.switch_mlp.down_proj.weight", "", "blk.3.ffn_down_exps.weight"),
        (
            "model.layers.3.feed_forward.experts.gate_up_proj",
            "llama4",
            "blk.3.ffn_gate_exps.weight",
        ),
        ("encoder.block.3.layer.0.SelfAttention.q.weight", "t5", "enc.blk.3.attn_q.weight"),
        ("lm_head.weight", "", "output.weight"),
        ("model.embed_tokens.weight", "", "token_embd.weight"),
        ("model.layers.3.no_such_proj.weight", "", None),
    ],
)
def test_names_of_llama_cpp(
    framework: Framework, name: str, model_type: str, stored: str | None
) -> None:
    framework("gguf")
    names = input_names(name, model_type).own
    assert (stored in names) if stored else not [one for one in names if "time_mix" not in one]
    assert all(map(is_stored_name, names))


def test_two_names_of_one_weight(tmp_path: Path, framework: Framework) -> None:
    """The map of the package gguf gives this one two meanings."""
    framework("gguf")
    name = f"{LAYER}feed_forward.down_proj.weight"
    checkpoint.save(tmp_path / "model.safetensors", {name: weight(64, 32)})
    numbers = {"blk.0.ffn_down.weight": np.ones(32), "blk.0.ffn_up_shexp.weight": np.ones(32)}
    for factor in (1, 2):
        numbers["blk.0.ffn_down.weight"] *= factor
        np.savez(tmp_path / f"{factor}.npz", **numbers)
    options: Any = {"scheme": "mxfp4", "scales": "best"}
    source, out = tmp_path / "model.safetensors", tmp_path / "out.safetensors"
    checkpoint.quantize_file(source, out, **options, importance=tmp_path / "1.npz")
    with pytest.raises(CheckpointError, match=r"may both be the importance of .* differ; name it"):
        checkpoint.quantize_file(
            source, tmp_path / "x.safetensors", **options, importance=tmp_path / "2.npz"
        )


def test_the_report_has_the_weighted_ratio(
    tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Beside that of numpy; of a row without numbers there is none."""
    path, out = tmp_path / "numbers.npz", tmp_path / "out"
    np.savez(path, **{name: NUMBERS[name] for name in NUMBERS if name != DOWN})
    summary = checkpoint.quantize_file(
        model, out, "mxfp4", recipe="mlx", scales="best", importance=path
    )
    checkpoint.dequantize_file(out, tmp_path / "decoded.safetensors", "float32")
    decoded = checkpoint.load(tmp_path / "decoded.safetensors")
    rows = {row.name: row for row in summary.rows if row.target == "mxfp4"}
    for name, array in WEIGHTS.items():
        row, values = rows[name], array.astype(np.float64)
        if name == DOWN:
            assert row.weighted is None
            assert "weighted_sqnr_db" not in row.to_dict()
            continue
        signal, noise = (
            float((NUMBERS[name] * squared**2).sum())
            for squared in (values, decoded[name] - values)
        )
        ratio = row.to_dict()["weighted_sqnr_db"]
        np.testing.assert_allclose(ratio, 10 * np.log10(signal / noise), atol=1e-4)
        assert row.weighted is not None
        assert f"{ratio:.1f}" in str(summary)
    assert "weighted dB" in str(summary)
    arguments = ["quantize", model, tmp_path / "x", "--scheme", "mxfp4", "--scales", "best"]
    arguments += ["--importance", path, "--dry-run", "--measure"]
    assert main([*map(str, arguments)]) == 0
    assert "weighted dB" in capsys.readouterr().out


def test_stacked_experts_of_inputs_and_outputs(tmp_path: Path) -> None:
    """gpt-oss stores (expert, in, out), and the numbers are those of its inputs."""
    name = f"{LAYER}mlp.experts.gate_up_proj"
    stack = weight(EXPERTS, 64, 96)
    other = f"{LAYER}mlp.experts.down_proj"
    tensors = {name: stack, other: weight(EXPERTS, 96 // 3, 64)}
    model = write(
        tmp_path / "model", tensors, model_type="gpt_oss", architectures=["GptOssForCausalLM"]
    )
    rows = np.exp(np.random.default_rng(3).standard_normal((EXPERTS, 64))).astype(np.float32)
    np.savez(tmp_path / "rows.npz", **{name: rows})
    summary = checkpoint.quantize_file(
        model,
        tmp_path / "out",
        "mxfp4",
        recipe="gpt-oss",
        scales="best",
        importance=tmp_path / "rows.npz",
    )
    assert summary.importance is not None
    assert {*summary.importance.unweighted} == {other}
    tensors = checkpoint.load(tmp_path / "out")
    for expert in range(EXPERTS):
        options: Any = {"recipe": "gpt-oss", "scales": "best", "axis": -2}
        q = quantize(stack[expert], "mxfp4", **options, importance=rows[expert])
        assert_same(tensors[f"{name}_blocks"][expert], q.parts()["blocks"])
        assert_same(tensors[f"{name}_scales"][expert], q.parts()["scales"])


def test_experts_without_numbers_are_not_in_the_weighted_ratio(
    tmp_path: Path, framework: Framework
) -> None:
    """They would count by 1 beside numbers of any size, here far below."""
    gate_up, down = f"{LAYER}mlp.experts.gate_up_proj", f"{LAYER}mlp.experts.down_proj"
    stack = weight(EXPERTS, 64, 96)
    config: Any = {"model_type": "gpt_oss", "architectures": ["GptOssForCausalLM"]}
    tensors = {gate_up: stack, down: weight(EXPERTS, 32, 64)}
    model = write(tmp_path / "model", tensors, **config)
    rows = 1e-6 * np.exp(np.random.default_rng(3).standard_normal((EXPERTS, 64)))
    stored = {"blk.0.ffn_gate_up_exps.weight": rows.astype(np.float32)}
    counts = [3, 5, 0, 1]
    path = write_imatrix(framework("gguf"), tmp_path / "i.gguf", stored, counts=counts)
    out = tmp_path / "out"
    options: Any = {"scheme": "mxfp4", "recipe": "gpt-oss", "scales": "best"}
    summary = checkpoint.quantize_file(model, out, **options, importance=path)
    checkpoint.dequantize_file(out, tmp_path / "decoded.safetensors", "float32")
    values = stack.astype(np.float64)
    noise = checkpoint.load(tmp_path / "decoded.safetensors")[gate_up] - values
    used = [index for index, count in enumerate(counts) if count]
    sums = [float((rows[used][:, :, None] * array[used] ** 2).sum()) for array in (values, noise)]
    by_name = {row.name: row.to_dict() for row in summary.rows if row.target == "mxfp4"}
    ratio = next(row for name, row in by_name.items() if gate_up in name)["weighted_sqnr_db"]
    np.testing.assert_allclose(ratio, 10 * np.log10(sums[0] / sums[1]), atol=1e-3)


def of(name: str, array: Any) -> dict[str, Any]:
    return {**NUMBERS, name: array}


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        (of(DOWN, np.full(384, np.nan)), r"is nan for channel 0; use numbers that are finite"),
        (of(DOWN, np.r_[np.ones(5), np.inf, np.ones(378)]), "is inf for channel 5; use numbers"),
        (of(DOWN, np.r_[np.ones(5), 1e300, np.ones(378)]), r"is 1e\+300 for channel 5; .*float32"),
        (of(DOWN, -np.ones(384)), r"is -1\.0 for channel 0; use numbers"),
        (of(DOWN, np.zeros(384)), "is 0 for every channel; give a number above 0"),
        (of(DOWN, np.ones(383)), r"is 383 numbers, and 'model.*384 input channels; give a number"),
        (of(DOWN, np.ones((2, 384))), r"is 2 x 384 numbers, and 'model.*384 input channels; give"),
        (of(DOWN, np.float32(1)), r"has the shape \(\); give a number for each input channel"),
        (of(DOWN, np.ones(0)), r"has the shape \(0,\); give a number"),
        (of(DOWN, np.ones(384, bool)), "is of dtype bool; use numbers such as"),
        (of(DOWN, np.ones(384, complex)), "is of dtype complex128; use numbers such as"),
        (
            {"x": np.ones(384)},
            "of no weight whose scales are searched; its first name is 'x'; name",
        ),
        ({}, "has numbers of no weight whose scales are searched; name weights as the model"),
    ],
)
def test_numbers_of_no_use(
    tmp_path: Path, model: Path, numbers: dict[str, Array], text: str
) -> None:
    np.savez(tmp_path / "bad.npz", **numbers)
    with pytest.raises(CheckpointError, match=text):
        checkpoint.quantize_file(model, tmp_path / "out", **BEST, importance=tmp_path / "bad.npz")
    assert not (tmp_path / "out").exists()


def test_files_of_no_use(tmp_path: Path, model: Path, framework: Framework) -> None:
    gguf, stored = framework("gguf"), {STORED[name]: NUMBERS[name] for name in NUMBERS}
    name = STORED[DOWN]

    def refuse(path: Path, text: str) -> None:
        with pytest.raises(CheckpointError, match=text):
            checkpoint.quantize_file(model, tmp_path / "out", **BEST, importance=path)
        assert not (tmp_path / "out").exists()

    for old in ("imatrix.dat", "x.imatrix"):
        (tmp_path / old).write_bytes(b"\x07\0\0\0")
        refuse(tmp_path / old, rf"llama-imatrix --in-file {old} -o imatrix\.gguf")
    plain = gguf.GGUFWriter(tmp_path / "model.gguf", "llama")
    plain.add_tensor(name, np.ones((4, 32), np.float32))
    for write_part in ("header_to_file", "kv_data_to_file", "tensors_to_file"):
        getattr(plain, f"write_{write_part}")()
    plain.close()
    refuse(tmp_path / "model.gguf", "states general.type None, and a file of importance 'imatrix'")
    for value, text in ((-1.0, "has sums of -1"), (np.nan, "has sums of nan")):
        bad = {**stored, name: np.full(384, value, np.float32)}
        path = write_imatrix(gguf, tmp_path / f"{value}.gguf", bad, counts=1)
        refuse(path, f"{name}' {text}")
    path = write_imatrix(gguf, tmp_path / "counts.gguf", stored, counts=np.nan)
    refuse(path, "has sums of nan; they are finite and not negative")
    path = write_imatrix(gguf, tmp_path / "none.gguf", stored, counts=0)
    refuse(path, "has numbers of no weight whose scales are searched")
    path = write_imatrix(gguf, tmp_path / "cut.gguf", stored)
    path.write_bytes(
        path.read_bytes().replace(b"ffn_down.weight.counts", b"ffn_down.weight.COUNTS")
    )
    refuse(path, "'blk.0.ffn_down.weight.in_sum2' has no 'blk.0.ffn_down.weight.counts' beside it")
    two = {**stored, DOWN: NUMBERS[DOWN] * 2}  # the model's own name goes first
    np.savez(tmp_path / "two.npz", **two)
    summary = checkpoint.quantize_file(
        model, tmp_path / "two", **BEST, importance=tmp_path / "two.npz"
    )
    assert summary.importance is not None
    assert summary.importance.unused == [name]


ROW, COUNT = np.ones((1, 384), np.float32), np.ones((1, 1), np.float32)


@pytest.mark.parametrize(
    ("sums", "counts", "text"),
    [
        (np.ones((2, 384), np.float32), COUNT, r"sums of shape \(2, 384\) .* a row of float32 and"),
        (np.ones((2, 3, 64), np.float32), COUNT, r"sums of shape \(2, 3, 64\) .*; make the file"),
        (ROW.astype(np.float16), COUNT, r"sums of shape \(1, 384\) \(float16\)"),
        (ROW, COUNT.astype(np.int32), r"counts of shape \(1, 1\) \(int32\)"),
        (ROW, np.ones((3, 1), np.float32), r"counts of shape \(3, 1\)"),
        (ROW * np.float32(3e38), COUNT / 10, "is inf for channel 0; use numbers"),
        (ROW * np.float32(-1), COUNT, r"has sums of -1\.0; they are finite and not negative"),
        (ROW, -COUNT, r"has counts of -1\.0; they are finite and not negative"),
    ],
)
def test_sums_of_no_use(  # noqa: PLR0917
    tmp_path: Path, model: Path, framework: Framework, sums: Array, counts: Array, text: str
) -> None:
    stem = STORED[DOWN]
    tensors = {f"{stem}.in_sum2": sums, f"{stem}.counts": counts}
    path = write_sums(framework("gguf"), tmp_path / "sums.gguf", tensors)
    with pytest.raises(CheckpointError, match=f"the importance of '{stem}' .*{text}"):
        checkpoint.quantize_file(model, tmp_path / "out", **BEST, importance=path)
    assert not (tmp_path / "out").exists()


def test_it_needs_a_search(
    tmp_path: Path, model: Path, numbers_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options: Any = {"scheme": "nvfp4", "importance": numbers_file}
    for scales in ("amax", "four_over_six"):
        with pytest.raises(CheckpointError, match=rf"with scales='{scales}'; add scales='best'"):
            checkpoint.quantize_file(model, tmp_path / "out", **options, scales=scales)
    arguments = [str(model), str(tmp_path / "out"), "--scheme", "nvfp4"]
    assert main(["quantize", *arguments, "--importance", str(numbers_file)]) == 2
    assert "with --scales amax; add --scales best" in capsys.readouterr().err
    with pytest.raises(FileNotFoundError):
        checkpoint.quantize_file(model, tmp_path / "out", **BEST, importance=tmp_path / "no.npz")


def test_a_scheme_without_a_search(tmp_path: Path, model: Path, numbers_file: Path) -> None:
    arguments = ["quantize", model, tmp_path / "out", "--scheme", "fp8_channel"]
    result = run_castwise(*arguments, "--importance", numbers_file, code=2)
    said = "of scales, and fp8_channel as --recipe compressed-tensors stores weights has none; leav"
    assert said in result.stderr
    arguments = ["quantize", model, tmp_path / "out.gguf", "--scheme", "q8_0"]
    result = run_castwise(*arguments, "--importance", numbers_file, code=2)
    assert "there is none with --scales amax; add --scales best" in result.stderr


def test_a_file_on_a_store_is_refused(tmp_path: Path, model: Path) -> None:
    for name in ("importance", "dtype_map"):
        options: Any = {**BEST, name: "s3://bucket/numbers.npz"}
        with pytest.raises(CheckpointError, match=rf"{name}='s3://.*' is a URL, .* copy it here"):
            checkpoint.quantize_file(model, tmp_path / "out", **options)
    with pytest.raises(CheckpointError, match=r"importance='s3://.*' is a URL, .* copy it here"):
        checkpoint.advise(model, bits=9, importance="s3://bucket/numbers.json")


def test_other_schemes_of_a_map_need_no_numbers(
    tmp_path: Path, model: Path, numbers_file: Path
) -> None:
    summary = checkpoint.quantize_file(
        model, tmp_path / "out", **BEST, dtype_map={DOWN: "fp8_channel"}, importance=numbers_file
    )
    assert summary.importance is not None
    assert summary.importance.unused == [DOWN]


def test_another_file_is_another_conversion(
    tmp_path: Path, model: Path, numbers_file: Path
) -> None:
    numbers, out = tmp_path / "numbers.npz", tmp_path / "out"
    numbers.write_bytes(numbers_file.read_bytes())
    checkpoint.quantize_file(model, out, **BEST, importance=numbers, part="1/2")
    np.savez(numbers, **{name: array * 2 for name, array in NUMBERS.items()})
    with pytest.raises(CheckpointError, match=r"another conversion: .*numbers\.npz was changed"):
        checkpoint.quantize_file(model, out, **BEST, importance=numbers, part="2/2")
    numbers.write_bytes(numbers_file.read_bytes())
    checkpoint.quantize_file(model, out, **BEST, importance=numbers, part="2/2")
    summary = checkpoint.finish(out)
    whole = checkpoint.quantize_file(model, tmp_path / "whole", **BEST, importance=numbers)
    assert contents(out) == contents(tmp_path / "whole")
    assert summary.rows == whole.rows
    assert summary.importance == whole.importance


def test_advice_takes_a_number_for_each_weight(
    tmp_path: Path, model: Path, numbers_file: Path, framework: Framework
) -> None:
    path = write_imatrix(framework("gguf"), tmp_path / "i.gguf", {STORED[Q]: NUMBERS[Q]})
    with pytest.raises(CheckpointError, match=r"numbers of input channels, which .*quantize"):
        checkpoint.advise(model, bits=9, importance=path)
    with pytest.raises(CheckpointError, match="Numbers by input channel are not taken"):
        checkpoint.advise(model, bits=9, importance=numbers_file)


def test_advice_does_not_ask_to_convert_numbers_that_it_does_not_take(
    tmp_path: Path, model: Path
) -> None:
    with pytest.raises(CheckpointError, match=r"numbers of input channels, which .*give one n"):
        checkpoint.advise(model, bits=9, importance=tmp_path / "i.imatrix")


def test_names_of_one_architecture_are_not_those_of_others(framework: Framework) -> None:
    """The package would add ARCTIC's to all maps that are made after its own."""
    package = framework("gguf")
    shared = dict(package.TensorNameMap.block_mappings_cfg)
    maps = [name_map(kind).mapping for kind in package.MODEL_ARCH_NAMES]
    assert package.TensorNameMap.block_mappings_cfg == shared
    for kind, names in zip(reversed(package.MODEL_ARCH_NAMES), reversed(maps), strict=True):
        assert name_map(kind).mapping == names
