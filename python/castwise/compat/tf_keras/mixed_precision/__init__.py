"""`tf.keras.mixed_precision` of TF 2.4 and later; `experimental` is the API that it replaced.

Unlike Keras 3's, the policy in force belongs to the process, not to a thread.
"""

from castwise.compat.tf_keras.mixed_precision import experimental
from castwise.dtype_policies._tf_policy import (
    Policy,
    deserialize,
    get_policy,
    global_policy,
    policy_scope,
    serialize,
    set_global_policy,
)
from castwise.loss_scale.tf_keras._optimizer import LossScaleOptimizer

__all__ = [
    "LossScaleOptimizer",
    "Policy",
    "deserialize",
    "experimental",
    "get_policy",
    "global_policy",
    "policy_scope",
    "serialize",
    "set_global_policy",
]


def __dir__() -> list[str]:
    return __all__
