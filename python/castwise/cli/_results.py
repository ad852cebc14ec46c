"""Show what a command has found: a table or JSON, and the files of `--report`, `--html` and `-o`.

Files are checked before the work, and complete when they appear. What fails after the work, also on
standard output, is said when all else is written and shown. On a terminal, a line shows how far a
run is.
"""

import argparse
import os
import stat
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, Generic, Protocol, Self, TextIO, TypeVar

import castwise
from castwise import checkpoint
from castwise.checkpoint import Progress
from castwise.checkpoint.files.paths import real_path
from castwise.checkpoint.files.replacing import check_own_start, replacing_file
from castwise.cli._arguments import check_top
from castwise.cli._output import (
    abandon_output,
    json_text,
    reason_of,
    show,
    show_sheet,
    terminal_columns,
    worded_sheet,
)
from castwise.rendering.sheet import PAGE_START, Lines, Sheet
from castwise.rendering.text import printable, size_text
from castwise.text.wording import join

# How the files begin, by their option; no other file is replaced.
_STARTS = {"report": b'{\n  "schema": ', "html": PAGE_START.encode(), "output": b"# castwise "}

_NOUNS = {"report": "the report", "html": "the page", "output": "the map"}
# The titles of pages, by command.
_TITLES = {
    "advise": "Advice for {source}",
    "survey": "Magnitudes of {source}, and predicted losses",
    "inspect": "Tensors of {file}",
    "diff": "Differences of {first} and {second}",
    "verify": "Comparison of {first} and {second}",
    "verify --for": "Does {consumer} load {first}?",
    "cast": "{destination}, cast from {source}",
    "quantize": "{destination}, quantized from {source}",
    "dequantize": "{destination}, decoded from {source}",
    "transcode": "{destination}, transcoded from {source}",
}

# The arguments of commands that name checkpoints.
_CHECKPOINTS = ("source", "destination", "file", "first", "second", "reference")


class _Value(Protocol):
    def __sheet__(self) -> Sheet: ...
    def to_dict(self) -> dict[str, Any]: ...


_Result = TypeVar("_Result", bound=_Value)


class Output(Generic[_Result]):
    """Holds the result that the block of `shown_result` finds."""

    result: _Result


@contextmanager
def shown_result(
    # --html and the names of `files`; --json, --quiet, --top and --color if the command has them.
    options: argparse.Namespace,
    # Returns what is printed.
    sheet_of: Callable[[_Result], Sheet],
    *,
    # Makes what is printed as JSON; by default of its `to_dict`, which has no rows for --top.
    json_lines_of: Callable[[_Result], Iterable[str]] | None = None,
    # Make what is written for options beside --html, or for that, by their names.
    files: Mapping[str, Callable[[_Result], Iterable[str]]] | None = None,
    # Returns the checkpoint that is complete if nothing else can be written; None if there is none.
    destination_of: Callable[[_Result], str | None] = lambda result: None,
) -> Iterator[Output[_Result]]:
    """Check the files of a result before a block finds it; write them and show it at the end."""
    if json_lines_of is None:
        check_top(options)
    failures: list[str] = []
    output: Output[_Result] = Output()

    def lines(name: str) -> Iterable[str]:
        if files is not None and name in files:
            return files[name](output.result)
        return page_of(options, output.result.__sheet__())

    with ExitStack() as stack:
        for name in dict.fromkeys((*(files or ()), "html")):
            stack.enter_context(_pending_file(options, name, lines, failures))
        yield output
    result = output.result

    def show_found() -> None:
        if options.json:
            show(json_lines_of(result) if json_lines_of else [json_text(result.to_dict)])
        elif not getattr(options, "quiet", False):
            show_sheet(sheet_of(result), options)

    _show_and_check(show_found, failures, destination_of(result))


@contextmanager
def _pending_file(
    options: argparse.Namespace,
    name: str,
    lines: Callable[[str], Iterable[str]],
    failures: list[str],
) -> Iterator[None]:
    """Open the file of an option, if that is given, for a block, and write its lines at the end."""
    # What can be known before the block raises there. What fails after it is added to `failures`:
    # the work that the file tells of is done.
    path: Path | None = getattr(options, name)
    if path is None:
        yield
        return
    is_done = False
    try:
        with _open_file(options, name, path) as file:
            yield
            is_done = True
            file.writelines(line.encode(errors="backslashreplace") for line in lines(name))
    except Exception as error:
        if not is_done:
            raise
        failures.append(f"{_NOUNS[name]} {path}: " + reason_of(error))


def _show_and_check(show: Callable[[], None], failures: list[str], destination: str | None) -> None:
    """Show a result on standard output, and say which of its files could not be written."""
    # `destination` is a checkpoint that is complete all the same; None if there is none.
    try:
        show()
        sys.stdout.flush()
    except BrokenPipeError:
        if not failures:
            raise
        abandon_output()
    except Exception as error:
        if destination is None and not failures:
            raise
        abandon_output()
        failures.append("standard output: " + reason_of(error))
    if failures:
        beginning = (
            "could not write" if destination is None else f"{destination} was written, but not"
        )
        raise checkpoint.CheckpointError(f"{beginning} " + join("; nor ", failures))


@contextmanager
def _open_file(options: argparse.Namespace, name: str, path: Path) -> Iterator[BinaryIO]:
    """Open the file of an option for a block, at whose end it appears."""
    _check(options, name, path)
    is_open = False
    try:
        with replacing_file(path) as file:
            is_open = True
            yield file
    except checkpoint.CheckpointError as error:
        if is_open:
            raise
        raise checkpoint.CheckpointError(f"--{name}: " + str(error)) from error


def page_of(options: argparse.Namespace, sheet: Sheet) -> Iterator[str]:
    """Make a page of a sheet, under the command that it is of."""
    from castwise.rendering.html import page_lines  # noqa: PLC0415  (3 milliseconds)

    command = options.command_line
    name = command.partition(" ")[0]
    if getattr(options, "second", "") is None:
        name = "verify --for"
    title = _TITLES.get(name, "").format_map(vars(options))
    origin = Lines((f"castwise {castwise.__version__}: castwise {command}",))
    return page_lines(title or f"castwise {command}", [origin, *worded_sheet(sheet)])


def _check(options: argparse.Namespace, name: str, path: Path) -> None:
    """Refuse before the work what could only fail, or do harm, after it."""
    option, real = f"--{name} {path}", real_path(path)
    for argument in _CHECKPOINTS:
        if (checkpoint_path := getattr(options, argument, None)) is not None:
            checkpoint_real_path = real_path(checkpoint_path)
            # A map beside the shards of a model is what people keep there.
            is_inside = name != "output" and checkpoint_real_path in real.parents
            if checkpoint_real_path == real or is_inside:
                raise checkpoint.CheckpointError(f"{option} would replace the checkpoint")
    for other, other_path in vars(options).items():
        if other != name and isinstance(other_path, Path) and real_path(other_path) == real:
            raise checkpoint.CheckpointError(
                f"{option} is the file of --{other}, too; choose another name"
            )
    # Of the path as given: /dev/stdout leads to names that are none.
    with suppress(FileNotFoundError):
        status = os.stat(path)
        if not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
            raise checkpoint.CheckpointError(f"{option} is not a regular file")
        if _is_output(status):
            remedy = "; for JSON there use --json" if name == "report" else ""
            raise checkpoint.CheckpointError(f"{option} is standard output{remedy}")
        noun = "a map of castwise advise" if name == "output" else "a report"
        check_own_start(path, _STARTS[name], noun, option)
    if not real.parent.is_dir():
        raise checkpoint.CheckpointError(f"{option}: there is no folder {path.parent}")


def _is_output(status: os.stat_result) -> bool:
    """Return True if a file is the one that standard output goes to."""
    try:
        return os.path.samestat(status, os.fstat(sys.stdout.fileno()))
    except (OSError, ValueError, AttributeError):  # a stream of a test or notebook
        return False


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
