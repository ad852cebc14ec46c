"""`.npy`: one array, no names, no metadata; its data follows the header and is never a pickle."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from castwise.checkpoint._errors import CheckpointError, damage, name_file
from castwise.checkpoint._tensors import Planned, numpy_dtype
from castwise.checkpoint.containers._npy_header import (
    NpyHeader,
    npy_header,
    read_npy_header,
    storage_dtype,
)
from castwise.checkpoint.containers.array_bytes import NATIVE_ORDER, join_pieces
from castwise.checkpoint.containers.interface import (
    Arrangement,
    Elements,
    PlacedReader,
    PlacedWriter,
    Reader,
)
from castwise.checkpoint.files.remote import RemoteSource
from castwise.checkpoint.files.source_files import SourceFile, source_file

_PIECE_BYTES = 1 << 20


class NpyReader(PlacedReader[SourceFile | RemoteSource]):
    """An `.npy` file; its one tensor is named after the file, without the suffix."""

    def __init__(self, path: Path, assume: str | Mapping[str, str] | None = None) -> None:
        super().__init__(source_file(path))
        self.metadata = {}
        with self._opening(), name_file(path):
            self._header = read_npy_header(self._file.stream, path.stem, self._file.size, assume)
        self.tensors = {path.stem: self._header.info}
        self._begins = {path.stem: self._header.nbytes}

    def elements(self, name: str) -> Elements | None:
        del name  # there is only one
        return self._header.elements

    def arrangement(self, name: str) -> Arrangement | None:
        del name
        return self._header.arrangement

    def read(self, name: str) -> NDArray[Any]:
        self.expect([name])
        pieces = self.pieces(name, _PIECE_BYTES)
        with name_file(self.path):
            return npy_array(pieces, self._header)

    def header_bytes(self) -> bytes:
        self._file.stream.seek(0)
        return self._file.stream.read(self._header.nbytes)


class NpyWriter(PlacedWriter):
    """Writes one array."""

    def _write_start(self, metadata: Mapping[str, str], source: Reader | None) -> None:
        if len(self.order) != 1 or metadata:
            raise CheckpointError(
                f".npy holds one array and no metadata, not {len(self.order)} arrays"
                f"{' with metadata' if metadata else ''}; write .npz or .safetensors"
            )
        (name,) = self.order
        begin = 0
        if isinstance(source, NpyReader):
            # The array can be converted in its place.
            self._source, plan = source, self.planned[name]
            header = source.header_bytes() if self.keeps(name) else new_header(plan, source)
            begin = self._file.write(header)
        self._begins = {name: begin}

    def elements(self, name: str) -> Elements:
        return new_elements(self.planned[name], self._source)

    def write(self, name: str, array: NDArray[Any]) -> None:
        write_npy(self._file, array, name)


def new_elements(plan: Planned, source: Reader | None) -> Elements:
    """Tell how the result of a plan stands in an `.npy`: as the source's, in native byte order."""
    assert plan.format is not None, "elements of no format are kept"  # noqa: S101
    elements = source.elements(plan.info.name) if source is not None else None
    return Elements(
        plan.format, order=NATIVE_ORDER, fortran=elements is not None and elements.fortran
    )


def new_header(plan: Planned, source: Reader | None) -> bytes:
    elements = new_elements(plan, source)
    dtype = numpy_dtype(elements.format)
    return npy_header(dtype, plan.info.shape, plan.info.name, fortran=elements.fortran)


def npy_pieces(file: IO[bytes], header: NpyHeader, nbytes: int) -> Iterator[bytes]:
    """Read the data that follows a header, `nbytes` at a time."""
    bytes_left = header.info.nbytes
    while bytes_left:
        # In pieces: a member of a zip file is decompressed into a copy of what is asked for.
        size = min(nbytes, bytes_left)
        piece = file.read(size)
        if len(piece) < size:
            raise damage(f"array {header.info.name!r} is truncated")
        bytes_left -= size
        yield piece


def npy_array(pieces: Iterator[bytes], header: NpyHeader) -> NDArray[Any]:
    """Return the data of a header as an array of its format, or as numpy's own dtype."""
    info = header.info
    if header.dtype is None:
        raise CheckpointError(
            f"array {info.name!r} holds Python objects; castwise opens no pickles"
        )
    raw = join_pieces(pieces, info.nbytes)
    try:
        array = _shape_array(raw, header.dtype, info.shape, fortran=header.fortran)
    except ValueError as error:
        raise CheckpointError(f"array {info.name!r} cannot be held by numpy: {error}") from error
    if info.format is None or header.dtype.kind != "V":
        return array
    dtype = numpy_dtype(info.format)
    if header.dtype.names is not None:
        array = array.astype(storage_dtype(dtype), copy=False)  # to the byte order of this machine
    return array.view(dtype)


def write_npy(file: IO[bytes], array: NDArray[Any], name: str) -> None:
    """Write header and data."""
    # Fortran order is kept where the array has it. There are no pickles: an array of objects is a
    # CheckpointError.
    if array.dtype.hasobject:
        raise CheckpointError(
            f"array {name!r} of Python objects cannot be written; castwise pickles none"
        )
    fortran = array.flags.f_contiguous and not array.flags.c_contiguous
    laid_out = array.T if fortran else np.ascontiguousarray(array).reshape(array.shape)
    file.write(npy_header(array.dtype, array.shape, name, fortran=fortran))
    flat = laid_out.reshape(-1)
    if flat.dtype.itemsize and flat.size:
        file.write(flat.view(np.uint8).data)


def _shape_array(
    raw: NDArray[np.uint8], dtype: np.dtype[Any], shape: tuple[int, ...], *, fortran: bool
) -> NDArray[Any]:
    if dtype.itemsize == 0:
        return np.empty(shape, dtype)
    flat = raw.view(dtype)
    return flat.reshape(shape[::-1]).T if fortran else flat.reshape(shape)
