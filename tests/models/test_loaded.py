"""transformers loads what castwise writes of every architecture, and computes what it decodes.

A tenth of them by default, another each day; all by `pytest tests/models --architectures 1`.
"""

from __future__ import annotations

import random
import warnings
from pathlib import Path

import peers
import pytest

peers.need("torch", "transformers", "compressed_tensors", "accelerate")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import loading
    import tiny

UPSTREAM: dict[str, str] = {}
"""Types that transformers itself cannot load so, by what it raises."""


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
