"""Cast what layers hold in place: the objects stay the same, and so do those of optimizers."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from castwise._core import cast, finfo
from castwise.adapters.keras._input_casts import to_tensor
from castwise.environment.frameworks import require
from castwise.loss_scale._unscaling import all_finite

# The attributes in which optimizers store values by the key of a variable.
_BY_KEY = ("_trainable_variables_indices", "_var_to_optimizer_idx", "_exclude_from_weight_decay")


def own_variables(layer: Any) -> list[Any]:
    """Return the variables that a layer itself holds, without those of its sublayers."""
    return [*layer._trainable_variables, *layer._non_trainable_variables]


def stored_dtype(variable: Any) -> str:
    """Return the dtype in which a variable is stored, whatever scope it is read in."""
    return str(variable._dtype)


def recast(variable: Any, dtype: str) -> bool:
    """Store a variable in another dtype; return False if finite values became infinite or NaN."""
    # The value is rounded once. The variable stays the same object, which optimizers rely on. With
    # torch its parameter stays the same object too, and loses its gradient. With TensorFlow it gets
    # a new ``tf.Variable``, because those cannot change their dtype.
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


def optimizers_of(model: Any) -> list[Any]:
    """List the optimizer of a compiled model and those that it wraps; empty if not compiled."""
    optimizer = getattr(model, "optimizer", None)
    optimizers = [] if optimizer is None else [optimizer]
    for wrapper in optimizers:  # what it wraps is added at the end, to be asked in its turn
        optimizers += getattr(wrapper, "_inner_optimizers", ())
        if (inner := getattr(wrapper, "inner_optimizer", None)) is not None:
            optimizers.append(inner)
    return optimizers


@contextmanager
def known_variables(model: Any) -> Iterator[None]:
    """Keep a model's variables known to its optimizers while the block changes them."""
    # With TensorFlow, the key of a variable is that of its ``tf.Variable``, which the block
    # replaces.
    keys_by_optimizer = [
        (
            optimizer,
            [
                (variable, optimizer._var_key(variable))
                for variable in optimizer._trainable_variables
            ],
        )
        for optimizer in optimizers_of(model)
    ]
    try:
        yield
    finally:
        for optimizer, keys in keys_by_optimizer:
            new_keys = {key: optimizer._var_key(variable) for variable, key in keys}
            for name in _BY_KEY:
                table = getattr(optimizer, name, None)
                if table is not None:
                    setattr(optimizer, name, _replace_keys(table, new_keys))


def _replace_keys(table: Any, new_keys: dict[Any, Any]) -> Any:
    if isinstance(table, dict):
        return {new_keys.get(key, key): value for key, value in table.items()}
    return type(table)(new_keys.get(key, key) for key in table)


def derive_again(layers: list[Any]) -> None:
    """Cast what some layers hold beside their variables to their current dtypes."""
    # `Normalization` holds mean and variance as constants in its compute dtype. A Sequential model
    # that was built from a shape made its own input, in the compute dtype of its first layer; it is
    # changed where it has less precision than the layer's current compute dtype.
    normalization = require("keras").layers.Normalization
    for layer in layers:
        if isinstance(layer, normalization) and layer.built:
            if layer.input_mean is None:
                layer.finalize_state()
            else:
                layer.build(**layer._build_shapes_dict)
        if hasattr(layer, "_functional"):
            _follow_first_layer(layer)
        if hasattr(layer, "_nodes_by_depth"):
            _keep_input_dtypes(layer)


def _follow_first_layer(sequential: Any) -> None:
    if len(sequential._layers) < 2:  # noqa: PLR2004 - an input, and what follows it
        return
    input_layer, next_layer, *_ = sequential._layers
    if not isinstance(input_layer, require("keras").layers.InputLayer):
        return
    source, target = input_layer.dtype, next_layer.compute_dtype
    if loses(source, target):
        input_layer._dtype = target
        _set_dtype(input_layer.output, target)
        if sequential._functional:
            _keep_input_dtypes(sequential._functional)


def _keep_input_dtypes(functional: Any) -> None:
    """Give symbolic inputs the dtypes of their `Input`; Keras 3.4 used those of layers."""
    input_layer = require("keras").layers.InputLayer
    for tensor in functional.inputs:
        operation = tensor._keras_history.operation
        if isinstance(operation, input_layer):
            _set_dtype(tensor, operation.dtype)


def _set_dtype(tensor: Any, dtype: str) -> None:
    """Change the dtype of a symbolic tensor, which is read-only in releases after 3.4."""
    setattr(tensor, "_dtype" if "_dtype" in vars(tensor) else "dtype", dtype)


def loses(source: str, target: str) -> bool:
    """Tell whether floats of `target` lose precision or range in `source`."""
    source_info, target_info = finfo(source), finfo(target)
    return source_info.kind == target_info.kind == "float" and (
        source_info.mantissa_bits < target_info.mantissa_bits
        or source_info.exponent_bits < target_info.exponent_bits
    )
