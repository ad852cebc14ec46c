"""The rules for tensors that no architecture of the table knows: by their names alone."""

import re
from collections.abc import Sequence
from functools import lru_cache

_FUSED = (
    ("q_proj", "k_proj", "v_proj"),
    ("gate_proj", "up_proj"),
    ("w1", "w3"),
    ("wq", "wk", "wv"),
    ("query", "key", "value"),
    ("q_a_proj", "kv_a_proj_with_mqa"),
    ("to_q", "to_k", "to_v"),
    ("in_proj_qkv", "in_proj_z"),
    ("in_proj_b", "in_proj_a"),
)
JOINED = {name: group for group in _FUSED for name in group}
"""What vLLM's and SGLang's `packed_modules_mapping` join in most models."""

# What a module is by its name; routers and heads also by that of the module that has it.
_ROLES = re.compile(
    r"(?P<norm>[^.]*norm[^.]*)|(?P<embedding>[^.]*embed[^.]*|wte|shared)"
    r"|(?P<position>wpe|rotary[^.]*|relative_attention_bias)"
    r"|(?P<router>gate|router|shared_expert_gate)"
    r"|(?P<head>classifier|(?:[a-z]{2,}_)?head|embed_out|output|score|decoder|proj_out"
    r"|vocab_projector|qa_outputs|dense_prediction|seq_relationship)"
)

# Names of heads that modules within a layer have, too, as `attention.output` of BERT.
_ONLY_AT_TOP = frozenset(("output", "decoder", "proj_out", "shared", "score"))
# What a head may be in that is not within a layer.
_TOP = frozenset(("model", "transformer", "cls", "predictions"))
_AROUND = re.compile(r"(?:embed|norm|lora)[^.]*(?:\.[^.]+)?(?:\.weight)?$", re.DOTALL)
# `layers.0.mlp.experts.5.up_proj.weight`, or `switch_mlp` in the place of `experts` in MLX.
_EXPERTS = re.compile(r"(?:(?P<layer>.*)\.)?(?P<module>\w*experts|switch_mlp)\.(?P<part>.+)")
# What joins a layer that predicts further tokens: `nn.Linear` in vLLM, SGLang or both.
_OF_NEXT_TOKENS = (".eh_proj.weight", ".mtp.fc.weight")

# The axes of a weight, and of the weights of all experts in one tensor.
_MATRIX, _STACK = 2, 3


def role_by_name(name: str, shape: Sequence[int]) -> str:
    """Return the role of a tensor by its name and its shape, which is empty if nobody knows it."""
    *parents, module = (name.removesuffix(".weight") or name).split(".")
    if len(shape) == 1:
        return "bias" if name.endswith("bias") else "norm" if "norm" in module else "other"
    is_matrix = len(shape) in {0, _MATRIX} and name.endswith(".weight")
    experts = experts_in(name)
    is_stack = experts is not None and "." not in experts["part"].removesuffix(".weight")
    if is_stack and not (shape and is_matrix):
        return "unknown" if len(shape) == _MATRIX else "experts"
    is_of_next = f".{name}".endswith(_OF_NEXT_TOKENS)
    role = "other" if is_of_next else _role_of(module, is_at_top=_TOP.issuperset(parents))
    if role is not None:
        return role
    if len(shape) > _STACK or (len(shape) == _STACK and "conv" in name):
        return "convolution"
    if (
        is_matrix
        and parents
        and (role := _role_of(parents[-1], is_at_top=False)) in {"router", "head"}
    ):
        return role
    return "linear" if is_matrix else "unknown"


@lru_cache(1 << 10)
def _role_of(module: str, *, is_at_top: bool) -> str | None:
    """Return the role of a module by its name; some have one at the top of a model alone."""
    if module in _ONLY_AT_TOP and not is_at_top:
        return None
    match = _ROLES.fullmatch(module)
    return None if match is None else match.lastgroup


def experts_in(name: str) -> re.Match[str] | None:
    """Find the module of experts in a tensor's name: its `layer`, the `module`, and the `part`."""
    if not ("experts." in name or "switch_mlp." in name):
        return None
    return _EXPERTS.fullmatch(name)


def is_in_name(name: str) -> bool:
    """Return True for a layer in an embedding, a norm or an adapter: producers leave those."""
    return _AROUND.search(name) is not None
