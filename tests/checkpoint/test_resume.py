"""An interrupted cast of a folder goes on where it stopped, to the same bytes and report."""

import itertools
import json
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from castwise import checkpoint
from castwise.checkpoint.files import replacing, temporary_names
from castwise.checkpoint.files.temporary_names import TemporaryName
from castwise.checkpoint.running.ledger import seal_page
from checkpoint_samples import floats, write_sharded
from processes import run_python
from support import run_castwise
from system_parts import LINKS, need

SHARDS = ("a", "b", "c", "d")
KEPT = ".out.resumable.castwise-tmp"
JOURNAL = ".out.resumable.journal.castwise-tmp"


class InterruptionError(Exception):
    """Raised by a listener."""


def stop_at(name: str) -> Callable[[checkpoint.Progress], None]:
    def listener(progress: checkpoint.Progress) -> None:
        if progress.name == name:
            raise InterruptionError

    return listener


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Four shards, one of them with integers too, and other files."""
    arrays = {name: {name: floats(5000, index)} for index, name in enumerate(SHARDS)}
    shards: dict[str, dict[str, Any]] = {f"{name}.safetensors": arrays[name] for name in SHARDS}
    shards["b.safetensors"]["ids"] = np.arange(9)
    write_sharded(tmp_path / "in", shards)
    return tmp_path / "in"


def interrupt(source: Path, at: str, **options: Any) -> Path:
    """Cast `source` to `out` up to a tensor; the temporary folder that is kept."""
    out = source.with_name("out")
    with pytest.raises(InterruptionError):
        checkpoint.cast_file(source, out, "bfloat16", progress=stop_at(at), **options)
    assert not out.exists()
    return out.with_name(KEPT)


@pytest.mark.parametrize("at", ["b", "c", "d"])
def test_the_result_is_that_of_one_run(
    source: Path, caplog: pytest.LogCaptureFixture, at: str
) -> None:
    out, whole = source.with_name("out"), source.with_name("whole")
    kept = interrupt(source, at, resumable=True)
    done = SHARDS[: SHARDS.index(at)]
    assert f"{kept} keeps {len(done)} of 4 shards" in caplog.text
    seen: list[str | None] = []
    summary = checkpoint.cast_file(
        source, out, "bfloat16", resume=True, progress=lambda one: seen.append(one.name)
    )
    assert not set(seen) & set(done)
    expected = checkpoint.cast_file(source, whole, "bfloat16")
    assert contents(out) == contents(whole)
    assert list(summary.rows) == list(expected.rows)
    assert summary.to_dict() == {**expected.to_dict(), "destination": str(out)}
    assert sorted(os.listdir(source.parent)) == ["in", "out", "whole"]


def test_a_run_that_resumes_can_be_interrupted_too(source: Path) -> None:
    interrupt(source, "b", resumable=True)
    kept = interrupt(source, "d", resume=True)
    names = {path.name for path in kept.iterdir()}
    assert {"a.safetensors", "b.safetensors", "c.safetensors"} <= names
    out, whole = source.with_name("out"), source.with_name("whole")
    checkpoint.cast_file(source, out, "bfloat16", resume=True)
    checkpoint.cast_file(source, whole, "bfloat16")
    assert contents(out) == contents(whole)


def test_without_anything_kept_it_begins_at_the_start(source: Path) -> None:
    out = source.with_name("out")
    checkpoint.cast_file(source, out, "bfloat16", resume=True)
    assert checkpoint.load(out)["a"].dtype.itemsize == 2
    assert sorted(os.listdir(source.parent)) == ["in", "out"]


def test_nothing_is_kept_unless_asked(source: Path) -> None:
    interrupt(source, "c")
    assert os.listdir(source.parent) == ["in"]
    interrupt(source, "a", resumable=True)  # no shard was complete
    assert os.listdir(source.parent) == ["in"]


def test_a_run_that_does_not_resume_removes_what_was_kept(source: Path) -> None:
    kept = interrupt(source, "c", resumable=True)
    assert kept.is_dir()
    interrupt(source, "c")
    assert os.listdir(source.parent) == ["in"]


@pytest.mark.parametrize("other", ["out.v2", "out." + "0" * 12, "x" * 45 + "a"])
def test_what_is_kept_for_another_destination_stays(source: Path, other: str) -> None:
    """Also where its name begins with this one's, or both are too long for a temporary name."""
    interrupt(source, "c", resumable=True)
    kept = source.with_name(KEPT)
    target = "x" * 45 + "b" if other.startswith("x") else "out"
    with pytest.raises(InterruptionError):
        checkpoint.cast_file(
            source, source.with_name(other), "bf16", resumable=True, progress=stop_at("c")
        )
    (theirs,) = set(source.parent.glob(".*.resumable.castwise-tmp")) - {kept}
    before = contents(theirs)
    assert "b.safetensors" in before
    for options in ({}, {"resumable": True}):
        checkpoint.cast_file(source, source.with_name(target), "float16", overwrite=True, **options)
        assert contents(theirs) == before
    checkpoint.cast_file(source, source.with_name(other), "bf16", resume=True)
    assert not theirs.exists()


@pytest.mark.parametrize("options", [{}, {"resumable": True}, {"resume": True}])
def test_a_link_is_not_followed(source: Path, options: dict[str, bool]) -> None:
    need(LINKS)
    victim, link, out = (source.with_name(name) for name in ("victim", KEPT, "out"))
    victim.mkdir()
    (victim / "data").write_text("precious")
    link.symlink_to(victim)
    if "resume" in options:
        with pytest.raises(checkpoint.CheckpointError, match=rf"{link}, .* remove it"):
            checkpoint.cast_file(source, out, "bfloat16", **options)
        assert link.is_symlink()
    else:
        checkpoint.cast_file(source, out, "bfloat16", **options)
        assert checkpoint.load(out)["a"].dtype.itemsize == 2
    assert contents(victim) == {"data": b"precious"}


def test_a_folder_of_another_user_is_not_taken(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need("os.getuid")
    kept = interrupt(source, "c", resumable=True)
    before = contents(kept)
    user = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: user + 1)
    with pytest.raises(checkpoint.CheckpointError, match="is not a folder of this user"):
        checkpoint.cast_file(source, source.with_name("out"), "bfloat16", resume=True)
    assert contents(kept) == before


def test_a_drawn_seed_is_kept(source: Path) -> None:
    out, whole = source.with_name("out"), source.with_name("whole")
    interrupt(source, "c", resumable=True, rounding="stochastic")
    summary = checkpoint.cast_file(source, out, "bfloat16", rounding="stochastic", resume=True)
    seed = summary.options["seed"]
    checkpoint.cast_file(source, whole, "bfloat16", rounding="stochastic", seed=seed)
    assert contents(out) == contents(whole)


@pytest.mark.parametrize(
    ("options", "differing"),
    [
        ({"rounding": "towards-zero"}, "rounding is not given there and 'towards-zero' here"),
        ({"dtype": "float16"}, "dtype is 'bfloat16' there and 'float16' here"),
        ({"dtype": np.dtype("float16")}, "dtype is 'bfloat16' there and 'float16' here"),
        ({"max_shard_size": 1}, "max_shard_size is not given there and 1 here"),
        ({"touch": True}, r"d\.safetensors of the source is 20,\d* bytes of 20.* of 1970-01-01T"),
    ],
)
def test_another_conversion_does_not_go_on(
    source: Path, caplog: pytest.LogCaptureFixture, options: dict[str, Any], differing: str
) -> None:
    kept = interrupt(source, "c", resumable=True)
    before = contents(kept)
    caplog.clear()
    if options.pop("touch", False):
        os.utime(source / "d.safetensors", (1, 1))
    arguments = {"dtype": "bfloat16", **options}
    with pytest.raises(checkpoint.CheckpointError, match=f"another conversion: {differing}"):
        checkpoint.cast_file(source, source.with_name("out"), resume=True, **arguments)
    assert contents(kept) == before
    assert caplog.text == ""  # not that a run can go on with them


def test_other_arguments_of_the_same_conversion_go_on(source: Path) -> None:
    out, whole = source.with_name("out"), source.with_name("whole")
    interrupt(source, "c", resumable=True)
    seen: list[str | None] = []
    checkpoint.cast_file(
        source,
        out,
        np.dtype(ml_dtypes.bfloat16),
        resume=True,
        progress=lambda one: seen.append(one.name),
    )
    assert not {"a", "b"} & set(seen)
    checkpoint.cast_file(source, whole, "bfloat16")
    assert contents(out) == contents(whole)


@pytest.mark.parametrize("damage", ["other bytes", "cut", "gone", "no page", "half a page"])
def test_a_shard_that_is_not_as_written_is_cast_again(source: Path, damage: str) -> None:
    out, whole = source.with_name("out"), source.with_name("whole")
    kept = interrupt(source, "d", resumable=True)
    shard, page = kept / "b.safetensors", kept.with_name(JOURNAL) / "part-2-of-4.json"
    content = shard.read_bytes()
    if damage == "other bytes":
        shard.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    elif damage == "cut":
        shard.write_bytes(content[:-1])
    elif damage == "gone":
        shard.unlink()
    elif damage == "no page":
        page.unlink()
    else:
        page.write_bytes(page.read_bytes()[:-20])
    checkpoint.cast_file(source, out, "bfloat16", resume=True)
    checkpoint.cast_file(source, whole, "bfloat16")
    assert contents(out) == contents(whole)


def page_in(journal: Path, number: int) -> Path:
    """The page of a shard, counted from 1; that of the job for 0."""
    return journal / (f"part-{number}-of-4.json" if number else "job.json")


def _written(number: int, content: bytes) -> Callable[[Path], object]:
    return lambda journal: page_in(journal, number).write_bytes(content)


def _edited(number: int, change: Callable[[Any], Any]) -> Callable[[Path], object]:
    """Change what is on a page, and seal it as a run does."""

    def edit(journal: Path) -> None:
        content = json.loads(page_in(journal, number).read_bytes())
        del content["seal"]
        page_in(journal, number).write_bytes(seal_page(change(content)))

    return edit


def _first_report(place: int, value: object) -> Callable[[Any], object]:
    """Change file, tensor or report of the first tensor."""

    def change(page: Any) -> object:
        page["reports"][0][place] = value
        return page

    return change


def _span(place: int, value: object) -> Callable[[Any], object]:
    def change(page: Any) -> object:
        page["spans"][0][place] = value
        return page

    return change


def _first_count(place: int, count: int) -> Callable[[Any], object]:
    """Change a count of the first report: the elements, those that are exact, ..."""

    def change(page: Any) -> object:
        report = next(report for *_, report in page["reports"] if report is not None)
        report[0][place] = count
        return page

    return change


@pytest.mark.parametrize(
    "damage",
    [
        *(
            pytest.param(_written(number, text + b"\n"), id=f"{number}: {text!r}"[:20])
            for number in (0, 1)
            for text in (b"[]", b"1", b"null", b'"a"', b"{}", b'{"options": 3}')
        ),
        pytest.param(_written(0, b"\xff\xfe"), id="no text"),
        *(pytest.param(_written(one, b"[" * 100_000), id=f"{one}: deep") for one in (0, 1)),
        pytest.param(_edited(0, lambda job: {**job, "options": {"seed": "1"}}), id="seed of text"),
        pytest.param(_edited(0, lambda job: {**job, "options": {"seed": -1}}), id="negative seed"),
        pytest.param(_edited(1, lambda _: {"part": 3}), id="shard with other keys"),
        pytest.param(_edited(1, lambda page: {**page, "part": "2/4"}), id="another part"),
        pytest.param(_edited(1, lambda page: {**page, "job": "0" * 64}), id="another job"),
        pytest.param(_edited(1, lambda page: {**page, "reports": 3}), id="rows of another type"),
        pytest.param(_edited(1, lambda page: {**page, "reports": []}), id="no rows"),
        pytest.param(_edited(1, lambda page: {**page, "spans": []}), id="no bytes"),
        pytest.param(_edited(1, _span(0, [])), id="shard without a name"),
        pytest.param(_edited(1, _span(0, "b.safetensors")), id="another shard"),
        pytest.param(_edited(1, _span(1, 1)), id="a part of a shard"),
        pytest.param(_edited(1, _span(2, "1")), id="bytes of text"),
        pytest.param(_edited(1, _span(2, -1)), id="negative bytes"),
        pytest.param(_edited(2, _first_report(1, "other")), id="another tensor"),
        pytest.param(_edited(2, _first_report(2, [1])), id="another report"),
        pytest.param(
            _edited(2, _first_report(2, [[-1] * 9, [0.0] * 4, [0, []], [0, []]])), id="counts"
        ),
        pytest.param(_edited(1, _first_count(0, 10**9)), id="elements of another tensor"),
        pytest.param(_edited(1, _first_count(1, 10**9)), id="more exact ones than elements"),
        pytest.param(_edited(1, _first_count(6, -1)), id="negative count"),
        pytest.param(lambda journal: page_in(journal, 0).unlink(), id="no job"),
    ],
)
def test_a_damaged_journal(source: Path, damage: Callable[[Path], object]) -> None:
    out, kept = source.with_name("out"), interrupt(source, "d", resumable=True)
    before, journal = contents(kept), kept.with_name(JOURNAL)
    damage(journal)
    with pytest.raises(
        checkpoint.CheckpointError, match=rf"{journal} is not a journal .* leave out resume"
    ):
        checkpoint.cast_file(source, out, "bfloat16", resume=True)
    assert contents(kept) == before
    checkpoint.cast_file(source, out, "bfloat16", resumable=True)
    assert sorted(os.listdir(source.parent)) == ["in", "out"]


@pytest.mark.parametrize("value", [None, 3, "a", [1], {"a": 1}], ids=repr)
def test_a_job_with_other_types(source: Path, value: object) -> None:
    out, kept = source.with_name("out"), interrupt(source, "d", resumable=True)
    before, journal = contents(kept), kept.with_name(JOURNAL)
    text = page_in(journal, 0).read_bytes()
    for key in (key for key in json.loads(text) if key not in {"seal", "nonce"}):
        page_in(journal, 0).write_bytes(text)
        _edited(0, lambda job, key=key: {**job, key: value, "tensors": ""})(journal)
        with pytest.raises(
            checkpoint.CheckpointError, match=r"of another conversion: |is not a journal"
        ):
            checkpoint.cast_file(source, out, "bfloat16", resume=True)
    assert contents(kept) == before


@pytest.mark.parametrize("kind", ["pipe", "folder", "link", "file"])
def test_a_journal_that_no_run_wrote(source: Path, kind: str) -> None:
    """Or an older version, as one file."""
    out, kept = source.with_name("out"), interrupt(source, "d", resumable=True)
    journal = kept.with_name(JOURNAL)
    if kind == "link":
        need(LINKS)
        journal.rename(source / "journal")
        journal.symlink_to(source / "journal")
    else:
        shutil.rmtree(journal)
        if kind == "pipe":
            need("os.mkfifo")
            os.mkfifo(journal)
        elif kind == "file":
            journal.write_text('{"arguments": {}, "options": {"seed": null}}\n')
        else:
            journal.mkdir()
    with pytest.raises(checkpoint.CheckpointError, match="leave out resume"):
        checkpoint.cast_file(source, out, "bfloat16", resume=True)
    checkpoint.cast_file(source, out, "bfloat16")
    assert {path.name for path in source.parent.iterdir()} == {"in", "out"}


def test_after_a_kill(source: Path) -> None:
    need("signal.SIGKILL")
    out, whole = source.with_name("out"), source.with_name("whole")
    program = (
        "import os, signal, sys; from castwise import checkpoint; "
        "stop = lambda one: one.name == 'c' and os.kill(os.getpid(), signal.SIGKILL); "
        "checkpoint.cast_file(*sys.argv[1:], 'bfloat16', resumable=True, progress=stop)"
    )
    assert run_python("-c", program, source, out).returncode < 0
    seen: list[str | None] = []
    checkpoint.cast_file(
        source, out, "bfloat16", resume=True, progress=lambda one: seen.append(one.name)
    )
    assert seen == ["c", "d", None]
    checkpoint.cast_file(source, whole, "bfloat16")
    assert contents(out) == contents(whole)


class _Swapless:
    """A system that cannot swap two folders."""

    @staticmethod
    def exchange(_left: Path, _right: Path) -> bool:
        return False


@pytest.mark.parametrize("replaces", ["nothing", "by two renames", "by a swap"])
def test_after_an_error_in_the_last_step(
    source: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    replaces: str,
) -> None:
    out, whole, kept = (source.with_name(name) for name in ("out", "whole", KEPT))
    options = {"overwrite": replaces != "nothing"}
    if options["overwrite"]:
        checkpoint.cast_file(source, out, "float16")
    before = contents(out)

    def refuse(*_arguments: object) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        if replaces == "by a swap":
            patch.setattr(replacing, "exchange", refuse)
        else:
            patch.setattr(replacing, "exchange", _Swapless.exchange)
            rename = Path.rename
            patch.setattr(
                Path, "rename", lambda old, new: refuse() if old == kept else rename(old, new)
            )
        with pytest.raises(OSError, match="Input/output error"):
            checkpoint.cast_file(source, out, "bfloat16", resumable=True, **options)
    assert "keeps 4 of 4 shards" in caplog.text
    assert contents(out) == before
    seen: list[str | None] = []
    checkpoint.cast_file(
        source,
        out,
        "bfloat16",
        resume=True,
        progress=lambda one: seen.append(one.name),
        **options,
    )
    assert seen == [None]
    checkpoint.cast_file(source, whole, "bfloat16")
    assert contents(out) == contents(whole)
    assert sorted(os.listdir(source.parent)) == ["in", "out", "whole"]


@pytest.mark.parametrize("replaces", [False, pytest.param(True, marks=pytest.mark.exhaustive)])
def test_after_a_kill_at_each_of_the_last_steps(source: Path, replaces: bool) -> None:
    """The destination is as before, and can be finished, or is the complete new folder."""
    out, whole, old = (source.with_name(name) for name in ("out", "whole", "old"))
    checkpoint.cast_file(source, old, "float16")
    checkpoint.cast_file(source, whole, "bfloat16")
    before, new = contents(old) if replaces else {}, contents(whole)
    ends = set()
    for step in itertools.count(1):
        shutil.rmtree(out, ignore_errors=True)
        if replaces:
            shutil.copytree(old, out)
        code = run_python("-c", KILL_AT_THE_END, source, out, step).returncode
        ends.add(contents(out) == new)
        assert contents(out) in (before, new)
        if code == 0:
            break
        assert code == 9
        if contents(out) == before:
            seen: list[str | None] = []
            checkpoint.cast_file(
                source,
                out,
                "bfloat16",
                resume=True,
                overwrite=True,
                progress=lambda one, seen=seen: seen.append(one.name),
            )
            assert seen == [None]
        else:
            checkpoint.cast_file(source, out, "bfloat16", overwrite=True)
        assert contents(out) == new
        assert sorted(os.listdir(source.parent)) == ["in", "old", "out", "whole"]
    assert ends == {True, False}


NAMED_ONLY = """
import os, sys
from castwise import checkpoint
from castwise.checkpoint.files import replacing
put_in_place = replacing._put_in_place
def put(*arguments, **options):
    put_in_place(*arguments, **options)
    os._exit(9)
replacing._put_in_place = put
options = {"rounding": "stochastic"} if "stochastic" in sys.argv else {}
checkpoint.cast_file(*sys.argv[1:3], "bfloat16", resumable=True, **options)
"""


@pytest.mark.parametrize("options", [{}, {"rounding": "stochastic"}], ids=["plain", "a seed"])
def test_a_run_that_had_named_its_folder_is_complete(
    source: Path, caplog: pytest.LogCaptureFixture, options: dict[str, Any]
) -> None:
    out, journal = source.with_name("out"), source.with_name(JOURNAL)
    assert run_python("-c", NAMED_ONLY, source, out, *options.values()).returncode == 9
    assert journal.exists()
    before = contents(out)
    with pytest.raises(checkpoint.CheckpointError, match="may be the finished result"):
        checkpoint.cast_file(source, out, "float16", resume=True)
    preview = checkpoint.cast_file(source, out, "bfloat16", resume=True, dry_run=True, **options)
    assert {row.name for row in preview.rows} == {*SHARDS, "ids"}
    caplog.clear()
    summary = checkpoint.cast_file(source, out, "bfloat16", resume=True, **options)
    assert f"{out} is complete already" in caplog.text
    assert contents(out) == before
    expected = checkpoint.cast_file(
        source, out.with_name("whole"), "bfloat16", seed=summary.options["seed"], **options
    )
    assert list(summary.rows) == list(expected.rows)
    assert sorted(os.listdir(source.parent)) == ["in", "out", "whole"]
    with pytest.raises(checkpoint.CheckpointError, match="out exists, and may be the finished"):
        checkpoint.cast_file(source, out, "bfloat16", resume=True, **options)


def test_a_named_folder_that_was_changed_is_not_complete(source: Path) -> None:
    out = source.with_name("out")
    assert run_python("-c", NAMED_ONLY, source, out).returncode == 9
    (out / "b.safetensors").write_bytes(b"")
    with pytest.raises(checkpoint.CheckpointError, match="may be the finished result"):
        checkpoint.cast_file(source, out, "bfloat16", resume=True)
    shutil.rmtree(out)
    checkpoint.cast_file(source, out, "bfloat16", resume=True)
    assert sorted(os.listdir(source.parent)) == ["in", "out"]


KILL_AT_THE_END = """
import os, sys
from castwise import checkpoint
from castwise.checkpoint.files import replacing
source, destination, last = sys.argv[1:]
put_in_place, steps = replacing._put_in_place, 0
def hook(event, _):
    global steps
    if event.startswith(("open", "os.", "shutil.", "fcntl.", "ctypes.")):
        steps += 1
        if steps == int(last):
            os._exit(9)
def put(new, path, **options):
    sys.addaudithook(hook)
    put_in_place(new, path, **options)
replacing._put_in_place = put
checkpoint.cast_file(source, destination, "bfloat16", resumable=True, overwrite=True)
"""


def test_two_runs_at_once(source: Path, caplog: pytest.LogCaptureFixture) -> None:
    need("fcntl")
    out = source.with_name("out")

    def run_another(progress: checkpoint.Progress) -> None:
        if progress.name == "b":
            with pytest.raises(checkpoint.CheckpointError, match="another run is at work"):
                checkpoint.cast_file(source, out, "bfloat16", resume=True)

    checkpoint.cast_file(source, out, "bfloat16", resumable=True, progress=run_another)
    assert caplog.text == ""
    assert checkpoint.load(out)["d"].dtype.itemsize == 2


@pytest.mark.parametrize("options", [{"resumable": True}, {"resume": True}])
def test_a_run_that_begins_while_another_does(
    source: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, bool]
) -> None:
    """The other is as far as its second shard when this one comes to its temporary folder."""
    need("fcntl")
    out, whole = source.with_name("out"), source.with_name("whole")
    reached, go_on = threading.Event(), threading.Event()

    def wait(progress: checkpoint.Progress) -> None:
        if progress.name == "b":
            reached.set()
            assert go_on.wait(60)

    other = threading.Thread(
        target=checkpoint.cast_file,
        args=(source, out, "bfloat16"),
        kwargs={"resumable": True, "progress": wait},
    )
    enter = TemporaryName.__enter__

    def enter_late(self: TemporaryName) -> Path:
        monkeypatch.undo()
        path = enter(self)
        other.start()
        assert reached.wait(60)
        return path

    monkeypatch.setattr(TemporaryName, "__enter__", enter_late)
    with pytest.raises(checkpoint.CheckpointError, match=f"another run is at work on {out}; wait"):
        checkpoint.cast_file(source, out, "float16", **options)
    go_on.set()
    other.join()
    checkpoint.cast_file(source, whole, "bfloat16")
    assert contents(out) == contents(whole)
    assert sorted(os.listdir(source.parent)) == ["in", "out", "whole"]


def test_a_folder_that_was_named_meanwhile_is_left_alone(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other run ends between the opening of its folder and the lock."""
    need("fcntl")
    kept = interrupt(source, "d", resumable=True)
    before, out = contents(kept), source.with_name("out")
    lock = temporary_names.lock

    def lock_late(descriptor: int, *, is_shared: bool = False) -> bool:
        if kept.exists():
            kept.rename(out)
        return lock(descriptor, is_shared=is_shared)

    monkeypatch.setattr(temporary_names, "lock", lock_late)
    with pytest.raises(checkpoint.CheckpointError, match="another run is at work"):
        checkpoint.cast_file(source, out, "float16", resume=True)
    assert contents(out) == before


def test_a_file_is_cast_as_a_whole(source: Path, tmp_path: Path) -> None:
    for options in ({"resume": True}, {"resumable": True}):
        with pytest.raises(checkpoint.CheckpointError, match="for folders of shards"):
            checkpoint.cast_file(
                source / "a.safetensors", tmp_path / "x.safetensors", "bfloat16", **options
            )


SMALL_FILES_ONLY = """
import resource, sys
from castwise.cli import main
resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, 30_000))
sys.exit(main())
"""


def test_from_the_command_line_after_a_full_disk(source: Path) -> None:
    need("resource")
    checkpoint.save(source / "c.safetensors", {"c": floats(50_000, 2)}, overwrite=True)
    out = source.with_name("out")
    command = ("cast", source, out, "--dtype", "bf16", "--json")
    full = run_python("-c", SMALL_FILES_ONLY, *command, "--resumable")
    assert full.returncode == 2
    assert full.stderr.splitlines() == [
        f"castwise: {out.with_name(KEPT)} keeps 2 of 4 shards; --resume goes on with them",
        f"castwise: error: {out}: File too large",
    ]
    report = json.loads(run_castwise(*command, "--resume").stdout)
    assert [row["name"] for row in report["tensors"]] == ["a", "ids", "b", "c", "d"]
    assert checkpoint.load(out)["c"].dtype.itemsize == 2
