"""One line on a terminal that says how far a run is."""

import os
import time
from types import TracebackType
from typing import Self, TextIO

from castwise.checkpoint import Progress
from castwise.cli_output import printable, size_text

_SECONDS_BETWEEN = 0.1
_BAR_WIDTH = 24
_COLUMNS = 80  # of a terminal that does not say
_CLEAR = "\r\x1b[K"


class ProgressLine:
    """A bar that is drawn over itself, and gone at the end; nothing if there is no terminal."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._last = float("-inf")
        self.visible = stream.isatty()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.visible:
            self._stream.write(_CLEAR)
            self._stream.flush()

    def show(self, progress: Progress) -> None:
        """Draw the bar, if the last time was long enough ago."""
        now = time.monotonic()
        if now - self._last < _SECONDS_BETWEEN and progress.name is not None:
            return
        self._last = now
        part = progress.done / progress.total if progress.total else 1.0
        bar = ("#" * round(part * _BAR_WIDTH)).ljust(_BAR_WIDTH, "-")
        line = (
            f"[{bar}] {part:4.0%}  {size_text(progress.done)} of {size_text(progress.total)}  "
            f"{printable(progress.name or '')}"
        )
        width = self._columns() - 1
        self._stream.write(_CLEAR + line[:width])
        self._stream.flush()

    def _columns(self) -> int:
        """The width of the stream's own terminal: standard output may be another one, or none."""
        try:
            return os.get_terminal_size(self._stream.fileno()).columns or _COLUMNS
        except OSError:
            return _COLUMNS
