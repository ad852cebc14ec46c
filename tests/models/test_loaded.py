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
AMISS = {
    "bailing_hybrid": "shapes of integers' weights that transformers joins",
    "ctrl": "its own sum mixes dtypes",
    "glm5_next": "results of equal weights",
    "hy_v4_vl_vision": "codes that transformers decodes in float32",
    "ibert": "bias_integer is beside a weight",
    "lw_detr": "a matrix without elements",
    "mistral_large4": "queries and keys whose rows transformers permutes, and not their scales",
    "mobilebert": "a matrix without elements",
    "nemotron_h_omni": "a linear layer and a norm in one nn.Sequential",
    "olmo_hybrid": "shapes and scales of weights that transformers joins",
    "pe_audio": "a name that ends with that of a layer that is left",
    "qianfan_ocr": "a linear layer and a norm in one nn.Sequential",
    "qwen3_vl_moe": "experts that are saved (out, in), and published (in, out)",
    "rf_detr": "attention in one tensor, which loads with dequantize=True alone",
    "sarvam_moe": "queries, keys and values that transformers parts, of no row in the table",
    "shieldgemma2": "a name that its own class does not load",
    "speech-encoder-decoder": "a tied head of the decoder's own class",
    "tipsv2_dpt": "a weight that transformers parts, and the table lacks",
    "unlimited_ocr": "a rename of one weight, and not of its scale",
    "vision-encoder-decoder": "a tied head of the decoder's own class",
}
"""Types of which a scheme is loaded amiss or refused needlessly, and what is to blame."""

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
    if model_type in AMISS:
        assert wrong, f"{model_type} is loaded: take it from AMISS"
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
