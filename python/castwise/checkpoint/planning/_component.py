"""The plan for one component: what is derived from its tensors, and what stands for its shards."""

from __future__ import annotations

from functools import cached_property
from typing import ClassVar

from castwise.checkpoint._errors import CheckpointError
from castwise.checkpoint.containers.checkpoint import Checkpoint, Component
from castwise.checkpoint.decoding._quantized import found_in, not_indexed, stated_of
from castwise.checkpoint.decoding._stored import StoredTensors
from castwise.quantization import Quantization
from castwise.quantization.producers._configs import Statement, statements, undecodable

UNKNOWN = "castwise does not know the method {!r} ({}); the library of that method reads it"


class ComponentPlan:
    """The plan for one component of a checkpoint.

    Attributes
    ----------
    purpose
        What refusals say that the component cannot be.
    statement_text
        What refusals call the configurations and metadata.
    prefix
        The folder of the component in the checkpoint, with a slash at its end.
    quantization
        What of it is quantised; None if nothing is.

    Raises
    ------
    CheckpointError
        What states how its tensors are stored cannot be read, or contradicts itself.

    """

    purpose: str
    statement_text: ClassVar[str]

    def __init__(self, source: Checkpoint, component: Component) -> None:
        self._component = component
        self.prefix = component.prefix
        self._path = source.path_of(component)
        self._tensors, self._configs, self._pairs, unreadable = stated_of(source, component)
        if unreadable:
            raise self._refusal(f"{self.statement_text} cannot be read: {unreadable[0]}")
        self.quantization = found_in(component, self._tensors, self._configs, self._pairs)

    @cached_property
    def _stored(self) -> StoredTensors:
        """The tensors of all shards; CheckpointError if two have the same name."""
        return StoredTensors(self._component.shards)

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

    def _check_method(self, quantization: Quantization) -> None:
        """Refuse a method that castwise does not know."""
        if quantization.unknown is not None:
            stated = ", ".join(quantization.stated)
            raise self._refusal(UNKNOWN.format(quantization.unknown, stated))

    def _check_decodable(self, statement: Statement) -> None:
        """Refuse a statement of weights that castwise cannot decode."""
        if (reason := undecodable(statement)) is not None:
            raise self._refusal(f"{statement.origin}: {reason}")
