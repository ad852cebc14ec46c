"""cast_tree casts the leaves it should, keeps the containers, and hands the rest through."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, NamedTuple

import castwise
import ml_dtypes
import numpy as np
import pytest
from support import AVAILABLE, FLOATS

BF16 = np.dtype(ml_dtypes.bfloat16)
W = np.array([1.0, 1 / 3, 300.0], np.float32)


class Pair(NamedTuple):
    weight: Any
    bias: Any


@dataclass(frozen=True)
class Layer:
    weight: Any
    step: int = 3


def test_containers_keep_their_types_and_order() -> None:
    tree = OrderedDict(
        z=[W, (W, {"deep": W})],
        a=Pair(W, None),
        layer=Layer(W),
        empty={"list": [], "tuple": (), "dict": {}},
    )
    cast = castwise.cast_tree(tree, "bfloat16")
    assert type(cast) is OrderedDict
    assert list(cast) == ["z", "a", "layer", "empty"]
    assert type(cast["z"]) is list
    assert type(cast["z"][1]) is tuple
    assert type(cast["a"]) is Pair
    assert cast["a"].bias is None
    assert type(cast["layer"]) is Layer
    assert cast["layer"].step == 3
    assert cast["empty"] == {"list": [], "tuple": (), "dict": {}}
    want = castwise.cast(W, "bfloat16")
    leaves = [
        cast["z"][0],
        cast["z"][1][0],
        cast["z"][1][1]["deep"],
        cast["a"].weight,
        cast["layer"].weight,
    ]
    for leaf in leaves:
        assert leaf.dtype == BF16
        assert leaf.tobytes() == want.tobytes()
    assert tree["z"][0] is W
    assert W.dtype == np.float32


def test_an_array_is_a_tree() -> None:
    assert castwise.cast_tree(W, "float16").dtype == np.float16


def test_only_floating_leaves_the_rest_byte_for_byte() -> None:
    """An int32 counter, a bool mask, a uint32 key: the very same arrays come back."""
    tree = {row.name: np.ones(3, row.dtype) for row in AVAILABLE if not row.part}
    tree["scalar"], tree["text"], tree["nothing"] = 16777217, "name", None
    cast = castwise.cast_tree(tree, "float8_e5m2")
    floats = {row.name for row in FLOATS}
    for name, leaf in tree.items():
        if name in floats:
            assert cast[name].dtype == ml_dtypes.float8_e5m2, name
        else:
            assert cast[name] is leaf, name


def test_with_only_floating_off_every_array_is_cast() -> None:
    tree = {
        "count": np.array([16777217], np.int32),
        "mask": np.array([True]),
        "name": "x",
        "number": 3,
    }
    cast = castwise.cast_tree(tree, "float64", only_floating=False)
    assert cast["count"].tolist() == [16777217.0]
    assert cast["mask"].dtype == np.float64
    assert cast["name"] == "x"
    assert cast["number"] == 3


def test_a_map_names_leaves_by_their_paths() -> None:
    tree = {
        "layers": [{"kernel": W, "bias": W}, {"kernel": W, "bias": W}],
        "head": Pair(W, W),
        "norm": Layer(W),
    }
    rules = {
        "default": "bfloat16",
        r"layers/\d+/kernel": "float8_e4m3fn",
        "layers/1/bias": "float64",
        "head/weight": "float16",
        "norm/weight": "float8_e5m2",
    }
    cast = castwise.cast_tree(tree, rules)
    assert [layer["kernel"].dtype.name for layer in cast["layers"]] == ["float8_e4m3fn"] * 2
    assert [layer["bias"].dtype.name for layer in cast["layers"]] == ["bfloat16", "float64"]
    assert (cast["head"].weight.dtype, cast["head"].bias.dtype) == (np.float16, BF16)
    assert cast["norm"].weight.dtype == ml_dtypes.float8_e5m2


def test_a_map_matches_whole_paths_and_without_a_default_leaves_the_rest() -> None:
    tree = {"kernel": W, "kernel_scale": W, "my/kernel": W}
    cast = castwise.cast_tree(tree, {"kernel": "float16"})
    assert cast["kernel"].dtype == np.float16
    assert cast["kernel_scale"] is W
    assert cast["my/kernel"] is W


def test_a_path_matched_twice_is_an_error_that_names_both_keys() -> None:
    with pytest.raises(ValueError, match="a/kernel") as caught:
        castwise.cast_tree({"a": {"kernel": W}}, {"a/.*": "float16", ".*/kernel": "bfloat16"})
    for key in ("a/.*", ".*/kernel"):
        assert key in str(caught.value)


@pytest.mark.parametrize(
    "rules", [{"[": "float16"}, {".*": "flaot16"}, {"default": "nope"}, "nope", None, 3]
)
def test_bad_maps_are_refused(rules: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        castwise.cast_tree({"a": W}, rules)


def test_options_go_to_every_cast() -> None:
    tree = {"a": W * 1000, "b": [W]}
    cast = castwise.cast_tree(
        tree, "float8_e4m3fn", overflow="saturate", scale=2.0, rounding="towards-zero"
    )
    want = castwise.cast(
        W, "float8_e4m3fn", overflow="saturate", scale=2.0, rounding="towards-zero"
    )
    assert cast["b"][0].tobytes() == want.tobytes()
    assert cast["a"].astype(float).tolist() == [448, 448, 448]
    with pytest.raises(OverflowError):
        castwise.cast_tree(tree, "float8_e4m3fn", overflow="raise")


@pytest.mark.parametrize("option", [{"out": W}, {"report": True}, {"copy": False}, {"nope": 1}])
def test_options_about_one_array_are_refused(option: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=next(iter(option))):
        castwise.cast_tree({"a": W}, "float16", **option)


def test_an_array_in_two_places_stays_one_array() -> None:
    """Tied weights stay tied, unless the map gives the places different targets."""
    tree = {"embedding": W, "head": [W]}
    cast = castwise.cast_tree(tree, "float16")
    assert cast["embedding"] is cast["head"][0]
    apart = castwise.cast_tree(tree, {"default": "float16", "embedding": "float64"})
    assert (apart["embedding"].dtype, apart["head"][0].dtype) == (np.float64, np.float16)


def test_numpy_scalars_are_leaves() -> None:
    cast = castwise.cast_tree([np.float32(1.5), np.int32(3), 1.5], "bfloat16")
    assert cast[0].dtype == BF16
    assert float(cast[0]) == 1.5
    assert type(cast[1]) is np.int32
    assert type(cast[2]) is float
