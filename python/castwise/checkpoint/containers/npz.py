"""`.npz`: a zip file of `.npy` members.

Metadata, which numpy has no place for, stands in the member `__metadata__.json`; `np.load` shows it
as bytes. Members that are not arrays are carried along. A zip file is untrusted: a member may not
promise more than its compressed bytes can hold, so that no array is larger than the file allows.
"""

import json
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from numpy.typing import NDArray

from castwise.checkpoint._errors import CheckpointError, join_names
from castwise.checkpoint._tensors import Planned
from castwise.checkpoint.containers._npy_header import NpyHeader, read_npy_header
from castwise.checkpoint.containers._zip import (
    ARRAY_SUFFIX,
    check_member_name,
    check_members,
    copy_member,
    explain_errors,
    like,
)
from castwise.checkpoint.containers.interface import (
    Arrangement,
    Elements,
    FileReader,
    Reader,
    Writer,
)
from castwise.checkpoint.containers.npy import (
    new_elements,
    new_header,
    npy_array,
    npy_pieces,
    write_npy,
)
from castwise.checkpoint.files.remote import RemoteSource
from castwise.checkpoint.files.source_files import SourceFile, source_file

METADATA_MEMBER = "__metadata__.json"

_PIECE_BYTES = 1 << 20
# The entry of a member has two bytes for the length of its name.
_MAX_NAME_BYTES = 65_535
# As much as a header of safetensors may have, from which they come.
_MAX_METADATA_BYTES = 100_000_000
_REMEDY = "save the file again with numpy"


class NpzReader(FileReader[SourceFile | RemoteSource]):
    """An `.npz` file: the members' headers read and checked on opening."""

    def __init__(self, path: Path, assume: str | Mapping[str, str] | None = None) -> None:
        super().__init__(source_file(path))
        with self._opening(), explain_errors(path):
            self._zip = zipfile.ZipFile(self._file.stream)
            self._members = self._checked_members()
            self.metadata = self._read_metadata()
            self._headers = {
                name: self._read_header(name, member, assume)
                for name, member in self._members.items()
                if member.filename.endswith(ARRAY_SUFFIX)
            }
        self.tensors = {name: header.info for name, header in self._headers.items()}
        self.other_entries = [name for name in self._members if name not in self.tensors]

    def __exit__(self, *error: object) -> None:
        self._zip.close()
        super().__exit__(*error)

    def elements(self, name: str) -> Elements | None:
        return self._headers[name].elements

    def arrangement(self, name: str) -> Arrangement | None:
        return self._headers[name].arrangement

    def place(self, name: str) -> None:
        """Say that data is checked against its checksum, and so passes through `pieces`."""

    def pieces(self, name: str, nbytes: int) -> Iterator[bytes]:
        with explain_errors(self.path):
            yield from self._pieces(name, nbytes)

    def _pieces(self, name: str, nbytes: int) -> Iterator[bytes]:
        header = self._headers[name]
        with self._zip.open(self._members[name]) as member:
            member.read(header.nbytes)
            yield from npy_pieces(member, header, nbytes)
            member.read(1)  # the checksum is compared at the end of the member

    def read(self, name: str) -> NDArray[Any]:
        with explain_errors(self.path):
            return npy_array(self._pieces(name, _PIECE_BYTES), self._headers[name])

    def header_bytes(self, name: str) -> bytes:
        with explain_errors(self.path), self._zip.open(self._members[name]) as member:
            return member.read(self._headers[name].nbytes)

    def entry(self, name: str) -> zipfile.ZipInfo:
        return like(self._members[name])

    def is_compressed(self, name: str) -> bool:
        """Return True if the bytes of a tensor take less room than they are."""
        return self._members[name].compress_type != zipfile.ZIP_STORED

    def copy_to(self, target: zipfile.ZipFile, name: str) -> None:
        """Copy a member; its decompressed bytes stay the same."""
        with explain_errors(self.path):
            copy_member(self._zip, self._members[name], target)

    def _checked_members(self) -> dict[str, zipfile.ZipInfo]:
        """Return the members by name without `.npy`; a name stands for one member only."""
        members: dict[str, zipfile.ZipInfo] = {}
        check_members(self._zip, self._file.stream, self._file.size, _REMEDY)
        for member in self._zip.infolist():
            name = member.filename.removesuffix(ARRAY_SUFFIX)
            if name in members:
                raise CheckpointError(f"two members stand for the name {name!r}; {_REMEDY}")
            if name == member.filename:  # not an array, and so not opened for its header
                self._zip.open(member).close()  # it has the same name at its place
            members[name] = member
        arrays = [name for name, member in members.items() if name != member.filename]
        if not arrays and (others := sorted(members.keys() - {METADATA_MEMBER})):
            raise CheckpointError(
                f"the zip file holds no arrays ({ARRAY_SUFFIX}), but {join_names(others)}; give it "
                "the suffix of what it is, or save the arrays again with numpy.savez"
            )
        return members

    def _read_header(
        self, name: str, member: zipfile.ZipInfo, assume: str | Mapping[str, str] | None
    ) -> NpyHeader:
        with self._zip.open(member) as file:
            return read_npy_header(file, name, member.file_size, assume)

    def _read_metadata(self) -> dict[str, str]:
        """The metadata; a member of that name with other contents is not metadata and is kept."""
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


class NpzWriter(Writer):
    """Writes an `.npz` file member by member."""

    def __init__(
        self,
        file: BinaryIO,
        plans: Sequence[Planned],
        metadata: Mapping[str, str],
        source: Reader | None,
        *,
        compressed: bool = False,
    ) -> None:
        self._source = source
        self._archive = source if isinstance(source, NpzReader) else None
        self.planned = {plan.info.name: plan for plan in plans}
        self._metadata = dict(metadata)
        self._compression = zipfile.ZIP_DEFLATED if compressed else zipfile.ZIP_STORED
        self.order = list(self.planned)
        if METADATA_MEMBER in self.order:
            raise CheckpointError(
                f"a tensor of an .npz cannot be named {METADATA_MEMBER!r}, where its metadata "
                "stands; rename it"
            )
        for plan in plans if source is not None else ():
            if plan.target is None and plan.info.format is None and not self.keeps(plan.info.name):
                raise CheckpointError(
                    f"tensor {plan.info.name!r} is stored as {plan.info.stored}, which .npz cannot "
                    "hold"
                )
        self._zip = zipfile.ZipFile(file, "w")

    def keeps(self, name: str) -> bool:
        return self.planned[name].target is None and self._archive is not None

    def elements(self, name: str) -> Elements:
        return new_elements(self.planned[name], self._source)

    def place(self, name: str) -> None:
        """Say that data passes through here, for its checksum."""

    def write_pieces(self, name: str, pieces: Iterable[bytes]) -> None:
        if self._archive is not None and self.keeps(name):
            entry, header = self._archive.entry(name), self._archive.header_bytes(name)
        else:
            entry, header = self._entry(name), new_header(self.planned[name], self._source)
        with self._zip.open(entry, "w", force_zip64=True) as member:
            member.write(header)
            for piece in pieces:
                member.write(piece)

    def write(self, name: str, array: NDArray[Any]) -> None:
        with self._zip.open(self._entry(name), "w", force_zip64=True) as member:
            write_npy(member, array, name)

    def _entry(self, name: str) -> zipfile.ZipInfo:
        """Make the entry of a new member, compressed if it was so in the source."""
        compression = self._compression
        if self._archive is not None:
            compression = self._archive.entry(name).compress_type
        return _new_entry(name + ARRAY_SUFFIX, compression)

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        try:
            if error is None:
                self._write_others()
                self._zip.close()
        finally:
            # Closed in any case, or it would write into its closed file when it is collected.
            with suppress(OSError, ValueError):
                self._zip.close()

    def _write_others(self) -> None:
        """Write the members that are not arrays, and the metadata."""
        if self._archive is not None:
            for name in self._archive.other_entries:
                self._archive.copy_to(self._zip, name)
        if self._metadata:
            text = json.dumps(self._metadata, indent=2, ensure_ascii=False)
            self._zip.writestr(_new_entry(METADATA_MEMBER, self._compression), text)


def _new_entry(filename: str, compression: int) -> zipfile.ZipInfo:
    """A member dated 1980, as numpy's are: the same content gives the same file."""
    entry = zipfile.ZipInfo(filename)
    if entry.filename != filename or len(filename.encode()) > _MAX_NAME_BYTES:
        raise CheckpointError(f"{filename!r} cannot be the name of a member of a zip file")
    check_member_name(filename, "the new .npz would have")
    entry.compress_type = compression
    return entry
