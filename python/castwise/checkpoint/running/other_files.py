"""The files of a folder beside its tensors, copied or left out; how a destination is written."""

import errno
import logging
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

from castwise.checkpoint._config import Config
from castwise.checkpoint._errors import CheckpointError, join_names
from castwise.checkpoint.containers.checkpoint import Checkpoint, ComponentStatement
from castwise.checkpoint.containers.folder import PIPELINE, walk
from castwise.checkpoint.containers.registry import WHOLE_MODELS
from castwise.checkpoint.containers.weight_files import (
    NOT_OF_THE_MODEL,
    holds_weights,
    is_safetensors,
)
from castwise.checkpoint.files.entry_names import check_link
from castwise.checkpoint.files.remote import is_remote
from castwise.checkpoint.files.replacing import new_file, sync_folder
from castwise.checkpoint.files.source_files import open_file
from castwise.checkpoint.files.temporary_names import is_temporary
from castwise.checkpoint.running._job import checksum
from castwise.text.brief import shorten
from castwise.text.wording import argument, parenthesis, setting

_LOGGER = logging.getLogger(__name__)
_COPY_BYTES = 1 << 20
# Bytes of the name of a file on Linux and macOS; Windows has as many units of UTF-16.
_LONGEST_NAME = 255

# Bytes of a file that every part reads, so that it may be touched, or put back as it was.
_MOST_SUMMED = 64 << 20

# The same model in other formats, in the folder of its safetensors files.
_OTHER_WEIGHTS = (
    *("pytorch_model*.bin", "pytorch_model*.bin.index*.json", "adapter_model.bin"),
    *("diffusion_pytorch_model*.bin", "diffusion_pytorch_model*.bin.index*.json"),
    *("tf_model*.h5", "tf_model*.h5.index.json", "flax_model*.msgpack", "flax_model*.index.json"),
    *("diffusion_flax_model*.msgpack", "rust_model.ot", "consolidated*.pth", "*.ckpt"),
    *(f"*{suffix}" for suffix in WHOLE_MODELS),
    *("*.onnx", "*.onnx_data", "*.tflite"),
)

# The same in a folder inside that.
_OTHER_WEIGHTS_BELOW = (
    *("original/*.pth", "onnx/*.onnx*", "openvino/*", "coreml/*"),
    *(f"{suffix[1:]}/*{suffix}" for suffix in WHOLE_MODELS),
)


# Of files that are opened to see whether they hold weights: scripts save other values so, too.
_TORCH_SUFFIXES = frozenset((".bin", ".pt", ".pth"))

_BY_DEFAULT, _INCLUDED, _EXCLUDED = "/default", "/included", "/excluded"
# What becomes of a file, beside paths, which begin with no slash.
_COPIED = frozenset((_BY_DEFAULT, _INCLUDED))


# Globs are compared with the path in the checkpoint, in which `*` matches slashes too, and with the
# name alone. What matches a folder holds for all in it.
class Patterns:
    """Globs of files to copy and to leave out."""

    def __init__(self, include: object = (), exclude: object = ()) -> None:
        self._include = _globs("include", include)
        self._exclude = _globs("exclude", exclude)
        self._used: set[str] = set()

    def includes(self, path: str) -> bool:
        """Return True if a file that would be left out is to be copied."""
        return self._any(self._include, path)

    def excludes(self, path: str) -> bool:
        """Return True if a file, or folder if there is a slash at the end, is to be left out."""
        return self._any(self._exclude, path)

    def unused_patterns(self) -> list[str]:
        """List the globs that matched nothing, with the option each was given as."""
        pairs = (("include", self._include), ("exclude", self._exclude))
        return [
            setting(option, glob)
            for option, globs in pairs
            for glob in globs
            if glob not in self._used
        ]

    def refuse(self, option: str, reason: str) -> None:
        """CheckpointError with this reason if the option was given."""
        if globs := self._include if option == "include" else self._exclude:
            raise CheckpointError(setting(option, globs[0]) + f": {reason}")

    def _any(self, globs: Sequence[str], path: str) -> bool:
        for glob in globs:
            if _matches(path, glob):
                self._used.add(glob)
                return True
        return False


class OtherFiles:
    """The files of a folder that are not cast."""

    def __init__(self, folder: Checkpoint, patterns: Patterns, *, keeps_all: bool) -> None:
        self._folder = folder
        self._patterns = patterns
        self._keeps_all = keeps_all  # as the folder itself is to be replaced
        names = {component.index_name for component in folder.components}
        self._names_written = names.union(
            folder.consumed, *(component.shards for component in folder.components)
        )
        self._homes = {component.prefix for component in folder.components}
        if (folder.path / PIPELINE).is_file():
            self._homes.add("")

    def size(self, destination: Path) -> tuple[int, list[tuple[str, int]]]:
        """Return the bytes to be copied, and what is left out with the bytes of each."""
        # A name that the destination cannot take, or a file that may not be read, would end the run
        # after its work.
        nbytes, left_out = 0, dict[str, int]()
        for path, entry, fate in self._fates():
            if path.endswith("/") or fate == _EXCLUDED:
                continue
            size = entry.stat().st_size if entry.is_file() else 0
            if fate in _COPIED:
                check_length(path, destination)
                if not (is_remote(entry) or os.access(entry, os.R_OK)):
                    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(entry))
                nbytes += size
            else:
                left_out[fate] = left_out.get(fate, 0) + size
        return nbytes, list(left_out.items())

    def states(self) -> dict[str, list[Any]]:
        """Return what tells whether a file to be copied was changed, by its path."""
        # The state is a file's size, and its checksum, or for a large file the time of its last
        # change.
        return {
            path: _state(entry)
            for path, entry, fate in self._fates()
            if fate in _COPIED and not path.endswith("/") and entry.is_file()
        }

    def copy(self, destination: Path) -> set[str]:
        """Copy what is not left out, down to the disk; links to folders stay links."""
        folders = {}
        links: dict[Path, Path] = {}
        names: set[str] = set()
        is_remote_too = is_remote(destination)
        for path, entry, fate in self._fates():
            if fate not in _COPIED:
                continue
            copy = destination / path
            folder = copy if path.endswith("/") else copy.parent
            if folder not in folders and not is_remote_too:
                folder.mkdir(parents=True, exist_ok=True)
                folders[folder] = True
            if path.endswith("/"):
                continue
            if entry.is_file():
                if fate != _INCLUDED:
                    self._warn_of_weights(path, entry)
                _copy(entry, copy)
                names.add(path)
            elif entry.is_dir() and is_remote_too:
                _LOGGER.warning("%s is a link, which no store holds, and was left out", entry)
            elif entry.is_dir():
                _warn_of_link(entry)
                copy.symlink_to(
                    _new_target(entry, copy, self._folder.path), target_is_directory=True
                )
                links[copy] = entry
            else:
                _LOGGER.warning("%s is neither a file nor a folder and was left out", entry)
        for copy, entry in links.items():
            if not copy.exists():
                copy.unlink()
                _LOGGER.warning("%s leads to what was left out, and was left out too", entry)
        for folder in reversed(folders):
            sync_folder(folder)
        return names

    def warn(self, left_out: Sequence[tuple[str, int]] = ()) -> None:
        """Warn of what is left out, in one line, and of globs that match nothing."""
        if left_out:
            _LOGGER.warning(
                "left out, %s bytes: %s; %s copies them too",
                f"{sum(size for _, size in left_out):,}",
                join_names([path for path, _ in left_out]),
                argument("include"),
            )
        for glob in self._patterns.unused_patterns():
            _LOGGER.warning("%s matches nothing in %s", glob, self._folder.path)

    def _fates(self) -> Iterator[tuple[str, Path, str]]:
        """List the files and folders, each with what becomes of it."""
        # A fate is one of `_COPIED`, `_EXCLUDED`, or the path with which the file is left out.
        fates = {"": _BY_DEFAULT}

        def enters(folder: str) -> bool:
            return not (_is_temporary(folder) or self._patterns.excludes(folder))

        for path, entry in walk(self._folder.path, enters):
            if path in self._names_written or _is_temporary(path):
                continue
            folder, slash, _ = path.rstrip("/").rpartition("/")
            fate = fates[folder + slash]
            if fate == _EXCLUDED or self._patterns.excludes(path):
                fate = _EXCLUDED
            elif fate == _INCLUDED or self._patterns.includes(path):
                fate = _INCLUDED
            elif fate == _BY_DEFAULT and not self._keeps_all and self._is_left_out(path):
                fate = path
            if path.endswith("/"):
                fates[path] = fate
            if fate in _COPIED:
                check_link(entry)
            yield path, entry, fate

    def _is_left_out(self, path: str) -> bool:
        """Return True for what is left out unless asked for."""
        return (
            any(_matches(path, pattern) for pattern in NOT_OF_THE_MODEL)
            or path in self._folder.other_forms
            or self._is_other_weights(path)
        )

    def _is_other_weights(self, path: str) -> bool:
        folder, slash, name = path.rpartition("/")
        parent, above_slash, last = folder.rpartition("/")
        return (folder + slash in self._homes and _matches_any(name, _OTHER_WEIGHTS)) or (
            parent + above_slash in self._homes
            and _matches_any(f"{last}/{name}", _OTHER_WEIGHTS_BELOW)
        )

    def _warn_of_weights(self, path: str, entry: Path) -> None:
        if is_safetensors(entry.name):
            _LOGGER.warning("%s is not in the index and was copied as it is", entry)
        elif _matches_any(entry.name, _OTHER_WEIGHTS) and not self._is_other_weights(path):
            _LOGGER.warning(
                "%s was copied as it is: there is no file of its tensors that can be cast", entry
            )
        elif path[: path.rfind("/") + 1] in self._homes and _holds_tensors(entry):
            _LOGGER.warning(
                "%s was copied as it is: its tensors are beside those of the model, and were not "
                "converted; convert it by itself if they belong to the model",
                entry,
            )


def _holds_tensors(entry: Path) -> bool:
    """Return True for a file of torch with tensors that is not one of known names."""
    is_known = _matches_any(entry.name, NOT_OF_THE_MODEL)
    if entry.suffix not in _TORCH_SUFFIXES or is_known or is_remote(entry):
        return False
    from castwise.checkpoint.containers.torch import TorchReader  # noqa: PLC0415  (5 milliseconds)

    with suppress(CheckpointError), TorchReader(entry, warns=False) as reader:
        return bool(reader.tensors)
    return False


def _new_target(entry: Path, link: Path, root: Path) -> str:
    """Return what the copy of a link to a folder is to hold."""
    # The target stays, unless it is relative and leads elsewhere from the copy's place.
    target, real = os.readlink(entry), os.path.realpath(entry)
    is_inside = Path(real).is_relative_to(os.path.realpath(root))
    same = os.path.realpath(link.parent / target) == real
    return target if is_inside or same else real


def _warn_of_link(entry: Path) -> None:
    if entry.is_dir() and holds_weights([child.name for child in entry.iterdir()]):
        _LOGGER.warning(
            "%s is a link and was copied as it is: tensors in the folder that it leads to were "
            "not cast; cast that folder by itself",
            entry,
        )


def _globs(option: str, value: object) -> tuple[str, ...]:
    if not isinstance(value, Iterable):
        raise TypeError(f"{option} is a glob or several, not {value!r}")
    globs = (value,) if isinstance(value, str) else tuple(value)
    for glob in globs:
        if not isinstance(glob, str):
            raise TypeError(f"{option}: {glob!r} is not a glob, which is a str")
        if not glob:
            raise CheckpointError(argument(option) + ": the glob is empty")
    return tuple(glob.removeprefix("./") for glob in globs)


def _is_temporary(path: str) -> bool:
    return is_temporary(_name(path).rstrip("/"))


def _name(path: str) -> str:
    """Return the last part of a path, with the slash of a folder."""
    return path[path.rstrip("/").rfind("/") + 1 :]


def _matches(path: str, glob: str) -> bool:
    """Return True if a glob matches the path or the name; a folder's has a slash at its end."""
    name = _name(path)
    return any(fnmatchcase(text, glob) for text in {path, name, path.rstrip("/"), name.rstrip("/")})


def _matches_any(name: str, globs: Iterable[str]) -> bool:
    return any(fnmatchcase(name, glob) for glob in globs)


def check_length(name: str, destination: Path) -> None:
    """Refuse the path of a file, of a store, that no folder of this machine can have."""
    longest = max(len(os.fsencode(part)) for part in name.split("/"))
    if longest > _LONGEST_NAME and not is_remote(destination):
        raise CheckpointError(
            f"{shorten(name, 80)!r} of the source has a name of {longest:,} bytes, and "
            f"{destination} takes at most {_LONGEST_NAME}; leave it out "
            + parenthesis("exclude")
            + ", or rename it"
        )


def _state(entry: Path) -> list[Any]:
    status = entry.stat()
    is_small = status.st_size <= _MOST_SUMMED
    return [status.st_size, f"CRC {checksum(entry):08x}" if is_small else status.st_mtime_ns]


def _copy(source: Path, destination: Path) -> None:
    """Copy a file with its permissions and times, down to the disk."""
    with (
        source.open("rb") if is_remote(source) else open_file(source) as stream,
        new_file(destination) as copy,
    ):
        shutil.copyfileobj(stream, copy, _COPY_BYTES)
    if not (is_remote(source) or is_remote(destination)):
        shutil.copystat(source, destination)


ONLY_FOLDERS = argument("resumable") + " and " + argument("resume") + " are for folders of "
"""How a refusal begins to keep shards of what is none."""


class OutputOptions(NamedTuple):
    """How the destination of a run is written, beside what becomes of tensors."""

    # All that the caller gave for the conversion, as plain values by name.
    arguments: Mapping[str, Any]
    # What is there may be replaced.
    overwrite: bool
    # The bytes of a shard; None for those of the source.
    limit: int | None
    # Which other files of a folder are copied or left out.
    patterns: Patterns
    # Whether complete shards stay if it is interrupted, and whether it goes on with such.
    resumable: bool
    resume: bool
    # Makes the config.json of a component, which follows the tensors; None to leave it as it is.
    make_config: Callable[[ComponentStatement, str], Config] | None
    # Files to add, with their texts, by their paths in the folder.
    files_to_add: Mapping[str, str] = {}
    # Whether config.json will state otherwise how weights are stored.
    restates: bool = False
