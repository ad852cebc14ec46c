# ruff: noqa: PLC0415 - a library is imported by the tests that need it
"""What torchao saves through safetensors is decoded to what its tensors decode themselves to."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from castwise import checkpoint
from castwise.checkpoint import CheckpointError
from checkpoint_samples import assert_same
from producers import array


def of(name: str, **options: Any) -> Callable[[], Any]:
    """Make a configuration of torchao, its options by their names there."""

    def make() -> Any:
        import torchao.quantization as ao

        made = {key: value(ao) if callable(value) else value for key, value in options.items()}
        return getattr(ao, name)(**made)

    return make


def groups(size: int) -> Callable[[Any], Any]:
    return lambda ao: ao.PerGroup(size)


CONFIGS: dict[str, Callable[[], Any]] = {
    "float8": of("Float8WeightOnlyConfig"),
    "int8": of("Int8WeightOnlyConfig"),
    "int8, dynamic": of("Int8DynamicActivationInt8WeightConfig"),
    "int8, groups": of("Int8WeightOnlyConfig", granularity=groups(32)),
    "int8, tensor": of("Int8WeightOnlyConfig", granularity=lambda ao: ao.PerTensor()),
    "int4 in bytes": of("IntxWeightOnlyConfig", weight_dtype=torch.int4, granularity=groups(32)),
    "int8 in bytes, asymmetric": of(
        "IntxWeightOnlyConfig",
        weight_dtype=torch.int8,
        granularity=groups(16),
        mapping_type=lambda ao: ao.MappingType.ASYMMETRIC,
    ),
    "int3 in bytes, rows": of(
        "IntxWeightOnlyConfig", weight_dtype=torch.int3, granularity=lambda ao: ao.PerAxis(0)
    ),
}


def saved(path: Path, config: Any, dtype: torch.dtype) -> Any:
    """Save a quantised layer as transformers does; returns the weight."""
    from safetensors.torch import save_file
    from torchao.prototype.safetensors.safetensors_support import flatten_tensor_state_dict
    from torchao.quantization import quantize_

    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(64, 48)).to(dtype)
    quantize_(model, config)
    state = model.state_dict()
    tensors, metadata = flatten_tensor_state_dict(state)
    save_file(tensors, path, metadata)
    return state["0.weight"]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", CONFIGS)
def test_a_weight(tmp_path: Path, name: str, dtype: str) -> None:
    source, out = tmp_path / "in.safetensors", tmp_path / "out.safetensors"
    weight = saved(source, CONFIGS[name](), getattr(torch, dtype))
    checkpoint.dequantize_file(source, out, dtype)
    found = checkpoint.load(out)
    assert_same(found["0.weight"], array(weight.dequantize()))
    assert found.keys() == {"0.weight", "0.bias"}
    assert checkpoint.metadata(out) == {}


def test_what_is_not_decoded(tmp_path: Path) -> None:
    from torchao.prototype.mx_formats import NVFP4WeightOnlyConfig

    saved(source := tmp_path / "in.safetensors", NVFP4WeightOnlyConfig(), torch.bfloat16)
    with pytest.raises(CheckpointError, match="cannot decode torchao's NVFP4Tensor yet"):
        checkpoint.dequantize_file(source, tmp_path / "out.safetensors")
