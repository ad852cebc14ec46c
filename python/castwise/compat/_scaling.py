"""Functions that the dialects' loss scales share."""

from __future__ import annotations

import numbers
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np

from castwise import _trees as trees
from castwise._argument_names import renamed
from castwise._core import DynamicLossScale


def times(value: Any, factor: Any) -> Any:
    """Multiply by numpy's rules of promotion, without warnings of overflow."""
    with np.errstate(all="ignore"):
        return value * factor


def reciprocal(scale: Any) -> np.float32:
    """Return the float32 reciprocal by IEEE 754: infinity for 0, 0 for infinity."""
    with np.errstate(all="ignore"):
        return np.float32(1) / np.float32(scale)


def is_usable(scale: Any) -> bool:
    """Tell whether `castwise.loss_scale.unscale` accepts a scale: it and 1 / it are finite."""
    return bool(np.isfinite(scale) and np.isfinite(reciprocal(scale)))


def is_number(value: Any) -> bool:
    """Tell whether a value is a real number, or an array of one, and not a bool or a text."""
    if isinstance(value, numbers.Real):
        return not isinstance(value, bool)
    return np.size(value) == 1 and np.asarray(value).dtype.kind not in "bcOSU"


def refuse_integers(argument: str, grads: Any) -> None:
    """Raise TypeError for integers, as TensorFlow does when it checks that they are finite."""
    for path, leaf in trees.leaves(grads):
        if np.asarray(leaf).dtype.kind in "iub":
            where = f"{argument} at {path!r}" if path else argument
            raise TypeError(f"{where} holds integers; gradients are floats or None.")


def number(name: str, value: Any, kind: type[float] | type[int] = float) -> Any:
    """Convert an argument by `kind`; put its name and value into the exceptions."""
    try:
        return kind(value)
    except (TypeError, ValueError, OverflowError) as error:
        example = "32768.0" if kind is float else "2000"
        raise (TypeError if isinstance(error, TypeError) else ValueError)(
            f"{name}={value!r} is not valid; use a number, as {example}."
        ) from error


def restored(machine: DynamicLossScale, state: Mapping[str, Any]) -> DynamicLossScale:
    """Load a saved state into the loss scale of a `LossScaleOptimizer`; errors name that class."""
    with renamed(owner="LossScaleOptimizer"):
        return machine.with_state(dict(state) if isinstance(state, Mapping) else state)


def inner_config(config: dict[str, Any], key: str = "inner_optimizer") -> Any:
    """Take the inner optimizer out of a config; raise KeyError if it is missing."""
    if key not in config:
        raise KeyError(
            f"config={config!r} lacks {key!r}; give an optimizer, or a dict with 'class_name' and "
            "'config'"
        )
    return config.pop(key)


@contextmanager
def attributes(optimizer: Any, **values: Any) -> Iterator[None]:
    """Set attributes within a block; delete them afterwards, as torch, or restore them if it fails.

    Otherwise a step that is repeated would multiply by the scale twice.
    """
    before = {name: getattr(optimizer, name) for name in values if hasattr(optimizer, name)}
    previous: dict[str, Any] = {}
    for name, value in values.items():
        setattr(optimizer, name, value)
    try:
        yield
    except BaseException:
        previous = before
        raise
    finally:
        for name in values:
            if name in previous:
                setattr(optimizer, name, previous[name])
            else:
                with suppress(AttributeError):  # the optimizer may have done it
                    delattr(optimizer, name)
