"""gpt-oss, as transformers and as OpenAI name it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scheme_oracle import pack

from ._decodable import E2M1, Decodable, Draw, decoded, powers_of, stated
from ._headers import EXPERTS, Layouts, Model, in_config


def gpt_oss(*, of_openai: bool = False) -> Callable[[], Decodable]:
    def make() -> Decodable:
        draw = Draw()
        codes, scale = draw.codes(4, 3, 20, 64), draw.powers(3, 20, 2)
        values = codes.view(E2M1).astype(np.float32)
        plain = decoded(values, powers_of(scale), (1, 32))
        blocks = pack(codes, 4).reshape(3, 20, 2, 16)
        if of_openai:
            name = "block.0.mlp.mlp1_weight"
            return Decodable({f"{name}.blocks": blocks, f"{name}.scales": scale}, {name: plain})
        name = "mlp.experts.gate_up_proj"
        return Decodable(
            {f"{name}_blocks": blocks, f"{name}_scales": scale},
            {name: np.ascontiguousarray(plain.swapaxes(1, 2))},
            stated(quant_method="mxfp4", modules_to_not_convert=["lm_head"]),
        )

    return make


MODELS: dict[str, Callable[[], Decodable]] = {
    "gpt-oss": gpt_oss(),
    "gpt-oss, of OpenAI": gpt_oss(of_openai=True),
}


LAYOUTS: Layouts = {
    "gpt-oss": (
        Model(
            {
                f"{EXPERTS}.down_proj_blocks": ("U8", (2, 64, 2, 16)),
                f"{EXPERTS}.down_proj_scales": ("U8", (2, 64, 2)),
                f"{EXPERTS}.down_proj_bias": ("BF16", (2, 64)),
            },
            in_config(quant_method="mxfp4", modules_to_not_convert=["lm_head"]),
            {},
        ),
        "mxfp4",
        (1, 32),
        "gpt-oss",
    ),
    "gpt-oss, of OpenAI": (
        Model(
            {
                "block.0.mlp.mlp1_weight.blocks": ("U8", (2, 64, 2, 16)),
                "block.0.mlp.mlp1_weight.scales": ("U8", (2, 64, 2)),
            },
            {},
            {},
        ),
        "mxfp4",
        (1, 32),
        "gpt-oss",
    ),
}
