"""What callers give: checked before anything is opened."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from castwise.checkpoint.errors import CheckpointError
from castwise.checkpoint.tensor_info import format_info


def checked_path(path: str | os.PathLike[str]) -> Path:
    """`path`, unless it is empty: `Path` would make the current folder of that."""
    if not os.fspath(path):
        raise CheckpointError("the path is empty; name a file or a folder")
    return Path(path)


def check_assume(assume: Any) -> None:
    """TypeError unless `assume` is None, a dtype, or a mapping of tensor name to dtype."""
    if isinstance(assume, Mapping):
        for name, value in assume.items():
            if not isinstance(name, str):
                raise TypeError(f"assume: key {name!r} is no tensor name, which is a str")
            _check_format(value, f"assume: key {name!r}")
    elif assume is not None:
        other = "assume must be a format, or a mapping of tensor name to format"
        _check_format(assume, "assume" if isinstance(assume, str) else other)


def check_texts(names: Any, metadata: Any) -> None:
    """CheckpointError unless tensor names and metadata are strings that a file can hold."""
    for name in names:
        _check_text(name, f"tensor name {name!r}")
    if not isinstance(metadata, Mapping):
        raise CheckpointError(f"metadata must be a mapping of str to str, not {metadata!r}")
    for key, text in metadata.items():
        _check_text(key, f"metadata key {key!r}")
        _check_text(text, f"metadata key {key!r}: the value {text!r}")


def _check_format(value: Any, what: str) -> None:
    try:
        format_info(value)
    except TypeError as error:
        raise TypeError(f"{what}: {error}") from error


def _check_text(text: Any, what: str) -> None:
    if not isinstance(text, str):
        raise CheckpointError(f"{what} is no str but {type(text).__name__}; make it one")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise CheckpointError(f"{what} has no UTF-8 form: {error.reason}") from error
