"""Whole models as compressed-tensors stores them, made by it and by castwise, in transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from castwise import checkpoint
from castwise.quantization.producers.producer import Written
from castwise.quantization.producers.registry import WRITTEN
from producer_libraries import WRITERS, llama

CT = "compressed-tensors"
SCHEMES = [row.scheme for row in WRITTEN if row.recipe == CT]
LOADED = [row for row in WRITTEN if row.recipe in {CT, "modelopt"}]
MADE = [name for name in WRITERS if name.startswith(CT)]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "plain"
    torch.manual_seed(0)
    llama().save_pretrained(folder)
    return folder


def same_logits(model: Path, decoded: Path) -> None:
    """Compare what castwise decoded with what compressed-tensors decodes when it is loaded."""
    from transformers import AutoModelForCausalLM, CompressedTensorsConfig  # noqa: PLC0415

    ours: Any = AutoModelForCausalLM.from_pretrained(decoded).eval()
    peer: Any = AutoModelForCausalLM.from_pretrained(
        model, quantization_config=CompressedTensorsConfig(run_compressed=False)
    ).eval()
    for name, parameter in ours.named_parameters():
        assert torch.equal(parameter, peer.get_parameter(name)), name
    tokens = torch.arange(1, 17)[None]
    with torch.no_grad():
        assert torch.equal(ours(tokens).logits, peer(tokens).logits)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_written_by_castwise(tmp_path: Path, plain: Path, scheme: str) -> None:
    checkpoint.quantize_file(plain, tmp_path / "model", scheme, recipe=CT)
    checkpoint.dequantize_file(tmp_path / "model", tmp_path / "decoded")
    same_logits(tmp_path / "model", tmp_path / "decoded")


@pytest.mark.parametrize("name", MADE)
def test_made_by_compressed_tensors(tmp_path: Path, plain: Path, name: str) -> None:
    WRITERS[name](plain, tmp_path / "model")
    checkpoint.dequantize_file(tmp_path / "model", tmp_path / "decoded")
    same_logits(tmp_path / "model", tmp_path / "decoded")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("row", LOADED, ids=lambda row: f"{row.recipe}-{row.scheme}")
def test_what_transformers_does_not_run_is_warned_of(
    tmp_path: Path,
    plain: Path,
    caplog: pytest.LogCaptureFixture,
    row: Written,
    dtype: torch.dtype,
) -> None:
    """It is loaded as everybody loads it, and computes about what the plain model does."""
    from transformers import AutoModelForCausalLM  # noqa: PLC0415

    name = str(dtype).removeprefix("torch.")
    checkpoint.cast_file(plain, tmp_path / "plain", name)
    block = 64 if row.square else None  # smaller than the smallest weight
    checkpoint.quantize_file(
        tmp_path / "plain",
        tmp_path / "model",
        row.scheme,
        recipe=row.recipe,
        block=block and (block, block),
    )
    tokens = torch.arange(1, 17)[None]
    runs = True
    try:
        peer: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype="auto").eval()
        ours: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "plain", dtype="auto").eval()
        with torch.no_grad():
            found, wanted = peer(tokens).logits.double(), ours(tokens).logits.double()
        runs = bool((found - wanted).norm() < wanted.norm() / 2)
    except RuntimeError:
        runs = False
    assert ("in transformers" in caplog.text or "not for transformers" in caplog.text) != runs
