"""Check that `cast_tree` casts the arrays of a library as `cast` does, or names what it refuses.

python tests/helpers/casting/other_libraries.py pandas
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

import castwise
import numpy as np

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


def pandas(library: Any) -> None:
    """Check series, frames, and arrays with masks, whose masked elements are NaN."""
    frame = library.DataFrame(VALUES, columns=["a", "b"])
    for leaf in (frame, frame["a"], library.Index([1.0, 2.0])):
        check_cast(leaf)
    masked = library.array([1.0, None], dtype="Float32")
    assert np.isnan(castwise.cast_tree([masked], "bfloat16")[0].astype(float)).tolist() == [0, 1]
    for leaf in (library.Series(["x"]), library.Series([1, 2]), library.Series([True])):
        assert castwise.cast_tree([leaf], "bfloat16")[0] is leaf


def xarray(library: Any) -> None:
    """Check arrays, and that a dataset does not become a dict."""
    data = library.DataArray(VALUES, dims=("x", "y"), coords={"x": [10, 20]})
    check_cast(data)
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
    """Check series and frames."""
    check_cast(library.Series([1.0, 2.0]))
    check_cast(library.DataFrame({"a": [1.0, 2.0]}))


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
