"""The engine converts the first tensors while the others are planned, and stops with the plan."""

import itertools
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import castwise
import numpy as np
import pytest
from castwise import checkpoint
from castwise._core import ElementCast, OpenFile, convert_tensors
from castwise.checkpoint.files.source_files import handle
from castwise.checkpoint.running._conversion import Conversion
from checkpoint_samples import floats
from processes import run_python
from system_parts import need

COUNT = 4096
Job = tuple[int, int, tuple[int, int], ElementCast | None]


def _run(folder: Path, jobs: Iterator[Job], **options: Any) -> tuple[Any, Any]:
    """Convert a file of `COUNT` numbers, none of them zero, into another."""
    np.linspace(1, 2, COUNT, dtype=np.float32).tofile(folder / "source")
    with (folder / "source").open("rb") as source, (folder / "target").open("wb") as target:
        return convert_tensors(handle(source), handle(target), jobs, **options)


@pytest.mark.parametrize("threads", [1, 2, 8])
def test_jobs_are_converted_while_others_are_made(tmp_path: Path, threads: int) -> None:
    """However many jobs the engine takes at a time, it waits for none but those."""
    half = ElementCast("float32", "float16", report=True)
    seen = []

    def jobs() -> Iterator[Job]:
        begin = time.monotonic()
        for number in range(1000):
            done = (tmp_path / "target").read_bytes().count(b"\x3c")  # the high byte of 1.0
            seen.append(done)
            while number == 999 and done < 500:
                assert time.monotonic() < begin + 60, f"{done} of {number} jobs are done"
                time.sleep(0.001)
                done = (tmp_path / "target").read_bytes().count(b"\x3c")
            yield 0, 2 * number, (0, 1), half

    reports, failure = _run(tmp_path, jobs(), threads=threads)
    assert failure is None
    assert len(reports) == 1000
    assert all(report.count == report.exact == 1 for report in reports)
    assert (tmp_path / "target").read_bytes() == np.float16(1).tobytes() * 1000
    assert seen == sorted(seen)


def test_unknown_formats_are_refused() -> None:
    for argument, pair in (("source", ("floot16", "float32")), ("target", ("float32", "floot16"))):
        likely = r'Did you mean "float16"\? castwise\.formats\(\) lists all\.$'
        with pytest.raises(TypeError, match=rf'^{argument}="floot16" is not a .* {likely}'):
            ElementCast(*pair)


@pytest.mark.parametrize("at", [0, 1, 63, 64, 700])
def test_what_the_jobs_raise_ends_the_run(tmp_path: Path, at: int) -> None:
    error = KeyboardInterrupt("by a test")

    def jobs() -> Iterator[Job]:
        for number in range(at):
            yield 0, 4 * COUNT * number, (0, 4 * COUNT), None
        raise error

    with pytest.raises(KeyboardInterrupt) as caught:
        _run(tmp_path, jobs())
    assert caught.value is error


def test_a_failure_ends_jobs_without_an_end(tmp_path: Path) -> None:
    jobs = ((number, number, (0, 1), None) for number in itertools.count())
    assert _run(tmp_path, jobs) == ([], (4 * COUNT, "read", None, None))


def _make(path: Path) -> dict[str, np.ndarray[Any, Any]]:
    """Make a checkpoint of many tensors, some of them empty, scalars or not floating."""
    arrays = {f"t{number:03}": floats(number * 37 % 5000, number) for number in range(300)}
    arrays |= {f"empty.{number}": np.zeros((0, 3), np.float32) for number in range(5)}
    arrays |= {"scalar": np.array(0.3, np.float32), "ids": np.arange(100)}
    checkpoint.save(path, arrays)
    return arrays


@pytest.mark.parametrize("threads", [1, 2, 8])
def test_many_tensors_are_each_cast(tmp_path: Path, threads: int) -> None:
    arrays = _make(tmp_path / "in.safetensors")
    summary = checkpoint.cast_file(
        tmp_path / "in.safetensors", tmp_path / "out.safetensors", "float8_e5m2", threads=threads
    )
    made = checkpoint.load(tmp_path / "out.safetensors")
    assert [row.name for row in summary.rows] == list(made)
    for row in summary.rows:
        expected, report = arrays[row.name], None
        if row.name != "ids":
            expected, report = castwise.cast(expected, "float8_e5m2", report=True)
        assert made[row.name].tobytes() == expected.tobytes()
        assert made[row.name].shape == row.shape == expected.shape
        assert row.report == report
        assert (row.nbytes_before, row.nbytes_after) == (arrays[row.name].nbytes, expected.nbytes)


@pytest.mark.parametrize("error", [ValueError("by a test"), KeyboardInterrupt()])
@pytest.mark.parametrize("threads", [1, 2])
def test_a_plan_that_fails_half_way_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threads: int, error: BaseException
) -> None:
    _make(tmp_path / "in.safetensors")
    (tmp_path / "out.safetensors").write_bytes(b"old")
    real_range = Conversion._range

    def fail_at(self: Conversion, name: str) -> Any:
        if name == "t250":
            raise error
        return real_range(self, name)

    monkeypatch.setattr(Conversion, "_range", fail_at)
    with pytest.raises(type(error)) as caught:
        checkpoint.cast_file(
            tmp_path / "in.safetensors",
            tmp_path / "out.safetensors",
            "bfloat16",
            threads=threads,
            overwrite=True,
        )
    assert caught.value is error
    assert (tmp_path / "out.safetensors").read_bytes() == b"old"
    assert sorted(os.listdir(tmp_path)) == ["in.safetensors", "out.safetensors"]


def test_where_no_thread_starts_the_caller_works_and_is_asked(tmp_path: Path) -> None:
    need("/proc/self/task")  # where a thread counts as a process of the user
    code = """
import os, resource, sys
from castwise._core import convert_tensors
def no_thread():
    resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
    if os.geteuid() == 0:
        os.setuid(65534)  # root has no limit
def run(poll):
    target.truncate(0)
    jobs = [(4096 - number, number, (0, 1), None) for number in range(1, 4097)]
    return convert_tensors(source.fileno(), target.fileno(), jobs, 2, poll)
with open(sys.argv[1], "rb") as source, open(sys.argv[2], "wb") as target:
    no_thread()
    taken = []
    reports, failure = run(taken.append)
    assert failure is None and taken[-1] == 4096 and len(taken) > 4096, taken[-1]
    asked = iter(range(100))
    try:
        run(lambda taken: 1 / (99 - next(asked)))
    except ZeroDivisionError:
        print(os.fstat(target.fileno()).st_size)
"""
    content = np.random.default_rng(0).bytes(4096)
    (tmp_path / "source").write_bytes(content)
    done = run_python("-c", code, tmp_path / "source", tmp_path / "target")
    assert done.returncode == 0, done.stderr
    assert 90 < int(done.stdout) <= 101
    assert (tmp_path / "target").read_bytes()[1:] == content[::-1][: int(done.stdout) - 1]


@pytest.mark.parametrize(("apart", "most"), [(0, 0), (1, 2)])
def test_no_more_threads_than_groups(tmp_path: Path, apart: int, most: int) -> None:
    """64 scalars that lie behind one another are one group, and two that do not are two."""
    need("/proc/self/task")
    count = 2 if apart else 64
    jobs = [(4 * number, (4 + apart) * number, (0, 4), None) for number in range(count)]
    before, found = len(os.listdir("/proc/self/task")), []
    _, failure = _run(
        tmp_path,
        iter(jobs),
        threads=8,
        poll=lambda taken: found.append(len(os.listdir("/proc/self/task"))),
    )
    assert failure is None
    assert found
    assert max(found) <= before + most


@pytest.mark.skipif(sys.platform != "linux", reason="a write may end early there")
def test_a_write_that_fails_is_that_of_the_tensor_it_reached(tmp_path: Path) -> None:
    code = """
import resource, sys
from castwise._core import convert_tensors
with open(sys.argv[1], "rb") as source, open(sys.argv[2], "wb") as target:
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
    jobs = [(100 * number, 100 * number, (0, 100), None) for number in range(20)]
    print(convert_tensors(source.fileno(), target.fileno(), jobs, int(sys.argv[3]))[1][:2])
"""
    (tmp_path / "source").write_bytes(bytes(2000))
    for threads in (1, 2):
        done = run_python("-c", code, tmp_path / "source", tmp_path / "target", threads)
        assert done.stdout.strip() == "(10, 'write')", done.stderr


def test_bytes_are_written_where_they_belong(tmp_path: Path) -> None:
    with (tmp_path / "target").open("wb") as target:
        own = OpenFile(handle(target))
        own.write_at(np.arange(4, dtype=np.uint8), 6)
        own.write_at(memoryview(b"ab"), 1)
        own.write_at(np.empty(0, np.uint8), 99)
        assert target.tell() == 0
        number = target.fileno()
    with (tmp_path / "other").open("wb") as other:
        own.write_at(memoryview(b"c"), 10)  # not into what has the number of a closed file now
        assert other.fileno() == number
    assert (tmp_path / "target").read_bytes() == b"\0ab\0\0\0\0\1\2\3c"
    assert (tmp_path / "other").read_bytes() == b""


def test_bytes_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "target").write_bytes(b"old")
    with (tmp_path / "target").open("rb") as target:
        own = OpenFile(handle(target))
    with pytest.raises(ValueError, match="data is not contiguous; give a copy"):
        own.write_at(np.arange(4, dtype=np.uint8)[::2], 0)
    need("fcntl")  # descriptors, not handles
    with pytest.raises(OSError, match="Bad file descriptor"):
        own.write_at(np.arange(4, dtype=np.uint8), 0)
    with pytest.raises(ValueError, match="a descriptor is not negative"):
        OpenFile(-1)
    assert (tmp_path / "target").read_bytes() == b"old"
