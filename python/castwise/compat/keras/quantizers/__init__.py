"""`keras.quantizers`: its functions on numpy arrays, with the bits of Keras' numpy backend.

>>> codes, scale = abs_max_quantize(np.array([[0, 1, -2], [0.5, -0.25, 3]], np.float32), axis=-1)
>>> codes
array([[   0,   64, -127],
       [  21,  -11,  127]], dtype=int8)

Beside what `keras.quantizers` exports there are `compute_quantization_parameters`,
`quantize_with_sz_map` and `dequantize_with_sz_map`, which Keras' layers call. What a model is
quantised by (`QuantizationConfig` and its kinds) is Keras' own: `get` and `deserialize` know none.

Arrays are float16, bfloat16, float32 or float64, and every step is rounded to the dtype in which
Keras takes it. Python's numbers, and lists of them, count as ``floatx()``. float64 is taken as
float32, as Keras does but on TensorFlow. Where C leaves it open what a cast gives, so do Keras'
backends: a NaN becomes the integer 0 here, as on numpy's of x86; a zero point beyond uint8 wraps,
as on those of numpy, torch and TensorFlow (on jax it is 0).
"""

from castwise.compat.keras.quantizers._classes import (
    AbsMaxQuantizer,
    Quantizer,
    deserialize,
    get,
    serialize,
)
from castwise.quantization.keras import (
    abs_max_quantize,
    abs_max_quantize_grouped_with_zero_point,
    compute_float8_amax_history,
    compute_float8_scale,
    compute_quantization_parameters,
    dequantize_with_sz_map,
    fake_quant_with_min_max_vars,
    pack_int4,
    quantize_and_dequantize,
    quantize_with_sz_map,
    unpack_int4,
)

__all__ = [
    "AbsMaxQuantizer",
    "Quantizer",
    "abs_max_quantize",
    "abs_max_quantize_grouped_with_zero_point",
    "compute_float8_amax_history",
    "compute_float8_scale",
    "compute_quantization_parameters",
    "dequantize_with_sz_map",
    "deserialize",
    "fake_quant_with_min_max_vars",
    "get",
    "pack_int4",
    "quantize_and_dequantize",
    "quantize_with_sz_map",
    "serialize",
    "unpack_int4",
]


def __dir__() -> list[str]:
    return __all__
