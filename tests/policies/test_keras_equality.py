"""Which policies are equal and hash alike; what copies and pickles keep.

In the real Keras policies do not hash, and maps cannot be compared.
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from itertools import product
from typing import Any

import castwise
import pytest
from hypothesis import given, settings
from keras_names import Call, normal_form
from keras_policies import MAPS, POLICIES, STATES, made, made_map
from keras_systems import (
    OURS,
    State,
    facts,
    original,
    outcome,
)

pytestmark = pytest.mark.usefixtures("keras_state")


MATRIX = (
    *(
        Call("DTypePolicy", (name,))
        for name in ("float32", "int", "int32", "mixed_float16", "int8")
    ),
    *(Call("FloatDTypePolicy", (name,)) for name in ("float32", "int", "mixed_float16")),
    *(Call("DTypePolicy", ()), Call("FloatDTypePolicy", ())),
    *(
        Call("QuantizedDTypePolicy", (mode, "float32"))
        for mode in ("int8", "int4", "gptq", "float8")
    ),
    *(Call("QuantizedDTypePolicy", (mode,)) for mode in ("int8", "int4")),
    *(Call("QuantizedDTypePolicy", ("int8", name)) for name in ("int", "int32", "mixed_bfloat16")),
    *(Call("QuantizedFloat8DTypePolicy", ("float8", "float32", length)) for length in (1024, 7)),
    Call("QuantizedFloat8DTypePolicy", ("float8",)),
    *(
        Call("Int4DTypePolicy", (f"int4/{size}", source))
        for size in ("128", "-1", "0128", "+128", "64")
        for source in (None, "float32", "bfloat16")
    ),
    *(
        Call("GPTQDTypePolicy", (f"gptq/{numbers}", source))
        for numbers in ("4/128", "8/128", "04/128", "4/-1")
        for source in (None, "float32")
    ),
    *(
        Call("AWQDTypePolicy", (f"awq/{numbers}", source))
        for numbers in ("4/128", "4/-1", "4/ 128")
        for source in (None, "float32")
    ),
)


@pytest.mark.parametrize("of", STATES, ids=str)
def test_equality(of: State) -> None:
    """`==`, `!=` and hashes over every pair of many policies."""
    of.enter(original())
    of.enter(OURS)
    pairs = []
    for call in MATRIX:
        form, _ = normal_form(call, of)
        assert isinstance(form, Call)
        theirs = outcome(lambda: made(form, original()))  # noqa: B023
        assert outcome(lambda: made(call, OURS)) == theirs  # noqa: B023
        if theirs.error is None:
            pairs.append((made(form, original()), made(call, OURS)))
    assert len(pairs) > 20
    for (theirs, ours), (their_other, our_other) in product(pairs, pairs):
        assert (ours == our_other) is (theirs == their_other), (ours, our_other)
        assert (ours != our_other) is (theirs != their_other), (ours, our_other)
        if ours == our_other:
            assert hash(ours) == hash(our_other)
            assert {ours: 1}[our_other] == 1
    for (theirs, ours), other in product(pairs, ("float32", None, 3, object(), float)):
        assert (ours == other) is (theirs == other) is False
        assert (ours != other) is (theirs != other) is True
        with pytest.raises(TypeError):
            hash(theirs)
    assert len({ours for _, ours in pairs}) < len(pairs)


def test_equality_of_maps() -> None:
    """Maps are equal if they hold the same, in any order; Keras can compare none."""
    module = OURS.dtype_policies

    def make(*keys: str, default: Any = "float32", **options: Any) -> Any:
        return module.DTypePolicyMap(
            default, {key: module.get("float16") for key in keys}, **options
        )

    same = [make("a", "b"), make("b", "a"), make("a", "b", default=module.get("float32"))]
    other = [
        *(make("a"), make(), make("a", "b", "c"), make("a", "b", default="float16")),
        *(make("a", "b", match="search"), make("a", "b", on_overlap="first")),
        module.DTypePolicyMap("float32", {"a": module.get("float16"), "b": module.get("float32")}),
        *(module.get("float32"), "map_float32", {"a": module.get("float16")}, None),
    ]
    for left, right in product(same, same):
        assert left == right
        assert not left != right  # noqa: SIM202 - the operator is what is tested
    for left, right in product(same, other):
        assert left != right
        assert right != left
        assert not left == right  # noqa: SIM201
    for policy_map in (same[0], original().dtype_policies.DTypePolicyMap("float32")):
        with pytest.raises(TypeError):
            hash(policy_map)
    theirs = original().dtype_policies.DTypePolicyMap("float32")
    with pytest.raises(AttributeError):
        assert theirs == theirs  # noqa: PLR0124 - even with itself


COPIES: dict[str, Callable[[Any], Any]] = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    **{
        f"pickle {protocol}": lambda value, protocol=protocol: pickle.loads(  # noqa: S301
            pickle.dumps(value, protocol)
        )
        for protocol in range(pickle.HIGHEST_PROTOCOL + 1)
    },
}


class CustomOfOurs(castwise.DTypePolicy):
    """A user's own class, where pickle can find it."""

    def __init__(self, name: str = "mixed_float16", extra: int = 0) -> None:
        super().__init__(name)
        self.extra = extra


@pytest.mark.parametrize("copied", COPIES.values(), ids=COPIES.keys())
def test_copies(copied: Callable[[Any], Any]) -> None:
    """Copies and pickles of every class are equal, with what users have added to them."""

    @settings(max_examples=50)
    @given(call=POLICIES)
    def compare(call: Call) -> None:
        for system in (original(), OURS):
            policy = made(call, system)
            policy.note = "added by a user"
            again = copied(policy)
            assert type(again) is type(policy)
            assert again == policy
            assert facts(again) == facts(policy)
            assert again.note == policy.note
        ours = made(call, OURS)
        assert hash(copied(ours)) == hash(ours)

    compare()
    custom = copied(CustomOfOurs("float16", 5))
    assert custom == CustomOfOurs("float16")
    assert custom.extra == 5
    ternary = OURS.dtype_policies.get("ternary_from_float32")
    assert copied(ternary) == ternary


@pytest.mark.parametrize("copied", COPIES.values(), ids=COPIES.keys())
def test_copies_of_maps(copied: Callable[[Any], Any]) -> None:
    """Copies and pickles of a map hold the same; all but the real Keras' `copy` are independent."""

    @settings(max_examples=50)
    @given(content=MAPS)
    def compare(content: tuple[Any, dict[str, Call]]) -> None:
        for system in (original(), OURS):
            policy_map = made_map(content, system)
            again = copied(policy_map)
            assert type(again) is type(policy_map)
            assert facts(again) == facts(policy_map)
            again["new"] = "float16"
            shares = system is original() and copied is copy.copy
            assert ("new" in policy_map) is shares

    compare()
    options = OURS.dtype_policies.DTypePolicyMap("float16", match="search", on_overlap="longest")
    options["a"] = "float32"
    assert copied(options) == options
    assert copied(options)["xay"].name == "float32"
