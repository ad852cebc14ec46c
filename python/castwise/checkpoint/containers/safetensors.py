"""`.safetensors`: one header for the whole file, then the tensors' bytes.

Formats that safetensors has no code for are written as raw `U8` bytes, with one more axis where an
element has several bytes, and named in the metadata under `castwise.dtypes` (a JSON object, tensor
to format). Other libraries read the bytes; castwise restores the format. So are float6 tensors
written, since no library reads their packed codes, `F6_E2M3` and `F6_E3M2`; castwise reads them.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from numpy.typing import NDArray

from castwise._core import (
    FormatInfo,
    build_safetensors_header,
    finfo,
    formats,
    parse_safetensors_header,
)
from castwise.checkpoint._errors import CheckpointError, damage, name_file
from castwise.checkpoint._tensors import (
    UNKNOWN,
    Planned,
    TensorInfo,
    check_shape,
    format_info,
    format_named,
    numpy_dtype,
)
from castwise.checkpoint.containers.array_bytes import from_bytes, pack_nibbles, to_bytes, unpack
from castwise.checkpoint.containers.interface import Elements, PlacedReader, PlacedWriter, Reader
from castwise.checkpoint.files.remote import RemoteSource
from castwise.checkpoint.files.source_files import SourceFile, source_file
from castwise.text.wording import argument

# The file begins with the length of its header, in little-endian order.
_LENGTH_BYTES = 8
_MAX_HEADER_BYTES = 100_000_000  # the format's own limit

# Metadata key under which the formats of `U8` tensors stand.
_FORMATS_KEY = "castwise.dtypes"

_RAW_CODE = "U8"  # of plain bytes

# Elements of 4 bits lie two in a byte, and those of 6 bits four in three.
_NIBBLE_BITS = 4
# Of elements that share bytes in a file; others take whole bytes.
_PACKED_BITS = frozenset((_NIBBLE_BITS, 6))


class StoredLayout(NamedTuple):
    """How one tensor stands in the file; `tag` is its format if the code does not say it."""

    code: str
    shape: tuple[int, ...]
    tag: str | None = None

    @property
    def stated(self) -> tuple[str, tuple[int, ...]]:
        """The code and the shape that the header states."""
        return self.code, self.shape


# A reader that is entered again opens its file again, which then must be as it was.
class SafetensorsReader(PlacedReader[SourceFile | RemoteSource]):
    """A safetensors file, or object of a store, whose header was checked on opening."""

    reopens = True

    def __init__(self, path: Path) -> None:
        super().__init__(source_file(path))
        with self._opening(), name_file(path):
            entries, pairs, start = self._read_header()
            self._begins = {}  # byte offsets in the file
            self._layouts: dict[str, StoredLayout] = {}
            self.tensors = {}
            self._describe_all(entries, pairs.get(_FORMATS_KEY), start)
        self.metadata = {key: text for key, text in pairs.items() if key != _FORMATS_KEY}

    def _read_header(
        self,
    ) -> tuple[list[tuple[str, str, tuple[int, ...], int, int]], dict[str, str], int]:
        """Return the entries, the metadata, and where the data starts."""
        if not self._file.size:
            raise CheckpointError("the file is empty; copy or download it again")
        prefix = self._file.read(0, _LENGTH_BYTES)
        length = int.from_bytes(prefix, "little")
        start = _LENGTH_BYTES + length
        # Compared before anything of that length is allocated or read.
        if len(prefix) < _LENGTH_BYTES or length > _MAX_HEADER_BYTES or start > self._file.size:
            raise damage(
                "no safetensors file, or a truncated one: its first 8 bytes promise a header of "
                f"{length:,} bytes; the file has {self._file.size:,}, and {_MAX_HEADER_BYTES:,} is "
                f"the limit"
            )
        header = self._file.read(_LENGTH_BYTES, length)
        if len(header) != length:
            raise damage(
                f"truncated while it was read; the header has {length:,} bytes, of which "
                f"{len(header):,} came"
            )
        try:
            entries, pairs = parse_safetensors_header(header, self._file.size - start)
        except ValueError as error:
            raise damage(str(error)) from error
        return entries, dict(pairs or ()), start

    def _describe_all(
        self,
        entries: list[tuple[str, str, tuple[int, ...], int, int]],
        tags_text: str | None,
        start: int,
    ) -> None:
        tags = _formats_by_name(tags_text)
        for name, code, stored_shape, begin, end in entries:
            shape = check_shape(name, stored_shape)
            format_name, kind = _code_format(code)
            # A tag counts only for raw bytes: another tool may have replaced the tensor and kept
            # the metadata.
            if name in tags and code == _RAW_CODE:
                self._layouts[name] = StoredLayout(code, shape, tags[name])
                format_name, kind, shape = _tag_format(name, tags[name], shape)
            self.tensors[name] = TensorInfo(name, format_name, kind, code, shape, end - begin)
            self._begins[name] = start + begin

    def layout(self, name: str) -> StoredLayout:
        """Return code, shape and tag of a tensor in this file."""
        info = self.tensors[name]
        return self._layouts.get(name) or StoredLayout(info.stored, info.shape)

    def elements(self, name: str) -> Elements | None:
        info = self.tensors[name]
        return None if info.format is None else _elements(info.format, info.stored)

    def read(self, name: str) -> NDArray[Any]:
        info = self.tensors[name]
        if info.format is None:
            raise CheckpointError(
                f"{self.path}: tensor {name!r} is stored as {info.stored}, "
                "which castwise cannot unpack; keep it as it is"
            )
        raw = self._bytes(name)
        if (bits := _packed_bits(info.stored)) is not None:
            raw = unpack(raw, bits)
        return from_bytes(raw, numpy_dtype(info.format), info.shape)


class JoinedShards(SafetensorsReader):
    """The tensors of several shards, to ask how each stands in its own; it has no file."""

    def __init__(self, shards: Sequence[SafetensorsReader]) -> None:
        self._shards = {name: shard for shard in shards for name in shard.tensors}

    def layout(self, name: str) -> StoredLayout:
        """Return code, shape and tag of a tensor in its shard."""
        return self._shards[name].layout(name)


class SafetensorsWriter(PlacedWriter):
    """Writes a safetensors file: the header at once, tensors at their places."""

    def _write_start(self, metadata: Mapping[str, str], source: Reader | None) -> None:
        self._source: SafetensorsReader | None = (
            source if isinstance(source, SafetensorsReader) else None
        )
        if _FORMATS_KEY in metadata:
            raise CheckpointError(f"metadata key {_FORMATS_KEY!r} is castwise's own; rename it")
        layouts = [self._layout(plan) for plan in self.planned.values()]
        tags = {
            name: layout.tag
            for name, layout in zip(self.planned, layouts, strict=True)
            if layout.tag is not None
        }
        text = json.dumps(tags) if tags else None
        pairs = [*metadata.items(), *([(_FORMATS_KEY, text)] if text else [])]
        try:
            header, self._begins = build_safetensors_header(
                (
                    (name, *layout.stated)
                    for name, layout in zip(self.planned, layouts, strict=True)
                ),
                pairs or None,
            )
        except ValueError as error:
            raise CheckpointError(f"cannot be written as safetensors: {error}") from error
        self.order = list(self._begins)
        self._file.write(header)

    def _layout(self, plan: Planned) -> StoredLayout:
        """Return the stored layout of a tensor that is kept, else the one of its format."""
        info = plan.info
        if plan.target is None and self._source is not None:
            return self._source.layout(info.name)
        target = plan.target or info.format  # and no property, as this is asked often
        if target is None:
            raise CheckpointError(
                f"tensor {info.name!r} is stored as {info.stored}, which safetensors cannot hold"
            )
        return _layout_for(target, info.shape)

    def elements(self, name: str) -> Elements:
        plan = self.planned[name]
        target = plan.target or plan.info.format
        assert target is not None, "`_layout` refuses others"  # noqa: S101
        return _elements(target, self._layout(plan).code)

    def write(self, name: str, array: NDArray[Any]) -> None:
        code = self._layout(self.planned[name]).code
        is_packed = _packed_bits(code) is not None  # in nibbles, by `_layout_for`
        raw = pack_nibbles(array) if is_packed else to_bytes(array)
        self._go_to(name)
        self._file.write(raw.data)


def check_codes(plans: Iterable[Planned], *, keeps: bool) -> None:
    """Refuse the first tensor that could only be written as bytes."""
    # `keeps` says that the bytes of tensors that are not cast stay as they are.
    for plan in plans:
        name = plan.target or (None if keeps else plan.info.format)
        if name is None or _layout_for(name, plan.info.shape).tag is None:
            continue
        lack = "no code that other programs read"
        if _writing(name)[1] == _NIBBLE_BITS:
            lack = f"no way to pack rows of an odd length (shape {plan.info.shape})"
        raise CheckpointError(
            f"tensor {plan.info.name!r}: safetensors has {lack} for {name}, so they would take its "
            f"bytes for numbers; the nearest format it has is {_nearest_code(name)}; to write the "
            "bytes all the same, for castwise to read: " + argument("as_bytes")
        )


def _nearest_code(name: str) -> str:
    """Return the format most like another one among those that safetensors holds, byte by byte."""
    format_info = finfo(name)

    def unlike(row: FormatInfo) -> tuple[bool, int, int]:
        bits = row.bits - format_info.bits
        exponent, mantissa = (
            abs(getattr(row, part, 0) - getattr(format_info, part, 0))
            for part in ("exponent_bits", "mantissa_bits")
        )
        return bits < 0, abs(bits), exponent + mantissa

    rows = (row for row in _format_of_code().values() if not _is_packed(row))
    return min((row for row in rows if row.kind == format_info.kind), key=unlike).name


@lru_cache
def _elements(name: str, code: str) -> Elements:
    return Elements(name, packed=_packed_bits(code) is not None)


@lru_cache(maxsize=1024)
def _layout_for(name: str, shape: tuple[int, ...]) -> StoredLayout:
    """Decide how a tensor of the format `name` is to be written."""
    code, bits, itemsize = _writing(name)
    if code is not None:
        # Nibbles only where every row ends at a byte, which other readers count on; six bits never,
        # which none of them reads.
        rows_end_at_bytes = bool(shape) and shape[-1] % 2 == 0
        if bits is None or (bits == _NIBBLE_BITS and rows_end_at_bytes):
            return StoredLayout(code, shape)
    axis = (itemsize,) if itemsize > 1 else ()
    return StoredLayout(_RAW_CODE, (*shape, *axis), name)


@lru_cache
def _writing(name: str) -> tuple[str | None, int | None, int]:
    """Return the code of a format, the bits of elements that share bytes, and the item size."""
    row = format_info(name)
    code = row.safetensors if row.safetensors in _format_of_code() else None
    return code, None if code is None else _packed_bits(code), row.itemsize


def _tag_format(
    name: str, tag: str, shape: tuple[int, ...]
) -> tuple[str | None, str, tuple[int, ...]]:
    """Return format, kind and shape of a tensor of raw bytes that the metadata gives a format."""
    row = format_named(tag)
    if row is None:
        return None, UNKNOWN, shape
    if row.itemsize == 1:
        return row.name, row.kind, shape
    if shape[-1:] != (row.itemsize,):
        raise damage(
            f"metadata says that tensor {name!r} is {row.name}, but its bytes have shape "
            f"{shape}, whose last axis is not {row.itemsize}"
        )
    return row.name, row.kind, shape[:-1]


@lru_cache
def _code_format(code: str) -> tuple[str | None, str]:
    """Return format and kind: the same strings for every tensor."""
    row = _format_of_code().get(code)
    return (row.name, row.kind) if row is not None else (None, UNKNOWN)


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
        raise damage(f"metadata {_FORMATS_KEY!r} is not JSON: {error}") from error
    if not isinstance(tags, dict) or not all(isinstance(tag, str) for tag in tags.values()):
        raise damage(f"metadata {_FORMATS_KEY!r} must be an object of tensor to format")
    return tags


@cache
def _format_of_code() -> dict[str, FormatInfo]:
    """Map safetensors codes to formats: those of whole bytes, and of four or six bits, packed."""
    # Every ml_dtypes from 0.5 on has their dtypes; to ask would import it, which takes a second
    # with numpy 2.4 and ml_dtypes 0.7.
    return {
        row.safetensors: row
        for row in map(finfo, formats())
        if row.safetensors is not None
        and (row.kind == "bool" or row.bits == 8 * row.itemsize or _is_packed(row))
    }


def _is_packed(row: FormatInfo) -> bool:
    return row.kind != "bool" and row.bits in _PACKED_BITS
