"""Configs of TF 2's policies: the same as the real tf_keras', and read by either side."""

from __future__ import annotations

import copy
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from sides import Outcome, outcome, raised, returned
from tf2_sides import (
    GENERATED_NAMES,
    Side,
    both,
    described,
    layer_policy,
    our_tf_keras,
)

pytestmark = pytest.mark.usefixtures("tf_keras_state")


@given(GENERATED_NAMES)
@example("mixed_float16")
@example("_infer")
@example("half")
@example("float32_ref")
def test_serialize_and_what_each_side_reads_of_the_others_json(name: str) -> None:
    original, ours = both(lambda side: side.serialize(side.policy(name)))
    assert ours == original
    if ours.error is None:
        config = json.loads(json.dumps(ours.value))
        original, ours = both(lambda side: described(side.deserialize(config)))
        assert ours == original
        assert ours == outcome(lambda: described(our_tf_keras().policy(name)))


def test_a_subclass_is_never_a_plain_dtype() -> None:
    """It serializes under its own name, and comes back when told what that name means."""

    def configs(side: Side) -> Any:
        sub = type("Sub", (side.policy,), {"__module__": __name__})
        config = side.serialize(sub("float32"))
        back = side.deserialize(config, custom_objects={"Sub": sub})
        return config, type(back) is sub, described(back)

    original, ours = both(configs)
    assert original.error is None
    assert ours == original


MIXED_CONFIG = {"name": "mixed_float16"}
CONFIGS: list[Any] = [
    None,
    "float32",
    "float",
    "half_ref",
    "qint8",
    {},
    {"name": "float32"},
    {"config": MIXED_CONFIG},
    {"class_name": "Policy"},
    {"class_name": "Policy", "config": None},
    {"class_name": "Policy", "config": {}},
    {"class_name": "Policy", "config": "float32"},
    {"class_name": "Policy", "config": {"name": None}},
    {"class_name": "Policy", "config": {"name": "abc"}},
    {"class_name": "Policy", "config": {"name": "float32", "extra": 1}},
    {"class_name": "Policy", "config": {"name": "float16_with_float32_vars"}},
    {"class_name": "Policy", "config": MIXED_CONFIG},
    {"class_name": "Policy", "config": {"name": "_infer"}},
    {"class_name": "Policy", "config": MIXED_CONFIG | {"loss_scale": "dynamic"}},
    {"class_name": "PolicyV1", "config": MIXED_CONFIG},
    {"class_name": "PolicyV1", "config": MIXED_CONFIG | {"loss_scale": None}},
    {
        "class_name": "PolicyV1",
        "config": MIXED_CONFIG
        | {"loss_scale": {"class_name": "FixedLossScale", "config": {"loss_scale_value": 8.0}}},
    },
    *(
        {"module": module, "class_name": name, "config": MIXED_CONFIG, "registered_name": None}
        for module in ("keras.mixed_precision", "keras", "somewhere.else")
        for name in ("Policy", "PolicyV1")
    ),
    {"module": None, "class_name": "Policy", "config": MIXED_CONFIG, "registered_name": "Policy"},
]


@pytest.mark.parametrize("config", CONFIGS, ids=repr)
def test_deserialize(config: Any) -> None:
    before = copy.deepcopy(config)
    original, ours = both(lambda side: described(side.deserialize(config)))
    assert ours == original
    assert config == before


@pytest.mark.parametrize("config", [each for each in CONFIGS if isinstance(each, dict)], ids=repr)
def test_configs_as_layer_arguments(config: dict[str, Any]) -> None:
    original, ours = both(lambda side: layer_policy(side, config))
    assert ours == original


# tf_keras takes what it does not know for an object that was already read, and hands it back: a
# policy comes out as a string, which fails much later and somewhere else.
HANDED_BACK: dict[Any, Outcome] = {
    "mixed_float16": returned("mixed_float16"),
    "mixed_bfloat16": returned("mixed_bfloat16"),
    "_infer": returned("_infer"),
    "abc": raised(ValueError),
    "": raised(ValueError),
    "Foo": raised(ValueError),
    1: raised(TypeError),
    1.5: raised(TypeError),
    b"float32": raised(TypeError),
    np.float32: raised(TypeError),
}


@pytest.mark.parametrize("config", HANDED_BACK, ids=repr)
def test_deserialize_hands_nothing_back_unread(config: Any) -> None:
    """Divergence: the original returns its argument; castwise a policy of that name, or refuses."""
    original, ours = both(lambda side: side.deserialize(config))
    assert original == returned(config)
    wanted = HANDED_BACK[config]
    if wanted.error:
        assert ours == wanted
    else:
        assert described(ours.value) == described(our_tf_keras().policy(wanted.value))


@pytest.mark.parametrize("name", ["Foo", "DTypePolicy", "Dense"])
def test_an_unknown_class_is_an_error(name: str) -> None:
    """Divergence: the original returns the name of the class, and its layers fail on that."""
    config = {"class_name": name, "config": MIXED_CONFIG}
    original, ours = both(lambda side: side.deserialize(config))
    assert (original, ours) == (returned(name), raised(ValueError))
    original, ours = both(lambda side: layer_policy(side, config))
    assert (original, ours) == (raised(AttributeError), raised(ValueError))


@pytest.mark.parametrize("config", [{}, MIXED_CONFIG, {"name": "float32", "loss_scale": 8}, None])
@pytest.mark.parametrize("arguments", [(), ({},), (None,)], ids=repr)
def test_from_config(config: Any, arguments: tuple[Any, ...]) -> None:
    before = copy.deepcopy(config)
    original, ours = both(lambda side: described(side.policy.from_config(config, *arguments)))
    assert ours == original
    assert config == before


@pytest.mark.parametrize("config", [{"name": "half", "extra": 1}, {"loss_scale": None}, "float32"])
def test_from_config_refuses(config: Any) -> None:
    original, ours = both(lambda side: side.policy.from_config(config))
    assert ours == original == raised(TypeError)


@pytest.mark.parametrize("value", [None, 1, 1.5, "float32", "abc", [], {}], ids=repr)
def test_serialize_hands_on_what_is_not_a_policy(value: Any) -> None:
    original, ours = both(lambda side: side.serialize(value))
    assert ours == original
