"""What llama.cpp calls the tensors and the hyperparameters of models of transformers, both ways.

One row per architecture. The names are those of llama.cpp's converter and of gguf-py's constants;
what its graphs compute for all models of an architecture is what a configuration must state.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from castwise.checkpoint._errors import CheckpointError
from castwise.checkpoint.containers import COUNT, FLOAT, TEXT

EXPERTS = ("num_experts", "num_local_experts")
"""The keys of which one states how many experts a layer has."""

FLOAT32 = re.compile(r".*(?:_norm\.weight|attn_sinks\.weight|ffn_gate_inp\.weight|\.bias)")
"""Matches the names of tensors that llama.cpp wants in float32: vectors, routers and biases."""

EMBEDDING, HEAD = "token_embd.weight", "output.weight"
"""What has a row for each token; the second may be the first."""


class Rows(NamedTuple):
    """Which rows of a tensor of transformers a tensor of llama.cpp has.

    Of each `period` rows that is the one at `at`; if None, all of them, those of the two halves in
    turn.
    """

    period: int = 1
    at: int | None = 0

    @property
    def picks(self) -> NDArray[Any]:
        """The rows of a period, in the order in which llama.cpp has them."""
        every = np.arange(self.period)
        return every.reshape(2, -1).T.reshape(-1) if self.at is None else every[[self.at]]

    def count(self, rows: int) -> int:
        """Return how many of so many rows they are."""
        return rows if self.at is None else rows // self.period

    def of(self, count: int) -> slice | NDArray[np.intp]:
        """Return what indexes them among so many rows."""
        if self.at is not None:
            return slice(self.at, None, self.period)
        return np.arange(count).reshape(-1, self.period)[:, self.picks].reshape(-1)


class Place(NamedTuple):
    """A tensor of llama.cpp, or one expert of it, and the rows that it has."""

    name: str
    expert: int | None
    rows: Rows


class MappedTensor(NamedTuple):
    """A tensor of transformers: its name and shape, what states that, and where its rows are.

    `axis` is that of its rows.
    """

    name: str
    shape: tuple[Any, ...]
    axes: Sequence[str]
    axis: int
    places: Sequence[Place]


class _GgufParameter(NamedTuple):
    """A row of the tables: what a tensor is called in transformers and in llama.cpp.

    Of two tensors that it becomes the first has the even rows, the other the odd ones. `axes` state
    its shape.
    """

    name: str
    becomes: Sequence[str]
    axes: Sequence[str]


class Key(NamedTuple):
    """A hyperparameter: its key after the architecture, its type, and what states it.

    One that is not `required` is written if it is stated; one that is not `written` is only read.
    """

    name: str
    kind: str
    stated: str
    required: bool = True
    written: bool = True


@dataclass(frozen=True, slots=True)
class GgufArchitecture:
    """What llama.cpp knows of an architecture.

    Attributes
    ----------
    name
        What it calls it.
    model
        What transformers calls the class of the model.
    parameters
        Its tensors.
    keys
        The hyperparameters.
    computes
        What the graph computes: the values of keys that a configuration may not contradict.
    attention
        The kinds of attention of its layers, from the first on and again.
    tied
        True if the embedding can be the output, too.
    rotated
        True if llama.cpp has the rows of queries and keys of the two halves of each head, which
        rotate together, in turn; and if what is left out of heads follows from other sizes.
    scaled
        What models state of YaRN that GGUF has no key for. If anything, transformers takes YaRN for
        a rotary embedding that is left out.
    factors
        The tensor of factors of a rotary embedding of the kind "llama3", if it can have that.

    """

    name: str
    model: str
    parameters: Sequence[_GgufParameter]
    keys: Sequence[Key]
    computes: Mapping[str, Any]
    attention: Sequence[str] = ("full_attention",)
    tied: bool = True
    rotated: bool = False
    scaled: Mapping[str, Any] = field(default_factory=dict)
    factors: str | None = None

    def attention_of(self, layers: int) -> list[str]:
        """List the kinds of attention of so many layers."""
        return [self.attention[layer % len(self.attention)] for layer in range(layers)]


def _table(*texts: str) -> list[_GgufParameter]:
    """Read rows of names and axes, the names of a layer after a dot; # is the number of an expert.

    Columns are two spaces apart.
    """
    rows = (line.split("  ") for text in texts for line in text.strip().splitlines())
    return [
        _GgufParameter(
            _in_layer(name, "model.layers.{layer}").replace("#", "{expert}"),
            [_in_layer(part, "blk.{layer}") for part in becomes.split()],
            axes.split(", "),
        )
        for name, becomes, axes in rows
    ]


def _in_layer(name: str, layer: str) -> str:
    return layer * name.startswith(".") + name


_ALL = """
model.embed_tokens.weight  token_embd.weight  vocab_size, hidden_size
model.norm.weight  output_norm.weight  hidden_size
lm_head.weight  output.weight  vocab_size, hidden_size
.input_layernorm.weight  .attn_norm.weight  hidden_size
.self_attn.q_proj.weight  .attn_q.weight  num_attention_heads * head_dim, hidden_size
.self_attn.k_proj.weight  .attn_k.weight  num_key_value_heads * head_dim, hidden_size
.self_attn.v_proj.weight  .attn_v.weight  num_key_value_heads * head_dim, hidden_size
.self_attn.o_proj.weight  .attn_output.weight  hidden_size, num_attention_heads * head_dim
"""
_ROTATED = (".attn_q.weight", ".attn_k.weight")
_OF_GPT_OSS = """
.self_attn.q_proj.bias  .attn_q.bias  num_attention_heads * head_dim
.self_attn.k_proj.bias  .attn_k.bias  num_key_value_heads * head_dim
.self_attn.v_proj.bias  .attn_v.bias  num_key_value_heads * head_dim
.self_attn.o_proj.bias  .attn_output.bias  hidden_size
.self_attn.sinks  .attn_sinks.weight  num_attention_heads
.post_attention_layernorm.weight  .post_attention_norm.weight  hidden_size
.mlp.router.weight  .ffn_gate_inp.weight  num_local_experts, hidden_size
.mlp.router.bias  .ffn_gate_inp.bias  num_local_experts
.mlp.experts.gate_up_proj  .ffn_gate_exps.weight .ffn_up_exps.weight  \
num_local_experts, 2 * intermediate_size, hidden_size
.mlp.experts.gate_up_proj_bias  .ffn_gate_exps.bias .ffn_up_exps.bias  \
num_local_experts, 2 * intermediate_size
.mlp.experts.down_proj  .ffn_down_exps.weight  num_local_experts, hidden_size, intermediate_size
.mlp.experts.down_proj_bias  .ffn_down_exps.bias  num_local_experts, hidden_size
"""
_NORM = """
.post_attention_layernorm.weight  .ffn_norm.weight  hidden_size
"""
_GATED = """
.mlp.gate_proj.weight  .ffn_gate.weight  intermediate_size, hidden_size
.mlp.up_proj.weight  .ffn_up.weight  intermediate_size, hidden_size
.mlp.down_proj.weight  .ffn_down.weight  hidden_size, intermediate_size
"""
_OF_QWEN3 = """
.self_attn.q_norm.weight  .attn_q_norm.weight  head_dim
.self_attn.k_norm.weight  .attn_k_norm.weight  head_dim
"""
_MIXED = """
.mlp.gate.weight  .ffn_gate_inp.weight  num_experts, hidden_size
.mlp.experts.#.gate_proj.weight  .ffn_gate_exps.weight  moe_intermediate_size, hidden_size
.mlp.experts.#.up_proj.weight  .ffn_up_exps.weight  moe_intermediate_size, hidden_size
.mlp.experts.#.down_proj.weight  .ffn_down_exps.weight  hidden_size, moe_intermediate_size
"""
_KEYS = (
    Key("block_count", COUNT, "num_hidden_layers"),
    Key("context_length", COUNT, "max_position_embeddings"),
    Key("embedding_length", COUNT, "hidden_size"),
    Key("feed_forward_length", COUNT, "intermediate_size"),
    Key("attention.head_count", COUNT, "num_attention_heads"),
    Key("attention.head_count_kv", COUNT, "num_key_value_heads"),
    Key("attention.key_length", COUNT, "head_dim"),
    Key("attention.value_length", COUNT, "head_dim"),
    Key("attention.layer_norm_rms_epsilon", FLOAT, "rms_norm_eps"),
    Key("rope.freq_base", FLOAT, "rope_theta"),
)
READ = (
    Key("vocab_size", COUNT, "vocab_size", required=False, written=False),
    Key("rope.dimension_count", COUNT, "head_dim", required=False, written=False),
)
_KEYS_OF_LLAMA = (*_KEYS, *(key._replace(written=True) for key in READ))


def _experts(count: str, width: str) -> tuple[Key, ...]:
    return (
        Key("expert_count", COUNT, count),
        Key("expert_used_count", COUNT, "num_experts_per_tok"),
        Key("expert_feed_forward_length", COUNT, width),
    )


_SCALED = (
    Key("rope.scaling.type", TEXT, "rope_type"),
    Key("rope.scaling.factor", FLOAT, "factor"),
)
CONTEXT = "original_max_position_embeddings"
"""What states the context of a rotary embedding before it was scaled, in it or beside it."""

UNSCALED, YARN = "default", "yarn"
ROPE: Mapping[str, Sequence[Key]] = {
    UNSCALED: (),
    "llama3": (),
    "linear": _SCALED,
    YARN: (
        *_SCALED,
        Key("rope.scaling.original_context_length", COUNT, CONTEXT),
        Key("rope.scaling.yarn_beta_fast", FLOAT, "beta_fast", required=False),
        Key("rope.scaling.yarn_beta_slow", FLOAT, "beta_slow", required=False),
    ),
}
"""The keys of each kind of rotary embedding."""

ROPE_TOO = ("rope_type", "type", "rope_theta", "truncate")
"""What else is stated of it; llama.cpp computes as if `truncate` were true.

Of an `attention_factor` versions of llama.cpp compute different things, none of them that of
transformers, so that a model with one is refused.
"""
_OF_QWEN = {"hidden_act": "silu", "attention_bias": False, "use_sliding_window": False}
_LLAMA = GgufArchitecture(
    "llama",
    "LlamaForCausalLM",
    _table(_ALL, _NORM, _GATED),
    _KEYS_OF_LLAMA,
    {"hidden_act": "silu", "attention_bias": False, "mlp_bias": False},
    rotated=True,
    factors="rope_freqs.weight",
)
ARCHITECTURES: Mapping[str, GgufArchitecture] = {
    "gpt_oss": GgufArchitecture(
        "gpt-oss",
        "GptOssForCausalLM",
        _table(_ALL, _OF_GPT_OSS),
        (
            *_KEYS,
            Key("attention.sliding_window", COUNT, "sliding_window"),
            *_experts("num_local_experts", "intermediate_size"),
        ),
        {"hidden_act": "silu", "swiglu_alpha": 1.702, "swiglu_limit": 7.0, "attention_bias": True},
        ("sliding_attention", "full_attention"),
        tied=False,
        scaled={"truncate": False},
    ),
    "qwen3": GgufArchitecture(
        "qwen3",
        "Qwen3ForCausalLM",
        _table(_ALL, _OF_QWEN3, _NORM, _GATED),
        _KEYS,
        _OF_QWEN,
    ),
    "qwen3_moe": GgufArchitecture(
        "qwen3moe",
        "Qwen3MoeForCausalLM",
        _table(_ALL, _OF_QWEN3, _NORM, _MIXED),
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


def _size(axis: str, config: Mapping[str, Any]) -> Any:  # noqa: ANN401  (of JSON)
    """Return the length of an axis that a configuration with all hyperparameters states."""
    factors = axis.split(" * ")
    sizes = [
        int(factor) if factor.isdecimal() else config.get(stated_key(config, factor))
        for factor in factors
    ]
    return math.prod(sizes) if len(sizes) > 1 else sizes[0]


def tensors(row: GgufArchitecture, config: Mapping[str, Any]) -> Iterator[MappedTensor]:
    """List the tensors of a model, layer by layer; there may be more than any file has."""
    top = [parameter for parameter in row.parameters if "{layer}" not in parameter.name]
    yield from (_tensor(row, parameter, config, None, None) for parameter in top)
    for layer in range(config["num_hidden_layers"]):
        for parameter in row.parameters:
            if "{expert}" in parameter.name:
                for expert in range(experts_of(config)):
                    yield _tensor(row, parameter, config, layer, expert)
            elif "{layer}" in parameter.name:
                yield _tensor(row, parameter, config, layer, None)


def _tensor(
    row: GgufArchitecture,
    parameter: _GgufParameter,
    config: Mapping[str, Any],
    layer: int | None,
    expert: int | None,
) -> MappedTensor:
    count = len(parameter.becomes)
    rows = [Rows(count, index) for index in range(count)]
    if row.rotated and parameter.becomes[0].endswith(_ROTATED):
        rows = [Rows(config["head_dim"], None)]
        if config["head_dim"] % 2:
            raise CheckpointError(f"head_dim is {config['head_dim']}, and heads have two halves")
    places = [
        Place(name.format(layer=layer), expert, picked)
        for name, picked in zip(parameter.becomes, rows, strict=True)
    ]
    shape = tuple(_size(axis, config) for axis in parameter.axes)
    is_vector = len(shape) == 1 or places[0].name.endswith(".bias")
    name = parameter.name.format(layer=layer, expert=expert)
    return MappedTensor(name, shape, parameter.axes, len(shape) - (1 if is_vector else 2), places)
