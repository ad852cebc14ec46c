"""Training through castwise's LossScaleOptimizer around Keras' optimizers, beside Keras' own.

``KERAS_BACKEND=jax python keras_scaling_checks.py`` prints, as JSON, for each check None or its
traceback.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from keras_checks import as_bits, checks_among, run

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
    """A gradient; in every 7th step one element is NaN or an infinity."""
    grad = random.standard_normal(shape).astype(np.float32)
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

    made: list[Any] = []

    def in_graph(grads: list[Any], variables: list[Any]) -> None:
        if not made:
            made.append(tf.function(lambda grads: optimizer.apply(grads, variables)))
        made[0](grads)

    return in_graph


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
        "tensorflow": [(plainly, plainly), (in_a_graph, in_a_graph)],
    }[keras.config.backend()]


def check_two_hundred_steps() -> None:
    """Variables, slots, scale and counters, after each step, to the bit."""
    ours, theirs = wrappers()
    for name, inner in inner_optimizers().items():
        much = name in ("sgd", "adam")
        for our_way, their_way in ways()[: 1 + much]:
            runs = [
                applied(lambda cls=cls, inner=inner: cls(inner(), 2.0**-4, 3), way)
                for cls, way in ((ours, our_way), (theirs, their_way))
            ]
            seen = set()
            for step, (got, wanted) in enumerate(zip(*runs, strict=True)):
                if step == STEPS // 4 and not much:
                    break
                assert got == wanted, (name, our_way.__name__, step)
                seen.add(got[5])
            assert len(seen) > 3, "the scale never changed"


def model_and_data() -> tuple[Any, np.ndarray, np.ndarray]:
    """A model that computes in float16, and batches of 4 of which every 7th holds an infinity."""
    import keras  # noqa: PLC0415

    keras.utils.set_random_seed(0)
    layers = keras.layers
    model = keras.Sequential(
        [keras.Input((3,)), layers.Dense(4, "relu"), layers.Dense(1, dtype="float32")]
    )
    random = np.random.default_rng(1)
    x = random.standard_normal((4 * 28, 3)).astype(np.float32)
    y = x.sum(-1, keepdims=True)
    for batch, value in zip(range(6, 28, 7), (np.nan, np.inf, -np.inf, 1e30), strict=True):
        x[4 * batch] = value
    return model, x, y


def both_models(train: Callable[[Any, np.ndarray, np.ndarray], None]) -> None:
    """Train the same model through both wrappers; all their variables are equal then."""
    import keras  # noqa: PLC0415

    jitted = keras.config.backend() == "jax"  # the others take longer with it
    keras.config.set_dtype_policy("mixed_float16")
    try:
        for name in ("sgd", "adam"):
            seen = []
            for cls in wrappers():
                model, x, y = model_and_data()
                optimizer = cls(inner_optimizers()[name](), 2.0**8, 5)
                model.compile(optimizer, "mse", jit_compile=jitted)
                assert model.optimizer is optimizer
                train(model, x, y)
                seen.append(states(optimizer, model.weights))
                assert int(np.asarray(optimizer.iterations.value)) == 24
            assert seen[0] == seen[1]
            assert all(np.isfinite(each).all() for each in model.get_weights())
    finally:
        keras.config.set_dtype_policy("float32")


def trains() -> bool:
    import keras  # noqa: PLC0415

    return bool(keras.config.backend() != "numpy")


def check_fit() -> None:
    if trains():
        both_models(lambda model, x, y: model.fit(x, y, 4, shuffle=False, verbose=0))


def check_train_on_batch() -> None:
    def train(model: Any, x: np.ndarray, y: np.ndarray) -> None:
        for start in range(0, len(x), 4):
            model.train_on_batch(x[start : start + 4], y[start : start + 4])

    if trains():
        both_models(train)


def check_hand_written_loops() -> None:
    """With GradientTape, with `backward`, and with `stateless_apply` under ``jax.jit``."""
    import keras  # noqa: PLC0415

    def train(model: Any, x: np.ndarray, y: np.ndarray) -> None:
        step = LOOPS[keras.config.backend()](model)
        model.optimizer.build(model.trainable_variables)
        for start in range(0, len(x), 4):
            step(x[start : start + 4], y[start : start + 4])

    if trains():
        both_models(train)


def loop_of_tensorflow(model: Any) -> Any:
    import tensorflow as tf  # noqa: PLC0415

    def step(x: Any, y: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x) - y) ** 2)
            scaled = model.optimizer.scale_loss(loss)
        grads = tape.gradient(scaled, model.trainable_weights)
        model.optimizer.apply_gradients(zip(grads, model.trainable_weights, strict=True))

    return step


def loop_of_torch(model: Any) -> Any:
    import torch  # noqa: PLC0415

    def step(x: Any, y: Any) -> None:
        model.zero_grad()
        loss = ((model(x) - torch.from_numpy(y)) ** 2).mean()
        model.optimizer.scale_loss(loss).backward()
        grads = [each.value.grad for each in model.trainable_weights]
        with torch.no_grad():
            model.optimizer.apply(grads, model.trainable_weights)

    return step


def loop_of_jax(model: Any) -> Any:
    import jax  # noqa: PLC0415
    import keras  # noqa: PLC0415

    optimizer = model.optimizer

    def loss_of(trained: Any, kept: Any, x: Any, y: Any) -> Any:
        predicted, _ = model.stateless_call(trained, [], x)
        mapping = list(zip(optimizer.variables, kept, strict=True))
        with keras.StatelessScope(state_mapping=mapping):
            return optimizer.scale_loss(((predicted - y) ** 2).mean())

    @jax.jit
    def compiled(trained: Any, kept: Any, x: Any, y: Any) -> Any:
        grads = jax.grad(loss_of)(trained, kept, x, y)
        return optimizer.stateless_apply(kept, grads, trained)

    def step(x: Any, y: Any) -> None:
        held = model.trainable_variables, optimizer.variables
        values = compiled(*([each.value for each in side] for side in held), x, y)
        for variables, new in zip(held, values, strict=True):
            for variable, value in zip(variables, new, strict=True):
                variable.assign(value)

    return step


LOOPS = {"tensorflow": loop_of_tensorflow, "torch": loop_of_torch, "jax": loop_of_jax}


CHECKS = checks_among(globals())

if __name__ == "__main__":
    run(CHECKS)
