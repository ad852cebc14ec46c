"""The command line: `castwise cast`, `castwise inspect`, `castwise formats`.

Results go to standard output, everything else to standard error. Exit codes: 0 all is well,
1 the checkpoint was written but values were lost (became infinite or NaN, wrapped, or were NaN and
became numbers), 2 an error, 129 hung up, 130 interrupted, 141 whoever read standard output has
gone, 143 terminated.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import stat
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

import castwise
from castwise import checkpoint
from castwise._environment import ERRORS
from castwise.checkpoint._filesystem import checked_path, replacing_file
from castwise.cli_output import (
    cast_text,
    format_fields,
    formats_text,
    inspection_text,
    json_text,
    printable,
)
from castwise.cli_progress import ProgressLine

OK, FINDINGS, ERROR, INTERRUPTED, BROKEN_PIPE = 0, 1, 2, 130, 141

_CAST = """\
Cast a checkpoint: .safetensors, .npz, .npy, or a folder of safetensors shards.

DST appears, or is replaced, when it is complete, and may be SRC itself. Tensors
pass through memory in pieces of about a mebibyte. Metadata is kept, and so is,
byte for byte, every integer, bool and complex tensor that no key of a map names.
"""
_EXIT_CODES = """\
exit codes:
  0  the checkpoint was written
  1  it was written, but numbers became infinite or NaN, values wrapped into integers,
     or NaN became numbers without --nan zero; see the table
  2  an error; DST is as it was, unless the message says that it was written
  129, 130, 143  hung up, interrupted, terminated; DST is as it was, or complete
  141  it was written, but whoever read standard output had gone
"""
_CLOSED = "standard output is closed; what nobody is to read, send to /dev/null"
_ROUNDINGS = (
    "nearest-even",
    "nearest-away",
    "towards-zero",
    "towards-positive",
    "towards-negative",
    "stochastic",
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    if sys.stderr is None:  # closed; print would turn to standard output
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115  (as long as the process)
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError):  # a stream of a test or notebook
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    handler = logging.StreamHandler()
    handler.setFormatter(_PrintableFormatter("castwise: %(message)s"))
    logging.basicConfig(handlers=[handler], level=logging.WARNING)
    with suppress(ValueError):  # not the main thread
        for number in (signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM)):
            if signal.getsignal(number) == signal.SIG_DFL:  # not ignored, as under nohup
                signal.signal(number, _terminate)
    try:
        options = _parser().parse_args(arguments)
        if sys.stdout is None:
            raise OSError(_CLOSED)  # noqa: TRY301
        if ERRORS:
            raise ValueError(" ".join(ERRORS))  # noqa: TRY301
        code: int = options.run(options)
        sys.stdout.flush()
    except KeyboardInterrupt:
        _say("interrupted")
        return INTERRUPTED
    except BrokenPipeError:
        _abandon_output()  # whoever read it has gone
        return BROKEN_PIPE
    except (ValueError, TypeError, OverflowError, OSError, MemoryError) as error:
        _say(f"error: {_message(error)}")
        try:
            sys.stdout.flush()
        except (OSError, ValueError, AttributeError):  # it is full or closed
            _abandon_output()
        return ERROR
    return code


class _PrintableFormatter(logging.Formatter):
    """Escapes control characters: what is logged quotes files that nobody trusts."""

    def format(self, record: logging.LogRecord) -> str:
        """The record on one line."""
        return printable(super().format(record))


def _abandon_output() -> None:
    """Send what is left of standard output nowhere, or Python would fail on it at exit."""
    with suppress(OSError, ValueError, AttributeError):  # a stream of a test or notebook
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _terminate(number: int, frame: object) -> NoReturn:
    del frame
    sys.exit(128 + number)


def _say(text: str) -> None:
    print(f"castwise: {printable(text)}", file=sys.stderr)


def _message(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error) or type(error).__name__


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="castwise", description="Exact casts of whole checkpoints, and what they lose."
    )
    parser.add_argument("--version", action="version", version=f"castwise {castwise.__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_cast(commands)
    inspect = commands.add_parser("inspect", help="what a checkpoint holds, from its headers alone")
    inspect.add_argument("file", metavar="FILE", type=_path, help="a file, or a folder of shards")
    inspect.add_argument("--json", action="store_true", help="print JSON")
    inspect.set_defaults(run=_inspect)
    formats = commands.add_parser("formats", help="every format castwise knows")
    formats.add_argument("--json", action="store_true", help="print JSON")
    formats.set_defaults(run=_formats)
    return parser


def _path(text: str) -> Path:
    try:
        return checked_path(text)
    except checkpoint.CheckpointError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _add_cast(commands: Any) -> None:
    cast = commands.add_parser(
        "cast",
        help="cast a checkpoint and print what that lost",
        description=_CAST,
        epilog=_EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    cast.add_argument("source", metavar="SRC", type=_path, help="the checkpoint to read")
    cast.add_argument("destination", metavar="DST", type=_path, help="the checkpoint to write")
    what = cast.add_mutually_exclusive_group(required=True)
    what.add_argument("--dtype", metavar="D", help="format for all floating tensors")
    what.add_argument(
        "--policy",
        metavar="P",
        help="a dtype policy, such as mixed_bfloat16, or a .json file with the config of a policy "
        "or policy map as Keras writes it",
    )
    what.add_argument(
        "--map",
        metavar="FILE",
        type=_path,
        help='JSON or TOML: {"default": D, REGEX: D or "keep", ...}; a key matches whole names',
    )
    cast.add_argument(
        "--role",
        choices=("variable", "compute"),
        default="variable",
        help="which dtype of the policy: what variables are kept in (default) or computed in",
    )
    cast.add_argument("--rounding", choices=_ROUNDINGS, help="default: as numpy, nearest-even")
    cast.add_argument(
        "--overflow",
        choices=("ieee", "saturate", "raise"),
        default="ieee",
        help="beyond the range: inf or NaN (ieee, the default), the largest number, or an error",
    )
    cast.add_argument(
        "--nan",
        choices=("keep", "zero", "raise"),
        default="keep",
        help="what becomes of NaN (default: keep)",
    )
    cast.add_argument(
        "--seed", metavar="S", type=int, help="for stochastic rounding (default: a new one)"
    )
    cast.add_argument("--threads", metavar="N", type=int, help="default: all cores")
    cast.add_argument(
        "--assume", metavar="D", help="the format of arrays that numpy saved as raw bytes (|V2)"
    )
    cast.add_argument("--report", metavar="FILE", type=_path, help="write the account as JSON")
    cast.add_argument("--json", action="store_true", help="print the account as JSON")
    cast.add_argument(
        "--overwrite", action="store_true", help="replace DST if it is a folder with a checkpoint"
    )
    cast.set_defaults(run=_cast)


def _cast(options: argparse.Namespace) -> int:
    with ExitStack() as stack:
        # Before the work, so that what can only fail does so while nothing is written.
        report = _open_report(options, stack)
        summary = _cast_file(options)
        account = json_text(summary.to_dict())
        with _written(summary, f"the report {options.report}"):
            if report is not None:
                report.write(f"{account}\n".encode())
            stack.close()
    with _written(summary, "standard output"):
        print(account if options.json else cast_text(summary))
        sys.stdout.flush()
    for pattern in summary.unused_patterns:
        _say(f"warning: unused pattern {pattern!r} of {options.map or options.policy}")
    return _findings(summary)


def _open_report(options: argparse.Namespace, stack: ExitStack) -> BinaryIO | None:
    if options.report is None:
        return None
    _check_report(options)
    try:
        return stack.enter_context(replacing_file(options.report))
    except checkpoint.CheckpointError as error:
        raise checkpoint.CheckpointError(f"--report: {error}") from error


def _cast_file(options: argparse.Namespace) -> checkpoint.CastSummary:
    with ProgressLine(sys.stderr) as progress:
        return checkpoint.cast_file(
            options.source,
            options.destination,
            options.dtype,
            dtype_map=options.map,
            policy=options.policy,
            role=options.role,
            rounding=options.rounding,
            overflow=options.overflow,
            nan=options.nan,
            seed=options.seed,
            threads=options.threads,
            assume=options.assume,
            overwrite=options.overwrite,
            progress=progress.show if progress.visible else None,
        )


@contextmanager
def _written(summary: checkpoint.CastSummary, what: str) -> Iterator[None]:
    """Say in the errors of the block that the checkpoint itself is complete."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        if what == "standard output":
            _abandon_output()
        raise checkpoint.CheckpointError(
            f"{summary.destination} was written, but not {what}: {error.strerror or error}"
        ) from error


def _findings(summary: checkpoint.CastSummary) -> int:
    """Say what no number of the table may hide; returns the exit code."""
    for count, one, many, remedy in (
        (
            summary.out_of_range,
            "value became infinite or NaN, or wrapped",
            "values became infinite or NaN, or wrapped",
            "--overflow saturate, a wider format",
        ),
        (
            summary.nan_lost,
            "NaN became a number",
            "NaN became numbers",
            "--nan raise, a format with NaN",
        ),
    ):
        if count:
            _say(
                f"{count:,} {one if count == 1 else many}; "
                f"{summary.destination} was written. To avoid it: {remedy}"
            )
    return FINDINGS if summary.out_of_range or summary.nan_lost else OK


def _check_report(options: argparse.Namespace) -> None:
    """Refuse before the work what could only fail, or do harm, after it."""
    report = options.report
    path = Path(os.path.realpath(report))
    for checkpoint_path in (options.source, options.destination):
        other = Path(os.path.realpath(checkpoint_path))
        if other == path or other in path.parents:
            raise checkpoint.CheckpointError(f"--report {report} would replace the checkpoint")
    if options.map is not None and Path(os.path.realpath(options.map)) == path:
        raise checkpoint.CheckpointError(f"--report {report} would replace the map")
    # Of the path as given: /dev/stdout leads to names that are none.
    with suppress(FileNotFoundError):
        found = os.stat(report)
        if not (stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode)):
            raise checkpoint.CheckpointError(f"--report {report} is not a regular file")
        if _is_output(found):
            raise checkpoint.CheckpointError(
                f"--report {report} is standard output; for JSON there use --json"
            )
    if not path.parent.is_dir():
        raise checkpoint.CheckpointError(f"--report {report}: there is no folder {report.parent}")


def _is_output(found: os.stat_result) -> bool:
    try:
        return os.path.samestat(found, os.fstat(sys.stdout.fileno()))
    except (OSError, ValueError, AttributeError):  # a stream of a test or notebook
        return False


def _inspect(options: argparse.Namespace) -> int:
    inspection = checkpoint.inspect(options.file)
    print(json_text(inspection.to_dict()) if options.json else inspection_text(inspection))
    return OK


def _formats(options: argparse.Namespace) -> int:
    rows = [castwise.finfo(name) for name in castwise.formats()]
    print(json_text([format_fields(row) for row in rows]) if options.json else formats_text(rows))
    return OK
