"""FBGEMM: a scale for each row."""

from __future__ import annotations

from collections.abc import Callable

from ._decodable import Decodable, Draw, fp8, stated
from ._headers import Layouts, Model, in_config


def fbgemm() -> Decodable:
    made = fp8((8, 16), Draw().scales(8, 1), (1, 0), beside="a.weight_scale")
    made.config = stated(quant_method="fbgemm_fp8")
    return made


MODELS: dict[str, Callable[[], Decodable]] = {
    "fbgemm": fbgemm,
}


LAYOUTS: Layouts = {
    "fbgemm": (
        Model(
            {"a.weight": ("F8_E4M3", (8, 16)), "a.weight_scale": ("F32", (8, 1))},
            in_config(quant_method="fbgemm_fp8"),
            {},
        ),
        "fp8_channel",
        None,
        "fbgemm",
    ),
}
