# ruff: noqa: PLC0415 - a library is imported by the tests that need it
"""What is transcoded decodes, in the library of its new producer, to what it decodes to here."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from castwise import checkpoint
from castwise.quantization import QuantizedArray, dequantize
from checkpoint_samples import assert_same
from producer_libraries import array, tensor
from producer_models import MODELS, Decodable, Draw, write
from producer_models.awq_gptq import TRANSCODABLE, gptq
from producer_models.compressed_tensors import model_of_mxfp4, mxfp4

CT = "compressed-tensors"
EXPERTS = "mlp.experts.gate_up_proj"
WRITTEN: dict[str, tuple[Callable[[], Decodable], str, str | None]] = {
    **{
        name: (make, "a", None)
        for name, (make, *_) in TRANSCODABLE.items()
        if "reordered" not in name
    },
    "gptq, uneven": (gptq(8, "gptq_v2", group=64), "a", None),
    "comfy, nvfp4": (MODELS["comfy, nvfp4, marker"], "a", None),
    "comfy, mxfp8": (MODELS["comfy, mxfp8"], "a", None),
    "comfy, float8": (MODELS["comfy, old"], "model.a", None),
    "gpt-oss": (MODELS["gpt-oss"], EXPERTS, None),
    "gpt-oss, nvfp4": (MODELS["gpt-oss"], EXPERTS, "nvfp4"),
    "mxfp4, nvfp4": (lambda: model_of_mxfp4(a=mxfp4(Draw().powers(24, 3))), "a", "nvfp4"),
}
"""For each model the module, and the scheme that it gets."""


def decoded(parts: dict[str, Any], section: dict[str, Any]) -> Any:
    """Decode a module, or stack of them, as compressed-tensors does."""
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationConfig

    scheme = QuantizationConfig.model_validate(section).config_groups["group_0"]
    compressor = BaseCompressor.get_value_from_registry(section["format"])
    stacked = [name for name, part in parts.items() if part.ndim == 3]
    if not stacked:
        return compressor.decompress(parts, scheme)["weight"]
    count = len(parts[stacked[0]])
    one = [parts | {name: parts[name][place] for name in stacked} for place in range(count)]
    return torch.stack([compressor.decompress(each, scheme)["weight"] for each in one])


@pytest.mark.parametrize("name", WRITTEN)
def test_as_compressed_tensors(tmp_path: Path, name: str) -> None:
    make, module, scheme = WRITTEN[name]
    out, again = tmp_path / "out", tmp_path / "again"
    checkpoint.transcode_file(write(tmp_path / "model", make()), out, CT, scheme=scheme)
    section = json.loads((out / "config.json").read_text())["quantization_config"]
    found = checkpoint.load(out).items()
    parts = {
        key.removeprefix(f"{module}."): tensor(part)
        for key, part in found
        if key.startswith(f"{module}.weight")
    }
    theirs = array(decoded(parts, section))
    checkpoint.dequantize_file(out, again, theirs.dtype)
    assert_same(checkpoint.load(again)[f"{module}.weight"], theirs)


@pytest.mark.parametrize("scheme", ["nvfp4", "mxfp8_e4m3"])
@pytest.mark.parametrize("recipe", [CT, "modelopt"])
def test_as_comfy(tmp_path: Path, scheme: str, recipe: str) -> None:
    import comfy_kitchen as ck

    weight = np.random.default_rng(0).standard_t(4, size=(160, 96)).astype(ml_dtypes.bfloat16)
    plain, model, out = (tmp_path / f"{one}.safetensors" for one in ("plain", "model", "out"))
    checkpoint.save(plain, {"a.weight": weight})
    checkpoint.quantize_file(plain, model, scheme, recipe=recipe)
    checkpoint.transcode_file(model, out, "comfy")
    found = checkpoint.load(out)
    data, scale = (tensor(found[f"a.weight{one}"]) for one in ("", "_scale"))
    with ck.registry.use_backend("eager"):
        if scheme == "nvfp4":
            level = tensor(found["a.weight_scale_2"])
            theirs = ck.dequantize_nvfp4(data, level, scale, torch.bfloat16)
        else:
            theirs = ck.dequantize_mxfp8(data, scale.view(torch.float8_e8m0fnu), torch.bfloat16)
    parts = {name.removeprefix("a."): part for name, part in found.items()}
    ours = QuantizedArray.from_parts(parts, "comfy", (160, 96), scheme=scheme)
    np.testing.assert_array_equal(array(theirs), dequantize(ours))
    checkpoint.dequantize_file(out, tmp_path / "again.safetensors")
    assert_same(checkpoint.load(tmp_path / "again.safetensors")["a.weight"], array(theirs))
    assert checkpoint.verify(model, out, arithmetic="exact").equal
