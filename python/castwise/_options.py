"""The options of casts and maps, for type checkers."""

from __future__ import annotations

from typing import Literal, TypeAlias, TypedDict

from numpy.typing import ArrayLike

Rounding: TypeAlias = Literal[
    "nearest-even",
    "nearest-away",
    "towards-zero",
    "towards-positive",
    "towards-negative",
    "stochastic",
]
Overflow: TypeAlias = Literal["ieee", "saturate", "raise"]
Nan: TypeAlias = Literal["keep", "raise", "zero"]
Order: TypeAlias = Literal["K", "C", "F", "A"]
Level: TypeAlias = Literal["portable", "neon", "avx2", "avx512"]

Match: TypeAlias = Literal["fullmatch", "search"]
OnOverlap: TypeAlias = Literal["raise", "first", "longest"]
Role: TypeAlias = Literal["variable", "compute"]

LossScalePreset: TypeAlias = Literal[
    "castwise", "keras", "tf_keras", "tf", "torch", "jmp", "megatron", "apex"
]
DelayedScalingPreset: TypeAlias = Literal["castwise", "keras", "transformer_engine"]
AmaxAlgorithm: TypeAlias = Literal["max", "most_recent"]


class TreeOptions(TypedDict, total=False):
    """The options of `cast` that are for every array of a tree."""

    rounding: Rounding | None
    overflow: Overflow
    nan: Nan
    scale: ArrayLike | None
    seed: int | None
    order: Order
    threads: int | None


class CastOptions(TreeOptions, total=False):
    """The options of `cast` that leave the type of its result as it is."""

    copy: bool
