"""How tensors stand in a `.safetensors` file: codes of formats, and what has no code.

Formats that safetensors has no code for are written as raw `U8` bytes, with one more axis where an
element has several bytes, and named in the metadata under `castwise.dtypes` (a JSON object, tensor
to format). Other libraries read the bytes; castwise restores the format. So are float6 tensors
written, since no library reads their packed codes, `F6_E2M3` and `F6_E3M2`; castwise reads them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from castwise._core import FormatInfo, finfo, formats
from castwise.checkpoint.errors import CheckpointError
from castwise.checkpoint.tensor_info import (
    UNKNOWN,
    TensorInfo,
    check_shape,
    format_info,
    format_named,
    format_of,
)

FORMATS_KEY = "castwise.dtypes"
"""Metadata key under which the formats of `U8` tensors stand."""

_NIBBLE_BITS = 4
_PACKED_BITS = frozenset((_NIBBLE_BITS, 6))


@dataclass(frozen=True, slots=True)
class Layout:
    """How one tensor stands in the file; `tag` is its format if the code does not say it."""

    code: str
    shape: tuple[int, ...]
    tag: str | None = None


def layout_for(name: str, shape: tuple[int, ...]) -> Layout:
    """How a tensor of the format `name` is to be written."""
    row = format_info(name)
    code = row.safetensors
    if code is not None and code in _format_of_code():
        # Nibbles only where every row ends at a byte, which other readers count on; six bits never,
        # which none of them reads.
        rows_end_at_bytes = bool(shape) and shape[-1] % 2 == 0
        bits = packed_bits(code)
        if bits is None or (bits == _NIBBLE_BITS and rows_end_at_bytes):
            return Layout(code, shape)
    axis = (row.itemsize,) if row.itemsize > 1 else ()
    return Layout(_raw_code(), (*shape, *axis), row.name)


def describe(
    name: str, code: str, stored: Sequence[int], nbytes: int, tag: str | None
) -> tuple[TensorInfo, Layout]:
    """What a tensor is that stands in a header with this code and shape, and with this tag.

    A tag counts only for raw bytes: another tool may have replaced the tensor and kept the
    metadata.

    Raises
    ------
    CheckpointError
        Numpy cannot hold the shape, or it does not fit the tag's format.

    """
    shape = check_shape(name, stored)
    layout = Layout(code, shape, tag if code == _raw_code() else None)
    row = _format_of_code().get(code)
    if layout.tag is not None:
        row = format_named(layout.tag)
        if row is not None and row.itemsize > 1:
            shape = _without_byte_axis(name, row, shape)
    kind = row.kind if row else UNKNOWN
    return TensorInfo(name, row.name if row else None, kind, code, shape, nbytes), layout


def packed_bits(code: str) -> int | None:
    """The bits of an element, if those of several elements share a byte; else None."""
    row = _format_of_code().get(code)
    return row.bits if row is not None and _is_packed(row) else None


def formats_by_name(text: str | None) -> dict[str, str]:
    """The tags under `castwise.dtypes`, or CheckpointError if they are not what we write."""
    if text is None:
        return {}
    try:
        tags = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"metadata {FORMATS_KEY!r} is not JSON: {error}") from error
    if not isinstance(tags, dict) or not all(isinstance(tag, str) for tag in tags.values()):
        raise CheckpointError(f"metadata {FORMATS_KEY!r} must be an object of tensor to format")
    return tags


def formats_text(layouts: Mapping[str, Layout]) -> str | None:
    """The text for `castwise.dtypes`; None if every tensor's code says its format."""
    tags = {name: layout.tag for name, layout in layouts.items() if layout.tag}
    return json.dumps(tags) if tags else None


@cache
def _format_of_code() -> dict[str, FormatInfo]:
    """Formats by safetensors code: those of whole bytes, and of four or six bits, packed."""
    rows = [finfo(name) for name in formats()]
    return {
        row.safetensors: row
        for row in rows
        if row.safetensors is not None and row.dtype is not None and _readable(row)
    }


def _readable(row: FormatInfo) -> bool:
    return row.kind == "bool" or row.bits == 8 * row.itemsize or _is_packed(row)


def _is_packed(row: FormatInfo) -> bool:
    return row.kind != "bool" and row.bits in _PACKED_BITS


@cache
def _raw_code() -> str:
    """The code of plain bytes."""
    row = format_of(np.dtype(np.uint8))
    assert row is not None  # noqa: S101
    code: str | None = row.safetensors
    assert code is not None  # noqa: S101
    return code


def _without_byte_axis(name: str, row: FormatInfo, stored: tuple[int, ...]) -> tuple[int, ...]:
    if not stored or stored[-1] != row.itemsize:
        raise CheckpointError(
            f"metadata says that tensor {name!r} is {row.name}, but its bytes have shape "
            f"{stored}, whose last axis is not {row.itemsize}"
        )
    return stored[:-1]
