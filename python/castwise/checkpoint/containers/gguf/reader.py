"""Read `.gguf`, which llama.cpp reads: to be decoded, or as a model of transformers.

A header of typed keys and values, then of tensors, then their data at multiples of an alignment. A
quantized tensor is one of bytes here, of blocks: its last two axes count the blocks of a row and
the bytes of a block, and `stored` is its type.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from castwise._core import parse_gguf_array, parse_gguf_header
from castwise.checkpoint._errors import CheckpointError, damage, name_file
from castwise.checkpoint._tensors import TensorInfo, numpy_dtype
from castwise.checkpoint.containers.array_bytes import from_bytes
from castwise.checkpoint.containers.gguf._architectures import ARCHITECTURE, architecture_of
from castwise.checkpoint.containers.gguf._ggml_types import tensor_info
from castwise.checkpoint.containers.interface import Elements
from castwise.checkpoint.containers.whole_models import WholeModelReader
from castwise.checkpoint.files.source_files import JoinedFiles, SourceFile
from castwise.models.architecture import Architecture
from castwise.quantization.producers.block_types import BLOCK_TYPES

# Bytes of rows that are put together at a time.
_GATHERED = 1 << 18

# What each file of a model that was split states.
_SPLIT_KEYS = ("split.no", "split.count", "split.tensors.count")

# As llama-gguf-split names parts: `model-00001-of-00003.gguf`.
_PART = re.compile(
    r"(?P<stem>.*)-[0-9]{5}-of-(?P<count>[0-9]{5})(?P<suffix>\.gguf)", re.DOTALL | re.IGNORECASE
)


def count_named(path: Path) -> int:
    """Return how many files a model has by the name of one of them."""
    match = _PART.fullmatch(path.name)
    return 1 if match is None else int(match["count"])


class GatheredSource(NamedTuple):
    """Rows of a stored tensor, which another one has."""

    name: str
    begin: int  # their first byte
    picks: NDArray[Any]  # which rows of each period of the other they are, in this order


class Gathered(NamedTuple):
    """A tensor that is made of rows of those in the file, which alternate in each period."""

    info: TensorInfo
    row: int  # bytes
    period: int
    sources: Sequence[GatheredSource]


class GgufReader(WholeModelReader):
    """A GGUF file whose header was checked on opening, with the others of a split model."""

    def __init__(self, path: Path) -> None:
        file = SourceFile(path)
        super().__init__(file)
        self.tensors = {}
        self._begins = {}
        # What each key of the first file is there, in bytes: begin and end.
        self._pairs: dict[str, tuple[int, int]] = {}
        self.alignment = 1  # of its tensors
        self._gathers: dict[str, Gathered] = {}
        with self._opening(), name_file(path):
            self._values, self._arrays = self._read_header(file, 0)
            self._read_parts(file)
            self.metadata = {key: str(value) for key, value in self._values.items()}
            self.other_entries += self._arrays

    def _read_header(
        self, file: SourceFile, begin: int
    ) -> tuple[dict[str, str | float], dict[str, int]]:
        """Take the tensors of a file; returns its values, and where its arrays begin."""
        # `begin` is added to the places of the tensors.
        places: list[tuple[TensorInfo, int]] = []
        values, arrays, (begins, end), start, alignment = parse_gguf_header(
            file.read,
            file.size,
            lambda name, shape, kind, offset: places.append(
                (tensor_info(name, shape, kind), offset)
            ),
            damage,
        )
        if not begin:
            self._pairs = dict(zip(begins, pairwise((*begins.values(), end)), strict=True))
            self.alignment = alignment
        for info, offset in places:
            if info.name in self.tensors:
                raise damage(f"tensor {info.name!r} is there twice")
            if offset % alignment or start + offset + info.nbytes > file.size:
                raise damage(
                    f"tensor {info.name!r} begins at {offset:,}, which is not a multiple "
                    f"of {alignment} or leaves no room for its {info.nbytes:,} bytes"
                )
            self.tensors[info.name], self._begins[info.name] = info, begin + start + offset
        return values, arrays

    def _read_parts(self, first: SourceFile) -> None:
        """Take the tensors of the other files that llama.cpp's gguf-split made with this one."""
        # The first states all that a model states, and names tell the others, as llama.cpp finds
        # them.
        number, count, tensors = (self._values.get(key, 0) for key in _SPLIT_KEYS)
        match = _PART.fullmatch(self.path.name)
        if count in {0, 1}:
            if (part_count := count_named(self.path)) > 1:
                raise CheckpointError(
                    f"by its name it is one of {part_count} files of a model, and it does "
                    "not state that; rename it if it is the whole model, or fetch it again"
                )
            return
        if match is None or not isinstance(count, int) or int(match["count"]) != count:
            raise CheckpointError(
                f"it is one of {count} files of a model, whose names must end with -00001-of-"
                f"{count!s:0>5}.gguf and so on; rename them, or join them: llama-gguf-split --merge"
            )
        names = [
            f"{match['stem']}-{index + 1:05}-of-{count:05}{match['suffix']}"
            for index in range(count)
        ]
        if number != 0:
            raise CheckpointError(
                f"it is one of {count} files of a model; give the first of them, {names[0]}"
            )
        self._file = joined_files = JoinedFiles(first)
        for index, name in enumerate(names[1:], 1):
            path = self.path.with_name(name)
            if not path.is_file():
                raise CheckpointError(f"{name}, of the same model, is missing beside it; fetch it")
            file = SourceFile(path)
            with name_file(f"{name}, of the same model"):
                values, _ = self._read_header(file, joined_files.append(file))
            if (values.get(_SPLIT_KEYS[0]), values.get(_SPLIT_KEYS[1])) != (index, count):
                raise CheckpointError(
                    f"{name} does not state that it is number {index + 1} of {count} files of the "
                    "same model; fetch it again"
                )
        if tensors not in {0, len(self.tensors)}:
            raise CheckpointError(
                f"it states {tensors} tensors in {count} files, which have {len(self.tensors)}; "
                "fetch them again"
            )
        for key in _SPLIT_KEYS:
            self._values.pop(key, None)

    def values(self) -> dict[str, Any]:
        arrays = {
            key: parse_gguf_array(self._file.read, self._file.size, begin, damage)
            for key, begin in self._arrays.items()
        }
        return self._values | arrays

    def pairs(self, left_out: Collection[str]) -> list[bytes]:
        left_out = {*left_out, *_SPLIT_KEYS}
        return [
            self._file.read(begin, end - begin)
            for key, (begin, end) in self._pairs.items()
            if key not in left_out
        ]

    def architecture(self) -> Architecture | None:
        """Return the roles of the tensors by llama.cpp's names; None if these were changed."""
        if not self.metadata.get(ARCHITECTURE):
            return None
        return architecture_of(self.metadata, self.tensors.values())

    def logical_shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of the weight in a tensor; its last axis has no blocks."""
        info = self.tensors[name]
        if info.stored not in BLOCK_TYPES:
            return info.shape
        return (*info.shape[:-2], info.shape[-2] * BLOCK_TYPES[info.stored][1])

    def gather(self, tensors: Iterable[Gathered], metadata: dict[str, str]) -> None:
        """Take the form of another file: these are its tensors, and it states no more than this."""
        begins, self._begins = self._begins, {}
        self.tensors, self.metadata, self.other_entries = {}, metadata, []
        for tensor in tensors:
            name = tensor.info.name
            self.tensors[name] = tensor.info
            sources = [
                source._replace(begin=begins[source.name] + source.begin)
                for source in tensor.sources
            ]
            self._begins[name] = sources[0].begin
            if tensor.period > 1:
                self._gathers[name] = tensor._replace(sources=sources)

    def place(self, name: str) -> tuple[BinaryIO, int] | None:
        """Return the file and the offset of a tensor's bytes; None if they are gathered."""
        return None if name in self._gathers else super().place(name)

    def pieces(self, name: str, nbytes: int) -> Iterator[bytes]:
        if name not in self._gathers:
            yield from super().pieces(name, nbytes)
            return
        length = self._length(name)
        for begin in range(0, length, nbytes):
            piece = bytearray(min(nbytes, length - begin))
            self.read_into(name, begin, memoryview(piece))
            yield bytes(piece)

    def read_into(self, name: str, begin: int, data: memoryview) -> None:
        """Fill `data` with the bytes of a tensor from its byte `begin` on, in whole periods."""
        gather = self._gathers.get(name)
        if gather is None:
            super().read_into(name, begin, data)
            return
        size, bytes_done = gather.period * gather.row, 0
        while bytes_done < len(data):
            period, skip = divmod(begin + bytes_done, size)
            part = data[bytes_done : bytes_done + max(_GATHERED // size, 1) * size - skip]
            rows = self._rows(name, gather, period, -(-(skip + len(part)) // size))
            part[:] = rows.reshape(-1)[skip : skip + len(part)].data
            bytes_done += len(part)

    def _rows(self, name: str, gather: Gathered, begin: int, count: int) -> NDArray[np.uint8]:
        rows = np.empty((count, gather.period, gather.row), np.uint8)
        for source in gather.sources:
            part = np.empty((count, len(source.picks), gather.row), np.uint8)
            at = source.begin + begin * len(source.picks) * gather.row
            if self._file.read_into(part.data.cast("B"), at) != part.nbytes:
                raise self._truncation(name)
            rows[:, source.picks] = part
        return rows

    def elements(self, name: str) -> Elements | None:
        format_name = self.tensors[name].format
        return None if format_name is None else Elements(format_name)

    def read(self, name: str) -> NDArray[Any]:
        info = self.tensors[name]
        assert info.format is not None, "others are refused"  # noqa: S101
        return from_bytes(self._bytes(name), numpy_dtype(info.format), info.shape)
