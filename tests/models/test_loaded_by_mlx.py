"""mlx-lm loads what castwise writes of every architecture that both know, as castwise decodes it.

A tenth of them by default, another each day; all by `pytest tests/models --architectures 1`.
"""

from __future__ import annotations

import json
import pkgutil
import random
import warnings
from pathlib import Path
from typing import Any

import peers
import pytest
from castwise import checkpoint
from castwise.quantization.producers.consumers import find_consumer

peers.need("torch", "transformers", "mlx_lm")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import loading
    import mlx.core as mx
    import mlx_lm.models
    import tiny
    from mlx.utils import tree_flatten
    from mlx_lm.utils import MODEL_REMAPPING, load_model

SCHEMES = ("int4_group", "int8_group", "mxfp4", "mxfp8_e4m3", "nvfp4")
PARTS = {"weight", "scales", "biases"}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Draw the types; the name of a case has the number that draws it again."""
    if "model_type" not in metafunc.fixturenames:
        return
    one_in, draw = (metafunc.config.getoption(name) for name in ("architectures", "draw"))
    known = {*MODEL_REMAPPING, *(row.name for row in pkgutil.iter_modules(mlx_lm.models.__path__))}
    types = [name for name in tiny.model_types() if name in known]
    random.Random(draw).shuffle(types)
    drawn = sorted(types[:: max(1, one_in)])
    names = [name if one_in == 1 else f"{name}-draw{draw}" for name in drawn]
    metafunc.parametrize("model_type", drawn, ids=names)


def save(model_type: str, folder: Path) -> None:
    """Save a tiny model, whose configuration states twice what mlx-lm reads under older names."""
    tiny.build(model_type).save_pretrained(folder)
    path = folder / "config.json"
    config = json.loads(path.read_text())
    for section in (config, config.get("text_config") or {}):
        rope = section.get("rope_parameters") or {}
        if "rope_theta" in rope:
            section.setdefault("rope_theta", rope["rope_theta"])
        if "num_local_experts" in section:
            section.setdefault("num_experts", section["num_local_experts"])
        width, heads = (section.get(key) for key in ("hidden_size", "num_attention_heads"))
        if width and heads and section.get("head_dim") is None:
            section["head_dim"] = width // heads
    path.write_text(json.dumps(config))


def weights(folder: Path) -> dict[str, Any]:
    """Return the parameters that mlx-lm has of a folder, in the place of codes what they mean."""
    model, _ = load_model(folder, lazy=False)
    coded = {name: module for name, module in model.named_modules() if hasattr(module, "scales")}
    found = {
        name: value
        for name, value in tree_flatten(model.parameters())
        if name.rpartition(".")[0] not in coded or name.rpartition(".")[2] not in PARTS
    }
    for name, module in coded.items():
        parts = module.weight, module.scales, module.get("biases"), module.group_size, module.bits
        decoded = mx.dequantize(*parts, mode=module.mode, dtype=mx.bfloat16)
        found[f"{name}.weight"] = decoded
    return found


def differences(quantized: Path) -> list[str]:
    """Return which parameters differ from what castwise decodes, or why it is not loaded."""
    checkpoint.dequantize_file(quantized, decoded := quantized.with_name("decoded"), overwrite=True)
    expected = weights(decoded)
    try:
        found = weights(quantized)
    except Exception as error:
        return [f"{type(error).__name__}: {error}"]
    return [
        name
        for name, value in expected.items()
        if name not in found
        or found[name].shape != value.shape
        or not mx.array_equal(value, found[name], equal_nan=True)
    ]


@pytest.mark.filterwarnings("ignore")
def test_mlx_lm_loads(model_type: str, tmp_path: Path) -> None:
    tiny.quiet()
    plain, wrong = tmp_path / "plain", dict[str, str]()
    try:
        save(model_type, plain)
        weights(plain)
    except (Exception, SystemExit) as error:  # OLMo's module ends the process
        pytest.skip(f"mlx-lm does not load the model as it is saved: {type(error).__name__}")
    for scheme in SCHEMES:
        folder = tmp_path / scheme
        folder.mkdir()
        options: Any = {"recipe": "mlx", "consumer": "mlx-lm"}
        try:
            checkpoint.quantize_file(plain, folder / "quantized", scheme, **options)
        except checkpoint.CheckpointError as error:
            if loading.NOT_LOADED not in str(error):
                continue
            loading.write_anyway(plain, folder / "quantized", "mlx", scheme)
            if not differences(folder / "quantized"):
                wrong[scheme] = f"refused needlessly: {error}"
            continue
        if names := differences(folder / "quantized"):
            wrong[scheme] = f"{len(names)}: {'; '.join(names[:6])}"
    assert not wrong, wrong


def test_the_schemes_are_what_it_loads() -> None:
    (row,) = find_consumer("mlx-lm").loads
    assert {*SCHEMES} <= {*row.schemes}
