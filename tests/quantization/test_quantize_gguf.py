"""GGUF files of plain weights become GGUF files with blocks of every type that llama.cpp has."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from castwise import checkpoint
from castwise._core import block_types
from castwise.checkpoint import CheckpointError
from castwise.checkpoint.containers.gguf.reader import GgufReader
from castwise.cli import main
from castwise.quantization.producers.block_types import (
    BLOCK_TYPES,
    FILE_TYPES,
    decode_type,
    encode_type,
)
from gguf_samples import FIRST, KINDS, LAST, SHAPES, WIDTH, key, plain_file, weights
from imatrix import write_sums
from numpy.typing import NDArray
from producer_models.gguf import header
from whole_models import dense, of_experts
from whole_models import model as gpt_oss_model

Array = NDArray[Any]
Framework = Callable[[str], ModuleType]
SCHEMES = [name.lower() for name, *_ in block_types()]
LINEAR = ["blk.0.attn_q.weight", "blk.0.ffn_gate_exps.weight", "blk.1.ffn_down.weight"]
TABLES = ["token_embd.weight", "output.weight"]


def tensor_bytes(path: Path) -> dict[str, bytes]:
    with GgufReader(path) as reader:
        return {name: b"".join(reader.pieces(name, 1 << 20)) for name in reader.tensors}


def types_of(path: Path) -> dict[str, str]:
    with GgufReader(path) as reader:
        return {name: info.stored for name, info in reader.tensors.items()}


def expected_bytes(array: Array, scheme: str) -> bytes:
    rows = array.reshape(-1, array.shape[-1])
    return encode_type(rows, scheme.upper()).tobytes()


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("dtype", KINDS, ids=[np.dtype(dtype).name for dtype in KINDS])
def test_linear_layers_become_blocks(tmp_path: Path, scheme: str, dtype: Any) -> None:
    tensors = weights(dtype)
    source, out = plain_file(tmp_path / "model.gguf", tensors), tmp_path / "out.gguf"
    summary = checkpoint.quantize_file(source, out, scheme)
    found = tensor_bytes(out)
    assert [*found] == [*tensors]
    for name, array in tensors.items():
        is_blocks = name in LINEAR
        assert found[name] == (expected_bytes(array, scheme) if is_blocks else array.tobytes())
        assert types_of(out)[name] == (scheme.upper() if is_blocks else array.dtype.name)
    targets = {row.name: row.target for row in summary.rows if row.target}
    assert targets == dict.fromkeys(LINEAR, scheme)
    assert all(row.report and row.report.sqnr_db > 5 for row in summary.rows if row.target)
    lines = str(summary).splitlines()
    for name in LINEAR:  # the shape of the weight, not of its blocks
        shape = "x".join(map(str, SHAPES[name]))
        assert any(line.split()[:2] == [name, shape] for line in lines), str(summary)
    verified = checkpoint.dequantize_file(out, tmp_path / "plain.safetensors", "float32")
    assert verified.rows


def test_all_else_that_the_header_states_stays(tmp_path: Path) -> None:
    source, out = plain_file(tmp_path / "model.gguf", weights()), tmp_path / "out.gguf"
    dtype_map = {".*attn_q.*": "q8_0", ".*ffn.*[st].w.*": "q5_k"}
    checkpoint.quantize_file(source, out, dtype_map=dtype_map)
    assert checkpoint.verify(source, out, dtype_map=dtype_map).equal
    assert not checkpoint.verify(source, source, dtype_map=dtype_map).equal
    stated = {"general.quantization_version": 2, "general.file_type": FILE_TYPES["Q8_0"]}
    added = [key(name, 4, struct.pack("<I", value)) for name, value in stated.items()]
    pairs = b"".join([*FIRST, *LAST, *added])
    start = b"GGUF" + struct.pack("<IQQ", 3, len(SHAPES), len(FIRST) + len(LAST) + len(added))
    assert out.read_bytes().startswith(start + pairs)
    with GgufReader(out) as found, GgufReader(source) as before:
        assert found.alignment == 64
        assert found.values() == {**before.values(), **stated}


def test_as_the_package_reads_it(tmp_path: Path, framework: Framework) -> None:
    gguf = framework("gguf")
    source, out = plain_file(tmp_path / "model.gguf", weights()), tmp_path / "out.gguf"
    checkpoint.quantize_file(source, out, "q4_k", quantize_embeddings=True)
    read = gguf.GGUFReader(out)
    kinds = {tensor.name: tensor.tensor_type.name for tensor in read.tensors}
    assert {name for name, kind in kinds.items() if kind == "Q4_K"} == {*LINEAR, *TABLES}
    assert read.fields["general.file_type"].contents() == gguf.LlamaFileType.MOSTLY_Q4_K_S
    values = {
        tensor.name: gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        for tensor in read.tensors
    }
    checkpoint.dequantize_file(out, tmp_path / "plain.safetensors", "float32")
    plain = checkpoint.load(tmp_path / "plain.safetensors")
    for name in (*LINEAR, *TABLES):
        np.testing.assert_array_equal(values[name], plain[name])


def test_the_command_takes_the_spelling_of_llama(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, out = plain_file(tmp_path / "model.gguf", weights()), tmp_path / "out.gguf"
    (tmp_path / "map.toml").write_text('"blk[.]1[.].*weight" = "Q6_K"\n')
    words = ["quantize", source, out, "--scheme", "Q4_K", "--map", tmp_path / "map.toml"]
    words += ["--ignore", ".*_exps.*", "--for", "llama.cpp"]
    assert main([*map(str, words)]) == 0
    kinds = types_of(out)
    assert kinds["blk.0.attn_q.weight"] == "Q4_K"
    assert kinds["blk.0.ffn_gate_exps.weight"] == "float16"
    assert kinds["blk.1.ffn_down.weight"] == "Q6_K"
    assert "2 tensors quantized" in capsys.readouterr().out
    assert main(["verify", str(source), str(out)]) == 1
    assert (
        main(["quantize", str(source), str(tmp_path / "dry.gguf"), "--scheme", "q2_k", "--dry-run"])
        == 0
    )
    assert not (tmp_path / "dry.gguf").exists()


@pytest.mark.parametrize("threads", [1, 3])
def test_slabs_and_threads_do_not_matter(
    tmp_path: Path, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from castwise.checkpoint.planning.encode import encoded_weight  # noqa: PLC0415

    source = plain_file(tmp_path / "model.gguf", weights())
    checkpoint.quantize_file(source, tmp_path / "whole.gguf", "q3_k")
    monkeypatch.setattr(encoded_weight, "_FLIGHT_ELEMENTS", 1 << 12)
    checkpoint.quantize_file(source, tmp_path / "slabs.gguf", "q3_k", threads=threads)
    whole, slabs = (tmp_path / f"{name}.gguf" for name in ("whole", "slabs"))
    assert whole.read_bytes() == slabs.read_bytes()


def test_it_takes_the_place_of_its_source(tmp_path: Path) -> None:
    source = plain_file(tmp_path / "model.gguf", weights())
    checkpoint.quantize_file(source, tmp_path / "out.gguf", "q8_0")
    checkpoint.quantize_file(source, source, "q8_0", overwrite=True)
    assert source.read_bytes() == (tmp_path / "out.gguf").read_bytes()


def test_a_model_in_several_files(tmp_path: Path, framework: Framework) -> None:
    gguf = framework("gguf")
    for name, limit in (("whole", 0), ("model", 4)):
        writer = gguf.GGUFWriter(tmp_path / f"{name}.gguf", "llama", split_max_tensors=limit)
        writer.add_block_count(2)
        for key_of_tensor, array in weights().items():
            writer.add_tensor(key_of_tensor, array)
        for write in ("header_to_file", "kv_data_to_file", "tensors_to_file"):
            getattr(writer, f"write_{write}")()
        writer.close()
    first = tmp_path / "model-00001-of-00003.gguf"
    checkpoint.quantize_file(first, tmp_path / "joined.gguf", "q5_0")
    checkpoint.quantize_file(tmp_path / "whole.gguf", tmp_path / "out.gguf", "q5_0")
    joined, out = ((tmp_path / f"{name}.gguf").read_bytes() for name in ("joined", "out"))
    assert joined == out


def refusal(source: Path, out: Path, **options: Any) -> str:
    with pytest.raises((CheckpointError, ValueError)) as refused:
        checkpoint.quantize_file(source, out, **options)
    assert not out.exists()
    return str(refused.value)


def test_what_is_refused(tmp_path: Path) -> None:
    tensors, out = weights(), tmp_path / "out.gguf"
    source = plain_file(tmp_path / "model.gguf", tensors)
    narrow = tensors | {"blk.1.ffn_down.weight": np.ones((16, 160), np.float32)}
    odd = plain_file(tmp_path / "narrow.gguf", narrow)
    text_of = refusal(odd, out, scheme="q4_k")
    assert "'blk.1.ffn_down.weight': it has the shape (16, 160)" in text_of
    assert "in whole blocks of 256 along 160 columns" in text_of
    assert "or give it q5_0 in a map" in text_of
    checkpoint.quantize_file(odd, out, "q4_k", dtype_map={r"blk\.1\.ffn_down\.weight": "q5_0"})
    assert types_of(out)["blk.1.ffn_down.weight"] == "Q5_0"
    out.unlink()
    for number, value, words in (
        (0, np.nan, "it has an element that is NaN"),
        (1, np.inf, "it has an element that is infinite"),
        (2, 1e20, "whose largest magnitude is 1e+20, is beyond the range of float16"),
    ):
        wrong = tensors["blk.0.attn_q.weight"].astype(np.float32)
        wrong[3, 300] = value
        path = plain_file(tmp_path / f"{number}.gguf", tensors | {"blk.0.attn_q.weight": wrong})
        assert words in refusal(path, out, scheme="q4_k")
        assert "'blk.0.attn_q.weight'" in refusal(path, out, scheme="q6_k")
    for target in (tmp_path / "out.safetensors", tmp_path / "out"):
        assert ".gguf" in refusal(source, target, scheme="q4_k")
    folder = tmp_path / "folder"
    assert "castwise quantize makes another .gguf file" in refusal(source, folder, scheme="nvfp4")
    checkpoint.save(tmp_path / "plain.safetensors", {"a.weight": np.ones((8, 256), np.float32)})
    assert "no config.json states its hyperparameters" in refusal(
        tmp_path / "plain.safetensors", out, scheme="q4_k"
    )
    assert "inputs" in refusal(source, out, scheme="q4_k", inputs="dynamic")
    assert "is not one of q4_k; use 1x256" in refusal(source, out, scheme="q4_k", block=64)
    assert "which has 'amax' and 'best'; use one of these, or one of the schemes nvfp4" in refusal(
        source, out, scheme="q4_k", scales="four_over_six"
    )
    checkpoint.quantize_file(source, out, "q4_k")
    assert "it is quantized already" in refusal(out, tmp_path / "again.gguf", scheme="q8_0")
    assert "'iq4_xs' is a quantization of GGUF files" in refusal(
        source, tmp_path / "again.gguf", scheme="iq4_xs"
    )


def test_roles_are_those_of_llama() -> None:
    """Of every tensor that `tensor_allows_quantization` of llama.cpp keeps, as of 2026-11."""
    from castwise.checkpoint._tensors import TensorInfo  # noqa: PLC0415
    from castwise.checkpoint.containers.gguf._architectures import architecture_of  # noqa: PLC0415

    kept = [
        *("blk.0.ffn_gate_inp", "blk.0.ffn_gate_tid2eid", "altup_proj", "blk.3.laurel_l"),
        *("per_layer_model_proj", "position_embd", "token_types", "blk.0.ssm_conv1d"),
        *("blk.0.shortconv.conv", "blk.1.indexer.k_proj", "blk.0.time_mix_first"),
        *("blk.0.time_mix_w1", "blk.0.time_mix_g2", "blk.0.time_mix_decay_w2"),
        *("blk.0.time_mix_lerp_fused", "dec.blk.0.attn_rel_b", "v.position_embd"),
        *("v.sam.pos_embd", "v.sam.neck.0", "v.patch_embd", "v.patch_merger", "a.rvq.codebook"),
        *("mm.a.code_embd", "blk.0.attn_norm"),
    ]
    taken = [f"blk.0.{name}" for name in ("attn_q", "ffn_down", "ssm_in", "time_mix_key")]
    names = [f"{name}.weight" for name in (*kept, *taken)]
    infos = [TensorInfo(name, "float32", "float", "float32", (8, 256), 8192) for name in names]
    found = architecture_of({"general.architecture": "llama"}, infos)
    roles = {name: found.find(f"{name}.weight") for name in (*kept, *taken)}
    assert {name for name, row in roles.items() if row and row.role == "linear"} == {*taken}


@pytest.mark.parametrize("scheme", SCHEMES)
def test_diff_says_how_blocks_were_made(tmp_path: Path, scheme: str, framework: Framework) -> None:
    framework("gguf")
    source, out = plain_file(tmp_path / "model.gguf", weights()), tmp_path / "out.gguf"
    checkpoint.quantize_file(source, out, scheme)
    rows = checkpoint.diff(source, out).tensors
    found = {row.name: row.explanation for row in rows if row.explanation is not None}
    assert {*found} == {*LINEAR}
    for explanation in found.values():
        assert explanation.text == f"B is A quantized as {scheme} by the recipe of gguf"
        assert (explanation.options["scheme"], explanation.options["block"]) == (scheme, None)
        assert explanation.every_element


@pytest.mark.parametrize("name", ["IQ4_NL", "TQ2_0"])
def test_diff_of_types_that_are_read_alone(tmp_path: Path, name: str, framework: Framework) -> None:
    framework("gguf")
    number, elements, size = BLOCK_TYPES[name]
    rows, data = 16, np.random.default_rng(0).integers(0, 64, (2, 16, WIDTH // elements, size))
    scales = slice(None, 2) if name == "IQ4_NL" else slice(-2, None)
    paths = [tmp_path / "a.gguf", tmp_path / "b.gguf"]
    for path, blocks in zip(paths, data.astype(np.uint8), strict=True):
        blocks[..., scales] = [0, 0x3C]  # 1 in float16
        start = header([(LINEAR[0], (rows, WIDTH), number, 0)], FIRST[0] + FIRST[2], 2)
        path.write_bytes(start + bytes(-len(start) % 32) + blocks.tobytes())
    plain = tmp_path / "plain.safetensors"
    checkpoint.dequantize_file(paths[0], plain, "float32")
    for first, second in (paths, [plain, paths[1]], [paths[1], plain]):
        (row,) = checkpoint.diff(first, second).tensors
        assert row.different
        assert row.explanation is None
    assert main(["diff", *map(str, paths)]) == 1


def test_sizes_of_blocks_in_the_report(tmp_path: Path) -> None:
    source, out = plain_file(tmp_path / "model.gguf", weights()), tmp_path / "out.gguf"
    summary = checkpoint.quantize_file(source, out, "q6_k")
    _, elements, size = BLOCK_TYPES["Q6_K"]
    (row,) = (row for row in summary.rows if row.name == "blk.0.attn_q.weight")
    assert row.nbytes_after == 24 * 2 * WIDTH // elements * size
    assert checkpoint.inspect(out).bits_per_weight()["blk.0.attn_q.weight"] == 6.5625


def back_as_decoded(plain: dict[str, Array], back: Path, scheme: str, names: list[str]) -> None:
    """Check that a folder has the values of blocks of these weights, and all others."""
    found = checkpoint.load(back)
    assert found.keys() == plain.keys()
    for name, array in plain.items():
        values = array.astype(np.float32)
        if name in names:
            values = decode_type(encode_type(array, scheme.upper()), scheme.upper())
        np.testing.assert_array_equal(found[name].astype(np.float32), values, err_msg=name)


NUMBERS = {
    "blk.0.attn_q.weight": (1, 2 * WIDTH),
    "blk.0.ffn_gate_exps.weight": (2, WIDTH),
    "output.weight": (1, WIDTH),
}
COUNTS = [3, 0]  # of the experts' inputs


def channel_numbers() -> dict[str, Array]:
    rng = np.random.default_rng(7)
    return {
        name: np.exp(2 * rng.standard_normal(shape)).astype(np.float32)
        for name, shape in NUMBERS.items()
    }


def sums_file(path: Path, numbers: dict[str, Array], framework: Framework) -> Path:
    """Write sums of squares, of experts by their counts."""
    sums = {}
    for name, rows in numbers.items():
        counts = np.float32(COUNTS if len(rows) > 1 else [5])[:, None]
        sums |= {f"{name}.in_sum2": rows * counts, f"{name}.counts": counts}
    return write_sums(framework("gguf"), path, sums)


def weighted_bytes(name: str, array: Array, numbers: dict[str, Array], **options: Any) -> bytes:
    """Return blocks as llama-quantize makes them: channels that were not counted count 1."""
    kind, found = options.pop("kind"), []
    for index, matrix in enumerate(array.reshape(-1, *array.shape[-2:])):
        row = None
        if name in numbers:
            rows = numbers[name]
            counts = np.float32(COUNTS if len(rows) > 1 else [5])
            is_counted = counts[index] > 0
            row = rows[index] * counts[index] / counts[index] if is_counted else rows[index] * 0 + 1
        found.append(encode_type(matrix, kind, importance=row, **options).tobytes())
    return b"".join(found)


def test_a_dry_run_measures_what_a_file_would_lose(tmp_path: Path) -> None:
    source, out = plain_file(tmp_path / "model.gguf", weights()), tmp_path / "out.gguf"
    measured = checkpoint.quantize_file(source, out, "q4_k_m", dry_run=True, measure=True)
    assert not out.exists()
    written = checkpoint.quantize_file(source, out, "q4_k_m")
    assert [str(row.report) for row in measured.rows] == [str(row.report) for row in written.rows]


@pytest.mark.parametrize("scales", ["amax", "best"])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_comparison_names_the_scales(tmp_path: Path, scheme: str, scales: Any) -> None:
    source = plain_file(tmp_path / "model.gguf", weights(np.float16))
    out = tmp_path / "out.gguf"
    checkpoint.quantize_file(source, out, scheme, scales=scales)
    changed = [row.explanation for row in checkpoint.diff(source, out).tensors if row.different]
    assert changed
    for explanation in changed:
        assert explanation is not None
        assert explanation.options["scales"] == scales
        assert f"quantized as {scheme} by the recipe of gguf" in str(explanation)


@pytest.mark.parametrize("scales", ["amax", "best"])
@pytest.mark.parametrize("scheme", ["q4_0", "q5_1", "q2_k", "q3_k", "q4_k_m"])
def test_importance_weights_blocks(
    tmp_path: Path, scheme: str, scales: Any, framework: Framework
) -> None:
    """Of each expert by its row, also where no input of one was counted; threads do not matter."""
    tensors, numbers = weights(), channel_numbers()
    source = plain_file(tmp_path / "model.gguf", tensors)
    path = sums_file(tmp_path / "i.gguf", numbers, framework)
    for threads in (1, 3):
        out = tmp_path / f"{threads}.gguf"
        summary = checkpoint.quantize_file(
            source, out, scheme, importance=path, scales=scales, threads=threads
        )
    assert out.read_bytes() == (tmp_path / "1.gguf").read_bytes()
    found, types = tensor_bytes(out), types_of(out)
    for name, array in tensors.items():
        if types[name] in BLOCK_TYPES:
            options = {"kind": types[name], "scales": scales}
            assert found[name] == weighted_bytes(name, array, numbers, **options), name
    is_mix = scheme == "q4_k_m"
    assert summary.importance is not None
    missing = {"blk.1.ffn_down.weight", *(TABLES[:1] if is_mix else ())}
    # Of q6_k and q8_0, llama.cpp searches the scales of the former alone.
    experts = "blk.0.ffn_gate_exps.weight"
    assert {*summary.importance.unweighted} == missing | {experts}
    reason = "the file counted no inputs of its experts 1, whose channels count 1 each"
    assert f"searched without importance, since {reason}: {experts}" in str(summary)
    assert summary.importance.unused == ([] if is_mix else ["output.weight"])
    row = next(row for row in summary.rows if row.name == "blk.0.attn_q.weight").to_dict()
    assert row["weighted_sqnr_db"] > 5
    assert checkpoint.verify(
        source, out, dtype_map={"default": scheme}, importance=path, scales=scales
    ).equal
    assert not checkpoint.verify(source, out, dtype_map={"default": scheme}).equal


def test_a_folder_becomes_a_file_by_importance(tmp_path: Path, framework: Framework) -> None:
    """With the blocks of the file that its plain weights become."""
    framework("gguf")
    source, out, back = tmp_path / "model", tmp_path / "out.gguf", tmp_path / "back"
    dense(source, {})
    plain = checkpoint.load(source)
    rng = np.random.default_rng(7)
    numbers = {
        name: np.exp(rng.standard_normal(array.shape[1])).astype(np.float32)
        for name, array in plain.items()
        if name.endswith("_proj.weight")
    }
    np.savez(tmp_path / "numbers.npz", **numbers)
    summary = checkpoint.quantize_file(source, out, "q4_1", importance=tmp_path / "numbers.npz")
    assert summary.importance is not None
    assert (summary.importance.weighted, summary.importance.unused) == (len(numbers), [])
    checkpoint.dequantize_file(out, back, "float32")
    found = checkpoint.load(back)
    for name, row in numbers.items():
        values = decode_type(encode_type(plain[name], "Q4_1", importance=row), "Q4_1")
        np.testing.assert_array_equal(found[name].astype(np.float32), values, err_msg=name)


@pytest.mark.parametrize("scheme", ["q8_0", "q4_1", "q5_0"])
@pytest.mark.parametrize("embeddings", [False, True])
def test_a_folder_becomes_a_file(
    tmp_path: Path, scheme: str, embeddings: bool, framework: Framework
) -> None:
    gguf = framework("gguf")
    source, out, back = tmp_path / "model", tmp_path / "model.gguf", tmp_path / "back"
    dense(source, {})
    summary = checkpoint.quantize_file(source, out, scheme, quantize_embeddings=embeddings)
    assert len([row for row in summary.rows if row.target == scheme]) == 7 + embeddings
    file_type = gguf.GGUFReader(out).fields["general.file_type"].contents()
    assert gguf.LlamaFileType(file_type).name == f"MOSTLY_{scheme.upper()}"
    plain = checkpoint.load(source)
    names = [name for name in plain if name.endswith("_proj.weight")]
    names += ["model.embed_tokens.weight"] * embeddings
    checkpoint.dequantize_file(out, back, "float32")
    back_as_decoded(plain, back, scheme, names)
    assert not checkpoint.verify_loading(out, "llama.cpp").problems
    is_same = checkpoint.verify(source, out, dtype_map={"default": scheme}).equal
    assert is_same != embeddings


def test_heads_whose_rows_change_places(tmp_path: Path, framework: Framework) -> None:
    """Queries and keys of Llama, and the factors of its rotary embedding, with the first weight."""
    framework("gguf")
    source, out, back = tmp_path / "model", tmp_path / "model.gguf", tmp_path / "back"
    dense(source, {}, model_type="llama", architectures=["LlamaForCausalLM"])
    plain = {name: x for name, x in checkpoint.load(source).items() if "k_norm" not in name}
    plain = {name: x for name, x in plain.items() if "q_norm" not in name}
    for shard in source.glob("*.safetensors*"):
        shard.unlink()
    checkpoint.save(source / "model.safetensors", plain)
    checkpoint.quantize_file(source, out, "q5_1", consumer="llama.cpp")
    checkpoint.dequantize_file(out, back, "float32")
    names = [name for name in plain if name.endswith("_proj.weight")]
    back_as_decoded(plain, back, "q5_1", names)


def test_plain_experts_of_gpt_oss_become_mxfp4_alone(tmp_path: Path) -> None:
    """The refusal of another type has a way to a file that works."""
    source, folder, out = tmp_path / "plain", tmp_path / "folder", tmp_path / "out.gguf"
    checkpoint.dequantize_file(gpt_oss_model(tmp_path / "model"), source)
    text = (
        r"plain cannot be quantized: tensor 'model.layers.0.mlp.experts.\w+' is not quantized, .* "
        r"the other way round; make them mxfp4 in a folder \(castwise quantize --scheme mxfp4 "
        r"--recipe gpt-oss\), and transcode that \(castwise transcode\)$"
    )
    with pytest.raises(CheckpointError, match=text):
        checkpoint.quantize_file(source, out, "q4_0")
    checkpoint.quantize_file(source, folder, "mxfp4", recipe="gpt-oss")
    checkpoint.transcode_file(folder, out, "gguf")
    assert types_of(out)["blk.0.ffn_down_exps.weight"] == "MXFP4"


def test_experts_of_a_folder_are_stacked(tmp_path: Path, framework: Framework) -> None:
    gguf = framework("gguf")
    plain, _ = of_experts(tmp_path / "model", ".*q_proj")
    out, back = tmp_path / "model.gguf", tmp_path / "back"
    checkpoint.quantize_file(tmp_path / "model", out, "q4_0", ignore=".*q_proj.weight")
    shapes = {tensor.name: tuple(tensor.shape) for tensor in gguf.GGUFReader(out).tensors}
    assert shapes["blk.0.ffn_up_exps.weight"] == (64, 32, 12)
    checkpoint.dequantize_file(out, back, "float32")
    names = [n for n in plain if n.endswith("_proj.weight") and "q_proj" not in n]
    back_as_decoded(plain, back, "q4_0", names)
    mixed = {"dtype_map": {r".*experts\.3\.up_proj\.weight": "q8_0"}}
    text_of = refusal(tmp_path / "model", tmp_path / "mixed.gguf", scheme="q4_0", **mixed)
    assert "would be of experts of several formats" in text_of
    dtypes = {"dtype_map": {".*norm.*": "float16"}}
    text_of = refusal(tmp_path / "model", tmp_path / "mixed.gguf", scheme="q4_0", **dtypes)
    assert "leave float16 out" in text_of
