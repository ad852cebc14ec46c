"""`like=` of files: the bits of another library, for each pair of formats that it rounds once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import castwise
import numpy as np
import pytest
from castwise import checkpoint
from castwise.checkpoint import CheckpointError
from castwise.cli import main
from checkpoint_samples import assert_same

X = np.array([[1.0, 448.0, 464.0, 1e6], [-1e6, -0.3, 2.0**-9, np.inf]], np.float32)
TENSORS = {
    "a.weight": X,
    "b.weight": (X / 64).astype("float16"),
    "counts": np.arange(4),
    "wide": np.linspace(-1, 1, 8),
}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "in.npz"
    checkpoint.save(path, TENSORS)
    return path


@pytest.mark.parametrize(
    "like", ["torch", "torch<2.12", "onnx", "onnxruntime", "jax", "numpy", "ml_dtypes<0.7"]
)
@pytest.mark.parametrize("target", ["float8_e4m3fn", "float8_e5m2", "bfloat16", "float8_e8m0fnu"])
def test_each_tensor_is_cast_as_an_array_is(
    source: Path, tmp_path: Path, like: Any, target: str
) -> None:
    out, kept = tmp_path / "out.npz", {"wide": "keep", "default": target}
    if target == "float8_e8m0fnu" and not like.startswith(("onnx", "numpy")):
        with pytest.raises(CheckpointError, match=f"like '{like}': '[ab].weight': no options give"):
            checkpoint.cast_file(source, out, dtype_map=kept, like=like, fail_on=())
        return
    summary = checkpoint.cast_file(source, out, dtype_map=kept, like=like, fail_on=())
    assert summary.options == {"like": like, "seed": None}
    found = checkpoint.load(out)
    for name in ("a.weight", "b.weight"):
        assert_same(found[name], castwise.cast(TENSORS[name], target, like=like))
    assert_same(found["counts"], TENSORS["counts"])
    assert checkpoint.verify(source, out, dtype_map=kept, like=like).equal
    if like == "torch" and target == "float8_e4m3fn":
        assert not checkpoint.verify(source, out, dtype_map=kept).equal


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"dtype": "bfloat16"}, "'wide': torch rounds float64 to bfloat16 twice, through float32"),
        ({"dtype": "float6_e2m3fn"}, "'a.weight': torch does not cast float32 to float6_e2m3fn"),
        ({"dtype": "float8_e8m0fnu"}, "'a.weight': no options give .*: it drops the sign"),
        (
            {"dtype": "float32", "like": "tensorflow"},
            "'wide': tensorflow makes 0 of subnormals, from float64 to float32",
        ),
        ({"overflow": "saturate"}, "overflow='saturate' does not go with like='torch', which"),
        ({"rounding": "stochastic"}, "rounding='stochastic' does not go with like='torch'"),
        ({"seed": 3}, "seed=3 does not go with like='torch'"),
        ({"like": "toch"}, "like='toch' is not known; did you mean 'torch'"),
    ],
)
def test_what_is_not_one_rounding_is_refused_before_the_work(
    source: Path, tmp_path: Path, options: dict[str, Any], said: str
) -> None:
    arguments: dict[str, Any] = {"dtype": "float16", "like": "torch", **options}
    for dry_run in (False, True):
        with pytest.raises((CheckpointError, ValueError), match=said):
            checkpoint.cast_file(source, tmp_path / "out.npz", dry_run=dry_run, **arguments)
    assert list(tmp_path.iterdir()) == [source]


def test_a_value_without_a_single_answer_ends_the_cast(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.npz"
    with pytest.raises(OverflowError, match=r"value 448\.0 at flat index 1 is beyond the range of"):
        checkpoint.cast_file(source, out, dtype_map={"a.weight": "int8"}, like="torch")
    checkpoint.cast_file(source, out, dtype_map={"wide": "int8"}, like="torch")
    assert_same(checkpoint.load(out)["wide"], TENSORS["wide"].astype(np.int8))


def test_parts_are_cast_alike(tmp_path: Path) -> None:
    source, whole, out = (tmp_path / f"{name}.safetensors" for name in ("in", "whole", "out"))
    checkpoint.save(source, {"a": np.tile(X, (100, 30)), "b": X})
    checkpoint.cast_file(source, whole, "float8_e4m3fn", like="torch")
    for number in (1, 2):
        checkpoint.cast_file(source, out, "float8_e4m3fn", like="torch", part=(number, 2))
    with pytest.raises(CheckpointError, match="holds parts of another conversion"):
        checkpoint.cast_file(source, out, "float8_e4m3fn", like="jax", part=(1, 2))
    checkpoint.finish(out)
    assert out.read_bytes() == whole.read_bytes()


def test_the_commands(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, maps = tmp_path / "out.npz", tmp_path / "map.toml"
    maps.write_text("wide = 'keep'\ndefault = 'float8_e4m3fn'")
    arguments = (str(source), str(out), "--map", str(maps))
    assert main(["cast", *arguments, "--like", "torch", "--exit-zero"]) == 0
    assert_same(checkpoint.load(out)["a.weight"], castwise.cast(X, "float8_e4m3fn", like="torch"))
    assert main(["verify", *arguments, "--like", "torch"]) == 0
    assert main(["verify", *arguments]) == 1
    capsys.readouterr()
    command = ["cast", str(source), str(out), "--dtype", "bf16", "--overwrite", "--like", "torch"]
    assert main(command) == 2
    said = capsys.readouterr().err
    assert "--like torch: 'wide': torch rounds float64 to bfloat16 twice, through float32" in said
    assert "so keep it by a map (--map), or leave --like out" in said
    assert main([*command, "--overflow", "saturate"]) == 2
    said = capsys.readouterr().err
    assert "--overflow saturate does not go with --like torch, which decides it; give one" in said
