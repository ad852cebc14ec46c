"""The dialect of TF 2.4's experimental policies against TensorFlow's own: loss scales included."""

from __future__ import annotations

import copy
import decimal
import fractions
import json
import pickle
from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import numpy as np
import peers
import pytest
from hypothesis import example, given
from sides import Outcome, outcome, raised, returned
from tf2_sides import NAMES
from tf24_sides import Side, ours, real

pytestmark = pytest.mark.usefixtures("tf24_state")


def both(call: Callable[[Side], Any]) -> tuple[Outcome, Outcome]:
    """Do the same with the original and with castwise."""
    return outcome(call, real()), outcome(call, ours())


def described(policy: Any) -> tuple[Any, ...]:
    """Everything that a policy says of itself; a loss scale by its class and config."""
    scale = getattr(policy, "loss_scale", "it has none")
    return (
        type(policy).__name__,
        policy.name,
        policy.compute_dtype,
        policy.variable_dtype,
        repr(policy),
        json.dumps(policy.get_config()),
        scale if scale is None or isinstance(scale, str) else type(scale).__name__,
        json.dumps(scale.get_config()) if hasattr(scale, "get_config") else "",
    )


# What may be given as a loss scale: made for each side, as the instances are its own.
Maker = Callable[[Side], Any]


def same(value: Any) -> Maker:
    """Give both sides the same value."""
    return lambda side: value


def fixed_config(*values: Any, **more: Any) -> dict[str, Any]:
    config = dict(zip(("loss_scale_value",), values, strict=False)) | more
    return {"class_name": "FixedLossScale", "config": config}


def dynamic_config(**config: Any) -> dict[str, Any]:
    return {"class_name": "DynamicLossScale", "config": config}


PLAIN_SCALES: list[Any] = [
    *("auto", "dynamic", "fixed", "Dynamic", "AUTO", "USE_DEFAULT", "", "8", None),
    *(0, 1, 2, 8, 2**15, -1, 10**400, 0.0, 0.5, 1.0, 1.5, 1e300, -2.0, True, False),
    *(float("nan"), float("inf"), float("-inf"), np.float64(4), np.float64(0.5)),
    *(np.float32(4), np.float16(4), np.int64(4), np.int32(0), np.bool_(True), np.array(4.0)),
    *(np.str_("dynamic"), np.str_("auto"), b"dynamic", b"auto", [], [8], (8,), {8}, 2 + 0j),
    *(fractions.Fraction(4), decimal.Decimal(4), object, np.array([1, 2])),
    *({}, {"config": {}}, {"class_name": "FixedLossScale"}, {"class_name": "Foo", "config": {}}),
    *(
        fixed_config(8.0),
        fixed_config(8),
        fixed_config(0),
        fixed_config(),
        fixed_config(8, extra=1),
    ),
    *(fixed_config("8"), fixed_config(None), fixed_config(True)),
    *(dynamic_config(), dynamic_config(initial_loss_scale=4), dynamic_config(multiplier=3)),
    *(dynamic_config(increment_period=5, multiplier=4.0), dynamic_config(extra=1)),
    dynamic_config(initial_loss_scale="x"),
]
SCALES: dict[str, Maker] = {
    **{repr(value): same(value) for value in PLAIN_SCALES},
    "a fixed one": lambda side: side.fixed(4),
    "a dynamic one": lambda side: side.dynamic(4, 3, 2.0),
    "a default dynamic one": lambda side: side.dynamic(),
    "a class of fixed ones": lambda side: side.fixed,
    "a policy": lambda side: side.policy("float32"),
}
POLICY_NAMES = ("mixed_float16", "mixed_bfloat16", "float16", "float32", "half", "_infer", "int32")


def is_beyond_float32(value: Any) -> bool:
    """A number that no float32 holds, or NaN: castwise refuses those as loss scales."""
    if isinstance(value, dict):
        return any(map(is_beyond_float32, value.get("config", {}).values()))
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        with np.errstate(over="ignore"):
            return not np.isfinite(np.float32(value))
    except OverflowError:
        return True


def is_numpys_number(value: Any) -> bool:
    """A number of numpy that is not a Python number: castwise takes it as a loss scale."""
    return isinstance(value, np.number) and not isinstance(value, float)


@pytest.mark.thinned(3)
@pytest.mark.parametrize("name", ["mixed_float16", "float16", "float32", "_infer"])
@pytest.mark.parametrize("kind", SCALES)
def test_every_kind_of_loss_scale(kind: str, name: str) -> None:
    original, mine = both(lambda side: described(side.policy(name, SCALES[kind](side))))
    value = SCALES[kind](real())
    if is_beyond_float32(value):
        assert mine == raised(ValueError)
    elif is_numpys_number(value):
        assert original == raised(ValueError)
        assert mine == outcome(lambda: described(ours().policy(name, value.item())))
    else:
        assert mine == original


def test_the_exceptions_occur() -> None:
    values = [maker(real()) for maker in SCALES.values()]
    assert sum(map(is_beyond_float32, values)) >= 4
    assert sum(map(is_numpys_number, values)) >= 4


@pytest.mark.parametrize("kind", SCALES)
def test_from_config_takes_the_same_loss_scales(kind: str) -> None:
    def read(side: Side) -> tuple[Any, ...]:
        config = {"name": "mixed_float16", "loss_scale": SCALES[kind](side)}
        before = dict(config)
        policy = side.policy.from_config(config)
        assert config.keys() == before.keys()
        assert all(config[key] is before[key] for key in config)
        return described(policy)

    original, mine = both(read)
    value = SCALES[kind](real())
    if is_beyond_float32(value):
        assert mine == raised(ValueError)
    elif is_numpys_number(value):
        assert (original, mine.error) == (raised(ValueError), None if value >= 1 else ValueError)
    else:
        assert mine == original


@pytest.mark.parametrize("value", [(), (1, 2), ("dynamic", "auto")], ids=repr)
def test_a_tuple_is_not_a_loss_scale(value: tuple[Any, ...]) -> None:
    """Divergence: the original fails while it makes its message."""
    original, mine = both(lambda side: side.policy("float16", value))
    assert (original, mine) == (raised(TypeError), raised(ValueError))


# Both refuse a config in which a class's own config is not a dict.
@pytest.mark.parametrize("inner", [8.0, None, "x"], ids=repr)
def test_the_config_of_a_loss_scale_is_a_dict(inner: Any) -> None:
    """Divergence: an AttributeError of the original is a TypeError."""
    config = {"class_name": "FixedLossScale", "config": inner}
    original, mine = both(lambda side: side.policy("float16", config))
    assert (original, mine) == (raised(AttributeError), raised(TypeError))


@pytest.mark.thinned(3)
@pytest.mark.parametrize("name", NAMES)
def test_every_name_with_its_automatic_loss_scale(name: str) -> None:
    """Only the name `mixed_float16` brings a loss scale of its own."""
    original, mine = both(lambda side: described(side.policy(name)))
    assert mine == original


@given(
    st.sampled_from(POLICY_NAMES),
    st.one_of(
        st.integers(-3, 70000),
        st.floats(),
        st.text(max_size=5),
        st.booleans(),
        st.builds(fixed_config, st.floats() | st.integers(-2, 9)),
        st.fixed_dictionaries(
            {},
            optional={
                "initial_loss_scale": st.floats(1, 2.0**30) | st.integers(1, 2**20),
                "increment_period": st.integers(1, 5000),
                "multiplier": st.floats(1.5, 8),
            },
        ).map(lambda config: dynamic_config(**config)),
    ),
)
@example("mixed_float16", "auto")
@example("mixed_float16", "dynamic")
def test_generated_loss_scales(name: str, scale: Any) -> None:
    """Made, written as JSON, and read by the other side: the same each time."""
    original, mine = both(lambda side: described(side.policy(name, scale)))
    assert mine == (raised(ValueError) if is_beyond_float32(scale) else original)
    if mine.error is None:
        config = json.loads(json.dumps(ours().policy(name, scale).get_config()))
        original, mine = both(lambda side: described(side.policy.from_config(config)))
        assert mine == original


@pytest.mark.parametrize("name", [None, np.float32, 1, b"float32", np.str_("mixed_float16")])
def test_a_name_is_a_string(name: Any) -> None:
    original, mine = both(lambda side: described(side.policy(name)))
    assert mine == original


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        ((), {}),
        (("float32", 8, 9), {}),
        (("float32",), {"extra": 1}),
        ((), {"loss_scale": None}),
        ((), {"name": "half", "loss_scale": "dynamic"}),
    ],
)
def test_signature(arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
    original, mine = both(lambda side: described(side.policy(*arguments, **options)))
    assert mine == original


CONFIGS: list[Any] = [
    {},
    None,
    "float32",
    {"name": "float32"},
    {"name": "mixed_float16"},
    {"name": "abc"},
    {"name": "float32", "extra": 1},
    {"loss_scale": None},
    {"name": "mixed_float16", "loss_scale": "auto"},
    {"name": "mixed_float16", "loss_scale": None},
]


@pytest.mark.parametrize(
    "options", [{}, {"custom_objects": None}, {"custom_objects": {}}], ids=repr
)
@pytest.mark.parametrize("config", CONFIGS, ids=repr)
def test_from_config(config: Any, options: dict[str, Any]) -> None:
    original, mine = both(lambda side: described(side.policy.from_config(config, **options)))
    assert mine == original


@pytest.mark.parametrize("scale", ["auto", "dynamic", None, 8, fixed_config(2)], ids=repr)
@pytest.mark.parametrize("name", POLICY_NAMES)
def test_serialized_and_read_back_the_loss_scale_is_dropped(name: str, scale: Any) -> None:
    """Each side reads the files of both, as plain policies, as TensorFlow does."""
    original, mine = both(lambda side: side.serialize(side.policy(name, scale)))
    assert mine == original
    config = json.loads(json.dumps(mine.value))
    original, mine = both(lambda side: described(side.deserialize(config)))
    assert mine == original
    assert mine.value[:2] == ("Policy", name)


def test_the_kinds_of_policies() -> None:
    def relations(side: Side) -> tuple[Any, ...]:
        policy = side.policy("float32")
        return (
            isinstance(policy, side.plain_policy),
            issubclass(side.policy, side.plain_policy),
            isinstance(side.plain_policy("float32"), side.policy),
            policy == side.plain_policy("float32"),
            side.plain_policy("float32") == policy,
        )

    original, mine = both(relations)
    assert original == returned((True, True, False, False, False))
    assert mine == original


def test_an_instance_is_kept() -> None:
    for side in (real(), ours()):
        for scale in (side.fixed(8), side.dynamic(4)):
            policy = side.policy("float16", scale)
            assert policy.loss_scale is scale
            assert policy.loss_scale is policy.loss_scale
        assert (
            side.policy("mixed_float16").loss_scale is not side.policy("mixed_float16").loss_scale
        )


@pytest.mark.parametrize("attribute", ["name", "compute_dtype", "variable_dtype", "loss_scale"])
def test_properties_are_read_only(attribute: str) -> None:
    original, mine = both(lambda side: setattr(side.policy("half", 8), attribute, None))
    assert mine == original == raised(AttributeError)


def pickled(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))  # noqa: S301 - our own bytes


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickled])
@pytest.mark.parametrize(
    "kind", ["'auto'", "'dynamic'", "None", "8", "a fixed one", "a dynamic one"]
)
def test_copies(kind: str, copied: Callable[[Any], Any]) -> None:
    """They keep the loss scale, and whether it was the automatic one."""
    original, mine = both(
        lambda side: described(copied(side.policy("mixed_float16", SCALES[kind](side))))
    )
    assert mine == original
    assert mine == outcome(lambda: described(ours().policy("mixed_float16", SCALES[kind](ours()))))


PAIRS: list[tuple[tuple[Any, ...], tuple[Any, ...]]] = [
    (("float32",), ("float32",)),
    (("float32",), ("float16",)),
    (("float16", 8), ("float16", 8)),
    (("float16", 8), ("float16", 8.0)),
    (("float16", 8), ("float16", 16)),
    (("float16", 8), ("float16", None)),
    (("mixed_float16",), ("mixed_float16", "auto")),
    (("mixed_float16", "dynamic"), ("mixed_float16", "dynamic")),
]
EQUAL_PAIRS = (0, 2, 3, 6, 7)


@pytest.mark.parametrize("pair", range(len(PAIRS)))
def test_policies_compare_by_value(pair: int) -> None:
    """Divergence: the original's are equal only to themselves."""
    one, other = PAIRS[pair]

    def comparison(side: Side) -> tuple[bool, bool, int]:
        first, second = side.policy(*one), side.policy(*other)
        return first == second, first != second, len({first, second})

    original, mine = both(comparison)
    assert original == returned((False, True, 2))
    equal = pair in EQUAL_PAIRS
    assert mine == returned((equal, not equal, 1 if equal else 2))


# ------------------------------------------------------------------------------ global state


@pytest.mark.thinned(3)
@pytest.mark.parametrize("name", [*NAMES, None, 1, np.float32], ids=repr)
def test_set_policy(name: Any) -> None:
    """A name set as the global policy becomes a plain policy, without a loss scale."""

    def after(side: Side) -> tuple[Any, ...]:
        side.set_policy("mixed_bfloat16")
        done = outcome(side.set_policy, name)
        return done, described(side.global_policy())

    original, mine = both(after)
    assert original.error is None
    assert mine == original


def test_a_policy_with_a_loss_scale_is_kept_as_it_is() -> None:
    for side in (real(), ours()):
        policy = side.policy("mixed_float16", 8)
        side.set_policy(policy)
        assert side.global_policy() is policy
        assert side.set_policy(None) is None
        assert described(side.global_policy())[:2] == ("Policy", "float32")


# ------------------------------------------------------------------------------------ layers


class Layer:
    """As much of a layer as carries a policy."""

    def __init__(self, dtype_policy: Any) -> None:
        self.dtype_policy = dtype_policy


def real_layer(dtype: Any) -> Any:
    peers.tf24()
    from tensorflow.python.keras import layers  # noqa: PLC0415 - slow, and only for these tests

    return layers.Dense(1, dtype=dtype)


@pytest.mark.parametrize("dtype", ["float16", "float64", "mixed_float16"])
def test_the_policy_of_a_layer(dtype: str) -> None:
    for argument in (dtype, real().policy(dtype, 8)):
        layer = real_layer(argument)
        original, mine = both(lambda side, layer=layer: side.get_layer_policy(layer))
        assert original.value is layer.dtype_policy
        assert mine.value is layer.dtype_policy


def test_a_layer_is_what_carries_a_policy() -> None:
    """Divergence: castwise has no class of layers, so it takes the layers of every framework."""
    layers = [
        Layer(ours().policy("mixed_float16", 8)),
        peers.tf_keras().layers.Dense(1),
        peers.keras().layers.Dense(1),
    ]
    for layer in layers:
        assert outcome(real().get_layer_policy, layer) == raised(ValueError)
        assert ours().get_layer_policy(layer) is layer.dtype_policy


@pytest.mark.parametrize(
    "value",
    [None, 1, "Dense", [], {}, Layer, Layer("float32"), Layer(None), object()],
    ids=["None", "1", "str", "list", "dict", "class", "layer", "layer without", "object"],
)
def test_what_is_not_a_layer(value: Any) -> None:
    original, mine = both(lambda side: side.get_layer_policy(value))
    assert mine == original == raised(ValueError)
    original, mine = both(lambda side: side.get_layer_policy(side.policy("float32")))
    assert mine == original == raised(ValueError)
    assert "layer" in mine.message
