"""The functions that convert checkpoints, made of the options in `requests/options.py`.

Type checkers read `conversions.pyi`, which `tests/helpers/conversion_stub.py` writes of the same.
"""

from castwise.checkpoint.requests.functions import conversion, finishing
from castwise.checkpoint.requests.options import Cast, Dequantize, Quantize, Transcode

cast_file = conversion(Cast)
quantize_file = conversion(Quantize)
dequantize_file = conversion(Dequantize)
transcode_file = conversion(Transcode)

finish = finishing(
    """Make a checkpoint of its parts, which runs with `part` have converted.

    These are runs of `cast_file`, `dequantize_file`, `quantize_file` or `transcode_file`. All bytes
    are read and compared with the checksums of the parts. It appears when it is complete, and the
    parts are gone then. With `overwrite` it replaces what is there by now, also where the parts did
    not ask for it.

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
)
