"""The containers of tensors, and which one a path names."""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

from castwise._options import SAFETENSORS
from castwise.checkpoint._errors import CheckpointError
from castwise.checkpoint._tensors import Planned, check_texts
from castwise.checkpoint.containers.checkpoint import Checkpoint
from castwise.checkpoint.containers.folder import open_folder
from castwise.checkpoint.containers.interface import Reader, Writer
from castwise.checkpoint.containers.registry import (
    WHOLE_MODELS,
    Container,
    find,
    is_built_in,
    is_suffix,
    model_format,
    suffix_of_contents,
    suffixes,
)
from castwise.checkpoint.containers.whole_models import ModelFiles, WholeModelReader
from castwise.checkpoint.files.entry_names import excluded_by
from castwise.checkpoint.files.hub import absent_file, hub_path, offline_source
from castwise.checkpoint.files.paths import checked_path
from castwise.checkpoint.files.remote import is_remote
from castwise.text.wording import argument

# What does the same for files that castwise does not read.
_OTHER_TOOLS = {
    ".onnx": "onnxconverter-common makes it float16 (float16.convert_float_to_float16), "
    "onnxruntime.quantization int8",
}
# The suffixes of other files, which no folder gets but by mistake.
_FILE_SUFFIXES = {
    ".7z", ".csv", ".engine", ".ggml", ".gz", ".joblib", ".json", ".llamafile", ".md", ".mlmodel",
    ".msgpack", ".onnx", ".ot", ".parquet", ".pb", ".pickle", ".pkl", ".plan", ".pt2", ".pte",
    ".tar", ".tflite", ".tgz", ".toml", ".txt", ".yaml", ".zip",
}  # fmt: skip
_INDEX_SUFFIX = ".index.json"
# The length of a suffix, with its dot, from which on one other letter makes no other word.
_LONG = 5


def is_container(path: Path) -> bool:
    """Return True if the suffix of a name is that of a container file."""
    return is_suffix(path.suffix.lower())


def container_of(path: Path, remedy: str | None = None) -> str:
    """Return the suffix that decides the container; the refusal names those that are read."""
    # `remedy` says what to do instead, for a file to be written.
    suffix = path.suffix.lower()
    if is_suffix(suffix):
        return suffix
    if suffix in _OTHER_TOOLS:
        verb = "read" if remedy is None else "write"
        raise CheckpointError(f"{path}: castwise does not {verb} {suffix}; {_OTHER_TOOLS[suffix]}")
    suffix_text = f"the suffix {suffix!r}" if suffix else "a name without suffix"
    if remedy is None and (path.name == "config.json" or path.name.endswith(".index.json")):
        remedy = f"give the folder of the model, {path.parent}"
    if remedy is None:
        names = ", ".join(suffixes())
        remedy = f"use {names}, or a folder of safetensors shards"
    raise CheckpointError(f"{path}: {suffix_text} names no container; " + remedy)


def refuse_file_name(path: Path, suffix: str | None) -> None:
    """Refuse the name of a file, perhaps misspelled, for a new folder; `Qwen2.5` is a folder's."""
    # `suffix` is that of a file that the result can be; None if it can be a folder only.
    named = path.suffix.lower()
    is_file = named in _FILE_SUFFIXES or (named != "" and _is_like_written(named))
    if not is_file or path.is_dir():
        return
    stem = path.name.removesuffix(_INDEX_SUFFIX) if path.name.endswith(_INDEX_SUFFIX) else path.stem
    folder = stem.removesuffix(SAFETENSORS)
    file_name = "" if suffix is None else f"a file such as {folder}{suffix}, or "
    tool = f"; {_OTHER_TOOLS[named]}" if named in _OTHER_TOOLS else ""
    raise CheckpointError(
        f"{path}: castwise writes no {named} files; name {file_name}a folder such as {folder}{tool}"
    )


def _is_like_written(suffix: str) -> bool:
    """Return True if a suffix may be meant for a long one that is written."""
    names = (name for name in suffixes(is_written=True) if len(name) >= _LONG)
    return any(_is_misspelled(suffix, name) for name in names)


def _is_misspelled(text: str, name: str) -> bool:
    """Return True if a letter is wrong, missing or too much, or two letters changed places."""
    pairs = zip(text, name, strict=False)
    start = next((place for place, (a, b) in enumerate(pairs) if a != b), min(len(text), len(name)))
    left, right = text[start:], name[start:]
    is_swapped = left[:2] == right[1::-1] and left[2:] == right[2:]
    return left != right and (is_swapped or left[1:] in {right, right[1:]} or left == right[1:])


def written_suffixes() -> str:
    return ", ".join(name for name in suffixes(is_written=True) if name not in WHOLE_MODELS)


def has_places(path: Path) -> bool:
    """Return True if the header of a file to be written tells the places of all tensors."""
    return _container(path).has_places


def _container(path: Path) -> Container:
    """Return the container that a name names; raises as `container_of`, and as `find`."""
    container = find(container_of(path))
    assert container is not None, "by `container_of`"  # noqa: S101
    return container


def check_store(path: Path) -> None:
    """Refuse what cannot be read, or written, on an object store."""
    _check_store(path, path.suffix, _container(path))


def _check_store(path: Path, suffix: str, container: Container) -> None:
    if is_remote(path) and not container.on_stores:
        raise CheckpointError(
            f"{path}: {suffix} files cannot be read from a store or written to it; copy it to "
            "this machine first, or from it"
        )


def are_alike(suffix: str, path: Path) -> bool:
    """Return True if a file with such contents and one of that name have the same container."""
    return find(suffix) is _container(path)


def source_suffix(path: Path) -> str:
    """Return the suffix that decides the container of a file to read."""
    # The suffix is that of its name, unless the first bytes tell another of castwise's own
    # containers.
    suffix = path.suffix.lower()
    if is_suffix(suffix) and not is_built_in(suffix):
        return suffix
    contents_suffix = suffix_of_contents(path, suffix)
    if contents_suffix is None or find(contents_suffix) is find(suffix):
        return container_of(path)
    return contents_suffix


def source_path(path: str | os.PathLike[str], argument: str = "path") -> Path:
    """Return the path of a checkpoint to read, as `checked_path`."""
    # A name such as `org/name` that this machine does not have is that of a repository of the
    # Hugging Face Hub. If the Hub is offline, it is read from the Hub's cache.
    location = checked_path(path, argument)
    if not is_remote(location) and not is_container(location):
        location = hub_path(location) or location
    return offline_source(location)


def open_checkpoint(
    path: Path,
    assume: str | Mapping[str, str] | None = None,
    excludes: Callable[[str], bool] | None = None,
    *,
    decodes: bool = False,
) -> Checkpoint:
    """Open the checkpoint at `path`, a file or a folder."""
    # `assume` is the format of arrays that numpy saved as raw bytes; `excludes` tells paths of a
    # folder that are as if they were not there; `decodes`, that quantized weights will be decoded.
    is_folder = path.is_dir()
    # That there is no such file, or a link that leads nowhere, matters more than its suffix.
    if not is_folder and not is_remote(path):
        try:
            path.stat()
        except FileNotFoundError as error:
            raise absent_file(path) from error
    elif not is_folder and not path.exists():
        raise absent_file(path)
    suffix = "" if is_folder else source_suffix(path)
    container = find(suffix)
    if assume is not None and (container is None or not container.assumes):
        raise CheckpointError(
            f"{path}: " + argument("assume") + " is for arrays that numpy saved as raw bytes, "
            "in .npz and .npy; its tensors state their formats, so leave it out"
        )
    if container is None:
        with excluded_by(has_argument=excludes is not None):
            return open_folder(path, excludes or (lambda _: False))
    _check_store(path, suffix, container)
    if suffix in WHOLE_MODELS and not decodes:
        raise whole_model_refusal(path, suffix)
    if is_built_in(suffix):
        return Checkpoint.of_file(container.open_file(path, assume), suffix)
    return Checkpoint.of_file(_offered_reader(path, container, assume), suffix)


def whole_model_refusal(path: Path, suffix: str) -> CheckpointError:
    """Return the error that says what becomes of a file of a whole model."""
    return CheckpointError(
        f"{path}: castwise dequantize makes a folder or a .safetensors file of a {suffix} file "
        f"(checkpoint.dequantize_file); castwise quantize makes another {suffix} file of one with "
        "plain weights (--scheme q4_k)"
    )


def _offered_reader(
    path: Path, container: Container, assume: str | Mapping[str, str] | None
) -> Reader:
    """Open a file by what a package offers, and say that it is the package that fails."""
    try:
        reader = container.open_file(path, assume)
        _ = reader.tensors, reader.metadata, reader.other_entries, reader.reopens, reader.path
    except (CheckpointError, OSError):
        raise
    except Exception as error:  # of the package, and so of any kind
        raise CheckpointError(
            f"{path}: {container.reader!r} fails ({type(error).__name__}: {error}); update or "
            "uninstall the package that it is of"
        ) from error
    return reader


def model_files(source: Checkpoint, dtype: str | None, *, is_file: bool) -> ModelFiles:
    """Let a file of a whole model that becomes a folder have the tensors of transformers."""
    # `dtype` is what weights are decoded to; if none is, they have that of the embedding.
    reader, model = source.file, model_format(source.suffix)
    if is_file or model is None or not isinstance(reader, WholeModelReader):
        return ModelFiles()
    return model.model_files(reader, dtype)


def new_writer(
    path: Path,
    file: BinaryIO,
    plans: Sequence[Planned],
    metadata: Mapping[str, str],
    source: Reader | None = None,
    *,
    compressed: bool = False,
) -> Writer:
    """Make the writer into `file` for the container that `path` names; the file begins empty."""
    # `source` is where tensors that are kept come from. `compressed` matters to `.npz` only, where
    # arrays that come from an `.npz` stay as they were.
    suffix, container = container_of(path), _container(path)
    if container.writer is None:
        raise CheckpointError(
            f"{path}: castwise only reads {suffix}; it writes {written_suffixes()}"
        )
    if container.has_names:
        check_texts((plan.info.name for plan in plans), metadata)
    options = {"compressed": compressed} if suffix == ".npz" else {}
    return container.new_writer(file, plans, metadata, source, **options)
