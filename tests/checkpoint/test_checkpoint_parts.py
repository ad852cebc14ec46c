"""Casting a checkpoint in parts, and putting them together: as in one run."""

import json
import math
import os
import random
import re
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from castwise import checkpoint
from castwise.checkpoint import CheckpointError
from castwise.checkpoint.files import temporary_names
from castwise.checkpoint.running import parts as parts_module
from castwise.checkpoint.running.ledger import seal_page
from castwise.cli import main
from checkpoint_samples import floats
from processes import run_python
from sharded_folder import OPTIONS, contents, tensors
from system_parts import LINKS, need


def temporary(tmp_path: Path) -> Path:
    return tmp_path / ".new.parts.castwise-tmp"


def content_of(path: Path) -> dict[str, bytes]:
    return {"": path.read_bytes()} if path.is_file() else contents(path)


def nbytes(row: checkpoint.CastRow) -> int:
    return row.nbytes_before + row.nbytes_after


@pytest.mark.thinned(3)
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("count", [1, 2, 4, 16])
def test_parts_of_a_folder(
    folder: Path, tmp_path: Path, count: int, options: dict[str, Any]
) -> None:
    alone = checkpoint.cast_file(folder, tmp_path / "alone", **options)

    def part(number: int) -> checkpoint.CastSummary:
        text = f"{number}/{count}"
        return checkpoint.cast_file(folder, tmp_path / "new", part=text, threads=1, **options)

    # In another order, at the same time, and one of them again.
    with ThreadPoolExecutor(3) as executor:
        parts = list(executor.map(part, [*range(count, 0, -1), 1]))
    assert not (tmp_path / "new").exists()
    summary = checkpoint.finish(tmp_path / "new")
    assert contents(tmp_path / "new") == contents(tmp_path / "alone")
    assert summary.rows == alone.rows
    assert summary.options == alone.options
    sizes = [sum(map(nbytes, one.rows)) for one in parts[:count]]
    assert sum(sizes) == sum(map(nbytes, alone.rows))
    assert max(sizes) - min(sizes) < 20_000
    assert sorted(one.name for one in tmp_path.iterdir()) == ["alone", "new", "source"]


@pytest.mark.parametrize("suffix", [".safetensors", ".npy"])
def test_parts_of_a_file(tmp_path: Path, suffix: str) -> None:
    source, new = tmp_path / f"source{suffix}", tmp_path / f"new{suffix}"
    content = floats(40_000).reshape(4, -1) if suffix == ".npy" else tensors(0)
    checkpoint.save(source, content)
    new.touch(0o600)
    alone = checkpoint.cast_file(source, tmp_path / f"alone{suffix}", "float8_e5m2")
    for number in (1, 2, 3):
        checkpoint.cast_file(source, new, "float8_e5m2", part=(number, 3), overwrite=True)
    summary = checkpoint.finish(new, overwrite=True)
    assert new.read_bytes() == (tmp_path / f"alone{suffix}").read_bytes()
    assert new.stat().st_mode & 0o777 == 0o600
    assert summary.rows == alone.rows
    assert len(list(tmp_path.iterdir())) == 3


def test_what_a_part_leaves_is_json_and_says_that_values_were_lost(tmp_path: Path) -> None:
    source, new = tmp_path / "source.safetensors", tmp_path / "new.safetensors"
    checkpoint.save(source, {"w": np.array([1, 1e6, 2, 3], np.float32)})
    alone = checkpoint.cast_file(source, tmp_path / "alone.safetensors", "float8_e4m3fn")
    for number in (1, 2):
        checkpoint.cast_file(source, new, "float8_e4m3fn", part=(number, 2))
    pages = [page for page in tmp_path.rglob("*.json") if page.name.startswith("part-")]
    assert len(pages) == 2
    for page in pages:
        json.loads(page.read_text(), parse_constant=pytest.fail)
    total = checkpoint.finish(new).total
    assert total == alone.total
    assert total is not None
    assert (total.max_abs_error, total.sqnr_db) == (math.inf, -math.inf)


def test_an_old_folder_is_replaced(folder: Path, tmp_path: Path) -> None:
    new = tmp_path / "new"
    shutil.copytree(folder, new)
    (new / "old.txt").touch()
    with pytest.raises(CheckpointError, match="overwrite=True"):
        checkpoint.cast_file(folder, new, "bfloat16", part="1/1")
    alone = checkpoint.cast_file(folder, tmp_path / "alone", "bfloat16")
    checkpoint.cast_file(folder, new, "bfloat16", part="1/1", overwrite=True)
    assert checkpoint.finish(new).rows == alone.rows
    assert contents(new) == contents(tmp_path / "alone")
    assert not temporary(tmp_path).exists()


def test_what_is_missing(folder: Path, tmp_path: Path) -> None:
    new = tmp_path / "new"
    with pytest.raises(CheckpointError, match=r"there are no parts of .*new; castwise cast"):
        checkpoint.finish(new)
    checkpoint.cast_file(folder, new, "bfloat16", part="2/12")
    with pytest.raises(CheckpointError, match=r"not complete: 1/12, 3/12, .*, 9/12 and 3 more"):
        checkpoint.finish(new)
    for other in ({"part": "1/11"}, {"part": "1/12", "dtype": "float16"}):
        with pytest.raises(CheckpointError, match="holds parts of another conversion"):
            checkpoint.cast_file(folder, new, **{"dtype": "bfloat16", **other})
    assert not new.exists()


def test_a_source_that_was_changed(folder: Path, tmp_path: Path) -> None:
    new = tmp_path / "new"
    checkpoint.cast_file(folder, new, "bfloat16", part="1/1")
    shard = max(folder.glob("*.safetensors"))
    shard.write_bytes(shard.read_bytes())
    with pytest.raises(
        CheckpointError, match=r"another conversion: model-0000\d-of-\S* of the source is .* there"
    ):
        checkpoint.finish(new)
    assert temporary(tmp_path).exists()


@pytest.mark.parametrize("suffix", ["", ".safetensors"])
@pytest.mark.parametrize("at", ["before", "between", "after"])
def test_an_end_that_was_killed(folder: Path, tmp_path: Path, suffix: str, at: str) -> None:
    """Before the target has its name, before that is noted as done, and before parts are gone."""
    need("signal.SIGKILL")
    new, alone = tmp_path / f"new{suffix}", tmp_path / f"alone{suffix}"
    rows = checkpoint.cast_file(folder, alone, "bfloat16").rows
    program = (
        "import os, signal, sys; from castwise import checkpoint; "
        "from castwise.checkpoint.running import parts as parts_module, to_file, to_folder; "
        "kill = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL); "
        "at, new = sys.argv[1:]; "
        "[setattr(to_file, 'put_file', kill), setattr(to_folder, 'put_folder', kill)] "
        "if at == 'between' else setattr(parts_module._PartsLedger, 'remove', kill) "
        "if at == 'after' else setattr(parts_module, '_identity', kill); "
        "checkpoint.finish(new)"
    )
    checkpoint.cast_file(folder, new, "bfloat16", part="1/1")
    assert run_python("-c", program, at, new).returncode < 0
    assert new.exists() == (at == "after")
    if at == "after":
        with pytest.raises(CheckpointError, match="is complete: a run before"):
            checkpoint.finish(new)
    else:
        assert checkpoint.finish(new).rows == rows
    assert content_of(new) == content_of(alone)
    assert {one.name for one in tmp_path.iterdir()} == {"source", new.name, alone.name}


def test_an_end_that_was_noted_by_half_loses_no_part(folder: Path, tmp_path: Path) -> None:
    new = tmp_path / "new"
    checkpoint.cast_file(folder, new, "bfloat16", part="1/1")
    (temporary(tmp_path) / "placed").touch()
    checkpoint.finish(new)
    assert checkpoint.load(new)["0.bias"].dtype.itemsize == 2


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"part": "0/4"}, ValueError, "parts of 4 are 1/4 to 4/4"),
        ({"part": "5/4"}, ValueError, "part='5/4'"),
        ({"part": "1/0"}, ValueError, "part='1/0': a conversion has at least one part"),
        ({"part": (1, -2)}, ValueError, "a conversion has at least one part"),
        ({"part": "a"}, ValueError, "part='a' is not a part such as '3/16'"),
        ({"part": 3}, ValueError, "part=3 is not a part"),
        ({"rounding": "stochastic"}, CheckpointError, "give one .seed. with part"),
        ({"dry_run": True}, CheckpointError, "part and dry_run do not go together"),
        ({"resume": True}, CheckpointError, "part and resumable do not go together"),
        ({"dtype": np.dtype("f2")}, TypeError, "must be text"),
        ({"part": "1/99999999999"}, ValueError, "at most 100,000 parts"),
    ],
)
def test_what_does_not_go_with_parts(
    folder: Path, tmp_path: Path, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        checkpoint.cast_file(
            folder, tmp_path / "new", **{"dtype": "bfloat16", "part": "1/2", **options}
        )
    assert [one.name for one in tmp_path.iterdir()] == ["source"]


def test_other_containers_have_no_parts(tmp_path: Path) -> None:
    source = tmp_path / "source.npz"
    checkpoint.save(source, tensors(0))
    with pytest.raises(CheckpointError, match="cannot be converted in parts"):
        checkpoint.cast_file(source, tmp_path / "new.npz", "bfloat16", part="1/2")


@pytest.mark.parametrize("name", ["part-1-of-1.json", "job.json"])
def test_a_damaged_page(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """Also one that is valid JSON, of which a digit is another, or with another type inside."""
    new = tmp_path / "new"
    checkpoint.cast_file(folder, new, "bfloat16", part="1/1")
    page = temporary(tmp_path) / name
    text = page.read_text()
    whole = json.loads(text)
    (other,) = (text[:place] + "1" + text[place + 1 :] for place in [text.rindex("0")])
    damaged = ["", "[]", '{"job": 3}', text[:-1], other]
    for key in [key for key in whole if key in {"part", "job", "spans", "parts", "arguments"}]:
        for value in (None, 3, "a", [], [3], [["a", 1]], {}, {"a": 1}):
            damaged.append(sealed({**whole, key: value}))
    remedy = f"{page} is not .* remove "
    report = str(tmp_path / "report.json")
    for one in damaged:
        page.write_text(one)
        with pytest.raises(
            CheckpointError, match=f"{remedy}|are not complete|that no part|is not a page"
        ):
            checkpoint.finish(new)
        assert main(["finish", str(new), "--report", report]) == 2
    assert "did not expect" not in capsys.readouterr().err
    page.write_text(text)
    checkpoint.finish(new)


def sealed(page: dict[str, Any]) -> str:
    """A page as a part would have written it."""
    return seal_page({key: value for key, value in page.items() if key != "seal"}).decode()


def test_mappings_of_any_class(tmp_path: Path) -> None:
    source, new = tmp_path / "source.safetensors", tmp_path / "new.safetensors"
    checkpoint.save(source, tensors(0))
    dtypes = {".*": "fp8"}
    alone = checkpoint.cast_file(source, tmp_path / "alone.safetensors", dtype_map=dtypes)
    for number in (1, 2):
        view = MappingProxyType(dtypes)
        checkpoint.cast_file(source, new, dtype_map=view, part=(number, 2))
    assert checkpoint.finish(new).rows == alone.rows
    assert new.read_bytes() == (tmp_path / "alone.safetensors").read_bytes()


def test_the_commands(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    new = tmp_path / "a new one"
    for part in ("1/2", "2/2"):
        assert main(["cast", str(folder), str(new), "--dtype", "bfloat16", "--part", part]) == 0
        out = capsys.readouterr()
        assert f"part {part} is done; when all are: castwise finish '{new}'" in out.err
    with pytest.raises(CheckpointError, match=rf"\(castwise finish '{new}'\), or remove"):
        checkpoint.cast_file(folder, new, "bfloat16")
    assert main(["finish", str(new), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (
        main(["cast", str(folder), str(tmp_path / "alone"), "--dtype", "bfloat16", "--json"]) == 0
    )
    alone = json.loads(capsys.readouterr().out)
    assert report["tensors"] == alone["tensors"]
    assert main(["finish", str(new)]) == 2
    assert "there are no parts of" in capsys.readouterr().err


def test_parts_become_one_file(folder: Path, tmp_path: Path) -> None:
    new, alone = tmp_path / "new.safetensors", tmp_path / "alone.safetensors"
    summary = checkpoint.cast_file(folder, alone, "bfloat16")
    for part in ("1/2", "2/2"):
        checkpoint.cast_file(folder, new, "bfloat16", part=part)
    assert checkpoint.finish(new).rows == summary.rows
    assert new.read_bytes() == alone.read_bytes()
    with ThreadPoolExecutor(2) as executor:
        other = checkpoint.cast_file(folder, new, "bfloat16", executor=executor, overwrite=True)
    assert other.rows == summary.rows


def test_a_refused_part_leaves_nothing(tmp_path: Path) -> None:
    checkpoint.save(tmp_path / "source.npz", tensors(0))
    for new in ("new.npz", "new.safetensors"):
        with pytest.raises(CheckpointError, match=f"{new} cannot be converted in parts"):
            checkpoint.cast_file(tmp_path / "source.npz", tmp_path / new, "bfloat16", part="1/2")
    assert [one.name for one in tmp_path.iterdir()] == ["source.npz"]


def test_a_part_into_no_folder_names_the_destination(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        checkpoint.cast_file(folder, tmp_path / "none" / "new", "bfloat16", part="1/2")
    assert caught.value.filename == str(tmp_path / "none" / "new")


def test_a_part_checks_the_room(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=10))
    with pytest.raises(CheckpointError, match="only 10 free"):
        checkpoint.cast_file(folder, tmp_path / "new", "bfloat16", part="1/2")
    assert [one.name for one in tmp_path.iterdir()] == ["source"]


def test_a_part_is_the_whole_of_its_progress(folder: Path, tmp_path: Path) -> None:
    for part in ("1/3", "2/3", "3/3"):
        seen: list[checkpoint.Progress] = []
        checkpoint.cast_file(folder, tmp_path / "new", "bfloat16", part=part, progress=seen.append)
        assert seen[-1].done == seen[-1].total > 0


def test_a_page_of_parts_without_end(folder: Path, tmp_path: Path) -> None:
    new = tmp_path / "new"
    checkpoint.cast_file(folder, new, "bfloat16", part="1/2")
    (page,) = tmp_path.glob(".new*/part-1-of-2.json")
    page.rename(page.with_name("part-1-of-99999999999.json"))
    with pytest.raises(CheckpointError, match="parts are not complete: all"):
        checkpoint.finish(new)


def test_a_fraction_is_not_a_part(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is not a part such as"):
        checkpoint.cast_file(folder, tmp_path / "new", "bfloat16", part=(1.5, 3))  # type: ignore[arg-type]


def test_the_report_of_finish_does_not_replace_the_source(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    new = tmp_path / "new"
    checkpoint.cast_file(folder, new, "bfloat16", part="1/1")
    before = contents(folder)
    for report in (folder / "config.json", folder / "new.json", new):
        assert main(["finish", str(new), "--report", str(report)]) == 2
        assert "would replace the checkpoint" in capsys.readouterr().err
    assert contents(folder) == before
    assert main(["finish", str(new), "--report", str(tmp_path / "report.json")]) == 0


class StopError(Exception):
    """Raised by a listener."""


def stop(_: object) -> None:
    raise StopError


def states(folder: Path) -> dict[str, tuple[int, int]]:
    """What tells that a file was written."""
    found = ((path, path.stat()) for path in folder.rglob("*") if path.is_file())
    return {str(path): (status.st_mtime_ns, status.st_ino) for path, status in found}


def test_a_stopped_part_of_another_conversion_keeps_others_out(
    folder: Path, tmp_path: Path
) -> None:
    new = tmp_path / "new"
    with pytest.raises(StopError):
        checkpoint.cast_file(folder, new, "float64", part="1/1", progress=stop)
    before = states(temporary(tmp_path))
    assert len(before) == 4  # the job, and three files
    with pytest.raises(
        CheckpointError,
        match=r"another conversion: dtype is 'float64' there and 'bfloat16' here, the number of "
        r"parts is 1 there and 2 here; .* remove the folder",
    ):
        checkpoint.cast_file(folder, new, "bfloat16", part="1/2")
    assert states(temporary(tmp_path)) == before
    with pytest.raises(CheckpointError, match="parts are not complete: all"):
        checkpoint.finish(new)
    checkpoint.cast_file(folder, new, "float64", part="1/1")
    checkpoint.finish(new)
    checkpoint.cast_file(folder, tmp_path / "alone", "float64")
    assert contents(new) == contents(tmp_path / "alone")


def test_a_part_of_another_conversion_does_not_run_beside_others(
    folder: Path, tmp_path: Path
) -> None:
    new = tmp_path / "new"
    sizes: list[list[int]] = []

    def beside(_: object) -> None:
        files = temporary(tmp_path).rglob("*.safetensors")
        sizes.append(sorted(path.stat().st_size for path in files))
        if len(sizes) > 1:
            return
        with pytest.raises(CheckpointError, match="dtype is 'bfloat16' there and 'float8_e5m2'"):
            checkpoint.cast_file(folder, new, "float8_e5m2", part="2/2")

    checkpoint.cast_file(folder, new, "bfloat16", part="1/2", progress=beside)
    checkpoint.cast_file(folder, new, "bfloat16", part="2/2")
    checkpoint.finish(new)
    checkpoint.cast_file(folder, tmp_path / "alone", "bfloat16")
    assert contents(new) == contents(tmp_path / "alone")
    sized = sorted(path.stat().st_size for path in new.glob("*.safetensors"))
    assert all(one == sized for one in sizes)  # from the first byte on


@pytest.mark.parametrize("has_locks", [True, False])
def test_parts_that_begin_at_the_same_instant(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, has_locks: bool
) -> None:
    """One conversion wins, whichever; all parts of others are refused, and touch nothing."""
    if not has_locks:
        monkeypatch.setattr(temporary_names, "lock", lambda *_, **__: False)
    for attempt in range(10):
        new = tmp_path / str(attempt)
        barrier = threading.Barrier(8)

        def begin(
            dtype: str, part: str, new: Path = new, barrier: threading.Barrier = barrier
        ) -> bool:
            barrier.wait()
            try:
                checkpoint.cast_file(folder, new, dtype, part=part)
            except CheckpointError as error:
                return "of another conversion: " not in str(error)
            return True

        jobs = [(dtype, f"{one}/2") for dtype in ("bfloat16", "float64") for one in (1, 2)] * 2
        with ThreadPoolExecutor(8) as executor:
            done = list(executor.map(begin, *zip(*jobs, strict=True)))
        (dtype,) = {job[0] for job, is_done in zip(jobs, done, strict=True) if is_done}
        assert sum(done) == 4
        checkpoint.finish(new)
        checkpoint.cast_file(folder, tmp_path / "alone", dtype, overwrite=True)
        assert contents(new) == contents(tmp_path / "alone")


@pytest.mark.parametrize(
    ("options", "difference"),
    [
        ({"dtype": "float16"}, "dtype is 'bfloat16' there and 'float16' here"),
        (
            {"dtype": None, "policy": "mixed_bfloat16"},
            "dtype is 'bfloat16' there and not given here, policy is not given there and 'mixed_bf",
        ),
        (
            {"dtype_map": {"0.bias": "keep"}},
            r"dtype_map is not given there and {'0\.bias': 'keep'}",
        ),
        ({"rounding": "towards-zero"}, "rounding is not given there and 'towards-zero' here"),
        ({"overflow": "saturate"}, r"overflow is '\w+' there and 'saturate' here"),
        ({"nan": "raise"}, r"nan is '\w+' there and 'raise' here"),
        ({"like": "torch"}, "like is not given there and 'torch' here"),
        ({"keep_config": True}, "keep_config is False there and True here"),
        ({"include": "*.bin"}, r"include is .* there and '\*\.bin' here"),
        ({"exclude": "*.txt"}, r"exclude is .* there and '\*\.txt' here"),
        ({"max_shard_size": 100_000}, "max_shard_size is not given there and 100000 here"),
        ({"part": "2/3"}, "the number of parts is 2 there and 3 here"),
    ],
)
def test_the_difference_of_two_conversions_is_named(
    folder: Path, tmp_path: Path, options: dict[str, Any], difference: str
) -> None:
    new = tmp_path / "new"
    checkpoint.cast_file(folder, new, "bfloat16", part="1/2")
    before = states(tmp_path)
    with pytest.raises(CheckpointError, match=f"another conversion: {difference}"):
        checkpoint.cast_file(folder, new, **{"dtype": "bfloat16", "part": "2/2", **options})
    assert states(tmp_path) == before


@pytest.mark.parametrize("name", ["config.json", "tokenizer/vocab.txt"])
@pytest.mark.parametrize(
    ("texts", "difference"),
    [
        (("{}", "[]"), r"is 2 bytes of CRC \w{8} there and 2 bytes of CRC \w{8} here"),
        (("{}", None), "is 2 bytes of .* there and missing here"),
        ((None, "[]"), "is missing there and 2 bytes of .* here"),
    ],
)
def test_another_file_that_was_changed_between_parts(
    folder: Path, tmp_path: Path, name: str, texts: tuple[str | None, str | None], difference: str
) -> None:
    """It is copied at the end; one that holds again what it did at the first part is taken."""
    path, new = folder / name, tmp_path / "new"
    path.parent.mkdir(exist_ok=True)
    before, after = texts

    def write(text: str | None) -> None:
        path.unlink(missing_ok=True)
        if text is not None:
            path.write_text(text)

    def part(number: int) -> None:
        checkpoint.cast_file(folder, new, "bfloat16", part=(number, 2))

    write(before)
    part(1)
    for call in (partial(part, 2), partial(checkpoint.finish, new)):
        write(after)
        unchanged = states(tmp_path)
        with pytest.raises(CheckpointError, match=f"{name} of the source {difference}"):
            call()
        assert states(tmp_path) == unchanged
        write(before)
        part(2)
    checkpoint.finish(new)
    assert path.exists() == (new / name).exists()


def test_a_map_that_was_changed_between_parts(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dtypes, new = tmp_path / "map.json", tmp_path / "new"
    dtypes.write_text('{".*large": "bfloat16"}')
    command = ["cast", str(folder), str(new), "--map", str(dtypes), "--part"]
    assert main([*command, "1/2"]) == 0
    dtypes.write_text('{".*large": "float16"}')
    assert main([*command, "2/2"]) == 2
    assert f"another conversion: {dtypes} was changed" in capsys.readouterr().err
    assert main(["cast", str(folder), str(new), "--dtype", "bfloat16", "--part", "2/2"]) == 2
    assert "--map is " in (err := capsys.readouterr().err)
    assert "--dtype is not given there and 'bfloat16' here" in err
    dtypes.write_text('{".*large": "int8_channel"}')
    assert main(["quantize", *command[1:], "2/2"]) == 2
    assert (
        "conversion: the command is 'cast' there and 'quantize' here, " in capsys.readouterr().err
    )


def patched(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


def holes(path: Path) -> None:
    size = path.stat().st_size
    os.truncate(path, 3000)
    os.truncate(path, size)


def replaced(path: Path, kind: str) -> None:
    content = path.read_bytes()
    path.unlink()
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        need("os.mkfifo")
        os.mkfifo(path)
    else:
        need(LINKS)
        other = path.parents[2] / "other"
        if kind == "link":
            other.write_bytes(content)
        path.symlink_to(other)


DAMAGES: dict[str, tuple[str, Callable[[Path], object]]] = {
    "removed": ("is missing", Path.unlink),
    "cut": (r"has [\d,]+ bytes, not ", lambda path: os.truncate(path, 3000)),
    "emptied": ("has 0 bytes, not ", lambda path: os.truncate(path, 0)),
    "enlarged": (r"has [\d,]+ bytes, not ", lambda path: os.truncate(path, 1_000_000)),
    "header": ("has other bytes from 0 to", lambda path: patched(path, 20)),
    "first byte": ("has other bytes from ", lambda path: patched(path, -1)),
    "holes": ("has other bytes from ", holes),
    "folder": ("is not a file that a part made; remove it", lambda path: replaced(path, "folder")),
    "pipe": ("is not a file that a part made; remove it", lambda path: replaced(path, "pipe")),
    "link": ("is not a file that a part made; remove it", lambda path: replaced(path, "link")),
    "broken link": ("is not a file that a part made", lambda path: replaced(path, "broken link")),
}


@pytest.mark.parametrize("suffix", ["", ".safetensors"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_file_that_is_not_as_the_parts_wrote_it(
    folder: Path, tmp_path: Path, damage: str, suffix: str
) -> None:
    """The error names the file and the parts to run again; with these the target is right."""
    new, alone = tmp_path / f"new{suffix}", tmp_path / f"alone{suffix}"
    checkpoint.cast_file(folder, alone, "bfloat16")
    parts = [f"{number}/4" for number in range(1, 5)]
    for part in parts:
        checkpoint.cast_file(folder, new, "bfloat16", part=part)
    (files,) = tmp_path.glob(".new*/files")
    path = sorted(files.iterdir())[-1]
    message, do = DAMAGES[damage]
    do(path)
    for attempt in range(6):
        try:
            checkpoint.finish(new)
            break
        except CheckpointError as error:
            text = str(error)
        assert not new.exists()
        if attempt == 0:
            assert re.search(f"{path} {message}", text), text
            for one in ("0/4", *parts):  # those with bytes in the file, and no other
                assert (f"part='{one}'" in text) == (one in writers(path)) or "bytes from" in text
        elif "remove it" in text:
            assert "other" not in text
        again = re.findall(r"part='(\d/4)'", text) or re.findall(r"\d/4", text)
        assert again, text
        if "remove it" in text:
            with pytest.raises(CheckpointError, match="not a file that a part made; remove it"):
                checkpoint.cast_file(folder, new, "bfloat16", part=again[0])
            path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
        checkpoint.cast_file(folder, new, "bfloat16", part=again[0])  # one of them, not all
    assert content_of(new) == content_of(alone)
    assert not (tmp_path / "other").exists() or (tmp_path / "other").stat().st_size > 3000


def writers(path: Path) -> set[str]:
    pages = [json.loads(page.read_text()) for page in path.parents[1].glob("part-*.json")]
    return {page["part"] for page in pages if any(path.name == span[0] for span in page["spans"])}


def test_a_page_under_another_name(folder: Path, tmp_path: Path) -> None:
    new = tmp_path / "new"
    checkpoint.cast_file(folder, new, "bfloat16", part="1/2")
    page = temporary(tmp_path) / "part-1-of-2.json"
    shutil.copy(page, page.with_name("part-2-of-2.json"))
    with pytest.raises(CheckpointError, match=r"part-2-of-2\.json is not a page .*part='2/2'"):
        checkpoint.finish(new)


@pytest.mark.parametrize("kind", ["link", "broken link", "file", "empty folder"])
def test_a_folder_that_no_part_made(folder: Path, tmp_path: Path, kind: str) -> None:
    """A link leads to a folder with parts, which stay as they are."""
    for part in ("1/2", "2/2"):
        checkpoint.cast_file(folder, tmp_path / "other", "bfloat16", part=part)
    theirs, ours = tmp_path / ".other.parts.castwise-tmp", temporary(tmp_path)
    if kind == "file":
        ours.touch()
    elif kind == "empty folder":
        ours.mkdir()
    else:
        need(LINKS)
        ours.symlink_to(theirs if kind == "link" else tmp_path / "none")
    before = states(theirs)
    with pytest.raises(CheckpointError, match=r"remove it"):
        checkpoint.cast_file(folder, tmp_path / "new", "bfloat16", part="1/2")
    with pytest.raises(CheckpointError, match="there are no parts of"):
        checkpoint.finish(tmp_path / "new")
    assert states(theirs) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == [ours.name, theirs.name, "source"]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_job_that_was_removed(folder: Path, tmp_path: Path, dtype: str) -> None:
    new = tmp_path / "new"
    checkpoint.cast_file(folder, new, "bfloat16", part="1/2")
    (temporary(tmp_path) / "job.json").unlink()
    before = states(temporary(tmp_path))
    with pytest.raises(CheckpointError, match=r"or has no job\.json; remove it if it is there"):
        checkpoint.cast_file(folder, new, dtype, part="2/2")
    with pytest.raises(CheckpointError, match="there are no parts of"):
        checkpoint.finish(new)
    assert states(temporary(tmp_path)) == before


def test_a_page_of_another_folder(folder: Path, tmp_path: Path) -> None:
    """Even of the same conversion: its part has written into other files."""
    for name in ("new", "other"):
        checkpoint.cast_file(folder, tmp_path / name, "bfloat16", part="1/2")
    checkpoint.cast_file(folder, tmp_path / "other", "bfloat16", part="2/2")
    shutil.copy(tmp_path / ".other.parts.castwise-tmp" / "part-2-of-2.json", temporary(tmp_path))
    with pytest.raises(CheckpointError, match=r"part-2-of-2\.json is not a page .*part='2/2'"):
        checkpoint.finish(tmp_path / "new")


@pytest.mark.parametrize("dtype", [None, "bfloat16", "float8_e5m2"])
def test_a_folder_that_was_removed_under_a_part(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str | None
) -> None:
    """Whatever others begin there, also the same conversion, the part ends."""
    monkeypatch.setattr(parts_module, "_PIECE_BYTES", 100_000)
    new = tmp_path / "new"
    begun: list[str] = []

    def begin_anew(progress: checkpoint.Progress) -> None:
        if progress.done and not begun:
            begun.append("")
            shutil.rmtree(temporary(tmp_path))
            if dtype is not None:
                checkpoint.cast_file(folder, new, dtype, part="1/2")

    with pytest.raises(CheckpointError, match=r"was removed|parts of another conversion"):
        checkpoint.cast_file(folder, new, "bfloat16", part="2/2", progress=begin_anew)
    if dtype is None:
        assert not temporary(tmp_path).exists()
        return
    for part in ("2/2", "1/2"):  # files that became longer lost what was in them
        checkpoint.cast_file(folder, new, dtype, part=part)
    checkpoint.finish(new)
    checkpoint.cast_file(folder, tmp_path / "alone", dtype)
    assert contents(new) == contents(tmp_path / "alone")


def test_a_part_that_is_run_again_beside_the_end(folder: Path, tmp_path: Path) -> None:
    new = tmp_path / "new"
    checkpoint.cast_file(folder, new, "bfloat16", part="1/1")

    def end(progress: checkpoint.Progress) -> None:
        if progress.done == 0:
            with pytest.raises(CheckpointError, match=r"parts are not complete: all"):
                checkpoint.finish(new)
            page.write_bytes(content)  # as that of a twin that ends first
        elif progress.done == progress.total:
            with pytest.raises(CheckpointError, match=r"a part of .* is being converted, or"):
                checkpoint.finish(new)

    page = temporary(tmp_path) / "part-1-of-1.json"
    content = page.read_bytes()
    checkpoint.cast_file(folder, new, "bfloat16", part="1/1", progress=end)
    checkpoint.finish(new)
    assert not temporary(tmp_path).exists()


def test_another_run_does_not_make_what_parts_are_there_for(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    new = tmp_path / "new"
    checkpoint.cast_file(folder, new, "bfloat16", part="1/2")
    before = states(tmp_path)
    for options in ({}, {"dry_run": True}, {"resumable": True}, {"overwrite": True}):
        with pytest.raises(CheckpointError, match=rf"castwise finish {new}\), or remove that"):
            checkpoint.cast_file(folder, new, "bfloat16", **options)
    assert main(["quantize", str(folder), str(new), "--scheme", "fp8_channel"]) == 2
    assert f"holds parts of {new}" in capsys.readouterr().err
    assert states(tmp_path) == before
    checkpoint.cast_file(folder, tmp_path / "new.v2", "bfloat16")
    shutil.rmtree(temporary(tmp_path))
    checkpoint.cast_file(folder, new, "bfloat16")


RUN_OR_DIE = """
import json, os, signal, sys
from castwise import checkpoint
from castwise.checkpoint.files import temporary_names
from castwise.checkpoint.running import parts as parts_module
parts_module._PIECE_BYTES = 20_000
source, new, runs = sys.argv[1:]
def run(dtype, part, left):
    def listen(_):
        nonlocal left
        left -= 1
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)
    try:
        checkpoint.cast_file(source, new, dtype, part=part, progress=listen)
    except checkpoint.CheckpointError as error:
        return 3 if "of another conversion: " in str(error) else 4
    return 0
begun = {}
ended = []
for one in json.loads(runs):
    if len(begun) == 3:
        child, status = os.wait()
        ended.append((*begun.pop(child), os.waitstatus_to_exitcode(status)))
    child = os.fork()
    if not child:
        os._exit(run(*one))
    begun[child] = one
while begun:
    child, status = os.wait()
    ended.append((*begun.pop(child), os.waitstatus_to_exitcode(status)))
print(json.dumps(ended))
"""


@pytest.mark.thinned(4)
@pytest.mark.parametrize("seed", range(16))
def test_parts_that_are_killed_and_mistaken(folder: Path, tmp_path: Path, seed: int) -> None:
    """Three at a time, of four conversions: the first one wins, and nothing of others is in it."""
    need("signal.SIGKILL", "os.fork")
    pick = random.Random(seed)
    new = tmp_path / "new"
    runs = []
    for _ in range(18):
        dtype, count = pick.choice(
            [("bfloat16", 3), ("float8_e5m2", 3), ("bfloat16", 2), ("float64", 1)]
        )
        runs.append((dtype, f"{pick.randint(1, count)}/{count}", pick.choice([0, 1, 2, 5, 15])))
    result = run_python("-c", RUN_OR_DIE, folder, new, json.dumps(runs))
    assert result.returncode == 0, result.stderr
    first = json.loads((temporary(tmp_path) / "job.json").read_text())
    dtype, count = first["arguments"]["dtype"], first["parts"]
    ended = json.loads(result.stdout)
    assert len(ended) == len(runs)
    for other, part, _, code in ended:
        is_first = (other, part[2:]) == (dtype, str(count))
        assert code in ({0, -9} if is_first else {3}), ended
    for number in range(1, count + 1):
        if not (temporary(tmp_path) / f"part-{number}-of-{count}.json").exists():
            checkpoint.cast_file(folder, new, dtype, part=(number, count))
    rows = checkpoint.finish(new).rows
    assert rows == checkpoint.cast_file(folder, tmp_path / "alone", dtype).rows
    assert contents(new) == contents(tmp_path / "alone")
    assert sorted(one.name for one in tmp_path.iterdir()) == ["alone", "new", "source"]
