"""Arrays and files for the tests of checkpoints."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import castwise
import numpy as np
from castwise import checkpoint
from numpy.typing import NDArray

SEED = 20240
NUMPY_FORMATS = tuple(name for name in castwise.formats() if castwise.finfo(name).dtype is not None)
"""Every format that an array can have here."""


def random_array(name: str, shape: tuple[int, ...]) -> NDArray[Any]:
    """An array of the format `name` with random codes, NaN and infinities among them."""
    info = castwise.finfo(name)
    assert info.dtype is not None
    generator = np.random.default_rng(SEED)
    raw = generator.integers(0, 256, (*shape, info.itemsize), np.uint8)
    if info.kind == "bool":
        raw &= 1
    elif info.bits < 8:
        raw &= (1 << info.bits) - 1
    return np.ascontiguousarray(raw).reshape(-1).view(info.dtype).reshape(shape)


def byte_swapped(array: NDArray[Any]) -> NDArray[Any]:
    """Give the same values in the other byte order: the bytes of each lane are reversed."""
    info = castwise.finfo(array.dtype)
    lanes = 2 if info.kind == "complex" else 1
    raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    turned = raw.reshape(-1, info.itemsize // lanes)[:, ::-1].copy()
    return turned.reshape(-1).view(array.dtype.newbyteorder(">")).reshape(array.shape)


def floats(count: int, seed: int = 0) -> NDArray[np.float32]:
    """Draw floats as in models: normally distributed around zero."""
    return _drawn(count, seed).copy()


@cache
def _drawn(count: int, seed: int) -> NDArray[np.float32]:
    return np.random.default_rng(seed).normal(size=count).astype(np.float32)


def assert_same(actual: NDArray[Any], expected: NDArray[Any]) -> None:
    """The same dtype, shape and bits."""
    assert actual.dtype == expected.dtype
    assert actual.shape == expected.shape
    assert actual.tobytes() == expected.tobytes()


def safetensors_file(header: object, data: bytes = b"", *, length: int | None = None) -> bytes:
    """The bytes of a safetensors file with this header: JSON of an object, or bytes as they are."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    stated = len(text) if length is None else length
    return stated.to_bytes(8, "little") + text + data


def write_sharded(folder: Path, shards: dict[str, dict[str, NDArray[Any]]]) -> None:
    """A folder of shards as model hubs have them, with a few other files."""
    folder.mkdir()
    weight_map = {name: shard for shard, tensors in shards.items() for name in tensors}
    total = sum(array.nbytes for tensors in shards.values() for array in tensors.values())
    for shard, tensors in shards.items():
        checkpoint.save(folder / shard, tensors, metadata={"format": "np"})
    index = {"metadata": {"total_size": total, "made_by": "test"}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "config.json").write_text('{"hidden_size": 8}')
    (folder / "tokenizer").mkdir()
    (folder / "tokenizer" / "vocab.txt").write_text("a\nb\n")
