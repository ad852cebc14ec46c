"""Casts of tensors: castwise's bits and options, torch's devices, layouts and autograd."""

from __future__ import annotations

import importlib
from typing import Any

import castwise
import numpy as np
import pytest
import real_frameworks
from castwise.adapters.torch import cast, from_numpy, to_numpy
from castwise.adapters.torch._bridge import torch_dtype
from castwise.adapters.torch._casting import _by_torch

torch = real_frameworks.torch()

FLOATS = [
    name
    for name in castwise.formats()
    if castwise.finfo(name).kind == "float" and torch_dtype(name) is not None
]
SPECIAL = [0.0, -0.0, 1.0, -2.5, 447.9, 448, 463.9, 464, 464.1, 480, 1e6, -1e6, 57344, 61440, 1e30]
VALUES = np.array([*SPECIAL, np.inf, -np.inf, np.nan, 1e-8, -1e-40], np.float32)


@pytest.mark.parametrize("source", ["float32", "bfloat16", "float8_e4m3fn"])
def test_a_tensor_is_surveyed_as_its_array_is(source: str) -> None:
    array = castwise.cast(np.tile(VALUES, (3, 1)), source)
    tensor = from_numpy(array)
    assert castwise.survey(tensor) == castwise.survey(array)
    assert castwise.survey(tensor.T) == castwise.survey(array.T)


@pytest.mark.parametrize("target", FLOATS)
@pytest.mark.parametrize("source", ["float64", "float32", "bfloat16", "float8_e4m3fn", "int16"])
def test_a_tensor_is_cast_as_its_array_is(source: str, target: str) -> None:
    array = castwise.cast(np.tile(VALUES, (3, 1)), source)[:, ::2]
    tensor = from_numpy(array)
    nan = "zero" if target != "float8_e8m0fnu" else "keep"
    for options in ({}, {"overflow": "saturate", "nan": nan}, {"scale": 0.3, "threads": 1}):
        wanted, report = castwise.cast(array, target, report=True, **options)
        result = castwise.cast(tensor, target, **options)
        assert isinstance(result, torch.Tensor)
        assert to_numpy(result).tobytes() == wanted.tobytes()
        _, found = castwise.cast(tensor, getattr(torch, target), report=True, **options)
        assert found == report


@pytest.mark.parametrize("target", ["bfloat16", "float8_e4m3fn", "float8_e5m2", "float16"])
def test_a_tensor_is_cast_as_torch_casts_it(target: str) -> None:
    tensor = torch.tensor([*SPECIAL, 1 + 2**-8 + 2**-40, -np.inf], dtype=torch.float64)
    wanted = tensor.to(getattr(torch, target))
    for result in (
        castwise.cast(tensor, target, like="torch"),
        cast(tensor, target, like="torch"),
        castwise.cast_tree({"w": tensor}, target, like="torch")["w"],
    ):
        assert to_numpy(result).tobytes() == to_numpy(wanted).tobytes()
    out = torch.empty_like(wanted)
    assert castwise.cast(tensor, out=out, like="torch") is out
    assert to_numpy(out).tobytes() == to_numpy(wanted).tobytes()
    with pytest.raises(ValueError, match="like='torch' is for tensors on the CPU"):
        cast(tensor.to("meta"), target, like="torch")


@pytest.mark.parametrize(
    ("tensor", "error"),
    [
        pytest.param(torch.ones(3, dtype=torch.bfloat16), TypeError, id="bfloat16"),
        pytest.param(torch.ones(3, requires_grad=True), RuntimeError, id="gradient"),
    ],
)
def test_a_list_of_tensors_that_numpy_cannot_read(tensor: Any, error: type[Exception]) -> None:
    said = r"\[1\] is of type torch.Tensor, which numpy cannot read \(.*\); cast it by itself, "
    for argument, call in (
        ("x", lambda: castwise.cast([VALUES[:3], tensor], "float32")),
        ("x", lambda: castwise.caster("float64", "float32")([VALUES[:3], tensor])),
        ("scale", lambda: castwise.cast(np.ones((2, 3)), "float32", scale=(VALUES[:3], tensor))),
    ):
        with pytest.raises(error, match=f"^{argument}{said}"):
            call()
    assert castwise.cast(np.ones(3), "float32", scale=tensor).tolist() == [1, 1, 1]
    assert all(one.dtype == torch.float16 for one in castwise.cast_tree([tensor] * 2, "float16"))


def test_zero_for_nan_needs_a_zero() -> None:
    tensor = torch.tensor([0.0, float("nan")])
    with pytest.raises(ValueError, match='nan="zero" is not for float8_e8m0fnu, which has no zero'):
        castwise.cast(tensor, torch.float8_e8m0fnu, nan="zero")


def test_the_layout_stays() -> None:
    tensor = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    assert cast(tensor, "bfloat16").stride() == tensor.stride()
    assert cast(tensor, "bfloat16", order="C").is_contiguous()
    assert cast(torch.ones(1).expand(3, 4), "float16").tolist() == [[1] * 4] * 3
    assert cast(torch.tensor(2.0), "float16").shape == ()


def test_out_and_copy() -> None:
    tensor = torch.tensor([1.0, 3e5, -1e9])
    out = torch.zeros(3, dtype=torch.float16)
    assert castwise.cast(tensor, out=out, overflow="saturate") is out
    assert out.tolist() == [1, 65504, -65504]
    found, report = cast(tensor, "float16", out=out, report=True)
    assert found is out
    assert report.overflowed == 2
    assert cast(tensor, "float32", copy=False) is tensor
    assert cast(tensor, "float32").data_ptr() != tensor.data_ptr()
    half = cast(tensor, "float16", copy=False, order="C")
    assert half.dtype == torch.float16
    tracked = torch.ones(2, requires_grad=True)
    assert cast(tracked, "float32", copy=False) is tracked
    with pytest.raises(ValueError, match=r"give out\.detach"):
        cast(tensor, out=torch.zeros(3, requires_grad=True))
    with pytest.raises(TypeError, match=r"give a torch\.Tensor"):
        cast(tensor, out=np.zeros(3))


def test_autograd_sees_the_cast() -> None:
    leaf = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    result = castwise.cast(leaf, "bfloat16")
    (result * torch.tensor([1.0, 2.0, 4.0], dtype=torch.bfloat16)).sum().backward()
    assert leaf.grad.tolist() == [1, 2, 4]
    assert leaf.grad.dtype == torch.float32
    leaf.grad = None
    result, report = cast(leaf, "float64", scale=0.5, report=True)
    result.sum().backward()
    assert (leaf.grad.tolist(), report.count) == ([0.5] * 3, 3)
    assert not cast(leaf, "int8").requires_grad
    with torch.no_grad():
        assert not cast(leaf, "bfloat16").requires_grad


def test_a_scale_may_be_a_tensor_and_numbers_may_wait_to_be_conjugated() -> None:
    tensor = torch.ones(2, 3)
    assert cast(tensor, "float16", scale=torch.tensor([1.0, 2.0, 3.0]))[1].tolist() == [1, 2, 3]
    conjugate = torch.tensor([1 + 2j]).conj()
    assert cast(conjugate, "complex128").tolist() == [1 - 2j]
    assert castwise.cast(conjugate, "complex128").tolist() == [1 - 2j]


@pytest.mark.parametrize("overflow", ["ieee", "saturate"])
@pytest.mark.parametrize("target", [name for name in FLOATS if name != "float8_e8m0fnu"])
@pytest.mark.parametrize("source", ["float32", "float16", "bfloat16", "float64"])
def test_what_torch_casts_comes_out_alike(source: str, target: str, overflow: str) -> None:
    # The way of other devices, run on this one: torch casts, castwise's rules hold.
    array = castwise.cast(VALUES, source)
    tensor = from_numpy(array)
    wanted = castwise.cast(array, target, overflow=overflow).astype(np.float64)
    result = _by_torch(tensor, getattr(torch, target), {"overflow": overflow})
    np.testing.assert_array_equal(result.double().numpy(), wanted)


def test_other_devices() -> None:
    far = torch.ones(2, 3, device="meta")
    result = castwise.cast(far, "bfloat16")
    assert (result.device.type, result.dtype, result.shape) == ("meta", torch.bfloat16, (2, 3))
    for options in (
        {"rounding": "towards-zero"},
        {"report": True},
        {"scale": 2.0},
        {"nan": "raise"},
    ):
        with pytest.raises(ValueError, match=r"is for tensors on the CPU.*tensor\.cpu\(\)"):
            castwise.cast(far, "bfloat16", **options)
    with pytest.raises(ValueError, match="rules of its own"):
        castwise.cast(far, "float8_e8m0fnu")
    with pytest.raises(ValueError, match="out= is for tensors on the CPU"):
        castwise.cast(far, out=torch.ones(2, 3))
    sparse = torch.eye(3).to_sparse()
    assert castwise.cast(sparse, "float64").to_dense().dtype == torch.float64


def test_classes_that_take_calls_over_are_left_to_torch() -> None:
    fake_tensor = importlib.import_module("torch._subclasses.fake_tensor")
    with fake_tensor.FakeTensorMode():
        fake = torch.ones(2, 3)
        assert castwise.cast(fake, "bfloat16").dtype == torch.bfloat16


TORCHS = [name for name in castwise.formats() if torch_dtype(name) is not None]


# torch warns when it makes its first half-precision complex tensor.
@pytest.mark.filterwarnings("ignore:B?Complex(Half|32) support is experimental:UserWarning")
@pytest.mark.parametrize("target", TORCHS)
def test_a_mapped_cast_is_the_one_outside(target: str) -> None:
    for source in TORCHS:
        array = VALUES.astype(np.float32)
        tensor = from_numpy(castwise.cast(np.stack([array, array[::-1]]), source))
        for options in ({}, {"overflow": "saturate"}, {"rounding": "nearest-even"}):
            try:
                here: Any = cast(tensor, target, **options)
            except TypeError as error:
                here = error
            for axis in (0, 1):

                def mapped(x: Any, options: Any = options, axis: int = axis) -> Any:
                    return torch.vmap(lambda row: cast(row, target, **options), axis, axis)(x)

                if isinstance(here, TypeError):
                    with pytest.raises(TypeError, match=r"imaginary"):
                        mapped(tensor)
                    continue
                result = to_numpy(mapped(tensor))
                assert result.tobytes() == to_numpy(here).tobytes(), (source, options)


@pytest.mark.filterwarnings(
    "ignore:.torch.jit.script. is deprecated:FutureWarning"
)  # by jvp itself
def test_transformations_of_transformations() -> None:
    x = torch.tensor([[0.3, -500.0], [448.0, 2.0]])

    def loss(row: Any) -> Any:
        return cast(row, "float8_e4m3fn", overflow="saturate").float().sum()

    assert torch.vmap(torch.func.grad(loss))(x).tolist() == [[1, 1], [1, 1]]
    assert torch.func.jvp(loss, (x,), (torch.ones(2, 2),))[1] == 4
    assert torch.func.jacrev(torch.vmap(loss))(x).shape == (2, 2, 2)
    doubled = torch.vmap(torch.vmap(lambda v: cast(v, "int8")))(x)
    assert doubled.tolist() == [[0, -128], [127, 2]]
    assert torch.func.grad(lambda v: (v * cast(v, "int8")).sum())(x[1]).tolist() == [127, 2]
    for options in ({"scale": 2.0}, {"nan": "zero"}, {"report": True}):
        with pytest.raises(
            ValueError, match=r"not available within torch\.func's.*, or cast outside"
        ):
            torch.vmap(lambda row, options=options: cast(row, "float16", **options))(x)


@pytest.mark.parametrize("nearest", [False, True])
@pytest.mark.parametrize("target", ["int8", "uint8", "int16", "int32", "int64"])
@pytest.mark.parametrize("source", ["float64", "float32", "bfloat16", "float8_e5m2"])
def test_integers_on_other_devices(source: str, target: str, nearest: bool) -> None:
    limits = [0.5, 1.5, 2.5, 127.5, 128, 255.5, 2.0**31 - 1, 2.0**31, 2.0**63, 1e30, np.inf, np.nan]
    array = castwise.cast(np.append(limits, np.negative(limits)), source)
    options: dict[str, Any] = {"rounding": "nearest-even"} if nearest else {}
    result = _by_torch(from_numpy(array), getattr(torch, target), options)
    assert result.tolist() == castwise.cast(array, target, **options).tolist()


def test_transformations_have_the_rules_of_the_host() -> None:
    batch = torch.tensor([[1.0, 1e6], [2.0, -1e6]])
    mapped = torch.vmap(lambda x: cast(x, "float8_e4m3fn", overflow="saturate"))(batch)
    assert mapped.float().tolist() == [[1, 448], [2, -448]]
    gradient = torch.func.grad(lambda x: cast(x, "bfloat16").float().sum())(torch.ones(3))
    assert gradient.tolist() == [1] * 3


def test_bad_input() -> None:
    tensor = torch.ones(2)
    for dtype, words in (
        ("float8_e3m4", "not a dtype that torch has"),
        ("flot16", "flot16"),
        (None, "nothing to cast to"),
        (torch.bits8, "formats of its own"),
    ):
        with pytest.raises(TypeError, match=words):
            castwise.cast(tensor, dtype)
    with pytest.raises(TypeError, match=r"give a torch\.Tensor"):
        cast(np.ones(2), "float16")
    with pytest.raises(ValueError, match="overflow"):
        castwise.cast(tensor, "float16", overflow="wrap")
    with pytest.raises(OverflowError, match="value 1000000000"):
        castwise.cast(tensor * 1e9, "float16", overflow="raise")
    with pytest.raises(TypeError, match="lack"):
        castwise.cast(torch.zeros(2, dtype=torch.bits8), "float32")


def test_trees_of_tensors_and_arrays() -> None:
    shared = torch.ones(2)
    tree: Any = {"a": shared, "b": [np.ones(2, np.float32), torch.arange(2)], "c": (shared, None)}
    result = castwise.cast_tree(tree, {"a": "bfloat16", "c/0": "bfloat16", "b/.*": "float16"})
    assert result["a"] is result["c"][0]
    assert result["a"].dtype == torch.bfloat16
    assert result["b"][0].dtype == np.float16
    assert result["b"][1] is tree["b"][1], "a pattern's floats are for floats"
    assert castwise.cast_tree(tree, {"b/1": "float16"})["b"][1].dtype == torch.float16
    assert castwise.cast_tree(tree, "float16")["b"][1] is tree["b"][1]
    with pytest.raises(TypeError, match="cast_module"):
        castwise.cast_tree({"model": torch.nn.Linear(2, 2)}, "float16")
    with pytest.raises(OverflowError, match="'x/0'"):
        castwise.cast_tree({"x": [torch.tensor([1e9])]}, "float16", overflow="raise")


@pytest.mark.parametrize(
    "what", [torch.bfloat16, {"a": torch.bfloat16}, {"default": torch.bfloat16}]
)
def test_maps_for_trees_take_torchs_dtypes(what: Any) -> None:
    tree = castwise.cast_tree({"a": torch.ones(2), "n": np.ones(2, np.int8)}, what)
    assert (tree["a"].dtype, tree["n"].dtype) == (torch.bfloat16, np.int8)
    with pytest.raises(TypeError, match=r"dtype=torch\.quint8 is not a format castwise knows"):
        castwise.cast_tree([], torch.quint8)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_tensors_of_other_layouts() -> None:
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    assert [each.dtype for each in castwise.cast(nested, "bfloat16").unbind()] == [
        torch.bfloat16
    ] * 2
    sparse = torch.eye(2).to_sparse()
    assert castwise.cast(sparse, "float16").dtype == torch.float16
    for options in ({"dtype": "float8_e4m3fn"}, {"dtype": "float16", "overflow": "saturate"}):
        words = f"^tensor has the layout torch.sparse_coo, and .* range of torch.{options['dtype']}"
        with pytest.raises(
            ValueError, match=words + r"; give .*to_dense\(\), or its values\(\)\.$"
        ):
            castwise.cast(sparse, **options)
        uncoalesced = torch.sparse_coo_tensor([[0, 0]], torch.ones(2), check_invariants=True)
        with pytest.raises(ValueError, match=r"; give tensor\.to_dense\(\)\.$"):
            castwise.cast(uncoalesced, **options)
    for options in ({"dtype": "int8"}, {"dtype": "float16", "overflow": "saturate"}):
        with pytest.raises(
            ValueError,
            match=r"^tensor is nested, and torch cannot .*; give .* tensors of tensor\.unbind",
        ):
            castwise.cast(nested, **options)
    jagged = torch.nested.nested_tensor([torch.ones(2)], layout=torch.jagged)
    for tensor in (nested, jagged, sparse):
        with pytest.raises(ValueError, match=r"^overflow='saturate' from .*int8 is for dense .*; "):
            castwise.cast(tensor, "int8", overflow="saturate")
    for layout in (torch.strided, torch.jagged):
        nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=layout)
        with pytest.raises(
            ValueError, match=r"^report=True is for dense .*nested; .*unbind\(\), or"
        ):
            castwise.cast(nested, "float16", report=True)
    jagged = castwise.cast(nested, "float16", overflow="saturate")
    assert [each.dtype for each in jagged.unbind()] == [torch.float16] * 2


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_nested_tensors_become_float8_as_their_parts_do(layout: torch.layout) -> None:
    parts = [torch.tensor([1.3, -464.0, 465.0]), torch.tensor([-np.inf, np.nan, 0.0, -1e9])]
    nested = torch.nested.nested_tensor(parts, layout=layout)
    for each, part in zip(castwise.cast(nested, "float8_e4m3fn").unbind(), parts, strict=True):
        expected = castwise.cast(part, "float8_e4m3fn")
        np.testing.assert_array_equal(each.float(), expected.float())


def test_imaginary_parts_are_not_lost_elsewhere_either() -> None:
    here = torch.ones(2, dtype=torch.complex64)
    for tensor in (here, here.to("meta")):
        with pytest.raises(TypeError, match="imaginary part would be lost"):
            castwise.cast(tensor, "float32")
        assert castwise.cast(tensor, "complex128").dtype == torch.complex128
