"""What layers of a Keras on jax see, as JSON: run by test_keras_layer_casts.py."""

from __future__ import annotations

import json
from itertools import product

import keras
import layer_systems as systems
import numpy as np

ALONE = ("float32", "float16", "mixed_float16", "mixed_bfloat16", "float8_from_mixed_bfloat16")
INPUTS = ("float32", "float16", "bfloat16", "int32", "bool")
NESTED = ("float32", "float16", "mixed_float16", "mixed_bfloat16", "int32")


def main() -> None:
    """Print rows of options, dtype of the input and what was seen."""
    cases = [([{"dtype": policy}], dtype) for policy, dtype in product(ALONE, INPUTS)]
    cases += [
        ([{"dtype": outer}, {"dtype": inner, "autocast": casts}], "float32")
        for outer, inner, casts in product(NESTED, NESTED, (True, False))
    ]
    rows = []
    system = systems.keras_system(keras)
    assert keras.config.backend() == "jax"
    for options, dtype in cases:
        seen = systems.calls(system, options, np.ones((1, 2)).astype(dtype))
        known = [
            (call.inputs, {k: v for k, v in call.variables.items() if k != "d"}, call.scope)
            for call in seen
        ]
        rows.append((options, dtype, known))
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
