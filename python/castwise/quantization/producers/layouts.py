"""What a layout is: one way to store a quantized weight as several tensors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal, NamedTuple

import numpy as np

from castwise._core import finfo, formats
from castwise._numbers import BYTE_BITS, WORD_BITS

# The axes of a matrix; those before them are a stack.
MATRIX = 2

# Rows and columns of scales that some producers store together.
TILE = (128, 4)


def ceil_div(count: int, size: int) -> int:
    return -(-count // size)


def padded_shape(shape: Iterable[int], multiples: Iterable[int]) -> tuple[int, ...]:
    return tuple(ceil_div(n, size) * size for n, size in zip(shape, multiples, strict=True))


def block_grid(shape: Sequence[int], block: Sequence[int]) -> tuple[int, ...]:
    """Count the blocks along each axis of a stack of matrices; a block of 0 is a whole axis."""
    *stack, rows, columns = shape
    high, wide = block
    return *stack, ceil_div(rows, high or rows or 1), ceil_div(columns, wide or columns or 1)


def without_ones(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(filter((1).__ne__, shape))


def grid_of_scales(scale: tuple[int, ...], payload: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of scales without the axes inside of blocks, which ModelOpt's have."""
    is_split = len(payload) == MATRIX and len(scale) == 2 * MATRIX and scale[1::2] == (1, 1)
    return scale[::2] if is_split else scale


def codes_of_block(fields: Mapping[str, int], bits: int) -> int:
    """Count the codes of a block of bytes, whose fields have so many; some lack their high bit."""
    return fields["data"] * BYTE_BITS // (bits - int("high" in fields))


def codes_of_container(bits: int, itemsize: int, packing: str) -> Fraction:
    """Count the codes of so many bits that a container holds; the last may lie across two."""
    width = BYTE_BITS * itemsize
    return Fraction(width // bits) if packing == "padded" else Fraction(width, bits)


def container_count(columns: int, bits: int, itemsize: int, packing: str) -> int:
    """Count the containers of so many codes; padded ones are words."""
    if packing == "padded":
        return ceil_div(columns, WORD_BITS // bits)
    return ceil_div(columns * bits, BYTE_BITS * itemsize)


# Parameters of experts in one tensor, which have no "weight" of their own.
EXPERTS = ("gate_up_proj", "down_proj")

SCALE = "scale"
ACTIVATION = "activation"
GLOBAL = "global scale"
ZERO = "zero point"
OTHER = "other"


def _formats_of(*codes: str) -> tuple[str, ...]:
    """Name the formats that safetensors has these codes for."""
    return tuple(name for name in formats() if finfo(name).safetensors in codes)


# Formats that parts may have, after the codes of safetensors.
OF_E4M3 = _formats_of("F8_E4M3")
OF_FP8 = _formats_of("F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ")
OF_F32 = _formats_of("F32")
OF_REAL = _formats_of("F64", "F32", "BF16", "F16")
OF_U8, OF_I8 = _formats_of("U8"), _formats_of("I8")
OF_I16 = _formats_of("I16")
OF_POWER = _formats_of("F8_E8M0")
OF_E8M0 = (*OF_U8, *OF_POWER)
OF_WORD = _formats_of("I32", "U32")
OF_U32 = _formats_of("U32")
OF_COUNTS = _formats_of("I64", "I32")

E4M3, E8M0, U8, I8 = OF_E4M3[0], OF_POWER[0], OF_U8[0], OF_I8[0]
BF16 = _formats_of("BF16")[0]
FLOAT8 = frozenset(OF_FP8)
BYTES = frozenset((*OF_U8, *OF_I8))
# Formats in which no method stores codes.
WIDE = frozenset((*OF_REAL, *_formats_of("I64", "BOOL")))


def dtype_of(name: str) -> np.dtype[Any]:
    """Return the dtype of a format that numpy has one for."""
    dtype = finfo(name).dtype
    if dtype is None:
        raise TypeError(f"{name} has no numpy dtype.")
    return dtype


# Rows are themselves keys of dicts, for each weight: a hash of all fields takes too long for that.
@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """A tensor beside a payload, without which the payload cannot be decoded or used."""

    # What is added to the name of the parameter if it begins with "_" or "."; else, without a "/"
    # before it, what stands in the place of its last component.
    name: str
    # "scale", "global scale", "zero point", "activation" (a scale of inputs or outputs) or "other".
    role: str = OTHER
    formats: tuple[str, ...] = ()  # the formats that it may have; any if empty
    is_required: bool = False  # without it the layout is another one, or damaged
    # No tensor of another meaning is named so, whatever the parameter is called.
    distinct: bool = False
    # What decoding does with a part whose role is "other": "bias", "shape", "group index", "code
    # map", "state", "divisor", "factor" (of what inputs are multiplied by), "float8 scale" (of the
    # float8 that values become before a product), or "nested " before a use; "marker" if it tells
    # how codes are stored, "inputs" if it is only for inputs. "" if castwise cannot decode with it.
    use: str = ""


class Storage(NamedTuple):
    """Where codes and scales lie in the arrays of a layout."""

    # The dtype of the payload; None for the dtype of a code.
    container: type[np.generic] | None = None
    # Where codes lie in their containers, as `castwise.quantization.pack` names it; the variants
    # that the layout may have, the one that is written first.
    packing: tuple[str, ...] = ("dense",)
    # Codes are stored with half their range added, and so are zero points that are packed.
    excess: bool = False
    is_unsigned: bool = False  # codes are stored without a sign, beside zero points or a bias
    # How zero points are stored: "plain", or packed like codes along "rows" or "columns".
    zeros: str = "plain"
    # What is added to a stored zero point, by variant of the layout, the default one first.
    zeros_add: tuple[tuple[str, int], ...] = ()
    # What the global scale does to the scale: "multiply" or "divide".
    global_use: Literal["multiply", "divide"] = "multiply"
    global_unit: float = 1.0  # a stored global scale is so many times the factor of the scales
    divides: bool = False  # the scales of channels and of whole tensors divide
    has_groups: bool = False  # schemes of groups are written so, whatever comes before it
    divisor_after: float | None = None  # the product with the scale is divided by this
    # "parts" if the payload and its scales are (in, out) and codes lie along in; "weight" if so and
    # codes lie along out; "pairs" if they are (out, in) and codes lie along out.
    orientation: str = ""
    flat: bool = False  # the payload is one row of all elements
    split: bool = False  # payloads have an axis for the containers of a block
    # Rows and columns that a payload is padded to; its scales are in tiles of 128x4.
    tile: tuple[int, int] | None = None
    # What a block of bytes holds, in order, with its bytes.
    fields: tuple[tuple[str, int], ...] = ()
    # The type of llama.cpp of blocks that are one part of bytes, scales too; and where in a block
    # the scale is, a float16.
    block_type: str = ""
    scale_place: int = 0
    read_only: bool = False  # arrays are not written so
    positive_zero: bool = False  # codes of -0 decode to 0
    # Scales are UE4M3 as llama.cpp reads it: 0x7F is 0, and no byte is above.
    unsigned_scales: bool = False
    narrow: bool = False  # products are rounded to the dtype of the target before a bias is added
    # The dtype in which the producer multiplies is the target's: scales are rounded to it first.
    inner: bool = False

    def multiplied_as(self, other: Storage) -> Storage:
        """Return it with codes and scales where they are, and multiplied as in another."""
        return self._replace(
            global_use=other.global_use,
            global_unit=other.global_unit,
            positive_zero=other.positive_zero,
            narrow=other.narrow,
            inner=other.inner,
        )


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """One way to store a quantized weight as several tensors."""

    # What is stored; "{}" stands for tensor, channel, group or block. "" if only a configuration
    # says it.
    scheme: str
    payload: str  # the tensor with the codes, named as a part is; "" is the parameter itself
    formats: tuple[str, ...]  # the formats that the payload may have; any if empty
    # The tensors beside it, first the scale or what holds it. One that does must be there.
    parts: tuple[Part, ...]
    # How the schemes begin that a configuration may state for it, besides its own.
    families: tuple[str, ...] = ()
    block: tuple[int, ...] | None = None  # the block that is part of the scheme's definition
    # Elements of the payload's last axis to those of the scale's, where this tells layouts apart.
    columns: tuple[int, int] | None = None
    # Last components of the names of parameters stored so; any if empty.
    parameters: tuple[str, ...] = ()
    # How its arrays are read and written; None if they are only recognized.
    storage: Storage | None = None


# The layouts that several producers write


def scale_part(name: str, formats: tuple[str, ...] = OF_REAL, *, distinct: bool = False) -> Part:
    return Part(name, SCALE, formats, is_required=True, distinct=distinct)


INPUTS = tuple(
    Part(name, ACTIVATION)
    for name in (
        "input_scale",
        "input_zero_point",
        "output_scale",
        "output_zero_point",
        "activation_scale",
    )
)
PRE = Part("pre_quant_scale", formats=OF_REAL, distinct=True, use="factor")
SECOND = Part("_scale_2", GLOBAL, OF_F32, is_required=True)

PLAIN = Storage()
BYTES_LOW = Storage(np.uint8)

FP8_SCALE = Layout(
    "fp8_{}",
    "",
    OF_FP8,
    (scale_part("_scale"), *INPUTS, Part("input_scale_ub", use="inputs"), PRE),
    storage=PLAIN,
)
MXFP8 = Layout(
    "mxfp8_e4m3",
    "",
    OF_E4M3,
    (scale_part("_scale", OF_E8M0), *INPUTS),
    block=(1, 32),
    storage=PLAIN,
)
INT8 = Layout(
    "int8_{}",
    "",
    OF_I8,
    (scale_part("_scale"), Part("_zero_point", ZERO, OF_I8), *INPUTS, PRE),
    families=("int", "uint"),
    storage=PLAIN,
)
NVFP4 = Layout(
    "nvfp4",
    "",
    OF_U8,
    (scale_part("_scale", OF_E4M3), SECOND, *INPUTS, PRE),
    block=(1, 16),
    storage=Storage(np.uint8, positive_zero=True),
)
MXFP4 = Layout(
    "mxfp4",
    "",
    OF_U8,
    (scale_part("_scale", OF_E8M0), *INPUTS),
    block=(1, 32),
    columns=(16, 1),
    storage=BYTES_LOW,
)
