"""`castwise cast`: cast a checkpoint and print what that lost."""

from __future__ import annotations

import argparse
import math
import os
import stat
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, get_args

import castwise
from castwise import checkpoint
from castwise._options import Rounding
from castwise.checkpoint import CastRow, CastSummary
from castwise.checkpoint._filesystem import replacing_file
from castwise.checkpoint.report import summary_dict
from castwise.cli._output import (
    FINDINGS,
    OK,
    abandon_output,
    json_text,
    path_argument,
    say,
    shape_text,
    show,
    size_text,
    table,
    tensors_text,
)
from castwise.cli._progress import ProgressLine

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
_CAST_HEADER = (
    "tensor",
    "shape",
    "from",
    "to",
    "exact",
    "overflowed",
    "saturated",
    "underflowed",
    "NaN in",
    "NaN out",
    "max rel error",
    "SQNR dB",
)


def add(commands: Any) -> None:
    """Add the command to those of a parser."""
    cast = commands.add_parser(
        "cast",
        help="cast a checkpoint and print what that lost",
        description=_CAST,
        epilog=_EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    cast.add_argument("source", metavar="SRC", type=path_argument, help="the checkpoint to read")
    cast.add_argument(
        "destination", metavar="DST", type=path_argument, help="the checkpoint to write"
    )
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
        type=path_argument,
        help='JSON or TOML: {"default": D, REGEX: D or "keep", ...}; a key matches whole names',
    )
    cast.add_argument(
        "--role",
        choices=("variable", "compute"),
        default="variable",
        help="which dtype of the policy: what variables are kept in (default) or computed in",
    )
    cast.add_argument(
        "--rounding", choices=get_args(Rounding), help="default: as numpy, nearest-even"
    )
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
    cast.add_argument(
        "--report", metavar="FILE", type=path_argument, help="write the report as JSON"
    )
    cast.add_argument("--json", action="store_true", help="print the report as JSON")
    cast.add_argument(
        "--overwrite", action="store_true", help="replace DST if it is a folder with a checkpoint"
    )
    cast.add_argument(
        "--resumable",
        action="store_true",
        help="if the cast of a folder is interrupted, keep its complete shards beside DST",
    )
    cast.add_argument(
        "--resume", action="store_true", help="go on with what --resumable kept; the same result"
    )
    cast.add_argument(
        "--keep-config",
        action="store_true",
        help="leave config.json as it is: its dtype then need not be that of the tensors",
    )
    cast.set_defaults(run=_cast)


def _cast(options: argparse.Namespace) -> int:
    with ExitStack() as stack:
        # Before the work, so that what can only fail does so while nothing is written.
        file = _open_report(options, stack)
        summary = _cast_file(options)
        with _written(summary, f"the report {options.report}"):
            if file is not None:
                file.writelines(f"{line}\n".encode() for line in _json_lines(summary))
            stack.close()
    with _written(summary, "standard output"):
        show(_json_lines(summary) if options.json else _lines(summary))
        sys.stdout.flush()
    for pattern in summary.unused_patterns:
        say(f"warning: unused pattern {pattern!r} of {options.map or options.policy}")
    return _findings(summary)


def _open_report(options: argparse.Namespace, stack: ExitStack) -> BinaryIO | None:
    if options.report is None:
        return None
    _check_report(options)
    try:
        return stack.enter_context(replacing_file(options.report))
    except checkpoint.CheckpointError as error:
        raise checkpoint.CheckpointError(f"--report: {error}") from error


def _cast_file(options: argparse.Namespace) -> CastSummary:
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
            resumable=options.resumable,
            resume=options.resume,
            keep_config=options.keep_config,
            progress=progress.show if progress.visible else None,
        )


@contextmanager
def _written(summary: CastSummary, what: str) -> Iterator[None]:
    """Say in the errors of the block that the checkpoint itself is complete."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        if what == "standard output":
            abandon_output()
        raise checkpoint.CheckpointError(
            f"{summary.destination} was written, but not {what}: {error.strerror or error}"
        ) from error


def _findings(summary: CastSummary) -> int:
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
            say(
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


def _lines(summary: CastSummary) -> Iterator[str]:
    """Show the report: a row per tensor that was cast, a total, and what was kept."""
    count = sum(row.report is not None for row in summary.rows)
    kept = [row for row in summary.rows if row.report is None]
    total = summary.total
    if total is not None:
        yield from table(
            _CAST_HEADER,
            lambda: (
                _cast_cells(row, row.report) for row in summary.rows if row.report is not None
            ),
            text_columns=4,
            total=("total", tensors_text(count), "", "", *_report_cells(total)),
        )
    before = sum(row.nbytes_before for row in summary.rows)
    after = sum(row.nbytes_after for row in summary.rows)
    yield (
        f"{summary.source} -> {summary.destination}: {tensors_text(count)} cast, "
        f"{len(kept)} kept{_kinds(kept)}, {size_text(before)} -> {size_text(after)}"
    )
    if summary.options.get("seed") is not None:
        yield f"seed {summary.options['seed']}"


def _json_lines(summary: CastSummary) -> Iterator[str]:
    """Make the JSON of a report row by row: as a whole it takes 8 KiB for each tensor."""
    # In a string of JSON a quote follows a backslash, so this stands once.
    before, _, after = json_text(summary_dict(summary, [])).partition('"tensors": []')
    if not summary.rows:
        yield f'{before}"tensors": []{after}'
        return
    yield f'{before}"tensors": ['
    last = len(summary.rows) - 1
    for index, row in enumerate(summary.rows):
        text = json_text(row.to_dict()).replace("\n", "\n    ")
        yield f"    {text}{',' if index < last else ''}"
    yield f"  ]{after}"


def _cast_cells(row: CastRow, report: castwise.CastReport) -> tuple[str, ...]:
    shape = shape_text(row.shape)
    return (row.name, shape, row.source, row.target or "", *_report_cells(report))


def _report_cells(report: castwise.CastReport) -> tuple[str, ...]:
    return (
        _percent(report.exact, report.count),
        f"{report.overflowed:,}",
        f"{report.saturated:,}",
        f"{report.underflowed:,}",
        f"{report.nan_in:,}",
        f"{report.nan_out:,}",
        f"{report.max_rel_error:.2e}" if report.max_rel_error else "0",
        "-" if math.isnan(report.sqnr_db) else f"{report.sqnr_db:.1f}",
    )


def _percent(part: int, whole: int) -> str:
    """Rounded down, so that 100 % means all of them."""
    return f"{math.floor(1000 * part / whole) / 10:.1f}%" if whole else "-"


def _kinds(rows: Sequence[CastRow]) -> str:
    counts = Counter(row.source for row in rows)
    return f" ({', '.join(f'{count} {kind}' for kind, count in counts.items())})" if rows else ""
