"""The data of an `.npy` array: after the header, in C or Fortran order, never a pickle."""

from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from castwise.checkpoint.errors import CheckpointError
from castwise.checkpoint.npy_header import NpyHeader, storage_dtype, write_npy_header
from castwise.checkpoint.tensor_info import numpy_dtype

_CHUNK_BYTES = 1 << 20


def read_npy_data(file: IO[bytes], header: NpyHeader) -> NDArray[Any]:
    """Read the data that follows `header`, as an array of its format, or as numpy's own dtype.

    Raises
    ------
    CheckpointError
        The data is a pickle, or the file ends early.

    """
    info = header.info
    if header.dtype is None:
        raise CheckpointError(
            f"array {info.name!r} holds Python objects; castwise opens no pickles"
        )
    raw = np.empty(info.nbytes, np.uint8)
    done = 0
    while done < raw.size:
        # In chunks: a member of a zip file is decompressed into a copy of what is asked for.
        chunk = file.read(min(_CHUNK_BYTES, raw.size - done))
        if not chunk:
            raise CheckpointError(f"array {info.name!r} is truncated")
        raw[done : done + len(chunk)] = np.frombuffer(chunk, np.uint8)
        done += len(chunk)
    try:
        array = _shaped(raw, header.dtype, info.shape, fortran=header.fortran)
    except ValueError as error:
        raise CheckpointError(f"array {info.name!r} cannot be held by numpy: {error}") from error
    if info.format is None or header.dtype.kind != "V":
        return array
    dtype = numpy_dtype(info.format)
    if header.dtype.names is not None:
        array = array.astype(storage_dtype(dtype), copy=False)  # to the byte order of this machine
    return array.view(dtype)


def _shaped(
    raw: NDArray[np.uint8], dtype: np.dtype[Any], shape: tuple[int, ...], *, fortran: bool
) -> NDArray[Any]:
    if dtype.itemsize == 0:
        return np.empty(shape, dtype)
    flat = raw.view(dtype)
    return flat.reshape(shape[::-1]).T if fortran else flat.reshape(shape)


def write_npy(file: IO[bytes], array: NDArray[Any], name: str) -> int:
    """Write header and data; returns the bytes of data.

    Fortran order is kept where the array has it. There are no pickles: an array of objects is a
    CheckpointError.
    """
    if array.dtype.hasobject:
        raise CheckpointError(
            f"array {name!r} of Python objects cannot be written; castwise pickles none"
        )
    fortran = array.flags.f_contiguous and not array.flags.c_contiguous
    laid_out = array.T if fortran else np.ascontiguousarray(array).reshape(array.shape)
    write_npy_header(file, laid_out.T if fortran else laid_out, name)
    flat = laid_out.reshape(-1)
    if flat.dtype.itemsize and flat.size:
        file.write(flat.view(np.uint8).data)
    return array.nbytes
