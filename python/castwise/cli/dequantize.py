"""`castwise dequantize`: decode the quantized weights of a checkpoint."""

from __future__ import annotations

from castwise.checkpoint.requests.options import Dequantize
from castwise.cli._conversion import ConversionCommand

_DEQUANTIZE = """\
Decode the quantized weights of a checkpoint, a file or a folder of shards, and write
it as the unquantized model: its names and shapes, without scales, and without what
states the quantization (in config.json, hf_quant_config.json, quantize_config.json,
quant_config.json and metadata). All other tensors stay as they are, byte for byte.

DST appears, or with --overwrite is replaced, when it is complete; it may be SRC
itself, which a loss leaves as it was. Weights pass through memory in slabs of whole
blocks; their scales may be in other shards.

Read are FP8 of DeepSeek, AutoFP8, fbgemm and Mistral, compressed-tensors, ModelOpt,
gpt-oss, DeepSeek-V4, ComfyUI, AWQ, GPTQ, bitsandbytes, MLX, Quark, torchao, Keras and
GGUF, as far as the documentation says. Nothing is guessed: what is incomplete or
contradicts itself is refused. A GGUF file, also a plain one, becomes a folder that
transformers loads, if castwise knows its architecture, or a .safetensors file with the
names of llama.cpp.
"""
_FINDINGS = """\
  1  it was written, but values were lost as --fail-on says: they are infinite or NaN, or
     more nonzero codes of a weight became zero than --max-zeros allows; each goes to
     standard error
"""
_ERROR = """\
  2  an error, such as a weight without its scale; DST is as it was, unless the message
     says that it was written
"""

_EXAMPLES = (
    "dequantize small plain",
    "dequantize small plain --dtype float32 --arithmetic exact",
)


define = ConversionCommand(
    request=Dequantize,
    description=_DEQUANTIZE,
    findings=_FINDINGS,
    error=_ERROR,
    examples=_EXAMPLES,
).define
