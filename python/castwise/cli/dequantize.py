"""`castwise dequantize`: decode the quantized weights of a checkpoint."""

from castwise.checkpoint.requests.options import Dequantize
from castwise.cli._conversion import ConversionCommand

_DEQUANTIZE = """\
Decode the quantized weights of a checkpoint, a file or a folder of shards, and write
the unquantized model: its names and shapes, without scales, and without the statements
of the quantization in config.json, hf_quant_config.json, quantize_config.json,
quant_config.json and metadata. The bytes of all other tensors do not change.

DST appears, or with --overwrite is replaced, when it is complete. DST may be SRC
itself; a loss then leaves SRC unchanged. castwise processes weights in slabs of whole
blocks; their scales may be in other shards.

castwise reads FP8 of DeepSeek, AutoFP8, fbgemm and Mistral, compressed-tensors,
ModelOpt, gpt-oss, DeepSeek-V4, ComfyUI, AWQ, GPTQ, bitsandbytes, MLX, Quark, torchao,
Keras and GGUF; the documentation lists the exceptions. It guesses nothing, and refuses
a checkpoint that is incomplete or contradicts itself. A GGUF file, also a plain one,
becomes a folder that transformers loads, if castwise knows its architecture, or a
.safetensors file with the names of llama.cpp.
"""
_FINDINGS = """\
  1  DST was written, but values were lost (--fail-on chooses the kinds): they are
     infinite or NaN, or more nonzero codes of a weight became zero than --max-zeros
     allows; standard error lists the losses
"""
_ERROR = """\
  2  an error, such as a weight without its scale; DST is unchanged, unless the message
     reports that it was written
"""

_EXAMPLES = ("dequantize small plain", "dequantize small plain --dtype float32 --arithmetic exact")


define = ConversionCommand(
    request=Dequantize,
    description=_DEQUANTIZE,
    findings=_FINDINGS,
    error=_ERROR,
    examples=_EXAMPLES,
).define
