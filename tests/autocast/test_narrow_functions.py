"""Every function of numpy, of bfloat16 arrays: as of float32 ones, rounded once at the end."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Callable, Iterator
from functools import partial
from types import ModuleType
from typing import Any

import castwise
import numpy as np
import pytest
from castwise.autocast._narrow import NarrowArray
from castwise.autocast._narrow import narrow as narrowed
from numpy.lib import stride_tricks

VALUES = np.array([[0.5, np.nan, 2.0], [0.25, 1.0, -0.75], [1.5, -2.0, 0.125]])
"""With a NaN: numpy does not take the dtypes of ml_dtypes for floats, which have it."""

CALLS: dict[str, Callable[[Any, Any], Any]] = {
    "itself": lambda f, x: f(x),
    "without NaN": lambda f, x: f(x[1:, 1:]),
    "a row": lambda f, x: f(x[0]),
    "an axis": lambda f, x: f(x, axis=1),
    "two": lambda f, x: f(x, x),
    "two rows": lambda f, x: f(x[0], x[1]),
    "with a number": lambda f, x: f(x, 0.5),
    "with an integer": lambda f, x: f(x, 1),
    "with two integers": lambda f, x: f(x, 0, 1),
    "with an array of integers": lambda f, x: f(x, np.arange(3)),
    "with a shape": lambda f, x: f(x, (3, 3)),
    "three": lambda f, x: f(x, x, x),
    "mask, array, number": lambda f, x: f(x > 0, x, 0.1),
    "array, mask, number": lambda f, x: f(x, x > 1, 0.5),
    "places and values": lambda f, x: f(x, [0], [0.5]),
    "places, values and axis": lambda f, x: f(x, np.zeros((1, 3), int), 0.25, 0),
    "without a copy": lambda f, x: f(x, copy=False),
    "into itself": lambda f, x: f(x, out=x),
    "into itself, by an axis": lambda f, x: f(x, 1, None, x),
    "told a dtype": lambda f, x: f(x, dtype=np.float64),
}

DIFFERENT = {
    "array2string": "elements are shown by ml_dtypes",
    "array_repr": "the same",
    "array_str": "the same",
    "empty_like": "no values",
    "ones_like": "told no dtype, it takes shapes for one",
    "min_scalar_type": "a dtype",
    "result_type": "a dtype, and of a narrow float with a number ml_dtypes' own",
    "is_busday": "no floats",
}
MAKES_FILES = {"save", "savetxt", "savez", "savez_compressed"}


MODULES = (np, np.linalg, np.fft, stride_tricks)


def functions(module: ModuleType) -> Iterator[tuple[str, Any]]:
    for name in sorted(vars(module)):
        function = getattr(module, name)
        if hasattr(function, "_implementation") and name not in {*DIFFERENT, *MAKES_FILES}:
            yield name, function


def called(call: Any, function: Any, x: Any) -> Any:
    try:
        return call(function, x)
    except Exception as error:
        return error


def flat(value: Any) -> list[Any]:
    return [x for item in value for x in flat(item)] if isinstance(value, list | tuple) else [value]


def content(value: Any) -> Any:
    if not isinstance(value, np.ndarray | np.generic):
        return repr(value)
    if value.dtype.kind == "f":
        value = castwise.cast(np.asarray(value, np.float32), "bfloat16")
    array = np.asarray(value)
    if array.dtype.name == "bfloat16":
        return "bfloat16", array.shape, str(array.astype(np.float64).tolist())
    return array.dtype.name, array.shape, str(array.tolist())


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_values_are_those_of_float32_rounded_once(module: ModuleType) -> None:
    for (name, function), way in itertools.product(functions(module), CALLS):
        title, call = f"{name}, {way}", CALLS[way]
        wide = castwise.cast(VALUES, np.float32)
        narrow = narrowed(castwise.cast(VALUES, "bfloat16"))
        expected, found = called(call, function, wide), called(call, function, narrow)
        if isinstance(expected, Exception):
            assert isinstance(found, Exception), title
            continue
        assert not isinstance(found, Exception), (title, found)
        assert [content(x) for x in flat(found)] == [content(x) for x in flat(expected)], title
        # What it has written into its argument, if anything; and what it has returned a view of.
        assert content(narrow) == content(wide), title
        for mine, original in zip(flat(found), flat(expected), strict=True):
            if isinstance(original, np.ndarray):
                assert np.shares_memory(mine, narrow) == np.shares_memory(original, wide), title
            if title.startswith("into itself") and expected is wide:
                assert mine is narrow, title


METHODS: dict[str, Callable[[Any], Any]] = {
    "mean": lambda x: x.mean(),
    "mean of rows": lambda x: x[1:].mean(axis=1, keepdims=True),
    "var": lambda x: x[1:].var(0),
    "std": lambda x: x[1:].std(ddof=1),
    "dot": lambda x: x.dot(x[0]),
    "argsort": lambda x: x.argsort(),
    "argpartition": lambda x: x.argpartition(1),
    "searchsorted": lambda x: np.sort(x[1]).searchsorted(x[2]),
    "sort": lambda x: (x.sort(0), x),
    "partition": lambda x: (x.partition(1), x),
    "sum": lambda x: x[1:].sum(),
    "prod": lambda x: x[1:].prod(initial=x[1, 1]),
    "cumsum": lambda x: x.cumsum(1),
    "trace": lambda x: x[1:, 1:].trace(),
    "clip": lambda x: x.clip(0, 0.3),
    "ptp": lambda x: np.ptp(x[1:]),
    "argmax": lambda x: x.argmax(1),
}


@pytest.mark.parametrize("method", METHODS)
def test_methods(method: str) -> None:
    wide = METHODS[method](castwise.cast(VALUES, np.float32))
    narrow = METHODS[method](narrowed(castwise.cast(VALUES, "bfloat16")))
    assert [content(x) for x in flat(narrow)] == [content(x) for x in flat(wide)]


SCALARS: dict[str, Callable[[Any], Any]] = {
    "an element": lambda x: x[1, 1] * 2.5,
    "a sum": lambda x: 2.5 * x.sum() + 1,
    "a norm": lambda x: x / (np.linalg.norm(x) + 1e-6),
    "a standard deviation": lambda x: (x - 0.9 * x.mean()) / np.sqrt(x.var() + 1e-5),
    "a maximum": lambda x: np.maximum(x.max(), 1e-3),
    "where": lambda x: np.where(x.max() > 1, x.max(), 0.0),
    "iteration": lambda x: next(y * 0.3 for y in x[1]),
    "stacked": lambda x: np.stack([x.sum(), x.max()]) * 0.1,
    "no axes": lambda x: x[1, 1, ...] * 2.5,
}


@pytest.mark.parametrize("scalar", SCALARS)
@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn"])
def test_single_values_do_not_widen_either(dtype: str, scalar: str) -> None:
    """Scalars of ml_dtypes would: times 2.5 they are float32."""
    assert SCALARS[scalar](VALUES[1:].astype(np.float16)).dtype == np.float16
    result = SCALARS[scalar](narrowed(castwise.cast(VALUES[1:], dtype)))
    assert result.dtype.name == dtype


def test_a_mean_does_not_overflow() -> None:
    """The sum would, in float8: 448 is its largest number."""
    ones = narrowed(castwise.cast(np.ones(1000), "float8_e4m3fn"))
    for mean in (np.mean, np.average, np.nanmean, lambda x: x.mean()):
        assert float(mean(ones)) == 1
    assert float((ones * 3).std()) == 0


def test_numbers_are_rounded_once() -> None:
    one = narrowed(castwise.cast([1.0], "bfloat16"))
    for number in (1 + 2**-8 + 2**-30, 257 * 2**20 + 1):  # by way of float32 they were less
        assert float((one * number)[0]) == float(castwise.cast(float(number), "bfloat16"))


def test_where_results_go() -> None:
    x = narrowed(castwise.cast([[1.0, 2.0], [3.0, 4.0]], "bfloat16"))
    for function in (
        partial(np.einsum, "ij,jk->ik", x, x),
        partial(np.matmul, x, x),
        partial(np.linalg.multi_dot, [x, x]),
    ):
        for dtype in ("bfloat16", "float32"):
            out = castwise.cast(np.zeros((2, 2)), dtype)
            for target in (out, narrowed(out)):
                target[...] = 0
                assert function(out=target) is target
                assert out.astype(np.float32).tolist() == [[7, 10], [15, 22]]
    with pytest.raises(TypeError, match="same_kind"):
        np.add(x, 1, out=np.zeros((2, 2), int))
    assert np.add(x, 0.5, out=np.zeros((2, 2), int), casting="unsafe")[0, 0] == 1
    fraction, whole = np.modf(x * 1.5, out=(x.copy(), None))
    assert (fraction[0, 0], whole[0, 0], type(whole)) == (0.5, 1, NarrowArray)
    x.setflags(write=False)
    for write in (partial(np.cumsum, x, 1, None), partial(np.round, x, 1), partial(np.add, x, 1)):
        with pytest.raises(ValueError, match="read-only"):
            write(x)


def test_other_arrays_keep_their_class() -> None:
    masked = np.ma.masked_array(castwise.cast([1.0, 2.0], "bfloat16"), [True, False])
    assert narrowed(masked) is masked


def test_how_it_shows_and_travels() -> None:
    x = narrowed(castwise.cast([[1.5], [2.0]], "bfloat16"))
    shown = repr(x).replace("dtype(bfloat16)", "bfloat16")  # as ml_dtypes shows it from 0.7 on
    assert shown == "NarrowArray([[1.5],\n             [2]], dtype=bfloat16)"
    assert (str(x[0]), f"{x.max():.2f}", int(x[1, 0])) == ("[1.5]", "2.00", 2)
    again = pickle.loads(pickle.dumps(x))  # noqa: S301
    assert type(again) is NarrowArray
    assert again.tobytes() == x.tobytes()
