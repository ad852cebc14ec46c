"""A dry run that measures returns the reports of the real run, and writes nothing."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import castwise
import numpy as np
import pytest
from castwise import checkpoint
from castwise.checkpoint import CastPlan, CheckpointError
from castwise.cli import main

RNG = np.random.default_rng(4)


def save(path: Path) -> Path:
    path.parent.mkdir(exist_ok=True)
    tensors: dict[str, Any] = {
        "layers.0.q_proj.weight": 0.02 * RNG.standard_normal((128, 256), np.float32),
        "layers.0.norm.weight": np.ones(256, np.float32),
        "steps": np.arange(3),
    }
    if path.suffix == ".npz":
        tensors["order"] = np.asfortranarray(RNG.standard_normal((40, 50)))
    checkpoint.save(path, tensors)
    return path


def everything(folder: Path) -> dict[str, tuple[int, int]]:
    """Every file, with its size and the time of its last change."""
    stats = {path: path.stat() for path in folder.rglob("*")}
    return {str(path): (stat.st_size, stat.st_mtime_ns) for path, stat in stats.items()}


@pytest.mark.parametrize("suffix", [".safetensors", ".npz"])
@pytest.mark.parametrize("options", [{}, {"rounding": "stochastic", "seed": 3}])
def test_casts(tmp_path: Path, suffix: str, options: dict[str, Any]) -> None:
    source, target = save(tmp_path / f"a{suffix}"), tmp_path / f"b{suffix}"
    before = everything(tmp_path)
    progress: list[Any] = []
    plan = checkpoint.cast_file(
        source,
        target,
        "float8_e4m3fn",
        dry_run=True,
        measure=True,
        progress=progress.append,
        **options,
    )
    assert everything(tmp_path) == before
    assert isinstance(plan, CastPlan)
    assert progress[-1].done == progress[-1].total
    summary = checkpoint.cast_file(source, target, "float8_e4m3fn", **options)
    assert list(plan.rows) == list(summary.rows)
    assert plan.zeroed > 0
    assert plan.findings() == summary.findings()


@pytest.mark.parametrize("size", [None, 60_000])
def test_folders(tmp_path: Path, size: int | None) -> None:
    source = save(tmp_path / "source" / "model.safetensors").parent
    before = everything(tmp_path)
    options: dict[str, Any] = {"max_shard_size": size}
    plan = checkpoint.cast_file(
        source, tmp_path / "out", "fp8", dry_run=True, measure=True, **options
    )
    assert everything(tmp_path) == before
    summary = checkpoint.cast_file(source, tmp_path / "out", "fp8", **options)
    assert list(plan.rows) == list(summary.rows)


def test_the_other_commands(tmp_path: Path) -> None:
    source = save(tmp_path / "source" / "model.safetensors").parent
    folders = [tmp_path / name for name in ("quantized", "plain", "other")]

    def check(convert: Any, *arguments: Any) -> None:
        before = everything(tmp_path)
        plan = convert(*arguments, dry_run=True, measure=True)
        assert everything(tmp_path) == before
        summary = convert(*arguments)
        assert list(plan.rows) == list(summary.rows)
        assert any(row.report is not None for row in plan.rows)

    check(checkpoint.quantize_file, source, folders[0], "nvfp4")
    check(checkpoint.dequantize_file, folders[0], folders[1])
    check(checkpoint.transcode_file, folders[0], folders[2], "modelopt")


def test_no_file_is_left_in_the_folder_of_devices(tmp_path: Path) -> None:
    source = save(tmp_path / "a.npz")
    before = sorted(os.listdir("/dev"))
    target = tmp_path / "b.safetensors"
    checkpoint.cast_file(source, target, "bfloat16", dry_run=True, measure=True)
    assert sorted(os.listdir("/dev")) == before
    assert not target.exists()


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, target = str(save(tmp_path / "a.safetensors")), str(tmp_path / "b.safetensors")
    arguments = ["cast", source, target, "--dtype", "fp8", "--dry-run"]
    assert main(arguments) == 0
    assert main([*arguments, "--measure"]) == 1
    shown = capsys.readouterr()
    assert "SQNR" in shown.out
    assert "b.safetensors would be written. To avoid it: castwise quantize" in shown.err
    assert not Path(target).exists()
    assert main([*arguments, "--measure", "--exit-zero"]) == 0
    assert main(["cast", source, target, "--dtype", "fp8", "--measure"]) == 2
    assert "--measure goes with --dry-run" in capsys.readouterr().err


def test_measure_needs_a_dry_run(tmp_path: Path) -> None:
    source = save(tmp_path / "a.safetensors")
    with pytest.raises(CheckpointError, match="measure goes with dry_run"):
        checkpoint.cast_file(source, tmp_path / "b.npz", castwise.finfo("fp8").name, measure=True)
