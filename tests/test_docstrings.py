"""Every example in a docstring gives what it says."""

from __future__ import annotations

import doctest
import importlib.util
import re
from functools import cache
from pathlib import Path

import castwise
import numpy as np
import pytest
from castwise import _global_state

PACKAGE = Path(castwise.__file__).parent
MODULES = sorted(
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
    for path in PACKAGE.rglob("*.py")
    if path.name != "__main__.py" and ">>> " in path.read_text("utf-8")
)
"""The modules with examples."""
FRAMEWORKS = ("jax", "keras", "tf_keras", "torch")


@cache
def framework_of(name: str) -> str | None:
    """Name the framework that a module imports: of an adapter, or one that requires it at once."""
    parts = name.split(".")
    if parts[1:2] == ["adapters"] and parts[2:3] and parts[2] in FRAMEWORKS:
        return parts[2]
    spec = importlib.util.find_spec(name)
    source = Path(spec.origin).read_text("utf-8") if spec and spec.origin else ""
    found = re.search(r'^\w.*= require\("(\w+)"\)$', source, re.MULTILINE)
    return found[1] if found else None


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.frameworks if framework_of(name) else ())
        for name in MODULES
    ],
)
def test_examples_run(name: str, request: pytest.FixtureRequest) -> None:
    if framework := framework_of(name):
        request.getfixturevalue("framework")(framework)
    module = importlib.import_module(name)
    names = {"castwise": castwise, "np": np}
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    for test in doctest.DocTestFinder().find(module, extraglobs=names):
        if test.examples:  # each run looks at every file that Python has quoted lines of
            with _global_state.policy_scope(None):  # an example may set the policy of the thread
                runner.run(test)
    assert runner.failures == 0


def test_the_documented_modules_have_examples() -> None:
    finder = doctest.DocTestFinder(exclude_empty=True)
    with_examples = [
        name
        for name in MODULES
        if not framework_of(name)
        and any(test.examples for test in finder.find(importlib.import_module(name)))
    ]
    assert len(with_examples) >= 10
