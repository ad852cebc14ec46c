"""Make what jobs make a stream, for containers that take tensors one by one, without places.

Parts that a job makes beside its payload wait in a temporary file. A payload never does, so that
the file stays small: where other parts come before it, they are made by themselves.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO, cast

from castwise.checkpoint._tensors import numpy_dtype
from castwise.checkpoint.containers.array_bytes import to_bytes
from castwise.checkpoint.planning.derived_reader import DerivedReader
from castwise.checkpoint.results.report import Report, add_report
from castwise.checkpoint.running._rearranging import pieces_of, temporary_file, write_at


class JobStream:
    """The tensors that jobs make, one by one."""

    def __init__(
        self,
        maker: DerivedReader,  # makes them
        names: Sequence[str],  # the tensors that will be wanted, in their order
        folder: Path | None,  # where the temporary file is made; None for the system's folder
        files: ExitStack,  # closes it
    ) -> None:
        # What was lost, by the payloads that were made.
        self.reports: dict[str, Report | None] = {}
        self._maker = maker
        self._names = set(names)
        self._folder = folder
        self._files = files
        self._file: BinaryIO | None = None
        self._places: dict[str, tuple[int, int]] = {}
        self._end = 0

    def pieces(self, name: str, nbytes: int) -> Iterator[bytes]:
        """Make a tensor, or read it where it waits, so many bytes at a time."""
        if (place := self._places.pop(name, None)) is not None and self._file is not None:
            yield from pieces_of(self._file, *place, nbytes)
            return
        payload, names = self._maker.job(name)
        smaller = [part for part in names if part in self._names and part not in {name, payload}]
        ends = {part: self._reserve(part) for part in smaller}
        for arrays, report in self._maker.make_tensors([name, *smaller]):
            for part, array in arrays.items():
                data = to_bytes(array).data
                if part == name:
                    yield cast("bytes", data)  # as good to write
                elif self._file is not None:
                    write_at(self._file, data, ends[part])
                    ends[part] += data.nbytes
            if report is not None:
                self.reports[payload] = add_report(self.reports.get(payload), report)
        self._names -= {name, *smaller}

    def _reserve(self, name: str) -> int:
        """Reserve room for a tensor that waits; returns where it begins."""
        tensor, begin = self._maker.find_derived(name), self._end
        assert tensor is not None, "of a job"  # noqa: S101
        if self._file is None:
            self._file = self._files.enter_context(temporary_file(self._folder))
        length = math.prod(tensor.info.shape) * numpy_dtype(tensor.format).itemsize
        self._places[name] = begin, length
        self._end += length
        return begin
