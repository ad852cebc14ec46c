"""How many functions each command calls for each weight, which decides what small weights take."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from castwise import checkpoint
from castwise.cli import main

FP8 = ("--scheme", "fp8_channel", "--recipe", "compressed-tensors")
FEW, MANY = 20, 70
# Calls for a weight, and a hundredth more: caches that other tests have filled make a difference
# of two or three.
COMMANDS = {
    "quantize": (("quantize", "plain", "out", *FP8), 178),
    "dequantize": (("dequantize", "fp8", "out"), 155),
    "transcode": (("transcode", "fp8", "out", "--to", "modelopt"), 269),
    "verify": (("verify", "plain", "fp8"), 183),
    "diff": (("diff", "plain", "fp8"), 188),
    "survey": (("survey", "plain"), 73),
    "advise": (("advise", "plain", "--bits", "40"), 586),
}


def calls(folder: Path, count: int, arguments: tuple[str, ...]) -> int:
    """Count the calls of Python functions of a command on so many weights."""
    draw = np.random.default_rng(0)
    names = {name: str(folder / f"{name}-{count}.safetensors") for name in ("plain", "fp8", "out")}
    checkpoint.save(
        names["plain"],
        {
            f"layers.{number}.mlp.up_proj.weight": draw.standard_normal((16, 64), np.float32)
            for number in range(count)
        },
    )
    main(["quantize", names["plain"], names["fp8"], *FP8, "--quiet"])
    number = 0

    def note(_frame: object, event: str, _argument: object) -> None:
        nonlocal number
        number += event == "call"

    sys.setprofile(note)
    try:
        main([names.get(text, text) for text in arguments])
    finally:
        sys.setprofile(None)
    return number


@pytest.mark.parametrize(("arguments", "most"), COMMANDS.values(), ids=COMMANDS)
def test_calls(tmp_path: Path, arguments: tuple[str, ...], most: int) -> None:
    calls(tmp_path, 2, arguments)  # which imports
    few, many = (calls(tmp_path, count, arguments) for count in (FEW, MANY))
    assert (many - few) / (MANY - FEW) <= most
