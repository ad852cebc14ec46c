"""Keras has no mixed policy of float8, and never will; the refusal says why and what to do.

So its maintainers answered in keras-team/keras#23479.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import pytest
from castwise import DTypePolicy, config, dtype_policies
from castwise.cli import main
from castwise.compat import tf_keras

NAMES = {
    "mixed_float8": "float8",
    "mixed_float8_e4m3fn": "float8",
    "mixed_float8_e5m2": "float8",
    "mixed_fp8": "float8",
    "Mixed_Float8": "float8",
    "mixed_int8": "int8",
    "mixed_int4": "int4",
}
OTHERS = ("mixed_float8x", "mixed_float16_e4m3fn", "mixed_uint8", "mixed_gptq", "mixed_", "float8")


def refusal(name: str) -> str:
    with pytest.raises(ValueError, match=f'^policy="{name}" is not a policy of Keras') as raised:
        DTypePolicy(name)
    return str(raised.value)


@pytest.mark.parametrize("name", NAMES)
def test_the_reason_and_the_remedy(name: str) -> None:
    mode = NAMES[name]
    said = refusal(name)
    assert f": {mode} needs scales, which only a quantized layer has. " in said
    assert f"Set 'mixed_bfloat16' and quantize the built model, model.quantize(\"{mode}\")" in said
    # What the remedy says is a policy here.
    policy = dtype_policies.get(said.split("'")[-2])
    assert (policy.quantization_mode, policy.compute_dtype) == (mode, "bfloat16")


@pytest.mark.parametrize("name", OTHERS)
def test_other_names_are_refused_as_before(name: str) -> None:
    assert "needs scales" not in refusal(name)


def test_wherever_a_policy_is_named() -> None:
    for call in (
        dtype_policies.get,
        config.set_dtype_policy,
        dtype_policies.DTypePolicyMap,
        lambda name: dtype_policies.QuantizedDTypePolicy("int8", name),
    ):
        with pytest.raises((ValueError, TypeError), match="float8 needs scales"):
            call("mixed_float8")


def test_systems_without_quantization_keep_their_refusal() -> None:
    with pytest.raises(ValueError, match="is not a policy of TensorFlow") as raised:
        tf_keras.mixed_precision.Policy("mixed_float8")
    assert "needs scales" not in str(raised.value)


def test_the_command_line(capsys: pytest.CaptureFixture[str], tmp_path: object) -> None:
    assert main(["cast", "model.safetensors", f"{tmp_path}/x", "--policy", "mixed_float8"]) == 2
    assert "float8 needs scales" in capsys.readouterr().err


def test_the_remedy_is_kerass(framework: Callable[[str], ModuleType]) -> None:
    keras = framework("keras")
    with pytest.raises(ValueError, match="mixed_float8"):
        keras.dtype_policies.get("mixed_float8")
    layer = keras.layers.Dense(2, dtype="mixed_bfloat16")
    layer.build((None, 4))
    layer.quantize("float8")
    assert refusal("mixed_float8").split("'")[-2] == layer.dtype_policy.name
