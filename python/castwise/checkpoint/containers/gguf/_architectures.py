"""What the package gguf does not tell of an architecture: a row of data for each.

The names of tensors are in its map, the parameters of a class in `castwise.models`. Here is which
key of a configuration becomes which hyperparameter, the axes of a tensor in hyperparameters, which
rows change places, and what the graph computes for all models, which none may contradict. Sources
are llama.cpp's `convert_hf_to_gguf.py` and `src/models`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

COUNT, FLOAT, TEXT, BOOL, INTEGER = "I", "f", "s", "?", "i"
"""The types of values that are written."""

ARCHITECTURE = "general.architecture"
EMBEDDING, HEAD = "token_embd.weight", "output.weight"
"""What has a row for each token; the second may be the first."""

FLOAT32 = re.compile(r".*(?:_norm\.weight|attn_sinks\.weight|ffn_gate_inp\.weight|\.bias)")
"""Matches the names of tensors that llama.cpp wants in float32: vectors, routers and biases."""

EXPERTS = ("num_experts", "num_local_experts")
"""The keys of which one states how many experts a layer has."""


class Key(NamedTuple):
    """A hyperparameter: its key after the architecture, what states it, and its type."""

    name: str
    stated: str
    kind: str = COUNT
    required: bool = True  # others are written if they are stated
    written: bool = True  # others are only read


_FULL: Mapping[str, Sequence[Any]] = {"layer_types": ("full_attention",)}


@dataclass(frozen=True, slots=True)
class GgufArchitecture:
    """What llama.cpp knows of an architecture."""

    name: str  # what llama.cpp calls it
    model: str  # the class in transformers
    keys: Sequence[Key]
    computes: Mapping[str, Any]  # the values of keys that a configuration may not contradict
    layers: Mapping[str, Sequence[Any]] = field(default_factory=lambda: _FULL)
    """What lists state of each layer, from the first on and again, by their keys."""

    tied: bool = True  # the embedding can be the output, too
    biases: Sequence[str] = ()  # the tensors that have one
    follows: bool = False  # what is left out of heads follows from other sizes
    rotated: Sequence[str] = ()  # those that have the rows of the two halves of a head in turn
    axes: Mapping[str, str] = field(default_factory=dict)  # those that differ from AXES
    # What models state of YaRN that GGUF has no key for. If anything, transformers takes YaRN for a
    # rotary embedding that is left out.
    scaled: Mapping[str, Any] = field(default_factory=dict)
    factors: str | None = None  # the tensor of a rotary embedding of the kind "llama3"

    def lists_of(self, count: int) -> dict[str, list[Any]]:
        """Return what is stated of each of so many layers, by keys."""
        return {
            key: [pattern[layer % len(pattern)] for layer in range(count)]
            for key, pattern in self.layers.items()
        }


_HEADS = "attention.head_count * attention.key_length"
_KEY_HEADS = "attention.head_count_kv * attention.key_length"
_EXPERT = "expert_count, expert_feed_forward_length, embedding_length"
AXES: Mapping[str, str] = {
    "token_embd": "vocab_size, embedding_length",
    "output_norm": "embedding_length",
    "output": "vocab_size, embedding_length",
    "attn_norm": "embedding_length",
    "attn_q": f"{_HEADS}, embedding_length",
    "attn_k": f"{_KEY_HEADS}, embedding_length",
    "attn_v": f"{_KEY_HEADS}, embedding_length",
    "attn_output": f"embedding_length, {_HEADS}",
    "attn_sinks": "attention.head_count",
    "attn_q_norm": "attention.key_length",
    "attn_k_norm": "attention.key_length",
    "post_attention_norm": "embedding_length",
    "ffn_norm": "embedding_length",
    "ffn_gate_inp": "expert_count, embedding_length",
    "ffn_gate": "feed_forward_length, embedding_length",
    "ffn_up": "feed_forward_length, embedding_length",
    "ffn_down": "embedding_length, feed_forward_length",
    "post_ffw_norm": "embedding_length",
    "ffn_gate_exps": _EXPERT,
    "ffn_up_exps": _EXPERT,
    "ffn_down_exps": "expert_count, embedding_length, expert_feed_forward_length",
}
"""What states the shape of a tensor, and the order of tensors; a bias has all axes but the last."""

_KEYS = (
    Key("block_count", "num_hidden_layers"),
    Key("context_length", "max_position_embeddings"),
    Key("embedding_length", "hidden_size"),
    Key("feed_forward_length", "intermediate_size"),
    Key("attention.head_count", "num_attention_heads"),
    Key("attention.head_count_kv", "num_key_value_heads"),
    Key("attention.key_length", "head_dim"),
    Key("attention.value_length", "head_dim"),
    Key("attention.layer_norm_rms_epsilon", "rms_norm_eps", FLOAT),
    Key("rope.freq_base", "rope_theta", FLOAT),
)
READ = (
    Key("vocab_size", "vocab_size", required=False, written=False),
    Key("rope.dimension_count", "head_dim", required=False, written=False),
)
_KEYS_OF_LLAMA = (*_KEYS, *(key._replace(written=True) for key in READ))


def _experts(count: str, width: str) -> tuple[Key, ...]:
    return (
        Key("expert_count", count),
        Key("expert_used_count", "num_experts_per_tok"),
        Key("expert_feed_forward_length", width),
    )


_SCALED = (Key("rope.scaling.type", "rope_type", TEXT), Key("rope.scaling.factor", "factor", FLOAT))
CONTEXT = "original_max_position_embeddings"
"""What states the context of a rotary embedding before it was scaled, in it or beside it."""

UNSCALED, YARN = "default", "yarn"
ROPE: Mapping[str, Sequence[Key]] = {
    UNSCALED: (),
    "llama3": (),
    "linear": _SCALED,
    YARN: (
        *_SCALED,
        Key("rope.scaling.original_context_length", CONTEXT),
        Key("rope.scaling.yarn_beta_fast", "beta_fast", FLOAT, required=False),
        Key("rope.scaling.yarn_beta_slow", "beta_slow", FLOAT, required=False),
    ),
}
"""The keys of each kind of rotary embedding."""

ROPE_TOO = ("rope_type", "type", "rope_theta", "truncate")
"""What else is stated of it; llama.cpp computes as if `truncate` were true.

Of an `attention_factor` versions of llama.cpp compute different things, none of them that of
transformers, so that a model with one is refused.
"""
_PROJECTIONS = ("attn_q", "attn_k", "attn_v")
_OF_QWEN = {"hidden_act": "silu", "attention_bias": False, "use_sliding_window": False}
_OF_LLAMA = {"hidden_act": "silu", "attention_bias": False, "mlp_bias": False}
_LLAMA = GgufArchitecture(
    "llama",
    "LlamaForCausalLM",
    _KEYS_OF_LLAMA,
    _OF_LLAMA,
    follows=True,
    rotated=("attn_q", "attn_k"),
    factors="rope_freqs.weight",
)
ARCHITECTURES: Mapping[str, GgufArchitecture] = {
    "gpt_oss": GgufArchitecture(
        "gpt-oss",
        "GptOssForCausalLM",
        (
            *_KEYS,
            Key("attention.sliding_window", "sliding_window"),
            *_experts("num_local_experts", "intermediate_size"),
        ),
        {"hidden_act": "silu", "swiglu_alpha": 1.702, "swiglu_limit": 7.0, "attention_bias": True},
        {"layer_types": ("sliding_attention", "full_attention")},
        tied=False,
        biases=(*_PROJECTIONS, "attn_output", "ffn_gate_inp", *(n for n in AXES if "_exps" in n)),
        scaled={"truncate": False},
    ),
    "qwen3": GgufArchitecture("qwen3", "Qwen3ForCausalLM", _KEYS, _OF_QWEN),
    "qwen3_moe": GgufArchitecture(
        "qwen3moe",
        "Qwen3MoeForCausalLM",
        (*_KEYS, *_experts("num_experts", "moe_intermediate_size")),
        {**_OF_QWEN, "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": []},
    ),
    "llama": _LLAMA,
    "mistral": replace(
        _LLAMA,
        model="MistralForCausalLM",
        computes={"hidden_act": "silu", "sliding_window": None},
        factors=None,
    ),
    "qwen2": GgufArchitecture(
        "qwen2",
        "Qwen2ForCausalLM",
        _KEYS,
        {"hidden_act": "silu", "use_sliding_window": False},
        biases=_PROJECTIONS,
        follows=True,
    ),
    "arcee": replace(
        _LLAMA,
        name="arcee",
        model="ArceeForCausalLM",
        computes={**_OF_LLAMA, "hidden_act": "relu2"},
        factors=None,
    ),
    "granite": replace(
        _LLAMA,
        name="granite",
        model="GraniteForCausalLM",
        keys=(
            *_KEYS_OF_LLAMA,
            Key("attention.scale", "attention_multiplier", FLOAT),
            Key("embedding_scale", "embedding_multiplier", FLOAT),
            Key("residual_scale", "residual_multiplier", FLOAT),
            Key("logit_scale", "logits_scaling", FLOAT),
        ),
        factors=None,
    ),
    "seed_oss": GgufArchitecture(
        "seed_oss",
        "SeedOssForCausalLM",
        _KEYS,
        {"hidden_act": "silu", "attention_bias": True, "attention_out_bias": False}
        | {"mlp_bias": False},
        biases=_PROJECTIONS,
    ),
    "olmo2": GgufArchitecture(
        "olmo2",
        "Olmo2ForCausalLM",
        _KEYS,
        {"hidden_act": "silu", "attention_bias": False},
        follows=True,
        axes={"attn_q_norm": _HEADS, "attn_k_norm": _KEY_HEADS},
    ),
    "olmoe": GgufArchitecture(
        "olmoe",
        "OlmoeForCausalLM",
        (*_KEYS, *_experts("num_experts", "intermediate_size")),
        {"hidden_act": "silu", "attention_bias": False, "norm_topk_prob": False, "clip_qkv": None},
        follows=True,
        axes={"attn_q_norm": _HEADS, "attn_k_norm": _HEADS},  # it has as many keys as queries
    ),
    "smollm3": replace(
        _LLAMA,
        name="smollm3",
        model="SmolLM3ForCausalLM",
        computes={**_OF_LLAMA, "use_sliding_window": False, "no_rope_layer_interval": 4},
        layers={**_FULL, "no_rope_layers": (1, 1, 1, 0)},
        factors=None,
    ),
    "ernie4_5": GgufArchitecture(
        "ernie4_5",
        "Ernie4_5ForCausalLM",
        _KEYS,
        {"hidden_act": "silu", "use_bias": False},
        follows=True,
    ),
}
"""By the `model_type` of a configuration; of two of one name the first is what a file becomes."""

LEFT_OUT = {"norm_topk_prob": False, "sliding_window": 4096}
"""What transformers takes for keys that are left out, where llama.cpp computes something else."""


def stated_key(config: Mapping[str, Any], key: str) -> str:
    """Return the key that states something: one of two states how many experts a layer has."""
    keys = (key, *EXPERTS) if key in EXPERTS else ()
    return next((name for name in keys if config.get(name) is not None), key)


def experts_of(config: Mapping[str, Any]) -> Any:  # noqa: ANN401  (of JSON)
    """Return how many experts a layer has."""
    return config.get(stated_key(config, EXPERTS[0]))
