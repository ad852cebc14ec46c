"""Convert the tensors of one container into another, in pieces.

Where both lie in files as they are, the engine reads, casts and writes them, several pieces at a
time. Else pieces of about a mebibyte pass through here. Only an array in Fortran order that must
change its order, or whose result depends on places in C order, is read whole.
"""

from __future__ import annotations

import errno
import math
import os
from collections.abc import Iterator, Sequence
from functools import lru_cache

from castwise._core import CastReport, ElementCast, cast, convert_tensors
from castwise.checkpoint._errors import CheckpointError
from castwise.checkpoint._filesystem import handle
from castwise.checkpoint._tensors import format_info
from castwise.checkpoint.containers._interface import Elements, Reader, Writer
from castwise.checkpoint.plan import CastOptions
from castwise.checkpoint.report import CastRow, ProgressMeter

_PIECE_BYTES = 1 << 20
_TILE = 1024  # elements; a piece holds whole tiles
_BYTE_BITS = 8


def convert_container(
    reader: Reader,
    writer: Writer,
    options: CastOptions,
    meter: ProgressMeter,
    *,
    shard: str | None = None,
) -> list[CastRow]:
    """Write every planned tensor.

    Raises
    ------
    OverflowError, ValueError, TypeError
        As `castwise.cast`, with the tensor's name in front.
    MemoryError
        An array that must be read whole does not fit; the message names it.

    """
    conversion = _Conversion(reader, writer, options)
    placed = [name for name in writer.order if conversion.is_placed(name)]
    reports = iter(conversion.in_place(placed, meter))
    kept_apart = len(placed) < len(writer.order)
    others: dict[str, CastReport | None] = (
        dict.fromkeys(set(writer.order).difference(placed)) if kept_apart else {}
    )
    for name in writer.order:
        if name in others:
            meter.starts(name)
            others[name] = conversion.passed_through(name, meter)
            meter.finished(conversion.plans[name].info.nbytes)
    return [
        conversion.row(name, others[name] if name in others else next(reports), shard)
        for name in writer.order
    ]


class _Conversion:
    """One container on its way into another."""

    def __init__(self, reader: Reader, writer: Writer, options: CastOptions) -> None:
        self._reader = reader
        self._writer = writer
        self.plans = writer.planned
        self._options = options
        self._casts: dict[tuple[Elements, Elements, bool], ElementCast] = {}

    def is_placed(self, name: str) -> bool:
        """Return True if the engine can convert a tensor where it lies."""
        places = (self._reader.place(name), self._writer.place(name))
        return None not in places and not self._is_whole(name)

    def in_place(self, names: list[str], meter: ProgressMeter) -> list[CastReport | None]:
        """Let the engine convert tensors."""
        places = self._reader.place(names[0]) if names else None, self._writer
        if places[0] is None or (target := self._writer.place(names[0])) is None:
            return []
        target[0].flush()  # the header
        watch = _Watch(meter, [(name, self.plans[name].info.nbytes) for name in names])
        reports, failure = convert_tensors(
            handle(places[0][0]),
            handle(target[0]),
            map(self._job, names),
            self._options.threads,
            watch.poll,
        )
        if failure is not None:
            index, stage, number, error = failure
            raise self._failure(names[index], stage, number, error) from error
        watch.finish()
        return reports

    def _failure(
        self, name: str, stage: str, number: int | None, error: Exception | None
    ) -> Exception:
        """Make the exception for what ended the engine's run."""
        if error is not None:
            return _named(error, name)
        if number is None and stage == "write":  # the system took none of the bytes
            return OSError(errno.EIO, "no more can be written")
        if number is None:
            return CheckpointError(
                f"{self._reader.path}: truncated while it was read; tensor {name!r}"
            )
        # Without a path it is taken for the destination's.
        path = [str(self._reader.path)] if stage == "read" else []
        return OSError(number, os.strerror(number), *path)

    def passed_through(self, name: str, meter: ProgressMeter) -> CastReport | None:
        """Convert a tensor whose pieces pass through Python, or which is read whole."""
        if self._is_whole(name):
            return self._at_once(name)
        element_cast = self._cast(name)
        if element_cast is None:
            self._writer.write_pieces(name, self._reader.pieces(name, _PIECE_BYTES))
            return None
        old, new = self._reader.elements(name), self._writer.elements(name)
        assert old is not None, "others are kept or read whole"  # noqa: S101
        widest = max(format_info(side.format).itemsize for side in (old, new))
        count = max(_PIECE_BYTES // widest // _TILE, 1) * _TILE
        reports: list[CastReport] = []

        def converted() -> Iterator[bytes]:
            done = 0
            for piece in self._reader.pieces(name, _nbytes(old, count)):
                if done:
                    meter.reaches(done, name)
                try:
                    first = done // _nbytes(old, _TILE) * _TILE
                    result, report = element_cast.convert(first, piece)
                except (OverflowError, ValueError, TypeError) as error:
                    raise _named(error, name) from error
                if report is not None:
                    reports[:] = [sum(reports, report)]
                done += len(piece)
                yield result

        self._writer.write_pieces(name, converted())
        if self.plans[name].target is None:
            return None
        return reports[0] if reports else CastReport()

    def _at_once(self, name: str) -> CastReport | None:
        info, target, report = self.plans[name].info, self.plans[name].target, None
        try:
            array = self._reader.read(name)
            if target is not None:
                options = self._options.for_tensor(name)
                try:
                    array, report = cast(
                        array, target, report=True, threads=self._options.threads, **options
                    )
                except (OverflowError, ValueError, TypeError) as error:
                    raise _named(error, name) from error
            self._writer.write(name, array)
        except MemoryError as error:
            raise MemoryError(
                f"tensor {name!r} of {info.nbytes:,} bytes and its result do not fit in memory"
            ) from error
        return report

    def _is_whole(self, name: str) -> bool:
        if self._writer.keeps(name):
            return False
        old = self._reader.elements(name)
        if old is None or not old.fortran:
            return old is None
        counts = self.plans[name].target is not None and self._options.count_places
        return counts or not self._writer.elements(name).fortran

    def _cast(self, name: str) -> ElementCast | None:
        """Return what becomes of the elements; None if their bytes stay."""
        old, plan = self._reader.elements(name), self.plans[name]
        if old is None or self._writer.keeps(name):
            return None
        new, asked = self._writer.elements(name), plan.target is not None
        if not asked and old == new:
            return None
        if self._options.seed is not None or (old, new, asked) not in self._casts:
            self._casts[old, new, asked] = ElementCast(
                old.format,
                new.format,
                source_packed=old.packed,
                target_packed=new.packed,
                source_order=old.order,
                target_order=new.order,
                report=asked,
                **(self._options.for_tensor(name) if asked else {}),
            )
        return self._casts[old, new, asked]

    def _job(self, name: str) -> tuple[int, int, int, ElementCast | None]:
        source, target = self._reader.place(name), self._writer.place(name)
        assert source is not None  # noqa: S101
        assert target is not None  # noqa: S101
        element_cast, info = self._cast(name), self.plans[name].info
        count = info.nbytes if element_cast is None else math.prod(info.shape)
        return source[1], count, target[1], element_cast

    def row(self, name: str, report: CastReport | None, shard: str | None) -> CastRow:
        """Return the row of a tensor that was written."""
        info, target = self.plans[name].info, self.plans[name].target
        nbytes = info.nbytes
        if not self._writer.keeps(name):
            nbytes = _nbytes(self._writer.elements(name), math.prod(info.shape))
        return CastRow(
            name=name,
            shape=info.shape,
            source=info.label,
            target=target,
            nbytes_before=info.nbytes,
            nbytes_after=nbytes,
            report=report,
            shard=shard,
        )


class _Watch:
    """Tells the meter which tensor the engine has reached."""

    def __init__(self, meter: ProgressMeter, tensors: Sequence[tuple[str, int]]) -> None:
        self._meter = meter
        self._tensors = iter(tensors)
        self._now: tuple[str, int] | None = None
        self._before = 0  # bytes of the tensors before it
        self._next()

    def _next(self) -> None:
        if self._now is not None:
            self._meter.finished(self._now[1])
            self._before += self._now[1]
        self._now = next(self._tensors, None)
        if self._now is not None:
            self._meter.starts(self._now[0])

    def poll(self, taken: int) -> None:
        """Take note that so many bytes were taken, in the order of the tensors."""
        while self._now is not None and taken >= self._before + self._now[1]:
            self._next()
        if self._now is not None and taken > self._before:
            self._meter.reaches(taken - self._before, self._now[0])

    def finish(self) -> None:
        """Take note that all tensors are done."""
        while self._now is not None:
            self._next()


def _named(error: Exception, name: str) -> Exception:
    """Put the tensor in front of an error of `castwise.cast`."""
    return type(error)(f"tensor {name!r}: {error}")


def _nbytes(elements: Elements, count: int) -> int:
    """Return the bytes that so many elements take in a file."""
    return count * _bits(elements) // _BYTE_BITS


@lru_cache
def _bits(elements: Elements) -> int:
    """Return the bits that an element takes in a file."""
    info = format_info(elements.format)
    return info.bits if elements.packed else _BYTE_BITS * info.itemsize
