"""Make a checkpoint of the parts of any conversion."""

from __future__ import annotations

import os
from collections.abc import Iterable

from castwise._options import FindingKind
from castwise.checkpoint._errors import CheckpointError
from castwise.checkpoint.dequantizing import DequantizeRequest
from castwise.checkpoint.files import checked_path
from castwise.checkpoint.quantizing import QuantizeRequest
from castwise.checkpoint.report import LOSSES
from castwise.checkpoint.requests import CastRequest, Request
from castwise.checkpoint.running import RunParts
from castwise.checkpoint.summary import CastSummary
from castwise.checkpoint.transcoding import TranscodeRequest

_REQUESTS: dict[str, type[Request]] = {
    request.command: request
    for request in (CastRequest, DequantizeRequest, QuantizeRequest, TranscodeRequest)
}


def finish(
    destination: str | os.PathLike[str],
    *,
    overwrite: bool = False,
    fail_on: FindingKind | Iterable[FindingKind] = LOSSES,
    max_zeros: float | None = None,
) -> CastSummary:
    """Make a checkpoint of its parts, which runs with `part` have converted.

    These are runs of `cast_file`, `dequantize_file`, `quantize_file` or `transcode_file`. All bytes
    are read and compared with the checksums of the parts. It appears when it is complete, and the
    parts are gone then.

    Parameters
    ----------
    destination
        As in those runs.
    overwrite
        Replace `destination` if it is there by now, also where the parts did not ask for it.
    fail_on, max_zeros
        As in `cast_file`.

    Returns
    -------
    What they would return without parts.

    Raises
    ------
    CheckpointError
        A part is missing, or still being converted; a file of theirs is missing, or was changed,
        and the message names the parts to convert again; the source was changed since; or
        `destination` is there, and is to stay.
    OSError
        A file cannot be read or written, or the disk is full.

    Examples
    --------
    >>> from castwise import checkpoint
    >>> checkpoint.save("model.safetensors", {"fc.weight": np.eye(64, dtype=np.float32)})
    >>> for part in [(1, 2), (2, 2)]:  # each in a process of its own, on any machine
    ...     _ = checkpoint.cast_file("model.safetensors", "out.safetensors", "bfloat16", part=part)
    >>> checkpoint.finish("out.safetensors").rows[0].target
    'bfloat16'

    """
    path = checked_path(destination, "destination")
    parts = RunParts(path)
    arguments = dict(parts.arguments)
    arguments["overwrite"] = overwrite or arguments.get("overwrite", False)
    try:
        request = _REQUESTS[arguments.pop("command")](**arguments)
    except (KeyError, TypeError) as error:
        raise CheckpointError(
            f"the parts of {path} are of another version of castwise; finish them with that one, "
            "or convert all parts again"
        ) from error
    with request.planned(path) as run:
        planned = run.judged(fail_on, max_zeros)
        return planned.summary(parts.put_together(planned.run))
