"""What a conversion is asked to do, the plan that follows from it, and how it is carried out."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, ClassVar

from castwise._options import FindingKind
from castwise._wording import argument
from castwise.checkpoint._errors import CheckpointError
from castwise.checkpoint._model_card import CARD
from castwise.checkpoint.containers import is_container, source_path
from castwise.checkpoint.containers.checkpoint import Checkpoint
from castwise.checkpoint.files import is_hub, is_remote, target_path
from castwise.checkpoint.preview import CastPlan
from castwise.checkpoint.report import CastRow, KeptTensors, Progress, ProgressMeter
from castwise.checkpoint.requests._push import push_conversion, suffix_of
from castwise.checkpoint.running import (
    OutputOptions,
    Patterns,
    RunPart,
    ToFile,
    ToFolder,
    convert_part,
    refuse_parts,
)
from castwise.checkpoint.summary import (
    CastSummary,
    check_losses,
    checked_share,
    chosen_kinds,
    default_max_zeros,
)

SAFETENSORS = ".safetensors"


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """A conversion that has been planned."""

    run: ToFile | ToFolder
    about: tuple[str, str, dict[str, Any]]
    unused: Mapping[str, str | None]
    action: str
    max_zeros: float | None = None
    kept: Sequence[KeptTensors] = ()

    def preview(
        self, progress: Callable[[Progress], None] | None = None, *, measure: bool = False
    ) -> CastPlan:
        """Return what the run would do; refuse what it would refuse from headers alone.

        With `measure` everything is converted, and the rows have their reports.
        """
        room = self.run.room()
        rows = self.run.measure(self._meter(progress)) if measure else self.run.preview()
        return CastPlan(
            *self.about,
            rows,
            self.unused,
            self._max_zeros(rows),
            self.action,
            self.kept,
            needed_bytes=room.needed,
            free_bytes=room.free,
            left_out=[path for path, _ in room.left_out],
        )

    def judged(
        self, fail_on: FindingKind | Iterable[FindingKind], max_zeros: float | None
    ) -> PlannedRun:
        """Return the run that leaves a source that it would replace if something is lost."""
        kinds = chosen_kinds(fail_on)
        share = None if max_zeros is None else checked_share(max_zeros)
        planned = replace(self, max_zeros=share)
        if self.run.is_in_place:
            self.run.judge = lambda rows: check_losses(planned.summary(rows), kinds)
        return planned

    def write(
        self, progress: Callable[[Progress], None] | None, executor: Executor | None = None
    ) -> CastSummary:
        """Let the run write all of it."""
        return self.summary(self.run.write(self._meter(progress), executor))

    def _meter(self, progress: Callable[[Progress], None] | None) -> ProgressMeter:
        return ProgressMeter(sum(tensor.info.nbytes for tensor in self.run.planned), progress)

    def summary(self, rows: Sequence[CastRow]) -> CastSummary:
        """Return the summary of these rows."""
        max_zeros = self._max_zeros(rows)
        return CastSummary(*self.about, rows, self.unused, max_zeros, self.action, self.kept)

    def _max_zeros(self, rows: Sequence[CastRow]) -> float:
        return default_max_zeros(rows) if self.max_zeros is None else self.max_zeros


def becomes_file(source: Checkpoint, destination: Path, limit: int | None) -> bool:
    """Return True if a source becomes one file, as the destination names one."""
    is_file = is_container(destination) and not destination.is_dir()
    return is_file or (limit is None and not source.is_folder)


def new_run(source: Checkpoint, destination: Path, output: OutputOptions) -> ToFile | ToFolder:
    """Make the run that writes a file or a folder, as the destination names one."""
    is_file = becomes_file(source, destination, output.limit)
    return (ToFile if is_file else ToFolder)(source, destination, output)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """All that decides what is made of the source, as given to the function of a command.

    Attributes
    ----------
    command
        The name of the command.
    action
        What it does to tensors, as a summary has it.
    source, overwrite, include, exclude, max_shard_size
        As given to `cast_file`.

    """

    command: ClassVar[str]
    action: ClassVar[str]
    source: str | os.PathLike[str]
    overwrite: bool
    include: str | Sequence[str]
    exclude: str | Sequence[str]
    max_shard_size: int | str | None

    def planned(
        self,
        destination: Path,
        threads: int | None = None,
        *,
        resumable: bool = False,
        resume: bool = False,
    ) -> AbstractContextManager[PlannedRun]:
        """Open the source for a block, and decide what becomes of every tensor."""
        raise NotImplementedError

    @property
    def suffix(self) -> str:
        """The suffix of a file that holds what is written."""
        return SAFETENSORS

    def plain_values(self) -> dict[str, Any]:
        """Return the arguments by name, with paths that hold in any folder."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        source = source_path(self.source, "source")
        values["source"] = str(source) if is_remote(source) else os.path.abspath(source)
        for name in values.keys() & {"architecture", "dtype_map", "policy"}:
            path = values[name]
            if isinstance(path, os.PathLike) or (isinstance(path, str) and os.path.isfile(path)):
                values[name] = os.path.abspath(path)
        return values

    def described(self) -> dict[str, Any]:
        """Return plain values by name, objects that JSON cannot hold by what they are called."""
        values = {"command": self.command, **self.plain_values()}
        for name, value in values.items():
            with suppress(TypeError, ValueError):  # ValueError: it holds itself
                values[name] = json.loads(json.dumps(value))
                continue
            values[name] = str(value)
        return values

    def card_path(self, source: Path) -> Path | None:
        """Return the path of the model card that is copied from a folder; None if there is none."""
        is_excluded = Patterns(self.include, self.exclude).excludes(CARD)
        path = source / CARD
        return path if not is_excluded and (path.is_file() or path.is_dir()) else None

    def check_part(self, **arguments: object) -> None:
        """Refuse what does not go together with `part`; `arguments` are those beside it.

        Raises
        ------
        CheckpointError
            One of `arguments` is true.
        TypeError
            A dtype, map or policy is an object that JSON cannot hold.

        """
        if given := sorted(name for name, value in arguments.items() if value):
            raise CheckpointError(
                f"{argument('part')} and {', '.join(map(argument, given))} do not go "
                "together; leave out one of them"
            )
        for name, value in self.plain_values().items():
            try:
                json.dumps(value)
            except TypeError as error:
                raise TypeError(
                    f"with part, {name} must be text, or a mapping of text, so that the other "
                    f"parts and the end can be told of it: {error}"
                ) from error


def carry_out(
    request_type: type[Request],
    *,
    destination: str | os.PathLike[str],
    progress: Callable[[Progress], None] | None,
    threads: int | None,
    resumable: bool,
    resume: bool,
    dry_run: bool,
    measure: bool,
    part: str | tuple[int, int] | None,
    executor: Executor | None,
    fail_on: FindingKind | Iterable[FindingKind],
    max_zeros: float | None,
    **arguments: Any,  # noqa: ANN401  (the fields of the request)
) -> CastSummary:
    """Write what is asked for, or a part of it, or say what would be written.

    `arguments` are those of the request; a command passes on all that it was given.
    """
    if measure and not dry_run:
        raise CheckpointError(
            f"{argument('measure')} goes with {argument('dry_run')}: a conversion that is written "
            "measures its losses anyway"
        )
    request = request_type(**arguments)
    path = target_path(destination, "destination")
    if isinstance(executor, type) or (
        executor is not None and not callable(getattr(executor, "submit", None))
    ):
        raise TypeError(
            f"executor must have submit(), as an Executor of concurrent.futures, not {executor!r}"
        )
    paths = path, source_path(request.source, "source")
    if (part, executor) != (None, None) and any(map(is_remote, paths)):
        raise CheckpointError(
            "part and executor are for files that all workers see under the same paths, not "
            "for those on a store; leave them out, or copy the source to a disk that workers "
            "share, and the result from it"
        )
    mine = None if part is None else RunPart.of(part)
    if mine is not None:
        request.check_part(executor=executor, dry_run=dry_run, resumable=resumable or resume)
    else:
        refuse_parts(path)

    def convert(place: Path) -> CastSummary:
        with request.planned(place, threads, resumable=resumable, resume=resume) as run:
            planned = run.judged(fail_on, max_zeros)
            if dry_run:
                return planned.preview(progress, measure=measure)
            if mine is None:
                return planned.write(progress, executor)
            rows = convert_part(
                planned.run,
                place,
                mine,
                progress=progress,
            )
            return planned.summary(rows)

    if not is_hub(path):
        return convert(path)
    if resumable or resume:
        raise CheckpointError(
            f"{argument('resumable')} and {argument('resume')} are for folders of this machine, "
            f"and {path} is not one"
        )
    is_folder = request.max_shard_size is not None
    suffix = None if is_folder else suffix_of(paths[1], wanted=request.suffix)
    return push_conversion(
        path,
        paths[1],
        convert,
        command=request.command,
        card_path=request.card_path(paths[1]) if suffix is None else None,
        suffix=suffix,
        overwrite=request.overwrite,
        dry_run=dry_run,
    )
