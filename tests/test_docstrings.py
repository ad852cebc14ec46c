"""Every example in a docstring gives what it says."""

from __future__ import annotations

import doctest
import importlib.util
import inspect
import re
from functools import cache
from pathlib import Path

import castwise
import numpy as np
import pytest
from castwise.environment import defaults

PACKAGE = Path(castwise.__file__).parent
MODULES = sorted(
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
    for path in PACKAGE.rglob("*.py")
    if path.name != "__main__.py" and ">>> " in path.read_text("utf-8")
)
"""The modules with examples."""
FRAMEWORKS = ("jax", "keras", "tf_keras", "torch")
ROOMS = (
    "autocast", "checkpoint", "config", "dtype_policies", "loss_scale", "quantization", "surveys"
)  # fmt: skip


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
def test_examples_run(
    name: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if framework := framework_of(name):
        request.getfixturevalue("framework")(framework)
    module = importlib.import_module(name)
    names = {"castwise": castwise, "np": np}
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    for test in doctest.DocTestFinder().find(module, extraglobs=names):
        if test.examples:  # each run looks at every file that Python has quoted lines of
            folder = tmp_path / test.name
            folder.mkdir()
            monkeypatch.chdir(folder)
            with defaults.policy_scope(None):  # an example may set the policy of the thread
                runner.run(test)
    assert runner.failures == 0


@pytest.mark.parametrize(
    "name", [name for name in castwise.__all__ if inspect.isbuiltin(getattr(castwise, name))]
)
def test_examples_of_the_core_run(name: str) -> None:
    function = getattr(castwise, name)
    names = {"castwise": castwise, "np": np}
    test = doctest.DocTestParser().get_doctest(function.__doc__, names, name, None, None)
    assert test.examples
    assert doctest.DocTestRunner().run(test).failed == 0


@pytest.mark.parametrize(
    "room",
    [
        "castwise",
        *(f"castwise.{room}" for room in ROOMS),
        *(
            pytest.param(f"castwise.adapters.{each}", marks=pytest.mark.frameworks)
            for each in FRAMEWORKS
        ),
    ],
)
def test_every_public_function_has_an_example(room: str, request: pytest.FixtureRequest) -> None:
    if framework := framework_of(room):
        request.getfixturevalue("framework")(framework)
    module = importlib.import_module(room)
    functions = [name for name in module.__all__ if inspect.isroutine(getattr(module, name))]
    lacking = [name for name in functions if ">>> " not in (getattr(module, name).__doc__ or "")]
    assert functions
    assert not lacking
