"""What states how the tensors of a component are stored: files beside them, and the shards."""

import json
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from castwise.checkpoint._errors import CheckpointError
from castwise.checkpoint._tensors import TensorInfo
from castwise.checkpoint.containers.interface import Reader
from castwise.checkpoint.files.entry_names import check_link
from castwise.checkpoint.files.source_files import read_file
from castwise.models.architecture import text_parts
from castwise.quantization.producers.configs import MODEL
from castwise.quantization.producers.registry import CONFIGS
from castwise.quantization.producers.stated import CONFIG

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
        """Return the file of a name; None without one."""
        if name not in self._files:
            self._files[name] = None if self._folder is None else _read(self._folder / name)
        return self._files[name]

    @cached_property
    def tensors(self) -> list[TensorInfo]:
        """The tensors of all shards."""
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
    """Read and parse a file, if there is one."""
    text, long_numbers = "", list[str]()

    def integer(digits: str) -> int | str:
        try:
            return int(digits)
        except ValueError:  # it would take too long
            long_numbers.append(digits)
            return digits

    try:
        check_link(path)
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
