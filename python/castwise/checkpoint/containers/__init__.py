"""The containers of tensors, and which one a path names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

from castwise.checkpoint._errors import CheckpointError
from castwise.checkpoint._tensors import Planned, check_texts
from castwise.checkpoint.containers._interface import Reader, Writer
from castwise.checkpoint.containers.folder import ShardedFolder, open_folder
from castwise.checkpoint.containers.npy import NpyReader, NpyWriter
from castwise.checkpoint.containers.npz import NpzReader, NpzWriter
from castwise.checkpoint.containers.safetensors import SafetensorsReader, SafetensorsWriter

_SUFFIXES = (".safetensors", ".npz", ".npy")


def is_container(path: Path) -> bool:
    """Return True if the suffix of a name is that of a container file."""
    return path.suffix.lower() in _SUFFIXES


def container_of(path: Path) -> str:
    """Return the suffix that decides the container, or CheckpointError naming those there are."""
    suffix = path.suffix.lower()
    if suffix not in _SUFFIXES:
        what = f"the suffix {suffix!r}" if suffix else "a name without suffix"
        raise CheckpointError(
            f"{path}: {what} names no container; use {', '.join(_SUFFIXES)}, "
            "or a folder of safetensors shards"
        )
    return suffix


def open_source(
    path: Path, assume: str | Mapping[str, str] | None = None
) -> Reader | ShardedFolder:
    """Open the checkpoint at `path`, a file or a folder.

    CheckpointError if it is not what its name says. `assume` says which format arrays have that
    numpy saved as raw bytes.
    """
    if path.is_dir():
        return open_folder(path)
    path.stat()  # that there is no such file matters more than its suffix
    match container_of(path):
        case ".safetensors":
            return SafetensorsReader(path)
        case ".npz":
            return NpzReader(path, assume)
        case _:
            return NpyReader(path, assume)


def new_writer(
    path: Path,
    file: BinaryIO,
    planned: Sequence[Planned],
    metadata: Mapping[str, str],
    source: Reader | None = None,
    *,
    compressed: bool = False,
) -> Writer:
    """Make the writer into `file` for the container that `path` names; the file begins empty.

    `source` is where tensors that are kept come from. `compressed` matters to `.npz` only, where
    arrays that come from an `.npz` stay as they were.
    """
    container = container_of(path)
    if container != ".npy":  # which keeps neither
        check_texts((plan.info.name for plan in planned), metadata)
    match container:
        case ".safetensors":
            return SafetensorsWriter(file, planned, metadata, source)
        case ".npz":
            return NpzWriter(file, planned, metadata, source, compressed=compressed)
        case _:
            return NpyWriter(file, planned, metadata, source)
