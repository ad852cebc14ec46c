"""One of two checkpoints that are compared: its tensors as they stream by."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from castwise._core import cast
from castwise._options import Arithmetic
from castwise.checkpoint._tensors import TensorInfo, format_info, numpy_dtype
from castwise.checkpoint.containers import Reader, from_bytes
from castwise.checkpoint.containers.checkpoint import Checkpoint
from castwise.checkpoint.plan import CastOptions, Decide
from castwise.checkpoint.planning import (
    FORMATS,
    CheckpointModel,
    DerivedReader,
    DerivedTensor,
    StoredTensors,
    decode_checkpoint,
    decoding_of,
)
from castwise.quantization import QuantizedWeight
from castwise.quantization.producers import BF16, prefixed
from castwise.quantization.weights import Decoding

_PIECE_BYTES = 1 << 20
"""Of a tensor: two of them, and what is computed of them, lie in the caches of a core."""


class Side:
    """One of the two checkpoints; names begin with the folder of their component.

    A GGUF file beside a folder has the tensors of transformers, as the folder that it becomes.
    """

    def __init__(
        self,
        source: Checkpoint,
        decide: Decide | None = None,
        *,
        asked: str | None = None,
        options: CastOptions | None = None,
    ) -> None:
        self.names: dict[str, tuple[Reader, str]] = {}
        self.metadata: dict[str, str] = {}
        self.weights: dict[str, QuantizedWeight] = {}
        """The quantised weights that are decoded, by the names that they then have."""
        self._targets: dict[str, str] = {}
        self._asked = asked
        self._options = options or CastOptions()
        for component in source.components:
            StoredTensors(component.shards)  # which refuses two tensors of a name
            for reader in component.shards.values():
                for name in reader.tensors:
                    self.names[component.prefix + name] = reader, name
                if decide is not None:
                    self._targets |= {
                        component.prefix + planned.info.name: planned.target
                        for planned in decide(reader.tensors.values(), component.prefix)
                        if planned.target is not None and planned.is_cast
                    }
                self.metadata = {**reader.metadata, **self.metadata}
        self.model = CheckpointModel(source)
        self.decodings: dict[str, Callable[[], Decoding]] = {}
        self.transposed: set[str] = set()
        """Tensors whose matrices are read the other way round."""
        self._readers = [*{id(reader): reader for reader, _ in self.names.values()}.values()]
        self._is_folder = source.is_folder
        self._opened: Reader | None = None

    @classmethod
    def decoded(
        cls,
        opened: Checkpoint,
        beside: Checkpoint,
        *,
        dtype: object,
        arithmetic: Arithmetic,
        threads: int | None,
        decide: Decide | None = None,
    ) -> Side:
        """Return a checkpoint whose quantised weights are decoded, as `beside` names its tensors.

        `decide` says what its other tensors are cast to.
        """
        decoding = decoding_of(dtype or BF16, arithmetic, None, threads, may_be_plain=True)
        decoding = replace(decoding, counts_losses=False)  # which no comparison reports
        derived = decode_checkpoint(opened, decoding, is_file=not beside.is_folder)
        for plan in derived.plans:
            plan.warn()
        asked = None if dtype is None else decoding.format
        side = cls(derived.source, decide, asked=asked, options=CastOptions(threads=threads))
        for plan in derived.plans:
            side.decodings |= plan.decodings(arithmetic)
            if plan.quantization is not None:
                weights = prefixed(plan.quantization, plan.prefix).weights
                side.weights |= {weight.name: weight for weight in weights}
        return side

    def info(self, name: str) -> TensorInfo:
        reader, stored_name = self.names[name]
        return reader.tensors[stored_name]

    def shape(self, name: str) -> tuple[int, ...]:
        shape = self.info(name).shape
        return (*shape[:-2], *shape[:-3:-1]) if name in self.transposed else shape

    def format(self, name: str, of_other: str | None) -> str | None:
        """Return the format in which a tensor comes; a decoded one as the other wants it."""
        derived = self._derived(name)
        if derived is None:
            return self._targets.get(name, self.info(name).format)
        if not self.is_decoded(name):
            return derived.format
        if self._asked is None and of_other in FORMATS:
            return of_other
        return self._asked or BF16

    def is_decoded(self, name: str) -> bool:
        """Return True for a quantised weight that is decoded as it is read."""
        reader, stored_name = self.names[name]
        return (
            isinstance(reader, DerivedReader)
            and reader.derivation == "decode"
            and reader.derived(stored_name) is not None
        )

    def _derived(self, name: str) -> DerivedTensor | None:
        reader, stored_name = self.names[name]
        return reader.derived(stored_name) if isinstance(reader, DerivedReader) else None

    def is_cast(self, name: str) -> bool:
        """Return True for a tensor that a map makes another format of, or codes and scales."""
        return name in self._targets or self._derived(name) is not None

    @property
    def decodes(self) -> bool:
        """True if a tensor of it is decoded."""
        return any(map(self.is_decoded, self.names))

    def pieces(self, name: str, to: str | None) -> Iterator[NDArray[Any]]:
        """Read a tensor as flat arrays of a format; as bytes if the format is None.

        What a map makes another format of is cast.
        """
        if name not in self.transposed or not math.prod(self.shape(name)):
            yield from self._pieces(name, to)
            return
        rows, columns = self.info(name).shape[-2:]
        waiting: list[NDArray[Any]] = []
        for piece in self._pieces(name, to):
            waiting.append(piece)
            if sum(part.size for part in waiting) >= rows * columns:
                flat = np.concatenate(waiting)
                whole = flat.size // (rows * columns) * rows * columns
                matrices = flat[:whole].reshape(-1, rows, columns)
                yield np.ascontiguousarray(matrices.swapaxes(-1, -2)).reshape(-1)
                waiting = [flat[whole:]]

    def _pieces(self, name: str, to: str | None) -> Iterator[NDArray[Any]]:
        target = self._targets.get(name)
        if target is None:
            yield from self._stored_pieces(name, to)
            return
        stored = self._stored_pieces(name, self.info(name).format)
        if self._options.count_places:
            stored = iter([np.concatenate([*stored])] if math.prod(self.shape(name)) else [])
        arguments = self._options.for_tensor(name, self.info(name).format, target)
        for piece in stored:
            yield cast(piece, numpy_dtype(target), threads=self._options.threads, **arguments)

    def _stored_pieces(self, name: str, to: str | None) -> Iterator[NDArray[Any]]:
        reader, stored_name = self.names[name]
        self._open(reader)
        if to is not None and isinstance(reader, DerivedReader) and self._derived(name):
            yield from (array.reshape(-1) for array in reader.slabs(stored_name, to))
            return
        elements = reader.elements(stored_name)
        if to is None:
            for piece in reader.pieces(stored_name, _PIECE_BYTES):
                yield np.frombuffer(piece, np.uint8)
        elif elements is None or elements.packed or reader.arrangement(stored_name) is not None:
            yield reader.read(stored_name).reshape(-1)
        else:
            dtype = numpy_dtype(elements.format)
            count = _PIECE_BYTES // dtype.itemsize
            for piece in reader.pieces(stored_name, elements.nbytes(count)):
                raw = np.frombuffer(piece, np.uint8)
                shape = (raw.size // dtype.itemsize,)
                yield from_bytes(raw, dtype, shape, "<" if elements.order == "<" else ">")

    def _open(self, reader: Reader) -> None:
        """Open a shard, in the place of the one before: its tensors follow each other."""
        if reader is not self._opened:
            self.close()
            if self._is_folder or isinstance(reader, DerivedReader):
                reader.__enter__()
                self._opened = reader

    def close(self) -> None:
        """Close the shard that is open."""
        if self._opened is not None:
            opened, self._opened = self._opened, None
            opened.__exit__(None, None, None)

    def array(self, name: str) -> NDArray[Any]:
        """Read a tensor as a whole; no other side may have its file open."""
        reader, stored_name = self.names[name]
        with reader:
            return reader.read(stored_name)

    def check_unchanged(self) -> None:
        self.close()
        for reader in self._readers:
            with ExitStack() as stack:
                if self._is_folder or isinstance(reader, DerivedReader):
                    stack.enter_context(reader)
                reader.check_unchanged()


def common_format(left: str | None, right: str | None) -> str | None:
    """Return the format in which values of two can be compared; None if there is none."""
    if left is None or right is None:
        return None
    if left == right:
        return left
    kinds = {format_info(name).kind for name in (left, right)}
    if "complex" in kinds:
        return "complex128" if kinds == {"complex"} else None
    return "float32" if kinds == {"float"} and "float64" not in (left, right) else "float64"


def in_step(
    lefts: Iterator[NDArray[Any]], rights: Iterator[NDArray[Any]]
) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
    """Cut two streams of flat arrays at the same places."""
    left: NDArray[Any] | None = np.empty(0, np.uint8)
    right = left
    while True:
        while left is not None and not left.size:
            left = next(lefts, None)
        while right is not None and not right.size:
            right = next(rights, None)
        if left is None or right is None:
            return
        count = min(left.size, right.size)
        yield left[:count], right[:count]
        left, right = left[count:], right[count:]


def read_ahead(
    pairs: Iterator[tuple[NDArray[Any], NDArray[Any]]],
) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
    """Read the next pair of pieces in another thread while this one is compared."""
    begun = [*islice(pairs, 2)]
    if len(begun) == 1:  # to start a thread takes longer than to compare a small tensor
        yield from begun
        return
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(next, pairs, None)
        yield from begun
        while (pair := future.result()) is not None:
            future = pool.submit(next, pairs, None)
            yield pair
