"""Cast jax's arrays: by castwise's kernels on the host, else by operations that XLA compiles."""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

import numpy as np
from numpy.typing import NDArray

from castwise._core import CastReport, finfo
from castwise._core import cast as cast_on_host
from castwise._options import ArrayOptions
from castwise.adapters.jax._traced import convert
from castwise.arrays.adapter_registry import Adapter
from castwise.environment.frameworks import require

if TYPE_CHECKING:
    from jax import Array

jax: Any = require("jax")

# Bytes up to which `jax.numpy.asarray`, which copies, takes half the time of a `device_put`.
_SMALL = 1 << 14

_ALIGNMENT = 64  # the alignment in bytes of memory that jax's CPU client uses without copying it


@overload
def cast(
    array: Array, dtype: Any, *, report: Literal[False] = False, **options: Unpack[ArrayOptions]
) -> Array: ...
@overload
def cast(
    array: Array, dtype: Any, *, report: Literal[True], **options: Unpack[ArrayOptions]
) -> tuple[Array, CastReport]: ...
def cast(array: Any, dtype: Any, **options: Any) -> Any:
    """Cast a jax array to another dtype.

    Parameters
    ----------
    array : jax.Array
        On one CPU device castwise casts it, without further copies. XLA casts it inside of
        `jax.jit`, `jax.grad` and the like, on other devices, and in several shards.
    dtype : dtype
        One that jax has; 64-bit dtypes need ``jax_enable_x64``.
    **options
        ``rounding``, ``overflow``, ``nan``, ``scale``, ``seed``, ``order``, ``copy``, ``report``,
        ``threads``, as in `castwise.cast`. Where XLA casts, ``copy``, ``rounding="nearest-even"``
        and, from floats to floats, ``overflow="saturate"`` only; the elements are the same.

    Returns
    -------
    jax.Array, or (jax.Array, CastReport) with ``report=True``
        On the same device.

    Raises
    ------
    TypeError
        `array` is not a jax array, or jax has no such dtype.
    ValueError
        An option is wrong, or not available where the array is.
    OverflowError
        With ``overflow="raise"``.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from castwise.adapters import jax as jax_adapter
    >>> jax_adapter.cast(jnp.array([1.0, 1e6]), "float8_e4m3fn", overflow="saturate")
    Array([1, 448], dtype=float8_e4m3fn)

    """
    if not isinstance(array, jax.Array):
        raise TypeError(f"array is of type {type(array).__name__}; give a jax.Array.")
    if options.pop("out", None) is not None:
        raise TypeError(
            "out= is for numpy's arrays, and x is jax's; leave it out, or cast numpy.asarray(x) "
            "into an array of numpy."
        )
    if dtype is None:
        raise TypeError("dtype=None says nothing to cast to; give dtype=.")
    if not isinstance(array.dtype, np.dtype):
        raise TypeError(
            f"array has dtype {array.dtype}, which castwise does not cast; jax.random.key_data "
            "gives the numbers of a key."
        )
    target = target_dtype(dtype)
    if is_on_host(array):
        return _on_host(array, target, options)
    return _by_xla(array, target, options)


def target_dtype(dtype: Any) -> np.dtype[Any]:
    """Return the numpy dtype that an argument means; TypeError if jax does not have it."""
    row = finfo(dtype)
    if row.dtype is None or not _holds(row.dtype):
        raise TypeError(f"dtype={row.name!r} is not a dtype that jax has; choose another.")
    canonical = jax.dtypes.canonicalize_dtype(row.dtype)
    if canonical != row.dtype:
        raise TypeError(
            f"dtype={row.name!r}: jax has 64-bit types with jax.config.update('jax_enable_x64', "
            f"True) only; do that, or use {canonical.name!r}."
        )
    return row.dtype


@functools.cache
def _holds(dtype: np.dtype[Any]) -> bool:
    """Tell whether jax has arrays of a dtype; some are known to it by name only."""
    try:
        jax.device_put(np.empty(0, dtype))
    except (TypeError, jax.errors.JaxRuntimeError):
        return False
    return True


def is_on_host(array: Any) -> bool:
    """Tell whether the elements are in the memory of one CPU device, and not traced."""
    if isinstance(array, jax.core.Tracer) or not array.is_fully_addressable:
        return False
    devices = array.devices()
    return len(devices) == 1 and next(iter(devices)).platform == "cpu"


def _on_host(array: Any, target: np.dtype[Any], options: dict[str, Any]) -> Any:
    """Cast by the kernels; a result on the host is handed to jax without a copy where it can be."""
    source = np.asarray(array)
    if isinstance(options.get("scale"), jax.Array):
        options = {**options, "scale": np.asarray(options["scale"])}
    if options.get("copy", True) is False:
        outcome = cast_on_host(source, target, **options)
        result = outcome[0] if options.get("report") else outcome
        if result is source:
            return array
    else:
        options = {name: value for name, value in options.items() if name not in ("copy", "order")}
        is_small = source.size * target.itemsize <= _SMALL  # and copied by the adapter
        out = None if is_small else _aligned_buffer(source.shape, target)
        outcome = cast_on_host(source, target, out=out, **options)
        result = outcome[0] if options.get("report") else outcome
    cast_array = ADAPTER.from_host(result, array)
    return (cast_array, outcome[1]) if options.get("report") else cast_array


def _aligned_buffer(shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Allocate an array that jax uses without copying it."""
    size = math.prod(shape) * dtype.itemsize
    memory = np.empty(size + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    return memory[start : start + size].view(dtype).reshape(shape)


# The options that are obeyed where castwise does not cast on the host.
_ANYWHERE: dict[str, tuple[Any, ...]] = {
    "copy": (True, False),
    "nan": ("keep",),
    "order": ("K", "C", "A"),
    "overflow": ("ieee", "saturate"),
    "rounding": (None, "nearest-even"),
}

# Kinds and bits of dtypes that jax stores, but of which XLA cannot compile conversions.
_UNCOMPILED = {("int", 1), ("uint", 1), ("float", 6)}


def _elsewhere(array: Any) -> str:
    """Say which arrays castwise's kernels cast, why this is none, and what to do."""
    if isinstance(array, jax.core.Tracer):
        place, remedy = "x is traced by jax.jit or the like", "cast outside of it"
    else:
        devices = [*array.devices()]
        kinds = " and ".join(sorted({device.platform for device in devices}))
        place = f"x is on {len(devices)} devices ({kinds})" if devices[1:] else f"x is on {kinds}"
        remedy = "cast numpy.asarray(x)"
        if not array.is_fully_addressable:
            place, remedy = "x has shards in other processes", "cast each shard"
    return f"arrays on one CPU device, and {place}; leave it out, or {remedy}"


def _by_xla(array: Any, target: np.dtype[Any], options: dict[str, Any]) -> Any:
    """Cast by operations of XLA; refuse options and dtypes that it does not have."""
    # The kernels refuse names and values that are wrong, and complex to real.
    options_in_trace = {
        name: value for name, value in options.items() if name not in ("scale", "seed")
    }
    if options_in_trace.get("rounding") != "stochastic":
        cast_on_host(np.empty(0, array.dtype), target, **options_in_trace)
    for name, value in options.items():
        if not (value is None or value is False) and value not in _ANYWHERE.get(name, ()):
            raise ValueError(f"{name}={value!r} is for {_elsewhere(array)}.")
    for name, row in (("array", finfo(array.dtype)), ("dtype", finfo(target))):
        if (row.kind, row.bits) in _UNCOMPILED:
            raise TypeError(
                f"{name} has the dtype {row.name}, with which XLA does not compute; cast it on one "
                "CPU device, outside of jax.jit, or use another dtype."
            )
    saturate = options.get("overflow") == "saturate"
    if saturate and not (finfo(array.dtype).kind == finfo(target).kind == "float"):
        raise ValueError(
            f"overflow='saturate' from {array.dtype} to {target} is for {_elsewhere(array)}, or "
            "use jax.numpy.clip."
        )
    return convert(array, target, options.get("rounding") is not None, saturate)


class JaxAdapter(Adapter):
    """Cast arrays of jax, also traced ones."""

    def is_array(self, value: Any) -> bool:
        """Tell whether a value is an array, or is traced as one."""
        return isinstance(value, jax.Array)

    def dtype_of(self, array: Any) -> Any:
        """Return the numpy dtype; None for jax's random keys."""
        return array.dtype if isinstance(array.dtype, np.dtype) else None

    def to_host(self, array: Any) -> NDArray[Any]:
        """Return the elements, read-only; of an array on the CPU without a copy."""
        return np.asarray(array)

    def from_host(self, array: NDArray[Any], like: Any) -> Any:
        """Return an array, which the caller no longer uses, as one of jax's."""
        # A large one is not copied where its address is aligned. It is on the device of `like`, and
        # committed to that device if `like` is.
        is_committed, sharding = getattr(like, "committed", True), like.sharding
        (device, *further_devices) = like.devices()
        is_default = sharding.memory_kind in (None, device.default_memory().kind)
        if further_devices or not is_default or (is_committed and array.nbytes > _SMALL):
            return jax.device_put(array, sharding)
        if is_committed:  # 10 us; `device_put` takes 25, and 20 for each of a list
            return jax.make_array_from_callback(array.shape, sharding, lambda _: array)
        with jax.default_device(device):
            return (jax.device_put if array.nbytes > _SMALL else jax.numpy.asarray)(array)

    def cast(self, array: Any, dtype: Any = None, **options: Any) -> Any:
        """Cast by `castwise.adapters.jax.cast`, on the host or by XLA."""
        return cast(array, dtype, **options)


ADAPTER = JaxAdapter()  # `castwise` names this object in the registry of adapters
