"""The rules by which Keras' layers cast, on numpy arrays.

```text
_layer           Layer: inputs, weights and call by a dtype policy
_variable        AutoCastVariable: stored in one dtype, seen in another
_scope           AutocastScope: which one; per thread and asyncio task
_narrow          bfloat16 and float8 under numpy's arithmetic
_keras_rules, _tf_keras_rules: what Keras 3 and TF 2 do differently; _rules, what they use
_building        the first call: path and weights
_holder          the weights of a layer and of the layers in it
_numpy_protocol, _values, _structures: what these need
```
"""

from castwise.autocast._layer import Layer, get_layer_policy
from castwise.autocast._scope import AutocastScope, enable_auto_cast_variables, get_autocast_scope
from castwise.autocast._variable import AutoCastVariable

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
