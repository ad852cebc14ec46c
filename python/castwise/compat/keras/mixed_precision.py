"""`keras.mixed_precision`: older names of the same things."""

from castwise.config import dtype_policy, set_dtype_policy
from castwise.dtype_policies import DTypePolicy

Policy = DTypePolicy
global_policy = dtype_policy
set_global_policy = set_dtype_policy

__all__ = [
    "DTypePolicy",
    "Policy",
    "dtype_policy",
    "global_policy",
    "set_dtype_policy",
    "set_global_policy",
]
