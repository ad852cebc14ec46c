"""Raise a signal at one bytecode after the other of small writes; a script, not a test.

Usage: signal_at_every_step.py FOLDER START EVERY STRIDE PART... Each case (what is written) is
combined with each way (which signals, and what the process does with them); one in EVERY
combinations is run, from number START on. The signal is raised at every
STRIDE-th bytecode of the source files whose paths have a PART in them, and handled where Python
handles signals. Afterwards the folder of the destination must hold what it held before, or the
complete result, and no other file; after one signal the handlers must be as before.
Prints the number of signals for every case and way.
"""

import ctypes
import io
import itertools
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext, redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any
from unittest.mock import patch

from castwise import checkpoint, cli
from castwise.checkpoint.files import replacing
from checkpoint_samples import floats, write_sharded

UNHEARD = 99  # exit code after a signal without effect
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
NO_UNNAMED_FILES = patch.object(replacing, "_OPEN_FILES", "/nowhere")
NO_EXCHANGE = patch.object(replacing, "exchange", lambda _left, _right: False)


class Raiser(dict[int, None]):
    """`RAISE[number]` raises a signal. After a call, Python would handle it in the tracer."""

    __missing__ = ctypes.PyDLL(None)["raise"]


RAISE = Raiser()


@dataclass
class Tracer:
    """Runs a function and raises signals at the bytecodes of `plan`, counted from 1."""

    parts: tuple[str, ...]
    plan: dict[int, int]
    count: int = 0

    def __call__(self, frame: FrameType, event: str, _argument: object) -> Any:
        if event == "call":
            if not any(part in frame.f_code.co_filename for part in self.parts):
                return None
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
        elif event == "opcode":
            self.count += 1
            if self.count in self.plan:
                RAISE[self.plan[self.count]]
        return self

    def run(self, function: Callable[[], object]) -> int:
        """The exit code that a process with this main function would have."""
        code = 0
        # Python 3.12 sends bytecodes only if a frame asked for them before the tracer is set.
        sys._getframe().f_trace_opcodes = True
        try:
            sys.settrace(self)
            try:
                function()
            finally:
                sys.settrace(None)
        except KeyboardInterrupt:
            code = 128 + signal.SIGINT
        except SystemExit as end:
            code = int(end.code or 0)
        except UnboundLocalError as error:
            # ExitStack.__exit__ of CPython (3.11 to 3.14) assigns `fixed_ctx` in a `try` whose
            # `except` reads it: what a signal raises at that bytecode becomes this error. It comes
            # there only where another exception is on its way.
            if "fixed_ctx" not in str(error) or not isinstance(
                error.__context__, KeyboardInterrupt
            ):
                raise
            assert len(self.plan) > 1, "a single signal has come there"
            code = 128 + signal.SIGINT
        return code or (UNHEARD if self.count >= min(self.plan) else 0)


@dataclass
class Case:
    """Save or cast to `target`, new or to be replaced, on a system that may lack something."""

    target: str
    source: Path | None = None
    replaces: bool = False
    lacking: AbstractContextManager[object] | None = None
    also: str = ""  # another file, replaced by the same meanwhile

    def prepare(self, work: Path) -> None:
        """Write what is there before."""
        for name in [self.target] * self.replaces + [self.also] * bool(self.also):
            make(work / name, 1)

    def write(self, work: Path) -> None:
        """Write by the Python interface."""
        if self.source is None:
            make(work / self.target, 2)
            return
        progress = (lambda _: make(work / self.also, 1)) if self.also else None
        checkpoint.cast_file(
            self.source, work / self.target, "bf16", overwrite=True, progress=progress
        )

    def command(self, work: Path) -> None:
        """Write by the command line."""
        paths = [str(self.source), str(work / self.target)]
        sys.exit(cli.main(["cast", *paths, "--dtype", "bf16", "--overwrite"]))


def make(path: Path, seed: int) -> None:
    """Save a checkpoint of the kind that the name says."""
    arrays = {"a": floats(20, seed), "b": floats(30, seed)}
    if path.suffix:
        checkpoint.save(path, arrays["a"] if path.suffix == ".npy" else arrays, overwrite=True)
    else:
        write_sharded(path, {f"{name}.safetensors": {name: arrays[name]} for name in arrays})


def contents(folder: Path) -> dict[str, bytes | None]:
    """Everything in a folder; None for a folder in it."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
    }


def in_this_process(tracer: Tracer, function: Callable[[], object]) -> int:
    """The exit code; what the function changes of the signal handlers must be undone."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        code = tracer.run(function)
    after = {number: signal.getsignal(number) for number in SIGNALS}
    # Two signals at the very end may leave our handler, which passes signals on.
    assert after == before or len(tracer.plan) > 1, "handlers"
    for number, handler in before.items():
        signal.signal(number, handler)
    return code


def in_a_child(tracer: Tracer, function: Callable[[], object]) -> int:
    """The exit code as a shell gives it, 128 and the signal that ended the process."""
    child = os.fork()
    if child == 0:
        signal.alarm(60)  # so that a write that waits for ever fails by this signal's code
        for number in SIGNALS[1:]:
            signal.signal(number, signal.SIG_DFL)
        os._exit(tracer.run(function))
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return 128 - code if code < 0 else code


Way = tuple[
    Callable[[Tracer, Callable[[], object]], int], Callable[[Case, Path], object], tuple[int, ...]
]
WAYS: list[Way] = [
    (in_this_process, Case.write, (signal.SIGINT,)),
    (in_a_child, Case.write, (signal.SIGTERM,)),
    (in_a_child, Case.write, (signal.SIGHUP,)),
    (in_a_child, Case.write, (signal.SIGKILL,)),
    (in_this_process, Case.write, (signal.SIGTERM, signal.SIGINT)),
    *((in_this_process, Case.command, (number,)) for number in SIGNALS),
]


def combinations(folder: Path) -> list[tuple[Case, Way]]:
    """Every case with every way; the sources of casts are made in `folder`."""
    file, shards = folder / "in.safetensors", folder / "in"
    make(file, 2)
    make(shards, 2)
    new = [Case(name) for name in ("x.safetensors", "x.npz", "x.npy")]
    new += [Case("y.npz", file), Case("y.npz", file, lacking=NO_UNNAMED_FILES), Case("y", shards)]
    old = [replace(case, replaces=True) for case in new]
    old.append(replace(old[-1], lacking=NO_EXCHANGE))
    unnamed = new[:4] if has_unnamed_files(folder) else []
    nested = [replace(new[-1], lacking=NO_UNNAMED_FILES, also="x.npy")]
    return [
        (case, way)
        for case in new + old + nested
        for way in WAYS
        if (case.source or way[1] is Case.write)
        and (signal.SIGKILL not in way[2] or case in unnamed)
    ]


def has_unnamed_files(folder: Path) -> bool:
    """True if the file system has files without a name."""
    try:
        os.close(os.open(folder, os.O_TMPFILE | os.O_RDWR))
    except (AttributeError, OSError):
        return False
    return True


def sweep(case: Case, way: Way, folder: Path, parts: tuple[str, ...], steps: Iterable[int]) -> int:
    """Raise the first signal at each of `steps`, the others soon after; count the steps."""
    process, write, numbers = way
    work, before = folder / "work", folder / "before"
    for path in (work, before):
        shutil.rmtree(path, ignore_errors=True)
    before.mkdir()
    case.prepare(before)
    shutil.copytree(before, work)
    case.write(work)
    old, new, now = contents(before), contents(work), None
    assert old != new
    done = 0
    for done, step in enumerate(steps):  # noqa: B007
        if now != old:
            shutil.rmtree(work)
            shutil.copytree(before, work)
        soon = (step % 97 + 1, step % 89 + 1)
        plan = {step + sum(soon[:index]): number for index, number in enumerate(numbers)}
        code = process(Tracer(parts, plan), lambda: write(case, work))
        now = contents(work)
        assert now in (old, new), f"step {step}: {sorted(now)}"
        if code == 0:
            break
        assert code - 128 in numbers, f"step {step}: code {code}"
    assert now == new
    return done


def main(folder: Path, start: int, every: int, stride: int, *parts: str) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # also if this process ignores it
    for number in SIGNALS[1:]:
        signal.signal(number, signal.SIG_DFL)
    with redirect_stdout(io.StringIO()):
        cli.main(["formats"])  # its handlers stay for the ways that use this process
    for index, (case, way) in list(enumerate(combinations(folder)))[start::every]:
        # Without fsync, which takes most of the time and leaves no file.
        with case.lacking or nullcontext(), patch("os.fsync"):
            try:
                done = sweep(case, way, folder, parts, itertools.count(1 + index % stride, stride))
            except AssertionError as error:
                raise AssertionError(f"{case}, {way}: {error}") from error
        print(done, case.target, way[2], flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:5]), *sys.argv[5:])
