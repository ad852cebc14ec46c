"""Zip files as containers: untrusted, so that what they claim is checked against their size."""

from __future__ import annotations

import errno
import shutil
import struct
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from castwise.checkpoint._errors import CheckpointError

_DEFLATE_LIMIT = 1032  # bytes that one compressed byte can become, by deflate's construction
_ENCRYPTED, _UTF8 = 1, 0x800
_PIECE_BYTES = 1 << 20
_LOCAL_HEADER = struct.Struct("<4s5H3I2H")
_LOCAL_SIGNATURE = b"PK\3\4"
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


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Name the file in every error, and make one kind of error of zipfile's many."""
    try:
        yield
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}") from error
    except _DAMAGED as error:
        # EOFError has no text.
        reason = str(error) or "it ends early"
        raise CheckpointError(f"{path}: the zip file is damaged: {reason}") from error
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        # The offset of a member that lies before the file's start.
        raise CheckpointError(f"{path}: the zip file is damaged: {error}") from error


def check_members(members: Iterable[zipfile.ZipInfo], size: int, remedy: str) -> None:
    """CheckpointError for sizes that cannot be true in a file of `size` bytes.

    `remedy` is for members that are neither stored nor deflated.
    """
    available = size
    for member in members:
        _check_member(member, remedy)
        available -= member.compress_size
        if available < 0:
            raise CheckpointError("members of the zip file overlap or are cut off")


def _check_member(member: zipfile.ZipInfo, remedy: str) -> None:
    if member.flag_bits & _ENCRYPTED:
        raise CheckpointError(f"member {member.filename!r} is encrypted")
    match member.compress_type:
        case zipfile.ZIP_STORED:
            limit = member.compress_size
        case zipfile.ZIP_DEFLATED:
            limit = member.compress_size * _DEFLATE_LIMIT
        case _:
            raise CheckpointError(
                f"member {member.filename!r} is neither stored nor deflated; {remedy}"
            )
    if member.file_size > limit:
        raise CheckpointError(
            f"member {member.filename!r} claims {member.file_size:,} bytes, but its "
            f"{member.compress_size:,} stored bytes can hold {limit:,} at most"
        )


def stored_begin(file: BinaryIO, size: int, member: zipfile.ZipInfo, remedy: str) -> int:
    """Return the offset of a member's bytes, which must stand uncompressed in the file.

    `size` is that of the file; `remedy` is for a compressed member.
    """
    file.seek(member.header_offset)
    header = file.read(_LOCAL_HEADER.size)
    if len(header) < _LOCAL_HEADER.size:
        raise CheckpointError(f"member {member.filename!r} is cut off")
    signature, *fields, name_size, extra_size = _LOCAL_HEADER.unpack(header)
    if signature != _LOCAL_SIGNATURE:
        raise CheckpointError(f"member {member.filename!r} is not where the zip file says")
    if member.compress_type != zipfile.ZIP_STORED or fields[2] != zipfile.ZIP_STORED:
        raise CheckpointError(f"member {member.filename!r} is compressed; {remedy}")
    encoding = "utf-8" if member.flag_bits & _UTF8 else "cp437"
    if file.read(name_size) != member.orig_filename.encode(encoding):
        raise CheckpointError(f"member {member.filename!r} has another name at its place")
    begin: int = member.header_offset + _LOCAL_HEADER.size + name_size + extra_size
    if member.file_size != member.compress_size or begin + member.file_size > size:
        raise CheckpointError(f"member {member.filename!r} is cut off")
    return begin


def like(member: zipfile.ZipInfo) -> zipfile.ZipInfo:
    """Make the entry of a copy of a member, with its compression and date."""
    entry = zipfile.ZipInfo(member.filename, member.date_time)
    entry.compress_type = member.compress_type
    entry.external_attr = member.external_attr
    return entry


def copy_member(source: zipfile.ZipFile, member: zipfile.ZipInfo, target: zipfile.ZipFile) -> None:
    """Copy a member; its decompressed bytes stay the same."""
    with (
        source.open(member) as old,
        target.open(like(member), "w", force_zip64=True) as new,
    ):
        shutil.copyfileobj(old, new, _PIECE_BYTES)
