"""Describe tensors before their data is read, and check what callers say about them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from castwise._core import FormatInfo, finfo
from castwise.checkpoint._errors import CheckpointError, damage
from castwise.text.spelling import typed_format
from castwise.text.wording import argument, reword_core

# Kind of a tensor that may well hold numbers, but in a format that the file does not tell.
UNKNOWN = "unknown"

# Kind of an array that holds no numbers of the table: text, dates, records, Python objects.
OTHER = "other"

_MAX_AXES = 64  # numpy's own limit
_MAX_ELEMENTS = 2**63 - 1  # of an array of numpy, whose sizes are intp


class TensorInfo(NamedTuple):
    """Name, format and size of one tensor, as its container states them.

    Attributes
    ----------
    name
        Key of the tensor in its container.
    format
        Name of its format in castwise's table, None if `kind` is "unknown" or "other".
    kind
        "bool", "int", "uint", "float" or "complex" of that format; "unknown"; "other".
    stored
        The container's own word for the format.
    shape
        Number of elements along each axis.
    nbytes
        Size of the tensor in the container, in bytes, uncompressed.

    """

    name: str
    format: str | None
    kind: str
    stored: str
    shape: tuple[int, ...]
    nbytes: int

    @property
    def label(self) -> str:
        """The format, or the container's word for a format that the table lacks."""
        return self.format or self.stored

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "name": self.name,
            "dtype": self.format,
            "kind": self.kind,
            "stored": self.stored,
            "shape": list(self.shape),
            "nbytes": self.nbytes,
        }


class Planned(NamedTuple):
    """One tensor and what becomes of it."""

    # The tensor as the source holds it.
    info: TensorInfo
    # Format to cast to, None to keep the stored bytes.
    target: str | None = None
    # Key of the map or policy map that decided, None if none did.
    pattern: str | None = None
    # "dtype", "map" or "policy", None if nothing asked for a cast.
    decided_by: str | None = None
    # True for a tensor that is decoded, encoded or transcoded to `target` while it is read.
    is_derived: bool = False
    # What reports call the target, if not by the name of its format.
    label: str | None = None

    @property
    def format(self) -> str | None:
        """The format that it will have; None if that is one that castwise does not know."""
        return self.target or self.info.format

    @property
    def is_cast(self) -> bool:
        """True if its elements are to be cast."""
        return self.target is not None and not self.is_derived


def may_be_float(info: TensorInfo) -> bool:
    """Return True for a floating tensor, and for one in a format that nobody knows."""
    return info.kind in {"float", UNKNOWN}


def format_info(name: DTypeLike) -> FormatInfo:
    """Return the row of a format, given as `castwise.cast` takes it, that numpy can hold here."""
    info = finfo(name)
    if info.dtype is None:
        raise TypeError(f"{info.name} has no numpy dtype in the installed ml_dtypes")
    return info


def format_named(name: str) -> FormatInfo | None:
    """Find the row of a format by the name in a file; None if numpy can hold none here."""
    try:
        return format_info(name)
    except (TypeError, UnicodeEncodeError):  # the second: half of a surrogate pair
        return None


@cache
def numpy_dtype(name: str) -> np.dtype[Any]:
    """Return the native numpy dtype of a format; raises as `format_info`."""
    dtype: np.dtype[Any] | None = format_info(name).dtype
    assert dtype is not None  # noqa: S101  (format_info checked it)
    return dtype


@cache
def format_of(dtype: np.dtype[Any]) -> FormatInfo | None:
    """Find the row of the table for a numpy dtype of either byte order; None if there is none."""
    if dtype.names is not None or dtype.subdtype is not None:
        return None
    try:
        return finfo(dtype if dtype.isbuiltin else dtype.newbyteorder("="))
    except TypeError:
        return None


def check_shape(name: str, shape: Sequence[int]) -> tuple[int, ...]:
    """Return `shape` as a tuple that numpy can hold, or refuse it, naming the tensor."""
    lengths = tuple(shape)
    if len(lengths) > _MAX_AXES:
        raise damage(f"tensor {name!r} has {len(lengths)} axes; numpy allows {_MAX_AXES}")
    # Axes of length 0 do not help: numpy multiplies the others, so that strides cannot overflow.
    if math.prod(filter(None, lengths)) > _MAX_ELEMENTS:
        raise damage(f"tensor {name!r} has shape {lengths}, too large for numpy")
    return lengths


def assumed_format(
    assume: str | Mapping[str, str] | None, name: str, itemsize: int
) -> FormatInfo | None:
    """Return the format that the caller says a tensor of unknown elements has, if it fits."""
    # `assume` is one format for all such tensors (those of another element size stay unknown), or a
    # mapping from tensor name to format, which then must fit.
    if assume is None:
        return None
    if not isinstance(assume, Mapping):
        info = format_info(assume)
        return info if info.itemsize == itemsize else None
    if name not in assume:
        return None
    info = format_info(assume[name])
    if info.itemsize != itemsize:
        raise CheckpointError(
            f"tensor {name!r} has elements of {itemsize} bytes, so it cannot be {info.name}, "
            f"whose elements have {info.itemsize}"
        )
    return info


def check_assume(assume: object) -> None:
    """TypeError for an `assume` that is neither a dtype nor a mapping of names to dtypes."""
    if isinstance(assume, Mapping):
        for name, value in assume.items():
            if not isinstance(name, str):
                raise TypeError(f"assume: key {name!r} is not a tensor name, which is a str")
            _check_format(value, f"assume: key {name!r}")
    elif assume is not None:
        other = "assume must be a format, or a mapping of tensor name to format"
        _check_format(assume, argument("assume") if isinstance(assume, str) else other)


def check_texts(names: Iterable[object], metadata: object) -> None:
    """Refuse tensor names and metadata that are not strings that a file can hold."""
    for name in names:
        _check_text(name, "tensor name {!r}", name)
    if not isinstance(metadata, Mapping):
        raise CheckpointError(f"metadata must be a mapping of str to str, not {metadata!r}")
    for key, text in metadata.items():
        _check_text(key, "metadata key {!r}", key)
        _check_text(text, "metadata key {!r}: the value {!r}", key, text)


def _check_format(value: object, subject: str) -> None:
    dtype: Any = typed_format(value, subject)
    try:
        format_info(dtype)
    except TypeError as error:
        raise TypeError(subject + ": " + reword_core(str(error))) from error


def _check_text(text: object, subject: str, *values: object) -> None:
    if not isinstance(text, str):
        raise CheckpointError(f"{subject.format(*values)} must be a str, not {type(text).__name__}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise CheckpointError(
            f"{subject.format(*values)} has no UTF-8 form: {error.reason}"
        ) from error
