"""What is there is replaced by request, and a source not by a result that lost something."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from castwise import checkpoint
from castwise.checkpoint import CheckpointError
from checkpoint_samples import floats, write_sharded
from processes import run_python
from support import run_castwise as run
from system_parts import LINKS, need

NAME = "model.layers.0.self_attn.q_proj.weight"


def plain(path: Path) -> Path:
    checkpoint.save(path, {NAME: np.full((64, 64), 0.5, np.float32)})
    return path


def quantized(path: Path) -> Path:
    checkpoint.quantize_file(plain(path.with_name("plain.safetensors")), path, "nvfp4")
    return path


def loaded(path: Path) -> dict[str, Any]:
    return {name: array.tobytes() for name, array in checkpoint.load(path).items()}


WRITERS: dict[str, tuple[Callable[[Path], Path], list[str]]] = {
    "cast": (plain, ["--dtype", "bfloat16"]),
    "quantize": (plain, ["--scheme", "nvfp4"]),
    "dequantize": (quantized, []),
    "transcode": (quantized, ["--to", "modelopt"]),
}


@pytest.mark.thinned(3)
@pytest.mark.parametrize("command", WRITERS)
@pytest.mark.parametrize("kind", ["file", "link", "itself", "itself by a link"])
def test_a_file_is_replaced_by_request(tmp_path: Path, command: str, kind: str) -> None:
    make, options = WRITERS[command]
    source, old = make(tmp_path / "in.safetensors"), tmp_path / "old.safetensors"
    old.write_bytes(b"old")
    target = tmp_path / "out.safetensors"
    if "link" in kind:
        need(LINKS)
        target.symlink_to(source if "itself" in kind else old)
    else:
        target = source if "itself" in kind else old
    before = source.read_bytes()
    refused = run(command, source, target, *options, code=2)
    assert f"{target} exists" in refused.stderr
    assert "--overwrite" in refused.stderr
    assert (old.read_bytes(), source.read_bytes()) == (b"old", before)
    run(command, source, target, *options, "--dry-run", "--overwrite")
    assert (old.read_bytes(), source.read_bytes()) == (b"old", before)
    run(command, source, target, *options, "--overwrite")
    assert target.is_symlink() == ("link" in kind)
    assert target.read_bytes() not in {b"old", before}


@pytest.mark.parametrize("suffix", ["safetensors", "npz", "npy"])
def test_saving(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a.{suffix}"
    first, second = floats(3), floats(4)
    whole = suffix == "npy"
    checkpoint.save(path, first if whole else {"a": first})
    before = path.read_bytes()
    with pytest.raises(CheckpointError, match=r"exists.*overwrite=True"):
        checkpoint.save(path, second if whole else {"a": second})
    assert path.read_bytes() == before
    checkpoint.save(path, second if whole else {"a": second}, overwrite=True)
    assert path.read_bytes() != before


OPEN_WHEN_REPLACED = """
import os, sys
from castwise.checkpoint import cast_file

def hook(event, arguments):
    if event == "os.rename":
        files = [os.path.join("/proc/self/fd", number) for number in os.listdir("/proc/self/fd")]
        print(any(os.path.samefile(file, arguments[1]) for file in files if os.path.exists(file)))

sys.addaudithook(hook)
cast_file(sys.argv[1], sys.argv[1], "bfloat16", overwrite=True)
"""


@pytest.mark.parametrize("suffix", ["safetensors", "npz", "npy"])
def test_a_source_is_closed_before_it_is_replaced(tmp_path: Path, suffix: str) -> None:
    """Windows replaces no open file."""
    need("/proc/self/fd")
    path = tmp_path / f"a.{suffix}"
    checkpoint.save(path, floats(3) if suffix == "npy" else {"a": floats(3)})
    result = run_python("-c", OPEN_WHEN_REPLACED, path)
    assert result.stdout == "False\n", result.stderr


def test_a_file_that_appears_meanwhile_stays(tmp_path: Path) -> None:
    source, out = plain(tmp_path / "in.safetensors"), tmp_path / "out.safetensors"
    with pytest.raises(CheckpointError, match="exists"):
        checkpoint.cast_file(
            source, out, "bfloat16", progress=lambda _: out.write_bytes(b"another")
        )
    assert out.read_bytes() == b"another"
    assert {one.name for one in tmp_path.iterdir()} == {"in.safetensors", "out.safetensors"}


def test_a_folder_in_place_needs_a_request(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    write_sharded(folder, {"one.safetensors": {"a": floats(4)}})
    before = loaded(folder)
    refused = run("cast", folder, folder, "--dtype", "bf16", code=2)
    assert "--overwrite" in refused.stderr
    assert loaded(folder) == before
    run("cast", folder, folder, "--dtype", "bf16", "--overwrite")
    assert loaded(folder) != before
    (tmp_path / "empty").mkdir()
    run("cast", folder, tmp_path / "empty", "--dtype", "float32")


@pytest.mark.parametrize("way", ["the same", "relative", "a link", "a hard link"])
@pytest.mark.parametrize("is_folder", [False, True])
def test_a_loss_leaves_the_source(
    tmp_path: Path, way: str, is_folder: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if is_folder and way == "a hard link":
        return
    source = tmp_path / ("model" if is_folder else "in.safetensors")
    ruined = {"w": np.array([1e-6, 1e6, 1], np.float32)}
    if is_folder:
        write_sharded(source, {"one.safetensors": ruined})
    else:
        checkpoint.save(source, ruined)
    monkeypatch.chdir(tmp_path)
    target = tmp_path / f"other{source.suffix}"
    if way == "a link":
        need(LINKS)
        target.symlink_to(source)
    elif way == "a hard link":
        os.link(source, target)
    else:
        target = source if way == "the same" else Path(source.name)
    before = loaded(source)
    words = ("cast", source, target, "--dtype", "fp8", "--overwrite")
    refused = run(*words, code=2).stderr
    assert "'w'" in refused
    assert "is as it was" in refused
    assert "--exit-zero" in refused
    assert loaded(source) == before
    refused = run(*words, "--fail-on", "underflow", code=2).stderr
    assert "underflow" in refused
    with pytest.raises(CheckpointError, match="is as it was"):
        checkpoint.cast_file(source, target, "fp8", overwrite=True)
    assert loaded(source) == before
    assert not [one for one in tmp_path.iterdir() if one.name.startswith(".")]
    run(*words, "--fail-on", "wrapped", code=0)
    assert loaded(target) != before


def test_a_loss_of_a_few_bits_is_none(tmp_path: Path) -> None:
    """Four bits make zeros of more values than --max-zeros of a cast allows."""
    generator = np.random.default_rng(1)
    path = tmp_path / "in.safetensors"
    checkpoint.save(path, {NAME: generator.standard_normal((64, 64), np.float32)})
    refused = run(
        "quantize", path, path, "--scheme", "nvfp4", "--overwrite", "--max-zeros", "1%", code=2
    )
    assert "underflow" in refused.stderr
    run("quantize", path, path, "--scheme", "nvfp4", "--overwrite")


def test_parts_in_place(tmp_path: Path) -> None:
    path = tmp_path / "in.safetensors"
    checkpoint.save(path, {"w": np.array([1e6, 1], np.float32)})
    before = loaded(path)
    words = ("cast", path, path, "--dtype", "float16", "--part", "1/1")
    assert "--overwrite" in run(*words, code=2).stderr
    run(*words, "--overwrite")
    assert "is as it was" in run("finish", path, code=2).stderr
    assert loaded(path) == before
    run("finish", path, "--exit-zero")
    assert loaded(path) != before


def test_a_destination_that_appears_before_the_parts_are_put_together(tmp_path: Path) -> None:
    source, out = plain(tmp_path / "in.safetensors"), tmp_path / "out.safetensors"
    run("cast", source, out, "--dtype", "bf16", "--part", "1/1")
    out.write_bytes(b"another")
    assert "--overwrite" in run("finish", out, code=2).stderr
    assert out.read_bytes() == b"another"
    run("finish", out, "--overwrite")
    assert checkpoint.inspect(out).tensors[0].format == "bfloat16"


def test_resuming_goes_on(tmp_path: Path) -> None:
    source, out = tmp_path / "model", tmp_path / "out"
    write_sharded(source, {f"{name}.safetensors": {name: floats(64)} for name in "abc"})

    def stop(progress: checkpoint.Progress) -> None:
        if progress.name == "c":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        checkpoint.cast_file(source, out, "bfloat16", resumable=True, progress=stop)
    run("cast", source, out, "--dtype", "bfloat16", "--resume")
    assert {one.format for one in checkpoint.inspect(out).tensors} == {"bfloat16"}


def test_a_report_replaces_reports_alone(tmp_path: Path) -> None:
    source, report = plain(tmp_path / "in.safetensors"), tmp_path / "report.json"
    out = tmp_path / "out.safetensors"
    words = ("cast", source, out, "--dtype", "bf16", "--overwrite", "--report")
    run(*words, report)
    run(*words, report)
    other = plain(tmp_path / "other.safetensors")
    before = other.read_bytes()
    out.unlink()
    assert "is not a report" in run(*words, other, code=2).stderr
    assert other.read_bytes() == before
    assert not out.exists()
    new = tmp_path / "new"
    assert "is the file of --html, too" in run(*words, new, "--html", new, code=2).stderr
    assert not new.exists()
