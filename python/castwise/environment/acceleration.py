"""Let numpy's own casts, such as `astype`, run on castwise's kernels."""

from __future__ import annotations

import functools
import os
import warnings
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from castwise._core import accelerated_pairs, set_accelerated
from castwise.environment.switch import Switch, Turn

ENVIRONMENT = "CASTWISE_ACCELERATE"


def _turn_on() -> Callable[[], None]:
    set_accelerated(True)
    return functools.partial(set_accelerated, False)


class CastPair(NamedTuple):
    """The names of two formats."""

    source: str
    target: str


class Acceleration(Turn):
    """One call of `accelerate`; as a context manager, it is undone at the end of the block."""

    switch = Switch(_turn_on)

    @property
    def pairs(self) -> tuple[CastPair, ...]:
        """The casts that run on castwise's kernels."""
        return tuple(CastPair(*pair) for pair in accelerated_pairs()[0])

    @property
    def left_alone(self) -> tuple[CastPair, ...]:
        """The casts of ml_dtypes that are not replaced.

        These are casts from complex to real, those whose results a release of ml_dtypes has
        changed, and those that take no less time here: between integers of a byte, from 64-bit
        integers to float8_e5m3fnu, from small integers to complex128, and, before ml_dtypes 0.7,
        all that compilers vectorize (between integers, from bfloat16 to wider types).
        """
        return tuple(CastPair(*pair) for pair in accelerated_pairs()[1])

    def __repr__(self) -> str:
        pairs, left_alone = (len(casts) for casts in accelerated_pairs())
        return f"<castwise.accelerate() of {pairs} casts, {left_alone} left alone>"


def accelerate() -> Acceleration:
    """Run the casts between numpy's and ml_dtypes' dtypes on castwise's kernels.

    Afterwards ``x.astype(ml_dtypes.bfloat16)``, ``out[...] = x``, ``np.copyto``, ufuncs of mixed
    dtypes and every other cast by numpy, in any thread, give the same bits and warnings as before,
    and contiguous arrays take less time: from 64 elements on between floats of 8 bits or fewer and
    other floats, from 1024 on in all casts. (Strided arrays, and arrays with many NaNs or subnormal
    numbers, are cast by ml_dtypes' own function. Before ml_dtypes 0.7, numpy visits strided arrays
    one element at a time, which takes up to a tenth longer.) Casts between numpy's own dtypes
    (float32 to float16) are not changed, and neither are those that ``left_alone`` of the result
    lists.

    Calling it again changes nothing. `restore` undoes all calls; as a context manager, a call
    undoes itself. The environment variable ``CASTWISE_ACCELERATE=1`` makes ``import castwise``
    call it.

    Returns
    -------
    Acceleration
        A context manager; `pairs` and `left_alone` list the casts.

    Warns
    -----
    RuntimeWarning
        If it replaces no cast, because numpy and ml_dtypes store them in a way that it does not
        know.

    Examples
    --------
    >>> import ml_dtypes
    >>> with castwise.accelerate():
    ...     y = np.linspace(0, 1, 1000).astype(ml_dtypes.float8_e4m3fn)

    """
    acceleration = Acceleration()
    if not acceleration.pairs:
        import ml_dtypes  # noqa: PLC0415  (a second, with 0.7)

        warnings.warn(
            f"castwise.accelerate() has replaced no cast of ml_dtypes {ml_dtypes.__version__}: "
            f"numpy {np.__version__} stores them in a way that is not known. They work, and are "
            "as fast as before.",
            RuntimeWarning,
            stacklevel=2,
        )
    return acceleration


def restore() -> None:
    """Put back every cast function that `accelerate` has replaced, however often it was called.

    Examples
    --------
    >>> switch = castwise.accelerate()
    >>> castwise.restore()

    """
    Acceleration.switch.turn_off()


def accelerate_from_environment() -> None:
    """Call `accelerate` if the environment variable is 1."""
    value = os.environ.get(ENVIRONMENT, "").strip()
    if value not in ("", "0", "1"):
        raise ValueError(f"environment variable {ENVIRONMENT}={value!r} is not valid; use 1 or 0.")
    if value == "1":
        accelerate()
