"""Checks of castwise's LossScaleOptimizer around Keras' optimizers, beside Keras' own wrapper.

``KERAS_BACKEND=jax python keras_scaling_checks.py`` prints, as JSON, for each check None or its
traceback.
"""

from __future__ import annotations

import contextlib
import copy
import json
import tempfile
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


CHECKS: dict[str, Check] = {
    name.removeprefix("check_"): check
    for name, check in list(globals().items())
    if name.startswith("check_")
}

if __name__ == "__main__":
    run(CHECKS)
