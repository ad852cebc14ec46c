"""What each weight may become, with the bytes that this takes in a file."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

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

_INDEX_ENTRY = 12
"""Bytes of its entry in an index, beside its name and that of its shard."""


@dataclass(frozen=True, slots=True)
class Candidates:
    """What the weights of a checkpoint may become.

    Attributes
    ----------
    tensors
        The weights that are asked about, by their names.
    nbytes
        For each of them, the bytes of what it may become, by "keep", format or scheme: codes,
        scales, and their entries in headers and the index at most.
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
            sizes.setdefault(name, {})[scheme] = sum(map(_part_bytes, parts)) + entries_bytes(
                source, [part.info.name for part in parts]
            )
    for name, info in stored.items():
        for target in wide:
            if info.kind == "float" and info.format is not None and len(info.shape) > 1:
                narrower = finfo(target).bits < finfo(info.format).bits
                if narrower:
                    nbytes = math.prod(info.shape) * finfo(target).itemsize
                    nbytes += entries_bytes(source, [name])
                    sizes.setdefault(name, {})[target] = nbytes
    if not sizes:
        raise CheckpointError(
            f"{source.path}: no weight in it may become {' or '.join([*schemes, *wide])}; "
            f"name others ({argument('formats')})"
        )
    tensors = {name: stored[name] for name in stored if name in sizes}
    all_sizes = {
        name: {KEEP: (kept := stored[name].nbytes + entries_bytes(source, [name]))}
        | {target: size for target, size in sizes[name].items() if size < kept}
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


def entries_bytes(source: Checkpoint, names: Iterable[str]) -> int:
    """Return the bytes of tensors' entries in the headers and indices of shards, at most."""
    letters = [len(json.dumps(name)) for name in names]
    header = sum(letters) + _HEADER_ENTRY * len(letters)
    if not source.is_folder:
        return header
    longest = max((len(path.name) for path in map(Path, source.shards)), default=0)
    return header + sum(letters) + (_INDEX_ENTRY + longest) * len(letters)
