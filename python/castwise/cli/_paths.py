"""Paths given on the command line."""

from __future__ import annotations

import argparse
from pathlib import Path

from castwise.checkpoint import CheckpointError
from castwise.checkpoint.files.paths import checked_path
from castwise.checkpoint.files.remote import is_remote
from castwise.checkpoint.maps import is_map_name


def path_argument(text: str) -> Path:
    """Return a path given on the command line."""
    try:
        return checked_path(text)
    except CheckpointError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def map_argument(text: str) -> str | Path:
    """Return the name of a map, or the path of one, given on the command line."""
    return text if is_map_name(text) else local_path_argument(text)


def local_path_argument(text: str) -> Path:
    """Return a path of this machine given on the command line."""
    path = path_argument(text)
    if is_remote(path):
        raise argparse.ArgumentTypeError(f"{text} is on a store; name a file of this machine")
    return path
