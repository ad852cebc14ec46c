"""One of two checkpoints that are compared: its tensors as they stream by."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from functools import cached_property, partial
from itertools import repeat
from typing import Any

import numpy as np
from numpy.typing import NDArray

from castwise._core import cast
from castwise._options import Arithmetic
from castwise.checkpoint._errors import CheckpointError
from castwise.checkpoint._tensors import TensorInfo, format_info, numpy_dtype
from castwise.checkpoint.containers.array_bytes import from_bytes
from castwise.checkpoint.containers.checkpoint import Checkpoint
from castwise.checkpoint.containers.interface import Elements, Reader
from castwise.checkpoint.containers.safetensors import SafetensorsReader
from castwise.checkpoint.containers.whole_models import NoFolderError
from castwise.checkpoint.plan import CastOptions, Decide
from castwise.checkpoint.planning.checkpoint_model import CheckpointModel
from castwise.checkpoint.planning.decode.decode import decode_checkpoint
from castwise.checkpoint.planning.decode.options import FORMATS, decoding_of
from castwise.checkpoint.planning.derived_reader import DerivedReader, DerivedTensor
from castwise.checkpoint.planning.stored_tensors import StoredTensors
from castwise.quantization import QuantizedArray, QuantizedWeight
from castwise.quantization.producers.found import add_prefix
from castwise.quantization.producers.layouts import BF16
from castwise.quantization.weights.decoding import Decoding, Slab

# Of a tensor: two of them, and what is computed of them, lie in the caches of a core.
_PIECE_BYTES = 1 << 20


StoredRows = tuple[Decoding, Slab]
"""Rows of a quantized weight."""

ReadInto = Callable[[int, memoryview], None]
"""Fills memory with the bytes of a tensor from one of them on. Threads may call it at once."""


# A GGUF file beside a folder has the tensors of transformers, as the folder that it becomes.
class Side:
    """One of the two checkpoints; names begin with the folder of their component."""

    def __init__(
        self,
        source: Checkpoint,
        decide: Decide | None = None,
        *,
        format_asked: str | None = None,
        options: CastOptions | None = None,
    ) -> None:
        self.names: dict[str, tuple[Reader, str]] = {}
        self._tensors: dict[Reader, StoredTensors] = {}  # of the component of each reader
        self.metadata: dict[str, str] = {}
        # The quantized weights that are decoded, by the names that they then have.
        self.weights: dict[str, QuantizedWeight] = {}
        self._targets: dict[str, str] = {}
        self._format_asked = format_asked
        self._options = options or CastOptions()
        for component in source.components:
            tensors = StoredTensors(component.shards)  # which refuses two tensors of a name
            for reader in component.shards.values():
                self._tensors[reader] = tensors
                for name in reader.tensors:
                    self.names[component.prefix + name] = reader, name
                if decide is not None:
                    self._targets |= {
                        component.prefix + plan.info.name: plan.target
                        for plan in decide(reader.tensors.values(), component.prefix)
                        if plan.target is not None and plan.is_cast
                    }
                self.metadata = {**reader.metadata, **self.metadata}
        self._source = self._stored_source = source
        # Tensors whose matrices are read the other way round.
        self.transposed_names: set[str] = set()
        self._readers = [*dict.fromkeys(reader for reader, _ in self.names.values())]
        self._is_folder = source.is_folder
        self._open_reader: Reader | None = None

    @classmethod
    def decode(
        cls,
        source: Checkpoint,
        other: Checkpoint,
        *,
        dtype: object,
        arithmetic: Arithmetic,
        threads: int | None,
        decide: Decide | None = None,
    ) -> Side:
        """Return a checkpoint whose quantized weights are decoded, as `other` names its tensors."""
        # `decide` says what its other tensors are cast to.
        decoding = decoding_of(dtype or BF16, arithmetic, None, threads, may_be_plain=True)
        decoding = decoding._replace(is_written=False)
        try:
            derivation = decode_checkpoint(source, decoding, is_file=not other.is_folder)
        except NoFolderError as error:
            raise CheckpointError(
                f"{source.path} cannot be compared with the folder {other.path} by the names of "
                f"transformers: {error.reason}; another {source.suffix} file, or a "
                ".safetensors file that castwise dequantize makes of one, has llama.cpp's names"
            ) from error
        for plan in derivation.plans:
            plan.warn()
        format_asked = None if dtype is None else decoding.format
        options = CastOptions(threads=threads)
        side = cls(derivation.source, decide, format_asked=format_asked, options=options)
        side._stored_source = source
        for plan in derivation.plans:
            if plan.quantization is not None:
                weights = add_prefix(plan.quantization, plan.prefix).weights
                side.weights |= {weight.name: weight for weight in weights}
        return side

    @cached_property
    def model(self) -> CheckpointModel:
        return CheckpointModel(self._source)

    def info(self, name: str) -> TensorInfo:
        reader, stored_name = self.names[name]
        return reader.tensors[stored_name]

    def shape(self, name: str) -> tuple[int, ...]:
        shape = self.info(name).shape
        return (*shape[:-2], *shape[:-3:-1]) if name in self.transposed_names else shape

    def format(self, name: str, of_other: str | None) -> str | None:
        """Return the format in which a tensor comes; a decoded one as the other wants it."""
        reader, stored_name = self.names[name]
        tensor = reader.find_derived(stored_name) if isinstance(reader, DerivedReader) else None
        if tensor is None:
            return self._targets.get(name, reader.tensors[stored_name].format)
        if isinstance(reader, DerivedReader) and reader.derivation != "decode":
            return tensor.format
        if self._format_asked is None and of_other in FORMATS:
            return of_other
        return self._format_asked or BF16

    def is_decoded(self, name: str) -> bool:
        """Return True for a quantized weight that is decoded as it is read."""
        reader, stored_name = self.names[name]
        if not isinstance(reader, DerivedReader) or reader.derivation != "decode":
            return False
        return reader.find_derived(stored_name) is not None

    def _derived_tensor(self, name: str) -> DerivedTensor | None:
        reader, stored_name = self.names[name]
        return reader.find_derived(stored_name) if isinstance(reader, DerivedReader) else None

    def decoding(self, name: str) -> Decoding | None:
        """Return how a tensor is decoded, its files open; None for one that is not quantized."""
        tensor = self._derived_tensor(name)
        self._open(self.names[name][0])
        return None if tensor is None else tensor.decoding

    def kind(self, name: str) -> tuple[object, ...]:
        """Return what tensors have in common that differ in names and places alone."""
        reader, stored_name = self.names[name]
        info, tensor = reader.tensors[stored_name], self._derived_tensor(name)
        derived = None if tensor is None else (tensor.format, tensor.scheme, tensor.job.stack)
        stored = info.shape, info.format, info.stored, info.nbytes
        return reader, *stored, derived, self._targets.get(name), name in self.transposed_names

    def is_stacked(self, name: str) -> bool:
        """Return True for a tensor that `stack` reads."""
        if name in self._targets or name in self.transposed_names:
            return False
        reader, stored_name = self.names[name]
        if (tensor := self._derived_tensor(name)) is None:
            is_plain = not isinstance(reader, DerivedReader)
            return is_plain and self._tensors[reader].are_stacked(stored_name)
        plan = tensor.decoding
        return plan is not None and plan.stack is not None and plan.shape == plan.matrix_shape

    def stack(self, names: Sequence[str]) -> NDArray[Any] | QuantizedArray | None:
        """Read small tensors along a new first axis, as stored; None to read each by itself."""
        reader, _ = self.names[names[0]]
        self._open(reader)
        if (tensor := self._derived_tensor(names[0])) is None:
            return self._tensors[reader].stack([self.names[name][1] for name in names])
        read = None if tensor.decoding is None else tensor.decoding.stack
        assert read is not None, "by `is_stacked`"  # noqa: S101
        tensors = map(self._derived_tensor, names)
        return read([tensor.job.member for tensor in tensors if tensor is not None])

    def is_cast(self, name: str) -> bool:
        """Return True for a tensor that a map makes another format of, or codes and scales."""
        return name in self._targets or self._derived_tensor(name) is not None

    @property
    def decodes(self) -> bool:
        return any(map(self.is_decoded, self.names))

    def pieces(
        self, name: str, to: str | None, counts: Iterable[int] | None = None
    ) -> Iterator[NDArray[Any]]:
        """Read a tensor as flat arrays of a format; as bytes if the format is None."""
        # What a map makes another format of is cast. Each has so many elements, the last what is
        # left; by default those of 1 MiB.
        if counts is None:
            counts = repeat(piece_elements(to, _PIECE_BYTES))
        arrays = self._pieces(name, to, next(iter(counts), 1))
        if name in self.transposed_names and 0 not in self.shape(name):
            rows, columns = self.info(name).shape[-2:]
            matrices = in_pieces(arrays, repeat(rows * columns))
            arrays = (
                np.ascontiguousarray(matrix.reshape(rows, columns).T).reshape(-1)
                for matrix in matrices
            )
        return in_pieces(arrays, counts)

    def read_into(self, name: str) -> tuple[Elements, ReadInto] | None:
        """Return how a tensor stands in its file, and what reads its bytes there."""
        # The result is None for a tensor that is compared in another form, and for files other than
        # safetensors of this machine.
        reader, stored_name = self.names[name]
        if self.is_cast(name) or name in self.transposed_names:
            return None
        self._open(reader)
        if isinstance(reader, DerivedReader):
            reader, stored_name = reader.stored_tensor(stored_name)
        if not isinstance(reader, SafetensorsReader) or reader.place(stored_name) is None:
            return None
        elements = reader.elements(stored_name)
        return None if elements is None else (elements, partial(reader.read_into, stored_name))

    def _pieces(self, name: str, to: str | None, count: int) -> Iterator[NDArray[Any]]:
        if name not in self._targets:
            return self._stored_pieces(name, to, count)
        return self._cast_pieces(name, self._targets[name], count)

    def _cast_pieces(self, name: str, target: str, count: int) -> Iterator[NDArray[Any]]:
        stored_pieces = self._stored_pieces(name, self.info(name).format, count)
        if self._options.count_places:
            stored_pieces = iter(
                [np.concatenate([*stored_pieces])] if math.prod(self.shape(name)) else []
            )
        arguments = self._options.for_tensor(name, self.info(name).format, target)
        for piece in stored_pieces:
            yield cast(piece, numpy_dtype(target), threads=self._options.threads, **arguments)

    def _stored_pieces(self, name: str, to: str | None, count: int) -> Iterator[NDArray[Any]]:
        reader, stored_name = self.names[name]
        self._open(reader)
        if to is not None and isinstance(reader, DerivedReader) and self._derived_tensor(name):
            yield from (array.reshape(-1) for array in reader.slabs(stored_name, to))
            return
        elements = reader.elements(stored_name)
        if to is None:
            for piece in reader.pieces(stored_name, count):
                yield np.frombuffer(piece, np.uint8)
        elif elements is None or elements.packed or reader.arrangement(stored_name) is not None:
            yield reader.read(stored_name).reshape(-1)
        else:
            dtype = numpy_dtype(elements.format)
            for piece in reader.pieces(stored_name, elements.nbytes(count)):
                raw = np.frombuffer(piece, np.uint8)
                shape = (raw.size // dtype.itemsize,)
                yield from_bytes(raw, dtype, shape, "<" if elements.order == "<" else ">")

    def _open(self, reader: Reader) -> None:
        """Open a shard, in the place of the one before: its tensors follow each other."""
        if reader is not self._open_reader:
            self.close()
            if self._is_folder or isinstance(reader, DerivedReader):
                reader.__enter__()
                self._open_reader = reader

    def close(self) -> None:
        if self._open_reader is not None:
            reader, self._open_reader = self._open_reader, None
            reader.__exit__(None, None, None)

    def stored_array(self, name: str) -> NDArray[Any] | None:
        """Read a tensor as it is stored, as a whole; None if there is none of that name."""
        self.close()  # the same file is opened here, and closed
        for component in self._stored_source.components:
            tensors = StoredTensors(component.shards)
            inner_name = name.removeprefix(component.prefix)
            if name.startswith(component.prefix) and inner_name in tensors:
                return tensors.read(inner_name)
        return None

    def check_unchanged(self) -> None:
        self.close()
        for reader in self._readers:
            with ExitStack() as stack:
                if self._is_folder or isinstance(reader, DerivedReader):
                    stack.enter_context(reader)
                reader.check_unchanged()


def common_format(original: str | None, copy: str | None) -> str | None:
    """Return the format in which values of two can be compared; None if there is none."""
    if original is None or copy is None:
        return None
    if original == copy:
        return original
    kinds = {format_info(name).kind for name in (original, copy)}
    if "complex" in kinds:
        return "complex128" if kinds == {"complex"} else None
    return "float32" if kinds == {"float"} and "float64" not in (original, copy) else "float64"


def piece_elements(name: str | None, nbytes: int) -> int:
    """Return the elements of a format in so many bytes, or the bytes."""
    return nbytes if name is None else nbytes // numpy_dtype(name).itemsize


def in_pieces(arrays: Iterator[NDArray[Any]], counts: Iterable[int]) -> Iterator[NDArray[Any]]:
    """Cut a stream of flat arrays into others of so many elements each, the last what is left."""
    rest: NDArray[Any] | None = None  # of an array, after what a piece took of it
    for count in counts:
        parts: list[NDArray[Any]] = []
        missing = count
        while missing and (array := next(arrays, None) if rest is None else rest) is not None:
            if array.size <= missing:
                part, rest = array, None
            else:
                part, rest = array[:missing], array[missing:]
            missing -= part.size
            if part.size:
                parts.append(part)
        if not parts:
            return
        yield parts[0] if len(parts) == 1 else np.concatenate(parts)
