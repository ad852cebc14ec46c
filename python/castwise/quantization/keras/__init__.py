"""Arithmetic that Keras' layers call to quantise: its bits, on numpy arrays.

`_steps` rounds each step to the dtype in which Keras takes it. These names are what other rooms of
castwise take from this one, and what `castwise.compat.keras.quantizers` hands on.
"""

from castwise.quantization.keras._abs_max import abs_max_quantize
from castwise.quantization.keras._float8 import (
    compute_float8_amax_history,
    compute_float8_scale,
    quantize_and_dequantize,
)
from castwise.quantization.keras._groups import dequantize_with_sz_map, quantize_with_sz_map
from castwise.quantization.keras._nibbles import pack_int4, unpack_int4
from castwise.quantization.keras._ranges import (
    abs_max_quantize_grouped_with_zero_point,
    compute_quantization_parameters,
    fake_quant_with_min_max_vars,
)
from castwise.quantization.keras._steps import EPSILON, INT8, Array, code_dtype

__all__ = [
    "EPSILON",
    "INT8",
    "Array",
    "abs_max_quantize",
    "abs_max_quantize_grouped_with_zero_point",
    "code_dtype",
    "compute_float8_amax_history",
    "compute_float8_scale",
    "compute_quantization_parameters",
    "dequantize_with_sz_map",
    "fake_quant_with_min_max_vars",
    "pack_int4",
    "quantize_and_dequantize",
    "quantize_with_sz_map",
    "unpack_int4",
]
