"""Configs, files, failures and subclasses of LossScaleOptimizer around Keras' optimizers.

``KERAS_BACKEND=jax python keras_scaling_state_checks.py`` prints, as JSON, for each check None or
its traceback.
"""

from __future__ import annotations

import contextlib
import copy
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from keras_checks import checks_among, run
from keras_scaling_checks import inner_optimizers, model_and_data, states, wrappers


def check_configs_go_round() -> None:
    """Keras' into castwise's and back, and from castwise's to itself, without custom objects."""
    import keras  # noqa: PLC0415

    @keras.saving.register_keras_serializable("checks")
    class Own(keras.optimizers.SGD):
        pass

    ours, theirs = wrappers()
    for make in [*inner_optimizers().values(), lambda: Own(0.5)]:
        inner = make()
        config = ours(inner, 64.0, 7, name="scaled").get_config()
        assert config == theirs(inner, 64.0, 7, name="scaled").get_config()
        before = copy.deepcopy(config)
        for _ in range(2):
            again = ours.from_config(config)
            assert again.get_config() == before == config
            assert type(again) is type(ours(make()))
            assert theirs.from_config(copy.deepcopy(config)).get_config() == before
            config = json.loads(json.dumps(config))
        assert type(again).from_config(config).get_config() == before
        assert type(again.inner_optimizer) is type(make())
    old = {"module": "keras.src.optimizers.sgd", "class_name": "SGD", "config": {"momentum": 0.5}}
    loaded = ours.from_config({"inner_optimizer": {**old, "registered_name": "SGD"}})
    assert loaded.inner_optimizer.momentum == 0.5


def check_paths_of_variables() -> None:
    """Those of Keras', whether `build` or the first step makes them."""
    import keras  # noqa: PLC0415

    for builds in (True, False):
        paths = []
        for cls in wrappers():
            variable = keras.Variable(np.ones(2, np.float32), name="w")
            optimizer = cls(keras.optimizers.Adam(name="inner"), 4.0, name="outer")
            if builds:
                optimizer.build([variable])
            elif keras.config.backend() == "jax" and cls is wrappers()[1]:
                with contextlib.suppress(Exception):  # Keras' own fails after it has built
                    optimizer.apply([keras.ops.ones(2)], [variable])
            else:
                optimizer.apply([keras.ops.ones(2)], [variable])
            paths.append([each.path for each in optimizer.variables])
        assert paths[0] == paths[1]


def check_saved_models() -> None:
    """The file is that of Keras' wrapper: it loads with the state, into Keras' or castwise's."""
    import keras  # noqa: PLC0415

    ours, theirs = wrappers()
    configs = []
    for cls in (ours, theirs):
        model, _, _ = model_and_data()
        model.compile(cls(keras.optimizers.Adam(name="adam"), 16.0, 3, name="scaled"), "mse")
        model.optimizer.build(model.trainable_variables)
        model.optimizer.dynamic_scale.assign(4.0)
        model.optimizer.inner_optimizer.variables[-1].assign([3.0])
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.keras"
            model.save(path)
            loaded = keras.saving.load_model(path).optimizer
        assert type(loaded) is theirs
        assert states(loaded, []) == states(model.optimizer, [])
        configs.append(keras.saving.serialize_keras_object(model.optimizer))
        store: dict[str, Any] = {}
        model.optimizer.save_own_variables(store)
        other = ours(keras.optimizers.Adam(), 8.0)
        other.build(model.trainable_variables)
        other.load_own_variables(store)
        assert states(other, []) == states(model.optimizer, [])
        other = ours(keras.optimizers.Adam(), 8.0)
        other.load_state_dict({"dynamic_scale": 2.0, "step_counter": 1})
        assert (other.dynamic_scale, other.step_counter) == (2.0, 1)
        assert float(other.scale_loss(3.0)) == 6.0
        other.build(model.trainable_variables)
        assert other.state_dict() == {"dynamic_scale": 2.0, "step_counter": 1}
        assert float(other.scale_loss(3.0)) == 6.0
    assert configs[0] == configs[1]


def check_steps_that_cannot_be_taken() -> None:
    """Nothing is changed by them, in the optimizer nor in the variables; the next step works."""
    import keras  # noqa: PLC0415

    ours, _ = wrappers()

    class Failing(keras.optimizers.SGD):
        fails = True

        def apply(self, grads: Any, trainable_variables: Any = None) -> None:
            super().apply(grads, trainable_variables)
            if self.fails:
                raise OSError("no step")

    grad = keras.ops.convert_to_tensor(np.ones(2, np.float32))
    long = keras.ops.convert_to_tensor(np.ones(3, np.float32))
    bad = keras.ops.convert_to_tensor(np.full(2, np.inf, np.float32))
    for inner, grads, error in (
        (Failing(1.0, momentum=0.5), [grad, grad], OSError),
        (keras.optimizers.Adam(1.0), [grad], ValueError),
        (keras.optimizers.Adam(1.0), [bad], ValueError),
        (keras.optimizers.Adam(1.0), [grad, grad, grad], ValueError),
        (keras.optimizers.SGD(1.0), [grad, long], ValueError),
        (keras.optimizers.SGD(1.0), [None, None], ValueError),
    ):
        variables = [keras.Variable(np.ones(2, np.float32)) for _ in range(2)]
        optimizer = ours(inner, 4.0, 3)
        optimizer.build(variables)
        before = states(optimizer, variables)
        for given in ([variables], []):
            try:
                optimizer.apply(grads, *given)
            except error:
                pass
            else:
                raise AssertionError(f"{error} was not raised for {grads}")
            assert states(optimizer, variables) == before, inner
        if keras.config.backend() != "tensorflow" and error is ValueError:
            values = [[each.value for each in side] for side in (optimizer.variables, variables)]
            try:
                optimizer.stateless_apply(values[0], grads, values[1])
            except ValueError:
                pass
            else:
                raise AssertionError(f"stateless_apply took {grads}")
        inner.fails = False
        optimizer.apply([grad, grad], variables)
        assert np.asarray(optimizer.step_counter.value) == 1
        assert states(optimizer, variables) != before
    fresh = ours(keras.optimizers.SGD(1.0))
    with contextlib.suppress(ValueError):
        fresh.apply([grad])
    assert len(fresh.variables) == 4, "Keras makes the scale's variables, and then raises"


def check_constraints_that_raise() -> None:
    """Keras calls them after it has changed the variables, which then get their values back."""
    import keras  # noqa: PLC0415

    ours, _ = wrappers()

    def refuse(_: Any) -> Any:
        raise OSError("no constraint")

    grad = keras.ops.convert_to_tensor(np.ones(2, np.float32))
    variables = [keras.Variable(np.ones(2, np.float32)) for _ in range(2)]
    optimizer = ours(keras.optimizers.SGD(1.0, momentum=0.5), 4.0, 3)
    optimizer.build(variables)
    before = states(optimizer, variables)
    variables[1].constraint = refuse
    try:
        optimizer.apply([grad, grad], variables)
    except OSError:
        pass
    else:
        raise AssertionError("the constraint was not called")
    assert states(optimizer, variables) == before
    variables[1].constraint = keras.constraints.NonNeg()
    optimizer.apply([grad, grad], variables)
    assert states(optimizer, variables) != before


def check_derived_classes() -> None:
    """A class derived from castwise's keeps its own methods around Keras' optimizers."""
    import keras  # noqa: PLC0415

    ours, theirs = wrappers()

    class Doubled(ours):  # type: ignore[misc,valid-type]
        def __init__(self, inner_optimizer: Any, **kwargs: Any) -> None:
            super().__init__(inner_optimizer, initial_scale=4.0, **kwargs)

        def scale_loss(self, loss: Any) -> Any:
            return 2 * super().scale_loss(loss)

    optimizer = Doubled(keras.optimizers.SGD(1.0))
    assert isinstance(optimizer, Doubled)
    assert isinstance(optimizer, theirs)
    assert float(optimizer.scale_loss(1.0)) == 8.0
    variable = keras.Variable(np.ones(2, np.float32))
    optimizer.apply([keras.ops.ones(2)], [variable])
    assert keras.ops.convert_to_numpy(variable).tolist() == [0.75, 0.75]


CHECKS = checks_among(globals())

if __name__ == "__main__":
    run(CHECKS)
