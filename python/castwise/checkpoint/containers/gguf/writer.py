"""Write `.gguf`: the package gguf lays out the header, and castwise the tensors at their places."""

import json
import math
import struct
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from io import BytesIO
from itertools import accumulate

import numpy as np

from castwise.checkpoint._errors import CheckpointError
from castwise.checkpoint._tensors import Planned
from castwise.checkpoint.containers.gguf._architectures import (
    ARCHITECTURE,
    BOOL,
    COUNT,
    FLOAT,
    INTEGER,
    TEXT,
    gguf_package,
)
from castwise.checkpoint.containers.gguf._ggml_types import PLAIN
from castwise.checkpoint.containers.interface import Elements, PlacedWriter, Reader
from castwise.checkpoint.containers.whole_models import WholeModelReader
from castwise.quantization.producers.block_types import BLOCK_TYPES, FILE_TYPES, WRITTEN_TYPES

_MAX_AXES = 4  # ggml's own limit
ALIGNMENT = 32  # the package's own
_KINDS = {COUNT: "UINT32", FLOAT: "FLOAT32", TEXT: "STRING", BOOL: "BOOL", INTEGER: "INT32"}
# The types of blocks that are written, by what reports call the scheme.
_WRITTEN = {"mxfp4": "MXFP4", **{name.lower(): name for name in WRITTEN_TYPES}}
# What a file with quantized tensors states of them: of which type most are, and how all are stored.
FILE_TYPE, _VERSION = "general.file_type", "general.quantization_version"
# GGUF v3 and GGML_QNT_VERSION of ggml.h, and the number of the type of a value that is a uint32.
_FILE_VERSION, _QUANTIZATION_VERSION, _UINT32 = 3, 2, 4


class Typed(str):
    """A value with its type, told by this class from texts that look like it."""

    __slots__ = ()


def typed_text(kind: str, value: object) -> str:
    """Return a value as text of metadata; a list becomes an array of items of the type."""
    return Typed(json.dumps([kind, value], ensure_ascii=False))


class GgufWriter(PlacedWriter):
    """Writes a GGUF file: the header at once, tensors at their places."""

    def _write_start(self, metadata: Mapping[str, str], source: Reader | None) -> None:
        header, offsets, end = _start(self.planned.values(), metadata, source)
        self._begins = {n: len(header) + at for n, at in zip(self.order, offsets, strict=True)}
        self._file.write(header)
        self._file.flush()
        self._file.truncate(len(header) + end)  # between tensors, and after the last, it is zero


def file_bytes(
    plans: Collection[Planned], metadata: Mapping[str, str], source: Reader | None
) -> int:
    header, _, end = _start(plans, metadata, source)
    return len(header) + end


def _start(
    plans: Collection[Planned], metadata: Mapping[str, str], source: Reader | None
) -> tuple[bytes, list[int], int]:
    """Return what stands before the tensors, where behind it each begins, and where they end."""
    is_typed = {*map(type, metadata.values())} == {Typed}
    own = source if isinstance(source, WholeModelReader) and not is_typed else None
    if own is None and not (is_typed and ARCHITECTURE in metadata):
        raise CheckpointError(
            "a .gguf file states the architecture and the tokens of its model, so castwise "
            "writes one only of a model folder: castwise quantize MODEL OUT.gguf --scheme "
            "q4_k, or, of MXFP4, castwise transcode MODEL OUT.gguf --to gguf"
        )
    lengths = [_nbytes(plan) for plan in plans]
    alignment = ALIGNMENT if own is None else own.alignment
    *offsets, end = accumulate((-(-n // alignment) * alignment for n in lengths), initial=0)
    type_values = _quantization(plans, metadata)
    if own is None:
        header = _header(plans, lengths, metadata, type_values)
    else:
        header = _header_like(own, plans, offsets, type_values)
    start = -(-len(header) // alignment) * alignment
    return header.ljust(start, b"\0"), offsets, end


def _nbytes(plan: Planned) -> int:
    assert plan.format is not None, "a reader of models refuses others"  # noqa: S101
    return Elements(plan.format).nbytes(math.prod(plan.info.shape))


def _header(
    plans: Collection[Planned],
    lengths: Sequence[int],
    metadata: Mapping[str, str],
    type_values: Mapping[str, int],
) -> bytes:
    """Let the package write all that stands before the tensors, into memory."""
    package = gguf_package()
    kinds = {kind: package.GGUFValueType[name] for kind, name in _KINDS.items()}
    items = metadata.items()
    values = {key: json.loads(text) for key, text in items if key not in type_values}
    _, architecture = values.pop(ARCHITECTURE)
    # In the order of convert_hf_to_gguf.py: before what is not general, the type of the file first.
    typed_values = {key: (COUNT, value) for key, value in sorted(type_values.items())}
    general = {key: value for key, value in values.items() if key.startswith("general.")}
    values = general | typed_values | values
    writer = package.GGUFWriter(None, architecture)
    for key, (kind, value) in values.items():
        if isinstance(value, list):
            writer.add_key_value(key, value, package.GGUFValueType.ARRAY, sub_type=kinds[kind])
        else:
            writer.add_key_value(key, value, kinds[kind])
    for plan, nbytes in zip(plans, lengths, strict=True):
        number, shape = _type_of(plan)
        kind = package.GGMLQuantizationType(number)
        # Any dtype but uint8, of which the package would take the shape for one of bytes.
        writer.add_tensor_info(plan.info.name, shape, np.dtype(np.float32), nbytes, raw_dtype=kind)
    header = BytesIO()
    writer.fout, writer.state = [header], package.gguf_writer.WriterState.EMPTY
    for part in (writer.write_header_to_file, writer.write_kv_data_to_file):
        part()
    writer.write_ti_data_to_file()
    return header.getvalue()


def _header_like(
    reader: WholeModelReader,
    plans: Collection[Planned],
    offsets: Sequence[int],
    type_values: Mapping[str, int],
) -> bytes:
    """Return the header of a file of the same model, whose tensors have other types."""
    types = [_type_of(plan) for plan in plans]
    pairs = reader.pairs(type_values)
    pairs += [_text(key) + struct.pack("<II", _UINT32, value) for key, value in type_values.items()]
    infos = [
        _text(plan.info.name)
        + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape[::-1], kind, offset)
        for plan, (kind, shape), offset in zip(plans, types, offsets, strict=True)
    ]
    start = struct.pack("<IQQ", _FILE_VERSION, len(infos), len(pairs))
    return b"".join([b"GGUF", start, *pairs, *infos])


def _quantization(plans: Iterable[Planned], metadata: Mapping[str, str]) -> dict[str, int]:
    """Return what a file states of its types: its mix, or the type of most tensors with blocks."""
    type_values = {_VERSION: _QUANTIZATION_VERSION}
    if isinstance(of_mix := metadata.get(FILE_TYPE), Typed):
        return type_values | {FILE_TYPE: json.loads(of_mix)[1]}
    counts = Counter(plan.label for plan in plans if plan.label)
    if counts:
        (label, _), *_ = counts.most_common(1)
        type_values[FILE_TYPE] = FILE_TYPES[_WRITTEN[label]]
    return type_values


def _text(value: str) -> bytes:
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def _type_of(plan: Planned) -> tuple[int, tuple[int, ...]]:
    """Return the number of a tensor's type, and its shape in elements."""
    info, format_name = plan.info, plan.format
    shape, name = info.shape, _WRITTEN.get(plan.label or "")
    kind = next((kind for kind, plain in PLAIN.items() if plain == format_name), None)
    if name is not None:
        kind, width, _ = BLOCK_TYPES[name]
        *leading, blocks, _ = shape
        shape = (*leading, blocks * width)
    if kind is None or len(shape) > _MAX_AXES:
        raise CheckpointError(
            f"tensor {info.name!r} is {format_name or info.stored} of {len(shape)} axes; GGUF has "
            f"{', '.join(PLAIN.values())} of {_MAX_AXES} axes or fewer, and "
            f"{', '.join(_WRITTEN.values())}"
        )
    return kind, shape
