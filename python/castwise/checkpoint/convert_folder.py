"""Cast a folder of shards into a new folder, shard by shard."""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from castwise._dtype_map import DtypeMap
from castwise.checkpoint.atomic import replacing_folder, sync_folder
from castwise.checkpoint.cast_tensors import Progress, ProgressMeter, cast_tensors
from castwise.checkpoint.containers import is_container
from castwise.checkpoint.errors import CheckpointError
from castwise.checkpoint.leftovers import is_temporary
from castwise.checkpoint.options import CastOptions
from castwise.checkpoint.plan import plan
from castwise.checkpoint.safetensors_file import SafetensorsReader, SafetensorsWriter
from castwise.checkpoint.sharded_folder import (
    ShardedFolder,
    is_checkpoint_folder,
    new_index,
    open_folder,
)
from castwise.checkpoint.summary import CastRow
from castwise.checkpoint.tensor_info import Planned

_LOGGER = logging.getLogger(__name__)
_CONFIG = "config.json"
_CONFIG_KEYS = ("torch_dtype", "dtype")
_MAX_CONFIG_BYTES = 10_000_000
_COPY_BYTES = 1 << 20


def cast_folder(
    source: Path,
    destination: Path,
    dtypes: DtypeMap,
    options: CastOptions,
    *,
    overwrite: bool,
    listener: Callable[[Progress], None] | None,
) -> tuple[list[CastRow], list[Planned]]:
    """Cast every shard of `source`; everything else in the folder is copied.

    The folder `destination` appears, or is replaced, when all of it is there.
    """
    folder = open_folder(source)
    check_destination(source, destination, overwrite=overwrite)
    planned = {}
    for shard in folder.shards:
        with SafetensorsReader(source / shard) as reader:
            planned[shard] = plan(reader.tensors.values(), dtypes)
    everything = [one for plans in planned.values() for one in plans]
    meter = ProgressMeter(sum(one.info.nbytes for one in everything), listener)
    rows: list[CastRow] = []
    with replacing_folder(destination) as new:
        for shard, plans in planned.items():
            rows.extend(_cast_shard(source / shard, new / shard, plans, options, meter))
        meter.starts(None)
        _copy_others(source, new, {*folder.shards, folder.index_name})
        if folder.index_name is not None:
            _write_index(folder, new / folder.index_name, rows)
    _warn_of_config(source / _CONFIG, {row.target for row in rows if row.target is not None})
    return rows, everything


def check_destination(source: Path, destination: Path, *, overwrite: bool) -> None:
    """CheckpointError unless the folder may be written, with nothing lost that nobody meant to."""
    old, new = Path(os.path.realpath(source)), Path(os.path.realpath(destination))
    if old == new:
        return  # all that is in the folder is carried over
    if old in new.parents or new in old.parents:
        raise CheckpointError(f"{destination} and {source} lie in each other; choose another name")
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
    source: Path,
    destination: Path,
    plans: list[Planned],
    options: CastOptions,
    meter: ProgressMeter,
) -> Iterator[CastRow]:
    with SafetensorsReader(source) as reader, destination.open("xb") as file:
        if list(reader.tensors.values()) != [one.info for one in plans]:
            raise CheckpointError(f"{source} was changed while the folder was read")
        with SafetensorsWriter(file, plans, reader.metadata, reader) as writer:
            yield from cast_tensors(reader, writer, plans, options, meter, shard=source.name)
        _sync(file.fileno(), file.flush)


def _write_index(folder: ShardedFolder, path: Path, rows: Sequence[CastRow]) -> None:
    indexed = {(shard, name) for shard, names in folder.shards.items() for name in names}
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
            _LOGGER.warning("%s is no file and was left out", entry.path)


def _copy(source: Path, destination: Path) -> None:
    """Copy a file with its permissions and times, down to the disk."""
    with source.open("rb") as old, destination.open("xb") as new:
        shutil.copyfileobj(old, new, _COPY_BYTES)
        _sync(new.fileno(), new.flush)
    shutil.copystat(source, destination)


def _warn_of_config(path: Path, targets: set[str]) -> None:
    """Warn if a model's settings state a format that its tensors have no more."""
    if not targets or not path.is_file() or path.stat().st_size > _MAX_CONFIG_BYTES:
        return
    try:
        config = json.loads(path.read_text("utf-8"))
    except (ValueError, RecursionError):
        return
    for key in _CONFIG_KEYS:
        stated = config.get(key) if isinstance(config, dict) else None
        if stated is not None and {str(stated).removeprefix("torch.")} != targets:
            _LOGGER.warning("%s was copied unchanged; its %s still says %r", path.name, key, stated)


def _sync(descriptor: int, flush: Callable[[], None]) -> None:
    flush()
    os.fsync(descriptor)
