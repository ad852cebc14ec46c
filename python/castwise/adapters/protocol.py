"""What castwise has to know of another library's arrays: the few methods of an `Adapter`.

`castwise.cast` and `castwise.cast_tree` find an adapter by the top-level module of an object's
class, and import it when they meet the first such object; programs with numpy arrays only import
nothing. A package offers one as an entry point, whose name is that module:

    [project.entry-points."castwise.adapters"]
    cupy = "castwise_cupy:CupyAdapter"

`castwise.adapters.registry.register` does the same for one process. A complete adapter, of a
library whose arrays live on a device and come and go through `asnumpy` and `asarray`:

    import castwise
    import cupy
    from castwise.adapters.protocol import Adapter

    class CupyAdapter(Adapter):
        def is_array(self, value):
            return isinstance(value, cupy.ndarray)

        def dtype_of(self, array):
            return array.dtype

        def to_host(self, array):
            return cupy.asnumpy(array)

        def from_host(self, array, like):
            with like.device:
                return cupy.asarray(array)

        def cast(self, array, dtype=None, **options):
            if options or dtype is None:
                return super().cast(array, dtype, **options)  # on the host, by castwise
            return array.astype(castwise.finfo(dtype).dtype)  # on the device
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from castwise._core import cast, finfo

__all__ = ["Adapter"]


class Adapter(ABC):
    """One library's arrays; derive from it. Made without arguments if an entry point names it."""

    @abstractmethod
    def is_array(self, value: Any) -> bool:
        """Whether a value, of a class of the library or derived from one, is an array to cast."""

    @abstractmethod
    def dtype_of(self, array: Any) -> Any:
        """The dtype of an array: what `castwise.finfo` takes, or None if it has no such format."""

    def format_of(self, dtype: Any) -> str | None:
        """The name of the format that a dtype of the library's own class means; None if none.

        For maps and `cast_tree`, if the library has dtypes that numpy does not understand.
        """
        del dtype
        return None

    @abstractmethod
    def to_host(self, array: Any) -> NDArray[Any]:
        """The elements as a numpy array; without a copy, where that can be."""

    @abstractmethod
    def from_host(self, array: NDArray[Any], like: Any) -> Any:
        """A numpy array, which nobody else has, as an array of the library where `like` is."""

    def cast(self, array: Any, dtype: Any = None, **options: Any) -> Any:
        """The array in another dtype; unless a class has a better way, cast on the host.

        Parameters
        ----------
        array : array
            One that `is_array` accepts.
        dtype, **options
            What `castwise.cast` was given, and only that. A class refuses what it cannot do.

        Returns
        -------
        array of the library, or (array, CastReport) with ``report=True``

        Raises
        ------
        TypeError
            An ``out``: numpy arrays are written in place, others are new.

        """
        if options.pop("out", None) is not None:
            kind = type(array).__name__
            raise TypeError(f"out= is not for a {kind}, which is cast to a new one; leave it out.")
        result = cast(self.to_host(array), dtype, **options)
        if options.get("report"):
            return self.from_host(result[0], array), result[1]
        return self.from_host(result, array)

    def is_floating(self, array: Any) -> bool:
        """Whether an array holds real floats, which `cast_tree` casts unless told otherwise."""
        try:
            dtype = self.dtype_of(array)
            return dtype is not None and finfo(dtype).kind == "float"
        except TypeError:  # of a dtype that is none of castwise's formats
            return False

    def children(self, node: Any) -> Sequence[tuple[Any, Any]] | None:
        """What a container of the library holds, as (key, value) pairs; None if it is no container.

        Dicts, lists, tuples and dataclasses need no adapter. The path of an array is made of the
        keys on the way to it, joined by "/".
        """
        del node
        return None

    def rebuild(self, node: Any, children: Sequence[tuple[Any, Any]]) -> Any:
        """A container of the class of `node`, with other values under the keys of `children`."""
        raise NotImplementedError(f"{type(self).__name__} has children, but no rebuild.")
