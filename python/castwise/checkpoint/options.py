"""The options that every tensor of one run is cast with."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Any

import numpy as np

from castwise._core import cast
from castwise._seeding import tensor_seed

STOCHASTIC = "stochastic"


@dataclass(frozen=True, slots=True)
class CastOptions:
    """As the arguments of `castwise.cast`; see there."""

    rounding: str | None = None
    overflow: str = "ieee"
    nan: str = "keep"
    seed: int | None = None
    threads: int | None = None

    @classmethod
    def checked(cls, **options: Any) -> CastOptions:
        """The options, with a seed drawn if rounding needs one and nobody gave it.

        Raises
        ------
        ValueError
            `castwise.cast` refuses one of them.

        """
        if options.get("rounding") == STOCHASTIC and options.get("seed") is None:
            options["seed"] = secrets.randbits(64)
        checked = cls(**options)
        nothing = np.empty(0, np.float32)
        cast(nothing, nothing.dtype, **checked._arguments(checked.seed))
        return checked

    def for_tensor(self, name: str) -> dict[str, Any]:
        """The arguments of `castwise.cast` for one tensor."""
        return self._arguments(None if self.seed is None else tensor_seed(self.seed, name))

    def to_dict(self) -> dict[str, Any]:
        """Those that decide the result, for the account."""
        return {
            "rounding": self.rounding,
            "overflow": self.overflow,
            "nan": self.nan,
            "seed": self.seed,
        }

    def _arguments(self, seed: int | None) -> dict[str, Any]:
        return {
            "rounding": self.rounding,
            "overflow": self.overflow,
            "nan": self.nan,
            "seed": seed,
            "threads": self.threads,
        }
