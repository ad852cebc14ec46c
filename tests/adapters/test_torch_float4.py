"""Tensors of `torch.float4_e2m1fn_x2`: two numbers in a byte, and half of the last dimension."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import castwise
import numpy as np
import pytest
import real_frameworks
import safetensors.torch
from castwise import checkpoint
from castwise.adapters.torch import cast

torch = real_frameworks.torch()

PAIRS = torch.float4_e2m1fn_x2
MAGNITUDES = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
VALUES = [sign * value for sign in (1.0, -1.0) for value in MAGNITUDES]
"""The numbers of float4_e2m1fn in the order of their codes."""


def bytes_of(tensor: Any) -> list[Any]:
    return tensor.view(torch.uint8).tolist()


def test_the_first_number_is_in_the_low_half() -> None:
    numbers = torch.tensor([[0.5, 1.0, -6.0, 0.0], [3.0, -0.0, 2.0, 1.5]])
    packed = castwise.cast(numbers, PAIRS)
    assert (packed.dtype, packed.shape) == (PAIRS, (2, 2))
    assert bytes_of(packed) == [[0x21, 0x0F], [0x85, 0x34]]
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64):
        back = castwise.cast(packed, dtype)
        assert (back.dtype, back.shape) == (dtype, numbers.shape)
        assert back.tolist() == numbers.tolist()


def test_every_byte() -> None:
    tensor = torch.arange(256, dtype=torch.uint8).reshape(4, 64).view(PAIRS)
    numbers = castwise.cast(tensor, "float32")
    wanted = [[VALUES[code % 16], VALUES[code // 16]] for code in range(256)]
    assert torch.equal(numbers, torch.tensor(wanted).reshape(4, 128))
    assert (numbers.signbit() == torch.tensor(wanted).reshape(4, 128).signbit()).all()
    assert bytes_of(castwise.cast(numbers, PAIRS)) == bytes_of(tensor)


@pytest.mark.parametrize("source", ["float32", "bfloat16", "float64"])
def test_nearest_even_and_the_ends(source: str) -> None:
    # Halfway cases go to the even code; beyond the largest number lies the largest number.
    given = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 5.0625, -1e30, float("inf")]
    wanted = [0.0, 1.0, 1.0, 2.0, 2.0, 4.0, 4.0, 6.0, -6.0, 6.0]
    packed = castwise.cast(torch.tensor(given, dtype=getattr(torch, source)), PAIRS)
    assert castwise.cast(packed, "float32").tolist() == wanted


def test_the_options_are_those_of_the_array() -> None:
    array = np.linspace(-9, 9, 48, dtype=np.float32).reshape(2, 3, 8)
    for options in (
        {"scale": 0.5},
        {"scale": np.arange(1.0, 9.0)},
        {"rounding": "towards-zero"},
        {"rounding": "stochastic", "seed": 7},
        {"overflow": "saturate", "threads": 1},
    ):
        wanted, report = castwise.cast(array, "float4_e2m1fn", report=True, **options)
        packed, said = castwise.cast(torch.from_numpy(array), PAIRS, report=True, **options)
        assert castwise.cast(packed, "float64").tolist() == wanted.astype(float).tolist()
        assert said == report
    scale = torch.full((3, 1), 2.0)
    doubled = castwise.cast(packed, "float32", scale=scale)
    assert torch.equal(doubled, 2 * castwise.cast(packed, "float32"))
    with pytest.raises(OverflowError, match="beyond the range of float4_e2m1fn"):
        castwise.cast(torch.tensor([1.0, 9.0]), PAIRS, overflow="raise")


def test_any_layout_of_the_numbers() -> None:
    numbers = torch.randn(6, 4, 2)
    for view in (numbers.permute(2, 0, 1), numbers[::2], numbers[:, :, :1].expand(6, 4, 2)):
        packed = castwise.cast(view, PAIRS)
        assert packed.is_contiguous()
        assert bytes_of(packed) == bytes_of(castwise.cast(view.contiguous(), PAIRS))
    assert castwise.cast(torch.ones(0, 4), PAIRS).shape == (0, 2)
    assert castwise.cast(castwise.cast(torch.ones(3, 0), PAIRS), "float32").shape == (3, 0)
    rows = castwise.cast(torch.arange(12.0).reshape(3, 4) % 4, PAIRS)[::2]
    assert castwise.cast(rows, "float32").tolist() == [[0, 1, 2, 3], [0, 1, 2, 3]]


def test_out_and_copy() -> None:
    numbers = torch.tensor([[1.0, 2.0, 3.0, 4.0]])
    out = torch.zeros(1, 2, dtype=torch.uint8).view(PAIRS)
    assert castwise.cast(numbers, out=out) is out
    assert bytes_of(out) == [[0x42, 0x65]]
    found, report = cast(out, out=torch.zeros(1, 4, dtype=torch.bfloat16), report=True)
    assert (found.tolist(), report.count) == (numbers.tolist(), 4)
    every_second = torch.zeros(2, 4, dtype=torch.uint8)
    castwise.cast(numbers.expand(2, 4), out=every_second[:, ::2].view(PAIRS))
    assert every_second.tolist() == [[0x42, 0, 0x65, 0]] * 2
    assert cast(out, PAIRS, copy=False) is out
    copied = cast(out, PAIRS)
    assert (bytes_of(copied), copied.data_ptr() != out.data_ptr()) == (bytes_of(out), True)
    untouched = bytes_of(out)
    with pytest.raises(OverflowError):
        castwise.cast(10 * numbers, out=out, overflow="raise")
    assert bytes_of(out) == untouched


def test_no_gradient_passes() -> None:
    leaf = torch.ones(2, requires_grad=True)
    assert not castwise.cast(leaf, PAIRS).requires_grad


@pytest.mark.parametrize(
    ("call", "kind", "words"),
    [
        (lambda: cast(torch.ones(2, 3), PAIRS), ValueError, r"\(2, 3\), of which the last .* odd"),
        (lambda: cast(torch.tensor(1.0), PAIRS), ValueError, "no dimension along which"),
        (lambda: cast(packed(4, 4).t(), "float32"), ValueError, r"strides \(1, 2\).*a transpose"),
        (lambda: cast(packed(2, 4), None), TypeError, "nothing to cast to"),
        (lambda: cast(torch.ones(4), PAIRS, order="F"), ValueError, "order is not for"),
        (
            lambda: cast(torch.ones(4), out=packed(4, 4)),
            ValueError,
            r"out has shape \(4, 2\)",
        ),
        (lambda: cast(packed(4, 4), out=torch.ones(4, 2)), ValueError, "shape"),
        (lambda: cast(torch.ones(4), "int8", out=packed(4)), TypeError, "but dtype=torch.int8"),
        (lambda: cast(torch.ones(4), PAIRS, out=torch.ones(2)), TypeError, "out has dtype"),
        (lambda: cast(torch.ones(4), PAIRS, out=[0]), TypeError, "give a torch.Tensor"),
        (lambda: cast(torch.ones(4, device="meta"), PAIRS), ValueError, r"give tensor\.cpu\(\)"),
        (
            lambda: cast(torch.ones(4), "float4_e2m1fn"),
            TypeError,
            "give dtype=torch.float4_e2m1fn",
        ),
        (lambda: cast(torch.ones(4), "float6_e2m3fn"), TypeError, "choose another"),
    ],
)
def test_refusals(call: Any, kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=f"(?i){words}"):
        call()


def packed(*shape: int) -> Any:
    return castwise.cast(torch.ones(shape), PAIRS)


def test_trees_leave_them() -> None:
    # What the codes of a quantized weight mean, its scales say.
    tree = {"codes": packed(4), "bias": torch.ones(2)}
    result = castwise.cast_tree(tree, "bfloat16")
    assert result["codes"] is tree["codes"]
    assert result["bias"].dtype == torch.bfloat16


def test_tensors_that_safetensors_loads(tmp_path: Path) -> None:
    numbers = np.array([VALUES, VALUES[::-1]], np.float32)
    checkpoint.save(tmp_path / "x.safetensors", {"x": castwise.cast(numbers, "float4_e2m1fn")})
    loaded = safetensors.torch.load_file(tmp_path / "x.safetensors")["x"]
    assert (loaded.dtype, loaded.shape) == (PAIRS, (2, 8))
    assert castwise.cast(loaded, "float32").numpy().tolist() == numbers.tolist()
    again = castwise.cast(torch.from_numpy(numbers), PAIRS)
    safetensors.torch.save_file({"x": again}, tmp_path / "y.safetensors")
    assert (
        checkpoint.load(tmp_path / "y.safetensors")["x"].astype(float).tolist() == numbers.tolist()
    )
