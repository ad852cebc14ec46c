"""The adapter by which `castwise.cast` reads and writes arrays in files, of h5py and zarr.

Without ``out`` such an array is read whole, and becomes a numpy array. With ``out``, it passes
through memory in blocks: of whole chunks of both, and of `BLOCK` bytes where chunks are smaller. So
does an array of numpy that is cast into one in a file.
"""

import itertools
import math
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from castwise._core import cast, finfo
from castwise.arrays.adapter_registry import Adapter

BLOCK = 1 << 23  # the bytes of a block of the source, unless a chunk is larger

_CLASSES = (("h5py", "Dataset"), ("zarr", "Array"))


class StoredArrayAdapter(Adapter):
    """Cast datasets of h5py and arrays of zarr: to numpy's arrays, or into ``out``."""

    def is_array(self, value: Any) -> bool:
        """Tell whether a value is a dataset or an array in a store."""
        return any(
            isinstance(value, getattr(sys.modules[module], name))
            for module, name in _CLASSES
            if module in sys.modules
        )

    def dtype_of(self, array: Any) -> Any:
        return array.dtype

    def to_host(self, array: Any) -> NDArray[Any]:
        return np.asarray(array[...])

    def from_host(self, array: NDArray[Any], like: Any) -> Any:
        """Return the array as it is: a new one has no place in the file."""
        del like
        return array

    def cast(self, array: Any, dtype: Any = None, **options: Any) -> Any:
        """Cast to a numpy array, or with ``out`` block by block."""
        out = options.pop("out", None)
        if out is None:
            options.pop("copy", None)  # the elements that are read are new
            return super().cast(array, dtype, **options)
        return _into(array, dtype, out, options)

    def cast_into(self, array: NDArray[Any], dtype: Any = None, *, out: Any, **options: Any) -> Any:
        """Cast a numpy array into a dataset or an array in a store, as `cast` does."""
        return _into(array, dtype, out, options)

    def is_floating(self, array: Any) -> bool:
        """Tell whether a dataset holds real floats; one without elements does not."""
        return array.dtype is not None and super().is_floating(array)


def _into(array: Any, dtype: Any, out: Any, options: dict[str, Any]) -> Any:
    if not (isinstance(out, np.ndarray) or ADAPTER.is_array(out)):
        raise TypeError(
            f"out is of type {type(out).__name__}; give an h5py.Dataset, a zarr.Array or an "
            "array of numpy."
        )
    if out.shape != array.shape:
        raise ValueError(f"out has shape {out.shape}; give one of shape {array.shape}.")
    if options.get("rounding") == "stochastic":
        raise ValueError(
            "rounding='stochastic' depends on the place of an element in the whole array, and "
            "this is cast block by block; assign the result to out[...], without out=."
        )
    target = _target(dtype, out)
    options = {name: value for name, value in options.items() if name not in ("order", "copy")}
    scale = options.pop("scale", None)
    scales = None if scale is None or np.ndim(scale) == 0 else np.broadcast_to(scale, array.shape)
    # Wrong options are refused before the first block is written.
    report = cast(np.empty((0,), array.dtype), target, **{**options, "report": True})[1]

    def blocks() -> Iterator[tuple[Any, Any]]:
        for place in _places(array, out):
            factor = scale if scales is None else scales[place]
            try:
                yield place, cast(np.asarray(array[place]), target, scale=factor, **options)
            except (OverflowError, ValueError) as error:
                raise type(error)(f"in the block {_index_text(place)}: {error}") from error

    if "raise" in (options.get("overflow"), options.get("nan")):
        for _ in blocks():
            pass
    for place, outcome in blocks():
        block = outcome
        if options.get("report"):
            block, of_block = outcome
            report += of_block
        out[place] = block.view(out.dtype) if out.dtype.kind == "V" else block
    return (out, report) if options.get("report") else out


def _target(dtype: Any, out: Any) -> Any:
    """Return the numpy dtype of the result; TypeError if `out` has another."""
    if dtype is None:
        return out.dtype
    target = finfo(dtype).dtype
    is_raw = out.dtype.kind == "V" and target is not None and out.dtype.itemsize == target.itemsize
    if target is None or not (out.dtype == target or is_raw):
        raise TypeError(
            f"out has dtype {out.dtype}, but dtype={finfo(dtype).name} was asked for; leave dtype "
            "out or give an out of that dtype."
        )
    return target


def _places(array: Any, out: Any) -> Iterator[tuple[slice, ...]]:
    """Return the places of blocks, in C order: whole chunks of `out`, about those of `array`."""
    if not all(array.shape):
        return iter(())
    ones = (1,) * len(array.shape)
    out_chunks, read = _chunks(out) or ones, _chunks(array) or ones
    sizes = [
        min(size, chunk * math.ceil(other / chunk))
        for size, chunk, other in zip(array.shape, out_chunks, read, strict=True)
    ]
    # A block grows from the last axis on, as long as there is room.
    for axis in reversed(range(len(sizes))):
        room = BLOCK // max(math.prod(sizes) * array.dtype.itemsize, 1)
        sizes[axis] = min(array.shape[axis], sizes[axis] * max(room, 1))
    ranges = [
        [slice(begin, min(begin + step, size)) for begin in range(0, size, step)]
        for size, step in zip(array.shape, sizes, strict=True)
    ]
    return itertools.product(*ranges)


def _chunks(array: Any) -> Sequence[int] | None:
    """Return the shape of what is compressed as one: of zarr a shard, which holds chunks."""
    chunks: Sequence[int] | None = getattr(array, "shards", None) or getattr(array, "chunks", None)
    return chunks


def _index_text(place: tuple[slice, ...]) -> str:
    return "[" + ", ".join(f"{part.start}:{part.stop}" for part in place) + "]"


ADAPTER = StoredArrayAdapter()  # `castwise` names this object in the registry of adapters
