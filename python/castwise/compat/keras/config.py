"""`keras.config`, as far as it is about dtypes."""

from castwise.config import dtype_policy, floatx, set_dtype_policy, set_floatx

__all__ = ["dtype_policy", "floatx", "set_dtype_policy", "set_floatx"]
