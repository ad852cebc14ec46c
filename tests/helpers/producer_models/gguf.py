"""GGUF: blocks of every type, and files of them."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from ._decodable import BF16, Array, powers_of

ROWS, BLOCKS = 6, 4


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def header(tensors: list[tuple[str, tuple[int, ...], int, int]], pairs: bytes, count: int) -> bytes:
    parts = [b"GGUF", struct.pack("<IQQ", 3, len(tensors), count), pairs]
    for name, shape, kind, offset in tensors:
        parts += [text(name), struct.pack("<I", len(shape))]
        parts.append(struct.pack(f"<{len(shape)}QIQ", *shape[::-1], kind, offset))
    return b"".join(parts)


def gguf_file(path: Path, tensors: dict[str, tuple[int, tuple[int, ...], bytes]]) -> Path:
    """Write tensors, each of a type, a shape and its bytes."""
    rows, data = [], b""
    for name, (kind, shape, raw) in tensors.items():
        data += bytes(-len(data) % 32)
        rows.append((name, shape, kind, len(data)))
        data += raw
    pairs = text("general.architecture") + struct.pack("<I", 8) + text("llama")
    pairs += text("size") + struct.pack("<IB", 0, 7)
    pairs += text("tokens") + struct.pack("<IIQ", 9, 8, 2) + text("a") + text("b")
    pairs += text("scores") + struct.pack("<IIQ2f", 9, 6, 2, 1, 2)
    made = header(rows, pairs, 4)
    path.write_bytes(made + bytes(-len(made) % 32) + data)
    return path


def halves(raw: Array, width: int) -> Array:
    """Take nibbles apart: element j low and j + width / 2 high."""
    blocks = raw.reshape(*raw.shape[:-1], -1, width // 2)
    codes = np.concatenate([blocks & 15, blocks >> 4], -1)
    return codes.reshape(*raw.shape[:-1], -1).astype(np.float32)


def half(raw: Array) -> Array:
    return np.ascontiguousarray(raw).view(np.float16).astype(np.float32)


def q8_0(raw: Array) -> Array:
    return raw[..., 2:].view(np.int8).astype(np.float32) * half(raw[..., :2])


def q4_0(raw: Array) -> Array:
    return (halves(raw[..., 2:], 32) - 8) * half(raw[..., :2])


def q4_1(raw: Array) -> Array:
    return halves(raw[..., 4:], 32) * half(raw[..., :2]) + half(raw[..., 2:4])


def high(raw: Array) -> Array:
    return np.unpackbits(raw, axis=-1, bitorder="little").astype(np.float32) * 16


def q5_0(raw: Array) -> Array:
    return (halves(raw[..., 6:], 32) + high(raw[..., 2:6]) - 16) * half(raw[..., :2])


def q5_1(raw: Array) -> Array:
    codes = halves(raw[..., 8:], 32) + high(raw[..., 4:8])
    return codes * half(raw[..., :2]) + half(raw[..., 2:4])


def e2m1(codes: Array) -> Array:
    return codes.astype(np.uint8).view(ml_dtypes.float4_e2m1fn).astype(np.float32)


def mxfp4(raw: Array) -> Array:
    return e2m1(halves(raw[..., 1:], 32)) * powers_of(raw[..., :1])


def nvfp4(raw: Array) -> Array:
    scale = np.repeat(raw[..., :4].view(ml_dtypes.float8_e4m3fn).astype(np.float32), 16, -1)
    return e2m1(halves(raw[..., 4:], 16)) * scale


TYPES: dict[str, tuple[int, int, int, Callable[[Array], Array]]] = {
    "Q4_0": (2, 32, 18, q4_0),
    "Q4_1": (3, 32, 20, q4_1),
    "Q5_0": (6, 32, 22, q5_0),
    "Q5_1": (7, 32, 24, q5_1),
    "Q8_0": (8, 32, 34, q8_0),
    "MXFP4": (39, 32, 17, mxfp4),
    "NVFP4": (40, 64, 36, nvfp4),
}


def sample(
    name: str, rows: int = ROWS, blocks: int = BLOCKS
) -> tuple[tuple[int, tuple[int, ...], bytes], Array]:
    """Return a tensor of random blocks, and its values."""
    kind, width, size, decode = TYPES[name]
    raw = np.random.default_rng(0).integers(0, 256, (rows, blocks, size), np.uint8)
    if name == "MXFP4":
        raw[..., 0] = raw[..., 0] % 16 + 115
    elif name == "NVFP4":
        raw[..., :4] &= 0x77
    else:
        raw[..., 1] = 0x20  # a half that is small and finite
        raw[..., 3 if name in ("Q4_1", "Q5_1") else 1] = 0x20
    values = decode(raw).reshape(rows, blocks * width)
    return (kind, values.shape, raw.tobytes()), values


VALUE_LAYOUTS = {4: "I", 5: "i", 6: "f", 7: "?"}


ELEMENT_DTYPES = {0: np.dtype(np.float32), 30: np.dtype(BF16)}


def parsed(path: Path) -> tuple[dict[str, Any], dict[str, tuple[int, Array]]]:
    """Read a file as the specification of GGUF says: values, and tensors with their types."""
    raw, at = path.read_bytes(), 0

    def take(layout: str) -> Any:
        nonlocal at
        (found,) = struct.unpack_from("<" + layout, raw, at)
        at += struct.calcsize("<" + layout)
        return found

    def text() -> str:
        nonlocal at
        count = take("Q")
        at += count
        return raw[at - count : at].decode()

    def value(kind: int) -> Any:
        if kind == 9:
            inner, count = take("I"), take("Q")
            return [value(inner) for _ in range(count)]
        return text() if kind == 8 else take(VALUE_LAYOUTS[kind])

    assert (raw[:4], struct.unpack_from("<I", raw, 4)) == (b"GGUF", (3,))
    at = 8
    tensors, pairs = take("Q"), take("Q")
    stated = {text(): value(take("I")) for _ in range(pairs)}
    rows = []
    for _ in range(tensors):
        name = text()
        shape = [take("Q") for _ in range(take("I"))][::-1]
        rows.append((name, shape, take("I"), take("Q")))
    start = -(-at // 32) * 32
    assert not any(raw[at:start])
    found: dict[str, tuple[int, Array]] = {}
    end = 0
    for name, shape, kind, offset in rows:
        assert offset == -(-end // 32) * 32
        dtype = ELEMENT_DTYPES.get(kind, np.dtype(np.uint8))
        stored = shape if kind != 39 else [*shape[:-1], shape[-1] // 32, 17]
        count = int(np.prod(stored))
        end = offset + count * dtype.itemsize
        found[name] = kind, np.frombuffer(raw, dtype, count, start + offset).reshape(stored)
    assert len(raw) == start + -(-end // 32) * 32
    return stated, found


def blocks(codes: Array, powers: Array) -> Array:
    """Return blocks: a power of two, then codes j and j + 16 in byte j."""
    each = codes.reshape(*powers.shape, 32)
    return np.concatenate([powers[..., None], each[..., :16] | each[..., 16:] << 4], -1)
