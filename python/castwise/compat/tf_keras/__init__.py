"""TF 2's `tf.keras.mixed_precision`.

>>> from castwise.compat.tf_keras import mixed_precision
>>> mixed_precision.Policy("mixed_float16").compute_dtype
'float16'
"""

from castwise.compat.tf_keras import mixed_precision

__all__ = ["mixed_precision"]
