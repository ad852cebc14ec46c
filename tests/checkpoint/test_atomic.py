"""Killed at any moment, a cast leaves the old checkpoint or the new one; memory stays bounded."""

import itertools
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest
from castwise import checkpoint
from castwise.checkpoint.files import replacing
from checkpoint_samples import floats, safetensors_file, write_sharded
from peak_memory import peak_above_import
from system_parts import need

KILLED = 9
KILLER = Path(__file__).parents[1] / "helpers" / "checkpoint" / "kill_at_every_step.py"


def _contents(path: Path) -> dict[str, bytes] | bytes | None:
    """What stands under a name: all files of a folder, or the bytes of a file."""
    if path.is_dir():
        return {
            str(file.relative_to(path)): file.read_bytes()
            for file in sorted(path.rglob("*"))
            if file.is_file()
        }
    return path.read_bytes() if path.exists() else None


def _make(path: Path, value: float) -> None:
    arrays = {"a": np.full(20, value, np.float32), "b": floats(30)}
    if path.suffix:
        checkpoint.save(path, arrays)
    else:
        shards = {"one.safetensors": {"a": arrays["a"]}, "two.safetensors": {"b": arrays["b"]}}
        write_sharded(path, shards)
        (path / "inner").mkdir()
        checkpoint.save(path / "inner" / "model.safetensors", {"c": floats(5)})


@pytest.fixture(scope="module")
def killer() -> Iterator[Callable[..., int]]:
    """Cast a source to a destination, dying at a step; return the exit code."""
    need("os.fork")
    with subprocess.Popen(
        [sys.executable, KILLER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        bufsize=1,
    ) as process:
        reading, writing = process.stdin, process.stdout
        assert reading is not None
        assert writing is not None

        def code(step: int, source: Path, destination: Path) -> int:
            reading.write(f"{step}\t{source}\t{destination}\n")
            return int(writing.readline())

        yield code
        reading.close()


@pytest.mark.parametrize(
    "stride",
    [
        pytest.param(19, id="at-some-steps"),
        pytest.param(1, id="at-every-step", marks=pytest.mark.exhaustive),
    ],
)
@pytest.mark.parametrize("existing", [True, False], ids=["replaces", "new"])
@pytest.mark.parametrize("name", ["x.safetensors", "x.npz", "folder"])
def test_dying_leaves_old_or_new(
    tmp_path: Path, killer: Callable[..., int], name: str, existing: bool, stride: int
) -> None:
    source, destination = tmp_path / f"in-{name}", tmp_path / f"out-{name}"
    _make(source, 1.0)
    if existing:
        _make(destination, 2.0)
    old = _contents(destination)
    reference = tmp_path / f"reference-{name}"
    checkpoint.cast_file(source, reference, "bfloat16")
    new = _contents(reference)
    seen = set()
    for step in itertools.count(1, stride):
        code = killer(step, source, destination)
        now = _contents(destination)
        assert now in (old, new), f"step {step}"
        seen.add("new" if now == new else "old")
        if code != KILLED:
            break
    assert code == 0
    assert step > 5
    assert seen == {"old", "new"}
    assert sorted(os.listdir(tmp_path)) == sorted([source.name, destination.name, reference.name])


def test_killed_at_random_moments(tmp_path: Path) -> None:
    need("os.fork")
    source, destination = tmp_path / "in.safetensors", tmp_path / "out.safetensors"
    checkpoint.save(source, {f"t{index}": floats(1 << 19, index) for index in range(8)})
    started = time.monotonic()
    checkpoint.cast_file(source, destination, "bfloat16")
    seconds = time.monotonic() - started
    new = destination.read_bytes()
    destination.write_bytes(b"old")
    generator = random.Random(5)
    casting = partial(checkpoint.cast_file, source, destination, "bfloat16", overwrite=True)
    killed = 0
    for _ in range(8):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # 3.12 dislikes forks by threads
            process = get_context("fork").Process(target=casting)
            process.start()
        time.sleep(generator.uniform(0, seconds))
        process.kill()
        process.join()
        killed += process.exitcode == -signal.SIGKILL
        content = destination.read_bytes()
        assert content in (b"old", new)
        if content == new:
            destination.write_bytes(b"old")
    assert killed > 0
    checkpoint.cast_file(source, destination, "bfloat16", overwrite=True)
    assert destination.read_bytes() == new
    assert sorted(os.listdir(tmp_path)) == ["in.safetensors", "out.safetensors"]


def test_a_folder_that_appears_in_the_last_moment_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, destination = tmp_path / "in", tmp_path / "out"
    _make(source, 1.0)
    put_in_place = replacing._put_in_place

    def appear(new: Path, path: Path, *, may_replace: bool) -> None:
        _make(destination, 2.0)
        put_in_place(new, path, may_replace=may_replace)

    monkeypatch.setattr(replacing, "_put_in_place", appear)
    with pytest.raises(OSError, match=r"(?i)directory (is )?not empty") as error:
        checkpoint.cast_file(source, destination, "bfloat16")
    assert error.value.filename == str(destination)
    assert checkpoint.load(destination)["a"][0] == 2
    assert sorted(os.listdir(tmp_path)) == ["in", "out"]


@pytest.mark.parametrize("kind", ["folder", "file"])
@pytest.mark.parametrize("is_parted", [False, True])
def test_the_loser_of_a_race_to_a_new_folder_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, is_parted: bool
) -> None:
    """Another run names its folder just before this one; with `overwrite` this one replaces it."""
    source, destination = tmp_path / "in", tmp_path / "out"
    _make(source, 1.0)
    put_in_place = replacing._put_in_place

    def appear(new: Path, path: Path, *, may_replace: bool) -> None:
        rename = Path.rename

        def rename_late(old: Path, target: Path) -> Path:
            monkeypatch.setattr(Path, "rename", rename)
            if kind == "folder":
                _make(destination, 2.0)
            else:
                destination.write_bytes(b"theirs")
            return rename(old, target)

        monkeypatch.setattr(Path, "rename", rename_late)
        put_in_place(new, path, may_replace=may_replace)

    monkeypatch.setattr(replacing, "_put_in_place", appear)
    convert = partial(checkpoint.cast_file, source, destination, "bfloat16")
    if is_parted:
        convert(part="1/1")
        convert = partial(checkpoint.finish, destination)
    remedy = "another name, or allow .*overwrite=True" if kind == "folder" else "another name: "
    with pytest.raises(OSError, match=f"choose {remedy}") as error:
        convert()
    assert error.value.filename == str(destination)
    assert ".castwise-tmp" not in str(error.value)
    if kind == "folder":
        assert checkpoint.load(destination)["a"][0] == 2
        shutil.rmtree(destination)
        convert(overwrite=True)
        assert checkpoint.load(destination)["a"].dtype.itemsize == 2
    else:
        assert destination.read_bytes() == b"theirs"


@pytest.mark.parametrize("fails", [False, True])
def test_folders_are_replaced_where_they_cannot_be_swapped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    source, destination = tmp_path / "in", tmp_path / "out"
    _make(source, 1.0)
    _make(destination, 2.0)
    old = _contents(destination)
    monkeypatch.setattr(replacing, "exchange", lambda _left, _right: False)
    if not fails:
        checkpoint.cast_file(source, destination, "bfloat16", overwrite=True)
        assert checkpoint.load(destination)["a"].dtype.itemsize == 2
    else:
        rename = Path.rename

        def rename_old_only(self: Path, target: Path) -> Path:
            if target == destination and ".castwise-tmp" in self.name:
                raise OSError(5, "Input/output error")
            return rename(self, target)

        monkeypatch.setattr(Path, "rename", rename_old_only)
        with pytest.raises(OSError, match="Input/output error"):
            checkpoint.cast_file(source, destination, "bfloat16", overwrite=True)
        assert _contents(destination) == old
    assert sorted(os.listdir(tmp_path)) == ["in", "out"]


def test_what_another_run_still_writes_is_no_leftover(tmp_path: Path) -> None:
    need("fcntl")
    source, destination = tmp_path / "in.safetensors", tmp_path / "out.safetensors"
    checkpoint.save(source, {"a": floats(8), "b": floats(8)})
    seen = []

    def cast_meanwhile(progress: checkpoint.Progress) -> None:
        if progress.name == "b":
            checkpoint.cast_file(source, destination, "float16")
            seen.append(checkpoint.load(destination)["a"].dtype)

    checkpoint.cast_file(source, destination, "float64", progress=cast_meanwhile, overwrite=True)
    assert seen == [np.float16]
    assert checkpoint.load(destination)["a"].dtype == np.float64


@pytest.mark.thinned(2)
@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGHUP"])
def test_a_polite_end_leaves_nothing_behind(tmp_path: Path, name: str) -> None:
    need("/proc/self/fd")
    number = signal.Signals[name]
    source, destination = tmp_path / "in.safetensors", tmp_path / "out.safetensors"
    size = 1 << 22
    entries = {
        f"t{index}": {
            "dtype": "F32",
            "shape": [size // 4],
            "data_offsets": [size * index, size * (index + 1)],
        }
        for index in range(30)
    }
    source.write_bytes(header := safetensors_file(entries))
    os.truncate(source, len(header) + 30 * size)
    with subprocess.Popen(
        [sys.executable, "-m", "castwise", "cast", source, destination, "--dtype", "bfloat16"],
        stderr=subprocess.PIPE,
        preexec_fn=partial(signal.signal, number, signal.SIG_DFL),  # noqa: PLW1509
    ) as process:
        while process.poll() is None and not _writes_in(tmp_path, process.pid):
            time.sleep(0.002)
        process.send_signal(number)
        _, errors = process.communicate()
    assert process.returncode == 128 + number
    assert b"Traceback" not in errors
    assert os.listdir(tmp_path) == ["in.safetensors"]


def _writes_in(folder: Path, process: int) -> bool:
    """True if a process has a file of `folder` open that is not its source."""
    opened = []
    for link in Path(f"/proc/{process}/fd").iterdir():
        with suppress(FileNotFoundError):
            opened.append(Path(os.readlink(link)))
    return any(path.parent == folder and path.name != "in.safetensors" for path in opened)


@pytest.mark.thinned(4)
@pytest.mark.parametrize("mebibytes", [80, pytest.param(128, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("name", ["x.safetensors", "x.npy", "x.npz", "compressed.npz"])
def test_memory_does_not_grow_with_a_tensor(tmp_path: Path, name: str, mebibytes: int) -> None:
    need("/proc/self/status")
    tensor = np.tile(floats(1 << 10), mebibytes << 8)  # quick to compress
    source = tmp_path / f"in-{name}"
    compressed = name.startswith("compressed")
    checkpoint.save(source, tensor if name == "x.npy" else {"w": tensor}, compressed=compressed)
    assert peak_above_import(source, tmp_path / f"out-{name}") < 64e6


@pytest.mark.parametrize(
    ("count", "room"), [(10_000, 16e6), pytest.param(200_000, 64e6, marks=pytest.mark.exhaustive)]
)
def test_memory_grows_by_a_kibibyte_per_tensor(tmp_path: Path, count: int, room: float) -> None:
    need("/proc/self/status")
    source = tmp_path / "in.safetensors"
    values = floats(4)
    checkpoint.save(source, {f"layers.{index}.weight": values for index in range(count)})
    assert peak_above_import(source, tmp_path / "out.safetensors") < room + 1024 * count
