"""Scales of attention and its caches: a plain model has none, and they are called what they are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from castwise import checkpoint
from castwise.checkpoint import CheckpointError
from producer_models import KEPT, MODELS, write

SELF = "model.layers.0.self_attn."
NAMES = {
    "scales of caches": (
        *("k_scale", "v_scale", "kv_scale", "attn.k_scale", "k_proj.k_scale", "qkv_proj.v_scale"),
        *("k_proj.output_scale", "v_proj.output_scale", "k_proj.output_zero_point"),
        *("k_zero_point", "v_global_scale", "kv_cache_scale", "kv_cache_scaling_factor"),
        *("k_fake_quantizer.qscale_act", "kv_fake_quantizer.qscale_act"),
        *("k_proj.k_bias", "v_proj.v_bias", "v_bmm_quantizer._amax"),
    ),
    "scales of attention": (
        *("q_scale", "attn.q_scale", "q_zero_point", "prob_output_scale", "attn.prob_scale"),
        *("q_proj.output_scale", "q_fake_quantizer.qscale_act"),
    ),
}
OF_MODELS = ("k_proj.bias", "q_norm.scale", "k_bias", "logit_scale", "scale", "v_scale.weight")
"""Names that belong to models as well."""


@pytest.mark.thinned(3)
@pytest.mark.parametrize(("kind", "name"), [(kind, one) for kind in NAMES for one in NAMES[kind]])
@pytest.mark.parametrize("recipe", ["autofp8", "compressed-tensors, nvfp4", "modelopt, nvfp4"])
def test_they_are_left_out_by_their_names(
    tmp_path: Path, recipe: str, kind: str, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    model = MODELS[recipe]()
    source = write(tmp_path / "in", model, **{SELF + name: np.ones(1, np.float32)})
    checkpoint.dequantize_file(source, tmp_path / "out")
    assert checkpoint.load(tmp_path / "out").keys() == {*model.plain, *KEPT}
    assert f"left out, as an unquantized model has none: {kind}, 1: {SELF}{name}" in caplog.text
    found = checkpoint.inspect(source).quantization
    assert found is not None
    assert found.others == (SELF + name,)
    with pytest.raises(CheckpointError, match=r"caches"):
        checkpoint.transcode_file(source, tmp_path / "no", "comfy")


@pytest.mark.parametrize("name", ["k_proj", "q_proj", "o_proj"])
def test_scales_of_outputs_beside_a_weight(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Those of keys and values are of the caches."""
    model = MODELS["autofp8"]()
    weight = {key.replace("a.", f"{SELF}{name}."): array for key, array in model.tensors.items()}
    source = write(
        tmp_path / "in", model, **weight, **{f"{SELF}{name}.output_scale": np.ones(1, np.float32)}
    )
    checkpoint.dequantize_file(source, tmp_path / "out")
    kind = {"k_proj": "caches", "q_proj": "attention"}.get(name, "outputs")
    assert f"scales of {kind}, 1: {SELF}{name}.output_scale" in caplog.text


@pytest.mark.parametrize("name", OF_MODELS)
def test_what_models_have_stays(tmp_path: Path, name: str) -> None:
    model = MODELS["autofp8"]()
    source = write(tmp_path / "in", model, **{SELF + name: np.ones(1, np.float32)})
    checkpoint.dequantize_file(source, tmp_path / "out")
    assert SELF + name in checkpoint.load(tmp_path / "out")
