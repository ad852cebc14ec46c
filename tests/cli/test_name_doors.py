"""A name means the same at every door, or is refused there in the same words."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import castwise
import numpy as np
import pytest
from castwise import checkpoint, dtype_policies, loss_scale, quantization
from castwise.cli import main
from castwise.compat.tf_keras import mixed_precision
from checkpoint_samples import floats
from support import AVAILABLE

Door = Callable[[str], str]
X = np.ones(2, np.float32)
LIBRARIES = ("torch", "ml_dtypes", "jnp", "jax.numpy", "numpy", "np", "tf")
SPELLINGS = [
    (spelling, row.name)
    for row in AVAILABLE
    for info in (castwise.finfo(row.name),)
    for spelling in dict.fromkeys(
        (
            row.name,
            *info.aliases,
            row.name.upper(),
            *filter(None, (info.safetensors,)),
            *(f"{library}.{row.name}" for library in LIBRARIES),
        )
    )
]
"""Every name of the table that the installed ml_dtypes has a dtype for, with its format."""

OF_NUMPY = (
    *("f8", "f4", "f2", "i8", "i4", "i2", "i1", "u8", "u4", "u2", "u1", "c16", "c8", "<f4", ">i2"),
    *("float", "int", "complex", "long", "short", "byte", "ubyte", "uint", "intp", "longlong"),
    *("e", "f", "d", "b", "B", "h", "H", "i", "I", "q", "Q", "?", "F", "D", "csingle", "cdouble"),
)
"""Names that numpy has beside those of the table."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("doors") / "model.safetensors"
    checkpoint.save(path, {"w": floats(64 * 64).reshape(64, 64)})
    return path


def of_arrays() -> dict[str, Door]:
    """The doors of arrays, where numpy's names are taken as `astype` takes them."""
    return {
        "cast": lambda name: castwise.cast(X, name).dtype.name,
        "caster": lambda name: castwise.caster("float32", name)(X).dtype.name,
        "cast_tree": lambda name: castwise.cast_tree([X], name)[0].dtype.name,
        "cast_tree, map": lambda name: castwise.cast_tree({"a": X}, {"a": name})["a"].dtype.name,
        "explain_cast": lambda name: castwise.explain_cast("float32", name).split()[2],
        "finfo": lambda name: castwise.finfo(name).name,
    }


def of_checkpoints(model: Path, folder: Path) -> dict[str, Door]:
    """The doors of checkpoints, in Python and on the command line."""
    out, map_file = folder / "out.npz", folder / "map.json"

    def target(**options: Any) -> str:
        options = {"as_bytes": True, "dry_run": True, **options}
        return str(checkpoint.cast_file(model, out, **options).rows[0].target)

    def by_file(name: str) -> str:
        map_file.write_text(json.dumps({"w": name}))
        return target(dtype_map=map_file)

    return {
        "cast_file": lambda name: target(dtype=name),
        "cast_file, map": lambda name: target(dtype_map={"w": name}),
        "cast_file, default": lambda name: target(dtype_map={"default": name}),
        "cast_file, file": by_file,
        "quantize_file, map": lambda name: str(
            checkpoint.quantize_file(
                model,
                folder / "out.safetensors",
                dtype_map={"w": name, "x": "fp8_block"},
                scheme="fp8_block",
                dry_run=True,
            )
            .rows[0]
            .target
        ),
    }


@pytest.fixture
def typed(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Door:
    """What `castwise cast --dtype` makes of a name, or the error that it prints."""

    def run(name: str) -> str:
        arguments = ["cast", str(model), str(tmp_path / "out.npz"), f"--dtype={name}"]
        code = main([*arguments, "--dry-run", "--json", "--as-bytes"])
        printed = capsys.readouterr()
        if code:
            raise TypeError(printed.err.strip())
        return str(json.loads(printed.out)["tensors"][0]["to"])

    return run


@pytest.mark.thinned(11)
@pytest.mark.parametrize(("name", "row"), SPELLINGS)
def test_a_name_of_the_table_is_the_same_format_at_every_door(
    model: Path, tmp_path: Path, typed: Door, name: str, row: str
) -> None:
    doors = of_arrays() | of_checkpoints(model, tmp_path) | {"--dtype": typed}
    del doors["quantize_file, map"]  # which writes no format without a code in safetensors
    if castwise.finfo(row).kind == "complex":  # whose parts are explained
        del doors["explain_cast"]
    found = {door: read(name) for door, read in doors.items()}
    assert found == dict.fromkeys(found, row)


@pytest.mark.thinned(3)
@pytest.mark.parametrize("name", OF_NUMPY)
def test_numpys_names_are_for_arrays_and_refused_alike_for_checkpoints(
    model: Path, tmp_path: Path, typed: Door, name: str
) -> None:
    meant = castwise.finfo(np.dtype(name)).name
    for door, read in of_arrays().items():
        if castwise.finfo(meant).kind != "complex" or door != "explain_cast":
            assert read(name) == meant, door
    doors = of_checkpoints(model, tmp_path) | {"--dtype": typed}
    doors["dequantize_file"] = lambda name: str(checkpoint.dequantize_file(model, "x", name))
    doors["verify"] = lambda name: str(checkpoint.verify(model, model, dtype=name))
    doors["load"] = lambda name: str(checkpoint.load(model, assume=name))
    said = set()
    for door, read in doors.items():
        with pytest.raises(TypeError) as refused:
            pytest.fail(f"{door} takes {name!r} as {read(name)}")
        said.add(str(refused.value).partition("for arrays, but not for checkpoints: ")[2])
    (words,) = said
    assert repr(name) in words
    assert f"write {meant!r}" in words
    checkpoint.cast_file(model, tmp_path / "out.npz", np.dtype(name), dry_run=True)


NEAR = {
    "fp8x": ['"float8_e4m3fn"'],
    "fp8_e4m3": ['"float8_e4m3fn"', '"float8_e4m3"'],
    "fp8_e5m2": ['"float8_e5m2"'],
    "bf-16": ['"bfloat16"'],
    "bfp16": ['"bfloat16"'],
    "brain16": [],
    "fp-16": ['"float16"'],
    "float_32": ['"float32"'],
    "torch.bfloat61": ['"bfloat16"'],
    "fp6": ['"float6_e2m3fn"', '"float6_e3m2fn"'],
    "e2m1": ['"float4_e2m1fn"'],
    "ue8m0": ['"float8_e8m0fnu"'],
    "mixed_bf16": ['the dtype policy "mixed_bfloat16"'],
    "mixed_fp16": ['the dtype policy "mixed_float16"'],
    "nvfp5": ['the scheme "nvfp4"'],
    "nf4": ['the scheme "bnb_nf4"'],
    "mxfp8": ['the scheme "mxfp8_e4m3"', 'the scheme "mxfp8_e5m2"'],
    "no such thing": [],
}


@pytest.mark.parametrize("name", NEAR)
def test_what_a_wrong_name_may_mean_is_said_alike(
    model: Path, tmp_path: Path, typed: Door, name: str
) -> None:
    asked = f" Did you mean {' or '.join(NEAR[name])}?" if NEAR[name] else ""
    doors = of_arrays() | of_checkpoints(model, tmp_path) | {"--dtype": typed}
    for door, read in doors.items():
        with pytest.raises(TypeError) as refused:
            pytest.fail(f"{door} takes {name!r} as {read(name)}")
        said = str(refused.value)
        called = f"--dtype {name}" if door == "--dtype" else f'"{name}"'
        assert f"{called} is not a format castwise knows.{asked}" in said, door
        assert asked or "Did you mean" not in said, door


def refusals(*doors: Callable[[], Any]) -> Iterator[str]:
    for door in doors:
        with pytest.raises((TypeError, ValueError)) as refused:
            pytest.fail(f"taken as {door()}")
        yield str(refused.value)


def test_names_of_other_things_say_where_they_go(model: Path, tmp_path: Path) -> None:
    out, weight = tmp_path / "out.safetensors", floats(64 * 64).reshape(64, 64)
    for said in refusals(
        lambda: castwise.cast(X, "nvfp4"), lambda: checkpoint.cast_file(model, out, "nvfp4")
    ):
        assert "It is a scheme, which stores scales, too" in said
    for said in refusals(
        lambda: castwise.cast(X, "mixed_bfloat16"), lambda: castwise.finfo("mixed_bfloat16")
    ):
        assert 'give what it computes in, "bfloat16", or stores, "float32"' in said
    for said in refusals(
        lambda: checkpoint.quantize_file(model, out, "fp8"),
        lambda: quantization.quantize(weight, "fp8"),
    ):
        assert "'fp8' is a format, float8_e4m3fn, and a scheme stores scales, too: did you" in said
        assert all(f"'fp8_{block}'" in said for block in ("block", "channel", "tensor"))
    for said in refusals(
        lambda: checkpoint.cast_file(model, out, "llama"),
        lambda: checkpoint.cast_file(model, out, policy="llama"),
    ):
        assert "'llama' is a map that says what to keep; give it as dtype_map, beside dtype" in said
    for said in refusals(
        lambda: checkpoint.cast_file(model, out, "bf16", dtype_map="fp8"),
        lambda: checkpoint.quantize_file(model, out, "fp8_block", dtype_map="fp8"),
    ):
        assert "there is no map 'fp8'; 'fp8' is a format, float8_e4m3fn, which a dtype" in said
    for said in refusals(
        lambda: checkpoint.cast_file(model, out, "bf16", dtype_map="gpt-oss"),
        lambda: checkpoint.quantize_file(model, out, "fp8_block", dtype_map="gpt-oss"),
    ):  # which is one of llama's
        assert "there is no map 'gpt-oss'; castwise has llama" in said
    for said in refusals(lambda: checkpoint.transcode_file(model, out, "model-opt")):
        assert "did you mean 'modelopt'? castwise transcodes to" in said
    for said in refusals(lambda: checkpoint.transcode_file(model, out, "modelopt", scheme="fp8")):
        assert "'fp8' is a format, float8_e4m3fn, and a scheme stores scales, too: did you" in said


def test_a_map_has_a_name_for_cast_and_for_quantize(model: Path, tmp_path: Path) -> None:
    source, out = tmp_path / "source.safetensors", tmp_path / "out.safetensors"
    weight = floats(64 * 64).reshape(64, 64)
    names = ("model.layers.0.mlp.up_proj.weight", "model.layers.0.input_layernorm.weight")
    checkpoint.save(source, {names[0]: weight, names[1]: weight[0]})
    for run in (
        lambda name: checkpoint.cast_file(source, out, "fp8", dtype_map=name, overwrite=True),
        lambda name: checkpoint.quantize_file(source, out, "mxfp4", dtype_map=name, overwrite=True),
    ):
        summary = run("llama")
        assert summary.unused_patterns == {}
        assert {row.name for row in summary.rows if row.target is None} == {names[1]}
        assert any(row.target is not None for row in summary.rows)
        for wrong, near in (("lama", "'llama'"), ("gpt-2", "'gpt2'"), ("BERT", "'bert'")):
            with pytest.raises(checkpoint.CheckpointError, match=f"did you mean {near}"):
                run(wrong)


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("fp8", "float8_e4m3fn"),
        ("bf16", "bfloat16"),
        ("half", "float16"),
        ("torch.bfloat16", "bfloat16"),
        ("mixed_bf16", "mixed_bfloat16"),
        ("mixed_fp16", "mixed_float16"),
        ("flaot32", "float32"),
    ],
)
def test_policies_keep_to_the_names_of_their_systems(name: str, near: str) -> None:
    """They take what Keras and TensorFlow take, and say what castwise's names are called there."""
    doors = [dtype_policies.DTypePolicy, dtype_policies.get, castwise.config.set_dtype_policy]
    if name != "half":  # TensorFlow has that name
        doors.append(mixed_precision.Policy)
    for said in refusals(*(lambda door=door: door(name) for door in doors)):
        assert f"Did you mean '{near}'?" in said
    for said in refusals(lambda: dtype_policies.get("float8_e4m3")):
        assert "Keras, which has no dtype for castwise's float8_e4m3" in said


def test_dtypes_of_scalers_are_names_of_the_table() -> None:
    scaling = loss_scale.DelayedScaling(dtype="fp8")
    assert scaling.dtype == loss_scale.DelayedScaling(dtype="float8_e4m3fn").dtype
    grads, _ = loss_scale.unscale([X], 2.0, dtype="torch.bfloat16")
    assert grads[0].dtype.name == "bfloat16"
