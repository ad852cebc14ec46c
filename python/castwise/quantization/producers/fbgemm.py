"""FBGEMM, as whose kernels take float8 in rows."""

from __future__ import annotations

from castwise.quantization.producers._producer import Producer
from castwise.quantization.producers._shared_layouts import FP8_SCALE
from castwise.quantization.producers._stated import constant_reader

FBGEMM = Producer(
    "fbgemm",
    {"fbgemm_fp8": constant_reader("fp8_channel")},
    (FP8_SCALE,),
    kept_keys={"fbgemm_fp8": "modules_to_not_convert"},
)
