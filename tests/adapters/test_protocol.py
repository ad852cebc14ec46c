"""Arrays of other libraries, by the documented adapter; where adapters come from; what fails."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from typing import Any
from weakref import WeakKeyDictionary

import castwise
import numpy as np
import pytest
import real_frameworks
import stand_in_array
from castwise import DTypePolicyMap, adapters, loss_scale, quantization
from castwise.adapters import protocol
from castwise.adapters.protocol import Adapter
from castwise.arrays import adapter_registry as registry
from castwise.environment import frameworks


@pytest.fixture(autouse=True)
def afresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No adapters but those that are found again."""
    monkeypatch.setattr(registry, "_adapters", {})
    monkeypatch.setattr(registry, "_adapters_by_predicate", [])
    monkeypatch.setattr(registry, "_adapters_by_class", WeakKeyDictionary())
    frameworks.entry_points_of.cache_clear()
    yield
    frameworks.entry_points_of.cache_clear()


def documented() -> str:
    """The adapter that the docstring of the protocol shows."""
    block = re.search(r"^```python\n(.*?)^```$", protocol.__doc__ or "", re.MULTILINE | re.DOTALL)
    assert block
    assert len(block[1].splitlines()) < 60
    return block[1]


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The stand-in under the name of cupy, with the documented adapter."""
    monkeypatch.setitem(sys.modules, "cupy", stand_in_array)
    for cls in (stand_in_array.ndarray, stand_in_array.Layer):
        monkeypatch.setattr(cls, "__module__", "cupy.core")
    names: dict[str, Any] = {}
    exec(documented(), names)  # noqa: S102 the documentation is the test's subject
    registry.register("cupy", names["CupyAdapter"])
    return stand_in_array


def test_the_documented_adapter_casts(cupy: Any) -> None:
    with cupy.Device("1"):
        array = cupy.asarray(np.array([1.0, 1e9, -3.0], np.float32))
    with cupy.logged() as log:
        result = castwise.cast(array, "bfloat16")
        assert log == ["astype bfloat16"]
        assert isinstance(result, cupy.ndarray)
        assert result.device.name == "1"
        saturated, report = castwise.cast(array, "float8_e4m3fn", overflow="saturate", report=True)
        assert log == ["astype bfloat16", "asnumpy"]
    assert cupy.asnumpy(saturated).astype(float).tolist() == [1, 448, -3]
    assert (saturated.device.name, report.saturated) == ("1", 1)
    with pytest.raises(TypeError, match="out= is not for a ndarray"):
        castwise.cast(array, out=np.empty(3))
    with pytest.raises(OverflowError, match="flat index 1"):
        castwise.cast(array, "float16", overflow="raise")
    with pytest.raises(ValueError, match='rounding="up"'):
        castwise.cast(array, "float16", rounding="up")
    with pytest.raises(TypeError, match="nothing to cast to"):
        castwise.cast(array)


def test_trees_with_its_arrays(cupy: Any) -> None:
    array, count = cupy.asarray(np.ones(2)), cupy.asarray(np.arange(2))
    tree = {"a": [array, count, np.ones(2)], "b": array, "c": cupy.Layer(x=1), "d": "text"}
    result = castwise.cast_tree(tree, DTypePolicyMap("float32", {"b": "float16", "a/0": "float16"}))
    assert [leaf.dtype for leaf in result["a"]] == ["float16", count.dtype, "float32"]
    assert result["b"] is result["a"][0]
    assert result["a"][1] is count
    assert (result["c"], result["d"]) == (tree["c"], "text")
    every = castwise.cast_tree(tree, "float16", only_floating=False)
    assert every["a"][1].dtype == "float16"
    dates = cupy.asarray(np.ones(1, "M8[s]"))
    assert castwise.cast_tree([dates], "float16") == [dates]


def test_containers_of_the_library(cupy: Any) -> None:
    class WithLayers(type(registry.find(cupy.ndarray))):  # type: ignore[misc]
        def children(self, node: Any) -> Any:
            return list(node.arrays.items()) if isinstance(node, cupy.Layer) else None

        def rebuild(self, node: Any, children: Any) -> Any:
            return type(node)(**dict(children))

    registry.register("cupy", WithLayers())
    layer = cupy.Layer(kernel=cupy.asarray(np.ones(2)), inner=cupy.Layer(bias=[np.ones(2)]))
    result = castwise.cast_tree(
        {"net": layer}, {"net/kernel": "float16", "net/inner/.*": "bfloat16"}
    )
    assert result["net"].arrays["kernel"].dtype == "float16"
    assert result["net"].arrays["inner"].arrays["bias"][0].dtype == "bfloat16"
    assert layer.arrays["kernel"].dtype == "float64"
    assert castwise.cast_tree(layer, "float16").arrays["kernel"].dtype == "float16"


def test_what_derives_from_a_librarys_class_has_its_adapter(cupy: Any) -> None:
    class Mine(cupy.ndarray):
        pass

    assert castwise.cast(Mine(np.ones(2)), "float16").dtype == "float16"
    assert registry.find(Mine) is registry.find(cupy.ndarray)
    assert registry.find(float) is None
    assert registry.find(np.ndarray) is None

    class Unhashable(type):
        __hash__ = None  # type: ignore[assignment]

    assert registry.find(Unhashable("Odd", (), {})) is None


def test_what_has_no_adapter_goes_to_numpy_as_before() -> None:
    class ArrayLike:
        def __array__(self, *_: Any, **__: Any) -> Any:
            return np.ones(2)

    assert isinstance(castwise.cast(ArrayLike(), "float16"), np.ndarray)
    marker = object()
    assert castwise.cast_tree([ArrayLike, marker], "float16") == [ArrayLike, marker]


@pytest.mark.usefixtures("offered")
def test_castwises_own_need_no_metadata() -> None:
    # Without metadata a cast of a tensor was one of numpy's, and a tree kept its tensors.
    torch, jax = real_frameworks.torch(), real_frameworks.jax()
    for ones, dtype in ((torch.ones(2), torch.float16), (jax.numpy.ones(2), "float16")):
        assert castwise.cast(ones, "float16").dtype == dtype
        assert castwise.cast_tree([ones], "float16")[0].dtype == dtype


class Entry:
    """What importlib.metadata says of one."""

    def __init__(self, name: str, value: str, package: str, loaded: Any) -> None:
        self.name, self.value, self.loaded = name, value, loaded
        self.dist = type("Distribution", (), {"name": package})

    def load(self) -> Any:
        if isinstance(self.loaded, Exception):
            raise self.loaded
        return self.loaded


class Ones(Adapter):
    """Its arrays are made of nothing."""

    def is_array(self, value: Any) -> bool:
        return isinstance(value, Thing)

    def dtype_of(self, array: Any) -> Any:
        return "float32"

    def to_host(self, array: Any) -> Any:
        return np.ones(2, np.float32)

    def from_host(self, array: Any, like: Any) -> Any:
        return like, array.dtype.name


class Thing:
    __module__ = "foreign.things"


@pytest.fixture
def offered(monkeypatch: pytest.MonkeyPatch) -> list[Entry]:
    entries: list[Entry] = []
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: entries)
    return entries


class Array:
    """One of a library that has dtypes of its own."""

    def __init__(self, values: Any) -> None:
        self.values, self.shape = values, values.shape
        self.dtype = Dtype(values.dtype.name)


class Dtype(str):
    """A dtype that is no dtype of numpy, though it prints as one."""

    __slots__ = ()


class Bag:
    def __init__(self, **arrays: Any) -> None:
        self.arrays = arrays


class Half(Dtype):
    """A dtype that is a class."""

    __slots__ = ()


class Correct(Adapter):
    """It keeps every promise, which each case of the tests takes back one of."""

    def is_array(self, value: Any) -> bool:
        return isinstance(value, Array)

    def dtype_of(self, array: Any) -> Any:
        return array.values.dtype

    def format_of(self, dtype: Any) -> str | None:
        if dtype is Half:
            return "float16"
        return str(dtype) if isinstance(dtype, Dtype) else None

    def to_host(self, array: Any) -> Any:
        return array.values

    def from_host(self, array: Any, like: Any) -> Any:
        return Array(array)

    def children(self, node: Any) -> Any:
        return list(node.arrays.items()) if isinstance(node, Bag) else None

    def rebuild(self, node: Any, children: Any) -> Any:
        return Bag(**dict(children))


def is_ours(cls: type) -> bool:
    return cls in (Array, Bag, Dtype, Half)


ROUNDED = np.array([0.1, -3.3, 7e4, np.nan], np.float32)
WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "is_array": ({"is_array": lambda self, value: True}, "returned True for a"),
    "is_array, not bool": ({"is_array": lambda self, value: 1 * isinstance(value, Array)}, "d 1 "),
    "is_array, raises": ({"is_array": lambda self, value: bool(value.values.size)}, "raised Attr"),
    "dtype_of": ({"dtype_of": lambda self, array: object()}, "which castwise.finfo does not take"),
    "dtype_of, other": ({"dtype_of": lambda self, array: "float64"}, "says float64, but to_host"),
    "format_of": ({"format_of": lambda self, dtype: "float32"}, "for an object; return None"),
    "format_of, other": (
        {"format_of": lambda self, dtype: "int8" if isinstance(dtype, Dtype) else None},
        "returned 'int8' for the dtype",
    ),
    "to_host": ({"to_host": lambda self, array: array.values.tolist()}, "returned a list; return"),
    "to_host, shape": ({"to_host": lambda self, array: array.values[1:]}, "returned shape (3,)"),
    "to_host, masked": (
        {"to_host": lambda self, array: np.ma.array(array.values, mask=True)},
        "returned a MaskedArray",
    ),
    "to_host, raises": ({"to_host": lambda self, array: 1 / 0}, "raised ZeroDivisionError"),
    "from_host": ({"from_host": lambda self, array, like: None}, "returned a NoneType; return an"),
    "from_host, like": ({"from_host": lambda self, array, like: like}, "returned other elements"),
    "from_host, changes": (
        {"from_host": lambda self, array, like: like.values.fill(0) or Array(array)},
        "changed the array that it was to be like",
    ),
    "cast, raises": (
        {"cast": lambda self, array, dtype=None, **options: 1 / 0},
        "raised ZeroDivisionError",
    ),
    "cast, changes": (
        {
            "cast": lambda self, array, dtype=None, **options: (
                Adapter.cast(self, array, dtype, **options),
                array.values.fill(0) if "copy" in options else None,
            )[0]
        },
        "changed the array that it was given",
    ),
    "cast, options": (
        {"cast": lambda self, array, dtype=None, **_: Array(castwise.cast(array.values, dtype))},
        "ignores rounding='no such'",
    ),
    "cast, values": (
        {
            "cast": lambda self, array, dtype=None, **options: Adapter.cast(
                self, Array(array.values * 2), dtype, **options
            )
        },
        "returned other elements",
    ),
    "cast, copy": (
        {
            "cast": lambda self, array, dtype=None, **options: Adapter.cast(
                self, Array(array.values), dtype, **options
            )
        },
        "copy=False) returned another array",
    ),
    "is_floating": (
        {"is_floating": lambda self, array: False},
        "returned False for an array of fl",
    ),
    "children": (
        {"children": lambda self, node: getattr(node, "arrays", None)},
        "list(....items())",
    ),
    "children, no pairs": (
        {"children": lambda self, node: list(node.arrays) if isinstance(node, Bag) else None},
        "which has no (key, value) pairs",
    ),
    "children, of all": ({"children": lambda self, node: []}, "returned children of a NoneType"),
    "rebuild": ({"rebuild": lambda self, node, children: None}, "returned None; return the con"),
    "rebuild, itself": ({"rebuild": lambda self, node, children: node}, "the container itself"),
    "rebuild, class": (
        {"rebuild": lambda self, node, children: dict(children)},
        "a dict for a Bag",
    ),
    "rebuild, missing": ({"rebuild": Adapter.rebuild}, "raised NotImplementedError"),
}


def test_an_adapter_that_keeps_its_promises() -> None:
    for values in (ROUNDED, ROUNDED[:0], ROUNDED[0:1].reshape(()), np.arange(3), ROUNDED * 1j):
        adapters.check(Correct, Array(np.asarray(values)))
    adapters.check(Correct(), Bag(a=Array(ROUNDED), inner=Bag(b=Array(ROUNDED)), text="text"))
    with pytest.raises(TypeError, match=r"Correct\.is_array returned False for the sample"):
        adapters.check(Correct, ROUNDED.tolist())
    with pytest.raises(TypeError, match="derive it"):
        adapters.check(dict, Array(ROUNDED))  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", WRONG)
def test_a_broken_promise_is_named_with_its_method(wrong: str) -> None:
    methods, said = WRONG[wrong]
    adapter = type("Wrong", (Correct,), methods)
    with pytest.raises(TypeError) as caught:
        adapters.check(adapter, Bag(a=Array(ROUNDED.copy())))
    method = wrong.partition(",")[0]
    lines = str(caught.value).splitlines()
    assert any(line.startswith(f"Wrong.{method}") and said in line for line in lines), lines
    if method in {"children", "from_host", "cast"}:
        assert all(line.startswith(f"Wrong.{method}") for line in lines), lines


@pytest.mark.parametrize(
    "wrong", ["dtype_of", "to_host", "from_host", "children", "children, no pairs", "rebuild"]
)
def test_a_mistake_is_named_where_it_happens(wrong: str) -> None:
    registry.register(is_ours, type("Wrong", (Correct,), WRONG[wrong][0]))
    method = wrong.partition(",")[0]
    with pytest.raises(TypeError, match=rf"Wrong\.{method} returned"):
        castwise.cast_tree({"a": Bag(a=Array(ROUNDED))}, "float16")


def test_a_comparison_names_a_method_that_returns_no_array() -> None:
    registry.register(is_ours, type("Wrong", (Correct,), WRONG["to_host"][0]))
    with pytest.raises(TypeError, match=r"Wrong\.to_host returned a list"):
        castwise.compare(Array(ROUNDED), ROUNDED)


def test_a_cast_that_returns_nothing_is_named() -> None:
    registry.register(is_ours, type("Wrong", (Correct,), {"cast": lambda *_, **__: None}))
    for call in (
        lambda: castwise.cast(Array(ROUNDED), "float16"),
        lambda: castwise.cast_tree([Array(ROUNDED)], "float16"),
    ):
        with pytest.raises(TypeError, match=r"Wrong\.cast returned None; return the array"):
            call()


def test_every_door_takes_a_librarys_arrays_and_dtypes() -> None:
    registry.register(is_ours, Correct)
    array, half = Array(ROUNDED), castwise.cast(ROUNDED, "float16")
    for dtype in (Half, Dtype("float16"), Half("float16")):
        assert castwise.finfo(dtype).name == "float16"
        to_half = castwise.caster(Dtype("float32"), dtype)
        for cast in (
            castwise.cast(array, dtype),
            castwise.cast_tree({"a": array}, dtype)["a"],
            castwise.cast_tree([array], {"0": dtype})[0],
            to_half(array),
        ):
            assert isinstance(cast, Array)
            assert cast.values.tobytes() == half.tobytes()
        assert castwise.cast(ROUNDED, dtype).tobytes() == half.tobytes()
    with pytest.raises(TypeError, match="x has dtype float64, but this caster is from float32"):
        castwise.caster("float32", Half)(Array(np.ones(2)))
    scaled = castwise.cast(ROUNDED, "float16", scale=2.0)
    scale = Array(np.full(4, 2.0))
    for cast in (
        castwise.cast(ROUNDED, "float16", scale=scale),
        castwise.cast(array, "float16", scale=scale).values,
        castwise.caster("float32", "float16", scale=scale)(ROUNDED),
        castwise.cast_tree([ROUNDED], "float16", scale=scale)[0],
    ):
        assert cast.tobytes() == scaled.tobytes()
    assert castwise.cast(array, "float32", copy=False) is array
    assert castwise.cast(array, "float32") is not array
    ones = Array(np.ones((2, 32), np.float32))
    assert quantization.quantize(ones, "mxfp4").shape == (2, 32)
    assert castwise.survey(array) == castwise.survey(ROUNDED)
    grads, finite = loss_scale.unscale({"a": ones}, 2.0, dtype=Half)
    assert (type(grads["a"]), grads["a"].values.dtype, finite) == (Array, np.float16, True)
    assert not loss_scale.all_finite([array])
    assert loss_scale.DelayedScaling().quantize(ones)[0].shape == (2, 32)


def test_a_predicate_decides_where_no_module_has_an_adapter() -> None:
    asked = []

    def is_bag(cls: type) -> bool:
        asked.append(cls)
        return cls is Bag

    class Newer(Correct):
        pass

    registry.register(is_ours, Correct)
    registry.register(is_bag, Newer)
    for _ in range(2):
        assert type(registry.find(Bag)) is Newer
        assert type(registry.find(Array)) is Correct
    assert asked == [Bag, Array]
    assert registry.find(int) is None
    registry.register(__name__, Ones)
    assert type(registry.find(Bag)) is Ones
    with pytest.raises(TypeError, match="or a function that tells whether"):
        registry.register(Bag, Correct)


def test_an_entry_point_may_be_a_class_or_an_instance(offered: list[Entry]) -> None:
    thing = Thing()
    for adapter in (Ones, Ones()):
        offered[:] = [Entry("foreign", "p:A", "package", adapter)]
        registry._adapters.clear()
        registry._adapters_by_class.clear()
        frameworks.entry_points_of.cache_clear()
        assert castwise.cast(thing, "bfloat16") == (thing, "bfloat16")
        assert castwise.cast_tree({"x": thing}, {"x": "float16"}) == {"x": (thing, "float16")}


class Registering:
    """The name of a module, which registers an adapter when it is read."""

    def __str__(self) -> str:
        registry.register("foreign", Ones)
        return "elsewhere"


def test_an_adapter_registered_during_a_search_is_found_by_the_next() -> None:
    """As when another thread registers it."""
    base = type("Base", (), {"__module__": Registering()})
    cls = type("Derived", (base,), {"__module__": "foreign"})
    assert registry.find(cls) is None
    assert isinstance(registry.find(cls), Ones)


def test_an_adapter_registered_while_another_loads_is_kept(
    offered: list[Entry], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by the module that the entry point names, or by another thread."""
    chosen = Ones()

    def load(_: Entry) -> Any:
        registry.register("foreign", chosen)
        return Ones

    monkeypatch.setattr(Entry, "load", load)
    offered[:] = [Entry("foreign", "p:A", "package", None)]
    assert registry.find(Thing) is chosen
    assert registry.find(type("Other", (Thing,), {})) is chosen


def test_one_that_does_not_load_is_named(offered: list[Entry]) -> None:
    offered[:] = [Entry("foreign", "p.q:A", "castwise-foreign", ImportError("no such thing"))]
    with pytest.raises(ImportError, match=r"foreign, p\.q:A of castwise-foreign.*no such thing"):
        castwise.cast(Thing(), "float16")
    with pytest.raises(ImportError, match="update or uninstall"):
        castwise.cast_tree([Thing()], "float16")
    assert castwise.cast(np.ones(2), "float16").dtype == "float16"
    offered[:] = [Entry("foreign", "p.q:A", "castwise-foreign", ZeroDivisionError("of its own"))]
    frameworks.entry_points_of.cache_clear()
    with pytest.raises(ImportError, match=r"castwise-foreign.*ZeroDivisionError: of its own"):
        castwise.cast(Thing(), "float16")
    offered[:] = [Entry("foreign", "p.q:A", "castwise-foreign", dict)]
    frameworks.entry_points_of.cache_clear()
    with pytest.raises(TypeError, match=r"castwise-foreign.*derive it"):
        castwise.cast(Thing(), "float16")


def test_two_packages_for_one_library(offered: list[Entry]) -> None:
    torch = real_frameworks.torch()
    offered[:] = [Entry("torch", "a:A", "another", Ones)]
    assert isinstance(castwise.cast(torch.ones(2), "float16"), torch.Tensor)
    offered[:] = [Entry("foreign", "b:B", "beta", Ones), Entry("foreign", "a:A", "alpha", Ones)]
    with pytest.warns(UserWarning, match="alpha and beta both offer 'foreign' as .*; a:A"):
        castwise.cast(Thing(), "float16")


@pytest.mark.parametrize(
    ("module", "adapter", "error", "words"),
    [
        ("a.b", Ones, ValueError, "top-level"),
        ("numpy", Ones, ValueError, "top-level"),
        (3, Ones, TypeError, "must be a str"),
        ("cupy", dict, TypeError, "derive it"),
        ("cupy", Thing(), TypeError, "derive it"),
    ],
)
def test_bad_registrations(module: Any, adapter: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        registry.register(module, adapter)


def test_numpy_people_import_nothing_of_this() -> None:
    program = """
        import sys, numpy as np, castwise
        castwise.cast(np.ones(3), "float16"), castwise.cast(1.5, "bfloat16")
        castwise.cast(np.float32(2), "float16"), castwise.cast([1, (2.0, 3j)][:1], "int8")
        castwise.cast_tree({"a": [np.ones(2), "x", None, 3]}, "float16")
        loaded = set(sys.modules)
        print(sorted(loaded & {"torch", "jax", "importlib.metadata", "castwise.adapters.protocol"}))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("name", ["torch", "jax"])
def test_without_the_framework_the_extra_is_named(name: str) -> None:
    program = f"import sys; sys.modules[{name!r}] = None; import castwise.adapters.{name}"
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 1
    assert f"pip install 'castwise[{name}]'" in done.stderr
