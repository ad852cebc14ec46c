"""What becomes of each tensor, decided from names and formats before any data is read.

- A tensor that a key of the map matches becomes what the key says. A key that is a pattern makes
  floats of floating tensors only.
- Any other floating tensor becomes the default, if there is one.
- Everything else (integers, bools, complex numbers, text) stays as it is, byte for byte.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from castwise._core import cast
from castwise.arrays.casting import tensor_seed
from castwise.arrays.dtype_map import DTYPE, DtypeMap
from castwise.arrays.library_casts import DECIDED, library_named
from castwise.checkpoint._errors import CheckpointError
from castwise.checkpoint._tensors import (
    OTHER,
    UNKNOWN,
    Planned,
    TensorInfo,
    format_info,
    may_be_float,
)
from castwise.text.spelling import nearest
from castwise.text.wording import argument, parenthesis, setting

_STOCHASTIC = "stochastic"


@dataclass(frozen=True, slots=True)
class CastOptions:
    """The options that every tensor of one run is cast with; see `castwise.cast`."""

    rounding: str | None = None
    overflow: str = "ieee"
    nan: str = "keep"
    seed: int | None = None
    threads: int | None = None
    like: str | None = None

    @classmethod
    def check(cls, **options: Any) -> CastOptions:  # noqa: ANN401  (as they are given)
        """Take the options, with a seed drawn if rounding needs one and none was given."""
        if (like := options.get("like")) is not None:
            library_named(like)
            for field in fields(cls):
                name, usual = field.name, field.default
                if name in DECIDED and options.get(name, usual) != usual:
                    raise ValueError(
                        argument(name, options[name])
                        + " does not go with "
                        + argument("like", like)
                        + ", which decides it; give one"
                    )
        if options.get("rounding") == _STOCHASTIC and options.get("seed") is None:
            options["seed"] = int.from_bytes(os.urandom(8))
        result = cls(**options)
        nothing = np.empty(0, np.float32)
        cast(nothing, nothing.dtype, threads=result.threads, **result._of_rounding())
        return result

    @property
    def count_places(self) -> bool:
        """True if the result depends on the place of an element, in C order."""
        needs_places = self.rounding == _STOCHASTIC or "raise" in (self.overflow, self.nan)
        return needs_places or self.like is not None

    def for_tensor(self, name: str, source: str | None, target: str | None) -> dict[str, Any]:
        """Return the arguments of `castwise.cast` that decide the result for one tensor."""
        if self.like is not None:
            return {**_options_like(self.like, name, source or "", target or ""), "seed": None}
        seed = None if self.seed is None else tensor_seed(self.seed, name)
        return {**self._of_rounding(), "seed": seed}

    def to_dict(self) -> dict[str, Any]:
        """Return those that decide the result, for the report."""
        return self._of_rounding() if self.like is None else {"like": self.like, "seed": None}

    def _of_rounding(self) -> dict[str, Any]:
        return {
            "rounding": self.rounding,
            "overflow": self.overflow,
            "nan": self.nan,
            "seed": self.seed,
        }


def _options_like(like: str, name: str, source: str, target: str) -> dict[str, Any]:
    """Return the options of one rounding by which a library casts a tensor."""
    rule = library_named(like).rule(source, target)
    recipe = None if rule is None else rule.recipe
    if rule is None:
        reason = f"{like} does not cast {source} to {target}"
    elif recipe is None:
        reason = f"no options give what {like} gives for {source} to {target}: {rule.reason}"
    elif recipe.through is not None:
        reason = f"{like} rounds {source} to {target} twice, through {recipe.through}"
    elif recipe.flushed is not None:
        reason = f"{like} makes 0 of subnormals, from {source} to {target}"
    else:
        return recipe.options
    raise CheckpointError(
        setting("like", like)
        + f": {name!r}: {reason}; files are cast by one rounding, so keep it by a map "
        + parenthesis("dtype_map")
        + ", or leave "
        + argument("like")
        + " out"
    )


# Decides for the tensors of a component, given the prefix of their names.
Decide = Callable[[Iterable[TensorInfo], str], list[Planned]]


def plan(tensors: Iterable[TensorInfo], dtypes: DtypeMap, prefix: str = "") -> list[Planned]:
    """Decide for every tensor, by its name after the prefix of its component of the checkpoint."""
    return [_plan_one(info, dtypes, prefix) for info in tensors]


def plan_by_map(dtypes: DtypeMap, tensors: Iterable[TensorInfo], prefix: str) -> list[Planned]:
    """Decide as `plan` does, with the map first, so that it can be bound."""
    return plan(tensors, dtypes, prefix)


def unused_patterns(plans: Sequence[Planned], dtypes: DtypeMap) -> dict[str, str | None]:
    """Map each pattern that matched no tensor, as often as not a slip, to the nearest name."""
    # A map for many models has more patterns than one of them needs.
    if dtypes.is_general:
        return {}
    used = {plan.pattern for plan in plans}
    patterns = [key for key, _ in dtypes.keys.items() if key not in used]
    return nearest(patterns, (plan.info.name for plan in plans))


def _plan_one(info: TensorInfo, dtypes: DtypeMap, prefix: str) -> Planned:
    # A format that nobody knows may be a float: asking for it to be cast is refused below.
    target, key, by = dtypes.decide(prefix + info.name, may_be_float(info), info.shape)
    if target is not None:
        reason = (
            f"key {key!r} of {dtypes.origin}" if key else DTYPE if by == DTYPE else dtypes.origin
        )
        _check(info, target, reason)
    return Planned(info, target, key, by)


def _check(info: TensorInfo, target: str, reason: str) -> None:
    if info.kind == UNKNOWN:
        is_raw = info.stored.lstrip("<>|").startswith("V")  # as numpy saves what it does not know
        remedy = "say what it is " + parenthesis("assume") + ", or " if is_raw else ""
        raise CheckpointError(
            f"tensor {info.name!r} is stored as {info.stored}, a format that the file does not "
            f"tell or castwise cannot unpack, so {reason} cannot make it {target}; "
            + remedy
            + "map its name to 'keep'"
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
