"""How the destination of a run is written."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from castwise.checkpoint._config import Config
from castwise.checkpoint.containers.statement import ComponentStatement
from castwise.checkpoint.running.other_files import Patterns
from castwise.text.wording import argument

ONLY_FOLDERS = argument("resumable") + " and " + argument("resume") + " are for folders of "
"""How a refusal begins to keep shards of what is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputOptions:
    """How the destination of a run is written, beside what becomes of tensors."""

    # All that the caller gave for the conversion, as plain values by name.
    arguments: Mapping[str, Any]
    # What is there may be replaced.
    overwrite: bool
    # The bytes of a shard; None for those of the source.
    limit: int | None
    # Which other files of a folder are copied or left out.
    patterns: Patterns
    # Whether complete shards stay if it is interrupted, and whether it goes on with such.
    resumable: bool
    resume: bool
    # Makes the config.json of a component, which follows the tensors; None to leave it as it is.
    make_config: Callable[[ComponentStatement, str], Config] | None
    # Files to add, with their texts, by their paths in the folder.
    files_to_add: Mapping[str, str] = field(default_factory=dict)
    # Whether config.json will state otherwise how weights are stored.
    restates: bool = False
