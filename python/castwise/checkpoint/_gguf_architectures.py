"""What llama.cpp calls the tensors and the hyperparameters of models of transformers.

One row per architecture. The names are those of llama.cpp's converter and of gguf-py's constants;
what its graphs compute for all models of an architecture is what a configuration must state.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from castwise.checkpoint._errors import CheckpointError
from castwise.checkpoint.containers.gguf import ARCHITECTURE, COUNT, FLOAT, TEXT, typed

_NUMBER = re.compile(r"(?<=\.)[0-9]{1,9}(?=\.)")
_ENDS = ((".weight", ".weight"), (".bias", ".bias"), ("_bias", ".bias"), ("", ".weight"))
"""The ends of the names of parameters, and what they become."""

_EXPERTS = ("num_experts", "num_local_experts")
"""The keys of which one states how many experts a layer has."""

_HEAD = "lm_head"
_LAYER = "model.layers.{}."
_BLOCK = "blk.{}."
_IN_BLOCK = re.compile(r"blk\.[0-9]+\.(.*)")

FLOAT32 = r".*(?:_norm\.weight|attn_sinks\.weight|ffn_gate_inp\.weight|\.bias)"
"""Matches the names of tensors that llama.cpp wants in float32: vectors, routers and biases."""

EMBEDDING = "token_embd.weight"
"""What has a row for each token."""

_FILE_TYPE, _QUANTIZATION_VERSION = 38, 2
"""What llama.cpp calls a file of MXFP4, and the version of ggml's blocks."""


class _Key(NamedTuple):
    """A hyperparameter: its key after the architecture, its type, and what states it."""

    name: str
    kind: str
    stated: str
    required: bool = True


@dataclass(frozen=True, slots=True)
class Architecture:
    """What llama.cpp knows of an architecture.

    Attributes
    ----------
    name
        What it calls it.
    modules
        What it calls the modules of transformers, "{}" in place of a layer and of an expert. Of two
        names each has every second row.
    tied
        True if the embedding can be the output, too.
    keys
        The hyperparameters.
    computes
        What a configuration must state, if it states the key.
    attention
        The kinds of attention of its layers, from the first on and again.

    """

    name: str
    modules: Mapping[str, Sequence[str]]
    tied: bool
    keys: Sequence[_Key]
    computes: Mapping[str, Any]
    attention: Sequence[str]


class Place(NamedTuple):
    """Where a tensor goes: rows `first`, `first` + `step`, ... of an expert of a new tensor."""

    name: str
    expert: int | None
    first: int
    step: int


_ATTENTION = {
    _LAYER + "input_layernorm": (_BLOCK + "attn_norm",),
    **{_LAYER + f"self_attn.{one}_proj": (_BLOCK + f"attn_{one}",) for one in "qkv"},
    _LAYER + "self_attn.o_proj": (_BLOCK + "attn_output",),
}
_AROUND = {
    "model.embed_tokens": ("token_embd",),
    "model.norm": ("output_norm",),
    _HEAD: ("output",),
}
_OF_QWEN3 = {
    **_AROUND,
    **_ATTENTION,
    **{_LAYER + f"self_attn.{one}_norm": (_BLOCK + f"attn_{one}_norm",) for one in "qk"},
    _LAYER + "post_attention_layernorm": (_BLOCK + "ffn_norm",),
}
_COMPUTES_QWEN3 = {"hidden_act": "silu", "attention_bias": False, "use_sliding_window": False}
_KEYS = (
    _Key("block_count", COUNT, "num_hidden_layers"),
    _Key("context_length", COUNT, "max_position_embeddings"),
    _Key("embedding_length", COUNT, "hidden_size"),
    _Key("feed_forward_length", COUNT, "intermediate_size"),
    _Key("attention.head_count", COUNT, "num_attention_heads"),
    _Key("attention.head_count_kv", COUNT, "num_key_value_heads"),
    _Key("attention.key_length", COUNT, "head_dim"),
    _Key("attention.value_length", COUNT, "head_dim"),
    _Key("attention.layer_norm_rms_epsilon", FLOAT, "rms_norm_eps"),
    _Key("rope.freq_base", FLOAT, "rope_theta"),
)


def _experts(width: str) -> tuple[_Key, ...]:
    return (
        _Key("expert_count", COUNT, _EXPERTS[0]),
        _Key("expert_used_count", COUNT, "num_experts_per_tok"),
        _Key("expert_feed_forward_length", COUNT, width),
    )


_SCALED = (
    _Key("rope.scaling.type", TEXT, "rope_type"),
    _Key("rope.scaling.factor", FLOAT, "factor"),
)
_ROPE: Mapping[str, Sequence[_Key]] = {
    "default": (),
    "linear": _SCALED,
    "yarn": (
        *_SCALED,
        _Key("rope.scaling.original_context_length", COUNT, "original_max_position_embeddings"),
        _Key("rope.scaling.yarn_attn_factor", FLOAT, "attention_factor", required=False),
        _Key("rope.scaling.yarn_beta_fast", FLOAT, "beta_fast", required=False),
        _Key("rope.scaling.yarn_beta_slow", FLOAT, "beta_slow", required=False),
    ),
}
"""The keys of each kind of rotary embedding."""

_ROPE_TOO = ("rope_type", "type", "rope_theta", "truncate")
"""What else is stated of it; llama.cpp, and its converter, take no note of `truncate`."""
ARCHITECTURES: Mapping[str, Architecture] = {
    "gpt_oss": Architecture(
        "gpt-oss",
        {
            **_AROUND,
            **_ATTENTION,
            _LAYER + "self_attn.sinks": (_BLOCK + "attn_sinks",),
            _LAYER + "post_attention_layernorm": (_BLOCK + "post_attention_norm",),
            _LAYER + "mlp.router": (_BLOCK + "ffn_gate_inp",),
            _LAYER + "mlp.experts.gate_up_proj": (_BLOCK + "ffn_gate_exps", _BLOCK + "ffn_up_exps"),
            _LAYER + "mlp.experts.down_proj": (_BLOCK + "ffn_down_exps",),
        },
        False,
        (
            *_KEYS,
            _Key("attention.sliding_window", COUNT, "sliding_window"),
            *_experts("intermediate_size"),
        ),
        {"hidden_act": "silu", "swiglu_alpha": 1.702, "swiglu_limit": 7.0, "attention_bias": True},
        ("sliding_attention", "full_attention"),
    ),
    "qwen3": Architecture(
        "qwen3",
        {
            **_OF_QWEN3,
            **{
                _LAYER + f"mlp.{one}_proj": (_BLOCK + f"ffn_{one}",)
                for one in ("gate", "up", "down")
            },
        },
        True,
        _KEYS,
        _COMPUTES_QWEN3,
        ("full_attention",),
    ),
    "qwen3_moe": Architecture(
        "qwen3moe",
        {
            **_OF_QWEN3,
            _LAYER + "mlp.gate": (_BLOCK + "ffn_gate_inp",),
            **{
                _LAYER + f"mlp.experts.{{}}.{one}_proj": (_BLOCK + f"ffn_{one}_exps",)
                for one in ("gate", "up", "down")
            },
        },
        True,
        (*_KEYS, *_experts("moe_intermediate_size")),
        {
            **_COMPUTES_QWEN3,
            "norm_topk_prob": True,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
        },
        ("full_attention",),
    ),
}
"""By the `model_type` of a configuration."""


def architecture(config: Mapping[str, Any]) -> Architecture:
    """Return the row of a model, of which llama.cpp computes what its configuration states.

    Raises
    ------
    CheckpointError
        There is none, or it computes something else.

    """
    kind = config.get("model_type")
    row = ARCHITECTURES.get(kind) if isinstance(kind, str) else None
    if row is None:
        raise CheckpointError(
            f"config.json states the model_type {kind!r}, and castwise writes GGUF of "
            f"{', '.join(ARCHITECTURES)}; convert_hf_to_gguf.py of llama.cpp writes others"
        )
    layers = config.get("layer_types")
    stated = {
        **row.computes,
        **({} if layers is None else {"layer_types": _attention(row, layers)}),
    }
    for key, value in stated.items():
        if config.get(key, value) != value:
            raise CheckpointError(
                f"config.json states {key} {config[key]!r}, and llama.cpp computes {row.name} with "
                f"{value!r} alone"
            )
    return row


def _attention(row: Architecture, layers: Any) -> list[str]:
    count = len(layers) if isinstance(layers, list) else 0
    return [row.attention[number % len(row.attention)] for number in range(count)]


def hyperparameters(row: Architecture, config: Mapping[str, Any], name: str) -> dict[str, str]:
    """Return what a file states of a model of this name before its tokens.

    Raises
    ------
    CheckpointError
        The configuration lacks a hyperparameter, or llama.cpp knows nothing like it.

    """
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    is_one = isinstance(rope, dict)
    kind = str(rope.get("rope_type", rope.get("type", "default")) if is_one else None)
    known = {*_ROPE_TOO, *(key.stated for key in _ROPE.get(kind, ()))}
    if kind not in _ROPE or rope.keys() - known:
        raise CheckpointError(
            f"config.json states the rotary embedding {rope!r}, and castwise writes GGUF of "
            f"{', '.join(_ROPE)}; convert_hf_to_gguf.py of llama.cpp writes others"
        )
    values = {**config, **rope, "rope_type": kind, _EXPERTS[0]: experts_of(config)}
    return {
        ARCHITECTURE: typed(TEXT, row.name),
        "general.type": typed(TEXT, "model"),
        "general.name": typed(TEXT, name),
        "general.file_type": typed(COUNT, _FILE_TYPE),
        "general.quantization_version": typed(COUNT, _QUANTIZATION_VERSION),
        **{
            f"{row.name}.{key.name}": typed(key.kind, _value(values, key))
            for key in (*row.keys, *_ROPE[kind])
            if key.required or values.get(key.stated) is not None
        },
    }


def experts_of(config: Mapping[str, Any]) -> Any:
    """Return how many experts a layer is said to have; None if nothing says it."""
    return next((config[key] for key in _EXPERTS if key in config), None)


def _value(values: Mapping[str, Any], key: _Key) -> Any:
    value = values.get(key.stated)
    is_text, is_whole = isinstance(value, str), type(value) is int and 0 <= value < 1 << 32
    is_number = is_whole or (type(value) is float and math.isfinite(value))
    if not {TEXT: is_text, COUNT: is_whole, FLOAT: is_number}[key.kind]:
        raise CheckpointError(
            f"config.json states {key.stated} {value!r}, and GGUF needs {key.name} of it: "
            f"{'a text' if key.kind == TEXT else 'a number'}"
        )
    return value


def places(row: Architecture, name: str) -> list[Place]:
    """Return where a tensor of transformers goes; its parts have every second row if there are two.

    Raises
    ------
    CheckpointError
        llama.cpp has no tensor for it.

    """
    for end, new_end in _ENDS:
        stem = name.removesuffix(end)
        if stem == name and end:
            continue
        numbers = [int(one) for one in _NUMBER.findall(stem)]
        if (found := row.modules.get(_NUMBER.sub("{}", stem))) is not None:
            expert = numbers[1] if len(numbers) > 1 else None
            return [
                Place(one.format(*numbers) + new_end, expert, first, len(found))
                for first, one in enumerate(found)
            ]
    raise CheckpointError(f"tensor {name!r} has no place in a GGUF file of {row.name}")


def check_complete(row: Architecture, names: set[str], config: Mapping[str, Any]) -> None:
    """Refuse a model that lacks a tensor, or has one that only some layers have.

    Raises
    ------
    CheckpointError
        It does; the message has the name.

    """
    stated = config["num_hidden_layers"]
    layers = range(min(stated, len(names)))  # there are not more than tensors
    needed = {
        f"{one.format(layer)}.weight"
        for found in row.modules.values()
        for one in found
        for layer in layers
    }
    if row.tied and config.get("tie_word_embeddings", True):
        needed -= {f"{row.modules[_HEAD][0]}.weight"} - names
    ends = {found[1] for name in names if (found := _IN_BLOCK.fullmatch(name))}
    needed |= {f"{_BLOCK.format(layer)}{end}" for end in ends for layer in layers}
    if needed - names:
        raise CheckpointError(f"it lacks what becomes {min(needed - names)!r} of {row.name}")
    if more := names - needed:
        raise CheckpointError(
            f"{min(more)!r} of {row.name} is one too many for {stated} layers (num_hidden_layers)"
        )
