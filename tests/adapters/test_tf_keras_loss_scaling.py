"""castwise's LossScaleOptimizer around tf_keras' optimizers, step by step beside tf_keras' own."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import peers
import pytest
from castwise import loss_scale
from castwise.adapters.tf_keras import from_tf_keras_optimizer
from castwise.compat.tf_keras.mixed_precision import LossScaleOptimizer
from castwise.loss_scale._array_steps import next_scale
from castwise.loss_scale.tf_keras._around_tf_keras import arrays
from hypothesis import given, settings
from hypothesis import strategies as st

# tf_keras' own, with numpy 2.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

STEPS = 200
PLANTED = itertools.cycle([np.inf, np.nan, -np.inf])
FACTORS = [next(PLANTED) if step % 7 == 6 else 0.5 + step % 3 for step in range(STEPS)]
OPTIMIZERS = [
    pytest.param(legacy, name, id=f"{'legacy' if legacy else 'new'}-{name}")
    for legacy in (False, True)
    for name in ("SGD", "Adam")
]


def inner(legacy: bool, name: str = "SGD", **options: Any) -> Any:
    optimizers = peers.tf_keras().optimizers
    options = {"momentum": 0.9} | options if name == "SGD" else options
    return getattr(optimizers.legacy if legacy else optimizers, name)(0.01, **options)


def wrapped(inner_optimizer: Any, ours: bool, **options: Any) -> Any:
    wrapper = LossScaleOptimizer if ours else peers.tf_keras().mixed_precision.LossScaleOptimizer
    return wrapper(inner_optimizer, **{"initial_scale": 64.0, "dynamic_growth_steps": 3, **options})


def state(optimizer: Any, variables: list[Any]) -> list[Any]:
    """All that training changes, as bytes and numbers."""
    own = optimizer.variables() if callable(optimizer.variables) else optimizer.variables
    dynamic = [optimizer.dynamic_counter] if optimizer.dynamic else []
    held = [*variables, *own, *dynamic, optimizer.iterations]
    return [np.asarray(each).tobytes() for each in held] + [float(optimizer.loss_scale)]


class Training:
    """A table of which a few rows are looked up, and a matrix, under one optimizer."""

    def __init__(self, optimizer: Any) -> None:
        tf, rng = peers.tensorflow(), np.random.default_rng(0)
        self.optimizer = optimizer
        self.table = tf.Variable(rng.standard_normal((6, 3)), dtype=tf.float32)
        self.matrix = tf.Variable(rng.standard_normal((3, 2)), dtype=tf.float32)
        self.variables = [self.table, self.matrix]

    def loss(self, rows: Any, factor: Any) -> Any:
        tf = peers.tensorflow()
        return tf.reduce_sum(tf.square(tf.gather(self.table, rows) @ self.matrix)) * factor

    def by_tape(self, rows: Any, factor: Any) -> None:
        tape = peers.tensorflow().GradientTape()
        with tape:
            loss = self.optimizer.get_scaled_loss(self.loss(rows, factor))
        grads = self.optimizer.get_unscaled_gradients(tape.gradient(loss, self.variables))
        self.optimizer.apply_gradients(zip(grads, self.variables, strict=True))

    def by_minimize(self, rows: Any, factor: Any) -> None:
        self.optimizer.minimize(lambda: self.loss(rows, factor), self.variables)


def train(training: Training, step: Any, steps: int = STEPS) -> Iterator[list[Any]]:
    tf = peers.tensorflow()
    for number, factor in enumerate(FACTORS[:steps]):
        step(tf.constant([number % 6, 2, 2]), tf.constant(factor, tf.float32))
        yield state(training.optimizer, training.variables)


def check_equal(sides: list[Training], step: Any, steps: int) -> None:
    """Take steps with both sides; everything is equal after each of them."""
    taken = [train(side, step(side), steps) for side in sides]
    for number, (theirs, ours) in enumerate(zip(*taken, strict=True)):
        assert ours == theirs, number
    assert float(sides[1].optimizer.loss_scale) != 64.0
    assert np.isfinite(sides[1].matrix).all()


def both(legacy: bool, name: str = "SGD") -> list[Training]:
    return [Training(wrapped(inner(legacy, name), ours)) for ours in (False, True)]


@pytest.mark.parametrize("traced", [False, True], ids=["eager", "function"])
@pytest.mark.parametrize(("method", "steps"), [("by_tape", STEPS), ("by_minimize", 24)])
@pytest.mark.parametrize(("legacy", "name"), OPTIMIZERS)
def test_training_with_planted_infinities(
    legacy: bool, name: str, method: str, steps: int, traced: bool
) -> None:
    run = peers.tensorflow().function if traced else lambda step: step
    check_equal(both(legacy, name), lambda side: run(getattr(side, method)), steps)


@pytest.mark.parametrize("legacy", [False, True])
def test_training_compiled_by_xla(legacy: bool) -> None:
    sides = both(legacy)
    for side in sides:  # XLA makes no variables, and looks up no rows on the CPU
        side.variables = [side.matrix]
        getattr(side.optimizer, "_create_all_weights" if legacy else "build")(side.variables)
    compiled = peers.tensorflow().function
    check_equal(sides, lambda side: compiled(side.by_tape, jit_compile=True), 10)


@pytest.mark.parametrize("legacy", [False, True])
def test_training_under_a_strategy(legacy: bool) -> None:
    tf = peers.tensorflow()
    strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    with strategy.scope():
        sides = both(legacy)

    def step(side: Training) -> Any:
        return tf.function(lambda *given: strategy.run(side.by_tape, args=given))

    check_equal(sides, step, 10)
    with strategy.scope():
        sides[1].optimizer.load_state_dict(saved := sides[1].optimizer.state_dict())
    assert sides[1].optimizer.state_dict() == saved


def trained_in_a_session(ours: bool) -> Iterator[list[Any]]:
    tf = peers.tensorflow()
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        variable = tf.compat.v1.get_variable("v", initializer=1.0)
        factor = tf.compat.v1.placeholder(tf.float32, ())
        optimizer = wrapped(inner(True), ours)
        update = optimizer.get_updates(variable**2 * factor, [variable])
        held = [variable, optimizer.loss_scale, optimizer.dynamic_counter, optimizer.iterations]
        session.run(tf.compat.v1.global_variables_initializer())
        for value in FACTORS[:30]:
            session.run(update, {factor: value})
            yield session.run(held)


def test_training_in_a_session_of_tf_1() -> None:
    theirs, ours = (list(trained_in_a_session(side)) for side in (False, True))
    assert ours == theirs
    assert len({scale for _, scale, _, _ in ours}) > 5


@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize("dynamic", [False, True])
def test_the_side_changes_between_steps(legacy: bool, dynamic: bool) -> None:
    options = {} if dynamic else {"dynamic": False, "dynamic_growth_steps": None}
    sides = [Training(wrapped(inner(legacy), False, **options)) for _ in range(2)]
    sides[1].optimizer = from_tf_keras_optimizer(sides[1].optimizer)
    assert isinstance(sides[1].optimizer, LossScaleOptimizer)
    assert from_tf_keras_optimizer(sides[1].optimizer) is sides[1].optimizer
    taken = [train(side, side.by_minimize, 20) for side in sides]
    for theirs, ours in zip(*taken, strict=True):
        assert ours == theirs
    assert np.isfinite(sides[1].matrix).all() == dynamic


# ------------------------------------------------------------------------ the first skipped step


@pytest.mark.parametrize("bad", [np.inf, np.nan])
@pytest.mark.parametrize("legacy", [False, True])
def test_the_first_step_is_skipped(legacy: bool, bad: float) -> None:
    tf = peers.tensorflow()
    for ours in (False, True):
        optimizer, variable = wrapped(inner(legacy), ours), tf.Variable([1.0])
        optimizer.apply_gradients([(tf.constant([bad]), variable)])
        optimizer.minimize(lambda v=variable: v * bad, [variable])
        assert (float(optimizer.loss_scale), int(optimizer.iterations)) == (16.0, 2)
        assert variable.numpy() == [1.0]


def gradient_of_half(optimizer: Any) -> Any:
    """The gradient of a float16 loss that is 0 unless the loss is scaled."""
    tf = peers.tensorflow()
    with tf.Graph().as_default():
        variable = tf.compat.v1.get_variable("v", initializer=1.0)
        loss = tf.cast(variable, "float16") * 2.0**-12 * 2.0**-14
        (gradient,) = optimizer().get_gradients(loss, [variable])
        with tf.compat.v1.Session() as session:
            session.run(tf.compat.v1.global_variables_initializer())
            return session.run(gradient)


def test_get_gradients_scales() -> None:
    for ours in (False, True):
        assert gradient_of_half(lambda o=ours: wrapped(inner(True), o)) == 2.0**-26
    assert gradient_of_half(lambda: inner(True)) == 0


@pytest.mark.parametrize("legacy", [False, True])
def test_computed_gradients_are_unscaled(legacy: bool) -> None:
    tf = peers.tensorflow()
    variable = tf.Variable([3.0])

    def loss() -> Any:
        return tf.cast(tf.cast(variable, "float16") * 2.0**-12 * 2.0**-14, "float32")

    for ours in (False, True):
        optimizer = wrapped(inner(legacy), ours, initial_scale=2.0**12)
        method = optimizer._compute_gradients if legacy else optimizer.compute_gradients
        assert method(loss, [variable])[0][0].numpy() == [2.0**-26]


@pytest.mark.parametrize("where", ["gradient_aggregator", "gradient_transformers", "clipnorm"])
def test_nan_of_the_optimizers_own(where: str) -> None:
    """What is not finite after aggregation is skipped; what is made later is applied."""
    tf = peers.tensorflow()

    def spoil(pairs: Any) -> Any:
        return [(gradient * np.nan, variable) for gradient, variable in pairs]

    options = {
        "gradient_aggregator": {"gradient_aggregator": spoil},
        "gradient_transformers": {"gradient_transformers": [spoil]},
        "clipnorm": {"clipnorm": np.nan},
    }[where]
    results = []
    for ours in (False, True):
        optimizer = wrapped(inner(True, **options), ours)
        variable = tf.Variable([1.0, 2.0])
        optimizer.apply_gradients([(tf.constant([1.0, 1.0]), variable)])
        results.append(state(optimizer, [variable]))
    assert results[0] == results[1]
    assert np.isnan(variable).any() == (where != "gradient_aggregator")


def test_nan_of_a_new_optimizers_aggregation() -> None:
    tf, base = peers.tensorflow(), peers.tf_keras().optimizers.SGD

    class Spoils(base):  # type: ignore[misc, valid-type]
        def aggregate_gradients(self, pairs: Any) -> Any:
            return [(gradient * np.nan, variable) for gradient, variable in pairs]

    for ours in (False, True):
        optimizer, variable = wrapped(Spoils(), ours), tf.Variable([1.0])
        optimizer.apply_gradients([(tf.constant([1.0]), variable)])
        assert (variable.numpy(), float(optimizer.loss_scale)) == ([1.0], 32.0)
        optimizer.apply_gradients([(tf.constant([1.0]), variable)], skip_gradients_aggregation=True)
        assert variable.numpy() != [1.0]


# ------------------------------------------------------------------------------ the loss scale


@settings(max_examples=50)
@given(
    seen=st.lists(st.booleans(), max_size=10),
    scale=st.sampled_from([4.0, 3.0, 0.25, 2.0**15, 2.0**127, 0.0, -4.0, np.inf, np.nan]),
    steps=st.integers(-1, 3),
)
def test_the_scale_moves_as_castwise_moves_it(seen: list[bool], scale: float, steps: int) -> None:
    tf = peers.tensorflow()
    machine = loss_scale.DynamicLossScale(scale, steps, preset="tf_keras")
    found = tf.constant(scale, tf.float32), tf.constant(0, tf.int64)
    for finite in seen:
        machine, _ = machine.next(finite)
        found = next_scale(arrays(), *found, machine, tf.constant(finite))
        np.testing.assert_equal(found[0].numpy(), np.float32(machine.scale))
        assert int(found[1]) == machine.counter


@pytest.mark.parametrize("legacy", [False, True])
def test_states_are_saved_and_restored(legacy: bool) -> None:
    tf = peers.tensorflow()
    optimizer, variable = wrapped(inner(legacy), True), tf.Variable([1.0])
    for gradient in (np.nan, 1.0):
        optimizer.apply_gradients([(tf.constant([gradient]), variable)])
    saved = optimizer.state_dict()
    assert saved == {"current_loss_scale": 32.0, "good_steps": 1}
    again = wrapped(inner(legacy), True)
    again.load_state_dict(saved)
    assert (float(again.loss_scale), int(again.dynamic_counter)) == (32.0, 1)
    for wrong, error in (({}, ValueError), (dict.fromkeys(saved, "x"), TypeError)):
        with pytest.raises(error):
            again.load_state_dict(wrong)
    assert again.state_dict() == saved
    fixed = wrapped(inner(legacy), True, dynamic=False, dynamic_growth_steps=None)
    assert fixed.state_dict() == {}
    with pytest.raises(ValueError, match="unknown key 'current_loss_scale'"):
        fixed.load_state_dict(saved)


@pytest.mark.parametrize("legacy", [False, True])
def test_what_cannot_be_wrapped(legacy: bool) -> None:
    optimizer = inner(legacy)
    for arguments, error in (
        ({"dynamic": 8.0}, TypeError),
        ({"dynamic": False}, ValueError),
        ({"initial_scale": "x"}, ValueError),
    ):
        with pytest.raises(error, match=next(iter(arguments))):
            LossScaleOptimizer(optimizer, **arguments)
    outer = LossScaleOptimizer(optimizer)  # what was refused has not marked it
    with pytest.raises(ValueError, match="wrapped"):
        LossScaleOptimizer(optimizer)
    for wrapper in (outer, wrapped(inner(legacy), False)):
        with pytest.raises(TypeError, match="is not a LossScaleOptimizer"):
            LossScaleOptimizer(wrapper)
    derived = type("Derived", (LossScaleOptimizer,), {})
    with pytest.raises(TypeError, match="Derived cannot wrap"):
        derived(inner(legacy))


# -------------------------------------------------------------------------- steps that fail


def breaking(legacy: bool) -> Any:
    """An optimizer that raises at its second variable, having changed the first."""
    optimizers = peers.tf_keras().optimizers

    class New(optimizers.SGD):  # type: ignore[misc, name-defined]
        def update_step(self, gradient: Any, variable: Any) -> None:
            super().update_step(gradient, variable)
            if "second" in variable.name:
                raise RuntimeError("broken")

    class Legacy(optimizers.legacy.SGD):  # type: ignore[misc, name-defined]
        def _resource_apply_dense(self, gradient: Any, variable: Any, apply_state: Any) -> None:
            super()._resource_apply_dense(gradient, variable, apply_state)
            if "second" in variable.name:
                raise RuntimeError("broken")

    return (Legacy if legacy else New)(0.5, momentum=0.9)


@pytest.mark.parametrize("traced", [False, True], ids=["eager", "function"])
@pytest.mark.parametrize("legacy", [False, True])
def test_a_step_that_fails_changes_nothing(legacy: bool, traced: bool) -> None:
    tf = peers.tensorflow()
    optimizer = wrapped(breaking(legacy), True)
    variables = [tf.Variable([1.0], name=name) for name in ("first", "second")]
    finite = tf.constant([1.0])

    def step(*grads: Any) -> None:
        optimizer.apply_gradients(zip(grads, variables, strict=True))

    step(tf.constant([np.nan]), finite)
    with pytest.raises(RuntimeError, match="broken"):
        (tf.function(step) if traced else step)(finite, finite)
    assert optimizer.state_dict() == {"current_loss_scale": 32.0, "good_steps": 0}
    assert int(optimizer.iterations) == 1
    held = optimizer.variables() if legacy else optimizer.variables
    momenta = [each.numpy().tolist() for each in held if each.shape == [1]]
    assert momenta == [[0.0], [0.0]]
    assert [each.numpy().tolist() for each in variables] == [[1.0], [1.0]]


@pytest.mark.parametrize("legacy", [False, True])
def test_gradients_that_do_not_fit(legacy: bool) -> None:
    tf = peers.tensorflow()
    optimizer = wrapped(inner(legacy), True)
    variables = [tf.Variable([1.0, 2.0]), tf.Variable([1.0, 2.0])]
    fits, wrong = tf.constant([1.0, 1.0]), tf.constant([1.0, 1.0, 1.0])
    optimizer.apply_gradients(zip([fits, fits], variables, strict=True))
    before = state(optimizer, variables)
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError)):
        optimizer.apply_gradients([(fits, variables[0]), (wrong, variables[1])])
    with pytest.raises(ValueError, match=r"grads_and_vars\[1\]=.* give pairs"):
        optimizer.apply_gradients([(fits, variables[0]), (fits,)])
    with pytest.raises(TypeError, match=r"grads_and_vars\[0\]=5 .* give pairs"):
        optimizer.apply_gradients([5])
    with pytest.raises(TypeError, match=r"grads_and_vars=None .* give pairs"):
        optimizer.apply_gradients(None)
    if not legacy:  # a legacy one takes variables as they come
        with pytest.raises(KeyError, match="cannot recognize variable"):
            optimizer.apply_gradients([(fits, variables[0]), (fits, tf.Variable([1.0, 1.0]))])
        with pytest.raises(ValueError, match="grads_and_vars holds no gradient"):
            optimizer.apply_gradients([])
    with pytest.raises(ValueError, match="No gradients provided"):
        optimizer.apply_gradients([(None, variables[0])])
    assert state(optimizer, variables) == before
