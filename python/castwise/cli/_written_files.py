"""The files of `--report`, `--html`, `-o`: checked before the work, complete when they appear."""

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
from castwise.checkpoint.files import check_own_start, real_path, replacing_file
from castwise.rendering import PAGE_START, Lines, Sheet, page_lines

_STARTS = {
    "report": b'{\n  "schema": ',
    "html": PAGE_START.encode(),
    "output": b"# castwise ",
}
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
            # A map beside the shards of a model is what people keep there.
            inside = name != "output" and checkpoint_real_path in real.parents
            if checkpoint_real_path == real or inside:
                raise checkpoint.CheckpointError(f"{given} would replace the checkpoint")
    for other, other_path in vars(options).items():
        if other != name and isinstance(other_path, Path) and real_path(other_path) == real:
            raise checkpoint.CheckpointError(
                f"{given} is the file of --{other}, too; choose another name"
            )
    # Of the path as given: /dev/stdout leads to names that are none.
    with suppress(FileNotFoundError):
        status = os.stat(path)
        if not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
            raise checkpoint.CheckpointError(f"{given} is not a regular file")
        if _is_output(status):
            remedy = "; for JSON there use --json" if name == "report" else ""
            raise checkpoint.CheckpointError(f"{given} is standard output{remedy}")
        noun = "a map of castwise advise" if name == "output" else "a report"
        check_own_start(path, _STARTS[name], noun, given)
    if not real.parent.is_dir():
        raise checkpoint.CheckpointError(f"{given}: there is no folder {path.parent}")


def _is_output(status: os.stat_result) -> bool:
    """Return True if a file is the one that standard output goes to."""
    try:
        return os.path.samestat(status, os.fstat(sys.stdout.fileno()))
    except (OSError, ValueError, AttributeError):  # a stream of a test or notebook
        return False
