"""Cast a checkpoint into a folder of shards, and carry its other files along."""

import logging
import stat
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from castwise.checkpoint._config import Config
from castwise.checkpoint._errors import CheckpointError, join_names
from castwise.checkpoint._tensors import Planned
from castwise.checkpoint.containers.checkpoint import Checkpoint
from castwise.checkpoint.containers.folder import PIPELINE, entries, walk, weight_folders
from castwise.checkpoint.containers.weight_files import INDEX_SUFFIX, is_safetensors
from castwise.checkpoint.files.paths import Room, check_room, is_same, real_path
from castwise.checkpoint.files.remote import is_remote
from castwise.checkpoint.files.replacing import (
    check_place,
    new_file,
    put_folder,
    replacing_folder,
    resumable_folder,
    sync_file,
    sync_folder,
)
from castwise.checkpoint.files.temporary_names import remove_leftovers
from castwise.checkpoint.plan import CastOptions
from castwise.checkpoint.results.report import CastRow, Judge, ProgressMeter, judge_nothing
from castwise.checkpoint.running._executors import Executing
from castwise.checkpoint.running._job import Job, job_of
from castwise.checkpoint.running.ledger import (
    ShardLedger,
    count_shards,
    finished_rows,
    has_finished,
    remove_all_but,
    shards_by_size,
)
from castwise.checkpoint.running.other_files import (
    ONLY_FOLDERS,
    OtherFiles,
    OutputOptions,
    check_length,
)
from castwise.checkpoint.running.output_files import (
    OutputComponent,
    OutputFile,
    least_nbytes,
    meanwhile_nbytes,
)
from castwise.checkpoint.running.sharding import divide, same_files
from castwise.checkpoint.running.to_file import check_container, refuse_patterns
from castwise.quantization.producers.stated import CONFIG
from castwise.text.wording import argument, parenthesis

_LOGGER = logging.getLogger(__name__)


class ToFolder:
    """A run that writes a folder."""

    def __init__(self, source: Checkpoint, destination: Path, output: OutputOptions) -> None:
        self._source = source.path
        self.sources = source.shards  # the files that are read, by path
        self._destination = destination
        self._output = output
        patterns = output.patterns
        if output.resumable and is_remote(destination):
            raise CheckpointError(ONLY_FOLDERS + f"this machine, not {destination}; leave them out")
        self.judge: Judge = judge_nothing
        self._other_files: OtherFiles | None = None
        self._configs: dict[str, Config] = {}
        self._components = source.components
        if source.is_folder:
            in_place = is_same(source.path, destination)
            if in_place and is_remote(destination):
                raise CheckpointError(
                    f"{destination} is on a store, where objects are replaced one by one, so a run "
                    "that is stopped would leave a mix; choose another destination"
                )
            if in_place:
                patterns.refuse("exclude", "what is left out would be lost; remove it yourself")
                _refuse_losses(source)
                if output.restates:
                    _refuse_other_forms(source)
            self._other_files = OtherFiles(source, patterns, keeps_all=in_place)
            if (make_config := output.make_config) is not None:
                statements = {
                    component.prefix + CONFIG: component.statement
                    for component in source.components
                    if component.has_config
                }
                self._configs = {
                    label: make_config(statement, label)
                    for label, statement in statements.items()
                    if not patterns.excludes(label)
                }
        else:
            refuse_patterns(source.path, patterns)
        for reader in self.sources.values():
            check_container(reader, source.suffix_of(reader), destination / "model.safetensors")
        self._copies: set[str] = set()
        # Whether the destination may be the result of the run to resume, which its job tells.
        self._may_be_finished = (
            output.resume and not output.overwrite and has_finished(resumable_folder(destination))
        )
        self._check_destination()

    def plan(self, plans_of_shards: Mapping[str, list[Planned]], options: CastOptions) -> None:
        """Take what becomes of the tensors of each shard, by path; decide in which files."""
        self.options = options
        limit, is_file = self._output.limit, self._other_files is None
        self._targets = [
            same_files(component, plans_of_shards, options)
            if limit is None
            else divide(component, plans_of_shards, options, limit, is_file=is_file)
            for component in self._components
        ]

    def preview(self) -> list[CastRow]:
        """Return the rows as they will be; refuse what cannot be written."""
        check_place(self._destination, is_folder=True)
        return [row for target in self.files for row in target.preview(target.name)]

    def measure(self, meter: ProgressMeter) -> list[CastRow]:
        """Convert without writing; return the rows with their reports."""
        check_place(self._destination, is_folder=True)
        rows = [row for target in self.files for row in target.measure(meter, target.name)]
        meter.starts(None)
        return rows

    def room(self) -> Room:
        """Return the bytes needed and free, and the files left out with their sizes."""
        shards_done: Sequence[str] = ()
        if self._finished_rows() is not None:
            shards_done = [target.name for target in self.files]
        elif self._output.resume:
            temporary = resumable_folder(self._destination)
            shards_done = shards_by_size(temporary, self.job, self.files)
        room = self._check_room(shards_done)
        if self._other_files is not None:
            self._other_files.warn()
        return room

    def write(self, meter: ProgressMeter, executor: Executor | None) -> list[CastRow]:
        """Write the folder, which appears, or is replaced, when all of it is there."""
        # On a store each object appears when it is complete, and the index last.
        if is_remote(self._destination):
            return self._upload(meter)
        if (finished := self._finished_rows()) is not None:
            _LOGGER.warning("%s is complete already", self._destination)
            meter.starts(None)
            remove_leftovers(real_path(self._destination))  # the ledger
            return finished
        resumable = self._output.resumable
        with (
            ExitStack() as telling,
            replacing_folder(
                self._destination,
                is_kept=count_shards if resumable else None,
                resume=self._output.resume,
                may_replace=self._output.overwrite,
            ) as folder,
            ExitStack() as stack,
        ):
            ledger = None
            if resumable:
                ledger = ShardLedger(folder, self._destination, self.job, self.files)
                stack.enter_context(ledger.hold())
                # Only now, when what is kept is known to be of this conversion.
                telling.enter_context(_report_kept_shards(self._destination, len(self.files)))
            room = self._check_room(() if ledger is None else ledger.rows)
            rows = self._write_files(folder, meter, ledger, executor)
            meter.starts(None)
            self.judge(rows)
            self._complete(folder, rows, room)
        return rows

    def _finished_rows(self) -> list[CastRow] | None:
        """Return the rows of a run that had all but ended; None if there is something to do.

        CheckpointError: The destination is there, and is not the result of this run.
        """
        if not (self._may_be_finished and real_path(self._destination).exists()):
            return None
        folder = resumable_folder(self._destination)
        rows = finished_rows(folder, self._destination, self.job, self.files)
        if rows is None:
            self._may_be_finished = False
            self._check_destination()
        return rows

    def _upload(self, meter: ProgressMeter) -> list[CastRow]:
        folder = self._destination
        paths = walk(folder, lambda _: True) if folder.exists() else ()
        paths_before = {path for path, _ in paths if not path.endswith("/")}
        indexes = sorted(name for name in paths_before if name.endswith(INDEX_SUFFIX))
        room = self._check_room(())
        rows: list[CastRow] = []
        for target in self.files:
            with new_file(folder / target.name) as file:
                rows += target.write(file, meter, target.name)
                # Just before the first object is replaced: they would name it.
                while indexes:
                    (folder / indexes.pop()).unlink()
        meter.starts(None)
        self._complete(folder, rows, room)
        names = {target.name for target in self.files}
        names |= {component.index_name or "" for component in self._targets}
        for name in sorted(paths_before - names - self._copies):
            (folder / name).unlink(missing_ok=True)
        return rows

    def other_states(self) -> dict[str, list[Any]]:
        """Return what tells whether the files to be copied were changed, by their paths."""
        return {} if self._other_files is None else self._other_files.states()

    def product(self, folder: Path) -> Path:
        """Return what of a folder with the shards becomes the destination: all of it."""
        return folder

    def assemble(
        self, folder: Path, rows_of: Callable[[OutputFile], list[CastRow]]
    ) -> list[CastRow]:
        rows = [row for target in self.files for row in rows_of(target)]
        self.judge(rows)
        names = {target.name for target in self.files}
        room = self._check_room(names)
        remove_all_but(folder, folder, names)
        self._complete(folder, rows, room)
        return rows

    def place(self, folder: Path) -> None:
        put_folder(folder, self._destination, may_replace=self._output.overwrite)

    def _complete(self, folder: Path, rows: Sequence[CastRow], room: Room) -> None:
        if self._other_files is not None:
            self._copies = self._other_files.copy(folder)
            self._other_files.warn(room.left_out)
        for path, text in self._output.files_to_add.items():
            with new_file(folder / path) as file:
                file.write(text.encode())
            self._copies.add(path)
        for component in self._targets:
            self._finish(component, folder, [row for row in rows if row.shard in component.names])
        if not is_remote(folder):
            # Again: it may have appeared, or changed, while the shards were cast.
            self._check_destination()

    def _write_files(
        self,
        folder: Path,
        meter: ProgressMeter,
        ledger: ShardLedger | None,
        executor: Executor | None,
    ) -> list[CastRow]:
        rows_of_files = {} if ledger is None else dict(ledger.rows)
        for component in self._components:
            (folder / component.prefix).mkdir(parents=True, exist_ok=True)
        with Executing(executor) as executing:
            for target in self.files:
                if target.name not in rows_of_files:
                    with (folder / target.name).open("xb") as file:
                        executing.begin(target, file)
            for target in self.files:
                if target.name in rows_of_files:
                    meter.finish(sum(tensor.info.nbytes for tensor in target.plans))
                    continue
                with (folder / target.name).open("r+b") as file:
                    rows = executing.write(target, file, meter, target.name)
                    sync_file(file)
                if ledger is not None:
                    ledger.add(target.name, rows)
                rows_of_files[target.name] = rows
        return [row for target in self.files for row in rows_of_files[target.name]]

    @property
    def files(self) -> list[OutputFile]:
        return [target for component in self._targets for target in component.targets]

    @property
    def job(self) -> Job:
        return job_of(self.sources, self.options, self.files, self._output.arguments)

    def _check_room(self, shards_done: Container[str]) -> Room:
        for target in self.files:
            check_length(target.name, self._destination)
        other_nbytes, left_out = (
            (0, []) if self._other_files is None else self._other_files.size(self._destination)
        )
        targets = [target for target in self.files if target.name not in shards_done]
        nbytes = other_nbytes + sum(least_nbytes(target.plans) for target in targets)
        nbytes += meanwhile_nbytes(targets, other_nbytes)
        return check_room(self._destination, nbytes, left_out)

    def _finish(self, component: OutputComponent, folder: Path, rows: Sequence[CastRow]) -> None:
        """Write what follows from the tensors of a component: its index, and its configuration."""
        label = component.component.prefix + CONFIG if component.component.has_config else ""
        if label in self._configs and (text := self._configs[label].following(rows)) is not None:
            _replace_text(folder / label, text)
        if component.index_name is not None:
            with new_file(folder / component.index_name) as file:
                file.write(component.index_text(rows).encode())
        sync_folder(folder / component.component.prefix)

    @property
    def is_in_place(self) -> bool:
        return is_same(self._source, self._destination)

    def _check_destination(self) -> None:
        """Refuse to replace what nobody meant to lose."""
        source, destination = self._source, self._destination
        real_source, real_destination = real_path(source), real_path(destination)
        in_place = self.is_in_place  # then all that is in the folder is carried over
        if not in_place and (
            real_source in real_destination.parents or real_destination in real_source.parents
        ):
            raise CheckpointError(
                f"one of {destination} and {source} is inside the other; choose another name"
            )
        if not real_destination.exists():
            return
        if not real_destination.is_dir():
            raise CheckpointError(f"{destination} is a file, but {source} becomes a folder")
        if not entries(real_destination):
            return
        if not (in_place or self._is_alike(real_destination)):
            raise CheckpointError(
                f"{destination} is there and holds no safetensors files; it is not replaced"
            )
        if not (self._output.overwrite or self._may_be_finished):
            state = "exists"
            if self._output.resume:
                state += ", and may be the finished result of the run to resume"
            raise CheckpointError(
                f"{destination} {state}; choose another name, or allow castwise to replace the "
                "whole folder " + parenthesis("overwrite", True)
            )

    def _is_alike(self, folder: Path) -> bool:
        """Return True if a folder holds a checkpoint, and not just one of others deep inside."""
        names = [entry.name for entry in entries(folder)]
        if PIPELINE in names or any(map(is_safetensors, names)):
            return True
        prefixes = weight_folders(folder, lambda _: False).keys()
        return bool(prefixes) and prefixes <= {component.prefix for component in self._components}


def _refuse_losses(folder: Checkpoint) -> None:
    """CheckpointError if files to be replaced hold more than the tensors of the model."""
    for reader in folder.shards.values():
        if entries := reader.lost_entries():
            raise CheckpointError(
                f"{reader.path} also holds {join_names(entries)}, which would be lost; name "
                "another folder"
            )


def _refuse_other_forms(folder: Checkpoint) -> None:
    """CheckpointError if weights stay as they are beside a configuration that is not theirs."""
    prefixes = {component.prefix for component in folder.components}
    for path in sorted(folder.other_forms):
        if path[: path.rfind("/") + 1] in prefixes:
            raise CheckpointError(
                f"{folder.path / path} holds the weights in another form, of which config.json "
                "would not be true any more; remove it, or name another folder"
            )


@contextmanager
def _report_kept_shards(destination: Path, shards: int) -> Iterator[None]:
    """Warn of the complete shards that stay if the block ends with an error."""
    try:
        yield
    except BaseException:
        temporary = resumable_folder(destination)
        if count := count_shards(temporary):
            _LOGGER.warning(
                "%s keeps %d of %d shards; %s goes on with them",
                temporary,
                count,
                shards,
                argument("resume"),
            )
        raise


def _replace_text(path: Path, text: str) -> None:
    """Write another text into a copied file, down to the disk."""
    if is_remote(path):
        with new_file(path) as file:
            file.write(text.encode())
        return
    mode = path.stat().st_mode
    path.chmod(mode | stat.S_IWUSR)
    with path.open("w", encoding="utf-8", newline="\n") as file:
        file.write(text)
        sync_file(file)
    path.chmod(mode)
