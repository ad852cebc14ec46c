"""The source values worth casting: every code, random bits, and around each change of result."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import oracle
from oracle import Array, Format


def all_codes(row: Format) -> Array:
    """Every code of a real format of 16 bits or fewer."""
    return np.arange(2 if row.kind == "bool" else 1 << row.bits).astype(row.codes)


def random_codes(row: Format, count: int, seed: int = 0) -> Array:
    """Uniformly random bits, within the format's width."""
    row = oracle.component(row)
    words = np.random.default_rng(seed).integers(0, 2**64, count, np.uint64, endpoint=False)
    if row.kind == "bool":
        return (words & np.uint64(1)).astype(row.codes)
    return (words & np.uint64((1 << row.bits) - 1)).astype(row.codes)


def distinct(codes: Array) -> Array:
    """Sort codes, each once: np.unique hashes them, which takes ten times as long on such bits."""
    codes = np.sort(codes)
    return codes[np.append(True, codes[1:] != codes[:-1])]


@cache
def turning_points(target: Format) -> Array:
    """List the target's values, midpoints and limits, as float64: the results change there."""
    row = oracle.component(target)
    powers = np.ldexp(1.0, np.arange(-1074, 1024))
    if row.kind == "bool":
        return np.concatenate([[0.0, 0.5, 1.0, 2.0], powers])
    if row.kind in ("int", "uint"):
        count = 1 << (row.bits if row.bits <= 16 else 8)
        halves = np.arange(-count - 2, count + 2) if row.signed else np.arange(-2, 2 * count + 2)
        limits = np.array([0.5, 1.0, 1.5, 2.0])[:, None] * np.ldexp(1.0, np.arange(row.bits + 1))
        return np.concatenate([halves / 2.0, limits.ravel(), -limits.ravel(), powers, -powers])
    if row.bits <= 16:
        magnitudes = np.arange(row.largest + 1, dtype=np.uint64)
    else:  # every power of two, both ends of every binade, and some codes between
        starts = np.arange(0, row.largest, 1 << row.mantissa_bits, dtype=np.uint64)
        between = random_codes(row, 20000) & np.uint64(row.magnitude_mask)
        ends = np.concatenate(
            [starts + np.uint64(step) for step in (0, 1, 2)] + [starts[1:] - np.uint64(1)]
        )
        magnitudes = distinct(
            np.concatenate([ends, between[between <= row.largest].astype(np.uint64)])
        )
    exact = oracle.decode(magnitudes, row)
    values = np.ldexp(exact.significand.astype(np.float64), exact.exponent.astype(np.int32))
    if (
        row.bits <= 32
    ):  # a midpoint has one bit more; beyond the last value lies one midpoint and one value
        gap = values[-1] - values[-2] if row.mantissa_bits else values[-1]
        values = np.append(values, [values[-1] + gap, values[-1] + 2 * gap])
        values = np.concatenate([values, values[:-1] + np.diff(values) / 2, values[:1] / 2])
    return np.concatenate([values, -values])


@cache
def sources_around(source: Format, target: Format) -> Array:
    """List codes at and next to each turning point, the source's own limits, and random bits."""
    points = turning_points(target)
    row = oracle.component(source)
    dtype: Any = row.dtype
    steps = np.array([0, 1, -1]).astype(row.codes)  # adjacent codes are adjacent values
    if row.kind == "float":
        with np.errstate(over="ignore", under="ignore"):
            center = points.astype(dtype).view(row.codes)
        limits = [0, row.largest, row.infinity, row.nan(negative=False)]
        signed = [code | sign for code in limits if code is not None for sign in (0, row.sign_bit)]
        center = np.append(center, np.array(signed, row.codes))
    else:
        bounds = np.iinfo(dtype)
        inside = (points >= bounds.min) & (points < float(bounds.max))
        pairs = [1 << high | 1 << low for high in range(row.bits) for low in range(high + 1)]
        center = points[inside].astype(dtype).view(row.codes)
        center = np.append(center, np.array([*pairs, bounds.max], row.codes))
    near = [center + step for step in steps]
    codes = distinct(np.concatenate([*near, random_codes(row, 4096)]))
    codes.setflags(write=False)  # every test is given the same array
    return codes
