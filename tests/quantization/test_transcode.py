"""Quantized checkpoints are transcoded with the same values, or refused."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from castwise import checkpoint
from castwise.checkpoint import CheckpointError
from castwise.checkpoint.planning import derived_reader
from castwise.checkpoint.planning.transcode import _global_scales
from castwise.cli import main
from checkpoint_samples import assert_same
from producer_models import MODELS
from producer_models import write as write_model
from small_llama import INDEX, KEPT, WEIGHTS, write

CT, MODELOPT = "compressed-tensors", "modelopt"


def section(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "config.json").read_text())["quantization_config"]
    return found


@pytest.mark.parametrize(("old", "new"), [(CT, MODELOPT), (MODELOPT, CT)])
@pytest.mark.parametrize("scheme", ["nvfp4", "mxfp8_e4m3"])
def test_a_folder(tmp_path: Path, old: str, new: str, scheme: str) -> None:
    """The values are the same, and it is what quantizing to that form would have stated."""
    source, there = write(tmp_path / "plain"), tmp_path / "there"
    checkpoint.quantize_file(source, tmp_path / "model", scheme, recipe=old)
    checkpoint.quantize_file(source, there, scheme, recipe=new)
    out = tmp_path / "out"
    summary = checkpoint.transcode_file(tmp_path / "model", out, new)
    assert checkpoint.verify(tmp_path / "model", out, arithmetic="exact").equal
    before, after = checkpoint.load(tmp_path / "model"), checkpoint.load(out)
    for name, array in KEPT.items():
        assert_same(after[name], array)
    for name in WEIGHTS:
        scale = f"{name}_scale"
        assert_same(after[scale], before[scale])
        if scheme == "nvfp4":
            payloads = name, f"{name}_packed"
            assert_same(after[payloads[old == MODELOPT]], before[payloads[old == CT]])
    shapes = {name: array.shape for name, array in checkpoint.load(there).items()}
    assert {name: array.shape for name, array in after.items()} == shapes
    assert section(out) == section(there)
    assert {one.name for one in out.iterdir()} == {one.name for one in there.iterdir()}
    index, wanted = (json.loads((one / INDEX).read_text()) for one in (out, there))
    assert index["weight_map"] == wanted["weight_map"]
    assert index["metadata"] == wanted["metadata"]
    assert {row.target for row in summary.rows} >= ({"nvfp4"} if scheme == "nvfp4" else {None})


def test_threads_are_as_many_as_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They do not change a bit; the command takes as many as the function."""
    counts: list[int] = []

    def pool(threads: int) -> ThreadPoolExecutor:
        counts.append(threads)
        return ThreadPoolExecutor(threads)

    monkeypatch.setattr(derived_reader, "ThreadPoolExecutor", pool)
    source = write_model(tmp_path / "model", MODELS[f"{CT}, nvfp4"]())
    single, several = tmp_path / "single", tmp_path / "several"
    checkpoint.transcode_file(source, single, MODELOPT, threads=1)
    assert set(counts) == {1}
    counts.clear()
    arguments = ["transcode", str(source), str(several), "--to", MODELOPT]
    assert main([*arguments, "--threads", "3", "--exit-zero"]) == 0
    assert set(counts) == {3}
    for path in single.iterdir():
        assert path.read_bytes() == (several / path.name).read_bytes()
    with pytest.raises(ValueError, match="threads=0 is not valid; use an int of 1 or more"):
        checkpoint.transcode_file(source, tmp_path / "none", MODELOPT, threads=0)


@pytest.mark.parametrize(("name", "new"), [(f"{CT}, nvfp4", MODELOPT), (f"{MODELOPT}, nvfp4", CT)])
def test_scales_of_inputs(tmp_path: Path, name: str, new: str) -> None:
    model = MODELS[name]()
    source, out, again = (
        write_model(tmp_path / "model", model),
        tmp_path / "out",
        tmp_path / "again",
    )
    checkpoint.transcode_file(source, out, new)
    found = checkpoint.load(out)
    old_names = ("a.input_global_scale", "a.input_scale")
    old, inputs = old_names if new == MODELOPT else old_names[::-1]
    shape = () if new == MODELOPT else (1,)
    assert_same(
        found[inputs], (np.float32(1) / model.tensors[old]).astype(np.float32).reshape(shape)
    )
    if new == MODELOPT:
        assert section(out)["quant_algo"] == "NVFP4"
        assert (out / "hf_quant_config.json").is_file()
    else:
        (group,) = section(out)["config_groups"].values()
        assert group["input_activations"] == {**group["weights"], "dynamic": "local"}
        assert not (out / "hf_quant_config.json").exists()
    checkpoint.dequantize_file(out, again)
    np.testing.assert_array_equal(checkpoint.load(again)["a.weight"], model.plain["a.weight"])


def test_reciprocals(tmp_path: Path) -> None:
    """Where the nearest reciprocal changes a value, a neighbor may not; it is looked for."""
    scales = np.arange(1, 127, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn)
    first = np.uint32(0x42C7BE75).view(np.float32)
    assert not _global_scales._is_same(scales.astype(np.float32), first, np.float32(1) / first)
    path = tmp_path / "a.safetensors"
    packed = np.random.default_rng(1).integers(0, 256, (126, 8), np.uint8)
    tensors = {
        "a.weight_packed": packed,
        "a.weight_scale": scales.reshape(126, 1),
        "a.weight_global_scale": first.reshape(1),
    }
    stated = {"quant_method": CT, "format": "nvfp4-pack-quantized"}
    checkpoint.save(path, tensors, metadata={"quantization_config": json.dumps(stated)})
    checkpoint.transcode_file(path, tmp_path / "b.safetensors", MODELOPT)
    found = checkpoint.load(tmp_path / "b.safetensors")["a.weight_scale_2"]
    assert found.shape == ()
    assert found != np.float32(1) / first
    assert checkpoint.verify(path, tmp_path / "b.safetensors", arithmetic="exact").equal
    for dtype in ("float16", "bfloat16"):
        for one in "ab":
            source = tmp_path / f"{one}.safetensors"
            checkpoint.dequantize_file(source, tmp_path / f"{one} {dtype}.safetensors", dtype)
        plain = [
            checkpoint.load(tmp_path / f"{one} {dtype}.safetensors")["a.weight"] for one in "ab"
        ]
        np.testing.assert_array_equal(*plain)


def test_what_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2, a name and the remedy, nothing written."""

    def refused(folder: Path, to: str, *parts: str) -> None:
        before = sorted(tmp_path.rglob("*"))
        assert main(["transcode", str(folder), str(tmp_path / "out"), "--to", to]) == 2
        said = capsys.readouterr()
        assert said.out == ""
        assert all(part in said.err for part in parts), said.err
        assert sorted(tmp_path.rglob("*")) == before

    plain = write(tmp_path / "plain")
    refused(plain, CT, "no weight in it is quantized", "castwise quantize")
    refused(plain, "mlx", "--to mlx: ", "castwise dequantize")
    made = {}
    for name, more in (
        (f"{CT}, nvfp4", {}),
        ("mlx, nvfp4", {}),
        (f"{MODELOPT}, nvfp4", {"a.pre_quant_scale": np.ones(64, np.float32)}),
    ):
        made[name] = write_model(tmp_path / name, MODELS[name](), **more)
    refused(made[f"{CT}, nvfp4"], CT, "'a.weight_packed' is stored so already")
    refused(made["mlx, nvfp4"], CT, "'a.weight' is nvfp4 as by mlx", "castwise dequantize")
    refused(made[f"{MODELOPT}, nvfp4"], CT, "pre_quant_scale")
    cached = write_model(
        tmp_path / "cached", MODELS[f"{CT}, nvfp4"](), **{"a.k_scale": np.ones(1, np.float32)}
    )
    refused(cached, MODELOPT, "scales of caches", "a.k_scale")
    torn = MODELS[f"{CT}, nvfp4"]()
    del torn.tensors["a.weight_global_scale"]
    refused(write_model(tmp_path / "torn", torn), MODELOPT, "a.weight")


def test_no_reciprocal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write(tmp_path / "plain")
    checkpoint.quantize_file(source, tmp_path / "model", "nvfp4")
    monkeypatch.setattr(_global_scales, "_is_same", lambda *_: False)
    with pytest.raises(CheckpointError, match=r"tensor .*weight_scale': with no reciprocal"):
        checkpoint.transcode_file(tmp_path / "model", tmp_path / "out", MODELOPT)
    assert not (tmp_path / "out").exists()
