"""An opened checkpoint: the shards that belong together, and what states how they are stored."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Self

from castwise.checkpoint._errors import CheckpointError
from castwise.checkpoint._tensors import TensorInfo
from castwise.checkpoint.containers.interface import Reader
from castwise.checkpoint.files.entry_names import check_link, exclusion
from castwise.checkpoint.files.source_files import read_file
from castwise.models.architecture import text_parts
from castwise.quantization.producers.configs import MODEL
from castwise.quantization.producers.registry import CONFIGS
from castwise.quantization.producers.stated import CONFIG


@dataclass(frozen=True)
class Component:
    """The shards of one folder that belong together, which agree with their index."""

    # The folder in the checkpoint, with a slash at its end; empty for the checkpoint itself.
    prefix: str
    # Path of the index in the checkpoint, None if there is a single file of weights.
    index_name: str | None
    index: Mapping[str, Any]  # the index as read, keys in their order
    # Each shard by its path in the checkpoint, in order of name: headers that were read, and closed
    # files.
    shards: Mapping[str, Reader]
    # For each shard, the tensors that the index expects in it.
    indexed: Mapping[str, tuple[str, ...]]
    folder: Path  # where the files are that may state how its tensors are stored
    # False for an adapter beside its model, of which the configurations in the folder say nothing.
    has_config: bool = True

    @cached_property
    def statement(self) -> ComponentStatement:
        """What states how its tensors are stored."""
        return ComponentStatement(self.folder if self.has_config else None, self.shards)

    @property
    def place(self) -> str:
        """What messages call it beside others: its folder, or the file of an adapter."""
        return self.prefix or "." if self.has_config else next(iter(self.shards))

    def names(self) -> list[str]:
        """List all tensors in the order of the index, and then those that it leaves out."""
        other_names = (name for shard in self.shards for name in self.names_in(shard))
        return list(dict.fromkeys([*self.index.get("weight_map", ()), *other_names]))

    def names_in(self, shard: str) -> list[str]:
        """List the tensors that are those of a shard: all but such as the index has elsewhere."""
        index_names, everywhere = {*self.indexed[shard]}, self.index.get("weight_map", {})
        tensors = self.shards[shard].tensors
        return [name for name in tensors if name in index_names or name not in everywhere]


# In a `with` block the single file is open. The shards of a folder are not: each is opened in its
# own block while it is read, as there may be more of them than files can be open.
class Checkpoint(NamedTuple):
    """What a path names: a single file, of one component, or a folder, of one or many."""

    path: Path  # the file or the folder
    # The single file as the only component; or the folders that hold weights, of the folder and
    # those in it, in order of their paths.
    components: Sequence[Component]
    is_folder: bool  # false for a single file
    # Paths of files and indexes that hold the tensors of a component in another form.
    other_forms: frozenset[str] = frozenset()
    # Paths of files that tell how tensors are stored, and hold for no others.
    consumed: frozenset[str] = frozenset()
    suffix: str = ""  # the suffix that decided the container of a single file; empty for a folder

    @classmethod
    def of_file(cls, reader: Reader, suffix: str) -> Checkpoint:
        name = reader.path.name
        component = Component("", None, {}, {name: reader}, {name: ()}, reader.path.parent)
        return cls(reader.path, [component], is_folder=False, suffix=suffix)

    def suffix_of(self, reader: Reader) -> str:
        """Return the suffix that decided the container of a file of its tensors."""
        return self.suffix or reader.path.suffix.lower()

    @property
    def shards(self) -> dict[str, Reader]:
        return {
            path: shard for component in self.components for path, shard in component.shards.items()
        }

    @property
    def tensors(self) -> dict[str, TensorInfo]:
        return {
            component.prefix + info.name: info
            for component in self.components
            for shard in component.shards.values()
            for info in shard.tensors.values()
        }

    @property
    def file(self) -> Reader | None:
        return None if self.is_folder else next(iter(self.shards.values()))

    def path_of(self, component: Component) -> Path:
        return self.path / component.prefix if component.prefix else self.path

    def check_names(self) -> None:
        """Refuse a tensor of the same name in a model and an adapter beside it."""
        folders = Counter(component.prefix for component in self.components)
        places: dict[str, str] = {}
        for component in self.components:
            if folders[component.prefix] == 1:
                continue
            shards = [
                (component.prefix + name, shard)
                for shard, reader in component.shards.items()
                for name in reader.tensors
            ]
            for path, shard in shards:
                if path in places:
                    name = path.removeprefix(component.prefix)
                    raise CheckpointError(
                        f"{self.path}: tensor {name!r} is in {places[path]} and in {shard}, an "
                        "adapter by its name; leave one out " + exclusion()
                    )
            places.update(shards)

    def close(self) -> None:
        if (reader := self.file) is not None:
            reader.__exit__(None, None, None)

    def __enter__(self) -> Self:
        if (reader := self.file) is not None:
            reader.__enter__()
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()


# Far more than any model states, so that another file of that name does not fill the memory.
MAX_CONFIG_BYTES = 10_000_000


class StatementFile(NamedTuple):
    """A file of JSON beside the tensors, as it was read."""

    path: Path
    text: str = ""
    value: Any = None  # what it holds; None if it cannot be read
    error: Exception | None = None  # why it cannot
    # What of it nothing means, although it is JSON.
    fault: str | None = None


class ComponentStatement:
    """What states how the tensors of a component are stored; each file is read and parsed once."""

    def __init__(self, folder: Path | None, shards: Mapping[str, Reader]) -> None:
        # The folder of the files; None if those there are of other tensors.
        self._folder = folder
        self._shards = shards
        self._files: dict[str, StatementFile | None] = {}

    def file(self, name: str) -> StatementFile | None:
        if name not in self._files:
            self._files[name] = None if self._folder is None else _read(self._folder / name)
        return self._files[name]

    @cached_property
    def tensors(self) -> list[TensorInfo]:
        return [info for reader in self._shards.values() for info in reader.tensors.values()]

    @cached_property
    def metadata(self) -> dict[str, str]:
        """The metadata of all shards, of which the first one counts."""
        pairs: dict[str, str] = {}
        for reader in self._shards.values():
            pairs = {**reader.metadata, **pairs}
        return pairs

    @cached_property
    def _configs(self) -> tuple[dict[str, Any], tuple[str, ...]]:
        configs, problems = {}, []
        for name in CONFIGS:
            if (file := self.file(name)) is not None:
                if problem := file.error or file.fault:
                    problems.append(f"{name}: {problem}")
                else:
                    configs[name] = file.value
        for reader in self._shards.values():
            try:
                if (layers := reader.stated()) is not None:
                    configs[MODEL] = layers
            except (CheckpointError, ValueError, RecursionError) as error:
                problems.append(f"its {CONFIG}: {error}")
        return configs, tuple(problems)

    @property
    def configs(self) -> dict[str, Any]:
        """The parsed configurations, by the names of their files."""
        return self._configs[0]

    @property
    def unreadable(self) -> tuple[str, ...]:
        """The configurations that cannot be read, each with the reason."""
        return self._configs[1]

    @property
    def config(self) -> dict[str, Any]:
        """The parsed `config.json`; empty if there is none, or it is no object."""
        config = self.configs.get(CONFIG)
        return config if isinstance(config, dict) else {}

    @property
    def model_types(self) -> set[str]:
        """The types that `config.json` states, of the model and its text."""
        types = (part.get("model_type") for part in text_parts(self.config))
        return {kind for kind in types if isinstance(kind, str)}


def _read(path: Path) -> StatementFile | None:
    text, long_numbers = "", list[str]()

    def integer(digits: str) -> int | str:
        try:
            return int(digits)
        except ValueError:  # it would take too long
            long_numbers.append(digits)
            return digits

    try:
        check_link(path)
        if path.is_dir():
            return StatementFile(path, error=CheckpointError(f"{path} is a folder"))
        if not path.is_file():
            return None
        text = read_file(path, MAX_CONFIG_BYTES).decode()
        value = json.loads(text.removeprefix("\ufeff"), parse_int=integer)
    except (CheckpointError, OSError, ValueError, RecursionError) as error:
        return StatementFile(path, text, error=error)
    fault = None
    if long_numbers:
        digits = long_numbers[0]
        fault = (
            f"{digits[:9]}... is a whole number of {len(digits):,} digits, which nothing means; "
            "remove it or mend it"
        )
    return StatementFile(path, text, value, fault=fault)
