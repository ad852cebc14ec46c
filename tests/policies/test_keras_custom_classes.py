"""Policy classes of users: how they are written, where they are looked up, also inside maps."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from keras_systems import (
    OURS,
    Outcome,
    System,
    both,
    facts,
    original,
    outcome,
)

pytestmark = pytest.mark.usefixtures("keras_state")


def custom(system: System, module: str = __name__) -> type:
    """Make a user's own policy class over one system's; the same name for both."""
    base: Any = system.dtype_policies.DTypePolicy

    class Custom(base):  # type: ignore[misc]
        def __init__(self, name: str = "mixed_float16", extra: int = 0) -> None:
            super().__init__(name)
            self.extra = extra

        def get_config(self) -> dict[str, Any]:
            return super().get_config() | {"extra": self.extra}

    Custom.__module__ = module
    return Custom


def described(policy: Any) -> Any:
    """Describe a policy of a custom class, or whatever came instead."""
    return (facts(policy), policy.extra) if hasattr(policy, "extra") else facts(policy)


@pytest.mark.parametrize("module", [__name__, "__main__"])
def test_custom_classes(module: str) -> None:
    """A custom class serializes as Keras writes it, and loads where it is named."""
    classes = {system: custom(system, module) for system in (original(), OURS)}
    texts = {
        json.dumps(system.dtype_policies.serialize(cls("float16", 7)))
        for system, cls in classes.items()
    }
    assert len(texts) == 1
    config = json.loads(texts.pop())
    assert config["class_name"] == config["registered_name"] == "Custom"
    for system, cls in classes.items():
        loaded = system.dtype_policies.deserialize(config, custom_objects={"Custom": cls})
        assert type(loaded) is cls
        assert loaded == cls("float16", 7)
        assert loaded.extra == 7
        assert loaded != system.dtype_policies.DTypePolicy("float16")
        assert system.dtype_policies.DTypePolicy("float16") != loaded
        assert system.dtype_policies.get(loaded) is loaded
        assert repr(loaded) == '<Custom "float16">'


OTHER_CONFIGS: tuple[dict[str, Any], ...] = (
    {"class_name": "Custom", "config": {"name": "float16"}},
    {"class_name": "Custom", "config": {}},
    {"class_name": "Custom", "config": None},
    {"class_name": "Custom", "config": {"name": "abc"}},
    {"class_name": "Custom", "config": {"unknown": 1}},
    {"class_name": "Custom", "config": {"name": "float16"}, "module": None},
    {"class_name": "Custom", "config": {"name": "float16"}, "module": "elsewhere"},
    {"class_name": "Custom", "config": {"name": "float16"}, "registered_name": "Custom"},
    {"class_name": "Custom", "config": {"name": "float16"}, "registered_name": "pack>Custom"},
    {"class_name": "DTypePolicy", "config": {"name": "float16"}},
    {"class_name": "DTypePolicy", "config": {"name": "float16"}, "module": "keras"},
)


@pytest.mark.parametrize("config", OTHER_CONFIGS, ids=str)
@pytest.mark.parametrize("name", ["Custom", "pack>Custom", "DTypePolicy"])
def test_where_custom_objects_are_looked_up(config: dict[str, Any], name: str) -> None:
    """By class name or registered name; a custom object may hide a class of Keras."""

    def loaded(system: System, config: dict[str, Any]) -> Outcome:
        load = system.dtype_policies.deserialize
        return outcome(lambda: described(load(copy.deepcopy(config), {name: custom(system)})))

    wanted = loaded(original(), config)
    if name == config["class_name"] and config.get("registered_name") == "pack>Custom":
        # Where the registered name is unknown, Keras does not look for the class name.
        assert wanted.error is TypeError
        wanted = loaded(original(), {**config, "registered_name": name})
    elif name not in (config["class_name"], config.get("registered_name")) and (
        config["class_name"] == "Custom"
    ):
        # Keras hands an unknown class back by name, unless its module is null.
        assert wanted in (Outcome("Custom"), Outcome(error=TypeError))
        wanted = Outcome(error=wanted.error or ValueError)
    assert loaded(OURS, config) == wanted


def test_custom_classes_in_maps() -> None:
    """What `custom_objects` names is known inside a map too."""
    loaded = []
    for system in both():
        cls = custom(system)
        policy_map = system.dtype_policies.DTypePolicyMap("float32")
        policy_map["a"] = cls("float16", 3)
        config = json.loads(json.dumps(system.dtype_policies.serialize(policy_map)))
        again = system.dtype_policies.deserialize(config, custom_objects={"Custom": cls})
        assert type(again["a"]) is cls
        assert again["a"].extra == 3
        loaded.append((config, facts(again)))
        by_class = system.dtype_policies.DTypePolicyMap.from_config(
            config["config"], custom_objects={"Custom": cls}
        )
        assert facts(by_class) == facts(again)
    assert loaded[0] == loaded[1]


@pytest.mark.parametrize("module", ["keras", "keras.dtype_policies", "abc", None, "absent"])
@pytest.mark.parametrize("name", ["mixed_float16", "int4/8_from_float32"])
def test_modules_in_maps(module: Any, name: str) -> None:
    """In a map the module of a class does not matter, as outside; to Keras it does, inside."""
    policy = OURS.dtype_policies.get(name)
    item = {**OURS.dtype_policies.serialize(policy), "module": module}
    if module == "absent":
        del item["module"]
    config = {"default_policy": "float32", "policy_map": {"a": item}}
    theirs, ours = (
        outcome(lambda: system.dtype_policies.DTypePolicyMap.from_config(config))  # noqa: B023
        for system in both()
    )
    if module is None:
        assert ours == theirs == Outcome(error=TypeError)
    elif module == policy.module:
        assert ours == theirs
    else:
        assert theirs.error in (TypeError, ValueError)
        assert ours.value["items"] == [("a", facts(policy))]


def test_custom_objects_that_are_not_policies() -> None:
    """What cannot be made from a config is a TypeError; a bare name gives a policy, not a class."""
    config = {"class_name": "Custom", "config": {"name": "float16"}}
    for value in (dict, object, 3):
        outcomes = [
            outcome(lambda: system.dtype_policies.deserialize(config, {"Custom": value}))  # noqa: B023
            for system in both()
        ]
        assert outcomes[0] == outcomes[1]
    theirs, ours = (custom(system) for system in both())
    assert original().dtype_policies.deserialize("Custom", {"Custom": theirs}) is theirs
    assert OURS.dtype_policies.deserialize("Custom", {"Custom": ours}) == ours()
