"""Keep optimizers working while the variables of their model change their dtypes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from castwise.environment.frameworks import require

_BY_KEY = ("_trainable_variables_indices", "_var_to_optimizer_idx", "_exclude_from_weight_decay")
"""The attributes in which optimizers store values by the key of a variable."""


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
    """Keep a model's variables known to its optimizers while the block changes them.

    With TensorFlow, the key of a variable is that of its ``tf.Variable``, which the block replaces.
    """
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


def notes(model: Any, recast_ids: set[int]) -> Iterator[str]:
    """Yield what is left to the caller after variables of a compiled model were cast: sentences."""
    optimizers = optimizers_of(model)
    scaling = require("keras").optimizers.LossScaleOptimizer
    has_scaling = any(isinstance(optimizer, scaling) for optimizer in optimizers)
    if optimizers and model.dtype_policy.name == "mixed_float16" and not has_scaling:
        yield (
            "The model was compiled before it became mixed_float16, so that its optimizer scales "
            "no loss; compile it again, or wrap the optimizer in keras.optimizers."
            "LossScaleOptimizer."
        )
    for optimizer in optimizers:
        recast = [
            variable for variable in optimizer._trainable_variables if id(variable) in recast_ids
        ]
        if recast and not isinstance(optimizer, scaling):
            yield (
                f"The optimizer {optimizer.name!r} keeps its own variables as they are, for "
                f"{len(recast)} variables that were cast; compile the model again to have them "
                "made anew."
            )


def _replace_keys(table: Any, new_keys: dict[Any, Any]) -> Any:
    if isinstance(table, dict):
        return {new_keys.get(key, key): value for key, value in table.items()}
    return type(table)(new_keys.get(key, key) for key in table)
