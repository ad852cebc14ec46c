"""Scales and codes of MX by every rule of torchao: of every largest magnitude of bfloat16."""

from __future__ import annotations

from typing import Any

import castwise
import ml_dtypes
import numpy as np
import pytest
import torch
from castwise.quantization import quantize, unpack
from examination import Record, examine
from oracle import Array
from producer_libraries import array, tensor
from torchao.prototype.mx_formats.mx_tensor import ScaleCalculationMode, to_mx

ELEMENTS: dict[str, Any] = {
    "mxfp8_e4m3": torch.float8_e4m3fn,
    "mxfp8_e5m2": torch.float8_e5m2,
    "mxfp6_e2m3": "fp6_e2m3",
    "mxfp6_e3m2": "fp6_e3m2",
    "mxfp4": torch.float4_e2m1fn_x2,
}
RULES = [mode.name.lower() for mode in ScaleCalculationMode]
FRACTIONS = np.array([0.0, 0.0625, 0.125, 0.25, 0.5, 0.75, 0.875, 0.9375])


def magnitudes(dtype: str) -> Array:
    """List what may be the largest of a block: all of bfloat16, and around what a rule may ask.

    Those of float32 have one bit of a significand set or cleared, or are within two units of a
    sixteenth.
    """
    if dtype == "bfloat16":
        return np.arange(0x7F80, dtype=np.uint16).view(ml_dtypes.bfloat16)
    bits = 1 << np.arange(23)
    near = (FRACTIONS * 2**23).astype(np.int64)[:, None] + np.arange(-2, 3)
    significands = np.unique(np.concatenate([bits, ~bits, near.ravel()]) & 0x7FFFFF)
    words = (np.arange(255)[:, None] << 23 | significands).astype(np.uint32)
    return words.ravel().view(np.float32)


def blocks(dtype: str) -> Array:
    """Make a block of each largest magnitude, at a random place among smaller numbers."""
    largest = magnitudes(dtype)
    rng = np.random.default_rng(34)
    signed = largest.astype(np.float64)[:, None] * rng.uniform(-1, 1, (largest.size, 32))
    x = castwise.cast(signed, dtype, rounding="towards-zero")
    x[np.arange(largest.size), rng.integers(0, 32, largest.size)] = largest
    return x


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("scheme", ELEMENTS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_blocks_are_those_of_torchao(
    dtype: str, scheme: str, rule: str, record_property: Record
) -> None:
    x, element = blocks(dtype), ELEMENTS[scheme]
    scale, data = to_mx(tensor(x), element, 32, ScaleCalculationMode[rule.upper()])
    scales = array(scale).view(np.uint8).ravel()
    codes = array(data).view(np.uint8).reshape(len(x), -1)
    q = quantize(x, scheme, recipe="torchao", scale_rule=rule)
    own_scales = q.scale.view(np.uint8).ravel()
    own_codes = q.data.view(np.uint8)
    target = castwise.finfo(q.dtype_of_codes)
    if target.bits < 8:
        own_codes = unpack(own_codes, target.bits, columns=32)
    if target.bits == 4:
        codes = unpack(codes, 4, columns=32)  # it packs no others

    explained: dict[str, Array] = {}
    if rule == "rceil":
        significand = np.frexp(np.abs(x).max(-1).astype(np.float64) / target.max)[0]
        is_lower = (own_scales == scales + 1) & (significand < 0.5 * (1 + 2.0**-17))
        explained["rceil just above a power of two, torchao"] = is_lower
    factor = 1.0 if rule == "rceil" else 2.0**126
    least = castwise.cast(x, target.dtype, scale=factor, overflow="saturate").view(np.uint8)
    least = np.where((scales == 0)[:, None], least, codes)
    assert np.array_equal(codes, least)
    is_other = (own_codes != least).any(-1) & (own_scales == 0) & (scales == 0)
    explained["scale 2**-127, torchao"] = is_other
    different = (own_scales != scales) | (own_codes != codes).any(-1)
    examine(record_property, x, different, explained)
