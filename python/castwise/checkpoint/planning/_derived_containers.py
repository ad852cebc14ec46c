"""Readers of shards with derived tensors, one for each kind of container."""

import json
from collections.abc import Collection
from typing import Any

from castwise.checkpoint.containers.hdf5 import Hdf5Reader
from castwise.checkpoint.containers.interface import Reader
from castwise.checkpoint.containers.keras import KerasReader
from castwise.checkpoint.containers.safetensors import SafetensorsReader, StoredLayout
from castwise.checkpoint.containers.whole_models import WholeModelReader
from castwise.checkpoint.planning.derived_reader import DerivedReader, ShardPlan
from castwise.models.architecture import Architecture
from castwise.quantization.producers.keras_layers import plain_model


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
        """Return what the header states."""
        assert isinstance(self._reader, WholeModelReader)  # noqa: S101
        return self._reader.values()

    def architecture(self) -> Architecture | None:
        """Return the roles of the tensors."""
        assert isinstance(self._reader, WholeModelReader)  # noqa: S101
        return self._reader.architecture()


class DerivedHdf5(DerivedReader, Hdf5Reader):
    """A file that is HDF5: groups and attributes stay as they stand in it."""

    def __init__(self, reader: Hdf5Reader, plan: ShardPlan) -> None:
        super().__init__(reader, plan)
        self.tree = reader.tree
        self.left_out = frozenset(plan.left_out)


class DerivedKeras(DerivedHdf5, KerasReader):
    """A `.keras` file: all but its weights and its configuration stays."""

    def __init__(self, reader: KerasReader, plan: ShardPlan) -> None:
        super().__init__(reader, plan)
        self.archive, self.members = reader.archive, reader.members
        self.config_text = json.dumps(plain_model(reader.model()))


def derived_reader(reader: Reader, plan: ShardPlan) -> DerivedReader:
    """Make the reader that stands for a shard."""
    if isinstance(reader, KerasReader):
        return DerivedKeras(reader, plan)
    if isinstance(reader, WholeModelReader) and plan.derivation == "encode":
        return DerivedModel(reader, plan)
    if isinstance(reader, Hdf5Reader):
        return DerivedHdf5(reader, plan)
    reader_type = DerivedShard if isinstance(reader, SafetensorsReader) else DerivedReader
    return reader_type(reader, plan)
