"""The conditions in which libraries differ: which values are tried, and what became of them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
from agreement import differs, dtype_of, is_nan, part_name, parts_of
from castwise._core import FormatInfo, cast, finfo
from castwise._options import Rounding
from numpy.typing import NDArray

CONDITIONS = ("halfway", "overflow", "infinity", "NaN", "subnormal", "-0")
"""The columns of the page."""

_ROUNDINGS: dict[Rounding, str] = {
    "nearest-even": "even",
    "nearest-away": "away",
    "towards-zero": "zero",
    "towards-positive": "up",
    "towards-negative": "down",
}
"""What the page calls each, in the order in which they are tried."""

_FEW_BITS = 16
_STEPS = 40


@cache
def values(source: str, target: str) -> dict[str, NDArray[Any]]:
    """Return the values of a format to try for each condition; none where it has none.

    Complex formats are tried by their parts.
    """
    left, right = finfo(part_name(source)), finfo(part_name(target))
    rows = {
        "halfway": _halfway(left, right),
        "overflow": _beyond(left, right),
        "infinity": _specials(left, np.inf),
        "NaN": _specials(left, np.nan),
        "subnormal": _subnormals(left, right),
        "-0": _specials(left, -0.0),
    }
    return {name: _as_format(array, source) for name, array in rows.items()}


def _as_format(numbers: NDArray[Any], source: str) -> NDArray[Any]:
    """Return the numbers that a format holds, each once, in the format."""
    part = part_name(source)
    if finfo(part).kind == "float":
        array = cast(numbers, part)
        same = ~differs(cast(array, "float64"), numbers)
        array = array[same]
    else:
        array = cast(numbers, part)  # of integers, as they are
    if part == source:
        return array
    pairs = np.zeros((array.size, 2), array.dtype)
    pairs[:, 0] = array
    return pairs.reshape(-1).view(dtype_of(source))


def _specials(left: FormatInfo, number: float) -> NDArray[Any]:
    """Return a number with both signs, or -0 alone, if a format has it."""
    if left.kind != "float":
        return np.empty(0)
    numbers = np.array([number] if number == 0 else [number, -number])
    held = cast(cast(numbers, left.name), "float64")
    return numbers[~differs(held, numbers)]


@cache
def _all_values(name: str) -> NDArray[np.float64]:
    """Return positive values of a float format: all, or those around powers of two."""
    row = finfo(name)
    dtype = dtype_of(name)
    if row.bits <= _FEW_BITS:
        word = f"u{dtype.itemsize}"
        codes = np.arange(1 << (row.bits - bool(row.signed)), dtype=np.uint64).astype(word)
        numbers = cast(codes.view(dtype), "float64")
    else:
        powers = np.ldexp(1.0, np.arange(-1000 if row.bits > 32 else -149, 128, 7))
        steps = np.ldexp(np.arange(_STEPS, dtype=np.float64), -row.mantissa_bits)
        numbers = cast(cast((powers[:, None] * (1 + steps)).ravel(), name), "float64")
    finite: NDArray[np.float64] = np.unique(numbers[np.isfinite(numbers)])
    return finite


def _halfway(left: FormatInfo, right: FormatInfo) -> NDArray[Any]:
    """Return values in the middle between two of the target, and the source's next to them."""
    if right.kind == "bool":
        return np.empty(0)
    if left.kind != "float":
        return _halfway_integers(left, right)
    if right.kind == "float":
        numbers = _all_values(right.name)
        step = numbers[1:] - numbers[:-1]
        middles = (numbers[:-1] + step / 2)[step <= numbers[1:]]
        middles = middles[:: max(1, middles.size // 4096)]
    else:
        most = min(float(right.max), 1000.0)
        least = max(float(right.min), -1000.0)
        middles = np.arange(least, most) + 0.5
    if not left.signed:
        middles = middles[middles > 0]
    held = cast(cast(middles, left.name), "float64")
    middles = middles[held == middles]
    normal = max(left.smallest_normal, right.smallest_normal if right.kind == "float" else 0)
    middles = middles[np.abs(middles) >= 2 * normal]  # others are of another condition
    if right.kind == "float" and left.signed and right.signed:
        middles = np.concatenate([middles, -middles])
    near = cast(middles, left.name)
    word = f"u{near.dtype.itemsize}"
    codes = near.view(word)
    step = codes.dtype.type(1)
    beside = [cast(moved.view(near.dtype), "float64") for moved in (codes + step, codes - step)]
    collected = np.concatenate([middles, *beside])
    return np.unique(collected[np.isfinite(collected)])


def _halfway_integers(left: FormatInfo, right: FormatInfo) -> NDArray[Any]:
    """Return integers in the middle between two floats, and the integers next to them."""
    if right.kind != "float":
        return np.empty(0)
    bits = right.mantissa_bits + 1
    integers = []
    for shift in range(1, left.bits - bits):
        step = 1 << shift
        for odd in (1, 3, 5, (1 << bits) - 1):
            middle = (1 << (bits + shift - 1)) + step * (odd // 2) + step // 2
            integers += [middle - 1, middle, middle + 1]
    kept = [n for n in integers if n <= left.max and n <= right.max]
    kept += [-n for n in kept if -n >= left.min and right.signed]
    return np.array(sorted(set(kept)), dtype_of(left.name)) if kept else np.empty(0)


def _beyond(left: FormatInfo, right: FormatInfo) -> NDArray[Any]:
    """Return finite values beyond the range of the target."""
    if right.kind == "bool" or left.kind == "bool":
        return np.empty(0)
    if left.kind != "float":
        ends = [left.max, left.max // 2 + 1, left.max // 3, left.min, left.min // 2, left.min // 3]
        ends += [right.max * factor for factor in (2, 3)] if right.kind != "float" else []
        ends = [int(n) for n in ends if left.min <= n <= left.max]
        held = [n for n in ends if n > right.max * _over(right) or n < right.min * _over(right)]
        return np.array(sorted(set(held)), dtype_of(left.name)) if held else np.empty(0)
    numbers = _all_values(left.name)
    numbers = np.concatenate([numbers, -numbers, [float(left.max), -float(left.max)]])
    high, low = float(right.max) * _over(right), float(right.min) * _over(right)
    if right.kind == "float" and not right.signed:
        low = 0.0
    if right.kind != "float":
        return np.unique(numbers[(numbers >= high + 1) | (numbers <= low - 1)])
    return np.unique(numbers[(numbers > high) | (numbers < low)])


def _over(right: FormatInfo) -> float:
    """Return the factor beyond whose product with the largest value every rounding overflows."""
    return 1 + right.eps / 2 if right.kind == "float" else 1


def _subnormals(left: FormatInfo, right: FormatInfo) -> NDArray[Any]:
    """Return values below the normal range of either format that are not rounded to zero."""
    if left.kind != "float" or right.kind not in ("float", "bool"):
        return np.empty(0)
    if right.kind == "float" and right.specials == "exponent-only":
        return np.empty(0)  # which has none
    numbers = _all_values(left.name)
    limit = left.smallest_normal
    least = 0.0
    if right.kind == "float":
        limit = max(limit, right.smallest_normal)
        least = right.smallest_subnormal
        numbers = np.concatenate([numbers, _all_values(right.name)])
    if left.bits > _FEW_BITS:
        numbers = np.concatenate([numbers, left.smallest_subnormal * np.arange(1.0, 9.0)])
    numbers = numbers[(numbers > 0) & (numbers < limit) & (numbers >= least)]
    return np.unique(np.concatenate([numbers, -numbers]))


def answer(condition: str, array: NDArray[Any], result: NDArray[Any]) -> str:
    """Say in a few words what became of the values of a condition; "" if there are none."""
    if not array.size:
        return ""
    numbers = np.ascontiguousarray(parts_of(array)[:, 0])
    results = np.ascontiguousarray(parts_of(result)[:, 0])
    if condition == "halfway":
        return _rounding(numbers, results)
    if condition == "subnormal":
        return _of_subnormals(numbers, results)
    return " or ".join(dict.fromkeys(_kinds(condition, numbers, results)))


def _rounding(numbers: NDArray[Any], results: NDArray[Any]) -> str:
    target = finfo(results.dtype).name
    roundings = dict(_ROUNDINGS)
    if finfo(target).kind != "float":
        roundings = {"towards-zero": "zero", **roundings}
    for through, after in (
        (None, ""),
        ("float32", ", after float32"),
        ("float64", ", after float64"),
    ):
        step = numbers if through is None else cast(numbers, through)
        for rounding, word in roundings.items():
            rounded = cast(step, target, rounding=rounding)
            if not differs(rounded, results).any():
                return f"{word}{after}"
    return "otherwise"


def _of_subnormals(numbers: NDArray[Any], results: NDArray[Any]) -> str:
    row = finfo(results.dtype)
    if row.kind == "bool":
        words = {True: "True", False: "False"}
        return " or ".join(words[value] for value in np.unique(results).tolist()[::-1])
    with np.errstate(all="ignore"):
        zeros = cast(results, "float64") == 0
    rounded = _rounding(numbers, results)
    if rounded != "otherwise":
        return "kept"
    return "0" if zeros.all() else "some 0" if zeros.any() else "otherwise"


def _kinds(condition: str, numbers: NDArray[Any], results: NDArray[Any]) -> Iterator[str]:
    """Name what values became, for each kind of result that occurs."""
    row = finfo(results.dtype)
    if row.kind == "bool":
        yield from (str(value) for value in np.unique(results).tolist())
        return
    wide = cast(results, "float64")
    with np.errstate(all="ignore"):
        tests: dict[str, NDArray[np.bool_]] = {
            "infinity": np.isinf(wide),
            "NaN": np.isnan(wide),
            "-0": (wide == 0) & np.signbit(wide),
            "0": (wide == 0) & ((cast(numbers, "float64") == 0) | is_nan(numbers)),
            "low bits": _wrapped(row, numbers, results),
            "largest": _extreme(row, numbers, results, wide),
            "smallest": wide == float(row.min),
        }
    for word in ("low bits", "largest") if condition == "overflow" else ():
        if tests[word].all():
            yield word
            return
    left = np.ones(results.size, np.bool_)
    for word, places in tests.items():
        if (left & places).any():
            yield word
        left &= ~places
    if left.any():
        yield "others"


def _extreme(
    row: FormatInfo, numbers: NDArray[Any], results: NDArray[Any], wide: NDArray[Any]
) -> NDArray[np.bool_]:
    """Return which results are the largest or smallest number, on the side of the value."""
    if row.kind == "float":
        largest: NDArray[np.bool_] = np.abs(wide) == row.max
        return largest
    ends = cast(numbers, row.name, overflow="saturate")
    same: NDArray[np.bool_] = ~differs(ends, results)
    return same & ~is_nan(numbers)


def _wrapped(row: FormatInfo, numbers: NDArray[Any], results: NDArray[Any]) -> NDArray[np.bool_]:
    """Return which results are the low bits of the whole number."""
    if row.kind == "float":
        return np.zeros(results.size, np.bool_)
    if finfo(numbers.dtype).kind != "float":
        return ~differs(cast(numbers, row.name), results)
    wide = np.trunc(cast(numbers, "float64"))
    inside: NDArray[np.bool_] = np.abs(wide) < 2.0**63
    whole = np.where(inside, wide, 0).astype(np.int64)
    return inside & ~differs(cast(whole, row.name), results)
