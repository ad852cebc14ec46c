"""MLX: affine integers, MX and NVFP4."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scheme_oracle import pack, spread, words

from ._decodable import BF16, E2M1, E4M3, Decodable, Draw, decoded, powers_of
from ._headers import Recorded


def mlx(bits: int, mode: str = "affine") -> Callable[[], Decodable]:
    def make() -> Decodable:
        draw = Draw(bits)
        group = {"affine": 64, "nvfp4": 16}.get(mode, 32)
        codes = draw.codes(bits, 6, 192)
        if mode == "mxfp8":
            codes = draw.float8(6, 192).view(np.uint8)
        tensors = {"a.weight": words(pack(codes, bits), np.uint32)}
        grid = (6, 192 // group)
        if mode == "affine":
            scale, bias = draw.scales(*grid, dtype=BF16), draw.floats(*grid)
            tensors |= {"a.scales": scale, "a.biases": bias}
            biases = spread(bias.astype(np.float32), codes.shape, (1, group))
            plain = decoded(codes, scale, (1, group), bias=biases, scale_dtype=BF16)
        else:
            raw = draw.powers(*grid)
            scale = powers_of(raw)
            if mode == "nvfp4":
                raw = np.abs(draw.float8(*grid).astype(np.float32)).astype(E4M3).view(np.uint8)
                scale = raw.view(E4M3).astype(np.float32)
            tensors["a.scales"] = raw
            element = E4M3 if mode == "mxfp8" else E2M1
            plain = decoded(codes.view(element).astype(np.float32), scale, (1, group))
        section = {"group_size": group, "bits": bits, "mode": mode}
        config = {"quantization": section, "quantization_config": section}
        return Decodable(tensors, {"a.weight": plain}, config)

    return make


MODELS: dict[str, Callable[[], Decodable]] = {
    **{f"mlx, {b} bits": mlx(b) for b in (2, 3, 4, 5, 6, 8)},
    "mlx, mxfp4": mlx(4, "mxfp4"),
    "mlx, mxfp8": mlx(8, "mxfp8"),
    "mlx, nvfp4": mlx(4, "nvfp4"),
}


RECORDED: Recorded = {
    "mlx affine": ("int4_group", (1, 64), "mlx", 2, {"scales", "biases"}),
    "mlx mxfp4": ("mxfp4", (1, 32), "mlx", 2, {"scales"}),
    "mlx nvfp4": ("nvfp4", (1, 16), "mlx", 2, {"scales"}),
}
