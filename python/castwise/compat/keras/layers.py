"""`keras.layers`: the base class of layers, which is `castwise.autocast.Layer`.

>>> Layer(dtype="mixed_float16").compute_dtype
'float16'
"""

from castwise.autocast import Layer

__all__ = ["Layer"]
