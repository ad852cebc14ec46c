"""What a call did, for comparing an original with castwise: the value, or the kind of exception."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from recorded import SESSION


@dataclass(frozen=True)
class Outcome:
    """The value that a call returned, or the type of the exception that it raised."""

    value: Any = None
    error: type[BaseException] | None = None
    message: str = ""

    def __eq__(self, other: object) -> bool:
        """Compare values and exception types; messages are each side's own."""
        if not isinstance(other, Outcome):
            return NotImplemented
        return self.error is other.error and bool(self.value == other.value)

    def __hash__(self) -> int:
        return hash(self.error)

    def __repr__(self) -> str:
        return f"{self.error.__name__}({self.message!r})" if self.error else repr(self.value)

    def map(self, function: Callable[[Any], Any]) -> Outcome:
        """Change the value; an exception stays what it is."""
        return self if self.error else Outcome(function(self.value))


def returned(value: Any) -> Outcome:
    """A call that returns this."""
    return Outcome(value)


def raised(error: type[BaseException]) -> Outcome:
    """A call that raises this type, whatever it says."""
    return Outcome(error=error)


def outcome(call: Callable[..., Any], *args: Any, **options: Any) -> Outcome:
    """Call, and say what came of it; the originals' warnings are not compared here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found: Outcome = SESSION.outcome(lambda: _outcome(call, *args, **options))
        return found


def _outcome(call: Callable[..., Any], *args: Any, **options: Any) -> Outcome:
    try:
        return Outcome(call(*args, **options))
    except Exception as error:
        return Outcome(error=type(error), message=str(error))
