"""TF 2's `tf.keras.mixed_precision`, and the base class of its layers.

>>> from castwise.compat.tf_keras import mixed_precision
>>> mixed_precision.Policy("mixed_float16").compute_dtype
'float16'
"""

from castwise.compat.tf_keras import layers, mixed_precision

__all__ = ["layers", "mixed_precision"]


def __dir__() -> list[str]:
    return __all__
