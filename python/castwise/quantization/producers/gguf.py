"""GGUF, whose files state the type of each tensor, and what decodes types without parts."""

from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import NDArray

from castwise._options import Arithmetic
from castwise.quantization.producers.block_types import (
    FALLBACKS,
    TYPES,
    WHOLE_BLOCKS,
    WRITTEN_TYPES,
    decode_type,
)
from castwise.quantization.producers.producer import (
    INTEGERS,
    MXFP4_TO_NVFP4,
    Producer,
    Statements,
    Transcoding,
    Writing,
    Written,
    same_schemes,
)
from castwise.quantization.producers.stored_weight import Undecodable
from castwise.text.wording import setting

_WRITTEN = tuple(
    Written(
        name.lower(),
        stacks=True,
        inputs="",
        only_default=True,
        fallback=FALLBACKS.get(name, "").lower(),
    )
    for name in WRITTEN_TYPES
)

# Whose files state the scheme of each tensor, and whose tensors are single parts.
GGUF = Producer(
    "gguf",
    (*TYPES.values(), *WHOLE_BLOCKS.values()),
    scales="float16",
    transcoding=Transcoding(
        forms_from=(*same_schemes("mxfp4", *INTEGERS), MXFP4_TO_NVFP4),
        forms_to=same_schemes("mxfp4"),
        stacks="also",
    ),
    writing=Writing(
        rows=_WRITTEN, write=lambda _: Statements(), states_several=True, embeddings="loaded"
    ),
)


def block_decoder(
    name: str, arithmetic: Arithmetic
) -> Callable[[NDArray[np.uint8]], NDArray[np.float32]]:
    """Return what decodes rows of blocks of a type; some types need the package gguf."""
    # The core decodes the types that castwise writes, and the package gguf all others.
    if arithmetic != "peer":
        raise Undecodable(
            f"it is {name}, which is decoded in float32; "
            + setting("arithmetic", arithmetic)
            + " is for other types"
        )
    if name in WRITTEN_TYPES:
        return partial(decode_type, name=name)
    try:
        from gguf import GGMLQuantizationType, quants  # noqa: PLC0415
    except ImportError as error:
        raise Undecodable(
            f"it is {name}, which the package gguf decodes: pip install 'castwise[gguf]'"
        ) from error
    kind = GGMLQuantizationType[name]

    def decode(raw: NDArray[np.uint8]) -> NDArray[np.float32]:
        with np.errstate(all="ignore"):  # scales are what is stored, also infinite and NaN
            values: NDArray[np.float32] = quants.dequantize(raw, kind)
        return values

    return decode
