"""Who is timed: castwise, what numpy users have today, and the limit; frameworks.py has the rest.

A new competitor is one class, and its entry in `competitors.PEERS`.

A peer gets the array and the target dtype of a case and prepares two calls: "fresh" returns a new
array, "out" writes into an existing one. Preparation is not timed; whatever a user of that library
would have to do at each cast belongs in the call.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from typing import Any, TypeVar

import castwise
import numpy as np
from numpy.typing import NDArray

CALLS = ("fresh", "out")


@dataclass(frozen=True)
class Prepared:
    """One call to time, and how to get the cast array from what it returned (None: no array)."""

    run: Callable[[], object]
    result: Callable[[object], NDArray[Any]] | None


def returned(value: object) -> NDArray[Any]:
    """Take the array as the call returned it."""
    return np.asarray(value)


class Library:
    """A library, or a way of using one, that is timed beside castwise."""

    name: str
    distributions: tuple[str, ...]

    def versions(self) -> dict[str, str]:
        """Versions of the libraries that this peer runs."""
        return {name: version(name) for name in self.distributions}

    def load(self, threads: int) -> None:
        """Import the library and let it use this many threads; ImportError if it is not there."""


AnyLibrary = TypeVar("AnyLibrary", bound=Library)


def installed(libraries: Iterable[AnyLibrary], threads: int) -> tuple[AnyLibrary, ...]:
    """Load those that are installed."""
    found = []
    for library in libraries:
        with suppress(ImportError):
            library.load(threads)
            found.append(library)
    return tuple(found)


class Peer(Library, ABC):
    """A library that casts arrays."""

    @abstractmethod
    def prepare(self, x: NDArray[Any], target: np.dtype[Any]) -> dict[str, Prepared]:
        """Return the calls by name (see CALLS); an empty dict where the peer lacks the pair."""


class Castwise(Peer):
    """What all others are compared with."""

    name = "castwise"
    distributions = ("castwise",)

    def load(self, threads: int) -> None:
        """See Peer."""
        castwise.set_num_threads(threads)

    def prepare(self, x: NDArray[Any], target: np.dtype[Any]) -> dict[str, Prepared]:
        """See Peer."""
        out = np.empty(x.shape, target)
        return {
            "fresh": Prepared(partial(castwise.cast, x, target), returned),
            "out": Prepared(partial(castwise.cast, x, out=out), returned),
        }


class Astype(Peer):
    """numpy's own conversion, which ml_dtypes extends to its dtypes."""

    name = "astype"
    distributions = ("numpy", "ml_dtypes")

    def prepare(self, x: NDArray[Any], target: np.dtype[Any]) -> dict[str, Prepared]:
        """See Peer."""
        out = np.empty(x.shape, target)
        into = partial(np.copyto, out, x, casting="unsafe")
        try:
            into()
        except TypeError:
            return {}
        return {
            "fresh": Prepared(partial(x.astype, target), returned),
            "out": Prepared(into, lambda _: out),
        }


class Memcpy(Peer):
    """The limit: a plain copy that moves as many bytes, read and written together, as the cast."""

    name = "memcpy"
    distributions = ("numpy",)

    def prepare(self, x: NDArray[Any], target: np.dtype[Any]) -> dict[str, Prepared]:
        """See Peer; always able."""
        source = np.ones((x.nbytes + x.size * target.itemsize) // 2, np.uint8)
        out = np.empty_like(source)
        return {
            "fresh": Prepared(source.copy, None),
            "out": Prepared(partial(np.copyto, out, source), None),
        }
