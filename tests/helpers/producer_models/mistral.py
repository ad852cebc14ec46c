"""Mistral's own names for one scale."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ._decodable import Decodable, Draw, fp8
from ._headers import Layouts, Model


def mistral() -> Decodable:
    made = fp8((8, 16), Draw().scales(), (0, 0), beside="a.qscale_weight")
    made.tensors["a.qscale_act"] = np.float32(2).reshape(())
    made.config = {}
    return made


MODELS: dict[str, Callable[[], Decodable]] = {
    "mistral": mistral,
}


LAYOUTS: Layouts = {
    "mistral": (
        Model(
            {
                "a.weight": ("F8_E4M3", (8, 8)),
                "a.qscale_weight": ("F32", ()),
                "a.qscale_act": ("F32", ()),
            },
            {},
            {},
        ),
        "fp8_tensor",
        None,
        "mistral",
    ),
}
