"""Cast a checkpoint into one file."""

import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

from castwise._options import SAFETENSORS
from castwise.checkpoint._errors import CheckpointError, join_names
from castwise.checkpoint._tensors import Planned
from castwise.checkpoint.containers import are_alike, check_store, container_of
from castwise.checkpoint.containers.checkpoint import Checkpoint, Component
from castwise.checkpoint.containers.folder import entries
from castwise.checkpoint.containers.interface import Reader
from castwise.checkpoint.containers.registry import WHOLE_MODELS, model_format
from castwise.checkpoint.files.paths import Room, check_room, is_same, real_path
from castwise.checkpoint.files.replacing import check_absent, check_place, put_file, replacing_file
from castwise.checkpoint.plan import CastOptions
from castwise.checkpoint.results.report import CastRow, Judge, ProgressMeter, judge_nothing
from castwise.checkpoint.running._executors import Executing
from castwise.checkpoint.running._job import Job, job_of
from castwise.checkpoint.running.other_files import ONLY_FOLDERS, OutputOptions, Patterns
from castwise.checkpoint.running.output_files import OutputFile, least_nbytes, meanwhile_nbytes
from castwise.checkpoint.running.sharding import one_file
from castwise.text.wording import argument, parenthesis

_LOGGER = logging.getLogger(__name__)
_NPY, _NPZ = ".npy", ".npz"


class ToFile:
    """A run that writes one file."""

    def __init__(self, source: Checkpoint, destination: Path, output: OutputOptions) -> None:
        self._source = source
        self.sources = source.shards  # the files that are read, by path
        self._destination = destination
        self._output = output
        self.judge: Judge = judge_nothing
        if destination.is_dir():
            raise CheckpointError(
                f"{destination} is a folder, and {source.path} becomes one file; name a file in "
                f"it, such as {destination / source.path.name}, or give "
                + argument("max_shard_size")
                + " for shards"
            )
        is_npy = source.suffix == _NPY  # which becomes no folder
        suffix = _NPY if is_npy else SAFETENSORS
        shards = ", or give " + argument("max_shard_size") + " for a folder of shards"
        container = container_of(
            destination,
            f"{source.path} becomes one file, so name one such as {destination.name}{suffix}"
            + ("" if is_npy else shards),
        )
        check_store(destination)
        if (model := model_format(container)) is not None:
            model.check_name(destination)
        if not output.overwrite:
            check_absent(destination)
        if output.resumable:
            name = destination if source.is_folder else source.path
            raise CheckpointError(
                ONLY_FOLDERS
                + f"shards, and {name} is a file, which is cast as a whole; leave them out"
            )
        if source.is_folder:
            output.patterns.refuse("include", f"{destination} is one file, which has only tensors")
            self._component = _only_component(source, destination)
            self._folder: Path | None = source.path
            self._consumed_paths = source.consumed
        else:
            refuse_patterns(source.path, output.patterns)
            (self._component,), self._folder = source.components, None
        for reader in self.sources.values():
            check_container(reader, source.suffix_of(reader), destination)

    def plan(self, plans_of_shards: Mapping[str, list[Planned]], options: CastOptions) -> None:
        """Take what becomes of the tensors of each shard, by path."""
        self.options = options
        self._target = one_file(self._destination.name, self.sources, plans_of_shards, options)
        if (limit := self._output.limit) is not None and (
            nbytes := least_nbytes(self._target.plans)
        ) > limit:
            raise CheckpointError(
                f"{self._destination} would be one file of {nbytes:,} bytes, and "
                + argument("max_shard_size")
                + f" is {limit:,}; name a folder to divide it"
            )

    @property
    def is_in_place(self) -> bool:
        return any(is_same(reader.path, self._destination) for reader in self.sources.values())

    @property
    def files(self) -> list[OutputFile]:
        return [self._target]

    @property
    def job(self) -> Job:
        return job_of(self.sources, self.options, self.files, self._output.arguments)

    def other_states(self) -> dict[str, list[Any]]:
        """Return nothing, as no file is copied."""
        return {}

    def product(self, folder: Path) -> Path:
        return folder / self._target.name

    def assemble(
        self, folder: Path, rows_of: Callable[[OutputFile], list[CastRow]]
    ) -> list[CastRow]:
        del folder
        rows = [row._replace(shard=None) for row in rows_of(self._target)]
        self.judge(rows)
        return rows

    def place(self, folder: Path) -> None:
        if not self._output.overwrite:
            check_absent(self._destination)
        left_out = self._left_out()
        self._close_replaced()
        put_file(self.product(folder), self._destination)
        self._tell_others(left_out)

    def preview(self) -> list[CastRow]:
        """Return the rows as they will be; refuse what cannot be written."""
        check_place(self._destination)
        return self._target.preview(None)

    def measure(self, meter: ProgressMeter) -> list[CastRow]:
        """Convert without writing; return the rows with their reports."""
        check_place(self._destination)
        rows = self._target.measure(meter, None)
        meter.starts(None)
        return rows

    def room(self) -> Room:
        """Return the bytes needed and free; nothing is copied or left out."""
        nbytes = _least_nbytes(self._target, self._destination)
        nbytes += meanwhile_nbytes([self._target])
        return check_room(self._destination, nbytes, [])

    def write(self, meter: ProgressMeter, executor: Executor | None) -> list[CastRow]:
        """Write the file, which appears when it is complete."""
        left_out = self._left_out()  # now, as nothing may fail once the file is there
        with (
            replacing_file(
                self._destination, is_named=executor is not None, may_replace=self._output.overwrite
            ) as file,
            Executing(executor) as executing,
        ):
            self.room()
            executing.begin(self._target, file)
            rows = executing.write(self._target, file, meter, None)
            meter.starts(None)
            self.judge(rows)
            self._close_replaced()
        self._tell_others(left_out)
        return rows

    def _close_replaced(self) -> None:
        """Close a source that is about to be replaced: Windows replaces no open file."""
        if self.is_in_place:
            self._source.close()

    def _left_out(self) -> list[str]:
        """List the files of a folder that the one file does not have."""
        if self._folder is None:
            return []
        names = {self._component.index_name, *self.sources, *self._consumed_paths}
        return sorted({path.name for path in entries(self._folder)} - names)

    def _tell_others(self, names: Sequence[str]) -> None:
        """Warn of files that the one file does not have."""
        if names:
            contents = "tensors" if container_of(self._destination) == SAFETENSORS else "model"
            _LOGGER.warning(
                "%s has only the %s, not %s", self._destination, contents, join_names(names)
            )


def refuse_patterns(path: Path, patterns: Patterns) -> None:
    """Refuse globs of files for a source that is a file."""
    for option in ("include", "exclude"):
        patterns.refuse(option, f"this is for folders, and {path} is a file")


def check_container(reader: Reader, suffix: str, destination: Path) -> None:
    """Refuse, or warn of, what another container than that of a suffix cannot hold."""
    if are_alike(suffix, destination):
        return
    if suffix == _NPY:
        raise CheckpointError(f"{reader.path} to {destination}: .npy can only become .npy")
    if container_of(destination) == _NPY:
        raise CheckpointError(f"{destination}: .npy holds one array without a name; write .npz")
    if reader.other_entries:
        _LOGGER.warning(
            "%s: left out, not arrays: %s", reader.path, join_names(reader.other_entries)
        )


def _only_component(folder: Checkpoint, destination: Path) -> Component:
    container = container_of(destination)
    if container != SAFETENSORS and container not in WHOLE_MODELS:
        raise CheckpointError(
            f"{folder.path} is a folder, which can become a folder or one .safetensors file, "
            f"not {destination}"
        )
    if len(folder.components) > 1:
        prefixes = join_names([component.place for component in folder.components])
        raise CheckpointError(
            f"{folder.path} has tensors in {prefixes}, "
            f"which {destination} cannot keep apart; cast each by itself, or into a folder, or "
            "leave one out " + parenthesis("exclude")
        )
    if real_path(folder.path) in real_path(destination).parents:
        raise CheckpointError(f"{destination} is inside {folder.path}; choose another name")
    return folder.components[0]


def _least_nbytes(target: OutputFile, destination: Path) -> int:
    """Return the bytes that a file takes at least; nobody knows those of compressed members."""
    if container_of(destination) != _NPZ:
        return least_nbytes(target.plans)
    from castwise.checkpoint.containers.npz import NpzReader  # noqa: PLC0415  (5 milliseconds)

    reader = target.sources[0][0]
    if not isinstance(reader, NpzReader):
        return least_nbytes(target.plans)
    return least_nbytes([plan for plan in target.plans if not reader.is_compressed(plan.info.name)])
