"""What each weight may become, with the bytes that this takes in a file."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from castwise._core import finfo
from castwise._dtype_map import KEEP, DtypeMap
from castwise._spelling import suggestion
from castwise._wording import argument, given
from castwise.checkpoint._errors import CheckpointError
from castwise.checkpoint._tensors import TensorInfo
from castwise.checkpoint.containers.checkpoint import Checkpoint
from castwise.checkpoint.planning import (
    FORMATS,
    DerivedTensor,
    Encode,
    candidate_parts,
    is_scheme,
    most_versatile_recipe,
    written_schemes,
)

_WIDE_BITS = 16
WIDE_FORMATS = tuple(name for name in FORMATS if finfo(name).bits == _WIDE_BITS)
"""Formats that need no scale, to which weights are cast."""

_HEADER_ENTRY = 110
"""Bytes of a tensor's entry in the header of a safetensors file, beside its name, at most."""


@dataclass(frozen=True, slots=True)
class Candidates:
    """What the weights of a checkpoint may become.

    Attributes
    ----------
    tensors
        The weights that are asked about, by their names.
    nbytes
        For each of them, the bytes of what it may become, by "keep", format or scheme.
    recipe
        The producer of the schemes.

    """

    tensors: Mapping[str, TensorInfo]
    nbytes: Mapping[str, Mapping[str, int]]
    recipe: str


def find_candidates(
    source: Checkpoint, formats: Sequence[str] | None, recipe: str | None, threads: int
) -> Candidates:
    """List what each weight may become.

    Raises
    ------
    CheckpointError
        A format or scheme is not known or not written by the recipe; or no weight has a candidate.

    """
    recipe = most_versatile_recipe() if recipe is None else recipe
    schemes, wide = _targets(formats, recipe)
    stored = {
        component.prefix + info.name: info
        for component in source.components
        for shard in component.shards.values()
        for info in shard.tensors.values()
    }
    sizes: dict[str, dict[str, int]] = {}
    for scheme in schemes:
        encode = Encode(scheme, recipe, None, (), _kept_map(), {}, threads)
        for name, parts in candidate_parts(source, encode).items():
            sizes.setdefault(name, {})[scheme] = sum(map(_part_bytes, parts))
    for name, info in stored.items():
        for target in wide:
            if info.kind == "float" and info.format is not None and len(info.shape) > 1:
                narrower = finfo(target).bits < finfo(info.format).bits
                if narrower:
                    nbytes = math.prod(info.shape) * finfo(target).itemsize
                    sizes.setdefault(name, {})[target] = nbytes
    if not sizes:
        raise CheckpointError(
            f"{source.path}: no weight in it may become {' or '.join([*schemes, *wide])}; "
            f"name others ({argument('formats')})"
        )
    tensors = {name: stored[name] for name in stored if name in sizes}
    all_sizes = {
        name: {KEEP: stored[name].nbytes}
        | {target: size for target, size in sizes[name].items() if size < stored[name].nbytes}
        for name in tensors
    }
    return Candidates(tensors, all_sizes, recipe)


def _targets(formats: Sequence[str] | None, recipe: str) -> tuple[list[str], list[str]]:
    """Return the schemes and the formats that are asked for."""
    available = written_schemes(recipe)
    if formats is None:
        return list(available), list(WIDE_FORMATS)
    schemes: list[str] = []
    wide: list[str] = []
    for name in formats:
        if name in WIDE_FORMATS:
            wide.append(name)
        elif name in available:
            schemes.append(name)
        else:
            known = [*available, *WIDE_FORMATS]
            reason = (
                f"{recipe} writes none of it" if is_scheme(name) else "no scheme or format has it"
            )
            raise CheckpointError(
                f"{given('formats', name)} is not a candidate: {reason}; "
                f"{suggestion(name, known)}use some of {', '.join(known)}"
            )
    return schemes, wide


def _kept_map() -> DtypeMap:
    return DtypeMap.from_mapping({}, "map")


def _part_bytes(part: DerivedTensor) -> int:
    """Return the bytes of a part."""
    bits = math.prod(part.info.shape) * finfo(part.format).bits
    return -(-bits // 8)


def header_bytes(names: Sequence[str], shards: int) -> int:
    """Return the bytes of the headers of safetensors files, at most."""
    return sum(len(name.encode()) + _HEADER_ENTRY for name in names) + 64 * max(shards, 1)
