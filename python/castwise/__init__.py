"""Numeric precision for every array of a model: exact casts, and an account of what they lose."""

import importlib
from typing import TYPE_CHECKING, Any

from castwise._core import (
    CastReport,
    FormatInfo,
    __version__,
    cast,
    cpu_level,
    cpu_levels,
    finfo,
    formats,
    get_num_threads,
    set_num_threads,
)
from castwise.casting import cast_tree

if TYPE_CHECKING:
    from castwise import checkpoint

__all__ = [
    "CastReport",
    "FormatInfo",
    "__version__",
    "cast",
    "cast_tree",
    "checkpoint",
    "cpu_level",
    "cpu_levels",
    "finfo",
    "formats",
    "get_num_threads",
    "set_num_threads",
]


def __getattr__(name: str) -> Any:
    """`castwise.checkpoint`, imported when it is first asked for: most casts need no files."""
    if name == "checkpoint":
        return importlib.import_module("castwise.checkpoint")
    raise AttributeError(f"module 'castwise' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
