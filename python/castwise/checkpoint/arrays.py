"""Load, save and look into checkpoints as dictionaries of numpy arrays."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from numpy.typing import ArrayLike, NDArray

from castwise._core import read_array
from castwise.arrays.adapter_registry import array_adapter
from castwise.checkpoint._errors import CheckpointError
from castwise.checkpoint._tensors import OTHER, Planned, TensorInfo, check_assume, format_of
from castwise.checkpoint.containers import (
    check_store,
    container_of,
    is_container,
    new_writer,
    open_checkpoint,
    source_path,
    written_suffixes,
)
from castwise.checkpoint.containers.array_bytes import native
from castwise.checkpoint.containers.checkpoint import Checkpoint
from castwise.checkpoint.files.hub import target_path
from castwise.checkpoint.files.replacing import check_absent, replacing_file
from castwise.checkpoint.planning.stated_quantization import quantization_of
from castwise.checkpoint.results.inspection import Inspection
from castwise.text.spelling import nearest
from castwise.text.wording import check_switch

_NPY = ".npy"


def inspect(
    path: str | os.PathLike[str], *, assume: str | Mapping[str, str] | None = None
) -> Inspection:
    """Read the headers of a checkpoint, without its data, and report which weights are quantized.

    Parameters
    ----------
    path
        A file of any container that castwise reads, or a folder of safetensors or torch shards.
    assume
        The format of arrays that numpy saved as raw bytes (`|V2`): one name for all, or
        a mapping from name to format. Without it their format is None.

    Returns
    -------
    Every tensor's name, format, shape and size, and the metadata; of a folder, those of all shards.
    In a folder of folders each name begins with the folder.

    Raises
    ------
    CheckpointError
        A header is damaged.
    TypeError
        `assume` is not a format.
    OSError
        A file cannot be read.

    Examples
    --------
    >>> from castwise import checkpoint
    >>> checkpoint.save("model.safetensors", {"fc.weight": np.eye(64, dtype=np.float32)})
    >>> info = checkpoint.inspect("model.safetensors").tensors[0]
    >>> info.name, info.format, info.shape, info.nbytes
    ('fc.weight', 'float32', (64, 64), 16384)

    """
    check_assume(assume)
    where = source_path(path)
    source = open_checkpoint(where, assume, decodes=True)
    tensors: list[TensorInfo] = []
    pairs: dict[str, str] = {}
    with source:  # a file may state its quantized layers where it is no header
        quantization = quantization_of(source)
        for component in source.components:
            for shard in component.shards.values():
                with shard as reader:
                    for info in reader.tensors.values():
                        name = component.prefix + info.name
                        tensors.append(info._replace(name=name) if component.prefix else info)
                    pairs = {**reader.metadata, **pairs}
    return Inspection(str(where), tuple(tensors), pairs, quantization)


def metadata(path: str | os.PathLike[str]) -> dict[str, str]:
    """Return the metadata of a checkpoint; of a folder, that of the first shard to name a key.

    Raises
    ------
    CheckpointError
        A header is damaged.
    OSError
        A file cannot be read.

    Examples
    --------
    >>> from castwise import checkpoint
    >>> checkpoint.save("model.safetensors", {"bias": np.zeros(2)}, metadata={"step": "7"})
    >>> checkpoint.metadata("model.safetensors")
    {'step': '7'}

    """
    return inspect(path).metadata


def load(
    path: str | os.PathLike[str],
    names: Iterable[str] | None = None,
    *,
    assume: str | Mapping[str, str] | None = None,
) -> Any:  # noqa: ANN401  (one array, or a dict)
    """Load a checkpoint: a dictionary of arrays, or the array itself of an `.npy` file.

    Every array has the dtype of its format, those of ml_dtypes included, and is writable.

    Parameters
    ----------
    path
        A file of any container that castwise reads, or a folder of safetensors or torch shards.
    names
        Load these tensors only, in this order.
    assume
        The format of arrays that numpy saved as raw bytes (`|V2`): one name for all, or
        a mapping from name to format. Without it they stay raw bytes; nothing is guessed.

    Returns
    -------
    A dictionary of name to array, in the order of the file or of `names`; of an `.npy` file the
    array, unless `names` is given. In a folder of folders each name begins with the folder.

    Raises
    ------
    CheckpointError
        The file is damaged, has no tensor of a name, or holds pickles.
    TypeError
        `names` is one str or holds something else, or `assume` is not a format.
    OSError
        A file cannot be read.

    Examples
    --------
    >>> from castwise import checkpoint
    >>> checkpoint.save("model.safetensors", {"bias": np.ones(2), "step": np.int64(7)})
    >>> checkpoint.load("model.safetensors", ["bias"])
    {'bias': array([1., 1.])}

    """
    check_assume(assume)
    where = source_path(path)
    selection = None if names is None else _names(names)
    with open_checkpoint(where, assume) as source:
        arrays = _load(source, selection)
    if selection is None and source.suffix == _NPY:
        return arrays[where.stem]
    return arrays


def save(
    path: str | os.PathLike[str],
    tensors: Mapping[str, ArrayLike] | ArrayLike,
    *,
    metadata: Mapping[str, str] | None = None,
    compressed: bool = False,
    overwrite: bool = False,
) -> None:
    """Save arrays of any format of the table; the file appears when it is complete.

    Parameters
    ----------
    path
        What to write; the suffix `.safetensors`, `.npz`, `.npy` or `.h5`, or one that a package
        offers, decides the container.
    tensors
        A mapping of name to array; for `.npy` one array. Arrays of torch, jax and other libraries
        that `castwise.cast` takes are saved by their elements, wherever those are.
    metadata
        Strings to keep with them; `.npy` has no place for it.
    compressed
        Deflate the members of an `.npz`.
    overwrite
        Replace a file that is there.

    Raises
    ------
    CheckpointError
        The file is there already; the container cannot hold an array or a name; or a name or the
        metadata is not text.
    TypeError
        A masked array, a complex32 or bcomplex32 one that is not in native byte order, or a tensor
        of a dtype that numpy and ml_dtypes lack.
    ValueError
        A tensor without elements in memory, or a sparse one.
    OSError
        The file cannot be written, or the disk is full.

    Examples
    --------
    >>> import ml_dtypes
    >>> from castwise import checkpoint
    >>> checkpoint.save("model.npz", {"bias": np.ones(2, ml_dtypes.bfloat16)})
    >>> checkpoint.load("model.npz")
    {'bias': array([1, 1], dtype=dtype(bfloat16))}

    """
    check_switch("compressed", compressed)
    check_switch("overwrite", overwrite)
    where = target_path(path)
    if not is_container(where):
        container_of(where, f"use {written_suffixes()}")
    check_store(where)
    if not overwrite:
        check_absent(where)
    if container_of(where) == _NPY:
        if isinstance(tensors, Mapping):
            raise CheckpointError(".npy holds one array; write .npz or .safetensors")
        tensors = {where.stem: tensors}
    elif not isinstance(tensors, Mapping):
        raise CheckpointError(f"{where.suffix} holds a mapping of name to array, not one array")
    pairs = {} if metadata is None else metadata
    arrays = {name: _array(name, tensor) for name, tensor in tensors.items()}
    plans = [Planned(_describe(name, array)) for name, array in arrays.items()]
    with (
        replacing_file(where, may_replace=overwrite) as file,
        new_writer(where, file, plans, pairs, compressed=compressed) as writer,
    ):
        for name in writer.order:
            writer.write(name, arrays[name])


def _array(name: str, tensor: Any) -> NDArray[Any]:  # noqa: ANN401  (as it is given)
    """Bring elements to the host, in native byte order; copied only where that needs a copy."""
    adapter = array_adapter(tensor)
    array = read_array(f"tensor {name!r}", tensor) if adapter is None else tensor
    try:
        return native(array if adapter is None else adapter.to_host(array))
    except (TypeError, ValueError, RuntimeError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"tensor {name!r}: {error}") from error


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


def _load(source: Checkpoint, selection: list[str] | None) -> dict[str, NDArray[Any]]:
    every = [
        component.prefix + name for component in source.components for name in component.names()
    ]
    names = _check_names(selection, every, source.path)
    name_set = set(names)
    arrays: dict[str, NDArray[Any]] = {}
    for component in source.components:
        for shard, reader in component.shards.items():
            names_in_shard = {component.prefix + name: name for name in component.names_in(shard)}
            if not name_set.isdisjoint(names_in_shard):
                with reader:
                    arrays |= {
                        key: reader.read(names_in_shard[key])
                        for key in names_in_shard
                        if key in name_set
                    }
    return {name: arrays[name] for name in names}


def _names(names: Iterable[str]) -> list[str]:
    if isinstance(names, str):
        raise TypeError(
            f"names is a list of tensor names; for one tensor write load(path, [{names!r}])"
        )
    selection = list(names)
    for name in selection:
        if not isinstance(name, str):
            raise TypeError(f"names is a list of tensor names, and {name!r} is not a str")
    return selection


def _check_names(selection: list[str] | None, all_names: Iterable[str], path: Path) -> list[str]:
    """Return the names to load; refuse the first that is not stored."""
    choices = dict.fromkeys(all_names)
    if selection is None:
        return list(choices)
    for name in selection:
        if name not in choices:
            near = nearest([name], choices)[name]
            raise CheckpointError(
                f"{path} has no tensor {name!r}; "
                + (f"did you mean {near!r}?" if near else f"it has {len(choices)} of other names")
            )
    return selection
