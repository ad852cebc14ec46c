"""Make files and folders that appear only when they are complete.

A new file is written without a name where the system offers that (Linux), and else, like a folder,
under a temporary name beside its destination; it is flushed to disk, and then named in one step.
Whatever stops the run before that, the destination is as it was.
"""

import ctypes
import errno
import os
import shutil
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Any, BinaryIO

from castwise.checkpoint._errors import CheckpointError
from castwise.checkpoint.files.remote import is_remote, new_object
from castwise.checkpoint.files.temporary_names import (
    TemporaryName,
    aside,
    hold_lock,
    lock,
    remove_leftovers,
    resumable_name,
)
from castwise.text.wording import parenthesis

# Of headers and small tensors; what is larger passes by the buffer.
_BUFFER_BYTES = 1 << 20
_OPEN_FILES = "/proc/self/fd"  # Linux: a link to each open file, by its descriptor
_CURRENT_FOLDER = -100  # AT_FDCWD of <fcntl.h>; paths are absolute anyhow
_RENAME_EXCHANGE = 2  # of <linux/fs.h>
_RENAME_SWAP = 2  # of macOS' <sys/stdio.h>


@contextmanager
def replacing_file(
    destination: Path, *, is_named: bool = False, may_replace: bool = True
) -> Iterator[BinaryIO]:
    """A new file that takes the place of `destination` when the block ends without an error."""
    # A link is followed: what it points to is replaced. An old file's permissions are kept. With
    # `is_named` other processes can open it by its name meanwhile. Without `may_replace` a file
    # that appears in the last moment stays.
    if is_remote(destination):
        with new_object(destination) as upload:
            yield upload
        return
    path = Path(os.path.realpath(destination))
    mode = _mode_of(path, destination)
    with (
        _replacing(path, destination) as temporary,
        _new_file(temporary, is_named=is_named) as file,
    ):
        # Until it is locked another run may take it for a leftover; then naming it fails.
        with suppress(BlockingIOError):
            lock(file.fileno())
        if mode is not None:
            os.chmod(temporary if sys.platform == "win32" else file.fileno(), mode)
        yield file
        sync_file(file)
        if not temporary.exists():  # it has no name
            with suppress(OSError):
                _link(file, path)
                return
            if not may_replace:
                check_absent(destination)
            _link(file, temporary)  # there is an old file, which a link cannot replace
        if not may_replace:
            check_absent(destination)
        if sys.platform == "win32":
            file.close()  # an open file cannot be renamed
        os.replace(temporary, path)


def check_absent(destination: Path) -> None:
    """Refuse to replace a file that nobody allowed to replace."""
    if destination.is_file():
        raise CheckpointError(
            f"{destination} exists; choose another name, or allow castwise to replace it "
            + parenthesis("overwrite", True)
        )


def check_own_start(path: Path, start: bytes, noun: str, name: str | None = None) -> None:
    """Refuse to replace a file with contents that do not begin as castwise begins such files."""
    if not path.is_file():
        return
    with path.open("rb") as file:
        beginning = file.read(len(start))
    if beginning not in {b"", start}:
        raise CheckpointError(f"{name or path} is there and is not {noun}; choose another name")


def check_place(destination: Path, *, is_folder: bool = False) -> None:
    """Raise what would be raised because nothing can be written under this name."""
    if is_remote(destination):
        return
    path = Path(os.path.realpath(destination))
    if not is_folder:
        _mode_of(path, destination)
    number = 0
    try:
        if not stat.S_ISDIR(path.parent.stat().st_mode):
            number = errno.ENOTDIR
        elif not os.access(path.parent, os.W_OK | os.X_OK):
            number = errno.EACCES
    except OSError as error:
        number = error.errno or errno.ENOENT
    if number:
        raise OSError(number, os.strerror(number), str(destination))


def resumable_folder(destination: Path) -> Path:
    """Return the temporary folder of a run for `destination` that can be resumed."""
    return resumable_name(Path(os.path.realpath(destination)))


@contextmanager
def replacing_folder(
    destination: Path,
    *,
    is_kept: Callable[[Path], object] | None = None,
    resume: bool = False,
    may_replace: bool = True,
) -> Iterator[Path]:
    """Make a new folder that replaces `destination` when the block ends without an error."""
    # The caller decides whether an old folder may be replaced: all that is in it goes.
    path = Path(os.path.realpath(destination))
    mine: list[os.stat_result] = []  # the folder, once this run has its lock

    def stays(temporary: Path) -> bool | None:
        if mine:
            with suppress(OSError):  # unless it has become the destination, or is the old folder
                same = os.path.samestat(temporary.lstat(), mine[0])
                return same and bool(is_kept and is_kept(temporary))
            return False
        # It may be another run's. Empty it is of no use, and without a lock at most just made.
        with suppress(OSError), hold_lock(temporary) as free:
            if free is not None:
                temporary.rmdir()
        return None

    with (
        ExitStack() as locks,  # held until the temporary name is removed
        _replacing(path, destination, is_kept=is_kept and stays, resume=resume) as temporary,
    ):
        if is_kept is None:
            temporary.mkdir()
        else:
            _make_resumable(temporary)
        with suppress(BlockingIOError, FileNotFoundError):
            descriptor = locks.enter_context(hold_lock(temporary))
            status = temporary.lstat()
            # Another folder if a run ended meanwhile and gave that one its name.
            if descriptor is None or os.path.samestat(os.fstat(descriptor), status):
                mine.append(status)
        if not mine:
            raise CheckpointError(f"another run is at work on {destination}; wait for its end")
        yield temporary
        sync_folder(temporary)
        with suppress(OSError):  # the old folder, which may get the temporary name
            locks.enter_context(hold_lock(path))
        _put_in_place(temporary, path, may_replace=may_replace)


def _make_resumable(temporary: Path) -> None:
    """Make a folder of a known name, or take one that is there and of this user."""
    # A link could lead to any other folder, which would be emptied.
    try:
        temporary.mkdir()
    except FileExistsError:
        _check_own(temporary)


def _check_own(folder: Path) -> None:
    """Refuse what stands under the name of a folder and is not one of this user."""
    status = folder.lstat()
    is_other = sys.platform != "win32" and status.st_uid != os.getuid()
    if is_other or not stat.S_ISDIR(status.st_mode):
        raise CheckpointError(
            f"{folder}, where a run keeps its work, is not a folder of this user; remove it, or "
            "choose another destination"
        )


@contextmanager
def _replacing(
    path: Path,
    destination: Path,
    *,
    is_kept: Callable[[Path], bool | None] | None = None,
    resume: bool = False,
) -> Iterator[Path]:
    """Yield a temporary name beside `path`; errors about it name `destination`."""
    remove_leftovers(path, but=resumable_name(path) if resume else None)
    try:
        with TemporaryName(path, is_kept) as temporary:
            yield temporary
    except OSError as error:
        if error.filename is None or str(temporary) in f"{error.filename} {error.filename2}":
            raise OSError(error.errno, error.strerror, str(destination)) from error
        raise
    sync_folder(path.parent)


def _new_file(temporary: Path, *, is_named: bool) -> BinaryIO:
    """Open a new file: without a name where that can be had and named later, else `temporary`."""

    def opener(name: str, flags: int) -> int:
        with suppress(AttributeError, OSError):
            if is_named:
                raise FileExistsError
            descriptor = os.open(temporary.parent, os.O_TMPFILE | os.O_RDWR, 0o666)
            if os.path.exists(f"{_OPEN_FILES}/{descriptor}"):
                return descriptor
            os.close(descriptor)
        return os.open(name, flags, 0o666)

    return open(temporary, "x+b", buffering=_BUFFER_BYTES, opener=opener)


def _link(file: BinaryIO, path: Path) -> None:
    """Name an open file that has no name."""
    # With src_dir_fd Python calls linkat, which follows the symbolic link; without it, link.
    number = file.fileno()
    os.link(f"{_OPEN_FILES}/{number}", path, src_dir_fd=number, follow_symlinks=True)


def put_file(temporary: Path, destination: Path) -> None:
    """Give a complete file on the disk its name; an old file's permissions are kept."""
    path = Path(os.path.realpath(destination))
    mode = _mode_of(path, destination)
    if mode is not None:
        temporary.chmod(mode)
    temporary.replace(path)
    sync_folder(path.parent)


def put_folder(temporary: Path, destination: Path, *, may_replace: bool) -> None:
    """Give a complete folder its name; an old folder with contents then stands at `temporary`."""
    path = Path(os.path.realpath(destination))
    sync_folder(temporary)
    _put_in_place(temporary, path, may_replace=may_replace)
    sync_folder(path.parent)


def make_shared_folder(folder: Path, destination: Path, name: str, content: bytes) -> None:
    """Make a folder with a file, for several runs to write into, unless it is there."""
    # Of several runs that do this at the same time, on any machine, one succeeds: a folder is not
    # renamed to that of another one with contents. Nobody sees it without the file.
    if not os.path.lexists(folder):
        try:
            _make_with_file(folder, Path(os.path.realpath(destination)), name, content)
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(destination)) from error
    _check_own(folder)


def _make_with_file(folder: Path, path: Path, name: str, content: bytes) -> None:
    with TemporaryName(path) as temporary:
        temporary.mkdir()
        with hold_lock(temporary):  # or another run would take it for a leftover
            with new_file(temporary / name) as file:
                file.write(content)
            sync_folder(temporary)
            try:
                temporary.rename(folder)
            except OSError:
                if not os.path.lexists(folder):
                    raise
    sync_folder(folder.parent)


def _put_in_place(temporary: Path, path: Path, *, may_replace: bool) -> None:
    """Rename the folder `temporary` to `path`, and what was there to a temporary name."""
    if path.exists():
        shutil.copymode(path, temporary)
    if path.exists() and may_replace:
        if exchange(temporary, path):
            return
        # The system cannot swap them. Between these two steps `path` is missing, and the old folder
        # stands complete under the other name.
        path.rename(aside(temporary))
    elif sys.platform == "win32" and path.exists():
        path.rmdir()  # an empty one, onto which other systems rename a folder
    try:
        temporary.rename(path)
    except OSError as error:
        if not os.path.lexists(path):
            raise
        if may_replace and path.is_dir() and exchange(temporary, path):
            return
        reason = f"{error.strerror}: it was not there when this run began; choose another name"
        if path.is_dir():
            reason += ", or allow the whole folder to be replaced " + parenthesis("overwrite", True)
        raise OSError(error.errno, reason, str(path)) from error


def _mode_of(path: Path, destination: Path) -> int | None:
    """Permissions of the file to be replaced; None if there is none. Errors name `destination`."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(mode):
        kind = "a folder; name a file in it" if stat.S_ISDIR(mode) else "not a regular file"
        raise CheckpointError(f"{destination} is {kind}")
    return stat.S_IMODE(mode)


def sync_folder(path: Path) -> None:
    """Make renames in a folder survive a power cut, where the system has a way to ask for that."""
    if is_remote(path):
        return
    with suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def folder_of(file: BinaryIO) -> Path | None:
    """Return the folder of an open file, also of one without a name; None for another object."""
    name = getattr(file, "name", None)
    return Path(name).parent if isinstance(name, str | os.PathLike) else None


@contextmanager
def new_file(path: Path) -> Iterator[BinaryIO]:
    """Make a new file, brought to the disk, or an object of a store, which may replace one."""
    if is_remote(path):
        with new_object(path) as file:
            yield file
        return
    with path.open("xb") as file:
        yield file
        sync_file(file)


def sync_file(file: IO[Any]) -> None:
    """Bring what was written into a file to the disk."""
    file.flush()
    os.fsync(file.fileno())


def exchange(first: Path, second: Path) -> bool:
    """Give two existing paths each other's contents; False, and nothing done, if that cannot be."""
    try:
        library = ctypes.CDLL(None)
    except (OSError, TypeError):  # TypeError: Windows
        return False
    first_bytes, second_bytes = os.fsencode(first), os.fsencode(second)
    if hasattr(library, "renameat2"):
        status = library.renameat2(
            _CURRENT_FOLDER,
            first_bytes,
            _CURRENT_FOLDER,
            second_bytes,
            ctypes.c_uint(_RENAME_EXCHANGE),
        )
    elif hasattr(library, "renamex_np"):
        status = library.renamex_np(first_bytes, second_bytes, ctypes.c_uint(_RENAME_SWAP))
    else:
        return False
    return bool(status == 0)
