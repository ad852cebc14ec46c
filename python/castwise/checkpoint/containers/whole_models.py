"""Containers whose files state all of a model: hyperparameters, tokens, types of tensors."""

import json
import logging
import re
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from castwise.arrays.dtype_map import DtypeMap
from castwise.checkpoint._errors import CheckpointError
from castwise.checkpoint._tensors import Planned, TensorInfo
from castwise.checkpoint.containers.interface import PlacedReader, Reader
from castwise.checkpoint.files.source_files import JoinedFiles, SourceFile
from castwise.models.architecture import Architecture

_LOGGER = logging.getLogger(__name__)
_CONFIG = "config.json"


class Rows(NamedTuple):
    """Which rows of a tensor of transformers another has: of each `period` the one at `at`."""

    period: int = 1
    at: int | None = 0  # None: all rows, those of the two halves in turn

    @property
    def picks(self) -> NDArray[Any]:
        """The rows of a period, in their new order."""
        every = np.arange(self.period)
        return every.reshape(2, -1).T.reshape(-1) if self.at is None else every[[self.at]]

    def count(self, rows: int) -> int:
        """Return how many of so many rows they are."""
        return rows if self.at is None else rows // self.period

    def of(self, count: int) -> slice | NDArray[np.intp]:
        """Return what indexes them among so many rows."""
        if self.at is not None:
            return slice(self.at, None, self.period)
        return np.arange(count).reshape(-1, self.period)[:, self.picks].reshape(-1)


class Place(NamedTuple):
    """A tensor of the file, or one expert of it, and the rows that it has."""

    name: str
    expert: int | None
    rows: Rows


class MappedTensor(NamedTuple):
    """A tensor of transformers, and where its rows are in a file of the whole model."""

    name: str
    shape: tuple[Any, ...]
    axes: Sequence[str]  # what states the shape
    axis: int  # that of the rows
    places: Sequence[Place]


class ModelFiles(NamedTuple):
    """What a folder has beside the tensors of a model that came from one file."""

    config: Mapping[str, Any] = {}
    files: Mapping[str, str] = {}  # those of its tokenizer, by name
    dtypes: DtypeMap = DtypeMap.from_mapping({})
    unknown: Sequence[str] = ()  # what the file does not state

    def warn(self) -> None:
        for warning in self.unknown:
            _LOGGER.warning("%s", warning)

    def all_files(self, sections: Mapping[str, Any]) -> dict[str, str]:
        """Return all files, `config.json` with further sections."""
        if not self.config:
            return {}
        config = {**self.config, **sections}
        return {_CONFIG: json.dumps(config, indent=2) + "\n", **self.files}


class NoFolderError(CheckpointError):
    """A file of a whole model that cannot have the tensors of transformers, with the reason."""

    def __init__(self, message: str, reason: str = "") -> None:
        super().__init__(message)
        self.reason = reason


class WholeModelReader(PlacedReader[SourceFile | JoinedFiles]):
    """A file of a whole model: the types of its tensors alone tell how they are quantized."""

    alignment: int  # each tensor begins at a multiple of so many bytes of the data

    @abstractmethod
    def pairs(self, left_out: Collection[str]) -> list[bytes]:
        """Return the keys and values of the header as they are in it, but for some keys."""

    @abstractmethod
    def values(self) -> dict[str, Any]:
        """Return what the header states, by its keys."""

    @abstractmethod
    def architecture(self) -> Architecture | None:
        """Return the roles of its tensors; None if their names do not tell them."""


class InputNames(NamedTuple):
    """What a file of a whole model may call a weight, and the weights with the same inputs."""

    own: Sequence[str]
    sharing: Sequence[str]


class ModelOutline(NamedTuple):
    """What a model is in a file of all of it."""

    architecture: str
    metadata: Mapping[str, str]  # the hyperparameters
    constants: Mapping[str, NDArray[Any]]  # tensors that are made of hyperparameters
    tensors: Iterable[MappedTensor]
    optional: frozenset[str]  # tensors of the file that it can be without
    embedding: str  # the tensor of the file with a row for each token
    tokens: Callable[[int], Mapping[str, str]]  # the metadata of so many tokens


class ModelFormat(NamedTuple):
    """A container of whole models, for those who plan one and do not know which it is."""

    label: str
    model_types: Sequence[str]  # those of which one is written
    float32: re.Pattern[str]  # names of tensors that are float32 in it
    tokenizer_files: Sequence[str]
    check_name: Callable[[Path], None]
    check_plain: Callable[[TensorInfo], None]  # refuses a format that nothing computes with
    outline: Callable[[Path, Mapping[str, Any]], ModelOutline]  # of a folder and its configuration
    model_files: Callable[[WholeModelReader, str | None], ModelFiles]
    """Lets a reader have the tensors of transformers, and says what a folder has beside them.

    Weights are decoded to a format; if it is None, they have that of the embedding."""

    problems: Callable[[Iterable[TensorInfo], Mapping[str, str]], Iterator[tuple[str, str, str]]]
    """What keeps a file from being loaded: module, problem, remedy."""

    mean_squares: Callable[[Reader], Mapping[str, tuple[str, str]]]
    """The tensors with sums of squared inputs, and with their counts, by the names of weights.

    Refuses a file of something else."""

    is_stored_name: Callable[[str], bool]  # whether weights are named so
    input_names: Callable[[str, str], InputNames]  # of a weight of transformers in a type of models
    # The schemes of tensors by a mix, of a file that states these values; and what that states
    mix_types: Callable[[str, Mapping[str, Any], Collection[str]], dict[str, str]]
    mix_metadata: Callable[[str], dict[str, str]]
    alignment: int  # of tensors in a file that is not like its source
    file_bytes: Callable[[Collection[Planned], Mapping[str, str], Reader | None], int]
    """The bytes of a file of planned tensors, its metadata, and what it is made of."""
