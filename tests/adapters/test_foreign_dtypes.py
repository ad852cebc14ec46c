"""Dtypes of torch and jax are dtypes wherever castwise takes one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import castwise
import ml_dtypes
import numpy as np
import pytest
import real_frameworks
from castwise import DTypePolicy, checkpoint
from castwise.compat import jmp
from castwise.dtype_policies._keras_objects import standardize_dtype
from castwise.loss_scale import DelayedScaling, unscale

torch, jnp = real_frameworks.torch(), real_frameworks.jax().numpy

VALUES = np.array([0.1, -3.0, 500.0], np.float32)
FORMATS = set(castwise.formats())
TORCH = {
    str(value).removeprefix("torch."): value
    for value in vars(torch).values()
    if isinstance(value, torch.dtype)
}
KNOWN = [
    *(pytest.param(TORCH[name], name, id=f"torch.{name}") for name in sorted(FORMATS & set(TORCH))),
    *(
        pytest.param(getattr(jnp, name), name, id=f"jnp.{name}")
        for name in sorted(FORMATS)
        if name != "bool" and hasattr(jnp, name)
    ),
]
UNKNOWN = sorted(set(TORCH) - FORMATS)


def test_torch_and_jax_have_the_formats_that_matter() -> None:
    names = ["float16", "bfloat16", "float32", "float64", "int8", "bool", "complex64"]
    names += ["float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"]
    assert set(names) <= FORMATS & set(TORCH)
    assert hasattr(jnp, "float8_e4m3fn")
    assert {"qint8", "quint8", "float4_e2m1fn_x2"} <= set(UNKNOWN)


@pytest.mark.parametrize(("dtype", "name"), KNOWN)
def test_a_dtype_of_torch_or_jax_is_a_dtype(dtype: Any, name: str) -> None:
    wanted = castwise.finfo(name).dtype
    assert castwise.finfo(dtype).name == name
    tree, array = {"a": VALUES}, castwise.cast(VALUES, name)
    for found in (
        castwise.cast(VALUES, dtype),
        castwise.cast(VALUES, dtype=dtype, overflow="saturate"),
        castwise.cast(VALUES, dtype, out=np.empty(3, wanted)),
        castwise.cast_tree(tree, dtype)["a"],
        castwise.cast_tree(tree, {"a": dtype})["a"],
    ):
        assert found.dtype == wanted
    np.testing.assert_array_equal(castwise.cast(VALUES, dtype).view("u1"), array.view("u1"))


@pytest.mark.parametrize("dtype", [torch.bfloat16, jnp.bfloat16])
def test_the_other_dtype_arguments(dtype: Any, tmp_path: Path) -> None:
    path, raw = tmp_path / "w.safetensors", tmp_path / "raw.npz"
    checkpoint.save(path, {"w": VALUES})
    for options in ({"dtype": dtype}, {"dtype_map": {"w": dtype}}):
        checkpoint.cast_file(path, tmp_path / "out.safetensors", overwrite=True, **options)
        assert checkpoint.load(tmp_path / "out.safetensors")["w"].dtype == ml_dtypes.bfloat16
    np.savez(raw, w=VALUES.view("V2"))
    for assume in (dtype, {"w": dtype}):
        assert checkpoint.load(raw, assume=assume)["w"].dtype == ml_dtypes.bfloat16
    assert jmp.Policy(dtype, "float16", dtype).param_dtype == ml_dtypes.bfloat16
    assert DTypePolicy(standardize_dtype(dtype)).compute_dtype == "bfloat16"
    found, _ = unscale([VALUES.astype(ml_dtypes.bfloat16)], 2.0, dtype=dtype)
    assert found[0].dtype == ml_dtypes.bfloat16


def test_delayed_scaling_takes_a_float8_of_torch() -> None:
    assert DelayedScaling(dtype=torch.float8_e4m3fn).dtype == ml_dtypes.float8_e4m3fn


@pytest.mark.parametrize("name", UNKNOWN)
def test_a_dtype_that_only_torch_has(name: str) -> None:
    dtype = TORCH[name]
    called = rf"(dtype=|key 'a': )torch\.{name}"
    message = rf"{called} is not a format castwise knows; castwise\.formats\(\) lists"
    for call in (
        lambda: castwise.cast(VALUES, dtype),
        lambda: castwise.finfo(dtype),
        lambda: castwise.cast_tree({"a": VALUES}, dtype),
        lambda: castwise.cast_tree({"a": VALUES}, {"a": dtype}),
    ):
        with pytest.raises(TypeError, match=message):
            call()


class Lookalike:
    """Prints as a dtype of torch, and is none."""

    def __str__(self) -> str:
        return "torch.float32"


def test_what_only_prints_as_a_dtype_is_refused() -> None:
    for value in (Lookalike(), torch.ones(1), torch.float16.to_complex, 3, object()):
        with pytest.raises(TypeError, match="is not a dtype; give a dtype of numpy, ml_dtypes, j"):
            castwise.cast(VALUES, value)
    with pytest.raises(TypeError, match="not a format castwise knows"):
        castwise.cast(VALUES, "torch.float33")


def test_torch_is_not_imported() -> None:
    code = (
        "import sys, castwise, numpy as np\n"
        "try: castwise.cast(np.ones(1), object())\n"
        "except TypeError: pass\n"
        "assert 'torch' not in sys.modules and 'jax' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
