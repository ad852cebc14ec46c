"""Loss scaling for float16 and float8 training: scales as values, and one pass over gradients.

```text
_scaler           LossScaler: a scale that is replaced at each update, with events
_unscaling        unscale, all_finite, select_tree, on trees of gradients
_agreement        one decision for all ranks of a data-parallel run
_optimizer        what every wrapper of an optimizer does: check, apply or skip, update, restore
_gradient_scaler  the stages of torch.amp's GradScaler
_array_steps      a step on arrays of jax or TensorFlow, by the presets in Rust
_arithmetic       products with a scale, and its reciprocal, as other libraries round them
keras, tf_keras   LossScaleOptimizer, around optimizers of arrays and of the framework
_jmp              jmp's loss scales, as values
```
"""

from castwise._core import DelayedScaling, DynamicLossScale, FixedLossScale
from castwise.loss_scale._agreement import agree, merge, pack
from castwise.loss_scale._scaler import LossScaleEvent, LossScaler, get
from castwise.loss_scale._unscaling import all_finite, select_tree, unscale

__all__ = [
    "DelayedScaling",
    "DynamicLossScale",
    "FixedLossScale",
    "LossScaleEvent",
    "LossScaler",
    "agree",
    "all_finite",
    "get",
    "merge",
    "pack",
    "select_tree",
    "unscale",
]


def __dir__() -> list[str]:
    return __all__
