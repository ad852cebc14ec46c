"""Pair the tensors of two checkpoints: by their names, by a file of names, by equal values."""

from __future__ import annotations

import hashlib
import os
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from castwise._core import cast
from castwise.checkpoint._errors import CheckpointError
from castwise.checkpoint._tensors import format_info, numpy_dtype
from castwise.checkpoint.comparison._sides import Side
from castwise.checkpoint.files.paths import checked_path
from castwise.models.model import EXPERTS, STACK, WEIGHT
from castwise.text.parsed_files import parsed_mapping
from castwise.text.spelling import nearest
from castwise.text.wording import argument

# Floats of up to so many bits get the digest of their float32, which is exact: equal values in two
# formats pair.
_WIDE_BITS = 32


@dataclass(slots=True)
class Pairing:
    """Which tensor of A stands beside which of B."""

    # The names in A, each with that in B.
    pairs: dict[str, str] = field(default_factory=dict)
    # The names that have no other, each with a tensor of the same bytes in the same checkpoint, or
    # None.
    only_left: dict[str, str | None] = field(default_factory=dict)
    only_right: dict[str, str | None] = field(default_factory=dict)


def rename_mapping(
    rename: Mapping[str, str] | str | os.PathLike[str] | None, original: Side, copy: Side
) -> dict[str, str]:
    """Return the names of tensors of A, each with that of B, as a mapping or its file says."""
    if rename is None:
        return {}
    if isinstance(rename, Mapping):
        names, origin = dict(rename), "rename"
    else:
        path = checked_path(rename, "rename")
        names, origin = parsed_mapping(path, "name in A to name in B"), str(path)
    _check_known(names, original, origin, "A, whose names are the keys")
    _check_known(names.values(), copy, origin, "B, whose names are the values")
    names_in_a: dict[str, str] = {}
    for name, new_name in names.items():
        if new_name in names_in_a:
            raise CheckpointError(
                f"{origin}: {names_in_a[new_name]!r} and {name!r} would both be {new_name!r}; "
                "leave one out"
            )
        names_in_a[new_name] = name
    return names


def _check_known(names: Iterable[object], side: Side, origin: str, place: str) -> None:
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"{origin}: {name!r} is not a name of a tensor; names are texts")
        if name not in side.names:
            likely = nearest([name], side.names)[name]
            hint = f"nearest is {likely!r}" if likely is not None else "none is spelled like it"
            raise CheckpointError(
                f"{origin}: {name!r} is not a tensor of {place}; {hint} ("
                + argument("rename")
                + " maps names of A to names of B)"
            )


def pair_tensors(original: Side, copy: Side, new_names: Mapping[str, str]) -> Pairing:
    """Pair all tensors; those that no name pairs are compared by their values."""
    result = Pairing()
    names_in_b = {*new_names.values()}
    for name in original.names:
        if name in new_names:
            result.pairs[name] = new_names[name]
        elif name in copy.names and name not in names_in_b:
            result.pairs[name] = name
    ends = {*result.pairs.values()}
    lonely_left = [name for name in original.names if name not in result.pairs]
    lonely_right = [name for name in copy.names if name not in ends]
    digests = _Digests()
    by_digest: dict[str, list[str]] = defaultdict(list)
    shapes = {copy.shape(name) for name in lonely_right}
    if any(original.shape(name) in shapes for name in lonely_left):
        sought = {original.shape(name) for name in lonely_left}
        for name in lonely_right:
            if copy.shape(name) in sought:
                by_digest[digests.of(copy, name)].append(name)
        for name in lonely_left:
            alike = by_digest[digests.of(original, name)] if original.shape(name) in shapes else []
            if alike:
                result.pairs[name] = alike.pop(0)
    _pair_transposed(original, copy, result)
    ends = {*result.pairs.values()}
    for name in lonely_left:
        if name not in result.pairs:
            result.only_left[name] = _tied(original, name, digests)
    for name in lonely_right:
        if name not in ends:
            result.only_right[name] = _tied(copy, name, digests)
    return result


def _pair_transposed(original: Side, copy: Side, result: Pairing) -> None:
    """Pair experts that one of two producers names as weights, and stores the other way round."""
    ends = {*result.pairs.values()}
    for name in original.names:
        other = name.removesuffix(WEIGHT) if name.endswith(WEIGHT) else name + WEIGHT
        is_free = name not in result.pairs and other in copy.names and other not in ends
        if is_free and original.model.role(name) == EXPERTS and len(copy.shape(other)) == STACK:
            experts, rows, columns = copy.shape(other)
            if original.shape(name) == (experts, columns, rows):
                copy.transposed_names.add(other)
                result.pairs[name] = other


def _tied(side: Side, name: str, digests: _Digests) -> str | None:
    """Return another tensor of a checkpoint with the same values."""
    info = side.info(name)
    for other in side.names:
        like = side.info(other)
        is_alike = other != name and (like.shape, like.format) == (info.shape, info.format)
        if is_alike and info.shape and digests.of(side, other) == digests.of(side, name):
            return other
    return None


class _Digests:
    """Digests of the values of tensors, each taken once."""

    def __init__(self) -> None:
        self._digests: dict[tuple[Side, str], str] = {}

    def of(self, side: Side, name: str) -> str:
        """Return the digest of shape and values; floats of up to 32 bits are as float32."""
        key = side, name
        if key not in self._digests:
            to = side.format(name, None)
            digest = hashlib.sha256(repr(side.shape(name)).encode())
            is_float = to is not None and format_info(to).kind == "float"
            is_widened = is_float and to is not None and format_info(to).bits <= _WIDE_BITS
            digest.update(b"float32" if is_widened else (to or side.info(name).stored).encode())
            for piece in side.pieces(name, to):
                values = cast(piece, numpy_dtype("float32")) if is_widened else piece
                digest.update(np.ascontiguousarray(values).view(np.uint8).data)
            self._digests[key] = digest.hexdigest()
        return self._digests[key]
