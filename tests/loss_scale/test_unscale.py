"""The fused pass against numpy: every float dtype, layout, CPU level and float environment."""

from __future__ import annotations

import dataclasses
import math
from collections import OrderedDict, namedtuple
from typing import Any

import castwise
import numpy as np
import pytest
import support
from castwise.loss_scale import (
    DynamicLossScale,
    FixedLossScale,
    LossScaler,
    all_finite,
    select_tree,
    unscale,
)
from float_environment import DENORMALS_ARE_ZERO, DOWN, FLUSH_TO_ZERO, SUPPORTED, mxcsr
from hypothesis import given
from hypothesis import strategies as st
from layouts import laid_out
from oracle import FORMATS, Array, Format
from sources import all_codes, random_codes
from support import FLOATS, array_of, at_level, codes_of

SCALES = (1.0, 1024.0, 3.0, 2.0**-20, 1e-3, 65536.0, -7.0, 2.0**100)
SINGLE, DOUBLE = FORMATS["float32"], FORMATS["float64"]


def expected(x: Array, scale: float, target: Format) -> Array:
    """Numpy's own product in float32 (float64, if one end is), rounded to the target by astype."""
    with np.errstate(all="ignore"):
        if x.dtype == np.float64 and target.bits < 64:
            # Rounded once from the exact product; cast is tested against exact arithmetic.
            return castwise.cast(x, target.name, scale=1.0 / scale)
        if target.bits == 64:
            return x.astype(np.float64) * (1.0 / scale)
        product = x.astype(np.float32) * np.float32(1.0 / scale)
        assert product.dtype == np.float32
        if target.specials == "exponent-only":  # of subnormals ml_dtypes takes the wrong power
            return castwise.cast(product, target.name)
        return product.astype(target.dtype)


def sample(row: Format) -> Array:
    codes = all_codes(row) if row.bits <= 16 else random_codes(row, 20_000)
    edges = np.array([0, row.largest, row.sign_bit, row.sign_bit | row.largest], row.codes)
    return array_of(np.concatenate([codes.astype(row.codes), edges]), row)


def check_equal(got: Array, wanted: Array, row: Format) -> None:
    assert got.dtype == wanted.dtype
    assert got.shape == wanted.shape
    a, b = (codes_of(array, row).reshape(got.shape) for array in (got, wanted))
    nans = np.isnan(got.astype(np.float64)) & np.isnan(wanted.astype(np.float64))
    np.testing.assert_array_equal(np.where(nans, 0, a), np.where(nans, 0, b))


@pytest.mark.thinned(3)
@pytest.mark.parametrize(
    "target",
    [
        "float16",
        "bfloat16",
        "float32",
        "float64",
        "float8_e4m3fn",
        "float8_e5m2",
        "float8_e4m3fnuz",
        "float4_e2m1fn",
    ],
)
@pytest.mark.parametrize("source", FLOATS, ids=lambda row: row.name)
def test_every_pair_is_numpys_product(source: Format, target: str, level: str) -> None:
    row = FORMATS[target]
    x = sample(source)
    for scale in SCALES:
        if source.specials == "exponent-only" and scale < 0:
            continue
        out = np.empty(x.shape, row.dtype)
        got, finite = unscale(x, scale, out)
        assert got is out
        wanted = expected(x, scale, row)
        check_equal(out, wanted, row)
        with np.errstate(all="ignore"):
            before = np.isfinite(x.astype(np.float64)).all()
            assert finite == bool(before and np.isfinite(wanted.astype(np.float64)).all())


@pytest.mark.parametrize("row", FLOATS, ids=lambda row: row.name)
def test_in_place(row: Format, level: str) -> None:
    for scale in (1.0, 3.0, 2.0**-4):
        for x in (sample(row), sample(row)[::-1], sample(row)[1::3]):
            wanted = expected(x.copy(), scale, row)
            got, _ = unscale([x], scale, [x])
            assert got[0] is x
            check_equal(x, wanted, row)


@pytest.mark.parametrize("row", FLOATS, ids=lambda row: row.name)
def test_each_nonfinite_code_alone_is_found(row: Format, level: str) -> None:
    codes = (
        np.arange(1 << row.bits).astype(row.codes)
        if row.bits <= 16
        else np.concatenate(
            [
                random_codes(row, 300),
                np.array(
                    [
                        row.infinity,
                        row.infinity | row.sign_bit,
                        row.nan(False),
                        row.nan(True),
                        row.infinity + 1,
                        row.infinity - 1,
                    ],
                    row.codes,
                ),
            ]
        )
    )
    if row.bits == 16:
        codes = codes[:: 7 * support.FEWER]
        codes = np.append(
            codes,
            np.array(
                [row.infinity, row.infinity + 1, row.sign_bit | row.infinity, row.infinity - 1],
                row.codes,
            ),
        )
    values = array_of(codes, row)
    with np.errstate(invalid="ignore"):  # signaling NaN
        truth = np.isfinite(values.astype(np.float64))
    host = np.ones(77, row.dtype)
    for value, finite in zip(values, truth, strict=True):
        host[53] = value
        assert all_finite(host) == finite, value
        assert unscale(host, 2.0, np.empty(77, np.float64))[1] == finite, value
    assert row.specials in ("finite",) or not truth.all()


@given(data=st.data())
def test_layouts_change_nothing(data: st.DataObject) -> None:
    row = data.draw(st.sampled_from(FLOATS))
    x, plain = data.draw(laid_out(row))
    got, finite, norm = unscale(x, 8.0, norm=True)
    wanted, same_finite, same_norm = unscale(plain, 8.0, norm=True)
    check_equal(np.array(got, order="C"), wanted, SINGLE)
    assert finite == same_finite
    assert all_finite(x) == all_finite(plain)
    assert norm == same_norm or (math.isnan(norm) and math.isnan(same_norm))
    if x.flags.writeable and 0 not in x.strides:
        unscale(x, 8.0, x)
        check_equal(np.array(x.astype(row.dtype), order="C"), expected(plain, 8.0, row), row)


@given(data=st.data())
def test_outs_of_any_layout(data: st.DataObject) -> None:
    row = data.draw(st.sampled_from([r for r in FLOATS if r.bits >= 8]))
    out, _ = data.draw(laid_out(row))
    if not out.flags.writeable or 0 in out.strides:
        return
    x = np.random.default_rng(0).standard_normal(out.shape).astype(np.float32)
    unscale(x, 4.0, out)
    check_equal(np.array(out.astype(row.dtype), order="C"), expected(x, 4.0, row), row)


def gradients(count: int, dtype: Any = np.float32) -> list[Array]:
    rng = np.random.default_rng(count)
    sizes = rng.integers(0, 3000, count)
    return [(rng.standard_normal(size) * 10).astype(dtype) for size in sizes]


def test_the_norm_is_the_norm(level: str) -> None:
    for dtype in (np.float16, np.float32, np.float64):
        grads = [*gradients(50, dtype), np.full(200_000, 0.1, dtype)]
        _, finite, norm = unscale(grads, 4.0, norm=True)
        assert finite
        exact = math.sqrt(math.fsum(math.fsum((g.astype(np.float64) / 4.0) ** 2) for g in grads))
        assert abs(norm - exact) <= 1e-14 * exact


def test_norm_finiteness_and_results_have_the_same_bits_everywhere() -> None:
    rng = np.random.default_rng(3)
    big = [rng.standard_normal(1_700_001).astype(np.float32), rng.standard_normal((1300, 700))]
    grads = [*gradients(40), *big, rng.standard_normal((900, 801)).astype(np.float16).T]
    expected, *told = unscale(grads, 3.0, norm=True, threads=1)
    assert len(expected) == len(grads)
    for name in castwise.cpu_levels():
        for threads in (1, 2, 3, 5):
            with at_level(name):
                results, *again = unscale(grads, 3.0, norm=True, threads=threads)
            assert again == told
            for result, one in zip(results, expected, strict=True):
                assert (result.dtype, result.strides) == (one.dtype, one.strides)
                codes = f"u{one.itemsize}"
                assert np.array_equal(result.view(codes), one.view(codes))


def test_a_nan_in_the_last_element_of_the_last_of_many(level: str) -> None:
    grads = [np.ones(1 << 19, np.float32) for _ in range(6)]
    for threads in (1, 2, 4):
        assert unscale(grads, 2.0, threads=threads)[1]
        grads[-1][-1] = np.nan
        assert not unscale(grads, 2.0, threads=threads)[1]
        assert not all_finite(grads, threads=threads)
        grads[-1][-1] = 1


@pytest.mark.skipif(not SUPPORTED, reason="MXCSR is x86-64's")
@pytest.mark.parametrize("row", FLOATS, ids=lambda row: row.name)
def test_the_floating_point_environment_changes_nothing(row: Format, level: str) -> None:
    x = sample(row)
    for target in (row, SINGLE, FORMATS["float16"], DOUBLE):
        before, after = np.empty(x.shape, target.dtype), np.empty(x.shape, target.dtype)
        told = unscale(x, 3.0, before, norm=True)[1:]
        with mxcsr(FLUSH_TO_ZERO | DENORMALS_ARE_ZERO | DOWN):
            retold = unscale(x, 3.0, after, norm=True)[1:]
        assert before.tobytes() == after.tobytes()
        assert repr(told) == repr(retold)


def test_finite_before_is_not_enough() -> None:
    """A scale below 1 may bring a finite gradient beyond the range: it is not to be applied."""
    big = np.array([3e38], np.float32)
    assert unscale(big, 1.0)[1]
    assert not unscale(big, 0.5)[1]
    assert not unscale(np.array([1e300]), 1.0)[1]
    assert unscale(np.array([1e300]), 1.0, dtype=np.float64)[1]
    half = np.empty(1, np.float16)
    assert unscale(np.array([65519.0], np.float32), 1.0, half)[1]
    assert not unscale(np.array([65520.0], np.float32), 1.0, half)[1]


Pair = namedtuple("Pair", "first second")


@dataclasses.dataclass(frozen=True)
class Layer:
    kernel: Any
    bias: Any = None


def test_trees_keep_their_structure() -> None:
    one = np.ones(3, np.float16)
    tree = {
        "a": [one, None],
        "b": (Pair(one, 2.0), Layer(np.ones((2, 2)))),
        "c": OrderedDict(z=None),
    }
    got, finite = unscale(tree, 2.0)
    assert finite
    assert got["a"][0].dtype == np.float32
    assert got["a"][1] is None
    assert isinstance(got["b"][0], Pair)
    assert got["b"][0].second == 1.0
    assert isinstance(got["b"][1], Layer)
    assert got["b"][1].kernel.tolist() == [[0.5, 0.5], [0.5, 0.5]]
    assert isinstance(got["c"], OrderedDict)
    assert one.tolist() == [1, 1, 1]
    assert got["a"][0] is got["b"][0].first
    for nothing in (None, [], {}, [None, None], ()):
        assert unscale(nothing, 2.0, norm=True) == (nothing, True, 0.0)
        assert all_finite(nothing)


def test_a_gradient_that_stands_twice_is_divided_once_in_place() -> None:
    shared = np.full(4, 8.0, np.float32)
    unscale({"a": shared, "b": shared}, 2.0, {"a": shared, "b": shared})
    assert shared.tolist() == [4.0] * 4


def test_targets_that_are_other_sources_are_written_after_they_are_read() -> None:
    a, b = np.full(5000, 2.0, np.float32), np.full(5000, 4.0, np.float32)
    unscale([a, b], 2.0, [b, a])
    assert set(b) == {1.0}
    assert set(a) == {2.0}
    line = np.arange(10, dtype=np.float32)
    unscale(line[:-1], 1.0, line[1:])
    assert line.tolist() == [0, *range(9)]
    both = np.full(10, 4.0, np.float32)
    unscale([both[::2], both[1::2]], 2.0, [both[::2], both[1::2]])
    assert set(both) == {2.0}


@pytest.mark.parametrize(
    "scale",
    [4.0, 4, np.float32(4), np.array(4.0), FixedLossScale(4), DynamicLossScale(4.0), LossScaler(4)],
    ids=repr,
)
def test_what_is_a_scale(scale: Any) -> None:
    assert unscale([8.0], scale)[0][0] == 2.0


@pytest.mark.parametrize("scale", [0.0, math.nan, math.inf, -math.inf, 1e-40, 1e46])
def test_scales_without_a_reciprocal(scale: float) -> None:
    with pytest.raises(ValueError, match=r"scale=.*reciprocal a float32 holds"):
        unscale([np.ones(2)], scale)


@pytest.mark.parametrize("scale", ["8", None, True, [1.0, 2.0], np.ones(2)])
def test_what_is_not_a_scale(scale: Any) -> None:
    with pytest.raises(TypeError, match="scale="):
        unscale([np.ones(2)], scale)


def test_bad_gradients_and_outs_are_named() -> None:
    one = np.ones(3, np.float32)
    for bad in (np.ones(3, np.int32), 3, np.ones(3, bool), np.ones(3, complex)):
        with pytest.raises(TypeError, match=r"grads at 'layer/0/kernel' is .*not a real float"):
            unscale({"layer": [{"kernel": bad}]}, 2.0)
    with pytest.raises(TypeError, match="grads at 'x' is refused: grads has dtype"):
        unscale({"x": "text"}, 2.0)
    with pytest.raises(TypeError, match="out at 'x' is int64"):
        unscale({"x": one}, 2.0, {"x": np.ones(3, np.int64)})
    with pytest.raises(TypeError, match="out at 'x' is of type float; give a numpy array"):
        unscale({"x": one}, 2.0, {"x": 3.0})
    with pytest.raises(
        ValueError, match=r"out at 'x' has shape \(2,\), its gradient has shape \(3,\)"
    ):
        unscale({"x": one}, 2.0, {"x": one[:2]})
    with pytest.raises(
        ValueError, match="grads and out differ in structure at 'x': list and ndarray"
    ):
        unscale({"x": [one]}, 2.0, {"x": one})
    with pytest.raises(
        ValueError, match="grads and out differ in structure at 'x': ndarray and None"
    ):
        unscale({"x": one}, 2.0, {"x": None})
    with pytest.raises(ValueError, match=r"differ in structure: .*'x'.* and .*'y'"):
        unscale({"x": one}, 2.0, {"y": one})
    frozen = one.copy()
    frozen.flags.writeable = False
    with pytest.raises(ValueError, match="out at '0' is read-only"):
        unscale([one], 2.0, [frozen])
    with pytest.raises(ValueError, match="share memory"):
        unscale([one], 2.0, [np.lib.stride_tricks.as_strided(one, (3,), (0,))])
    with pytest.raises(ValueError, match="out at '0' and at '1' share memory"):
        unscale([one, one.copy()], 2.0, [frozen_copy := one.copy(), frozen_copy[:]])
    with pytest.raises(TypeError, match="dtype=int32"):
        unscale([one], 2.0, dtype=np.int32)


def test_nothing_is_written_when_something_is_refused() -> None:
    one = np.ones(3, np.float32)
    with pytest.raises(TypeError):
        unscale([one, np.ones(2, int)], 2.0, [one, np.ones(2, np.float32)])
    assert one.tolist() == [1, 1, 1]


def test_all_finite_of_other_kinds() -> None:
    assert all_finite([np.arange(3), np.array([True]), 3, 2.5])
    assert all_finite(np.array([1 + 2j]))
    assert not all_finite(np.array([1 + 2j, complex(1, math.inf)]))
    assert not all_finite(np.array([complex(math.nan, 1)], np.complex64)[::-1])
    swapped = np.array([1.0, np.inf]).astype(">f8")
    assert not all_finite(swapped)
    assert all_finite(swapped[:1])
    with pytest.raises(TypeError, match="tree at 'a' is refused"):
        all_finite({"a": "text"})


def test_select_tree() -> None:
    a, b = {"x": np.ones(2), "y": None}, {"x": np.zeros(2), "y": None}
    assert select_tree(True, a, b) is a
    assert select_tree(np.False_, a, b) is b
    assert select_tree(np.array(False), a, b) is b
    with pytest.raises(TypeError, match="pred=1 "):
        select_tree(1, a, b)
    with pytest.raises(TypeError, match="differ at 'x'"):
        select_tree(True, a, {"x": np.zeros(2, np.float32), "y": None})
    with pytest.raises(ValueError, match="differ in structure"):
        select_tree(True, a, {"x": np.zeros(2)})


def test_torch_computes_the_same(framework: Any) -> None:
    torch = framework("torch")
    rng = np.random.default_rng(1)
    for name in ("float16", "bfloat16", "float32"):
        codes = rng.integers(0, 1 << 16, 20_000).astype(np.uint16)
        theirs = (
            torch.from_numpy(codes.view(np.int16)).view(getattr(torch, name))
            if (name != "float32")
            else torch.from_numpy(rng.standard_normal(20_000).astype(np.float32) * 1e4)
        )
        for scale in (1024.0, 3.0, float(np.float32(1e-3))):
            grads = [theirs.clone()]
            width = np.uint32 if name == "float32" else np.uint16
            ours = grads[0].view(getattr(torch, width.__name__)).numpy().copy()
            ours = ours.view(castwise.finfo(name).dtype)
            found = torch.zeros(1)
            inverse = torch.tensor(scale).double().reciprocal().float()
            torch._amp_foreach_non_finite_check_and_unscale_(grads, found, inverse)
            finite = unscale(ours, scale, ours)[1]
            result = grads[0].float().numpy()
            np.testing.assert_array_equal(ours.astype(np.float32), result)
            if not found.item():
                assert finite == bool(np.isfinite(result).all())
