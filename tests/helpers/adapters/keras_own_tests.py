"""A plugin of pytest for Keras' own unit tests: they run with castwise installed in Keras.

With ``CASTWISE_CLASSES=1`` the test modules get castwise's policies, functions and optimizer under
Keras' names, too. Of an exception they then compare the type alone: castwise says it in its own
words.
The outcomes go, as JSON, to the file that ``CASTWISE_OUTCOMES`` names.
"""

from __future__ import annotations

import json
import os
import sys
import unittest
from pathlib import Path
from typing import Any

import castwise.dtype_policies
import pytest
from castwise.adapters.keras import install
from castwise.compat.keras import mixed_precision

CLASSES = os.environ.get("CASTWISE_CLASSES") == "1"
OUTCOMES: dict[str, str] = {}

sys.modules["tensorflow"] = None  # type: ignore[assignment] # Keras would import it, for seconds
install()

if CLASSES:

    def assert_raises(self: Any, expected: Any, _: Any, *arguments: Any, **options: Any) -> Any:
        """Leave the message out of a comparison."""
        return self.assertRaises(expected, *arguments, **options)  # noqa: PT027 - it is unittest's

    unittest.TestCase.assertRaisesRegex = assert_raises  # type: ignore[method-assign]


def pytest_collection_modifyitems(items: list[Any]) -> None:
    """Put castwise's classes and functions under the names of Keras', in the test modules."""
    if not CLASSES:
        return
    ours = castwise.dtype_policies
    for module in {item.module for item in items}:
        for name in ours.__all__:
            if hasattr(module, name):
                setattr(module, name, getattr(ours, name))
        if hasattr(module, "dtype_policies"):
            module.dtype_policies = ours
        if hasattr(module, "LossScaleOptimizer"):
            module.LossScaleOptimizer = mixed_precision.LossScaleOptimizer


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Remember what became of each test, whichever phase it failed in."""
    name = report.nodeid.partition("::")[2]
    if report.when == "call" or report.outcome != "passed":
        OUTCOMES[name] = report.outcome


def pytest_sessionfinish() -> None:
    """Write what was remembered."""
    Path(os.environ["CASTWISE_OUTCOMES"]).write_text(json.dumps(OUTCOMES))
