"""Turn arrays into the bytes of a file and back: little-endian, C order, no loop over elements."""

import math
import sys
from collections.abc import Iterable
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from castwise._core import FormatInfo, cast, finfo
from castwise._numbers import BYTE_BITS

Bytes = NDArray[np.uint8]

NATIVE_ORDER = "<" if sys.byteorder == "little" else ">"


def native(array: NDArray[Any]) -> NDArray[Any]:
    """Return `array` in the byte order of this machine; itself if it is, or is of no format."""
    # numpy's own `astype` misreads the swapped dtypes of ml_dtypes. Of complex32 and bcomplex32 it
    # does not say which bytes are exchanged.
    if array.dtype.isnative:
        return array
    try:
        dtype = finfo(array.dtype).dtype
    except TypeError:
        return array
    result: NDArray[Any] = cast(array, dtype)
    return result


def to_bytes(array: NDArray[Any]) -> Bytes:
    """Return the elements in C order as little-endian bytes; a view where that is possible."""
    flat = np.ascontiguousarray(native(array)).reshape(-1)
    if NATIVE_ORDER == "<":
        return flat.view(np.uint8)
    lane = _lane(flat.dtype)
    return flat.view(lane).astype(lane.newbyteorder("<"), copy=False).view(np.uint8)


def from_bytes(
    raw: Bytes, dtype: np.dtype[Any], shape: tuple[int, ...], order: Literal["<", ">"] = "<"
) -> NDArray[Any]:
    """Return the array of native `dtype` with the C-order bytes `raw`: a view if `order` allows."""
    if order == NATIVE_ORDER:
        return raw.view(dtype).reshape(shape)
    lane = _lane(dtype)
    native = raw.view(lane.newbyteorder(order)).astype(lane, copy=False)
    return native.view(dtype).reshape(shape)


def join_pieces(pieces: Iterable[bytes], nbytes: int) -> Bytes:
    raw = np.empty(nbytes, np.uint8)
    bytes_done = 0
    for piece in pieces:
        raw[bytes_done : bytes_done + len(piece)] = np.frombuffer(piece, np.uint8)
        bytes_done += len(piece)
    return raw


def pack_nibbles(array: NDArray[Any]) -> Bytes:
    """Put two elements into each byte, the first in the low half; the count must be even."""
    codes = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    nibbles = codes[1::2] << np.uint8(4)
    nibbles |= codes[0::2] & np.uint8(15)
    return nibbles


def unpack(data: Bytes, bits: int) -> Bytes:
    """Take codes of `bits` bits apart, one per byte: the first in the lowest bits, without gaps."""
    # DLPack and ONNX pack elements of less than a byte so, and torch its `float4_e2m1fn_x2`.
    # `bits` is at most 8, and `data` ends with a code.
    group = math.lcm(bits, BYTE_BITS)  # the bits after which a code begins at a byte again
    stride = group // BYTE_BITS
    codes = np.empty(data.size * BYTE_BITS // bits, np.uint8)
    for begin in range(0, group, bits):
        byte, shift = divmod(begin, BYTE_BITS)
        code = data[byte::stride] >> np.uint8(shift)
        if shift + bits > BYTE_BITS:
            # The upper bits of a code that goes on in the next byte.
            code |= data[byte + 1 :: stride] << np.uint8(BYTE_BITS - shift)
        np.bitwise_and(code, np.uint8(2**bits - 1), out=codes[begin // bits :: group // bits])
    return codes


def lanes(info: FormatInfo) -> int:
    """Count the numbers per element: two for the complex formats, else one."""
    return 2 if info.kind == "complex" else 1


def _lane(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the unsigned integer of one lane's size: what byte order applies to."""
    size = dtype.itemsize // lanes(finfo(dtype))
    return np.dtype(f"u{size}")
