"""How a matrix may have been quantized and decoded: scheme, producer, and rule of its scales."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from castwise._core import cast, finfo, formats
from castwise._options import ScaleRule
from castwise.checkpoint._tensors import numpy_dtype
from castwise.checkpoint.comparison._transcodings import have_same_level
from castwise.quantization import QuantizedArray, QuantizedWeight, Scheme, dequantize, schemes
from castwise.quantization.arrays.quantize import quantize_slab
from castwise.quantization.producers.block_types import (
    BLOCK_TYPES,
    TYPES,
    WRITTEN_TYPES,
    decode_type,
    encode_type,
    type_of_scheme,
)
from castwise.quantization.producers.layouts import ZERO, Layout
from castwise.quantization.producers.registry import (
    CONVERTED_TO,
    TYPED,
    WRITTEN,
    WRITTEN_WITH_ZEROS,
    written_layout,
)
from castwise.quantization.producers.schemes import (
    find_scheme,
    has_global_scale,
    has_scales,
    scheme_of_files,
)

MATRIX = 2
"""The axes of a matrix."""

_RULES: tuple[ScaleRule, ...] = ("floor", "rceil", "ceil", "even", "ct")
_LATE = ("ceil", "floor", "nearest")
_CHOICES = {
    "best": "with the scales of least squared error",
    "four_over_six": "with the better one of two scales for each block (four over six)",
}
"""What scales other than those of the largest magnitude are called."""

# Blocks of activations in DeepSeek's files, beside those of 128x128.
_LATE_COLUMNS = (128,)
# What schemes begin with of which a plain tensor may be the decoding.
_TRIED = ("fp8_", "mx", "nvfp4", "int8_", "int4_", "bnb_")


@dataclass(frozen=True, slots=True)
class SchemeRecipe:
    """How a matrix is quantized and decoded."""

    # As in `castwise.quantization.quantize`.
    scheme: str
    producer: str
    block: tuple[int, int] | None = None
    scale_rule: str | None = None
    # How often it is quantized, decoded to its own format between.
    passes: int = 1
    # How scales became powers of two after the codes were computed; None if they did not.
    late: str | None = None
    # Along which elements share a scale: -2 in experts that are stored transposed.
    axis: int = -1
    # The global scale is that of the largest magnitude of all weights that engines fuse with it.
    shares: bool = False
    # How the scale of a block is chosen, as in `castwise.quantization.quantize`.
    scales: str = "amax"
    has_zeros: bool = False  # each block has a zero point

    @property
    def cost(self) -> int:
        """How unusual it is: of recipes that agree the most usual one is taken."""
        is_rounded = self.scheme.startswith("fp8_") and self.scale_rule is not None
        return 2 * is_rounded + 3 * (self.late is not None) + self.passes

    @property
    def needs_amax(self) -> bool:
        """True if a scale is that of the whole matrix."""
        return self.has_global_scale or self.scheme.endswith("_tensor")

    @property
    def is_of_blocks(self) -> bool:
        """True for types of blocks of llama.cpp."""
        return type_of_scheme(self.scheme) is not None

    @property
    def scheme_name(self) -> str:
        """The scheme, or the type of llama.cpp whose blocks it is, which files name."""
        is_type = self == SchemeRecipe(self.scheme, TYPED, self.block, scales=self.scales)
        return _type_names().get(self.scheme, self.scheme) if is_type else self.scheme

    @property
    def has_global_scale(self) -> bool:
        """True if scales are relative to one of the whole matrix."""
        return _has_global_scale(self.scheme, self.producer)

    def row_step(self, shape: Sequence[int]) -> int | None:
        """Return of how many rows whole blocks are; None where matrices cannot be cut so."""
        # Where blocks would reach from one expert into the next it is all rows of one.
        row = scheme_of_files(self.scheme)
        rows, columns = self.block or row.block
        step = max(rows if self.axis == -1 else columns, 1)
        if len(shape) == MATRIX:
            return step
        if self.needs_amax:
            return None
        return step if shape[-2] % step == 0 else None if self.late is not None else shape[-2]

    def apply(
        self,
        # Rows of a tensor.
        matrix: NDArray[Any],
        # The format of the values.
        to: str,
        # The largest magnitude that scales of the whole are for.
        amax: float | None,
        *,
        # The shape of all of that tensor.
        shape: Sequence[int],
        # What is multiplied as another producer stores it; None for this one.
        form: QuantizedArray | None,
    ) -> NDArray[Any] | None:
        """Return the decoded values of a matrix of whole blocks."""
        # The result is None where another producer's global scale is not the recipe's.
        if self.is_of_blocks:
            flat = matrix.reshape(-1, matrix.shape[-1])
            kind = self.scheme.upper()
            values = decode_type(encode_type(flat, kind, scales=self.scales), kind)
            return cast(values, numpy_dtype(to)).reshape(matrix.shape)
        rows = matrix
        if self.late is not None:  # its rows are whole blocks, of one matrix or several
            rows = matrix.reshape(-1, matrix.shape[-1])
        elif len(shape) > MATRIX and self.row_step(shape) == shape[-2]:
            rows = matrix.reshape(-1, shape[-2], matrix.shape[-1])
        for _ in range(self.passes - 1):
            rows = dequantize(self._quantize(rows, amax), rows.dtype)
        array = self._quantize(rows, amax)
        if self.late is not None:
            return _with_late_scales(array, rows.shape, self.late, to).reshape(matrix.shape)
        product = array if form is None else multiplied_as(array, form, of_zeros=amax == 0)
        if product is None:
            return None
        return dequantize(product, numpy_dtype(to)).reshape(matrix.shape)

    @property
    def quantize_options(self) -> dict[str, Any] | None:
        """The options of `quantize_slab` of matrices along rows; None if it is more than that."""
        is_more = self.passes > 1 or self.late is not None or self.axis != -1 or self.has_zeros
        if is_more or self.is_of_blocks:
            return None
        return {
            "scheme": self.scheme,
            "recipe": self.producer,
            "block": self.block,
            "scale_rule": self.scale_rule,
            "scales": self.scales,
        }

    def _quantize(self, matrix: NDArray[Any], amax: float | None) -> QuantizedArray:
        return quantize_slab(
            matrix,
            self.scheme,
            recipe=self.producer,
            block=self.block,
            axis=self.axis,
            scale_rule=self.scale_rule,
            scales=self.scales,
            symmetric=not self.has_zeros,
            amax=amax,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the options of `castwise.quantization.quantize`, and what was done around it."""
        is_type = self.scheme_name != self.scheme  # whose block is not an option
        return {
            "scheme": self.scheme_name,
            "recipe": self.producer,
            "block": None if self.block is None or is_type else list(self.block),
            "scale_rule": self.scale_rule,
            "passes": self.passes,
            "late_scale": self.late,
            "axis": self.axis,
            "shares_global_scale": self.shares,
            "scales": self.scales,
            **({"symmetric": False} if self.has_zeros else {}),
        }

    def text(self) -> str:
        """Say in words what B is."""
        parts = [f"B is A quantized as {self.scheme_name} by the recipe of {self.producer}"]
        if self.scale_rule is not None:
            parts.append(f"scale rule {self.scale_rule}")
        if self.scales != "amax":
            parts.append(_CHOICES[self.scales])
        if self.has_zeros:
            parts.append("with zero points")
        if self.axis != -1:
            parts.append("transposed")
        if self.shares:
            parts.append("with one global scale for the weights that engines fuse")
        if self.late is not None:
            parts.append(f"scales rounded to E8M0 ({self.late}) after the codes were computed")
        if self.passes > 1:
            parts.append("twice")
        return ", ".join(parts)


@cache
def _type_names() -> dict[str, str]:
    """Map each scheme of arrays that castwise writes as a type of llama.cpp to this type."""
    return {
        layout.scheme: name.lower()
        for name, layout in TYPES.items()
        if name in WRITTEN_TYPES and layout.storage is not None and not layout.storage.read_only
    }


@cache
def _has_global_scale(scheme: str, producer: str) -> bool:
    row = scheme_of_files(scheme)
    return row.global_scale and has_global_scale(written_layout(producer, row, symmetric=True))


def multiplied_as(
    array: QuantizedArray, form: QuantizedArray, *, of_zeros: bool
) -> QuantizedArray | None:
    """Return codes and scales with the global scale of another array, multiplied as that is."""
    # The result is None if the two have different global scales; zeros may have any.
    if form.global_scale is not None and array.global_scale is not None:
        if not (of_zeros or have_same_level(array, form)):
            return None
        array = array._with(global_scale=np.asarray(form.global_scale).reshape(()))
    return array._with(layout=_layout_multiplied_as(array.layout, form.layout))


@cache
def _layout_multiplied_as(layout: Layout, form: Layout) -> Layout:
    storage, other = layout.storage, form.storage
    if storage is None or other is None:
        return layout
    return replace(layout, storage=storage.multiplied_as(other))


def _with_late_scales(
    source: QuantizedArray, shape: Sequence[int], late: str, to: str
) -> NDArray[Any]:
    """Decode codes with scales that were rounded to powers of two after they were used."""
    parts = source.parts()
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


# Scheme, block and producers of a weight; None of plain tensors.
_Kind = tuple[str | None, tuple[int, ...] | None, tuple[str, ...]] | None


def scheme_recipes(weight: QuantizedWeight | None, axes: int) -> Sequence[SchemeRecipe]:
    """List what may have made a weight; of a plain tensor all that castwise knows."""
    # Blocks of a tensor of more than two axes may lie along the last axis but one.
    kind = None if weight is None else (weight.scheme, weight.block, weight.recipes)
    recipes = _of_kind(kind, is_stack=axes == MATRIX + 1)
    if weight is not None and ZERO in weight.parts.values():
        return (*_with_zeros(weight.scheme, weight.block), *recipes)
    return recipes


@cache
def _with_zeros(scheme: str | None, block: tuple[int, ...] | None) -> tuple[SchemeRecipe, ...]:
    """List what may have made a weight with zero points."""
    if block is not None and len(block) != MATRIX:
        return ()
    pair = None if block is None else (block[0], block[1])
    return tuple(
        SchemeRecipe(row.scheme, row.recipe, pair, scales=scales, has_zeros=True)
        for row in WRITTEN_WITH_ZEROS
        if row.scheme == scheme
        for scales in ("amax", "best")
    )


@cache
def _of_kind(kind: _Kind, *, is_stack: bool) -> tuple[SchemeRecipe, ...]:
    """List what may have made weights of a scheme, block and producers; of None, plain tensors."""
    types = tuple(_of_blocks(kind))
    if kind is not None and kind[0] in WRITTEN_TYPES:
        return types
    recipes: list[SchemeRecipe] = []
    for recipe in _plain_recipes(kind):
        recipes.append(recipe)
        if recipe.has_global_scale:
            recipes.append(replace(recipe, shares=True))
        if is_stack and recipe.late is None:
            recipes.append(replace(recipe, axis=-2))
    return (*recipes, *types)


def _of_blocks(kind: _Kind) -> Iterator[SchemeRecipe]:
    """List the types of blocks that weights of a scheme or of a type may be stored as."""
    scheme, block, producers = kind or (None, None, ())
    if scheme is None or producers != (TYPED,):
        return
    # Types of llama.cpp are schemes by their own names, also those that castwise does not write.
    stored_bits = None if scheme in BLOCK_TYPES else scheme_of_files(scheme).bits
    for name, bits in WRITTEN_TYPES.items():
        row = scheme_of_files(name.lower())
        is_like = stored_bits == bits
        if name == scheme or (is_like and row.block == block):
            yield SchemeRecipe(row.name, TYPED)
            yield SchemeRecipe(row.name, TYPED, scales="best")


def _plain_recipes(kind: _Kind) -> Iterator[SchemeRecipe]:
    """List them for matrices along the last axis, those of the stored scheme first."""
    scheme, stored_block, likely = kind or (None, None, ())
    for row in sorted(schemes(), key=lambda row: row.name != scheme):
        if kind is not None and (row.name, scheme) not in _becoming():
            continue
        if kind is None and not row.name.startswith(_TRIED):
            continue
        block = None
        if scheme == row.name and stored_block is not None and len(stored_block) == MATRIX:
            block = stored_block[0], stored_block[1]
        if block == row.block or not min(row.block):
            block = None
        # Who writes a scheme goes before others, but where producers have rules of their own.
        writers = row.recipes if is_power(row.scale) else _writers(row.name)
        producers = sorted(
            row.recipes, key=lambda producer: (producer not in likely, producer not in writers)
        )
        yield from _of_scheme(row, block, producers, is_stored=kind is not None)
    if kind is None:  # producers write blocks that are not those of the scheme
        for form in WRITTEN:
            if form.block is not None:
                yield SchemeRecipe(form.scheme, form.recipe, form.block)


@cache
def _writers(scheme: str) -> frozenset[str]:
    """Return the producers as which castwise writes a scheme."""
    return frozenset(row.recipe for row in WRITTEN if row.scheme == scheme)


@cache
def _becoming() -> frozenset[tuple[str, str | None]]:
    """Return each scheme with itself, and with those that its weights become with their values."""
    pairs = {(row.name, row.name) for row in schemes()}
    return frozenset(pairs.union(*(row.transcoding.forms_to for row in CONVERTED_TO)))


def _of_scheme(
    row: Scheme,
    block: tuple[int, int] | None,
    producers: Sequence[str],
    *,
    is_stored: bool,  # whether codes and scales are stored, not what they decode to
) -> Iterator[SchemeRecipe]:
    for passes in (1, 2) if is_stored and is_power(row.scale) else (1,):
        for producer in producers:
            for rule in _rules(row, producer):
                yield SchemeRecipe(row.name, producer, block, rule, passes)
    if is_stored:  # of plain tensors the search would take twice as long
        for producer, scales in product(producers, _CHOICES):
            if has_scales(scales, row, producer):
                yield SchemeRecipe(row.name, producer, block, scales=scales)
    late_scheme = row.name if row.name.startswith("fp8_") else None
    if row.name.startswith("mxfp8_e4m3"):
        late_scheme, block = "fp8_block", block or row.block
    if late_scheme is not None:
        late_producer = find_scheme(late_scheme).recipes[0]
        blocks = [block, *((1, size) for size in _LATE_COLUMNS if row.name == "fp8_block")]
        for late_block, late in product(blocks, _LATE):
            yield SchemeRecipe(late_scheme, late_producer, late_block, None, 1, late)


def _rules(row: Scheme, producer: str) -> Sequence[str | None]:
    """List the rules of scales, that of the producer first: None where it is not the scheme's."""
    if is_power(row.scale):
        first = row.rule if producer == row.recipes[0] else None
        return [first, *(rule for rule in _RULES if rule != first)]
    return (None, "ceil", "floor") if row.element.startswith("float8") else (None,)


def is_power(name: str) -> bool:
    """Return True for a format of powers of two."""
    return name in formats() and finfo(name).specials == "exponent-only"
