"""The interface of a dialect's rules: which arguments and variables are cast, in which scope."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Protocol

from castwise.autocast._scope import AutocastScope
from castwise.autocast._variable import AutoCastVariable


class Ruled(Protocol):
    """The attributes of a layer that rules use."""

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
    def cast_inputs(self, inputs: object) -> Any: ...
    def _set_policy(self, policy: object) -> None: ...


class Rules(ABC):
    """The differences between dialects."""

    variable_class: type[AutoCastVariable] = AutoCastVariable

    locks: bool
    """Whether a built layer refuses further weights."""

    forgets_replaced: bool
    """Whether a layer forgets a weight when its attribute gets another value."""

    sets_policy: bool
    """Whether the policy of a layer can be set after it was made."""

    wrong_type: type[Exception]
    """The exception for constructor arguments of the wrong type, and for unknown ones."""

    @abstractmethod
    def policy(self, dtype: object) -> Any:
        """Return the policy for the argument `dtype` of a layer."""

    @abstractmethod
    def serialize(self, policy: object) -> Any:
        """Return a policy as layers' configs have it."""

    @abstractmethod
    def arguments(
        self, layer: Ruled, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments of `call`, cast. ValueError for arguments that are refused."""

    @abstractmethod
    def cast_inputs(self, layer: Ruled, inputs: object) -> Any:
        """Cast one argument, an array or a structure of arrays."""

    @abstractmethod
    def shapes(self, layer: Ruled, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments of `build`: shapes, by parameter."""

    @abstractmethod
    def scope(self, layer: Ruled, outer: AutocastScope | None) -> AutocastScope | None:
        """Return the scope of a layer's call within the scope `outer`."""

    @abstractmethod
    def autocasts(self, layer: Ruled, dtype: str, wants_cast: bool) -> bool:
        """Tell whether scopes cast a new weight, if its author wants that."""

    @abstractmethod
    def weight_dtype(self, layer: Ruled, dtype: object) -> str:
        """Return the dtype in which a new weight is stored."""
