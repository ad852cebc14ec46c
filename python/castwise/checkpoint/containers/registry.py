"""What reads and writes files, by their suffix, and what their first bytes tell."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from castwise._options import SAFETENSORS
from castwise.checkpoint._errors import CheckpointError
from castwise.checkpoint._tensors import Planned
from castwise.checkpoint.containers.interface import Reader, Writer
from castwise.checkpoint.files.remote import is_remote
from castwise.checkpoint.files.source_files import open_file, source_file
from castwise.environment.frameworks import entry_points_of, load_entry, package_of
from castwise.text.brief import brief_fields

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from castwise.checkpoint.containers.whole_models import ModelFormat


__all__ = ["GROUP", "Container", "find", "register"]

GROUP = "castwise.containers"
"""The group of entry points by which packages offer containers."""


@dataclass(frozen=True, slots=True)
class Container:
    """What reads and writes the files of a suffix.

    A class may be given by its name, as "module:Class". Then it is imported when there is such a
    file.
    """

    # What opens a file: it is called with the path, and is then a `Reader`.
    reader: Callable[..., Reader] | str
    # What writes one: it is called with the open file, the list of `Planned` tensors, the metadata,
    # and the reader that they come from (None for arrays in memory), and is then a `Writer`. None
    # if files are only read.
    writer: Callable[..., Writer] | str | None = None
    # True if arrays can be raw bytes, so that the reader takes `assume` after the path.
    assumes: bool = False
    # True if a file keeps names and metadata, which then are checked to be text.
    has_names: bool = True
    # True if a writer writes all but the tensors when it is made, and names a place for each, so
    # that several processes can write one file.
    has_places: bool = False
    # True if files on object stores can be read and written: the reader opens them with
    # `source_file`, and the writer never seeks.
    on_stores: bool = False

    __repr__ = brief_fields

    def __post_init__(self) -> None:
        """Refuse what is not a class, nor the name of one."""
        for argument, value in (("reader", self.reader), ("writer", self.writer)):
            is_left_out = argument == "writer" and value is None
            is_name = isinstance(value, str) and all(value.partition(":"))
            if not (is_left_out or is_name or callable(value)):
                raise TypeError(
                    f"{argument}={value!r} must be a class, or named as 'module:Class'."
                )

    def open_file(self, path: Path, assume: str | Mapping[str, str] | None) -> Reader:
        """Open a file."""
        arguments = (path, assume) if self.assumes else (path,)
        reader: Reader = _class_of(self.reader)(*arguments)
        return reader

    def new_writer(
        self,
        file: BinaryIO,
        plans: Sequence[Planned],
        metadata: Mapping[str, str],
        source: Reader | None,
        **options: bool,
    ) -> Writer:
        """Begin to write one."""
        assert self.writer is not None, "by who calls it"  # noqa: S101
        writer: Writer = _class_of(self.writer)(file, plans, metadata, source, **options)
        return writer


_TORCH = Container("castwise.checkpoint.containers.torch:TorchReader", on_stores=True)
_HDF5 = Container(
    "castwise.checkpoint.containers.hdf5:Hdf5Reader",
    "castwise.checkpoint.containers.hdf5:Hdf5Writer",
    assumes=True,
)
_BUILT_IN: Mapping[str, Container] = {
    SAFETENSORS: Container(
        "castwise.checkpoint.containers.safetensors:SafetensorsReader",
        "castwise.checkpoint.containers.safetensors:SafetensorsWriter",
        has_places=True,
        on_stores=True,
    ),
    ".npz": Container(
        "castwise.checkpoint.containers.npz:NpzReader",
        "castwise.checkpoint.containers.npz:NpzWriter",
        assumes=True,
        on_stores=True,
    ),
    ".npy": Container(
        "castwise.checkpoint.containers.npy:NpyReader",
        "castwise.checkpoint.containers.npy:NpyWriter",
        assumes=True,
        has_names=False,
        has_places=True,
        on_stores=True,
    ),
    **dict.fromkeys((".pt", ".pth", ".bin", ".ckpt"), _TORCH),
    **dict.fromkeys((".h5", ".hdf5"), _HDF5),
    ".keras": Container(
        "castwise.checkpoint.containers.keras:KerasReader",
        "castwise.checkpoint.containers.keras:KerasWriter",
        assumes=True,
    ),
    ".gguf": Container(
        "castwise.checkpoint.containers.gguf.reader:GgufReader",
        "castwise.checkpoint.containers.gguf.writer:GgufWriter",
        has_places=True,
    ),
}
STARTS: Mapping[bytes, str] = {b"GGUF": ".gguf", b"\x93NUMPY": ".npy", b"\x89HDF\r\n\x1a\n": ".h5"}
"""The first bytes of files, and the suffix that they have."""

WHOLE_MODELS: Mapping[str, str] = {".gguf": "castwise.checkpoint.containers.gguf.format"}
"""The modules of containers that hold whole models, whose tensors must be decoded."""

# What `Path.suffix` can be.
_SUFFIX = r"\.[^./\\\s]+"

_containers = dict(_BUILT_IN)


def __dir__() -> list[str]:
    return __all__


def register(suffix: str, container: Container) -> None:
    """Read and write files of a suffix in this process, whatever an entry point offers for it.

    Workers of an executor, which are other processes, know what entry points offer alone.

    Parameters
    ----------
    suffix : str
        As ".jst". Case does not matter.
    container : Container
        What reads and writes such files.

    Raises
    ------
    TypeError
        `container` is not a Container, or `suffix` not a str.
    ValueError
        `suffix` is not one, or one of castwise's own.

    """
    if not isinstance(suffix, str):
        raise TypeError(f"suffix={suffix!r} must be a str, as '.jst'.")
    if not re.fullmatch(_SUFFIX, suffix) or suffix.lower() in _BUILT_IN:
        raise ValueError(
            f"suffix={suffix!r} is not valid; give one as '.jst', which castwise does not have."
        )
    _containers[suffix.lower()] = _check_container(container, f"container={container!r}")


def find(suffix: str) -> Container | None:
    """Return the container of files whose lower-case suffix this is; None if there is none."""
    if suffix not in _containers and (entry := _offered_for(suffix)) is not None:
        subject = f"the container for {suffix}, {entry.value} of {package_of(entry)},"
        try:
            _containers[suffix] = _check_container(load_entry(entry, subject), subject)
        except (ImportError, TypeError) as error:
            raise CheckpointError(str(error).removesuffix(".")) from error
    return _containers.get(suffix)


def model_format(suffix: str) -> ModelFormat | None:
    """Return what is to be known of a container of whole models; None of others."""
    if suffix not in WHOLE_MODELS:
        return None
    row: ModelFormat = import_module(WHOLE_MODELS[suffix]).FORMAT
    return row


def is_suffix(suffix: str) -> bool:
    """Return True if files of a lower-case suffix are those of a container."""
    return suffix in _containers or _offered_for(suffix) is not None


def is_built_in(suffix: str) -> bool:
    """Return True if files of a lower-case suffix are those of castwise's own containers."""
    return suffix in _BUILT_IN


def suffixes(*, is_written: bool = False) -> list[str]:
    """List the suffixes of files that are read, or of those that are written."""
    offered = (f".{name}" for name in entry_points_of(GROUP) if name.isidentifier())
    names = list(dict.fromkeys((*_containers, *offered)))
    return [name for name in names if _is_written(name)] if is_written else names


def _is_written(suffix: str) -> bool:
    try:
        row = find(suffix)
    except CheckpointError:  # its package says so where such a file is met
        return False
    return row is not None and row.writer is not None


def _offered_for(suffix: str) -> EntryPoint | None:
    """Return what a package offers for a suffix; none for the end of `Qwen3-0.6B`, unsearched."""
    name = suffix.removeprefix(".")
    return entry_points_of(GROUP).get(name) if name.isidentifier() else None


def _check_container(container: object, subject: str) -> Container:
    if not isinstance(container, Container):
        raise TypeError(
            f"{subject} is not a castwise.checkpoint.containers.protocol.Container; make it one."
        )
    return container


def _class_of(reference: Callable[..., Any] | str) -> Callable[..., Any]:
    if not isinstance(reference, str):
        return reference
    module, _, name = reference.partition(":")
    found_class: Callable[..., Any] = getattr(import_module(module), name)
    return found_class


# Bytes of a file in which all that is looked for stands.
_COUNT = 512
# A pickle of the number with which files of torch before 1.6 begin.
_OLD_TORCH = rb"(?s)\x80.(?:\x95.{8})?\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19"

# A safetensors file: eight bytes with the length of its header, which is an object of JSON.
_HEADER = rb"(?s)(.{8})\{[\"} \n]"
# The limit of the safetensors crate; a larger number is of another kind of file.
_MAX_HEADER_BYTES = 100_000_000

_ZIP_START = b"PK\3\4"
_NAME_LENGTH, _NAME = 26, 30  # where they stand in the header of a zip file's member
_OF_TORCH = rb"[^/]+/data(?:\.pkl|/0)"  # the second begins what TorchScript saves
# The members of a Keras file, any of which may come first.
_OF_KERAS = (b"metadata.json", b"config.json", b"model.weights.h5")
# Of files so named the names decide, as either may begin with a member that the other has.
_ZIPS = (".npz", ".keras")


def suffix_of_contents(path: Path, suffix: str) -> str | None:
    """Return the suffix that files with such first bytes have; None if nothing is known of them."""
    # `suffix` is that of its name: a zip file may have members that others have as well.
    if is_remote(path):
        source = source_file(path)
        first = source.read(0, min(source.size, _COUNT)) if source.size else b""
    else:
        with open_file(path) as file:
            first = file.read(_COUNT)
    for start, start_suffix in STARTS.items():
        if first.startswith(start):
            return start_suffix
    if first.startswith(_ZIP_START) and len(first) >= _NAME:
        (length,) = struct.unpack_from("<H", first, _NAME_LENGTH)
        return _suffix_of_zip(first[_NAME : _NAME + length], suffix)
    if re.match(_OLD_TORCH, first):
        return ".pt"
    header = re.match(_HEADER, first)
    if header and int.from_bytes(header[1], "little") <= _MAX_HEADER_BYTES:
        return SAFETENSORS
    return None


def _suffix_of_zip(member: bytes, suffix: str) -> str | None:
    """Return what a zip file is by the name of its first member."""
    if re.fullmatch(_OF_TORCH, member):
        return ".pt"
    if suffix in _ZIPS:
        return None
    if member.endswith(b".npy"):
        return ".npz"
    return ".keras" if member in _OF_KERAS else None
