"""What reads and writes the files of a suffix."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from castwise.checkpoint._tensors import Planned
from castwise.checkpoint.containers.interface import Reader, Writer
from castwise.text.brief import brief_fields


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


def _class_of(reference: Callable[..., Any] | str) -> Callable[..., Any]:
    """Import a class that is named."""
    if not isinstance(reference, str):
        return reference
    module, _, name = reference.partition(":")
    found_class: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return found_class
