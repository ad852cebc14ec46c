"""The parts of one producer by the names of another, where both store the same bytes."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from castwise.quantization import QuantizedArray, dequantize, quantize
from scheme_oracle import w

CT, MODELOPT, COMFY, OSS, V4 = "compressed-tensors", "modelopt", "comfy", "gpt-oss", "deepseek-v4"
E4M3, E8M0 = ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e8m0fnu
F32, BF16, U8 = np.float32, ml_dtypes.bfloat16, np.uint8

NAMES: list[tuple[str, str, str, Any, dict[str, tuple[Any, tuple[int, ...]]]]] = [
    ("fp8_tensor", CT, MODELOPT, BF16, {"weight": (E4M3, (32, 128)), "weight_scale": (BF16, ())}),
    (
        "fp8_tensor",
        MODELOPT,
        COMFY,
        F32,
        {"weight": (E4M3, (32, 128)), "weight_scale": (F32, ()), "comfy_quant": (U8, (27,))},
    ),
    (
        "fp8_channel",
        CT,
        MODELOPT,
        BF16,
        {"weight": (E4M3, (32, 128)), "weight_scale": (BF16, (32,))},
    ),
    (
        "fp8_block",
        CT,
        "deepseek",
        F32,
        {"weight": (E4M3, (32, 128)), "weight_scale_inv": (F32, (1, 1))},
    ),
    ("mxfp8_e4m3", "mlx", CT, F32, {"weight": (E4M3, (32, 128)), "weight_scale": (U8, (32, 4))}),
    ("mxfp4", CT, MODELOPT, F32, {"weight": (U8, (32, 64)), "weight_scale": (U8, (32, 4))}),
    ("mxfp4", "torchao", OSS, F32, {"blocks": (U8, (32, 4, 16)), "scales": (U8, (32, 4))}),
    ("mxfp4", OSS, "mlx", F32, {"weight": (np.uint32, (32, 16)), "scales": (U8, (32, 4))}),
    ("mxfp4", MODELOPT, V4, F32, {"weight": (np.int8, (32, 64)), "scale": (E8M0, (32, 4))}),
    (
        "nvfp4",
        "torchao",
        MODELOPT,
        F32,
        {"weight": (U8, (32, 64)), "weight_scale": (E4M3, (32, 8)), "weight_scale_2": (F32, ())},
    ),
    (
        "int8_channel",
        CT,
        "quark",
        F32,
        {"weight": (np.int8, (32, 128)), "weight_scale": (F32, (32, 1))},
    ),
]


@pytest.mark.parametrize(("scheme", "old", "new", "dtype", "expected"), NAMES)
def test_names(scheme: str, old: str, new: str, dtype: Any, expected: Any) -> None:
    q = quantize(w(32, 128, dtype), scheme, recipe=old)
    parts = q.parts(new)
    assert {name: (part.dtype, part.shape) for name, part in parts.items()} == expected
    marker = parts.pop("comfy_quant", None)
    own = [part.tobytes() for part in q.parts().values()]
    assert [part.tobytes() for part in parts.values()] == own
    if marker is not None:
        assert bytes(marker) == b'{"format": "float8_e4m3fn"}'
        parts["comfy_quant"] = marker
    again = QuantizedArray.from_parts(parts, new, q.shape, scheme=scheme, block=q.block)
    exact = [dequantize(one, "float32", arithmetic="exact") for one in (q, again)]
    np.testing.assert_array_equal(*exact)
    if old != "torchao":
        assert again.parts(old).keys() == q.parts().keys()


def test_each_expert_has_a_scale() -> None:
    q = quantize(np.stack([w(32, 64, F32)] * 3), "mxfp4", recipe=CT)
    assert {name: one.shape for name, one in q.parts(OSS).items()} == {
        "blocks": (3, 32, 2, 16),
        "scales": (3, 32, 2),
    }
    stored = {"weight": np.ones((3, 8, 4), E4M3), "weight_scale": np.float32([1, 2, 3])}
    one = QuantizedArray.from_parts(stored, CT, scheme="fp8_tensor")
    np.testing.assert_array_equal(one.parts(MODELOPT)["weight_scale"], [1, 2, 3])


@pytest.mark.parametrize(
    ("scheme", "old", "new", "match"),
    [
        ("nvfp4", CT, MODELOPT, "of compressed-tensors divides, and that of modelopt multiplies"),
        ("nvfp4", MODELOPT, CT, "castwise transcode converts"),
        ("nvfp4", MODELOPT, COMFY, "comfy stores nvfp4 in another order than modelopt"),
        ("nvfp4", "mlx", MODELOPT, "modelopt has a global scale for nvfp4, and mlx has none"),
        ("nvfp4", MODELOPT, "mlx", "mlx has no global scale for nvfp4, and modelopt has one"),
        ("mxfp8_e4m3", CT, COMFY, "another order"),
        ("mxfp4", CT, "gguf", "another order"),
        ("mxfp4", CT, COMFY, "comfy has no names"),
        ("mxfp4", CT, "torchao", "torchao has no names"),
        ("fp8_channel", CT, COMFY, "comfy has no names"),
        ("int4_group", "mlx", CT, "compressed-tensors has no bias for int4_group, and mlx has one"),
        ("int4_channel", "keras", MODELOPT, "another order"),
        ("int8_channel", "keras", CT, "another order"),
        ("bnb_nf4", "bitsandbytes", CT, "no names"),
    ],
)
def test_other_bytes_are_refused(scheme: str, old: str, new: str, match: str) -> None:
    q = quantize(w(32, 128, F32), scheme, recipe=old)
    with pytest.raises(ValueError, match=match) as error:
        q.parts(new)
    assert f"recipe={new!r} is not valid" in str(error.value)


def test_another_axis_is_refused() -> None:
    """Codes of 4 bits along the first axis are not what another producer decodes along the last."""
    q = quantize(w(64, 128, F32), "mxfp4", recipe=CT, axis=0)
    with pytest.raises(ValueError, match="another order"):
        q.parts(MODELOPT)
