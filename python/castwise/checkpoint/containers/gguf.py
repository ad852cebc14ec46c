"""`.gguf`: what llama.cpp reads.

A header of typed keys and values, then of tensors, then their data at multiples of an alignment. A
quantised tensor is one of bytes here, of blocks: its last two axes count the blocks of a row and
the bytes of a block, and `stored` is its type.

Files are read to be decoded. They are written for models whose metadata are values as `typed` makes
them, since a file without those of its architecture is one that nothing loads.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, BinaryIO

from numpy.typing import NDArray

from castwise.checkpoint._errors import CheckpointError
from castwise.checkpoint._tensors import (
    Planned,
    TensorInfo,
    check_shape,
    format_info,
    numpy_dtype,
)
from castwise.checkpoint.containers._elements import from_bytes, to_bytes
from castwise.checkpoint.containers._interface import Elements, PlacedReader, Reader, Writer
from castwise.checkpoint.files._filesystem import SourceFile

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_MAX_TEXT = 64 << 20
_MAX_AXES = 4  # ggml's own limit
_ALIGNMENT_KEY = "general.alignment"
_ALIGNMENT = 32
ARCHITECTURE = "general.architecture"
_STRING, _ARRAY = 8, 9
TEXT, COUNT, INTEGER, FLOAT, BOOL = "s", "I", "i", "f", "?"
"""The types of values that are written: text, and numbers as `struct` calls them."""

_SCALARS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
_PLAIN = {
    0: "float32",
    1: "float16",
    24: "int8",
    25: "int16",
    26: "int32",
    27: "int64",
    28: "float64",
    30: "bfloat16",
}
COMPUTED = tuple(_PLAIN[kind] for kind in (0, 1, 30))
"""The formats of plain weights that llama.cpp computes with."""

_BLOCKS = {
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    39: ("MXFP4", 32, 17),
    40: ("NVFP4", 64, 36),
}
"""Types of blocks that can be decoded: name, elements and bytes of a block."""

_WRITTEN = {"mxfp4": 39}
"""The types of blocks that are written, by what reports call the scheme."""

_OTHERS = {
    **dict(
        zip(range(9, 16), ("Q8_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "Q8_K"), strict=True)
    ),
    **dict(
        enumerate(
            ("IQ2_XXS", "IQ2_XS", "IQ3_XXS", "IQ1_S", "IQ4_NL", "IQ3_S", "IQ2_S", "IQ4_XS"),
            16,
        )
    ),
    29: "IQ1_M",
    34: "TQ1_0",
    35: "TQ2_0",
}


class GgufReader(PlacedReader[SourceFile]):
    """A GGUF file whose header was checked on opening.

    Raises
    ------
    CheckpointError
        It is not one, is truncated, of a version or byte order that is not read, or has a tensor of
        a type that cannot be decoded.

    """

    def __init__(self, path: Path) -> None:
        super().__init__(SourceFile(path))
        self.tensors: dict[str, TensorInfo] = {}
        self.metadata: dict[str, str] = {}
        self._begins: dict[str, int] = {}
        try:
            self._read_header(_Cursor(self._file))
        except CheckpointError as error:
            self._file.close()
            raise CheckpointError(f"{path}: {error}") from error
        except BaseException:
            self._file.close()
            raise

    def _read_header(self, cursor: _Cursor) -> None:
        if cursor.take(4) != _MAGIC:
            raise CheckpointError("no GGUF file: it does not begin with GGUF")
        if (version := cursor.number("I")) not in _VERSIONS:
            raise CheckpointError(f"GGUF of version {version}; versions 2 and 3 are read")
        tensors, pairs = cursor.number("Q"), cursor.number("Q")
        alignment = _ALIGNMENT
        for _ in range(pairs):
            key, kind = cursor.text(), cursor.number("I")
            value = cursor.value(kind)
            if value is None:
                self.others.append(key)
            else:
                self.metadata[key] = str(value)
            if key == _ALIGNMENT_KEY:
                alignment = value if isinstance(value, int) else 0
        if alignment <= 0 or alignment % 8:
            raise CheckpointError(f"{_ALIGNMENT_KEY} is not a multiple of 8")
        places = [self._describe(cursor) for _ in range(tensors)]
        start = -(-cursor.at // alignment) * alignment
        for info, offset in places:
            if info.name in self.tensors:
                raise CheckpointError(f"tensor {info.name!r} is there twice")
            if offset % alignment or start + offset + info.nbytes > self._file.size:
                raise CheckpointError(
                    f"tensor {info.name!r} is said to begin at {offset:,}, which is not a multiple "
                    f"of {alignment} or leaves no room for its {info.nbytes:,} bytes"
                )
            self.tensors[info.name], self._begins[info.name] = info, start + offset

    def _describe(self, cursor: _Cursor) -> tuple[TensorInfo, int]:
        name, axes = cursor.text(), cursor.number("I")
        if axes > _MAX_AXES:
            raise CheckpointError(f"tensor {name!r} has {axes} axes; GGUF allows {_MAX_AXES}")
        shape = check_shape(name, [cursor.number("Q") for _ in range(axes)][::-1])
        kind, offset = cursor.number("I"), cursor.number("Q")
        if kind in _PLAIN:
            row = format_info(_PLAIN[kind])
            nbytes = math.prod(shape) * row.itemsize
            return TensorInfo(name, row.name, row.kind, row.name, shape, nbytes), offset
        if kind not in _BLOCKS:
            raise CheckpointError(
                f"tensor {name!r} is of the type {_OTHERS.get(kind, kind)}, which castwise cannot "
                "decode; llama-quantize of llama.cpp does: "
                "llama-quantize --allow-requantize MODEL.gguf OUT.gguf BF16"
            )
        stored, elements, size = _BLOCKS[kind]
        if not shape or shape[-1] % elements:
            raise CheckpointError(
                f"tensor {name!r} has the shape {shape}, whose rows are not blocks of {elements}"
            )
        shape = (*shape[:-1], shape[-1] // elements, size)
        return TensorInfo(name, "uint8", "uint", stored, shape, math.prod(shape)), offset

    def elements(self, name: str) -> Elements | None:
        """Return how a tensor stands in the file."""
        format_name = self.tensors[name].format
        return None if format_name is None else Elements(format_name)

    def read(self, name: str) -> NDArray[Any]:
        """Read a tensor as an array of its format."""
        info = self.tensors[name]
        assert info.format is not None, "others are refused"  # noqa: S101
        return from_bytes(self._bytes(name), numpy_dtype(info.format), info.shape)


class _Cursor:
    """Reads a header from its begin on, never more than the file has."""

    def __init__(self, file: SourceFile) -> None:
        self._file = file
        self.at = 0

    def take(self, count: int) -> bytes:
        data = self._file.read(self.at, count)
        self.at += count
        if len(data) < count:
            raise CheckpointError("truncated in its header")
        return data

    def number(self, code: str) -> Any:
        layout = struct.Struct("<" + code)
        return layout.unpack(self.take(layout.size))[0]

    def text(self) -> str:
        count = self.number("Q")
        if count > _MAX_TEXT:
            raise CheckpointError(f"a text of {count:,} bytes in its header")
        try:
            return self.take(count).decode()
        except UnicodeDecodeError as error:
            raise CheckpointError(f"a text in its header is not UTF-8: {error.reason}") from error

    def value(self, kind: int) -> Any:
        """Read a value; an array is skipped, and None."""
        if kind == _STRING:
            return self.text()
        if kind in _SCALARS:
            return self.number(_SCALARS[kind])
        if kind != _ARRAY:
            raise CheckpointError(f"a value of the type {kind}, which GGUF does not have")
        inner, count = self.number("I"), self.number("Q")
        if inner in _SCALARS:
            self.at += count * struct.calcsize("<" + _SCALARS[inner])
            if self.at > self._file.size:
                raise CheckpointError("truncated in its header")
        elif inner == _STRING:
            for _ in range(count):
                self.text()
        else:
            raise CheckpointError("an array of arrays in its header")
        return None


class _Typed(str):
    """A value with its type, told by this class from texts that look like it."""

    __slots__ = ()


def typed(kind: str, value: Any) -> str:
    """Return a value for the header of a new file as text of metadata; a list becomes an array.

    `kind` is one of those above, for each item of a list.
    """
    return _Typed(json.dumps([kind, value], ensure_ascii=False))


class GgufWriter(Writer):
    """Writes a GGUF file: the header at once, tensors at their places.

    Raises
    ------
    CheckpointError
        The metadata are not those of a model, or GGUF has no type for a tensor.

    """

    def __init__(
        self,
        file: BinaryIO,
        planned: Sequence[Planned],
        metadata: Mapping[str, str],
        source: Reader | None,
    ) -> None:
        del source
        self._file = file
        self.planned = {plan.info.name: plan for plan in planned}
        self.order = list(self.planned)
        if ARCHITECTURE not in metadata or {*map(type, metadata.values())} != {_Typed}:
            raise CheckpointError(
                "a .gguf file states the architecture and the tokens of its model, so castwise "
                "writes one of a model folder alone: castwise transcode MODEL OUT.gguf --to gguf"
            )
        rows = [_described(plan) for plan in self.planned.values()]
        lengths = [self.elements(name).nbytes(math.prod(self._shape(name))) for name in self.order]
        *offsets, end = accumulate(map(_padded, lengths), initial=0)
        pairs = [_text(key) + _pair(*json.loads(text)) for key, text in metadata.items()]
        tensors = [
            row + struct.pack("<Q", offset) for row, offset in zip(rows, offsets, strict=True)
        ]
        begin = struct.pack("<4sIQQ", _MAGIC, _VERSIONS[-1], len(rows), len(pairs))
        header = b"".join([begin, *pairs, *tensors])
        start = _padded(len(header))
        self._begins = {n: start + at for n, at in zip(self.order, offsets, strict=True)}
        file.write(header.ljust(start, b"\0"))
        file.flush()
        file.truncate(start + end)  # what lies between tensors, and after the last, is zero

    def _shape(self, name: str) -> tuple[int, ...]:
        return self.planned[name].info.shape

    def keeps(self, name: str) -> bool:
        """Return False: the source is another container."""
        del name
        return False

    def elements(self, name: str) -> Elements:
        """Return how a tensor must stand in the file."""
        plan = self.planned[name]
        format_name = plan.target or plan.info.format
        assert format_name is not None, "`_described` refuses others"  # noqa: S101
        return Elements(format_name)

    def place(self, name: str) -> tuple[BinaryIO, int] | None:
        """Return the file and the offset of a tensor's bytes."""
        return self._file, self._begins[name]

    def write_pieces(self, name: str, pieces: Iterable[bytes]) -> None:
        """Write a tensor from bytes that stand as they must in the file."""
        self._file.seek(self._begins[name])
        for piece in pieces:
            self._file.write(piece)

    def write(self, name: str, array: NDArray[Any]) -> None:
        """Write an array of the planned format and shape."""
        self.write_pieces(name, [to_bytes(array).tobytes()])


def _padded(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def _text(value: str) -> bytes:
    raw = value.encode()
    return struct.pack("<Q", len(raw)) + raw


def _pair(kind: str, value: Any) -> bytes:
    """Write the type of a value, and the value."""
    codes = {code: number for number, code in _SCALARS.items()} | {TEXT: _STRING}
    if not isinstance(value, list):
        return struct.pack("<I", codes[kind]) + _values(kind, [value])
    return struct.pack("<IIQ", _ARRAY, codes[kind], len(value)) + _values(kind, value)


def _values(kind: str, values: Sequence[Any]) -> bytes:
    if kind == TEXT:
        return b"".join(map(_text, values))
    return struct.pack(f"<{len(values)}{kind}", *values)


def _described(plan: Planned) -> bytes:
    """Write what the header says of a tensor, but for its place."""
    info, format_name = plan.info, plan.target or plan.info.format
    shape, kind = info.shape, _WRITTEN.get(plan.label or "")
    if kind is not None:
        *leading, blocks, _ = shape
        shape = (*leading, blocks * _BLOCKS[kind][1])
    else:
        kind = next((kind for kind, name in _PLAIN.items() if name == format_name), None)
    if kind is None or len(shape) > _MAX_AXES:
        raise CheckpointError(
            f"tensor {info.name!r} is {format_name or info.stored} of {len(shape)} axes; GGUF has "
            f"{', '.join(_PLAIN.values())} of {_MAX_AXES} axes or fewer, and MXFP4"
        )
    axes = struct.pack(f"<I{len(shape)}QI", len(shape), *shape[::-1], kind)
    return _text(info.name) + axes
