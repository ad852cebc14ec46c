"""The survey of an array: a value that adds up, is saved, printed, and asked for predictions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from castwise._core import (
    SurveyTables,
    finfo,
    formats,
    in_default_environment,
    restore_survey,
    sum_surveys,
    survey_array,
)
from castwise._numbers import is_integer
from castwise._options import Overflow, Recipe, Scales
from castwise.rendering import Rendered
from castwise.rendering.sheet import Exponents, FormatRange, Histogram, Lines, Sheet, Table
from castwise.surveys._prediction import Prediction, predict
from castwise.surveys._tables import BLOCK_BINADES, Binades, Blocks, Magnitudes
from castwise.text.brief import brief, counted

SCHEMA = 2  # the version of what `Survey.to_dict` returns

# Left out of pictures: formats of few devices, and one that holds scales and no numbers.
_LITTLE_USED = frozenset(("fnuz", "exponent-only"))
_PICTURED_BITS = 16
"""Bits of the formats whose ranges are drawn below a survey, at most."""


def _hex(magnitude: float) -> str:
    """Return a float as text; a process may take subnormal numbers for 0."""
    return str(in_default_environment(float.hex, magnitude))


@contextmanager
def restoring(kind: str, state: object, schema: int) -> Iterator[None]:
    """Refuse what `to_dict` did not return, or did in another version; the block reads the rest."""
    schema_of_saved = state.get("schema") if isinstance(state, Mapping) else None
    if schema_of_saved != schema:
        raise ValueError(
            f"saved {kind} has schema={schema_of_saved!r}; this castwise reads {schema}."
        )
    try:
        yield
    except (AttributeError, LookupError, OverflowError, TypeError, ValueError) as error:
        raise ValueError(
            f"saved {kind} is damaged ({error}); give what to_dict() returned."
        ) from None


@dataclass(frozen=True, slots=True, eq=True, repr=False)
class Survey(Rendered):
    """Where the magnitudes of an array lie.

    Surveys of parts add up to that of the whole, bit for bit and in any order, where the parts end
    with the blocks: after whole rows of the last axis, and for blocks of 128 rows after as many.

    """

    _tables: SurveyTables

    @property
    def count(self) -> int:
        """Elements."""
        return self._tables.count

    @property
    def zeros(self) -> int:
        """Zeros of both signs."""
        return self._tables.zeros

    @property
    def infinities(self) -> int:
        """Infinities of both signs."""
        return self._tables.infinities

    @property
    def nans(self) -> int:
        """NaN."""
        return self._tables.nans

    @property
    def amax(self) -> float:
        """The largest finite magnitude; 0.0 without."""
        return self._tables.largest

    @property
    def amin_nonzero(self) -> float:
        """The smallest magnitude that is not zero; 0.0 without."""
        return self._tables.smallest

    @property
    def significant_bits(self) -> Mapping[int, int]:
        """Elements by significant bits: the most that one of 128 elements of a row needs."""
        return dict(self._tables.significant_bits)

    @property
    def values(self) -> Mapping[float, int] | None:
        """Elements by magnitude, finite and not zero; None if there are more than 128 of these."""
        values = self._tables.values
        return None if values is None else dict(values)

    @property
    def binades(self) -> Binades:
        """Finite elements that are not zero, by binade."""
        return Binades(*self._tables.binade_columns())

    def blocks(self, shape: tuple[int, int]) -> Blocks:
        """Return the blocks of a shape by their maxima.

        Parameters
        ----------
        shape : tuple of int
            Rows and columns: (1, 16), (1, 32), (1, 128), (128, 128), or (1, 0) for whole rows.

        Raises
        ------
        ValueError
            Such blocks are not surveyed.

        """
        if not all(map(is_integer, shape)):
            raise ValueError(f"shape={shape!r} is not valid; use two ints, as (1, 32).")
        eighths, blocks, counts, squares = self._tables.block_columns(shape)
        cells = len(eighths), BLOCK_BINADES
        # From the unit of each binade to that of the maximum's.
        units = np.ldexp(1.0, -2 * np.arange(BLOCK_BINADES))
        return Blocks(eighths, blocks, counts.reshape(cells), squares.reshape(cells) * units)

    def predict(
        self,
        target: DTypeLike | str,
        *,
        scale: float | None = None,
        overflow: Overflow = "ieee",
        recipe: Recipe | None = None,
        scales: Scales = "amax",
    ) -> Prediction:
        """Predict what a cast to a format, or a quantization by a scheme, loses.

        Magnitudes are taken to lie in a binade as its count and its sum of squares say, but for the
        largest, which is known: so no overflow is missed. For normal, Laplace and t
        distributions around zero and 10,000 elements or more, the ratio of signal to noise is
        within 0.5 dB of what is measured. Around a mean of 3 to 10 standard deviations it is
        within 4 dB, and of 20 to 100 within 13 dB. Of at most 128 different magnitudes, casts to
        floats with a sign are predicted exactly. A survey counts no signs: half of the elements
        are taken to be negative, which formats without a sign do not hold. Numbers that bfloat16 or
        float16 holds are taken for weights of that dtype.

        The ratio is None where such a density tells too little: a scheme of few different
        magnitudes, or of numbers of few bits; magnitudes, or those of each block, that are all
        alike; a few elements that outweigh all others; scales beyond the range of their format.
        That rows were rounded before, each by a scale of its own, is not seen.

        Parameters
        ----------
        target : dtype or str
            A format as `castwise.cast` takes it, or the name of one of
            `castwise.quantization.schemes()`.
        scale : float, optional
            For a format: as in `castwise.cast`. Errors are of the scaled values.
        overflow : {"ieee", "saturate", "raise"}
            For a format: as in `castwise.cast`; "raise" predicts as "ieee".
        recipe : str, optional
            For a scheme: as in `castwise.quantization.quantize`.
        scales : {"amax", "best", "four_over_six"}
            For a scheme: as in `castwise.quantization.quantize`. What a search of scales gains is
            shown on blocks that are drawn with the maxima and the densities of these.

        Raises
        ------
        TypeError
            `target` is neither, or a format has no predictions.
        ValueError
            An argument does not go with the target.

        """
        magnitudes = Magnitudes(
            *self.binades,
            largest=self.amax,
            smallest=self.amin_nonzero,
            significant_bits=self.significant_bits,
            values=self.values,
            elements=self.count,
            zeros=self.zeros,
            infinities=self.infinities,
            nans=self.nans,
        )
        return predict(
            magnitudes,
            self.blocks,
            target,
            scale=scale,
            overflow=overflow,
            recipe=recipe,
            scales=scales,
        )

    def histogram(self) -> str:
        """Draw how many elements each binade has, in 16 letters from the smallest on."""
        return self.exponents.text()

    @property
    def exponents(self) -> Histogram:
        """Finite elements that are not zero, by exponent."""
        exponents, counts, _ = self.binades
        return Histogram.of(exponents, counts)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON, from which `from_dict` makes an equal survey."""
        counts, magnitudes, binades, significant_bits, values, tables = self._tables.state()
        return {
            "schema": SCHEMA,
            "counts": list(counts),
            "magnitudes": [_hex(magnitude) for magnitude in magnitudes],
            "binades": [list(cell) for cell in binades],
            "significant_bits": [list(pair) for pair in significant_bits],
            "values": None if values is None else [[_hex(row), count] for row, count in values],
            "blocks": [
                [[eighth, blocks, [list(cell) for cell in cells]] for eighth, blocks, cells in rows]
                for rows in tables
            ],
        }

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> Self:
        """Return the survey that `to_dict` saved.

        Raises
        ------
        ValueError
            It is not what `to_dict` returns, or of another version.

        """
        with restoring("survey", saved, SCHEMA):
            state = (
                saved["counts"],
                [float.fromhex(magnitude) for magnitude in saved["magnitudes"]],
                [tuple(cell) for cell in saved["binades"]],
                [tuple(pair) for pair in saved["significant_bits"]],
                None
                if saved["values"] is None
                else [(float.fromhex(value), count) for value, count in saved["values"]],
                [
                    [(eighth, blocks, [*map(tuple, cells)]) for eighth, blocks, cells in rows]
                    for rows in saved["blocks"]
                ],
            )
            return cls(restore_survey(state))

    def __add__(self, other: Survey) -> Survey:
        if not isinstance(other, Survey):
            return NotImplemented
        return Survey(self._tables + other._tables)

    def __radd__(self, other: object) -> Survey:
        """Return itself for 0, with which `sum` begins."""
        if isinstance(other, int) and other == 0:
            return self
        return NotImplemented

    def __repr__(self) -> str:
        return brief(
            self,
            counted(self.count, "element"),
            f"{self.amin_nonzero:.3g} to {self.amax:.3g}" if self.amax else None,
            self.histogram() or None,
        )

    def __sheet__(self) -> Sheet:
        """Return a table of binades, and the picture of them above the ranges of formats."""
        exponents, counts, squares = self.binades
        share = counts / max(self.count, 1)
        energy = np.ldexp(squares, 2 * (exponents - exponents.max(initial=0)))
        energy = energy / max(energy.sum(), np.finfo(float).tiny)
        tallest = share.max(initial=0) or 1
        rows = [
            (
                f"2^{exponent}",
                "█" * round(30 * part / tallest),
                f"{count:,}",
                f"{100 * part:.2f} %",
                f"{100 * square:.2f} %",
            )
            for exponent, count, part, square in zip(
                exponents[::-1], counts[::-1], share[::-1], energy[::-1], strict=True
            )
        ]
        special = (
            counted(self.zeros, "zero") if self.zeros else None,
            f"{self.infinities:,} infinite" if self.infinities else None,
            f"{self.nans:,} NaN" if self.nans else None,
        )
        special_text = ", ".join(filter(None, special))
        total = (
            f"{counted(self.count, 'element')}{', of these ' if special_text else ''}{special_text}"
        )
        if not rows:
            return [Lines(("no magnitudes", total))]
        header = ("binade", "", "elements", "share", "of squares")
        picture = Exponents([("elements", self.exponents)], pictured_ranges())
        return [picture, Table.of(header, rows, 2), Lines((total,))]


def sum_of(surveys: Iterable[Survey]) -> Survey:
    """Add surveys up; of none it is that of no elements."""
    return Survey(sum_surveys([one_survey._tables for one_survey in surveys]))


def pictured_ranges() -> list[FormatRange]:
    """Return the ranges of the formats that surveys are drawn above: those that files hold.

    Examples
    --------
    >>> from castwise import surveys
    >>> [each.name for each in surveys.pictured_ranges()][:3]
    ['float16', 'bfloat16', 'float8_e4m3fn']

    """
    rows = (finfo(name) for name in formats())
    return [
        FormatRange.of(row.name)
        for row in rows
        if row.kind == "float"
        and row.bits <= _PICTURED_BITS
        and row.safetensors is not None
        and row.specials not in _LITTLE_USED
    ]


def survey(x: ArrayLike, *, threads: int | None = None) -> Survey:
    """Survey an array: count where its magnitudes lie.

    Parameters
    ----------
    x : array_like
        Any shape, strides, byte order and real dtype; also of a library with an adapter (torch,
        jax, ...). Rows are those of the last axis; blocks begin at the first element of a row and,
        those of 128 rows, at the first row of a matrix.
    threads : int, optional
        At most this many threads; default get_num_threads(). The survey does not depend on them.

    Returns
    -------
    Survey

    Raises
    ------
    TypeError
        x is complex, masked, or nothing that numpy makes numbers of.

    Examples
    --------
    >>> magnitudes = castwise.survey(np.linspace(-1, 1, 20_001, dtype=np.float32))
    >>> round(magnitudes.predict("float8_e4m3fn", scale=256.0).sqnr_db)
    33

    """
    if isinstance(x, Mapping):
        raise TypeError(
            f"x is of type {type(x).__qualname__}, which is not an array; survey each array in it: "
            "{name: castwise.survey(array) for name, array in x.items()}."
        )
    return Survey(survey_array(x, threads=threads))
