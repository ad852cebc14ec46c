"""Make a checkpoint of the parts of any conversion."""

from __future__ import annotations

import os

from castwise.checkpoint._errors import CheckpointError
from castwise.checkpoint.dequantize import DequantizeRequest
from castwise.checkpoint.files._filesystem import checked_path
from castwise.checkpoint.quantize import QuantizeRequest
from castwise.checkpoint.report import CastSummary
from castwise.checkpoint.requests._cast_request import CastRequest
from castwise.checkpoint.requests._request import Request
from castwise.checkpoint.running._parts import Parts
from castwise.checkpoint.transcode import TranscodeRequest

_REQUESTS: dict[str, type[Request]] = {
    one.command: one for one in (CastRequest, DequantizeRequest, QuantizeRequest, TranscodeRequest)
}


def finish(destination: str | os.PathLike[str]) -> CastSummary:
    """Make a checkpoint of its parts, which runs with `part` have converted.

    These are runs of `cast_file`, `dequantize_file`, `quantize_file` or `transcode_file`. It
    appears when it is complete, and the parts are gone then.

    Parameters
    ----------
    destination
        As in those runs.

    Returns
    -------
    What they would return without parts.

    Raises
    ------
    CheckpointError
        A part is missing, still being converted, or of another conversion; or the source was
        changed since.
    OSError
        A file cannot be read or written, or the disk is full.

    """
    new = checked_path(destination, "destination")
    parts = Parts(new)
    arguments = dict(parts.arguments)
    try:
        request = _REQUESTS[arguments.pop("command")](**arguments)
    except (KeyError, TypeError) as error:
        raise CheckpointError(
            f"the parts of {new} are of another version of castwise; finish them with that one, or "
            "convert all parts again"
        ) from error
    with request.planned(new) as planned:
        return planned.summary(parts.put_together(planned.run, planned.options))
