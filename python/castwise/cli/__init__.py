"""The command line: `castwise cast`, `quantize`, `dequantize` and the other commands.

Results go to standard output, everything else to standard error. Exit codes: 0 all is well,
1 the checkpoint was written but values were lost (they became infinite, NaN or zero, wrapped, or
were NaN and became numbers), 2 an error, 129 hung up, 130 interrupted, 141 whoever read standard
output has gone, 143 terminated.
"""

import argparse
import gc
import logging
import os
import shlex
import signal
import sys
import warnings
from collections.abc import Sequence
from contextlib import suppress
from copy import copy
from pathlib import Path
from typing import NoReturn, TextIO

from castwise.cli._output import BROKEN_PIPE, ERROR, INTERRUPTED, abandon_output, say, worded
from castwise.cli._parser import parse_arguments
from castwise.environment.defaults import ERRORS
from castwise.rendering.text import printable
from castwise.text.wording import for_command, reword_core

# Characters of an error, at most: names and values in it may be as long as a file makes them.
_LONGEST = 4000

# Collections of young objects from one of all objects to the next.
_FULL_COLLECTIONS = 1000

_HUB_VERBOSITY = "HF_HUB_VERBOSITY"

_formatted_warning = warnings.formatwarning

_CLOSED = "standard output is closed; to discard what is printed, send it to /dev/null"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    _prepare(is_process=arguments is None)
    try:
        words = sys.argv[1:] if arguments is None else arguments
        options = _parse_for_process(words) if arguments is None else parse_arguments(words)
        if sys.stdout is None:
            raise OSError(_CLOSED)  # noqa: TRY301
        if ERRORS:
            raise ValueError(" ".join(ERRORS))  # noqa: TRY301
        options.command_line = shlex.join(words)
        code: int = options.run(options)
        sys.stdout.flush()
    except (KeyboardInterrupt, Exception) as error:
        code = _code_of(error)
    if arguments is None:
        # The process ends: a last search of all objects for cycles took a tenth of its time.
        gc.freeze()
    return code


def _parse_for_process(words: Sequence[str]) -> argparse.Namespace:
    """Parse the arguments of the process, and import the modules of the command."""
    # Of what is imported, nothing is collected: it lives as long as the process.
    is_collecting = gc.isenabled()
    gc.disable()
    try:
        options = parse_arguments(words)
        gc.freeze()
    finally:  # a program may catch the exit of `--help` and of a usage error
        if is_collecting:
            gc.enable()
    return options


def _prepare(*, is_process: bool) -> None:
    # Plans of many weights live as long as the command: to look through all of them again and again
    # for cycles took a third of its time. Young objects are looked through as often as before.
    # A program that calls `main` with arguments of its own keeps its settings.
    if is_process:
        gc.set_threshold(*gc.get_threshold()[:2], _FULL_COLLECTIONS)
        os.environ.setdefault(_HUB_VERBOSITY, "error")  # its library prints each attempt
    if sys.stderr is None:  # closed; print would turn to standard output
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115  (as long as the process)
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError):  # a stream of a test or notebook
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    handler = _StderrHandler()
    # What fails is said in one line, which the libraries of stores would surround by their own.
    handler.addFilter(logging.Filter("castwise"))
    handler.setFormatter(PrintableFormatter("castwise: %(message)s"))
    logging.basicConfig(handlers=[handler], level=logging.WARNING)
    warnings.formatwarning = _warning_line
    with suppress(ValueError):  # not the main thread
        for number in (signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM)):
            if signal.getsignal(number) == signal.SIG_DFL:  # not ignored, as under nohup
                signal.signal(number, _terminate)


def _code_of(error: BaseException) -> int:
    """Report what ended a command; returns the exit code."""
    match error:
        case KeyboardInterrupt():
            say("interrupted")
            return INTERRUPTED
        case BrokenPipeError():
            abandon_output()  # whoever read it has gone
            return BROKEN_PIPE
        case ValueError() | TypeError() | OverflowError() | OSError() | MemoryError():
            return _report_failure(_message(error))
    # Of a package that a store or a framework brings along, each with errors of its own.
    reason = " ".join(f"{type(error).__name__}: {error}".split())
    return _report_failure(f"{reason}; castwise did not expect this error, so please report it")


def _report_failure(message: str) -> int:
    """Say what was wrong, after what was printed before; returns the exit code."""
    if (more := len(message) - _LONGEST) > 0:
        half = _LONGEST // 2
        message = f"{message[:half]}... ({more:,} characters more) ...{message[-half:]}"
    say(f"error: {message}")
    try:
        sys.stdout.flush()
    except (OSError, ValueError, AttributeError):  # it is full or closed
        abandon_output()
    return ERROR


class _StderrHandler(logging.StreamHandler[TextIO]):
    """Writes to standard error as it is then: a program may call `main` twice, and redirect it."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record, as one line."""
        self.stream = sys.stderr
        super().emit(record)


class PrintableFormatter(logging.Formatter):
    """Escapes control characters: what is logged quotes files that nobody trusts."""

    def format(self, record: logging.LogRecord) -> str:
        """Format a record as one printable line, as the command words it."""
        record = copy(record)
        record.args = worded(record.args)
        return printable(super().format(record))


def _warning_line(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    line: str | None = None,
) -> str:
    """Format a warning to users as what is logged; others say where in which source they are."""
    if category is UserWarning:
        return f"castwise: warning: {printable(for_command(str(message)))}\n"
    return _formatted_warning(message, category, filename, lineno, line)


def _terminate(number: int, frame: object) -> NoReturn:
    """Exit with the code that shells give to a signal."""
    del frame
    sys.exit(128 + number)


def _message(error: BaseException) -> str:
    """Return what an error says, with the name of the file that it is about."""
    if not isinstance(error, OSError) or not error.strerror:
        return for_command(reword_core(str(error))) or type(error).__name__
    name, missing = error.filename, isinstance(error, FileNotFoundError)
    reason = for_command(error.strerror)
    if not name:
        gone = "; the folder that castwise runs in is gone, so change to another"
        return f"{reason}{gone if missing else ''}"
    text = f"{name}: {reason}"
    has_remedy = "; " in reason or "://" in str(name)
    if missing and not has_remedy and not (folder := Path(str(name)).parent).is_dir():
        text += f"; there is no folder {folder}"
    return text
