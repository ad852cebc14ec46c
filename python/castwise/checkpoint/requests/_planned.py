"""A conversion that has been planned: what writes it, and what its summary tells."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from castwise._core import finfo
from castwise._options import SAFETENSORS
from castwise.checkpoint._config import Config
from castwise.checkpoint._tensors import Planned
from castwise.checkpoint.containers import is_container, refuse_file_name, source_path
from castwise.checkpoint.containers.checkpoint import Checkpoint, ComponentStatement
from castwise.checkpoint.files.remote import is_remote
from castwise.checkpoint.plan import Decide
from castwise.checkpoint.requests.options import Dequantize, Request, Run
from castwise.checkpoint.results.report import CastRow, KeptTensors, ProgressMeter
from castwise.checkpoint.results.summary import (
    CastPlan,
    CastSummary,
    ImportanceUse,
    check_losses,
    checked_share,
    chosen_kinds,
    default_max_zeros,
)
from castwise.checkpoint.running.other_files import OutputOptions, Patterns
from castwise.checkpoint.running.sharding import shard_bytes
from castwise.checkpoint.running.to_file import ToFile
from castwise.checkpoint.running.to_folder import ToFolder


class PlannedConversion(NamedTuple):
    """A conversion that has been planned."""

    writer: ToFile | ToFolder
    about: tuple[str, str, dict[str, Any]]
    unused_patterns: Mapping[str, str | None]
    action: str
    kept_tensors: Sequence[KeptTensors] = ()
    # That of nonzero values which may become zero; None for the default of the rows.
    share: float | None = None
    importance: ImportanceUse | None = None

    def preview(self, run: Run) -> CastPlan:
        """Return what the run would do; refuse what it would refuse from headers alone."""
        room = self.writer.room()
        rows = self.writer.measure(self.meter(run)) if run.measure else self.writer.preview()
        return CastPlan(
            *self._facts(rows),
            needed_bytes=room.bytes_needed,
            free_bytes=room.free,
            left_out=[path for path, _ in room.left_out],
        )

    def refuse_losses_of(self, run: Run) -> PlannedConversion:
        """Return the conversion that leaves a source that it would replace if values are lost."""
        kinds = chosen_kinds(run.fail_on, "fail_on")
        share = None if run.max_zeros is None else checked_share(run.max_zeros)
        conversion = self._replace(share=share)
        if self.writer.is_in_place:
            self.writer.judge = lambda rows: check_losses(conversion.summary(rows), kinds)
        return conversion

    def meter(self, run: Run) -> ProgressMeter:
        nbytes = sum(plan.info.nbytes for target in self.writer.files for plan in target.plans)
        return ProgressMeter(nbytes, run.progress)

    def summary(self, rows: Sequence[CastRow]) -> CastSummary:
        return CastSummary(*self._facts(rows))

    def _facts(self, rows: Sequence[CastRow]) -> tuple[Any, ...]:
        """Return the fields of the summary of these rows, or of the plan, in their order."""
        share = default_max_zeros(rows) if self.share is None else self.share
        facts = self.unused_patterns, share, self.action, self.kept_tensors, self.importance
        return *self.about, rows, *facts


def becomes_file(
    source: Checkpoint, destination: Path, limit: int | None, suffix: str = SAFETENSORS
) -> bool:
    """Return True if a source becomes one file, as the destination names one."""
    # `suffix` is that of a file that the result can be, unless there is a limit of its size.
    is_file = is_container(destination) and not destination.is_dir()
    if is_file or (limit is None and not source.is_folder):
        return True
    refuse_file_name(destination, suffix if limit is None else None)
    return False


def new_writer(source: Checkpoint, destination: Path, output: OutputOptions) -> ToFile | ToFolder:
    """Return what writes a file or a folder, as the destination names one."""
    is_file = becomes_file(source, destination, output.limit)
    return (ToFile if is_file else ToFolder)(source, destination, output)


def plan_shards(source: Checkpoint, decide: Decide) -> dict[str, list[Planned]]:
    """Decide what becomes of the tensors of each shard, from headers alone."""
    return {
        path: decide(reader.tensors.values(), component.prefix)
        for component in source.components
        for path, reader in component.shards.items()
    }


def output_options(
    request: Request, run: Run, make_config: Callable[[ComponentStatement, str], Config] | None
) -> OutputOptions:
    """Return how the destination is written; `make_config` makes config.json follow the tensors."""
    limit = shard_bytes(request.max_shard_size)
    return OutputOptions(
        arguments=described_values(request),
        overwrite=request.overwrite,
        limit=limit,
        patterns=Patterns(request.include, request.exclude),
        resumable=run.keeps_shards,
        resume=run.resume,
        make_config=make_config,
    )


def plain_values(request: Request) -> dict[str, Any]:
    """Return the options of a request by name, with paths that hold in any folder."""
    values = {name: getattr(request, name) for name in request.options}
    source = source_path(request.source, "source")
    values["source"] = str(source) if is_remote(source) else os.path.abspath(source)
    for name in values.keys() & {"architecture", "dtype_map", "importance", "policy"}:
        path = values[name]
        if isinstance(path, os.PathLike) or (isinstance(path, str) and os.path.isfile(path)):
            values[name] = os.path.abspath(path)
    if isinstance(request, Dequantize):
        values["dtype"] = finfo(values["dtype"]).name
    return values


def described_values(request: Request) -> dict[str, Any]:
    """Return plain values by name, objects that JSON cannot hold by what they are called."""
    values = {"command": request.command, **plain_values(request)}
    for name, value in values.items():
        with suppress(TypeError, ValueError):  # ValueError: it holds itself
            values[name] = json.loads(json.dumps(value))
            continue
        values[name] = str(value)
    return values
