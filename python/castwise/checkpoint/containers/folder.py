"""A folder of safetensors shards, or a tree of such folders, as diffusers writes its pipelines.

In each folder the index (`*.safetensors.index.json`) says which shard holds which tensor; it is
checked against the shards before it is believed. A single safetensors file needs none. Where a
folder has no such files, those of torch that libraries load take their place (`pytorch_model.bin`,
`pytorch_model.bin.index.json` and its shards, the same of diffusers and peft). Other forms
of the same weights beside them are known by their names: variants (`model.fp16.safetensors` beside
`model.safetensors`), Mistral's `consolidated*`, and a whole model in one file beside the
`model_index.json` of a pipeline, whose loaders read its subfolders only. All other files are just
carried along.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from castwise.checkpoint._errors import CheckpointError, listed
from castwise.checkpoint.containers._interface import Reader
from castwise.checkpoint.containers.safetensors import SafetensorsReader
from castwise.checkpoint.containers.torch import TorchReader
from castwise.checkpoint.files._remote import is_remote

PIPELINE = "model_index.json"
INDEX_SUFFIX = ".safetensors.index.json"

_SHARD_SUFFIX = ".safetensors"
_TORCH_SUFFIX = ".bin"
_FILE = re.compile(
    r"(?P<stem>.*)(?P<suffix>\.safetensors|\.bin)(?P<index>\.index(?P<variant>\.[^.]+)?\.json)?",
    re.DOTALL,
)
_SHARD = re.compile(r"(.+)-[0-9]{5}-of-([0-9]{5})", re.DOTALL)
_OF_TORCH = re.compile(r"(?:(?:diffusion_)?pytorch|adapter)_model(?:[.-].+)?", re.DOTALL)
"""What the names of torch's files begin with that transformers, diffusers and peft load."""

_CONSOLIDATED = "consolidated"
_MAX_INDEX_BYTES = 100_000_000
_PLAIN_NAME = re.compile(r"[^/\\:\0]+")


@dataclass(frozen=True, slots=True)
class Component:
    """The shards of one folder that belong together, which agree with their index.

    Attributes
    ----------
    prefix
        The folder in the checkpoint, with a slash at its end; empty for the checkpoint itself.
    index_name
        Path of the index in the checkpoint, None if there is a single file of weights.
    index
        The index as read, keys in their order.
    shards
        Each shard by its path in the checkpoint, in order of name: headers that were read, and
        closed files.
    indexed
        For each shard, the tensors that the index expects in it.

    """

    prefix: str
    index_name: str | None
    index: Mapping[str, Any]
    shards: Mapping[str, Reader]
    indexed: Mapping[str, tuple[str, ...]]

    def names(self) -> list[str]:
        """List all tensors, in the order of the index, which need not be that of the shards."""
        there = self.index.get("weight_map")
        return list(there or (name for shard in self.shards.values() for name in shard.tensors))


@dataclass(frozen=True, slots=True)
class CheckpointFolder:
    """A folder with the components of a checkpoint: most often one, the folder itself.

    Attributes
    ----------
    path
        The folder.
    components
        The folders in it, and itself, that hold weights, in order of their paths.
    other_forms
        Paths of files and indexes that hold the tensors of a component in another form.
    consumed
        Paths of files that tell how tensors are stored, and hold for no others.

    """

    path: Path
    components: Sequence[Component]
    other_forms: frozenset[str]
    consumed: frozenset[str] = frozenset()

    @property
    def shards(self) -> dict[str, Reader]:
        """All shards by their paths in the checkpoint."""
        return {
            path: shard for component in self.components for path, shard in component.shards.items()
        }


def entries(folder: Path) -> list[Path]:
    """List what is in a folder, by name.

    Without the empty object `name/` that consoles of stores make for a folder, and that fsspec
    lists in that folder.
    """
    found = sorted(folder.iterdir(), key=lambda entry: entry.name)
    if is_remote(folder):
        found = [one for one in found if one.name != folder.name or one.exists()]
    return found


def walk(root: Path, enters: Callable[[str], bool]) -> Iterator[tuple[str, Path]]:
    """List what is below a folder, by its path there; links to folders are not followed.

    A folder comes before its contents, with a slash at the end of its path; `enters` is asked
    whether these are listed too.
    """
    folders = [""]
    while folders:
        prefix = folders.pop()
        entered = []
        folder = root / prefix if prefix else root
        for entry in entries(folder):
            path = prefix + entry.name
            if entry.is_dir() and not entry.is_symlink():
                path += "/"
                if enters(path):
                    entered.append(path)
            yield path, entry
        folders += reversed(entered)


def weight_folders(path: Path, excludes: Callable[[str], bool]) -> dict[str, list[str]]:
    """Return the names of the files in each folder that holds weights, by its prefix."""
    files: dict[str, list[str]] = {}
    for name, _ in walk(path, lambda folder: not (_is_hidden(folder) or excludes(folder))):
        prefix, slash, file = name.rpartition("/")
        if file and not excludes(name):
            files.setdefault(prefix + slash, []).append(file)
    return {prefix: files[prefix] for prefix in sorted(files) if holds_weights(files[prefix])}


def open_folder(path: Path, excludes: Callable[[str], bool] = lambda _: False) -> CheckpointFolder:
    """Read the indexes of a folder and those in it, and the headers of all shards.

    `excludes` says of a path whether it is as if it were not there. Neither is what is in hidden
    folders.

    Raises
    ------
    CheckpointError
        There are no weights; or in one folder several files without an index, or several
        indexes; an index is not JSON of the right form; a shard is missing, outside the folder, or
        damaged; a tensor is not in its shard.

    """
    found = weight_folders(path, excludes)
    if not found:
        raise CheckpointError(
            f"{path} holds no safetensors files, and none of torch that libraries load "
            "(pytorch_model.bin)"
        )
    other_forms: set[str] = set()
    components = []
    for prefix, names in found.items():
        if not prefix and PIPELINE in names and len(found) > 1:
            other_forms.update(_stems(names))
            continue
        components.append(_open_component(path, prefix, names, other_forms))
    return CheckpointFolder(path, components, frozenset(other_forms))


def component_of(reader: Reader) -> Component:
    """Return a single file as the only component of a checkpoint."""
    name = reader.path.name
    return Component("", None, {}, {name: reader}, {name: ()})


def components_of(source: Reader | CheckpointFolder) -> Sequence[Component]:
    """Return the components of an opened checkpoint."""
    return source.components if isinstance(source, CheckpointFolder) else [component_of(source)]


def new_index(component: Component, weight_map: Mapping[str, str], total_size: int) -> str:
    """Make the index of tensors in shards, `total_size` bytes in all, as JSON."""
    index = {"metadata": {}, **component.index, "weight_map": weight_map}
    index["metadata"] = {**index["metadata"], "total_size": total_size}
    return json.dumps(index, indent=2) + "\n"


def is_safetensors(name: str) -> bool:
    """Return True for the name of a safetensors file."""
    return name.endswith(_SHARD_SUFFIX)


def holds_weights(names: Sequence[str]) -> bool:
    """Return True if a folder with files of these names has weights to cast."""
    return bool(_stems(names))


def safetensors_name(path: str) -> str:
    """Return the path of a file of torch, or of an index, as libraries call it in safetensors."""
    folder, slash, name = path.rpartition("/")
    found = _FILE.fullmatch(name)
    if found is None or found["suffix"] != _TORCH_SUFFIX:
        return path
    stem = re.sub(r"^pytorch_model(?![^.-])", "model", found["stem"])
    return f"{folder}{slash}{stem}{_SHARD_SUFFIX}{found['index'] or ''}"


def _is_hidden(folder: str) -> bool:
    return folder[:-1].rpartition("/")[2].startswith(".")


def _open_component(root: Path, prefix: str, names: list[str], other_forms: set[str]) -> Component:
    """Open what belongs together of the files in one folder, and add what does not."""
    folder = root / prefix if prefix else root
    stems = _stems(names)
    others = _other_forms(stems)
    indexes = [name for name in stems if name.endswith(".json")]
    if len(chosen := [name for name in indexes if name not in others]) > 1:
        raise CheckpointError(
            f"{folder} has several indexes: {', '.join(chosen)}; leave one (exclude, --exclude)"
        )
    index: Mapping[str, Any] = {}
    if chosen:
        index = _read_index(folder / chosen[0])
        indexed = _tensors_by_shard(folder / chosen[0], index)
    else:
        single = [name for name in stems if name not in others]
        if len(single) > 1:
            suffix = single[0][single[0].rindex(".") :]
            raise CheckpointError(
                f"{folder} has no *{suffix}.index.json and {len(single)} {suffix[1:]} files "
                f"({listed(single)}); name one file, leave the others out (exclude, --exclude), or "
                "add the index that says which tensors belong together"
            )
        indexed = {single[0]: ()}
    for name in others.intersection(indexes):
        others.update(_tensors_by_shard(folder / name, _read_index(folder / name)))
    other_forms.update(prefix + name for name in others if name not in indexed)
    for shard, tensors in indexed.items():
        if shard not in names:
            raise CheckpointError(_missing(folder, shard, tensors))
    shards = {shard: _open_shard(folder / shard, one) for shard, one in indexed.items()}
    if chosen:
        _check_series(folder, chosen[0], indexed, stems)
    if variants := others.intersection(stems).difference(indexed):
        there = {tensor for shard in shards.values() for tensor in shard.tensors}
        for name in sorted(variants):
            _check_variant(folder / name, stems[name], there)
    return Component(
        prefix,
        prefix + chosen[0] if chosen else None,
        index,
        {prefix + shard: reader for shard, reader in shards.items()},
        {prefix + shard: one for shard, one in indexed.items()},
    )


def _check_series(
    folder: Path, index: str, indexed: Container[str], stems: Mapping[str, str]
) -> None:
    """CheckpointError if a file is one of the shards by its name, and the index has it nowhere."""
    series = {_series(stem) for name, stem in stems.items() if name in indexed}
    for name, stem in stems.items():
        if name in indexed or name.endswith(".json"):
            continue
        is_shard = _series(stem) in series - {None} or not series
        if is_shard and (tensors := _open_shard(folder / name, ()).tensors):
            raise CheckpointError(
                f"{folder}: tensor {next(iter(tensors))!r} is in {name!r}, by its name a shard, of "
                f"which {index} has nothing; fetch the index again, or leave the file out "
                "(exclude, --exclude)"
            )


def _series(stem: str) -> str | None:
    """Return what the names of all shards of a model have, None if it is not a shard's."""
    found = _SHARD.fullmatch(stem)
    return found and f"{found[1]}-of-{found[2]}"


def _check_variant(path: Path, stem: str, tensors: Container[str]) -> None:
    """CheckpointError if what is named as a variant has none of the tensors.

    What cannot be read is not one to lose, and Mistral's names of tensors are others.
    """
    if stem.startswith(_CONSOLIDATED):
        return
    names: list[str] = []
    with suppress(CheckpointError):
        if path.name.endswith(".json"):
            names = list(_read_index(path)["weight_map"])
        else:
            names = list(_open_shard(path, ()).tensors)
    if not names or any(name in tensors for name in names):
        return
    raise CheckpointError(
        f"{path} is named as a variant of the file without that part of its name, but has other "
        "tensors; name one file, or leave one out (exclude, --exclude)"
    )


def _missing(folder: Path, shard: str, tensors: Sequence[str]) -> str:
    """Say which shard of an index is not there, or is left out."""
    what, remedy = "is missing", "fetch it"
    if (folder / shard).exists():
        what, remedy = "is left out (exclude, --exclude)", "leave out the index too, or neither"
    more = f" and {len(tensors) - 1} more" if len(tensors) > 1 else ""
    named = f"which the index names for {tensors[0]!r}{more}"
    return f"{folder}: shard {shard!r} {what}, {named}; {remedy}"


def _stems(names: Sequence[str]) -> dict[str, str]:
    """Return what the names of weights and indexes in a folder begin with.

    Those of torch count only where there are no safetensors files.
    """
    stems: dict[str, dict[str, str]] = {_SHARD_SUFFIX: {}, _TORCH_SUFFIX: {}}
    for name in names:
        if (found := _FILE.fullmatch(name)) is not None:
            stems[found["suffix"]][name] = found["stem"] + (found["variant"] or "")
    return stems[_SHARD_SUFFIX] or {
        name: stem for name, stem in stems[_TORCH_SUFFIX].items() if _OF_TORCH.fullmatch(stem)
    }


def _other_forms(stems: Mapping[str, str]) -> set[str]:
    """Return the files and indexes, given with their stems, whose tensors others hold as well."""
    every = set(stems.values())
    plain = {stem for stem in every if not stem.startswith(_CONSOLIDATED)} or every
    variants = {stem for stem in plain if "." in stem and stem.rpartition(".")[0] in plain}
    return {name for name, stem in stems.items() if stem not in plain - variants}


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


def _open_shard(path: Path, names: tuple[str, ...]) -> Reader:
    """Read the header of a shard, which must hold these tensors, and close its file."""
    is_torch = path.name.endswith(_TORCH_SUFFIX)
    with TorchReader(path) if is_torch else SafetensorsReader(path) as reader:
        missing = [name for name in names if name not in reader.tensors]
    if missing:
        raise CheckpointError(
            f"{path}: tensor {missing[0]!r} is not in this shard, where the index has it"
            + (f", nor are {len(missing) - 1} more" if len(missing) > 1 else "")
        )
    return reader
