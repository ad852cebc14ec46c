"""The plan for one component: what is derived from its tensors, and what stands for its shards."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from castwise._core import PolicyMap
from castwise._options import Arithmetic
from castwise._wording import about, given
from castwise.checkpoint._config import CONFIG, Config
from castwise.checkpoint._errors import CheckpointError, listed
from castwise.checkpoint._tensors import TensorInfo
from castwise.checkpoint.containers import Reader
from castwise.checkpoint.containers.checkpoint import Checkpoint, Component
from castwise.checkpoint.planning._checkpoint_model import model_of
from castwise.checkpoint.planning._derived_containers import derived_reader
from castwise.checkpoint.planning._derived_reader import (
    Derivation,
    DerivedTensor,
    ShardPlan,
    with_tensors,
)
from castwise.checkpoint.planning._stated_quantization import found_in, not_indexed, stated_of
from castwise.checkpoint.planning._stored_tensors import StoredTensors
from castwise.checkpoint.planning.encode._quantized_config import QuantizedConfig
from castwise.models import Architecture, Model
from castwise.quantization import Quantization, QuantizedWeight
from castwise.quantization.producers import (
    SECTIONS,
    Statement,
    Statements,
    Undecodable,
    statements,
    undecodable,
)
from castwise.quantization.weights import Decoding, decoding

_LOGGER = logging.getLogger(__name__)

UNKNOWN = "castwise does not know the method {!r} ({}); the library of that method reads it"


class ComponentPlan:
    """The plan for one component of a checkpoint.

    Attributes
    ----------
    derivation
        How its tensors are derived.
    purpose
        What refusals say that the component cannot be.
    statement_text
        What refusals call the configurations and metadata.
    prefix
        The folder of the component in the checkpoint, with a slash at its end.
    quantization
        What of it is quantised; None if nothing is.
    derived
        The tensors that are derived, by the stored tensor in whose place they come.
    left_out
        Stored tensors without a place, each with what it is; "" for those that others are made of.
    renamed
        Tensors that stay as they are under another name.
    followers
        Other tensors whose format follows that of weights, by their names as they will be.
    threads
        How many threads may derive tensors.
    consumed
        Paths of files that hold for what it was, and of shards without any tensor.
    statements
        What states how its tensors are stored; None if that needs nothing new.

    Raises
    ------
    CheckpointError
        What states how its tensors are stored cannot be read, or contradicts itself.

    """

    purpose: str
    statement_text: ClassVar[str]
    derivation: ClassVar[Derivation]

    def __init__(
        self, source: Checkpoint, component: Component, architecture: Architecture | None = None
    ) -> None:
        self._component = component
        self._architecture = architecture
        self.prefix = component.prefix
        self._path = source.path_of(component)
        self._tensors, self._configs, self._pairs, unreadable = stated_of(source, component)
        if unreadable:
            raise self._refusal(f"{self.statement_text} cannot be read: {unreadable[0]}")
        self.quantization = found_in(component, self._tensors, self._configs, self._pairs)
        if self.quantization is not None or self.derivation != "decode":
            self._check_index()
        self.derived: dict[str, list[DerivedTensor]] = {}
        self.left_out: dict[str, str] = {}
        self.renamed: dict[str, str] = {}
        self.followers: Mapping[str, str] = {}
        self.threads = 1
        self.consumed: list[str] = []
        self.statements: Statements | None = None

    @cached_property
    def _stored(self) -> StoredTensors:
        """The tensors of all shards; CheckpointError if two have the same name."""
        return StoredTensors(self._component.shards)

    @cached_property
    def model(self) -> Model:
        """What its tensors are."""
        return model_of(self._tensors, self._configs, self._architecture)

    def _is_matrix(self, info: TensorInfo) -> bool:
        """Return True for what may be the weight of a linear layer, or those of experts."""
        return info.kind == "float" and self.model.is_matrix(info.name)

    @cached_property
    def _stated(self) -> list[Statement]:
        """What is stated of the quantisation."""
        return statements(self._configs, self._pairs)

    def _refusal(self, reason: str) -> CheckpointError:
        return CheckpointError(f"{self._path} cannot be {self.purpose}: {reason}")

    def _check_index(self) -> None:
        """Refuse shards with tensors that the index leaves out."""
        if (reason := not_indexed(self._component)) is not None:
            raise self._refusal(reason)

    def _check_orphans(self, quantization: Quantization) -> None:
        """Refuse a payload without its scale, or a scale without its payload."""
        if quantization.orphans:
            orphan = max(quantization.orphans, key=lambda orphan_tensor: orphan_tensor.is_payload)
            raise self._refusal(f"{orphan} ({len(quantization.orphans):,} such tensors)")

    def _check_method(self, quantization: Quantization) -> None:
        """Refuse a method that castwise does not know."""
        if quantization.unknown is not None:
            stated = ", ".join(quantization.stated)
            raise self._refusal(UNKNOWN.format(quantization.unknown, stated))

    def _check_decodable(self, statement: Statement) -> None:
        """Refuse a statement of weights that castwise cannot decode."""
        if (reason := undecodable(statement)) is not None:
            raise self._refusal(f"{statement.origin}: {reason}")

    def _check_problem(self, weight: QuantizedWeight) -> None:
        """Refuse a weight that is not complete."""
        if weight.problem is not None:
            raise self._refusal(f"{weight.payload!r}: {weight.problem}")

    def _section(self, weight: QuantizedWeight) -> Mapping[str, Any]:
        """Return what is stated of a weight."""
        recipes = set(weight.recipes)
        return next((row.section for row in self._stated if recipes & set(row.recipes)), {})

    def _decoding(
        self, weight: QuantizedWeight, arithmetic: Arithmetic, axis: int | None = None
    ) -> Decoding:
        """Plan how a weight is read; refuse one that castwise cannot decode."""
        section, stored = self._section(weight), self._stored
        try:
            return decoding(weight, stored, stored.read, section, arithmetic, axis=axis)
        except Undecodable as error:
            raise self._refusal(f"{weight.payload!r}: {error}") from error

    @property
    def has_config(self) -> bool:
        """False for an adapter beside its model."""
        return self._component.has_config

    def tensors(self) -> list[DerivedTensor]:
        """List the tensors that are derived."""
        return [tensor for tensors in self.derived.values() for tensor in tensors]

    def new_schemes(self) -> set[str]:
        """Return the schemes of the weights as they are to be stored."""
        return set()

    def new_config(self, stated: Statements) -> dict[str, Any]:
        """Return the parsed `config.json` that states how the tensors are stored."""
        config = self._configs.get(CONFIG)
        config = config if isinstance(config, dict) else {}
        if stated.edit is not None:
            edited: dict[str, Any] = json.loads(stated.edit(json.dumps(config)))
            return edited
        plain = {key: value for key, value in config.items() if key not in SECTIONS}
        return {**plain, **stated.sections}

    def config(self, path: Path, label: str) -> Config:
        """Read a `config.json` that follows the tensors."""
        return QuantizedConfig(path, label, self.statements)

    def component(self, *, is_file: bool) -> Component:
        """Return the component with readers that derive its tensors.

        `is_file` says that it becomes one file, which states in its metadata how they are stored.

        Raises
        ------
        CheckpointError
            Two tensors would have the same name; or nothing can state how they are stored.

        """
        self._derive()
        self._check_names()
        self.statements = self.new_statements(is_file=is_file)
        stated = self.statements.metadata if is_file and self.statements is not None else None
        shards: dict[str, Reader] = {}
        for path, reader in self._component.shards.items():
            derived = {name: self.derived[name] for name in reader.tensors if name in self.derived}
            renamed = {name: self.renamed[name] for name in reader.tensors if name in self.renamed}
            metadata = {**self._metadata(reader), **(stated or {})}
            stays = not (derived or renamed) and self.left_out.keys().isdisjoint(reader.tensors)
            if stays and metadata == reader.metadata:
                shards[path] = reader
                continue
            plan = ShardPlan(
                derivation=self.derivation,
                stored=self._stored,
                derived=derived,
                left_out=self.left_out,
                renamed=renamed,
                metadata=metadata,
                threads=self.threads,
            )
            shards[path] = derived_reader(reader, plan)
            if not shards[path].tensors:
                del shards[path]
                self.consumed.append(path)
        becomes: dict[str, list[str]] = {name: [] for name in self.left_out}
        becomes |= {
            name: [tensor.info.name for tensor in self.derived[name]] for name in self.derived
        }
        becomes |= {name: [new_name] for name, new_name in self.renamed.items()}
        return with_tensors(self._component, shards, becomes)

    def _derive(self) -> None:
        """Plan the tensors that are derived, if they are not planned yet."""

    def new_statements(self, *, is_file: bool) -> Statements | None:
        """Return what is to state how the tensors are stored."""
        del is_file
        return None

    def _metadata(self, reader: Reader) -> dict[str, str]:
        """Return the metadata of a shard without what states how it was."""
        return reader.metadata

    def _check_names(self) -> None:
        """Refuse two tensors of the same name."""
        gone = {*self.derived, *self.left_out, *self.renamed}
        names: set[str] = set()
        for home, tensors in self.derived.items():
            for name in (tensor.info.name for tensor in tensors):
                if (name in self._stored and name not in gone) or name in names:
                    raise self._refusal(f"{home!r} is to become {name!r}, which is there too")
                names.add(name)

    def warn(self) -> None:
        """Warn of what is left out, beside what other tensors are made of."""
        for description in filter(None, dict.fromkeys(self.left_out.values())):
            names = [name for name, kind in self.left_out.items() if kind == description]
            _LOGGER.warning(
                "%s: left out, as an unquantised model has none: %s, %d: %s",
                self._path,
                description,
                len(names),
                listed(names),
            )


def pattern_of(option: str, text: str) -> PolicyMap:
    """Compile a regular expression that an option gives.

    Raises
    ------
    ValueError, TypeError
        It is not one, or no text.

    """
    if not isinstance(text, str):
        raise TypeError(f"{given(option, text)} is not a regular expression: it is no text")
    pattern = PolicyMap("fullmatch", "first", linear=True)
    try:
        pattern.insert(text, True)
    except ValueError as error:
        raise ValueError(about(given(option, text), error)) from error
    return pattern
