"""What llama.cpp calls the tensors and the hyperparameters of models of transformers.

One row per architecture. The names are those of llama.cpp's converter and of gguf-py's constants;
what its graphs compute for all models of an architecture is what a configuration must state.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from castwise.checkpoint._errors import CheckpointError
from castwise.checkpoint.containers.gguf import ARCHITECTURE, COUNT, FLOAT, TEXT, typed

_NUMBER = re.compile(r"(?<=\.)[0-9]{1,9}(?=\.)")
_WEIGHT, _BIAS = ".weight", ".bias"
_ENDS = ((_WEIGHT, _WEIGHT), (_BIAS, _BIAS), ("_bias", _BIAS), ("", _WEIGHT))
"""The ends of the names of parameters, and what they become."""

_EXPERTS = ("num_experts", "num_local_experts")
"""The keys of which one states how many experts a layer has."""

_HEAD = "lm_head"
_LAYER = "model.layers.{}."
_BLOCK = "blk.{}."

FLOAT32 = r".*(?:_norm\.weight|attn_sinks\.weight|ffn_gate_inp\.weight|\.bias)"
"""Matches the names of tensors that llama.cpp wants in float32: vectors, routers and biases."""

EMBEDDING = "token_embd.weight"
"""What has a row for each token."""

_FILE_TYPE, _QUANTIZATION_VERSION = 38, 2
"""What llama.cpp calls a file of MXFP4, and the version of ggml's blocks."""


_QUERIES = "num_attention_heads * head_dim"
_KEYS_OF = "num_key_value_heads * head_dim"
_PAIRS = "2 * intermediate_size"
_EXPERT_COUNT = " or ".join(_EXPERTS)
"""Lengths of axes that no one key states, as messages name them."""

_SMALLEST, _LARGEST = (float(one) for one in (np.finfo("f4").tiny, np.finfo("f4").max))


class _Module(NamedTuple):
    """What a module becomes; of two tensors the first has the even rows, the other the odd ones.

    `axes` are the keys that state the shape of its weight; its bias lacks the last of them. It has
    the parameters `ends`, and no others.
    """

    becomes: Sequence[str]
    axes: Sequence[str]
    ends: Sequence[str] = (_WEIGHT,)


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
        What it calls the modules of transformers, "{}" in place of a layer and of an expert.
    tied
        True if the embedding can be the output, too.
    keys
        The hyperparameters.
    computes
        What the graph computes: the values of keys that a configuration may not contradict.
    attention
        The kinds of attention of its layers, from the first on and again.

    """

    name: str
    modules: Mapping[str, _Module]
    tied: bool
    keys: Sequence[_Key]
    computes: Mapping[str, Any]
    attention: Sequence[str]


class Place(NamedTuple):
    """Where a tensor goes: rows `first`, `first` + `step`, ... of an expert of a new tensor.

    `axes` are the keys that state its shape.
    """

    name: str
    expert: int | None
    first: int
    step: int
    axes: Sequence[str]


_HIDDEN, _INNER, _INNER_OF_EXPERT = "hidden_size", "intermediate_size", "moe_intermediate_size"
_NORM = (_HIDDEN,)


def _attention(*ends: str) -> dict[str, _Module]:
    """Return what all have around and in the attention, which has these parameters."""
    return {
        "model.embed_tokens": _Module(("token_embd",), ("vocab_size", _HIDDEN)),
        "model.norm": _Module(("output_norm",), _NORM),
        _HEAD: _Module(("output",), ("vocab_size", _HIDDEN)),
        _LAYER + "input_layernorm": _Module((_BLOCK + "attn_norm",), _NORM),
        **{
            _LAYER + f"self_attn.{one}_proj": _Module(
                (_BLOCK + f"attn_{one}",), (rows, _HIDDEN), ends
            )
            for one, rows in zip("qkv", (_QUERIES, _KEYS_OF, _KEYS_OF), strict=True)
        },
        _LAYER + "self_attn.o_proj": _Module((_BLOCK + "attn_output",), (_HIDDEN, _QUERIES), ends),
    }


def _gated(module: str, name: str, inner: str) -> dict[str, _Module]:
    """Return the three projections of a gated MLP."""
    return {
        _LAYER + module.format(half): _Module((_BLOCK + name.format(half),), axes)
        for half, axes in (
            ("gate", (inner, _HIDDEN)),
            ("up", (inner, _HIDDEN)),
            ("down", (_HIDDEN, inner)),
        )
    }


_OF_QWEN3 = {
    **_attention(_WEIGHT),
    **{
        _LAYER + f"self_attn.{one}_norm": _Module((_BLOCK + f"attn_{one}_norm",), ("head_dim",))
        for one in "qk"
    },
    _LAYER + "post_attention_layernorm": _Module((_BLOCK + "ffn_norm",), _NORM),
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
        _Key("rope.scaling.yarn_beta_fast", FLOAT, "beta_fast", required=False),
        _Key("rope.scaling.yarn_beta_slow", FLOAT, "beta_slow", required=False),
    ),
}
"""The keys of each kind of rotary embedding."""

_ROPE_TOO = ("rope_type", "type", "rope_theta", "truncate")
"""What else is stated of it; llama.cpp, and its converter, take no note of `truncate`.

Of an `attention_factor` versions of llama.cpp compute different things, none of them that of
transformers, so that a model with one is refused.
"""
ARCHITECTURES: Mapping[str, Architecture] = {
    "gpt_oss": Architecture(
        "gpt-oss",
        {
            **_attention(_WEIGHT, _BIAS),
            _LAYER + "self_attn.sinks": _Module((_BLOCK + "attn_sinks",), ("num_attention_heads",)),
            _LAYER + "post_attention_layernorm": _Module((_BLOCK + "post_attention_norm",), _NORM),
            _LAYER + "mlp.router": _Module(
                (_BLOCK + "ffn_gate_inp",), (_EXPERT_COUNT, _HIDDEN), (_WEIGHT, _BIAS)
            ),
            _LAYER + "mlp.experts.gate_up_proj": _Module(
                (_BLOCK + "ffn_gate_exps", _BLOCK + "ffn_up_exps"),
                (_EXPERT_COUNT, _PAIRS, _HIDDEN),
                (_WEIGHT, _BIAS),
            ),
            _LAYER + "mlp.experts.down_proj": _Module(
                (_BLOCK + "ffn_down_exps",), (_EXPERT_COUNT, _HIDDEN, _INNER), (_WEIGHT, _BIAS)
            ),
        },
        False,
        (
            *_KEYS,
            _Key("attention.sliding_window", COUNT, "sliding_window"),
            *_experts(_INNER),
        ),
        {"hidden_act": "silu", "swiglu_alpha": 1.702, "swiglu_limit": 7.0, "attention_bias": True},
        ("sliding_attention", "full_attention"),
    ),
    "qwen3": Architecture(
        "qwen3",
        {**_OF_QWEN3, **_gated("mlp.{}_proj", "ffn_{}", _INNER)},
        True,
        _KEYS,
        _COMPUTES_QWEN3,
        ("full_attention",),
    ),
    "qwen3_moe": Architecture(
        "qwen3moe",
        {
            **_OF_QWEN3,
            _LAYER + "mlp.gate": _Module((_BLOCK + "ffn_gate_inp",), (_EXPERT_COUNT, _HIDDEN)),
            **_gated("mlp.experts.{{}}.{}_proj", "ffn_{}_exps", _INNER_OF_EXPERT),
        },
        True,
        (*_KEYS, *_experts(_INNER_OF_EXPERT)),
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

_LEFT_OUT = {"norm_topk_prob": False}
"""What transformers takes for keys that are left out, where llama.cpp computes something else."""


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
    kinds = config.get("layer_types")
    if kinds is not None and (
        not isinstance(kinds, list)
        or len(kinds) != config.get("num_hidden_layers")
        or any(one != row.attention[at % len(row.attention)] for at, one in enumerate(kinds))
    ):
        raise CheckpointError(
            f"config.json states layer_types {kinds!r}, and llama.cpp computes {row.name} with "
            f"{', '.join(row.attention)} in turn, one for each layer (num_hidden_layers)"
        )
    for key, value in row.computes.items():
        stated = config.get(key, _LEFT_OUT.get(key, value))
        if stated != value:
            says = f"states {key} {stated!r}"
            if key not in config:
                says = f"leaves out {key}, which transformers takes as {stated!r}"
            raise CheckpointError(
                f"config.json {says}, and llama.cpp computes {row.name} with {value!r} alone"
            )
    return row


def hyperparameters(row: Architecture, config: Mapping[str, Any], name: str) -> dict[str, str]:
    """Return what a file states of a model of this name before its tokens.

    Raises
    ------
    CheckpointError
        The configuration lacks a hyperparameter, or llama.cpp knows nothing like it.

    """
    both = [
        config[key] for key in ("rope_parameters", "rope_scaling") if config.get(key) is not None
    ]
    rope = both[0] if both else {}
    is_one = isinstance(rope, dict)
    rope = {key: value for key, value in rope.items() if value is not None} if is_one else rope
    kind = str(rope.get("rope_type", rope.get("type", "default")) if is_one else None)
    known = {*_ROPE_TOO, *(key.stated for key in _ROPE.get(kind, ()))}
    if kind not in _ROPE or rope.keys() - known:
        raise CheckpointError(
            f"config.json states the rotary embedding {rope!r}, and castwise writes GGUF of "
            f"{', '.join(_ROPE)}; convert_hf_to_gguf.py of llama.cpp writes others"
        )
    values = {**config, **rope, "rope_type": kind}
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


def _value(values: Mapping[str, Any], key: _Key) -> Any:
    stated = _experts_key(values) if key.stated == _EXPERTS[0] else key.stated
    value: Any = values.get(stated)
    is_right, wanted = {
        TEXT: (isinstance(value, str), "a text"),
        COUNT: (type(value) is int and 0 < value < 1 << 32, "a whole number from 1, below 2^32"),
        FLOAT: (
            type(value) in (int, float) and _SMALLEST <= value <= _LARGEST,
            f"a number from {_SMALLEST:.3g} to {_LARGEST:.3g}",
        ),
    }[key.kind]
    if not is_right:
        raise CheckpointError(
            f"config.json states {stated} {value!r}, and GGUF needs {key.name} of it: {wanted}"
        )
    return value


def _experts_key(config: Mapping[str, Any]) -> str:
    """Return the key that states how many experts a layer has."""
    return next((key for key in _EXPERTS if config.get(key) is not None), _EXPERTS[0])


def experts_of(config: Mapping[str, Any]) -> Any:
    """Return how many experts a layer is said to have; None if nothing says it."""
    return config.get(_experts_key(config))


def shape_of(place: Place, config: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the shape that a configuration with all hyperparameters states of a tensor."""
    head = config["head_dim"]
    sizes = {
        **config,
        _EXPERT_COUNT: experts_of(config),
        _QUERIES: config["num_attention_heads"] * head,
        _KEYS_OF: config["num_key_value_heads"] * head,
        _PAIRS: 2 * config[_INNER],
    }
    return tuple(sizes.get(axis) for axis in place.axes)


def places(row: Architecture, name: str) -> list[Place]:
    """Return where a tensor of transformers goes; of two places each gets every second row.

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
        found = row.modules.get(_NUMBER.sub("{}", stem))
        if found is not None and new_end in found.ends:
            expert = numbers[1] if len(numbers) > 1 else None
            axes = found.axes if new_end == _WEIGHT else found.axes[:-1]
            return [
                Place(one.format(*numbers) + new_end, expert, first, len(found.becomes), axes)
                for first, one in enumerate(found.becomes)
            ]
    raise CheckpointError(
        f"tensor {name!r} has no place in a GGUF file of {row.name}; if the model does not need "
        "it, remove it"
    )


def check_complete(row: Architecture, names: set[str], config: Mapping[str, Any]) -> None:
    """Refuse a model that lacks a tensor, or has more layers than it states.

    Raises
    ------
    CheckpointError
        It does; the message has the name.

    """
    stated = config["num_hidden_layers"]
    layers = range(min(stated, len(names)))  # there are not more than tensors
    needed = {
        f"{one.format(layer)}{end}"
        for found in row.modules.values()
        for one in found.becomes
        for end in found.ends
        for layer in layers
    }
    if row.tied and config.get("tie_word_embeddings", True):
        needed -= {f"{row.modules[_HEAD].becomes[0]}{_WEIGHT}"} - names
    if needed - names:
        raise CheckpointError(
            f"it lacks what becomes {min(needed - names)!r} of {row.name}; add it, or mend "
            "num_hidden_layers"
        )
    if more := names - needed:
        raise CheckpointError(
            f"{min(more)!r} of {row.name} is one too many for {stated} layers (num_hidden_layers)"
        )
