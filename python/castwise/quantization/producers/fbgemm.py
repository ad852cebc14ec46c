"""FBGEMM, whose kernels take float8 in rows."""

from __future__ import annotations

from castwise.quantization.producers.layouts import FP8_SCALE
from castwise.quantization.producers.producer import Configuration, Producer
from castwise.quantization.producers.stated import constant_reader

FBGEMM = Producer(
    "fbgemm",
    (FP8_SCALE,),
    configuration=Configuration(
        {"fbgemm_fp8": constant_reader("fp8_channel")},
        kept_keys={"fbgemm_fp8": "modules_to_not_convert"},
        # `FbgemmFp8Linear` of transformers quantizes each row of them.
        quantizes_inputs=lambda _: True,
    ),
)
