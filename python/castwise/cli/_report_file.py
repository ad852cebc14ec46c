"""The file of `--report`: checked before the work, and complete when it appears."""

from __future__ import annotations

import argparse
import os
import stat
import sys
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import BinaryIO

from castwise import checkpoint
from castwise.checkpoint.files import real_path, replacing_file

_BEGIN = b'{\n  "schema": '


def open_report(options: argparse.Namespace, stack: ExitStack) -> BinaryIO | None:
    """Open the file of `--report`, which appears when `stack` is closed; None without it."""
    if options.report is None:
        return None
    _check_report(options)
    try:
        return stack.enter_context(replacing_file(options.report))
    except checkpoint.CheckpointError as error:
        raise checkpoint.CheckpointError(f"--report: {error}") from error


def _check_report(options: argparse.Namespace) -> None:
    """Refuse before the work what could only fail, or do harm, after it."""
    report = options.report
    path = real_path(report)
    for checkpoint_path in filter(None, (options.source, options.destination)):
        checkpoint_real_path = real_path(checkpoint_path)
        if checkpoint_real_path == path or checkpoint_real_path in path.parents:
            raise checkpoint.CheckpointError(f"--report {report} would replace the checkpoint")
    if isinstance(options.map, Path) and real_path(options.map) == path:
        raise checkpoint.CheckpointError(f"--report {report} would replace the map")
    # Of the path as given: /dev/stdout leads to names that are none.
    with suppress(FileNotFoundError):
        status = os.stat(report)
        if not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
            raise checkpoint.CheckpointError(f"--report {report} is not a regular file")
        if _is_output(status):
            raise checkpoint.CheckpointError(
                f"--report {report} is standard output; for JSON there use --json"
            )
        if stat.S_ISREG(status.st_mode) and status.st_size and not _is_report(report):
            raise checkpoint.CheckpointError(
                f"--report {report} is there and is not a report; choose another name"
            )
    if not path.parent.is_dir():
        raise checkpoint.CheckpointError(f"--report {report}: there is no folder {report.parent}")


def _is_report(path: Path) -> bool:
    """Return True for JSON that begins as reports do, which may be replaced."""
    with path.open("rb") as file:
        return file.read(len(_BEGIN)) == _BEGIN


def _is_output(status: os.stat_result) -> bool:
    """Return True if a file is the one that standard output goes to."""
    try:
        return os.path.samestat(status, os.fstat(sys.stdout.fileno()))
    except (OSError, ValueError, AttributeError):  # a stream of a test or notebook
        return False
