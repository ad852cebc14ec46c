"""What a run is asked to do that decodes, quantises or transcodes a checkpoint."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from castwise.checkpoint._config import CONFIG, Config
from castwise.checkpoint._errors import CheckpointError
from castwise.checkpoint._filesystem import checked_path
from castwise.checkpoint._other_files import Patterns
from castwise.checkpoint._request import PlannedRun, becomes_file, new_run
from castwise.checkpoint._targets import shard_bytes
from castwise.checkpoint._to_folder import Keeping
from castwise.checkpoint.containers import container_of, open_source
from castwise.checkpoint.containers._interface import Reader
from castwise.checkpoint.containers.folder import CheckpointFolder, components_of
from castwise.checkpoint.plan import CastOptions, Decide
from castwise.checkpoint.report import CastSummary, Progress

_SUFFIX = ".safetensors"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions(CastOptions):
    """The options of a run that decodes, quantises or transcodes; what it casts, it casts plainly.

    Attributes
    ----------
    asked
        What decides the result, as the report has it.

    """

    asked: Mapping[str, Any]

    def for_tensor(self, name: str) -> dict[str, Any]:
        """Return the arguments of `castwise.cast` for a tensor that a map casts."""
        del name
        return CastOptions.to_dict(self)

    def to_dict(self) -> dict[str, Any]:
        """Return those that decide the result, for the report."""
        return {"seed": None, **self.asked}


@dataclass(frozen=True, slots=True)
class Made:
    """A checkpoint as it is to be written.

    Attributes
    ----------
    source
        The readers that decode or encode.
    decide
        Decides what becomes of tensors.
    config
        Reads a `config.json` that follows them.
    added
        Returns the files to add, by path, given whether each component has a configuration.
    unused
        Patterns of a map that matched nothing, each with the nearest name.

    """

    source: Reader | CheckpointFolder
    decide: Decide
    config: Callable[[Path, str], Config]
    added: Callable[[Mapping[str, bool]], Mapping[str, str]] = lambda _: {}
    unused: Mapping[str, str | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """All that decides what is made of the source.

    Attributes
    ----------
    make
        Makes it of the opened source; `is_file` says that it becomes one file.
    options
        What the report says of the run.
    decodes
        The source may be a file whose tensors must be decoded.
    is_plain
        What is written is not quantised, so that any container can hold it.
    source, overwrite, resumable, resume, include, exclude, max_shard_size
        As given to `cast_file`.

    """

    source: str | os.PathLike[str]
    make: Callable[..., Made]
    options: CastOptions
    overwrite: bool
    resumable: bool
    resume: bool
    include: str | Sequence[str]
    exclude: str | Sequence[str]
    max_shard_size: int | str | None
    decodes: bool = False
    is_plain: bool = False

    def run(
        self,
        destination: str | os.PathLike[str],
        progress: Callable[[Progress], None] | None,
        *,
        dry_run: bool,
    ) -> CastSummary:
        """Write what is asked for, or say what would be."""
        patterns, limit = Patterns(self.include, self.exclude), shard_bytes(self.max_shard_size)
        old, new = checked_path(self.source, "source"), checked_path(destination, "destination")
        opened = open_source(old, None, patterns.excludes, decodes=self.decodes)
        with nullcontext() if isinstance(opened, CheckpointFolder) else opened:
            is_file = becomes_file(opened, new, limit)
            if is_file and not self.is_plain and container_of(new) != _SUFFIX:
                raise CheckpointError(
                    f"{new}: a quantised checkpoint is a folder or a {_SUFFIX} file; name one"
                )
            made = self.make(opened, is_file=is_file)
            keeping = Keeping(
                resumable=self.resumable or self.resume,
                resume=self.resume,
                config=made.config,
                added={} if is_file else made.added(_configured(old, opened)),
            )
            run = new_run(made.source, new, limit, patterns, keeping, overwrite=self.overwrite)
            run.plan(made.decide)
            about = (str(old), str(new), self.options.to_dict())
            planned = PlannedRun(run, self.options, about, made.unused)
            return planned.preview() if dry_run else planned.write(progress)


def _configured(path: Path, opened: Reader | CheckpointFolder) -> dict[str, bool]:
    """Say which components of a folder have a configuration."""
    if not isinstance(opened, CheckpointFolder):
        return {}
    prefixes = (one.prefix for one in components_of(opened))
    return {prefix: (path / prefix / CONFIG).is_file() for prefix in prefixes}
