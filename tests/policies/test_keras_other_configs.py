"""Configs as others may write them: with parts left out, written differently, or wrong.

What castwise makes of the arguments in a config, where it differs, is in keras_names; what else
differs has its reason in `wanted_of`, and all reasons must occur.
"""

from __future__ import annotations

import copy
import json
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from keras_names import Call, expected
from keras_policies import STATES
from keras_systems import (
    CLASSES,
    OURS,
    Outcome,
    State,
    both,
    facts,
    original,
    outcome,
)

pytestmark = pytest.mark.usefixtures("keras_state")


ABSENT = object()
ARGUMENTS = {
    "DTypePolicy": ("name",),
    "FloatDTypePolicy": ("name",),
    "QuantizedDTypePolicy": ("mode", "source_name"),
    "QuantizedFloat8DTypePolicy": ("mode", "source_name", "amax_history_length"),
    "Int4DTypePolicy": ("mode", "source_name"),
    "GPTQDTypePolicy": ("mode", "source_name"),
    "AWQDTypePolicy": ("mode", "source_name"),
}
VALUES: dict[str, tuple[Any, ...]] = {
    "name": (
        "float32",
        "mixed_float16",
        "int8",
        "int8_from_float32",
        "abc",
        "",
        None,
        3,
        ["float32"],
    ),
    "mode": (
        *("int8", "float8", "int4", "gptq", "awq", "ternary", "int4/64", "int4/-1", "int4/None"),
        *("gptq/4/64", "awq/4/-1", "int4/+7", "gptq/3/07", None, 4, "abc"),
    ),
    "source_name": (
        "float32",
        "mixed_bfloat16",
        "float16",
        "int8_from_float32",
        "None",
        None,
        3,
        "",
    ),
    "amax_history_length": (1024, 1, 0, True, 1.5, None, "3"),
    "loss_scale": (None,),
}


@st.composite
def inner_configs(draw: st.DrawFn, class_name: Any) -> Any:
    """Draw the `config` of a config: usually arguments of the class, some of them wrong."""
    if draw(st.integers(0, 7)) == 0:
        return draw(st.sampled_from((ABSENT, None, {}, "float32", [], 3, ["name"])))
    names = list(ARGUMENTS.get(class_name, ("name",)))
    if draw(st.integers(0, 5)) == 0:
        names = draw(st.lists(st.sampled_from(tuple(VALUES)), unique=True, max_size=3))
    return {name: draw(st.sampled_from(VALUES[name])) for name in names}


@st.composite
def configs(draw: st.DrawFn) -> dict[str, Any]:
    """Draw a config, with the parts that others leave out or write differently."""
    unknown = ("Foo", "Dense", "", None, 3, ABSENT)
    class_name = draw(st.sampled_from((*ARGUMENTS, *ARGUMENTS, *ARGUMENTS, *unknown)))
    modules = ("keras", "keras.dtype_policies", "keras.mixed_precision", "castwise", "abc", ABSENT)
    registered = (None, ABSENT, "Foo", "Int4DTypePolicy")
    parts = {
        "module": draw(st.sampled_from((*modules, *modules, None))),
        "class_name": class_name,
        "config": draw(inner_configs(class_name)),
        "registered_name": draw(st.sampled_from((*registered, class_name))),
        "build_config": draw(st.sampled_from((ABSENT, None, {}))),
    }
    return {key: value for key, value in parts.items() if value is not ABSENT}


def wanted_of(config: dict[str, Any], of: State) -> tuple[Outcome, str | None]:
    """Tell what castwise must make of a config, and why, if it is not what the real Keras makes."""
    of.enter(original())
    theirs = outcome(lambda: original().dtype_policies.deserialize(copy.deepcopy(config)))
    of.enter(original())
    name, inner = config.get("class_name"), config.get("config")
    why = None
    if "class_name" not in config or config.get("module", "") is None:
        wanted = theirs
    elif name not in ARGUMENTS:
        # Keras gives the name, whatever that is: a str, a number, None.
        wanted, why = Outcome(error=ValueError), "an unknown class is refused"
    elif not isinstance(inner, dict | None):
        wanted = Outcome(error=TypeError)
    else:
        call = _call_of(name, inner or {})
        wanted, rules = expected(call, of)
        if rules:
            why = "the arguments mean something else"
        assert call.on(original()) == theirs
    assert why or wanted == theirs
    return wanted, why if wanted != theirs else None


def _call_of(name: str, inner: dict[str, Any]) -> Call:
    """Make the call to which a config comes down."""
    arguments = ARGUMENTS[name]
    if inner and set(inner) <= set(arguments) and arguments[0] in inner:
        count = 1 + max(arguments.index(argument) for argument in inner)
        return Call(name, tuple(inner.get(argument) for argument in arguments[:count]))
    return Call(name, (), tuple(inner.items()))


def test_any_config() -> None:
    """Configs with parts left out, written differently, or wrong."""
    reasons: Counter[str | None] = Counter()

    @settings(max_examples=3000)
    @given(config=configs(), of=st.sampled_from(STATES), by=st.sampled_from(("deserialize", "get")))
    def compare(config: dict[str, Any], of: State, by: str) -> None:
        wanted, why = wanted_of(config, of)
        of.enter(OURS)
        given_config = copy.deepcopy(config)
        ours = outcome(lambda: getattr(OURS.dtype_policies, by)(given_config))
        assert ours == wanted, f"{by}({config}) in {of}: castwise {ours!r}, not {wanted!r}"
        assert given_config == config, "the caller's config is left as it was"
        reasons[why] += 1

    compare()
    assert len(reasons) == 3, reasons


@settings(max_examples=1000)
@given(data=st.data(), of=st.sampled_from(STATES), name=st.sampled_from(CLASSES[:-1]))
def test_from_config(data: st.DataObject, of: State, name: str) -> None:
    """The class method takes the inner config, with the same arguments or mistakes."""
    inner = data.draw(inner_configs(name).filter(lambda inner: inner is not ABSENT))
    of.enter(original())
    if isinstance(inner, dict):
        wanted, _ = expected(_call_of(name, inner), of)
    else:
        wanted = outcome(lambda: getattr(original().dtype_policies, name).from_config(inner))
    of.enter(OURS)
    ours = outcome(lambda: getattr(OURS.dtype_policies, name).from_config(inner))
    assert ours == wanted, f"{name}.from_config({inner}) in {of}: {ours!r}, not {wanted!r}"
    cls = getattr(OURS.dtype_policies, name)
    with pytest.raises(TypeError):
        cls.from_config({}, None)


@pytest.mark.parametrize("of", STATES, ids=str)
def test_what_is_not_a_config(of: State) -> None:
    """`deserialize` and `get` take None, names, numbers, lists and policies alike."""
    of.enter(original())
    of.enter(OURS)
    assert OURS.dtype_policies.deserialize(None) is None
    assert original().dtype_policies.deserialize(None) is None
    assert OURS.dtype_policies.get(None) is OURS.config.dtype_policy()
    for value in ({}, {"name": "float32"}, {"config": {"name": "float32"}}, {"class_name": []}):
        for by in ("deserialize", "get"):
            theirs = outcome(lambda: getattr(original().dtype_policies, by)(value))  # noqa: B023
            ours = outcome(lambda: getattr(OURS.dtype_policies, by)(value))  # noqa: B023
            assert theirs == ours
            assert ours.error in (ValueError, TypeError)
    # Keras hands back whatever it does not recognize, a name of a policy or not.
    for name in ("mixed_float16", "int8_from_float32", "int4/8_from_bfloat16"):
        assert original().dtype_policies.deserialize(name) == name
        assert facts(OURS.dtype_policies.deserialize(name)) == facts(
            original().dtype_policies.get(name)
        )
    for garbage in ("abc", "", 1, 1.5, True, b"x", float, object()):
        assert original().dtype_policies.deserialize(garbage) == garbage
        ours = outcome(lambda: OURS.dtype_policies.deserialize(garbage))  # noqa: B023
        assert ours.error in (ValueError, TypeError), garbage


def test_names_of_classes_are_not_configs() -> None:
    """The name of a class is a policy without arguments, as in Keras; of a map an empty one."""
    for name in (*ARGUMENTS, "DTypePolicyMap", "Foo"):
        theirs = outcome(lambda: original().dtype_policies.deserialize(name))  # noqa: B023
        ours = outcome(lambda: OURS.dtype_policies.deserialize(name))  # noqa: B023
        if name == "DTypePolicyMap":
            assert theirs.error is KeyError
            assert ours == outcome(OURS.dtype_policies.DTypePolicyMap)
        elif theirs == Outcome(name):
            assert ours.error is (TypeError if name in ARGUMENTS else ValueError)
        else:
            assert ours == theirs


def test_what_serialize_passes() -> None:
    """`serialize` hands back what needs no config, and looks into containers for what does."""
    for value in (None, "float32", 1, 1.5, True, "", [], {}, (), [1, None], {"a": (1, "b")}):
        for system in both():
            assert system.dtype_policies.serialize(value) == value
    for value in (object(), 1j, [object()]):
        theirs = outcome(lambda: original().dtype_policies.serialize(value))  # noqa: B023
        assert outcome(lambda: OURS.dtype_policies.serialize(value)) == theirs  # noqa: B023
    texts = set()
    for system in both():
        policy = system.dtype_policies.get("int8_from_float32")
        containers = [policy, (policy, {"a": policy, "b": [None, policy]})]
        texts.add(json.dumps(system.dtype_policies.serialize(containers)))
    assert len(texts) == 1
