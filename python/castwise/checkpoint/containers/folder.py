"""A folder of safetensors shards, or a tree of such folders, as diffusers writes its pipelines.

In each folder the index (`*.safetensors.index.json`) says which shard holds which tensor; it is
checked against the shards before it is believed. A single safetensors file needs none. Where a
folder has no such files, those of torch that libraries load take their place (`pytorch_model.bin`,
`pytorch_model.bin.index.json` and its shards, the same of diffusers and peft). Other forms
of the same weights beside them are known by their names: variants (`model.fp16.safetensors` beside
`model.safetensors`), Mistral's `consolidated*`, and a whole model in one file beside the
`model_index.json` of a pipeline, whose loaders read its subfolders only. Weights that are neither
listed nor such a form are refused: nobody can tell whether they belong to the model. All other
files are just carried along.
"""

import json
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from castwise.checkpoint._errors import CheckpointError, damage, join_names
from castwise.checkpoint.containers.checkpoint import Checkpoint, Component
from castwise.checkpoint.containers.interface import Reader
from castwise.checkpoint.containers.safetensors import SafetensorsReader
from castwise.checkpoint.containers.weight_files import (
    CONSOLIDATED,
    families,
    holds_weights,
    is_adapter,
    is_index,
    is_torch,
    other_forms,
    other_torch_files,
    series_of,
    torch_forms,
)
from castwise.checkpoint.files.entry_names import check_link, check_name, exclusion
from castwise.checkpoint.files.remote import is_remote, list_store
from castwise.checkpoint.files.source_files import read_file
from castwise.text.parsed_files import without_duplicates

_LOGGER = logging.getLogger(__name__)

PIPELINE = "model_index.json"
# An index has a line of about 100 bytes for each tensor.
_MAX_INDEX_BYTES = 100_000_000


def entries(folder: Path) -> list[Path]:
    """List what is in a folder, by name; CheckpointError if a name could lead out of it."""
    listing = list_store(folder) if is_remote(folder) else list(folder.iterdir())
    for entry in listing:
        check_name(entry.name, f"{folder} lists")
    return sorted(listing, key=lambda entry: entry.name)


def walk(root: Path, enters: Callable[[str], bool]) -> Iterator[tuple[str, Path]]:
    """List what is below a folder, by its path there; links to folders are not followed."""
    # A folder comes before its contents, with a slash at the end of its path; `enters` is asked
    # whether these are listed too.
    folders = [""]
    while folders:
        prefix = folders.pop()
        subfolders = []
        folder = root / prefix if prefix else root
        for entry in entries(folder):
            path = prefix + entry.name
            if entry.is_dir() and not entry.is_symlink():
                path += "/"
                if enters(path):
                    subfolders.append(path)
            yield path, entry
        folders += reversed(subfolders)


def weight_folders(path: Path, excludes: Callable[[str], bool]) -> dict[str, list[str]]:
    """Return the names of the files in each folder that holds weights, by its prefix."""
    files: dict[str, list[str]] = {}
    for name, _ in walk(path, lambda folder: not (_is_hidden(folder) or excludes(folder))):
        prefix, slash, file = name.rpartition("/")
        if file and not excludes(name):
            files.setdefault(prefix + slash, []).append(file)
    return {prefix: files[prefix] for prefix in sorted(files) if holds_weights(files[prefix])}


# The folder of the versions of a repository in the cache of the Hub's library.
_SNAPSHOTS = "snapshots"


def open_folder(path: Path, excludes: Callable[[str], bool] = lambda _: False) -> Checkpoint:
    """Read the indexes of a folder and those in it, and the headers of all shards."""
    # `excludes` says of a path whether it is as if it were not there. Neither is what is in hidden
    # folders.
    _refuse_cache(path)
    folders = weight_folders(path, excludes)
    if not folders:
        raise CheckpointError(
            f"{path} holds no safetensors files, and none of torch that libraries load "
            "(pytorch_model.bin)"
        )
    forms: set[str] = set()
    components: list[Component] = []
    for prefix, names in folders.items():
        if not prefix and PIPELINE in names and len(folders) > 1:
            forms.update(name for stems in families(names) for name in stems)
        else:
            components += _open_components(path, prefix, names, forms)
    checkpoint = Checkpoint(path, components, is_folder=True, other_forms=frozenset(forms))
    checkpoint.check_names()
    return checkpoint


def _refuse_cache(path: Path) -> None:
    """Refuse the Hub's cache of a repository, which has each file of several versions twice."""
    root = path.parent if path.name == _SNAPSHOTS else path
    if is_remote(path) or not all((root / name).is_dir() for name in (_SNAPSHOTS, "refs")):
        return
    versions = sorted((root / _SNAPSHOTS).iterdir())
    version = f", such as {versions[-1]}" if versions else ""
    raise CheckpointError(
        f"{path} is the cache that the Hub's library keeps of a repository; give one of its "
        f"snapshots{version}, or the name of the repository"
    )


def new_index(component: Component, weight_map: Mapping[str, str], total_size: int) -> str:
    """Make the index of tensors in shards, `total_size` bytes in all, as JSON."""
    index = {"metadata": {}, **component.index, "weight_map": weight_map}
    index["metadata"] = {**index["metadata"], "total_size": total_size}
    return json.dumps(index, indent=2) + "\n"


def _is_hidden(folder: str) -> bool:
    return folder[:-1].rpartition("/")[2].startswith(".")


def _open_components(
    root: Path, prefix: str, names: list[str], forms: set[str]
) -> Iterator[Component]:
    """Open what belongs together of the files in one folder: a model, an adapter, or both."""
    names_done: set[str] = set()
    for number, family in enumerate(families(names)):
        stems = {name: stem for name, stem in family.items() if prefix + name not in names_done}
        if not stems:
            continue
        component = _open_component(root, prefix, names, stems, forms)
        names_done.update(component.shards)
        yield replace(component, has_config=not (number and is_adapter(stems)))


def _open_component(
    root: Path, prefix: str, names: list[str], stems: Mapping[str, str], forms: set[str]
) -> Component:
    """Open what belongs together of the files of one family, and add what does not."""
    folder = root / prefix if prefix else root
    unread = other_forms(stems)
    indexes = [name for name in stems if is_index(name)]
    of_forms: set[str] = set()
    for name in unread.intersection(indexes):
        of_forms.update(_tensors_by_shard(folder / name, _read_index(folder / name)))
    if len(index_names := [name for name in indexes if name not in unread]) > 1:
        raise CheckpointError(
            f"{folder} has several indexes: {', '.join(index_names)}; leave all but one out "
            + exclusion()
        )
    index: Mapping[str, Any] = {}
    if index_names:
        check_link(folder / index_names[0])
        index = _read_index(folder / index_names[0])
        tensors_of = _tensors_by_shard(folder / index_names[0], index)
    else:
        single = [name for name in stems if name not in unread and name not in of_forms]
        single = single or [name for name in stems if name not in unread]
        if len(single) > 1:
            suffix = single[0][single[0].rindex(".") :]
            raise CheckpointError(
                f"{folder} has {len(single)} {suffix[1:]} files ({join_names(single)}) and no "
                f"*{suffix}.index.json; name one file, leave out all but one "
                + exclusion()
                + ", or add the index that says which tensors belong together"
            )
        tensors_of = {single[0]: ()}
    unread |= of_forms
    forms.update(prefix + name for name in unread if name not in tensors_of)
    for shard, tensors in tensors_of.items():
        if shard not in names:
            raise CheckpointError(_missing(folder, shard, tensors))
    shards = {shard: _open_shard(folder / shard, tensors) for shard, tensors in tensors_of.items()}
    if index_names:
        strangers = stems.keys() - tensors_of.keys() - unread - {*indexes}
        _check_unlisted(folder, index_names[0], stems, sorted(strangers))
        _check_shards(folder / index_names[0], shards, index["weight_map"])
    variants = unread.intersection(stems).difference(tensors_of)
    _check_forms(folder, sorted(variants), torch_forms(names, stems), shards.values())
    strays = [name for name in other_torch_files(names, stems) if name not in tensors_of]
    _check_torch_files(folder, strays, next(iter(tensors_of)))
    return Component(
        prefix,
        prefix + index_names[0] if index_names else None,
        index,
        {prefix + shard: reader for shard, reader in shards.items()},
        {prefix + shard: tensors for shard, tensors in tensors_of.items()},
        folder,
    )


def _check_unlisted(
    folder: Path, index: str, stems: Mapping[str, str], strangers: Collection[str]
) -> None:
    """Refuse a file of weights that has tensors, and that the index has nowhere."""
    listed_series = {series_of(stem) for name, stem in stems.items() if name not in strangers}
    listed_series -= {series_of(stems[index])}
    for name in strangers:
        try:
            tensors = _open_shard(folder / name).tensors
        except CheckpointError as error:
            raise CheckpointError(
                f"{index} does not list {name!r}, which cannot be read; fetch it again and list "
                "it, or leave it out " + exclusion() + ": " + str(error)
            ) from error
        if not tensors:
            continue
        fault = f"{folder}: tensor {next(iter(tensors))!r} is in {name!r}"
        if stems[name] == stems[index]:
            raise CheckpointError(
                f"{fault}, and {index} lists other files for the same model, of which transformers "
                "loads the first and diffusers the others; leave one of both out, an index with "
                "its shards " + exclusion()
            )
        if series_of(stems[name]) in listed_series:
            raise CheckpointError(
                f"{fault}, by its name a shard, of which {index} has nothing; fetch the index "
                "again, or leave the file out " + exclusion()
            )
        raise CheckpointError(
            f"{fault}, of which {index} has nothing; list its tensors there if they belong to the "
            "model, or leave the file out " + exclusion()
        )


def _check_forms(
    folder: Path, variants: Iterable[str], torch_names: Collection[str], shards: Collection[Reader]
) -> None:
    """Refuse what is named as another form of the weights, and has none of the tensors."""
    # A warning names some of the tensors that only another form has, such as tied embeddings and
    # buffers. A file that cannot be read is no form to lose; Mistral's files have other names.
    model_names = {tensor for shard in shards for tensor in shard.tensors}
    for name in [*variants, *torch_names]:
        if name.startswith(CONSOLIDATED):
            continue
        tensors = _likely_tensors(folder / name)
        if tensors and model_names.isdisjoint(tensors):
            kind = "a variant of the file without that part of its name"
            if name in torch_names:
                kind = f"torch's form of {next(iter(shards)).path.name!r}"
            raise CheckpointError(
                f"{folder / name} is named as {kind}, but has other tensors; name one file, or "
                "leave one out " + exclusion()
            )
        if names_left_out := [tensor for tensor in tensors if tensor not in model_names]:
            _LOGGER.warning(
                "%s also holds %s, which %s lacks; what is only in another form is left out",
                folder / name,
                join_names(names_left_out),
                join_names([shard.path.name for shard in shards]),
            )


def _check_shards(index: Path, shards: Mapping[str, Reader], listed: Collection[str]) -> None:
    """Warn of tensors that loaders take from one of two shards, or that they may not find."""
    shard_of: dict[str, str] = {}
    names_in_two: dict[tuple[str, str], list[str]] = {}
    for name, shard in shards.items():
        for tensor in shard.tensors:
            if (other := shard_of.setdefault(tensor, name)) != name:
                names_in_two.setdefault((other, name), []).append(tensor)
    for (other, name), tensors in names_in_two.items():
        _LOGGER.warning(
            "%s: %r and %r both have %s, and loaders take either; leave each tensor in one shard",
            index.parent,
            other,
            name,
            join_names(tensors),
        )
    if unlisted := [tensor for tensor in shard_of if tensor not in listed]:
        _LOGGER.warning(
            "%s does not list %s of its shards; list them, or loaders may miss them",
            index,
            join_names(unlisted),
        )


def _check_torch_files(folder: Path, names: Iterable[str], neighbor: str) -> None:
    """Refuse a file beside torch's that has tensors, which engines load with the others."""
    for name in names:
        if tensors := _likely_tensors(folder / name):
            raise CheckpointError(
                f"{folder}: tensor {next(iter(tensors))!r} is in {name!r}, beside {neighbor!r}; "
                "nothing says whether it belongs to the model, so put it into one file with that, "
                "or leave it out " + exclusion()
            )


def _likely_tensors(path: Path) -> Collection[str]:
    """Return the tensors of a file of weights or an index; none of one that cannot be read."""
    with suppress(CheckpointError, OSError):
        return _read_index(path)["weight_map"] if is_index(path.name) else _open_shard(path).tensors
    return ()


def _missing(folder: Path, shard: str, tensors: Sequence[str]) -> str:
    """Say which shard of an index is not there, or is left out."""
    state, remedy = "is missing", "fetch it"
    if (folder / shard).exists():
        state = "is left out " + exclusion()
        remedy = "leave out the index too, or neither"
    more = f" and {len(tensors) - 1} more" if len(tensors) > 1 else ""
    reason = f"which the index names for {tensors[0]!r}{more}"
    return f"{folder}: shard {shard!r} " + state + f", {reason}; {remedy}"


def _read_index(path: Path) -> dict[str, Any]:
    data = read_file(path, _MAX_INDEX_BYTES)
    try:
        text = data.decode()
        index: dict[str, Any] = json.loads(text, object_pairs_hook=without_duplicates)
    except (ValueError, RecursionError) as error:
        raise damage(f"{path}: the index is not JSON: {error}") from error
    weights = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(weights, dict) or not all(isinstance(text, str) for text in weights.values()):
        raise damage(f"{path}: the index has no weight_map of tensor name to shard")
    if not isinstance(index.get("metadata", {}), dict):
        raise damage(f"{path}: the metadata of the index is not an object")
    return index


def _tensors_by_shard(path: Path, index: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """Return the tensors of each shard, whose name is checked to stay in the folder."""
    shards: dict[str, list[str]] = {}
    for tensor, shard in index["weight_map"].items():
        if shard not in shards:
            check_name(shard, f"{path}: tensor {tensor!r} has the file")
        shards.setdefault(shard, []).append(tensor)
    return {shard: tuple(shards[shard]) for shard in sorted(shards)}


def _reader(path: Path) -> Reader:
    if not is_torch(path.name):
        return SafetensorsReader(path)
    from castwise.checkpoint.containers.torch import TorchReader  # noqa: PLC0415  (5 milliseconds)

    return TorchReader(path)


def _open_shard(path: Path, names: tuple[str, ...] = ()) -> Reader:
    """Read the header of a shard, which must hold these tensors, and close its file."""
    check_link(path)
    with _reader(path) as reader:
        missing = [name for name in names if name not in reader.tensors]
    if missing:
        raise damage(
            f"{path}: tensor {missing[0]!r} is not in this shard, where the index has it"
            + (f", nor are {len(missing) - 1} more" if len(missing) > 1 else "")
        )
    return reader
