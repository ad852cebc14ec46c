"""Arrays of dask stay lazy, and become what the numpy array becomes."""

from __future__ import annotations

from typing import Any

import castwise
import ml_dtypes
import numpy as np
import peers
import pytest

VALUES = np.array([0.1, -2.5, 448, 464, 480, 1e6, np.inf, -np.inf, np.nan, 1e-9, 3, 7], np.float32)
ARRAY = np.tile(VALUES, (10, 2))


@pytest.fixture
def da() -> Any:
    """Imported by tests: dask remembers whether garbage was collected then."""
    return peers.framework("dask.array")


@pytest.fixture
def chunked(da: Any) -> Any:
    return da.from_array(ARRAY, chunks=(3, 7))


def computed(array: Any) -> Any:
    return array.compute(scheduler="threads")


@pytest.mark.parametrize(
    "target", ["bfloat16", "float8_e4m3fn", "float4_e2m1fn", "int8", "float64"]
)
def test_what_the_array_becomes(da: Any, chunked: Any, target: str) -> None:
    for options in (
        {},
        {"overflow": "saturate", "nan": "zero"},
        {"rounding": "towards-zero"},
        {"scale": 0.3},
        {"scale": np.linspace(1, 2, 24)},
        {"scale": np.linspace(1, 2, 10)[:, None]},
        {"scale": da.from_array(np.linspace(1, 2, 10)[:, None], chunks=4)},
    ):
        result = castwise.cast(chunked, target, **options)
        assert isinstance(result, da.Array)
        assert (result.dtype, result.chunks) == (castwise.finfo(target).dtype, chunked.chunks)
        scale = {"scale": np.asarray(options["scale"])} if "scale" in options else {}
        wanted = castwise.cast(ARRAY, target, **(options | scale))
        assert computed(result).tobytes() == wanted.tobytes()
        assert computed(result[2:5, 3]).tobytes() == wanted[2:5, 3].tobytes()


def test_nothing_is_read_before(da: Any, chunked: Any) -> None:
    def read(block: Any) -> Any:
        raise AssertionError("read")

    lazy = da.map_blocks(read, chunked, dtype=np.float32, meta=np.empty((0, 0), np.float32))
    result = castwise.cast(lazy, "bfloat16", scale=np.ones(24))
    assert result.dtype == ml_dtypes.bfloat16
    with pytest.raises(AssertionError, match="read"):
        computed(result)


def test_larger_than_a_chunk_goes_on_lazily(da: Any, chunked: Any) -> None:
    # 2**40 elements, of which three are computed.
    large = da.zeros((2**20, 2**20), dtype=np.float32, chunks=(2**10, 2**10))
    part = (castwise.cast(large, "float16") + 1)[7, -3:]
    assert computed(part).tolist() == [1, 1, 1]
    assert castwise.cast(da.ones(()), "float16").compute().dtype == np.float16
    unknown = chunked[chunked > 400]
    assert computed(castwise.cast(unknown, "float64")).tolist() == ARRAY[ARRAY > 400].tolist()


def test_trees_and_surveys(da: Any, chunked: Any) -> None:
    counts = da.arange(4, chunks=2)
    result = castwise.cast_tree({"a": chunked, "b": counts}, "bfloat16")
    assert isinstance(result["a"], da.Array)
    assert (result["a"].dtype, result["b"]) == (ml_dtypes.bfloat16, counts)
    assert castwise.survey(chunked) == castwise.survey(ARRAY)


def test_copy(chunked: Any) -> None:
    array = chunked
    assert castwise.cast(array, "float32", copy=False) is array
    assert castwise.cast(array, "float32") is not array
    assert castwise.cast(array, "float32", copy=False, scale=2.0) is not array


@pytest.mark.parametrize(
    ("dtype", "options", "kind", "words"),
    [
        ("float16", {"report": True}, ValueError, r"report=True is about .* array\.compute\(\)"),
        ("float16", {"rounding": "stochastic", "seed": 1}, ValueError, "rounding='stochastic'"),
        ("float16", {"out": np.empty(ARRAY.shape)}, TypeError, "out= is not for dask's arrays"),
        ("flot16", {}, TypeError, "float16"),
        (None, {}, TypeError, "nothing to cast to"),
        ("float16", {"overflow": "wrap"}, ValueError, 'overflow="wrap"'),
        ("float16", {"scale": np.ones(23)}, ValueError, "23"),
    ],
)
def test_refusals_before_anything_is_computed(
    chunked: Any, dtype: Any, options: dict[str, Any], kind: type[Exception], words: str
) -> None:
    with pytest.raises(kind, match=words):
        castwise.cast(chunked, dtype, **options)


def test_errors_of_values_come_with_the_computation(chunked: Any) -> None:
    result = castwise.cast(chunked, "float16", overflow="raise")
    with pytest.raises(OverflowError, match="beyond the range of float16"):
        computed(result)
