"""Readers of HDF5 and Keras files with derived tensors."""

import json

from castwise.checkpoint.containers.hdf5 import Hdf5Reader
from castwise.checkpoint.containers.interface import ChunkedReader
from castwise.checkpoint.containers.keras import KerasReader
from castwise.checkpoint.planning.derived_reader import DerivedReader, ShardPlan
from castwise.quantization.producers.keras_layers import plain_model


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


def derived_reader(reader: ChunkedReader, plan: ShardPlan) -> DerivedReader:
    if isinstance(reader, KerasReader):
        return DerivedKeras(reader, plan)
    if isinstance(reader, Hdf5Reader):
        return DerivedHdf5(reader, plan)
    return DerivedReader(reader, plan)
