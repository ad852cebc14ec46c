"""Who loads what castwise writes: consumers, and of each producer's checkpoints the schemes.

A row rests on a test that loads such a checkpoint, or on the consumer's own source that does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from castwise.quantization.producers.block_types import WRITTEN_TYPES
from castwise.text.brief import brief_fields
from castwise.text.spelling import suggestion

_TESTED = "tests/quantization/peers/test_loaded.py"
_TESTED_GGUF = "tests/quantization/peers/test_gguf_files.py"
_TESTED_LIVE = "tests/checkpoint/test_consumers.py"
_VLLM = "https://github.com/vllm-project/vllm/blob/v0.33.0/vllm/model_executor/layers/quantization/"
_SGLANG = (
    "https://github.com/sgl-project/sglang/blob/v0.5.23/python/sglang/srt/layers/quantization/"
)
_TENSORRT_LLM = "https://github.com/NVIDIA/TensorRT-LLM/blob/"
_CONFIGS_OF_TENSORRT_LLM = (
    f"{_TENSORRT_LLM}1a0dc5f70054f66d892df6a964996fc5ead6f81e/tensorrt_llm/_torch/model_config.py"
)

_BLOCK, _FLOAT8 = ("fp8_block",), ("fp8_tensor", "fp8_channel", "fp8_block")
_INTEGERS = ("int8_channel", "int4_channel", "int4_group", "int8_group")
_MX = ("mxfp4", "mxfp8_e4m3")
_DYNAMIC = ("fp8_channel", "fp8_block", "int8_channel")
_BLOCK_TYPES = tuple(name.lower() for name in WRITTEN_TYPES)


@dataclass(frozen=True, slots=True)
class Loading:
    """The checkpoints of one producer that a consumer loads.

    Attributes
    ----------
    recipe : str
        The producer, as `quantize_file` takes it.
    schemes : tuple of str
        The schemes of the weights of linear layers.
    experts : tuple of str
        Those of the weights of experts, each a tensor of its own.
    stacks : tuple of str
        Those of the weights of all experts of a layer in one tensor.
    alike : {"matrix", "layer", "model"}
        Which matrices of experts must have the same scheme: of a layer those that compute the same,
        all of a layer, or all of the model.
    keeps_experts : bool
        Whether experts may stay as they are where other weights are quantized.
    dynamic : tuple of str
        Those of linear layers that it loads where the configuration states that inputs are
        quantized while the model runs.
    only_dynamic : tuple of str
        Those of these that it loads nowhere else.
    float8 : tuple of str
        Those of linear layers that it loads where the configuration states that inputs become
        float8 while the model runs.
    constant : tuple of str
        Those of linear layers that it loads beside constant scales of inputs.
    plain : tuple of str
        What is in the names of modules that it never quantizes, whatever a configuration states.
    source : str
        The test that loads such checkpoints, or the address of the consumer's source that does.

    """

    recipe: str
    schemes: tuple[str, ...]
    experts: tuple[str, ...]
    source: str
    alike: Literal["matrix", "layer", "model"] = "matrix"
    keeps_experts: bool = True
    stacks: tuple[str, ...] = ()
    plain: tuple[str, ...] = ()
    dynamic: tuple[str, ...] = ()
    only_dynamic: tuple[str, ...] = ()
    float8: tuple[str, ...] = ()
    constant: tuple[str, ...] = ()

    __repr__ = brief_fields

    @property
    def all_schemes(self) -> tuple[str, ...]:
        """The schemes of any weights, each once."""
        return tuple(dict.fromkeys((*self.schemes, *self.experts, *self.stacks)))

    def with_inputs(self, inputs: str | float | None) -> tuple[str, ...]:
        """Return the schemes that it loads with such a statement of inputs, None for any."""
        if inputs is None:
            return self.all_schemes
        if inputs != "none":
            of_words = {"dynamic": self.dynamic, "float8": self.float8}
            return of_words.get(str(inputs), self.constant)
        return tuple(name for name in self.all_schemes if name not in self.only_dynamic)

    def holds(self, scheme: str, *, is_expert: bool, is_stack: bool = False) -> bool:
        """Return True if a weight may be stored so."""
        experts = self.stacks if is_stack else self.experts
        return scheme in (experts if is_expert else self.schemes)


@dataclass(frozen=True, slots=True)
class Consumer:
    """A program or a library that loads checkpoints.

    Attributes
    ----------
    name : str
        What castwise calls it.
    loads : tuple of Loading
        What it loads, by producer; the first is the one whose checkpoints `advise` plans.
    form : str or None
        The producer to whose layout `transcode_file` first converts what other producers store;
        None if the consumer loads that as it is.
    embeddings : bool
        Whether it loads quantized embeddings, and heads, of every scheme that it loads.

    """

    name: str
    loads: tuple[Loading, ...]
    form: str | None = None
    embeddings: bool = False

    __repr__ = brief_fields


_CONSUMERS = (
    Consumer(
        "transformers",
        (
            Loading(
                "compressed-tensors",
                (*_FLOAT8, "nvfp4", *_MX, "mxfp6_e2m3", *_INTEGERS),
                ("fp8_tensor", "fp8_channel", "mxfp4", "mxfp6_e2m3", *_INTEGERS),
                _TESTED,
                alike="model",
                keeps_experts=False,
                dynamic=(*_DYNAMIC, "int4_group", *_MX, "mxfp6_e2m3"),
                float8=("mxfp4",),
                constant=("nvfp4",),
            ),
            Loading("deepseek", _BLOCK, _BLOCK, _TESTED_LIVE, dynamic=_BLOCK),
            Loading("gpt-oss", (), (), _TESTED_LIVE, alike="model", stacks=("mxfp4",)),
        ),
    ),
    Consumer(
        "vllm",
        (
            Loading(
                "compressed-tensors",
                (*_FLOAT8, "nvfp4", *_MX, *_INTEGERS),
                ("nvfp4", *_MX, *_INTEGERS),
                f"{_VLLM}compressed_tensors/compressed_tensors.py",
                alike="layer",
                dynamic=(*_DYNAMIC, "int4_group", *_MX),
                # Else `CompressedTensorsW8A16Fp8` asserts that `is_static_input_scheme`, which is
                # None, is False.
                only_dynamic=_BLOCK,
                constant=("nvfp4",),
            ),
            Loading(
                "modelopt",
                ("fp8_channel", "fp8_block", "nvfp4", "mxfp8_e4m3"),
                ("mxfp8_e4m3",),
                f"{_VLLM}modelopt.py",
                alike="layer",
                plain=("vision_tower", "vision_model", "vit_large_projector"),
                dynamic=("fp8_channel", "mxfp8_e4m3"),
                constant=("fp8_tensor", "nvfp4"),
            ),
            Loading("deepseek", _BLOCK, _BLOCK, f"{_VLLM}fp8.py", alike="layer", dynamic=_BLOCK),
            Loading("gpt-oss", (), (), f"{_VLLM}mxfp4.py", alike="model", stacks=("mxfp4",)),
        ),
    ),
    Consumer(
        "sglang",
        (
            Loading(
                "compressed-tensors",
                (*_FLOAT8, "nvfp4", *_INTEGERS),
                ("nvfp4", *_INTEGERS),
                f"{_SGLANG}compressed_tensors/compressed_tensors.py",
                alike="layer",
                dynamic=_DYNAMIC,
                # `CompressedTensorsW8A16Fp8` has no weights in blocks.
                only_dynamic=_BLOCK,
                constant=("nvfp4",),
            ),
            Loading("modelopt", ("nvfp4",), (), f"{_SGLANG}modelopt_quant.py"),
            Loading("deepseek", _BLOCK, _BLOCK, f"{_SGLANG}fp8.py", alike="layer", dynamic=_BLOCK),
            Loading("gpt-oss", (), (), f"{_SGLANG}mxfp4.py", alike="model", stacks=("mxfp4",)),
        ),
    ),
    Consumer(
        "tensorrt-llm",
        (
            Loading(
                "modelopt",
                _FLOAT8,
                (),
                f"{_TENSORRT_LLM}ed53795b33fc139493f762a1c6c53f691cf52d38/tensorrt_llm/_torch/"
                "modules/linear.py",
                dynamic=("fp8_channel",),
                constant=("fp8_tensor",),
            ),
            Loading(
                "deepseek", _BLOCK, _BLOCK, _CONFIGS_OF_TENSORRT_LLM, alike="layer", dynamic=_BLOCK
            ),
            Loading("gpt-oss", (), (), _CONFIGS_OF_TENSORRT_LLM, alike="model", stacks=("mxfp4",)),
        ),
    ),
    Consumer(
        "llama.cpp",
        (
            Loading("gguf", _BLOCK_TYPES, _BLOCK_TYPES, _TESTED_GGUF, stacks=_BLOCK_TYPES),
            Loading("compressed-tensors", ("mxfp4",), ("mxfp4",), _TESTED_GGUF),
            Loading("gpt-oss", (), (), _TESTED_GGUF, alike="model", stacks=("mxfp4",)),
        ),
        "gguf",
        embeddings=True,
    ),
    Consumer(
        "mlx-lm",
        (
            Loading(
                "mlx",
                ("nvfp4", *_MX, *(f"int{bits}_group" for bits in (2, 3, 4, 5, 6, 8))),
                (),
                _TESTED,
            ),
        ),
        embeddings=True,
    ),
    Consumer(
        "comfyui",
        (
            Loading(
                "comfy",
                ("fp8_tensor", "nvfp4", "mxfp8_e4m3"),
                (),
                "https://github.com/Comfy-Org/ComfyUI/blob/"
                "0271a469fe29524fafe5872b737123d65a63e5fc/comfy/quant_ops.py",
            ),
        ),
    ),
)


def consumers() -> tuple[Consumer, ...]:
    """Return the programs that load quantized checkpoints which castwise writes.

    Returns
    -------
    tuple of Consumer
        All that `advise` knows.

    Examples
    --------
    >>> {consumer.name: consumer.loads[0].recipe for consumer in consumers()}["vllm"]
    'compressed-tensors'

    """
    return _CONSUMERS


def find_consumer(name: object) -> Consumer:
    rows = {consumer.name: consumer for consumer in _CONSUMERS}
    if not isinstance(name, str) or name not in rows:
        raise ValueError(f"{suggestion(name, rows)}use one of {', '.join(rows)}")
    return rows[name]
