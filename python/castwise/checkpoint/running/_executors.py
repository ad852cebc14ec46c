"""Let an executor convert a file in batches: threads, processes, or the workers of a cluster."""

import logging
from collections.abc import Iterable
from concurrent.futures import Executor, Future
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import BinaryIO, Self

from castwise.checkpoint._errors import CheckpointError
from castwise.checkpoint.results.report import CastRow, ProgressMeter, Report, add_report
from castwise.checkpoint.running._batches import Batch, Outcome, convert_batch, cut_batches
from castwise.checkpoint.running._conversion import Conversion
from castwise.checkpoint.running.output_files import OutputFile, reopen

# Bytes that a batch reads and writes.
BATCH_BYTES = 256 << 20
# After so many seconds of waiting, an executor is tried whether it still accepts work.
PROBE_SECONDS = 10.0

_LOGGER = logging.getLogger(__name__)


class BatchTask:
    """A batch, and what an executor makes of it; without one it is converted when it is wanted."""

    def __init__(self, batch: Batch, executor: Executor | None) -> None:
        self.batch = batch
        self.future: Future[Outcome] | None = None
        self._executor = executor
        if executor is None:
            return
        try:
            self.future = executor.submit(convert_batch, batch)
        except Exception as error:  # of any executor: it is closed, or its scheduler is lost
            self._warn_of_loss(_text_of(error))
        else:
            if self.future is None:
                self._warn_of_loss("its submit() returned None")

    def outcome(self) -> Outcome:
        """Wait for it; a batch whose worker is lost is converted here."""
        if self.future is not None:
            try:
                outcomes, error = self._result(self.future)
            except Exception as error:  # of any executor: a worker died, or cannot be reached
                self._warn_of_loss(_text_of(error))
            else:
                return outcomes, None if error is None else _of_worker(error)
        return convert_batch(self.batch)

    def _result(self, future: Future[Outcome]) -> Outcome:
        """Wait for a future, as long as its executor accepts work."""
        # Futures of a scheduler that is lost may never end: dask's client forgets those that are
        # submitted while it closes.
        while self._executor is not None and isinstance(future, Future):
            try:
                return future.result(PROBE_SECONDS)
            except TimeoutError:
                if future.done():  # it is the batch's own error
                    break
            self._executor.submit(_accept, None)
        return future.result()

    def _warn_of_loss(self, reason: str) -> None:
        _LOGGER.warning(
            "a batch of %s is converted in this process, because the executor did not: %s",
            self.batch.source,
            reason,
        )


def convert_batches(
    conversion: Conversion, tasks: Iterable[BatchTask], meter: ProgressMeter
) -> dict[str, Report | None]:
    """Convert batches of a conversion one after the other; returns the reports of its tensors."""
    reports: dict[str, Report | None] = {}
    for task in tasks:
        ranges = task.batch.ranges
        meter.starts(ranges[0].name)
        outcomes, error = task.outcome()
        if error is not None:
            raise error
        for piece, report in zip(ranges, outcomes, strict=True):
            reports[piece.name] = add_report(reports.get(piece.name), report)
        meter.finish(sum(piece.source_nbytes for piece in ranges))
    with reopen(conversion.reader) as reader:
        reader.check_unchanged()
    return reports


class Executing:
    """Files that an executor converts, if there is one; at the end of the block no batch begins."""

    def __init__(self, executor: Executor | None) -> None:
        self._executor = executor
        self._work: dict[str, list[tuple[Conversion, list[BatchTask]]]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        works = (tasks for work in self._work.values() for _, tasks in work)
        for task in chain.from_iterable(works):
            if task.future is not None:
                with suppress(Exception):  # of any executor; another error may be under way
                    task.future.cancel()

    def begin(self, target: OutputFile, file: BinaryIO) -> None:
        """Write the header into a new file that has a name, and let the executor begin with it."""
        # Nothing is written if there is no executor, or some tensors have no place in the file.
        if self._executor is None:
            return
        conversions = target.conversions()
        if conversions is None:
            return
        target.write_header(file)
        work = self._work[target.name] = []
        for conversion in conversions:
            tasks: list[BatchTask] = []
            work.append((conversion, tasks))
            for ranges in cut_batches(conversion.ranges(), BATCH_BYTES):
                batch = conversion.batch(ranges, Path(file.name))
                tasks.append(BatchTask(batch, self._executor))

    def write(
        self, target: OutputFile, file: BinaryIO, meter: ProgressMeter, shard: str | None
    ) -> list[CastRow]:
        """Wait for the batches of a file, or write it here if it has none; returns its rows."""
        if target.name not in self._work:
            return target.write(file, meter, shard)
        rows: list[CastRow] = []
        work = self._work[target.name]  # until the end, so that an error cancels what is left
        for conversion, tasks in work:
            rows += conversion.rows(convert_batches(conversion, tasks, meter), shard)
        del self._work[target.name]
        return target.in_order(rows, work[0][0].file_order)


def _accept(_: None) -> None:
    """Do nothing, on a worker."""


def _text_of(error: Exception) -> str:
    """Return the text of an error of any library, or the name of its type if it has none."""
    with suppress(Exception):
        return str(error) or type(error).__name__
    return type(error).__name__


def _of_worker(error: Exception) -> Exception:
    """Return the error of a worker as one that says so."""
    by = "in a worker of the executor"
    if not isinstance(error, OSError):
        text = f"{by}: " + _text_of(error)
        with suppress(Exception):  # it takes more than a text, or another one
            return type(error)(text)
        return CheckpointError(text)
    if isinstance(error, FileNotFoundError):
        by += ", which must see the files of this process under the same paths"
    names = (error.filename,) if error.filename is not None else ()
    return OSError(error.errno, (error.strerror or str(error)) + f" {by}", *names)
