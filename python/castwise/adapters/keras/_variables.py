"""Cast variables in place: the objects stay the same."""

from __future__ import annotations

from typing import Any

from castwise._core import cast
from castwise.adapters.keras._input_casts import to_tensor
from castwise.environment.frameworks import require
from castwise.loss_scale._unscaling import all_finite


def own_variables(layer: Any) -> list[Any]:
    """Return the variables that a layer itself holds, without those of its sublayers."""
    return [*layer._trainable_variables, *layer._non_trainable_variables]


def stored_dtype(variable: Any) -> str:
    """Return the dtype in which a variable is stored, whatever scope it is read in."""
    return str(variable._dtype)


def recast(variable: Any, dtype: str) -> bool:
    """Store a variable in another dtype; return False if finite values became infinite or NaN.

    The value is rounded once.

    The variable stays the same object, which optimizers rely on. With torch its parameter stays
    the same object too, and loses its gradient. With TensorFlow it gets a new ``tf.Variable``,
    because those cannot change their dtype.
    """
    keras = require("keras")
    if variable._value is None:  # made in a stateless scope, and filled later
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
    """Return a tensor as a numpy array; torch gives 8-bit floats as integers only."""
    keras = require("keras")
    name = keras.backend.standardize_dtype(tensor.dtype)
    if keras.config.backend() == "torch" and name.startswith("float8"):
        integers = tensor.detach().view(require("torch").uint8)
        return keras.ops.convert_to_numpy(integers).view(name)
    return keras.ops.convert_to_numpy(tensor)
