"""Refuse to write a folder in the place of one that holds more than tensors."""

from __future__ import annotations

from castwise.checkpoint._errors import CheckpointError, join_names
from castwise.checkpoint.containers.checkpoint import Checkpoint


def refuse_losses(folder: Checkpoint) -> None:
    """CheckpointError if files to be replaced hold more than the tensors of the model."""
    for reader in folder.shards.values():
        if entries := reader.lost_entries():
            raise CheckpointError(
                f"{reader.path} also holds {join_names(entries)}, which would be lost; name "
                "another folder"
            )


def refuse_other_forms(folder: Checkpoint) -> None:
    """CheckpointError if weights stay as they are beside a configuration that is not theirs."""
    prefixes = {component.prefix for component in folder.components}
    for path in sorted(folder.other_forms):
        if path[: path.rfind("/") + 1] in prefixes:
            raise CheckpointError(
                f"{folder.path / path} holds the weights in another form, of which config.json "
                "would not be true any more; remove it, or name another folder"
            )
