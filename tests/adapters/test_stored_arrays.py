"""Datasets of h5py and arrays of zarr: cast whole to numpy, or into a file block by block."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import castwise
import ml_dtypes
import numpy as np
import peers
import pytest
from castwise.adapters import _stored
from system_parts import need

VALUES = np.array([0.1, -2.5, 448, 464, 480, 1e6, np.inf, np.nan, 1e-9, 3, 7], np.float32)
ARRAY = np.tile(VALUES, (9, 2)) * np.arange(1, 10, dtype=np.float32)[:, None]

Make = Callable[..., Any]


@pytest.fixture(params=["h5py", "zarr"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Make]:
    """Make an array in a file, of a dtype and in chunks, with elements if they are given."""
    module = peers.framework(request.param)
    is_hdf5 = request.param == "h5py"
    holder = (
        module.File(tmp_path / "x.h5", "w")
        if is_hdf5
        else module.open_group(tmp_path / "x.zarr", mode="w")
    )
    count = iter(range(100))

    def made(dtype: Any, chunks: Any, array: Any = None, shape: Any = ARRAY.shape) -> Any:
        create = holder.create_dataset if is_hdf5 else holder.create_array
        chunks = "auto" if chunks is None and not is_hdf5 else chunks
        shape = shape if array is None else array.shape
        stored = create(f"x{next(count)}", shape=shape, dtype=dtype, chunks=chunks)
        if array is not None and array.size:
            stored[...] = array
        return stored

    yield made
    if is_hdf5:
        holder.close()


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_stored, "BLOCK", 64)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("chunks", [(2, 3), (9, 22), (1, 22), (9, 1), (4, 7)])
@pytest.mark.parametrize("target", ["float16", "float64", "int8"])
def test_block_by_block(make: Make, target: str, chunks: tuple[int, int]) -> None:
    source = make("float32", (4, 5), ARRAY)
    for options in (
        {},
        {"overflow": "saturate", "nan": "zero", "threads": 1},
        {"scale": 0.3},
        {"scale": np.linspace(1, 2, 22)},
        {"scale": np.linspace(1, 2, 9)[:, None]},
    ):
        wanted, of_whole = castwise.cast(ARRAY, target, report=True, **options)
        out = make(target, chunks)
        found, report = castwise.cast(source, out=out, report=True, **options)
        assert found is out
        assert out[...].tobytes() == wanted.tobytes()
        assert report.to_dict() == pytest.approx(of_whole.to_dict(), nan_ok=True)
        in_memory = np.empty(ARRAY.shape, target)
        assert castwise.cast(source, target, out=in_memory, **options) is in_memory
        assert in_memory.tobytes() == wanted.tobytes()


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("chunks", [(2, 3), (9, 22), (4, 7)])
@pytest.mark.parametrize("target", ["float16", "float64", "int8"])
def test_arrays_of_numpy_become_stored_ones(
    make: Make, target: str, chunks: tuple[int, int]
) -> None:
    for array in (ARRAY, ARRAY[:, ::-1], ARRAY.astype(">f8"), ARRAY.tolist()):
        for options in ({}, {"overflow": "saturate", "nan": "zero"}, {"scale": np.arange(22.0)}):
            wanted, of_whole = castwise.cast(array, target, report=True, **options)
            out = make(target, chunks)
            found, report = castwise.cast(array, target, out=out, report=True, **options)
            assert found is out
            assert out[...].tobytes() == wanted.tobytes()
            assert report.to_dict() == pytest.approx(of_whole.to_dict(), nan_ok=True)
            out = make(target, chunks)
            assert castwise.caster(wanted.dtype, target)(wanted, out=out) is out
            assert out[...].tobytes() == wanted.tobytes()


def test_arrays_of_numpy_are_refused_as_before(make: Make) -> None:
    masked = np.ma.masked_invalid(ARRAY)
    for array, options, error, words in (
        (masked, {}, TypeError, "mask"),
        (ARRAY[1:], {}, ValueError, r"out has shape \(9, 22\); give one of shape \(8, 22\)"),
        (ARRAY, {"dtype": "int8"}, TypeError, "out has dtype float16, but dtype=int8"),
        (ARRAY, {"rounding": "stochastic"}, ValueError, r"assign the result to out\[...\]"),
        (ARRAY, {"overflow": "raise", "nan": "zero"}, OverflowError, r"in the block \[0:9, 0:22\]"),
        (ARRAY, {"overflow": "wrap"}, ValueError, 'overflow="wrap"'),
    ):
        out = make("float16", (9, 22))
        with pytest.raises(error, match=words):
            castwise.cast(array, out=out, **options)
        assert not out[...].any()
    with pytest.raises(TypeError, match="but dtype=int8 was asked for"):
        castwise.caster("float32", "int8")(ARRAY, out=make("float16", (9, 22)))


def test_other_libraries_arrays_are_no_place_for_numpys() -> None:
    torch = peers.framework("torch")
    with pytest.raises(TypeError, match=r"out is of type Tensor; give a numpy array\."):
        castwise.cast(ARRAY, out=torch.empty(ARRAY.shape))


def test_whole_without_out(make: Make) -> None:
    source = make("float32", (4, 5), ARRAY)
    result = castwise.cast(source, "bfloat16")
    assert isinstance(result, np.ndarray)
    assert result.tobytes() == castwise.cast(ARRAY, "bfloat16").tobytes()
    tree = castwise.cast_tree({"a": source, "n": make("int32", (2,), np.arange(4))}, "bfloat16")
    assert tree["a"].tobytes() == result.tobytes()
    assert tree["n"].dtype == np.int32
    assert castwise.survey(source) == castwise.survey(ARRAY)


def test_blocks_are_whole_chunks_and_no_larger_than_need_be(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, out = make("float32", (4, 5), ARRAY), make("float16", (3, 7))
    monkeypatch.setattr(_stored, "BLOCK", 1)
    places = list(_stored._places(source, out))
    assert (places[0], places[-1]) == ((slice(0, 6), slice(0, 7)), (slice(6, 9), slice(21, 22)))
    assert len(places) == 2 * 4
    monkeypatch.setattr(_stored, "BLOCK", 1 << 23)
    assert list(_stored._places(source, out)) == [(slice(0, 9), slice(0, 22))]
    long = make("float32", (1 << 10,), shape=(1 << 22,))
    sizes = {place.stop - place.start for (place,) in _stored._places(long, long)}
    assert sizes == {1 << 21}


@pytest.mark.filterwarnings("ignore:The data type")  # of zarr: in no specification yet
def test_formats_that_the_file_has_no_name_for(make: Make) -> None:
    source = make("float32", (4, 5), ARRAY)
    out = make("V2", (3, 7))
    castwise.cast(source, "bfloat16", out=out)
    raw = np.asarray(out[...]).view(ml_dtypes.bfloat16)
    assert raw.tobytes() == castwise.cast(ARRAY, "bfloat16").tobytes()


@pytest.mark.usefixtures("small_blocks")
def test_a_refused_value_leaves_the_file_as_it_was(make: Make) -> None:
    source, out = make("float32", (2, 4), ARRAY), make("float16", (2, 4))
    with pytest.raises(OverflowError, match=r"in the block \[0:2, 0:8\]: value 1000000.0 at"):
        castwise.cast(source, out=out, overflow="raise", nan="zero")
    with pytest.raises(ValueError, match=r"in the block \[0:2, 0:8\]: .*NaN"):
        castwise.cast(source, out=out, nan="raise")
    assert not out[...].any()


def test_no_elements_and_one(make: Make) -> None:
    empty = make("float32", None, np.empty((0, 3), np.float32))
    out = make("float16", None, np.empty((0, 3), np.float16))
    _, report = castwise.cast(empty, out=out, report=True)
    assert report.count == 0
    single, out = make("float32", None, np.array(2.5, np.float32)), make("int8", None, shape=())
    castwise.cast(single, out=out)
    assert out[()] == 2


@pytest.mark.parametrize(
    ("options", "kind", "words"),
    [
        ({"out": [0]}, TypeError, "out is of type list; give an h5py.Dataset"),
        (
            {"out": np.empty(3, "f2")},
            ValueError,
            r"out has shape \(3,\); give one of",
        ),
        ({"dtype": "bfloat16", "out": np.empty((9, 22), "f2")}, TypeError, "but dtype=bfloat16"),
        (
            {"out": np.empty((9, 22), "f2"), "rounding": "stochastic"},
            ValueError,
            "block",
        ),
        ({"out": np.empty((9, 22), "f2"), "overflow": "wrap"}, ValueError, 'overflow="wrap"'),
        ({"out": np.empty((9, 22), "f2"), "scale": np.ones(3)}, ValueError, "scale|broadcast"),
        ({"out": np.empty((9, 22), "f2"), "typo": 1}, TypeError, "typo"),
        ({}, TypeError, "nothing to cast to"),
    ],
)
def test_refusals(make: Make, options: dict[str, Any], kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        castwise.cast(make("float32", (4, 5), ARRAY), **options)


@pytest.mark.filterwarnings("ignore:The data type")
def test_texts_are_refused(make: Make) -> None:
    with pytest.raises(TypeError, match="does not cast"):
        castwise.cast(make("S3", (1,), np.array([b"abc"])), out=np.empty(1, "f2"))


def test_memory_does_not_grow_with_the_array(tmp_path: Path) -> None:
    need("/proc/self/status")
    import resource  # noqa: PLC0415 there is none on Windows

    h5py = peers.framework("h5py")
    with h5py.File(tmp_path / "large.h5", "w") as file:
        chunked = {"chunks": (1 << 18,)}
        source = file.create_dataset("a", (1 << 26,), "float32", fillvalue=1.5, **chunked)
        out = file.create_dataset("b", (1 << 26,), "float16", **chunked)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        castwise.cast(source, out=out)
        after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        assert (after - before) * 1024 < source.nbytes // 4
        assert (out[0], out[-1], out[1 << 25]) == (1.5, 1.5, 1.5)
