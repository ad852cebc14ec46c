"""`.npz`: a zip file of `.npy` members.

Metadata, which numpy has no place for, stands in the member `__metadata__.json`; `np.load` shows it
as bytes. Members that are no arrays are carried along. A zip file is untrusted: a member may not
promise more than its compressed bytes can hold, so that no array is larger than the file allows.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

from numpy.typing import NDArray

from castwise.checkpoint.errors import CheckpointError
from castwise.checkpoint.npy_data import read_npy_data, write_npy
from castwise.checkpoint.npy_header import NpyHeader, read_npy_header
from castwise.checkpoint.protocols import Reader
from castwise.checkpoint.regular_file import open_regular
from castwise.checkpoint.tensor_info import Planned, TensorInfo

METADATA_MEMBER = "__metadata__.json"

_SUFFIX = ".npy"
_CHUNK_BYTES = 1 << 20
_DEFLATE_LIMIT = 1032  # bytes that one compressed byte can become, by deflate's construction
_ENCRYPTED = 1
_MAX_NAME_BYTES = 65_535
_MAX_METADATA_BYTES = 100_000_000
_DAMAGED = (
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    NotImplementedError,
    RuntimeError,
    OverflowError,
    ValueError,
    struct.error,
)
"""What the zipfile module raises for files that are not as they should be."""


class NpzReader:
    """An `.npz` file: the members' headers read and checked on opening."""

    def __init__(self, path: Path, assume: str | Mapping[str, str] | None = None) -> None:
        self.path = path
        self._file = open_regular(path)
        try:
            with self._explained():
                self._zip = zipfile.ZipFile(self._file)
                self._members = self._checked_members()
                self.metadata = self._read_metadata()
                self._headers = {
                    name: self._read_header(name, member, assume)
                    for name, member in self._members.items()
                    if member.filename.endswith(_SUFFIX)
                }
        except BaseException:
            self._file.close()
            raise
        self.tensors: dict[str, TensorInfo] = {
            name: header.info for name, header in self._headers.items()
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._zip.close()
        self._file.close()

    @property
    def others(self) -> list[str]:
        """Members that are neither arrays nor the metadata."""
        return [name for name in self._members if name not in self.tensors]

    def compression(self, name: str) -> int:
        """How a member is compressed, in zipfile's terms."""
        return self._members[name].compress_type

    def read(self, name: str) -> NDArray[Any]:
        """The array of a member."""
        header = self._headers[name]
        with self._explained(), self._zip.open(self._members[name]) as member:
            member.read(header.nbytes)
            return read_npy_data(member, header)

    def copy_to(self, target: zipfile.ZipFile, name: str) -> None:
        """Copy a member with its compression and date; its decompressed bytes stay the same."""
        source = self._members[name]
        entry = zipfile.ZipInfo(source.filename, source.date_time)
        entry.compress_type = source.compress_type
        entry.external_attr = source.external_attr
        with (
            self._explained(),
            self._zip.open(source) as member,
            target.open(entry, "w", force_zip64=True) as copy,
        ):
            shutil.copyfileobj(member, copy, _CHUNK_BYTES)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Names the file in every error, and makes one kind of error of zipfile's many."""
        try:
            yield
        except CheckpointError as error:
            raise CheckpointError(f"{self.path}: {error}") from error
        except _DAMAGED as error:
            raise CheckpointError(f"{self.path}: the zip file is damaged: {error}") from error
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            # The offset of a member that lies before the file's start.
            raise CheckpointError(f"{self.path}: the zip file is damaged: {error}") from error

    def _checked_members(self) -> dict[str, zipfile.ZipInfo]:
        """The members by name without `.npy`; a name stands for one member only."""
        members: dict[str, zipfile.ZipInfo] = {}
        available = os.fstat(self._file.fileno()).st_size
        for member in self._zip.infolist():
            _check_member(member)
            available -= member.compress_size
            if available < 0:
                raise CheckpointError("members of the zip file overlap or are cut off")
            name = member.filename.removesuffix(_SUFFIX)
            if name in members:
                raise CheckpointError(f"two members stand for the name {name!r}")
            members[name] = member
        return members

    def _read_header(
        self, name: str, member: zipfile.ZipInfo, assume: str | Mapping[str, str] | None
    ) -> NpyHeader:
        with self._zip.open(member) as file:
            return read_npy_header(file, name, member.file_size, assume)

    def _read_metadata(self) -> dict[str, str]:
        """The metadata; a member of that name with other contents is no metadata and is kept."""
        member = self._members.get(METADATA_MEMBER)
        if member is None or member.file_size > _MAX_METADATA_BYTES:
            return {}
        try:
            pairs = json.loads(self._zip.read(member))
        except (ValueError, RecursionError):
            return {}
        if not isinstance(pairs, dict) or not all(isinstance(text, str) for text in pairs.values()):
            return {}
        del self._members[METADATA_MEMBER]
        return pairs


def _check_member(member: zipfile.ZipInfo) -> None:
    """CheckpointError for what numpy never writes, and for sizes that cannot be true."""
    if member.flag_bits & _ENCRYPTED:
        raise CheckpointError(f"member {member.filename!r} is encrypted")
    match member.compress_type:
        case zipfile.ZIP_STORED:
            limit = member.compress_size
        case zipfile.ZIP_DEFLATED:
            limit = member.compress_size * _DEFLATE_LIMIT
        case _:
            raise CheckpointError(
                f"member {member.filename!r} is neither stored nor deflated, as numpy would; "
                "save the file again with numpy"
            )
    if member.file_size > limit:
        raise CheckpointError(
            f"member {member.filename!r} claims {member.file_size:,} bytes, but its "
            f"{member.compress_size:,} stored bytes can hold {limit:,} at most"
        )


class NpzWriter:
    """Writes an `.npz` file member by member."""

    def __init__(
        self,
        file: BinaryIO,
        planned: Sequence[Planned],
        metadata: Mapping[str, str],
        source: Reader | None,
        *,
        compressed: bool = False,
    ) -> None:
        self._source = source
        self._metadata = dict(metadata)
        self._compression = zipfile.ZIP_DEFLATED if compressed else zipfile.ZIP_STORED
        self.order = [plan.info.name for plan in planned]
        if METADATA_MEMBER in self.order:
            raise CheckpointError(
                f"a tensor of an .npz cannot be named {METADATA_MEMBER!r}, where its metadata "
                "stands; rename it"
            )
        self._zip = zipfile.ZipFile(file, "w")

    def write(self, name: str, array: NDArray[Any]) -> int:
        """Write an array as a member, compressed if it was so in the source."""
        compression = self._compression
        if isinstance(self._source, NpzReader):
            compression = self._source.compression(name)
        entry = _new_entry(name + _SUFFIX, compression)
        with self._zip.open(entry, "w", force_zip64=True) as member:
            return write_npy(member, array, name)

    def keep(self, name: str) -> int:
        """Copy a member from the source."""
        assert self._source is not None, "only a tensor of a source can be kept"  # noqa: S101
        if isinstance(self._source, NpzReader):
            self._source.copy_to(self._zip, name)
            return self._source.tensors[name].nbytes
        return self.write(name, self._source.read(name))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if error is None:
                self._write_others()
                self._zip.close()
        finally:
            # Closed in any case, or it would write into its closed file when it is collected.
            with suppress(OSError, ValueError):
                self._zip.close()

    def _write_others(self) -> None:
        """Write the members that are no arrays, and the metadata."""
        if isinstance(self._source, NpzReader):
            for name in self._source.others:
                self._source.copy_to(self._zip, name)
        if self._metadata:
            text = json.dumps(self._metadata, indent=2, ensure_ascii=False)
            self._zip.writestr(_new_entry(METADATA_MEMBER, self._compression), text)


def _new_entry(filename: str, compression: int) -> zipfile.ZipInfo:
    """A member dated 1980, as numpy's are: the same content gives the same file."""
    entry = zipfile.ZipInfo(filename)
    if entry.filename != filename or len(filename.encode()) > _MAX_NAME_BYTES:
        raise CheckpointError(f"{filename!r} cannot be the name of a member of a zip file")
    entry.compress_type = compression
    return entry
