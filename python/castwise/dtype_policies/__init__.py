"""Dtype policies with Keras 3's names: the dtypes of layers' computations and of their variables.

```text
_policy        DTypePolicy, and which one is in force
_quantized     the policies of quantized layers
_configs       get, serialize, deserialize: names and dictionaries to policies and back
_policy_map    DTypePolicyMap: a policy per path
_explanation   what a map does to a model's paths
_tf_policy     TF 2's policies
```
"""

from castwise.dtype_policies._configs import deserialize, get, serialize
from castwise.dtype_policies._explanation import Explanation, PathMatch
from castwise.dtype_policies._policy import (
    AWQDTypePolicy,
    DTypePolicy,
    FloatDTypePolicy,
    GPTQDTypePolicy,
    Int4DTypePolicy,
    QuantizedDTypePolicy,
    QuantizedFloat8DTypePolicy,
)
from castwise.dtype_policies._policy_map import DTypePolicyMap

__all__ = [
    "AWQDTypePolicy",
    "DTypePolicy",
    "DTypePolicyMap",
    "Explanation",
    "FloatDTypePolicy",
    "GPTQDTypePolicy",
    "Int4DTypePolicy",
    "PathMatch",
    "QuantizedDTypePolicy",
    "QuantizedFloat8DTypePolicy",
    "deserialize",
    "get",
    "serialize",
]


def __dir__() -> list[str]:
    return __all__
