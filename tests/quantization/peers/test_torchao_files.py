# ruff: noqa: PLC0415 - a library is imported by the tests that need it
"""What torchao saves through safetensors is decoded to what its tensors decode themselves to."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from castwise import checkpoint
from checkpoint_samples import assert_same
from producer_libraries import array


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
    """Save a quantized layer as transformers does; returns the weight."""
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


KINDS = ("float4_e2m1fn_x2", "fp6_e2m3", "fp6_e3m2", "float8_e4m3fn", "float8_e5m2", "nvfp4")


def in_blocks(kind: str, shape: tuple[int, ...], *, tiled: bool) -> Any:
    """Make a tensor in blocks of rows, whose rows are of very different sizes."""
    from torchao.prototype.mx_formats.mx_tensor import MXTensor
    from torchao.prototype.mx_formats.nvfp4_tensor import NVFP4Tensor

    torch.manual_seed(2)
    sizes = torch.exp2(torch.randint(-60, 60, (*shape[:-1], 1)).float())
    if kind == "nvfp4":
        values = torch.randn(*shape).bfloat16()
        level = values.abs().amax(dim=(-2, -1), keepdim=True).float() / 2688
        level = level if len(shape) > 2 else level.reshape(())
        return NVFP4Tensor.to_nvfp4(values, per_tensor_scale=level, is_swizzled_scales=tiled)
    element = getattr(torch, kind, kind)
    values = (torch.randn(*shape) * sizes).bfloat16()
    return MXTensor.to_mx(values, element, 32, is_swizzled_scales=tiled)


def written(path: Path, tensor: Any) -> Path:
    from safetensors.torch import save_file
    from torchao.prototype.safetensors.safetensors_support import flatten_tensor_state_dict

    tensors, metadata = flatten_tensor_state_dict({"0.weight": tensor})
    save_file(tensors, path, metadata)
    return path


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("shape", [(48, 64), (200, 160), (2, 128, 160)])
@pytest.mark.parametrize("tiled", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_blocks_of_rows(
    tmp_path: Path, kind: str, tiled: bool, shape: tuple[int, ...], dtype: str
) -> None:
    tensor = in_blocks(kind, shape, tiled=tiled)
    source, out = written(tmp_path / "in.safetensors", tensor), tmp_path / "out.safetensors"
    checkpoint.dequantize_file(source, out, dtype)
    expected = tensor.dequantize(getattr(torch, dtype))
    assert_same(checkpoint.load(out)["0.weight"], array(expected))


def test_nvfp4_of_a_layer(tmp_path: Path) -> None:
    from torchao.prototype.mx_formats import NVFP4WeightOnlyConfig

    source, out = tmp_path / "in.safetensors", tmp_path / "out.safetensors"
    weight = saved(source, NVFP4WeightOnlyConfig(), torch.bfloat16)
    checkpoint.dequantize_file(source, out)
    assert_same(checkpoint.load(out)["0.weight"], array(weight.dequantize()))
