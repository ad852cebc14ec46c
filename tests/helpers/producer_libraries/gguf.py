# ruff: noqa: PLC0415 - each library is imported by what needs it
"""gguf-py: what it writes for a weight, decodes from it, and saves of a model."""

from __future__ import annotations

from functools import partial

import numpy as np
from scheme_oracle import Array

from ._arrays import Parts, Producer


def gguf(x: Array, kind: str) -> tuple[Parts, Array | None]:
    from gguf import GGMLQuantizationType
    from gguf.quants import dequantize, quantize

    wanted = GGMLQuantizationType[kind]
    blocks = quantize(x.astype(np.float32), wanted)
    return {"blocks": blocks}, dequantize(blocks, wanted)


SCHEMES = {
    kind: Producer(
        scheme,
        "",
        partial(gguf, kind=kind),
        options=options,
        only_read=kind not in ("Q8_0", "MXFP4"),
    )
    for kind, scheme, options in (
        ("Q8_0", "int8_group", {}),
        ("Q4_0", "int4_group", {}),
        ("Q4_1", "int4_group", {"symmetric": False}),
        ("Q5_0", "int5_group", {}),
        ("Q5_1", "int5_group", {"symmetric": False}),
        ("MXFP4", "mxfp4", {}),
    )
}
