"""A folder of safetensors shards: the index is checked against the shards before it is believed.

The index (`*.safetensors.index.json`) says which shard holds which tensor. A folder with a single
safetensors file needs none. All other files of the folder are just carried along.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from castwise.checkpoint._errors import CheckpointError
from castwise.checkpoint.containers.safetensors import SafetensorsReader

INDEX_SUFFIX = ".safetensors.index.json"

_SHARD_SUFFIX = ".safetensors"
_MAX_INDEX_BYTES = 100_000_000
_PLAIN_NAME = re.compile(r"[^/\\:\0]+")


@dataclass(frozen=True, slots=True)
class ShardedFolder:
    """A folder whose index and shards agree.

    Attributes
    ----------
    path
        The folder.
    index_name
        Name of the index file, None if there is a single safetensors file.
    index
        The index as read, keys in their order.
    shards
        Each shard by its name, in order of name: headers that were read, and closed files.
    indexed
        For each shard, the tensors that the index expects in it.

    """

    path: Path
    index_name: str | None
    index: Mapping[str, Any]
    shards: Mapping[str, SafetensorsReader]
    indexed: Mapping[str, tuple[str, ...]]

    def names(self) -> list[str]:
        """List all tensors, in the order of the index, which need not be that of the shards."""
        there = self.index.get("weight_map")
        return list(there or (name for shard in self.shards.values() for name in shard.tensors))


def is_checkpoint_folder(path: Path) -> bool:
    """Return True if the folder holds safetensors files."""
    return any(entry.name.endswith(_SHARD_SUFFIX) for entry in path.iterdir())


def open_folder(path: Path) -> ShardedFolder:
    """Read the index of a folder and the headers of all its shards.

    Raises
    ------
    CheckpointError
        There is no index, or several; it is not JSON of the right form; a shard
        is missing, outside the folder, or damaged; a tensor is not in its shard.

    """
    names = sorted(entry.name for entry in path.iterdir())
    indexes = [name for name in names if name.endswith(INDEX_SUFFIX)]
    if len(indexes) > 1:
        raise CheckpointError(f"{path} has several indexes: {', '.join(indexes)}; leave one")
    if indexes:
        index = _read_index(path / indexes[0])
        indexed = _tensors_by_shard(path / indexes[0], index)
    else:
        files = [name for name in names if name.endswith(_SHARD_SUFFIX)]
        if len(files) != 1:
            raise CheckpointError(
                f"{path} has no *{INDEX_SUFFIX} and {len(files)} safetensors files; "
                "name one file, or add the index that says which tensors belong together"
            )
        index, indexed = {}, {files[0]: ()}
    shards = {shard: _open_shard(path / shard, names) for shard, names in indexed.items()}
    return ShardedFolder(path, indexes[0] if indexes else None, index, shards, indexed)


def new_index(folder: ShardedFolder, total_size: int) -> str:
    """Make the index for shards of the same names with `total_size` bytes of tensors, as JSON."""
    index = dict(folder.index)
    index["metadata"] = {**index.get("metadata", {}), "total_size": total_size}
    return json.dumps(index, indent=2) + "\n"


def _read_index(path: Path) -> dict[str, Any]:
    if path.stat().st_size > _MAX_INDEX_BYTES:
        raise CheckpointError(f"{path}: an index has at most {_MAX_INDEX_BYTES:,} bytes")
    try:
        text = path.read_text("utf-8")
        index: dict[str, Any] = json.loads(text, object_pairs_hook=_without_duplicates)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: the index is not JSON: {error}") from error
    weights = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(weights, dict) or not all(isinstance(text, str) for text in weights.values()):
        raise CheckpointError(f"{path}: the index has no weight_map of tensor name to shard")
    if not isinstance(index.get("metadata", {}), dict):
        raise CheckpointError(f"{path}: the metadata of the index is not an object")
    return index


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) < len(pairs):
        raise ValueError("a key stands twice")
    return mapping


def _tensors_by_shard(path: Path, index: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """The names of each shard, every shard's name checked to stay in the folder."""
    shards: dict[str, list[str]] = {}
    for tensor, shard in index["weight_map"].items():
        if not _PLAIN_NAME.fullmatch(shard) or shard in {".", ".."}:
            raise CheckpointError(
                f"{path}: tensor {tensor!r} is said to be in {shard!r}, "
                "which is not the name of a file in this folder"
            )
        shards.setdefault(shard, []).append(tensor)
    return {shard: tuple(shards[shard]) for shard in sorted(shards)}


def _open_shard(path: Path, names: tuple[str, ...]) -> SafetensorsReader:
    """Read the header of a shard, which must hold these tensors, and close its file."""
    if not path.exists():
        raise CheckpointError(
            f"{path.parent}: shard {path.name!r} is missing, which the index names for "
            f"{names[0]!r}"
            + (f" and {len(names) - 1} more" if len(names) > 1 else "")
            + "; fetch it"
        )
    with SafetensorsReader(path) as reader:
        missing = [name for name in names if name not in reader.tensors]
    if missing:
        raise CheckpointError(
            f"{path}: tensor {missing[0]!r} is not in this shard, where the index has it"
            + (f", nor are {len(missing) - 1} more" if len(missing) > 1 else "")
        )
    return reader
