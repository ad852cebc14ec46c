"""Whole small models of gpt-oss and Qwen3 with their tokenizers, as llama.cpp converts them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from castwise import checkpoint
from numpy.typing import NDArray
from producer_models import Draw
from scheme_oracle import pack

Array = NDArray[Any]
WIDTH, INNER, HEAD, HEADS, EXPERTS, LAYERS, TOKENS = 64, 32, 32, 2, 3, 2, 262


GPT4O = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+"
    r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


A, B, C = "\u0100\u0101\u0102"


TOKENIZER: dict[str, Any] = {
    "added_tokens": [
        {"id": 256, "content": "<|startoftext|>", "special": True},
        {"id": 257, "content": "<|call|>", "special": False},
        {"id": 258, "content": "\u2581user", "special": False},
    ],
    "normalizer": None,
    "pre_tokenizer": {
        "type": "Sequence",
        "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": GPT4O}, "behavior": "Isolated", "invert": False},
            {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False},
        ],
    },
    "post_processor": {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<|startoftext|>"}}, {"Sequence": {"id": "A"}}],
    },
    "model": {
        "type": "BPE",
        "vocab": {**{chr(0x100 + n): n for n in range(256)}, A + B: 259, A + B + C: 260},
        "merges": [[A, B], f"{A + B} {C}"],
    },
}


CONFIG: dict[str, Any] = {
    "model_type": "gpt_oss",
    "num_hidden_layers": LAYERS,
    "max_position_embeddings": 256,
    "hidden_size": WIDTH,
    "intermediate_size": INNER,
    "num_attention_heads": HEADS,
    "num_key_value_heads": 1,
    "head_dim": HEAD,
    "rms_norm_eps": 1e-5,
    "rope_theta": 150000,
    "rope_scaling": {
        "rope_type": "yarn",
        "factor": 32.0,
        "original_max_position_embeddings": 64,
        "beta_fast": 32.0,
        "truncate": False,
    },
    "sliding_window": 16,
    "num_local_experts": EXPERTS,
    "num_experts_per_tok": 2,
    "layer_types": ["sliding_attention", "full_attention"],
    "swiglu_limit": 7.0,
    "vocab_size": TOKENS,
    "eos_token_id": 257,
    "quantization_config": {"quant_method": "mxfp4"},
}


STATED = {
    "bos_token": "<|startoftext|>",
    "pad_token": {"content": "<|call|>"},
    "add_bos_token": True,
    "chat_template": [{"name": "default", "template": "{{x}}"}, {"name": "tool", "template": "y"}],
}


def linear(draw: Draw, name: str, rows: int, columns: int) -> dict[str, Array]:
    return {f"{name}.weight": draw.floats(rows, columns), f"{name}.bias": draw.floats(rows)}


def experts(draw: Draw, rows: int, columns: int) -> tuple[Array, Array]:
    """Return codes and powers of two of the matrices of experts."""
    return draw.codes(4, EXPERTS, rows, columns), draw.powers(EXPERTS, rows, columns // 32)


def gpt_oss() -> tuple[dict[str, Array], dict[str, tuple[Array, Array]]]:
    """Return the tensors of a model, and the codes and scales of its experts."""
    draw = Draw()
    tensors = {
        "model.embed_tokens.weight": draw.floats(TOKENS, WIDTH),
        "lm_head.weight": draw.floats(TOKENS, WIDTH),
        "model.norm.weight": draw.floats(WIDTH),
    }
    found: dict[str, tuple[Array, Array]] = {}
    for layer in range(LAYERS):
        at = f"model.layers.{layer}."
        for one, rows in (("q", HEADS * HEAD), ("k", HEAD), ("v", HEAD)):
            tensors |= linear(draw, f"{at}self_attn.{one}_proj", rows, WIDTH)
        tensors |= linear(draw, f"{at}self_attn.o_proj", WIDTH, HEADS * HEAD)
        tensors |= linear(draw, f"{at}mlp.router", EXPERTS, WIDTH)
        tensors[f"{at}self_attn.sinks"] = draw.floats(HEADS)
        for norm in ("input", "post_attention"):
            tensors[f"{at}{norm}_layernorm.weight"] = draw.floats(WIDTH)
        for name, rows, columns in (("gate_up", 2 * INNER, WIDTH), ("down", WIDTH, INNER)):
            module = f"{at}mlp.experts.{name}_proj"
            tensors[f"{module}_bias"] = draw.floats(EXPERTS, rows)
            codes, powers = found[module] = experts(draw, rows, columns)
            tensors[f"{module}_blocks"] = pack(codes, 4).reshape(*powers.shape, 16)
            tensors[f"{module}_scales"] = powers
    return tensors, found


def write(
    folder: Path, tensors: dict[str, Array], config: dict[str, Any], *, shards: int = 2
) -> Path:
    """Write a model with its tokenizer, its tensors dealt out to shards."""
    folder.mkdir()
    names = [f"model-{n + 1:05d}-of-{shards:05d}.safetensors" for n in range(shards)]
    homes = {name: names[number % shards] for number, name in enumerate(sorted(tensors))}
    for shard in names:
        own = {name: array for name, array in tensors.items() if homes[name] == shard}
        checkpoint.save(folder / shard, own, metadata={"format": "pt"})
    index = {"metadata": {}, "weight_map": homes}
    for name, value in (
        ("model.safetensors.index.json", index),
        ("config.json", config),
        ("tokenizer.json", TOKENIZER),
        ("tokenizer_config.json", STATED),
    ):
        (folder / name).write_text(json.dumps(value))
    return folder


def model(path: Path, **config: Any) -> Path:
    return write(path, gpt_oss()[0], CONFIG | config)


QWEN: dict[str, Any] = {
    **{key: CONFIG[key] for key in CONFIG.keys() - {"layer_types", "rope_scaling", "swiglu_limit"}},
    "model_type": "qwen3_moe",
    "num_hidden_layers": 1,
    "moe_intermediate_size": INNER,
    "norm_topk_prob": True,
    "tie_word_embeddings": True,
}


AT, Q = "model.layers.0.", r".*q_proj\.weight"


OF_QWEN: dict[str, tuple[int, ...]] = {
    f"{AT}self_attn.q_proj.weight": (WIDTH, WIDTH),
    f"{AT}self_attn.k_proj.weight": (HEAD, WIDTH),
    f"{AT}self_attn.v_proj.weight": (HEAD, WIDTH),
    f"{AT}self_attn.o_proj.weight": (WIDTH, WIDTH),
    f"{AT}self_attn.q_norm.weight": (HEAD,),
    f"{AT}self_attn.k_norm.weight": (HEAD,),
    f"{AT}input_layernorm.weight": (WIDTH,),
    f"{AT}post_attention_layernorm.weight": (WIDTH,),
    "model.norm.weight": (WIDTH,),
    "model.embed_tokens.weight": (TOKENS, WIDTH),
}


def of_experts(
    folder: Path, ignore: str, *missing: str, **config: Any
) -> tuple[dict[str, Array], Path]:
    """Write a Qwen3 of 12 experts but for some tensors; return the others, and it quantized."""
    draw, one = Draw(), f"{AT}mlp.experts"
    plain = {
        **OF_QWEN,
        f"{AT}mlp.gate.weight": (12, WIDTH),
        **{f"{one}.{n}.down_proj.weight": (WIDTH, INNER) for n in range(12)},
        **{f"{one}.{n}.gate_proj.weight": (INNER, WIDTH) for n in range(12)},
        **{f"{one}.{n}.up_proj.weight": (INNER, WIDTH) for n in range(12)},
    }
    tensors = {name: draw.floats(*s) for name, s in plain.items() if name not in missing}
    stated = {key: value for key, value in QWEN.items() if key != "quantization_config"}
    source = write(folder, tensors, stated | {"num_local_experts": 12} | config)
    quantized = folder.with_name("quantized")
    checkpoint.quantize_file(source, quantized, "mxfp4", ignore=ignore)
    return tensors, quantized


def dense(folder: Path, extra: dict[str, tuple[int, ...]], **config: Any) -> Path:
    """Write a Qwen3 without experts, or a model like it, quantized to MXFP4, with other tensors."""
    draw, inner = Draw(), {"gate": (INNER, WIDTH), "up": (INNER, WIDTH), "down": (WIDTH, INNER)}
    shapes = OF_QWEN | {f"{AT}mlp.{half}_proj.weight": axes for half, axes in inner.items()}
    tensors = {name: draw.floats(*axes) for name, axes in (shapes | extra).items()}
    stated = {
        key: value for key, value in QWEN.items() if "experts" not in key and key[:5] != "quant"
    }
    source = write(folder, tensors, stated | {"model_type": "qwen3"} | config)
    quantized = folder.with_name("quantized")
    checkpoint.quantize_file(source, quantized, "mxfp4")
    return quantized
