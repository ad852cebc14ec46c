"""The state of `compat.keras`' LossScaleOptimizer around an optimizer of arrays, beside Keras'."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from castwise.compat.keras import mixed_precision
from castwise.compat.keras.mixed_precision import LossScaleOptimizer
from optimizers import SGD
from originals import library
from public_names import missing

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
STEPS = 200


class Counted:
    """Gradient descent with Keras' variables: iterations and learning rate."""

    def __init__(self, learning_rate: float = 1.0) -> None:
        self.iterations = np.zeros((), np.int32)
        self.learning_rate = np.array(learning_rate, np.float32)

    @property
    def variables(self) -> list[Any]:
        return [self.iterations, self.learning_rate]

    def apply(self, grads: Any, trainable_variables: Any) -> None:
        for grad, variable in zip(grads, trainable_variables, strict=True):
            np.subtract(variable, self.learning_rate * grad, out=variable)
        self.iterations += 1

    def finalize_variable_values(self, var_list: Any) -> None:
        var_list[0][...] = 0

    def stateless_apply(self, variables: Any, grads: Any, trained: Any) -> Any:
        count, rate = variables
        new = [each - rate * grad for grad, each in zip(grads, trained, strict=True)]
        return new, [count + np.int32(1), rate]


def planted(step: int, random: np.random.Generator) -> np.ndarray:
    grad = random.standard_normal(3).astype(np.float32)
    if step % 7 == 6:
        grad[step % 3] = (np.nan, np.inf)[step // 7 % 2]
    return grad


def equal(ours: list[Any], theirs: list[Any]) -> None:
    for one, other in zip(ours, theirs, strict=True):
        wanted = np.asarray(getattr(other, "value", other))
        assert (one.dtype, one.shape, one.tobytes()) == (
            wanted.dtype,
            wanted.shape,
            wanted.tobytes(),
        )


def test_two_hundred_steps_and_stateless_ones() -> None:
    """`variables` are those of Keras' wrapper after each step, through each way of stepping."""
    keras = library("keras")
    random = np.random.default_rng(0)
    variable, array = keras.Variable(np.ones(3, np.float32)), np.ones(3, np.float32)
    theirs = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.5), 2.0**-3, 3)
    optimizer = LossScaleOptimizer(Counted(0.5), 2.0**-3, 3)
    theirs.build([variable])
    optimizer.build([array])
    trained, held = [array.copy()], optimizer.variables
    equal(held, theirs.variables)
    for step in range(STEPS):
        grad = planted(step, random)
        before = [array.tobytes(), *map(np.copy, trained), *map(np.copy, held)]
        new = optimizer.stateless_apply(held, [grad], trained)
        after = [array.tobytes(), *trained, *held]
        assert before[0] == after[0]
        equal([np.asarray(each) for each in before[1:]], after[1:])
        trained, held = new
        theirs.apply([grad], [variable])
        optimizer.apply([grad], [array])
        equal([array, *optimizer.variables], [variable, *theirs.variables])
        equal([*trained, *held], [variable, *theirs.variables])


def test_what_is_saved_is_keras() -> None:
    """Each side loads what the other has saved, and continues alike."""
    keras = library("keras")
    variable, array = keras.Variable(np.ones(3, np.float32)), np.ones(3, np.float32)
    theirs = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.5), 8.0, 3)
    ours = LossScaleOptimizer(Counted(0.5), 8.0, 3)
    for each, held in ((theirs, variable), (ours, array)):
        for _ in range(5):
            each.apply([np.ones(3, np.float32)], [held])
    stores: list[dict[str, Any]] = [{}, {}]
    ours.save_own_variables(stores[0])
    theirs.save_own_variables(stores[1])
    equal(list(stores[0].values()), list(stores[1].values()))
    fresh = LossScaleOptimizer(Counted(), 4.0)
    kept = fresh.inner_optimizer.variables
    fresh.load_own_variables(stores[1])
    equal(fresh.variables, theirs.variables)
    assert fresh.inner_optimizer.variables[0] is kept[0], "assigned in place"
    assert fresh.scale_loss(np.float32(1)) == 16.0
    for wrong in (
        {**stores[0], "6": np.ones(())},
        {**stores[0], "5": np.ones(2)},
    ):
        state, before = fresh.state_dict(), [np.copy(each) for each in fresh.variables]
        with pytest.raises(ValueError, match="variables of the optimizer"):
            fresh.load_own_variables(wrong)
        assert fresh.state_dict() == state
        equal(before, fresh.variables)


class Failing(SGD):
    def build(self, var_list: Any) -> None:
        self.variables = var_list

    def apply(self, grads: Any, trainable_variables: Any) -> None:
        super().apply(grads[:1], self.variables[:1])
        raise OSError("no step")


@pytest.mark.parametrize("given", [True, False])
def test_a_step_that_cannot_be_taken_changes_nothing(given: bool) -> None:
    grad, bad = np.ones(2, np.float32), np.full(2, np.inf, np.float32)
    for inner, grads, error in (
        (Failing(), [grad, grad], OSError),
        (SGD(), [grad], ValueError),
        (SGD(), [bad], ValueError),
        (SGD(), [grad, grad, grad], ValueError),
    ):
        arrays = [np.ones(2, np.float32) for _ in range(2)]
        optimizer = LossScaleOptimizer(inner, 4.0, 3)
        optimizer.build(arrays)
        before = optimizer.state_dict()
        with pytest.raises(error, match=r"no step|one gradient, or None, for each variable"):
            optimizer.apply(grads, arrays if given else None)
        assert optimizer.state_dict() == before
        assert [each.tolist() for each in arrays] == [[1.0, 1.0]] * 2
    counted = LossScaleOptimizer(Counted())
    values = counted.variables
    with pytest.raises(ValueError, match="needs a built optimizer"):
        counted.stateless_apply(values, [grad], [grad])
    counted.build([grad])
    for arguments in ((values, [grad, grad], [grad]), (values[1:], [grad], [grad])):
        with pytest.raises(ValueError, match=r"one gradient|one for each of `variables`"):
            counted.stateless_apply(*arguments)


def test_configs_need_no_custom_objects() -> None:
    """Also around an optimizer of one's own, whose module is imported; nothing is imported."""
    config = LossScaleOptimizer(SGD(0.5), 8.0, 3, "scaled").get_config()
    config = json.loads(json.dumps(config))
    before = copy.deepcopy(config)
    again = LossScaleOptimizer.from_config(config)
    assert again.get_config() == before == config
    assert type(again.inner_optimizer) is SGD
    for module, name in (("this", "SGD"), ("optimizers", "np"), (None, "SGD")):
        config["inner_optimizer"] |= {"module": module, "class_name": name}
        with pytest.raises((ValueError, TypeError), match="custom_objects"):
            LossScaleOptimizer.from_config(config)


def test_public_names() -> None:
    """The wrapper around arrays has every name of Keras' wrapper, or refuses it by name."""
    keras = library("keras")
    theirs = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD())
    theirs.build([keras.Variable(np.ones(1, np.float32))])
    ours = LossScaleOptimizer(Counted())
    assert len([name for name in dir(theirs) if not name.startswith("_")]) > 35
    assert missing(theirs, ours, {}) == set()
    assert missing(theirs, LossScaleOptimizer(keras.optimizers.SGD()), {}) == set()
    for name in ("update_step", "assign", "exclude_from_weight_decay"):
        with pytest.raises(AttributeError, match=f"has no {name}, which .* inner_optimizer.{name}"):
            getattr(ours, name)
    array = np.ones(2)
    ours.finalize_variable_values([array])
    assert not array.any()
    with pytest.raises(AttributeError, match="inner_optimizer, of class SGD, lacks variables"):
        print(LossScaleOptimizer(SGD()).variables)
    for name in ("learn", "nesterov", "momentum", "rate"):
        with pytest.raises(AttributeError, match=f"has no attribute '{name}'"):
            getattr(ours, name)
    assert missing(keras.mixed_precision, mixed_precision, {}) == set()


def test_keras_is_not_imported_for_others() -> None:
    """Neither by the module, nor by steps and configs around an optimizer of arrays."""
    program = (
        "import sys, numpy as np\n"
        "from optimizers import SGD\n"
        "from castwise.compat.keras.mixed_precision import LossScaleOptimizer\n"
        "optimizer = LossScaleOptimizer(SGD())\n"
        "optimizer.apply([np.ones(2)], [np.ones(2)])\n"
        "LossScaleOptimizer.from_config(optimizer.get_config())\n"
        "print([name for name in sys.modules if name.partition('.')[0] == 'keras'])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=Path(__file__).parents[1] / "helpers" / "loss_scale",
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "[]\n"
