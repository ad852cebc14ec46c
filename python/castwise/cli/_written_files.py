"""The files of `--report` and `--html`: checked before the work, complete when they appear."""

from __future__ import annotations

import argparse
import os
import stat
import sys
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import BinaryIO

import castwise
from castwise import checkpoint
from castwise.checkpoint.files import real_path, replacing_file
from castwise.rendering import PAGE_START, Lines, Sheet, page_lines

_STARTS = {"report": b'{\n  "schema": ', "html": PAGE_START.encode()}
"""How the files begin, by their option; no other file is replaced."""

_CHECKPOINTS = ("source", "destination", "file", "first", "second", "reference")
"""The arguments of commands that name checkpoints."""


def open_file(options: argparse.Namespace, name: str, stack: ExitStack) -> BinaryIO | None:
    """Open the file of an option, which appears when `stack` is closed; None without it."""
    path: Path | None = getattr(options, name)
    if path is None:
        return None
    _check(options, name, path)
    try:
        return stack.enter_context(replacing_file(path))
    except checkpoint.CheckpointError as error:
        raise checkpoint.CheckpointError(f"--{name}: {error}") from error


def write_page(file: BinaryIO, options: argparse.Namespace, sheet: Sheet) -> None:
    """Write a sheet as a page, under the command that it is of."""
    version = Lines((f"by castwise {castwise.__version__}",))
    for text in page_lines(f"castwise {options.command_line}", [version, *sheet]):
        file.write(text.encode())


def _check(options: argparse.Namespace, name: str, path: Path) -> None:
    """Refuse before the work what could only fail, or do harm, after it."""
    given, real = f"--{name} {path}", real_path(path)
    for argument in _CHECKPOINTS:
        if (checkpoint_path := getattr(options, argument, None)) is not None:
            checkpoint_real_path = real_path(checkpoint_path)
            if checkpoint_real_path == real or checkpoint_real_path in real.parents:
                raise checkpoint.CheckpointError(f"{given} would replace the checkpoint")
    map_path = getattr(options, "map", None)
    if isinstance(map_path, Path) and real_path(map_path) == real:
        raise checkpoint.CheckpointError(f"{given} would replace the map")
    # Of the path as given: /dev/stdout leads to names that are none.
    with suppress(FileNotFoundError):
        status = os.stat(path)
        if not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
            raise checkpoint.CheckpointError(f"{given} is not a regular file")
        if _is_output(status):
            remedy = "; for JSON there use --json" if name == "report" else ""
            raise checkpoint.CheckpointError(f"{given} is standard output{remedy}")
        if stat.S_ISREG(status.st_mode) and status.st_size and not _is_replaceable(path, name):
            raise checkpoint.CheckpointError(
                f"{given} is there and is not a report; choose another name"
            )
    if not real.parent.is_dir():
        raise checkpoint.CheckpointError(f"{given}: there is no folder {path.parent}")


def _is_replaceable(path: Path, name: str) -> bool:
    """Return True for a file that begins as those of the option do."""
    with path.open("rb") as file:
        return file.read(len(_STARTS[name])) == _STARTS[name]


def _is_output(status: os.stat_result) -> bool:
    """Return True if a file is the one that standard output goes to."""
    try:
        return os.path.samestat(status, os.fstat(sys.stdout.fileno()))
    except (OSError, ValueError, AttributeError):  # a stream of a test or notebook
        return False
