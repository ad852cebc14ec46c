"""The mixes of llama.cpp: which type each tensor of a file gets.

The facts are those of `llama_tensor_get_type` in llama.cpp's `src/llama-quant.cpp` of April 2025,
which llama-cpp-cffi 0.4.44 holds. Newer releases treat a fused `attn_qkv` and an `attn_kv_b` as
values (`category_is_attn_v`).
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from castwise.checkpoint.containers.gguf._architectures import ARCHITECTURE, COUNT, EMBEDDING, HEAD
from castwise.checkpoint.containers.gguf.writer import FILE_TYPE, typed_text
from castwise.quantization.producers.block_types import MIXES

# Whether a layer is one of those of a rule, by its index and how many there are.
_Layers = Callable[[int, int], bool]
# The types of layers in place of the usual one: the first rule that a layer is of.
_Types = Sequence[tuple[_Layers, str]]

# The architecture with rules of its own, Mixtral's number of experts, and the query heads for each
# value head from which q2_k_s gives value projections more bits, as llama.cpp tells them.
_FALCON, _OLD_EXPERTS, _SHARING_HEADS = "falcon", 8, 4
# Models of so many layers, which llama.cpp counts as 70B, where heads share values: these are small
# there, and get more bits. Llama's are 65B where no heads share values.
_WIDE_LAYERS, _WIDE = 80, {"qwen2", "qwen2vl", "deci"}
# As in `blk.12.ffn_down.weight`.
_LAYER = re.compile(r"blk\.(\d+)\.")


def _first(count: int) -> _Layers:
    return lambda index, _: index < count


def _first_part(parts: int) -> _Layers:
    return lambda index, count: index < count // parts


def _every(_index: int, _count: int) -> bool:
    return True


def _more_bits(index: int, count: int) -> bool:
    """Return True for the first and the last eighth, and each third layer between them."""
    eighth = count // 8
    return index < eighth or index >= 7 * count // 8 or (index - eighth) % 3 == 2  # noqa: PLR2004


@dataclass(frozen=True, slots=True)
class _Rules:
    """The types of a mix beside the usual one, by what a tensor is."""

    values: _Types = ()
    down: _Types = ()
    others: Mapping[str, str] = field(default_factory=dict)  # by parts of names
    # That of attention's outputs in models of eight experts, in place of `others`
    output_of_experts: str = ""
    shared_values: str = ""  # that of values which four heads or more share, in place of `values`


_RULES: Mapping[str, _Rules] = {
    "q2_k_s": _Rules(down=((_first_part(8), "q4_k"),), shared_values="q4_k"),
    "q3_k_s": _Rules(output_of_experts="q5_k"),
    "q3_k_m": _Rules(
        ((_first(2), "q5_k"), (_every, "q4_k")),
        ((_first_part(16), "q5_k"), (_every, "q4_k")),
        {"attn_output": "q4_k", "attn_qkv": "q4_k"},
        "q5_k",
    ),
    "q3_k_l": _Rules(
        ((_every, "q5_k"),), ((_every, "q5_k"),), {"attn_output": "q5_k", "attn_qkv": "q4_k"}
    ),
    "q4_k_s": _Rules(((_first(4), "q5_k"),), ((_first_part(8), "q5_k"),), {}, "q5_k"),
    "q4_k_m": _Rules(
        ((_more_bits, "q6_k"),), ((_more_bits, "q6_k"),), {"attn_qkv": "q5_k"}, "q5_k"
    ),
    "q5_k_s": _Rules(),
    "q5_k_m": _Rules(((_more_bits, "q6_k"),), ((_more_bits, "q6_k"),), {"attn_qkv": "q6_k"}),
}
_RULES_OF_FALCON: Mapping[str, Mapping[str, Any]] = {
    "q3_k_m": {
        "down": ((_first_part(16), "q5_k"), (_more_bits, "q4_k")),
        "others": {"attn_qkv": "q4_k"},
    },
    "q3_k_l": {"down": ((_every, "q4_k"),), "others": {"attn_output": "q4_k", "attn_qkv": "q4_k"}},
    "q4_k_s": {"down": ()},
    "q4_k_m": {"down": ((_first_part(16), "q6_k"), (_more_bits, "q5_k"))},
}


def mix_metadata(mix: str) -> dict[str, str]:
    return {FILE_TYPE: typed_text(COUNT, MIXES[mix][1])}


def mix_types(mix: str, values: Mapping[str, Any], names: Collection[str]) -> dict[str, str]:
    """Return the scheme of each tensor of a file that states `values` that llama.cpp quantizes."""
    # Layers are counted by these, so that biases and scales beside weights are none.
    weights = (name for name in names if name.endswith("weight") and "_norm.weight" not in name)
    return dict(_types(mix, values, sorted(weights, key=lambda name: (_layer(name), name))))


def _layer(name: str) -> int:
    match = _LAYER.match(name)
    return -1 if match is None else int(match[1])


def _types(mix: str, values: Mapping[str, Any], names: Sequence[str]) -> Iterator[tuple[str, str]]:
    architecture = str(values.get(ARCHITECTURE))

    def number(key: str) -> int:
        value = values.get(f"{architecture}.{key}", 0)
        return int(value[0] if isinstance(value, list) else value)

    usual, _ = MIXES[mix]
    is_falcon = architecture == _FALCON
    rules = replace(_RULES[mix], **(_RULES_OF_FALCON.get(mix, {}) if is_falcon else {}))
    layers, experts = number("block_count"), number("expert_count")
    heads = number("attention.head_count")
    value_heads = number("attention.head_count_kv") or heads
    shares_values = heads != value_heads
    values_of_all = rules.shared_values if heads >= _SHARING_HEADS * max(1, value_heads) else ""
    is_wide = layers == _WIDE_LAYERS and (
        architecture in _WIDE or (architecture == "llama" and shares_values)
    )
    head = HEAD if HEAD in names else EMBEDDING
    value_count = sum("attn_v.weight" in name or "attn_qkv.weight" in name for name in names)
    value_index = down_index = 0
    for name in names:
        scheme = usual
        if name == head:
            scheme = "q8_0" if is_falcon else "q6_k"
        elif "attn_v.weight" in name:
            layer_type = _of_layer(rules.values, value_index, value_count, usual)
            scheme = values_of_all or layer_type
            if is_wide and scheme in {"q3_k", "q4_k"}:
                scheme = "q5_k"
            value_index += 1
        elif "ffn_down" in name:
            index = down_index if experts <= 1 else _layer(name)
            scheme = _of_layer(rules.down, index, layers, usual)
            down_index += 1
        else:
            parts = (part for part in rules.others if f"{part}.weight" in name)
            scheme = rules.others.get(next(parts, ""), usual)
        if experts == _OLD_EXPERTS:
            if "attn_v.weight" in name or "attn_k.weight" in name:
                scheme = "q8_0"
            elif "attn_output.weight" in name:
                scheme = rules.output_of_experts or usual
        yield name, scheme


def _of_layer(types: _Types, index: int, count: int, usual: str) -> str:
    return next((scheme for holds, scheme in types if holds(index, count)), usual)
