"""`castwise.compat.keras` has the layout of the real Keras, and holds castwise's own objects."""

from __future__ import annotations

import importlib
import inspect
from itertools import product
from types import ModuleType
from typing import Any

import castwise
import castwise.compat.keras
import castwise.config
import castwise.dtype_policies
import peers
import pytest

# What castwise leaves out of Keras' modules: it is not about dtypes, or comes elsewhere.
ABOUT_DTYPES = ("dtype_policy", "set_dtype_policy", "floatx", "set_floatx")
LATER: tuple[str, ...] = ()


def public(module: Any) -> dict[str, Any]:
    """Give the public names of a module."""
    return {name: value for name, value in vars(module).items() if not name.startswith("_")}


def theirs() -> dict[str, Any]:
    """Give the real Keras' names in the three modules, and the two classes at its top."""
    keras = peers.keras()
    names = {
        f"dtype_policies.{name}": value for name, value in public(keras.dtype_policies).items()
    }
    names |= {f"config.{name}": getattr(keras.config, name) for name in ABOUT_DTYPES}
    names |= {
        f"mixed_precision.{name}": value
        for name, value in public(keras.mixed_precision).items()
        if name not in LATER
    }
    return names | {name: getattr(keras, name) for name in ("DTypePolicy", "FloatDTypePolicy")}


def ours(name: str) -> Any:
    """Find what castwise has under a name of Keras."""
    value: Any = castwise.compat.keras
    for part in name.split("."):
        value = getattr(value, part)
    return value


def test_names_and_identities() -> None:
    """Every name is there, and two names hold one object exactly where they do in Keras."""
    names = theirs()
    assert len(names) > 20
    for (name, value), (other, other_value) in product(names.items(), names.items()):
        assert (ours(name) is ours(other)) is (value is other_value), (name, other)


@pytest.mark.parametrize("module", ["dtype_policies", "config", "mixed_precision"])
def test_modules(module: str) -> None:
    """The modules can be imported, export what they have, and have nothing that Keras has not."""
    imported = importlib.import_module(f"castwise.compat.keras.{module}")
    assert isinstance(imported, ModuleType)
    exported = set(imported.__all__)
    assert exported <= set(public(imported))
    assert exported == {
        name.removeprefix(f"{module}.") for name in theirs() if name.startswith(f"{module}.")
    }


def test_they_are_castwises_own() -> None:
    """The objects are those of castwise's own modules."""
    for name in castwise.compat.keras.dtype_policies.__all__:
        assert getattr(castwise.compat.keras.dtype_policies, name) is getattr(
            castwise.dtype_policies, name
        )
    for name in castwise.compat.keras.config.__all__:
        assert getattr(castwise.compat.keras.config, name) is getattr(castwise.config, name)
    assert castwise.DTypePolicy is castwise.compat.keras.DTypePolicy


def test_signatures() -> None:
    """Arguments have the names, order and defaults of Keras'; what is new goes by name only."""
    for name, value in theirs().items():
        parameters = inspect.signature(ours(name)).parameters.values()
        positional = [(p.name, p.default) for p in parameters if p.kind is not p.KEYWORD_ONLY]
        wanted = [(p.name, p.default) for p in inspect.signature(value).parameters.values()]
        assert positional == wanted, name


def test_subclasses() -> None:
    """The classes are subclasses of one another as in Keras."""
    names = [name for name, value in theirs().items() if isinstance(value, type)]
    keras = theirs()
    for name, other in product(names, names):
        assert issubclass(ours(name), ours(other)) is issubclass(keras[name], keras[other])
