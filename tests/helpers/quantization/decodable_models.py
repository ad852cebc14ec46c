"""Small models in every layout that can be decoded, with what they must become.

The codes are random, so that no layout can be mistaken for another; what they mean is written here
once more, in plain numpy, apart from the package.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from castwise import checkpoint
from numpy.typing import NDArray
from scheme_oracle import decode_peer, pack, pack_padded, spread, swizzle, words

Array = NDArray[Any]
BF16, E4M3, E8M0 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e8m0fnu
E2M1, E2M3 = ml_dtypes.float4_e2m1fn, ml_dtypes.float6_e2m3fn
AWQ = [0, 2, 4, 6, 1, 3, 5, 7]


@dataclass
class Decodable:
    """Tensors, what is stated of them, and the plain tensors that they become."""

    tensors: dict[str, Array]
    plain: dict[str, Array]
    config: dict[str, Any] = field(default_factory=dict)
    files: dict[str, Any] = field(default_factory=dict)
    metadata: dict[str, str] = field(default_factory=dict)


class Draw:
    """Random codes and scales."""

    def __init__(self, seed: int = 0) -> None:
        self._generator = np.random.default_rng(seed)

    def float8(self, *shape: int) -> Array:
        raw = self._generator.integers(0, 256, shape, np.uint8)
        raw[(raw & 0x7F) == 0x7F] = 0x3A  # not NaN
        return raw.view(E4M3)

    def codes(self, bits: int, *shape: int) -> Array:
        return self._generator.integers(0, 1 << bits, shape, np.uint8)

    def scales(self, *shape: int, dtype: Any = np.float32) -> Array:
        return (self._generator.random(shape) / 50 + 0.001).astype(dtype)

    def powers(self, *shape: int) -> Array:
        return self._generator.integers(115, 132, shape, np.uint8)

    def floats(self, *shape: int) -> Array:
        return self._generator.normal(size=shape).astype(BF16)


def powers_of(raw: Array) -> Array:
    """Decode E8M0 bytes."""
    return np.ldexp(np.float32(1), raw.view(np.uint8).astype(np.int32) - 127)


def decoded(
    values: Array, scale: Array, block: tuple[int, int], dtype: Any = BF16, **more: Any
) -> Array:
    """Multiply a matrix, or a stack of them, by the scales of its blocks; rounded once."""
    if values.ndim > 2:
        return np.stack([decoded(v, s, block, dtype) for v, s in zip(values, scale, strict=True)])
    block = (block[0] or len(values), block[1] or values.shape[1])
    scale = spread(np.asarray(scale, np.float32), values.shape, block)
    return decode_peer(values.astype(np.float32), scale, dtype, **more)


def stated(**section: Any) -> dict[str, Any]:
    return {"quantization_config": section}


def fp8(shape: tuple[int, ...], scale: Array, block: tuple[int, int], **names: str) -> Decodable:
    """One float8 weight in blocks, as DeepSeek names it."""
    weight = Draw(1).float8(*shape)
    name = names.get("weight", "a.weight")
    real = powers_of(scale) if scale.dtype in (np.uint8, E8M0) else scale
    return Decodable(
        {name: weight, names.get("beside", f"{name}_scale_inv"): scale},
        {name: decoded(weight, real.reshape(scale.shape or (1, 1)), block)},
        stated(quant_method="fp8", weight_block_size=list(block) if all(block) else None),
    )


def deepseek(dtype: Any) -> Callable[[], Decodable]:
    return lambda: fp8((576, 260), Draw().scales(5, 3, dtype=dtype), (128, 128))


def deepseek_powers() -> Decodable:
    return fp8((200, 100), Draw().powers(2, 1).view(E8M0), (128, 128))


def experts_of_float8() -> Decodable:
    names = {"weight": "mlp.experts.gate_up_proj", "beside": "mlp.experts.gate_up_proj_scale_inv"}
    return fp8((3, 200, 130), Draw().scales(3, 2, 2), (128, 128), **names)


def experts_of_one_scale(*axes: int) -> Callable[[], Decodable]:
    """Each expert has one scale."""

    def make() -> Decodable:
        made = fp8((3, 24, 20), Draw().scales(3, 1, 1), (0, 0), beside="a.weight_scale")
        made.tensors["a.weight_scale"] = made.tensors["a.weight_scale"].reshape(3, *axes)
        made.config = compressed("float", 8, "tensor")
        return made

    return make


def modelopt_int4(*, scaled: bool) -> Callable[[], Decodable]:
    """Two rows in a byte, the even one low; inputs may be multiplied by a factor each."""

    def make() -> Decodable:
        draw = Draw()
        codes, scale = draw.codes(4, 26, 96), draw.scales(26, 3)
        plain = decoded((codes.astype(np.int8) ^ 8) - 8, scale, (1, 32), np.float32)
        tensors = {"a.weight": codes[::2] | codes[1::2] << 4, "a.weight_scale": scale}
        if scaled:
            tensors["a.pre_quant_scale"] = draw.scales(96, dtype=BF16)
            plain = plain * tensors["a.pre_quant_scale"].astype(np.float32)
        section = {"quant_method": "modelopt", "quant_algo": "W4A16_AWQ", "group_size": 32}
        return Decodable(tensors, {"a.weight": plain.astype(BF16)}, stated(**section))

    return make


def modelopt_w4a8(*, scaled: bool) -> Callable[[], Decodable]:
    """Integers times scales become bfloat16, then float8 times a scale, then bfloat16 again."""

    def make() -> Decodable:
        made, level = modelopt_int4(scaled=scaled)(), np.float32(0.0003)
        factor = made.tensors.get("a.pre_quant_scale", np.ones(96, BF16)).astype(np.float32)
        draw = Draw()
        codes, scale = draw.codes(4, 26, 96), draw.scales(26, 3)
        plain = decoded((codes.astype(np.int8) ^ 8) - 8, scale, (1, 32)).astype(np.float32)
        # As torch divides a number by a tensor: with a reciprocal.
        up = np.float32(1) / (np.float32(448) * level) * np.float32(448)
        rounded = np.clip(plain * up, -448, 448).astype(E4M3).astype(np.float32)
        twice = (rounded * (np.float32(1) / up)).astype(BF16).astype(np.float32)
        assert (twice != plain).any()
        assert (np.abs(plain * up) > 448).any()
        made.tensors["a.weight_scale_2"] = level.reshape(())
        made.tensors["a.input_scale"] = level.reshape(())
        made.plain = {"a.weight": (twice * factor).astype(BF16)}
        made.config["quantization_config"]["quant_algo"] = "W4A8_AWQ"
        return made

    return make


def modelopt_int8() -> Decodable:
    """Inputs are multiplied by a factor each, and so are the columns of the plain weight."""
    draw = Draw()
    weight, scale, factor = draw.codes(8, 12, 64).view(np.int8), draw.scales(12), draw.scales(64)
    plain = decoded(weight, scale[:, None], (1, 0), np.float32) * factor
    return Decodable(
        {"a.weight": weight, "a.weight_scale": scale, "a.pre_quant_scale": factor},
        {"a.weight": plain.astype(BF16)},
        stated(quant_method="modelopt", quant_algo="W8A8_SQ_PER_CHANNEL"),
    )


def modelopt_blocks() -> Decodable:
    """Scales have the axes inside of blocks; only a user states how many elements those are."""
    made = fp8((192, 320), Draw().scales(2, 3), (128, 128), beside="a.weight_scale")
    made.tensors["a.weight_scale"] = made.tensors["a.weight_scale"][:, None, :, None]
    section = {"quant_algo": "fp8_pb_wo", "weight_block_size": [128, 128]}
    made.config = stated(quant_method="modelopt", **section)
    return made


def mxfp8() -> Decodable:
    made = fp8((8, 96), Draw().powers(8, 3), (1, 32))
    made.config = stated(quant_method="mxfp8")
    return made


def autofp8() -> Decodable:
    made = fp8((8, 16), Draw().scales(), (0, 0), beside="a.weight_scale")
    made.tensors["a.input_scale"] = np.float32(2).reshape(())
    made.config = stated(quant_method="fp8", activation_scheme="static")
    return made


def scalar_inverse() -> Decodable:
    made = fp8((8, 16), Draw().scales(), (0, 0))
    made.tensors["a.activation_scale"] = np.float32(2).reshape(())
    return made


def mistral() -> Decodable:
    made = fp8((8, 16), Draw().scales(), (0, 0), beside="a.qscale_weight")
    made.tensors["a.qscale_act"] = np.float32(2).reshape(())
    made.config = {}
    return made


def fbgemm() -> Decodable:
    made = fp8((8, 16), Draw().scales(8, 1), (1, 0), beside="a.weight_scale")
    made.config = stated(quant_method="fbgemm_fp8")
    return made


def compressed(kind: str, bits: int, strategy: str, **more: Any) -> dict[str, Any]:
    weights = {"num_bits": bits, "type": kind, "strategy": strategy, "symmetric": True, **more}
    groups = {"group_0": {"targets": ["Linear"], "weights": weights}}
    return stated(quant_method="compressed-tensors", config_groups=groups, ignore=["lm_head"])


def compressed_float8(
    strategy: str, grid: tuple[int, ...], block: tuple[int, int], **more: Any
) -> Callable[[], Decodable]:
    def make() -> Decodable:
        scale = Draw().scales(*grid, dtype=BF16)
        made = fp8((136, 132), scale.reshape(-1, grid[-1]), block)
        weight, _ = made.tensors.values()
        made.tensors = {"a.weight": weight, "a.weight_scale": scale}
        made.config = compressed("float", 8, strategy, **more)
        return made

    return make


def compressed_int8() -> Decodable:
    draw = Draw()
    weight = draw.codes(8, 12, 64).view(np.int8)
    scale, zero = draw.scales(12, 2, dtype=BF16), draw.codes(8, 12, 2).view(np.int8)
    zeros = spread(zero.astype(np.float32), weight.shape, (1, 32))
    return Decodable(
        {"a.weight": weight, "a.weight_scale": scale, "a.weight_zero_point": zero},
        {"a.weight": decoded(weight, scale, (1, 32), zero=zeros)},
        compressed("int", 8, "group", group_size=32, symmetric=False),
    )


def packed_words(
    bits: int, *, rows: int = 40, zero: bool = False, old: bool = False, experts: int = 0
) -> Callable[[], Decodable]:
    def make() -> Decodable:
        draw, columns, group = Draw(bits), 160, 32
        put = pack_padded if old else lambda codes, bits: words(pack(codes, bits))
        stack = (experts,) if experts else ()
        codes = draw.codes(bits, *stack, rows, columns)
        scale = draw.scales(*stack, rows, columns // group, dtype=BF16)
        values = codes.astype(np.int32) - (1 << (bits - 1))
        tensors = {
            "a.weight_packed": put(codes, bits),
            "a.weight_scale": scale,
            "a.weight_shape": np.array([*stack, rows, columns], np.int64),
        }
        more: dict[str, Any] = {}
        if zero:
            zeros = draw.codes(bits, rows, columns // group)
            tensors["a.weight_zero_point"] = np.ascontiguousarray(put(zeros.T, bits).T)
            unsigned = zeros.astype(np.float32) - (1 << (bits - 1))
            more["zero"] = spread(unsigned, values.shape, (1, group))
        config = compressed("int", bits, "group", group_size=group, symmetric=not zero)
        return Decodable(tensors, {"a.weight": decoded(values, scale, (1, group), **more)}, config)

    return make


def packed_in_order_of_activations() -> Decodable:
    made = packed_words(4)()
    codes = Draw(4).codes(4, 40, 160)
    index = np.random.default_rng(5).permutation(160).astype(np.int32) // 32
    made.tensors["a.weight_g_idx"] = index
    scale = made.tensors["a.weight_scale"].astype(np.float32)[:, index]
    values = codes.astype(np.float32) - 8
    made.plain = {"a.weight": (values * scale).astype(BF16)}
    made.config = compressed("int", 4, "group", group_size=32, actorder="group")
    return made


def nvfp4(recipe: str, size: int = 16) -> Callable[[], Decodable]:
    def make() -> Decodable:
        draw = Draw()
        codes, scale = draw.codes(4, 24, 64), np.abs(draw.float8(24, 64 // size).astype(np.float32))
        scale = scale.astype(E4M3)
        second = np.array([2688 / 3], np.float32)
        values = codes.view(E2M1).astype(np.float32)
        packed = pack(codes, 4)
        if recipe == "compressed-tensors":
            tensors = {
                "a.weight_packed": packed,
                "a.weight_scale": scale,
                "a.weight_global_scale": second,
                "a.input_global_scale": second,
            }
            effective = scale.astype(np.float32) / second
            config = compressed("float", 4, "tensor_group", group_size=16)
            files = {}
        else:
            second = (1 / second).reshape(())
            values = values + np.float32(0)  # its table of values has no -0
            tensors = {"a.weight": packed, "a.weight_scale": scale, "a.weight_scale_2": second}
            tensors["a.input_scale"] = second
            effective = scale.astype(np.float32) * second
            # That of 32 is for engines that multiply in float8.
            name = {16: "NVFP4", 32: "W4A8_NVFP4_FP8"}[size]
            section = {"quant_algo": name, "group_size": size}
            config = stated(quant_method="modelopt", **section)
            files = {"hf_quant_config.json": {"quantization": section}}
        plain = {"a.weight": decoded(values, effective, (1, size))}
        return Decodable(tensors, plain, config, files)

    return make


def modelopt_experts(scheme: str, *, megatron: bool = False) -> Callable[[], Decodable]:
    """Experts of Llama 4 and gpt-oss, (experts, in, out): NVFP4 alone lies along the inputs."""

    def make() -> Decodable:
        draw, shape, name = Draw(), (3, 64, 96), "mlp.experts.gate_up_proj"
        second, more = np.float32(0.01).reshape(()), {}
        algorithm, values = "FP8", draw.float8(*shape)
        raw = scale = draw.scales() if scheme == "tensor" else draw.scales(3)
        stored, block = values, (0, 0)
        if scheme == "nvfp4":
            turn = (0, 1, 2) if megatron else (0, 2, 1)
            codes, raw = draw.codes(4, 3, 96, 64), np.abs(draw.float8(3, 96, 4).view(np.int8))
            scale = raw.view(E4M3).astype(np.float32) * second
            algorithm, raw = "NVFP4", np.ascontiguousarray(raw.view(E4M3).transpose(turn))
            stored = np.ascontiguousarray(pack(codes, 4).transpose(turn))
            values, block = codes.view(E2M1).astype(np.float32) + np.float32(0), (1, 16)
            more[f"{name}_weight_scale_2"] = second
        elif scheme in ("mxfp4", "mxfp8"):
            raw, block = draw.powers(3, 64, 3), (1, 32)
            algorithm, scale = {"mxfp4": "W4A8_MXFP4_FP8", "mxfp8": "MXFP8"}[scheme], powers_of(raw)
            if scheme == "mxfp4":
                codes = draw.codes(4, *shape)
                stored, values = pack(codes, 4), codes.view(E2M1)
        each = np.broadcast_to(scale.reshape(-1, 1, 1), (3, 1, 1)) if block == (0, 0) else scale
        plain = decoded(values.astype(np.float32), each, block)
        if scheme == "nvfp4" and not megatron:
            plain = np.ascontiguousarray(plain.swapaxes(1, 2))
        tensors = {name: stored, f"{name}_weight_scale": raw, f"{name}_input_scale": second, **more}
        section: dict[str, Any] = {"quant_algo": algorithm}
        if all(block):
            section["group_size"] = block[1]
        if scheme == "each":
            section["quant_algo"] = "FP8_PER_CHANNEL_PER_TOKEN"
        return Decodable(
            tensors,
            {name: plain},
            stated(quant_method="modelopt", **section),
            {"hf_quant_config.json": {"quantization": section}},
        )

    return make


def mx(bits: int, **config: Any) -> Callable[[], Decodable]:
    def make() -> Decodable:
        draw = Draw()
        codes, scale = draw.codes(bits, 24, 96), draw.powers(24, 3)
        values = codes.view({4: E2M1, 6: E2M3}[bits]).astype(np.float32)
        name = "a.weight" if config["recipe"] == "modelopt" else "a.weight_packed"
        section = compressed("float", bits, "group", group_size=32, scale_dtype="torch.uint8")
        if config["recipe"] == "modelopt":
            section = stated(quant_method="modelopt", quant_algo="W4A8_MXFP4_FP8", group_size=32)
        return Decodable(
            {name: pack(codes, bits), "a.weight_scale": scale},
            {"a.weight": decoded(values, powers_of(scale), (1, 32))},
            section,
        )

    return make


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


def deepseek_v4() -> Decodable:
    draw = Draw()
    codes, scale = draw.codes(4, 40, 64), draw.powers(40, 2)
    made = fp8((200, 100), draw.powers(2, 1).view(E8M0), (128, 128), beside="a.scale")
    made.tensors |= {"w1.weight": pack(codes, 4).view(np.int8), "w1.scale": scale.view(E8M0)}
    values = codes.view(E2M1).astype(np.float32)
    made.plain["w1.weight"] = decoded(values, powers_of(scale), (1, 32))
    return made


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


def awq() -> Decodable:
    draw, inputs, outputs, group = Draw(), 128, 48, 64
    codes, zeros = draw.codes(4, inputs, outputs), draw.codes(4, inputs // group, outputs)
    scale = draw.scales(inputs // group, outputs, dtype=np.float16)

    def put(values: Array) -> Array:
        return words(pack(values.reshape(len(values), -1, 8)[..., AWQ].reshape(values.shape), 4))

    spread_zeros = spread(zeros.astype(np.float32), codes.shape, (group, 1))
    plain = decoded(codes, scale, (group, 1), zero=spread_zeros)
    return Decodable(
        {"a.qweight": put(codes), "a.qzeros": put(zeros), "a.scales": scale},
        {"a.weight": np.ascontiguousarray(plain.T)},
        stated(quant_method="awq", bits=4, group_size=group, zero_point=True, version="gemm"),
    )


def gptq(
    bits: int,
    form: str | None = None,
    *,
    reordered: bool = False,
    centred: bool = False,
    group: int = 32,
) -> Callable[[], Decodable]:
    """Make integers with a zero point for each group of inputs; a group of 128 is a column."""

    def make() -> Decodable:
        draw, inputs, outputs = Draw(bits), 128, 64
        codes, zeros = draw.codes(bits, inputs, outputs), draw.codes(bits, inputs // group, outputs)
        if centred:
            zeros[...] = 1 << (bits - 1)
        scale = draw.scales(inputs // group, outputs, dtype=np.float16)
        index = np.arange(inputs, dtype=np.int32) // group
        if reordered:
            index = np.random.default_rng(3).permutation(index)
        kept = zeros if form == "gptq_v2" else (zeros - 1) & ((1 << bits) - 1)
        with np.errstate(all="raise"):
            difference = codes.astype(np.float32) - zeros.astype(np.float32)[index]
            plain = (difference * scale.astype(np.float32)[index]).astype(BF16)
        size = -1 if group == inputs else group
        section = {"bits": bits, "group_size": size, "desc_act": reordered}
        if form is not None:
            section["checkpoint_format"] = form
        return Decodable(
            {
                "a.qweight": np.ascontiguousarray(words(pack(codes.T, bits)).T),
                "a.qzeros": words(pack(kept, bits)),
                "a.scales": scale,
                "a.g_idx": index,
            },
            {"a.weight": np.ascontiguousarray(plain.T)},
            stated(quant_method="gptq", **section),
            {"quantize_config.json": section},
        )

    return make


def bitsandbytes(kind: str, *, nested: bool) -> Callable[[], Decodable]:
    def make() -> Decodable:
        draw, shape, size = Draw(), (33, 70), 64
        count = shape[0] * shape[1]
        blocks = -(-count // size)
        table = np.sort(np.random.default_rng(2).uniform(-1, 1, 16)).astype(np.float32)
        codes = draw.codes(4, count)
        pairs = np.pad(codes, (0, count % 2)).reshape(-1, 2)
        state: dict[str, Any] = {"quant_type": kind, "blocksize": size, "shape": list(shape)}
        tensors = {"a.weight": (pairs[:, 0] << 4 | pairs[:, 1]).reshape(-1, 1)}
        scale: Array = draw.scales(blocks)
        if nested:
            raw, outer = draw.codes(8, blocks), draw.scales(-(-blocks // 16))
            inner = np.random.default_rng(4).uniform(-1, 1, 256).astype(np.float32)
            state |= {"nested_blocksize": 16, "nested_offset": 0.25}
            scale = inner[raw] * np.repeat(outer, 16)[:blocks] + np.float32(0.25)
            tensors |= {"a.weight.absmax": raw, "a.weight.nested_absmax": outer}
            tensors["a.weight.nested_quant_map"] = inner
        else:
            tensors["a.weight.absmax"] = scale
        text = json.dumps(state).encode()
        tensors[f"a.weight.quant_state.bitsandbytes__{kind}"] = np.frombuffer(text, np.uint8)
        tensors["a.weight.quant_map"] = table
        values = table[codes] * np.repeat(scale, size)[:count]
        config = stated(quant_method="bitsandbytes", load_in_4bit=True)
        return Decodable(tensors, {"a.weight": values.astype(BF16).reshape(shape)}, config)

    return make


def bitsandbytes_int8() -> Decodable:
    draw = Draw()
    weight, scale = draw.codes(8, 12, 20).view(np.int8), draw.scales(12)
    product = weight.astype(np.float32) * scale[:, None]
    plain = (product * np.float32(7.874015718698502e-3)).astype(BF16)
    layout = np.zeros((), np.uint8)
    return Decodable(
        {"a.weight": weight, "a.SCB": scale, "a.weight_format": layout},
        {"a.weight": plain},
        stated(quant_method="bitsandbytes", load_in_8bit=True),
    )


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
    **{
        f"deepseek, scales of {np.dtype(d).name}": deepseek(d)
        for d in (np.float32, BF16, np.float16)
    },
    "deepseek, powers of two": deepseek_powers,
    "deepseek, experts": experts_of_float8,
    **{f"experts of one scale, {len(a)} more axes": experts_of_one_scale(*a) for a in ((), (1,))},
    "mxfp8": mxfp8,
    "autofp8": autofp8,
    "a scalar as inverse": scalar_inverse,
    "mistral": mistral,
    "fbgemm": fbgemm,
    "compressed-tensors, float8 tensor": compressed_float8("tensor", (1,), (0, 0)),
    "compressed-tensors, float8 channel": compressed_float8("channel", (136, 1), (1, 0)),
    "compressed-tensors, float8 block": compressed_float8(
        "block", (2, 2), (128, 128), block_structure=[128, 128]
    ),
    "compressed-tensors, float8 group": compressed_float8(
        "group", (136, 3), (1, 44), group_size=44
    ),
    "compressed-tensors, int8": compressed_int8,
    **{f"compressed-tensors, words of {b}": packed_words(b) for b in range(2, 9)},
    **{
        f"compressed-tensors, words of {b}, as of old": packed_words(b, old=True)
        for b in (3, 4, 5, 6, 7)
    },
    **{
        f"compressed-tensors, words of {b}, zero points": packed_words(b, zero=True)
        for b in (2, 3, 4, 8)
    },
    "compressed-tensors, words of 3, as of old, zero points": packed_words(3, zero=True, old=True),
    "compressed-tensors, words of 4, few rows": packed_words(4, rows=5, zero=True),
    "compressed-tensors, words of 4, experts": packed_words(4, experts=3),
    "compressed-tensors, order of activations": packed_in_order_of_activations,
    "compressed-tensors, nvfp4": nvfp4("compressed-tensors"),
    "compressed-tensors, mxfp4": mx(4, recipe="compressed-tensors"),
    "compressed-tensors, mxfp6": mx(6, recipe="compressed-tensors"),
    "modelopt, nvfp4": nvfp4("modelopt"),
    "modelopt, nvfp4 in blocks of 32": nvfp4("modelopt", 32),
    "modelopt, int4": modelopt_int4(scaled=False),
    "modelopt, int4, scaled inputs": modelopt_int4(scaled=True),
    "modelopt, w4a8, scaled inputs": modelopt_w4a8(scaled=True),
    "modelopt, int8, scaled inputs": modelopt_int8,
    "modelopt, blocks": modelopt_blocks,
    "modelopt, mxfp4": mx(4, recipe="modelopt"),
    "quark, fp4": quark("fp4"),
    **{f"modelopt, experts of {one}": modelopt_experts(one) for one in ("nvfp4", "each")},
    "gpt-oss": gpt_oss(),
    "gpt-oss, of OpenAI": gpt_oss(of_openai=True),
    "deepseek-v4": deepseek_v4,
    "comfy, old": comfy_old,
    "comfy, float8": comfy_float8,
    "comfy, nvfp4, marker": comfy_nvfp4(marker=True),
    "comfy, nvfp4, metadata": comfy_nvfp4(marker=False),
    "comfy, mxfp8": comfy_mxfp8,
    "comfy, experts": comfy_experts,
    "awq": awq,
    **{f"gptq, {b} bits": gptq(b) for b in (2, 3, 4, 8)},
    "gptq, v2": gptq(4, "gptq_v2"),
    "gptq, order of activations": gptq(4, reordered=True),
    "bitsandbytes, nf4": bitsandbytes("nf4", nested=False),
    "bitsandbytes, nf4, nested": bitsandbytes("nf4", nested=True),
    "bitsandbytes, fp4": bitsandbytes("fp4", nested=False),
    "bitsandbytes, int8": bitsandbytes_int8,
    **{f"mlx, {b} bits": mlx(b) for b in (2, 3, 4, 5, 6, 8)},
    "mlx, mxfp4": mlx(4, "mxfp4"),
    "mlx, mxfp8": mlx(8, "mxfp8"),
    "mlx, nvfp4": mlx(4, "nvfp4"),
}

MORE: dict[str, Callable[[], Decodable]] = {
    **{
        f"modelopt, experts of {one}": modelopt_experts(one) for one in ("mxfp4", "mxfp8", "tensor")
    },
    "modelopt, experts of nvfp4, (out, in)": modelopt_experts("nvfp4", megatron=True),
    "modelopt, w4a8": modelopt_w4a8(scaled=False),
}
"""Others that differ from one of these in little."""


def two_weights() -> Decodable:
    """Make the first model with a second weight."""
    model = MODELS["deepseek, scales of float32"]()
    for tensors in (model.tensors, model.plain):
        tensors |= {f"b{name[1:]}": array for name, array in tensors.items()}
    return model


KEPT = {"norm.weight": np.arange(4, dtype=np.float32), "ids": np.arange(3)}


def write(folder: Path, model: Decodable, **more: Any) -> Path:
    """Write a model in one file, with tensors that are not quantised."""
    folder.mkdir()
    tensors = model.tensors | KEPT | more
    checkpoint.save(folder / "model.safetensors", tensors, metadata=model.metadata)
    config = {"model_type": "llama", "dtype": "float32", **model.config}
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    for name, value in model.files.items():
        (folder / name).write_text(json.dumps(value))
    return folder
