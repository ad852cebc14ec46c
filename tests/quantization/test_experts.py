"""Experts in one tensor, as ModelOpt and ComfyUI store them: what is wrong with one is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from castwise import checkpoint
from castwise.checkpoint import CheckpointError
from castwise.cli import main
from castwise.quantization import QuantizedArray, dequantize, quantize
from checkpoint_samples import assert_same
from producer_models import MODELS, MORE, Decodable, write

EXPERTS = "mlp.experts.gate_up_proj"
SCALE = f"{EXPERTS}_weight_scale"
NVFP4 = "modelopt, experts of nvfp4"
ALL = MODELS | MORE


def changed(model: Decodable, **tensors: Any) -> Decodable:
    for key, change in tensors.items():
        model.tensors[key] = np.ascontiguousarray(change(model.tensors[key]))
    return model


def marked(array: Any) -> Any:
    return np.frombuffer(array.tobytes().replace(b"3", b"4"), np.uint8)


FAULTS: dict[str, tuple[str, dict[str, Any], tuple[str, ...]]] = {
    "transposed": (
        NVFP4,
        {SCALE: lambda one: one.swapaxes(1, 2)},
        (EXPERTS, "need a scale of shape (3, 4, 96), and it has (3, 96, 4)"),
    ),
    "an expert fewer": (
        NVFP4,
        {SCALE: lambda one: one[:2]},
        (EXPERTS, "need a scale of shape (3, 4, 96), and it has (2, 4, 96)"),
    ),
    "a global scale fewer": (
        NVFP4,
        {f"{SCALE}_2": lambda one: np.repeat(one, 2)},
        (f"{SCALE}_2", "(2,)"),
    ),
    "one axis": (
        "modelopt, experts of mxfp4",
        {EXPERTS: np.ravel, SCALE: np.ravel},
        (EXPERTS, "(9216,), which is not a matrix"),
    ),
    "no JSON": (
        "comfy, experts",
        {"b.comfy_quant": lambda one: one[:-1]},
        ("'b.comfy_quant' is not JSON of an object", "model"),
    ),
    "rows or columns": (
        "modelopt, experts of each",
        {SCALE: lambda one: np.ones((3, 64), np.float32)},
        (SCALE, "the rows or of the columns"),
    ),
    "a scale fewer": (
        "modelopt, experts of each",
        {SCALE: lambda one: one[:2]},
        (SCALE, "(2,)"),
    ),
    "experts of another number": (
        "comfy, experts",
        {"a.comfy_quant": marked},
        ("a.comfy_quant", "num_experts=4", "(3, 144, 40)"),
    ),
    "biases of another number": (
        "comfy, experts",
        {"a.bias": lambda one: one[:2]},
        ("a.bias", "(2, 136)"),
    ),
    "tiles of one expert fewer": (
        "comfy, experts",
        {"b.weight_scale": lambda one: one[:2]},
        ("b.weight_scale", "(2, 256, 4)"),
    ),
}


@pytest.mark.thinned(3)
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    kind, tensors, parts = FAULTS[name]
    folder = write(tmp_path / "model", changed(ALL[kind](), **tensors))
    assert main(["dequantize", str(folder), str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert all(part in said for part in parts), said
    assert not (tmp_path / "out").exists()


@pytest.mark.thinned(3)
@pytest.mark.parametrize("name", MORE)
def test_others_are_decoded(tmp_path: Path, name: str) -> None:
    model = MORE[name]()
    checkpoint.dequantize_file(write(tmp_path / "model", model), tmp_path / "out")
    (plain,) = model.plain
    assert_same(checkpoint.load(tmp_path / "out")[plain], model.plain[plain])


def test_factors_of_inputs_are_refused(tmp_path: Path) -> None:
    for place, name in enumerate((NVFP4, "modelopt, experts of each")):
        model = ALL[name]()
        model.tensors[f"{EXPERTS}_pre_quant_scale"] = np.ones(64, np.float32)
        with pytest.raises(CheckpointError, match=f"'{EXPERTS}_pre_quant_scale'"):
            checkpoint.dequantize_file(write(tmp_path / str(place), model), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_scales_of_a_name_without_codes_are_missed(tmp_path: Path) -> None:
    """Codes of 4 bits look like any other bytes, so that only their scales tell what they are."""
    model = MORE["modelopt, experts of mxfp4"]()
    del model.tensors[EXPERTS]
    found = checkpoint.inspect(write(tmp_path / "model", model)).quantization
    assert found is not None
    assert {(one.name, one.missing) for one in found.orphans} == {
        (SCALE, (EXPERTS,)),
        (f"{EXPERTS}_input_scale", (EXPERTS,)),
    }


@pytest.mark.parametrize("recipe", ["modelopt", "compressed-tensors", "comfy"])
def test_each_matrix_has_a_global_scale(recipe: str) -> None:
    x = np.random.default_rng(0).normal(size=(3, 32, 64)).astype(np.float32)
    levels = np.float32([1, 2, 0.5])
    parts = dict(quantize(x, "nvfp4", recipe=recipe).parts())
    name = next(one for one in parts if one.endswith(("_scale_2", "global_scale")))
    parts[name] = parts[name].reshape(-1) * levels
    q = QuantizedArray.from_parts(parts, recipe)
    for dtype in ("float32", "bfloat16"):
        found = dequantize(q, dtype)
        for place in range(3):
            own = {key: one[place] for key, one in parts.items() if key != "comfy_quant"}
            if recipe == "comfy":
                own["comfy_quant"] = parts["comfy_quant"]
            assert_same(found[place], dequantize(QuantizedArray.from_parts(own, recipe), dtype))


def test_transcode(tmp_path: Path) -> None:
    """NVFP4 lies along the inputs, and is (out, in) in compressed-tensors, as gpt-oss' MXFP4 is."""
    model = MODELS[NVFP4]()
    model.tensors[f"{SCALE}_2"] = np.float32(2**-7).reshape(())
    source, out = write(tmp_path / "model", model), tmp_path / "out"
    checkpoint.transcode_file(source, out, "compressed-tensors")
    found = checkpoint.load(out)
    for part, name in (("packed", EXPERTS), ("scale", SCALE)):
        turned = np.ascontiguousarray(model.tensors[name].swapaxes(1, 2))
        assert_same(found[f"{EXPERTS}.weight_{part}"], turned)
    assert_same(found[f"{EXPERTS}.weight_global_scale"], np.float32([2**7]))
    (groups,) = json.loads((out / "config.json").read_text())["quantization_config"][
        "config_groups"
    ].values()
    assert groups["weights"]["strategy"] == "tensor_group"
    for one, to in ((source, "a"), (out, "b")):
        checkpoint.dequantize_file(one, tmp_path / to)
    plain, other = (checkpoint.load(tmp_path / to) for to in "ab")
    # By value: of ModelOpt, codes of 0 have no sign.
    own = other[f"{EXPERTS}.weight"].astype(np.float32).swapaxes(1, 2)
    np.testing.assert_array_equal(plain[EXPERTS].astype(np.float32), own)


@pytest.mark.parametrize(
    ("name", "match"),
    [
        ("modelopt, experts of each", "has a scale for each expert"),
        ("modelopt, experts of tensor", "stores each matrix by itself"),
        ("modelopt, experts of mxfp8", "the outputs of experts along its last axis"),
        ("comfy, experts", "'c.weight_scale' has a scale for each expert"),
    ],
)
def test_what_is_not_transcoded(tmp_path: Path, name: str, match: str) -> None:
    model = ALL[name]()
    model.tensors.pop(f"{EXPERTS}_input_scale", None)
    source = write(tmp_path / "model", model)
    with pytest.raises(CheckpointError, match=match):
        checkpoint.transcode_file(source, tmp_path / "out", "compressed-tensors")
    assert not (tmp_path / "out").exists()
