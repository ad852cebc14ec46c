"""ComfyUI: padded, in tiles, stated by markers or in metadata."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
from scheme_oracle import pack, swizzle

from ._decodable import BF16, E2M1, E4M3, Decodable, Draw, decoded, fp8, powers_of
from ._headers import Layouts, Model, Recorded


def comfy_fp8(shape: tuple[int, ...], **names: str) -> Decodable:
    """One float8 weight with one scale, which is rounded to the dtype of the result first."""
    scale = np.float32(0.0118).reshape(())
    made = fp8(shape, scale, (0, 0), **names)
    once, made.plain = made.plain, fp8(shape, scale.astype(BF16), (0, 0), **names).plain
    assert any((array != once[name]).any() for name, array in made.plain.items())
    made.config = {}
    return made


def comfy_old() -> Decodable:
    made = comfy_fp8((8, 16), beside="model.a.scale_weight", weight="model.a.weight")
    made.tensors["model.a.scale_input"] = np.float32(2).reshape(())
    made.tensors["model.scaled_fp8"] = np.zeros(2, E4M3)
    return made


def comfy_float8() -> Decodable:
    """A convolution: a scale for all of it, whatever its axes."""
    made = comfy_fp8((8, 36), beside="a.weight_scale")
    for tensors in (made.tensors, made.plain):
        tensors["a.weight"] = tensors["a.weight"].reshape(8, 4, 3, 3)
    layers = {"format_version": "1.0", "layers": {"a": {"format": "float8_e4m3fn"}}}
    made.metadata = {"_quantization_metadata": json.dumps(layers), "kept": "yes"}
    return made


def comfy_nvfp4(*, marker: bool) -> Callable[[], Decodable]:
    def make() -> Decodable:
        draw = Draw()
        codes, scale = draw.codes(4, 136, 80), np.abs(draw.float8(136, 5).astype(np.float32))
        codes[0, -1] = 3
        scale = scale.astype(E4M3)
        second = np.float32(0.01).reshape(())
        values = codes.view(E2M1).astype(np.float32)
        padded = np.pad(pack(codes, 4), [(0, 8), (0, 0)])
        tensors = {
            "a.weight": padded >> 4 | padded << 4,
            "a.weight_scale": swizzle(np.pad(scale.view(np.uint8), [(0, 8), (0, 0)])).view(E4M3),
            "a.weight_scale_2": second,
            "a.bias": draw.floats(136),
        }
        metadata = {}
        if marker:
            text = json.dumps({"format": "nvfp4"}).encode()
            tensors["a.comfy_quant"] = np.frombuffer(text, np.uint8)
        else:
            layers = {"layers": {"a": {"format": "nvfp4"}}}
            metadata = {"_quantization_metadata": json.dumps(layers)}
        # In the dtype of the result: the global scale, its products with scales, and the values.
        effective = (scale.astype(np.float32) * second.astype(BF16).astype(np.float32)).astype(BF16)
        plain = {"a.weight": decoded(values, effective, (1, 16)), "a.bias": tensors["a.bias"]}
        return Decodable(tensors, plain, metadata=metadata)

    return make


def comfy_mxfp8() -> Decodable:
    draw = Draw()
    weight, scale = draw.float8(160, 96), draw.powers(160, 3)
    weight[-1, -1], weight[0, -1] = 1, 1
    text = json.dumps({"format": "mxfp8"}).encode()
    return Decodable(
        {
            "a.weight": weight,
            "a.weight_scale": swizzle(scale),
            "a.comfy_quant": np.frombuffer(text, np.uint8),
        },
        {"a.weight": decoded(weight, powers_of(scale), (1, 32))},
    )


def comfy_experts() -> Decodable:
    """Three banks of experts, each matrix padded and in tiles, with scales of its own."""
    one = comfy_nvfp4(marker=True)()
    made = Decodable(
        *(
            {name: np.stack([x] * 3) for name, x in some.items()}
            for some in (one.tensors, one.plain)
        )
    )
    # The second expert's global scale is twice the others, exactly.
    made.tensors["a.weight_scale_2"] = made.tensors["a.weight_scale_2"] * np.float32([1, 2, 1])
    made.plain["a.weight"][1] = (made.plain["a.weight"][1].astype(np.float32) * 2).astype(BF16)
    mx = comfy_mxfp8()
    scale = np.float32([0.5, 0.0118, 3])
    weight = Draw(3).float8(3, 8, 16)
    rounded = scale.astype(BF16).astype(np.float32).reshape(3, 1, 1)
    made.tensors |= {
        "b.weight": np.stack([mx.tensors["a.weight"]] * 3),
        "b.weight_scale": np.stack([mx.tensors["a.weight_scale"]] * 3),
        "c.weight": weight,
        "c.weight_scale": scale,
    }
    made.plain["b.weight"] = np.stack([mx.plain["a.weight"]] * 3)
    made.plain["c.weight"] = decoded(weight, rounded, (0, 0))
    for name, form in {"a": "nvfp4", "b": "mxfp8", "c": "float8_e4m3fn"}.items():
        text = json.dumps({"format": form, "num_experts": 3}).encode()
        made.tensors[f"{name}.comfy_quant"] = np.frombuffer(text, np.uint8)
    return made


MODELS: dict[str, Callable[[], Decodable]] = {
    "comfy, old": comfy_old,
    "comfy, float8": comfy_float8,
    "comfy, nvfp4, marker": comfy_nvfp4(marker=True),
    "comfy, nvfp4, metadata": comfy_nvfp4(marker=False),
    "comfy, mxfp8": comfy_mxfp8,
    "comfy, experts": comfy_experts,
}


LAYOUTS: Layouts = {
    "comfy, old": (
        Model(
            {
                "model.diffusion_model.scaled_fp8": ("F8_E4M3", (2,)),
                "model.diffusion_model.a.weight": ("F8_E4M3", (8, 8)),
                "model.diffusion_model.a.scale_weight": ("F32", ()),
                "model.diffusion_model.a.scale_input": ("F32", ()),
            },
            {},
            {},
        ),
        "fp8_tensor",
        None,
        "comfy",
    ),
}


RECORDED: Recorded = {
    "comfy nvfp4, marker": (
        "nvfp4",
        (1, 16),
        "comfy",
        1,
        {"weight_scale", "weight_scale_2", "comfy_quant"},
    ),
    "comfy nvfp4, metadata": ("nvfp4", (1, 16), "comfy", 1, {"weight_scale", "weight_scale_2"}),
    "comfy mxfp8, marker": ("mxfp8_e4m3", (1, 32), "comfy", 1, {"weight_scale", "comfy_quant"}),
    "comfy float8_e4m3fn, metadata": ("fp8_tensor", None, "comfy", 1, {"weight_scale"}),
}
