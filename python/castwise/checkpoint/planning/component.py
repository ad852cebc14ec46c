"""One component of a checkpoint: as it is read, what it becomes, and the reader of that."""

import json
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property
from operator import attrgetter
from typing import Any, NamedTuple

from castwise._core import PolicyMap
from castwise._options import Arithmetic
from castwise.checkpoint._config import Config, QuantizedConfig
from castwise.checkpoint._errors import CheckpointError, join_names
from castwise.checkpoint._tensors import TensorInfo
from castwise.checkpoint.containers.checkpoint import Checkpoint, Component, ComponentStatement
from castwise.checkpoint.containers.interface import ChunkedReader, Reader
from castwise.checkpoint.containers.safetensors import SafetensorsReader, StoredLayout
from castwise.checkpoint.containers.whole_models import WholeModelReader
from castwise.checkpoint.planning.checkpoint_model import component_model
from castwise.checkpoint.planning.derived_reader import (
    Derivation,
    DerivedReader,
    DerivedTensor,
    ShardPlan,
    with_tensors,
)
from castwise.checkpoint.planning.stated_quantization import found_in, not_indexed
from castwise.checkpoint.planning.stored_tensors import StoredTensors
from castwise.models.architecture import Architecture
from castwise.models.model import Model
from castwise.quantization import Quantization, QuantizedWeight
from castwise.quantization.producers.configs import Statement, statements, undecodable
from castwise.quantization.producers.producer import Statements
from castwise.quantization.producers.stated import SECTIONS
from castwise.quantization.producers.stored_weight import Undecodable
from castwise.quantization.weights.decoding import Decoding, Decodings
from castwise.text.brief import counted
from castwise.text.wording import setting, word_key_error


class DerivedShard(DerivedReader, SafetensorsReader):
    """A shard that is a safetensors file: tensors that are not derived stay as they stand in it."""

    def layout(self, name: str) -> StoredLayout:
        """Return code, shape and tag of a tensor that is not derived."""
        assert isinstance(self._reader, SafetensorsReader)  # noqa: S101
        return self._reader.layout(self.stored_name(name))


class DerivedModel(DerivedReader, WholeModelReader):
    """A file of a whole model, whose weights are quantized: what else it states stays."""

    def __init__(self, reader: Reader, plan: ShardPlan) -> None:
        super().__init__(reader, plan)
        assert isinstance(reader, WholeModelReader)  # noqa: S101
        self.alignment = reader.alignment

    def pairs(self, left_out: Collection[str]) -> list[bytes]:
        """Return the keys and values of the header as they are in it, but for some keys."""
        assert isinstance(self._reader, WholeModelReader)  # noqa: S101
        return self._reader.pairs(left_out)

    def values(self) -> dict[str, Any]:
        assert isinstance(self._reader, WholeModelReader)  # noqa: S101
        return self._reader.values()

    def architecture(self) -> Architecture | None:
        assert isinstance(self._reader, WholeModelReader)  # noqa: S101
        return self._reader.architecture()


def derived_reader(reader: Reader, plan: ShardPlan) -> DerivedReader:
    if isinstance(reader, WholeModelReader) and plan.derivation == "encode":
        return DerivedModel(reader, plan)
    if isinstance(reader, ChunkedReader):
        from castwise.checkpoint.planning import _derived_hdf5  # noqa: PLC0415  (5 milliseconds)

        return _derived_hdf5.derived_reader(reader, plan)
    reader_type = DerivedShard if isinstance(reader, SafetensorsReader) else DerivedReader
    return reader_type(reader, plan)


_LOGGER = logging.getLogger(__name__)

UNKNOWN = "castwise does not know the method {!r} ({}); the library of that method reads it"


class RefusalError(CheckpointError):
    """A component that cannot be what is asked for, with the reason by itself."""

    def __init__(self, message: str, reason: str = "") -> None:
        super().__init__(message)
        self.reason = reason


class SourceComponent:
    """One component as it is read: its tensors, what states how they are stored, and its model."""

    def __init__(  # noqa: PLR0917
        self,
        source: Checkpoint,  # the checkpoint, and the component of it
        component: Component,
        derivation: Derivation,  # how its tensors are derived
        purpose: str,  # what refusals say that it cannot be
        statement_text: str,  # what refusals call its configurations and metadata
        # The one that a user gives; None if the table has it
        architecture: Architecture | None = None,
    ) -> None:
        self.component, self.prefix = component, component.prefix
        self.derivation, self.purpose = derivation, purpose
        self._architecture = architecture
        # What refusals and warnings call it.
        self.path = source.path_of(component)
        self.statement = component.statement
        self.tensors = self.statement.tensors
        if unreadable := self.statement.unreadable:
            raise self.refusal(f"{statement_text} cannot be read: {unreadable[0]}")
        # What of it is quantized; None if nothing is.
        self.quantization = found_in(component)
        if self.quantization is not None or derivation != "decode":
            reason = not_indexed(component)
            if reason is not None:
                raise self.refusal(reason)

    @cached_property
    def stored_tensors(self) -> StoredTensors:
        """The tensors of all shards; CheckpointError if two have the same name."""
        return StoredTensors(self.component.shards)

    @cached_property
    def model(self) -> Model:
        return component_model(self.component, self._architecture)

    @cached_property
    def statements(self) -> list[Statement]:
        return statements(self.statement.configs, self.statement.metadata)

    @cached_property
    def _decodings(self) -> Decodings:
        return Decodings(self.stored_tensors, self.stored_tensors.read, self.section)

    def is_matrix(self, info: TensorInfo) -> bool:
        """Return True for what may be the weight of a linear layer, or those of experts."""
        return info.kind == "float" and self.model.is_matrix(info.name)

    def refusal(self, reason: str) -> CheckpointError:
        """Return the error that says why it cannot be what is asked for."""
        return RefusalError(f"{self.path} cannot be {self.purpose}: " + reason, reason)

    def check_orphans(self, quantization: Quantization) -> None:
        """Refuse a payload without its scale, or a scale without its payload."""
        if quantization.orphans:
            orphan = max(quantization.orphans, key=lambda orphan_tensor: orphan_tensor.is_payload)
            raise self.refusal(f"{orphan} ({counted(len(quantization.orphans), 'such tensor')})")

    def check_method(self, quantization: Quantization) -> None:
        if quantization.unknown is not None:
            origins = ", ".join(quantization.stated)
            raise self.refusal(UNKNOWN.format(quantization.unknown, origins))

    def check_decodable(self, statement: Statement) -> None:
        """Refuse a statement of weights that castwise cannot decode."""
        if (reason := undecodable(statement)) is not None:
            raise self.refusal(f"{statement.origin}: " + reason)

    def check_problem(self, weight: QuantizedWeight) -> None:
        if weight.problem is not None:
            raise self.refusal(f"{weight.payload!r}: {weight.problem}")

    def section(self, weight: QuantizedWeight) -> Mapping[str, Any]:
        recipes = set(weight.recipes)
        return next((row.section for row in self.statements if recipes & set(row.recipes)), {})

    def decoding(
        self, weight: QuantizedWeight, arithmetic: Arithmetic, axis: int | None = None
    ) -> Decoding:
        """Plan how a weight is read; refuse one that castwise cannot decode."""
        try:
            return self._decodings.plan(weight, arithmetic, axis)
        except Undecodable as error:
            raise self.refusal(f"{weight.payload!r}: " + str(error)) from error

    def check_names(
        self,
        new_tensors: Mapping[str, Sequence[DerivedTensor]],
        left_out: Collection[str],
        new_names: Mapping[str, str],
    ) -> None:
        gone = {*new_tensors, *left_out, *new_names}
        names: set[str] = set()
        for home, tensors in new_tensors.items():
            for name in (tensor.info.name for tensor in tensors):
                if (name in self.stored_tensors and name not in gone) or name in names:
                    raise self.refusal(f"{home!r} is to become {name!r}, which is there too")
                names.add(name)


class Derived(NamedTuple):
    """What a component becomes."""

    source: SourceComponent  # the component as it is
    # The tensors that are derived, by the stored tensor in whose place they come
    tensors: Mapping[str, Sequence[DerivedTensor]] = {}
    # Stored tensors without a place, each with what it is; "" for those that others are made of
    left_out: Mapping[str, str] = {}
    # Tensors that stay as they are under another name
    new_names: Mapping[str, str] = {}
    # Other tensors whose format follows that of weights, by their names as they will be
    followers: Mapping[str, str] = {}
    threads: int = 1  # how many threads may derive tensors
    consumed_paths: Sequence[str] = ()  # paths of files that hold for what it was
    # What states how its tensors are stored; None if that needs nothing new
    statements: Statements | None = None
    schemes: Collection[str] = ()  # those of its weights as they are to be stored
    # Returns the metadata of a shard without what states how it was
    metadata: Callable[[Reader], dict[str, str]] = attrgetter("metadata")
    # Returns its `config.json`, which follows the tensors, given what warnings call it; None if the
    # sections of `statements` take the place of others
    config: Callable[[ComponentStatement, str], Config] | None = None
    warnings: Sequence[str] = ()  # what is said of it

    @property
    def prefix(self) -> str:
        """The folder of the component in the checkpoint, with a slash at its end."""
        return self.source.prefix

    @property
    def quantization(self) -> Quantization | None:
        return self.source.quantization

    def new_config_file(self, label: str) -> Config:
        """Return the `config.json` that follows the tensors; `label` is what warnings call it."""
        if self.config is not None:
            return self.config(self.source.statement, label)
        return QuantizedConfig(self.source.statement, label, self.statements)

    def new_config(self, statements: Statements) -> dict[str, Any]:
        """Return the parsed `config.json` that states how the tensors are stored."""
        config = self.source.statement.config
        if statements.edit is not None:
            section: dict[str, Any] = json.loads(statements.edit(json.dumps(config)))
            return section
        plain = {key: value for key, value in config.items() if key not in SECTIONS}
        return {**plain, **statements.sections}

    def component(self, *, is_file: bool) -> Component:
        """Return the component with readers that derive its tensors."""
        # `is_file` says that it becomes one file, which states in its metadata how they are stored.
        file_metadata = (
            self.statements.metadata if is_file and self.statements is not None else None
        )
        shards: dict[str, Reader] = {}
        for path, reader in self.source.component.shards.items():
            shard_tensors = {
                name: self.tensors[name] for name in reader.tensors if name in self.tensors
            }
            shard_names = {
                name: self.new_names[name] for name in reader.tensors if name in self.new_names
            }
            metadata = {**self.metadata(reader), **(file_metadata or {})}
            stays = not (shard_tensors or shard_names) and self.left_out.keys().isdisjoint(
                reader.tensors
            )
            if stays and metadata == reader.metadata:
                shards[path] = reader
                continue
            plan = ShardPlan(
                derivation=self.source.derivation,
                stored_tensors=self.source.stored_tensors,
                new_tensors=shard_tensors,
                left_out=self.left_out,
                new_names=shard_names,
                metadata=metadata,
                threads=self.threads,
            )
            new_reader = derived_reader(reader, plan)
            if new_reader.tensors:
                shards[path] = new_reader
        becomes: dict[str, list[str]] = {name: [] for name in self.left_out}
        becomes |= {
            name: [tensor.info.name for tensor in tensors] for name, tensors in self.tensors.items()
        }
        becomes |= {name: [new_name] for name, new_name in self.new_names.items()}
        return with_tensors(self.source.component, shards, becomes)

    def warn(self) -> None:
        """Warn of what is left out, beside what other tensors are made of, and of the rest."""
        texts = []
        for description in filter(None, dict.fromkeys(self.left_out.values())):
            names = [name for name, kind in self.left_out.items() if kind == description]
            texts.append(
                f"left out, as an unquantized model has none: {description}, {len(names)}: "
                f"{join_names(names)}"
            )
        for text in (*texts, *self.warnings):
            _LOGGER.warning("%s: %s", self.source.path, text)


def pattern_of(option: str, text: str) -> PolicyMap:
    """Compile a regular expression that an option gives."""
    if not isinstance(text, str):
        raise TypeError(setting(option, text) + " is not a regular expression: it is no text")
    pattern = PolicyMap("fullmatch", "first", linear=True)
    try:
        pattern.insert(text, True)
    except ValueError as error:
        raise ValueError(word_key_error(setting(option, text), error)) from error
    return pattern
