"""Check what is to be quantised, and how."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from castwise._dtype_map import DEFAULT, KEEP, DtypeMap, mapping_in
from castwise._numbers import is_integer
from castwise._options import PathArgument
from castwise._spelling import typed_values
from castwise._wording import argument, function, is_for_command
from castwise.checkpoint._errors import CheckpointError
from castwise.checkpoint.files import checked_path
from castwise.checkpoint.maps import is_map_name, named_map
from castwise.checkpoint.planning import (
    DerivedCheckpoint,
    Encode,
    architecture_option,
    checked_architecture,
    checked_threads,
    consumer_named,
    encode_checkpoint,
    is_scheme,
    recipe_for,
    written,
)
from castwise.checkpoint.requests.options import Quantize


def quantizing(
    request: Quantize, threads: int | None
) -> tuple[int, dict[str, Any], partial[DerivedCheckpoint]]:
    """Return the checked threads, what decides the result, and what plans it."""
    encode = checked_encode(
        request.scheme,
        request.recipe,
        request.block,
        request.dtype_map,
        consumer=request.consumer,
        ignore=request.ignore,
        architecture=request.architecture,
        threads=threads,
    )
    report = {
        "scheme": encode.scheme,
        "recipe": encode.recipe,
        "block": None if encode.block is None else list(encode.block),
        "map": dict(encode.mapping),
        "ignore": list(encode.ignore),
        **architecture_option(encode.architecture),
    }
    return encode.threads, report, partial(encode_checkpoint, encode=encode)


def checked_encode(
    scheme: str | None,
    recipe: object,
    block: object,
    dtype_map: object,
    *,
    ignore: object,
    threads: object,
    consumer: object = None,
    architecture: PathArgument | None = None,
) -> Encode:
    """Check what is to be quantised, and how."""
    map_name = dtype_map if isinstance(dtype_map, str) and is_map_name(dtype_map) else None
    mapping, origin = _mapping(None if map_name else dtype_map)
    if (default := mapping.get(DEFAULT)) is not None and is_scheme(default):
        if scheme is not None and scheme != default:
            raise CheckpointError(
                f"{origin} has the {DEFAULT} {default!r}, and "
                f"{argument('scheme', scheme)} is another; leave "
                "one out"
            )
        scheme = mapping.pop(DEFAULT)
    schemes = {key: value for key, value in mapping.items() if is_scheme(value)}
    formats = {key: KEEP if key in schemes else value for key, value in mapping.items()}
    dtypes = named_map(map_name) if map_name else DtypeMap.from_mapping(formats, origin)
    origin = dtypes.origin
    if scheme is None and not schemes:
        raise CheckpointError(
            f"{origin} names no scheme; give one for the weights that no key matches "
            f"({argument('scheme')}), or a key one; {function('cast')} takes maps of dtypes alone"
            if dtype_map is not None
            else f"give a scheme ({argument('scheme')}), or a map that names one "
            f"({argument('dtype_map')})"
        )
    if recipe is not None and not isinstance(recipe, str):
        raise TypeError(f"recipe must be the name of a producer, not {recipe!r}")
    names = list(dict.fromkeys([*([] if scheme is None else [scheme]), *schemes.values()]))
    reader = None if consumer is None else consumer_named(consumer)
    if reader is not None:
        recipe = recipe_for(reader, names, recipe)
    for name in names:
        recipe = written(name, recipe).recipe
    if not isinstance(ignore, str) and not isinstance(ignore, Sequence):
        raise TypeError(f"ignore is a regular expression or several, not {ignore!r}")
    patterns = (ignore,) if isinstance(ignore, str) else tuple(ignore)
    for pattern in patterns:
        if not isinstance(pattern, str):
            raise TypeError(f"ignore: {pattern!r} is not a regular expression, which is a str")
    assert recipe is not None, "some scheme is written"  # noqa: S101
    encode = Encode(
        scheme,
        recipe,
        _block(block),
        patterns,
        dtypes,
        schemes,
        checked_threads(threads),
        map_name,
        consumer=None if reader is None else reader.name,
        architecture=checked_architecture(architecture),
    )
    for name in names:
        encode.encoding(name)
    return encode


def _mapping(value: object) -> tuple[dict[str, Any], str]:
    """Return the values of a map by its patterns, and what errors call it."""
    if value is None:
        return {}, "map"
    if isinstance(value, Mapping):
        return typed_values(value), "map"
    if not isinstance(value, str | os.PathLike):
        raise TypeError(
            "dtype_map must be a mapping of regular expressions, the path of one, or the name of a "
            f"map, not {value!r}"
        )
    path = checked_path(value, "dtype_map")
    return mapping_in(path), str(path)


def _block(block: object) -> tuple[int, int] | None:
    if block is None:
        return None
    pair = (1, block) if is_integer(block) else block if isinstance(block, Sequence) else ()
    if len(pair) != 2 or not all(is_integer(size) and size > 0 for size in pair):  # noqa: PLR2004
        typed = block if isinstance(block, int) else "x".join(map(str, pair))
        said, remedy = (
            (typed, "ROWSxCOLUMNS, or COLUMNS")
            if is_for_command()
            else (block, "(rows, columns), or columns")
        )
        raise ValueError(f"{argument('block', said)} is not valid; use {remedy}")
    return int(pair[0]), int(pair[1])
