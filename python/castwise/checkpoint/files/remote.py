"""Files on object stores, through fsspec.

A source is read in ranges of what is needed, several at a time. A new object is uploaded in blocks
and is visible when it is complete, or never.
"""

from __future__ import annotations

import errno
import functools
import io
import os
import re
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from castwise.checkpoint._errors import CheckpointError
from castwise.checkpoint.files.entry_names import check_name

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer


class ReadableFile:
    """What a container is read from: a file, several as one, or an object of a store."""

    def place(self, begin: int) -> tuple[BinaryIO, int] | None:
        """Return a file and an offset in it; None if only this object can read that."""
        del begin
        return None

    def expect(self, spans: Iterable[tuple[int, int]]) -> None:
        """Begin to fetch spans that will be read in this order, where the system does not."""


# Two letters or more before "://", as one letter is a drive of Windows.
_URL = r"([A-Za-z][A-Za-z0-9+.-]+)://"
_FETCH_BYTES = 8 << 20
_FIRST_BYTES = 16 << 10  # of a stream, which fetches twice as much each time that it reads on
_IN_FLIGHT = 3  # fetches; with the one that is converted, 32 MiB
_BLOCK_BYTES = 16 << 20  # of an upload
# The numbers that the system gives such errors; fsspec raises some without one.
_NUMBERS = {
    FileNotFoundError: errno.ENOENT,
    PermissionError: errno.EACCES,
    TimeoutError: errno.ETIMEDOUT,
}

# Seconds in which a store must answer for the first time: libraries try again for minutes.
_PATIENCE = 15.0

# What raises without an answer; `exists` and `isdir` then say no.
_ANSWERS = frozenset(("cat_file", "info", "ls", "repo_exists", "whoami"))

# What URLs of the Hugging Face Hub begin with.
HUB = "hf"


# How to install what URLs need, by what they begin with.
PACKAGES: Mapping[str, str] = {
    HUB: "pip install 'castwise[hf]'",
    **dict.fromkeys(("s3", "s3a"), "pip install 'castwise[remote]' s3fs"),
    **dict.fromkeys(("gs", "gcs"), "pip install 'castwise[remote]' gcsfs"),
    **dict.fromkeys(("abfs", "abfss", "adl", "az"), "pip install 'castwise[remote]' adlfs"),
    **dict.fromkeys(("http", "https"), "pip install 'castwise[remote]' aiohttp"),
}
_OTHER_PACKAGE = (
    "pip install 'castwise[remote]' and the package of fsspec for that store, s3fs for s3://"
)

# Errors that the network has no part in.
_PLAIN = frozenset(
    (errno.ENOENT, errno.EEXIST, errno.EISDIR, errno.ENOTDIR, errno.ENOTEMPTY, errno.ENOSPC)
)


def remote_path(path: str | os.PathLike[str]) -> Path | None:
    """Return the path that a URL names, with the methods of a `Path`; None if it is not a URL."""
    if is_remote(path):
        return cast("Path", path)
    if not isinstance(path, str) or not (match := re.match(_URL, path)):
        return None
    scheme = match[1].lower()  # RFC 3986, 3.1: case does not matter
    path = scheme + path[match.end(1) :]
    if scheme == HUB and not {".", ".."}.isdisjoint(re.split("[/@]", path)):
        raise CheckpointError(
            f"{path}: a name on the Hub has no '.' or '..'; give the repository and, after @, a "
            "branch, a tag or a commit, as hf://org/name@main"
        )
    try:
        from upath import UPath  # noqa: PLC0415  (optional)

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of stores that universal-pathlib does not test
            remote = UPath(path)
        store = _answer(lambda: remote.fs, path)
    except (ImportError, ValueError) as error:
        raise CheckpointError(
            f"{path}: {' '.join(str(error).split()).rstrip('.')}; paths of {scheme}:// need "
            f"{PACKAGES.get(scheme, _OTHER_PACKAGE)}"
        ) from error
    except Exception as error:
        if getattr(error, "errno", None) == errno.ETIMEDOUT:
            raise
        raise CheckpointError(
            f"{path} is not a URL that the package of fsspec for {scheme}:// can open "
            f"({_reason(error)}); give that of a file or folder of a store, as s3://bucket/model"
        ) from error
    if scheme in {"file", "local"}:
        return Path(remote.path)
    remote._fs_cached = Store(store, path)  # which the paths that are made of it share
    return cast("Path", remote)


def is_url(value: object) -> bool:
    """Return True for text that is a URL, and for a path that was made of one."""
    return is_remote(value) or (isinstance(value, str) and re.match(_URL, value) is not None)


def is_remote(path: object) -> bool:
    return not isinstance(path, Path) and hasattr(path, "fs")


def is_hub(path: object) -> bool:
    return is_remote(path) and getattr(path, "protocol", None) == HUB


# The methods of a path call a `Store`, and each store has a library with errors of its own.
class Store:
    """The file system of a store, whose errors all are OSErrors that name the path or the store."""

    def __init__(self, store: object, url: str) -> None:
        self._store = store
        self._url = url
        self._has_answered = False

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401  (of any store)
        value = getattr(self._store, name)
        if not callable(value) or isinstance(value, type):
            return value

        @functools.wraps(value)
        def call(*arguments: object, **options: object) -> object:
            with _errors_of(self._url):
                if self._has_answered or name.startswith("_"):
                    return value(*arguments, **options)
                try:
                    # A store that has not answered is waited for no longer than `_PATIENCE`.
                    result = _answer(lambda: value(*arguments, **options), self._url)
                except FileNotFoundError:
                    self._has_answered = True
                    raise
                self._has_answered |= name in _ANSWERS
                return result

        return call


def _answer(call: Callable[[], object], url: str) -> object:
    """Return what a call of a store returns or raises, unless that takes too long."""
    answer: Future[object] = Future()

    def run() -> None:
        try:
            answer.set_result(call())
        except BaseException as error:
            answer.set_exception(error)

    # Not of a pool, whose threads the end of the process waits for.
    Thread(target=run, daemon=True).start()
    try:
        return answer.result(_PATIENCE)
    except TimeoutError:
        if answer.done():
            raise
        text = f"no answer within {_PATIENCE:g} seconds{_CHECK}"
        raise OSError(errno.ETIMEDOUT, text, url) from None


class RemoteSource(ReadableFile):
    """An object, to be read; as `SourceFile`.

    CheckpointError: it is a folder, or was changed meanwhile.
    OSError: there is no such object, or it cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._store, self._name = _store(path)
        self._fetches: _Ahead | None = None
        self._is_closed = False
        # Of the Hub a file is opened for each range, and would read ahead.
        self._options = {"cache_type": "none"} if is_hub(path) else {}
        self.stream = io.BufferedReader(_Stream(self))
        self._opened_state = self._state()
        self.size: int = self._opened_state[0]

    @property
    def state(self) -> list[Any]:
        """Size and a hash that a change of its contents changes."""
        return list(self._opened_state)

    def reopen(self) -> None:
        if self._is_closed:
            self.check_unchanged()
            self._is_closed = False

    def check_unchanged(self) -> None:
        if self._state() != self._opened_state:
            raise CheckpointError(f"{self.path} was changed while it was read; run again")

    def close(self) -> None:
        """Begin no more fetches."""
        self._is_closed = True
        if self._fetches is not None:
            self._fetches.close()
            self._fetches = None

    def expect(self, spans: Iterable[tuple[int, int]]) -> None:
        self._fetches = _Ahead(self, spans)

    def read(self, begin: int, count: int) -> bytes:
        if self._fetches is not None and self._fetches.has(begin):
            return self._fetches.read(count)
        return self.fetch(begin, begin + count)

    def read_into(self, data: memoryview, begin: int) -> int:
        count = 0
        while count < len(data):
            piece = self.fetch(begin + count, begin + min(count + _FETCH_BYTES, len(data)))
            if not piece:
                break
            data[count : count + len(piece)] = piece
            count += len(piece)
        return count

    def fetch(self, begin: int, end: int) -> bytes:
        """Read a range from the store, as far as the object goes."""
        end = min(end, self.size)
        if begin >= end:
            return b""
        with _errors_of(self.path):
            data = bytes(self._store.cat_file(self._name, start=begin, end=end, **self._options))
        if len(data) > end - begin:  # the whole file, which RFC 9110, 14.2, allows
            raise CheckpointError(
                f"{self.path}: the server ignores ranges; download the file, or serve it with a "
                "server that supports Range"
            )
        return data

    def _state(self) -> tuple[int, str]:
        with _errors_of(self.path):
            self._store.invalidate_cache(self._store._parent(self._name))
            info = self._store.info(self._name)
            if info["type"] != "file":
                raise CheckpointError(f"{self.path} is not a file")
            return int(info["size"]), str(self._store.ukey(self._name))


class _Stream(io.RawIOBase):
    """An object as a file, for headers that are read here and there, and members of zip files."""

    def __init__(self, source: RemoteSource) -> None:
        self._source = source
        self._at = self._begin = 0
        self._data = b""
        self._size = _FIRST_BYTES

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        begins = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._source.size}
        if begins[whence] + offset < 0:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        self._at = begins[whence] + offset
        return self._at

    def readinto(self, data: WriteableBuffer) -> int:
        """Fill `data` as far as what was fetched goes; fetch more if there is nothing."""
        if self._at >= self._source.size:
            return 0
        end = self._begin + len(self._data)
        if not self._begin <= self._at < end:
            goes_on = self._data and self._at == end
            self._size = min(2 * self._size, _FETCH_BYTES) if goes_on else _FIRST_BYTES
            last = min(self._at + self._size, self._source.size)
            self._begin, self._data = self._at, self._source.fetch(self._at, last)
        place = self._at - self._begin
        view = memoryview(data)
        piece = self._data[place : place + len(view)]
        view[: len(piece)] = piece
        self._at += len(piece)
        return len(piece)


class _Ahead:
    """Reads spans in their order, a few fetches ahead."""

    def __init__(self, source: RemoteSource, spans: Iterable[tuple[int, int]]) -> None:
        self._source = source
        self._spans = _fetches(spans)
        self._pool = ThreadPoolExecutor(_IN_FLIGHT)
        self._coming: deque[tuple[int, Future[bytes]]] = deque()
        self._buffer = b""
        self._place = -1
        self._more()

    def has(self, begin: int) -> bool:
        """Return True if what comes next begins there."""
        if self._place == begin and self._buffer:
            return True
        return bool(self._coming) and self._coming[0][0] == begin

    def read(self, count: int) -> bytes:
        pieces: list[bytes] = []
        while count:
            if not self._buffer:
                if not self._coming or (pieces and self._coming[0][0] != self._place):
                    break
                self._place, future = self._coming.popleft()
                self._buffer = future.result()
                self._more()
                if not self._buffer:
                    break
            pieces.append(self._buffer[:count])
            self._buffer = self._buffer[count:]
            self._place += len(pieces[-1])
            count -= len(pieces[-1])
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def close(self) -> None:
        """Begin no more fetches."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _more(self) -> None:
        while len(self._coming) < _IN_FLIGHT and (span := next(self._spans, None)) is not None:
            self._coming.append((span[0], self._pool.submit(self._source.fetch, *span)))


def _fetches(spans: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Join spans where one ends as the next begins, and cut what is too long for one fetch."""
    begin = end = 0
    for start, stop in spans:
        if start != end:
            yield from _span_of(begin, end)
            begin = start
        end = stop
        while end - begin >= _FETCH_BYTES:
            yield begin, begin + _FETCH_BYTES
            begin += _FETCH_BYTES
    yield from _span_of(begin, end)


def _span_of(begin: int, end: int) -> Iterator[tuple[int, int]]:
    if begin < end:
        yield begin, end


def list_store(folder: Path) -> list[Path]:
    """List what is in a folder of a store; its names are checked as the store gives them."""
    store, base = _store(folder)
    base, where = base.rstrip("/"), f"{folder} lists"
    paths: list[Path] = []
    for entry in store.listdir(base or "/"):
        path = str(entry["name"]).rstrip("/")
        # The empty object `name/`, which consoles of stores make for a folder, is no entry.
        if path == base:
            # gcsfs lists `name/` like a folder without a name, which `name//file` makes.
            if entry["type"] == "directory" and any(
                key.startswith(f"{base}//") for key in store.find(base)
            ):
                check_name("", where)
            continue
        prefix = f"{base}/"
        name = path.removeprefix(prefix) if path.startswith(prefix) else path.rpartition("/")[2]
        check_name(name, where)
        try:
            paths.append(folder / name)
        except ValueError as error:  # it begins like a URL of another store
            raise CheckpointError(f"{where} {name!r}: {error}; rename it there") from error
    return paths


@contextmanager
def new_object(path: Path) -> Iterator[BinaryIO]:
    """Upload a new object, which is visible when the block ends without an error."""
    if is_hub(path):
        raise CheckpointError(
            f"{path}: the Hugging Face Hub takes what a conversion writes into a whole repository, "
            "as hf://org/name; write to this machine, and upload it: hf upload"
        )
    store, name = _store(path)
    with _errors_of(path):
        file = store.open(name, "wb", autocommit=False, block_size=_BLOCK_BYTES)
    try:
        yield cast("BinaryIO", Upload(path, file))
        with _errors_of(path):
            file.close()
            file.commit()
            store.invalidate_cache(store._parent(name))
    except BaseException:
        with suppress(Exception):  # the first error counts
            file.discard()
        file.closed = True  # or what is left of it is uploaded when the file is collected
        raise


class Upload:
    """What is written of an object."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self._path = path
        self._file = file
        self._count = 0

    def write(self, data: ReadableBuffer) -> int:
        """Upload these bytes, or keep them until there is a block of them; returns how many."""
        with _errors_of(self._path):
            self._file.write(data)
        count = memoryview(data).nbytes
        self._count += count
        return count

    def tell(self) -> int:
        """Return how many bytes were written."""
        return self._count

    def flush(self) -> None:
        """Do nothing: blocks are uploaded when they are full."""


_CHECK = "; check the URL, the network, and your rights to the store"


def _reason(error: BaseException) -> str:
    """Say in one line what a library raised; a RuntimeError may have a cause that tells more."""
    errors = [error]
    if isinstance(error, RuntimeError) and error.__cause__ is not None:
        errors.append(error.__cause__)
    return "; ".join(" ".join(f"{type(each).__name__}: {each}".split()) for each in errors)


def _is_of_this_machine(error: BaseException) -> bool:
    """Return True for an error of what was asked, or of a missing token: no server has answered."""
    return isinstance(error, ValueError | NotImplementedError) or "Token" in type(error).__name__


def _store(path: Path) -> tuple[Any, str]:
    """Return the file system of fsspec, and what it calls the path."""
    remote: Any = path
    return remote.fs, remote.path


@contextmanager
def _errors_of(path: Path | str) -> Iterator[None]:
    """Make every error of a store an OSError that names the path."""
    try:
        yield
    except CheckpointError:
        raise
    except Exception as error:  # each store has a library, and each library errors of its own
        if isinstance(error, OSError) and re.match(_URL, str(error.filename)):
            if not isinstance(path, str) and isinstance(error, FileNotFoundError):
                raise OSError(error.errno, error.strerror, str(path)) from error
            raise
        number = getattr(error, "errno", None)
        if not isinstance(number, int) or number <= 0 or not isinstance(error, OSError):
            numbers = (code for kind, code in _NUMBERS.items() if isinstance(error, kind))
            number = next(numbers, errno.EIO)
        text = os.strerror(number)
        if number == errno.EIO:
            text = _reason(error)
        if number not in _PLAIN and not _is_of_this_machine(error):
            text = text.rstrip(".") + _CHECK
        raise OSError(number, text, str(path)) from error
