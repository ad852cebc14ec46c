"""Update what Keras derived from a layer's dtype when the layer was built."""

from __future__ import annotations

from typing import Any

from castwise._core import finfo
from castwise.environment.frameworks import require


def derive_again(layers: list[Any]) -> None:
    """Cast what some layers hold beside their variables to their current dtypes.

    `Normalization` holds mean and variance as constants in its compute dtype. A Sequential model
    that was built from a shape made its own input, in the compute dtype of its first layer; it is
    changed where it has less precision than the layer's current compute dtype.
    """
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
