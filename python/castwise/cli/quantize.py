"""`castwise quantize`: quantize the weights of a checkpoint."""

from __future__ import annotations

import argparse

from castwise.checkpoint.requests.options import Quantize
from castwise.cli._conversion import ConversionCommand

_QUANTIZE = """\
Quantize the weights of a checkpoint, a file or a folder of shards, and write it as a
producer's tools do, bit for bit: codes and scales under its names, what states them in
config.json (and hf_quant_config.json), the index. Linear layers and stacked experts
are quantized; embeddings, norms, routers, heads and adapters stay unless the --map
names them (or --quantize-embeddings says yes), and all other tensors stay as they are,
byte for byte. A file of llama.cpp (.gguf), made of another or of a folder, gets blocks
of its types, such as q4_k.

DST appears, or with --overwrite is replaced, when it is complete; it may be SRC
itself, which a loss leaves as it was. Weights pass through memory in slabs of whole
blocks; for a scale of the whole tensor they are read twice. Scales of inputs, which
need data, are not made; --inputs dynamic states that engines make them as they run.
"""
_FINDINGS = """\
  1  it was written, but of a tensor more nonzero values became zero than --max-zeros
     allows, or what else --fail-on names; each goes to standard error
"""
_ERROR = """\
  2  an error, such as a weight that is infinite; DST is as it was, unless the message
     says that it was written
"""

_EXAMPLES = (
    "quantize model small --scheme nvfp4",
    "quantize model small --scheme fp8_block --ignore '.*down_proj'",
    "quantize model small --scheme fp8_channel --inputs dynamic --for vllm",
    "quantize model small --scheme mxfp8_e4m3 --map llama --dry-run --measure",
)


def _check(options: argparse.Namespace) -> None:
    """Refuse nothing to quantize to."""
    if options.scheme is None and options.dtype_map is None:
        options.refuse("give --scheme or --map")


define = ConversionCommand(
    request=Quantize,
    description=_QUANTIZE,
    findings=_FINDINGS,
    error=_ERROR,
    examples=_EXAMPLES,
    check=_check,
).define
