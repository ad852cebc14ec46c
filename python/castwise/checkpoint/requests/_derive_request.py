"""What a run is asked to do that decodes, quantises or transcodes a checkpoint."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar
from uuid import UUID, uuid4

from castwise.checkpoint._errors import CheckpointError
from castwise.checkpoint.containers import (
    WholeModelReader,
    is_container,
    open_checkpoint,
    source_path,
)
from castwise.checkpoint.containers.checkpoint import Checkpoint
from castwise.checkpoint.plan import CastOptions
from castwise.checkpoint.planning import DerivedCheckpoint, DerivedReader
from castwise.checkpoint.requests._request import (
    PlannedRun,
    Request,
    becomes_file,
    new_run,
)
from castwise.checkpoint.running import OutputOptions, Patterns, shard_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions(CastOptions):
    """The options of a run that decodes, quantises or transcodes; what it casts, it casts plainly.

    Attributes
    ----------
    asked
        What decides the result, as the report has it.

    """

    asked: Mapping[str, Any]

    def for_tensor(self, name: str, source: str | None, target: str | None) -> dict[str, Any]:
        """Return the arguments of `castwise.cast` for a tensor that a map casts."""
        del name, source, target
        return CastOptions.to_dict(self)

    def to_dict(self) -> dict[str, Any]:
        """Return those that decide the result, for the report."""
        return {"seed": None, **self.asked}


Make = Callable[..., DerivedCheckpoint]
"""Plans what is made of the opened source; `is_file` says that it becomes one file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeriveRequest(Request):
    """All that decides what is made of the source by decoding or encoding weights.

    Attributes
    ----------
    decodes
        The source may be a file whose tensors must be decoded.
    is_plain
        What is written is not quantised, so that any container can hold it.

    """

    decodes: ClassVar[bool] = True
    is_plain: ClassVar[bool] = False

    def checked(self, threads: int | None) -> tuple[CastOptions, Make]:
        """Check what is asked for; returns what the report says of it, and what makes it.

        Raises
        ------
        ValueError, TypeError
            An option is wrong.

        """
        raise NotImplementedError

    @contextmanager
    def planned(
        self,
        destination: Path,
        threads: int | None = None,
        *,
        resumable: bool = False,
        resume: bool = False,
    ) -> Iterator[PlannedRun]:
        """Open the source for a block, and decide what becomes of every tensor."""
        options, make = self.checked(threads)
        source = source_path(self.source, "source")
        patterns, limit = Patterns(self.include, self.exclude), shard_bytes(self.max_shard_size)
        opened = open_checkpoint(source, None, patterns.excludes, decodes=self.decodes)
        with opened:
            if isinstance(opened.file, WholeModelReader) and not is_container(destination):
                limit = limit or sys.maxsize  # a model in itself becomes a folder
            is_file = becomes_file(opened, destination, limit)
            is_other = is_file and not self.is_plain and destination.suffix.lower() != self.suffix
            # The rest is what cannot be a file of any kind; ToFile says what can.
            if is_other and (is_container(destination) or self.suffix != ".safetensors"):
                raise CheckpointError(
                    f"{destination}: a quantised checkpoint is a folder or a {self.suffix} file; "
                    "name one"
                )
            result = make(opened, is_file=is_file)
            result.check_loading()
            result.warn()
            again = DerivedAgain(self, is_file, threads, uuid4())
            for reader in _readers(result.source):
                reader.again = again
            output = OutputOptions(
                arguments=self.described(),
                overwrite=self.overwrite,
                limit=limit,
                patterns=patterns,
                resumable=resumable or resume,
                resume=resume,
                config=result.config,
                added={} if is_file else result.added(),
                restates=True,
            )
            run = new_run(result.source, destination, output)
            run.plan(result.decide, options)
            about = (str(source), str(destination), options.to_dict())
            yield PlannedRun(run, about, result.unused, self.action, kept=result.kept)


def _readers(source: Checkpoint) -> list[DerivedReader]:
    """Return the readers that make tensors."""
    readers = source.shards.values()
    return [reader for reader in readers if isinstance(reader, DerivedReader)]


@dataclass(frozen=True, slots=True)
class DerivedAgain:
    """Plans a request again, in another process.

    Attributes
    ----------
    request
        What is asked for.
    is_file
        It becomes one file.
    threads
        How many threads may make tensors.
    run
        Tells runs apart.

    """

    request: DeriveRequest
    is_file: bool
    threads: int | None
    run: UUID

    def __call__(self) -> dict[Path, DerivedReader]:
        """Return the readers that make tensors, by the paths of their files."""
        request = self.request
        _, make = request.checked(self.threads)
        excludes = Patterns(request.include, request.exclude).excludes
        opened = open_checkpoint(Path(request.source), None, excludes, decodes=request.decodes)
        result = make(opened, is_file=self.is_file)
        return {reader.path: reader for reader in _readers(result.source)}

    def __reduce__(self) -> tuple[Any, ...]:
        """Give the other process paths that hold in any folder."""
        values = self.request.plain_values()
        return _derived_again, (type(self.request), values, self.is_file, self.threads, self.run)


def _derived_again(
    request: type[DeriveRequest],
    values: dict[str, Any],
    is_file: bool,
    threads: int | None,
    run: UUID,
) -> DerivedAgain:
    return DerivedAgain(request(**values), is_file, threads, run)
