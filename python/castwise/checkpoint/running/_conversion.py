"""Convert the tensors of one container into another, in pieces.

Where both lie in files as they are, the engine reads, casts and writes them, several pieces at a
time. Else pieces of about a mebibyte pass through here. A tensor that must change its order, or
whose result depends on places in C order, is brought into C order in a temporary file first.
"""

import math
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import chain, zip_longest
from pathlib import Path
from typing import cast

from castwise._core import CastReport
from castwise.checkpoint._tensors import format_info
from castwise.checkpoint.containers.interface import Arrangement, Elements, Reader, Writer
from castwise.checkpoint.plan import CastOptions
from castwise.checkpoint.planning.derived_reader import DerivedReader
from castwise.checkpoint.results.report import CastRow, ProgressMeter, Report
from castwise.checkpoint.running._batches import (
    TILE,
    Batch,
    Casting,
    TensorRange,
    convert_ranges,
    element_cast,
    name_error,
)
from castwise.checkpoint.running._rearranging import (
    InCOrder,
    JobStream,
    Rearranged,
    in_c_order,
    pieces_of,
    rearrange,
    temporary_file,
)

_PIECE_BYTES = 1 << 20


def row_of(writer: Writer, name: str, report: Report | None, shard: str | None) -> CastRow:
    """Return the row of a tensor that a writer has written, or is to write."""
    return CastRow.of(writer.planned[name], nbytes_after(writer, name), report, shard)


def nbytes_after(writer: Writer, name: str) -> int:
    """Return the bytes that a tensor takes in a new container."""
    info = writer.planned[name].info
    if writer.keeps(name):
        return info.nbytes
    return writer.elements(name).nbytes(math.prod(info.shape))


class Conversion:
    """One container on its way into another, or its tensors of these names."""

    def __init__(
        self,
        reader: Reader,
        writer: Writer,
        options: CastOptions,
        names: Collection[str] | None = None,
    ) -> None:
        self.reader = reader
        self._maker = reader if isinstance(reader, DerivedReader) else None
        self._writer = writer
        self._plans = writer.planned
        self._order = writer.order
        if names is not None:
            self._order = [name for name in writer.order if name in names]
        self._options = options
        self._castings: dict[tuple[Elements, Elements, bool], Casting] = {}
        # Of the tensors in their order, those with places; a dict takes 50 bytes more of each.
        self._nbytes_after: list[int | None] = []

    @property
    def file_order(self) -> Sequence[str]:
        return self._writer.order

    @property
    def is_placed(self) -> bool:
        """True if all tensors can be converted, or made, each at its place."""
        return len(self.ranges()) == len(self._order)

    def ranges(self) -> list[TensorRange]:
        """Return the tensors with places, which the engine converts or a `batch` makes."""
        # Tensors are in the writer's order, but those of one job are side by side.
        ranges: dict[str, list[TensorRange]] = {}
        for name in self._order:
            if (span := self._range(name)) is not None:
                ranges.setdefault(span.job or name, []).append(span)
        return [span for spans in ranges.values() for span in spans]

    def _find_placed(self, rest: dict[str, TensorRange | None]) -> Iterator[TensorRange]:
        """Find what the engine converts at its place, one by one; others are noted."""
        self._nbytes_after = []
        for name in self._order:
            span = self._range(name)
            is_placed = span is not None and span.job is None
            self._nbytes_after.append(span.target_nbytes if span and is_placed else None)
            if span is not None and is_placed:
                yield span
            else:
                rest[name] = span

    def batch(self, ranges: Sequence[TensorRange], target: Path) -> Batch:
        """Return what converts some of `ranges` into a file with that header, in any process."""
        maker = self._maker if any(span.made_nbytes is not None for span in ranges) else None
        source, threads = self.reader.path.absolute(), self._options.threads
        return Batch(source, self.reader.state, target, ranges, threads, maker)

    def run(self, meter: ProgressMeter, folder: Path | None = None) -> dict[str, Report | None]:
        """Let the engine convert tensors with places in this process, then convert the others."""
        # Returns the reports, by tensor, for `rows`; what a `batch` would make is of the others.
        # Temporary files are made in `folder`, or where the system has them.
        rest: dict[str, TensorRange | None] = {}
        reports: dict[str, Report | None] = {}
        ranges = self._find_placed(rest)
        if (leading := next(ranges, None)) is not None:
            source, target = self.reader.place(leading.name), self._writer.place(leading.name)
            assert source is not None, "by `ranges`"  # noqa: S101
            assert target is not None, "by `ranges`"  # noqa: S101
            watch = _Watch(meter)
            # The engine begins with the first while the others are found.
            engine_reports, error = convert_ranges(
                self.reader.path,
                source[0],
                target[0],
                watch.note(chain([leading], ranges), reports),
                self._options.threads,
                poll=watch.poll if meter.is_heard else None,
            )
            if error is not None:
                raise error
            watch.finish()
            for name, report in zip(reports, engine_reports, strict=True):
                reports[name] = report
        names_of_stream = [name for name, span in rest.items() if span is None]
        self.reader.expect(names_of_stream)
        with ExitStack() as files:
            stream = (
                None
                if self._maker is None
                else JobStream(self._maker, names_of_stream, folder, files)
            )
            places = [(name, span.target) for name, span in rest.items() if span is not None]
            if places:
                place = self._writer.place(places[0][0])
                assert self._maker is not None, "by `_range`"  # noqa: S101
                assert place is not None, "by `_range`"  # noqa: S101
                reports |= self._maker.write(places, place[0], meter)
            for name in names_of_stream:
                if self._is_rearranged(name):
                    reports[name] = self._rearrange(name, meter, folder)
                else:
                    reports[name] = self._convert_pieces(name, meter, stream)
        return reports

    def sizes(self) -> list[tuple[int, int]]:
        """Return what each tensor takes, in the order of conversion: its bytes, and others."""
        # The others are those of temporary files, as long as it is converted.

        def is_later(name: str) -> bool:
            span = self._range(name)
            return span is None or span.job is not None

        order = sorted(self._order, key=is_later)
        return [(nbytes_after(self._writer, name), self._temporary(name)) for name in order]

    def row(self, name: str, report: Report | None, shard: str | None) -> CastRow:
        return row_of(self._writer, name, report, shard)

    def rows(self, reports: Mapping[str, Report | None], shard: str | None) -> list[CastRow]:
        """Return the rows of all tensors, given the reports that `run` or batches returned."""
        return [
            CastRow.of(
                self._plans[name], nbytes or nbytes_after(self._writer, name), reports[name], shard
            )
            for name, nbytes in zip_longest(self._order, self._nbytes_after)
        ]

    def _convert_pieces(
        self, name: str, meter: ProgressMeter, stream: JobStream | None
    ) -> Report | None:
        """Convert a tensor whose pieces pass through Python."""
        meter.starts(name)
        casting, maker = self._casting(name), self._maker
        is_derived = maker is not None and maker.find_derived(name) is not None
        read = partial(self.reader.pieces, name)
        if stream is not None and is_derived:
            read = partial(stream.pieces, name)
        if casting is None:
            self._writer.write_pieces(name, read(_PIECE_BYTES))
            meter.finish(self._plans[name].info.nbytes)
            return None if stream is None else stream.reports.get(name)
        source, cast_piece = casting.source, element_cast(casting).convert
        widest = max(format_info(side.format).itemsize for side in (source, casting.target))
        count = max(_PIECE_BYTES // widest // TILE, 1) * TILE
        reports: list[CastReport] = []

        def convert() -> Iterator[bytes]:
            offset = 0
            for piece in read(source.nbytes(count)):
                if offset:
                    meter.reaches(offset, name)
                try:
                    start = offset // source.nbytes(TILE) * TILE
                    result, report = cast_piece(start, piece)
                except (OverflowError, ValueError, TypeError) as error:
                    raise name_error(error, name) from error
                if report is not None:
                    reports[:] = [sum(reports, report)]
                offset += len(piece)
                yield result

        self._writer.write_pieces(name, convert())
        meter.finish(self._plans[name].info.nbytes)
        if not self._plans[name].is_cast:
            return None if stream is None else stream.reports.get(name)
        return reports[0] if reports else CastReport()

    def _rearrange(self, name: str, meter: ProgressMeter, folder: Path | None) -> Report | None:
        """Convert a tensor that is brought into C order for it."""
        meter.starts(name)
        with in_c_order(self.reader, name, folder) as file_in_order:
            if not self._writer.elements(name).fortran:
                return self._convert_one(file_in_order, self._writer, meter, folder)
            with temporary_file(folder) as result, temporary_file(folder) as new_file:
                writer = InCOrder(self._writer, name, result)
                report = self._convert_one(file_in_order, writer, meter, folder)
                elements, shape = self._writer.elements(name), self._plans[name].info.shape
                arrangement = Arrangement.fortran(elements.nbytes(1), shape)
                rearrange(arrangement.in_c_order(), arrangement, (result, 0), new_file)
                length = elements.nbytes(math.prod(shape))
                self._writer.write_pieces(name, pieces_of(new_file, 0, length, _PIECE_BYTES))
        return report

    def _temporary(self, name: str) -> int:
        """Return the most bytes that `_rearrange` takes beside the tensor's own, when it ends."""
        arrangement = self.reader.arrangement(name)
        if arrangement is None or not self._is_rearranged(name):
            return 0
        nbytes_in_order = self.reader.tensors[name].nbytes
        new_nbytes = nbytes_after(self._writer, name)
        nbytes_of_result = 2 * new_nbytes if self._writer.elements(name).fortran else 0
        nbytes_of_source = 0 if self.reader.place(name) is not None else arrangement.reach
        return nbytes_in_order + max(nbytes_of_result, nbytes_of_source - new_nbytes)

    def _convert_one(
        self, reader: Rearranged, writer: Writer, meter: ProgressMeter, folder: Path | None
    ) -> Report | None:
        conversion = Conversion(cast("Reader", reader), writer, self._options, reader.tensors)
        (row,) = conversion.rows(conversion.run(meter, folder), None)
        return row.report

    def _is_rearranged(self, name: str) -> bool:
        """Return True if the tensor must be in C order, and is not."""
        if self.reader.arrangement(name) is None or self._writer.keeps(name):
            return False
        elements = self.reader.elements(name)
        assert elements is not None, "writers refuse what is of no format"  # noqa: S101
        if not elements.fortran:
            return True
        counts = self._plans[name].target is not None and self._options.count_places
        return counts or not self._writer.elements(name).fortran

    def _casting(self, name: str) -> Casting | None:
        """Return what becomes of the elements; None if their bytes stay."""
        if self._writer.keeps(name):
            return None
        source = self.reader.elements(name)
        assert source is not None, "writers refuse what is of no format"  # noqa: S101
        target, is_cast = self._writer.elements(name), self._plans[name].is_cast
        if not is_cast and source == target:
            return None
        casting = self._castings.get((source, target, is_cast))
        if casting is None or self._options.seed is not None:
            options, plan = None, self._plans[name]
            if is_cast:
                pairs = self._options.for_tensor(name, plan.info.format, plan.target)
                options = tuple(pairs.items())
            casting = self._castings[source, target, is_cast] = Casting(source, target, options)
        return casting

    def _range(self, name: str) -> TensorRange | None:
        """Return where a tensor lies in both files; None if it cannot be converted there."""
        source, target = self.reader.place(name), self._writer.place(name)
        if (
            target is not None
            and self._maker is not None
            and self._maker.find_derived(name) is not None
        ):
            if self._casting(name) is not None:
                return None
            nbytes = nbytes_after(self._writer, name)
            read, (_, names) = self._plans[name].info.nbytes, self._maker.job(name)
            return TensorRange(name, 0, target[1], 0, read, None, nbytes, names[0])
        if source is None or target is None or self._is_rearranged(name):
            return None
        casting, info = self._casting(name), self._plans[name].info
        length = info.nbytes if casting is None else math.prod(info.shape)
        return TensorRange(name, source[1], target[1], 0, length, casting)


class _Watch:
    """Tells the meter which tensor the engine has reached."""

    def __init__(self, meter: ProgressMeter) -> None:
        self._meter = meter
        self._ranges: deque[TensorRange] = deque()
        self._current: TensorRange | None = None
        self._bytes_before = 0  # bytes of the tensors before it

    def note(
        self, ranges: Iterable[TensorRange], reports: dict[str, Report | None]
    ) -> Iterator[TensorRange]:
        """Take note of whole tensors as the engine is given them, and begin their reports."""
        for span in ranges:
            reports[span.name] = None  # a list of names takes 8 bytes more of each
            if not self._meter.is_heard:
                yield span
                continue
            self._ranges.append(span)
            if self._current is None:
                self._next()
            yield span

    def _next(self) -> None:
        if self._current is not None:
            self._meter.finish(self._current.source_nbytes)
            self._bytes_before += self._current.source_nbytes
        self._current = self._ranges.popleft() if self._ranges else None
        if self._current is not None:
            self._meter.starts(self._current.name)

    def poll(self, nbytes: int) -> None:
        """Take note that so many bytes were taken, in the order of the tensors."""
        while (
            self._current is not None and nbytes >= self._bytes_before + self._current.source_nbytes
        ):
            self._next()
        if self._current is not None and nbytes > self._bytes_before:
            self._meter.reaches(nbytes - self._bytes_before, self._current.name)

    def finish(self) -> None:
        """Take note that all tensors are done."""
        while self._current is not None:
            self._next()
