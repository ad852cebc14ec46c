"""What a parameter is, by the class of the module that has it and by that class's code."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D


@dataclass(frozen=True)
class Row:
    """What the table has of one parameter, but for its name."""

    role: str
    axes: str = ""
    joint: str = ""
    float32: bool = False
    conversion: str = ""  # what transformers does to it while it loads: `saved.py`
    is_guess: bool = False  # a matrix that no rule below names: "other", counted and printed

    def text(self) -> str:
        """Return the row as the table has it, without the axes that its role has anyway."""
        usual = {("linear", "out in"), ("head", "out in")}
        axes = "" if (self.role, self.axes) in usual else self.axes
        words = (self.role, axes, self.joint, "float32" * self.float32, self.conversion)
        return " ".join(filter(None, words))


OUT_IN = Row("linear", "out in")
STACK = Row("experts", "experts out in")

ROWS_BY_CLASS = {
    # x.matmul(w1.T), x.matmul(v1.T) and x.matmul(w2), each seen as (experts, ffn, hidden)
    ("DbrxExpertGLU", "w1"): Row("experts", "experts*out in"),
    ("DbrxExpertGLU", "v1"): Row("experts", "experts*out in"),
    ("DbrxExpertGLU", "w2"): Row("experts", "experts*in out"),
    # torch.bmm(x, gate_up_proj).chunk(2, dim=-1), torch.bmm(x, down_proj)
    ("Llama4TextExperts", "gate_up_proj"): Row("experts", "experts in out", "halves"),
    ("Llama4TextExperts", "down_proj"): Row("experts", "experts in out"),
    # F.linear(x, weight[i]); what is joined says the parent's code
    ("JetMoeParallelExperts", "weight"): STACK,
    ("InklingSharedExperts", "gate_proj"): STACK,
    ("InklingSharedExperts", "up_proj"): STACK,
    ("InklingSharedExperts", "down_proj"): STACK,
    ("LongcatFlashExperts", "gate_up_proj"): replace(STACK, joint="halves"),
    ("LongcatFlashExperts", "down_proj"): STACK,
    ("Step3p7Experts", "gate_up_proj"): replace(STACK, joint="halves"),
    ("Step3p7Experts", "down_proj"): STACK,
    # torch.matmul(x, weight)
    ("Gemma3MultiModalProjector", "mm_input_projection_weight"): Row("linear", "in out"),
    ("T5Gemma2MultiModalProjector", "mm_input_projection_weight"): Row("linear", "in out"),
    ("XCLIPModel", "prompts_visual_projection"): Row("linear", "in out"),
    # modules of their own with nn.functional.linear(x, weight)
    ("QuantLinear", "weight"): Row("other"),  # no nn.Linear: nobody replaces it
    ("DoryLMHead", "weight"): Row("head", "out in"),
    ("QuantEmbedding", "weight"): Row("embedding"),
    ("CsmCodebooksHead", "weight"): Row("head", ""),
}
"""Parameters that a module holds itself, by its class and the attribute."""

RECURRENT = frozenset(
    ("A_log", "A_logs", "dt_bias", "dt_proj_bias", "time_decay", "time_first", "recurrent_param")
)
"""What the state of a recurrence is computed with: a module that has one of these is its mixer."""

_POSITION = re.compile(
    r"pos(?:$|_)|pos_?emb|position|\bwpe$|relative_|rel_pos|rel_attn|emb_rel|attention_biases|_ape$"
    r"|time_embeddings|temporal_embedding"
)
_NORM = re.compile(r"Norm(?:\d*d)?$|Norm(?![a-z])|RMSNorm|LayerNorm|Normalization")
_FEED_FORWARD = re.compile(r"mlp|ffn|feedforward|glu|expert|moe", re.IGNORECASE)
_TASK = re.compile(r"For[A-Z]|With\w*Head")
_MANY = 2  # axes that are longer than 1


def rows_of(model: nn.Module, sizes: frozenset[int], base: str) -> dict[str, Row]:
    """Return what each parameter and buffer of a model is.

    Parameters
    ----------
    model
        On the meta device.
    sizes
        The numbers of outputs of heads: of the vocabulary, of labels.
    base
        The module of the base model, outside of which a model has its heads; "" if it is all base.

    """
    modules = dict(model.named_modules(remove_duplicate=False))
    heads = _heads(model, modules, sizes, base)
    blocks = dict(_blocks(modules))
    mixers = {name for name, module in modules.items() if RECURRENT & {*dict(_own_tensors(module))}}
    rows: dict[str, Row] = {}
    for path, module in modules.items():
        for attribute, tensor in _own_tensors(module):
            name = f"{path}.{attribute}" if path else attribute
            row = _row(modules, path, attribute, tensor)
            if row.role in {"linear", "other", "bias", "buffer", "recurrent"} and _is_router(
                modules, blocks, path, tensor
            ):
                row = Row("router")
            elif path in heads and attribute == "weight" and row.role == "linear":
                row = replace(row, role="head")
            elif _is_of_mixer(path, mixers, row):
                row = Row("recurrent")
            rows[name] = row
    return rows


def _own_tensors(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield what a module has itself of those tensors that a file has."""
    unsaved_names = module._non_persistent_buffers_set
    for tensors in (module._parameters, module._buffers):
        for name, tensor in tensors.items():
            if tensor is not None and name not in unsaved_names:
                yield name, tensor


def _parent(path: str) -> str:
    return path.rpartition(".")[0]


def _row(  # noqa: PLR0911, PLR0912 - a rule is a line
    modules: dict[str, nn.Module], path: str, attribute: str, tensor: torch.Tensor
) -> Row:
    module = modules[path]
    kind = type(module).__name__
    longer = sum(size != 1 for size in tensor.shape)
    if not isinstance(tensor, nn.Parameter):
        return Row("buffer")
    if (kind, attribute) in ROWS_BY_CLASS:
        row = ROWS_BY_CLASS[kind, attribute]
        return replace(row, joint=_joint(modules, path) or row.joint)
    if hasattr(module, "is_transposed") and hasattr(module, "has_gate"):
        return _row_of_experts(module, attribute)
    if isinstance(module, torch.nn.utils.parametrize.ParametrizationList):
        layer = modules[_parent(_parent(path))]
        is_convolution = isinstance(layer, nn.modules.conv._ConvNd)
        return Row("convolution" if is_convolution else "other")
    if _NORM.search(kind) or isinstance(module, nn.LayerNorm | nn.GroupNorm | nn.RMSNorm):
        return Row("norm")
    if isinstance(module, nn.modules.conv._ConvNd):
        return Row("bias" if attribute == "bias" else "convolution")
    if isinstance(module, nn.RNNBase):
        return Row("recurrent")
    if isinstance(module, nn.Embedding | nn.EmbeddingBag):
        names = kind + "." + path.rpartition(".")[2]
        return Row("position" if _POSITION.search(names.lower()) else "embedding")
    if isinstance(module, nn.Linear | Conv1D) and attribute == "weight":
        axes = "in out" if isinstance(module, Conv1D) else "out in"
        return Row("linear", axes, _joint(modules, path))
    if isinstance(module, nn.MultiheadAttention) and attribute.endswith("proj_weight"):
        return OUT_IN
    if RECURRENT & {*dict(_own_tensors(module))}:
        return Row("recurrent")
    if attribute == "bias" or (attribute.endswith("bias") and longer < _MANY):
        return Row("bias")
    if _POSITION.search(attribute) or _POSITION.search(kind.lower()):
        return Row("position")
    return Row("other", is_guess=longer >= _MANY and tensor.shape[0] != 1)


def _row_of_experts(module: nn.Module, attribute: str) -> Row:
    """Read what transformers' `use_experts_implementation` says of a class of experts."""
    if attribute.endswith("bias"):
        return Row("bias")
    axes = "experts in out" if module.is_transposed else "experts out in"
    if attribute == "gate_up_proj":
        return Row("experts", axes, "halves" if module.is_concatenated else "interleaved")
    if attribute in {"up_proj", "down_proj"}:
        return Row("experts", axes)
    return Row("other", is_guess=True)


def _joint(modules: dict[str, nn.Module], path: str) -> str:
    """Say how a layer's outputs are parted in gate and up, by the code of the module around it."""
    parent, attribute = type(modules[_parent(path)]), path.rpartition(".")[2]
    kind = parent.__name__
    if not path or not _FEED_FORWARD.search(kind) or "Attention" in kind:
        return ""
    lines = iter(_source(parent.__module__, parent.__qualname__).split("\n"))
    name = ""  # of the variable that has the outputs
    for line in lines:
        call = re.search(rf"^\s*(?:(\w+) = )?.*\bself\.{re.escape(attribute)}\(", line)
        outputs = rf"self\.{re.escape(attribute)}\(.*\)" if call else rf"\b{name}"
        if not call and not name:
            continue
        if re.search(rf"{outputs}\.(?:chunk|tensor_split)\(2, dim=-1\)", line) or re.search(
            rf"torch\.chunk\({outputs}, 2, dim=-1\)", line
        ):
            return "halves"
        if re.search(rf"{outputs}\[\.\.\., ::2\]", line):
            return "interleaved"
        if call:
            name = call[1] or ""
        elif re.search(rf"\b{name} = (?!.*\b{name}\b)|\b{name} = .*self\.|^\s*def ", line):
            name = ""  # it has other values
    return ""


@cache
def _source(module: str, name: str) -> str:
    """Return the source of a class; empty for one that is made while it runs."""
    try:
        return inspect.getsource(getattr(import_module(module), name))
    except (AttributeError, OSError):
        return ""


def _heads(
    model: nn.Module, modules: dict[str, nn.Module], sizes: frozenset[int], base: str
) -> set[str]:
    """Name the modules whose outputs are the model's: tokens, labels, coordinates."""
    output = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    heads = {name for name, module in modules.items() if output is not None and module is output}
    kind = type(model).__name__
    base_prefix = f"{base}." if base and base in modules else ""
    for name, module in modules.items():
        if isinstance(module, nn.Linear | Conv1D):
            size = module.weight.shape[isinstance(module, Conv1D)]
            if (
                not name.startswith(base_prefix)
                if base_prefix
                else "." not in name and _TASK.search(kind)
            ):
                heads |= {name} if size in sizes else set()
    return heads


def _blocks(modules: dict[str, nn.Module]) -> Iterator[tuple[str, int]]:
    """Yield the modules that experts are in, and the number of these."""
    for path, module in modules.items():
        stacks = [
            tensor
            for name, tensor in _own_tensors(module)
            if ((type(module).__name__, name) in ROWS_BY_CLASS or hasattr(module, "is_transposed"))
            and tensor.dim() > _MANY
        ]
        is_list = isinstance(module, nn.ModuleList | nn.ModuleDict)
        if stacks:
            yield _parent(path), stacks[0].shape[0]
        elif path.rpartition(".")[2] == "experts" and is_list:
            yield _parent(path), len(module)
        elif type(module).__name__ == "DbrxExpertGLU":
            yield _parent(_parent(path)), module.moe_num_experts


def _is_router(
    modules: dict[str, nn.Module], blocks: dict[str, int], path: str, tensor: torch.Tensor
) -> bool:
    """Return True for what gives one output for each expert, beside them in their block."""
    parts = path.split(".")
    chain = [".".join(parts[:length]) for length in range(len(parts), 0, -1)]
    if "router" in parts[-1] or any(
        re.search(r"Router|TopKGate|MoEGate", type(modules[name]).__name__) for name in chain
    ):
        return True
    kinds = [type(modules[name]).__name__ for name in chain]
    block = next((name for name in (*chain, "") if name in blocks), None)
    if block is None or not tensor.dim():
        return False
    inner_kinds = kinds[: len(parts) - len(block.split("."))] if block else kinds
    if any(re.search(r"Attention|Indexer|Experts?$|MLP", kind) for kind in inner_kinds):
        return False
    outputs = {blocks[block]} | ({1} if isinstance(modules[path], nn.Linear) else set())
    return tensor.shape[0] in outputs and len(inner_kinds) <= _MANY


def _is_of_mixer(path: str, mixers: set[str], row: Row) -> bool:
    """Return True for the convolution and the step of a recurrence."""
    parent, name = _parent(path), path.rpartition(".")[2]
    if row.role == "convolution":
        return parent in mixers or any(mixer.startswith(f"{parent}.") for mixer in mixers if parent)
    return parent in mixers and name == "dt_proj" and row.role == "linear"
