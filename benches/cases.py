"""What to time: which pairs of formats, at which sizes, in which layouts, on which values.

Values are drawn log-uniformly over the normal range that both formats share, so every exponent is
met, nothing overflows, and astype is asked only for what it defines. Integers likewise over the
range that both share. The seed is fixed: every run, and every peer in it, casts the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import castwise
import ml_dtypes
import numpy as np
from numpy.typing import NDArray

SEED = 2

LAYOUTS = ("contiguous", "transposed", "channels", "strided")
CHANNELS = 3
DEFAULT_SIZES = (1, 256, 65_536, 16_777_216)
IN_CACHE = 65_536
PERIOD = 1_048_576
"""Longer arrays repeat so many values: drawing and judging more would take longer than casting."""
LARGE = 1_048_576
"""From here on memory is measured: LARGE_PAIRS, and pairs of which a peer is close in cache."""
FEW = 20
QUICK_SIZES = (256, 65_536)

# Both directions between float32 and every narrower float, what training and checkpoints use most;
# float64 to every float, where astype rounds twice; and the common casts with integers.
DEFAULT_PAIRS = (
    "float32:bfloat16,bfloat16:float32,float32:float16,float16:float32,"
    "float32:float8_*,float8_*:float32,float32:float6_*,float6_*:float32,"
    "float32:float4_*,float4_*:float32,bfloat16:float8_*,float8_*:bfloat16,"
    "float64:float*,float64:bfloat16,float32:float64,"
    "int8:float32,uint8:float32,int32:float32,int64:float32,int64:bfloat16,bool:float32,"
    "float32:int8,float32:uint8,float32:int32,float64:int64,float32:bool,"
    "int64:int32,int32:int64,int32:int8,int8:int32"
)
LARGE_PAIRS = (
    "float32:bfloat16,bfloat16:float32,float32:float16,float16:float32,float32:float8_e4m3fn,"
    "float8_e4m3fn:float32,float32:float8_e5m2,float8_e5m2:float32,bfloat16:float8_e4m3fn,"
    "float8_e4m3fn:bfloat16,float16:float8_e5m2,float8_e5m2:float16,float32:float64,float64:float32,"
    "int64:int32"
)
QUICK_PAIRS = "float32:bfloat16,bfloat16:float32,float32:float8_e4m3fn,float8_e4m3fn:float32"


@dataclass(frozen=True)
class Case:
    """One line of the benchmark: a pair of formats, a number of elements and a layout."""

    source: str
    target: str
    size: int
    layout: str

    @property
    def pair(self) -> str:
        """The pair as users write it on the command line."""
        return f"{self.source}:{self.target}"

    @property
    def bytes(self) -> int:
        """Bytes read and written by one cast: what GB/s is counted in."""
        return self.size * (dtype(self.source).itemsize + dtype(self.target).itemsize)

    def array(self) -> NDArray[Any]:
        """Build the array to cast, in the layout of this case."""
        if self.layout == "strided":
            return values(self.source, self.target, 2 * self.size)[::2]
        flat = values(self.source, self.target, self.size)
        if self.layout == "transposed":
            return flat.reshape(most_square(self.size)).T
        if self.layout == "channels":
            # As many whole pixels as there are, their channels to become planes.
            return flat[: self.size // CHANNELS * CHANNELS].reshape(-1, CHANNELS).T
        return flat


def dtype(name: str) -> np.dtype[Any]:
    """Return the numpy dtype of a format that has one."""
    found: np.dtype[Any] | None = castwise.finfo(name).dtype
    if found is None:
        raise ValueError(f"{name} has no numpy dtype in ml_dtypes {ml_dtypes.__version__}")
    return found


def format_names() -> tuple[str, ...]:
    """List the formats of castwise's table that arrays can have with the installed ml_dtypes."""
    return tuple(name for name in castwise.formats() if castwise.finfo(name).dtype is not None)


def select_pairs(patterns: str) -> list[tuple[str, str]]:
    """Pairs matching `source:target,...`, where either side may use shell wildcards.

    A pattern that matches nothing is an error: a benchmark that silently times less misleads.
    """
    names = format_names()
    chosen: dict[tuple[str, str], None] = {}
    for pattern in filter(None, (part.strip() for part in patterns.split(","))):
        source_pattern, colon, target_pattern = pattern.partition(":")
        sources = [name for name in names if fnmatchcase(name, source_pattern)]
        targets = [name for name in names if fnmatchcase(name, target_pattern)]
        found = [(s, t) for s in sources for t in targets if s != t]
        if not colon or not found:
            raise ValueError(
                f"--pairs: {pattern!r} names no pair; write source:target with names "
                f"or wildcards of: {', '.join(names)}"
            )
        chosen.update(dict.fromkeys(found))
    return list(chosen)


def cases(
    pairs: list[tuple[str, str]], sizes: tuple[int, ...], layouts: tuple[str, ...]
) -> Iterator[Case]:
    """Every combination, pair by pair; one element has one layout only."""
    for source, target in pairs:
        for size in sizes:
            for layout in layouts:
                if size > 1 or layout == layouts[0]:
                    yield Case(source, target, size, layout)


def large_pairs(pairs: list[tuple[str, str]]) -> set[tuple[str, str]]:
    """Pairs to time at every size, whoever is close: all if they are few; more would take hours."""
    return set(pairs if len(pairs) <= FEW else select_pairs(LARGE_PAIRS))


def most_square(size: int) -> tuple[int, int]:
    """Rows and columns of the squarest matrix with exactly this many elements."""
    rows = next(n for n in range(math.isqrt(size), 0, -1) if size % n == 0)
    return rows, size // rows


def values(source: str, target: str, size: int) -> NDArray[Any]:
    """Random finite values of `source` inside the normal range of both formats."""
    if size > PERIOD:
        return np.resize(values(source, target, PERIOD), size)
    rng = np.random.default_rng(SEED)
    from_, to = castwise.finfo(source), castwise.finfo(target)
    if "bool" in (from_.kind, to.kind):
        return rng.integers(0, 2, size).astype(dtype(source))
    if from_.kind == "complex":
        parts = [component(from_, to, rng, size) for _ in range(2)]
        return (parts[0] + 1j * parts[1]).astype(dtype(source))
    return component(from_, to, rng, size).astype(dtype(source))


def component(
    source: castwise.FormatInfo, target: castwise.FormatInfo, rng: np.random.Generator, size: int
) -> NDArray[Any]:
    """Real values, still wide (float64, or int64/uint64 where both formats are integers).

    Those that leave the shared range when rounded to `source` become 1, as does what lies below it.
    """
    if {source.kind, target.kind} <= {"int", "uint"}:
        low = max(int(source.min), int(target.min))
        high = min(int(source.max), int(target.max))
        return rng.integers(
            low, high, size, endpoint=True, dtype=np.uint64 if low == 0 else np.int64
        )
    bounds = [bound(information) for information in (source, target)]
    smallest = max(tiny for tiny, _, _ in bounds)
    largest = min(huge for _, huge, _ in bounds)
    magnitude = np.exp2(rng.uniform(math.log2(smallest), math.log2(largest), size))
    if all(signed for _, _, signed in bounds):
        magnitude *= rng.choice((-1.0, 1.0), size)
    rounded = magnitude.astype(real(source).dtype).astype(np.float64)
    inside = (np.abs(rounded) >= smallest) & (np.abs(rounded) <= largest)
    result = np.where(inside, magnitude, 1.0)
    # A signed integer of one bit has -1 and 0 only.
    only_negative = any(row.kind == "int" and row.bits == 1 for row in (source, target))
    return -np.abs(result) if only_negative else result


def bound(information: castwise.FormatInfo) -> tuple[float, float, bool]:
    """Smallest normal, largest finite magnitude as float64, and whether negatives exist."""
    if information.kind in ("int", "uint"):
        high = float(information.max)
        # 2**63 - 1 would round up to 2**63, beyond the range: take the float64 below.
        high = math.nextafter(high, 0) if high > information.max else high
        return 1.0, max(high, 1.0), information.kind == "int"
    component = real(information)
    return component.smallest_normal, component.max, component.signed


def real(information: castwise.FormatInfo) -> castwise.FormatInfo:
    """The format of one component: a complex format's real part, else the format itself."""
    return information.component or information


def component_dtype(of: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype of one component of a dtype that arrays can have."""
    component = real(castwise.finfo(of)).dtype
    if component is None:
        raise ValueError(f"the components of {of} have no numpy dtype")
    return component
