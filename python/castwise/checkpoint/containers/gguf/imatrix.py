"""Mean squares of inputs, which llama-imatrix of llama.cpp writes, and what it calls weights.

Its file has two tensors for each weight: `NAME.in_sum2` has the sum of the squares of each input
channel, and `NAME.counts` how many were added up. Each has a row for each expert.
"""

import re
from collections.abc import Mapping
from functools import cache

from castwise.checkpoint._errors import CheckpointError
from castwise.checkpoint.containers.gguf._architectures import gguf_package
from castwise.checkpoint.containers.gguf._names import name_map
from castwise.checkpoint.containers.interface import Reader
from castwise.checkpoint.containers.whole_models import InputNames

_SUMS, _COUNTS = ".in_sum2", ".counts"
_TYPE, _OWN_TYPE = "general.type", "imatrix"
_WEIGHT = ".weight"
# As llama.cpp names tensors: `blk.0.attn_q.weight`, or `enc.blk.0.attn_q.weight` of T5.
_STORED = re.compile(r"(?:\w+\.)?blk\.[0-9]+\..+|(?:output|token_embd)\.weight")
# A number that is a whole component, as that of a layer in `layers.3.mlp`.
_NUMBER = re.compile(r"(?<![^.])[0-9]+(?=\.)")

# What the converter of llama.cpp replaces in names, one after the other, and what it puts before
# those of a base model. It takes apart what the map has no name of; both halves have the same
# inputs.
_SPELLINGS = (
    ("language_model.", ""),
    ("switch_mlp.", "experts."),
    ("gate_up_proj", "gate_proj"),
    ("", "model."),
)

# Matrices that are multiplied by the same inputs in all graphs of `src/models` of llama.cpp.
_SHARING = (
    ("attn_q", "attn_k", "attn_v", "attn_qkv"),
    ("ffn_gate", "ffn_up"),
    ("ffn_gate_exps", "ffn_up_exps", "ffn_gate_up_exps"),
    ("ffn_gate_shexp", "ffn_up_shexp"),
)

# Matrices whose columns the converter puts in another order, by the type of the model: `ssm_out` if
# value heads are more than key heads (`_LinearAttentionVReorderBase`), `attn_output` of PLaMo.
_REORDERED = (("ssm_out", None), ("attn_output", "plamo"))


def mean_squares(reader: Reader) -> dict[str, tuple[str, str]]:
    """Return the tensors of the sums and of the counts of each weight in a file of these."""
    kind = reader.metadata.get(_TYPE)
    if kind != _OWN_TYPE:
        raise CheckpointError(
            f"{reader.path} states {_TYPE} {kind!r}, and a file of importance {_OWN_TYPE!r}; give "
            "the one that llama-imatrix of llama.cpp makes of the model"
        )
    ends = {_SUMS: _COUNTS, _COUNTS: _SUMS}
    for name in reader.tensors:
        end = next((end for end in ends if name.endswith(end)), None)
        if end is not None and (other := name.removesuffix(end) + ends[end]) not in reader.tensors:
            raise CheckpointError(
                f"{reader.path}: tensor {name!r} has no {other!r} beside it; make the file again "
                "with llama-imatrix"
            )
    stems = [name.removesuffix(_SUMS) for name in reader.tensors if name.endswith(_SUMS)]
    return {stem: (stem + _SUMS, stem + _COUNTS) for stem in stems}


def input_names(name: str, model_type: str) -> InputNames:
    """Return what a file may call a weight of transformers, and what has the same inputs."""
    # `name` has no number of an expert: all of a layer are in one tensor. Nothing is returned of
    # matrices whose columns may be in another order.
    stem = name.removesuffix(_WEIGHT)
    number = _NUMBER.search(stem)
    if number is not None:
        stem = f"{stem[: number.start()]}0{stem[number.end() :]}"
    names: set[str] = set()
    for old, new in (("", ""), *_SPELLINGS):
        stem = stem.replace(old, new) if old else new + stem
        names = _stored_names().get(stem) or set()
        if names:
            break
    own_names, sharing = [], []
    for stored in sorted(names):
        block, _, matrix = stored.rpartition(".")
        if any(matrix == other and kind in {None, model_type} for other, kind in _REORDERED):
            continue
        group = next((group for group in _SHARING if matrix in group), ())
        prefix = block.replace("blk.0", f"blk.{number[0]}") if number is not None else block
        prefix = f"{prefix}." if prefix else ""
        own_names.append(prefix + matrix + _WEIGHT)
        sharing += [prefix + other + _WEIGHT for other in group if other != matrix]
    return InputNames(own_names, sharing)


def is_stored_name(name: str) -> bool:
    """Return True for a name that llama.cpp gives a weight."""
    return _STORED.fullmatch(name) is not None


@cache
def _stored_names() -> Mapping[str, set[str]]:
    """Return what the first layer of any architecture calls the matrices of transformers."""
    # The architecture need not be known: of all names in the map, few have several meanings, and a
    # file has one of these.
    package = gguf_package()
    names: dict[str, set[str]] = {}
    for kind in package.MODEL_ARCH_NAMES:
        for name, (_, stored) in name_map(kind).mapping.items():
            names.setdefault(name, set()).add(stored)
    return names
