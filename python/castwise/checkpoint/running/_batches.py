"""Ranges of tensors, converted where their bytes lie: in this process or in another.

A batch names files, places and casts, so any process that sees the same files can convert it, again
if need be: the bytes are the same whoever writes them.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from castwise._core import ElementCast, convert_tensors
from castwise.checkpoint._errors import CheckpointError, damage
from castwise.checkpoint.containers.interface import Elements
from castwise.checkpoint.files.source_files import SourceFile, handle, system_error
from castwise.checkpoint.planning.derived_reader import DerivedReader
from castwise.checkpoint.results.report import Report

# Elements; ranges begin at whole tiles, so that reports do not depend on where they are cut.
TILE = 1024


class Casting(NamedTuple):
    """How the elements of a tensor are cast."""

    source: Elements
    target: Elements
    # The options of `castwise.cast`; None if only order or packing changes, without a report.
    options: tuple[tuple[str, Any], ...] | None


@lru_cache(maxsize=64)
def element_cast(casting: Casting) -> ElementCast:
    source, target = casting.source, casting.target
    return ElementCast(
        source.format,
        target.format,
        source_packed=source.packed,
        target_packed=target.packed,
        source_order=source.order,
        target_order=target.order,
        report=casting.options is not None,
        **dict(casting.options or ()),
    )


class TensorRange(NamedTuple):
    """Elements of one tensor, or its bytes if they are copied unchanged."""

    name: str  # key of the tensor
    source: int  # where the bytes of the whole tensor begin in the source
    target: int  # where they begin in the target
    begin: int  # the first element of the range, at a whole tile
    length: int  # elements of the range; its bytes if they are copied
    casting: Casting | None  # how they are cast; None if they are copied, or made
    # The bytes of a tensor that a `DerivedReader` makes of others, as a whole; None for others.
    # Then `length` is the bytes that are read for it.
    made_nbytes: int | None = None
    # The first of the tensors that are made with it, side by side in a batch; None for others
    job: str | None = None

    @property
    def is_cast(self) -> bool:
        """True if there is a report of it."""
        return self.casting is not None and self.casting.options is not None

    @property
    def source_nbytes(self) -> int:
        return self.length if self.casting is None else self.casting.source.nbytes(self.length)

    @property
    def target_nbytes(self) -> int:
        if self.made_nbytes is not None:
            return self.made_nbytes
        return self.length if self.casting is None else self.casting.target.nbytes(self.length)

    @property
    def target_span(self) -> tuple[int, int]:
        """Where its bytes begin and end in the target."""
        bytes_before = self._replace(length=self.begin, made_nbytes=None).target_nbytes
        return self.target + bytes_before, self.target + bytes_before + self.target_nbytes

    @property
    def nbytes(self) -> int:
        return self.source_nbytes + self.target_nbytes

    def split_at(self, nbytes: int) -> tuple[TensorRange | None, TensorRange | None]:
        """Return the tiles within so many bytes, and the rest; None where nothing is left."""
        if nbytes >= self.nbytes:
            return self, None
        if self.made_nbytes is not None:
            return None, self
        count = nbytes // self._replace(length=TILE).nbytes * TILE
        if not count:
            return None, self
        rest = self._replace(begin=self.begin + count, length=self.length - count)
        return self._replace(length=count), rest


def cut_ranges(ranges: Iterable[TensorRange], ends: Iterable[int]) -> Iterator[list[TensorRange]]:
    """Cut ranges, one after the other, where so many bytes are read and written."""
    # Every end has its list, which may be empty; what is left then is in another one.
    rest_of_ranges = iter(ranges)
    rest = next(rest_of_ranges, None)
    nbytes = 0
    for end in ends:
        pieces: list[TensorRange] = []
        while rest is not None:
            # What one job makes stays together.
            is_made_with = pieces and rest.job is not None and rest.job == pieces[-1].job
            piece, rest = (rest, None) if is_made_with else rest.split_at(max(end - nbytes, 0))
            if piece is None:
                break
            pieces.append(piece)
            nbytes += piece.nbytes
            rest = rest or next(rest_of_ranges, None)
        yield pieces
    yield [] if rest is None else [rest, *rest_of_ranges]


def cut_batches(ranges: Sequence[TensorRange], nbytes: int) -> Iterator[list[TensorRange]]:
    """Cut ranges into batches of about so many bytes that are read and written."""
    total = sum(piece.nbytes for piece in ranges)
    # None ends where a large tensor is made.
    return filter(None, cut_ranges(ranges, range(nbytes, total, nbytes)))


class Batch(NamedTuple):
    """Ranges of one file."""

    source: Path  # the file to read
    state: list[int]  # size and time of its last change, which must still hold
    target: Path  # the file to write into, which is there, with its header
    ranges: Sequence[TensorRange]  # what to convert
    threads: int | None  # how many threads may do that
    # What makes tensors that are not in the file as they will be; None if there are none
    maker: DerivedReader | None = None


_Job = tuple[int, int, tuple[int, int], ElementCast | None]

# The report of each range, or why the batch cannot be converted.
Outcome = tuple[list[Report | None], Exception | None]


def convert_batch(batch: Batch) -> Outcome:
    """Convert a batch and flush it to disk; what runs in other processes."""
    try:
        source = SourceFile(batch.source)
        try:
            if source.state != batch.state[: len(source.state)]:
                raise CheckpointError(f"{batch.source} was changed while it was read; run again")
            with batch.target.open("r+b") as target:
                ranges_in_place = [piece for piece in batch.ranges if piece.made_nbytes is None]
                outcome = convert_ranges(
                    batch.source, source.stream, target, ranges_in_place, batch.threads
                )
                if outcome[1] is None and batch.maker is not None:
                    outcome = _add_made(batch.maker, target, batch.ranges, outcome[0]), None
                target.flush()
                os.fsync(target.fileno())
            return outcome
        finally:
            source.close()
    except (OSError, ValueError) as error:
        return [], error


def _add_made(
    maker: DerivedReader,
    target: BinaryIO,
    ranges: Sequence[TensorRange],
    cast_reports: Sequence[Report | None],
) -> list[Report | None]:
    """Make the tensors that are made; returns the reports of all, given those of the others."""
    reports_left = iter(cast_reports)
    with maker.beside_others() as reader:
        made = reader.write([(span.name, span.target) for span in ranges if span.job], target)
    return [made[span.name] if span.job else next(reports_left) for span in ranges]


def convert_ranges(
    path: Path,
    source: BinaryIO,
    target: BinaryIO,
    ranges: Iterable[TensorRange],
    threads: int | None,
    *,
    poll: Callable[[int], object] | None = None,
) -> Outcome:
    """Let the engine convert ranges of the file at `path`, open as `source`."""
    # The engine takes each range when it needs it. `poll` gets the bytes taken so far now and then.
    target.flush()  # the header
    names: list[str] = []
    reports, failure = convert_tensors(
        handle(source), handle(target), _jobs(ranges, names), threads, poll
    )
    if failure is None:
        return list(reports), None
    index, stage, number, error = failure
    name = names[index]
    if error is not None:
        return [], name_error(error, name)
    if number is None and stage == "write":  # the system took none of the bytes
        return [], OSError(errno.EIO, "no more can be written")
    if number is None:
        return [], damage(f"{path}: truncated while it was read; tensor {name!r}")
    # Without a path it is taken for the destination's.
    return [], system_error(number, str(path) if stage == "read" else None)


def name_error(error: Exception, name: str) -> Exception:
    """Put the tensor in front of an error of `castwise.cast`."""
    return type(error)(f"tensor {name!r}: {error}")


def _jobs(ranges: Iterable[TensorRange], names: list[str]) -> Iterator[_Job]:
    """Make the job of each range, whose tensor's name is noted at the same position."""
    casting = cast = None
    for piece in ranges:
        names.append(piece.name)
        if piece.casting is not casting:
            casting = piece.casting
            cast = None if casting is None else element_cast(casting)
        yield piece.source, piece.target, (piece.begin, piece.length), cast
