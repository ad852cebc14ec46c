"""Whether a library gives what the table says, value by value."""

from __future__ import annotations

from typing import Any

import numpy as np
from castwise._core import cast, finfo
from castwise.arrays.library_casts import Rule, library_named
from libraries import LibraryCast
from numpy.typing import NDArray


def part_name(name: str) -> str:
    """Return the format of the parts of a complex format; of others the format itself."""
    part = finfo(name).component
    return name if part is None else part.name


def dtype_of(name: str) -> np.dtype[Any]:
    """Return the dtype of a format that numpy has."""
    dtype = finfo(name).dtype
    if dtype is None:
        raise TypeError(f"{name} has no numpy dtype in the installed ml_dtypes")
    return dtype


def parts_of(array: NDArray[Any]) -> NDArray[Any]:
    """Return the numbers of each element: two of a complex one."""
    part = dtype_of(part_name(finfo(array.dtype).name))
    count = array.dtype.itemsize // part.itemsize
    return np.ascontiguousarray(array).view(part).reshape(array.size, count)


def is_nan(numbers: NDArray[Any]) -> NDArray[np.bool_]:
    """Return which numbers are NaN, of a format of any kind."""
    with np.errstate(all="ignore"):
        nan: NDArray[np.bool_] = np.not_equal(numbers, numbers)
    return nan


def differs(left: NDArray[Any], right: NDArray[Any]) -> NDArray[np.bool_]:
    """Return where two arrays of a format differ: in a bit, unless both are NaN."""
    left, right = parts_of(left), parts_of(right)
    word = f"u{left.dtype.itemsize}"
    used = np.array((1 << finfo(left.dtype).bits) - 1, word)
    both_nan = is_nan(left) & is_nan(right)
    different = (((left.view(word) ^ right.view(word)) & used) != 0) & ~both_nan
    elements: NDArray[np.bool_] = different.any(axis=1)
    return elements


def settled(rule: Rule, array: NDArray[Any], target: str) -> NDArray[np.bool_]:
    """Return where the recipe of a rule gives a result, and raises nothing."""
    kept = np.ones(array.size, np.bool_)
    recipe = rule.recipe
    if recipe is None:
        return ~kept
    numbers = parts_of(array)
    with np.errstate(all="ignore"):
        nan = is_nan(numbers).any(axis=1)
        if recipe.nan == "raise":
            kept &= ~nan
        if recipe.overflow == "raise":
            kept &= ~_beyond(array, target, recipe.rounding) | nan
        if rule.open_range is not None:
            magnitudes = np.abs(numbers)
            low, high = rule.open_range
            kept &= ~((magnitudes >= low) & (magnitudes < high)).any(axis=1)
    return kept


def _beyond(array: NDArray[Any], target: str, rounding: Any) -> NDArray[np.bool_]:
    """Return which numbers `overflow="raise"` refuses."""
    row = finfo(target)
    if row.kind == "float":
        held: NDArray[np.bool_] = np.isfinite(
            cast(cast(array, target, rounding=rounding), "float64")
        )
        return ~held
    wide = cast(array, "float64")
    if rounding is None:
        whole = np.trunc(wide)
    elif rounding == "nearest-even":
        whole = np.rint(wide)
    else:
        whole = np.copysign(np.floor(np.abs(wide) + 0.5), wide)
        whole = np.where(np.abs(wide) == np.nextafter(0.5, 0), 0, whole)  # + 0.5 rounds up
    beyond: NDArray[np.bool_] = whole >= 2.0 ** (row.bits - (row.kind == "int"))
    beyond |= whole < float(row.min)
    return beyond


def disagreement(
    library: LibraryCast, array: NDArray[Any], result: NDArray[Any] | None, target: str
) -> str | None:
    """Say in what a library does not do what the table says of it; None if it does.

    Parameters
    ----------
    library : LibraryCast
        One that is loaded.
    array : ndarray
        What was cast, of one axis.
    result : ndarray or None
        What the library made of it; None if it does not have the pair.
    target : str
        A format.

    """
    source = finfo(array.dtype).name
    rule = library_named(library.name).rule(source, target)
    pair = f"{library.name}, {source} to {target}"
    if result is None or rule is None:
        if result is None and rule is None:
            return None
        return f"{pair}: {_has(result)}, the table {_has(rule)}"
    kept = settled(rule, array, target)
    given, theirs = np.ascontiguousarray(array[kept]), np.ascontiguousarray(result[kept])
    ours = cast(given, target, like=library.name) if given.size else theirs
    places = np.flatnonzero(differs(ours, theirs))
    if not places.size:
        return None
    place = places[0]
    return (
        f"{pair}: {places.size} of {given.size} values differ from the table, the first is "
        f"{given[place]}, {theirs[place]} instead of {ours[place]}"
    )


def _has(cast_or_rule: object) -> str:
    return "has no such cast" if cast_or_rule is None else "has such a cast"
