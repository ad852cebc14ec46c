"""transformers loads what castwise writes of every architecture, and computes what it decodes.

A tenth of them by default, another each day; all by `pytest tests/models --architectures 1`.
"""

from __future__ import annotations

import random
import warnings
from pathlib import Path

import peers
import pytest
from castwise.checkpoint import CheckpointError
from castwise.quantization.producers import find_consumer

peers.need("torch", "transformers", "compressed_tensors", "accelerate")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import loading
    import tiny

FORMS = {"schemes": "llama", "experts": "mixtral", "stacks": "gpt_oss"}
"""Types with the weights of linear layers, of experts one by one, and of all in one tensor."""
AMISS = """
axk2 bailing_hybrid bark blt cohere_asr ctrl deepseek_v4 depth_anything depth_pro dinov2
dinov2_with_registers dots1 esm fuyu git glm5_next gradium_phonon_tts
granite_speech5_ctc gte hrm_text hunyuan_v1_moe hy_v4_vl_vision ibert jina_embeddings_v3
kimi_k25 lw_detr minimax_m3_vl mistral_large4 mistral_large4_text mobilebert molmo2_text
nemo_speechlm nemotron_h_omni nomic_bert olmo_hybrid pe_audio phimoe
prompt_depth_anything qianfan_ocr qwen3_vl_moe radio rf_detr rt_detr_v2 sam3_video
sarvam_moe shieldgemma2 sam3_tracker_video speech-encoder-decoder ultrabert textnet tipsv2
tipsv2_dpt
tipsv2_text_model tipsv2_vision_model ultravbert unlimited_ocr vision-encoder-decoder
voxtral_realtime
"""
"""Types of which a recipe is loaded amiss: modules that transformers renames or splits, first."""

CELLS = [(recipe, scheme) for recipe, schemes in loading.RECIPES.items() for scheme in schemes]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Draw the types; the name of a case has the number that draws it again."""
    if "model_type" not in metafunc.fixturenames:
        return
    one_in, draw = (metafunc.config.getoption(name) for name in ("architectures", "draw"))
    types = list(tiny.model_types())
    random.Random(draw).shuffle(types)
    drawn = sorted(types[:: max(1, one_in)])
    names = [name if one_in == 1 else f"{name}-draw{draw}" for name in drawn]
    metafunc.parametrize("model_type", drawn, ids=names)


@pytest.mark.filterwarnings("ignore")
def test_transformers_loads(model_type: str, tmp_path: Path) -> None:
    tiny.quiet()
    try:
        found = list(loading.outcomes(model_type, tmp_path))
    except NotImplementedError as error:
        pytest.skip(str(error))
    wrong = [
        f"{recipe} {scheme}: {outcome.kind}: {outcome.reason}"
        for recipe, scheme, outcome in found
        if outcome.kind not in loading.RIGHT
    ]
    if wrong and model_type in AMISS.split():
        pytest.xfail("\n".join(wrong))
    assert not wrong, "\n".join(wrong)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("recipe", "scheme"), CELLS)
@pytest.mark.parametrize("form", FORMS)
def test_the_table_of_consumers_is_what_loads(
    form: str, recipe: str, scheme: str, tmp_path: Path
) -> None:
    tiny.quiet()
    model = tiny.build(FORMS[form])
    model.save_pretrained(tmp_path / "plain")
    row = next(row for row in find_consumer("transformers").loads if row.recipe == recipe)
    try:
        loading.write_anyway(tmp_path / "plain", tmp_path / "quantised", recipe, scheme)
    except CheckpointError:
        loads = False  # nobody stores it so
    else:
        loads = loading.loaded(model, tmp_path / "quantised").kind == loading.EQUAL
    assert loads == (scheme in getattr(row, form))
