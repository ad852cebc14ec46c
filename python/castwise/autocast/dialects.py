"""The rules by which a layer casts: which arguments, which variables, in which scope.

There are two sets of them, of Keras 3 and of TF 2, each in a module of its own. A layer has its
dialect's, and does nothing itself that they do differently.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from typing import Any

from castwise.autocast.scope import AutocastScope
from castwise.autocast.variable import AutoCastVariable

_MODULES = {
    "keras": "castwise.autocast.keras_rules",
    "tf_keras": "castwise.autocast.tf_keras_rules",
}


class Rules(ABC):
    """What dialects differ in. `layer` is a `Layer`, whose module imports this one."""

    variable_class: type[AutoCastVariable] = AutoCastVariable

    locks: bool
    """Whether a layer that is built takes no more weights."""

    forgets_replaced: bool
    """Whether a layer lets go of a weight when its attribute gets another value."""

    sets_policy: bool
    """Whether the policy of a layer can be set after it was made."""

    wrong_type: type[Exception]
    """The exception for constructor arguments of the wrong type, and for unknown ones."""

    @abstractmethod
    def policy(self, dtype: Any) -> Any:
        """The policy that the argument `dtype` of a layer means."""

    @abstractmethod
    def serialized(self, policy: Any) -> Any:
        """A policy as it stands in a layer's config."""

    @abstractmethod
    def arguments(
        self, layer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of `call` for those of the layer, cast. ValueError for impossible ones."""

    @abstractmethod
    def cast_inputs(self, layer: Any, inputs: Any) -> Any:
        """One argument, an array or a structure of arrays, cast."""

    @abstractmethod
    def shapes(self, layer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """The shapes that `build` is called with, by its parameters."""

    @abstractmethod
    def scope(self, layer: Any, outer: AutocastScope | None) -> AutocastScope | None:
        """What holds in the call of a layer, if `outer` holds around it."""

    @abstractmethod
    def autocasts(self, layer: Any, dtype: str, wanted: bool) -> bool:
        """Whether a new weight is cast in scopes, if its author wants it."""

    @abstractmethod
    def weight_dtype(self, layer: Any, dtype: Any) -> str:
        """What a new weight is stored in."""


def rules(dialect: str) -> Rules:
    """The rules of a dialect. ValueError if there is no such dialect."""
    if not isinstance(dialect, str) or dialect not in _MODULES:
        raise ValueError(
            f"dialect={dialect!r} is not known; use one of {', '.join(map(repr, _MODULES))}."
        )
    # On demand: those of TF 2 need its policies, which not every program does.
    found: Rules = importlib.import_module(_MODULES[dialect]).RULES
    return found
