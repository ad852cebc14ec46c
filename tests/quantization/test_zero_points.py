"""Zero points of checkpoints that castwise quantizes, as those of arrays."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from castwise import checkpoint
from castwise.checkpoint import CheckpointError
from castwise.checkpoint.planning.encode import encoded_weight
from castwise.cli import main
from castwise.quantization import quantize
from oracle import Array

CT = "compressed-tensors"
# Rows that are no multiple of those whose zero points a word holds, and one row alone.
SHAPES = {"a": (64, 256), "b": (13, 384), "c": (1, 128), "d": (7, 128)}


def weights(dtype: Any) -> dict[str, Array]:
    """Matrices whose elements lie around 0.1, so that zero points matter."""
    rng = np.random.default_rng(2)
    return {
        f"{name}.weight": (rng.standard_normal(shape) + 0.1).astype(dtype)
        for name, shape in SHAPES.items()
    }


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "model"
    path.mkdir()
    checkpoint.save(path / "model.safetensors", weights(ml_dtypes.bfloat16))
    (path / "config.json").write_text("{}")
    return path


@pytest.fixture(params=[4 << 20, 1 << 11], ids=["whole", "slabs"])
def _room(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let slabs be as long as usual, or some rows."""
    monkeypatch.setattr(encoded_weight, "_FLIGHT_ELEMENTS", request.param)


@pytest.mark.usefixtures("_room")
@pytest.mark.parametrize("scales", ["amax", "best"])
@pytest.mark.parametrize("scheme", ["int4_group", "int8_group"])
def test_parts_are_those_of_arrays(tmp_path: Path, source: Path, scheme: Any, scales: Any) -> None:
    out, options = tmp_path / "out", {"scales": scales, "recipe": CT}
    checkpoint.quantize_file(source, out, scheme, zero_points=True, threads=2, **options)
    found = checkpoint.load(out)
    for name, array in weights(ml_dtypes.bfloat16).items():
        q = quantize(array, scheme, symmetric=False, **options)  # type: ignore[call-overload]
        assert "weight_zero_point" in q.parts()
        for key, part in q.parts().items():
            np.testing.assert_array_equal(found[name.replace("weight", key)], part, key)
    assert checkpoint.verify(
        source, out, dtype_map={"default": scheme}, zero_points=True, **options
    ).equal
    assert not checkpoint.verify(source, out, dtype_map={"default": scheme}, **options).equal
    (row, *_) = [row for row in checkpoint.diff(source, out).tensors if row.different]
    assert row.explanation is not None
    assert row.explanation.options["symmetric"] is False
    assert "with zero points" in str(row.explanation)


def test_zero_points_lower_the_error(tmp_path: Path, source: Path) -> None:
    errors = []
    for zero_points in (False, True):
        out = tmp_path / str(zero_points)
        summary = checkpoint.quantize_file(
            source, out, "int4_group", recipe=CT, zero_points=zero_points
        )
        assert summary.total is not None
        errors.append(summary.total.sqnr_db)
        assert summary.options.get("zero_points", False) is zero_points
        section = json.loads((out / "config.json").read_text())["quantization_config"]
        (group,) = section["config_groups"].values()
        assert group["weights"]["symmetric"] is not zero_points
    assert errors[1] > errors[0] + 0.3


def test_other_schemes_of_a_map_have_none(tmp_path: Path, source: Path) -> None:
    mapping: Any = {"default": "int4_group", "a.weight": "fp8_channel"}
    out = tmp_path / "out"
    checkpoint.quantize_file(source, out, dtype_map=mapping, recipe=CT, zero_points=True)
    names = {name for name in checkpoint.load(out) if name.endswith("zero_point")}
    assert names == {f"{name}.weight_zero_point" for name in "bcd"}


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"scheme": "nvfp4"}, "zero_points=True: .* stores nvfp4 without zero points; leave it"),
        ({"scheme": "int4_group", "recipe": "modelopt"}, "or use int4_group, int8_group of compr"),
        (
            {"scheme": "int4_group", "inputs": "dynamic"},
            "zero points beside inputs='dynamic'; leave out zero_points or inputs$",
        ),
        ({"scheme": "int4_channel"}, "stores int4_channel without zero points"),
        (
            {"scheme": "fp8_channel", "inputs": "dynamic"},
            "leave it out, or use int4_group, int8_group of compressed-tensors, without inputs$",
        ),
    ],
)
def test_what_has_no_zero_points(
    tmp_path: Path, source: Path, options: dict[str, Any], text: str
) -> None:
    with pytest.raises(CheckpointError, match=text):
        checkpoint.quantize_file(
            source, tmp_path / "out", **{"recipe": CT, "zero_points": True, **options}
        )
    assert not (tmp_path / "out").exists()


def test_only_switches_are_taken(tmp_path: Path, source: Path) -> None:
    value: Any = "yes"
    with pytest.raises(TypeError, match="zero_points"):
        checkpoint.quantize_file(source, tmp_path / "out", "int4_group", zero_points=value)


def test_the_command(tmp_path: Path, source: Path) -> None:
    out, map_file = tmp_path / "out", tmp_path / "map.json"
    map_file.write_text('{"default": "int4_group"}')
    options = ["--map", str(map_file), "--recipe", CT]
    assert main(["quantize", str(source), str(out), *options, "--zero-points", "--quiet"]) == 0
    verify = ["verify", str(source), str(out), *options, "--quiet"]
    assert main([*verify, "--zero-points"]) == 0
    assert main(verify) == 1
