"""The weights of layers by their names: what is quantised, what stays, what engines fuse."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping
from typing import Any

from castwise.checkpoint._config import CONFIG
from castwise.checkpoint._tensors import TensorInfo

MATRIX, STACK = 2, 3
"""The axes of a matrix, and of those of all experts."""

WEIGHT = ".weight"
_HEAD = "lm_head"

_FUSED = (
    ("q_proj", "k_proj", "v_proj"),
    ("gate_proj", "up_proj"),
    ("w1", "w3"),
    ("wq", "wk", "wv"),
    ("query", "key", "value"),
    ("q_a_proj", "kv_a_proj_with_mqa"),
)
_FUSED_NAMES = {name: group for group in _FUSED for name in group}

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
_EXPERTS_OF_LAYER = re.compile(r"(?:^|\.)(?:experts|switch_mlp)\.")
_LAST_OUTPUTS = re.compile(r"(?:.*[./])?(?:kernel|vars/[0-9]+)", re.DOTALL)
_NOT_OUT_IN = frozenset(("gpt2", "openai-gpt", "imagegpt", "decision_transformer"))
"""Types of models whose layers keep (in, out) matrices, which no producer quantises."""


def is_experts(name: str) -> bool:
    """Return True for the name of the matrices of all experts in one tensor."""
    return _EXPERTS.fullmatch(name) is not None


def has_last_outputs(name: str) -> bool:
    """Return True for the kernel of a layer of Keras or flax, whose last axis is its outputs."""
    return _LAST_OUTPUTS.fullmatch(name) is not None


def layer_of_expert(name: str) -> str | None:
    """Name the layer of whose experts a weight is, one or all in one tensor; None of others."""
    match = _EXPERTS_OF_LAYER.search(name)
    return None if match is None else name[: match.start()]


def is_left(name: str) -> bool:
    """Return True for a weight that stays as it is unless it is named."""
    *parents, module = (name.removesuffix(".weight") or name).split(".")
    if module in _HEADS:
        return _TOP.issuperset(parents)
    return any(_LEFT.fullmatch(part) for part in (*parents[-1:], module) if part not in _HEADS)


def _is_embedding(module: str) -> bool:
    """Return True for a module that no producer would quantise as a linear layer."""
    return _EMBEDDING.fullmatch(module.rpartition(".")[2]) is not None


def transposed_type(configs: Mapping[str, Any]) -> str | None:
    """Return the type of a model that keeps its matrices as (in, out); None for others."""
    config = configs.get(CONFIG)
    kind = config.get("model_type") if isinstance(config, dict) else None
    return kind if isinstance(kind, str) and kind in _NOT_OUT_IN else None


def fused_with(name: str) -> tuple[str, ...]:
    """Name the weights that engines fuse with one, itself among them."""
    stem = name.removesuffix(".weight")
    prefix, dot, module = stem.rpartition(".")
    tail = name[len(stem) :]
    return tuple(f"{prefix}{dot}{part}{tail}" for part in _FUSED_NAMES.get(module, (module,)))


def is_matrix(info: TensorInfo) -> bool:
    """Return True for what may be the weight of a linear layer, or those of experts."""
    if info.kind != "float" or not all(info.shape):
        return False
    if len(info.shape) == STACK:
        return is_experts(info.name)
    return len(info.shape) == MATRIX and info.name.endswith(WEIGHT)


def kept_modules(left: Iterable[str], modules: Container[str]) -> list[str]:
    """Return the modules that a configuration excepts, given the weights that are left."""
    names = (name.removesuffix(WEIGHT) for name in left)
    kept = [module for module in names if not _is_embedding(module)]
    if _HEAD not in modules and _HEAD not in kept:
        kept.append(_HEAD)  # tied to the embedding
    return kept
