"""castwise's policies for models that are still on TF 2, with tf_keras.

```text
policies        to_tf_keras, from_tf_keras: policies of one side as those of the other
models          apply_policy_map, cast_model: copy a model under other policies
loss_scaling    convert optimizers that scale the loss
installation    install, uninstall: layers of tf_keras take castwise's policies
wrapped         castwise's LossScaleOptimizer around an optimizer of tf_keras
```
"""

from castwise.adapters.keras._report import AppliedPolicies
from castwise.adapters.tf_keras._installation import TfKerasInstallation, install, uninstall
from castwise.adapters.tf_keras._loss_scaling import from_tf_keras_optimizer, to_tf_keras_optimizer
from castwise.adapters.tf_keras._models import apply_policy_map, cast_model
from castwise.adapters.tf_keras._policies import from_tf_keras, to_tf_keras

__all__ = [
    "AppliedPolicies",
    "TfKerasInstallation",
    "apply_policy_map",
    "cast_model",
    "from_tf_keras",
    "from_tf_keras_optimizer",
    "install",
    "to_tf_keras",
    "to_tf_keras_optimizer",
    "uninstall",
]


def __dir__() -> list[str]:
    return __all__
