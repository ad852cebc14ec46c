"""`keras.mixed_precision`: loss scaling, and older names of policies."""

from castwise.config import dtype_policy, set_dtype_policy
from castwise.dtype_policies import DTypePolicy
from castwise.loss_scale.keras._optimizer import LossScaleOptimizer

Policy = DTypePolicy
global_policy = dtype_policy
set_global_policy = set_dtype_policy

__all__ = [
    "DTypePolicy",
    "LossScaleOptimizer",
    "Policy",
    "dtype_policy",
    "global_policy",
    "set_dtype_policy",
    "set_global_policy",
]
