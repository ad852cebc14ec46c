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
from castwise.quantization.producers.consumers import find_consumer

peers.need("torch", "transformers", "compressed_tensors", "accelerate")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import loading
    import tiny

FORMS = {"schemes": "llama", "experts": "mixtral", "stacks": "gpt_oss"}
"""Types with the weights of linear layers, of experts one by one, and of all in one tensor."""

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
        loading.write_anyway(tmp_path / "plain", tmp_path / "quantized", recipe, scheme)
    except CheckpointError:
        loads = False  # nobody stores it so
    else:
        loads = loading.loaded(model, tmp_path / "quantized").kind == loading.EQUAL
    assert loads == (scheme in getattr(row, form))
