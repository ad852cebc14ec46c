"""Numeric precision for every array of a model: exact casts, and an account of what they lose."""

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

__all__ = [
    "CastReport",
    "FormatInfo",
    "__version__",
    "cast",
    "cast_tree",
    "cpu_level",
    "cpu_levels",
    "finfo",
    "formats",
    "get_num_threads",
    "set_num_threads",
]
