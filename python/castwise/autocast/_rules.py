"""What the rules of dialects use of a layer."""

from collections.abc import Callable
from typing import Any, Protocol


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
