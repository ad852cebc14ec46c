"""The files to be written, and which tensors of the source go into each."""

import io
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import lru_cache
from itertools import groupby
from math import prod
from pathlib import Path
from typing import BinaryIO, NamedTuple, cast

from castwise._numbers import BYTE_BITS
from castwise._options import SAFETENSORS
from castwise.checkpoint._tensors import Planned, format_info
from castwise.checkpoint.containers import container_of, has_places, new_writer
from castwise.checkpoint.containers.checkpoint import Component
from castwise.checkpoint.containers.folder import new_index
from castwise.checkpoint.containers.interface import Reader, Writer
from castwise.checkpoint.containers.safetensors import JoinedShards, SafetensorsReader, check_codes
from castwise.checkpoint.containers.weight_files import safetensors_name
from castwise.checkpoint.files.remote import Upload
from castwise.checkpoint.files.replacing import folder_of
from castwise.checkpoint.plan import CastOptions
from castwise.checkpoint.results.report import CastRow, ProgressMeter
from castwise.checkpoint.running._conversion import Conversion, row_of

# A file, and what becomes of those of its tensors that go into one target.
Source = tuple[Reader, list[Planned]]


class OutputFile(NamedTuple):
    """A file to be written."""

    # Its path in the new folder; of a single file its name.
    name: str
    # Where its tensors come from.
    sources: Sequence[Source]
    metadata: Mapping[str, str]
    # How tensors are cast.
    options: CastOptions

    @property
    def plans(self) -> list[Planned]:
        return [plan for _, plans in self.sources for plan in plans]

    def write(self, file: BinaryIO, meter: ProgressMeter, shard: str | None) -> list[CastRow]:
        """Write it into an empty file; `shard` is what the rows call it."""
        if isinstance(file, Upload) and len(self.sources) > 1:
            return self._upload(file, meter, shard)
        rows: list[CastRow] = []
        folder = folder_of(file)
        *earlier, last = self.sources
        # The last stays open until the writer is done: it may have more than tensors to copy.
        with reopen(last[0]):
            with self._writer(file) as writer:
                for reader, plans in earlier:
                    with reopen(reader):
                        conversion = self._conversion(reader, plans, writer)
                        rows += conversion.rows(conversion.run(meter, folder), shard)
                        reader.check_unchanged()
                conversion = self._conversion(*last, writer)
                rows += conversion.rows(conversion.run(meter, folder), shard)
            last[0].check_unchanged()
        return self.in_order(rows, writer.order)

    def _upload(self, file: Upload, meter: ProgressMeter, shard: str | None) -> list[CastRow]:
        """Write an object from end to end: each source again wherever its tensors come."""
        rows: list[CastRow] = []
        readers = {plan.info.name: reader for reader, plans in self.sources for plan in plans}
        with self._writer(cast("BinaryIO", file)) as writer:
            for reader, names in groupby(writer.order, readers.__getitem__):
                with reopen(reader):
                    conversion = Conversion(reader, writer, self.options, set(names))
                    rows += conversion.rows(conversion.run(meter), shard)
                    reader.check_unchanged()
        return rows

    def in_order(self, rows: list[CastRow], names: Sequence[str]) -> list[CastRow]:
        """Return rows, given source by source, in the order of the tensors in the file."""
        if len(self.sources) == 1:
            return rows
        places = {name: place for place, name in enumerate(names)}
        return sorted(rows, key=lambda row: places[row.name])

    def check_codes(self) -> None:
        """CheckpointError naming the first tensor that safetensors could only hold as bytes."""
        if container_of(Path(self.name)) == SAFETENSORS:
            for reader, plans in self.sources:
                check_codes(plans, keeps=isinstance(reader, SafetensorsReader))

    def conversions(self) -> list[Conversion] | None:
        """Return what is to be converted into the file at its places; None if there are not all."""
        if not has_places(Path(self.name)):
            return None
        conversions = []
        with self._writer(io.BytesIO()) as writer:
            for source in self.sources:
                conversions.append(self._conversion(*source, writer))
                if not conversions[-1].is_placed:
                    return None
        return conversions

    def write_header(self, file: BinaryIO) -> None:
        """Write what stands before the tensors."""
        with self._writer(file):
            file.flush()

    def preview(self, shard: str | None) -> list[CastRow]:
        """Return the rows of the tensors as they will be, without their reports."""
        with self._writer_of_nothing() as writer:
            return [row_of(writer, name, None, shard) for name in writer.order]

    def measure(self, meter: ProgressMeter, shard: str | None) -> list[CastRow]:
        """Convert its tensors and throw the results away; returns the rows with their reports."""
        with _discarding(self.name) as file:
            return self.write(file, meter, shard)

    @property
    def has_other_orders(self) -> bool:
        """True if tensors of the source are not in C order."""
        return any(
            reader.arrangement(plan.info.name) is not None
            for reader, plans in self.sources
            for plan in plans
        )

    def sizes(self) -> list[tuple[int, int]]:
        with self._writer_of_nothing() as writer:
            conversions = [self._conversion(*source, writer) for source in self.sources]
            return [size for conversion in conversions for size in conversion.sizes()]

    @contextmanager
    def _writer_of_nothing(self) -> Iterator[Writer]:
        # The error makes the writer leave the container as it is.
        with suppress(_PreviewDone), self._writer(io.BytesIO()) as writer:
            yield writer
            raise _PreviewDone

    def _writer(self, file: BinaryIO) -> Writer:
        return new_writer(Path(self.name), file, self.plans, self.metadata, joined_source(self))

    def _conversion(self, reader: Reader, plans: Sequence[Planned], writer: Writer) -> Conversion:
        is_part = len(plans) < len(writer.planned)
        names = {plan.info.name for plan in plans} if is_part else None
        return Conversion(reader, writer, self.options, names)


class _PreviewDone(Exception):  # noqa: N818  (it is no error)
    """Leaves the block of a writer before anything is written."""


class OutputComponent(NamedTuple):
    """The files that become of one component of the source."""

    component: Component
    targets: Sequence[OutputFile]
    # Path of their index in the new folder, None if there is none.
    index_name: str | None
    # True if their tensors are divided otherwise than in the source.
    is_divided: bool

    @property
    def names(self) -> set[str]:
        return {target.name for target in self.targets}

    def index_text(self, rows: Sequence[CastRow]) -> str:
        length = len(self.component.prefix)
        if self.is_divided:
            weight_map = {row.name: (row.shard or "")[length:] for row in rows}
            total = sum(row.nbytes_after for row in rows)
            return new_index(self.component, dict(sorted(weight_map.items())), total)
        weights: Mapping[str, str] = self.component.index["weight_map"]
        weight_map = {name: safetensors_name(shard) for name, shard in weights.items()}
        total = sum(
            row.nbytes_after
            for row in rows
            if weight_map.get(row.name) == (row.shard or "")[length:]
        )
        return new_index(self.component, weight_map, total)


def reopen(reader: Reader) -> AbstractContextManager[Reader]:
    """Open the file of a shard for a block; that of another container is open as the run lasts."""
    return reader if reader.reopens else nullcontext(reader)


def joined_source(target: OutputFile) -> Reader | None:
    """Return what says how the tensors of a target stand in their files."""
    readers = [reader for reader, _ in target.sources]
    if len(readers) == 1:
        return readers[0]
    shards = [reader for reader in readers if isinstance(reader, SafetensorsReader)]
    return JoinedShards(shards) if len(shards) == len(readers) else None


class _Nothing(io.BufferedRandom):
    """A file that keeps nothing, and so has no length."""

    def truncate(self, size: int | None = None) -> int:
        return size or 0


@contextmanager
def _discarding(name: str) -> Iterator[BinaryIO]:
    """Open what takes the bytes of a file and keeps none of them."""
    # Containers that may read again what they have written are written to a file without a name,
    # which is gone at the end.
    if not has_places(Path(name)):
        with tempfile.TemporaryFile() as file:
            yield cast("BinaryIO", file)
        return
    # Opened by number, so that nobody takes its folder for one of files.
    with _Nothing(io.FileIO(os.open(os.devnull, os.O_RDWR), "r+")) as file:
        yield cast("BinaryIO", file)


def least_nbytes(tensors: Iterable[Planned]) -> int:
    return sum(_least_nbytes(tensor) for tensor in tensors)


def meanwhile_nbytes(targets: Sequence[OutputFile], following: int = 0) -> int:
    """Return how many bytes more files take as they are written, one by one, than in the end."""
    # The additional bytes are those of temporary files, for tensors that are brought into another
    # order; `following` is how many bytes are written after the files.
    most = 0
    if any(target.has_other_orders for target in targets):
        sizes = [size for target in targets for size in target.sizes()]
        for nbytes, temporary in reversed(sizes):
            most = max(most, temporary - following)
            following += nbytes
    return most


def _least_nbytes(plan: Planned) -> int:
    if plan.target is None:
        return plan.info.nbytes
    return prod(plan.info.shape) * _least_bits(plan.target) // BYTE_BITS


@lru_cache
def _least_bits(name: str) -> int:
    """Return the bits of an element in the container that packs it most densely."""
    info = format_info(name)
    return BYTE_BITS if info.kind == "bool" else int(info.bits)
