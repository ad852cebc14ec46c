"""With `castwise.accelerate()` existing code gives the same bits and warnings, in less time."""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter
from typing import Any

import castwise
import ml_dtypes
import numpy as np
import pytest
import support
from astype import IS_NEW
from cast_slots import cast_slots
from castwise.environment.acceleration import CastPair
from child_processes import in_a_child, run_program
from float_environment import ENVIRONMENTS, SUPPORTED, mxcsr
from oracle import FORMATS, Array, Format
from sources import all_codes, random_codes, sources_around
from support import AVAILABLE, LEVELS, array_of, at_level

PIECES = (64, 1024, 10_000)
"""Elements per cast: enough for ours, and few enough that a NaN sends few to the original."""


@pytest.fixture(autouse=True)
def put_back() -> Iterator[None]:
    yield
    castwise.restore()


def pairs() -> tuple[CastPair, ...]:
    with castwise.accelerate() as acceleration:
        return acceleration.pairs


def inputs(source: Format, target: Format) -> Array:
    """Give every element of 16 bits or fewer, also with bits above its code; many of wider ones.

    Sorted by magnitude, so that what is special comes together.
    """
    if source.part:
        part = FORMATS[source.part]
        codes = all_codes(part) if part.bits <= 16 else sources_around(source, target)
        codes = codes[np.argsort(codes & part.codes.type(part.magnitude_mask), kind="stable")]
        return array_of(np.stack([codes, np.roll(codes, 7)], axis=-1), source)
    if source.bits <= 8:
        codes = np.arange(256, dtype=np.uint8).astype(source.codes)
    elif source.bits == 16:
        codes = all_codes(source)
    else:
        codes = np.concatenate([sources_around(source, target), random_codes(source, 50_000, 1)])
        codes = np.concatenate([codes, _double_roundings(source)])
    codes = codes[np.argsort(codes & source.codes.type(source.magnitude_mask), kind="stable")]
    return array_of(codes, source)


def _double_roundings(source: Format) -> Array:
    """Codes next to float32's midpoints and to those of 8 bits fewer, in every binade."""
    bits = np.arange(source.bits - 1)
    power = np.uint64(1) << bits.astype(np.uint64)
    near = power[:, None] | power[None, :]
    steps = np.array([0, 1, 2**64 - 1], np.uint64)
    codes = (near[..., None] + steps).ravel()
    if source.kind != "float":
        codes = np.concatenate([codes, -codes])
    return codes.astype(source.codes)


def outcome(x: Array, dtype: Any, piece: int) -> tuple[bytes, list[tuple[int, str]]]:
    """What casting gives, piece by piece, and the floating-point errors that numpy reports."""
    errors: list[tuple[int, str]] = []
    result = np.zeros(x.shape, dtype)
    start = 0
    with (
        np.errstate(all="call", call=lambda kind, flag: errors.append((start, kind))),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore", np.exceptions.ComplexWarning)
        for start in range(0, x.size, piece):
            result[start : start + piece] = x[start : start + piece]
    return result.tobytes(), errors


@pytest.mark.thinned(7)
@pytest.mark.parametrize("source", AVAILABLE, ids=lambda row: row.name)
def test_the_bits_and_errors_of_before(source: Format) -> None:
    targets = [FORMATS[pair.target] for pair in pairs() if pair.source == source.name]
    for target in targets:
        x = inputs(source, target)
        before = [outcome(x, target.dtype, piece) for piece in PIECES]
        with castwise.accelerate():
            for level in LEVELS:
                with at_level(level):
                    for piece, (bits, errors) in zip(PIECES, before, strict=True):
                        result = outcome(x, target.dtype, piece)
                        assert result[0] == bits, f"bits of {target.name}, {level}, {piece}"
                        assert result[1] == errors, f"errors of {target.name}, {level}, {piece}"


def test_which_casts_are_taken_over() -> None:
    with castwise.accelerate() as acceleration:
        taken, left = set(acceleration.pairs), set(acceleration.left_alone)
    assert not taken & left
    floats = [row.name for row in AVAILABLE if row.kind == "float" and row.bits <= 8]
    for name in floats:
        for other in ("float32", "bool", "int8", "int64"):
            assert (name, other) in taken
            # the only one of which ours takes longer
            is_slower = (other, name) == ("int64", "float8_e5m3fnu")
            assert (other, name) in (left if is_slower else taken)
    wide = ("float32", "float64", "float16")
    assert {(name, "bfloat16") for name in wide} <= taken
    # a shift: as fast as memory without us, but not with strides, as ml_dtypes casts from 0.7 on
    assert ("bfloat16", "float32") in (taken if IS_NEW else left)
    assert ("complex64", "bfloat16") in left  # drops a part, with a warning
    names = set(castwise.formats())
    assert all({pair.source, pair.target} <= names for pair in taken | left)


def test_the_functions_are_replaced_and_put_back() -> None:
    before = cast_slots()
    with castwise.accelerate() as acceleration:
        during = cast_slots()
        replaced = {pair for pair, slots in before.items() if slots != during[pair]}
        assert replaced == set(acceleration.pairs)
    assert cast_slots() == before
    assert set(acceleration.left_alone) <= set(before)


@pytest.mark.exhaustive  # a stopwatch, which a busy machine upsets
def test_it_is_worth_it() -> None:
    """The functions that are in place are the fast ones."""
    x = np.linspace(-1, 1, 1 << 16, dtype=np.float32)
    out = np.empty(x.size, ml_dtypes.float8_e4m3fn)

    def seconds() -> float:
        times = []
        for _ in range(9):
            start = perf_counter()
            out[...] = x
            times.append(perf_counter() - start)
        return min(times)

    before = seconds()
    with castwise.accelerate():
        assert seconds() < before / 2


def test_calls_nest_and_restore_ends_them_all() -> None:
    before = cast_slots()
    with castwise.accelerate() as outer:
        during = cast_slots()
        with castwise.accelerate():
            pass
        assert cast_slots() == during
        with outer:  # begun already
            pass
        assert cast_slots() == before
    assert cast_slots() == before
    with outer:  # may be used again
        assert cast_slots() == during
    castwise.accelerate()
    castwise.accelerate()
    with castwise.accelerate():
        castwise.restore()
        assert cast_slots() == before
        castwise.accelerate()
    assert cast_slots() == during  # the block's own call was undone before it ended
    castwise.restore()
    castwise.restore()
    assert cast_slots() == before


def test_an_error_in_the_block_puts_back() -> None:
    before = cast_slots()
    with pytest.raises(ZeroDivisionError), castwise.accelerate():
        raise ZeroDivisionError
    assert cast_slots() == before


def test_a_function_that_somebody_else_has_put_in_stays() -> None:
    """Only what we put in is put back, and only what we found is replaced."""
    before = cast_slots()
    castwise.accelerate()
    castwise._core.set_accelerated(True)
    castwise._core.set_accelerated(False)
    castwise._core.set_accelerated(False)
    assert cast_slots() == before


@pytest.mark.parametrize("spacing", [1, 255, 256, 257, 5000, 16_384, 33_000])
def test_few_values_that_are_left_to_the_original(spacing: int) -> None:
    """Values near them go to the original too, and every result has its own place."""
    x = np.random.default_rng(spacing).normal(size=70_001).astype(np.float32)
    x[spacing - 1 :: spacing] = np.array([0x7F800001], np.uint32).view(np.float32)
    targets = [ml_dtypes.float8_e4m3fn, ml_dtypes.int4]
    before = [outcome(x, target, x.size) for target in targets]
    with castwise.accelerate():
        assert [outcome(x, target, x.size) for target in targets] == before
    # not of the first cast from ml_dtypes 0.7 on
    assert [(0, "invalid value")] in [errors for _, errors in before]


RANDOM = np.random.default_rng(7).normal(size=(40, 60)).astype(np.float32)
E5M2 = RANDOM.astype(ml_dtypes.float8_e5m2)
BF16 = RANDOM.astype(ml_dtypes.bfloat16)


def overlapping(from_start: int, to_start: int, source: Any, target: Any) -> bytes:
    """Assign between two views of one memory; numpy copies neither if there is one axis."""
    memory = np.zeros(4096, np.uint8)
    memory[:2048] = np.tile(np.array([0, 0, 0x80, 0x3F, 7, 0, 0xC0, 0xBF], np.uint8), 256)
    size = 300
    from_end = from_start + size * np.dtype(source).itemsize
    to_end = to_start + size * np.dtype(target).itemsize
    memory[to_start:to_end].view(target)[...] = memory[from_start:from_end].view(source)
    return memory.tobytes()


WAYS: dict[str, Callable[[], Any]] = {
    "astype": lambda: RANDOM.astype(ml_dtypes.bfloat16),
    "astype, in Fortran order": lambda: RANDOM.astype(ml_dtypes.float8_e3m4, order="F"),
    "transposed": lambda: RANDOM.T.astype(ml_dtypes.float8_e4m3),
    "every other": lambda: RANDOM[::2, ::-3].astype(ml_dtypes.float8_e4m3),
    "broadcast": lambda: np.broadcast_to(RANDOM[:1], (9, 60)).astype(ml_dtypes.bfloat16),
    "big-endian": lambda: RANDOM.astype(">f4").astype(ml_dtypes.float8_e4m3fnuz),
    "to big-endian": lambda: E5M2.astype(">f8"),
    "unaligned": lambda: (
        np.frombuffer(b"!" + RANDOM.tobytes(), np.uint8)[1:]
        .view(np.float32)
        .astype(ml_dtypes.float8_e5m2)
    ),
    "0-d": lambda: np.array(1.3).astype(ml_dtypes.float8_e5m2),
    "scalar": lambda: np.float32(1.3).astype(ml_dtypes.bfloat16),
    "empty": lambda: RANDOM[:0].astype(ml_dtypes.bfloat16),
    "copyto": lambda: [out := np.zeros((40, 60), "f2"), np.copyto(out, E5M2, casting="unsafe")],
    "copyto, masked": lambda: [
        out := np.zeros((40, 60), E5M2.dtype),
        np.copyto(out, RANDOM, casting="unsafe", where=RANDOM > 0),
    ],
    "mixed ufunc": lambda: np.multiply(BF16, RANDOM),
    "mixed float8s": lambda: E5M2.astype(ml_dtypes.float8_e4m3fn) + RANDOM.astype(np.float16),
    "ufunc with out": lambda: np.add(RANDOM, 1, out=np.empty_like(BF16), casting="unsafe"),
    "ufunc.at": lambda: [y := BF16.copy(), np.add.at(y, [3, 3, 5], RANDOM[:3])],
    "reduction": lambda: E5M2.sum(axis=0, dtype=np.float32),
    "concatenate": lambda: np.concatenate([RANDOM, E5M2.astype(np.float32)], dtype=BF16.dtype),
    "indexing": lambda: [y := E5M2.copy(), y.__setitem__(slice(3, 9), RANDOM[3:9]), y],
    "fancy indexing": lambda: [y := E5M2.copy(), y.__setitem__([3, 1], RANDOM[:2]), y],
    "structured": lambda: np.zeros(50, [("a", "f4"), ("b", E5M2.dtype)]).astype(
        [("a", E5M2.dtype), ("b", "f8")]
    ),
    "nditer": lambda: [
        np.array(block)
        for block in np.nditer(
            RANDOM,
            ["external_loop", "buffered"],
            op_dtypes=[E5M2.dtype],
            casting="unsafe",
            buffersize=100,
        )
    ],
    "linspace": lambda: np.linspace(0, 1, 999).astype(ml_dtypes.float6_e3m2fn),
    "from a list": lambda: np.array(list(RANDOM), dtype=ml_dtypes.float4_e2m1fn),
    "to int4 and back": lambda: (RANDOM * 1.5).astype(ml_dtypes.int4).astype(np.float32),
    "to bool": lambda: E5M2.astype(bool),
    "to complex": lambda: [RANDOM.astype(name) for name in ("complex32", "bcomplex32")],
    "from complex": lambda: (RANDOM + 2j * RANDOM).astype(np.complex64).astype("complex32"),
    "overlap, narrowing": lambda: overlapping(0, 0, np.float32, E5M2.dtype),
    "overlap, narrowing, behind": lambda: overlapping(4, 2, np.float32, E5M2.dtype),
    "overlap, narrowing, ahead": lambda: overlapping(0, 900, np.float32, E5M2.dtype),
    "overlap, widening": lambda: overlapping(0, 0, E5M2.dtype, np.float32),
    "overlap, widening, behind": lambda: overlapping(700, 4, E5M2.dtype, np.float32),
    "overlap, in two steps": lambda: overlapping(0, 0, E5M2.dtype, np.float16),
    "overlap, in two steps, behind": lambda: overlapping(100, 4, E5M2.dtype, np.float16),
    "overlap, one size": lambda: overlapping(1, 0, E5M2.dtype, ml_dtypes.float8_e4m3fn),
    "adjacent": lambda: overlapping(300, 0, E5M2.dtype, ml_dtypes.float8_e4m3fn),
}


def flat(result: Any) -> list[Any]:
    """Bytes, dtypes and strides of all arrays in a result."""
    if isinstance(result, list):
        return [part for each in result for part in flat(each)]
    if isinstance(result, np.ndarray | np.generic):
        return [result.dtype, result.tobytes(), result.strides]
    return [result]


if not hasattr(ml_dtypes, "complex32"):
    WAYS = {way: call for way, call in WAYS.items() if "complex" not in way}


@pytest.mark.parametrize("way", WAYS)
def test_every_way_to_a_cast(way: str) -> None:
    before = flat(WAYS[way]())
    with castwise.accelerate():
        assert flat(WAYS[way]()) == before
    assert flat(WAYS[way]()) == before


@pytest.mark.parametrize("count", [0, 1, 15, 16, 17, 63, 64, 1023, 1025, 40_000, 1_000_003])
def test_every_length(count: int) -> None:
    x = np.random.default_rng(count).normal(size=count)
    targets = [ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float4_e2m1fn]
    x[count // 3 : count // 3 + 1] = np.nan  # one piece goes to the original
    for source in (np.float64, np.float32, np.float16):
        before = [x.astype(source).astype(target).tobytes() for target in targets]
        with castwise.accelerate():
            assert [x.astype(source).astype(target).tobytes() for target in targets] == before


@pytest.mark.thinned(6)
@pytest.mark.skipif(not SUPPORTED, reason="MXCSR is x86-64's, its place in fenv_t glibc's")
@pytest.mark.parametrize("environment", ENVIRONMENTS)
def test_another_floating_point_environment_is_left_to_the_original(environment: str) -> None:
    cases = [
        (inputs(FORMATS[source], FORMATS[target])[:: support.FEWER**2], FORMATS[target].dtype)
        for source in ("float64", "float32", "bfloat16", "float8_e8m0fnu", "int64", "complex128")
        for target in ("bfloat16", "float8_e5m2", "float8_e8m0fnu", "float64", "complex32")
        if (source, target) in pairs()
    ]

    def everything() -> list[Any]:
        with mxcsr(ENVIRONMENTS[environment]):
            return [outcome(x, dtype, 1024) for x, dtype in cases]

    before = everything()
    with castwise.accelerate():
        assert everything() == before


def test_casts_used_before_and_in_other_threads() -> None:
    """Threads cast all the time while the functions are exchanged under them."""
    x = np.random.default_rng(5).normal(size=100_000).astype(np.float32)
    targets = [ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.int4, ml_dtypes.float8_e5m2]
    want = [x.astype(target).tobytes() for target in targets]
    stop = threading.Event()

    def cast_on() -> int:
        rounds = 0
        while not stop.is_set() or rounds < 3:
            assert [x.astype(target).tobytes() for target in targets] == want
            rounds += 1
        return rounds

    with ThreadPoolExecutor(4) as pool:
        others = [pool.submit(cast_on) for _ in range(4)]
        for _ in range(200):
            with castwise.accelerate():
                assert [x.astype(target).tobytes() for target in targets] == want
        castwise.accelerate()
        stop.set()
        assert all(other.result() >= 3 for other in others)


def test_many_threads_accelerate_and_restore() -> None:
    before = cast_slots()

    def enter_and_leave(_: int) -> None:
        for _ in range(50):
            with castwise.accelerate():
                RANDOM.astype(ml_dtypes.bfloat16)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(enter_and_leave, range(8)))
    assert cast_slots() == before


def test_the_child_of_a_fork() -> None:
    want = RANDOM.astype(ml_dtypes.float8_e4m3fn).tobytes()
    castwise.accelerate()

    def in_the_child() -> bytes:
        first = RANDOM.astype(ml_dtypes.float8_e4m3fn).tobytes()
        castwise.restore()
        castwise.accelerate()
        return first + RANDOM.astype(ml_dtypes.float8_e4m3fn).tobytes()

    assert in_a_child(in_the_child) == want * 2


def test_no_reference_is_lost() -> None:
    """Registering a cast through numpy drops a reference each time, and crashes in the end."""
    castwise.accelerate()
    counts = [sys.getrefcount(each) for each in (ml_dtypes.bfloat16, np.float32, None)]
    for _ in range(2000):
        castwise.restore()
        castwise.accelerate()
        RANDOM[:1].astype(ml_dtypes.bfloat16).astype(np.float16)
    after = [sys.getrefcount(each) for each in (ml_dtypes.bfloat16, np.float32, None)]
    assert all(abs(one - other) < 100 for one, other in zip(counts, after, strict=True))


PROGRAM = """
import castwise, numpy as np, ml_dtypes
from astype import IS_NEW
from cast_slots import cast_slots
during = cast_slots()
castwise.restore()
print(during != cast_slots())
castwise.accelerate()
kept = np.ones(100, np.float32).astype(ml_dtypes.float8_e5m2)
"""


@pytest.mark.parametrize(("value", "accelerated"), [("1", True), ("0", False), ("", False)])
def test_the_environment_accelerates_at_import(value: str, accelerated: bool) -> None:
    done = run_program(PROGRAM, CASTWISE_ACCELERATE=value)
    assert (done.returncode, done.stdout.split(), done.stderr) == (0, [str(accelerated)], "")


def test_a_program_may_end_with_it_on() -> None:
    done = run_program(PROGRAM, forked=False, CASTWISE_ACCELERATE="1")
    assert (done.returncode, done.stderr) == (0, "")


def test_an_environment_that_makes_no_sense_is_refused() -> None:
    failed = run_program("import castwise", CASTWISE_ACCELERATE="yes please")
    assert failed.returncode == 1
    assert "CASTWISE_ACCELERATE='yes please' is not valid; use 1 or 0." in failed.stderr


def test_an_ml_dtypes_that_lacks_formats_or_casts_otherwise() -> None:
    """A pair whose results differ from ours is left alone; formats that are missing are skipped."""
    code = """
import ml_dtypes
for name in ("float8_e8m0fnu", "complex32", "int1"):
    if hasattr(ml_dtypes, name): delattr(ml_dtypes, name)
ml_dtypes.float8_e4m3, ml_dtypes.float8_e3m4 = ml_dtypes.float8_e3m4, ml_dtypes.float8_e4m3
import castwise, numpy as np
x = np.linspace(-3, 3, 999, dtype=np.float32)
want = [x.astype(getattr(ml_dtypes, name)).tobytes() for name in ("float8_e4m3", "float8_e5m2")]
with castwise.accelerate() as on:
    left, taken = on.left_alone, on.pairs
    got = [x.astype(getattr(ml_dtypes, name)).tobytes() for name in ("float8_e4m3", "float8_e5m2")]
print(got == want, ("float32", "float8_e4m3") in left, ("float32", "float8_e5m2") in taken)
print(any("int1" in pair or "complex32" in pair for pair in taken + left))
"""
    done = run_program(code)
    assert done.stdout.split() == ["True", "True", "True", "False"], done.stderr


def test_a_numpy_that_stores_casts_otherwise() -> None:
    """Methods are left alone, with a warning if no cast is in numpy's tables either."""
    code = """
import warnings
from numpy._core import _multiarray_umath
del _multiarray_umath._get_castingimpl
import castwise, ml_dtypes
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    pairs = castwise.accelerate().pairs
texts = [str(each.message) for each in caught]
print(bool(pairs) != bool(texts), all(ml_dtypes.__version__ in text for text in texts))
"""
    done = run_program(code)
    assert done.stdout.split() == ["True", "True"], done.stderr


def test_its_repr_counts() -> None:
    with castwise.accelerate() as acceleration:
        counts = len(acceleration.pairs), len(acceleration.left_alone)
    want = "<castwise.accelerate() of {} casts, {} left alone>".format(*counts)
    assert repr(acceleration) == want
