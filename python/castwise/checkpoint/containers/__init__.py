"""The containers of tensors, and which one a path names."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from castwise._wording import argument
from castwise.checkpoint._errors import CheckpointError
from castwise.checkpoint._tensors import Planned, check_texts
from castwise.checkpoint.containers._array_bytes import from_bytes, native, to_bytes
from castwise.checkpoint.containers._exclusion import excluded_by
from castwise.checkpoint.containers._gguf_header import BOOL, COUNT, FLOAT, INTEGER, TEXT, typed
from castwise.checkpoint.containers._interface import (
    Arrangement,
    ChunkedReader,
    Elements,
    Reader,
    Writer,
)
from castwise.checkpoint.containers._weight_files import (
    INDEX_SUFFIX,
    NOT_OF_THE_MODEL,
    holds_weights,
    is_safetensors,
    safetensors_name,
)
from castwise.checkpoint.containers.checkpoint import Checkpoint
from castwise.checkpoint.containers.folder import open_folder
from castwise.checkpoint.files import absent_file, checked_path, hub_path, is_remote

__all__ = [
    "BOOL",
    "COUNT",
    "FLOAT",
    "INDEX_SUFFIX",
    "INTEGER",
    "NOT_OF_THE_MODEL",
    "TEXT",
    "WRITTEN",
    "Arrangement",
    "ChunkedReader",
    "Elements",
    "Reader",
    "Writer",
    "are_alike",
    "check_store",
    "container_of",
    "from_bytes",
    "holds_weights",
    "is_container",
    "is_safetensors",
    "native",
    "new_writer",
    "open_checkpoint",
    "safetensors_name",
    "source_path",
    "to_bytes",
    "typed",
]


@dataclass(frozen=True, slots=True)
class _Container:
    """What reads and writes the files of some suffixes.

    Attributes
    ----------
    module
        What has its classes, imported when there is such a file.
    reads
        The class that opens a file.
    writes
        The class that writes one; None if castwise cannot.
    assumes
        True if arrays can be raw bytes, so that the reader takes `assume`.
    has_names
        True if it keeps names and metadata.
    on_stores
        True if files on object stores can be read and written.
    only_decoded
        True if its tensors must be decoded, so that nothing else reads it.

    """

    module: str
    reads: str
    writes: str | None = None
    assumes: bool = False
    has_names: bool = True
    on_stores: bool = True
    only_decoded: bool = False

    def reader(self, path: Path, assume: str | Mapping[str, str] | None) -> Reader:
        """Open a file."""
        arguments = (path, assume) if self.assumes else (path,)
        opened: Reader = self._class(self.reads)(*arguments)
        return opened

    def writer(
        self,
        file: BinaryIO,
        planned: Sequence[Planned],
        metadata: Mapping[str, str],
        source: Reader | None,
        **options: bool,
    ) -> Writer:
        """Begin to write one."""
        begun: Writer = self._class(self.writes)(file, planned, metadata, source, **options)
        return begun

    def _class(self, name: str | None) -> Callable[..., Any]:
        """Import the class of a name."""
        named: Callable[..., Any] = getattr(importlib.import_module(self.module), name or "")
        return named


_TORCH = _Container("castwise.checkpoint.containers.torch", "TorchReader")
_HDF5 = _Container(
    "castwise.checkpoint.containers.hdf5",
    *("Hdf5Reader", "Hdf5Writer"),
    assumes=True,
    on_stores=False,
)
_TABLE: Mapping[str, _Container] = {
    ".safetensors": _Container(
        "castwise.checkpoint.containers.safetensors", "SafetensorsReader", "SafetensorsWriter"
    ),
    ".npz": _Container(
        "castwise.checkpoint.containers.npz", "NpzReader", "NpzWriter", assumes=True
    ),
    ".npy": _Container(
        "castwise.checkpoint.containers.npy",
        *("NpyReader", "NpyWriter"),
        assumes=True,
        has_names=False,
    ),
    **dict.fromkeys((".pt", ".pth", ".bin", ".ckpt"), _TORCH),
    **dict.fromkeys((".h5", ".hdf5"), _HDF5),
    ".keras": _Container(
        "castwise.checkpoint.containers.keras",
        *("KerasReader", "KerasWriter"),
        assumes=True,
        on_stores=False,
    ),
    ".gguf": _Container(
        "castwise.checkpoint.containers.gguf",
        *("GgufReader", "GgufWriter"),
        on_stores=False,
        only_decoded=True,
    ),
}
_NAMES = [name for name, row in _TABLE.items() if not row.only_decoded]
WRITTEN = ", ".join(name for name in _NAMES if _TABLE[name].writes is not None)
"""The suffixes of files that are written."""

_OTHER_TOOLS = {
    ".onnx": "onnxconverter-common makes it float16 (float16.convert_float_to_float16), "
    "onnxruntime.quantization int8",
}
"""What does the same for files that castwise does not read."""


def is_container(path: Path) -> bool:
    """Return True if the suffix of a name is that of a container file."""
    return path.suffix.lower() in _TABLE


def container_of(path: Path, remedy: str | None = None) -> str:
    """Return the suffix that decides the container; the refusal names those that are read.

    Of a file to be written, `remedy` says what to do instead.
    """
    suffix = path.suffix.lower()
    if suffix in _OTHER_TOOLS:
        raise CheckpointError(f"{path}: castwise does not read {suffix}; {_OTHER_TOOLS[suffix]}")
    if suffix not in _TABLE:
        suffix_text = f"the suffix {suffix!r}" if suffix else "a name without suffix"
        remedy = remedy or f"use {', '.join(_NAMES)}, or a folder of safetensors shards"
        raise CheckpointError(f"{path}: {suffix_text} names no container; {remedy}")
    return suffix


def check_store(path: Path) -> None:
    """Refuse what cannot be read, or written, on an object store."""
    if is_remote(path) and not _TABLE[container_of(path)].on_stores:
        raise CheckpointError(
            f"{path}: {path.suffix} files cannot be read from a store or written to it; copy it to "
            "this machine first, or from it"
        )


def are_alike(path: Path, other: Path) -> bool:
    """Return True if two names are those of the same container."""
    return _TABLE[container_of(path)] is _TABLE[container_of(other)]


def source_path(path: str | os.PathLike[str], argument: str = "path") -> Path:
    """Return the path of a checkpoint to read, as `checked_path`.

    A name such as `org/name` that this machine does not have is that of a repository of the
    Hugging Face Hub.

    Raises
    ------
    CheckpointError, TypeError
        As for `checked_path`.
    FileNotFoundError
        It could be such a name, but the packages for the Hub are not installed.

    """
    checked = checked_path(path, argument)
    if is_remote(checked) or is_container(checked):
        return checked
    return hub_path(checked) or checked


def open_checkpoint(
    path: Path,
    assume: str | Mapping[str, str] | None = None,
    excludes: Callable[[str], bool] | None = None,
    *,
    decodes: bool = False,
) -> Checkpoint:
    """Open the checkpoint at `path`, a file or a folder.

    CheckpointError if it is not what its name says. `assume` says which format arrays have that
    numpy saved as raw bytes; `excludes`, which paths in a folder are as if they were not there,
    if the caller has such an argument; `decodes`, that quantised weights will be decoded.
    """
    is_folder = path.is_dir()
    # That there is no such file, or a link that leads nowhere, matters more than its suffix.
    if not is_folder and not is_remote(path):
        try:
            path.stat()
        except FileNotFoundError as error:
            raise absent_file(path) from error
    elif not is_folder and not path.exists():
        raise absent_file(path)
    container = _TABLE[".safetensors" if is_folder else container_of(path)]
    if assume is not None and not container.assumes:
        raise CheckpointError(
            f"{path}: {argument('assume')} is for arrays that numpy saved as raw bytes, "
            "in .npz and "
            ".npy; its tensors state their formats, so leave it out"
        )
    if is_folder:
        with excluded_by(has_argument=excludes is not None):
            return open_folder(path, excludes or (lambda _: False))
    check_store(path)
    if container.only_decoded and not decodes:
        raise CheckpointError(
            f"{path}: castwise dequantize makes a folder or a .safetensors file of {path.suffix}, "
            "plain tensors as they are (checkpoint.dequantize_file); llama-quantize of llama.cpp "
            "changes its types"
        )
    return Checkpoint.of_file(container.reader(path, assume))


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
    suffix = container_of(path)
    container = _TABLE[suffix]
    if container.writes is None:
        raise CheckpointError(f"{path}: castwise only reads {suffix}; it writes {WRITTEN}")
    if container.has_names:
        check_texts((plan.info.name for plan in planned), metadata)
    options = {"compressed": compressed} if suffix == ".npz" else {}
    return container.writer(file, planned, metadata, source, **options)
