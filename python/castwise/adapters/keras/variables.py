"""Variables that exist already, in another dtype: the same objects, with the values cast."""

from __future__ import annotations

from typing import Any

from castwise._core import cast
from castwise.adapters.framework import require


def own_variables(layer: Any) -> list[Any]:
    """The variables that a layer itself holds, without those of the layers in it."""
    return [*layer._trainable_variables, *layer._non_trainable_variables]


def stored_dtype(variable: Any) -> str:
    """The dtype that a variable is kept in, whatever scope it is read in."""
    return str(variable._dtype)


def recast(variable: Any, dtype: str) -> None:
    """Keep a variable in another dtype from now on, its value rounded once.

    Everything that refers to the variable, the optimizer first of all, refers to the same object
    afterwards. With torch its parameter stays the same object too, without its gradient; with
    TensorFlow there is a new ``tf.Variable`` within it, for those cannot change their dtype.
    """
    keras = require("keras")
    if variable._value is None:  # made in a stateless scope, filled later
        variable._dtype = dtype
        return
    value = cast(keras.ops.convert_to_numpy(variable._value), dtype)
    tensor = keras.ops.convert_to_tensor(value, dtype)
    variable._dtype = dtype
    if keras.config.backend() == "torch":
        variable._value.grad = None
        variable._value.data = tensor
    else:
        variable._initialize(tensor)
