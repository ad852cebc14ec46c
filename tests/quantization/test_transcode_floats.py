"""FP8 and FP4 go from one producer to another, and to other schemes, with the same values."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from castwise import checkpoint
from castwise.checkpoint import CheckpointError
from castwise.checkpoint.planning.transcode import _transcoded_weight
from castwise.cli import main
from checkpoint_samples import assert_same
from numpy.typing import NDArray
from producer_models import KEPT, MODELS, Decodable, Draw, stated
from producer_models import write as write_model
from producer_models.compressed_tensors import model_of_mxfp4, mxfp4
from producer_models.gguf import blocks, gguf_file
from scheme_oracle import pack, swizzle
from small_llama import write

Array = NDArray[Any]
CT, MODELOPT, COMFY, OSS, V4 = "compressed-tensors", "modelopt", "comfy", "gpt-oss", "deepseek-v4"
BF16, E4M3, E8M0 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e8m0fnu
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
EXPERTS = "mlp.experts.gate_up_proj"


def nibbles(packed: Array) -> Array:
    """Return the values of codes of 4 bits, the low half of a byte first."""
    raw = packed.view(np.uint8)
    return E2M1[np.stack([raw & 15, raw >> 4], -1).reshape(*raw.shape[:-1], -1)]


def powers(raw: Array) -> Array:
    return np.ldexp(np.float32(1), raw.view(np.uint8).astype(np.int32) - 127)


def spread(scale: Array, values: Array) -> Array:
    return np.repeat(scale.astype(np.float32), values.shape[-1] // scale.shape[-1], axis=-1)


def section(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "config.json").read_text())["quantization_config"]
    return found


# MXFP4


def test_experts_of_gpt_oss(tmp_path: Path) -> None:
    """Matrices are (out, in) in compressed-tensors, while transformers has them transposed."""
    model, out, back = MODELS["gpt-oss"](), tmp_path / "out", tmp_path / "back"
    source = write_model(tmp_path / "model", model)
    checkpoint.transcode_file(source, out, CT)
    found = checkpoint.load(out)
    packed, scale = (found[f"{EXPERTS}.weight_{one}"] for one in ("packed", "scale"))
    assert_same(packed, model.tensors[f"{EXPERTS}_blocks"].reshape(3, 20, 32))
    assert_same(scale, model.tensors[f"{EXPERTS}_scales"])
    assert set(found) == {f"{EXPERTS}.weight_packed", f"{EXPERTS}.weight_scale", *KEPT}
    values = nibbles(packed)
    plain = (values * spread(powers(scale), values)).astype(BF16)
    assert_same(plain.swapaxes(1, 2), model.plain[EXPERTS])
    checkpoint.dequantize_file(out, tmp_path / "plain")
    assert_same(checkpoint.load(tmp_path / "plain")[f"{EXPERTS}.weight"], plain)
    stated = section(out)
    (one,) = stated["config_groups"].values()
    weights = one["weights"]
    assert (stated["format"], one["format"]) == ("mxfp4-pack-quantized",) * 2
    assert (weights["num_bits"], weights["type"], weights["group_size"]) == (4, "float", 32)
    assert (weights["strategy"], weights["scale_dtype"]) == ("group", "torch.uint8")
    checkpoint.transcode_file(out, back, OSS)
    again = checkpoint.load(back)
    for name, array in (model.tensors | KEPT).items():
        assert_same(again.pop(name), array)
    assert not again
    assert section(back) == {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}
    assert checkpoint.verify(source, back).equal


def test_experts_of_openai(tmp_path: Path) -> None:
    model, out, back = MODELS["gpt-oss, of OpenAI"](), tmp_path / "out", tmp_path / "back"
    source = write_model(tmp_path / "model", model)
    checkpoint.transcode_file(source, out, CT)
    name = "block.0.mlp.mlp1_weight"
    assert set(checkpoint.load(out)) == {f"{name}_packed", f"{name}_scale", *KEPT}
    assert checkpoint.verify(source, out).equal
    checkpoint.transcode_file(out, back, OSS)
    for key, array in (model.tensors | KEPT).items():
        assert_same(checkpoint.load(back)[key], array)


@pytest.mark.parametrize("recipe", [CT, OSS])
@pytest.mark.parametrize("elements", [1, 1 << 20])
def test_gguf(tmp_path: Path, recipe: str, elements: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_transcoded_weight, "SLAB_ELEMENTS", elements)
    draw = Draw()
    codes, raw = draw.codes(4, 3, 20, 64), draw.powers(3, 20, 2)
    kept = np.arange(12, dtype=np.float32).reshape(3, 4)
    name = "blk.0.ffn_down_exps.weight"
    tensors = {
        name: (39, (3, 20, 64), blocks(codes, raw).tobytes()),
        "n": (0, (3, 4), kept.tobytes()),
    }
    source = gguf_file(tmp_path / "model.gguf", tensors)
    out = tmp_path / "out.safetensors"
    checkpoint.transcode_file(source, out, recipe)
    found = checkpoint.load(out)
    assert_same(found.pop("n"), kept)
    parts = ("_packed", "_scale") if recipe == CT else (".blocks", ".scales")
    packed, scale = (found.pop(f"{name}{part}") for part in parts)
    shape = (3, 20, 32) if recipe == CT else (3, 20, 2, 16)
    assert_same(packed, pack(codes, 4).reshape(shape))
    assert_same(scale, raw)
    assert not found
    assert checkpoint.verify(source, out).equal
    method = json.loads(checkpoint.metadata(out)["quantization_config"])["quant_method"]
    assert method == {OSS: "mxfp4"}.get(recipe, recipe)


def test_gguf_of_two_types(tmp_path: Path) -> None:
    """Beside experts of 4 bits gpt-oss has integers of 8, whose scales are float16."""
    draw = Draw()
    codes, raw = draw.codes(4, 3, 20, 64), draw.powers(3, 20, 2)
    whole, scale = draw.codes(8, 24, 96), draw.scales(24, 3, dtype=np.float16)
    rows = np.concatenate([scale[..., None].view(np.uint8), whole.reshape(24, 3, 32)], -1)
    name = "blk.0.ffn_down_exps.weight"
    tensors = {name: (39, (3, 20, 64), blocks(codes, raw).tobytes())}
    tensors["blk.0.attn_q.weight"] = (8, (24, 96), rows.tobytes())
    source, out = gguf_file(tmp_path / "model.gguf", tensors), tmp_path / "out.safetensors"
    checkpoint.transcode_file(source, out, CT)
    assert checkpoint.verify(source, out).equal
    found = checkpoint.load(out)
    packed = found["blk.0.attn_q.weight_packed"].view(np.uint8)
    assert_same(packed ^ np.uint8(128), whole)
    assert_same(found["blk.0.attn_q.weight_scale"], scale)
    stated = json.loads(checkpoint.metadata(out)["quantization_config"])
    groups = stated["config_groups"].values()
    assert {one["format"] for one in groups} == {"mxfp4-pack-quantized", "pack-quantized"}
    with pytest.raises(CheckpointError, match=r"'blk\.0\.attn_q\.weight' is int8_group as by gguf"):
        checkpoint.transcode_file(source, tmp_path / "no.safetensors", OSS)


# NVFP4, MXFP8 and FP8 of ComfyUI


@pytest.mark.parametrize("recipe", [CT, MODELOPT])
@pytest.mark.parametrize("name", [one for one in MODELS if one.startswith("comfy, nvfp4")])
@pytest.mark.parametrize("elements", [1, 1 << 20])
def test_nvfp4_of_comfy(
    tmp_path: Path, name: str, recipe: str, elements: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nibbles change places, and scales lose their tiles and what pads them."""
    monkeypatch.setattr(_transcoded_weight, "SLAB_ELEMENTS", elements)
    model, out = MODELS[name](), tmp_path / "out"
    source = write_model(tmp_path / "model", model)
    checkpoint.transcode_file(source, out, recipe)
    found = checkpoint.load(out)
    assert_same(found.pop("a.bias"), model.tensors["a.bias"])
    packed = found["a.weight_packed" if recipe == CT else "a.weight"]
    values, scale = nibbles(packed), found["a.weight_scale"].astype(np.float32)
    assert (packed.shape, scale.shape) == ((136, 40), (136, 5))
    swapped = model.tensors["a.weight"][:136]
    assert_same(packed, swapped >> 4 | swapped << 4)
    padded = np.pad(found["a.weight_scale"].view(np.uint8), [(0, 8), (0, 0)])
    assert_same(swizzle(padded), model.tensors["a.weight_scale"].view(np.uint8))
    if recipe == CT:
        scale = scale / found["a.weight_global_scale"]
    else:
        assert_same(found["a.weight_scale_2"], model.tensors["a.weight_scale_2"])
        scale = scale * found["a.weight_scale_2"]
        values = values + np.float32(0)  # its table of values has no -0
    checkpoint.dequantize_file(out, tmp_path / "plain")
    plain = checkpoint.load(tmp_path / "plain")["a.weight"]
    assert_same(plain, (values * spread(scale, values)).astype(BF16))
    assert checkpoint.verify(source, out, arithmetic="exact").equal
    assert "a.comfy_quant" not in found
    assert checkpoint.metadata(out) == {}
    assert section(out)["quant_method"] == recipe


@pytest.mark.parametrize("recipe", [CT, MODELOPT])
@pytest.mark.parametrize("elements", [1, 1 << 20])
def test_mxfp8_of_comfy(
    tmp_path: Path, recipe: str, elements: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_transcoded_weight, "SLAB_ELEMENTS", elements)
    model, out = MODELS["comfy, mxfp8"](), tmp_path / "out"
    source = write_model(tmp_path / "model", model)
    checkpoint.transcode_file(source, out, recipe)
    found = checkpoint.load(out)
    assert_same(found["a.weight"], model.tensors["a.weight"])
    values = found["a.weight"].astype(np.float32)
    assert found["a.weight_scale"].shape == (160, 3)
    assert_same(swizzle(found["a.weight_scale"]), model.tensors["a.weight_scale"])
    plain = (values * spread(powers(found["a.weight_scale"]), values)).astype(BF16)
    assert_same(plain, model.plain["a.weight"])
    assert checkpoint.verify(source, out).equal


@pytest.mark.parametrize("recipe", [CT, MODELOPT])
def test_float8_of_comfy(tmp_path: Path, recipe: str) -> None:
    model, out = MODELS["comfy, old"](), tmp_path / "out"
    source = write_model(tmp_path / "model", model)
    checkpoint.transcode_file(source, out, recipe)
    found, shape = checkpoint.load(out), (1,) if recipe == CT else ()
    assert_same(found.pop("model.a.weight"), model.tensors["model.a.weight"])
    for old, new in (("scale_weight", "weight_scale"), ("scale_input", "input_scale")):
        assert_same(found.pop(f"model.a.{new}"), model.tensors[f"model.a.{old}"].reshape(shape))
    assert set(found) == set(KEPT)
    assert checkpoint.verify(source, out, arithmetic="exact").equal
    if recipe == CT:
        (one,) = section(out)["config_groups"].values()
        assert one["input_activations"] == one["weights"]
        assert (one["weights"]["strategy"], one["weights"]["num_bits"]) == ("tensor", 8)
    else:
        assert section(out)["quant_algo"] == "FP8"


@pytest.fixture(scope="module")
def quantized(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Path]:
    """Give the same model by a scheme and a recipe; it is to be read only."""
    folder = tmp_path_factory.mktemp("quantized")
    plain = write(folder / "plain")

    @cache
    def made(scheme: str, recipe: str) -> Path:
        out = folder / f"{scheme} {recipe}"
        checkpoint.quantize_file(plain, out, scheme, recipe=recipe)
        return out

    return made


@pytest.mark.thinned(5)
@pytest.mark.parametrize("scheme", ["nvfp4", "mxfp8_e4m3", "fp8_tensor", "fp8_channel"])
@pytest.mark.parametrize("old", [CT, MODELOPT, COMFY])
@pytest.mark.parametrize("new", [CT, MODELOPT, COMFY])
def test_from_each_to_each(
    tmp_path: Path, quantized: Callable[[str, str], Path], scheme: str, old: str, new: str
) -> None:
    """What is written is what the new producer would state of such weights."""
    if old == new or (scheme == "fp8_channel" and COMFY in (old, new)):
        return
    source, expected, out = quantized(scheme, old), quantized(scheme, new), tmp_path / "out"
    checkpoint.transcode_file(source, out, new)
    assert checkpoint.verify(source, out, arithmetic="exact").equal
    found, there = (
        {key: (array.shape, array.dtype) for key, array in checkpoint.load(one).items()}
        for one in (out, expected)
    )
    if scheme.startswith("fp8"):  # those of compressed-tensors are in the weight's dtype
        found, there = ({key: one[0] for key, one in each.items()} for each in (found, there))
    assert found == there
    names = [{one.name for one in each.iterdir()} for each in (out, expected)]
    assert names[0] == names[1]
    texts = [json.loads((one / "config.json").read_text()) for one in (out, expected)]
    assert texts[0] == texts[1]
    back = tmp_path / "back"
    checkpoint.transcode_file(out, back, old)
    again = checkpoint.load(back)
    for key, array in checkpoint.load(source).items():
        assert_same(again[key], array)


@pytest.mark.parametrize("dtype", [BF16, np.float16])
@pytest.mark.parametrize(("old", "new"), [(CT, MODELOPT), (CT, COMFY), (MODELOPT, COMFY)])
def test_global_scales_there_and_back(tmp_path: Path, dtype: Any, old: str, new: str) -> None:
    """Of two numbers whose reciprocal is the same the one that a producer computes was there."""
    random = np.random.default_rng(1)
    # The global scale of float16 weights below 2688/65504 is a float32, without such a reciprocal.
    least = -6 if dtype is np.float16 else -8
    tensors = {
        f"layers.{layer}.mlp.down_proj.weight": (
            random.standard_normal((128, 128)) * 2.0 ** random.uniform(least, -3)
        ).astype(dtype)
        for layer in range(12)
    }
    plain, source, out, back = (tmp_path / name for name in ("plain", "in", "out", "back"))
    plain.mkdir()
    checkpoint.save(plain / "model.safetensors", tensors)
    (plain / "config.json").write_text("{}")
    checkpoint.quantize_file(plain, source, "nvfp4", recipe=old)  # type: ignore[arg-type]
    checkpoint.transcode_file(source, out, new)
    checkpoint.transcode_file(out, back, old)
    again = checkpoint.load(back)
    for key, array in checkpoint.load(source).items():
        assert_same(again[key], array)


# Other schemes


@pytest.mark.parametrize("recipe", [CT, MODELOPT])
def test_mxfp4_as_nvfp4(tmp_path: Path, recipe: str) -> None:
    """The range of float8 is used to its ends; what engines fuse has one global scale."""
    raw = Draw().powers(24, 3)
    raw[0] = 131, 114, 130
    blank = Draw().codes(4, 24, 96)
    blank[1, :32] &= 8  # zeros with signs
    wide = raw.copy()
    wide[1, 0] = 0
    weights = {
        "m.q_proj": mxfp4(wide, blank),
        "m.k_proj": mxfp4(np.full((8, 3), 120, np.uint8), seed=1),
        "m.o_proj": mxfp4(np.full((8, 3), 3, np.uint8), seed=2),
        "m.zeros": mxfp4(np.zeros((8, 3), np.uint8), np.zeros((8, 96), np.uint8)),
    }
    source, out = write_model(tmp_path / "model", model_of_mxfp4(**weights)), tmp_path / "out"
    summary = checkpoint.transcode_file(source, out, recipe, scheme="nvfp4")
    assert checkpoint.verify(source, out, dtype="float32", arithmetic="exact").equal
    found = checkpoint.load(out)
    for name, parts in weights.items():
        packed = found[f"{name}.weight_packed" if recipe == CT else f"{name}.weight"]
        assert_same(packed, parts["weight_packed"])
        values, scale = nibbles(packed), found[f"{name}.weight_scale"].astype(np.float32)
        assert scale.shape[-1] * 16 == values.shape[-1]
        if recipe == CT:
            effective = scale / found[f"{name}.weight_global_scale"]
        else:
            effective = scale * found[f"{name}.weight_scale_2"]
        expected = values * spread(powers(parts["weight_scale"]), values)
        assert_same(values * spread(effective, values), expected)
    level = "weight_global_scale" if recipe == CT else "weight_scale_2"
    assert_same(found[f"m.q_proj.{level}"], found[f"m.k_proj.{level}"])
    assert float(found[f"m.q_proj.{level}"].reshape(())) == 2.0 ** (4 if recipe == CT else -4)
    assert section(out)["quant_method"] == recipe
    assert {row.target for row in summary.rows if "packed" in row.name} <= {"nvfp4", E4M3}


def test_blocks_that_nvfp4_cannot_hold(tmp_path: Path) -> None:
    raw = np.full((8, 3), 131, np.uint8)
    raw[5, 2] = 113
    codes = np.full((8, 96), 1, np.uint8)
    wrong = raw.copy()
    wrong[5, 2], wrong[6, 1] = 131, 255
    fused = {
        "m.q_proj": mxfp4(np.full((8, 3), 140, np.uint8), codes),
        "m.v_proj": mxfp4(np.full((8, 3), 120, np.uint8), codes),
    }
    for number, (weights, parts) in enumerate(
        (
            ({"a": mxfp4(raw, codes)}, ("'a.weight_packed'", "(5, 2)", "2^-14", "2^4")),
            ({"a": mxfp4(wrong, codes)}, ("'a.weight_packed'", "(6, 1)", "NaN")),
            (fused, ("'m.v_proj.weight_packed'", "(0, 0)", "'m.q_proj.weight_packed'")),
        )
    ):
        source = write_model(tmp_path / str(number), model_of_mxfp4(**weights))
        before = sorted(tmp_path.rglob("*"))
        with pytest.raises(CheckpointError) as error:
            checkpoint.transcode_file(source, tmp_path / "out", CT, scheme="nvfp4")
        assert all(part in str(error.value) for part in parts), str(error.value)
        assert sorted(tmp_path.rglob("*")) == before


def test_gpt_oss_as_nvfp4(tmp_path: Path) -> None:
    source, out = write_model(tmp_path / "model", MODELS["gpt-oss"]()), tmp_path / "out"
    checkpoint.transcode_file(source, out, CT, scheme="nvfp4")
    found = checkpoint.load(out)
    values = nibbles(found[f"{EXPERTS}.weight_packed"])
    scale = found[f"{EXPERTS}.weight_scale"].astype(np.float32)
    scale = scale / found[f"{EXPERTS}.weight_global_scale"]
    plain = (values * spread(scale, values)).astype(BF16)
    assert_same(plain.swapaxes(1, 2), MODELS["gpt-oss"]().plain[EXPERTS])


@pytest.mark.parametrize("elements", [1, 1 << 20])
def test_experts_of_modelopt(
    tmp_path: Path, elements: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ModelOpt keeps experts (in, out), as transformers has them, and packs codes along in."""
    monkeypatch.setattr(_transcoded_weight, "SLAB_ELEMENTS", elements)
    model, out, packed = MODELS["gpt-oss"](), tmp_path / "out", tmp_path / "packed"
    source = write_model(tmp_path / "model", model)
    checkpoint.transcode_file(source, out, MODELOPT, scheme="nvfp4")
    found = checkpoint.load(out)
    scale = found[f"{EXPERTS}_weight_scale"].astype(np.float32)
    scale = np.repeat(scale * found[f"{EXPERTS}_weight_scale_2"], 16, axis=1)
    values = nibbles(found[EXPERTS].swapaxes(1, 2)).swapaxes(1, 2)
    assert_same((values * scale).astype(BF16), model.plain[EXPERTS])
    assert {name for name in found if EXPERTS in name} == {
        EXPERTS,
        f"{EXPERTS}_weight_scale",
        f"{EXPERTS}_weight_scale_2",
    }
    assert section(out)["quant_algo"] == "W4A16_NVFP4"
    assert checkpoint.verify(source, out, arithmetic="exact").equal
    checkpoint.transcode_file(out, packed, CT)
    checkpoint.transcode_file(packed, tmp_path / "back", MODELOPT)
    again = checkpoint.load(tmp_path / "back")
    for name, array in found.items():
        assert_same(again[name], array)


def test_blocks_of_experts_that_modelopt_cannot_hold(tmp_path: Path) -> None:
    model = MODELS["gpt-oss"]()
    model.tensors[f"{EXPERTS}_blocks"][...] = 0x11
    scales = model.tensors[f"{EXPERTS}_scales"]
    scales[...] = 120
    scales[1, 7, 1] = 150
    source = write_model(tmp_path / "model", model)
    with pytest.raises(CheckpointError, match=r"of '.*gate_up_proj_blocks' 2\^23") as error:
        checkpoint.transcode_file(source, tmp_path / "out", MODELOPT, scheme="nvfp4")
    assert "at (1, 7, 1) of" in str(error.value)


@pytest.mark.parametrize("recipe", [MODELOPT, COMFY])
def test_experts_of_other_names(tmp_path: Path, recipe: str) -> None:
    """ModelOpt stacks those of gate_up_proj and down_proj alone, and ComfyUI none as these."""
    model = MODELS["gpt-oss"]()
    for name in [*model.tensors]:
        model.tensors[name.replace("gate_up_proj", "w1")] = model.tensors.pop(name)
    source, packed = write_model(tmp_path / "model", model), tmp_path / "packed"
    checkpoint.transcode_file(source, packed, CT, scheme="nvfp4")
    with pytest.raises(CheckpointError, match=r"w1\.weight_packed'.*each matrix by itself"):
        checkpoint.transcode_file(packed, tmp_path / "out", recipe)
    assert not (tmp_path / "out").exists()


def deepseek_v4(raw: Array, codes: Array) -> Decodable:
    """Make a dense weight of float8, and an expert of 4 bits."""
    draw = Draw()
    tensors = {
        "a.weight": draw.float8(200, 100),
        "a.scale": draw.powers(2, 1).view(E8M0),
        "w1.weight": pack(codes, 4).view(np.int8),
        "w1.scale": raw.view(E8M0),
    }
    section = stated(quant_method="fp8", weight_block_size=[128, 128], scale_fmt="ue8m0")
    return Decodable(tensors, {}, {"expert_dtype": "fp4", **section})


@pytest.mark.parametrize("elements", [1, 1 << 20])
def test_experts_of_deepseek_v4(
    tmp_path: Path, elements: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Values of 4 bits are values of float8 while the exponents of a block are near."""
    monkeypatch.setattr(_transcoded_weight, "SLAB_ELEMENTS", elements)
    raw = np.full((200, 6), 120, np.uint8)
    raw[:128, :4] += Draw().codes(3, 128, 4)
    raw[128:, :4] = 254  # whose largest products are not float32
    raw[128:, 4:] = 0
    codes = Draw(1).codes(4, 200, 192)
    codes[128:, :128] &= 0xB  # at most 1.5
    model = deepseek_v4(raw, codes)
    source, out = write_model(tmp_path / "model", model), tmp_path / "out"
    checkpoint.transcode_file(source, out, V4, scheme="fp8_block")
    assert checkpoint.verify(source, out, dtype="float32").equal
    found = checkpoint.load(out)
    for key in ("a.weight", "a.scale"):
        assert_same(found[key], model.tensors[key])
    assert (found["w1.weight"].dtype, found["w1.scale"].dtype) == (E4M3, E8M0)
    assert found["w1.scale"].shape == (2, 2)
    scale = np.repeat(np.repeat(powers(found["w1.scale"]), 128, 0)[:200], 128, 1)[:, :192]
    values = E2M1[codes]
    expected = values.astype(np.float64) * np.repeat(
        np.ldexp(1.0, raw.astype(np.int32) - 127), 32, 1
    )
    assert_same(found["w1.weight"].astype(np.float64) * scale.astype(np.float64), expected)
    config = json.loads((out / "config.json").read_text())
    before = json.loads((source / "config.json").read_text())
    assert config == {**before, "expert_dtype": "fp8"}


def test_blocks_that_float8_cannot_hold(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A dry run says that it does not look for them."""
    raw = np.full((200, 6), 120, np.uint8)
    raw[130, 5] = 104
    codes = np.full((200, 192), 7, np.uint8)
    codes[130, 170] = codes[0, 3] = 1
    before = None
    for place, found in (((130, 5), "(1, 1)"), ((0, 0), "(0, 0)")):
        raw[place] = 104
        source = write_model(tmp_path / found, deepseek_v4(raw, codes))
        before = sorted(tmp_path.rglob("*"))
        command = ["transcode", str(source), str(tmp_path / "out"), "--to", V4]
        assert main([*command, "--scheme", "fp8_block", "--dry-run"]) == 0
        assert "a value that the other form cannot hold is found" in capsys.readouterr().out
        with pytest.raises(CheckpointError) as error:
            checkpoint.transcode_file(source, tmp_path / "out", V4, scheme="fp8_block")
        assert "tensor 'w1.weight': the 128x128 block at " in str(error.value)
        assert sorted(tmp_path.rglob("*")) == before
        raw[place] = 120
        assert found in str(error.value)


def test_what_goes_nowhere(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2, a name and the remedy, nothing written."""

    def refused(source: Path, *arguments: str, says: tuple[str, ...]) -> None:
        before = sorted(tmp_path.rglob("*"))
        assert main(["transcode", str(source), str(tmp_path / "out"), "--to", *arguments]) == 2
        said = capsys.readouterr()
        assert said.out == ""
        assert all(part in said.err for part in says), said.err
        assert sorted(tmp_path.rglob("*")) == before

    models = {
        name: write_model(tmp_path / name.replace(",", ""), MODELS[name]())
        for name in ("comfy, float8", "compressed-tensors, mxfp4", "deepseek-v4", "mlx, mxfp4")
    }
    packed = models["compressed-tensors, mxfp4"]
    refused(packed, OSS, says=("'a.weight_packed'", "in one tensor only"))
    refused(packed, MODELOPT, says=("'a.weight_packed' is mxfp4", "no mxfp4 of modelopt"))
    refused(packed, "mlx", says=("--to mlx: ", CT, "castwise quantize"))
    refused(packed, CT, "--scheme", "mxfp8_e4m3", says=("--scheme mxfp8_e4m3: ", "nvfp4"))
    refused(packed, V4, "--scheme", "fp8_block", says=("'a.weight_packed' is mxfp4", CT))
    refused(models["comfy, float8"], CT, says=("'a.weight'", "(8, 4, 3, 3)"))
    refused(models["deepseek-v4"], CT, says=("'a.weight' is fp8_block", V4))
    refused(models["mlx, mxfp4"], CT, says=("'a.weight' is mxfp4 as by mlx",))
    ragged = write_model(tmp_path / "ragged", MODELS[f"{MODELOPT}, nvfp4"]())
    refused(ragged, COMFY, says=("'a.weight' is a matrix of 24x64", "16x16"))
    wide = write_model(tmp_path / "wide", MODELS["modelopt, nvfp4 in blocks of 32"]())
    refused(wide, CT, says=("'a.weight' has blocks of 1x32",))
    unequal = MODELS["modelopt, nvfp4"]()
    one = {name.removeprefix("a."): array for name, array in unequal.tensors.items()}
    two = one | {"weight_scale_2": one["weight_scale_2"] * np.float32(2)}
    pair = {"mlp.gate_proj": one, "mlp.up_proj": two}
    unequal.tensors = {
        f"{at}.{name}": part for at, own in pair.items() for name, part in own.items()
    }
    levels = tuple(f"'{at}.weight_scale_2'" for at in pair)
    refused(write_model(tmp_path / "unequal", unequal), CT, says=(*levels, "engines fuse"))
    old = MODELS["comfy, old"]()
    old.tensors["model.a.weight"] = old.tensors["model.a.weight"].view(ml_dtypes.float8_e5m2)
    refused(write_model(tmp_path / "e5m2", old), CT, says=("'model.a.weight' is float8_e5m2",))
