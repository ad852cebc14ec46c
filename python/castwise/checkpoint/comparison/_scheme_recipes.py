"""How a matrix may have been quantised and decoded: scheme, producer, and rule of its scales."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from castwise._core import cast, finfo, formats
from castwise._options import ScaleRule
from castwise.checkpoint._tensors import numpy_dtype
from castwise.quantization import (
    QuantizedArray,
    QuantizedWeight,
    Scheme,
    dequantize,
    schemes,
)
from castwise.quantization.arrays import quantize_slab

MATRIX = 2
"""The axes of a matrix."""

_RULES: tuple[ScaleRule, ...] = ("floor", "rceil", "ceil", "even", "ct")
_LATE = ("ceil", "floor", "nearest")
_LATE_COLUMNS = (128,)
"""Blocks of activations in DeepSeek's files, beside those of 128x128."""
_TRIED = ("fp8_", "mx", "nvfp4", "int8_", "int4_", "bnb_")
"""What schemes begin with of which a plain tensor may be the decoding."""

_SCHEMES = {row.name: row for row in schemes()}


@dataclass(frozen=True, slots=True)
class SchemeRecipe:
    """How a matrix is quantised and decoded.

    Attributes
    ----------
    scheme, producer, block, scale_rule
        As in `castwise.quantization.quantize`.
    passes
        How often it is quantised, decoded to its own format between.
    late
        How scales became powers of two after the codes were computed; None if they did not.

    """

    scheme: str
    producer: str
    block: tuple[int, int] | None = None
    scale_rule: str | None = None
    passes: int = 1
    late: str | None = None

    @property
    def cost(self) -> int:
        """How unusual it is: of recipes that agree the most usual one is taken."""
        is_rounded = self.scheme.startswith("fp8_") and self.scale_rule is not None
        return 2 * is_rounded + 3 * (self.late is not None) + self.passes

    @property
    def needs_amax(self) -> bool:
        """True if a scale is that of the whole matrix."""
        return self.scheme == "nvfp4" or self.scheme.endswith("_tensor")

    def row_step(self, shape: Sequence[int]) -> int | None:
        """Return of how many rows whole blocks are; None where matrices cannot be cut so."""
        rows = self.block[0] if self.block is not None else 0
        if self.block is None:
            row = _SCHEMES[self.scheme]
            rows = 1 if row.block == (0, 0) else row.block[0]
        is_stack = len(shape) > MATRIX
        return None if is_stack and (self.needs_amax or rows != 1) else rows

    def applied(self, matrix: NDArray[Any], to: str, amax: float | None) -> NDArray[Any]:
        """Return the decoded values of a matrix of whole blocks.

        Raises
        ------
        ValueError
            The scheme cannot hold it.

        """
        for _ in range(self.passes - 1):
            matrix = dequantize(self._quantized(matrix, amax), matrix.dtype)
        quantized = self._quantized(matrix, amax)
        if self.late is None:
            return dequantize(quantized, numpy_dtype(to))
        return _with_late_scales(quantized, matrix.shape, self.late, to)

    def _quantized(self, matrix: NDArray[Any], amax: float | None) -> QuantizedArray:
        return quantize_slab(
            matrix,
            self.scheme,
            recipe=self.producer,
            block=self.block,
            scale_rule=self.scale_rule,
            amax=amax if self.needs_amax else None,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the options of `castwise.quantization.quantize`, and what was done around it."""
        return {
            "scheme": self.scheme,
            "recipe": self.producer,
            "block": None if self.block is None else list(self.block),
            "scale_rule": self.scale_rule,
            "passes": self.passes,
            "late_scale": self.late,
        }

    def text(self) -> str:
        """Say in words what B is."""
        parts = [f"B is A quantised as {self.scheme} by the recipe of {self.producer}"]
        if self.scale_rule is not None:
            parts.append(f"scale rule {self.scale_rule}")
        if self.late is not None:
            parts.append(f"scales rounded to E8M0 ({self.late}) after the codes were computed")
        if self.passes > 1:
            parts.append("twice")
        return ", ".join(parts)


def _with_late_scales(
    quantized: QuantizedArray, shape: Sequence[int], late: str, to: str
) -> NDArray[Any]:
    """Decode codes with scales that were rounded to powers of two after they were used."""
    parts = quantized.parts()
    codes = parts["weight"].astype(np.float32)
    scale = next(array for name, array in parts.items() if name != "weight").astype(np.float64)
    exponents = np.log2(scale)
    rounding = {"ceil": np.ceil, "floor": np.floor, "nearest": np.rint}[late]
    factors = np.exp2(rounding(exponents)).astype(np.float32)
    factors = factors.reshape(-1, scale.shape[-1] if scale.ndim else 1)
    for axis in range(MATRIX):
        length = -(-shape[axis] // factors.shape[axis])
        factors = np.repeat(factors, length, axis)[tuple(slice(size) for size in shape)]
    result: NDArray[Any] = cast(codes * factors, numpy_dtype(to))
    return result


def scheme_recipes(weight: QuantizedWeight | None) -> Sequence[SchemeRecipe]:
    """List what may have made a weight; of a plain tensor all that castwise knows."""
    if weight is None:
        rows = (row for row in schemes() if row.name.startswith(_TRIED))
        return [recipe for row in rows for recipe in _of_kind(row, None, ())]
    row = _SCHEMES.get(weight.scheme or "")
    return () if row is None else _of_kind(row, weight.block, weight.recipes)


@cache
def _of_kind(
    row: Scheme, stated: tuple[int, ...] | None, likely: tuple[str, ...]
) -> tuple[SchemeRecipe, ...]:
    """List what may have made weights of a scheme, in blocks, by producers."""
    block = _pair(stated)
    if block == row.block or not min(row.block):
        block = None
    producers = sorted(row.recipes, key=lambda producer: producer not in likely)
    return tuple(_of_scheme(row, block, producers, twice=bool(likely)))


def _pair(block: tuple[int, ...] | None) -> tuple[int, int] | None:
    return None if block is None or len(block) != MATRIX else (block[0], block[1])


def _of_scheme(
    row: Scheme, block: tuple[int, int] | None, producers: Sequence[str], *, twice: bool
) -> Iterator[SchemeRecipe]:
    rules: Sequence[str | None] = (None,)
    if is_power(row.scale):
        rules = [row.rule, *(rule for rule in _RULES if rule != row.rule)]
    elif row.element.startswith("float8"):
        rules = (None, "ceil", "floor")
    for passes in (1, 2) if twice and is_power(row.scale) else (1,):
        for rule in rules:
            for producer in producers:
                yield SchemeRecipe(row.name, producer, block, rule, passes)
    late_scheme = row.name if row.name.startswith("fp8_") else None
    if row.name.startswith("mxfp8_e4m3"):
        late_scheme, block = "fp8_block", block or row.block
    if late_scheme is not None:
        late_producer = next(row for row in schemes() if row.name == late_scheme).recipes[0]
        blocks = [block, *((1, size) for size in _LATE_COLUMNS if row.name == "fp8_block")]
        for late_block, late in product(blocks, _LATE):
            yield SchemeRecipe(late_scheme, late_producer, late_block, None, 1, late)


def is_power(name: str) -> bool:
    """Return True for a format of powers of two."""
    return name in formats() and finfo(name).specials == "exponent-only"
