"""The rules for tensors that no architecture of the table knows: by their names alone."""

from __future__ import annotations

import re

_FUSED = (
    ("q_proj", "k_proj", "v_proj"),
    ("gate_proj", "up_proj"),
    ("w1", "w3"),
    ("wq", "wk", "wv"),
    ("query", "key", "value"),
    ("q_a_proj", "kv_a_proj_with_mqa"),
)
JOINED = {name: group for group in _FUSED for name in group}

_LEFT = re.compile(
    r"(?:[^.]*(?:embed|norm|lora)[^.]*|wte|wpe|shared|gate|router|shared_expert_gate|classifier"
    r"|(?:lm_|cls_|[a-z]+_)?head|embed_out|output|score|decoder|vocab_projector|qa_outputs"
    r"|dense_prediction|seq_relationship|proj_out|rotary[^.]*|relative_attention_bias)",
)
"""Modules that stay as they are: embeddings, norms, routers, heads, adapters."""

_HEADS = frozenset(("output", "decoder", "proj_out", "shared", "score"))
"""Such as are heads or embeddings only at the top of a model."""

_TOP = frozenset(("model", "transformer", "cls", "predictions"))
_EMBEDDING = re.compile(r"[^.]*(?:embed|norm)[^.]*|wte|wpe|shared")
_EXPERTS = re.compile(r"(?:.*\.)?(?:\w*experts|switch_mlp)\.\w+(?:\.weight)?")

IN_OUT_TYPES = frozenset(("gpt2", "openai-gpt", "imagegpt", "decision_transformer"))
"""Types of models whose layers keep (in, out) matrices."""


def is_stack_name(name: str) -> bool:
    """Return True for the name of the matrices of all experts in one tensor."""
    return _EXPERTS.fullmatch(name) is not None


def is_left_name(name: str) -> bool:
    """Return True for the name of a weight that stays as it is unless it is named."""
    *parents, module = (name.removesuffix(".weight") or name).split(".")
    if module in _HEADS:
        return _TOP.issuperset(parents)
    return any(_LEFT.fullmatch(part) for part in (*parents[-1:], module) if part not in _HEADS)


def is_embedding_name(module: str) -> bool:
    """Return True for a module that no producer would quantise as a linear layer."""
    return _EMBEDDING.fullmatch(module.rpartition(".")[2]) is not None


_LOOKUP = re.compile(r"(?:embed_tokens|word_embeddings|tok_embeddings|embed_in|wte|shared)")
_HEAD = re.compile(r"(?:lm_head|embed_out|vocab_projector)")


def lookup_role(name: str) -> str | None:
    """Return "embedding" or "head" for a table of tokens or the matrix of logits, else None."""
    module = name.removesuffix(".weight").rpartition(".")[2]
    if _LOOKUP.fullmatch(module):
        return "embedding"
    return "head" if _HEAD.fullmatch(module) else None
