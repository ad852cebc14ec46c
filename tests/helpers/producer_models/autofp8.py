"""AutoFP8: one scale, and one of the inputs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ._decodable import Decodable, Draw, fp8, stated
from ._headers import Layouts, Model, in_config


def autofp8() -> Decodable:
    made = fp8((8, 16), Draw().scales(), (0, 0), beside="a.weight_scale")
    made.tensors["a.input_scale"] = np.float32(2).reshape(())
    made.config = stated(quant_method="fp8", activation_scheme="static")
    return made


MODELS: dict[str, Callable[[], Decodable]] = {
    "autofp8": autofp8,
}


LAYOUTS: Layouts = {
    "autofp8": (
        Model(
            {
                "a.weight": ("F8_E4M3", (8, 8)),
                "a.weight_scale": ("F32", ()),
                "a.input_scale": ("F32", ()),
            },
            in_config(quant_method="fp8", activation_scheme="static"),
            {},
        ),
        "fp8_tensor",
        None,
        "autofp8",
    ),
}
