"""How the destination of a run is written."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from castwise.checkpoint._config import Config
from castwise.checkpoint.running.other_files import Patterns


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputOptions:
    """How the destination of a run is written, beside what becomes of tensors.

    Attributes
    ----------
    arguments
        All that the caller gave for the conversion, as plain values by name.
    overwrite
        What is there may be replaced.
    limit
        The bytes of a shard; None for those of the source.
    patterns
        Which other files of a folder are copied or left out.
    resumable, resume
        Whether complete shards stay if it is interrupted, and whether it goes on with such.
    config
        What makes config.json follow the tensors; None to leave it as it is.
    added
        Files to add, with their texts, by their paths in the folder.
    restates
        Whether config.json will state otherwise how weights are stored.

    """

    arguments: Mapping[str, Any]
    overwrite: bool
    limit: int | None
    patterns: Patterns
    resumable: bool
    resume: bool
    config: Callable[[Path, str], Config] | None
    added: Mapping[str, str] = field(default_factory=dict)
    restates: bool = False
