"""The command line: `castwise cast`, `castwise inspect`, `castwise formats`.

Results go to standard output, everything else to standard error. Exit codes: 0 all is well,
1 the checkpoint was written but numbers became infinite or NaN, 2 an error, 130 interrupted.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import castwise
from castwise import checkpoint
from castwise.checkpoint.atomic import replacing_file
from castwise.cli_output import (
    cast_text,
    format_fields,
    formats_text,
    inspection_text,
    json_text,
    printable,
)
from castwise.cli_progress import ProgressLine

OK, FINDINGS, ERROR, INTERRUPTED, TERMINATED, BROKEN_PIPE = 0, 1, 2, 130, 143, 141

_CAST = """\
Cast a checkpoint: .safetensors, .npz, .npy, or a folder of safetensors shards.

DST appears, or is replaced, when it is complete, and may be SRC itself. Memory
is bounded by the largest tensor. Metadata is kept, and so is, byte for byte,
every integer, bool and complex tensor that no key of a map names.
"""
_EXIT_CODES = """\
exit codes:
  0  the checkpoint was written
  1  it was written, but numbers became infinite or NaN, or integers wrapped; see the table
  2  an error; DST is as it was
"""
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
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError):  # a stream of a test or notebook
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    logging.basicConfig(format="castwise: %(message)s", level=logging.WARNING)
    # A SystemExit unwinds the stack, so that temporary files are removed.
    with suppress(ValueError):  # not the main thread
        signal.signal(signal.SIGTERM, _terminate)
    options = _parser().parse_args(arguments)
    try:
        code: int = options.run(options)
        sys.stdout.flush()
    except KeyboardInterrupt:
        _say("interrupted")
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has gone. Python would complain once more when it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except (ValueError, TypeError, OverflowError, OSError, MemoryError) as error:
        _say(f"error: {_message(error)}")
        return ERROR
    return code


def _terminate(number: int, frame: object) -> NoReturn:
    del number, frame
    sys.exit(TERMINATED)


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
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_cast(commands)
    inspect = commands.add_parser("inspect", help="what a checkpoint holds, from its headers alone")
    inspect.add_argument("file", metavar="FILE", type=Path, help="a file, or a folder of shards")
    inspect.add_argument("--json", action="store_true", help="print JSON")
    inspect.set_defaults(run=_inspect)
    formats = commands.add_parser("formats", help="every format castwise knows")
    formats.add_argument("--json", action="store_true", help="print JSON")
    formats.set_defaults(run=_formats)
    return parser


def _add_cast(commands: Any) -> None:
    cast = commands.add_parser(
        "cast",
        help="cast a checkpoint and print what that lost",
        description=_CAST,
        epilog=_EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    cast.add_argument("source", metavar="SRC", type=Path, help="the checkpoint to read")
    cast.add_argument("destination", metavar="DST", type=Path, help="the checkpoint to write")
    what = cast.add_mutually_exclusive_group(required=True)
    what.add_argument("--dtype", metavar="D", help="format for all floating tensors")
    what.add_argument(
        "--map",
        metavar="FILE",
        type=Path,
        help='JSON or TOML: {"default": D, REGEX: D or "keep", ...}; a key matches whole names',
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
    cast.add_argument("--report", metavar="FILE", type=Path, help="write the account as JSON")
    cast.add_argument("--json", action="store_true", help="print the account as JSON")
    cast.add_argument(
        "--overwrite", action="store_true", help="replace DST if it is a folder with a checkpoint"
    )
    cast.set_defaults(run=_cast)


def _cast(options: argparse.Namespace) -> int:
    report = options.report
    if report is not None:
        _check_report(report, options.source, options.destination)
    with ProgressLine(sys.stderr) as progress:
        summary = checkpoint.cast_file(
            options.source,
            options.destination,
            options.dtype,
            dtype_map=options.map,
            rounding=options.rounding,
            overflow=options.overflow,
            nan=options.nan,
            seed=options.seed,
            threads=options.threads,
            assume=options.assume,
            overwrite=options.overwrite,
            progress=progress.show if progress.visible else None,
        )
    account = json_text(summary.to_dict())
    print(account if options.json else cast_text(summary))
    if report is not None:
        with replacing_file(report) as file:
            file.write(f"{account}\n".encode())
    for pattern in summary.unused_patterns:
        _say(f"warning: key {pattern!r} of {options.map} matched no tensor")
    if summary.new_nonfinite:
        count = summary.new_nonfinite
        _say(
            f"{count:,} value{'' if count == 1 else 's'} became infinite or NaN, or wrapped; "
            f"{summary.destination} was written. To avoid it: --overflow saturate, a wider format"
        )
        return FINDINGS
    return OK


def _check_report(report: Path, source: Path, destination: Path) -> None:
    """Refuse before the work what could only fail, or do harm, after it."""
    if os.path.realpath(report) in {os.path.realpath(source), os.path.realpath(destination)}:
        raise checkpoint.CheckpointError(f"--report {report} would replace the checkpoint")
    if not report.parent.is_dir():
        raise checkpoint.CheckpointError(f"--report {report}: there is no folder {report.parent}")


def _inspect(options: argparse.Namespace) -> int:
    inspection = checkpoint.inspect(options.file)
    print(json_text(inspection.to_dict()) if options.json else inspection_text(inspection))
    return OK


def _formats(options: argparse.Namespace) -> int:
    rows = [castwise.finfo(name) for name in castwise.formats()]
    print(json_text([format_fields(row) for row in rows]) if options.json else formats_text(rows))
    return OK
