"""Compare the values of two checkpoints, whatever they are stored as."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

from castwise._options import (
    Arithmetic,
    Inputs,
    Like,
    MapArgument,
    Nan,
    Overflow,
    PathArgument,
    Rounding,
    Scales,
    WrittenRecipe,
)
from castwise.arrays.dtype_map import DtypeMap
from castwise.checkpoint._errors import CheckpointError
from castwise.checkpoint.comparison._comparing import Comparing
from castwise.checkpoint.comparison._conversions import MapConversion
from castwise.checkpoint.comparison._sides import Side
from castwise.checkpoint.comparison.verification import Difference, Verification
from castwise.checkpoint.containers import open_checkpoint, source_path
from castwise.checkpoint.results.report import Progress
from castwise.text.wording import argument, join, parenthesis

_OF_CASTS = {"rounding": None, "overflow": "ieee", "nan": "keep", "seed": None, "like": None}
_OF_QUANTIZATIONS = {
    "recipe": None,
    "scales": "amax",
    "zero_points": False,
    "inputs": None,
    "importance": None,
}


def verify(
    first: str | os.PathLike[str],
    second: str | os.PathLike[str],
    *,
    dtype_map: MapArgument | DtypeMap | None = None,
    rounding: Rounding | None = None,
    overflow: Overflow = "ieee",
    nan: Nan = "keep",
    seed: int | None = None,
    like: Like | None = None,
    dtype: object = None,
    arithmetic: Arithmetic = "peer",
    architecture: PathArgument | None = None,
    recipe: WrittenRecipe | None = None,
    scales: Scales = "amax",
    zero_points: bool = False,
    inputs: Inputs | float | None = None,
    importance: PathArgument | None = None,
    threads: int | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Verification:
    """Compare the values of two checkpoints, each unquantized or quantized in any way.

    castwise decodes quantized weights in slabs, as `dequantize_file` does. It matches tensors by
    their names in the unquantized model; those of a GGUF file are matched by their names in
    transformers. Floats of two formats are compared in float32, or in float64 if one of the formats
    is float64. Integers and floats are compared by their exact values.

    Parameters
    ----------
    first, second
        Files or folders, as `cast_file` and `dequantize_file` take.
    dtype_map
        Ask whether the second is exactly what this map makes of the first, by `cast_file`, or by
        `quantize_file` if it names schemes: every tensor in the format of the map, with the same
        bits, and nothing is decoded. `Verification.statement` says so in a line that can be kept.
    rounding, overflow, nan, seed, like
        With a map of formats, the options that it was made with, as in `cast_file`; stochastic
        rounding needs its seed.
    dtype
        What quantized weights are decoded to, as in `dequantize_file`. By default the format of the
        other one if that is plain; bfloat16 if both are quantized. With a map that has no default,
        that.
    arithmetic
        As in `dequantize_file`. Two producers may decode the same codes and scales to values that
        differ in the last bit; with "exact" they are the same.
    architecture
        With a map, a file with what the parameters of the model are, as in `quantize_file`.
    recipe, scales, zero_points, inputs, importance
        With a map of schemes, the options that it was made with, as in `quantize_file`.
    threads
        How many threads may decode.
    progress
        Called when a tensor begins, now and then within a large one, and at the end.

    Returns
    -------
    The tensors that differ, with the largest differences and where they are.

    Raises
    ------
    CheckpointError
        One is damaged, or cannot be decoded for certain.
    ValueError, TypeError
        An option is wrong.
    OSError
        A file cannot be read.

    Examples
    --------
    >>> from castwise import checkpoint
    >>> checkpoint.save("model.safetensors", {"fc.weight": np.eye(64, dtype=np.float32)})
    >>> _ = checkpoint.cast_file("model.safetensors", "small.safetensors", "bfloat16")
    >>> checkpoint.verify("model.safetensors", "small.safetensors")
    <Verification 'model.safetensors' and 'small.safetensors', 1 tensor, 4,096 values, equal>

    """
    options = {"rounding": rounding, "overflow": overflow, "nan": nan, "seed": seed, "like": like}
    quantization = _changed(
        {
            "recipe": recipe,
            "scales": scales,
            "zero_points": zero_points,
            "inputs": inputs,
            "importance": importance,
        },
        _OF_QUANTIZATIONS,
    )
    conversion = None
    if dtype_map is not None:
        conversion = MapConversion.of_options(
            dtype_map, dtype, options, threads, architecture=architecture, quantization=quantization
        )
    elif names := [*_changed(options, _OF_CASTS), *quantization]:
        kind = "quantization" if quantization else "cast"
        raise CheckpointError(
            join(", ", map(argument, names))
            + f": options of a {kind} go with its map "
            + parenthesis("dtype_map")
        )
    elif architecture is not None:
        raise CheckpointError(
            argument("architecture", str(architecture))
            + " goes with a map "
            + parenthesis("dtype_map")
            + ": what is in the files is compared as it is"
        )
    with ExitStack() as stack:
        sources = [
            stack.enter_context(
                open_checkpoint(
                    source_path(path, name), decodes=conversion is None or conversion.is_typed
                )
            )
            for name, path in (("first", first), ("second", second))
        ]
        if conversion is None:
            first_side, second_side = (
                Side.decode(source, other, dtype=dtype, arithmetic=arithmetic, threads=threads)
                for source, other in zip(sources, reversed(sources), strict=True)
            )
        else:
            first_side, second_side = conversion.side(*sources), Side(sources[1])
        for side in (first_side, second_side):
            stack.callback(side.close)
        comparing = Comparing(
            first_side,
            second_side,
            arithmetic,
            threads=threads,
            explains=False,
            is_exact=conversion is not None,
        )
        pairs = {name: name for name in first_side.names if name in second_side.names}
        differences_found = map(Difference.of, comparing.compare_all(pairs, progress))
        differences = [
            *(
                Difference(name, "only in the first")
                for name in first_side.names
                if name not in pairs
            ),
            *(difference for difference in differences_found if difference is not None),
            *(
                Difference(name, "only in the second")
                for name in second_side.names
                if name not in pairs
            ),
        ]
        return Verification(
            str(first),
            str(second),
            len(pairs),
            sum(math.prod(first_side.shape(name)) for name in pairs),
            tuple(differences),
            None if conversion is None else conversion.to_dict(first_side, sources),
        )


def _changed(options: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value != defaults[name]}
