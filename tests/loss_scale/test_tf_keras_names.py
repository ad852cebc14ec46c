"""Every public name of tf_keras' two loss scale optimizers: here, refused by name, or listed."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import peers
import pytest
from castwise.compat.tf_keras.mixed_precision import LossScaleOptimizer
from optimizers import SGD
from public_names import missing

# tf_keras' own, with numpy 2.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

OF_TENSORFLOW = "It makes or stores variables of TensorFlow, which the wrapper of numpy has not."
LISTED = {
    "LossScaleOptimizer": {"add_weight": OF_TENSORFLOW},
    "LossScaleOptimizerV3": dict.fromkeys(
        (
            "add_variable",
            "add_variable_from_reference",
            "exclude_from_weight_decay",
            "load_own_variables",
            "save_own_variables",
        ),
        OF_TENSORFLOW,
    ),
}
TRAINING = ("minimize", "get_gradients", "get_updates", "compute_gradients", "apply", "update_step")


class Everything(SGD):
    """An inner optimizer with every public attribute."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return f"inner {name}"


def original(name: str) -> Any:
    return getattr(peers.tf_keras().src.mixed_precision.loss_scale_optimizer, name)


def inner(name: str) -> Any:
    optimizers = peers.tf_keras().optimizers
    return optimizers.SGD(0.5) if name.endswith("V3") else optimizers.legacy.SGD(0.5)


@pytest.mark.parametrize("name", LISTED)
def test_no_public_name_is_missing(name: str) -> None:
    assert missing(original(name), LossScaleOptimizer(inner(name)), {}) == set()
    plain = LossScaleOptimizer(Everything())
    assert missing(original(name), plain, LISTED[name]) == set()
    assert missing(original(name), plain, {}) == set(LISTED[name]), "listed, and not missing"


def test_a_missing_name_is_found() -> None:
    assert missing(str, 3, {}) >= {"upper", "split"}
    assert missing(str, 3, {"upper": "why"}).isdisjoint({"upper", "from_bytes", "real"})


@pytest.mark.parametrize("name", LISTED)
def test_the_same_attributes_are_forwarded(name: str) -> None:
    arguments = {"initial_scale": 8.0}
    theirs, ours = (
        original(name)(inner(name), **arguments),
        LossScaleOptimizer(inner(name), **arguments),
    )
    names = {*dir(theirs.inner_optimizer), *dir(theirs), "epsilon", "lr", "apply", "step"}
    assert "nesterov" in names
    for each in sorted(names):
        if not each.startswith("_"):
            assert hasattr(ours, each) == hasattr(theirs, each), each
    for each in ("nesterov", "epsilon", "mine", "learning_rate", "lr", "momentum", "clipnorm"):
        for optimizer in (theirs, ours):
            setattr(optimizer, each, 0.25)
        found = [float(getattr(o.inner_optimizer, each, None) or -1) for o in (ours, theirs)]
        assert found[0] == found[1], each


@pytest.mark.parametrize("name", TRAINING)
@pytest.mark.parametrize("prefix", ["", "_"])
def test_nothing_that_trains_reaches_the_inner_optimizer(name: str, prefix: str) -> None:
    optimizer = LossScaleOptimizer(Everything())
    with pytest.raises(AttributeError, match=rf"{prefix}{name} is not forwarded.*apply_gradients"):
        getattr(optimizer, prefix + name)
    with pytest.raises(AttributeError, match=r"use inner_optimizer\.nesterov"):
        optimizer.nesterov  # noqa: B018
    assert optimizer.momentum == "inner momentum"
    optimizer.momentum, optimizer.epsilon = 0.5, 0.25
    assert (optimizer.inner_optimizer.momentum, optimizer.epsilon) == (0.5, 0.25)
    assert optimizer.inner_optimizer.epsilon == "inner epsilon"


def test_a_step_on_arrays_is_taken_as_a_whole() -> None:
    class Breaks(SGD):
        def apply_gradients(self, pairs: Any) -> None:
            super().apply_gradients(pairs)
            raise RuntimeError("broken")

    optimizer, array = LossScaleOptimizer(Breaks(), initial_scale=8.0), np.ones(2, np.float32)
    finite, before = np.full(2, 0.5, np.float32), optimizer.state_dict()
    with pytest.raises(RuntimeError, match="broken"):
        optimizer.apply_gradients([(finite, array)])
    for wrong in ([(finite,)], [(finite, array), (finite, array, array)]):
        with pytest.raises(ValueError, match=r"grads_and_vars\[\d\]=.* give pairs"):
            optimizer.apply_gradients(wrong)
    assert optimizer.state_dict() == before
    assert (array.tolist(), optimizer.iterations) == ([1.0, 1.0], 0)
    with pytest.raises(ValueError, match=r"dynamic_growth_steps=.* 64 bits"):
        LossScaleOptimizer(SGD(), dynamic_growth_steps=2**70)


def test_a_skipped_step_counts_in_a_variable() -> None:
    optimizer = SGD()
    optimizer.iterations = peers.tensorflow().Variable(3)
    wrapper = LossScaleOptimizer(optimizer)
    wrapper.apply_gradients([(np.array([np.inf]), np.zeros(1))])
    assert int(wrapper.iterations) == 4


def test_own_configs_need_no_custom_objects() -> None:
    config = LossScaleOptimizer(SGD(0.25), initial_scale=8.0).get_config()
    again = LossScaleOptimizer.from_config(config)
    assert type(again.inner_optimizer) is SGD
    assert again.get_config() == config
    for module, error in (("not_imported", ValueError), (None, TypeError), ("optimizers", None)):
        inner = {**config["inner_optimizer"], "module": module}
        if error is not None:
            with pytest.raises(error, match="custom_objects"):
                LossScaleOptimizer.from_config({"inner_optimizer": inner})
        made = LossScaleOptimizer.from_config({"inner_optimizer": inner}, {"SGD": SGD})
        assert made.learning_rate == 0.25


def test_numpy_needs_no_tensorflow() -> None:
    code = """
import sys, numpy as np
from castwise.compat.tf_keras.mixed_precision import LossScaleOptimizer
class Inner:
    def apply_gradients(self, pairs): pass
optimizer = LossScaleOptimizer(Inner(), initial_scale=8.0)
optimizer.apply_gradients([(np.array([np.nan]), np.zeros(1))])
assert optimizer.loss_scale == 4
assert not {"tensorflow", "tf_keras", "castwise.adapters.tf_keras"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True)
