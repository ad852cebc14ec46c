"""Zip files as containers: untrusted, so that what they claim is checked against their size."""

import errno
import re
import shutil
import struct
import zipfile
import zlib
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from castwise.checkpoint._errors import CheckpointError, damage
from castwise.checkpoint.files.entry_names import check_name

_DEFLATE_LIMIT = 1032  # bytes that one compressed byte can become, by deflate's construction
ARRAY_SUFFIX = ".npy"
"""What the names of arrays in an `.npz` end with."""

# The colon of `w:0`, as TensorFlow names a variable; `w:` is no drive there.
_VARIABLE = re.compile(rf":(?=\d+{re.escape(ARRAY_SUFFIX)}\Z)")

# Bits of the flags of a member, and below the records of a zip file: APPNOTE.TXT of PKWARE, 4.3 and
# 4.4.4.
_ENCRYPTED, _UTF8 = 1, 0x800
_PIECE_BYTES = 1 << 20
_LOCAL_HEADER = struct.Struct("<4s5H3I2H")
_LOCAL_SIGNATURE = b"PK\3\4"
_END = struct.Struct("<4s4H2IH")
_END_SIGNATURE = b"PK\5\6"
_LOCATOR = struct.Struct("<4sIQI")
_LOCATOR_SIGNATURE = b"PK\6\7"
_END64 = struct.Struct("<4sQ2H2I4Q")
_END64_SIGNATURE = b"PK\6\6"
_MAX_END_BYTES = 0xFFFF + _END.size + _LOCATOR.size + _END64.size  # with the longest comment
# What the zipfile module raises for files that are not as they should be.
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


@contextmanager
def explain_errors(path: Path) -> Iterator[None]:
    """Name the file in every error, and make one kind of error of zipfile's many."""
    try:
        yield
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}") from error
    except _DAMAGED as error:
        # EOFError has no text.
        reason = str(error) or "it ends early"
        raise damage(f"{path}: the zip file is damaged: {reason}") from error
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        # The offset of a member that lies before the file's start.
        raise damage(f"{path}: the zip file is damaged: {error}") from error


def check_members(archive: zipfile.ZipFile, file: BinaryIO, size: int, remedy: str) -> None:
    """Refuse a directory that cannot be true in a file of `size` bytes, or leads out of it."""
    # `remedy` is for members that are neither stored nor deflated.
    members = archive.infolist()
    count = _stated_count(file, size)
    if len(members) != count:  # zipfile reads as many as it finds
        raise damage(
            f"the zip file is damaged: it states {count:,} members and lists {len(members):,}"
        )
    if not members and size > _END.size + len(archive.comment):
        raise damage("the zip file is damaged: it has contents and lists no members")
    available = size
    for member in members:
        check_member_name(member.orig_filename)
        _check_member(member, remedy)
        available -= member.compress_size
        if available < 0:
            raise damage("members of the zip file overlap or are cut off")


def check_member_name(name: str, where: str = "the zip file has") -> None:
    """Refuse a member that could be unpacked outside of its folder; `where` begins the error."""
    check_name(_VARIABLE.sub("_", name), where, is_path=True)


def _stated_count(file: BinaryIO, size: int) -> int:
    """Return the number of members that the end of a zip file states."""
    begin = max(size - _MAX_END_BYTES, 0)
    file.seek(begin)
    tail = file.read(size - begin)
    place = tail.rfind(_END_SIGNATURE)
    if place < 0 or place + _END.size > len(tail):
        raise damage("the zip file is damaged: it has no end")
    # Field 4 is the number of members in all disks; of ZIP64, whose record is larger, field 7.
    count: int = _END.unpack_from(tail, place)[4]
    locator = place - _LOCATOR.size
    if locator >= 0 and tail.startswith(_LOCATOR_SIGNATURE, locator):
        large = locator - _END64.size
        if large < 0 or not tail.startswith(_END64_SIGNATURE, large):
            raise damage("the zip file is damaged: its large end is not before its end")
        count = _END64.unpack_from(tail, large)[7]
    return count


def _check_member(member: zipfile.ZipInfo, remedy: str) -> None:
    if member.flag_bits & _ENCRYPTED:
        raise CheckpointError(f"member {member.filename!r} is encrypted; {remedy}")
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
        raise damage(
            f"member {member.filename!r} claims {member.file_size:,} bytes, but its "
            f"{member.compress_size:,} stored bytes can hold {limit:,} at most"
        )


def stored_begin(file: BinaryIO, size: int, member: zipfile.ZipInfo, remedy: str) -> int:
    """Return the offset of a member's bytes, which must stand uncompressed in the file."""
    # `size` is that of the file; `remedy` is for a compressed member.
    file.seek(member.header_offset)
    header = file.read(_LOCAL_HEADER.size)
    if len(header) < _LOCAL_HEADER.size:
        raise damage(f"member {member.filename!r} is cut off")
    signature, *fields, name_size, extra_size = _LOCAL_HEADER.unpack(header)
    if signature != _LOCAL_SIGNATURE:
        raise damage(f"member {member.filename!r} is not where the zip file says")
    if member.compress_type != zipfile.ZIP_STORED or fields[2] != zipfile.ZIP_STORED:
        raise CheckpointError(f"member {member.filename!r} is compressed; {remedy}")
    encoding = "utf-8" if member.flag_bits & _UTF8 else "cp437"
    if file.read(name_size) != member.orig_filename.encode(encoding):
        raise damage(f"member {member.filename!r} has another name at its place")
    begin: int = member.header_offset + _LOCAL_HEADER.size + name_size + extra_size
    if member.file_size != member.compress_size or begin + member.file_size > size:
        raise damage(f"member {member.filename!r} is cut off")
    return begin


# A member with 0 in the place of its checksum has none, as torch writes it under
# `set_crc32_options(False)`. Numbers are kept in arrays: a file may have a member for each of
# hundreds of thousands of tensors.
class Checksums:
    """The checksums of members whose bytes are read from where they stand, each compared once."""

    def __init__(self, read: Callable[[int, int], bytes]) -> None:
        self._read = read
        self._begins, self._sizes = array("Q"), array("Q")
        self._headers = array("I")  # bytes between the beginning of a member and its content
        self._checksums = array("I")  # 0 of a member that was checked
        self._is_sorted = True

    def expect(self, member: zipfile.ZipInfo, begin: int) -> None:
        """Take note of a member, whose bytes stand from `begin` on."""
        if member.CRC:
            self._is_sorted &= not self._begins or begin > self._begins[-1]
            self._begins.append(begin)
            self._sizes.append(member.file_size)
            self._headers.append(begin - member.header_offset)
            self._checksums.append(member.CRC)

    def check(self, place: int) -> None:
        """Refuse the member at a place if its bytes are not those that were saved."""
        self._sort()
        index = bisect_right(self._begins, place) - 1
        if index >= 0 and place < self._begins[index] + self._sizes[index]:
            self._check(index)

    def check_all(self) -> None:
        """Check every member that was not yet."""
        for index in range(len(self._begins)):
            self._check(index)

    def _check(self, index: int) -> None:
        if not self._checksums[index]:
            return
        begin, size, checksum = self._begins[index], self._sizes[index], 0
        for place in range(begin, begin + size, _PIECE_BYTES):
            piece = self._read(place, min(_PIECE_BYTES, begin + size - place))
            checksum = zlib.crc32(piece, checksum)
        if checksum != self._checksums[index]:
            header = self._read(begin - self._headers[index], self._headers[index])
            *_, length, _ = _LOCAL_HEADER.unpack_from(header)
            name = header[_LOCAL_HEADER.size :][:length].decode(errors="replace")
            raise damage(
                f"the bytes of member {name!r} do not have the checksum that the zip file states, "
                f"so the file is damaged"
            )
        self._checksums[index] = 0

    def _sort(self) -> None:
        """Bring the members into the order of their places."""
        if self._is_sorted:
            return
        order = sorted(range(len(self._begins)), key=self._begins.__getitem__)
        columns = self._begins, self._sizes, self._headers, self._checksums
        self._begins, self._sizes, self._headers, self._checksums = (
            array(column.typecode, map(column.__getitem__, order)) for column in columns
        )
        self._is_sorted = True


def like(member: zipfile.ZipInfo) -> zipfile.ZipInfo:
    """Make the entry of a copy of a member, with its compression and date."""
    entry = zipfile.ZipInfo(member.filename, member.date_time)
    entry.compress_type = member.compress_type
    entry.external_attr = member.external_attr
    return entry


def copy_member(source: zipfile.ZipFile, member: zipfile.ZipInfo, target: zipfile.ZipFile) -> None:
    """Copy a member; its decompressed bytes stay the same."""
    with (
        source.open(member) as member_bytes,
        target.open(like(member), "w", force_zip64=True) as copy,
    ):
        shutil.copyfileobj(member_bytes, copy, _PIECE_BYTES)
