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
    """Make a checkpoint from its parts, which runs with `part` have converted.

    The parts come from runs of `cast_file`, `dequantize_file`, `quantize_file` or `transcode_file`.
    castwise reads all bytes, and compares them with the checksums of the parts. The checkpoint
    appears when it is complete, and castwise removes the parts. With `overwrite` the checkpoint
    replaces an existing one, even if the parts were converted without `overwrite`.

    Returns
    -------
    The result of the same run without parts.

    Raises
    ------
    CheckpointError
        A part is missing, or not complete; a file of a part is missing or has changed, and the
        message names the parts to convert again; the source has changed since; or `destination`
        exists, and `overwrite` is False.
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
