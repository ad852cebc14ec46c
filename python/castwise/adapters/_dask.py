"""The adapter by which `castwise.cast` and `castwise.cast_tree` cast dask's arrays, lazily."""

import importlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from castwise._core import cast
from castwise.arrays.adapter_registry import Adapter

da: Any = importlib.import_module("dask.array")


class DaskAdapter(Adapter):
    """Cast arrays of dask chunk by chunk, when they are computed."""

    def is_array(self, value: Any) -> bool:
        """Tell whether a value is an array; bags, dataframes and delayed values are not."""
        return isinstance(value, da.Array)

    def dtype_of(self, array: Any) -> Any:
        return array.dtype

    def to_host(self, array: Any) -> NDArray[Any]:
        return np.asarray(array.compute())

    def from_host(self, array: NDArray[Any], like: Any) -> Any:
        """Return the array in the chunks of `like`."""
        return da.from_array(array, chunks=like.chunks)

    def cast(self, array: Any, dtype: Any = None, **options: Any) -> Any:
        """Return an array of the same chunks, which casts each when it is computed."""
        if options.pop("out", None) is not None:
            raise TypeError("out= is not for dask's arrays, which are lazy; leave it out.")
        scale = options.pop("scale", None)
        _check(options)
        # Wrong dtypes and options are refused now, and not when it is computed.
        target = cast(np.empty((0,) * array.ndim, array.dtype), dtype, **options).dtype
        if options.pop("copy", True) is False and target == array.dtype and scale is None:
            return array
        # dask itself casts chunks in parallel.
        options = {"threads": 1, **options}
        meta = cast(array._meta, target)
        if scale is None:
            return array.map_blocks(cast, target, dtype=target, meta=meta, **options)
        if np.ndim(scale) == 0 and not self.is_array(scale):
            return array.map_blocks(cast, target, dtype=target, meta=meta, scale=scale, **options)
        scales = _as_broadcast(array, da.asarray(scale))
        return da.map_blocks(
            _cast_chunk, array, scales, target, dtype=target, meta=meta, options=options
        )


def _as_broadcast(array: Any, scales: Any) -> Any:
    """Return scales in the chunks of the array along which they lie."""
    dimensions = array.shape[array.ndim - scales.ndim :]
    fits = scales.ndim <= array.ndim and all(
        size in (1, whole) for size, whole in zip(scales.shape, dimensions, strict=True)
    )
    if not fits:
        raise ValueError(
            f"scale has shape {scales.shape}, which does not broadcast to {array.shape}; give one "
            "factor, or as many as an axis has elements (of known number)."
        )
    chunks = array.chunks[array.ndim - scales.ndim :]
    return scales.rechunk(
        tuple(1 if size == 1 else sizes for size, sizes in zip(scales.shape, chunks, strict=True))
    )


def _cast_chunk(chunk: Any, scale: Any, dtype: np.dtype[Any], options: dict[str, Any]) -> Any:
    return cast(chunk, dtype, scale=scale, **options)


def _check(options: dict[str, Any]) -> None:
    for name, value in (("report", True), ("rounding", "stochastic")):
        if options.get(name) == value:
            raise ValueError(
                f"{name}={value!r} is about the whole array, and dask's is cast chunk by chunk; "
                "give array.compute()."
            )


ADAPTER = DaskAdapter()  # `castwise` names this object in the registry of adapters
