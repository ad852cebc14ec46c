"""A dry run says what a cast would do and touches nothing; a cast needs room before it begins."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from castwise import checkpoint
from castwise.cli import main
from checkpoint_samples import floats, safetensors_file, write_sharded
from support import log_of_command

MAP = {"default": "bfloat16", "norm": "keep", "ids": "uint8"}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    shards: dict[str, dict[str, Any]] = {
        "a.safetensors": {"w": floats(1000), "norm": floats(10)},
        "b.safetensors": {"v": floats(500), "ids": np.arange(100)},
    }
    write_sharded(tmp_path / "in", shards)
    return tmp_path / "in"


def state(root: Path) -> dict[str, tuple[int, int]]:
    found = {path: path.stat() for path in sorted(root.rglob("*"))}
    return {str(path): (one.st_mtime_ns, one.st_size) for path, one in found.items()}


def planned(*arguments: Any, **options: Any) -> checkpoint.CastPlan:
    plan = checkpoint.cast_file(*arguments, dry_run=True, **options)
    assert isinstance(plan, checkpoint.CastPlan)
    return plan


@pytest.mark.parametrize("limit", [None, 1500])
@pytest.mark.parametrize("kind", ["folder", "file", "npz", "joined"])
def test_it_tells_what_a_cast_does(source: Path, kind: str, limit: int | None) -> None:
    old, out = source, source.with_name("out")
    if kind == "file":
        old = source / "a.safetensors"
        out = out if limit else source.with_name("out.safetensors")
    elif kind == "npz":
        old = source.with_name("in.npz")
        np.savez_compressed(old, w=floats(1000), norm=floats(10), ids=np.arange(100))
        out = out if limit else source.with_name("out.npz")
    elif kind == "joined":
        out, limit = source.with_name("out.safetensors"), None
    before = state(source.parent)
    plan = planned(old, out, MAP, max_shard_size=limit)
    assert state(source.parent) == before
    summary = checkpoint.cast_file(old, out, MAP, max_shard_size=limit)
    for planned_row, row in zip(plan.rows, summary.rows, strict=True):
        expected = {**row.to_dict(), "report": None}
        assert planned_row.to_dict() == expected
    assert [row.pattern for row in plan.rows if row.name == "norm"] == ["norm"]
    assert list(plan.unused_patterns) == list(summary.unused_patterns)
    assert plan.total is None
    written = sum(path.stat().st_size for path in [out, *out.rglob("*")] if path.is_file())
    assert plan.needed_bytes <= written
    if kind != "npz":
        headers = 1000 * len(list(out.rglob("*.safetensors")) or [out])
        assert plan.needed_bytes > written - headers
    assert plan.free_bytes is not None
    assert plan.free_bytes <= shutil.disk_usage(source).total
    text = plan.to_dict()
    assert text["dry_run"] is True
    assert json.loads(json.dumps(text))["needed_bytes"] == plan.needed_bytes


@pytest.mark.parametrize(
    ("out", "arguments", "options"),
    [
        ("out", ({"[vw]": "int8", "w.?": "float16"},), {}),
        ("other", ("float16",), {}),
        ("text", ("float16",), {"overwrite": True}),
        ("in/inside", ("float16",), {}),
        ("missing/out", ("float16",), {}),
        ("missing/out.safetensors", ("float16",), {}),
        ("text/file.txt/out", ("float16",), {}),
        ("out", ("float16",), {"resume": True, "rounding": "odd"}),
    ],
)
def test_it_refuses_what_a_cast_refuses(
    source: Path, out: str, arguments: Any, options: dict[str, Any]
) -> None:
    root = source.parent
    checkpoint.cast_file(source, root / "other", "float16")
    (root / "text").mkdir()
    (root / "text" / "file.txt").write_text("text")
    before = state(root)
    errors = []
    for dry_run in (True, False):
        with pytest.raises((checkpoint.CheckpointError, ValueError, OSError)) as caught:
            checkpoint.cast_file(source, root / out, *arguments, **options, dry_run=dry_run)
        errors.append(str(caught.value))
        assert state(root).keys() == before.keys()
    assert errors[0] == errors[1]


class StoppedError(Exception):
    """Raised by a listener."""


def interrupt(source: Path, out: Path) -> None:
    def stop(progress: checkpoint.Progress) -> None:
        if progress.name == "ids":
            raise StoppedError

    with pytest.raises(StoppedError):
        checkpoint.cast_file(source, out, "bfloat16", resumable=True, progress=stop)


def test_what_is_kept_needs_no_room(source: Path) -> None:
    out = source.with_name("out")
    whole = planned(source, out, "bfloat16")
    interrupt(source, out)
    before = state(source.parent)
    plan = planned(source, out, "bfloat16", resume=True)
    assert plan.needed_bytes == whole.needed_bytes - 2 * 1010
    assert state(source.parent) == before
    with pytest.raises(checkpoint.CheckpointError, match="another conversion"):
        planned(source, out, "float16", resume=True)
    assert state(source.parent) == before
    assert planned(source, out, "bfloat16").needed_bytes == whole.needed_bytes


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes every file system have so many bytes free."""

    def set_free(nbytes: int) -> None:
        usage = SimpleNamespace(total=10**12, used=0, free=nbytes)
        monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)

    return set_free


@pytest.mark.parametrize("name", ["out", "out.safetensors"])
@pytest.mark.parametrize("replaces", [False, True])
def test_a_cast_begins_only_if_there_is_room(
    source: Path, free: Any, name: str, *, replaces: bool
) -> None:
    out = source.with_name(name)
    options = {"overwrite": True} if replaces else {}
    if replaces:
        checkpoint.cast_file(source, out, "float16")
    needed = planned(source, out, "bfloat16", **options).needed_bytes
    before = state(source.parent)
    free(needed - 1)
    message = rf"{out} needs {needed:,} bytes, and its file system has only {needed - 1:,} free"
    for extra in ({}, {"dry_run": True}):
        with pytest.raises(checkpoint.CheckpointError, match=message):
            checkpoint.cast_file(source, out, "bfloat16", **options, **extra)
        assert state(source.parent) == before
    free(needed)
    checkpoint.cast_file(source, out, "bfloat16", **options)
    assert out.exists()


ORDERS: dict[str, tuple[str, str, int, int]] = {
    # The source, the result, bytes of temporary files at the end, and of what is unpacked before.
    "in place": ("in.npy", "out.npy", 0, 0),
    "to C order": ("in.npz", "out.safetensors", 4 * 6000, 4 * 6000),
    "by place": ("in.npy", "out.npy", 4 * 6000 + 2 * 2 * 6000, 0),
}


@pytest.mark.parametrize("case", ORDERS)
def test_the_room_for_temporary_files_counts(tmp_path: Path, free: Any, case: str) -> None:
    """A copy in C order, and one of the result where that is not in C order either."""
    old, new, ordered, unpacked = ORDERS[case]
    source, out = tmp_path / old, tmp_path / new
    array = np.asfortranarray(floats(6000).reshape(60, 100))
    np.save(source, array) if old.endswith("npy") else np.savez(source, w=array)
    options: dict[str, Any] = {"nan": "raise"} if case == "by place" else {}
    needed = 2 * 6000 + max(ordered, ordered + unpacked - 2 * 6000)
    plan = planned(source, out, "bfloat16", **options)
    assert plan.needed_bytes == needed
    free(needed - 1)
    with pytest.raises(checkpoint.CheckpointError, match=f"needs {needed:,} bytes"):
        checkpoint.cast_file(source, out, "bfloat16", **options)
    free(needed)
    checkpoint.cast_file(source, out, "bfloat16", **options)


def test_temporary_files_of_what_is_written_early_need_no_more(tmp_path: Path) -> None:
    """They are gone, and their room is free, before the last tensors are written."""
    early, late = np.asfortranarray(floats(400).reshape(20, 20)), floats(6000)
    np.savez(tmp_path / "in.npz", a=early, b=late)
    plan = planned(tmp_path / "in.npz", tmp_path / "out.safetensors", "bfloat16")
    assert plan.needed_bytes == 2 * 6400
    np.savez(tmp_path / "in.npz", a=late, b=early)
    plan = planned(tmp_path / "in.npz", tmp_path / "out.safetensors", "bfloat16")
    assert plan.needed_bytes == 2 * 6400 + 4 * 400 + 2 * 400


def test_what_is_kept_stays_where_there_is_no_room(source: Path, free: Any) -> None:
    out = source.with_name("out")
    needed = planned(source, out, "bfloat16").needed_bytes
    interrupt(source, out)
    free(needed - 2 * 1010 - 1)
    with pytest.raises(checkpoint.CheckpointError, match="make room"):
        checkpoint.cast_file(source, out, "bfloat16", resume=True)
    free(needed - 2 * 1010)
    checkpoint.cast_file(source, out, "bfloat16", resume=True)
    assert sorted(os.listdir(source.parent)) == ["in", "out"]


@pytest.mark.parametrize("answer", ["nothing", "an error"])
def test_a_file_system_that_does_not_tell(
    source: Path, monkeypatch: pytest.MonkeyPatch, answer: str
) -> None:
    def usage(_path: object) -> Any:
        if answer == "an error":
            raise OSError(38, "Function not implemented")
        return SimpleNamespace(total=0, used=0, free=0)

    monkeypatch.setattr(shutil, "disk_usage", usage)
    assert planned(source, source.with_name("out"), "bfloat16").free_bytes is None
    checkpoint.cast_file(source, source.with_name("out"), "bfloat16")


def test_the_room_of_a_real_file_system(tmp_path: Path) -> None:
    """The source has more bytes than the disk: all but its header is a hole."""
    free = shutil.disk_usage(tmp_path).free
    count = free // 1024 * 1024
    header = {"w": {"dtype": "F32", "shape": [count], "data_offsets": [0, 4 * count]}}
    source = tmp_path / "in.safetensors"
    source.write_bytes(content := safetensors_file(header))
    try:
        os.truncate(source, len(content) + 4 * count)
    except OSError:
        pytest.skip("the file system has no files of this size")
    with pytest.raises(checkpoint.CheckpointError, match=rf"needs {2 * count:,} bytes.*only"):
        checkpoint.cast_file(source, tmp_path / "out.safetensors", "bfloat16")
    assert os.listdir(tmp_path) == ["in.safetensors"]
    plan = planned(source, tmp_path / "out.safetensors", {"w": "int2"}, as_bytes=True)
    assert plan.rows[0].nbytes_after >= plan.needed_bytes == count // 4


def test_on_the_command_line(
    source: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    out = source.with_name("out")
    (source / "optimizer.pt").write_bytes(bytes(5000))
    file = source.with_name("map.json")
    file.write_text(json.dumps({**MAP, "typo": "float16"}))
    before = state(source.parent)
    arguments = ["cast", str(source), str(out), "--map", str(file), "--dry-run"]
    assert main(arguments) == 0
    printed = capsys.readouterr()
    lines = printed.out.splitlines()
    assert lines[0].split() == ["tensor", "file", "shape", "from", "to", "by", "before", "after"]
    cells = [line.split() for line in lines]
    assert ["w", "a.safetensors", "1000", "float32", "bfloat16", "4,000", "2,000"] in cells
    assert ["ids", "b.safetensors", "100", "int64", "uint8", "ids", "800", "100"] in cells
    assert f"{source} -> {out}: 3 tensors would be cast, 1 kept, 6.8 kB -> 3.1 kB" in lines
    assert lines[-1] == "left out: optimizer.pt"
    assert lines[-2].startswith("to be written: 3.")
    assert "unused pattern 'typo'" in printed.err
    assert main([*arguments, "--json", "--max-shard-size", "2.1KB", "--include", "opt*"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert {row["shard"] for row in plan["tensors"]} == {
        f"model-0000{one}-of-00002.safetensors" for one in (1, 2)
    }
    assert plan["left_out"] == []
    assert {row["name"]: row["pattern"] for row in plan["tensors"]}["norm"] == "norm"
    assert main([*arguments, "--exclude", "*.safetensor"]) == 0
    assert "--exclude *.safetensor matches nothing" in log_of_command(caplog)
    assert main([*arguments, "--report", str(out)]) == 2
    assert "--report is of a conversion, and --dry-run makes none" in capsys.readouterr().err
    assert state(source.parent) == before
    assert main([*arguments[:-1], "--exclude", "tokenizer", "--max-shard-size", "2.1KB"]) == 0
    assert not (out / "tokenizer").exists()
    assert (out / "model-00002-of-00002.safetensors").exists()
    assert main([*arguments[:-1], "--max-shard-size", "2KX"]) == 2
    assert "--max-shard-size 2KX is not a size" in capsys.readouterr().err
