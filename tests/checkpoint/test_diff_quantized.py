"""How a quantised checkpoint came of another one is named, and a conversion by a map is proved."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from castwise import checkpoint
from castwise.checkpoint import TensorDiff
from castwise.cli import main
from castwise.quantization import dequantize, quantize

BF16 = ml_dtypes.bfloat16
WEIGHT = "model.layers.0.mlp.up_proj.weight"


def weights(dtype: Any = BF16) -> Any:
    random = np.random.default_rng(11)
    rows = np.exp2(random.integers(-3, 3, (128, 1)))
    return (random.standard_normal((128, 256)) * 0.02 * rows).astype(dtype)


def saved(path: Path, array: Any) -> Path:
    checkpoint.save(path, {WEIGHT: array}, overwrite=True)
    return path


def compared(a: Path, b: Path) -> TensorDiff:
    (tensor,) = checkpoint.diff(a, b).tensors
    return tensor


@pytest.mark.parametrize("rule", ["floor", "rceil", "ceil", "even"])
@pytest.mark.parametrize("scheme", ["mxfp8_e4m3", "mxfp4"])
def test_scale_rules(tmp_path: Path, scheme: Any, rule: Any) -> None:
    array = weights()
    values = dequantize(quantize(array, scheme, scale_rule=rule), BF16)
    explanation = compared(
        saved(tmp_path / "a.safetensors", array), saved(tmp_path / "b.safetensors", values)
    ).explanation
    assert explanation is not None
    assert explanation.every_element
    options = explanation.options
    assert (options["scheme"], options["passes"]) == (scheme, 1)
    again = quantize(array, scheme, recipe=options["recipe"], scale_rule=options["scale_rule"])
    assert dequantize(again, BF16).tobytes() == values.tobytes()
    assert options["scale_rule"] == rule


@pytest.mark.parametrize("scheme", ["mxfp8_e4m3", "nvfp4", "fp8_block", "int4_group"])
def test_a_quantised_file(tmp_path: Path, scheme: Any) -> None:
    source, out = saved(tmp_path / "a.safetensors", weights()), tmp_path / "b.safetensors"
    checkpoint.quantize_file(source, out, scheme)
    tensor = compared(source, out)
    assert tensor.quantized == (False, True)
    assert tensor.explanation is not None
    assert tensor.explanation.every_element
    assert tensor.explanation.options["scheme"] == scheme


def test_a_scheme_that_is_wrong_from_some_row_on(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    array = (random.standard_normal((1024, 640)) * 0.02).astype(BF16)
    values = dequantize(quantize(array, "fp8_block"), np.float32).reshape(-1)
    wrong = (np.arange(values.size) > 200_000) & (random.random(values.size) < 0.3)
    values = np.where(wrong, values * np.float32(1.02), values).astype(BF16)
    a = saved(tmp_path / "a.safetensors", array)
    assert (
        compared(a, saved(tmp_path / "b.safetensors", values.reshape(1024, 640))).explanation
        is None
    )


@pytest.mark.parametrize("scheme", ["fp8_block", "mxfp4", "nvfp4"])
def test_where_the_sign_of_a_zero_is_another(tmp_path: Path, scheme: Any) -> None:
    array = weights()
    array[30, 7] = 0
    values = np.array(dequantize(quantize(array, scheme), BF16))
    values[30, 7] = -values[30, 7]
    explanation = compared(
        saved(tmp_path / "a.safetensors", array), saved(tmp_path / "b.safetensors", values)
    ).explanation
    assert explanation is not None
    assert (explanation.disagreeing, explanation.index) == (1, (30, 7))


def changed_scales(tmp_path: Path, change: Any) -> tuple[Path, Path]:
    source, first = saved(tmp_path / "s.safetensors", weights()), tmp_path / "a.safetensors"
    checkpoint.quantize_file(source, first, "mxfp8_e4m3")
    tensors, metadata = checkpoint.load(first), checkpoint.metadata(first)
    (scale,) = (name for name in tensors if "scale" in name)
    tensors[scale] = change(tensors[scale].copy())
    checkpoint.save(tmp_path / "b.safetensors", tensors, metadata=metadata)
    return first, tmp_path / "b.safetensors"


def test_every_block_scale_one_code_lower(tmp_path: Path) -> None:
    tensor = compared(*changed_scales(tmp_path, lambda scale: scale - 1))
    assert tensor.explanation is not None
    assert "every block scale one code lower" in str(tensor.explanation)
    assert tensor.explanation.options == {"scale_shift": -1}
    assert tensor.scale_shifts == {-1: 1024}


def test_some_block_scales_one_code_higher(tmp_path: Path) -> None:
    def change(scale: Any) -> Any:
        scale[5, 3:6] += 1
        return scale

    paths = changed_scales(tmp_path, change)
    assert compared(*paths).scale_shifts == {0: 1021, 1: 3}
    assert "3 of 1,024 block scales one code higher" in str(checkpoint.diff(*paths))


def test_scales_rounded_after_the_codes_were_computed(tmp_path: Path) -> None:
    source, first = saved(tmp_path / "s.safetensors", weights()), tmp_path / "a.safetensors"
    checkpoint.quantize_file(source, first, "fp8_block")
    tensors, metadata = checkpoint.load(first), checkpoint.metadata(first)
    (scale,) = (name for name in tensors if "scale" in name)
    tensors[scale] = np.exp2(np.ceil(np.log2(tensors[scale]))).astype(np.float32)
    checkpoint.save(tmp_path / "b.safetensors", tensors, metadata=metadata)
    explanation = compared(source, tmp_path / "b.safetensors").explanation
    assert explanation is not None
    assert explanation.every_element
    assert (explanation.options["scheme"], explanation.options["late_scale"]) == (
        "fp8_block",
        "ceil",
    )


def test_quantised_twice(tmp_path: Path) -> None:
    """bf16 -> MXFP8 -> bf16 -> MXFP8, the second time with another rule."""
    array = weights()
    once = dequantize(quantize(array, "mxfp8_e4m3", scale_rule="rceil"), BF16)
    twice = quantize(once, "mxfp8_e4m3", recipe="compressed-tensors", scale_rule="floor")
    first = saved(tmp_path / "a.safetensors", once)
    second = saved(tmp_path / "b.safetensors", dequantize(twice, BF16))
    explanation = compared(first, second).explanation
    assert explanation is not None
    assert explanation.every_element
    assert explanation.options["scale_rule"] == "floor"


def converted(tmp_path: Path, text: str, **options: Any) -> tuple[Path, Path, Path]:
    source = tmp_path / "a.safetensors"
    tensors = {WEIGHT: weights(np.float32), "bias": np.linspace(0, 1, 50, dtype=np.float32)}
    checkpoint.save(source, tensors)
    dtypes, out = tmp_path / "map.toml", tmp_path / "b.safetensors"
    dtypes.write_text(text)
    if "mx" in text:
        checkpoint.quantize_file(source, out, dtype_map=dtypes)
    else:
        checkpoint.cast_file(source, out, dtype_map=dtypes, **options)
    return source, out, dtypes


CAST = "default = 'bfloat16'\nbias = 'keep'\n"


@pytest.mark.parametrize(
    "options",
    [{}, {"rounding": "towards-zero"}, {"rounding": "stochastic", "seed": 5}],
    ids=["plain", "rounding", "stochastic"],
)
def test_a_conversion_is_proved(tmp_path: Path, options: dict[str, Any]) -> None:
    source, out, dtypes = converted(tmp_path, CAST, **options)
    proof = checkpoint.verify(source, out, dtype_map=dtypes, **options)
    assert proof.equal
    assert proof.statement is not None
    for path in (source, out, dtypes):
        assert f"{path} sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}" in proof.statement
    assert "2 tensors, 1 converted, 32,818 values, 0 differences" in proof.statement
    assert json.loads(json.dumps(proof.to_dict()))["conversion"]["cast"] == 1
    with pytest.raises(checkpoint.CheckpointError, match="without the seed"):
        checkpoint.verify(source, out, dtype_map=dtypes, rounding="stochastic")
    assert not checkpoint.verify(source, out, dtype_map={"default": "float16"}).equal
    others = {"overflow": "ieee"} if options else {"rounding": "towards-zero"}
    assert not checkpoint.verify(source, out, dtype_map=dtypes, **others).equal


def test_a_quantisation_is_proved(tmp_path: Path) -> None:
    source, out, dtypes = converted(tmp_path, "default = 'mxfp8_e4m3'\n")
    assert checkpoint.verify(source, out, dtype_map=dtypes).equal
    tensors, metadata = checkpoint.load(out), checkpoint.metadata(out)
    (scale,) = (name for name in tensors if "scale" in name)
    tensors[scale][3, 2] ^= 1
    checkpoint.save(out, tensors, metadata=metadata, overwrite=True)
    proof = checkpoint.verify(source, out, dtype_map=dtypes)
    (difference,) = proof.differences
    assert (difference.name, difference.index) == (scale, (3, 2))
    assert "is not what" in str(proof.statement)


def test_options_go_with_a_map(tmp_path: Path) -> None:
    source, out, _ = converted(tmp_path, CAST)
    with pytest.raises(checkpoint.CheckpointError, match="rounding: options of a cast go with"):
        checkpoint.verify(source, out, rounding="towards-zero")
    assert checkpoint.verify(source, source).statement is None


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, out, dtypes = map(str, converted(tmp_path, CAST, rounding="towards-zero"))
    arguments = ["verify", source, out, "--map", dtypes]
    assert main([*arguments, "--rounding", "towards-zero"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith(f"{out} sha256:")
    assert main(arguments) == 1
    assert " is not what " in capsys.readouterr().out
    assert main([*arguments, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["conversion"]["options"]["rounding"] is None
