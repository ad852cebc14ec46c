"""Checks of castwise's LossScaleOptimizer around Keras' optimizers, beside Keras' own wrapper.

``KERAS_BACKEND=jax python keras_scaling_checks.py`` prints, as JSON, for each check None or its
traceback.
"""

from __future__ import annotations

import copy
import json
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from keras_checks import Check, as_bits, run

STEPS = 200
Bits = list[tuple[str, tuple[int, ...], bytes]]


def wrappers() -> tuple[Any, Any]:
    """Castwise's class, and Keras'."""
    import keras  # noqa: PLC0415 - by then, the process has chosen a backend
    from castwise.compat.keras.mixed_precision import LossScaleOptimizer  # noqa: PLC0415

    return LossScaleOptimizer, keras.optimizers.LossScaleOptimizer


def inner_optimizers() -> dict[str, Callable[[], Any]]:
    import keras  # noqa: PLC0415

    optimizers = keras.optimizers
    decay = optimizers.schedules.ExponentialDecay(0.1, 10, 0.9)
    return {
        "sgd": lambda: optimizers.SGD(0.1),
        "momentum": lambda: optimizers.SGD(decay, momentum=0.9, use_ema=True),
        "adam": lambda: optimizers.Adam(0.01),
        "adamw": lambda: optimizers.AdamW(0.01, gradient_accumulation_steps=2),
    }


def planted(step: int, shape: tuple[int, ...], random: np.random.Generator) -> np.ndarray:
    """A gradient times about the scale; in every 7th step one element is NaN or an infinity."""
    grad = (random.standard_normal(shape) * 2.0**10).astype(np.float32)
    if step % 7 == 6:
        grad.flat[step % grad.size] = (np.nan, np.inf, -np.inf)[step // 7 % 3]
    return grad


def states(optimizer: Any, variables: list[Any]) -> Bits:
    return [as_bits(each.value) for each in [*variables, *optimizer.variables]]


def applied(make: Callable[[], Any], step_of: Callable[[Any], Any]) -> Iterator[Bits]:
    """Give the state after each step with planted gradients."""
    import keras  # noqa: PLC0415

    random = np.random.default_rng(0)
    variables = [
        keras.Variable(random.standard_normal(shape).astype(np.float32)) for shape in ((3, 2), (2,))
    ]
    optimizer = make()
    optimizer.build(variables)
    step = step_of(optimizer)
    for number in range(STEPS):
        grads = [
            keras.ops.convert_to_tensor(planted(number, tuple(each.shape), random))
            for each in variables
        ]
        step(grads, variables)
        yield states(optimizer, variables)


def plainly(optimizer: Any) -> Any:
    return optimizer.apply


def in_a_graph(optimizer: Any) -> Any:
    import tensorflow as tf  # noqa: PLC0415

    @tf.function(reduce_retracing=True)
    def step(grads: Any, variables: Any) -> None:
        optimizer.apply(grads, variables)

    return lambda grads, variables: step(grads, [each.value for each in variables])


def stateless(optimizer: Any) -> Any:
    """The values after a compiled step of jax, assigned."""
    import jax  # noqa: PLC0415

    compiled = jax.jit(optimizer.stateless_apply)

    def step(grads: list[Any], variables: list[Any]) -> None:
        trained, kept = compiled(
            [each.value for each in optimizer.variables],
            grads,
            [each.value for each in variables],
        )
        for variable, value in zip([*variables, *optimizer.variables], [*trained, *kept]):  # noqa: B905
            variable.assign(value)

    return step


def without_compilation(optimizer: Any) -> Any:
    """Keras' own `apply`, which fails on jax outside of this."""
    import jax  # noqa: PLC0415

    def step(grads: list[Any], variables: list[Any]) -> None:
        with jax.disable_jit():
            optimizer.apply(grads, variables)

    return step


def ways() -> list[tuple[Any, Any]]:
    """Ways to take a step on the backend: castwise's, and Keras'."""
    import keras  # noqa: PLC0415

    return {
        "numpy": [(plainly, plainly)],
        "jax": [(stateless, stateless), (plainly, without_compilation)],
        "torch": [(plainly, plainly)],
        "tensorflow": [(plainly, plainly)],
    }[keras.config.backend()]


def check_two_hundred_steps() -> None:
    """Variables, slots, scale and counters, after each step, to the bit."""
    ours, theirs = wrappers()
    for name, inner in inner_optimizers().items():
        for our_way, their_way in ways():
            runs = [
                applied(lambda cls=cls, inner=inner: cls(inner(), 2.0**10, 5), way)
                for cls, way in ((ours, our_way), (theirs, their_way))
            ]
            seen = set()
            for step, (got, wanted) in enumerate(zip(*runs, strict=True)):
                assert got == wanted, (name, our_way.__name__, step)
                seen.add(got[5])
            assert len(seen) > 3, "the scale never changed"
