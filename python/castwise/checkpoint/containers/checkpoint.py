"""An opened checkpoint: the shards that belong together, of one file or of a tree of folders."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Self

from castwise.checkpoint._errors import CheckpointError
from castwise.checkpoint._tensors import TensorInfo
from castwise.checkpoint.containers.interface import Reader
from castwise.checkpoint.containers.statement import ComponentStatement
from castwise.checkpoint.files.entry_names import exclusion


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


class Checkpoint(NamedTuple):
    """What a path names: a single file, of one component, or a folder, of one or many.

    In a `with` block the single file is open. The shards of a folder are not: each is opened in
    its own block while it is read, as there may be more of them than files can be open.
    """

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
        """Make the checkpoint of a single file, which is open."""
        name = reader.path.name
        component = Component("", None, {}, {name: reader}, {name: ()}, reader.path.parent)
        return cls(reader.path, [component], is_folder=False, suffix=suffix)

    def suffix_of(self, reader: Reader) -> str:
        """Return the suffix that decided the container of a file of its tensors."""
        return self.suffix or reader.path.suffix.lower()

    @property
    def shards(self) -> dict[str, Reader]:
        """All shards by their paths in the checkpoint."""
        return {
            path: shard for component in self.components for path, shard in component.shards.items()
        }

    @property
    def tensors(self) -> dict[str, TensorInfo]:
        """All tensors by their names in the checkpoint."""
        return {
            component.prefix + info.name: info
            for component in self.components
            for shard in component.shards.values()
            for info in shard.tensors.values()
        }

    @property
    def file(self) -> Reader | None:
        """The reader of a single file; None for a folder."""
        return None if self.is_folder else next(iter(self.shards.values()))

    def path_of(self, component: Component) -> Path:
        """Return the path by which messages name a component."""
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
        """Close the single file."""
        if (reader := self.file) is not None:
            reader.__exit__(None, None, None)

    def __enter__(self) -> Self:
        if (reader := self.file) is not None:
            reader.__enter__()
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()
