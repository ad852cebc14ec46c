"""AutoFP8, from which vLLM took its first float8."""

from __future__ import annotations

from castwise.quantization.producers._float8_statements import read_fp8
from castwise.quantization.producers.layouts import FP8_SCALE
from castwise.quantization.producers.producer import Configuration, Producer

AUTOFP8 = Producer(
    "autofp8",
    (FP8_SCALE,),
    configuration=Configuration({"fp8": read_fp8}),
)
