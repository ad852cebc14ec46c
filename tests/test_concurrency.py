"""Calls from many threads at once: the results of each alone, whatever the others do.

They mean more where Python has no lock: then the calls really run at the same moment.
"""

from __future__ import annotations

import os
import random
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

import castwise
import numpy as np
import pytest
import support
from castwise import DTypePolicyMap, checkpoint, config, dtype_policies
from castwise.adapters import registry
from castwise.adapters.protocol import Adapter
from castwise.loss_scale import DelayedScaling, DynamicLossScale, all_finite, unscale
from castwise.quantization import dequantize, pack, quantize, swizzle_scales, unpack
from processes import run_python
from threads import THREADS, together

STEPS = 200 // support.FEWER
DIGITS = Path(__file__).parents[1] / "benches/digits/digits.safetensors"
Work = Callable[[], Any]

rng = np.random.default_rng(7)
SMALL = rng.normal(size=(4, 96)).astype(np.float32)
LARGE = rng.normal(size=(256, 1024)).astype(np.float32)
CASTER = castwise.caster("float32", "float8_e4m3fn", overflow="saturate")
FLOAT16 = castwise.cast(LARGE, "float16")
SCALING = DelayedScaling(2)
POLICIES = DTypePolicyMap("float32", on_overlap="first")
POLICIES["dense/.*"] = "mixed_bfloat16"
POLICIES["(?!x)head/.*"] = "float16"
QUANTIZED = {name: quantize(LARGE, name) for name in ("fp8_block", "nvfp4", "int4_group")}


def sixteenths() -> Any:
    """Cast into an array that is given, of another order."""
    out = np.empty(SMALL.shape[::-1], np.float16).T
    return castwise.cast(SMALL, out=out, rounding="towards-zero")


def policies() -> list[str]:
    """Look policies up, in a scope and by a map; make them again from text."""
    with config.dtype_policy_scope("mixed_float16"):
        inside = config.dtype_policy().compute_dtype
    found = [POLICIES[path].name for path in ("dense/kernel", "head/bias", "other")]
    return [inside, config.dtype_policy().name, *found, dtype_policies.get("mixed_bfloat16").name]


WORKS: dict[str, Work] = {
    "a small cast": lambda: castwise.cast(SMALL, "bfloat16"),
    "a large cast": lambda: castwise.cast(LARGE, "float8_e5m2", threads=2),
    "strides": lambda: castwise.cast(LARGE[::3, ::-2], "float8_e4m3fn"),
    "few strides": lambda: castwise.cast(SMALL[:, ::5].T, "bfloat16"),
    "draws": lambda: castwise.cast(LARGE, "bfloat16", rounding="stochastic", seed=3),
    "a report": lambda: castwise.cast(LARGE, "int8", report=True),
    "into an array": sixteenths,
    "a caster": lambda: CASTER(SMALL),
    "a caster of many": lambda: CASTER(LARGE),
    "a tree": lambda: castwise.cast_tree({"dense": [SMALL], "n": np.arange(3)}, "float16")["dense"],
    "a survey": lambda: repr(castwise.survey(FLOAT16)),
    "an explanation": lambda: repr(castwise.explain_cast(SMALL[0, 0], "float8_e4m3fn")),
    "unscale": lambda: unscale([FLOAT16, SMALL], 1024.0, norm=True),
    "finite": lambda: all_finite({"a": FLOAT16, "b": [SMALL]}),
    "delayed scaling": lambda: SCALING.quantize(LARGE)[0],
    "a loss scale": lambda: repr(DynamicLossScale(1024.0)),
    "policies": policies,
    "packing": lambda: unpack(pack(np.arange(16, dtype=np.uint8), 4), 4),
    "a swizzle": lambda: swizzle_scales(np.arange(512, dtype=np.uint8).reshape(128, 4)),
    **{f"quantize {name}": lambda name=name: quantize(LARGE, name).data for name in QUANTIZED},
    **{f"dequantize {name}": lambda q=q: dequantize(q, "float32") for name, q in QUANTIZED.items()},
    "numpy, accelerated or not": lambda: FLOAT16.astype(QUANTIZED["fp8_block"].data.dtype),
    "turns of acceleration": lambda: castwise.accelerate().__exit__(None, None, None),
}


def as_bytes(value: Any) -> Any:
    """Make arrays comparable, bit by bit."""
    if isinstance(value, np.ndarray):
        return value.dtype, value.shape, value.tobytes()
    return [as_bytes(each) for each in value] if isinstance(value, list | tuple) else value


def test_calls_at_once_give_what_each_gives_alone() -> None:
    alone = {name: as_bytes(work()) for name, work in WORKS.items()}

    def work(number: int) -> None:
        chance = random.Random(number)
        for _ in range(STEPS):
            name = chance.choice(list(WORKS))
            assert as_bytes(WORKS[name]()) == alone[name], name

    together(work)


def test_conversions_at_once(tmp_path: Path) -> None:
    """Each thread converts the file by every command to one of its own."""

    def convert(folder: Path) -> list[bytes]:
        folder.mkdir()
        low, packed, again = (folder / f"{name}.safetensors" for name in ("low", "packed", "again"))
        checkpoint.cast_file(DIGITS, low, "bfloat16")
        checkpoint.quantize_file(DIGITS, packed, "fp8_channel", ignore=r".*\.bias")
        checkpoint.dequantize_file(packed, again)
        assert len(checkpoint.inspect(low).tensors) == len(checkpoint.inspect(DIGITS).tensors)
        return [path.read_bytes() for path in (low, packed, again)]

    alone = convert(tmp_path / "alone")
    made = together(lambda number: convert(tmp_path / str(number)))
    assert all(files == alone for files in made)


def test_an_adapter_is_in_force_once_it_is_registered() -> None:
    """Every thread finds its own, while others look for theirs, which empties what is known."""

    class Whole(Adapter):
        def is_array(self, value: object) -> bool:
            return True

        def dtype_of(self, array: Any) -> Any:
            return "float32"

        def to_host(self, array: Any) -> Any:
            return SMALL

        def from_host(self, array: Any, like: Any) -> Any:
            return array

    def work(number: int) -> None:
        for step in range(STEPS):
            module = f"castwise_tests_{number}_{step % 3}"
            cls = type("Array", (), {"__module__": module})
            if step < 3:
                assert registry.find(cls) is None
            adapter = Whole()
            registry.register(module, adapter)
            assert registry.find(cls) is adapter
            assert castwise.cast(cls(), "float16").tobytes() == sixteen

    sixteen = castwise.cast(SMALL, "float16").tobytes()
    together(work)


# Arrays are written by one thread, from 1 to 2 and back, while others read them.
WRITTEN = """
import threading
import numpy as np
import castwise
from castwise.loss_scale import DelayedScaling, all_finite, unscale
from castwise.quantization import dequantize, quantize

large, small = np.ones((64, 1024), np.float32), np.ones((8, 32), np.float32)
out = np.empty_like(large, np.float16)
quantized = [quantize(large, name) for name in ("fp8_block", "nvfp4", "int4_group", "bnb_nf4")]
parts = [part for q in quantized for part in (q.data, q.scale) if part is not None]
caster = castwise.caster("float32", "bfloat16")
stop = threading.Event()
failures = []

def write():
    step = 0
    while not stop.is_set():
        step += 1
        large.fill(1 + step % 2)
        small.fill(1 + step % 2)
        for part in parts:
            part.view(np.uint8).fill(step % 256)

def read(number):
    try:
        for step in range(STEPS):
            for array in (large, small, large[::2, ::3], small[:, ::5].T):
                for made in (castwise.cast(array, "float8_e4m3fn"), caster(array)):
                    assert set(np.unique(made.astype(np.float32))) <= {1, 2}
            castwise.cast(large, out=out, overflow="raise", nan="raise", report=True)
            assert set(np.unique(out.astype(np.float32))) <= {1, 2}
            assert all_finite([large, small])
            assert castwise.survey(large).count == large.size
            DelayedScaling(2).quantize(large)
            unscale([large, small], 2.0, norm=True)
            for q in quantized:
                assert dequantize(q, "float32").shape == large.shape
                quantize(large, q.scheme)
            large.astype(castwise.finfo("bfloat16").dtype)
    except BaseException as error:
        failures.append(error)

castwise.accelerate()
writer = threading.Thread(target=write)
readers = [threading.Thread(target=read, args=(number,)) for number in range(THREADS - 1)]
for thread in (writer, *readers):
    thread.start()
for thread in readers:
    thread.join()
stop.set()
writer.join()
if failures:
    raise failures[0]
print("survived")
"""


def test_arrays_may_be_written_meanwhile() -> None:
    """What is read is the old or the new value of each element, and nothing breaks."""
    program = f"THREADS, STEPS = {THREADS}, {STEPS // 4}\n{WRITTEN}"
    run = run_python("-c", program)
    assert (run.returncode, run.stdout) == (0, "survived\n"), run.stderr[-2000:]


# Everything is imported and made for the first time by eight threads at once.
FIRST = """
import threading

barrier = threading.Barrier(THREADS)
results, failures = [], []

def first():
    try:
        barrier.wait()
        import castwise
        x = [1.0, 1e6, -3.5]
        results.append((
            castwise.cast(x, "float8_e4m3fn", overflow="saturate").tobytes(),
            castwise.cast(1.5, "bfloat16", rounding="stochastic", seed=1).tobytes(),
            castwise.quantization.quantize([x * 32], "mxfp4").data.tobytes(),
            castwise.DTypePolicyMap("float16")["a"].name,
            castwise.dtype_policies.get("int8_from_float32").name,
            castwise.config.dtype_policy().name,
            repr(castwise.loss_scale.unscale(x, 2.0)),
            len(castwise.accelerate().pairs),
        ))
    except BaseException as error:
        failures.append(error)

threads = [threading.Thread(target=first) for _ in range(THREADS)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
if failures:
    raise failures[0]
assert len(results) == THREADS and len(set(results)) == 1, results
"""


def test_the_first_use_may_be_by_many_threads() -> None:
    run = run_python("-c", f"THREADS = {THREADS}\n{FIRST}", forked=False)
    assert run.returncode == 0, run.stderr[-2000:]


@pytest.mark.skipif(not sysconfig.get_config_var("Py_GIL_DISABLED"), reason="Python has its lock")
def test_castwise_leaves_the_lock_of_python_off() -> None:
    """Python warns of a module that turns it on."""
    program = "import sys, castwise.checkpoint; print(sys._is_gil_enabled())"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHON_GIL"}
    run = run_python("-W", "error", "-c", program, env=environment, forked=False)
    assert (run.returncode, run.stdout) == (0, "False\n"), run.stderr[-2000:]
