"""`castwise dequantize`: files and folders, what is written, and what is said."""

from __future__ import annotations

import json
import logging
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from castwise import checkpoint
from castwise.checkpoint import CastPlan, CheckpointError, Progress
from castwise.cli import main
from checkpoint_samples import assert_same
from processes import run_limited, run_python
from producer_models import KEPT, MODELS, MORE, Decodable, Draw, write, write_in_shards
from producer_models.deepseek import two_weights
from small_llama import INDEX

NAME = "deepseek, scales of float32"


def files(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_a_sharded_folder(tmp_path: Path) -> None:
    """A shard of scales alone disappears; the index names what there is, with its true size."""
    model = MODELS[NAME]()
    source, out = write_in_shards(tmp_path / "model", model), tmp_path / "out"
    (source / "hf_quant_config.json").write_text("{}")
    summary = checkpoint.dequantize_file(source, out)
    index = json.loads((out / INDEX).read_text())
    assert index["weight_map"] == {
        "a.weight": "model-00001-of-00003.safetensors",
        "norm.weight": "model-00003-of-00003.safetensors",
    }
    assert index["metadata"] == {"total_size": 576 * 260 * 2 + 16, "made_by": "test"}
    assert set(files(out)) == {
        INDEX,
        "config.json",
        "model-00001-of-00003.safetensors",
        "model-00003-of-00003.safetensors",
        "tokenizer/vocab.txt",
    }
    assert_same(checkpoint.load(out)["a.weight"], model.plain["a.weight"])
    row = next(one for one in summary.rows if one.name == "a.weight")
    assert (row.source, row.target, row.shape) == ("fp8_block", "bfloat16", (576, 260))
    assert (row.nbytes_before, row.nbytes_after) == (576 * 260 + 60, 576 * 260 * 2)
    assert summary.findings() == []
    assert json.loads((out / "config.json").read_text()) == {}


def test_other_destinations(tmp_path: Path) -> None:
    model = two_weights()
    source = write_in_shards(tmp_path / "model", model)
    plain = model.plain | {"norm.weight": np.ones(4, np.float32)}
    checkpoint.dequantize_file(source, tmp_path / "one.safetensors")
    checkpoint.dequantize_file(source, tmp_path / "divided", max_shard_size=299_530)
    checkpoint.dequantize_file(source, source, overwrite=True)
    for path in (tmp_path / "one.safetensors", tmp_path / "divided", source):
        found = checkpoint.load(path)
        assert set(found) == set(plain)
        for name, array in plain.items():
            assert_same(found[name], array)
    assert len(list((tmp_path / "divided").glob("*.safetensors"))) == 3
    with pytest.raises(CheckpointError, match="no weight in it is quantized"):
        checkpoint.dequantize_file(source, source)


def test_a_file_beside_its_configuration(tmp_path: Path) -> None:
    model = MODELS[NAME]()
    source = write(tmp_path / "model", model) / "model.safetensors"
    checkpoint.dequantize_file(source, tmp_path / "out.safetensors", "float16")
    wide = checkpoint.dequantize_file(source, tmp_path / "wide.safetensors", "float32")
    assert wide.options == {"dtype": "float32", "arithmetic": "peer", "only": None, "seed": None}
    exact = checkpoint.load(tmp_path / "wide.safetensors")["a.weight"]
    found = checkpoint.load(tmp_path / "out.safetensors")["a.weight"]
    assert_same(found, exact.astype(np.float16))
    assert_same(exact.astype(model.plain["a.weight"].dtype), model.plain["a.weight"])


def test_other_containers(tmp_path: Path) -> None:
    model = MODELS["awq"]()
    model.tensors |= {f"b{name[1:]}": array for name, array in model.tensors.items()}
    folder = write(tmp_path / "model", model)
    (folder / "model.safetensors").unlink()
    source, out = folder / "model.npz", tmp_path / "out.npz"
    checkpoint.save(source, model.tensors)
    checkpoint.dequantize_file(source, out)
    found = checkpoint.load(out)
    assert set(found) == {"a.weight", "b.weight"}
    assert_same(found["b.weight"], model.plain["a.weight"])
    assert checkpoint.verify(source, out).equal


def test_exact_arithmetic(tmp_path: Path) -> None:
    """The product of real numbers is rounded once; that is float64's here, where it is exact."""
    model = MODELS[NAME]()
    source = write(tmp_path / "model", model)
    checkpoint.dequantize_file(source, tmp_path / "out", arithmetic="exact")
    weight, scale = model.tensors.values()
    wide = np.repeat(np.repeat(scale.astype(np.float64), 128, 0), 128, 1)[:576, :260]
    product = weight.astype(np.float64) * wide
    found = checkpoint.load(tmp_path / "out")["a.weight"].astype(np.float64)
    ulp = np.exp2(np.floor(np.log2(np.maximum(np.abs(product), 1e-30))) - 7)
    assert (np.abs(found - product) <= ulp / 2).all()


def test_exact_arithmetic_with_factors(tmp_path: Path) -> None:
    """Codes of 4 bits, scales of 24 and factors of 8 leave float64 room for the whole product."""
    model = MODELS["modelopt, int4, scaled inputs"]()
    source = write(tmp_path / "model", model)
    checkpoint.dequantize_file(source, tmp_path / "out", "float32", arithmetic="exact")
    packed, scale, factor = (array.astype(np.float64) for array in model.tensors.values())
    codes = np.stack([packed % 16, packed // 16], 1).reshape(26, 96)
    values = np.where(codes > 7, codes - 16, codes) * np.repeat(scale, 32, 1) * factor
    assert_same(checkpoint.load(tmp_path / "out")["a.weight"], values.astype(np.float32))
    source = write(tmp_path / "wide", MODELS["modelopt, int8, scaled inputs"]())
    with pytest.raises(CheckpointError, match=r"a\.weight.*factors of float32.*use 'peer'"):
        checkpoint.dequantize_file(source, tmp_path / "no", arithmetic="exact")


def test_exact_arithmetic_without_float8(tmp_path: Path) -> None:
    """Products of W4A8 are computed in float8, and exact arithmetic rounds none of them to it."""
    model, plain = MORE["modelopt, w4a8"](), MODELS["modelopt, int4"]()
    for name, one in (("a", model), ("b", plain)):
        source = write(tmp_path / name, one)
        checkpoint.dequantize_file(source, tmp_path / f"{name}-out", arithmetic="exact")
    found, expected = (checkpoint.load(tmp_path / f"{name}-out")["a.weight"] for name in "ab")
    assert_same(found, expected)
    model.config["quantization_config"]["quant_algo"] = "W4A16_AWQ"
    with pytest.raises(CheckpointError, match=r"'a\.weight_scale_2' is a scale of W4A8_AWQ"):
        checkpoint.dequantize_file(write(tmp_path / "no", model), tmp_path / "no-out")


def test_a_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, out = write_in_shards(tmp_path / "model", MODELS[NAME]()), tmp_path / "out"
    plan = checkpoint.dequantize_file(source, out, dry_run=True)
    assert isinstance(plan, CastPlan)
    assert not out.exists()
    assert [(row.name, row.target) for row in plan.rows] == [
        ("a.weight", "bfloat16"),
        ("norm.weight", None),
    ]
    assert main(["dequantize", str(source), str(out), "--dry-run"]) == 0
    assert "fp8_block  bfloat16" in capsys.readouterr().out
    assert not out.exists()


def test_what_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    model = MODELS["autofp8"]()
    model.tensors["a.k_scale"] = np.ones(1, np.float32)
    source, out = write(tmp_path / "model", model), tmp_path / "out"
    report = tmp_path / "report.json"
    command = ["dequantize", str(source), str(out), "--report", str(report)]
    assert main(command) == 0
    said = capsys.readouterr()
    lines = [" ".join(line.split()) for line in said.out.splitlines()]
    assert lines[2] == "a.weight 8x16 fp8_tensor bfloat16 1 136 256"
    assert lines[3].startswith(f"{source} -> {out}: 1 tensor decoded, 2 kept")
    assert "a.input_scale" in caplog.text
    assert "a.k_scale" in caplog.text
    assert set(checkpoint.load(out)) == {"a.weight", *KEPT}
    written = json.loads(report.read_text())
    assert [one["to"] for one in written["tensors"] if one["name"] == "a.weight"] == ["bfloat16"]
    assert main(command) == 2
    assert "allow castwise to replace the whole folder" in capsys.readouterr().err
    assert main([*command, "--overwrite", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == written
    assert main([*command, "--overwrite", "--quiet", "--dtype", "float8_e4m3fn"]) == 2
    assert "weights are decoded to bfloat16, float16, float32" in capsys.readouterr().err


class Stop(Exception):  # noqa: N818
    """Stops a run."""


def test_an_interrupted_run_goes_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = two_weights()
    source, out, whole = (
        write_in_shards(tmp_path / "model", model),
        tmp_path / "out",
        tmp_path / "whole",
    )
    checkpoint.dequantize_file(source, whole)

    def stop(progress: Progress) -> None:
        if progress.name == "norm.weight":
            raise Stop

    with caplog.at_level(logging.WARNING), pytest.raises(Stop):
        checkpoint.dequantize_file(source, out, resumable=True, progress=stop)
    assert not out.exists()
    assert "resume goes on with them" in caplog.text
    with pytest.raises(CheckpointError, match="another conversion"):
        checkpoint.dequantize_file(source, out, "float16", resume=True)
    with pytest.raises(CheckpointError, match="another conversion"):
        checkpoint.dequantize_file(source, out, arithmetic="exact", resume=True)
    summary = checkpoint.dequantize_file(source, out, resume=True)
    assert files(out) == files(whole)
    assert {row.name: row.target for row in summary.rows}["a.weight"] == "bfloat16"


def test_memory_does_not_grow_with_a_tensor(tmp_path: Path) -> None:
    """A slab per thread is decoded and written while two wait: how many meet is chance."""
    draw, threads = Draw(), 2
    slab = (1 + 2) * (1 << 20)  # bytes, before and after
    for rows in (2048, 8192):
        weight, scale = draw.float8(rows, 4096), draw.scales(rows // 128, 32)
        config: Any = MODELS[NAME]().config
        tensors = {"a.weight": weight, "a.weight_scale_inv": scale}
        folder = write(tmp_path / str(rows), Decodable(tensors, {}, config))
        del tensors, weight
        tracemalloc.start()
        checkpoint.dequantize_file(folder, tmp_path / f"out {rows}", threads=threads)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < (threads + 2) * slab


@pytest.mark.parametrize("threads", [1, 5])
def test_threads_do_not_matter(tmp_path: Path, threads: int) -> None:
    model = MODELS["compressed-tensors, nvfp4"]()
    source = write(tmp_path / "model", model)
    checkpoint.dequantize_file(source, tmp_path / "out", threads=threads)
    assert_same(checkpoint.load(tmp_path / "out")["a.weight"], model.plain["a.weight"])


INTERRUPTED = """
import os, signal, sys, time
from castwise import checkpoint
from castwise.checkpoint.planning import derived_reader
from castwise.checkpoint.planning.decode import decode

signal.signal(signal.SIGINT, signal.default_int_handler)  # also if this process ignores it
decode._SLAB_ELEMENTS = 5000
count, write = 0, derived_reader._write

def write_slowly(*arguments):
    global count
    count += 1
    if count == int(sys.argv[3]):
        os.kill(os.getpid(), signal.SIGINT)
    time.sleep(0.02)
    return write(*arguments)

derived_reader._write = write_slowly
try:
    checkpoint.dequantize_file(sys.argv[1], sys.argv[2], threads=3)
except KeyboardInterrupt:
    # Some may have the numbers of files that were closed.
    files = [open(f"{sys.argv[3]}-{number}", "xb") for number in range(9)]
    time.sleep(0.1)
    print([os.fstat(one.fileno()).st_size for one in files])
"""


@pytest.mark.thinned(2)
@pytest.mark.parametrize("number", [1, 2, 4])
def test_an_interruption_leaves_nothing(
    tmp_path: Path, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread that was just started may go on for a slab: it writes into no other file."""
    source, others = write(tmp_path / "model", MODELS[NAME]()), tmp_path / "others"
    others.mkdir()
    monkeypatch.chdir(others)
    done = run_python("-c", INTERRUPTED, source, tmp_path / "out", number)
    assert done.stdout == f"{[0] * 9}\n", done.stderr
    assert sorted(tmp_path.iterdir()) == [source, others]


@pytest.mark.skipif(sys.platform != "linux", reason="a write may end early there")
@pytest.mark.parametrize("threads", [1, 3])
def test_a_full_disk_leaves_nothing(tmp_path: Path, threads: int) -> None:
    source, out = write(tmp_path / "model", MODELS[NAME]()), tmp_path / "out"
    words = ("dequantize", source, out, "--threads", threads)
    done = run_limited("RLIMIT_FSIZE", 100_000, *words)
    assert done.returncode == 2
    assert done.stderr == f"castwise: error: {out}: File too large\n"
    assert sorted(tmp_path.iterdir()) == [source]


def test_scales_that_are_not_as_stated(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What is stored is what is meant; that `scale_fmt` says otherwise is a warning."""
    for name, warns in ((NAME, True), ("deepseek, powers of two", False)):
        model = MODELS[name]()
        model.config["quantization_config"]["scale_fmt"] = "ue8m0"
        caplog.clear()
        out = tmp_path / f"out {warns}"
        checkpoint.dequantize_file(write(tmp_path / f"model {warns}", model), out)
        assert_same(checkpoint.load(out)["a.weight"], model.plain["a.weight"])
        assert caplog.text.count("scale_fmt says ue8m0, but the scales of 'a.weight'") == warns
    model = MODELS["deepseek, powers of two"]()
    scale = model.tensors["a.weight_scale_inv"].astype(np.float32)
    model.tensors["a.weight_scale_inv"] = scale
    model.config["quantization_config"]["scale_fmt"] = "ue8m0"
    checkpoint.dequantize_file(write(tmp_path / "model", model), tmp_path / "out")
    assert caplog.text == ""


def test_zero_points_that_decoders_read_otherwise(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The older form of GPTQ stores them less one, so that 0 wraps: that is said, once."""
    for name, warns in (("gptq, 4 bits", True), ("gptq, v2", False)):
        model = MODELS[name]()
        caplog.clear()
        source, out = write(tmp_path / f"model {warns}", model), tmp_path / f"out {warns}"
        checkpoint.dequantize_file(source, out)
        assert_same(checkpoint.load(out)["a.weight"], model.plain["a.weight"])
        assert caplog.text.count("zero points of 'a.qweight' are stored as the largest") == warns
    model = MODELS["gptq, 4 bits"]()
    model.tensors["a.qzeros"] &= 0x77777777
    caplog.clear()
    checkpoint.dequantize_file(write(tmp_path / "model", model), tmp_path / "out")
    assert caplog.text == ""


def test_nan_and_infinity_come_through(tmp_path: Path) -> None:
    model = MODELS["mxfp8"]()
    weight, scale = model.tensors.values()
    scale[0, 0], scale[1, 1], scale[2, 2] = 255, 254, 0
    weight[3, 3] = np.nan
    weight[1, 32:64] = 448
    checkpoint.dequantize_file(write(tmp_path / "model", model), tmp_path / "out")
    found = checkpoint.load(tmp_path / "out")["a.weight"].astype(np.float32)
    assert np.isnan(found[0, :32]).all()
    assert np.isnan(found[3, 3])
    assert np.isinf(found[1, 32:64]).all()
    assert np.isfinite(found[2]).all()
