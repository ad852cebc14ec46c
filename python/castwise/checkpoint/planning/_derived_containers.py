"""Readers of shards with derived tensors, one for each kind of container."""

from collections.abc import Collection
from typing import Any

from castwise.checkpoint.containers.interface import ChunkedReader, Reader
from castwise.checkpoint.containers.safetensors import SafetensorsReader, StoredLayout
from castwise.checkpoint.containers.whole_models import WholeModelReader
from castwise.checkpoint.planning.derived_reader import DerivedReader, ShardPlan
from castwise.models.architecture import Architecture


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


def derived_reader(reader: Reader, plan: ShardPlan) -> DerivedReader:
    """Make the reader that stands for a shard."""
    if isinstance(reader, WholeModelReader) and plan.derivation == "encode":
        return DerivedModel(reader, plan)
    if isinstance(reader, ChunkedReader):
        from castwise.checkpoint.planning import _derived_hdf5  # noqa: PLC0415  (5 milliseconds)

        return _derived_hdf5.derived_reader(reader, plan)
    reader_type = DerivedShard if isinstance(reader, SafetensorsReader) else DerivedReader
    return reader_type(reader, plan)
