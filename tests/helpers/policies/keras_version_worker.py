"""Answers from one version of Keras, in a process of its own: JSON in, JSON out.

Run by test_keras_versions with a folder on PYTHONPATH that holds that version. It knows nothing of
castwise. The request has

* "lookups": pairs of keys and paths; for each path the number of the key that decides, -1 for the
  default policy, or the name of the exception;
* "serialize": pairs of class name and arguments; for each the config of the policy;
* "load": configs; for each what the loaded policy says of itself, or the name of the exception.
"""

from __future__ import annotations

import json
import sys
import warnings
from typing import Any

# Old versions of Keras are not free of warnings, and stdout belongs to the answer.
warnings.simplefilter("ignore")
answer = sys.stdout
sys.stdout = sys.stderr
# Keras imports TensorFlow where there is one, to no use here.
sys.modules["tensorflow"] = None  # type: ignore[assignment]

import keras  # noqa: E402 - after the warnings are off


def lookup(keys: list[str], paths: list[str]) -> list[int | str]:
    """Look paths up in a map whose policies are told apart by the length of their history."""
    float8 = keras.dtype_policies.QuantizedFloat8DTypePolicy
    policy_map = keras.dtype_policies.DTypePolicyMap("float32")
    for number, key in enumerate(keys):
        policy_map[key] = float8("float8", "float32", number + 1)
    results: list[int | str] = []
    for path in paths:
        try:
            policy = policy_map[path]
            results.append(getattr(policy, "amax_history_length", 0) - 1)
        except Exception as error:
            results.append(type(error).__name__)
    return results


def serialize(class_name: str, arguments: list[Any]) -> Any:
    """Write the config of a policy."""
    policy = getattr(keras.dtype_policies, class_name)(*arguments)
    return keras.dtype_policies.serialize(policy)


def load(config: Any) -> Any:
    """Load a config, and say what the policy is."""
    try:
        policy = keras.dtype_policies.deserialize(config)
    except Exception as error:
        return type(error).__name__
    items = [(key, value.name) for key, value in policy.items()] if "Map" in repr(policy) else []
    return [
        *(type(policy).__name__, policy.name, policy.compute_dtype, policy.variable_dtype),
        *(policy.quantization_mode, items),
    ]


request = json.load(sys.stdin)
json.dump(
    {
        "version": keras.__version__,
        "lookups": [lookup(*case) for case in request["lookups"]],
        "serialize": [serialize(*case) for case in request["serialize"]],
        "load": [load(config) for config in request["load"]],
    },
    answer,
)
