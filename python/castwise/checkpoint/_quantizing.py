"""What a run is asked to do that writes a quantised checkpoint."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

from castwise._dtype_map import DtypeMap
from castwise.checkpoint._config import CONFIG
from castwise.checkpoint._encoding import Encoded, QuantizedConfig
from castwise.checkpoint._errors import CheckpointError
from castwise.checkpoint._filesystem import checked_path
from castwise.checkpoint._other_files import Patterns
from castwise.checkpoint._request import PlannedRun, becomes_file, new_run
from castwise.checkpoint._to_folder import Keeping
from castwise.checkpoint.containers import container_of, open_source
from castwise.checkpoint.containers._interface import Reader
from castwise.checkpoint.containers.folder import CheckpointFolder, components_of
from castwise.checkpoint.plan import CastOptions

_SUFFIX = ".safetensors"


class Make(Protocol):
    """Makes the checkpoint that is to be written of one that is open."""

    def __call__(self, source: Reader | CheckpointFolder, /, *, is_file: bool) -> Encoded: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """All that decides what is made of the source.

    Attributes
    ----------
    make
        Makes readers that encode of those of the source.
    dtypes
        What becomes of tensors that it does not make.
    options
        What the report says of the run.
    source, overwrite, resumable, resume, patterns, limit
        As given to `cast_file`.

    """

    source: str | os.PathLike[str]
    make: Make
    dtypes: DtypeMap
    options: CastOptions
    overwrite: bool
    resumable: bool
    resume: bool
    patterns: Patterns
    limit: int | None

    @contextmanager
    def planned(self, destination: str | os.PathLike[str]) -> Iterator[PlannedRun]:
        """Open the source for a block, and plan what becomes of every tensor."""
        old, new = checked_path(self.source, "source"), checked_path(destination, "destination")
        opened = open_source(old, None, self.patterns.excludes)
        with nullcontext() if isinstance(opened, CheckpointFolder) else opened:
            is_file = becomes_file(opened, new, self.limit)
            if is_file and container_of(new) != _SUFFIX:
                raise CheckpointError(
                    f"{new}: a quantised checkpoint is a folder or a {_SUFFIX} file; name one"
                )
            made = self.make(opened, is_file=is_file)
            keeping = self._keeping(made, _configured(old, opened), is_file=is_file)
            run = new_run(
                made.source, new, self.limit, self.patterns, keeping, overwrite=self.overwrite
            )
            run.plan(partial(made.decide, self.dtypes))
            about = (str(old), str(new), self.options.to_dict())
            yield PlannedRun(run, self.options, about, made.unused)

    def _keeping(self, made: Encoded, configured: dict[str, bool], *, is_file: bool) -> Keeping:
        sections = {prefix + CONFIG: one.sections for prefix, one in made.stated.items()}
        return Keeping(
            resumable=self.resumable or self.resume,
            resume=self.resume,
            config=partial(QuantizedConfig, stated=sections),
            added={} if is_file else made.added(configured),
        )


def _configured(path: Path, opened: Reader | CheckpointFolder) -> dict[str, bool]:
    """Say which components of a folder have a configuration."""
    if not isinstance(opened, CheckpointFolder):
        return {}
    prefixes = (one.prefix for one in components_of(opened))
    return {prefix: (path / prefix / CONFIG).is_file() for prefix in prefixes}
