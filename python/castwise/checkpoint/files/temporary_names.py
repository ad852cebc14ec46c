"""Temporary names, and the removal of what stands under them, whatever ends the run.

Work in progress stands beside its destination under `.NAME.TOKEN.castwise-tmp`. Exceptions remove
it, and so do SIGINT, SIGTERM and SIGHUP while the main thread writes. What SIGKILL leaves, or a
signal that ends the process while another thread writes, is removed by the next run for the same
destination: work in progress is locked as long as its process lives, so what another process can
lock is a leftover. Where nothing can be locked (Windows, some network file systems) leftovers stay.
So does the folder of a run that can be resumed, `.NAME.resumable.castwise-tmp`, with its journal
beside it, until another run for the same destination resumes it or begins anew.
"""

import os
import re
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

from castwise.checkpoint._errors import CheckpointError

if sys.platform != "win32":
    import fcntl

# In a journal, the page that is open as long as a run goes on.
JOB = "job.json"
_SUFFIX = ".castwise-tmp"
_OLD_SUFFIX = ".castwise-old"
_NAME_CHARACTERS = 40  # of the destination's name, so that the temporary name is not too long
_TOKEN_BYTES = 6  # two runs draw one name once in 2**48
_SIGNALS = [
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
]


# In the main thread signals remove what stands there, too: this object is their handler.
class TemporaryName:
    """A new name in the folder of `path`; what has it at the end of the block is removed."""

    def __init__(self, path: Path, is_kept: Callable[[Path], bool | None] | None = None) -> None:
        self._path = path
        self._temporary = _beside(path, os.urandom(_TOKEN_BYTES).hex())
        # Asked at the end if a resumable folder stays; None: it is another's
        self._is_kept = is_kept
        if is_kept is not None:
            self._temporary = resumable_name(path)
        self._owner = os.getpid()
        self._handlers: dict[int, Any] = {}  # handlers
        self._removing = False
        self._signals: list[int] = []  # signals that came while removing

    def __enter__(self) -> Path:
        # Python calls handlers between any two bytecodes, so also before a `try` or `with` is
        # entered and after it is left. Blocking signals would not help: other threads of the
        # process would receive them, and numpy has some.
        try:
            with suppress(ValueError):  # not the main thread, which alone handles signals
                for number in _SIGNALS:
                    handler = signal.getsignal(number)
                    if callable(handler) or (handler == signal.SIG_DFL and _default_ends(number)):
                        self._handlers[number] = handler
                        signal.signal(number, self)
        except BaseException:
            self._end()
            raise
        return self._temporary

    def __exit__(self, *_error: object) -> None:
        self._end()

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal as before, but remove the temporary before that ends anything."""
        if self._removing:
            self._signals.append(number)
            return
        handler = self._handlers[number]
        try:
            if self._ends_process(number):
                self._end()
            if callable(handler):
                handler(number, frame)
            else:
                signal.signal(number, handler)
                os.kill(os.getpid(), number)
        except BaseException:
            self._end()
            raise

    def _ends_process(self, number: int) -> bool:
        """Return True if the handler before this one, and before all nested blocks, is none."""
        handler = self._handlers[number]
        if isinstance(handler, TemporaryName):
            return handler._ends_process(number)
        return not callable(handler)

    def _end(self) -> None:
        self._removing = True
        try:
            is_kept = False if self._is_kept is None else self._is_kept(self._temporary)
            if os.getpid() == self._owner and is_kept is not None:  # not a forked child
                _put_back(self._temporary, self._path)
                if not is_kept:
                    _remove_with_journal(self._temporary)
        finally:
            self._removing = False
            try:
                self._restore()
            finally:
                self._restore()  # if a signal whose handler was back stopped the first
                while self._signals:
                    signal.raise_signal(self._signals.pop())

    def _restore(self) -> None:
        """Put the handlers back, unless the block has set others."""
        # Where a second signal prevents that, this handler goes on to call the one before it.
        for number, handler in self._handlers.items():
            if signal.getsignal(number) is self:
                signal.signal(number, handler)


class _SignalDelay:
    """Handles the signals that come in its block only at the end of that."""

    def __enter__(self) -> None:
        self._handlers: dict[int, Any] = {}  # handlers, which may raise
        self._signals: list[int] = []
        try:
            with suppress(ValueError):  # not the main thread, which alone handles signals
                for number in _SIGNALS:
                    if callable(handler := signal.getsignal(number)):
                        self._handlers[number] = handler
                        signal.signal(number, self)
        except BaseException:
            self._restore()
            raise

    def __exit__(self, *_error: object) -> None:
        try:
            self._restore()
        finally:
            self._restore()  # if a signal whose handler was back stopped the first
            while self._signals:
                signal.raise_signal(self._signals.pop())

    def __call__(self, number: int, _frame: FrameType | None) -> None:
        self._signals.append(number)

    def _restore(self) -> None:
        for number, handler in self._handlers.items():
            if signal.getsignal(number) is self:
                signal.signal(number, handler)


def remove_folder(path: Path) -> None:
    """Remove a folder and all in it, as far as that can be; signals wait for the end."""
    # `shutil.rmtree` closes a descriptor twice where a handler raises between the first time and
    # the note of it: OSError takes the place of what was raised, or a file of another thread is
    # closed.
    with _SignalDelay():
        shutil.rmtree(path, ignore_errors=True)


def _beside(path: Path, token: str) -> Path:
    if not path.name:  # the root of a disk
        path_below = path / "model"
        raise CheckpointError(f"{path} names no file or folder; give a path such as {path_below}")
    return path.with_name(f"{_prefix(path)}{token}{_SUFFIX}")


def resumable_name(path: Path) -> Path:
    return _beside(path, "resumable")


def parts_name(path: Path) -> Path:
    """Return the name of the folder into which the parts of a conversion are written."""
    return _beside(path, "parts")


def aside(temporary: Path) -> Path:
    """Where the old folder stands while it is replaced by `temporary` in two steps."""
    return temporary.with_suffix(_OLD_SUFFIX)


def journal_name(temporary: Path) -> Path:
    """Where the journal of a resumable folder stands: beside it, so that the result has none."""
    return temporary.with_suffix(f".journal{_SUFFIX}")


def is_temporary(name: str) -> bool:
    """Return True for the name of something not complete."""
    return name.startswith(".") and name.endswith(_SUFFIX)


def remove_leftovers(path: Path, but: Path | None = None) -> None:
    """Remove what runs left beside `path`, except `but`; never what another still writes."""
    try:
        names = os.listdir(path.parent)
    except OSError:
        return
    resumable = resumable_name(path)
    # Not just any name that begins so: "model" must not take what a run for "model.v2" keeps.
    ours = re.compile(re.escape(_prefix(path)) + f"[0-9a-f]{{{2 * _TOKEN_BYTES}}}{_SUFFIX}")
    for name in names:
        leftover = path.with_name(name)
        if leftover != but and (leftover == resumable or ours.fullmatch(name)):
            if leftover.is_symlink():  # not of our making, and without a lock of its own
                _remove(leftover)
                continue
            with suppress(OSError), hold_lock(leftover) as dead:
                if dead is not None or (leftover == resumable and _remove_journal(resumable)):
                    _remove_with_journal(leftover)
    if not os.path.lexists(resumable):  # a run was killed after it had named its folder
        _remove(journal_name(resumable))


@contextmanager
def hold_lock(path: Path, *, is_shared: bool = False) -> Iterator[int | None]:
    """Hold the lock of a file or folder, and yield its descriptor; None if there are no locks."""
    # Others may hold a shared lock too, if theirs is shared.
    if sys.platform == "win32":
        yield None
        return
    # Whatever stands there: without following a link, or waiting for the other end of a pipe.
    flags = os.O_NOFOLLOW | os.O_NONBLOCK
    try:  # NFS locks for one alone only what can be written, and a folder on its own machine only
        descriptor = os.open(path, os.O_RDWR | flags)
    except OSError:
        descriptor = os.open(path, os.O_RDONLY | flags)
    try:
        yield descriptor if lock(descriptor, is_shared=is_shared) else None
    finally:
        os.close(descriptor)


def lock(descriptor: int, *, is_shared: bool = False) -> bool:
    """Lock an open file or folder until it is closed; False if the system has no locks for it."""
    if sys.platform == "win32":
        return False
    try:
        kind = fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:
        return False
    return True


def _put_back(temporary: Path, path: Path) -> None:
    """Put back, or remove, the old folder that made way for `temporary`."""
    earlier = aside(temporary)
    if earlier.exists() and not path.exists():
        earlier.rename(path)
    _remove(earlier)


def _default_ends(number: int) -> bool:
    """Return True if a signal that Python does not handle ends this process."""
    if os.getpid() == 1:
        return False  # the first process of a container, where Linux ignores such signals
    try:
        status = Path("/proc/self/status").read_bytes()
    except OSError:
        return True
    # C code may have set a handler that Python does not know.
    caught = int(status.partition(b"SigCgt:")[2].split()[0], 16)
    return not caught >> (number - 1) & 1


def _prefix(path: Path) -> str:
    """Return how the temporary names of `path` begin; two names never share it, however long."""
    name = path.name
    if len(name) > _NAME_CHARACTERS:
        import hashlib  # noqa: PLC0415  (milliseconds, for long names alone)

        digest = hashlib.sha256(os.fsencode(name)).hexdigest()[:12]
        name = f"{name[:_NAME_CHARACTERS]}-{digest}"
    return f".{name}."


def _remove_journal(resumable: Path) -> bool:
    """Remove the journal where nothing can be locked; False if a run goes on with its folder."""
    # Windows removes no open file, and a run has the job in its journal open to its end.
    if sys.platform != "win32":
        return False
    job = journal_name(resumable) / JOB
    _remove(job)
    return not os.path.lexists(job)


def _remove_with_journal(temporary: Path) -> None:
    _remove(journal_name(temporary))  # first: it tells of what is in the folder
    _remove(temporary)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        remove_folder(path)
    else:
        with suppress(OSError):
            path.unlink()
