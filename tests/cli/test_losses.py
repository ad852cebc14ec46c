"""What a cast lost, on the command line and in Python: findings, exit codes, JSON."""

import json
import math
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from castwise import checkpoint
from castwise.checkpoint.results.report import FINDINGS
from checkpoint_samples import floats
from support import run_castwise as run

LOSSES = ("overflow", "nan", "wrapped", "nan-lost", "underflow", "scale")


@pytest.fixture
def lossy(tmp_path: Path) -> Path:
    """A checkpoint that loses something of every kind as float8_e4m3fn, one tensor for each."""
    path = tmp_path / "in.npz"
    np.savez(
        path,
        infinite=np.array([1e6, 1, 2], np.float32),
        tiny=np.array([1e-9, 1, 2, 0], np.float32),
        inexact=np.array([0.3], np.float32),
        same=np.array([1, np.nan, 0], np.float32),
    )
    return path


def cast(path: Path, *options: Any, code: int) -> str:
    result = run(
        "cast",
        path,
        path.with_name("out.npz"),
        "--dtype",
        "fp8",
        *options,
        "--overwrite",
        code=code,
    )
    return result.stderr


def test_each_loss_is_said_and_the_choice_decides_the_exit_code(lossy: Path) -> None:
    said = cast(lossy, code=1).splitlines()
    assert len(said) == 2
    assert said[0].startswith("castwise: 1 value became infinite or NaN in 'infinite'; ")
    assert said[1].startswith("castwise: 1 nonzero value became zero in 'tiny'; ")
    assert "--overflow saturate" in said[0]
    assert "--max-zeros" in said[1]
    for kinds, code in (
        ("none", 0),
        ("overflow", 1),
        ("nan", 1),  # float8_e4m3fn has no infinity
        ("underflow", 1),
        ("wrapped,nan-lost", 0),
        ("wrapped, underflow", 1),
        ("inexact", 1),
    ):
        assert "infinite or NaN" in cast(lossy, "--fail-on", kinds, code=code)
    assert "infinite or NaN" in cast(lossy, "--exit-zero", code=0)
    assert "2 values changed in" not in cast(lossy, code=1)
    assert "changed in 3 tensors" in cast(lossy, "--fail-on", "inexact", code=1)
    said = cast(lossy, "--overflow", "saturate", "--fail-on", "saturated", code=1).splitlines()
    assert said[-1].startswith("castwise: 1 value became the largest or smallest number in 'inf")
    cast(lossy, "--overflow", "saturate", "--max-zeros", "50%", code=0)
    for wrong in (("--fail-on", "losses"), ("--max-zeros", "200%"), ("--max-zeros", "x")):
        assert re.search(f"argument {wrong[0]}: '{wrong[1]}' is not", cast(lossy, *wrong, code=2))


def test_rows_of_the_least_ratio_come_first(tmp_path: Path) -> None:
    """A few zeros among values that stay lose less than values that are all limited."""
    path = tmp_path / "in.npz"
    zeros = np.append(np.full(1000, 448), np.full(24, 1e-9)).astype(np.float32)
    np.savez(path, a_zeros=zeros, b_limited=np.full(1000, 1e4, np.float32))
    options = ("--dtype", "fp8", "--overflow", "saturate", "--exit-zero")
    shown = run("cast", path, tmp_path / "out.npz", *options).stdout
    assert 0 < shown.index("b_limited") < shown.index("a_zeros")


def test_an_overflow_is_an_infinite_error(lossy: Path) -> None:
    arguments = ("cast", lossy, lossy.with_name("out.npz"), "--dtype", "float16")
    lines = run(*arguments, code=1).stdout.splitlines()
    rows = {line.split()[0]: line.split()[3:] for line in lines if "->" not in line}
    for name in ("infinite", "total"):
        assert "-inf" in rows[name]
        assert rows[name][-1] == "inf"
    assert "inf" in rows["same"]
    assert rows["same"][-1] == "0"
    account = json.loads(run(*arguments, "--json", "--overwrite", code=1).stdout)
    reports = {row["name"]: row["report"] for row in account["tensors"]}
    signs = {"max_abs_error": 1, "max_rel_error": 1, "sqnr_db": -1}
    for report in (reports["infinite"], account["total"]):
        assert report["infinite"] == signs
        assert [report[key] for key in signs] == [None, None, None]
    assert reports["tiny"]["infinite"] == {}
    assert reports["tiny"]["max_rel_error"] == 1
    # Wrapped integers are finite, and so is their error.
    np.savez(lossy, n=np.array([300, 1]))
    arguments = ("cast", lossy, lossy.with_name("out.npz"), "--map", lossy.with_name("m.json"))
    lossy.with_name("m.json").write_text('{"n": "uint8"}')
    result = run(*arguments, "--json", "--overwrite", code=1)
    assert json.loads(result.stdout)["total"]["max_abs_error"] == 256
    assert "1 integer wrapped in 'n'" in result.stderr


def test_zeros_are_a_share_of_the_nonzero_values(tmp_path: Path) -> None:
    path, out = tmp_path / "in.npz", tmp_path / "out.npz"
    pruned, dense = np.zeros(10_000, np.float32), np.ones(10_000, np.float32)
    pruned[:10] = 1e-9
    pruned[10:1000] = 1
    dense[:100] = -1e-9
    special = np.array([np.nan, np.inf, 1e-9, 1, 1, 1])
    np.savez(path, pruned=pruned, dense=dense, special=special, ints=np.arange(3))
    summary = checkpoint.cast_file(path, out, {"default": "float16", "ints": "float16"})
    shares = {row.name: row.zeroed_share for row in summary.rows}
    assert shares == {"pruned": 0.01, "dense": 0.01, "special": 0.25, "ints": 0}
    assert {row.name: row.zeroed for row in summary.rows}["pruned"] == 10
    assert summary.zeroed == 111
    assert [one.tensor for one in summary.findings()] == ["special"]
    assert len(summary.findings(max_zeros=0.0099)) == 3
    assert summary.findings(["underflow"], max_zeros=1) == []
    for wrong in (-0.1, 1.1, math.nan):
        with pytest.raises(ValueError, match="max_zeros"):
            summary.findings(max_zeros=wrong)
    with pytest.raises(ValueError, match="'zeros' is not a finding; those are overflow,"):
        summary.findings(["zeros"])


def test_one_kind_may_stand_alone(tmp_path: Path) -> None:
    path, out = tmp_path / "in.npz", tmp_path / "out.npz"
    np.savez(path, w=np.array([1e-9, 1]))
    summary = checkpoint.cast_file(path, out, "float16", fail_on="underflow")
    assert summary.findings("underflow") == summary.findings(["underflow"]) != []
    assert summary.findings("overflow") == []
    out.unlink()
    for use in (
        lambda: summary.findings("zeros"),  # type: ignore[arg-type]
        lambda: checkpoint.cast_file(path, out, "float16", fail_on="zeros"),  # type: ignore[arg-type]
    ):
        with pytest.raises(ValueError, match="'zeros' is not a finding"):
            use()
    for wrong in (None, 3):
        with pytest.raises(TypeError, match=f"fail_on {wrong} is not a finding or several"):
            checkpoint.cast_file(path, out, "float16", fail_on=wrong)  # type: ignore[arg-type]
    assert not out.exists()
    with pytest.raises(checkpoint.CheckpointError, match="underflow"):
        checkpoint.cast_file(path, path, "float16", fail_on="underflow", overwrite=True)
    checkpoint.cast_file(path, path, "float16", fail_on="overflow", overwrite=True)


def test_integers_of_weights_are_a_finding(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    checkpoint.save(path, {f"layers.{i}.weight": floats(1000, i) * 0.02 for i in range(3)})
    result = run("cast", path, tmp_path / "out.safetensors", "--dtype", "int8", code=1)
    assert re.search(r"castwise: 3,000 nonzero values became zero in 3 tensors", result.stderr)


def test_findings_in_python(lossy: Path) -> None:
    summary = checkpoint.cast_file(lossy, lossy.with_name("out.npz"), "fp8")
    found = summary.findings(FINDINGS)
    assert {(one.kind, one.tensor, one.count) for one in found} == {
        ("overflow", "infinite", 1),
        ("nan", "infinite", 1),
        ("underflow", "tiny", 1),
        *(("inexact", name, 1) for name in ("infinite", "tiny", "inexact")),
    }
    assert summary.findings() == [one for one in found if one.kind in LOSSES]
    assert summary.out_of_range == 1
    kept = checkpoint.cast_file(
        lossy, lossy.with_name("out.npz"), {"default": "keep"}, overwrite=True
    )
    assert (kept.findings(), kept.zeroed, kept.total) == ([], 0, None)
    for nan, kinds in (("keep", ["nan-lost"]), ("zero", [])):
        np.savez(lossy, w=np.array([np.nan, 1.0]))
        summary = checkpoint.cast_file(
            lossy, lossy.with_name("out.npz"), "int8", nan=nan, overwrite=True
        )
        assert [one.kind for one in summary.findings()] == kinds


def test_a_nan_that_zero_replaced_does_not_hide_one_that_was_made(tmp_path: Path) -> None:
    path, out = tmp_path / "in.npz", tmp_path / "out.npz"
    np.savez(path, w=np.array([np.nan, 1e6]))
    summary = checkpoint.cast_file(path, out, "fp8", nan="zero")
    assert {one.kind: one.count for one in summary.findings()} == {"overflow": 1, "nan": 1}


def test_json_says_what_decided_and_has_no_text_for_numbers(lossy: Path) -> None:
    array = {"encoder/w": floats(3), "head/w": floats(3), "steps": np.arange(2)}
    np.savez(lossy, **array)
    files = lossy, lossy.with_name("out.npz")

    def decided(*options: Any, **arguments: Any) -> dict[str, Any]:
        summary = checkpoint.cast_file(*files, *options, **arguments, overwrite=True)
        rows = json.loads(json.dumps(summary.to_dict(), allow_nan=False))["tensors"]
        return {row["name"]: (row["decided_by"], row["pattern"]) for row in rows}

    names = tuple(array)
    assert decided("bfloat16") == dict(
        zip(names, [("dtype", None)] * 2 + [(None, None)], strict=True)
    )
    key = "head.*"
    assert decided({"default": "bfloat16", key: "keep"}) == {
        names[0]: ("map", None),
        names[1]: ("map", key),
        names[2]: (None, None),
    }
    assert decided("bfloat16", dtype_map={key: "keep"})[names[0]] == ("dtype", None)
    policies = {"class_name": "DTypePolicyMap", "config": {"policy_map": {key: "bfloat16"}}}
    assert decided(policy=policies) == {
        names[0]: ("policy", None),
        names[1]: ("policy", key),
        names[2]: (None, None),
    }
    account = json.loads(run("cast", *files, "--dtype", "fp8", "--json", "--overwrite").stdout)
    assert account["schema"] == 1
    assert account["max_zeros"] == 0.01
    assert json.loads(run("inspect", lossy, "--json").stdout)["schema"] == 1


def test_the_json_of_the_command_is_that_of_the_summary(lossy: Path) -> None:
    files = lossy, lossy.with_name("out.npz")
    summary = checkpoint.cast_file(*files, "fp8")
    text = run("cast", *files, "--dtype", "fp8", "--json", "--overwrite", code=1).stdout
    assert json.loads(text) == json.loads(json.dumps(summary.to_dict(), allow_nan=False))
    text = run(
        "cast", *files, "--dtype", "fp8", "--json", "--max-zeros", "1", "--overwrite", code=1
    ).stdout
    assert [one["kind"] for one in json.loads(text)["findings"]] == ["overflow", "nan"]


def test_a_remedy_is_an_option_of_the_command(tmp_path: Path) -> None:
    source, out = tmp_path / "in.safetensors", tmp_path / "out.safetensors"
    weight, large = np.ones((128, 128), np.float32), np.full(4, 1e30, np.float32)
    checkpoint.save(source, {"up_proj.weight": weight, "large": large})
    dtypes = tmp_path / "map.json"
    dtypes.write_text(json.dumps({".*weight": "fp8_channel", "large": "float16"}))
    said = run("quantize", source, out, "--map", dtypes, code=1).stderr
    assert "4 values became infinite or NaN in 'large'" in said
    assert said.endswith("To avoid it: a wider format\n")


@pytest.mark.parametrize(
    ("dtype", "remedy"),
    [
        ("float8_e4m3fn", "quantize {} --scheme fp8_channel"),
        ("float8_e5m2", "quantize {} --scheme fp8_channel"),
        ("float4_e2m1fn", "quantize {} --scheme nvfp4"),
        ("float16", "cast {} --dtype bfloat16"),
    ],
)
def test_a_finding_names_the_command_that_keeps_the_values(
    tmp_path: Path, dtype: str, remedy: str
) -> None:
    """Weights of a small standard deviation, as language models have them."""
    size = {"float16": 1e-9, "float8_e5m2": 1e-6}.get(dtype, 1e-3)
    weight = floats(128 * 128).reshape(128, 128) * np.float32(size)
    source, out = tmp_path / "a model.safetensors", tmp_path / "out.safetensors"
    checkpoint.save(source, {"w.weight": weight})
    said = run("cast", source, out, "--dtype", dtype, code=1).stderr
    command = "castwise " + remedy.format(f"'{source}' {out}") + " --overwrite"
    assert f"To avoid it: {command}," in said
    run(*shlex.split(command)[1:])  # without a finding


def test_no_command_is_named_where_none_fits(lossy: Path) -> None:
    """A vector is not quantized, and .npz holds no quantized weights."""
    said = cast(lossy, code=1)
    assert "To avoid it: --overflow saturate, a wider format" in said
    assert "castwise quantize" not in said
