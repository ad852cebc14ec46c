"""`.h5`: HDF5, as Keras and h5py write it; needs h5py.

A tensor is a dataset of numbers, and its name is its path. HDF5 has no bfloat16: Keras stores it as
opaque bytes with the attribute `dtype`, which is how it is read and written here. Strings at the
root are the metadata. From one HDF5 file to another, groups, attributes and strings come along;
each tensor is stored in one piece, without filters.

Data that stands in the file as it is, is streamed from its place; chunks pass through h5py. HDF5
files can refer to others and to programs: links, virtual and external datasets, and filters that
are not HDF5's own are refused.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, NamedTuple

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from castwise._core import finfo
from castwise.checkpoint._errors import CheckpointError, damage
from castwise.checkpoint._tensors import (
    UNKNOWN,
    TensorInfo,
    assumed_format,
    check_shape,
    format_named,
    format_of,
    numpy_dtype,
)
from castwise.checkpoint.containers._hdf5_objects import (
    Window,
    blocks,
    check_storage,
    explain_errors,
    h5py_module,
    holds_numbers,
    open_hdf5,
    order_of,
    texts,
    walk,
)
from castwise.checkpoint.containers._hdf5_trial import try_reading
from castwise.checkpoint.containers.array_bytes import from_bytes, join_pieces
from castwise.checkpoint.containers.interface import (
    ChunkedReader,
    Elements,
    FileReader,
    PlacedWriter,
    Reader,
)
from castwise.checkpoint.files.source_files import SourceFile
from castwise.text.wording import parenthesis

if TYPE_CHECKING:
    import h5py

_DTYPE_ATTRIBUTE = "dtype"
_BFLOAT16 = finfo(ml_dtypes.bfloat16).name
_PIECE_BYTES = 1 << 20
# What Keras says of groups, which is of no use without them.
_KERAS_ATTRIBUTES = frozenset(("name", "layer_names", "weight_names", "backend", "keras_version"))
# Strings are copied as Python objects, so all of a dataset are in memory at once.
_MAX_STRINGS_BYTES = 1 << 24


class _Dataset(NamedTuple):
    """Where a tensor is: the offset of its bytes in the file, None if they pass through h5py."""

    begin: int | None
    elements: Elements | None
    # The dtype as h5py gives it.
    dtype: np.dtype[Any]


class Hdf5Reader(FileReader[SourceFile], ChunkedReader):
    """An HDF5 file whose datasets were found and checked on opening."""

    # Datasets of the tree that a copy does not have.
    left_out: frozenset[str] = frozenset()

    def __init__(self, path: Path, assume: str | Mapping[str, str] | None = None) -> None:
        super().__init__(SourceFile(path))
        with self._opening():
            self._begin, self._size = self._part()
            with explain_errors(path):
                try_reading(path, self._begin, self._size)
                # The file as h5py has it.
                self.tree = open_hdf5(Window(self._file.stream, self._begin, self._size))
                self.metadata = texts(self.tree)
                self.tensors = {}
                # What Keras calls the layers, by the paths of the groups of their variables.
                self.layer_names: dict[str, str] = {}
                self._datasets: dict[str, _Dataset] = {}
                self._assume = assume
                self._take(self.tree)

    def _part(self) -> tuple[int, int]:
        """Return offset and size of the HDF5 file in the file."""
        return 0, self._file.size

    def _take(self, root: h5py.Group) -> None:
        """Take all datasets, in the order of their paths."""
        h5py = h5py_module()
        for name, item in walk(root):
            if not isinstance(item, h5py.Dataset):
                if name and isinstance(layer := item.attrs.get("name"), str):
                    self.layer_names[name] = layer
                known_attributes = (
                    {*self.metadata, *_KERAS_ATTRIBUTES} if not name else _KERAS_ATTRIBUTES
                )
                self.other_entries += [
                    f"attribute {name}/@{key}" for key in item.attrs if key not in known_attributes
                ]
            elif holds_numbers(item):
                self._describe(name, item)
            else:
                self.other_entries.append(name)

    def _describe(self, name: str, dataset: h5py.Dataset) -> None:
        h5py = h5py_module()
        check_storage(name, dataset, self._size)
        shape, dtype = check_shape(name, dataset.shape), dataset.dtype
        row = format_of(dtype)
        if row is None and dtype.kind == "V":
            format_text = dataset.attrs.get(_DTYPE_ATTRIBUTE)
            row = format_named(format_text) if isinstance(format_text, str) else None
            if row is not None and row.itemsize != dtype.itemsize:
                raise damage(f"{name!r} declares {row.name}, of another size")
            row = row or assumed_format(self._assume, name, dtype.itemsize)
        stored_name = str(dtype) if row is None or dtype.kind == "V" else row.name
        format_name, kind = (row.name, row.kind) if row is not None else (None, UNKNOWN)
        nbytes = math.prod(shape) * dtype.itemsize
        elements = Elements(format_name, order=order_of(dtype)) if format_name else None
        begin = dataset.id.get_offset()
        stored_type = dataset.id.get_type()
        # What h5py converts does not stand in the file as numpy has it.
        as_is = dtype.kind == "V" or stored_type.equal(h5py.h5t.py_create(dtype, logical=True))
        if not nbytes:
            begin = 0
        elif begin is not None and begin + nbytes > self._size:
            raise damage(f"the data of {name!r} is cut off")
        place = self._begin + begin if begin is not None and as_is else None
        self.tensors[name] = TensorInfo(name, format_name, kind, stored_name, shape, nbytes)
        self._datasets[name] = _Dataset(place, elements, dtype)

    def stored_name(self, name: str) -> str:
        """Return the path that a dataset has in the file."""
        return name

    def elements(self, name: str) -> Elements | None:
        return self._datasets[name].elements

    def place(self, name: str) -> tuple[BinaryIO, int] | None:
        begin = self._datasets[name].begin
        return None if begin is None else (self._file.stream, begin)

    def pieces(self, name: str, nbytes: int) -> Iterator[bytes]:
        begin = self._datasets[name].begin
        if begin is not None:
            yield from self._pieces_at(name, begin, self.tensors[name].nbytes, nbytes)
            return
        with explain_errors(self.path):
            rest = bytearray()
            for block in blocks(self.tree[name], self.tensors[name].shape):
                rest += block.tobytes()
                while len(rest) >= nbytes:
                    yield bytes(rest[:nbytes])
                    del rest[:nbytes]
            if rest:
                yield bytes(rest)

    def chunks(self, name: str) -> tuple[int, ...] | None:
        chunks: tuple[int, ...] | None = self.tree[name].chunks
        return chunks

    def read_into(self, name: str, begin: int, data: memoryview) -> None:
        self._read_at(name, (self._datasets[name].begin or 0) + begin, data)

    def box(self, name: str, ranges: Sequence[tuple[int, int]]) -> NDArray[Any]:
        with explain_errors(self.path):
            values = np.asarray(self.tree[name][tuple(slice(*bounds) for bounds in ranges)])
        order, dtype = order_of(values.dtype), numpy_dtype(self.tensors[name].format or "")
        return from_bytes(values.reshape(-1).view(np.uint8), dtype, values.shape, order)

    def read(self, name: str) -> NDArray[Any]:
        info = self.tensors[name]
        if info.format is None:
            raise CheckpointError(
                f"{self.path}: dataset {name!r} holds raw bytes; say of which format "
                + parenthesis("assume")
            )
        raw = join_pieces(self.pieces(name, _PIECE_BYTES), info.nbytes)
        return from_bytes(raw, numpy_dtype(info.format), info.shape, self.order(name))

    def order(self, name: str) -> Literal["<", ">"]:
        return order_of(self._datasets[name].dtype)

    def __exit__(self, *error: object) -> None:
        self.tree.close()
        super().__exit__(*error)


class Hdf5Writer(PlacedWriter):
    """Writes an HDF5 file: all but the data at once, the data at its places."""

    _begin = 0  # where the HDF5 file stands in the file

    def _write_start(self, metadata: Mapping[str, str], source: Reader | None) -> None:
        self._source: Hdf5Reader | None = source if isinstance(source, Hdf5Reader) else None
        self._begins: dict[str, int] = {}
        self._legacy = False
        with explain_errors(None), self._new_file() as tree:
            if self._source is not None:
                self._copy_tree(self._source.tree, tree)
            else:
                tree.attrs.update(metadata)
                for name in self.order:
                    self._create(tree, name, None)
        self._file.seek(0, io.SEEK_END)

    def _new_file(self) -> h5py.File:
        """Open a new HDF5 file, which keeps the order of its members if the source does."""
        has_order = False
        if self._source is not None:
            has_order = bool(self._source.tree["/"].id.get_create_plist().get_link_creation_order())
        window = Window(self._file, self._begin)
        return h5py_module().File(window, "w", track_order=has_order)

    def _copy_tree(self, source: h5py.Group, target: h5py.Group) -> None:
        """Write what the source has; datasets that are cast are only created."""
        h5py = h5py_module()
        for name, item in walk(source):
            if isinstance(item, h5py.Group):
                self._legacy |= "layer_names" in item.attrs
                group = target if not name else _new_group(target, name, item)
                _copy_attributes(item, group, name)
            elif name in self.planned:
                dataset = item if self._source is None else source[self._source.stored_name(name)]
                self._create(target, name, dataset)
                _copy_attributes(dataset, target[name], name, but=_DTYPE_ATTRIBUTE)
            elif self._source is None or name not in self._source.left_out:
                _copy_other(item, target, name)

    def _label(self, name: str, dataset: h5py.Dataset | None) -> object:
        if dataset is not None and self.keeps(name):
            return dataset.attrs.get(_DTYPE_ATTRIBUTE)
        return _BFLOAT16 if self.elements(name).format == _BFLOAT16 else None

    def _create(self, tree: h5py.Group, name: str, source_dataset: h5py.Dataset | None) -> None:
        """Create a dataset with room for its data, and take note of its place."""
        h5py = h5py_module()
        shape = self.planned[name].info.shape
        if "" in (parts := name.split("/")) or not {".", ".."}.isdisjoint(parts):
            raise CheckpointError(f"{name!r} cannot be the path of a dataset in HDF5; rename it")
        as_is = source_dataset if self.keeps(name) else None
        if as_is is not None and self._source is not None and self._source.place(name) is not None:
            kind = as_is.id.get_type()
        else:
            dtype = self._dtype(name) if as_is is None else as_is.dtype
            kind = h5py.h5t.py_create(dtype, logical=True)
        properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        properties.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
        properties.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
        properties.set_obj_track_times(False)  # the same file at any time, as of other containers
        links = h5py.h5p.create(h5py.h5p.LINK_CREATE)
        links.set_create_intermediate_group(True)
        links.set_char_encoding(h5py.h5t.CSET_UTF8)
        try:
            dataset = h5py.h5d.create(
                tree.id, name.encode(), kind, h5py.h5s.create_simple(shape), properties, links
            )
        except (ValueError, RuntimeError) as error:
            raise CheckpointError(f"{name!r} cannot be a dataset in HDF5: {error}") from error
        if (label := self._label(name, source_dataset)) is not None:
            h5py.Dataset(dataset).attrs[_DTYPE_ATTRIBUTE] = label
        self._begins[name] = self._begin + (dataset.get_offset() or 0)

    def _dtype(self, name: str) -> np.dtype[Any]:
        """Return the dtype in which h5py stores a format."""
        plan = self.planned[name]
        target = plan.format
        if target is None:
            raise CheckpointError(
                f"tensor {name!r} is stored as {plan.info.stored}, which HDF5 cannot hold"
            )
        if target == _BFLOAT16 and self._legacy:
            raise CheckpointError(
                f"tensor {name!r}: Keras cannot load bfloat16 from an .h5 of this kind, which "
                "holds a whole model; use float16, or save the model as .keras first"
            )
        if target == _BFLOAT16:
            return np.dtype("V2")
        dtype = numpy_dtype(target)
        if dtype.isbuiltin != 1:  # 2 are those of ml_dtypes
            raise CheckpointError(
                f"tensor {name!r}: HDF5 as Keras reads it cannot hold {target}; use float16 or "
                "bfloat16, or write .safetensors"
            )
        return dtype.newbyteorder("<")


def _new_group(tree: h5py.Group, name: str, group: h5py.HLObject) -> h5py.Group:
    """Create a group like another, with the order of its members."""
    has_order = bool(group.id.get_create_plist().get_link_creation_order())
    return tree.create_group(name, track_order=has_order)


def _copy_other(source: object, target: h5py.Group, name: str) -> None:
    """Copy a dataset of strings, or an empty one: libhdf5's own copy crashes on damaged files."""
    h5py = h5py_module()
    if isinstance(source, h5py.Dataset) and source.shape is None:
        copy = target.create_dataset(name, data=h5py.Empty(source.dtype))
    elif isinstance(source, h5py.Dataset) and h5py.check_string_dtype(source.dtype) is not None:
        check_storage(name, source, _MAX_STRINGS_BYTES)
        copy = target.create_dataset(name, data=source[()], dtype=source.dtype)
    else:
        raise CheckpointError(
            f"{name!r} holds neither numbers nor strings, and cannot be copied; cast to "
            ".safetensors, or remove it"
        )
    _copy_attributes(source, copy, name)


def _copy_attributes(
    source: h5py.HLObject, target: h5py.HLObject, name: str, but: str | None = None
) -> None:
    for key in source.attrs:
        if key != but:
            attribute = source.attrs.get_id(key)
            try:
                target.attrs.create(key, source.attrs[key], attribute.shape, attribute.dtype)
            except (TypeError, ValueError, OSError, RuntimeError) as error:
                raise CheckpointError(
                    f"attribute {key!r} of {name or 'the file'!r} cannot be copied: {error}"
                ) from error
