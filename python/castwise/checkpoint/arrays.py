"""Load, save and look into checkpoints as dictionaries of numpy arrays."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from castwise.checkpoint.atomic import replacing_file
from castwise.checkpoint.containers import container_of, new_writer, open_reader
from castwise.checkpoint.errors import CheckpointError
from castwise.checkpoint.safetensors_file import SafetensorsReader
from castwise.checkpoint.sharded_folder import ShardedFolder, open_folder
from castwise.checkpoint.tensor_info import OTHER, Planned, TensorInfo, format_of

_NPY = ".npy"


@dataclass(frozen=True, slots=True)
class Inspection:
    """What the headers of a checkpoint say.

    Attributes
    ----------
    path
        The file or folder.
    tensors
        Its tensors, in the order in which they are stored.
    metadata
        Its metadata.

    """

    path: str
    tensors: tuple[TensorInfo, ...]
    metadata: dict[str, str]

    def totals(self) -> dict[str, tuple[int, int]]:
        """For each format, the number of tensors and their bytes."""
        totals: dict[str, tuple[int, int]] = {}
        for info in self.tensors:
            count, nbytes = totals.get(info.label, (0, 0))
            totals[info.label] = (count + 1, nbytes + info.nbytes)
        return totals

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "path": self.path,
            "tensors": [info.to_dict() for info in self.tensors],
            "totals": {
                label: {"tensors": count, "nbytes": nbytes}
                for label, (count, nbytes) in self.totals().items()
            },
            "nbytes": sum(info.nbytes for info in self.tensors),
            "metadata": self.metadata,
        }


def inspect(
    path: str | os.PathLike[str], *, assume: str | Mapping[str, str] | None = None
) -> Inspection:
    """Read the headers of a checkpoint, and none of its data.

    Raises
    ------
    CheckpointError
        A header is damaged.
    OSError
        A file cannot be read.

    """
    where = Path(path)
    if not where.is_dir():
        with open_reader(where, assume) as reader:
            return Inspection(str(where), tuple(reader.tensors.values()), reader.metadata)
    tensors: list[TensorInfo] = []
    pairs: dict[str, str] = {}
    for shard in open_folder(where).shards:
        with SafetensorsReader(where / shard) as reader:
            tensors.extend(reader.tensors.values())
            pairs = {**reader.metadata, **pairs}
    return Inspection(str(where), tuple(tensors), pairs)


def metadata(path: str | os.PathLike[str]) -> dict[str, str]:
    """The metadata of a checkpoint; of a folder, that of its shards, the first to name a key."""
    return inspect(path).metadata


def load(
    path: str | os.PathLike[str],
    names: Iterable[str] | None = None,
    *,
    assume: str | Mapping[str, str] | None = None,
) -> Any:
    """Load a checkpoint: a dictionary of arrays, or the array itself of an `.npy` file.

    Every array has the dtype of its format, those of ml_dtypes included, and is writable.

    Parameters
    ----------
    path
        A `.safetensors`, `.npz` or `.npy` file, or a folder of safetensors shards.
    names
        Load these tensors only, in this order.
    assume
        The format of arrays that numpy saved as raw bytes (`|V2`): one name for all, or
        a mapping from name to format. Without it they stay raw bytes; nothing is guessed.

    Raises
    ------
    CheckpointError
        The file is damaged, has no tensor of a name, or holds pickles.
    OSError
        A file cannot be read.

    """
    where = Path(path)
    wanted = None if names is None else list(names)
    if where.is_dir():
        return _load_folder(open_folder(where), wanted)
    with open_reader(where, assume) as reader:
        if container_of(where) == _NPY and wanted is None:
            return reader.read(where.stem)
        return {name: reader.read(name) for name in _checked(wanted, reader.tensors, where)}


def save(
    path: str | os.PathLike[str],
    tensors: Mapping[str, ArrayLike] | ArrayLike,
    *,
    metadata: Mapping[str, str] | None = None,
    compressed: bool = False,
) -> None:
    """Save arrays of any format of the table; the file appears when it is complete.

    Parameters
    ----------
    path
        What to write; the suffix `.safetensors`, `.npz` or `.npy` decides the container.
    tensors
        A mapping of name to array; for `.npy` one array.
    metadata
        Strings to keep with them; `.npy` has no place for it.
    compressed
        Deflate the members of an `.npz`.

    Raises
    ------
    CheckpointError
        The container cannot hold an array or a name.
    TypeError
        A masked array.
    OSError
        The file cannot be written, or the disk is full.

    """
    where = Path(path)
    if container_of(where) == _NPY:
        if isinstance(tensors, Mapping):
            raise CheckpointError(".npy holds one array; write .npz or .safetensors")
        tensors = {where.stem: tensors}
    elif not isinstance(tensors, Mapping):
        raise CheckpointError(f"{where.suffix} holds a mapping of name to array, not one array")
    arrays = {name: _array(name, tensor) for name, tensor in tensors.items()}
    planned = [Planned(_describe(name, array)) for name, array in arrays.items()]
    with (
        replacing_file(where) as file,
        new_writer(where, file, planned, metadata or {}, compressed=compressed) as writer,
    ):
        for name in writer.order:
            writer.write(name, arrays[name])


def _array(name: str, tensor: ArrayLike) -> NDArray[Any]:
    if isinstance(tensor, np.ma.MaskedArray):
        raise TypeError(f"tensor {name!r} is a masked array; fill it, no container keeps masks")
    return np.asarray(tensor)


def _describe(name: str, array: NDArray[Any]) -> TensorInfo:
    row = format_of(array.dtype)
    return TensorInfo(
        name=name,
        format=row.name if row else None,
        kind=row.kind if row else OTHER,
        stored=str(array.dtype),
        shape=array.shape,
        nbytes=array.nbytes,
    )


def _load_folder(folder: ShardedFolder, wanted: list[str] | None) -> dict[str, NDArray[Any]]:
    arrays: dict[str, NDArray[Any]] = {}
    for shard, expected in folder.shards.items():
        with SafetensorsReader(folder.path / shard) as reader:
            here = expected if folder.index_name else tuple(reader.tensors)
            arrays |= {name: reader.read(name) for name in here if wanted is None or name in wanted}
    if wanted is None:
        # In the order of the index, which need not be the order of the shards.
        return {name: arrays[name] for name in folder.index.get("weight_map", arrays)}
    return {name: arrays[name] for name in _checked(wanted, arrays, folder.path)}


def _checked(wanted: list[str] | None, there: Iterable[str], path: Path) -> list[str]:
    """The names to load; CheckpointError naming the first that is not there."""
    known = dict.fromkeys(there)
    if wanted is None:
        return list(known)
    for name in wanted:
        if name not in known:
            raise CheckpointError(f"{path} has no tensor {name!r}; it has {len(known)} others")
    return wanted
