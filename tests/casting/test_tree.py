"""cast_tree casts the leaves it should, keeps the containers, and hands the rest through."""

from __future__ import annotations

import array
import shelve
import sys
from collections import ChainMap, OrderedDict, UserDict, deque
from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any, ClassVar, NamedTuple

import castwise
import ml_dtypes
import numpy as np
import pytest
from castwise import quantization
from processes import run_python
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


STOCHASTIC: dict[str, Any] = {"rounding": "stochastic", "seed": 5}
THIRDS = np.full(4096, 1 / 3, np.float32)


def drawn(tree: Any, **options: Any) -> Any:
    return castwise.cast_tree(tree, "bfloat16", **{**STOCHASTIC, **options})


def test_leaves_draw_apart_and_the_same_each_time() -> None:
    """Equal values in two places round up and down in different places."""
    tree = {"a": THIRDS.copy(), "b": [THIRDS.copy(), THIRDS.copy()]}
    first, again = drawn(tree), drawn(tree)
    leaves = [first["a"], *first["b"]]
    for one, other in zip(leaves, [again["a"], *again["b"]], strict=True):
        assert one.tobytes() == other.tobytes()
    assert len({leaf.tobytes() for leaf in leaves}) == 3
    for i, one in enumerate(leaves):  # about 5 in 9 agree when the draws are independent
        for other in leaves[:i]:
            assert 0.4 < np.mean(one == other) < 0.7
    assert drawn(tree, seed=6)["a"].tobytes() != first["a"].tobytes()


def test_a_leaf_s_draw_is_of_its_path_alone() -> None:
    """A leaf's result depends neither on the other leaves nor on their order."""
    alone = drawn({"b": THIRDS.copy()})["b"].tobytes()
    assert drawn({"a": THIRDS.copy(), "b": THIRDS.copy()})["b"].tobytes() == alone
    assert drawn({"b": THIRDS.copy(), "a": THIRDS.copy()})["b"].tobytes() == alone


def test_tied_arrays_draw_once() -> None:
    tied = drawn({"embedding": THIRDS, "head": [THIRDS]})
    assert tied["embedding"] is tied["head"][0]


@pytest.mark.parametrize("kind", [UserDict, MappingProxyType], ids=lambda kind: kind.__name__)
def test_every_mapping_is_walked(kind: Any) -> None:
    tree = {"outer": kind({"w": W, "inner": kind({"w": W, "n": 3})})}
    cast = castwise.cast_tree(tree, {"default": "bfloat16", "outer/inner/w": "float16"})
    outer = cast["outer"]
    assert isinstance(outer, Mapping)
    assert list(outer) == ["w", "inner"]
    assert outer["w"].dtype == BF16
    assert outer["inner"]["w"].dtype == np.float16
    assert outer["inner"]["n"] == 3
    assert tree["outer"]["w"] is W
    assert tree["outer"]["inner"]["w"] is W


def test_an_error_names_the_leaf() -> None:
    tree = {"layers": [{"kernel": W}, {"kernel": W * 1000}], "name": "x"}
    with pytest.raises(OverflowError) as caught:
        castwise.cast_tree(tree, "float8_e4m3fn", overflow="raise")
    told = [str(caught.value), *getattr(caught.value, "__notes__", [])]
    assert "layers/1/kernel" in " ".join(told)
    tree["layers"][1]["kernel"] = W * np.nan
    with pytest.raises(ValueError, match="nan") as refused:
        castwise.cast_tree(tree, "float8_e4m3fn", nan="raise")
    told = [str(refused.value), *getattr(refused.value, "__notes__", [])]
    assert "layers/1/kernel" in " ".join(told)


@pytest.mark.parametrize("key", [3, None, b"a", ("a", "b"), 1.5], ids=repr)
def test_a_map_s_keys_are_strings(key: Any) -> None:
    with pytest.raises((TypeError, ValueError)) as caught:
        castwise.cast_tree({"a": W}, {key: "float16"})
    assert repr(key) in str(caught.value)


@pytest.mark.parametrize("tree", [{}, [], None, {"count": np.arange(3)}], ids=str)
@pytest.mark.parametrize(
    "options",
    [
        {"rounding": "nearest"},
        {"overflow": "clip"},
        {"overflow": None},
        {"nan": "drop"},
        {"order": "Z"},
        {"seed": 1},
        {"seed": -1, "rounding": "stochastic"},
        {"threads": 0},
        {"scale": "2"},
        {"nope": 1},
    ],
    ids=str,
)
def test_bad_options_are_refused_even_where_nothing_is_cast(
    tree: Any, options: dict[str, Any]
) -> None:
    with pytest.raises((TypeError, ValueError), match=next(iter(options))):
        castwise.cast_tree(tree, "float16", **options)


@dataclass
class Lazy:
    """Fields that are loaded at each access."""

    first: Any
    second: Any
    third: Any

    def __getattribute__(self, name: str) -> Any:
        value = object.__getattribute__(self, name)
        return value() if name in ("first", "second", "third") and callable(value) else value


def test_arrays_made_on_request_are_not_mistaken_for_each_other() -> None:
    """A leaf that is freed after its cast may have the address of the next one."""
    lazy = Lazy(*(lambda value=value: np.full(100, value) for value in (1.0, 2.0, 3.0)))
    cast = castwise.cast_tree([lazy, lazy], "float16")
    for layer in cast:
        got = [layer.first, layer.second, layer.third]
        assert [float(leaf[0]) for leaf in got] == [1.0, 2.0, 3.0]
        assert all(leaf.dtype == np.float16 for leaf in got)
    assert lazy.first.dtype == np.float64


class Items(MutableMapping[str, Any]):
    """A mapping whose copy by `copy.copy` has the items of the original."""

    def __init__(self, items: dict[str, Any]) -> None:
        self.items_of_it = items

    def __getitem__(self, key: str) -> Any:
        return self.items_of_it[key]

    def __setitem__(self, key: str, value: Any) -> None:
        self.items_of_it[key] = value

    def __delitem__(self, key: str) -> None:
        del self.items_of_it[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.items_of_it)

    def __len__(self) -> int:
        return len(self.items_of_it)


def test_the_tree_is_not_changed_whatever_its_mappings_are(tmp_path: Path) -> None:
    tree = Items({"w": W, "inner": Items({"w": W})})
    cast = castwise.cast_tree(tree, "float16")
    assert (cast["w"].dtype, cast["inner"]["w"].dtype) == (np.float16, np.float16)
    assert tree["w"] is W
    assert tree["inner"]["w"] is W
    with shelve.open(tmp_path / "shelf") as shelf:  # noqa: S301
        shelf["w"] = W
        assert castwise.cast_tree(shelf, "float16")["w"].dtype == np.float16
        assert shelf["w"].dtype == np.float32
    chained = castwise.cast_tree(ChainMap({"a": W}, {"b": W}), "float16")
    assert [chained[key].dtype for key in "ab"] == [np.float16] * 2


class ArrayLike:
    """What numpy reads as an array."""

    def __init__(self, values: Any) -> None:
        self.values = values

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return self.values


class Interface:
    def __init__(self, values: Any) -> None:
        self.values = values
        self.__array_interface__ = values.__array_interface__


@dataclass
class Chunked(ArrayLike):
    """An array that is a dataclass, as of zarr."""

    values: Any


class Portable:
    """What only has DLPack."""

    def __dlpack__(self, **options: Any) -> Any:
        return W.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return W.__dlpack_device__()


class Dataset(Mapping[str, Any]):
    """A mapping with more than its items, as of xarray."""

    attrs: ClassVar[dict[str, str]] = {"units": "m"}

    def __getitem__(self, key: str) -> Any:
        return {"w": W}[key]

    def __iter__(self) -> Iterator[str]:
        return iter("w")

    def __len__(self) -> int:
        return 1


@pytest.mark.parametrize(
    "wrap",
    [ArrayLike, Interface, Chunked, memoryview, lambda x: array.array("f", x)],
    ids=["__array__", "interface", "dataclass", "memoryview", "array.array"],
)
def test_what_cast_takes_for_an_array_is_cast(wrap: Any) -> None:
    leaf, ints = wrap(W), ArrayLike(np.arange(3))
    tree = {"a": leaf, "b": [leaf], "n": ints}
    cast = castwise.cast_tree(tree, {"default": "bfloat16", "b/0": "float16"})
    for found, dtype in ((cast["a"], "bfloat16"), (cast["b"][0], "float16")):
        assert type(found) is np.ndarray
        assert found.tobytes() == castwise.cast(W, dtype).tobytes()
    assert cast["n"] is ints
    twice = castwise.cast_tree([leaf, leaf], "float16")
    assert twice[0] is twice[1]


@pytest.mark.parametrize(
    ("leaf", "said"),
    [
        (Portable(), "Portable is read by DLPack only, not by numpy; give numpy.from_dlpack of it"),
        (Dataset(), "Dataset is a container with attributes, .* give a dict of its arrays"),
        (deque([W]), "deque of arrays is not a node of a tree; give a list"),
        (quantization.quantize(np.ones((2, 32), np.float32), "mxfp4"), "QuantizedArray is decoded"),
        (SimpleNamespace(shape=(3,), dtype=np.float32), "is not an array that numpy can read"),
    ],
)
def test_what_cannot_be_cast_is_said_with_its_path(leaf: Any, said: str) -> None:
    for tree, path in (({"a": [leaf]}, "'a/0': "), (leaf, "")):
        with pytest.raises(TypeError, match=f"^{path}.*{said}"):
            castwise.cast_tree(tree, "float16")


@pytest.mark.parametrize(
    "error", [TypeError, ValueError, RuntimeError, NotImplementedError, OSError]
)
def test_an_error_of_an_array_keeps_its_class(error: type[Exception]) -> None:
    class Elsewhere:
        def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
            raise error("it is elsewhere")

    for call in (
        lambda: castwise.cast(Elsewhere(), "float16"),
        lambda: castwise.cast([Elsewhere()], "float16"),
        lambda: castwise.cast(W, "float16", scale=Elsewhere()),
        lambda: castwise.cast_tree({"a": Elsewhere()}, "float16"),
    ):
        with pytest.raises(error, match="it is elsewhere") as caught:
            call()
        assert type(caught.value) is error


def test_values_that_are_no_arrays_stay() -> None:
    leaves = ["text", b"bytes", bytearray(b"ab"), range(3), {1.0}, object, ArrayLike, 3, 1.5, None]
    assert castwise.cast_tree(leaves, "float16", only_floating=False) == leaves


def test_a_key_that_matches_no_array_is_said() -> None:
    tree = {"kernel": W, "bias": [W], "step": 3}
    said = r"^unused pattern 'kernal'; nearest is 'kernel'$"
    with pytest.warns(UserWarning, match=said) as caught:
        castwise.cast_tree(tree, {"kernal": "float16", "bias/.*": "float16"})
    assert caught[0].filename == __file__
    with pytest.warns(UserWarning, match=r"unused pattern 'kernal'.*\nunused pattern 'step'"):
        castwise.cast_tree(tree, {"kernal": "float16", "step": "float16"})
    # A map of policies, which may be for more than one tree, says it when it is asked.
    policies = castwise.DTypePolicyMap("float32", {"kernal": "float16", "haed": "float16"})
    assert castwise.cast_tree(tree, policies)["kernel"].dtype == np.float32
    assert policies.explain(["kernel", "bias/0"]).unused == {
        "kernal": "kernel",
        "haed": None,  # nothing is spelled like it
    }


@pytest.mark.parametrize("library", ["pandas", "xarray", "zarr", "polars", "pyarrow", "astropy"])
def test_arrays_of_other_libraries(library: str) -> None:
    """In a process of its own, because they change the search for modules."""
    if find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    done = run_python(
        Path(__file__).parents[1] / "helpers" / "casting" / "other_libraries.py",
        library,
        forked=False,
    )
    assert done.returncode == 0, done.stderr


def test_files_of_hdf5(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "f.h5", "w") as file:
        file["a/w"] = W
        assert castwise.cast_tree([file["a/w"]], "float16")[0].dtype == np.float16
        for leaf, name in ((file, "File"), (file["a"], "Group")):
            with pytest.raises(TypeError, match=f"h5py.*{name} is a container with attributes"):
                castwise.cast_tree({"m": leaf}, "float16")
        assert file["a/w"].dtype == np.float32


def test_a_scale_per_column_fits_every_leaf_it_broadcasts_to() -> None:
    scale = np.array([1.0, 2.0, 4.0])
    cast = castwise.cast_tree([W, np.tile(W, (2, 1))], "bfloat16", scale=scale)
    want = castwise.cast(W, "bfloat16", scale=scale)
    assert [leaf.tobytes() for leaf in cast] == [want.tobytes(), want.tobytes() * 2]
    with pytest.raises(ValueError, match=r"'1': scale"):
        castwise.cast_tree([W, W[:2]], "bfloat16", scale=scale)


def test_many_small_arrays_take_few_calls_each() -> None:
    """A comprehension makes one call for each leaf, and takes half the time."""

    def count_calls(tree: Any) -> int:
        events: list[str] = []
        sys.setprofile(lambda frame, event, argument: events.append(event))
        try:
            castwise.cast_tree(tree, "bfloat16")
        finally:
            sys.setprofile(None)
        return sum(event in {"call", "c_call"} for event in events)

    def nested(layers: int) -> Any:
        return {f"layer{i}": {"kernel": W.copy(), "bias": W.copy()} for i in range(layers)}

    def flat(layers: int) -> Any:
        return [W.copy() for _ in range(2 * layers)]

    for make in (nested, flat):
        few, many = (count_calls(make(layers)) for layers in (1000, 2000))
        assert many - few <= 5 * 2000
