"""What people try first is answered by what to call instead, and True is no number."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import castwise
import ml_dtypes
import numpy as np
import pytest
from castwise import checkpoint, loss_scale, quantization, surveys
from castwise.compat import torch

X = np.ones((4, 64), np.float32)
SEED = {"rounding": "stochastic", "seed": True}
OF_FILES = r"castwise\.checkpoint casts files \(cast_file\)"


class Model:
    """As torch's modules are."""

    def named_parameters(self) -> list[Any]:
        return []


class KerasModel:
    """As the models of Keras are."""

    def get_weights(self) -> list[Any]:
        return []


FIRST_TRIES: list[tuple[Callable[[], object], str]] = [
    (lambda: castwise.cast("model.safetensors", "bfloat16"), OF_FILES),
    (lambda: castwise.cast(Path("model"), "bfloat16"), f"a path; {OF_FILES}"),
    (lambda: castwise.cast(X, "float8_e4m3fn", scale="auto"), "give a number such as 2.0"),
    (lambda: castwise.survey("model.safetensors"), r"surveys them \(survey_file\)"),
    (lambda: castwise.cast_tree("model.safetensors", "bfloat16"), "cast_file casts files"),
    (lambda: castwise.cast_tree(Path("model"), "bfloat16"), "cast_file casts files"),
    (lambda: castwise.cast(Model(), "bfloat16"), r"adapters\.torch\.cast_module casts a module"),
    (lambda: castwise.cast(KerasModel(), "bfloat16"), r"adapters\.keras\.cast_model casts a"),
    (lambda: castwise.cast({"w": X}, "bfloat16"), "cast the arrays in it by castwise.cast_tree"),
    (lambda: castwise.survey({"w": X}), r"castwise\.survey\(array\) for name, array in x"),
    (lambda: castwise.cast(X, "Q8_0"), "is not a format .* It is a quantization of GGUF files"),
    (lambda: castwise.cast(X, "iq4_nl"), "It is a quantization of GGUF files"),
    (lambda: quantization.quantize(X, "q4_k_m"), "'q4_k_m' is a quantization of GGUF files"),  # type: ignore[arg-type]
    (
        lambda: castwise.cast(np.ones(2, "V2"), "float32"),
        r"such as x\.view\(ml_dtypes\.bfloat16\)",
    ),
    (
        lambda: castwise.cast(np.ones(2, "V1"), "float32"),
        r"such as x\.view\(ml_dtypes\.float8_e4m3fn\)",
    ),
]
if np.dtype(np.longdouble).itemsize > 8:
    FIRST_TRIES += [
        (
            lambda: castwise.cast(np.ones(2, np.longdouble), "float32"),
            r"give x\.astype\(numpy\.float64\), which may round",
        ),
        (
            lambda: castwise.cast(np.ones(2, np.clongdouble), "complex64"),
            r"give x\.astype\(numpy\.complex128\)",
        ),
    ]


@pytest.mark.parametrize(("call", "words"), FIRST_TRIES)
def test_a_first_try_is_told_what_to_call(call: Callable[[], object], words: str) -> None:
    with pytest.raises((TypeError, ValueError), match=words):
        call()


@pytest.mark.parametrize(
    ("module", "name", "words"),
    [
        ("castwise.checkpoint", "cast", "did you mean 'cast_file'"),
        ("castwise.checkpoint", "survey", "did you mean 'survey_file'"),
        ("castwise.checkpoint", "quantize", "did you mean 'quantize_file'"),
        ("castwise.checkpoint", "dequantize", "did you mean 'dequantize_file'"),
        ("castwise.checkpoint", "transcode", "did you mean 'transcode_file'"),
        ("castwise", "quantize", "use castwise.quantization.quantize"),
        ("castwise", "cast_file", "use castwise.checkpoint.cast_file"),
        ("castwise", "nothing", "has no attribute 'nothing'$"),
    ],
)
def test_a_name_of_another_place_is_told(module: str, name: str, words: str) -> None:
    with pytest.raises(AttributeError, match=words):
        getattr(importlib.import_module(module), name)


def test_names_that_are_told_are_there() -> None:
    for name, home in castwise._ELSEWHERE.items():
        assert callable(getattr(importlib.import_module(f"castwise.{home}"), name))


@pytest.mark.parametrize("name", ["e4m3", "E4M3", "fp8_e4m3"])
def test_a_name_of_two_formats_is_refused_with_both(name: str) -> None:
    """OCP's E4M3 is e4m3fn; that of ml_dtypes has infinity."""
    for call in (castwise.finfo, lambda name: castwise.cast(X, name)):
        with pytest.raises(TypeError, match=r'"float8_e4m3fn".* or "float8_e4m3"\?'):
            call(name)
    assert castwise.finfo("f8_e4m3").name == "float8_e4m3fn"  # as safetensors means it
    assert castwise.finfo("float8_e4m3").max == ml_dtypes.finfo(ml_dtypes.float8_e4m3).max


NUMBERS: dict[str, Callable[[], object]] = {
    "seed": lambda: castwise.cast(X, "bfloat16", **SEED),  # type: ignore[call-overload]
    "seed of a tree": lambda: castwise.cast_tree([X], "bfloat16", **SEED),  # type: ignore[arg-type]
    "scale": lambda: castwise.explain_cast(X, "float16", scale=True),
    "scale of a prediction": lambda: castwise.survey(X).predict("float16", scale=True),
    "shape of blocks": lambda: castwise.survey(X).blocks((True, 16)),
    "threads": lambda: castwise.compare(X, X, threads=True),
    "threads of a survey": lambda: castwise.survey(X, threads=True),
    "mebibytes": lambda: castwise.set_kept_memory(True),
    "scale of a loss": lambda: loss_scale.FixedLossScale(True),
    "growth_interval": lambda: loss_scale.DynamicLossScale(growth_interval=True),
    "amax_history_length": lambda: loss_scale.DelayedScaling(True),
    "margin": lambda: loss_scale.DelayedScaling(margin=True),
    "init_scale": lambda: torch.GradScaler(init_scale=True),
    "block": lambda: quantization.quantize(X, "fp8_block", block=(True, 64)),
    "amax": lambda: quantization.quantize(X, "nvfp4", amax=True),
    "axis": lambda: quantization.quantize(X, "mxfp4", axis=True),
    "bits": lambda: quantization.pack(X.astype(np.uint8), True),
    "every": lambda: surveys.GradientLog(every=True),
    "step": lambda: surveys.GradientLog(every=1).record(True, {"w": X}),
    "loss_scale": lambda: surveys.GradientLog(every=1).record(1, {"w": X}, loss_scale=True),
}
OF_FILE: dict[str, Callable[[Path, Path], object]] = {
    "part": lambda path, out: checkpoint.cast_file(path, out, "bf16", part=(True, True)),
    "max_shard_size": lambda path, out: checkpoint.cast_file(
        path, out, "bf16", max_shard_size=True
    ),
    "max_zeros": lambda path, out: checkpoint.cast_file(path, out, "bf16", max_zeros=True),
    "threads": lambda path, out: checkpoint.quantize_file(path, out, "fp8_block", threads=True),
    "block": lambda path, out: checkpoint.quantize_file(path, out, "fp8_block", block=True),
    "block of rows": lambda path, out: checkpoint.quantize_file(
        path, out, "fp8_block", block=(True, 64)
    ),
    "rtol": lambda path, _: checkpoint.diff(path, path, rtol=True),
    "atol": lambda path, _: checkpoint.diff(path, path, atol=True),
    "budget": lambda path, _: checkpoint.advise(path, budget=True),
    "bits": lambda path, _: checkpoint.advise(path, bits=True),
    "error": lambda path, _: checkpoint.advise(path, error=True),
    "importance": lambda path, _: checkpoint.advise(path, bits=9, importance={"w.weight": True}),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_true_is_no_number(name: str) -> None:
    with pytest.raises((TypeError, ValueError), match=rf"{name.split(maxsplit=1)[0]}.*True"):
        NUMBERS[name]()


@pytest.mark.parametrize("name", OF_FILE)
def test_true_is_no_number_of_a_checkpoint(tmp_path: Path, name: str) -> None:
    path, out = tmp_path / "in.safetensors", tmp_path / "out.safetensors"
    checkpoint.save(path, {"w.weight": X})
    with pytest.raises((TypeError, ValueError), match=rf"{name.split(maxsplit=1)[0]}.*True"):
        OF_FILE[name](path, out)
    assert [file.name for file in tmp_path.iterdir()] == ["in.safetensors"]


@pytest.mark.parametrize(
    "name",
    [
        "castwise",
        "castwise.config",
        "castwise.checkpoint",
        "castwise.checkpoint.containers.registry",
        "castwise.compat.tf_keras.layers",
        "castwise.compat.tf_keras.mixed_precision",
        "castwise.compat.tf_keras.mixed_precision.experimental",
        "castwise.quantization",
        "castwise.surveys",
    ],
)
def test_dir_shows_no_imports(name: str) -> None:
    module: Any = importlib.import_module(name)
    assert {word for word in dir(module) if word[0] != "_"} <= {*module.__all__}


@pytest.mark.parametrize(
    "url", ["hf://o/plain@../x", "hf://o/plain@..", "hf://o/p/../../x", "HF://o/./p"]
)
def test_a_name_on_the_hub_has_no_dots(tmp_path: Path, url: str) -> None:
    for source, out in ((url, tmp_path / "out"), (tmp_path, url)):
        with pytest.raises(checkpoint.CheckpointError, match="a name on the Hub has no"):
            checkpoint.cast_file(source, out, "bfloat16")
    assert not any(tmp_path.iterdir())
