"""`castwise quantize`: quantize the weights of a checkpoint."""

import argparse

from castwise.checkpoint import CastSummary
from castwise.checkpoint.planning.written_schemes import (
    are_inputs_plain,
    needed_inputs,
    written_names,
)
from castwise.checkpoint.requests.options import Quantize
from castwise.cli._conversion import ConversionCommand, warn_of_unused
from castwise.cli._output import say

_QUANTIZE = """\
Quantize the weights of a checkpoint, a file or a folder of shards, and write the result
as a producer's tools do, bit for bit: codes and scales under the producer's names, the
statements in config.json (and hf_quant_config.json), and the index. Linear layers and
stacked experts are quantized. Embeddings, norms, routers, heads and adapters are
quantized only if the --map names them (embeddings and heads also by
--quantize-embeddings yes). The bytes of all other tensors do not change. A file of
llama.cpp (.gguf), made from another or from a folder, gets blocks of its types, such as
q4_k.

DST appears, or with --overwrite is replaced, when it is complete. DST may be SRC
itself; a loss then leaves SRC unchanged. castwise processes weights in slabs of whole
blocks, and reads a weight twice if one scale is for the whole tensor. It makes no
scales of inputs, which need data; --inputs dynamic states that engines make them while
the model runs.
"""
_FINDINGS = """\
  1  DST was written, but more nonzero values of a tensor became zero than --max-zeros
     allows, or it has another loss that --fail-on names; standard error lists the losses
"""
_ERROR = """\
  2  an error, such as an infinite weight; DST is unchanged, unless the message reports
     that it was written
"""

_EXAMPLES = (
    "quantize model small --scheme nvfp4",
    "quantize model small --scheme fp8_block --ignore '.*down_proj'",
    "quantize model small --scheme fp8_channel --inputs dynamic --for vllm",
    "quantize model small --scheme mxfp8_e4m3 --map llama --dry-run --measure",
)

# Schemes whose names in capitals, which are taken too, are presets with quantized inputs.
_PRESETS = {
    "FP8_BLOCK": "--scheme fp8_block --inputs dynamic --recipe compressed-tensors",
    "MXFP4": "--scheme mxfp4 --inputs dynamic",
    "NVFP4": "--scheme nvfp4 --inputs SCALE, whose scales come from data there, and are a constant "
    "here",
}


def _check(options: argparse.Namespace) -> None:
    if options.scheme is None and options.dtype_map is None:
        options.refuse("give --scheme or --map")


def _warn(summary: CastSummary, options: argparse.Namespace) -> None:
    """Report keys without effect, and inputs that keep engines from multiplying codes."""
    warn_of_unused(summary, options)
    if options.inputs is not None or options.quiet:
        return
    recipe = summary.options["recipe"]
    schemes = written_names({row.target for row in summary.rows})
    preset = _PRESETS.get(options.scheme) if options.consumer != "llama.cpp" else None
    if preset is not None:
        name = options.scheme
        say(f"this is {name.lower()} of {recipe}; the preset {name} of llm-compressor is {preset}")
    needs = (needed_inputs(options.consumer, recipe, scheme) for scheme in schemes)
    # Blocks of another size than the scheme's have no statement of inputs.
    if options.block is None and are_inputs_plain(schemes, recipe) and not any(needs):
        say(
            f"inputs of {' and '.join(schemes)} stay as they are, so engines decode weights as "
            "they run; for engines that multiply codes: --inputs dynamic (--inputs none for this "
            "result)"
        )


define = ConversionCommand(
    request=Quantize,
    description=_QUANTIZE,
    findings=_FINDINGS,
    error=_ERROR,
    examples=_EXAMPLES,
    check=_check,
    warn=_warn,
).define
