"""The global scale that weights get in another form, found when the first of them is read."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from castwise._core import cast
from castwise.checkpoint._errors import CheckpointError
from castwise.checkpoint.planning.stored_tensors import Range, StoredTensors
from castwise.quantization import QuantizedWeight
from castwise.quantization.arrays.conversion import PowerRange, common_power
from castwise.quantization.weights.decoding import Decoding

# What is decoded at a time, and what of copies is read at a time: a few MiB for any weight.
SLAB_ELEMENTS = 1 << 20
_SLAB_BYTES = 4 << 20
# The dtypes of 16 bits that weights are decoded to, and their magnitudes are in.
_NUMBERS = (ml_dtypes.bfloat16, np.float16)
# The values of the codes without a sign.
_CODES = np.arange(8, dtype=np.uint8).view(ml_dtypes.float4_e2m1fn).astype(np.float32)

# The largest scale of a block times the largest code.
_LARGEST = np.float32(448 * 6)

AGAIN = "decode it (castwise dequantize), and quantize that (castwise quantize)"

Array = NDArray[Any]


@dataclass(slots=True)
class Reciprocal:
    """The reciprocal of a global scale that some weights have."""

    global_scale: np.float32  # the global scale
    divides: bool  # true if it divides; then the reciprocal multiplies
    stored_tensors: StoredTensors  # the tensors of all shards
    scales: list[str] = field(default_factory=list)  # the names of the scales beside it
    reciprocal: np.float32 | None = None  # the reciprocal
    lock: Lock = field(default_factory=Lock)

    @property
    def sources(self) -> list[str]:
        """The stored tensors that are read for it."""
        return self.scales

    def value(self) -> np.float32:
        """Find it, the first time, with the scales that are there."""
        with self.lock:
            if self.reciprocal is None:
                self.reciprocal = self._search()
            return self.reciprocal

    def _search(self) -> np.float32:
        is_stored = np.zeros(256, bool)
        for name in self.scales:
            for array in slabs_of(self.stored_tensors, name):
                is_stored |= np.bincount(array.reshape(-1).view(np.uint8), minlength=256) > 0
        scales = np.flatnonzero(is_stored).astype(np.uint8).view(ml_dtypes.float8_e4m3fn)
        with np.errstate(all="ignore"):
            nearest = np.float32(1) / self.global_scale
            upper = np.nextafter(nearest, np.float32(np.inf))
            lower = np.nextafter(nearest, nearest * 0)
            # The reciprocal of a neighbor of a reciprocal may be two numbers away.
            further = np.nextafter(upper, np.float32(np.inf)), np.nextafter(lower, nearest * 0)
            near = (nearest, upper, lower, *further)
            for candidate in sorted(near, key=lambda scale: not _is_usual(scale, not self.divides)):
                divisor, factor = (
                    (self.global_scale, candidate)
                    if self.divides
                    else (candidate, self.global_scale)
                )
                if np.isfinite(candidate) and _is_same(scales.astype(np.float32), divisor, factor):
                    return np.float32(candidate)
        raise CheckpointError(
            f"tensor {self.scales[0]!r}: with no reciprocal of its global scale "
            f"{self.global_scale!r} do all values stay what they are; {AGAIN}"
        )


def _is_usual(scale: np.float32, divides: bool) -> bool:
    """Return True for the global scale that producers compute of a magnitude of 16 bits."""
    # Producers compute in float32 or in the dtype of the magnitude. Of neighbors that stand for
    # the same values this is the one that was there first.
    with np.errstate(all="ignore"):
        amax = _LARGEST / scale if divides else _LARGEST * scale
        sizes = [cast(cast(amax, dtype), np.float32) for dtype in _NUMBERS]
        exact = [_LARGEST / size if divides else size / _LARGEST for size in sizes]
        inexact = [
            cast(cast(size, dtype), np.float32) for size, dtype in zip(exact, _NUMBERS, strict=True)
        ]
        return scale in (*exact, *inexact)


def _is_same(scales: Array, divisor: np.float32, factor: np.float32) -> bool:
    """Return True if all codes at these scales decode to the same, dividing and multiplying."""
    # In float32, as producers compute, and as real numbers, for which float64 is wide enough: no
    # quotient is within 2^-40 of the middle between two results unless it is that.
    return all(
        np.array_equal(
            *(
                cast(_CODES * scales_in_dtype[:, None], dtype).view(np.uint16)
                for scales_in_dtype in pair
            )
        )
        for scales_in in (scales, scales.astype(np.float64))
        for pair in [(scales_in / divisor, scales_in * factor)]
        for dtype in _NUMBERS
    )


@dataclass(slots=True)
class Power:
    """The global scale of weights whose scales are powers of two."""

    divides: bool  # the global scale divides
    plans: dict[str, Decoding] = field(default_factory=dict)  # how each of them is read, by name
    sources: list[str] = field(default_factory=list)  # the stored tensors that are read for it
    exponent: int | None = None  # the exponent that it has if it multiplies
    lock: Lock = field(default_factory=Lock)

    def add(self, weight: QuantizedWeight, plan: Decoding) -> None:
        self.plans[weight.payload] = plan
        self.sources += [weight.payload, *weight.parts]

    def power(self) -> int:
        """Find its exponent, the first time, from all scales of blocks that have values."""
        with self.lock:
            if self.exponent is None:
                self.exponent = self._search()
            return self.exponent

    def value(self) -> np.float32:
        power = self.power()
        return np.float32(np.ldexp(1, -power if self.divides else power))

    def _search(self) -> int:
        ranges = {name: PowerRange() for name in self.plans}
        for name, plan in self.plans.items():
            for slab in plan.slabs(SLAB_ELEMENTS):
                ranges[name].add(plan.rows(slab), slab.place, slab.start)
        try:
            return common_power(ranges)
        except ValueError as error:
            raise CheckpointError(f"{error}; {AGAIN}") from error


def cuts_of(tensors: StoredTensors, name: str, step: int = 1) -> Iterator[Sequence[Range]]:
    """Cut a tensor of bytes along its first axis, at multiples of a step."""
    shape = tensors[name].shape
    other_ranges: list[Range] = [(0, count) for count in shape[1:]]
    high = max(_SLAB_BYTES * shape[0] // max(tensors[name].nbytes, 1) // step, 1) * step
    for start in range(0, shape[0], high):
        yield [(start, min(start + high, shape[0])), *other_ranges]


def slabs_of(tensors: StoredTensors, name: str) -> Iterator[Array]:
    """Read a tensor of bytes, slab by slab."""
    return (tensors.box(name, ranges) for ranges in cuts_of(tensors, name))
