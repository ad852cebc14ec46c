"""Keras, whose files number the variables of layers: see `keras_names` and `keras_layers`."""

from __future__ import annotations

import numpy as np

from castwise.quantization.producers.keras_layers import describe_kernel
from castwise.quantization.producers.layouts import (
    OF_I8,
    OF_REAL,
    OF_U8,
    OTHER,
    ZERO,
    Layout,
    Part,
    Storage,
)
from castwise.quantization.producers.producer import Producer
from castwise.quantization.producers.shared_layouts import scale_part

KERAS = Producer(
    "keras",
    (
        *(
            Layout(
                "int_{}",
                "",
                (*OF_U8, *OF_I8),
                (
                    scale_part("_scale"),
                    Part("_zero", ZERO, (*OF_U8, *OF_I8)),
                    Part("g_idx", OTHER, OF_REAL, use="group index"),
                    Part("awq_scales", OTHER, OF_REAL, use="divisor"),
                ),
                parameters=parameters,
                storage=storage,
            )
            for parameters, storage in (
                (("kernel",), Storage(np.int8, divides=True, orientation="weight")),
                (("embeddings",), Storage(np.int8, divides=True)),
                (("quantized_kernel",), Storage(np.uint8, is_unsigned=True, orientation="pairs")),
            )
        ),
    ),
    scales="weight",
    channels=1,
    rule=describe_kernel,
    is_evident=True,
    axis=0,
    short_groups=True,
)
