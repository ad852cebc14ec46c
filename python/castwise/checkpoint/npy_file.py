"""`.npy`: one array, no names, no metadata."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

from numpy.typing import NDArray

from castwise.checkpoint.errors import CheckpointError
from castwise.checkpoint.npy_data import read_npy_data, write_npy
from castwise.checkpoint.npy_header import read_npy_header
from castwise.checkpoint.protocols import Reader
from castwise.checkpoint.regular_file import open_regular
from castwise.checkpoint.tensor_info import Planned, TensorInfo

_CHUNK_BYTES = 1 << 20


class NpyReader:
    """An `.npy` file; its one tensor is named after the file, without the suffix."""

    def __init__(self, path: Path, assume: str | Mapping[str, str] | None = None) -> None:
        self.path = path
        self.metadata: dict[str, str] = {}
        self._file = open_regular(path)
        try:
            size = os.fstat(self._file.fileno()).st_size
            self._header = read_npy_header(self._file, path.stem, size, assume)
        except CheckpointError as error:
            self._file.close()
            raise CheckpointError(f"{path}: {error}") from error
        except BaseException:
            self._file.close()
            raise
        self.tensors: dict[str, TensorInfo] = {path.stem: self._header.info}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()

    def read(self, name: str) -> NDArray[Any]:
        """The array."""
        del name  # there is only one
        self._file.seek(self._header.nbytes)
        try:
            return read_npy_data(self._file, self._header)
        except CheckpointError as error:
            raise CheckpointError(f"{self.path}: {error}") from error

    def copy_to(self, file: BinaryIO) -> None:
        """Copy the whole file as it stands."""
        self._file.seek(0)
        shutil.copyfileobj(self._file, file, _CHUNK_BYTES)


class NpyWriter:
    """Writes one array."""

    def __init__(
        self,
        file: BinaryIO,
        planned: Sequence[Planned],
        metadata: Mapping[str, str],
        source: Reader | None,
    ) -> None:
        if len(planned) != 1 or metadata:
            raise CheckpointError(
                f".npy holds one array and no metadata, not {len(planned)} arrays"
                f"{' with metadata' if metadata else ''}; write .npz or .safetensors"
            )
        self._file = file
        self._source = source
        self.order = [planned[0].info.name]

    def write(self, name: str, array: NDArray[Any]) -> int:
        """Write the array."""
        return write_npy(self._file, array, name)

    def keep(self, name: str) -> int:
        """Copy the array from the source."""
        assert self._source is not None, "only a tensor of a source can be kept"  # noqa: S101
        if isinstance(self._source, NpyReader):
            self._source.copy_to(self._file)
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
        """Nothing is left to do."""
