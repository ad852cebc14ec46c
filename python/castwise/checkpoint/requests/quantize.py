"""Check what is to be quantized, and how."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import compress
from typing import Any

from castwise._numbers import is_integer
from castwise.arrays.dtype_map import DEFAULT, KEEP, DtypeMap, mapping_in
from castwise.checkpoint._errors import CheckpointError
from castwise.checkpoint.files.paths import checked_path, refuse_url
from castwise.checkpoint.maps import is_map_name, named_map
from castwise.checkpoint.planning.checkpoint_model import architecture_option, checked_architecture
from castwise.checkpoint.planning.decode.options import checked_threads
from castwise.checkpoint.planning.derived_checkpoint import DerivedCheckpoint
from castwise.checkpoint.planning.encode.encode import Encode, encode_checkpoint
from castwise.checkpoint.planning.importance import Importance
from castwise.checkpoint.planning.written_schemes import (
    check_zeros,
    checked_inputs_or_scale,
    consumer_named,
    is_scheme,
    is_scheme_or_mix,
    recipe_for,
    written_row,
)
from castwise.checkpoint.requests.options import Quantize
from castwise.quantization import consumers
from castwise.quantization.producers.block_types import MIXES, has_importance, type_of_scheme
from castwise.quantization.producers.registry import TYPED
from castwise.quantization.producers.schemes import (
    SCALES,
    check_scales,
    has_scales,
    scheme_of_files,
    schemes,
)
from castwise.text.spelling import typed_values
from castwise.text.wording import Wording, argument, function, parenthesis, quote, setting


def quantizing(
    request: Quantize, threads: int | None
) -> tuple[dict[str, Any], partial[DerivedCheckpoint]]:
    """Return what decides the result, and what plans it."""
    encode = checked_encode(request, threads)
    report = {
        "scheme": encode.mix or encode.scheme,
        "recipe": encode.recipe,
        "block": None if encode.block is None else list(encode.block),
        **({} if encode.scales == "amax" else {"scales": encode.scales}),
        **({"zero_points": True} if encode.zero_points else {}),
        "map": dict(encode.mapping),
        "ignore": list(encode.ignore),
        **({"embeddings": True} if encode.embeddings else {}),
        **({} if encode.inputs is None else {"inputs": encode.inputs}),
        **({} if encode.importance is None else {"importance": encode.importance.path.name}),
        **architecture_option(encode.architecture),
    }
    return report, encoding_of(encode)


def encoding_of(encode: Encode) -> partial[DerivedCheckpoint]:
    """Return what plans a quantization."""
    if encode.recipe != TYPED:
        return partial(encode_checkpoint, encode=encode)
    from castwise.checkpoint.planning.transcode.to_whole_model import encode_to_file  # noqa: PLC0415  (of GGUF)

    return partial(encode_to_file, encode=encode)


def checked_encode(request: Quantize, threads: int | None) -> Encode:
    """Check what is to be quantized, and how."""
    usual: str | None = scheme_spelled(request.scheme)
    values = request.dtype_map
    map_name = values if isinstance(values, str) and is_map_name(values) else None
    mapping, origin = _mapping(None if map_name else values)
    mapping = {key: scheme_spelled(value) for key, value in mapping.items()}
    for key, value in mapping.items():
        if key != DEFAULT and isinstance(value, str) and value in MIXES:
            raise CheckpointError(
                f"{origin}: key " + quote(key) + f": {value} is a mix, which is a {DEFAULT} only; "
                f"name a type, as {MIXES[value][0]}"
            )
    if (default := mapping.get(DEFAULT)) is not None and is_scheme_or_mix(default):
        if usual not in (None, default):
            raise CheckpointError(
                f"{origin} has the {DEFAULT} {default!r}, and "
                + argument("scheme", usual)
                + " is another; leave one out"
            )
        usual = mapping.pop(DEFAULT)
    mix = usual if usual in MIXES else None
    if mix is not None:
        usual, _ = MIXES[mix]
    schemes = {key: value for key, value in mapping.items() if is_scheme(value)}
    formats = {key: KEEP if key in schemes else value for key, value in mapping.items()}
    dtypes = named_map(map_name) if map_name else DtypeMap.from_mapping(formats, origin)
    names = list(dict.fromkeys([*([] if usual is None else [usual]), *schemes.values()]))
    if not names:
        raise CheckpointError(
            f"{dtypes.origin} names no scheme; give one for the weights that no key matches "
            + parenthesis("scheme")
            + ", or a key one; "
            + function("cast")
            + " takes maps of dtypes"
            if values is not None
            else "give a scheme "
            + parenthesis("scheme")
            + ", or a map that names one "
            + parenthesis("dtype_map")
        )
    producer: object = request.recipe
    if producer is not None and not isinstance(producer, str):
        raise TypeError(f"recipe must be the name of a producer, not {producer!r}")
    inputs = checked_inputs_or_scale(request.inputs)
    reader = None if request.consumer is None else consumer_named(request.consumer)
    threads = checked_threads(threads)
    with _naming(mix):
        if reader is not None:
            producer = recipe_for(reader, names, producer, inputs)
        for name in names:
            producer = written_row(name, producer, inputs).recipe
        assert producer is not None, "some scheme is written"  # noqa: S101
        if request.zero_points:
            check_zeros(names, producer, inputs)
        encode = Encode(
            usual,
            producer,
            _checked_block(request.block),
            _patterns(request.ignore),
            dtypes,
            schemes,
            threads,
            map_name,
            importance=_checked_importance(request, names, producer),
            consumer=None if reader is None else reader.name,
            embeddings=checked_embeddings(
                mix is not None
                if request.quantize_embeddings is None
                else request.quantize_embeddings,
                request.consumer,
            ),
            inputs=inputs,
            architecture=checked_architecture(request.architecture),
            scales=checked_scales(request.scales, names, producer),
            zero_points=request.zero_points,
            mix=mix,
        )
        for name in names:
            encode.encoding(name)
        return encode


@contextmanager
def _naming(mix: str | None) -> Iterator[None]:
    """Name the mix in refusals of its types, whose names a caller did not write."""
    try:
        yield
    except ValueError as error:
        if mix is None:
            raise
        usual, _ = MIXES[mix]
        subject = setting("scheme", mix) + f", a mix of {usual} and other types: "
        raise CheckpointError(subject + error.args[0]) from error


def scheme_spelled(name: Any) -> Any:  # noqa: ANN401  (of a caller)
    """Return the name of a scheme that is spelled in capitals, as llama.cpp does; others as is."""
    is_capital = isinstance(name, str) and not is_scheme(name) and is_scheme_or_mix(name.lower())
    return name.lower() if is_capital else name


def checked_embeddings(value: object, consumer: object) -> bool:
    """Return whether embeddings and heads may get schemes; None: if the consumer loads them so."""
    if value is not None and not isinstance(value, bool):
        raise TypeError(
            setting("quantize_embeddings", value) + " is not valid; use True, False or None"
        )
    loads_them = consumer is None or consumer_named(consumer).embeddings
    if value and not loads_them:
        loaders = ", ".join(row.name for row in consumers() if row.embeddings)
        raise CheckpointError(
            setting("quantize_embeddings", True, typed="yes") + f": {consumer} "
            "loads no embeddings and heads that are quantized; leave it out, or name who does "
            + parenthesis("consumer")
            + f": {loaders}"
        )
    return loads_them if value is None else value


def _patterns(patterns: object) -> tuple[str, ...]:
    if not isinstance(patterns, str | Sequence):
        raise TypeError(f"ignore is a regular expression or several, not {patterns!r}")
    several = (patterns,) if isinstance(patterns, str) else tuple(patterns)
    for pattern in several:
        if not isinstance(pattern, str):
            raise TypeError(f"ignore: {pattern!r} is not a regular expression, which is a str")
    return several


def _mapping(values: object) -> tuple[dict[str, Any], str]:
    """Return the values of a map by its patterns, and what errors call it."""
    if values is None:
        return {}, "map"
    if isinstance(values, Mapping):
        return typed_values(values), "map"
    if not isinstance(values, str | os.PathLike):
        raise TypeError(
            "dtype_map must be a mapping of regular expressions, the path of one, or the name of a "
            f"map, not {values!r}"
        )
    refuse_url("dtype_map", values)
    path = checked_path(values, "dtype_map")
    return mapping_in(path), str(path)


def checked_scales(scales: object, names: Sequence[str], producer: str) -> str:
    """Return how scales are chosen, which some of the schemes must have."""
    rows = [scheme_of_files(name) for name in names] or [*schemes()]
    is_able = (scales in SCALES and has_scales(str(scales), row, producer) for row in rows)
    check_scales(scales, next(compress(rows, is_able), rows[0]), producer)
    return str(scales)


def _checked_importance(
    request: Quantize, names: Sequence[str], producer: str
) -> Importance | None:
    """Open the file of importance, which weights a search of scales."""
    if request.importance is None:
        return None
    refuse_url("importance", request.importance)
    subject = setting("importance", str(request.importance)) + " weights the search of scales, and "
    if any(has_importance(name, request.scales) for name in names if type_of_scheme(name)):
        return Importance.open(checked_path(request.importance, "importance"))
    if not any(has_scales("best", scheme_of_files(name), producer) for name in names):
        raise CheckpointError(
            subject
            + f"{' and '.join(names)} as "
            + argument("recipe", producer)
            + " stores weights has none; leave it out"
        )
    if request.scales != "best":
        raise CheckpointError(
            subject
            + "there is none with "
            + argument("scales", request.scales)
            + "; add "
            + argument("scales", "best")
        )
    return Importance.open(checked_path(request.importance, "importance"))


def _checked_block(size: object) -> tuple[int, int] | None:
    if size is None:
        return None
    pair = (1, size) if is_integer(size) else size if isinstance(size, Sequence) else ()
    if len(pair) != 2 or not all(is_integer(side) and side > 0 for side in pair):  # noqa: PLR2004
        text = size if isinstance(size, int) else "x".join(map(str, pair))
        remedy = Wording("(rows, columns), or columns", "ROWSxCOLUMNS, or COLUMNS")
        raise ValueError(argument("block", size, typed=text) + " is not valid; use " + remedy)
    return int(pair[0]), int(pair[1])
