"""The quantised checkpoints that castwise writes: which schemes, for whom, and of what weights.

One row per producer and scheme. The arrays are those of `castwise.quantization`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from castwise._core import finfo
from castwise._spelling import scheme_hint, suggestion
from castwise._wording import argument, given
from castwise.checkpoint._errors import CheckpointError
from castwise.checkpoint.report import MAX_ZEROS
from castwise.quantization import Scheme, schemes
from castwise.quantization.producers._layouts import BF16

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
    square
        Blocks have as many rows as columns.
    loaded_as
        The one format to which transformers decodes it, whatever that of the model is; None if it
        is the model's.

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
    square: bool = False
    loaded_as: str | None = None

    @property
    def row(self) -> Scheme:
        """The row of the scheme."""
        return scheme_named(self.scheme)


@dataclass(frozen=True, slots=True)
class Encoding:
    """A row, and the block that is used.

    Attributes
    ----------
    written, block
        They.
    symmetric
        False for integers with zero points.
    reordered
        True if an index says in which group each column is.

    """

    written: Written
    block: tuple[int, int]
    symmetric: bool = True
    reordered: bool = False

    @property
    def bits(self) -> int:
        """The bits of a code."""
        return self.written.row.bits


_OF_CT = ("compressed-tensors",)
_MODELOPT, _COMFY, _GPT_OSS = "modelopt", "comfy", "gpt-oss"
_GGUF, _DEEPSEEK_V4 = "gguf", "deepseek-v4"
_INTEGERS = tuple(
    f"int{bits}_{unit}"
    for bits, unit in ((8, "channel"), (4, "channel"), (4, "group"), (8, "group"))
)
_ROWS = (
    *(Written(name, "fp8_block", stacks=True) for name in ("deepseek", "transformers")),
    *(
        Written(name, scheme, code, shares=scheme == "nvfp4", loaded_as=loaded_as)
        for name in _OF_CT
        for scheme, code, loaded_as in (
            *((f"fp8_{unit}", "naive-quantized", None) for unit in ("tensor", "channel", "block")),
            ("nvfp4", "nvfp4-pack-quantized", BF16),
            ("mxfp4", "mxfp4-pack-quantized", BF16),
            ("mxfp6_e2m3", "mxfp6-pack-quantized", BF16),
            ("mxfp8_e4m3", "mxfp8-quantized", BF16),
            *((scheme, "pack-quantized", None) for scheme in _INTEGERS),
        )
    ),
    Written(_MODELOPT, "fp8_tensor", "FP8"),
    Written(_MODELOPT, "fp8_channel", "FP8_PER_CHANNEL_PER_TOKEN"),
    Written(_MODELOPT, "fp8_block", "fp8_pb_wo", square=True),
    # Without the scales of inputs: the weights alone are NVFP4.
    Written(_MODELOPT, "nvfp4", "W4A16_NVFP4", shares=True),
    Written(_MODELOPT, "mxfp8_e4m3", "MXFP8"),
    # Its preset scales inputs by a number that it does not export without data.
    Written(_MODELOPT, "mxfp4", "W4A8_MXFP4_FP8"),
    Written(_MODELOPT, "int8_channel", "W8A16"),
    # Two rows are in a byte.
    Written(_MODELOPT, "int4_group", "W4A16_AWQ", tile=(2, 1), step=2),
    Written(_GPT_OSS, "mxfp4", stacks=True, transposed=True),
    Written(_COMFY, "fp8_tensor"),
    Written(_COMFY, "nvfp4", tile=(16, 16), step=_TILE_ROWS),
    Written(_COMFY, "mxfp8_e4m3", tile=(32, 32), step=_TILE_ROWS),
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
    rows = {row.scheme: row for row in _ROWS}
    known = {row.name: row for row in schemes()}
    if name in rows:
        return known[name]
    if name in known:
        raise CheckpointError(
            f"{given('scheme', name)}: castwise writes no checkpoint of it; it writes "
            f"{', '.join(rows)}"
        )
    raise CheckpointError(
        f"{given('scheme', name)} is not known: {scheme_hint(name, rows)}castwise writes "
        f"{', '.join(rows)}"
    )


def scheme_names() -> tuple[str, ...]:
    """Return the schemes that are written."""
    return tuple(dict.fromkeys(row.scheme for row in _ROWS))


def scheme_beside(name: str) -> str | None:
    """Return the scheme that is written with codes like those of a format, and scales them.

    It has codes of as many bits, floats or integers as those of the format, and a scale for each
    row where there is such a scheme; None if the format has more than 8 bits.
    """
    format_info = finfo(name)
    kind = format_info.kind
    candidates = [row.row for row in _ROWS if row.row.bits == format_info.bits]
    alike = [row.name for row in candidates if finfo(row.element).kind == kind]
    return min(alike, key=lambda scheme: not scheme.endswith("_channel"), default=None)


def recipes() -> tuple[str, ...]:
    """Return the producers as which checkpoints are written."""
    return tuple(dict.fromkeys(row.recipe for row in _ROWS))


def expected_zeros(targets: Iterable[str | None]) -> float:
    """Return the share of values that may become zero before that says more than how few bits are.

    It is about twice what normally distributed weights lose.
    """
    names = set(targets)
    bits = [scheme.bits for scheme in schemes() if scheme.name in names]
    return min(2.0 ** (_NORMAL_BITS - min(bits)), 1.0) if bits else MAX_ZEROS


_SHARED = (*_OF_CT, _MODELOPT, _COMFY)
_WITH_EXPERTS = (*_OF_CT, _GPT_OSS)
_FORMS: Mapping[tuple[str, str], tuple[Sequence[str], Sequence[str]]] = {
    **{(scheme, scheme): (_SHARED, _SHARED) for scheme in ("nvfp4", "mxfp8_e4m3", "fp8_tensor")},
    ("fp8_channel", "fp8_channel"): (_SHARED[:2], _SHARED[:2]),
    ("mxfp4", "mxfp4"): ((*_WITH_EXPERTS, _GGUF), (*_WITH_EXPERTS, _GGUF)),
    **{(scheme, scheme): (("awq", "gptq", _GGUF), _OF_CT) for scheme in _INTEGERS},
    ("mxfp4", "nvfp4"): ((*_WITH_EXPERTS, _GGUF), _SHARED[:2]),
    ("mxfp4", "fp8_block"): ((_DEEPSEEK_V4,), (_DEEPSEEK_V4,)),
}
"""For a scheme, and what it can become with the same values, whose is read and whose written."""


def is_relaid(stored: tuple[str, str], target: tuple[str, str]) -> bool:
    """Return True if what one producer stores has a form of another, each with its scheme."""
    read, written = _FORMS.get((stored[0], target[0]), ((), ()))
    return stored[1] in read and target[1] in written


def form_names() -> tuple[str, ...]:
    """Return the producers in whose forms checkpoints can be laid anew."""
    return tuple(dict.fromkeys(name for _, written in _FORMS.values() for name in written))


def changed_schemes() -> tuple[str, ...]:
    """Return the schemes that others can become with the same values."""
    return tuple(dict.fromkeys(target for stored, target in _FORMS if target != stored))


def padding_problem(row: Written, rows: int, columns: int) -> str | None:
    """Say why a producer cannot hold a matrix without padding; None if it can."""
    if rows % row.tile[0] == 0 and columns % row.tile[1] == 0:
        return None
    high, wide = row.tile
    return (
        f"{row.recipe} stores {row.scheme} in multiples of {high}x{wide} alone, so that its shape "
        "would be lost"
    )


def loading_warning(recipe: str | None, names: Collection[str], kept: str | None) -> str | None:
    """Say why transformers does not run a folder as it stands, and what does; None if it runs it.

    Tried with transformers 5.23 and compressed-tensors 0.20.

    Parameters
    ----------
    recipe, names
        The producer, None for one file, which transformers does not load; and the schemes of its
        weights.
    kept
        The format of most floating tensors that are not quantised; None if there are none.

    """
    if recipe == _MODELOPT:
        return (
            "the quantised model is not for transformers, which does not read what ModelOpt states "
            "and takes codes for weights: load it with an engine that does, such as vLLM or "
            "TensorRT-LLM, or quantise it as another producer"
        )
    for row in _ROWS if kept is not None else ():
        if row.recipe == recipe and row.scheme in names and row.loaded_as not in {None, kept}:
            return (
                f"the quantised model needs dtype=torch.{row.loaded_as} in transformers, which "
                f"decodes {row.scheme} to {row.loaded_as} while the other tensors are {kept}; or "
                f"cast the model to {row.loaded_as} first"
            )
    return None


def is_scheme(name: Any) -> bool:
    """Return True for the name of a scheme."""
    return any(name == scheme.name for scheme in schemes())


def written(scheme: Any, recipe: str | None) -> Written:
    """Return the row of a scheme and a producer, by default the first of the scheme.

    Raises
    ------
    CheckpointError
        They do not go together; those that do are in the message.

    """
    scheme_name = scheme_named(scheme).name
    rows = {row.recipe: row for row in _ROWS if row.scheme == scheme_name}
    if recipe is None:
        return next(iter(rows.values()))
    if recipe in rows:
        return rows[recipe]
    schemes_of_recipe = [row.scheme for row in _ROWS if row.recipe == recipe]
    producers = dict.fromkeys(row.recipe for row in _ROWS)
    hint = f"; {recipe} is written as {', '.join(schemes_of_recipe)}" if schemes_of_recipe else ""
    if not schemes_of_recipe and (meant := suggestion(recipe, producers)):
        hint = f"; {meant.rstrip()}"
    raise CheckpointError(
        f"{given('recipe', recipe)} and {given('scheme', scheme_name)} do not go together: "
        f"checkpoints of {scheme_name} "
        f"are written as by {', '.join(rows)}{hint}"
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
    if not is_free or min(block) < 1 or (row.square and block[0] != block[1]):
        rows, columns = default
        text = f"{rows}x{columns}" if min(default) else "what the scheme says"
        raise CheckpointError(
            f"{argument('block')} {block[0]}x{block[1]} is not one of {row.scheme}; use {text}"
        )
    return Encoding(row, block)
