"""Variables that exist already, in another dtype: the same objects, with the values cast."""

from __future__ import annotations

from typing import Any

from castwise._core import cast
from castwise._frameworks import require
from castwise.adapters.keras._input_casts import to_tensor
from castwise.loss_scale._unscaling import all_finite


def own_variables(layer: Any) -> list[Any]:
    """The variables that a layer itself holds, without those of the layers in it."""
    return [*layer._trainable_variables, *layer._non_trainable_variables]


def stored_dtype(variable: Any) -> str:
    """The dtype that a variable is kept in, whatever scope it is read in."""
    return str(variable._dtype)


def recast(variable: Any, dtype: str) -> bool:
    """Keep a variable in another dtype from now on; False if values that were finite are not now.

    The value is rounded once.

    Everything that refers to the variable, the optimizer first of all, refers to the same object
    afterwards. With torch its parameter stays the same object too, without its gradient; with
    TensorFlow there is a new ``tf.Variable`` within it, for those cannot change their dtype.
    """
    keras = require("keras")
    if variable._value is None:  # made in a stateless scope, filled later
        variable._dtype = dtype
        return True
    before, backend = _array(variable._value), keras.config.backend()
    value = cast(before, dtype)
    tensor = to_tensor(value, backend, dtype)
    variable._dtype = dtype
    if backend == "torch":
        variable._value.grad = None
        variable._value.data = tensor
    else:
        variable._initialize(tensor)
    return all_finite(value) or not all_finite(before)


def _array(tensor: Any) -> Any:
    """A tensor as an array of numpy; those of 8-bit floats torch gives as integers alone."""
    keras = require("keras")
    name = keras.backend.standardize_dtype(tensor.dtype)
    if keras.config.backend() == "torch" and name.startswith("float8"):
        integers = tensor.detach().view(require("torch").uint8)
        return keras.ops.convert_to_numpy(integers).view(name)
    return keras.ops.convert_to_numpy(tensor)
