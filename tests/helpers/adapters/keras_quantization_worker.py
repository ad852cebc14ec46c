"""What the Keras on the path, and castwise beside it, report of the same quantization, as JSON.

Run with the folder of a Keras first in PYTHONPATH.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "numpy")
warnings.simplefilter("ignore")

MODES = ("int8", "float8", "int4")


def models() -> dict[str, Any]:
    """Make the models by name, each with its inputs' shape known."""
    import keras  # noqa: PLC0415

    layers = keras.layers
    inputs = keras.Input((6,), name="input")
    hidden = layers.Dense(8, name="up", activation="relu")(inputs)
    hidden = layers.Dropout(0.5, name="drop")(layers.BatchNormalization(name="norm")(hidden))
    functional = keras.Model(inputs, layers.Dense(2, name="head")(hidden), name="functional")
    stacked = keras.Sequential([keras.Input((8, 8, 1)), layers.Conv2D(2, 3, name="conv")], name="a")
    embedding = layers.Embedding(9, 4, name="table")
    indices = keras.Input((5,), dtype="int32")
    sequential = keras.Sequential([indices, embedding, layers.Flatten(name="flat")], name="b")
    return {"functional": functional, "convolutional": stacked, "embedding": sequential}


def of_keras(model: Any, mode: str) -> dict[str, Any]:
    """Quantize twice as Keras does, and give the fields of both reports."""
    reports = [model.quantize(mode, verbose=False) for _ in range(2)]
    return {
        "quantized": [list(layer) for report in reports for layer in report.quantized],
        "skipped": [list(layer) for report in reports for layer in report.skipped],
    }


def of_castwise(model: Any, mode: str) -> dict[str, Any]:
    """Do the same by a policy."""
    from castwise.adapters.keras import cast_model  # noqa: PLC0415

    policy = {"int4": "int4/128"}.get(mode, mode) + "_from_float32"
    reports = [cast_model(model, policy).to_dict() for _ in range(2)]
    return {
        field: [layer for report in reports for layer in report[field]]
        for field in ("quantized", "skipped")
    }


def answers() -> dict[str, Any]:
    """Both answers for each model and mode."""
    return {
        f"{name} {mode}": [of_keras(models()[name], mode), of_castwise(models()[name], mode)]
        for name in models()
        for mode in MODES
    }


if __name__ == "__main__":
    json.dump(answers(), sys.stdout)
