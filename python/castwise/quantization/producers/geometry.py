"""Which rows and columns share a scale, and how many containers, blocks and tiles hold them."""

from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction

# The axes of a matrix; those before them are a stack.
MATRIX = 2

# Rows and columns of scales that some producers store together.
TILE = (128, 4)

_BYTE = 8
_WORD_BITS = 32


def ceil_div(count: int, size: int) -> int:
    """Divide, and round up."""
    return -(-count // size)


def padded_shape(shape: Iterable[int], multiples: Iterable[int]) -> tuple[int, ...]:
    """Round each length up to a multiple."""
    return tuple(ceil_div(n, size) * size for n, size in zip(shape, multiples, strict=True))


def block_grid(shape: Sequence[int], block: Sequence[int]) -> tuple[int, ...]:
    """Count the blocks along each axis of a stack of matrices; a block of 0 is a whole axis."""
    *stack, rows, columns = shape
    high, wide = block
    return *stack, ceil_div(rows, high or rows or 1), ceil_div(columns, wide or columns or 1)


def without_ones(shape: Sequence[int]) -> tuple[int, ...]:
    """Return a shape without axes of one element."""
    return tuple(filter((1).__ne__, shape))


def grid_of_scales(scale: tuple[int, ...], payload: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of scales without the axes inside of blocks, which ModelOpt's have."""
    is_split = len(payload) == MATRIX and len(scale) == 2 * MATRIX and scale[1::2] == (1, 1)
    return scale[::2] if is_split else scale


def codes_of_block(fields: Mapping[str, int], bits: int) -> int:
    """Count the codes of a block of bytes, whose fields have so many; some lack their high bit."""
    return fields["data"] * _BYTE // (bits - int("high" in fields))


def codes_of_container(bits: int, itemsize: int, packing: str) -> Fraction:
    """Count the codes of so many bits that a container holds; the last may lie across two."""
    width = _BYTE * itemsize
    return Fraction(width // bits) if packing == "padded" else Fraction(width, bits)


def container_count(columns: int, bits: int, itemsize: int, packing: str) -> int:
    """Count the containers of so many codes; padded ones are words."""
    if packing == "padded":
        return ceil_div(columns, _WORD_BITS // bits)
    return ceil_div(columns * bits, _BYTE * itemsize)
