# ruff: noqa: PLC0415 - each library is imported by the tests that need it
"""What is advised for transformers and mlx-lm loads there, and decodes as castwise decodes it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from castwise import checkpoint
from castwise.checkpoint import Advice, advise
from castwise.quantization import Loading, consumers
from castwise.quantization.producers.registry import WRITTEN

LOADS: dict[tuple[str, str], Loading] = {
    (consumer.name, loading.recipe): loading
    for consumer in consumers()
    for loading in consumer.loads
}
TRANSFORMERS = LOADS["transformers", "compressed-tensors"]
MLX = LOADS["mlx-lm", "mlx"]
AFFINE = {row.scheme for row in WRITTEN if row.recipe == "mlx" and not row.symmetric}
SIZES: dict[str, Any] = {
    "hidden_size": 256,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "vocab_size": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "initializer_range": 0.1,
}
OF_EXPERTS = {"moe_intermediate_size": 256, "num_experts": 3, "num_experts_per_tok": 2}


def saved(folder: Path, name: str, **options: Any) -> Path:
    import transformers

    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**SIZES, **options)
    model = getattr(transformers, f"{name}ForCausalLM")(config).to(torch.bfloat16)
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("models") / "dense", "Llama")


@pytest.fixture(scope="module")
def experts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("models") / "experts", "Qwen3Moe", **OF_EXPERTS)


def carried_out(advice: Advice, folder: Path) -> Path:
    """Quantize by the saved map; returns the folder, beside one of what castwise decodes."""
    advice.save(folder / "map.toml")
    recipe: Any = advice.recipe
    result = folder / "result"
    checkpoint.quantize_file(advice.source, result, dtype_map=folder / "map.toml", recipe=recipe)
    checkpoint.dequantize_file(result, folder / "decoded")
    return result


def same_logits(result: Path) -> bool:
    """Tell whether transformers computes of a folder what it does of the decoded one."""
    from transformers import AutoModelForCausalLM

    tokens, found = torch.arange(1, 17)[None], []
    for folder in (result, result.with_name("decoded")):
        model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype="auto").eval()
        with torch.no_grad():
            found.append(model(tokens).logits)
    return torch.equal(*found)


@pytest.mark.parametrize("scheme", TRANSFORMERS.schemes)
def test_transformers_loads(tmp_path: Path, dense: Path, scheme: Any) -> None:
    advice = advise(dense, error=1.0, formats=[scheme], consumer="transformers")
    assert set(advice.map.values()) == {scheme}
    assert same_logits(carried_out(advice, tmp_path))


@pytest.mark.parametrize("scheme", TRANSFORMERS.experts)
def test_transformers_loads_experts(tmp_path: Path, experts: Path, scheme: Any) -> None:
    advice = advise(experts, error=1.0, formats=[scheme], consumer="transformers")
    assert any("experts" in pattern for pattern in advice.map)
    assert same_logits(carried_out(advice, tmp_path))


@pytest.mark.parametrize("scheme", sorted({*TRANSFORMERS.schemes} - {*TRANSFORMERS.experts}))
def test_transformers_does_not_load_other_experts(
    tmp_path: Path, experts: Path, scheme: Any
) -> None:
    try:
        checkpoint.quantize_file(experts, tmp_path / "result", scheme, recipe="compressed-tensors")
    except checkpoint.CheckpointError as error:  # no other consumer loads them, either
        assert f"transformers decodes no experts from {scheme}" in str(error)  # noqa: PT017
        return
    checkpoint.dequantize_file(tmp_path / "result", tmp_path / "decoded")
    try:
        loads = same_logits(tmp_path / "result")
    except RuntimeError:  # it cannot convert them to one tensor
        loads = False
    assert not loads


@pytest.mark.parametrize("error", [1e-4, 1e-3, 1e-2])
@pytest.mark.parametrize("kind", ["dense", "experts"])
def test_transformers_loads_several(
    tmp_path: Path, kind: str, error: float, request: pytest.FixtureRequest
) -> None:
    advice = advise(request.getfixturevalue(kind), error=error, consumer="transformers")
    assert advice.map
    assert same_logits(carried_out(advice, tmp_path))


def weights_of_mlx(folder: Path) -> dict[str, Any]:
    """Return what mlx-lm loads of quantized linear layers and embeddings, decoded there."""
    import mlx.core as mx
    import numpy as np
    from mlx import nn
    from mlx_lm.utils import load_model

    model, _ = load_model(folder)
    logits = model(mx.arange(1, 17)[None])
    assert mx.isfinite(logits).all()
    return {
        f"{name}.weight": np.asarray(
            mx.dequantize(
                module.weight,
                module.scales,
                module.get("biases"),
                module.group_size,
                module.bits,
                mode=module.mode,
                dtype=mx.bfloat16,
            ).astype(mx.float32)
        )
        for name, module in model.named_modules()
        if isinstance(module, nn.QuantizedLinear | nn.QuantizedEmbedding)
    }


def same_weights(result: Path) -> bool:
    """Tell whether mlx-lm decodes as castwise does what is quantized."""
    import numpy as np

    loaded = weights_of_mlx(result)
    found = checkpoint.inspect(result).quantization
    assert found is not None
    assert set(loaded) == {weight.name for weight in found.weights}
    decoded = checkpoint.load(result.with_name("decoded"))
    return all(
        np.array_equal(values, decoded[name].astype(np.float32)) for name, values in loaded.items()
    )


@pytest.mark.parametrize("scheme", MLX.schemes)
def test_mlx_lm_loads(tmp_path: Path, dense: Path, scheme: Any) -> None:
    if scheme in AFFINE:  # whose errors are not predicted
        checkpoint.quantize_file(dense, tmp_path / "result", scheme, recipe="mlx")
        checkpoint.dequantize_file(tmp_path / "result", tmp_path / "decoded")
    else:
        carried_out(advise(dense, error=1.0, formats=[scheme], consumer="mlx-lm"), tmp_path)
    assert same_weights(tmp_path / "result")


def test_mlx_lm_loads_several(tmp_path: Path, dense: Path) -> None:
    advice = advise(dense, error=3e-3, consumer="mlx-lm")
    assert len(set(advice.map.values())) > 1
    assert same_weights(carried_out(advice, tmp_path))


def test_arrays_are_compared(tmp_path: Path, dense: Path) -> None:
    """Other weights would be told from these."""
    result = carried_out(advise(dense, error=1.0, consumer="mlx-lm"), tmp_path)
    file = tmp_path / "decoded" / "model.safetensors"
    values = {name: weight + 1 for name, weight in checkpoint.load(file).items()}
    checkpoint.save(file, values, overwrite=True)
    assert not same_weights(result)
