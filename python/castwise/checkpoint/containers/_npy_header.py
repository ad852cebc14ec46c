"""The header of an `.npy` array, for every format of the table.

numpy writes ml_dtypes arrays as raw bytes (`|V2`) or in a form that it cannot read back (`<f1`).
castwise writes them as a record with one field of unsigned integers, named after the format:
`[('bfloat16', '<u2')]`. numpy loads that without any help, `a.view(ml_dtypes.bfloat16)` restores
it at no cost, and castwise knows what it is.
"""

import io
import math
import re
from collections.abc import Mapping
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.lib import format as npy

from castwise._core import FormatInfo, parse_literal
from castwise.checkpoint._errors import FETCH, CheckpointError, damage
from castwise.checkpoint._tensors import (
    OTHER,
    UNKNOWN,
    TensorInfo,
    assumed_format,
    check_shape,
    format_named,
    format_of,
)
from castwise.checkpoint.containers.array_bytes import NATIVE_ORDER, lanes
from castwise.checkpoint.containers.interface import Arrangement, Elements

# The longest header that is read or written: a record of 40,000 fields. It takes 60 MiB to parse.
# numpy.load stops at 10,000 bytes, unless `max_header_size` allows more.
_MAX_HEADER_BYTES = 1 << 20
# How many bytes have the length of the header, by the version of the format.
_LENGTH_BYTES = {(1, 0): 2, (2, 0): 4, (3, 0): 4}
_USER_DTYPE = 2  # value of dtype.isbuiltin for dtypes that a library registered
# A descr of this form that numpy cannot read is some library's own dtype of so many bytes.
_NAMELESS = re.compile(r"[<>|=]?[A-Za-z](\d{1,6})")


class NpyHeader(NamedTuple):
    """What stands before the data of an array."""

    info: TensorInfo  # the tensor; its `nbytes` excludes the header
    # What the bytes are to numpy (raw bytes if numpy does not know), None for objects.
    dtype: np.dtype[Any] | None
    fortran: bool  # true if the first axis varies fastest
    nbytes: int  # length of the header in bytes

    @property
    def elements(self) -> Elements | None:
        """How the elements stand in the file; None if castwise cannot read them."""
        if self.info.format is None or self.dtype is None:
            return None
        other_order = "<" if NATIVE_ORDER == ">" else ">"
        # With at most one axis longer than 1 both orders are the same, and headers may name either.
        orders_differ = sum(axis > 1 for axis in self.info.shape) > 1 and 0 not in self.info.shape
        return Elements(
            self.info.format,
            order=NATIVE_ORDER if self.dtype.isnative else other_order,
            fortran=self.fortran and orders_differ,
        )

    @property
    def arrangement(self) -> Arrangement | None:
        """Where the items stand if they are in Fortran order, and None otherwise."""
        elements = self.elements
        if elements is None or self.dtype is None or not elements.fortran:
            return None
        return Arrangement.fortran(self.dtype.itemsize, self.info.shape)


def read_npy_header(
    file: IO[bytes], name: str, size: int, assume: str | Mapping[str, str] | None
) -> NpyHeader:
    """Read the header at the position of `file`, of which `size` bytes of array remain."""
    fields, length = _read_fields(file, name)
    shape = check_shape(name, fields["shape"])
    dtype, stored_dtype = _dtype_of(fields["descr"], name)
    available = size - length
    if dtype is None or dtype.hasobject:
        # A pickle of any length follows. It can be carried along, never opened.
        info = TensorInfo(name, None, OTHER, "object (pickle)", shape, available)
        return NpyHeader(info, None, fields["fortran_order"], length)
    if math.prod(shape) * dtype.itemsize != available:
        raise damage(
            f"array {name!r} of {stored_dtype} and shape {shape} needs "
            f"{math.prod(shape) * dtype.itemsize:,} bytes, the file has {available:,}"
        )
    row = _wrapped_format(dtype) or format_of(dtype)
    if row is None and dtype.names is None and dtype.kind == "V":
        row = assumed_format(assume, name, dtype.itemsize)
    kind = row.kind if row else UNKNOWN if _unknown(dtype) else OTHER
    info = TensorInfo(name, row.name if row else None, kind, stored_dtype, shape, available)
    return NpyHeader(info, dtype, fields["fortran_order"], length)


def npy_header(dtype: np.dtype[Any], shape: tuple[int, ...], name: str, *, fortran: bool) -> bytes:
    """Make the header of an array as numpy would, but with a dtype that can be read back."""
    try:
        descr = npy.dtype_to_descr(storage_dtype(dtype))
    except ValueError as error:
        raise CheckpointError(
            f"array {name!r} of {dtype} cannot be described in an .npy header: {error}"
        ) from error
    fields = {"shape": shape, "fortran_order": fortran, "descr": descr}
    header = io.BytesIO()
    try:
        npy.write_array_header_1_0(header, fields)
    except ValueError:  # longer than version 1.0 can state, or beyond Latin-1
        _write_long_header(header, fields)
    nbytes = header.tell()
    header.seek(0)
    try:
        read_npy_header(header, name, nbytes + math.prod(shape) * dtype.itemsize, None)
    except CheckpointError as error:
        reason = str(error).removesuffix(f"; {FETCH}")  # nothing was fetched
        raise CheckpointError(
            f"what could not be read back is not written: {reason}; save the fields as arrays of "
            "their own in an .npz"
        ) from error
    return header.getvalue()


def _write_long_header(file: io.BytesIO, fields: dict[str, Any]) -> None:
    """Write version 2.0, or 3.0 where a field name needs it; numpy does so nowhere in public."""
    # The two differ in their encoding alone.
    try:
        npy.write_array_header_2_0(file, fields)
    except UnicodeEncodeError:
        npy.write_array_header_2_0(file, {**fields, "descr": _InUtf8(fields["descr"])})
        file.getbuffer()[len(npy.MAGIC_PREFIX)] = 3


class _InUtf8:
    """A value whose `repr` gives UTF-8 when it is encoded as Latin-1."""

    def __init__(self, value: object) -> None:
        self._text = repr(value).encode().decode("latin-1")

    def __repr__(self) -> str:
        return self._text


def storage_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """`dtype` itself if numpy can save it, else the one-field record that carries its name."""
    if dtype.isbuiltin != _USER_DTYPE:
        return dtype
    row = format_of(dtype)
    if row is None:
        raise CheckpointError(f"castwise knows no format {dtype}; numpy could not read it back")
    return _wrapper(row)


def _wrapper(row: FormatInfo) -> np.dtype[Any]:
    lane = f"=u{row.itemsize // lanes(row)}"
    return np.dtype([(row.name, lane, (lanes(row),)) if lanes(row) > 1 else (row.name, lane)])


def _wrapped_format(dtype: np.dtype[Any]) -> FormatInfo | None:
    """The format that a one-field record is named after, if its bytes are that format's."""
    if dtype.names is None or len(dtype.names) != 1:
        return None
    row = format_named(dtype.names[0])
    if row is None or row.dtype is None or row.dtype.isbuiltin != _USER_DTYPE:
        return None
    return row if dtype.newbyteorder("=") == _wrapper(row) else None


def _unknown(dtype: np.dtype[Any]) -> bool:
    """True for raw bytes and for floats wider than the table's."""
    return dtype.names is None and dtype.kind in "Vf"


def _read_fields(file: IO[bytes], name: str) -> tuple[dict[str, Any], int]:
    """The dictionary of the header, its fields checked, and the header's length in bytes."""
    magic = file.read(npy.MAGIC_LEN)
    version = tuple(magic[-2:])
    if magic[: len(npy.MAGIC_PREFIX)] != npy.MAGIC_PREFIX or version not in _LENGTH_BYTES:
        raise damage(f"array {name!r} does not start as an .npy array of version 1 to 3")
    width = _LENGTH_BYTES[version]
    length = int.from_bytes(file.read(width), "little")
    if length > _MAX_HEADER_BYTES:
        raise CheckpointError(
            f"array {name!r} has an .npy header of {length:,} bytes; the limit for files that are "
            f"not trusted is {_MAX_HEADER_BYTES:,}; numpy.load reads more with max_header_size"
        )
    text = file.read(length)
    if len(text) < length:
        raise damage(f"array {name!r}: the .npy header is damaged: it ends early")
    try:
        fields = parse_literal(text.decode("utf-8" if version == (3, 0) else "latin-1"))
    except (ValueError, SyntaxError, TypeError) as error:
        raise damage(f"array {name!r}: the .npy header is damaged: {error}") from error
    if not _is_header(fields):
        raise damage(
            f"array {name!r}: the .npy header is damaged: it must give descr, fortran_order and "
            "a shape of whole numbers"
        )
    return fields, npy.MAGIC_LEN + width + length


def _is_header(fields: object) -> bool:
    return (
        isinstance(fields, dict)
        and fields.keys() == {"descr", "fortran_order", "shape"}
        and isinstance(fields["fortran_order"], bool)
        and isinstance(fields["shape"], tuple)
        and all(type(axis) is int and axis >= 0 for axis in fields["shape"])
    )


def _dtype_of(descr: object, name: str) -> tuple[np.dtype[Any] | None, str]:
    """Return the dtype of a descr, raw bytes where numpy does not know it, and how to call it."""
    try:
        dtype = npy.descr_to_dtype(descr)  # type: ignore[arg-type]  # which judges any object
    except (ValueError, TypeError, KeyError, IndexError, RecursionError, SyntaxError) as error:
        match = _NAMELESS.fullmatch(descr) if isinstance(descr, str) else None
        if match is None:
            raise damage(f"array {name!r}: numpy knows no dtype {descr!r}: {error}") from error
        return np.dtype(f"V{match[1]}"), str(descr)
    if dtype.subdtype is not None:
        raise CheckpointError(
            f"array {name!r}: elements of dtype {descr!r} are arrays themselves, which numpy "
            "cannot read; save it with their axes in its shape"
        )
    return dtype, descr if isinstance(descr, str) else str(dtype)
