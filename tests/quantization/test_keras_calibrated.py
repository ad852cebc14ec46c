"""What Keras' GPTQ and AWQ store is decoded as Keras' loader lays it out; no Keras is needed."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from castwise import checkpoint
from castwise.checkpoint import CheckpointError
from castwise.quantization import QuantizedArray, dequantize
from numpy.typing import NDArray
from producer_models.keras import calibrated, saved

Array = NDArray[Any]


def decoded(source: Path, dtype: str = "float32", **options: Any) -> dict[str, Array]:
    out = source.with_name("out.safetensors")
    checkpoint.dequantize_file(source, out, dtype, **options)
    return {name.rpartition("/")[2]: one for name, one in checkpoint.load(out).items()}


@pytest.mark.thinned(5)
@pytest.mark.parametrize("awq", [False, True])
@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize(
    ("inputs", "outputs", "bits", "size"),
    [(10, 7, 4, 4), (12, 6, 4, 12), (9, 5, 8, 3), (8, 5, 2, 2), (7, 3, 3, 7), (300, 130, 4, 128)],
)
def test_weights_alone(
    tmp_path: Path,
    inputs: int,
    outputs: int,
    bits: int,
    size: int,
    *,
    ordered: bool,
    has_bias: bool,
    awq: bool,
) -> None:
    """The bias, which Keras stores before codes, comes after the kernel."""
    made = calibrated(inputs, outputs, bits, size, ordered=ordered, awq=awq)
    bias = np.arange(outputs, dtype=np.float32)
    first = {"bias": bias} if has_bias else {}
    found = decoded(saved(tmp_path / "in.safetensors", first | made.variables))
    np.testing.assert_array_equal(found.pop("0"), made.plain)
    if has_bias:
        np.testing.assert_array_equal(found.pop("1"), bias)
    assert not found


def test_a_kernel_that_keras_made(tmp_path: Path) -> None:
    """Recorded of Keras 3.15.1: the weights that a Dense layer of AWQ computes with."""
    variables = {
        "kernel": np.array([[0x3A, 0xF1, 0x07], [0x05, 0x0C, 0x09]], np.uint8),
        "scale": np.array([[0.1, -0.3], [0.7, 0.013], [1.1, 0.37]], np.float32),
        "zero": np.array([[8, 3], [0, 255], [7, 12]], np.uint8),
        "awq": np.array([0.9, 1.7, 0.6], np.float32),
        "groups": np.array([0, 0.5, 1], np.float32),
    }
    words = """3e638e3a 40155555 c01c71c8 bed2d2d2 40c5a5a5 404f0f0f c0000000 c0b0cccd bfeccccc"""
    wanted = np.array([int(one, 16) for one in words.split()], np.uint32).view(np.float32)
    found = decoded(saved(tmp_path / "in.safetensors", variables))["0"]
    np.testing.assert_array_equal(found, wanted.reshape(3, 3))


def nearest(value: Fraction, dtype: Any) -> Any:
    """Round a real number once: of two neighbors the nearer, at a tie the even one."""
    near = dtype(float(value))
    candidates = [near, np.nextafter(near, dtype(np.inf)), np.nextafter(near, dtype(-np.inf))]
    return min(
        candidates,
        key=lambda one: (
            abs(Fraction(float(one)) - value),
            int(np.asarray(one).view(np.uint16)) & 1,
        ),
    )


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16])
def test_exact_quotients_are_rounded_once(tmp_path: Path, dtype: Any) -> None:
    made = calibrated(10, 7, 4, 4, awq=True)
    source = saved(tmp_path / "in.safetensors", made.variables)
    found = decoded(source, np.dtype(dtype).name, arithmetic="exact")["0"]
    scale, zero, awq = (made.variables[name] for name in ("scale", "zero", "awq"))
    raw = made.variables["kernel"]
    for row, column in np.ndindex(found.shape):
        code = int(raw[column // 2, row]) >> 4 * (column % 2) & 15
        group = row // 4
        real = (code - int(zero[column, group])) * Fraction(float(scale[column, group]))
        wanted = nearest(real / Fraction(float(awq[row])), dtype)
        assert found[row, column] == wanted


@pytest.mark.parametrize("awq", [False, True])
def test_arrays(*, awq: bool) -> None:
    made = calibrated(10, 7, 4, 4, awq=awq)
    kernel = "quantized_kernel"
    parts = {
        kernel: made.variables["kernel"],
        f"{kernel}_scale": made.variables["scale"],
        f"{kernel}_zero": made.variables["zero"],
    }
    if awq:
        parts["awq_scales"] = made.variables["awq"]
    q = QuantizedArray.from_parts(parts, "keras", (10, 7), scheme="int4_group", block=(1, 4))
    np.testing.assert_array_equal(dequantize(q, "float32"), made.plain)
    np.testing.assert_array_equal(dequantize(q, "float32", threads=1), made.plain)


def without(*names: str) -> Any:
    return lambda variables: {key: one for key, one in variables.items() if key not in names}


def put(name: str, change: Any) -> Any:
    return lambda variables: variables | {name: change(variables[name])}


def outside(groups: Array) -> Array:
    return np.where(groups == 0, groups.max() + 1, groups)


FAULTS: dict[str, tuple[Any, str]] = {
    "no zero points": (without("zero"), "shapes do not tell"),
    "no scale": (without("scale"), "vars/2' is a scale without its payload"),
    "no groups": (without("groups", "awq"), "lacks .* the groups of inputs"),
    "scale without axes": (put("scale", lambda x: x[0, 0]), "shapes do not tell"),
    "short scale": (put("scale", lambda x: x[:-1]), "'.*/1' has the shape .* needs"),
    "scale of other groups": (put("scale", lambda x: x[:, :-1]), "needs"),
    "zero points turned": (put("zero", np.transpose), "'.*/3' has the shape"),
    "short groups": (put("groups", lambda x: x[:-1]), "'.*/5' has the shape .* needs"),
    "short awq": (put("awq", lambda x: x[:-1]), "'.*/4' has the shape .* needs"),
    "a group too many": (put("groups", outside), "'.*/5' has the group 3.0, and there are 3"),
    "a group that is NaN": (put("groups", lambda x: x * np.nan), "has the group nan"),
    "a negative group": (put("groups", lambda x: x - 1), "has the group -1.0"),
    "a row too few": (put("kernel", lambda x: x[:-1]), "'.*/1' has the shape"),
    "signed codes": (put("kernel", lambda x: x.view(np.int8)), "shapes do not tell"),
    "scales of ints": (put("scale", lambda x: x.astype(np.int32)), "scale"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_refused(tmp_path: Path, name: str) -> None:
    change, words = FAULTS[name]
    variables = {"bias": np.zeros(7, np.float32), **calibrated(10, 7, 4, 4, awq=True).variables}
    source = saved(tmp_path / "in.safetensors", change(variables))
    with pytest.raises(CheckpointError, match=words):
        decoded(source)
    assert [one.name for one in tmp_path.iterdir()] == ["in.safetensors"]
