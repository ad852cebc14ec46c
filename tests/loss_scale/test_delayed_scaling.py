"""Float8 delayed scaling against Keras' own functions, TransformerEngine's formula, and numpy."""

from __future__ import annotations

import copy
import json
import math
import pickle

import castwise
import ml_dtypes
import numpy as np
import pytest
from castwise.loss_scale import DelayedScaling
from float_environment import DENORMALS_ARE_ZERO, FLUSH_TO_ZERO, SUPPORTED, mxcsr
from hypothesis import given
from hypothesis import strategies as st
from originals import library

E4M3, E5M2 = ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2
single = st.floats(0, 3.4028234663852886e38, width=32)
amaxes = st.lists(
    single | st.sampled_from([0.0, math.nan, math.inf, 1.0, 448.0, 1e-40, 1e-45]), max_size=12
)


@given(
    found=amaxes,
    length=st.integers(1, 5),
    margin=st.integers(-3, 3),
    dtype=st.sampled_from([E4M3, E5M2]),
)
def test_keras_itself(found: list[float], length: int, margin: int, dtype: type) -> None:
    quantizers = library("keras").quantizers
    scale, history = np.float32(1), np.zeros(length, np.float32)
    scaling = DelayedScaling(length, margin, dtype=dtype, preset="keras")
    largest = np.float32(ml_dtypes.finfo(dtype).max)
    for amax in found:
        with np.errstate(all="ignore"):
            scale = np.asarray(
                quantizers.compute_float8_scale(np.max(history), scale, largest, margin)
            )
            x = np.array([0.0, -amax], np.float32)
            history = np.asarray(quantizers.compute_float8_amax_history(x, history))
        if not (0 < scale < math.inf):
            return
        scaling = scaling.next(amax)
        assert scaling.scale == scale
        np.testing.assert_array_equal(scaling.amax_history, history)


def test_the_worked_run_of_keras() -> None:
    scaling = DelayedScaling(4, preset="keras")
    used, histories = [], []
    for amax in (1, 2, 400, 0, 8, 8, 8, 8):
        used.append(scaling.scale)
        codes, found = scaling.quantize(np.array([amax, -amax / 2], np.float32))
        assert found == amax
        if amax == 400:
            assert scaling.dequantize(codes)[0] == np.float32(1.0)
        scaling = scaling.next(found)
        histories.append(scaling.amax_history.tolist())
    wanted = [1, 1, 0.002232143, 0.004464286, *[0.89285713] * 4]
    np.testing.assert_allclose(used, wanted, rtol=1e-6)
    np.testing.assert_allclose(scaling.scale, 0.017857144, rtol=1e-6)
    assert histories == [
        [1, 0, 0, 0],
        [2, 0, 0, 1],
        [400, 0, 1, 2],
        [0, 1, 2, 400],
        [8, 2, 400, 0],
        [8, 400, 0, 8],
        [8, 0, 8, 8],
        [8, 8, 8, 8],
    ]


@pytest.mark.parametrize("dtype", [E4M3, E5M2])
@pytest.mark.parametrize("scale", [1.0, 0.004464286, 3.0, 1e-6, 1e6])
def test_quantize_and_dequantize_are_keras(dtype: type, scale: float, level: str) -> None:
    keras = library("keras")
    rng = np.random.default_rng(0)
    x = (rng.standard_normal(5000) * 10.0 ** rng.integers(-9, 9, 5000)).astype(np.float32)
    x = np.append(x, np.array([np.nan, np.inf, -np.inf, 0, -0.0, 1e-45], np.float32))
    scaling = DelayedScaling(1, dtype=dtype, preset="keras")
    scaling = scaling.with_state({**scaling.state_dict(), "scale": scale})
    with np.errstate(all="ignore"):
        wanted = np.asarray(
            keras.quantizers.quantize_and_dequantize(x, np.float32(scale), dtype, "float32")
        )
    codes, amax = scaling.quantize(x)
    assert codes.dtype == dtype
    assert math.isnan(amax)
    got = scaling.dequantize(codes)
    np.testing.assert_array_equal(got, wanted)
    assert scaling.quantize(x[:5000])[1] == np.abs(x[:5000]).max()
    assert scaling.quantize(x[5001:])[1] == math.inf


@given(
    found=amaxes,
    length=st.integers(1, 5),
    margin=st.integers(-3, 3),
    algorithm=st.sampled_from(["max", "most_recent"]),
)
def test_transformer_engines_formula(
    found: list[float], length: int, margin: int, algorithm: str
) -> None:
    multiplier, history = np.float32(1), np.zeros(length, np.float32)
    scaling = DelayedScaling(length, margin, amax_algorithm=algorithm, preset="transformer_engine")
    for value in found:
        history[0] = value
        amax = np.max(history) if algorithm == "max" else history[0]
        with np.errstate(all="ignore"):
            factor = np.float32(448) / amax / np.float32(2.0**margin)
        if amax > 0 and np.isfinite(amax):
            multiplier = np.float32(min(factor, np.finfo(np.float32).max))
        history = np.roll(history, -1)
        history[0] = 0
        scaling = scaling.next(value)
        assert scaling.state_dict()["scale"] == multiplier
        np.testing.assert_array_equal(scaling.amax_history, history)


@given(found=amaxes, length=st.integers(1, 4), margin=st.integers(-100, 100))
def test_the_default_is_always_usable(found: list[float], length: int, margin: int) -> None:
    scaling = DelayedScaling(length, margin)
    for amax in found:
        before, scaling = scaling, scaling.next(amax)
        assert np.finfo(np.float32).tiny <= scaling.scale < math.inf
        assert np.isfinite(scaling.amax_history).all()
        if not math.isfinite(amax):
            assert scaling == before


def test_the_default_uses_the_whole_range_at_once_and_forgets_a_nan() -> None:
    scaling = DelayedScaling(3).next(896.0)
    assert scaling.scale == 2.0
    codes, _ = scaling.quantize(np.array([896.0, -1e9, np.inf, 3.0], np.float32))
    assert codes.astype(np.float32).tolist() == [448.0, -448.0, 448.0, 1.5]
    frozen = DelayedScaling(3, preset="keras").next(896.0).next(math.nan)
    scaling = scaling.next(math.nan)
    for _ in range(3):
        scaling, frozen = scaling.next(448.0), frozen.next(448.0)
    assert scaling.scale == 1.0
    assert frozen.scale == 2.0


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_sources_layouts_threads_and_levels(dtype: str) -> None:
    rng = np.random.default_rng(1)
    x = castwise.cast(rng.standard_normal((1100, 1013)) * 50, dtype)
    scaling = DelayedScaling(2, dtype=E5M2).next(57344.0 * 3)
    with np.errstate(all="ignore"):
        wide = x.astype(np.float64 if dtype == "float64" else np.float32)
        wanted = castwise.cast(wide / wide.dtype.type(scaling.scale), E5M2, overflow="saturate")
    amax = float(np.abs(x.astype(np.float64)).max())
    for name in castwise.cpu_levels():
        castwise._core.set_cpu_level(name)
        try:
            for threads in (1, 2, 3):
                for view in (slice(None), slice(None, None, -1)):
                    codes, found = scaling.quantize(x[view].T, threads=threads)
                    assert codes.tobytes() == wanted[view].T.copy("K").tobytes() or (
                        np.array_equal(codes.view(np.uint8), wanted[view].T.view(np.uint8))
                    )
                    assert found == amax
        finally:
            castwise._core.set_cpu_level(castwise.cpu_levels()[-1])
    out = np.empty(x.shape, E5M2)
    assert scaling.quantize(x, out)[0] is out
    assert out.tobytes() == wanted.tobytes()


def test_a_value() -> None:
    first = DelayedScaling(4, 1, dtype=E5M2, amax_algorithm="most_recent")
    later = first.next(3.0)
    assert first == DelayedScaling(4, 1, dtype="e5m2", amax_algorithm="most_recent") != later
    assert hash(first) == hash(copy.copy(first))
    assert pickle.loads(pickle.dumps(later)) == later  # noqa: S301
    assert DelayedScaling.from_config(later.get_config()) == first
    assert first.with_state(later.state_dict()) == later
    assert "amax_algorithm='most_recent'" in repr(later)
    assert DelayedScaling().dtype == E4M3
    assert DelayedScaling().amax_history_length == 1024


def test_what_is_refused() -> None:
    for parameters, words in (
        ({"amax_history_length": 0}, "amax_history_length=0"),
        ({"amax_history_length": -1}, "amax_history_length=-1"),
        ({"amax_history_length": 2**20 + 1}, "=1048577 is not valid; use an int from 1 to 1048576"),
        ({"amax_history_length": 2**36}, "amax_history_length=68719476736"),
        ({"amax_history_length": 2**40}, "amax_history_length=1099511627776"),
        ({"amax_history_length": 2**62}, "amax_history_length=4611686018427387904"),
        ({"amax_history_length": 2**64}, "amax_history_length=18446744073709551616"),
        ({"margin": 101}, "margin=101 is not valid; use an int from -100 to 100"),
        ({"margin": 2**40}, "margin=1099511627776"),
        ({"dtype": "float8_e8m0fnu"}, "float8_e8m0fnu"),
        ({"dtype": "int8"}, "int8"),
        ({"preset": "nvidia"}, "preset="),
        ({"amax_algorithm": "mean"}, "amax_algorithm="),
        ({"preset": "keras", "amax_algorithm": "most_recent"}, "amax_algorithm="),
    ):
        with pytest.raises(ValueError, match="valid") as error:
            DelayedScaling(**parameters)  # type: ignore[arg-type]
        assert words in str(error.value)
    scaling = DelayedScaling(2)
    with pytest.raises(TypeError, match="x is int64"):
        scaling.quantize(np.arange(3))
    with pytest.raises(TypeError, match="out has dtype float32"):
        scaling.quantize(np.ones(3), np.ones(3, np.float32))
    with pytest.raises(ValueError, match="out has shape"):
        scaling.quantize(np.ones(3), np.ones(2, E4M3))


@pytest.mark.parametrize("name", ["amax_history_length", "margin"])
@pytest.mark.parametrize("value", [True, 1.5, "3"])
def test_parameters_that_are_not_ints(name: str, value: object) -> None:
    with pytest.raises(TypeError, match=rf"{name}={value!r} is not valid; use an int"):
        DelayedScaling(**{name: value})  # type: ignore[arg-type]


PRESETS = ("castwise", "keras", "transformer_engine")


@pytest.mark.thinned(2)
@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("margin", [-100, 0, 100])
@given(found=amaxes)
def test_every_state_is_restored(preset: str, margin: int, found: list[float]) -> None:
    scaling = fresh = DelayedScaling(3, margin, preset=preset)
    for amax in [*found, 1e-45, 1e-45, 3e38, 3e38, 3e38]:
        scaling = scaling.next(amax)
        state = json.loads(json.dumps(scaling.state_dict()))
        for restored in (
            fresh.with_state(state),
            copy.deepcopy(scaling),
            pickle.loads(pickle.dumps(scaling)),  # noqa: S301
        ):
            assert repr(restored.state_dict()) == repr(scaling.state_dict())
            assert repr(restored) == repr(scaling)


def test_a_state_without_a_scale_is_restored() -> None:
    tiny = DelayedScaling(1, preset="keras").next(1e-45).next(1.0)
    assert tiny.scale == 0.0
    assert pickle.loads(pickle.dumps(tiny)) == tiny  # noqa: S301


@pytest.mark.parametrize("preset", PRESETS)
def test_states_that_make_no_sense(preset: str) -> None:
    scaling = DelayedScaling(2, preset=preset)
    state = scaling.state_dict()
    assert state == {"preset": preset, "scale": 1.0, "amax_history": [0.0, 0.0]}
    for key in state:
        with pytest.raises(ValueError, match=f"lacks the key '{key}'"):
            scaling.with_state({name: state[name] for name in state if name != key})
    for change, words in (
        ({"margin": 0}, "unknown key 'margin'"),
        ({"preset": "jmp"}, "preset='jmp' is not valid"),
        ({"preset": None}, "preset=None is not valid"),
        ({"scale": math.nan}, "scale=NaN is not valid"),
        ({"scale": -1.0}, r"scale=-1\.0 is not valid"),
        ({"amax_history": [0.0] * 3}, "amax_history has 3 values"),
        ({"amax_history": [0.0, -1.0]}, r"amax_history\[1\]=-1\.0 is not valid"),
        ({"amax_history": [0.0, 1e39]}, r"amax_history\[1\]=1e39 is not valid"),
    ):
        with pytest.raises(ValueError, match=words):
            scaling.with_state({**state, **change})
    for change, words in (
        ({"amax_history": 3.0}, "amax_history is of type"),
        ({"amax_history": [0.0, None]}, "amax_history=None"),
        ({"scale": "1"}, "scale='1'"),
    ):
        with pytest.raises(TypeError, match=words):
            scaling.with_state({**state, **change})
    with pytest.raises(TypeError, match=r"state is of type .*give the dict"):
        scaling.with_state(None)
    for other in PRESETS:
        if other != preset:
            with pytest.raises(ValueError, match=f"preset='{other}' is not valid here"):
                scaling.with_state(DelayedScaling(2, preset=other).state_dict())
    for strange in (math.nan, math.inf):
        odd = {**state, "amax_history": np.array([strange, 0.0], np.float32)}
        if preset == "castwise":
            with pytest.raises(ValueError, match=r"amax_history\[0\]=.* use finite"):
                scaling.with_state(odd)
        else:
            assert not np.isfinite(scaling.with_state(odd).amax_history[0])
    if preset == "castwise":
        for scale in (0.0, math.inf, 1e-40):
            with pytest.raises(ValueError, match="scale="):
                scaling.with_state({**state, "scale": scale})


@pytest.mark.parametrize("preset", PRESETS)
def test_what_an_amax_may_be(preset: str) -> None:
    scaling = DelayedScaling(1, preset=preset)
    most = float(np.finfo(np.float32).max)
    assert scaling.next(1e300) == scaling.next(most)
    assert scaling.next(1e300).next(1e300) == scaling.next(most).next(most) != scaling
    with pytest.raises(ValueError, match=r"amax=-1\.0 is not valid"):
        scaling.next(-1.0)
    with pytest.raises(TypeError, match="amax='1'"):
        scaling.next("1")  # type: ignore[arg-type]


@pytest.mark.skipif(not SUPPORTED, reason="MXCSR is x86-64's")
@pytest.mark.parametrize("preset", PRESETS)
def test_flush_to_zero_changes_no_history(preset: str) -> None:
    first = DelayedScaling(2, preset=preset)
    wanted = first.next(1e-39).next(3e-39).next(1.0)
    state = wanted.state_dict()
    assert any(0 < amax < 1e-37 for amax in first.next(1e-39).state_dict()["amax_history"]) or (
        preset == "transformer_engine"
    )
    with mxcsr(FLUSH_TO_ZERO | DENORMALS_ARE_ZERO):
        got = first.next(1e-39).next(3e-39).next(1.0)
        restored, saved, scale = first.with_state(state), got.state_dict(), got.scale
        small = first.next(1e-39).amax_history.view(np.uint32).tolist()
    assert small == first.next(1e-39).amax_history.view(np.uint32).tolist()
    assert saved == state
    assert scale == wanted.scale
    assert restored.state_dict() == state
