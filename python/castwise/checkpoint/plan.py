"""What becomes of each tensor, decided from names and formats before any data is read.

- A tensor that a key of the map matches becomes what the key says, whatever its kind.
- Any other floating tensor becomes the default, if there is one.
- Everything else (integers, bools, complex numbers, text) stays as it is, byte for byte.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from castwise._core import cast
from castwise._dtype_map import DtypeMap
from castwise._seeding import tensor_seed
from castwise.checkpoint._errors import CheckpointError
from castwise.checkpoint._tensors import OTHER, UNKNOWN, Planned, TensorInfo, format_info

_STOCHASTIC = "stochastic"


@dataclass(frozen=True, slots=True)
class CastOptions:
    """The options that every tensor of one run is cast with; see `castwise.cast`."""

    rounding: str | None = None
    overflow: str = "ieee"
    nan: str = "keep"
    seed: int | None = None
    threads: int | None = None

    @classmethod
    def checked(cls, **options: Any) -> CastOptions:
        """Take the options, with a seed drawn if rounding needs one and none was given.

        Raises
        ------
        ValueError
            `castwise.cast` refuses one of them.

        """
        if options.get("rounding") == _STOCHASTIC and options.get("seed") is None:
            options["seed"] = secrets.randbits(64)
        checked = cls(**options)
        nothing = np.empty(0, np.float32)
        cast(nothing, nothing.dtype, threads=checked.threads, **checked.to_dict())
        return checked

    @property
    def count_places(self) -> bool:
        """True if the result depends on the place of an element, in C order."""
        return self.rounding == _STOCHASTIC or "raise" in (self.overflow, self.nan)

    def for_tensor(self, name: str) -> dict[str, Any]:
        """Return the arguments of `castwise.cast` that decide the result for one tensor."""
        seed = None if self.seed is None else tensor_seed(self.seed, name)
        return {**self.to_dict(), "seed": seed}

    def to_dict(self) -> dict[str, Any]:
        """Return those that decide the result, for the report."""
        return {
            "rounding": self.rounding,
            "overflow": self.overflow,
            "nan": self.nan,
            "seed": self.seed,
        }


def plan(tensors: Iterable[TensorInfo], dtypes: DtypeMap) -> list[Planned]:
    """Decide for every tensor.

    Raises
    ------
    CheckpointError
        Two keys match one tensor; a tensor is to be cast whose format nobody
        knows or that holds no numbers; or complex numbers would become real ones.

    """
    return [_plan_one(info, dtypes) for info in tensors]


def unused_patterns(planned: Iterable[Planned], dtypes: DtypeMap) -> list[str]:
    """Patterns of the map that matched no tensor: as often as not a slip."""
    used = {plan.pattern for plan in planned}
    return [key for key, _ in dtypes.keys.items() if key not in used]


def _plan_one(info: TensorInfo, dtypes: DtypeMap) -> Planned:
    # A format that nobody knows may be a float: asking for it to be cast is refused below.
    target, key = dtypes.decide(info.name, info.kind in {"float", UNKNOWN})
    if target is not None:
        reason = dtypes.origin if key is None else f"key {key!r} of {dtypes.origin}"
        _check(info, target, reason)
    return Planned(info, target, key)


def _check(info: TensorInfo, target: str, reason: str) -> None:
    if info.kind == UNKNOWN:
        raise CheckpointError(
            f"tensor {info.name!r} is stored as {info.stored}, a format that the file does not "
            f"tell or castwise cannot unpack, so {reason} cannot make it {target}; say what it is "
            "(assume, --assume), or map its name to 'keep'"
        )
    if info.kind == OTHER:
        raise CheckpointError(
            f"tensor {info.name!r} is stored as {info.stored}, which holds no numbers; "
            f"{reason} cannot make it {target}"
        )
    if info.kind == "complex" and format_info(target).kind != "complex":
        raise CheckpointError(
            f"tensor {info.name!r} is {info.format}; {reason} would drop its imaginary parts by "
            f"making it {target}; choose a complex format or 'keep'"
        )
