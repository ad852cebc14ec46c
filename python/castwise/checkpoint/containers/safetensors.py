"""`.safetensors`: one header for the whole file, then the tensors' bytes.

Formats that safetensors has no code for are written as raw `U8` bytes, with one more axis where an
element has several bytes, and named in the metadata under `castwise.dtypes` (a JSON object, tensor
to format). Other libraries read the bytes; castwise restores the format. So are float6 tensors
written, since no library reads their packed codes, `F6_E2M3` and `F6_E3M2`; castwise reads them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

import numpy as np
from numpy.typing import NDArray

from castwise import _core
from castwise._core import FormatInfo, finfo, formats
from castwise.checkpoint._errors import CheckpointError
from castwise.checkpoint._filesystem import SourceFile
from castwise.checkpoint._tensors import (
    UNKNOWN,
    Planned,
    TensorInfo,
    check_shape,
    format_info,
    format_named,
    format_of,
    numpy_dtype,
)
from castwise.checkpoint.containers._elements import from_bytes, pack_nibbles, to_bytes, unpack
from castwise.checkpoint.containers._interface import Elements, Reader

_LENGTH_BYTES = 8
_MAX_HEADER_BYTES = 100_000_000  # the format's own limit

_FORMATS_KEY = "castwise.dtypes"
"""Metadata key under which the formats of `U8` tensors stand."""

_NIBBLE_BITS = 4
_PACKED_BITS = frozenset((_NIBBLE_BITS, 6))


@dataclass(frozen=True, slots=True)
class _Layout:
    """How one tensor stands in the file; `tag` is its format if the code does not say it."""

    code: str
    shape: tuple[int, ...]
    tag: str | None = None


@dataclass(frozen=True, slots=True)
class _Entry:
    layout: _Layout
    begin: int  # byte offset in the file
    nbytes: int


class SafetensorsReader:
    """A safetensors file whose header was checked on opening.

    Closed and entered again, it opens its file again, which then must be as it was.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = SourceFile(path)
        try:
            entries, pairs, start = self._read_header()
            self._entries: dict[str, _Entry] = {}
            self.tensors: dict[str, TensorInfo] = {}
            self._describe_all(entries, pairs.get(_FORMATS_KEY), start)
        except CheckpointError as error:
            self._file.close()
            raise CheckpointError(f"{path}: {error}") from error
        except BaseException:
            self._file.close()
            raise
        self.metadata = {key: text for key, text in pairs.items() if key != _FORMATS_KEY}

    def __enter__(self) -> Self:
        self._file.reopen()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()

    def _read_header(
        self,
    ) -> tuple[list[tuple[str, str, list[int], int, int]], dict[str, str], int]:
        """Return the entries, the metadata, and where the data starts."""
        prefix = self._file.stream.read(_LENGTH_BYTES)
        length = int.from_bytes(prefix, "little")
        start = _LENGTH_BYTES + length
        # Compared before anything of that length is allocated or read.
        if len(prefix) < _LENGTH_BYTES or length > _MAX_HEADER_BYTES or start > self._file.size:
            raise CheckpointError(
                "no safetensors file, or a truncated one: its first 8 bytes promise a header of "
                f"{length:,} bytes; the file has {self._file.size:,}, and {_MAX_HEADER_BYTES:,} is "
                "the limit"
            )
        header = self._file.stream.read(length)
        try:
            entries, pairs = _core.parse_safetensors_header(header, self._file.size - start)
        except ValueError as error:
            raise CheckpointError(str(error)) from error
        return entries, dict(pairs or ()), start

    def _describe_all(
        self,
        entries: list[tuple[str, str, list[int], int, int]],
        tags_text: str | None,
        start: int,
    ) -> None:
        tags = _formats_by_name(tags_text)
        for name, code, shape, begin, end in entries:
            self.tensors[name], layout = _describe(name, code, shape, end - begin, tags.get(name))
            self._entries[name] = _Entry(layout, start + begin, end - begin)

    @property
    def state(self) -> list[int]:
        """Size and time of the file, which a change of its contents changes."""
        return self._file.state

    def layout(self, name: str) -> _Layout:
        """Return code, shape and tag of a tensor in this file."""
        return self._entries[name].layout

    def elements(self, name: str) -> Elements | None:
        """Return how a tensor stands in the file; None if castwise cannot read its elements."""
        layout = self._entries[name].layout
        return _elements(self.tensors[name].format, layout.code, layout.tag)

    def place(self, name: str) -> tuple[BinaryIO, int]:
        """Return the file and the offset of a tensor's bytes."""
        return self._file.stream, self._entries[name].begin

    def pieces(self, name: str, nbytes: int) -> Iterator[bytes]:
        """Read a tensor's bytes, `nbytes` at a time."""
        entry = self._entries[name]
        self._file.stream.seek(entry.begin)
        for done in range(0, entry.nbytes, nbytes):
            size = min(nbytes, entry.nbytes - done)
            piece = self._file.stream.read(size)
            if len(piece) != size:
                raise self._truncated(name)
            yield piece

    def read(self, name: str) -> NDArray[Any]:
        """Read a tensor as an array of its format."""
        info, entry = self.tensors[name], self._entries[name]
        if info.format is None:
            raise CheckpointError(
                f"{self.path}: tensor {name!r} is stored as {info.stored}, "
                "which castwise cannot unpack; keep it as it is"
            )
        raw = np.empty(entry.nbytes, np.uint8)
        self._file.stream.seek(entry.begin)
        if self._file.stream.readinto(raw.data) != raw.size:
            raise self._truncated(name)
        if (bits := _packed_bits(entry.layout.code)) is not None:
            raw = unpack(raw, bits)
        return from_bytes(raw, numpy_dtype(info.format), info.shape)

    def _truncated(self, name: str) -> CheckpointError:
        return CheckpointError(f"{self.path}: truncated while it was read; tensor {name!r}")


class SafetensorsWriter:
    """Writes a safetensors file: the header at once, tensors at their places or in order."""

    def __init__(
        self,
        file: BinaryIO,
        planned: Sequence[Planned],
        metadata: Mapping[str, str],
        source: Reader | None,
    ) -> None:
        self._file = file
        self._source = source if isinstance(source, SafetensorsReader) else None
        self._planned = {plan.info.name: plan for plan in planned}
        self._layouts = {name: self._layout(plan) for name, plan in self._planned.items()}
        if _FORMATS_KEY in metadata:
            raise CheckpointError(f"metadata key {_FORMATS_KEY!r} is castwise's own; rename it")
        text = _formats_text(self._layouts)
        pairs = [*metadata.items(), *([(_FORMATS_KEY, text)] if text else [])]
        try:
            header, entries = _core.build_safetensors_header(
                [(name, layout.code, list(layout.shape)) for name, layout in self._layouts.items()],
                pairs or None,
            )
        except ValueError as error:
            raise CheckpointError(f"cannot be written as safetensors: {error}") from error
        self._begins = {name: len(header) + begin for name, _, _, begin, _ in entries}
        self.order = list(self._begins)
        file.write(header)

    def _layout(self, plan: Planned) -> _Layout:
        """Return the stored layout of a tensor that is kept, else the one of its format."""
        info = plan.info
        if plan.target is None and self._source is not None:
            return self._source.layout(info.name)
        name = plan.target or info.format
        if name is None:
            raise CheckpointError(
                f"tensor {info.name!r} is stored as {info.stored}, which safetensors cannot hold"
            )
        return _layout_for(name, info.shape)

    def keeps(self, name: str) -> bool:
        """Return True if the source's bytes are wanted as they are."""
        return self._planned[name].target is None and self._source is not None

    def elements(self, name: str) -> Elements:
        """Return how a tensor that is not kept must stand in the file."""
        plan = self._planned[name]
        layout = self._layouts[name]
        elements = _elements(plan.target or plan.info.format, layout.code, layout.tag)
        assert elements is not None, "`_layout` refuses others"  # noqa: S101
        return elements

    def place(self, name: str) -> tuple[BinaryIO, int]:
        """Return the file and the offset of a tensor's bytes."""
        return self._file, self._begins[name]

    def write_pieces(self, name: str, pieces: Iterable[bytes]) -> None:
        """Write a tensor from bytes that stand as they must in the file."""
        del name  # they come in order
        for piece in pieces:
            self._file.write(piece)

    def write(self, name: str, array: NDArray[Any]) -> None:
        """Write an array of the planned format and shape."""
        packed = _packed_bits(self._layouts[name].code) is not None  # in nibbles, by `_layout_for`
        self._file.write((pack_nibbles(array) if packed else to_bytes(array)).data)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Nothing is left to do: everything is stated in the header."""


@lru_cache
def _elements(name: str | None, code: str, tag: str | None) -> Elements | None:
    if name is None:
        return None
    return Elements(name, packed=tag is None and _packed_bits(code) is not None)


def _layout_for(name: str, shape: tuple[int, ...]) -> _Layout:
    """Decide how a tensor of the format `name` is to be written."""
    row = format_info(name)
    code = row.safetensors
    if code is not None and code in _format_of_code():
        # Nibbles only where every row ends at a byte, which other readers count on; six bits never,
        # which none of them reads.
        rows_end_at_bytes = bool(shape) and shape[-1] % 2 == 0
        bits = _packed_bits(code)
        if bits is None or (bits == _NIBBLE_BITS and rows_end_at_bytes):
            return _Layout(code, shape)
    axis = (row.itemsize,) if row.itemsize > 1 else ()
    return _Layout(_raw_code(), (*shape, *axis), row.name)


def _describe(
    name: str, code: str, stored: Sequence[int], nbytes: int, tag: str | None
) -> tuple[TensorInfo, _Layout]:
    """Tell what a tensor is that stands in a header with this code and shape, and with this tag.

    A tag counts only for raw bytes: another tool may have replaced the tensor and kept the
    metadata.

    Raises
    ------
    CheckpointError
        Numpy cannot hold the shape, or it does not fit the tag's format.

    """
    shape = check_shape(name, stored)
    layout = _Layout(code, shape, tag if code == _raw_code() else None)
    row = _format_of_code().get(code)
    if layout.tag is not None:
        row = format_named(layout.tag)
        if row is not None and row.itemsize > 1:
            shape = _without_byte_axis(name, row, shape)
    kind = row.kind if row else UNKNOWN
    return TensorInfo(name, row.name if row else None, kind, code, shape, nbytes), layout


def _packed_bits(code: str) -> int | None:
    """Return the bits of an element, if those of several elements share a byte; else None."""
    row = _format_of_code().get(code)
    return row.bits if row is not None and _is_packed(row) else None


def _formats_by_name(text: str | None) -> dict[str, str]:
    """Return the tags under `castwise.dtypes`, or CheckpointError if they are not what we write."""
    if text is None:
        return {}
    try:
        tags = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"metadata {_FORMATS_KEY!r} is not JSON: {error}") from error
    if not isinstance(tags, dict) or not all(isinstance(tag, str) for tag in tags.values()):
        raise CheckpointError(f"metadata {_FORMATS_KEY!r} must be an object of tensor to format")
    return tags


def _formats_text(layouts: Mapping[str, _Layout]) -> str | None:
    """Return the text for `castwise.dtypes`; None if every tensor's code says its format."""
    tags = {name: layout.tag for name, layout in layouts.items() if layout.tag}
    return json.dumps(tags) if tags else None


@cache
def _format_of_code() -> dict[str, FormatInfo]:
    """Map safetensors codes to formats: those of whole bytes, and of four or six bits, packed."""
    rows = [finfo(name) for name in formats()]
    return {
        row.safetensors: row
        for row in rows
        if row.safetensors is not None and row.dtype is not None and _readable(row)
    }


def _readable(row: FormatInfo) -> bool:
    return row.kind == "bool" or row.bits == 8 * row.itemsize or _is_packed(row)


def _is_packed(row: FormatInfo) -> bool:
    return row.kind != "bool" and row.bits in _PACKED_BITS


@cache
def _raw_code() -> str:
    """Return the code of plain bytes."""
    row = format_of(np.dtype(np.uint8))
    assert row is not None  # noqa: S101
    code: str | None = row.safetensors
    assert code is not None  # noqa: S101
    return code


def _without_byte_axis(name: str, row: FormatInfo, stored: tuple[int, ...]) -> tuple[int, ...]:
    if not stored or stored[-1] != row.itemsize:
        raise CheckpointError(
            f"metadata says that tensor {name!r} is {row.name}, but its bytes have shape "
            f"{stored}, whose last axis is not {row.itemsize}"
        )
    return stored[:-1]
