"""AMD's Quark."""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np
from scheme_oracle import pack

from ._decodable import Decodable, Draw, decoded, powers_of, stated
from ._headers import Layouts, Model, in_config


def quark(element: str) -> Callable[[], Decodable]:
    """AMD's codes: of 4 bits, the low ones first; of 6, as no file says where they are."""

    def make() -> Decodable:
        draw, bits = Draw(), int(element[2])
        codes, scale = draw.codes(bits, 24, 96), draw.powers(24, 3)
        kind = {"fp4": "4_e2m1", "fp6_e2m3": "6_e2m3", "fp6_e3m2": "6_e3m2"}[element]
        values = codes.view(getattr(ml_dtypes, f"float{kind}fn")).astype(np.float32)
        weight = {"dtype": element, "qscheme": "per_group", "group_size": 32}
        return Decodable(
            {"a.weight": pack(codes, bits), "a.weight_scale": scale},
            {"a.weight": decoded(values, powers_of(scale), (1, 32))},
            stated(quant_method="quark", global_quant_config={"weight": weight}),
        )

    return make


MODELS: dict[str, Callable[[], Decodable]] = {
    "quark, fp4": quark("fp4"),
}


LAYOUTS: Layouts = {
    "quark": (
        Model(
            {"a.weight": ("F8_E4M3", (8, 8)), "a.weight_scale": ("F32", ())},
            in_config(
                quant_method="quark",
                global_quant_config={"weight": {"dtype": "fp8_e4m3", "qscheme": "per_tensor"}},
            ),
            {},
        ),
        "fp8_tensor",
        None,
        "quark",
    ),
}
