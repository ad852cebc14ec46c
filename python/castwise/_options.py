"""The words that options take, for type checkers: each set is also a table or a check at run time.

`tests/test_types.py` compares the two.
"""

import os
from collections.abc import Mapping
from typing import Any, Literal, TypeAlias, TypedDict

from numpy.typing import ArrayLike

# The suffix of the files that checkpoints are written as by default.
SAFETENSORS = ".safetensors"

Rounding: TypeAlias = Literal[
    "nearest-even",
    "nearest-away",
    "towards-zero",
    "towards-positive",
    "towards-negative",
    "stochastic",
]
Overflow: TypeAlias = Literal["ieee", "saturate", "raise"]
Nan: TypeAlias = Literal["keep", "raise", "zero"]
Order: TypeAlias = Literal["K", "C", "F", "A"]
Level: TypeAlias = Literal["portable", "neon", "avx2", "avx512"]

Like: TypeAlias = Literal[
    "numpy",
    "ml_dtypes<0.7",
    "torch",
    "torch<2.12",
    "jax",
    "tensorflow",
    "onnx",
    "numkong",
    "onnxruntime",
]
"""The libraries of `castwise.arrays.library_casts`, and what else they are called."""

Match: TypeAlias = Literal["fullmatch", "search"]
OnOverlap: TypeAlias = Literal["raise", "first", "longest"]
Role: TypeAlias = Literal["variable", "compute"]

LossScalePreset: TypeAlias = Literal[
    "castwise", "keras", "tf_keras", "tf", "torch", "jmp", "mpx", "megatron", "apex"
]
DelayedScalingPreset: TypeAlias = Literal["castwise", "keras", "transformer_engine"]
AmaxAlgorithm: TypeAlias = Literal["max", "most_recent"]


SchemeName: TypeAlias = Literal[
    "fp8_tensor",
    "fp8_channel",
    "fp8_block",
    "mxfp8_e4m3",
    "mxfp8_e5m2",
    "mxfp6_e2m3",
    "mxfp6_e3m2",
    "mxfp4",
    "mxint8",
    "nvfp4",
    "int8_tensor",
    "int8_channel",
    "int8_group",
    "int2_channel",
    "int2_group",
    "int3_channel",
    "int3_group",
    "int4_channel",
    "int4_group",
    "int5_channel",
    "int5_group",
    "int6_channel",
    "int6_group",
    "bnb_nf4",
    "bnb_fp4",
]
"""The schemes of `castwise.quantization.schemes()`."""

BlockTypeName: TypeAlias = Literal[
    "q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k"
]
"""The types of blocks of llama.cpp that castwise writes."""

MixName: TypeAlias = Literal[
    "q2_k_s", "q3_k_s", "q3_k_m", "q3_k_l", "q4_k_s", "q4_k_m", "q5_k_s", "q5_k_m"
]
"""The mixes of llama.cpp."""

StoredScheme: TypeAlias = (
    SchemeName | BlockTypeName | Literal["int1_channel", "int1_group", "int7_channel", "int7_group"]
)
"""Those of quantized arrays: some are only read."""

WrittenScheme: TypeAlias = Literal[
    "fp8_tensor",
    "fp8_channel",
    "fp8_block",
    "mxfp8_e4m3",
    "mxfp6_e2m3",
    "mxfp4",
    "nvfp4",
    "int8_channel",
    "int8_group",
    "int2_group",
    "int3_group",
    "int4_channel",
    "int4_group",
    "int5_group",
    "int6_group",
    "q4_0",
    "q4_1",
    "q5_0",
    "q5_1",
    "q8_0",
    "q2_k",
    "q3_k",
    "q4_k",
    "q5_k",
    "q6_k",
]
"""Those of checkpoints that are written."""

TranscodedScheme: TypeAlias = Literal["nvfp4", "fp8_block"]
"""Those that others can become with the same values."""

Recipe: TypeAlias = Literal[
    "bitsandbytes",
    "comfy",
    "compressed-tensors",
    "deepseek",
    "gguf",
    "gpt-oss",
    "keras",
    "mlx",
    "modelopt",
    "torchao",
    "transformer-engine",
    "transformers",
]
"""The producers whose arithmetic `quantize` knows."""

StoredRecipe: TypeAlias = (
    Recipe
    | Literal["autofp8", "awq", "deepseek-v4", "fbgemm", "gptq", "mistral", "quark"]
    | Literal["aqlm", "exl2", "exl3", "hqq", "nunchaku", "quanto", "quip"]
)
"""Those whose layouts are known."""

WrittenRecipe: TypeAlias = Literal[
    "deepseek", "transformers", "compressed-tensors", "modelopt", "gpt-oss", "comfy", "mlx", "gguf"
]
"""Those as which `quantize_file` writes checkpoints."""

ConsumerName: TypeAlias = Literal[
    "transformers", "vllm", "sglang", "tensorrt-llm", "llama.cpp", "mlx-lm", "comfyui"
]
"""Those that load what `quantize_file` writes: `castwise.quantization.consumers()`."""

TranscodedRecipe: TypeAlias = Literal[
    "compressed-tensors", "modelopt", "comfy", "gpt-oss", "gguf", "deepseek-v4"
]
"""Those in whose layouts `transcode_file` writes them."""

ScaleRule: TypeAlias = Literal["floor", "rceil", "ceil", "even", "ct"]
Nonfinite: TypeAlias = Literal["raise", "nan"]
Inputs: TypeAlias = Literal["none", "dynamic", "float8"]
"""What checkpoints that are written state of the inputs of quantized layers."""

Scales: TypeAlias = Literal["amax", "best", "four_over_six"]
Arithmetic: TypeAlias = Literal["peer", "exact"]
Packing: TypeAlias = Literal["dense", "high-first", "padded", "awq", "halves-16", "halves-32"]
"""How codes stand in containers."""

Variant: TypeAlias = Packing | Literal["gptq", "gptq_v2"]
"""The variants of producers' layouts."""

FindingKind: TypeAlias = Literal[
    "overflow", "nan", "wrapped", "nan-lost", "underflow", "scale", "saturated", "inexact"
]

PathArgument: TypeAlias = str | os.PathLike[str]
Block: TypeAlias = int | tuple[int, int]
MapArgument: TypeAlias = Mapping[str, Any] | PathArgument


class TreeOptions(TypedDict, total=False):
    """The options of `cast` that are for every array of a tree."""

    rounding: Rounding | None
    overflow: Overflow
    nan: Nan
    scale: ArrayLike | None
    seed: int | None
    order: Order
    threads: int | None
    like: Like | None


class ArrayOptions(TreeOptions, total=False):
    """The options of `cast` that leave the type of its result as it is."""

    copy: bool
