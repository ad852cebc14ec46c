"""Models, checkpoints and configs with castwise's LossScaleOptimizer, beside tf_keras' own."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import peers
import pytest
from castwise.adapters.tf_keras import to_tf_keras_optimizer
from castwise.compat.tf_keras.mixed_precision import LossScaleOptimizer
from castwise.compat.tf_keras.mixed_precision.loss_scale import DynamicLossScale, serialize

# tf_keras' own, with numpy 2.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

KINDS = [False, True]


def inner(legacy: bool, name: str = "Adam", rate: Any = 0.01) -> Any:
    optimizers = peers.tf_keras().optimizers
    return getattr(optimizers.legacy if legacy else optimizers, name)(rate)


def wrapper(ours: bool) -> Any:
    return LossScaleOptimizer if ours else peers.tf_keras().mixed_precision.LossScaleOptimizer


def compiled(ours: bool, legacy: bool, **options: Any) -> Any:
    """A model with an embedding, whose gradients are sparse, and a loss that can overflow."""
    keras = peers.tf_keras()
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.layers.Embedding(8, 4, input_length=3, dtype="mixed_float16"),
            keras.layers.Flatten(),
            keras.layers.Dense(2, dtype="mixed_float16"),
            keras.layers.Activation("linear", dtype="float32"),
        ]
    )
    optimizer = wrapper(ours)(inner(legacy), initial_scale=2.0**14, dynamic_growth_steps=3)
    model.compile(optimizer, "mse", **options)
    assert model.optimizer is optimizer
    return model


def data(batches: int) -> tuple[Any, Any]:
    """Batches of 4, every seventh of them with a target that is not finite."""
    rng = np.random.default_rng(0)
    x = rng.integers(0, 8, (batches * 4, 3))
    y = rng.standard_normal((batches * 4, 2)).astype(np.float32)
    y[6 * 4 :: 7 * 4] = np.inf
    return x, y


def state(model: Any) -> list[Any]:
    held, optimizer = list(model.weights), model.optimizer
    held += optimizer.variables() if callable(optimizer.variables) else optimizer.variables
    held += [optimizer.dynamic_counter, optimizer.loss_scale]
    return [np.asarray(each).tobytes() for each in held]


@pytest.mark.parametrize("options", [{}, {"run_eagerly": True}, {"jit_compile": True}], ids=str)
@pytest.mark.parametrize("legacy", KINDS)
def test_fit(legacy: bool, options: dict[str, Any]) -> None:
    x, y = data(16)
    models = [compiled(ours, legacy, **options) for ours in (False, True)]
    for model in models:
        model.fit(x, y, batch_size=4, epochs=2, shuffle=False, verbose=0)
    assert state(models[1]) == state(models[0])
    assert all(np.isfinite(each).all() for each in models[1].get_weights())
    assert int(models[1].optimizer.iterations) == 32


@pytest.mark.parametrize("legacy", KINDS)
def test_train_on_batch(legacy: bool) -> None:
    x, y = data(16)
    models = [compiled(ours, legacy) for ours in (False, True)]
    for start in range(0, len(x), 4):
        losses = [
            model.train_on_batch(x[start : start + 4], y[start : start + 4]) for model in models
        ]
        np.testing.assert_equal(losses[1], losses[0])
        assert state(models[1]) == state(models[0]), start


def test_a_model_of_mixed_float16_wraps_no_second_time() -> None:
    keras = peers.tf_keras()
    model = keras.Sequential([keras.layers.Dense(1, input_shape=(2,))])
    model._set_dtype_policy("mixed_float16")
    optimizer = LossScaleOptimizer(inner(False))
    model.compile(optimizer, "mse")
    assert model.optimizer is optimizer


# ---------------------------------------------------------------------------------- files


@pytest.mark.parametrize("legacy", KINDS)
def test_checkpoints_are_those_of_tf_keras(legacy: bool, tmp_path: Path) -> None:
    tf = peers.tensorflow()

    def training(ours: bool) -> tuple[Any, Any]:
        return wrapper(ours)(inner(legacy), initial_scale=64.0), tf.Variable([1.0, 2.0])

    paths, names = [], []
    for ours in KINDS:
        optimizer, variable = training(ours)
        for value in (np.inf, 1.0):
            optimizer.apply_gradients([(tf.constant([value, 1.0]), variable)])
        checkpoint = tf.train.Checkpoint(optimizer=optimizer, variable=variable)
        paths.append(checkpoint.save(str(tmp_path / str(ours))))
        names.append([name for name, _ in tf.train.list_variables(paths[-1])])
    assert names[0] == names[1]
    assert "optimizer/loss_scale/good_steps/.ATTRIBUTES/VARIABLE_VALUE" in names[1]
    values = []
    for path, ours in ((paths[0], True), (paths[1], False)):
        optimizer, variable = training(ours)
        restored = tf.train.Checkpoint(optimizer=optimizer, variable=variable).restore(path)
        optimizer.apply_gradients([(tf.constant([1.0, 1.0]), variable)])
        restored.assert_existing_objects_matched()
        assert (float(optimizer.loss_scale), int(optimizer.dynamic_counter)) == (32.0, 2)
        assert int(optimizer.iterations) == 3
        values.append(variable.numpy().tobytes())
    assert values[0] == values[1]


@pytest.mark.parametrize("suffix", [".keras", ".h5"])
@pytest.mark.parametrize("legacy", KINDS)
@pytest.mark.filterwarnings("ignore::UserWarning")  # of tf_keras, for .h5
def test_a_saved_model_is_one_of_tf_keras(legacy: bool, suffix: str, tmp_path: Path) -> None:
    keras, (x, y) = peers.tf_keras(), data(8)
    kinds, steps = [], []
    for ours in KINDS:
        model = compiled(ours, legacy)
        model.fit(x, y, batch_size=4, shuffle=False, verbose=0)
        model.save(tmp_path / f"{ours}{suffix}")
        loaded = keras.models.load_model(tmp_path / f"{ours}{suffix}")
        kinds.append(type(loaded.optimizer))
        steps.append(int(loaded.optimizer.iterations))
        assert keras.optimizers.serialize(model.optimizer) == keras.optimizers.serialize(
            to_tf_keras_optimizer(model.optimizer) if ours else model.optimizer
        )
    assert kinds[0] is kinds[1] is type(compiled(False, legacy).optimizer)
    assert steps[0] == steps[1]


# -------------------------------------------------------------------------------- configs


@pytest.mark.parametrize("name", ["SGD", "Adam"])
@pytest.mark.parametrize("legacy", KINDS)
def test_configs_need_no_custom_objects(legacy: bool, name: str) -> None:
    schedule = peers.tf_keras().optimizers.schedules.ExponentialDecay(0.5, 10, 0.5)
    for rate in (0.25, schedule):
        arguments = {"initial_scale": 8.0, "dynamic_growth_steps": 3}
        theirs, ours = (wrapper(side)(inner(legacy, name, rate), **arguments) for side in KINDS)
        config = theirs.get_config()
        assert ours.get_config() == config
        assert config["inner_optimizer"]["module"].startswith("keras.optimizers")
        for given in (config, json.loads(json.dumps(config, default=float))):
            before = copy.deepcopy(given)
            for cls in (LossScaleOptimizer, type(ours)):
                again = cls.from_config(given)
                assert type(again) is type(ours)
                assert type(again.inner_optimizer) is type(ours.inner_optimizer)
                assert json.dumps(again.get_config(), default=float) == json.dumps(
                    config, default=float
                )
            assert given == before


def test_configs_of_older_releases() -> None:
    keras = peers.tf_keras()
    sgd = {"class_name": "SGD", "config": {"name": "SGD", "learning_rate": 0.5}}
    old = {"optimizer": sgd, "loss_scale": serialize(DynamicLossScale(16, 7))}
    loaded = LossScaleOptimizer.from_config(old)
    assert type(loaded.inner_optimizer) is keras.optimizers.legacy.SGD
    assert (loaded.initial_scale, loaded.dynamic_growth_steps) == (16.0, 7)
    assert float(loaded.learning_rate) == 0.5


def test_configs_of_ones_own_classes() -> None:
    base = peers.tf_keras().optimizers.SGD
    mine = type("Mine", (base,), {"__module__": "not_imported"})
    config = LossScaleOptimizer(mine(0.5)).get_config()
    again = LossScaleOptimizer.from_config(config, {"Mine": mine})
    assert type(again.inner_optimizer) is mine
    with pytest.raises(ValueError, match=r"'Mine'.*custom_objects"):
        LossScaleOptimizer.from_config(config)
    unknown = {"module": "keras.optimizers", "class_name": "Nothing", "config": {}}
    with pytest.raises(TypeError, match="Nothing"):
        LossScaleOptimizer.from_config({"inner_optimizer": unknown})
