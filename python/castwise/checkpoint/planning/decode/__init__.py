"""Decode quantized weights as they are read."""

from castwise.checkpoint._errors import CheckpointError
from castwise.checkpoint.containers.checkpoint import Checkpoint
from castwise.checkpoint.planning.decode.options import FORMATS, Decode


def decode_refusal(source: Checkpoint) -> str | None:
    """Say why a quantized checkpoint is not decoded; None if it is."""
    # Of what refuses a checkpoint alone.
    from castwise.checkpoint.planning.component import RefusalError  # noqa: PLC0415
    from castwise.checkpoint.planning.decode.decode import decode_checkpoint  # noqa: PLC0415

    try:
        plan = Decode(FORMATS[0], "peer", None, 1, may_be_plain=True)
        decode_checkpoint(source, plan, is_file=not source.is_folder)
    except RefusalError as error:
        return error.reason
    except CheckpointError as error:
        return str(error)
    return None
