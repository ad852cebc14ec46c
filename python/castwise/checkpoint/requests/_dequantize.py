"""Check how weights are to be decoded."""

from __future__ import annotations

from functools import partial
from typing import Any

from castwise.checkpoint.planning.decode.decode import decode_checkpoint
from castwise.checkpoint.planning.decode.options import decoding_of
from castwise.checkpoint.planning.derived_checkpoint import DerivedCheckpoint
from castwise.checkpoint.requests.options import Dequantize


def dequantizing(
    request: Dequantize, threads: int | None
) -> tuple[dict[str, Any], partial[DerivedCheckpoint]]:
    """Return what decides the result, and what plans it."""
    decode = decoding_of(request.dtype, request.arithmetic, request.only, threads)
    report = {"dtype": decode.format, "arithmetic": decode.arithmetic, "only": decode.only}
    return report, partial(decode_checkpoint, decode=decode)
