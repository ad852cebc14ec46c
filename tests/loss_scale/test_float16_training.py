"""The example of the digits folder: float16 loses the gradients, a loss scale brings them back."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "benches" / "digits" / "train_float16.py"


def test_the_example_trains_with_a_loss_scale_only(framework: Callable[[str], object]) -> None:
    framework("sklearn")  # has the digits
    printed = subprocess.run(
        [sys.executable, EXAMPLE], check=True, capture_output=True, text=True, timeout=120
    ).stdout
    rows = re.findall(r"^(float\S+(?:, loss scale)?) +(\d+)/599 .*?% +([\d.]+)%", printed, re.M)
    correct = {title: int(right) for title, right, _ in rows}
    lost = {title: float(share) for title, _, share in rows}
    assert correct["float32"] > 560
    assert correct["float16"] < 200
    assert abs(correct["float16, loss scale"] - correct["float32"]) < 10
    assert lost["float16"] > 90
    assert lost["float16, loss scale"] < 1
