"""One line on a terminal that says how far a run is."""

import time
from typing import Self, TextIO

from castwise.checkpoint import Progress
from castwise.cli._output import terminal_columns
from castwise.rendering.text import printable, size_text

# A person sees no faster change, and a terminal over a network is slow to draw.
_SECONDS_BETWEEN = 0.1
_SECONDS_TO_KNOW = 1.0  # before that a rate says little
_MINUTE, _HOUR = 60, 3600
_BAR_WIDTH = 24
# To the first column, and erase to the end of the line (ECMA-48, EL).
_CLEAR = "\r\x1b[K"


class ProgressLine:
    """A bar that is drawn over itself, and gone at the end; nothing if there is no terminal."""

    def __init__(self, stream: TextIO, *, quiet: bool = False) -> None:
        self._stream = stream
        self._begin: float | None = None
        self._last = float("-inf")
        self.visible = stream.isatty() and not quiet

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        if self.visible:
            self._draw("")

    def _draw(self, line: str) -> None:
        """Draw a line, as long as the terminal is there: the work does not depend on it."""
        try:
            self._stream.write(_CLEAR + line)
            self._stream.flush()
        except OSError:
            self.visible = False

    def show(self, progress: Progress) -> None:
        """Draw the bar, if the last time was long enough ago."""
        if not self.visible:
            return
        seconds = time.monotonic()
        if self._begin is None:
            self._begin = seconds
        if seconds - self._last < _SECONDS_BETWEEN and progress.name is not None:
            return
        self._last = seconds
        share = progress.done / progress.total if progress.total else 1.0
        bar = ("#" * round(share * _BAR_WIDTH)).ljust(_BAR_WIDTH, "-")
        line = (
            f"[{bar}] {share:4.0%}  {size_text(progress.done)} of {size_text(progress.total)}  "
            f"{rate_text(progress, seconds - self._begin)}{printable(progress.name or '')}"
        )
        # Of this terminal: standard output may be another one, or none.
        width = (terminal_columns(self._stream) or len(line) + 1) - 1
        self._draw(line[:width])


def rate_text(progress: Progress, seconds: float) -> str:
    """Write the bytes per second and the time left; nothing as long as both are a guess."""
    if seconds < _SECONDS_TO_KNOW or not progress.done or progress.name is None:
        return ""
    rate = progress.done / seconds
    seconds_left = round((progress.total - progress.done) / rate)
    if seconds_left < _MINUTE:
        time_left = f"{seconds_left} s"
    elif seconds_left < _HOUR:
        time_left = f"{seconds_left // _MINUTE} min {seconds_left % _MINUTE:02} s"
    else:
        time_left = f"{seconds_left // _HOUR} h {seconds_left % _HOUR // _MINUTE:02} min"
    return f"{size_text(round(rate))}/s  {time_left} left  "
