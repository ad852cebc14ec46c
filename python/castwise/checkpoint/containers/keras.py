"""`.keras`: a zip file of a model's architecture and its weights, which are an HDF5 file.

Only the weights are cast; everything else is copied byte for byte. The dtype policies in
`config.json` stay, too: Keras makes the variables in the dtypes of their policies, and casts the
weights to these when it loads them.
"""

import json
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from numpy.typing import NDArray

from castwise.checkpoint._errors import CheckpointError
from castwise.checkpoint._tensors import Planned
from castwise.checkpoint.containers._zip import (
    Checksums,
    check_members,
    copy_member,
    explain_errors,
    like,
    stored_begin,
)
from castwise.checkpoint.containers.hdf5 import Hdf5Reader, Hdf5Writer
from castwise.checkpoint.containers.interface import Reader
from castwise.quantization.producers.keras_layers import stated_layers
from castwise.quantization.producers.layouts import BYTES

_WEIGHTS, _CONFIG = "model.weights.h5", "config.json"
_REMEDY = "save the model again with Keras"
_PIECE_BYTES = 1 << 20
# A compressed member may be a thousand times as large as its file.
_MAX_CONFIG_BYTES = 1 << 26


class KerasReader(Hdf5Reader):
    """A `.keras` file: the tensors are those of its weights."""

    config_text: str | None = None  # the `config.json` of a copy; None: the same

    def __init__(self, path: Path, assume: str | Mapping[str, str] | None = None) -> None:
        super().__init__(path, assume)
        self.other_entries = [
            member.filename for member in self.members if member.filename != _WEIGHTS
        ]

    def _part(self) -> tuple[int, int]:
        """Return offset and size of the weights in the zip file, whose members are checked."""
        file, size = self._file.stream, self._file.size
        with explain_errors(self.path):
            self.archive = zipfile.ZipFile(file)
            self.members = self.archive.infolist()
            check_members(self.archive, file, size, _REMEDY)
            names = {member.filename: member for member in self.members}
            if len(names) < len(self.members):
                raise CheckpointError(f"two members of the zip file have the same name; {_REMEDY}")
            if _WEIGHTS not in names:
                raise CheckpointError(f"not a file of Keras 3: it has no {_WEIGHTS}; {_REMEDY}")
            weights = names[_WEIGHTS]
            begin = stored_begin(file, size, weights, _REMEDY)
            self._checksums = Checksums(self._file.read)
            self._checksums.expect(weights, begin)
            return begin, weights.file_size

    def check_unchanged(self) -> None:
        super().check_unchanged()
        with explain_errors(self.path):
            self._checksums.check_all()

    def read(self, name: str) -> NDArray[Any]:
        with explain_errors(self.path):
            self._checksums.check_all()
        return super().read(name)

    def model(self) -> object:
        """Return the configuration of the model, as parsed; None if there is none."""
        member = next((entry for entry in self.members if entry.filename == _CONFIG), None)
        if member is None:
            return None
        if member.file_size > _MAX_CONFIG_BYTES:
            raise CheckpointError(f"it has {member.file_size:,} bytes")
        with explain_errors(self.path):
            return json.loads(self.archive.read(member))

    def stated(self) -> object:
        """Return what the configuration states of quantized layers; errors are those of `model`."""
        code_layers = {
            name.rpartition("/")[0] for name, info in self.tensors.items() if info.format in BYTES
        }
        return stated_layers(self.model(), self.layer_names, code_layers)


class KerasWriter(Hdf5Writer):
    """Writes a `.keras` file like another one, with other weights."""

    def __init__(
        self,
        file: BinaryIO,
        plans: Sequence[Planned],
        metadata: Mapping[str, str],
        source: Reader | None,
    ) -> None:
        if not isinstance(source, KerasReader):
            raise CheckpointError(
                "a .keras holds a model and not only its tensors, so castwise makes it from "
                "another .keras only; write .weights.h5, which model.load_weights reads"
            )
        self._zip = zipfile.ZipFile(file, "w")
        try:
            self._begin = self._copy_members(file, source)
            super().__init__(file, plans, metadata, source)
        except BaseException:
            self._close()
            raise

    def _copy_members(self, file: BinaryIO, source: KerasReader) -> int:
        """Write all but the weights, and begin these; returns where they are to stand."""
        with explain_errors(source.path):
            for member in source.members:
                if member.filename == _WEIGHTS:
                    self._entry = like(member)
                elif member.filename == _CONFIG and source.config_text is not None:
                    self._zip.writestr(like(member), source.config_text)
                else:
                    copy_member(source.archive, member, self._zip)
        entry = self._entry
        entry.header_offset = self._zip.start_dir
        entry.CRC = entry.file_size = entry.compress_size = 0
        file.seek(entry.header_offset)
        file.write(entry.FileHeader(zip64=True))
        return file.tell()

    def _close(self) -> None:
        """Close the zip file, or it would write into its closed file when it is collected."""
        with suppress(OSError, ValueError):
            self._zip.close()

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        try:
            if error is None:
                self._add_weights()
        finally:
            self._close()

    def _add_weights(self) -> None:
        """Complete the entry of the weights, which zipfile could only write from end to end."""
        file, entry = self._file, self._entry
        file.flush()
        file.seek(self._begin)
        while piece := file.read(_PIECE_BYTES):
            entry.CRC = zlib.crc32(piece, entry.CRC)
            entry.file_size += len(piece)
        entry.compress_size = entry.file_size
        self._zip.start_dir = file.tell()
        file.seek(entry.header_offset)
        file.write(entry.FileHeader(zip64=True))
        self._zip.filelist.append(entry)
        self._zip.NameToInfo[entry.filename] = entry
        self._zip.close()
