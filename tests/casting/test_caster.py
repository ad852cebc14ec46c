"""`castwise.caster` gives what `castwise.cast` gives."""

from __future__ import annotations

import copy
import io
import os
import pickle
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import castwise
import ml_dtypes
import numpy as np
import pytest
import support
from child_processes import in_a_child
from processes import run_python
from system_parts import need

PAIRS = [
    ("float32", "float8_e4m3fn"),
    ("float32", "float16"),
    ("bfloat16", "float32"),
    ("float16", "float16"),
    ("float64", "int8"),
    ("int64", "bfloat16"),
    ("complex64", "complex128"),
    ("float32", "complex64"),
    ("float32", "float4_e2m1fn"),
]
OPTIONS: list[dict[str, Any]] = [
    {},
    {"overflow": "saturate"},
    {"nan": "zero"},
    {"rounding": "towards-positive"},
    {"scale": 0.3},
    {"scale": np.float64(3)},
    {"scale": 2},
    {"order": "F"},
    {"copy": False},
    {"threads": 1},
    {"rounding": "nearest-away", "overflow": "saturate", "nan": "zero", "scale": 7.0},
]


def sample(dtype: str, shape: Any) -> np.ndarray[Any, Any]:
    """Values that some targets cannot hold, and NaN."""
    values = np.array([1.5, -2.0, np.nan, 1e6, 0.3, -0.0, 3e-9, np.inf, -7.0])
    return castwise.cast(np.resize(values, shape), dtype)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_it_gives_what_cast_gives(level: str, options: dict[str, Any]) -> None:
    for source, target in PAIRS if support.FEWER == 1 else PAIRS[OPTIONS.index(options) % 2 :: 2]:
        if "scale" in options and "complex" in target:
            continue
        caster = castwise.caster(source, target, **options)
        for shape in ((), 1, 5, (3, 4), 0, (40, 60), 200_000):
            x = sample(source, shape)
            for view in (x, x.T, x[::-1] if x.ndim else x, x[..., None][..., ::2]):
                want = castwise.cast(view, target, **options)
                got = caster(view)
                assert (got.dtype, got.shape) == (want.dtype, want.shape)
                assert got.strides == want.strides
                assert got.tobytes() == want.tobytes()
                assert (got is view) == (want is view)
                for out in (
                    np.empty_like(want),
                    np.empty((*want.shape, 2), want.dtype)[..., 0],
                ):
                    assert caster(view, out=out) is out
                    assert out.tobytes() == want.tobytes()


def test_a_level_that_changes_after_it_was_made() -> None:
    x = sample("float32", 7)
    caster = castwise.caster("float32", "float8_e5m2", scale=0.7)
    want = caster(x).tobytes()
    for level in castwise.cpu_levels():
        with support.at_level(level):
            assert caster(x).tobytes() == want


def test_scales_that_broadcast() -> None:
    scale = np.array([[1.0], [0.5]])
    x = sample("float32", (2, 5))
    caster = castwise.caster("float32", "float16", scale=scale)
    want = castwise.cast(x, "float16", scale=scale).tobytes()
    scale[:] = 0  # the caster has a copy
    assert caster(x).tobytes() == want
    with pytest.raises(ValueError, match=r"scale has shape \(2, 1\), which does not broadcast"):
        caster(x[:, :, None])


def test_reports() -> None:
    x = sample("float32", 30)
    caster = castwise.caster("float32", "float8_e4m3fn", report=True)
    got, report = caster(x)
    want, expected = castwise.cast(x, "float8_e4m3fn", report=True)
    assert report == expected
    assert got.tobytes() == want.tobytes()
    out = np.empty_like(got)
    assert caster(x, out=out)[0] is out


def test_stochastic_rounding_draws_afresh() -> None:
    x = np.full(4096, 1.01, np.float32)
    caster = castwise.caster("float32", "float8_e4m3fn", rounding="stochastic")
    assert caster(x).tobytes() != caster(x).tobytes()
    assert set(caster(x).astype(float)) == {1.0, 1.125}


@pytest.mark.parametrize("option", ["overflow", "nan"])
def test_a_refused_value_leaves_out_as_it_was(option: str) -> None:
    caster = castwise.caster("float32", "float8_e4m3fn", **{option: "raise"})
    good, bad = np.float32([1, 2]), np.float32([1, 1e6 if option == "overflow" else np.nan])
    assert caster(good).tolist() == [1, 2]
    out = np.full(2, 3, ml_dtypes.float8_e4m3fn)
    with pytest.raises((OverflowError, ValueError), match="at flat index 1"):
        caster(bad, out=out)
    assert out.tolist() == [3, 3]
    with pytest.raises((OverflowError, ValueError), match="at flat index 1"):
        caster(bad)


def test_arguments_are_read_as_python_does() -> None:
    x, out = sample("float32", 3), np.empty(3, np.float16)
    caster = castwise.caster("float32", "float16")
    want = caster(x).tobytes()
    not_interned = "".join(["o", "ut"])
    for call in (
        lambda: caster(x=x),
        lambda: caster(out=out, x=x),
        lambda: caster(x, out=None),
        lambda: caster(*[x], **{not_interned: out}),
        lambda: caster.__call__(x, out=out),
        lambda: type(caster).__call__(caster, x),
        lambda: next(map(caster, [x])),
    ):
        assert call().tobytes() == want
    for wrong, message in (
        (caster, "missing 1 required positional argument: 'x'"),
        (lambda: caster(x, out), "takes 1 positional arguments but 2 were given"),
        (lambda: caster(x, x=x), "multiple values for argument 'x'"),
        (lambda: caster(x, dtype="float32"), "unexpected keyword argument 'dtype'"),
    ):
        with pytest.raises(TypeError, match=message):
            wrong()


def test_other_dtypes_are_refused() -> None:
    caster = castwise.caster("float32", "float16")
    for x, name in (
        (np.ones(2), "float64"),
        ([1.0, 2.0], "float64"),
        (1.5, "float64"),
        (np.ones(2, ">f4"), ">f4"),
        (np.ones(2, ml_dtypes.bfloat16), "bfloat16"),
    ):
        with pytest.raises(TypeError, match=f"x has dtype {name}, but this caster is from float32"):
            caster(x)
    with pytest.raises(TypeError, match="out has dtype float32, but this caster is to float16"):
        caster(np.ones(2, np.float32), out=np.empty(2, np.float32))
    with pytest.raises(TypeError, match="x has dtype object"):
        caster(np.array([None]))


def test_what_cast_reads() -> None:
    """Scalars, lists, other byte orders, subclasses: as in cast, if the dtype is right."""
    assert castwise.caster("float64", "float16")([1.0, 2.5]).tolist() == [1, 2.5]
    assert castwise.caster("float64", "float16")(2.5).shape == ()
    assert castwise.caster("float32", "float16")(np.float32(3)) == 3
    swapped = castwise.caster(">f4", "<i2")
    assert swapped(np.array([3, 4], ">f4")).tolist() == [3, 4]
    with pytest.raises(TypeError, match="x has dtype float32, but this caster is from >f4"):
        swapped(np.float32([3, 4]))
    big = castwise.caster("float32", ">f8")(np.float32([3]))
    assert (big.dtype, big.tolist()) == (np.dtype(">f8"), [3])
    matrix = np.ones((2, 2), np.float32).view(np.matrix)
    assert type(castwise.caster("float32", "float16")(matrix)) is np.ndarray
    with pytest.raises(TypeError, match="masked array"):
        castwise.caster("float32", "float16")(np.ma.masked_invalid(np.float32([1])))
    alike = np.empty(2, np.dtype("float32", metadata={"a": 1}))
    assert castwise.caster("float32", "float16")(alike).shape == (2,)


@pytest.mark.parametrize(
    ("out", "error", "message"),
    [
        (np.empty(3, np.float16), ValueError, "shape"),
        (np.broadcast_to(np.float16(0), 2), ValueError, "read-only"),
        (
            np.ndarray(2, np.float16, np.zeros(1, np.float16), strides=(0,)),
            ValueError,
            "share memory",
        ),
        ([0, 0], TypeError, "out is of type list"),
    ],
)
def test_a_wrong_out(out: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        castwise.caster("float32", "float16")(np.ones(2, np.float32), out=out)


def test_an_out_that_overlaps_x() -> None:
    memory = np.arange(64, dtype=np.uint8)
    x = memory[16:32].view(np.float32)
    want = castwise.cast(x, "float16").tobytes()
    out = memory[18:26].view(np.float16)
    castwise.caster("float32", "float16")(x, out=out)
    assert out.tobytes() == want


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        (("float32",), {}, TypeError, "missing 1 required positional argument: 'target'"),
        (("float99", "float16"), {}, TypeError, 'source="float99" is not a format'),
        (("float32", "float99"), {}, TypeError, 'target="float99" is not a format'),
        (("float32", object()), {}, TypeError, "target=.* is not a dtype"),
        (("float32", "O"), {}, TypeError, "target=object is not a format"),
        (("complex64", "float16"), {}, TypeError, "imaginary part would be lost"),
        (("float32", "float16"), {"overflow": "clip"}, ValueError, 'overflow="clip" is not valid'),
        (("float32", "float16"), {"nan": None}, ValueError, "nan=None is not valid"),
        (("float32", "float16"), {"rounding": "up"}, ValueError, 'rounding="up" is not valid'),
        (("float32", "float16"), {"order": "X"}, ValueError, "order='X' is not valid"),
        (("float32", "float16"), {"threads": 0}, ValueError, "threads=0 is not valid"),
        (("float32", "float16"), {"report": 2}, TypeError, "report=2 is not valid"),
        (("float32", "float16"), {"scale": 1j}, TypeError, "scale is complex"),
        (("float32", "float16"), {"scale": "a"}, TypeError, "scale has dtype"),
        (("float32", "float16"), {"seed": 1}, TypeError, "seed= would draw the same numbers"),
        (("float32", "float16"), {"out": None}, TypeError, "out= is given to a call"),
        (("float32",), {"dtype": "i1", "target": "i1"}, TypeError, "dtype= is target= here"),
        (("float32", "float16"), {"round": 1}, TypeError, "round= is not an option"),
    ],
)
def test_what_cannot_be_bound(
    arguments: tuple[Any, ...], options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        castwise.caster(*arguments, **options)


def test_what_it_shows() -> None:
    caster = castwise.caster(">f4", np.int8, overflow="saturate", scale=2.0)
    assert repr(caster) == "caster('>f4', 'int8', overflow='saturate', scale=2.0)"
    assert (caster.source, caster.target) == (np.dtype(">f4"), np.dtype("int8"))
    assert caster.options == {"overflow": "saturate", "scale": 2.0}
    caster.options.clear()
    assert caster.options
    assert isinstance(caster, castwise.caster)
    assert (castwise.caster.__module__, castwise.caster.__qualname__) == ("castwise", "caster")
    with pytest.raises(AttributeError):
        caster.source = np.dtype("int8")  # type: ignore[misc]
    with pytest.raises(TypeError, match="not an acceptable base type"):
        type("Subclass", (castwise.caster,), {})


@pytest.mark.parametrize(
    "again",
    [copy.copy, copy.deepcopy]
    + [
        lambda it, protocol=protocol: pickle.loads(pickle.dumps(it, protocol))  # noqa: S301
        for protocol in range(pickle.HIGHEST_PROTOCOL + 1)
    ],
)
def test_copies(again: Callable[[Any], Any]) -> None:
    caster = castwise.caster("float32", "float8_e4m3fn", scale=np.array([2.0, 3.0]), nan="zero")
    x = np.array([1.0, np.nan], np.float32)
    other = again(caster)
    assert repr(other) == repr(caster)
    assert other(x).tobytes() == caster(x).tobytes()


def test_threads_share_one() -> None:
    caster = castwise.caster("float32", "float16", scale=0.3, overflow="saturate")
    arrays = [sample("float32", n) for n in (1, 100, 30_000, 300_000)]
    want = [caster(x).tobytes() for x in arrays]

    def work(_: int) -> bool:
        return all(
            caster(x, out=np.empty(x.shape, np.float16)).tobytes() == bits
            for _ in range(20)
            for x, bits in zip(arrays, want, strict=True)
        )

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(16)))


def test_a_child_of_a_fork_may_use_it() -> None:
    need("os.fork")
    caster = castwise.caster("float32", "float16", scale=0.3)
    x = sample("float32", 1 << 20)
    want = caster(x).tobytes()
    with ThreadPoolExecutor(2) as pool:
        running = [pool.submit(caster, x) for _ in range(8)]
        answer = in_a_child(lambda: caster(x).tobytes() + caster(x[:3]).tobytes())
        assert answer == want + want[:6]
        assert all(result.result().tobytes() == want for result in running)


def test_the_log_has_its_casts() -> None:
    program = """
import castwise, numpy as np
caster = castwise.caster("float32", "float16")
caster(np.ones(1, np.float32))
caster(np.ones(1, np.float32))
"""
    found = run_python("-c", program, env={**os.environ, "CASTWISE_LOG": "cast"}).stderr
    assert found.count("castwise: float32 -> float16") >= 3


def test_no_reference_is_lost_or_kept() -> None:

    x, out = np.ones(1, np.float32), np.empty(1, np.float16)
    caster = castwise.caster("float32", "float16", scale=2.0)

    def counts() -> list[int]:
        return [sys.getrefcount(it) for it in (x, out, x.dtype, out.dtype, caster, type(caster))]

    def use() -> None:
        for _ in range(1000):
            caster(x)
            caster(x, out=out)
            castwise.cast(x, out=out, overflow="saturate")
            castwise.cast(x, "float16", nan="zero")
        for call in (
            lambda: caster(out),
            lambda: castwise.cast(x, "nothing"),
            lambda: caster(x, y=1),
        ):
            with pytest.raises(TypeError):
                call()
        castwise.caster("float32", "float16", scale=2.0)

    use()
    before = counts()
    use()
    assert counts() == before


def test_examples() -> None:
    import doctest  # noqa: PLC0415

    text = castwise.caster.__doc__
    assert text is not None
    test = doctest.DocTestParser().get_doctest(
        text, {"castwise": castwise, "np": np}, "caster", None, 0
    )
    said = io.StringIO()
    assert doctest.DocTestRunner().run(test, out=said.write).failed == 0, said.getvalue()
    assert len(test.examples) == 3
