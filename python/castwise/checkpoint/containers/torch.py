"""What `torch.save` writes, read without torch and without unpickling.

Since torch 1.6 that is a zip file of a pickle and of one member for each storage, before it was a
row of pickles with the storages behind them; both are read. A file may hold one tensor, or tensors
in dictionaries and lists, one inside the other: names are their keys, joined by ".". Where a
training checkpoint has the model under a key of its own, such as "state_dict", its tensors are
those of the file.
"""

import logging
import math
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from castwise.checkpoint._errors import CheckpointError, damage, join_names
from castwise.checkpoint._tensors import UNKNOWN, TensorInfo, check_shape, format_named, numpy_dtype
from castwise.checkpoint.containers._torch_pickle import MAX_PICKLE_BYTES, TorchPickle
from castwise.checkpoint.containers._torch_values import (
    DTYPE_BYTES,
    PACKED,
    REMEDY,
    TorchStorage,
    TorchTensor,
)
from castwise.checkpoint.containers._zip import (
    Checksums,
    check_members,
    explain_errors,
    stored_begin,
)
from castwise.checkpoint.containers.array_bytes import from_bytes, unpack
from castwise.checkpoint.containers.interface import Arrangement, Elements, PlacedReader
from castwise.checkpoint.files.remote import RemoteSource
from castwise.checkpoint.files.source_files import SourceFile, source_file

_LOGGER = logging.getLogger(__name__)

_ZIP_START = b"PK\3\4"
_PICKLE = "data.pkl"
_ZIP_REMEDY = "save the file again in torch"
# `MAGIC_NUMBER` and `PROTOCOL_VERSION` of torch/serialization.py.
_LEGACY_MAGIC = 0x1950A86A20F9469CFC6C
# The protocol that `torch.save` states in files that are no zip files (before 1.6).
_LEGACY_VERSION = 1001
# Old files have the count of elements before those of each storage.
_COUNT_BYTES = 8

# Keys under which training checkpoints keep the model, beside the optimizer and more.
_WRAPPERS = ("state_dict", "model_state_dict", "model_state", "model", "module", "net")

# The pickle may hold itself; state dictionaries have at most a few levels.
_MAX_DEPTH = 64
# Models have thousands of values; a pickle of a few bytes can repeat them without an end.
_MAX_VALUES = 1 << 21
_FEW_VALUES, _MOST_REPEATS = 1 << 16, 16
"""Values that are walked through at once; more than them stand as often as this on average."""
_MIN_LIMIT = 1 << 20  # bytes: a tensor may repeat its elements as far as that, or as the file goes
_Order = Literal["<", ">"]
_ORDERS: Mapping[bytes, _Order] = {b"little": "<", b"big": ">"}


@dataclass(frozen=True, slots=True)
class _Strided:
    """A tensor that is not in C order: its items are in `size` bytes."""

    size: int
    arrangement: Arrangement
    is_fortran: bool


class TorchReader(PlacedReader[SourceFile | RemoteSource]):
    """A file of torch, whose pickle was read and checked on opening."""

    reopens = True

    def __init__(self, path: Path, *, warns: bool = True) -> None:
        super().__init__(source_file(path))
        self._checksums = Checksums(self._file.read)
        with self._opening(), explain_errors(path):
            is_zip = self._file.stream.read(len(_ZIP_START)) == _ZIP_START
            value, storages, self._order = self._read_zip() if is_zip else self._read_legacy()
            contents = _name_tensors(value, path.stem)
            self._begins = {}  # byte offsets in the file
            self._strides: dict[str, _Strided] = {}
            self.tensors = {}
            # One tuple for all tensors of a shape: 50 bytes of each are saved.
            shapes: dict[tuple[int, ...], tuple[int, ...]] = {}
            for name, tensor in contents.tensors.items():
                self._describe(name, tensor, storages, shapes)
        self.other_entries = contents.other_entries
        # What holds tensors beside those of the model, and how many.
        self.dropped = contents.dropped
        # By this transformers knows whose tensors a safetensors file holds.
        self.metadata = {"format": "pt"}
        if contents.dropped and warns:
            _LOGGER.warning(
                "%s: taken are the tensors under %r; left out: %s",
                path,
                contents.wrapper,
                join_names(contents.dropped),
            )

    def lost_entries(self) -> list[str]:
        return self.other_entries + self.dropped

    def _read_zip(self) -> tuple[Any, dict[str, tuple[int, int]], _Order]:
        """Return the value, place and size of each storage, and the byte order."""
        # Only places are kept: entries of a zip file, and of a pickle, take memory.
        (begin, nbytes), members, order = self._zip_members()
        if nbytes <= MAX_PICKLE_BYTES:
            self._checksums.check(begin)
        self._file.stream.seek(begin)
        pickle = TorchPickle(self._file.stream, nbytes)
        value = pickle.value()
        storages = {}
        for key, storage in pickle.storages.items():
            if key not in members:
                raise damage(f"storage {key!r} is not in the zip file")
            place = begin, available = members[key]
            size = _checked_size(storage, available)
            storages[key] = place if size == available else (begin, size)
        _check_disjoint(storages)
        return value, storages, order

    def _zip_members(self) -> tuple[tuple[int, int], dict[str, tuple[int, int]], _Order]:
        """Return place and size of the pickle, those of storages by key, and the byte order."""
        file, size = self._file.stream, self._file.size
        with zipfile.ZipFile(file) as archive:
            infos = archive.infolist()
            check_members(archive, file, size, _ZIP_REMEDY)
            members = {member.filename: member for member in infos}
            if len(members) < len(infos):
                raise CheckpointError(
                    f"two members of the zip file have the same name; {_ZIP_REMEDY}"
                )
            roots = [name.removesuffix(_PICKLE) for name in members if _is_main_pickle(name)]
            if len(roots) != 1:
                raise damage(f"not a file of torch.save: it has no {_PICKLE}")
            root = roots[0]
            if f"{root}constants.pkl" in members:
                raise CheckpointError(f"it holds a TorchScript program; {REMEDY}")
            order = self._byte_order(members.get(f"{root}byteorder"))

            def place(member: zipfile.ZipInfo) -> tuple[int, int]:
                begin = stored_begin(file, size, member, _ZIP_REMEDY)
                self._checksums.expect(member, begin)
                return begin, member.file_size

            data = f"{root}data/"
            storages = {
                name.removeprefix(data): place(member)
                for name, member in members.items()
                if name.startswith(data)
            }
            return place(members[root + _PICKLE]), storages, order

    def _byte_order(self, member: zipfile.ZipInfo | None) -> _Order:
        """Return the byte order of the storages; files of older versions do not tell theirs."""
        if member is None:
            return "<"
        begin = stored_begin(self._file.stream, self._file.size, member, _ZIP_REMEDY)
        self._checksums.expect(member, begin)
        self._checksums.check(begin)
        text = self._file.read(begin, min(member.file_size, _MAX_DEPTH))
        if text not in _ORDERS:
            raise damage(f"it says that its byte order is {text!r}")
        return _ORDERS[text]

    def _read_legacy(self) -> tuple[Any, dict[str, tuple[int, int]], _Order]:
        """As `_read_zip`, for files of torch before 1.6; there all bytes are little-endian."""
        file = self._file.stream
        file.seek(0)
        if file.read(1) != b"\x80" or self._file.size < _COUNT_BYTES:
            raise damage(
                "not a file of torch.save: it begins neither like a zip file nor like a pickle"
            )
        file.seek(0)
        if self._next_pickle().value() != _LEGACY_MAGIC:
            raise CheckpointError(
                f"a pickle, and not a file of torch.save; castwise opens no pickles; {REMEDY}"
            )
        if self._next_pickle().value() != _LEGACY_VERSION:
            raise CheckpointError(f"of a version of torch that castwise does not know; {REMEDY}")
        self._next_pickle().value()  # the sizes of numbers in C
        pickle = self._next_pickle()
        value = pickle.value()
        keys = self._next_pickle().value()
        if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
            raise damage("it does not list its storages")
        if len({*keys}) < len(keys) or {*keys} != {*pickle.storages}:
            raise damage("it lists other storages than its tensors have")
        storages = {}
        for key in keys:
            storage = pickle.storages[key]
            count = file.read(_COUNT_BYTES)
            begin, size = file.tell(), int.from_bytes(count, "little") * _item_bytes(storage)
            if len(count) < _COUNT_BYTES or begin + size > self._file.size:
                raise damage(f"storage {key!r} is cut off")
            storages[key] = begin, _checked_size(storage, size)
            file.seek(begin + size)
        return value, storages, "<"

    def _next_pickle(self) -> TorchPickle:
        return TorchPickle(self._file.stream, self._file.size - self._file.stream.tell())

    def _describe(
        self,
        name: str,
        tensor: TorchTensor,
        storages: Mapping[str, tuple[int, int]],
        shapes: dict[tuple[int, ...], tuple[int, ...]],
    ) -> None:
        """Check a tensor against its storage, and tell what and where it is."""
        if tensor.problem is not None:
            raise CheckpointError(f"tensor {name!r} is {tensor.problem}")
        shape, dtype = check_shape(name, tensor.shape), tensor.dtype
        item = DTYPE_BYTES[dtype]
        start, available = storages[tensor.storage.key]
        reach = sum((n - 1) * stride for n, stride in zip(shape, tensor.strides, strict=True)) + 1
        size = reach * item if math.prod(shape) else 0
        begin = start + (tensor.offset * item if size else 0)
        if size and begin + size > start + available:
            raise damage(
                f"tensor {name!r} reaches beyond its storage {tensor.storage.key!r}, which has "
                f"{available:,} bytes"
            )
        nbytes = math.prod(shape) * item
        if nbytes > max(self._file.size, _MIN_LIMIT):
            raise CheckpointError(
                f"tensor {name!r} repeats its elements, so that it takes {nbytes:,} bytes; save "
                "it as it was before it was expanded"
            )
        is_packed = dtype in PACKED
        if is_packed:
            if not shape:
                raise CheckpointError(f"tensor {name!r} of {dtype} has no axis")
            shape = (*shape[:-1], 2 * shape[-1])
        self._begins[name] = begin
        if not _is_dense(tensor.shape[::-1], tensor.strides[::-1]):
            # An axis of one element may have any stride.
            strides = (
                item * stride if n > 1 else 0
                for n, stride in zip(tensor.shape, tensor.strides, strict=True)
            )
            is_fortran = not is_packed and _is_dense(tensor.shape, tensor.strides)
            arrangement = Arrangement(item, tensor.shape, tuple(strides))
            self._strides[name] = _Strided(size, arrangement, is_fortran)
        shape = shapes.setdefault(shape, shape)
        self.tensors[name] = TensorInfo(name, *_format_and_kind(dtype), dtype, shape, nbytes)

    def check_unchanged(self) -> None:
        """Refuse a file that was changed, or of which data that was read is not as it was saved."""
        super().check_unchanged()
        with explain_errors(self.path):
            self._checksums.check_all()

    def elements(self, name: str) -> Elements | None:
        info, layout = self.tensors[name], self._strides.get(name)
        if info.format is None:
            return None
        is_fortran = layout is not None and layout.is_fortran
        return _elements(info.format, info.stored in PACKED, self._order, is_fortran)

    def arrangement(self, name: str) -> Arrangement | None:
        layout = self._strides.get(name)
        return None if layout is None else layout.arrangement

    def _length(self, name: str) -> int:
        """Return the bytes in which the items of a tensor are, with what stands between them."""
        layout = self._strides.get(name)
        return self.tensors[name].nbytes if layout is None else layout.size

    def read(self, name: str) -> NDArray[Any]:
        """Read a tensor as an array of its format, in C order."""
        info, layout = self.tensors[name], self._strides.get(name)
        if info.format is None:
            raise CheckpointError(
                f"{self.path}: tensor {name!r} is stored as {info.stored}, which castwise does not "
                "know"
            )
        with explain_errors(self.path):
            self._checksums.check(self._begins[name])
        dense = self._bytes(name)
        if layout is not None:
            # `_describe` checked that all elements are there.
            arrangement = layout.arrangement
            storage = dense.view(f"V{arrangement.item}")
            view = np.lib.stride_tricks.as_strided(storage, arrangement.shape, arrangement.strides)
            dense = np.ascontiguousarray(view).reshape(-1).view(np.uint8)
        if info.stored in PACKED:
            dense = unpack(dense, 4)
        return from_bytes(dense, numpy_dtype(info.format), info.shape, self._order)


@lru_cache
def _format_and_kind(dtype: str) -> tuple[str | None, str]:
    """Return what a dtype of torch is called here: the same strings for every tensor."""
    row = format_named(PACKED.get(dtype, dtype))
    return (row.name, row.kind) if row is not None else (None, UNKNOWN)


@lru_cache
def _elements(name: str, is_packed: bool, order: _Order, fortran: bool) -> Elements:
    """Return how elements stand in the file: the same object for every tensor."""
    return Elements(name, is_packed, order, fortran)


def _is_main_pickle(name: str) -> bool:
    return name.endswith(f"/{_PICKLE}") and name.count("/") == 1


def _is_dense(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Return True if elements follow each other without gaps, the first axis varying fastest."""
    dense_stride = 1
    for count, stride in zip(shape, strides, strict=True):
        if count != 1 and stride != dense_stride and 0 not in shape:
            return False
        dense_stride *= count
    return True


def _item_bytes(storage: TorchStorage) -> int:
    return 1 if storage.dtype is None else DTYPE_BYTES[storage.dtype]


def _checked_size(storage: TorchStorage, available: int) -> int:
    """Return the bytes of a storage, or CheckpointError if there are fewer."""
    size = storage.size * _item_bytes(storage)
    if size > available:
        raise damage(f"storage {storage.key!r} declares {size:,} bytes and has {available:,}")
    return size


def _check_disjoint(storages: Mapping[str, tuple[int, int]]) -> None:
    end = 0
    for key, (begin, size) in sorted(storages.items(), key=lambda storage: storage[1]):
        if begin < end:
            raise damage(f"storage {key!r} overlaps another one")
        end = begin + size


class _Contents:
    """The tensors of a value by name, and what else there is."""

    def __init__(self) -> None:
        # Tensors by name.
        self.tensors: dict[str, TorchTensor] = {}
        # Names of the values that are and hold no tensors.
        self.other_entries: list[str] = []
        # The key under which the tensors of the model stand, if there is one.
        self.wrapper: str | None = None
        # What holds tensors beside it, and how many.
        self.dropped: list[str] = []
        self._values = 0
        self._characters = 0

    def add(self, value: object, path: tuple[str, ...], default: str) -> list[str]:
        """Add the tensors of a value; returns the names of values in it without any."""
        self._values += 1
        if len(path) > _MAX_DEPTH or self._values > _MAX_VALUES:
            raise CheckpointError(
                f"values stand more than {_MAX_DEPTH} deep, inside of themselves, or there are "
                f"more than {_MAX_VALUES:,}; {REMEDY}"
            )
        name = ".".join(path) or default
        if isinstance(value, TorchTensor):
            if name in self.tensors:
                raise CheckpointError(f"two tensors would have the name {name!r}; {REMEDY}")
            self._characters += len(name)
            if self._characters > MAX_PICKLE_BYTES:
                raise CheckpointError(f"the names of its tensors are too long; {REMEDY}")
            self.tensors[name] = value
            return []
        tensor_count, other_entries = len(self.tensors), []
        for key, part in _entries(value):
            count = len(self.tensors)
            other_entries += self.add(part, (*path, _text(key)), default)
            if len(self.tensors) > count and not _is_name(key):
                raise CheckpointError(f"a key in {name!r} is neither text nor a number; {REMEDY}")
        return other_entries if len(self.tensors) > tensor_count else [name]


def _check_repeats(value: object) -> None:
    """Refuse values that a few references name millions of times, before walking them."""
    # Each container is looked into once. What stands too deep is left to the walk.
    counts: dict[int, int] = {}

    def count(part: object, depth: int) -> int:
        if depth > _MAX_DEPTH or not isinstance(part, dict | list | tuple):
            return 1
        if (number := counts.get(id(part))) is None:
            counts[id(part)] = number = 1  # also inside of itself
            lengths.append(len(part))
            number += sum(count(inner, depth + 1) for _, inner in _entries(part))
            counts[id(part)] = number
        return number

    lengths: list[int] = []
    total = count(value, 0)
    if total > (most := max(_FEW_VALUES, _MOST_REPEATS * sum(lengths))):
        raise CheckpointError(
            f"its pickle refers to {sum(lengths):,} values so often that they stand at more than "
            f"{most:,} places; {REMEDY}"
        )


def _name_tensors(value: object, stem: str) -> _Contents:
    """Give every tensor of a value its name; a tensor that stands alone is named `stem`."""
    _check_repeats(value)
    everything = _Contents()
    everything.other_entries = everything.add(value, (), stem)
    if not isinstance(value, dict) or any(isinstance(part, TorchTensor) for part in value.values()):
        return everything
    counts = {key: len(_tensors_in(part)) for key, part in value.items()}
    wrappers = [key for key in _WRAPPERS if counts.get(key) and isinstance(value[key], dict)]
    if len(wrappers) != 1:
        return everything
    contents = _Contents()
    contents.wrapper = wrappers[0]
    other_entries = contents.add(value[contents.wrapper], (), stem)
    contents.other_entries = other_entries + [
        _text(key) for key, count in counts.items() if not count
    ]
    contents.dropped = [
        f"{_text(key)} ({count:,} tensor{'' if count == 1 else 's'})"
        for key, count in counts.items()
        if count and key != contents.wrapper
    ]
    return contents


def _tensors_in(value: object) -> Mapping[str, TorchTensor]:
    contents = _Contents()
    contents.add(value, (), "")
    return contents.tensors


def _entries(value: object) -> Iterator[tuple[Any, Any]]:
    if isinstance(value, dict):
        yield from value.items()
    elif isinstance(value, list | tuple):
        yield from enumerate(value)


def _is_name(key: object) -> bool:
    number = isinstance(key, int) and not isinstance(key, bool) and 0 <= key < 2**63
    return isinstance(key, str) or number


def _text(key: object) -> str:
    return str(key) if _is_name(key) else "?"
