"""What the rules of a dialect decide: which arguments and variables are cast, in which scope."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Protocol

from castwise.autocast._scope import AutocastScope
from castwise.autocast._variable import AutoCastVariable


class Ruled(Protocol):
    """What rules read of a layer, and set."""

    built: bool
    autocast: bool
    build: Callable[..., None]
    call: Callable[..., Any]

    @property
    def name(self) -> str: ...
    @property
    def dtype_policy(self) -> Any: ...
    @property
    def compute_dtype(self) -> Any: ...
    @property
    def variable_dtype(self) -> Any: ...
    @property
    def input_dtype(self) -> Any: ...
    def cast_inputs(self, inputs: Any) -> Any: ...
    def _set_policy(self, policy: Any) -> None: ...


class Rules(ABC):
    """What dialects differ in."""

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
        self, layer: Ruled, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of `call` for those of the layer, cast. ValueError for impossible ones."""

    @abstractmethod
    def cast_inputs(self, layer: Ruled, inputs: Any) -> Any:
        """One argument, an array or a structure of arrays, cast."""

    @abstractmethod
    def shapes(self, layer: Ruled, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """The shapes that `build` is called with, by its parameters."""

    @abstractmethod
    def scope(self, layer: Ruled, outer: AutocastScope | None) -> AutocastScope | None:
        """What holds in the call of a layer, if `outer` holds around it."""

    @abstractmethod
    def autocasts(self, layer: Ruled, dtype: str, wanted: bool) -> bool:
        """Whether a new weight is cast in scopes, if its author wants it."""

    @abstractmethod
    def weight_dtype(self, layer: Ruled, dtype: Any) -> str:
        """What a new weight is stored in."""
