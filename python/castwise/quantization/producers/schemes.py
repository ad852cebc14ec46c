"""The table of schemes, as Python sees it, and the layouts that may hold one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import Any, get_args

import numpy as np

from castwise._core import block_types
from castwise._core import schemes as core_schemes
from castwise._options import Scales
from castwise.quantization.producers.layouts import GLOBAL, Layout, Storage
from castwise.text.brief import brief_fields
from castwise.text.spelling import scheme_hint
from castwise.text.wording import Wording, argument, for_command


@dataclass(frozen=True, slots=True, eq=False)
class Scheme:
    """One way to store a weight as codes that share scales: a row of the table.

    Attributes
    ----------
    name : str
        What it is called.
    element : str
        The format of a code, one of `castwise.formats()`; "map" if a code is an index into
        `code_map`.
    bits : int
        The bits of a stored code, 1 to 8.
    unit : float
        What codes are multiplied with beside their scale: 1/64 for the fixed point of mxint8, 1 for
        all others.
    block : tuple of int
        The (rows, columns) that share a scale by default; 0 is the whole axis.
    scale : str
        The format of stored scales; "weight" is the dtype of the weight.
    rule : str or None
        The default rule for scales that are powers of two.
    global_scale, zero_point : bool
        Whether scales are relative to one of the whole array, and whether a block may have a zero
        point.
    code_map : tuple of float or None
        The value of each code, if the element is "map".
    recipes : tuple of str
        The producers whose arithmetic `quantize` knows, the default one first.
    searched_recipes : tuple of str
        Those with which it takes ``scales="best"``.
    single_recipes : tuple of str
        Those that need the largest magnitude of the whole array beside its global scale.

    """

    name: str
    element: str
    bits: int
    unit: float
    block: tuple[int, int]
    scale: str
    rule: str | None
    global_scale: bool
    zero_point: bool
    code_map: tuple[float, ...] | None
    recipes: tuple[str, ...]
    searched_recipes: tuple[str, ...]
    single_recipes: tuple[str, ...]

    __repr__ = brief_fields


@cache
def schemes() -> tuple[Scheme, ...]:
    """Return the table of schemes.

    Returns
    -------
    tuple of Scheme
        All that `quantize` and `QuantizedArray` know.

    Examples
    --------
    >>> {scheme.name: scheme.bits for scheme in schemes()}["nvfp4"]
    4

    """
    rows: Iterator[dict[str, Any]] = (
        {name: tuple(cell) if isinstance(cell, list) else cell for name, cell in row.items()}
        for row in core_schemes()
    )
    return tuple(Scheme(**row) for row in rows)


# Of schemes that are only read.
_NO_RECIPES: Mapping[str, Any] = dict.fromkeys(
    ("recipes", "searched_recipes", "single_recipes"), ()
)


@cache
def _rows() -> dict[str, Scheme]:
    """Return the table by name, with integers of every width, some of which are only read."""
    wide = {row.name: row for row in schemes() if row.name.startswith("int8_")}
    read = {
        (name := row.name.replace("8", str(bits), 1)): replace(
            row, name=name, bits=bits, **_NO_RECIPES
        )
        for row in wide.values()
        for bits in range(1, row.bits)
        if not row.name.endswith("_tensor")
    }
    return read | {row.name: row for row in schemes()}


@cache
def _block_types() -> dict[str, Scheme]:
    """Return the types of blocks of llama.cpp as schemes of integers."""
    integers = find_scheme("int8_group")
    return {
        name.lower(): replace(
            integers, name=name.lower(), bits=bits, block=(1, elements), **_NO_RECIPES
        )
        for name, elements, _, bits, _ in block_types()
    }


def scheme_of_files(name: object) -> Scheme:
    """Return the row of a scheme, as `find_scheme` does, or of a type of blocks."""
    return _block_types().get(str(name)) or find_scheme(name)


def bits_of_schemes() -> dict[str, int]:
    """Return the bits of a code of each scheme of arrays or files."""
    return {row.name: row.bits for row in (*schemes(), *_block_types().values())}


# The presets of compressed-tensors that castwise writes: scheme, and other options.
PRESETS: dict[str, tuple[str, Mapping[str, Any]]] = {
    "FP8_DYNAMIC": ("fp8_channel", {"inputs": "dynamic"}),
    "W8A8": ("int8_channel", {"inputs": "dynamic"}),
    "INT8": ("int8_channel", {"inputs": "dynamic"}),
    "W8A16": ("int8_group", {}),
    "W4A16": ("int4_group", {}),
    "W4A16_ASYM": ("int4_group", {"zero_points": True}),
    "W4AFP8": ("int4_group", {"inputs": "dynamic"}),
    "NVFP4A16": ("nvfp4", {}),
    "MXFP4A16": ("mxfp4", {}),
    "MXFP4XFP8": ("mxfp4", {"inputs": "float8"}),
    "MXFP6A16": ("mxfp6_e2m3", {}),
    "MXFP6A8": ("mxfp6_e2m3", {"inputs": "dynamic"}),
    "MXFP8A16": ("mxfp8_e4m3", {}),
    "MXFP8": ("mxfp8_e4m3", {"inputs": "dynamic"}),
}
# Names that are formed like those of presets, but are none of compressed-tensors 0.20.
NO_PRESETS: dict[str, tuple[str, Mapping[str, Any]]] = {
    "W8A16_ASYM": ("int8_group", {"zero_points": True})
}


def find_scheme(name: object) -> Scheme:
    rows = _rows()
    if not isinstance(name, str) or name not in rows:
        preset = (PRESETS | NO_PRESETS).get(name.upper()) if isinstance(name, str) else None
        if preset is not None:
            symmetry = ", symmetric=False" if preset[1].get("zero_points") else ""
            raise ValueError(
                f"scheme={name!r} is a preset of llm-compressor; here its weights are "
                f"scheme={preset[0]!r}{symmetry}"
            )
        hint = scheme_hint(name, rows)
        raise ValueError(
            f"scheme={name!r} is not known: {hint}castwise.quantization.schemes() lists all."
        )
    return rows[name]


# What a block's scale may be chosen by.
SCALES: tuple[str, ...] = get_args(Scales)


def has_scales(scales: str, scheme: Scheme, recipe: str) -> bool:
    """Return True if the scales of a scheme, as a producer stores it, may be chosen so."""
    if scales == "four_over_six":
        return scheme.global_scale
    is_searched = recipe in scheme.searched_recipes or scheme.name in _block_types()
    return scales == "amax" or is_searched


def check_scales(scales: object, scheme: Scheme, recipe: str) -> None:
    """Refuse a choice of scales that there is not, or that a scheme of a producer has not."""
    if not isinstance(scales, str) or scales not in SCALES:
        raise ValueError(
            argument("scales", scales)
            + f" is not valid; use one of {', '.join(map(repr, SCALES))}."
        )
    if has_scales(scales, scheme, recipe):
        return
    able = [name for name in scheme.recipes if has_scales(scales, scheme, name)]
    if able:
        raise ValueError(
            argument("scales", scales)
            + f" is not valid for {scheme.name} as "
            + argument("recipe", recipe)
            + " stores it; leave it out, or use "
            + Wording(
                f"recipe={' or '.join(map(repr, able))}",
                for_command(argument("recipe", typed=" or ".join(able))),
            )
            + "."
        )
    names = ", ".join(
        row.name for row in schemes() if any(has_scales(scales, row, name) for name in row.recipes)
    )
    choices = [repr(name) for name in SCALES if has_scales(name, scheme, recipe)]
    has_choice = len(choices) > 1
    raise ValueError(
        argument("scales", scales)
        + f" is not valid for {scheme.name}, which has "
        + (
            f"{' and '.join(choices)}; use one of these, or one of the schemes {names}."
            if has_choice
            else f"no choice of scales; leave it out, or use one of {names}."
        )
    )


@lru_cache(1 << 12)
def may_hold(layout: Layout, scheme: str) -> bool:
    stem = layout.scheme.partition("{")[0].rstrip("_")
    return scheme.startswith(layout.families) or (stem != "" and scheme.startswith(stem))


@cache
def has_bias(layout: Layout) -> bool:
    storage = layout.storage or Storage()
    return any(part.use == "bias" for part in layout.parts) or "bias" in dict(storage.fields)


@cache
def has_global_scale(layout: Layout) -> bool:
    """Return True if a layout has a place for a global scale, or names no parts."""
    return not layout.parts or any(part.role == GLOBAL for part in layout.parts)


@cache
def generic_layout(scheme: Scheme) -> Layout:
    """Return codes in bytes, low bits first, beside plain scales."""
    container = np.uint8 if scheme.bits < 8 or scheme.element == "map" else None  # noqa: PLR2004
    return Layout(scheme.name, "", (), (), storage=Storage(container, flat=scheme.element == "map"))
