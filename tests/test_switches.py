"""Switches of public functions: bools alone, as "no" would be true."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from inspect import signature
from pathlib import Path
from types import FunctionType
from typing import Any

import castwise
import numpy as np
import pytest
from castwise import checkpoint, loss_scale, quantization, surveys

X = np.ones(3, np.float32)
MATRIX = np.ones((64, 64), np.float32)

SWITCHES: dict[str, Callable[..., Any]] = {
    "castwise.cast": partial(castwise.cast, X, "float16"),
    "castwise.cast_tree": partial(castwise.cast_tree, {"x": X}, "float16"),
    "castwise.caster": partial(castwise.caster, "float32", "float16"),
    "castwise.explain_cast": partial(castwise.explain_cast, X, "float16"),
    "castwise.checkpoint.cast_file": partial(checkpoint.cast_file, "a", "b", "float16"),
    "castwise.checkpoint.dequantize_file": partial(checkpoint.dequantize_file, "a", "b"),
    "castwise.checkpoint.finish": partial(checkpoint.finish, "b"),
    "castwise.checkpoint.quantize_file": partial(checkpoint.quantize_file, "a", "b", "nvfp4"),
    "castwise.checkpoint.save": partial(checkpoint.save, "a.npz", {"w": X}),
    "castwise.checkpoint.transcode_file": partial(checkpoint.transcode_file, "a", "b", "modelopt"),
    "castwise.checkpoint.verify": partial(
        checkpoint.verify, "a", "b", dtype_map={"default": "int4_group"}
    ),
    "castwise.quantization.quantize": partial(quantization.quantize, MATRIX, "int8_channel"),
    "castwise.quantization.unpack": partial(quantization.unpack, np.ones((2, 2), np.uint8), 4),
    "castwise.surveys.GradientLog": surveys.GradientLog,
    "castwise.surveys.GradientLog.record": partial(surveys.GradientLog().record, 0, {"x": X}),
    "castwise.loss_scale.FixedLossScale": partial(loss_scale.FixedLossScale, 2.0),
    "castwise.loss_scale.unscale": partial(loss_scale.unscale, {"x": X}, 2.0),
}
"""A call of each public function that has a switch."""

RESULTS = {"of_report", "decide", "holds"}
"""Methods of results: what they are given tells what was found."""


def functions_with_switches() -> Iterator[tuple[str, str]]:
    """Yield each public function with each parameter that is a bool by default."""
    for module in (castwise, checkpoint, quantization, surveys, loss_scale):
        for name in module.__all__:
            public = getattr(module, name)
            members = [(name, public)]
            if isinstance(public, type):
                is_log = public is surveys.GradientLog
                members = members if is_log or public is loss_scale.FixedLossScale else []
                members += [
                    (f"{name}.{key}", member)
                    for key, member in vars(public).items()
                    if isinstance(member, FunctionType) and not key.startswith("_")
                    if key not in RESULTS
                ]
            for called, function in members:
                if callable(function) and not isinstance(function, type(Any)):
                    with suppress(ValueError):
                        for parameter in signature(function).parameters.values():
                            if isinstance(parameter.default, bool):
                                yield f"{module.__name__}.{called}", parameter.name


@pytest.mark.parametrize(("function", "switch"), sorted(set(functions_with_switches())))
def test_switches_take_bools_alone(
    function: str, switch: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for value in ("no", 2):
        with pytest.raises(TypeError, match=rf"\b{switch}\b"):
            SWITCHES[function](**{switch: value})
