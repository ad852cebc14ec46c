"""Cast a whole checkpoint, a file or a folder of shards, in pieces."""

from __future__ import annotations

import logging
import os
import shutil
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from castwise._dtype_map import DtypeMap
from castwise.checkpoint._config import CONFIG, Config
from castwise.checkpoint._errors import CheckpointError
from castwise.checkpoint._filesystem import (
    checked_path,
    replacing_file,
    replacing_folder,
    resumable_folder,
    sync_folder,
)
from castwise.checkpoint._journal import Journal, kept_shards, resumed_options
from castwise.checkpoint._leftovers import is_temporary
from castwise.checkpoint._pieces import convert_container
from castwise.checkpoint._tensors import Planned, check_assume
from castwise.checkpoint.containers import container_of, is_container, new_writer, open_source
from castwise.checkpoint.containers._interface import Reader
from castwise.checkpoint.containers.folder import ShardedFolder, is_checkpoint_folder, new_index
from castwise.checkpoint.containers.npz import NpzReader
from castwise.checkpoint.containers.safetensors import SafetensorsReader
from castwise.checkpoint.plan import CastOptions, plan, unused_patterns
from castwise.checkpoint.report import CastRow, CastSummary, Progress, ProgressMeter
from castwise.dtype_policies import DTypePolicy

_LOGGER = logging.getLogger(__name__)
_NPY = ".npy"
_COPY_BYTES = 1 << 20


def cast_file(
    source: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    dtype: Any = None,
    *,
    dtype_map: Mapping[str, Any] | DtypeMap | str | os.PathLike[str] | None = None,
    policy: Any = None,
    role: str = "variable",
    rounding: str | None = None,
    overflow: str = "ieee",
    nan: str = "keep",
    seed: int | None = None,
    threads: int | None = None,
    assume: str | Mapping[str, str] | None = None,
    overwrite: bool = False,
    resumable: bool = False,
    resume: bool = False,
    keep_config: bool = False,
    progress: Callable[[Progress], None] | None = None,
) -> CastSummary:
    """Cast the tensors of a checkpoint and write a new one.

    `source` is a `.safetensors`, `.npz` or `.npy` file, or a folder of safetensors shards;
    `destination` is one of these, and may be `source` itself. It appears, or is replaced, when it
    is complete; a run that is stopped at any moment leaves what was there before. Tensors are read,
    cast and written in pieces of about a mebibyte, so memory does not grow with their size.

    Metadata is kept, and so, byte for byte, is every tensor that is not to be cast.

    Parameters
    ----------
    source
        What to read.
    destination
        What to write. A file is replaced; a folder only with `overwrite`.
    dtype
        Format for all floating tensors. Integers, bools and complex numbers stay. A mapping is
        taken as `dtype_map`, a `DTypePolicy` as `policy`.
    dtype_map
        Instead of `dtype`, a mapping or a JSON or TOML file of regular expression to
        format; see `DtypeMap`. A key that matches a name wholly decides for it, whatever its
        kind; `default` is for the other floating tensors.
    policy
        Instead of either, a `DTypePolicy` or `DTypePolicyMap`, its name, its config, or a `.json`
        file with the config as Keras writes it. Each floating tensor gets the dtype of its policy.
    role
        Which dtype of the policy: "variable", what variables are kept in, or "compute".
    rounding
        As in `castwise.cast`, like the four after it.
    overflow
        "ieee", "saturate" or "raise".
    nan
        "keep", "raise" or "zero".
    seed
        For stochastic rounding; each tensor draws from `tensor_seed(seed, name)`.
    threads
        How many threads may read, cast and write.
    assume
        The format of arrays that numpy saved as raw bytes (`|V2`): one name for all, or
        a mapping from name to format. Nothing is guessed.
    overwrite
        Replace the folder `destination` if it holds another checkpoint.
    resumable
        If the cast of a folder is interrupted, keep the shards that are complete, beside
        `destination`; a warning names them.
    resume
        Go on with what a resumable cast of the same folder kept; the result is the same. Shards
        that are not as they were written are cast again. Resumable itself.
    keep_config
        Leave a folder's `config.json` as it is. Else its `dtype` or `torch_dtype`, also those of a
        model's parts, follow the tensors if all floating ones have become float32, float16 or
        bfloat16; otherwise a warning says what to set.
    progress
        Called when a tensor begins, now and then within a large one, and at the end. Several
        pieces are in flight, so a tensor may be done by then.

    Returns
    -------
    What each tensor became and what that lost.

    Raises
    ------
    CheckpointError
        The source is damaged or changes while it is read, or what is asked makes no sense for it.
    ValueError, TypeError
        An option, the map or a format is wrong.
    OverflowError, ValueError
        `overflow="raise"` or `nan="raise"` met such a value; the
        message names tensor, index and value.
    OSError
        A file cannot be read or written, or the disk is full.

    """
    old, new = checked_path(source), checked_path(destination)
    check_assume(assume)
    dtypes = _dtypes(dtype, dtype_map, policy, role)
    options = CastOptions.checked(
        rounding=rounding, overflow=overflow, nan=nan, seed=seed, threads=threads
    )
    keeping = _Keeping(resumable=resumable or resume, resume=resume, config=keep_config)
    opened = open_source(old, assume)
    if isinstance(opened, ShardedFolder):
        if resume:
            drawn = seed is None
            options = resumed_options(resumable_folder(new), options, drawn=drawn)
        rows, planned = _cast_folder(
            opened, new, dtypes, options, keeping, overwrite=overwrite, listener=progress
        )
    else:
        rows, planned = _cast_single(opened, new, dtypes, options, keeping, listener=progress)
    return CastSummary(
        str(old), str(new), options.to_dict(), rows, unused_patterns(planned, dtypes)
    )


@dataclass(frozen=True, slots=True)
class _Keeping:
    """What a run keeps: complete shards if it is interrupted, and what is there already."""

    resumable: bool
    resume: bool
    config: bool
    """Leave config.json as it is."""


def _cast_single(
    source: Reader,
    destination: Path,
    dtypes: DtypeMap,
    options: CastOptions,
    keeping: _Keeping,
    *,
    listener: Callable[[Progress], None] | None,
) -> tuple[list[CastRow], list[Planned]]:
    with source as reader:
        if keeping.resumable:
            raise CheckpointError(
                f"resumable and resume are for folders of shards, and {reader.path} is a file, "
                "which is cast as a whole; leave them out"
            )
        old, container = container_of(reader.path), container_of(destination)
        if container != old and _NPY in {container, old}:
            raise CheckpointError(f"{reader.path} to {destination}: .npy can only become .npy")
        if isinstance(reader, NpzReader) and container != old and reader.others:
            _LOGGER.warning("%s: left out, not arrays: %s", reader.path, ", ".join(reader.others))
        planned = plan(reader.tensors.values(), dtypes)
        meter = ProgressMeter(sum(one.info.nbytes for one in planned), listener)
        with replacing_file(destination) as file:
            with new_writer(destination, file, planned, reader.metadata, reader) as writer:
                rows = convert_container(reader, writer, options, meter)
            reader.check_unchanged()
            meter.starts(None)
    return rows, planned


def _dtypes(
    dtype: Any,
    dtype_map: Mapping[str, Any] | DtypeMap | str | os.PathLike[str] | None,
    policy: Any,
    role: str,
) -> DtypeMap:
    if sum(argument is not None for argument in (dtype, dtype_map, policy)) != 1:
        raise CheckpointError("give either dtype, dtype_map or policy, and only one of them")
    if policy is None and role != "variable" and not isinstance(dtype, DTypePolicy):
        raise CheckpointError(f"role={role!r} chooses a dtype of a policy; give one as policy")
    if policy is not None:
        return DtypeMap.from_policy_argument(policy, role)
    if isinstance(dtype_map, str | os.PathLike):
        return DtypeMap.from_file(checked_path(dtype_map))
    return DtypeMap.of(dtype if dtype_map is None else dtype_map, role)


def _cast_folder(
    folder: ShardedFolder,
    destination: Path,
    dtypes: DtypeMap,
    options: CastOptions,
    keeping: _Keeping,
    *,
    overwrite: bool,
    listener: Callable[[Progress], None] | None,
) -> tuple[list[CastRow], list[Planned]]:
    """Cast every shard; everything else in the folder is copied.

    The folder `destination` appears, or is replaced, when all of it is there.
    """
    _check_destination(folder.path, destination, overwrite=overwrite)
    config = None if keeping.config else Config(folder.path / CONFIG)
    planned = {
        shard: plan(reader.tensors.values(), dtypes) for shard, reader in folder.shards.items()
    }
    everything = [one for plans in planned.values() for one in plans]
    meter = ProgressMeter(sum(one.info.nbytes for one in everything), listener)
    rows: list[CastRow] = []
    with (
        ExitStack() as telling,
        replacing_folder(
            destination,
            is_kept=kept_shards if keeping.resumable else None,
            resume=keeping.resume,
        ) as new,
        ExitStack() as stack,
    ):
        journal = None
        if keeping.resumable:
            journal = stack.enter_context(Journal(new, folder, options, planned))
            # Only now, when what is kept is known to be of this conversion.
            telling.enter_context(_told_what_is_kept(destination, folder))
        for shard, reader in folder.shards.items():
            done = journal.finished(shard) if journal is not None else None
            if done is not None:
                meter.finished(sum(one.info.nbytes for one in planned[shard]))
                rows += done
                continue
            done = _cast_shard(reader, new / shard, planned[shard], options, meter)
            if journal is not None:
                journal.add(shard, done)
            rows += done
        meter.starts(None)
        _copy_others(folder.path, new, {*folder.shards, folder.index_name})
        if folder.index_name is not None:
            _write_index(folder, new / folder.index_name, rows)
        if config is not None and (text := config.following(rows)) is not None:
            _replace_text(new / CONFIG, text)
        # Again: it may have appeared, or changed, while the shards were cast.
        _check_destination(folder.path, destination, overwrite=overwrite)
    return rows, everything


@contextmanager
def _told_what_is_kept(destination: Path, folder: ShardedFolder) -> Iterator[None]:
    """Warn of the complete shards that stay if the block ends with an error."""
    try:
        yield
    except BaseException:
        temporary = resumable_folder(destination)
        if kept := kept_shards(temporary):
            _LOGGER.warning(
                "%s keeps %d of %d shards; resume (--resume) goes on with them",
                temporary,
                kept,
                len(folder.shards),
            )
        raise


def _check_destination(source: Path, destination: Path, *, overwrite: bool) -> None:
    """CheckpointError unless the folder may be written, with nothing lost that nobody meant to."""
    old, new = Path(os.path.realpath(source)), Path(os.path.realpath(destination))
    if old == new:
        return  # all that is in the folder is carried over
    if old in new.parents or new in old.parents:
        raise CheckpointError(
            f"one of {destination} and {source} is inside the other; choose another name"
        )
    if is_container(new) and not new.is_dir():
        raise CheckpointError(f"{source} is a folder, so {destination} must be one too")
    if not new.exists():
        return
    if not new.is_dir():
        raise CheckpointError(f"{source} is a folder, but {destination} is a file")
    if not any(new.iterdir()):
        return
    if not is_checkpoint_folder(new):
        raise CheckpointError(
            f"{destination} is there and holds no safetensors files; it is not replaced"
        )
    if not overwrite:
        raise CheckpointError(
            f"{destination} is there; to replace the whole folder say so (overwrite, --overwrite)"
        )


def _cast_shard(
    source: SafetensorsReader,
    destination: Path,
    plans: list[Planned],
    options: CastOptions,
    meter: ProgressMeter,
) -> list[CastRow]:
    with source as reader, destination.open("xb") as file:
        with new_writer(destination, file, plans, reader.metadata, reader) as writer:
            name = destination.name
            rows = convert_container(reader, writer, options, meter, shard=name)
        reader.check_unchanged()
        _sync(file.fileno(), file.flush)
    return rows


def _write_index(folder: ShardedFolder, path: Path, rows: Sequence[CastRow]) -> None:
    indexed = {(shard, name) for shard, names in folder.indexed.items() for name in names}
    total = sum(row.nbytes_after for row in rows if (row.shard, row.name) in indexed)
    with path.open("x", encoding="utf-8") as file:
        file.write(new_index(folder, total))
        _sync(file.fileno(), file.flush)


def _copy_others(source: Path, destination: Path, done: set[str | None]) -> None:
    """Copy all that is in `source` and not in `done`; links to folders stay links."""
    for entry in os.scandir(source):
        new = destination / entry.name
        if entry.name in done or is_temporary(entry.name):
            continue
        if entry.is_dir(follow_symlinks=False):
            new.mkdir()
            _copy_others(Path(entry.path), new, set())
            sync_folder(new)
        elif entry.is_file():
            if entry.name.endswith(".safetensors"):
                _LOGGER.warning("%s is not in the index and was copied as it is", entry.path)
            _copy(Path(entry.path), new)
        elif entry.is_symlink():
            new.symlink_to(os.readlink(entry.path))
        else:
            _LOGGER.warning("%s is neither a file nor a folder and was left out", entry.path)


def _copy(source: Path, destination: Path) -> None:
    """Copy a file with its permissions and times, down to the disk."""
    with source.open("rb") as old, destination.open("xb") as new:
        shutil.copyfileobj(old, new, _COPY_BYTES)
        _sync(new.fileno(), new.flush)
    shutil.copystat(source, destination)


def _replace_text(path: Path, text: str) -> None:
    """Write another text into a copied file, down to the disk."""
    mode = path.stat().st_mode
    path.chmod(mode | stat.S_IWUSR)
    with path.open("w", encoding="utf-8", newline="\n") as file:
        file.write(text)
        _sync(file.fileno(), file.flush)
    path.chmod(mode)


def _sync(descriptor: int, flush: Callable[[], None]) -> None:
    flush()
    os.fsync(descriptor)
