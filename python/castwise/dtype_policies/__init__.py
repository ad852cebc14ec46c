"""Dtype policies, in Keras 3's words: what layers compute in, and what their variables are kept in.

```text
policy        DTypePolicy, and which one is in force
quantized     the policies of quantized layers
configs       get, serialize, deserialize: names and dictionaries to policies and back
policy_map    DTypePolicyMap: a policy per path
explanation   what a map does to a model's paths
```
"""

from castwise.dtype_policies.configs import deserialize, get, serialize
from castwise.dtype_policies.explanation import Explanation, PathMatch
from castwise.dtype_policies.policy import DTypePolicy, FloatDTypePolicy
from castwise.dtype_policies.policy_map import DTypePolicyMap
from castwise.dtype_policies.quantized import (
    AWQDTypePolicy,
    GPTQDTypePolicy,
    Int4DTypePolicy,
    QuantizedDTypePolicy,
    QuantizedFloat8DTypePolicy,
    TernaryDTypePolicy,
)

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
    "TernaryDTypePolicy",
    "deserialize",
    "get",
    "serialize",
]


def __dir__() -> list[str]:
    return __all__
