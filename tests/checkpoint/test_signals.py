"""Whatever signal arrives when: the old checkpoint or the complete new one, and no other file."""

import errno
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from castwise import checkpoint
from castwise.checkpoint.files import replacing, temporary_names
from checkpoint_samples import floats, write_sharded
from processes import run_python
from system_parts import need

SIGNALLER = Path(__file__).parents[1] / "helpers" / "checkpoint" / "signal_at_every_step.py"
WRITING = (replacing.__file__, temporary_names.__file__, "/contextlib.py", "/shutil.py")
ALL = ("/castwise/checkpoint/", "/contextlib.py", "/shutil.py")

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs fork and POSIX signals")


# Every bytecode (stride 1) takes 25 minutes, and is run by hand.
@pytest.mark.parametrize(
    ("start", "every", "stride", "parts"),
    [
        pytest.param(0, 37, 199, WRITING, id="some"),
        *(
            pytest.param(
                start, 9, stride, parts, id=f"{name}-{start}", marks=pytest.mark.exhaustive
            )
            for name, stride, parts in (("more", 31, WRITING), ("everywhere", 199, ALL))
            for start in range(9)
        ),
    ],
)
def test_a_signal_at_any_bytecode(
    tmp_path: Path, start: int, every: int, stride: int, parts: tuple[str, ...]
) -> None:
    result = subprocess.run(
        [sys.executable, SIGNALLER, tmp_path, *map(str, (start, every, stride)), *parts],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    steps = [int(line.split()[0]) for line in result.stdout.splitlines()]
    assert len(steps) > 70 // every  # combinations of what is written and how it ends
    assert min(steps) >= 3


def run(program: str, *arguments: Path) -> list[str]:
    """The lines that a program prints."""
    result = run_python("-c", program, *arguments)
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()


def test_a_forked_child_removes_nothing(tmp_path: Path) -> None:
    program = """
import os, signal, sys
from castwise import checkpoint
def end_a_child(_):
    child = os.fork()
    if child == 0:
        signal.raise_signal(signal.SIGTERM)
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
signal.signal(signal.SIGTERM, signal.SIG_DFL)
checkpoint.cast_file(sys.argv[1], sys.argv[2], "float16", progress=end_a_child)
"""
    write_sharded(tmp_path / "in", {"one.safetensors": {"a": floats(8)}})
    lines = run(program, tmp_path / "in", tmp_path / "out")
    assert set(lines) == {str(-signal.SIGTERM)}
    assert checkpoint.load(tmp_path / "out")["a"].dtype.itemsize == 2


def test_handlers_of_others_stay(tmp_path: Path) -> None:
    """One that C code has set, and one that is set meanwhile."""
    need("/proc/self/status")
    program = """
import ctypes, signal, sys
from castwise import checkpoint
c_handler = ctypes.CFUNCTYPE(None, ctypes.c_int)(lambda number: print("C has", number))
ctypes.CDLL(None).signal(signal.SIGTERM, c_handler)
def progress(_):
    signal.signal(signal.SIGHUP, lambda number, frame: print("Python has", number))
source, destination = sys.argv[1:]
checkpoint.save(source, {"a": [1.0]})
checkpoint.cast_file(source, destination, "float16", overwrite=True, progress=progress)
signal.raise_signal(signal.SIGTERM)
signal.raise_signal(signal.SIGHUP)
"""
    lines = run(program, tmp_path / "in.npz", tmp_path / "out.npz")
    assert lines == [f"C has {signal.SIGTERM}", f"Python has {signal.SIGHUP}"]


def test_an_ignored_signal_stays_ignored(tmp_path: Path) -> None:
    """As under nohup."""
    program = """
import signal, sys
from castwise import checkpoint, cli
def progress(_):
    signal.raise_signal(signal.SIGHUP)
signal.signal(signal.SIGHUP, signal.SIG_IGN)
cli.main(["formats"])
checkpoint.save(sys.argv[1], {"a": [1.0]})
checkpoint.cast_file(sys.argv[1], sys.argv[1], "float16", overwrite=True, progress=progress)
print("alive")
"""
    assert run(program, tmp_path / "in.npz")[-1] == "alive"


def test_another_thread_writes_too(tmp_path: Path) -> None:
    """There Python handles no signals."""
    write_sharded(tmp_path / "in", {"one.safetensors": {"a": floats(8)}})
    write_sharded(tmp_path / "out", {"two.safetensors": {"b": floats(8)}})
    checkpoint.save(tmp_path / "one.npy", floats(1))

    def write() -> None:
        checkpoint.save(tmp_path / "one.npy", floats(2), overwrite=True)
        checkpoint.save(tmp_path / "two.npy", floats(2))
        checkpoint.cast_file(tmp_path / "in", tmp_path / "out", "bf16", overwrite=True)

    thread = threading.Thread(target=write)
    thread.start()
    thread.join()
    assert list(checkpoint.load(tmp_path / "out")) == ["a"]
    assert sorted(os.listdir(tmp_path)) == ["in", "one.npy", "out", "two.npy"]


@pytest.mark.parametrize("lacking", [None, "proc", "support"])
def test_a_new_file_has_the_permissions_of_the_umask(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lacking: str | None
) -> None:
    """Whether or not the system has files without a name."""
    real_open = os.open
    flags_of_unnamed = getattr(os, "O_TMPFILE", 0)

    def refusing(path: str, flags: int, *arguments: int) -> int:
        if flags_of_unnamed and flags & flags_of_unnamed == flags_of_unnamed:
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
        return real_open(path, flags, *arguments)

    if lacking == "proc":
        monkeypatch.setattr(replacing, "_OPEN_FILES", str(tmp_path / "none"))
    elif lacking:
        monkeypatch.setattr(os, "open", refusing)
    before = os.umask(0o027)
    try:
        checkpoint.save(tmp_path / "x.npy", floats(3))
    finally:
        os.umask(before)
    assert (tmp_path / "x.npy").stat().st_mode & 0o777 == 0o640
    checkpoint.save(tmp_path / "x.npy", floats(4), overwrite=True)
    assert (tmp_path / "x.npy").stat().st_mode & 0o777 == 0o640
    assert checkpoint.load(tmp_path / "x.npy").shape == (4,)
    assert os.listdir(tmp_path) == ["x.npy"]


@pytest.mark.parametrize("replaces", [False, True])
def test_a_file_that_cannot_be_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, replaces: bool
) -> None:
    path = tmp_path / "x.npy"
    if replaces:
        path.write_bytes(b"old")

    def refuse(source: str, destination: str, **_options: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted", source, None, destination)

    monkeypatch.setattr(os, "link", refuse)
    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(PermissionError) as caught:
        checkpoint.save(path, floats(3), overwrite=True)
    assert caught.value.filename == str(path)
    assert [file.read_bytes() for file in tmp_path.iterdir()] == [b"old"] * replaces


REMOVING = """
import os, signal, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from signal_at_every_step import Tracer
from castwise import checkpoint
from castwise.cli import main

checkpoint.save("in.safetensors", {name: __import__("numpy").ones(600, "f4") for name in "abc"})
command = ["cast", "in.safetensors", "out", "--dtype", "bf16", "--max-shard-size", "1KB", "--quiet"]

class Removals(Tracer):
    def __call__(self, frame, event, argument):
        if "rmtree" in frame.f_code.co_name:
            return super().__call__(frame, event, argument)

step, code = 0, 143
while code == 143:
    step += 1
    leftover = Path(".out.0123456789ab.castwise-tmp", "folder", "another")
    leftover.mkdir(parents=True, exist_ok=True)
    (leftover / "file").write_bytes(b"")
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    code = Removals(("/shutil.py",), {step: signal.SIGTERM}).run(lambda: sys.exit(main(command)))
    names = set(os.listdir()) - {".out.0123456789ab.castwise-tmp", "in.safetensors"}
    assert names == (set() if code == 143 else {"out"}), (step, code, names)
print(step, code)
"""


def test_a_signal_while_a_leftover_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At each bytecode of `shutil`, which then may close a file twice."""
    monkeypatch.chdir(tmp_path)
    step, code = run(REMOVING, SIGNALLER.parent)[-1].split()
    assert (int(step) > 100, code) == (True, "0")
