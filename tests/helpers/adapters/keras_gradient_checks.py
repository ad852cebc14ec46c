"""Checks of surveys of gradients that every backend of Keras that trains must pass, as a program.

``KERAS_BACKEND=jax python keras_gradient_checks.py`` prints what `keras_checks` prints.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
from castwise.surveys import GradientLog
from keras_checks import checks_among, run

STEPS, BATCH = 8, 16
SMALL = 1e-6
"""The loss is so small that most gradients are below float16's smallest number."""


def data(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(seed).standard_normal((STEPS * BATCH, 32)).astype(np.float32)
    return x, x.sum(1, keepdims=True)


def compiled(optimizer: Any = None, policy: str | None = None, **options: Any) -> Any:
    """A net that learns sums; the loss of a step is small."""
    import keras  # noqa: PLC0415 - by then, the process has chosen a backend

    keras.utils.set_random_seed(0)
    layers = [
        keras.Input((32,)),
        keras.layers.Dense(64, "tanh", name="up", dtype=policy),
        keras.layers.Dense(1, name="head", dtype=policy),
    ]
    model = keras.Sequential(layers, name="net")

    def loss(expected: Any, given: Any) -> Any:
        return SMALL * keras.ops.mean(keras.ops.square(expected - given), axis=-1)

    model.compile(optimizer or keras.optimizers.SGD(0.1), loss, **options)
    return model


def fit(model: Any, log: GradientLog | None, epochs: int = 1, callback: Any = None) -> Any:
    """Train by batches in order; return the callback."""
    from castwise.adapters.keras import survey_gradients  # noqa: PLC0415

    if log is not None and callback is None:
        callback = survey_gradients(log)
    callbacks = [] if callback is None else [callback]
    model.fit(
        *data(), batch_size=BATCH, epochs=epochs, shuffle=False, verbose=0, callbacks=callbacks
    )
    return callback


def weights(model: Any) -> list[np.ndarray]:
    return [np.array(weight) for weight in model.get_weights()]


def check_gradients_are_those_of_the_steps() -> None:
    """By the change of the weights in steps of 1, of the steps that are due and no others."""
    import keras  # noqa: PLC0415

    class Steps(keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_begin(self, logs: Any = None) -> None:
            self.taken = [weights(self.model)]

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if keras.config.backend() == "jax":
                self.model.jax_state_sync()
            self.taken.append(weights(self.model))

    from castwise.adapters.keras import survey_gradients  # noqa: PLC0415

    model, log, steps = (
        compiled(keras.optimizers.SGD(2.0**20)),
        GradientLog(3, by_name=True),
        Steps(),
    )
    survey = survey_gradients(log)
    recorded_steps = []
    original = survey.record
    survey.record = lambda *arguments: (recorded_steps.append(survey.step), original(*arguments))
    model.fit(*data(), batch_size=BATCH, shuffle=False, verbose=0, callbacks=[survey, steps])
    assert log.steps == (0, 3, 6) == tuple(recorded_steps)
    for step in log.steps:
        by_name = log.at(step).by_name
        names = ["net/up/kernel", "net/up/bias", "net/head/kernel", "net/head/bias"]
        assert sorted(by_name) == sorted(names), by_name
        before, after = steps.taken[step], steps.taken[step + 1]
        for name, old, moved in zip(names, before, after, strict=True):
            gradient = (old.astype(float) - moved) * 2.0**-20
            assert by_name[name].count == gradient.size
            np.testing.assert_allclose(by_name[name].amax, np.abs(gradient).max(), rtol=1e-3)


def check_training_is_what_it_is_without() -> None:
    """The weights after it, and those of the next fit, which does not survey."""
    plain, surveyed, log = compiled(), compiled(), GradientLog(2)
    fit(surveyed, log)
    fit(plain, None)
    for left, right in zip(weights(plain), weights(surveyed), strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-5, atol=1e-7)
    fit(surveyed, None)
    assert log.steps == (0, 2, 4, 6)
    assert "apply" not in vars(surveyed.optimizer)
    assert "stateless_apply" not in vars(surveyed.optimizer)


def check_steps_are_counted_across_fits() -> None:
    model, log = compiled(), GradientLog(5)
    callback = fit(model, log, epochs=2)
    assert log.steps == (0, 5, 10, 15), log.steps
    fit(model, log, callback=callback)
    assert log.steps == (0, 5, 10, 15, 20), log.steps
    fit(model, log)  # a callback of its own counts from the optimizer's iterations
    assert log.steps == (0, 5, 10, 15, 20, 25, 30), log.steps


def check_a_model_that_is_compiled_anew() -> None:
    """Of a layer that is trained no longer there are no gradients."""
    import keras  # noqa: PLC0415

    model, log = compiled(), GradientLog(4, by_name=True)
    callback = fit(model, log)
    model.get_layer("up").trainable = False
    model.compile(keras.optimizers.SGD(0.1), "mse")
    fit(model, log, callback=callback)
    assert log.steps == (0, 4, 8, 12)
    assert [len(recorded.by_name) for recorded in log] == [4, 4, 2, 2]


def check_what_float16_loses_and_what_saves_it() -> None:
    """Also that training in float16 is saved by the loss scale that the log gives."""
    import keras  # noqa: PLC0415

    log = GradientLog(4)
    fit(compiled(), log)
    prediction = log.at(4).predict()
    assert prediction.underflowed > 0.05 * prediction.count
    scales = log.loss_scales()
    assert scales is not None
    lost = log.at(4).predict(loss_scale=scales.lowest)
    assert lost.underflowed <= 0.001 * lost.count
    zeros = {}
    for scale in (1.0, scales.lowest):
        half = GradientLog(4)
        optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1), scale)
        fit(compiled(optimizer, "mixed_float16"), half)
        assert half.at(0).loss_scale == scale
        zeros[scale] = half.at(0).total.zeros / half.at(0).total.count
    assert zeros[1.0] > 0.05, zeros
    assert zeros[scales.lowest] < 0.01, zeros


def check_the_loss_scales_of_optimizers() -> None:
    """The gradients without it are the same: Keras' wrapper, castwise's, and a fixed factor."""
    import keras  # noqa: PLC0415
    from castwise.compat.keras.mixed_precision import LossScaleOptimizer  # noqa: PLC0415

    plain = GradientLog(2)
    fit(compiled(), plain)
    makers: list[tuple[Callable[[Any], Any], list[float]]] = [
        (
            lambda inner: keras.optimizers.LossScaleOptimizer(inner, 1024.0, 3),
            [1024.0, 1024.0, 2048.0, 4096.0],
        ),
        (lambda inner: LossScaleOptimizer(inner, 1024.0, 3), [1024.0, 1024.0, 2048.0, 4096.0]),
        (lambda _: keras.optimizers.SGD(0.1, loss_scale_factor=512.0), [512.0] * 4),
    ]
    for make, scales in makers:
        log = GradientLog(2)
        fit(compiled(make(keras.optimizers.SGD(0.1))), log)
        assert [recorded.loss_scale for recorded in log] == scales
        for recorded, expected in zip(log, plain, strict=True):
            np.testing.assert_allclose(recorded.amax, expected.amax, rtol=1e-3)
            assert not recorded.unscaled


def check_compiled_or_not() -> None:
    import keras  # noqa: PLC0415

    logs = []
    for options in ({"jit_compile": False}, {"run_eagerly": True}, {"jit_compile": "auto"}):
        logs.append(GradientLog(3))
        fit(compiled(**options), logs[-1])
    if keras.config.backend() != "torch":
        logs.append(GradientLog(3))
        fit(compiled(jit_compile=True), logs[-1])
    for log in logs:
        assert log.steps == (0, 3, 6)
        np.testing.assert_allclose(log.at(6).amax, logs[0].at(6).amax, rtol=1e-4)


def check_embeddings_and_batches_of_other_sizes() -> None:
    import keras  # noqa: PLC0415
    from castwise.adapters.keras import survey_gradients  # noqa: PLC0415

    layers = [keras.Input((2,)), keras.layers.Embedding(10, 4), keras.layers.Flatten()]
    model = keras.Sequential([*layers, keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    log = GradientLog(1, by_name=True)
    x = np.arange(10).reshape(5, 2) % 3
    model.fit(x, x[:, :1], batch_size=3, verbose=0, callbacks=[survey_gradients(log)])
    assert log.steps == (0, 1)
    table = next(part for name, part in log.at(1).by_name.items() if "embedding" in name)
    assert table.count == 40
    assert table.zeros >= 28


def check_a_step_that_raises_leaves_the_model_as_it_was() -> None:
    import keras  # noqa: PLC0415

    class Broken(keras.Model):  # type: ignore[misc]
        def build(self, shape: Any) -> None:
            self.dense = keras.layers.Dense(1)
            self.dense.build(shape)
            self.built = True

        def call(self, x: Any) -> Any:
            return self.dense(x)

        def train_step(self, *arguments: Any) -> Any:
            raise RuntimeError("broken")

    model = Broken()
    model.compile("sgd", "mse", run_eagerly=True)
    model.build((None, 32))
    try:
        fit(model, GradientLog(1))
    except RuntimeError:
        pass
    else:
        raise AssertionError
    assert "apply" not in vars(model.optimizer)
    assert "stateless_apply" not in vars(model.optimizer)
    assert getattr(model.train_function, "__name__", "") != "_survey_step"


def check_a_step_that_uses_no_optimizer_is_refused() -> None:
    import keras  # noqa: PLC0415

    class Idle(keras.Sequential):  # type: ignore[misc]
        def train_step(self, *arguments: Any) -> Any:
            logs = {"loss": keras.ops.zeros(())}
            return (logs, arguments[0]) if keras.config.backend() == "jax" else logs

    model = Idle([keras.Input((32,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    try:
        fit(model, GradientLog())
    except RuntimeError as error:
        assert "gave no gradients to its optimizer; let it call" in str(error)  # noqa: PT017
    else:
        raise AssertionError


def refused(text: str, model: Any) -> None:
    try:
        fit(model, GradientLog())
    except (TypeError, ValueError) as error:
        assert text in str(error), error  # noqa: PT017 - not a test of pytest
        return
    raise AssertionError(f"not refused: {text}")


def check_refusals() -> None:
    import keras  # noqa: PLC0415
    from castwise.adapters.keras import survey_gradients  # noqa: PLC0415

    try:
        survey_gradients(3)  # type: ignore[arg-type]
    except TypeError as error:
        assert "log=3 is not valid; give a castwise.surveys.GradientLog" in str(error)  # noqa: PT017
    if keras.config.backend() == "torch":
        refused("compile the model with jit_compile=False", compiled(jit_compile=True))
    else:
        refused("with steps_per_execution=1", compiled(steps_per_execution=2))
    if keras.config.backend() == "tensorflow":
        import tensorflow as tf  # noqa: PLC0415

        with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
            model = compiled()
        refused("trained by 2 replicas of tf.distribute; train it without", model)


CHECKS = checks_among(globals())

if __name__ == "__main__":
    if os.environ.get("KERAS_BACKEND") == "tensorflow":
        import tensorflow as tf

        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(
            cpu, [tf.config.LogicalDeviceConfiguration()] * 2
        )
    run(CHECKS)
