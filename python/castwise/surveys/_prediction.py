"""What casts and quantizations lose, predicted from the tables of a survey.

A binade has a count and a sum of squares. Its magnitudes are taken to have a smooth density that
has both; representatives of it are cast, or quantized, by castwise itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Self, cast

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from castwise._core import CastReport, FormatInfo, finfo, formats
from castwise._core import cast as cast_array
from castwise._numbers import is_real
from castwise._options import Overflow, Recipe, Scales, SchemeName
from castwise.quantization import Scheme, schemes
from castwise.quantization.producers.registry import find_recipe, written_layout
from castwise.quantization.producers.schemes import check_scales, has_global_scale
from castwise.rendering import Rendered
from castwise.rendering.losses import loss_sheet
from castwise.rendering.sheet import Sheet
from castwise.surveys._responses import DEPTHS, Response, densities, response, spread_points
from castwise.surveys._searched_scales import loss_ratios
from castwise.surveys._tables import BLOCK_BINADES, Blocks, Magnitudes
from castwise.text.brief import brief_fields, plain_dict

_POINTS = 256  # representatives of a binade
_GRID_BITS = 8  # significands of at most so many bits are represented by all of them

_WEIGHT_DTYPES = sorted(
    (
        row
        for row in map(finfo, formats())
        if row.kind == "float" and row.specials == "ieee" and 16 <= row.bits <= 32  # noqa: PLR2004
    ),
    key=lambda row: row.mantissa_bits,
)
_MOST_EXPONENT = 1000  # a float64 has 1023
_LEAST_ELEMENTS = 100
"""Elements that carry the signal, at least: the noise of fewer is known to more than 1 dB."""

_NARROW = 1.25  # magnitudes that are closer to each other lie in few steps of a format

# Significands of so few bits meet the codes of a scheme, or fall between them, all at once.
_FEW_BITS = 4

# Magnitudes whose scales, and the scales' exponents, are within the range of their formats.
_LEAST_LARGEST = {"float16": 2.0**-8}
_LEAST_OF_ANY, _MOST_OF_ANY = 2.0**-110, 2.0**120
# The share of blocks beyond it from which losses are measured.
_FEW_BLOCKS = 1e-3

# From how many elements a block in the binade of its maximum, whose mean square is such a share of
# the maximum's, they have no density that is known: of all that are normal it is below 0.8.
_ALIKE_ELEMENTS, _ALIKE_SQUARES = 3, 0.85

# The share of blocks in one eighth from which it counts how noise differs within an eighth.
_ALIKE_BLOCKS, _ALIKE_NOISE = 0.9, 1.25

_OF_FORMATS = {"overflowed", "saturated", "subnormal"}  # fields that are predicted for formats only

_Column = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Prediction(Rendered):
    """What a cast or a quantization is expected to lose; fields are those of `CastReport`.

    Attributes
    ----------
    target : str
        The format, or the scheme.
    count : int
        Elements.
    overflowed, saturated, underflowed, subnormal : int
        Expected numbers of elements, as `castwise.CastReport` counts them: with the infinities that
        a format does not keep, and at least 1 if the largest magnitude is beyond its range with one
        of the signs. Of a scheme, elements that become zero are `underflowed`, and the others are
        not predicted: 0.
    nan_in, inf_in, zero_in : int
        As counted.
    sqnr_db : float or None
        The expected ratio of signal to quantization noise in decibels; None if it is not known.
        Minus infinity if a finite element becomes infinite or NaN.

    """

    target: str
    count: int
    overflowed: int
    saturated: int
    underflowed: int
    subnormal: int
    nan_in: int
    inf_in: int
    zero_in: int
    sqnr_db: float | None

    __repr__ = brief_fields

    @classmethod
    def of_report(cls, target: str, report: CastReport, *, is_scheme: bool = False) -> Self:
        """Return what was measured in the place of a prediction."""
        ranges = (report.overflowed, report.saturated, report.underflowed, report.subnormal)
        return cls(
            target,
            report.count,
            *((0, 0, report.underflowed, 0) if is_scheme else ranges),
            report.nan_in,
            report.inf_in,
            report.zero_in,
            report.sqnr_db,
        )

    def __sheet__(self) -> Sheet:
        """Return what is expected, the tables of the fields, and their meanings."""
        unpredicted = () if self.target in formats() else _OF_FORMATS  # of a scheme
        names = [field.name for field in fields(self) if field.name not in unpredicted]
        values = {name: getattr(self, name) for name in names}
        return loss_sheet(values, (f"expected of {self.target}",))

    to_dict = plain_dict


def predict(
    magnitudes: Magnitudes,
    blocks: Callable[[tuple[int, int]], Blocks],
    target: DTypeLike | str,
    *,
    scale: float | None,
    overflow: Overflow,
    recipe: Recipe | None,
    scales: Scales,
) -> Prediction:
    scheme = next((row for row in schemes() if row.name == target), None)
    if scheme is not None:
        if scale is not None:
            raise ValueError(
                f"scale={scale!r} does not go with a scheme, which has its own scales."
            )
        if recipe is not None:
            find_recipe(recipe)
        check_scales(scales, scheme, recipe or scheme.recipes[0])
        return _predict_scheme(magnitudes, blocks, scheme, recipe, scales)
    if scales != "amax":
        raise ValueError(f"scales={scales!r} goes with a scheme, not with the format {target}.")
    if recipe is not None:
        raise ValueError(f"recipe={recipe!r} goes with a scheme, not with the format {target}.")
    if scale is not None and not is_real(scale):
        raise TypeError(f"scale={scale!r} is not a number; use a real factor, such as 2.0.")
    return _predict_cast(magnitudes, target, 1.0 if scale is None else float(scale), overflow)


def _representatives(magnitudes: Magnitudes, significant_bits: int) -> tuple[_Column, _Column]:
    """Return significands of each binade and their weights, of shape (binades, points)."""
    # Weights of a binade add up to 1.
    exponents, counts, squares = magnitudes.exponents, magnitudes.counts, magnitudes.squares
    low, high = np.ones(len(exponents)), np.full(len(exponents), 2.0)
    # The range within the outermost binades is known.
    low[0] = math.ldexp(magnitudes.smallest, -int(exponents[0]))
    high[-1] = math.ldexp(magnitudes.largest, -int(exponents[-1]))
    if significant_bits <= _GRID_BITS:
        number = 1 << (significant_bits - 1)
        points = np.broadcast_to(1 + np.arange(number) / number, (len(exponents), number))
        is_inside = (points >= low[:, None]) & (points <= high[:, None])
    else:
        points = low[:, None] + (high - low)[:, None] * spread_points(_POINTS)
        is_inside = np.ones_like(points, dtype=bool)
    return points, densities(points, squares / np.maximum(counts, 1), is_inside)


def _predict_cast(
    magnitudes: Magnitudes, target: DTypeLike, scale: float, overflow: Overflow
) -> Prediction:
    info = finfo(target)
    if info.kind not in ("float", "int", "uint"):
        raise TypeError(f"target={info.name} has no prediction; use a float or integer format.")
    if not math.isfinite(scale) or scale == 0:
        raise ValueError(f"scale={scale!r} is not valid; use a finite number that is not zero.")
    totals = _Totals(info, scale, overflow, magnitudes.largest)
    if magnitudes.values is not None:
        totals.add([*magnitudes.values], [*magnitudes.values.values()])
    else:
        _add_smooth(totals, magnitudes, info, scale)
    totals.add_constant(math.inf, magnitudes.infinities)
    totals.add_constant(0.0, magnitudes.zeros)
    # A number that becomes none is lost, whatever the density of the others.
    noise = math.inf if _round(totals.no_numbers) else totals.noise
    is_known = magnitudes.values is not None or _is_smooth(magnitudes) or noise == math.inf
    return Prediction(
        info.name,
        magnitudes.elements,
        _round(totals.overflows),
        _round(totals.saturations),
        _round(totals.underflows),
        _round(totals.subnormal),
        magnitudes.nans,
        magnitudes.infinities,
        magnitudes.zeros,
        _decibels(totals.signal, noise) if is_known else None,
    )


def _round(elements: float) -> int:
    """Return the nearest integer, of a half the upper one: either sign of an element counts."""
    return math.floor(elements + 0.5)


def _add_smooth(totals: _Totals, magnitudes: Magnitudes, info: FormatInfo, scale: float) -> None:
    """Add the largest magnitude, which is known, and representatives of the others."""
    totals.add([magnitudes.largest], [1.0])
    others = _without_largest(magnitudes)
    weights_of_bits = others.significant_bits
    finite = max(sum(weights_of_bits.values()), 1)
    is_shift = abs(math.frexp(scale)[0]) == 0.5  # noqa: PLR2004  (a power of two)
    for bits, elements in weights_of_bits.items():
        if not elements:
            continue
        points, weights = _representatives(others, bits)
        values = np.ldexp(points, others.exponents[:, None])
        exact = None
        if info.kind == "float" and bits > _GRID_BITS and is_shift:
            exact = _is_exact(values * abs(scale), bits, info)
        totals.add(values, weights * others.counts[:, None] * (elements / finite), exact)


def _without_largest(magnitudes: Magnitudes) -> Magnitudes:
    """Return the magnitudes but one that is the largest."""
    counts, squares = magnitudes.counts.copy(), magnitudes.squares.copy()
    counts[-1] -= 1
    squares[-1] -= math.ldexp(magnitudes.largest, -int(magnitudes.exponents[-1])) ** 2
    return magnitudes._replace(counts=counts, squares=squares)


def _is_smooth(magnitudes: Magnitudes) -> bool:
    """Return True if many magnitudes, of different size, make up the sum of squares."""
    if not len(magnitudes.exponents):
        return True
    top = magnitudes.exponents[-1]
    squares = np.ldexp(magnitudes.squares, 2 * (magnitudes.exponents - top))
    # Kish's effective number: as many equal squares would have a sum that varies as much.
    elements = squares.sum() ** 2 / (np.square(squares) / magnitudes.counts).sum()
    is_narrow = magnitudes.largest <= _NARROW * magnitudes.smallest
    return bool(elements >= _LEAST_ELEMENTS) and not is_narrow


def _least_beyond(info: FormatInfo) -> float:
    """Return the least number that does not round to the largest value of a format."""
    largest = float(info.max)
    if info.kind != "float":
        return largest + 1  # fractions are cut off
    # The largest value is below 2^e by frexp, so its last place is 2^(e - 1 - mantissa bits).
    place = math.ldexp(1.0, math.frexp(largest)[1] - 1 - info.mantissa_bits)
    middle = largest + place / 2
    # The middle rounds to the even neighbor, which is the largest value where the next code is NaN.
    return middle if largest / place % 2 else math.nextafter(middle, math.inf)


def _is_exact(values: _Column, bits: int, info: FormatInfo) -> NDArray[np.bool_]:
    """Return which numbers of so many significant bits a format holds."""
    # A subnormal number has a bit less for each binade that it is below the smallest normal one.
    binades_below = np.maximum(np.floor(np.log2(info.smallest_normal) - np.log2(values)) + 1, 0)
    binades_below = np.where(values >= info.smallest_normal, 0, binades_below)
    is_exact: NDArray[np.bool_] = (bits <= info.mantissa_bits + 1 - binades_below) & (
        values <= float(info.max)
    )
    return is_exact


class _Totals:
    """What representatives of a cast add up to."""

    def __init__(self, info: FormatInfo, scale: float, overflow: Overflow, largest: float) -> None:
        self._info, self._scale = info, scale
        self._dtype: DTypeLike = info.name if info.dtype is None else info.dtype
        # Squares are relative to that of the largest, or float64 could not hold them.
        exponent = math.frexp(largest)[1] + math.frexp(scale)[1]
        self._unit = math.ldexp(1.0, -max(min(exponent, _MOST_EXPONENT), -_MOST_EXPONENT))
        self._overflow: Overflow = "saturate" if overflow == "saturate" else "ieee"
        self.overflows = self.saturations = self.underflows = self.subnormal = 0.0
        self.no_numbers = self.signal = self.noise = 0.0

    def _cast(self, values: _Column) -> _Column:
        """Cast values as the array would be, and the results to float64."""
        results = cast_array(values, self._dtype, scale=self._scale, overflow=self._overflow)
        return cast_array(results, np.float64)

    def add_constant(self, value: float, elements: int) -> None:
        """Count zeros, or infinities: a format keeps those of either sign, or of none."""
        result, report = cast_array(
            np.array([value]),
            self._dtype,
            scale=self._scale,
            overflow=self._overflow,
            report=True,
        )
        self.overflows += elements * report.overflowed
        self.saturations += elements * report.saturated
        if value == 0:  # float8_e8m0fnu has no zero; reports leave infinities out of the noise
            error = float(cast_array(result, np.float64)[0])
            if math.isnan(error):
                self.no_numbers += elements
            else:
                self.noise += elements * (error * self._unit) ** 2

    def add(
        self, magnitudes: ArrayLike, elements: ArrayLike, exact: NDArray[np.bool_] | None = None
    ) -> None:
        """Cast magnitudes, half of their elements with either sign.

        Those that are exact are held by the format, whatever represents them.
        """
        values, weights = np.asarray(magnitudes, float), np.asarray(elements, float) / 2
        is_exact = np.zeros_like(values, dtype=bool) if exact is None else exact
        for sign in (1.0, -1.0):
            self._add_signed(sign * values, weights, is_exact)

    @np.errstate(over="ignore", invalid="ignore")  # beyond the range of float64
    def _add_signed(self, values: _Column, weights: _Column, exact: NDArray[np.bool_]) -> None:
        info = self._info
        products, results = values * self._scale, self._cast(values)
        lost_part = ~np.isfinite(results)
        # A number that rounds to the largest value is not beyond the range.
        least_beyond, lowest = _least_beyond(info), float(info.min)
        if info.kind != "float":  # one below the lowest of 64 bits is no float64
            lowest = min(lowest - 1, math.nextafter(lowest, -math.inf))
        elif lowest < 0:
            lowest -= least_beyond - float(info.max)
        beyond = ((products >= least_beyond) | (products <= lowest)) & ~lost_part
        wraparounds = np.zeros_like(beyond)
        if info.kind != "float" and beyond.any():
            # Of two neighbors beyond the range, a limit makes one number, and wrapping two.
            neighbors = values + np.copysign(1 / self._scale, values)
            wraparounds = beyond & (results != self._cast(neighbors))
        results = np.where(exact, products, results)
        noise = np.where(lost_part, 0.0, results - products)
        magnitude = np.abs(results)
        self.no_numbers += float(weights[lost_part].sum())
        self.overflows += float(weights[lost_part | wraparounds].sum())
        self.saturations += float(weights[beyond & ~wraparounds].sum())
        self.underflows += float(weights[(results == 0) & ~beyond].sum())
        if info.kind == "float":
            small = (magnitude > 0) & (magnitude < info.smallest_normal)
            self.subnormal += float(weights[small].sum())
        self.signal += float((weights * np.square(products * self._unit)).sum())
        self.noise += float((weights * np.square(noise * self._unit)).sum())


def _decibels(signal: float, noise: float) -> float:
    if noise == math.inf:
        return -math.inf
    if signal == 0:
        return math.nan
    return math.inf if noise == 0 else 10 * math.log10(signal / noise)


def _predict_scheme(
    magnitudes: Magnitudes,
    blocks: Callable[[tuple[int, int]], Blocks],
    scheme: Scheme,
    recipe: Recipe | None,
    scales: Scales,
) -> Prediction:
    top = int(magnitudes.exponents[-1]) if len(magnitudes.exponents) else 0
    dtype = _weight_dtype(magnitudes)
    tables = _columns_of(magnitudes, blocks, scheme.block)
    responses = response(cast("SchemeName", scheme.name), recipe, dtype)
    noise, zeros = _block_losses(tables, responses, magnitudes.largest)
    is_known = (
        not magnitudes.values
        and _is_smooth(magnitudes)
        and max(magnitudes.significant_bits, default=0) > _FEW_BITS
        and _LEAST_LARGEST.get(dtype, _LEAST_OF_ANY) < magnitudes.largest < _MOST_OF_ANY
        and not any(_is_alike(table, responses) for table in tables)
        and not any(_exceeds_scales(table, scheme, recipe) for table in tables)
    )
    squares = np.ldexp(magnitudes.squares, 2 * (magnitudes.exponents - top))
    if is_known and scales != "amax":
        noise_ratio, zero_ratio = loss_ratios(
            tables,
            magnitudes.largest,
            magnitudes.elements,
            scheme,
            recipe=recipe,
            scales=scales,
            dtype=dtype,
        )
        noise, zeros = noise * noise_ratio, zeros * zero_ratio
    return Prediction(
        scheme.name,
        magnitudes.elements,
        0,
        0,
        round(zeros),
        0,
        magnitudes.nans,
        magnitudes.infinities,
        magnitudes.zeros,
        _decibels(float(squares.sum()), noise)
        if is_known or not len(magnitudes.exponents)
        else None,
    )


def _exceeds_scales(table: Blocks, scheme: Scheme, recipe: Recipe | None) -> bool:
    """Return True if blocks need scales that a recipe without a global scale does not hold."""
    # Such are the scales of MLX' nvfp4, in float8 alone: errors then depend on the magnitude.
    layout = written_layout(recipe or next(iter(scheme.recipes), None), scheme, symmetric=True)
    if not scheme.global_scale or has_global_scale(layout):
        return False
    scale, element = finfo(scheme.scale), float(finfo(scheme.element).max)
    ends = np.log2([float(scale.smallest_normal) * element, float(scale.max) * element])
    maxima = table.eighths / 8
    outside = (maxima < ends[0]) | (maxima >= ends[1])
    return bool(table.blocks[outside].sum() > _FEW_BLOCKS * table.blocks.sum())


def _is_alike(table: Blocks, responses: Response) -> bool:
    """Return True if blocks have magnitudes, or maxima, so alike that where they are matters."""
    eighths, blocks = table.eighths, table.blocks
    if not len(eighths):
        return False
    # Eighths are 8 * exponent + phase: the square of a maximum is 4^exponent (1 + phase / 8)^2.
    units = np.ldexp(1.0, 2 * (eighths // 8 - eighths[-1] // 8))
    highest = units * table.counts[:, 0]
    of_maxima = highest * np.square(1 + (eighths % 8 + 0.5) / 8)
    squares = (units * table.squares[:, 0]).sum()
    number = highest.sum() / (units * blocks).sum()
    if number > _ALIKE_ELEMENTS and squares > _ALIKE_SQUARES * of_maxima.sum():
        return True
    most = int(blocks.argmax())
    if blocks.sum() == 1 or blocks[most] < _ALIKE_BLOCKS * blocks.sum():
        return False
    row = int(eighths[most] % 8), int(blocks[most]), table.counts[most], table.squares[most]
    # Where in its eighth the maxima are is not counted: if that decides the noise, it is not known.
    noises = [_losses(part, *row)[0] for part in responses.parts_of_eighths()]
    return max(noises) > _ALIKE_NOISE * min(noises)


def _weight_dtype(magnitudes: Magnitudes) -> str:
    """Return the dtype that an array is taken to have: the narrowest of those of weights."""
    bits = max(magnitudes.significant_bits, default=0)
    rows = (row.name for row in _WEIGHT_DTYPES if bits <= row.mantissa_bits + 1)
    return next(rows, _WEIGHT_DTYPES[-1].name)


def _columns_of(
    magnitudes: Magnitudes, blocks: Callable[[tuple[int, int]], Blocks], block: tuple[int, int]
) -> list[Blocks]:
    """Return the tables whose losses are averaged for blocks of a shape."""
    if block == (0, 0):
        return [_single_block(magnitudes)]
    # Surveys have no blocks of 64: what they lose is between what the neighbors do.
    if block == (1, 64):
        return [blocks((1, 32)), blocks((1, 128))]
    return [blocks(block)]


def _single_block(magnitudes: Magnitudes) -> Blocks:
    counts, squares = np.zeros((1, BLOCK_BINADES), np.uint64), np.zeros((1, BLOCK_BINADES))
    if not len(magnitudes.exponents):
        return Blocks(np.zeros(0, np.int64), np.zeros(0, np.uint64), counts[:0], squares[:0])
    top = magnitudes.exponents[-1]
    depths = np.minimum(top - magnitudes.exponents, BLOCK_BINADES - 1)
    np.add.at(counts[0], depths, magnitudes.counts)
    np.add.at(squares[0], depths, np.ldexp(magnitudes.squares, 2 * (magnitudes.exponents - top)))
    squares[0, -1] = 0
    # Of a significand from 1 to 2, the eighth that it is in.
    eighth = 8 * top + int(8 * (math.ldexp(magnitudes.largest, -int(top)) - 1))
    return Blocks(np.array([eighth]), np.ones(1, np.uint64), counts, squares)


def _block_losses(tables: list[Blocks], response: Response, largest: float) -> tuple[float, float]:
    """Return the sum of squared errors and how many elements become zero."""
    # The error is in units of four to the exponent of the largest magnitude. Of the blocks whose
    # maxima are in the highest eighth, one has that magnitude.
    top = math.frexp(largest)[1] - 1
    of_largest, of_eighths = response.at(largest), response.of_eighths()
    noise = zeros = 0.0
    for table in tables:
        for eighth, blocks, counts, squares in zip(*table, strict=True):
            phase = int(eighth % 8)
            unit = math.ldexp(1.0, 2 * (int(eighth) // 8 - top))
            share = 1 / int(blocks) if eighth == table.eighths[-1] else 0.0
            for part, shares in ((share, of_largest), (1 - share, of_eighths)):
                if part:
                    lost_part = _losses(shares, phase, int(blocks), counts, squares)
                    noise, zeros = noise + part * unit * lost_part[0], zeros + part * lost_part[1]
        # What is further below is zero, or too small to be heard.
        zeros += float(table.counts[:, DEPTHS:].sum())
    return noise / len(tables), zeros / len(tables)


def _losses(
    response: Response, phase: int, blocks: int, counts: NDArray[np.uint64], squares: _Column
) -> tuple[float, float]:
    """Return what blocks lose whose maxima are in an eighth: one element of each is the maximum."""
    numbers, squares = counts[:DEPTHS].astype(float), squares[:DEPTHS].copy()
    # The maximum of each block is counted by itself: its error depends on where the scale puts it.
    numbers[0] = max(numbers[0] - blocks, 0)
    squares[0] = max(squares[0] - blocks * response.squares_of_maxima[phase], 0)
    noise, zeros = response.losses(phase, numbers, squares)
    return noise + blocks * float(response.noise_of_maxima[phase]), zeros
