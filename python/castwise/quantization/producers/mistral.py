"""Mistral, whose own files name scales as no others do."""

from __future__ import annotations

from castwise.quantization.producers._float8_statements import read_fp8
from castwise.quantization.producers.layouts import (
    ACTIVATION,
    OF_FP8,
    PLAIN,
    Layout,
    Part,
    scale_part,
)
from castwise.quantization.producers.producer import Configuration, Producer

MISTRAL = Producer(
    "mistral",
    (
        Layout(
            "fp8_{}",
            "",
            OF_FP8,
            (
                scale_part("qscale_weight", distinct=True),
                Part("qscale_act", ACTIVATION, distinct=True),
            ),
            parameters=("weight",),
            storage=PLAIN,
        ),
    ),
    is_evident=True,
    configuration=Configuration({"fp8": read_fp8}),
)
