"""Check that `cast_tree` casts the arrays of a library as `cast` does, or names what it refuses.

Nulls are refused by every door; without them integers are exact.

python tests/helpers/casting/other_libraries.py pandas
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import castwise
import numpy as np
from castwise import checkpoint, loss_scale, quantization

BIG = 2**53 + 1
"""An integer that float64 rounds."""

ONES = np.ones(2)
DOORS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "cast": ("x", lambda x: castwise.cast(x, "int64")),
    "out": ("x", lambda x: castwise.cast(x, out=np.ones(2))),
    "report": ("x", lambda x: castwise.cast(x, "bool", report=True)),
    "like": ("x", lambda x: castwise.cast(x, "float32", like="numpy")),
    "list": ("x[0]", lambda x: castwise.cast([x, x], "int64")),
    "scale": ("scale", lambda x: castwise.cast(ONES, "float32", scale=x)),
    "caster": ("x", castwise.caster("float64", "float32")),
    "caster, scale": ("scale", lambda x: castwise.caster("float32", "float16", scale=x)),
    "explain": ("source", lambda x: castwise.explain_cast(x, "float32")),
    "tree": ("'a/0': x", lambda x: castwise.cast_tree({"a": [x]}, "int8", only_floating=False)),
    "tree, scale": ("scale", lambda x: castwise.cast_tree(ONES, "float16", scale=x)),
    "survey": ("x", castwise.survey),
    "quantize": ("x", lambda x: quantization.quantize(x, "int8_tensor")),
    "pack": ("codes", lambda x: quantization.pack(x, 4)),
    "part": (
        "part 'weight'",
        lambda x: quantization.QuantizedArray.from_parts({"weight": x}, "mlx"),
    ),
    "unscale": ("grads", lambda x: loss_scale.unscale({"a": x}, 2.0)),
    "finite": ("tree", lambda x: loss_scale.all_finite({"a": x})),
    "save": ("tensor 'a'", lambda x: checkpoint.save(Path(FOLDER) / "f.npz", {"a": x})),
}
FOLDER = tempfile.mkdtemp()
VALUES = np.array([[1.0, 1 / 3], [300.0, 4.0]])


def check_cast(leaf: Any) -> None:
    """Check that a leaf becomes what `cast` makes of it."""
    found = castwise.cast_tree({"a": [leaf]}, "bfloat16")["a"][0]
    assert type(found) is np.ndarray
    assert found.tobytes() == castwise.cast(leaf, "bfloat16").tobytes()
    assert castwise.cast_tree([leaf], {"default": "keep"})[0] is leaf


def check_refused(leaf: Any, said: str) -> None:
    """Check that a leaf is refused with its path."""
    try:
        castwise.cast_tree({"a": leaf}, "bfloat16")
    except TypeError as error:
        assert str(error).startswith("'a': "), error  # noqa: PT017 - without pytest
        assert said in str(error), error  # noqa: PT017
    else:
        raise AssertionError(f"{leaf!r} is not refused")


def check_nulls(*leaves: Any) -> None:
    """Check that arrays with nulls are refused by every door, with the library's remedy."""
    for leaf in leaves:
        for door, (argument, call) in DOORS.items():
            try:
                call(leaf)
            except TypeError as error:
                begin, _, remedy = str(error).partition(" has nulls, which would become numbers; ")
                assert begin.startswith(argument), (door, error)  # noqa: PT017 - without pytest
                named = remedy.removeprefix("give its `.").partition("(")[0]
                assert named in remedy and hasattr(leaf, named), error  # noqa: PT017, PT018
            else:
                raise AssertionError(f"{door} takes {leaf!r}")
    assert not list(Path(FOLDER).iterdir())


def check_exact(*leaves: Any) -> None:
    """Check that integers without nulls are those of the library."""
    for leaf in leaves:
        tree = castwise.cast_tree([leaf], "int64", only_floating=False)
        for found in (castwise.cast(leaf, "int64"), tree[0]):
            assert found.ravel().tolist() == [BIG, 7], leaf
        if found.ndim == 1:
            assert castwise.cast([leaf], "int64").tolist() == [[BIG, 7]], leaf


def check_rounded(frame: Any) -> None:
    """Check that a frame is refused if no dtype holds all of its numbers."""
    for x in (frame, [frame]):
        try:
            castwise.cast(x, "int64")
        except TypeError as error:
            assert "integers that float64, the dtype for all columns, ro" in str(error)  # noqa: PT017
        else:
            raise AssertionError(frame)


def pandas(library: Any) -> None:
    """Check series, frames, indices, and arrays with masks, in arrow and by categories."""
    array, frame = library.array, library.DataFrame
    nulls = {name: array([BIG, None], dtype=name) for name in ("Int64", "category")}
    whole = {name: array([BIG, 7], dtype=name) for name in ("Int64", "UInt64", "category")}
    check_nulls(
        *nulls.values(), array([1.0, None], dtype="Float32"), array([True, None], dtype="boolean")
    )
    check_nulls(*(make(nulls["Int64"]) for make in (library.Series, library.Index)))
    check_nulls(frame({"a": nulls["Int64"]}), frame({"a": [1, 2], "b": nulls["category"]}))
    check_exact(*whole.values(), library.Series(whole["Int64"]), library.Index(whole["UInt64"]))
    check_exact(frame({"a": whole["Int64"]}), frame([[BIG, 7]]), frame({"a": whole["Int64"]}).T)
    check_rounded(frame({"a": whole["Int64"], "b": [0.5, 1.0]}))
    check_rounded(frame({"a": [BIG, 7], "b": array([1, 2**64 - 1], dtype="UInt64")}))
    mixed = frame({"a": array([1, 2], dtype="Int64"), "b": [0.5, 1.0], "c": [True, False]})
    assert castwise.cast(mixed, "float64").tolist() == [[1, 0.5, 1], [2, 1, 0]]
    for nan in ([1.0, np.nan], library.arrays.SparseArray([1.0, np.nan])):
        assert np.isnan(castwise.cast(library.Series(nan), "float16")).tolist() == [False, True]
    if find_spec("pyarrow"):
        check_nulls(
            array([BIG, None], dtype="int64[pyarrow]"), array([1, None], dtype="bool[pyarrow]")
        )
        check_exact(array([BIG, 7], dtype="int64[pyarrow]"))
    # A column of integers with nulls is none of floats, and stays.
    assert castwise.cast_tree([nulls["Int64"]], "float16")[0] is nulls["Int64"]
    frame = library.DataFrame(VALUES, columns=["a", "b"])
    for leaf in (frame, frame["a"], library.Index([1.0, 2.0])):
        check_cast(leaf)
    for leaf in (library.Series(["x"]), library.Series([1, 2]), library.Series([True])):
        assert castwise.cast_tree([leaf], "bfloat16")[0] is leaf


def xarray(library: Any) -> None:
    """Check arrays, and that a dataset does not become a dict."""
    data = library.DataArray(VALUES, dims=("x", "y"), coords={"x": [10, 20]})
    check_cast(data)
    if find_spec("pandas"):
        series = import_module("pandas").array
        check_nulls(library.DataArray(series([1, None], dtype="Int64"), dims="x"))
        check_exact(library.DataArray(series([BIG, 7], dtype="Int64"), dims="x"))
    dataset = library.Dataset({"v": data})
    check_refused(dataset, "xarray.core.dataset.Dataset is a container with attributes")
    check_refused(library.DataTree(dataset), "DataTree is a container with attributes")
    cast = castwise.cast_tree(dict(dataset.data_vars), "float16")
    assert cast["v"].dtype == np.float16


def zarr(library: Any) -> None:
    """Check arrays and groups."""
    group = library.group()
    group.create_array("w", data=VALUES)
    check_cast(group["w"])
    check_refused(group, "Group is a container with attributes")
    assert group["w"].dtype == np.float64


def polars(library: Any) -> None:
    """Check series and frames, also of rows that are arrays."""
    series, frame = library.Series, library.DataFrame
    rows = library.Array(library.Int64, 2)
    check_nulls(*(series([value, None]) for value in (BIG, 1.5, True)))
    check_nulls(frame({"a": [BIG, None]}), series([[BIG, None], [1, 2]], dtype=rows))
    records = [series([{"a": BIG, "b": last}]) for last in (7, None)]
    check_nulls(
        records[1],
        series(
            [[{"a": None}, {"a": 1}]], dtype=library.Array(library.Struct({"a": library.Int64}), 2)
        ),
    )
    check_exact(records[0])
    if find_spec("narwhals"):
        wrap = import_module("narwhals").from_native
        check_nulls(wrap(series([BIG, None]), series_only=True), wrap(frame({"a": [BIG, None]})))
        check_exact(wrap(series([BIG, 7]), series_only=True))
    check_exact(series([BIG, 7]), frame({"a": [BIG], "b": [7]}), series([[BIG, 7]], dtype=rows))
    check_rounded(frame({"a": [BIG], "b": [0.5]}))
    for nan in (series([1.0, np.nan]), frame({"a": [1.0, np.nan]})):
        assert np.isnan(castwise.cast(nan, "float16")).ravel().tolist() == [False, True]
    assert castwise.cast(frame(), "float16").shape[1] == 0
    check_cast(library.Series([1.0, 2.0]))
    check_cast(library.DataFrame({"a": [1.0, 2.0]}))


def pyarrow(library: Any) -> None:
    """Check arrays, chunked ones and tables, also of encodings that hold nulls elsewhere."""
    array, table, ints = library.array, library.table, library.int64()
    inside = library.DictionaryArray.from_arrays(array([0, 1]), array([BIG, None]))
    runs = library.RunEndEncodedArray.from_arrays(array([1, 2]), array([BIG, None]))
    check_nulls(*(array([value, None]) for value in (BIG, 1.5, True)), inside, runs)
    check_nulls(array([BIG, None]).dictionary_encode(), library.chunked_array([[1], [None]], ints))
    check_nulls(table({"a": [BIG, None]}), library.record_batch({"a": [1, 2], "b": [None, 2.0]}))
    check_exact(array([BIG, 7]), array([BIG, 7]).dictionary_encode(), array([0, BIG, 7])[1:])
    check_exact(library.chunked_array([[BIG], [7]]), table({"a": [BIG], "b": [7]}))
    check_exact(array([None, BIG, 7])[1:])
    check_rounded(table({"a": [BIG], "b": [0.5]}))


def astropy(_library: Any) -> None:
    """Check that masks are refused, also of quantities."""
    masked = import_module("astropy.utils.masked").Masked
    units = import_module("astropy.units")
    for values in ([1.0, 2.0], [1.0, 2.0] * units.m):
        leaf = masked(values, [True, False])
        check_refused(leaf, "x is a masked array, whose mask would be lost; give its `.unmasked`")
        for listed in ([leaf], (leaf, leaf)):
            try:
                castwise.cast(listed, "bfloat16")
            except TypeError as error:
                assert str(error).startswith("x[0] is a masked array")  # noqa: PT017
            else:
                raise AssertionError
        assert castwise.cast(leaf.unmasked, "bfloat16").tolist() == [1, 2]


if __name__ == "__main__":
    globals()[sys.argv[1]](import_module(sys.argv[1]))
