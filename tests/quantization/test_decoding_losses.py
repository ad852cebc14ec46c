"""Values that decoding loses are findings, with exit code 1, in every command that writes them."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from castwise import checkpoint
from castwise.checkpoint import DecodeReport
from castwise.checkpoint.planning.decode import decode as decode_module
from castwise.cli import main
from castwise.quantization.arrays import decode
from producer_models import MODELS, write
from support import run_castwise as run

TENSOR = "compressed-tensors, float8 tensor"
FP8, NVFP4 = "deepseek, scales of float32", "modelopt, nvfp4"
WEIGHT = "model.layers.0.self_attn.q_proj.weight"
INFINITE, NAN = np.float32(np.inf), np.float32(np.nan)


def damaged(folder: Path, name: str, part: str, value: Any) -> Path:
    """Write a model in which the first element of a part is another."""
    model = MODELS[name]()
    array = np.array(model.tensors[part])
    array.reshape(-1)[:1] = value
    return write(folder, model, **{part: array})


@pytest.mark.thinned(3, 1)
@pytest.mark.parametrize("name", MODELS)
def test_the_bounds_tell_what_counting_tells(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where scales say that nothing is lost, counting all values says so too."""
    source, out = write(tmp_path / "model", MODELS[name]()), tmp_path / "out"
    quick = checkpoint.dequantize_file(source, out).rows
    monkeypatch.setattr(decode, "product_range", lambda *_, **__: (0.0, np.inf))
    thorough = checkpoint.dequantize_file(source, tmp_path / "again").rows
    for one, other in zip(quick, thorough, strict=True):
        assert one.losses(max_zeros=0) == other.losses(max_zeros=0)
        assert (one.target is None) == (one.report is None)


@pytest.mark.parametrize(
    ("name", "part", "value", "kinds"),
    [
        (FP8, "a.weight_scale_inv", NAN, {"nan"}),
        (FP8, "a.weight_scale_inv", INFINITE, {"overflow", "nan"}),
        (FP8, "a.weight_scale_inv", 3e38, {"overflow"}),
        (FP8, "a.weight_scale_inv", 0, {"underflow"}),
        (FP8, "a.weight", NAN, {"nan"}),
        (NVFP4, "a.weight_scale", NAN, {"nan"}),
        (NVFP4, "a.weight_scale_2", NAN, {"nan"}),
        (NVFP4, "a.weight_scale_2", INFINITE, {"overflow", "nan"}),
        (NVFP4, "a.weight_scale_2", 0, {"underflow"}),
        ("gpt-oss", "mlp.experts.gate_up_proj_scales", 255, {"nan"}),
        ("awq", "a.scales", INFINITE, {"overflow", "nan"}),
        ("awq", "a.scales", NAN, {"nan"}),
        ("mlx, 4 bits", "a.biases", INFINITE, {"overflow"}),
        ("bitsandbytes, nf4", "a.weight.absmax", INFINITE, {"overflow"}),
    ],
)
def test_a_damaged_part(tmp_path: Path, name: str, part: str, value: Any, kinds: set[str]) -> None:
    source, out = damaged(tmp_path / "model", name, part, value), tmp_path / "out"
    summary = checkpoint.dequantize_file(source, out)
    findings = summary.findings(max_zeros=0)
    assert kinds == {one.kind for one in findings} - ({"underflow"} - kinds)
    (row,) = (one for one in summary.rows if one.name == findings[0].tensor)
    values = np.asarray(checkpoint.load(out)[row.name], np.float64)
    assert row.report is not None
    assert row.report.nan_out == np.isnan(values).sum()
    assert row.report.overflowed == np.isinf(values).sum()
    assert row.report.count == values.size
    assert summary.out_of_range == (~np.isfinite(values)).sum()


@pytest.mark.parametrize("scale", [1e-12, 1e6])
def test_another_range(tmp_path: Path, scale: float, capsys: pytest.CaptureFixture[str]) -> None:
    """What bfloat16 holds float16 need not."""
    model = MODELS[FP8]()
    model.tensors["a.weight_scale_inv"] = np.full((5, 3), scale, np.float32)
    source = write(tmp_path / "model", model)
    words = ["dequantize", str(source), str(tmp_path / "out")]
    assert main(words) == 0
    assert capsys.readouterr().err == ""
    words[2] = str(tmp_path / "half")
    assert main([*words, "--dtype", "float16", "--json"]) == 1
    printed = capsys.readouterr()
    found = json.loads(printed.out)
    (row,) = (one for one in found["tensors"] if one["to"] is not None)
    values = checkpoint.load(words[2])["a.weight"]
    if scale > 1:
        assert row["report"]["overflowed"] == found["out_of_range"] == np.isinf(values).sum()
        assert " values are infinite in 'a.weight'; " in printed.err
        kind = "overflow"
    else:
        assert not values.any()
        assert row["zeroed_share"] == 1
        assert found["zeroed"] == (np.asarray(model.tensors["a.weight"], np.float32) != 0).sum()
        assert " codes that are not zero became zero in 'a.weight'; " in printed.err
        kind = "underflow"
    assert "--dtype with a wider range" in printed.err
    assert kind in {one["kind"] for one in found["findings"]}


def test_which_losses_count_is_a_choice(tmp_path: Path) -> None:
    source = damaged(tmp_path / "model", NVFP4, "a.weight_scale_2", 0)

    for number, (options, code) in enumerate(
        [
            ([], 1),
            (["--fail-on", "overflow,nan"], 0),
            (["--fail-on", "none"], 0),
            (["--max-zeros", "100%"], 0),
            (["--exit-zero"], 0),
            (["--fail-on", "inexact"], 2),
        ]
    ):
        run("dequantize", source, tmp_path / f"out{number}", *options, "--quiet", code=code)


def test_parts_executors_and_resumed_runs_say_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = MODELS[FP8]()
    scale = np.array(model.tensors["a.weight_scale_inv"])
    scale[0, 0] = NAN
    shards = {
        f"model-0000{number}-of-00002.safetensors": {
            f"{letter}.weight": model.tensors["a.weight"],
            f"{letter}.weight_scale_inv": scale,
        }
        for number, letter in ((1, "a"), (2, "b"))
    }
    source = tmp_path / "model"
    source.mkdir()
    for shard, tensors in shards.items():
        checkpoint.save(source / shard, tensors)
    weight_map = {name: shard for shard, tensors in shards.items() for name in tensors}
    index = {"metadata": {}, "weight_map": weight_map}
    (source / "model.safetensors.index.json").write_text(json.dumps(index))
    (source / "config.json").write_text(json.dumps(model.config))
    expected = checkpoint.dequantize_file(source, tmp_path / "out")
    assert [one.kind for one in expected.findings()] == ["nan", "nan"]

    with ThreadPoolExecutor(2) as executor:
        shared = checkpoint.dequantize_file(source, tmp_path / "shared", executor=executor)
    assert shared.rows == expected.rows

    for part in ("1/2", "2/2"):
        assert main(["dequantize", str(source), str(tmp_path / "parts"), "--part", part]) == 0
    refused = run("finish", tmp_path / "parts", "--fail-on", "inexact", code=2)
    assert "castwise dequantize does not count that" in refused.stderr
    assert main(["finish", str(tmp_path / "parts"), "--quiet"]) == 1

    decode, calls = decode_module.dequantize, []

    def stopped(*arguments: Any, **options: Any) -> Any:
        calls.append(arguments)
        if len(calls) > 1:
            raise RuntimeError("stopped")
        return decode(*arguments, **options)

    monkeypatch.setattr(decode_module, "dequantize", stopped)
    with pytest.raises(RuntimeError, match="stopped"):
        checkpoint.dequantize_file(source, tmp_path / "kept", resumable=True)
    monkeypatch.setattr(decode_module, "dequantize", decode)
    resumed = checkpoint.dequantize_file(source, tmp_path / "kept", resume=True)
    assert resumed.rows == expected.rows
    assert resumed.total == expected.total


@pytest.mark.parametrize(
    ("name", "part", "value", "kind"),
    [
        (NVFP4, "a.weight_scale", NAN, "nan"),
        (NVFP4, "a.weight_scale", 0, "underflow"),
        ("awq", "a.scales", INFINITE, "overflow"),
    ],
)
def test_transcoding(tmp_path: Path, name: str, part: str, value: Any, kind: str) -> None:
    """Codes are copied with scales that leave no value; the findings say so."""
    source, out = damaged(tmp_path / "model", name, part, value), tmp_path / "out"
    words = ["transcode", str(source), str(out), "--to", "compressed-tensors"]
    assert main([*words, "--dry-run"]) == 0
    assert main([*words, "--max-zeros", "0", "--quiet"]) == 1
    found = checkpoint.dequantize_file(out, tmp_path / "plain").findings(max_zeros=0)
    assert kind in {one.kind for one in found}


def test_transcoding_codes_that_are_nan(tmp_path: Path) -> None:
    weight = np.array(MODELS[TENSOR]().tensors["a.weight"])
    weight.reshape(-1)[:3] = NAN
    source = write(tmp_path / "model", MODELS[TENSOR](), **{"a.weight": weight})
    summary = checkpoint.transcode_file(source, tmp_path / "out", "modelopt")
    assert sum(one.count for one in summary.findings(["nan"])) == 3


def test_quantizing_to_what_is_infinite_when_it_is_decoded(tmp_path: Path) -> None:
    """3e38 becomes 4 times 2**126 in MXFP4, which float32 does not hold."""
    weight = np.full((64, 64), 3e38, np.float32)
    weight[0] = 1
    checkpoint.save(tmp_path / "in.safetensors", {WEIGHT: weight})
    small = tmp_path / "small.safetensors"
    summary = checkpoint.quantize_file(tmp_path / "in.safetensors", small, "mxfp4")
    (finding,) = summary.findings()
    assert (finding.kind, finding.count) == ("overflow", 63 * 64)
    assert summary.total is not None
    assert summary.total.underflowed == 0
    plain = tmp_path / "plain.safetensors"
    assert main(["dequantize", str(small), str(plain), "--dtype", "float32", "--quiet"]) == 1


def test_reports_add_up() -> None:
    one = DecodeReport(4, 1, 1, 1, 0)
    assert sum([one, one], DecodeReport()) == DecodeReport(8, 2, 2, 2, 0)
    other = checkpoint.CastRow("a", (1,), "x", "y", 1, 1, one)
    assert other.losses() == {
        "overflow": 1,
        "nan": 1,
        "wrapped": 0,
        "nan-lost": 0,
        "underflow": 1,
        "scale": 0,
        "saturated": 0,
        "inexact": 0,
    }
