"""Casting a checkpoint in parts, and putting them together: as in one run."""

import json
import math
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from castwise import checkpoint
from castwise.checkpoint import CheckpointError
from castwise.cli import main
from checkpoint_samples import floats
from sharded_folder import OPTIONS, contents, tensors


def temporary(tmp_path: Path) -> Path:
    return tmp_path / ".new.parts.castwise-tmp"


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
    shard = next(folder.glob("*.safetensors"))
    shard.write_bytes(shard.read_bytes())
    with pytest.raises(CheckpointError, match=r"another conversion: model-0000\d-of-\S* of the source is .* there"):
        checkpoint.finish(new)
    assert temporary(tmp_path).exists()


def test_an_end_that_was_stopped(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new = tmp_path / "new"
    alone = checkpoint.cast_file(folder, tmp_path / "alone", "bfloat16")
    checkpoint.cast_file(folder, new, "bfloat16", part="1/1")

    def stop(path: Path, **_options: object) -> None:
        raise KeyboardInterrupt(path)

    with monkeypatch.context() as patch:
        patch.setattr(
            "castwise.checkpoint.running._to_folder.put_folder", lambda *_, **__: stop(new)
        )
        with pytest.raises(KeyboardInterrupt):
            checkpoint.finish(new)
    assert not new.exists()
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", stop)
        with pytest.raises(KeyboardInterrupt):
            checkpoint.finish(new)
    assert contents(new) == contents(tmp_path / "alone")
    with pytest.raises(CheckpointError, match="is complete: a run before"):
        checkpoint.finish(new)
    assert not temporary(tmp_path).exists()
    assert checkpoint.cast_file(folder, tmp_path / "more", "bfloat16").rows == alone.rows


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"part": "0/4"}, ValueError, "parts of 4 are 1/4 to 4/4"),
        ({"part": "5/4"}, ValueError, "part='5/4'"),
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


def test_a_damaged_page(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    new = tmp_path / "new"
    checkpoint.cast_file(folder, new, "bfloat16", part="1/1")
    page = temporary(tmp_path) / "part-1-of-1.json"
    whole = json.loads(page.read_text())
    for text in ("", "[]", '{"job": 3}'):
        page.write_text(text)
        with pytest.raises(CheckpointError, match="was damaged; remove it"):
            checkpoint.finish(new)
    report = str(tmp_path / "report.json")
    for name in ("command", "source"):
        for value in (None, 3, ["cast"]):
            arguments = {**whole["arguments"], name: value}
            if value is None:
                del arguments[name]
            page.write_text(json.dumps({**whole, "arguments": arguments}))
            assert main(["finish", str(new), "--report", report]) == 2
            assert f"{page} is not a page that a part wrote" in capsys.readouterr().err


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
    new = tmp_path / "new"
    for part in ("1/2", "2/2"):
        assert main(["cast", str(folder), str(new), "--dtype", "bfloat16", "--part", part]) == 0
        out = capsys.readouterr()
        assert f"part {part} is done; when all are: castwise finish {new}" in out.err
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


def test_parts_with_other_arguments(folder: Path, tmp_path: Path) -> None:
    new = tmp_path / "new"
    checkpoint.cast_file(folder, new, "bfloat16", part="1/2")


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
