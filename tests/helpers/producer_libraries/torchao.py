# ruff: noqa: PLC0415 - each library is imported by what needs it
"""torchao: what it writes for a weight, decodes from it, and saves of a model."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from scheme_oracle import Array

from ._arrays import Parts, Producer, array, arrays, tensor
from ._llama import by_transformers


def torchao_mx(x: Array, element: Any, rule: str) -> tuple[Parts, Array | None]:
    from torchao.prototype.mx_formats import mx_tensor
    from torchao.prototype.mx_formats.mx_tensor import ScaleCalculationMode, to_dtype, to_mx

    mode = ScaleCalculationMode[rule.upper()]
    weight = tensor(x)
    scale, data = to_mx(weight, element, 32, mode)
    del mx_tensor
    decoded = to_dtype(data, scale, element, 32, weight.dtype)
    if isinstance(element, str):
        return {"scale": array(scale), "codes": array(data)}, array(decoded)
    return arrays({"weight_qdata": data, "weight_scale": scale}), array(decoded)


def torchao_nvfp4(x: Array) -> tuple[Parts, Array | None]:
    from torchao.prototype.mx_formats.nvfp4_tensor import nvfp4_quantize, per_tensor_amax_to_scale

    weight = tensor(x)
    second = per_tensor_amax_to_scale(weight.abs().amax())
    scale, data = nvfp4_quantize(weight, 16, second)
    parts = {"weight_qdata": data, "weight_scale": scale, "weight_per_tensor_scale": second}
    return arrays(parts), None


_DTYPES = ("float32", "bfloat16")  # it refuses others
_ELEMENTS = {
    "mxfp4": torch.float4_e2m1fn_x2,
    "mxfp8_e4m3": torch.float8_e4m3fn,
    "mxfp8_e5m2": torch.float8_e5m2,
    "mxfp6_e2m3": "fp6_e2m3",
    "mxfp6_e3m2": "fp6_e3m2",
}


SCHEMES = {
    **{
        f"{scheme} {rule}": Producer(
            scheme,
            "",
            partial(torchao_mx, element=element, rule=rule),
            options={"scale_rule": rule},
            dtypes=_DTYPES,
        )
        for scheme, element in _ELEMENTS.items()
        for rule in ("floor", "rceil", "ceil", "even")
    },
    "nvfp4": Producer("nvfp4", "", torchao_nvfp4, columns=16, dtypes=_DTYPES),
}


def torchao(name: str, **options: Any) -> Callable[[], Any]:
    def call() -> Any:
        import torchao.prototype.mx_formats as mx
        import torchao.quantization as ao
        from transformers import TorchAoConfig

        return TorchAoConfig((getattr(ao, name, None) or getattr(mx, name))(**options))

    return call


WRITERS = {
    "torchao int8": by_transformers(torchao("Int8WeightOnlyConfig")),
    "torchao float8": by_transformers(torchao("Float8WeightOnlyConfig")),
    "torchao nvfp4": by_transformers(torchao("NVFP4WeightOnlyConfig")),
}
