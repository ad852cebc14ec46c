"""A library of arrays shaped like cupy: numpy's dtypes, elements elsewhere, its own `asarray`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np


class Device:
    """Where arrays are; counts who works there."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __enter__(self) -> None:
        CURRENT.append(self)

    def __exit__(self, *_: object) -> None:
        CURRENT.pop()


CURRENT = [Device("0")]


class ndarray:  # noqa: N801 as cupy's
    """An array that numpy must not look at."""

    def __init__(self, elements: Any) -> None:
        self._elements = elements
        self.device = CURRENT[-1]

    @property
    def dtype(self) -> Any:
        return self._elements.dtype

    def astype(self, dtype: Any) -> ndarray:
        LOG.append(f"astype {np.dtype(dtype)}")
        with self.device:
            return ndarray(self._elements.astype(dtype))

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise TypeError("Implicit conversion to a NumPy array is not allowed.")


LOG: list[str] = []


def asnumpy(array: ndarray) -> Any:
    LOG.append("asnumpy")
    return array._elements.copy()


def asarray(array: Any) -> ndarray:
    return ndarray(array.copy())


class Layer:
    """A container that is no dict, list, tuple or dataclass."""

    def __init__(self, **arrays: Any) -> None:
        self.arrays = arrays


@contextlib.contextmanager
def logged() -> Iterator[list[str]]:
    LOG.clear()
    yield LOG
