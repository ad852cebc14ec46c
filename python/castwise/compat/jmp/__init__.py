"""jmp: policies of three dtypes, loss scales as values, and casts of whole trees.

It works on numpy arrays without jax. If jax is imported, its arrays are cast, too, and its registry
of pytrees is used.

>>> import numpy as np
>>> policy = get_policy("params=float32,compute=half,output=float32")
>>> print(policy)
p=full,c=f16,o=full
>>> policy.cast_to_compute({"kernel": np.ones(2, np.float32), "step": 3})
{'kernel': array([1., 1.], dtype=float16), 'step': 3}
"""

from castwise.compat.jmp._policy import Policy, cast_to_full, cast_to_half, get_policy, half_dtype
from castwise.loss_scale._jmp import (
    DynamicLossScale,
    LossScale,
    NoOpLossScale,
    StaticLossScale,
    all_finite,
    register,
    select_tree,
)

__all__ = [
    "DynamicLossScale",
    "LossScale",
    "NoOpLossScale",
    "Policy",
    "StaticLossScale",
    "all_finite",
    "cast_to_full",
    "cast_to_half",
    "get_policy",
    "half_dtype",
    "register",
    "select_tree",
]


def __dir__() -> list[str]:
    return __all__
