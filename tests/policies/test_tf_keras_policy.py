"""TF 2's policies against the real tf_keras: every name, other values, equality and copies."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import peers
import pytest
from hypothesis import given
from sides import raised, returned
from tf2_sides import (
    GENERATED_NAMES,
    MIXED_NAMES,
    NAMES,
    REMOVED_NAMES,
    NamedFloat16,
    Side,
    both,
    described,
    our_tf_keras,
    real_tf_keras,
)

pytestmark = pytest.mark.usefixtures("tf_keras_state")


@pytest.mark.parametrize("name", NAMES)
def test_every_name(name: str) -> None:
    original, ours = both(lambda side: described(side.policy(name)))
    assert ours == original


@given(GENERATED_NAMES)
def test_generated_names(name: str) -> None:
    original, ours = both(lambda side: described(side.policy(name)))
    assert ours == original


@pytest.mark.parametrize("name", REMOVED_NAMES)
def test_removed_names_say_what_replaces_them(name: str) -> None:
    """Both name the same replacements, or none."""
    original, ours = both(lambda side: side.policy(name))
    assert ours.error is original.error is ValueError
    for replacement in MIXED_NAMES:
        assert (f"{replacement}" in ours.message) == (f"{replacement}" in original.message)


NOT_NAMES = {
    "nothing": None,
    "a type": np.float32,
    "a dtype": np.dtype("float32"),
    "python float": float,
    "a number": 123,
    "a float": 1.5,
    "true": True,
    "bytes": b"float32",
    "a list": ["float32"],
    "a dict": {"name": "float32"},
    "an object with a name": NamedFloat16(),
    "a numpy string": np.str_("half"),
    "ml_dtypes": ml_dtypes.bfloat16,
}


@pytest.mark.parametrize("kind", NOT_NAMES)
def test_a_name_is_a_string(kind: str) -> None:
    original, ours = both(lambda side: described(side.policy(NOT_NAMES[kind])))
    assert ours == original


def test_a_policy_and_a_tensorflow_dtype_are_not_names() -> None:
    original, ours = both(lambda side: side.policy(side.policy("float32")))
    assert ours == original == raised(TypeError)
    tensorflow_dtype = peers.tensorflow().float32
    original, ours = both(lambda side: side.policy(tensorflow_dtype))
    assert ours == original == raised(TypeError)


@pytest.mark.parametrize(
    ("arguments", "options"),
    [((), {}), (("float32", None), {}), (("float32",), {"loss_scale": 8}), ((), {"name": "half"})],
)
def test_signature(arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
    original, ours = both(lambda side: described(side.policy(*arguments, **options)))
    assert ours == original


@pytest.mark.parametrize("attribute", ["name", "compute_dtype", "variable_dtype"])
def test_properties_are_read_only(attribute: str) -> None:
    original, ours = both(lambda side: setattr(side.policy("half"), attribute, "float32"))
    assert ours == original == raised(AttributeError)


@pytest.mark.parametrize("attribute", ["loss_scale", "should_cast_variables", "quantization_mode"])
def test_attributes_of_other_dialects_are_missing(attribute: str) -> None:
    original, ours = both(lambda side: getattr(side.policy("mixed_float16"), attribute))
    assert ours == original == raised(AttributeError)


NAME_PAIRS = [("float32", "float32"), ("float32", "float16"), ("half", "float16"), ("half", "half")]


@pytest.mark.parametrize(("one", "other"), NAME_PAIRS)
def test_policies_compare_by_value(one: str, other: str) -> None:
    """Divergence: the original's are equal only to themselves, not even to their deep copies."""

    def comparison(side: Side) -> tuple[bool, bool, int]:
        first, second = side.policy(one), side.policy(other)
        return first == second, first != second, len({first, second})

    original, ours = both(comparison)
    assert original == returned((False, True, 2))
    same = one == other
    assert ours == returned((same, not same, 1 if same else 2))


def pickled(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))  # noqa: S301 - our own bytes


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickled])
@pytest.mark.parametrize("name", ["float32", "half", "mixed_float16", "_infer", "float32_ref"])
def test_copies(name: str, copied: Callable[[Any], Any]) -> None:
    original, ours = both(lambda side: described(copied(side.policy(name))))
    assert ours == original == returned(described(real_tf_keras().policy(name)))
    policy = our_tf_keras().policy(name)
    assert copied(policy) == policy


@pytest.mark.parametrize("other", ["float32", None, 1, np.float32, {"name": "float32"}], ids=repr)
def test_a_policy_equals_only_policies(other: Any) -> None:
    original, ours = both(
        lambda side: (side.policy("float32") == other, side.policy("half") != other)
    )
    assert ours == original == returned((False, True))
