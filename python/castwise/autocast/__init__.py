"""The rules by which Keras' layers cast, on numpy arrays.

```text
layer            Layer: inputs, weights and call by a dtype policy
variable         AutoCastVariable: stored in one dtype, seen in another
scope            AutocastScope: which one; per thread and asyncio task
narrow           bfloat16 and float8 under numpy's arithmetic; numpy_moves
dialects         what Keras 3 and TF 2 do differently: keras_rules, tf_keras_rules
building         the first call: path and weights
holder           the weights of a layer and of the layers in it
numpy_protocol, values, structures, names, initializers: what these need
```
"""

from castwise.autocast.layer import Layer
from castwise.autocast.layer_policy import get_layer_policy
from castwise.autocast.scope import (
    AutocastScope,
    enable_auto_cast_variables,
    get_autocast_scope,
)
from castwise.autocast.variable import AutoCastVariable

__all__ = [
    "AutoCastVariable",
    "AutocastScope",
    "Layer",
    "enable_auto_cast_variables",
    "get_autocast_scope",
    "get_layer_policy",
]


def __dir__() -> list[str]:
    return __all__
