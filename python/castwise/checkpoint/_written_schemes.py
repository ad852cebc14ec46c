"""The quantised checkpoints that castwise writes: which schemes, for whom, and of what weights.

One row per producer and scheme. The arrays are those of `castwise.quantization`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from castwise._spelling import nearest
from castwise.checkpoint._errors import CheckpointError
from castwise.checkpoint.report import MAX_ZEROS
from castwise.quantization import Scheme, schemes

_TILE_ROWS = 128
_NORMAL_BITS = 3
_GROUP_OF_MLX = 64


@dataclass(frozen=True, slots=True)
class Written:
    """A scheme as a producer's checkpoints hold it.

    Attributes
    ----------
    recipe
        The producer.
    scheme
        One of `castwise.quantization.schemes()`.
    code
        What its configuration calls that.
    block
        The default block, if it is not the scheme's.
    tile
        Rows and columns of which those of a weight must be multiples, so that nothing is padded.
    step
        Slabs are multiples of so many rows, beside whole blocks.
    stacks
        Experts may be stacked in one tensor.
    transposed
        Only such experts are stored so, and in a plain model their matrices are (in, out).
    shares
        What engines fuse must have the same global scale.
    symmetric
        False for groups that have a bias.

    """

    recipe: str
    scheme: str
    code: str = ""
    block: tuple[int, int] | None = None
    tile: tuple[int, int] = (1, 1)
    step: int = 1
    stacks: bool = False
    transposed: bool = False
    shares: bool = False
    symmetric: bool = True

    @property
    def row(self) -> Scheme:
        """The row of the scheme."""
        return scheme_named(self.scheme)


@dataclass(frozen=True, slots=True)
class Encoding:
    """A row, and the block that is used."""

    written: Written
    block: tuple[int, int]

    @property
    def bits(self) -> int:
        """The bits of a code."""
        return self.written.row.bits


@dataclass(frozen=True, slots=True)
class Form:
    """How a producer lays a scheme that others lay otherwise, with the same codes and scales.

    Attributes
    ----------
    recipe, scheme
        The producer, and what it stores.
    payload, level, inputs
        Its names of the codes, the global scale and the scale of inputs; empty if it has none.
    scalar
        The shape of the latter two.
    divides
        The global scale divides.

    """

    recipe: str
    scheme: str
    payload: str = "weight"
    level: str = ""
    inputs: str = ""
    scalar: tuple[int, ...] = ()
    divides: bool = False


_OF_CT = ("compressed-tensors",)
_MODELOPT = "modelopt"
_INTEGERS = tuple(
    f"int{bits}_{unit}"
    for bits, unit in ((8, "channel"), (4, "channel"), (4, "group"), (8, "group"))
)
_ROWS = (
    *(Written(name, "fp8_block", stacks=True) for name in ("deepseek", "transformers")),
    *(
        Written(name, scheme, code, shares=scheme == "nvfp4")
        for name in _OF_CT
        for scheme, code in (
            *((f"fp8_{unit}", "naive-quantized") for unit in ("tensor", "channel", "block")),
            ("nvfp4", "nvfp4-pack-quantized"),
            ("mxfp4", "mxfp4-pack-quantized"),
            ("mxfp6_e2m3", "mxfp6-pack-quantized"),
            ("mxfp8_e4m3", "mxfp8-quantized"),
            *((scheme, "pack-quantized") for scheme in _INTEGERS),
        )
    ),
    Written(_MODELOPT, "fp8_tensor", "FP8"),
    Written(_MODELOPT, "fp8_channel", "FP8_PER_CHANNEL_PER_TOKEN"),
    # Without the scales of inputs: the weights alone are NVFP4.
    Written(_MODELOPT, "nvfp4", "W4A16_NVFP4", shares=True),
    Written(_MODELOPT, "mxfp8_e4m3", "MXFP8"),
    Written("gpt-oss", "mxfp4", stacks=True, transposed=True),
    Written("comfy", "fp8_tensor"),
    Written("comfy", "nvfp4", tile=(16, 16), step=_TILE_ROWS),
    Written("comfy", "mxfp8_e4m3", tile=(32, 32), step=_TILE_ROWS),
    *(
        Written(
            "mlx",
            f"int{bits}_group",
            "affine",
            block=(1, _GROUP_OF_MLX),
            stacks=True,
            symmetric=False,
        )
        for bits in (4, 8, 2, 3, 5, 6)
    ),
    *(
        Written("mlx", scheme, code, stacks=True)
        for scheme, code in (("mxfp4", "mxfp4"), ("mxfp8_e4m3", "mxfp8"), ("nvfp4", "nvfp4"))
    ),
)
"""What is written; the first row of a scheme is its default."""


def scheme_named(name: Any) -> Scheme:
    """Return a scheme that is written.

    Raises
    ------
    CheckpointError
        There is none of this name, or castwise does not write it; the nearest name, or all, are in
        the message.

    """
    rows = {one.scheme: one for one in _ROWS}
    known = {one.name: one for one in schemes()}
    if name in rows:
        return known[name]
    if name in known:
        raise CheckpointError(
            f"scheme {name!r}: castwise writes no checkpoint of it; it writes {', '.join(rows)}"
        )
    near = nearest([name], rows)[name] if isinstance(name, str) else None
    meant = f"did you mean {near!r}? " if near else ""
    raise CheckpointError(f"scheme {name!r} is not known: {meant}castwise writes {', '.join(rows)}")


def scheme_names() -> tuple[str, ...]:
    """Return the schemes that are written."""
    return tuple(dict.fromkeys(one.scheme for one in _ROWS))


def recipes() -> tuple[str, ...]:
    """Return the producers as which checkpoints are written."""
    return tuple(dict.fromkeys(one.recipe for one in _ROWS))


def expected_zeros(targets: Iterable[str | None]) -> float:
    """Return the share of values that may become zero before that says more than how few bits are.

    It is about twice what normally distributed weights lose.
    """
    found = set(targets)
    bits = [one.bits for one in schemes() if one.name in found]
    return min(2.0 ** (_NORMAL_BITS - min(bits)), 1.0) if bits else MAX_ZEROS


_FORMS = (
    Form(
        "compressed-tensors",
        "nvfp4",
        "weight_packed",
        "weight_global_scale",
        "input_global_scale",
        (1,),
        divides=True,
    ),
    Form(_MODELOPT, "nvfp4", "weight", "weight_scale_2", "input_scale"),
    Form("compressed-tensors", "mxfp8_e4m3"),
    Form(_MODELOPT, "mxfp8_e4m3"),
)


def form_of(recipe: str, scheme: str | None) -> Form | None:
    """Return how a producer lays a scheme; None if nobody lays the same otherwise."""
    found = (one for one in _FORMS if (one.recipe, one.scheme) == (recipe, scheme))
    return next(found, None)


def form_names() -> tuple[str, ...]:
    """Return the producers between whose forms checkpoints can be laid anew."""
    return tuple(dict.fromkeys(one.recipe for one in _FORMS))


def is_scheme(name: Any) -> bool:
    """Return True for the name of a scheme."""
    return any(name == one.name for one in schemes())


def written(scheme: Any, recipe: str | None) -> Written:
    """Return the row of a scheme and a producer, by default the first of the scheme.

    Raises
    ------
    CheckpointError
        They do not go together; those that do are in the message.

    """
    row = scheme_named(scheme)
    found = {one.recipe: one for one in _ROWS if one.scheme == row.name}
    if recipe is None:
        return next(iter(found.values()))
    if recipe in found:
        return found[recipe]
    own = [one.scheme for one in _ROWS if one.recipe == recipe]
    every = dict.fromkeys(one.recipe for one in _ROWS)
    what = f"; {recipe} is written as {', '.join(own)}" if own else ""
    if not own and (near := nearest([recipe], every).get(recipe)):
        what = f"; did you mean {near!r}?"
    raise CheckpointError(
        f"recipe {recipe!r} and scheme {row.name!r} do not go together: checkpoints of {row.name} "
        f"are written as by {', '.join(found)}{what}"
    )


def encoding(row: Written, block: tuple[int, int] | None) -> Encoding:
    """Return a row with its block.

    Raises
    ------
    CheckpointError
        The scheme has another block.

    """
    default = row.block or row.row.block
    if block is None or block == default:
        return Encoding(row, default)
    is_free = row.scheme.endswith("_block") or (row.scheme.endswith("_group") and block[0] == 1)
    if not is_free or min(block) < 1:
        rows, columns = default
        text = f"{rows}x{columns}" if min(default) else "what the scheme says"
        raise CheckpointError(f"block {block[0]}x{block[1]} is not one of {row.scheme}; use {text}")
    return Encoding(row, block)
