"""`.safetensors`: one header for the whole file, then the tensors' bytes."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

import numpy as np
from numpy.typing import NDArray

from castwise import _core
from castwise.checkpoint.element_bytes import (
    Bytes,
    from_bytes,
    pack_nibbles,
    to_bytes,
    unpack,
)
from castwise.checkpoint.errors import CheckpointError
from castwise.checkpoint.protocols import Reader
from castwise.checkpoint.regular_file import open_regular
from castwise.checkpoint.safetensors_layout import (
    FORMATS_KEY,
    Layout,
    describe,
    formats_by_name,
    formats_text,
    layout_for,
    packed_bits,
)
from castwise.checkpoint.tensor_info import Planned, TensorInfo, numpy_dtype

_LENGTH_BYTES = 8
_MAX_HEADER_BYTES = 100_000_000  # the format's own limit


@dataclass(frozen=True, slots=True)
class _Entry:
    layout: Layout
    begin: int  # byte offsets in the file
    end: int


class SafetensorsReader:
    """A safetensors file: headers checked on opening, tensors read one at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = open_regular(path)
        self._data_start = 0
        try:
            entries, pairs = self._read_header()
            self._entries: dict[str, _Entry] = {}
            self.tensors: dict[str, TensorInfo] = {}
            self._describe_all(entries, pairs.get(FORMATS_KEY))
        except CheckpointError as error:
            self._file.close()
            raise CheckpointError(f"{path}: {error}") from error
        except BaseException:
            self._file.close()
            raise
        self.metadata = {key: text for key, text in pairs.items() if key != FORMATS_KEY}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()

    def _read_header(self) -> tuple[list[tuple[str, str, list[int], int, int]], dict[str, str]]:
        size = os.fstat(self._file.fileno()).st_size
        prefix = self._file.read(_LENGTH_BYTES)
        length = int.from_bytes(prefix, "little")
        self._data_start = _LENGTH_BYTES + length
        # Compared before anything of that length is allocated or read.
        if len(prefix) < _LENGTH_BYTES or length > _MAX_HEADER_BYTES or self._data_start > size:
            raise CheckpointError(
                "no safetensors file, or a truncated one: its first 8 bytes promise a header of "
                f"{length:,} bytes; the file has {size:,}, and {_MAX_HEADER_BYTES:,} is the limit"
            )
        header = self._file.read(length)
        try:
            entries, pairs = _core.parse_safetensors_header(header, size - self._data_start)
        except ValueError as error:
            raise CheckpointError(str(error)) from error
        return entries, dict(pairs or ())

    def _describe_all(
        self, entries: list[tuple[str, str, list[int], int, int]], tags_text: str | None
    ) -> None:
        tags = formats_by_name(tags_text)
        for name, code, shape, begin, end in entries:
            self.tensors[name], layout = describe(name, code, shape, end - begin, tags.get(name))
            self._entries[name] = _Entry(layout, self._data_start + begin, self._data_start + end)

    def layout(self, name: str) -> Layout:
        """How the tensor stands in this file."""
        return self._entries[name].layout

    def read_stored(self, name: str) -> Bytes:
        """The tensor's bytes as they stand in the file."""
        entry = self._entries[name]
        raw = np.empty(entry.end - entry.begin, np.uint8)
        self._file.seek(entry.begin)
        if self._file.readinto(raw.data) != raw.size:
            raise CheckpointError(f"{self.path}: truncated while it was read; tensor {name!r}")
        return raw

    def read(self, name: str) -> NDArray[Any]:
        """The tensor as an array of its format."""
        info = self.tensors[name]
        if info.format is None:
            raise CheckpointError(
                f"{self.path}: tensor {name!r} is stored as {info.stored}, "
                "which castwise cannot unpack; keep it as it is"
            )
        raw = self.read_stored(name)
        if (bits := packed_bits(self._entries[name].layout.code)) is not None:
            raw = unpack(raw, bits)
        return from_bytes(raw, numpy_dtype(info.format), info.shape)


class SafetensorsWriter:
    """Writes a safetensors file from front to back."""

    def __init__(
        self,
        file: BinaryIO,
        planned: Sequence[Planned],
        metadata: Mapping[str, str],
        source: Reader | None,
    ) -> None:
        self._file = file
        self._source = source
        self._layouts = {plan.info.name: self._layout(plan) for plan in planned}
        if FORMATS_KEY in metadata:
            raise CheckpointError(f"metadata key {FORMATS_KEY!r} is castwise's own; rename it")
        text = formats_text(self._layouts)
        pairs = [*metadata.items(), *([(FORMATS_KEY, text)] if text else [])]
        try:
            header, entries = _core.build_safetensors_header(
                [(name, layout.code, list(layout.shape)) for name, layout in self._layouts.items()],
                pairs or None,
            )
        except ValueError as error:
            raise CheckpointError(f"cannot be written as safetensors: {error}") from error
        self.order = [name for name, *_ in entries]
        file.write(header)

    def _layout(self, plan: Planned) -> Layout:
        """The stored layout of a tensor that is kept, else the one its format gives it."""
        info = plan.info
        if plan.target is None and isinstance(self._source, SafetensorsReader):
            return self._source.layout(info.name)
        name = plan.target or info.format
        if name is None:
            raise CheckpointError(
                f"tensor {info.name!r} is stored as {info.stored}, which safetensors cannot hold"
            )
        return layout_for(name, info.shape)

    def write(self, name: str, array: NDArray[Any]) -> int:
        """Write an array of the planned format and shape."""
        packed = packed_bits(self._layouts[name].code) is not None  # in nibbles, by `layout_for`
        return self._write(pack_nibbles(array) if packed else to_bytes(array))

    def keep(self, name: str) -> int:
        """Copy the tensor from the source."""
        if isinstance(self._source, SafetensorsReader):
            return self._write(self._source.read_stored(name))
        assert self._source is not None, "only a tensor of a source can be kept"  # noqa: S101
        return self.write(name, self._source.read(name))

    def _write(self, raw: Bytes) -> int:
        self._file.write(raw.data)
        return raw.size

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Nothing is left to do: everything is stated in the header."""
