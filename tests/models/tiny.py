"""A tiny model of every type that transformers builds: its own configuration, with every size cut.

One rule for all types: a size is cut by what its name says. Where no cut builds, there is none.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any

WIDTH, INNER, HEAD, HEADS, KEY_HEADS, RANK, EXPERTS, VOCABULARY = 128, 256, 32, 4, 2, 128, 4, 192
"""Inputs of layers are multiples of 128, the longest group of a recipe."""

MOST_PARAMETERS = 40_000_000
"""A model that is larger, though cut, is left out."""

HEADS_FIRST = (
    "IMAGE_TEXT_TO_TEXT",
    "MULTIMODAL_LM",
    "SEQ_TO_SEQ_CAUSAL_LM",
    "SPEECH_SEQ_2_SEQ",
    "MASKED_LM",
    "CAUSAL_LM",
    "CTC",
    "IMAGE_CLASSIFICATION",
    "SEQUENCE_CLASSIFICATION",
    "OBJECT_DETECTION",
    "AUDIO_CLASSIFICATION",
    "PRETRAINING",
    "SEMANTIC_SEGMENTATION",
    "DEPTH_ESTIMATION",
    "ZERO_SHOT_IMAGE_CLASSIFICATION",
)
"""The tasks whose class of a model is taken before the one without a head."""

_TOKEN = re.compile(r".*(?:_id|_index|_idx)|.*token_ids?")
_LAYERS = re.compile(
    r"(?:.*_)?(?:num_|n_)?(?:\w+_)?(?:layers|blocks)|n_layer|(?:.*_)?depth|n_layers?(?!_per).*"
    r"|num_hidden_layers|[lxr]_layers|num_nextn_predict_layers|num_hidden_groups"
)
_KEPT = re.compile(
    r".*(?:kernel|stride|patch|image_size|padding|kv_shared|conv|num_labels|dilation|upsampl|fpn|mask_).*"
)
_PLACES = re.compile(r".*(?:layers|layer_ids|layer_idxs?|idxs|indexes|indices)")
_EXPERTS = re.compile(
    r"(?:num_|n_|moe_num_|num_local_|n_routed_|num_routed_|moe_)*experts|num_local_experts"
    r"|zero_expert_num|ffn_num_experts"
)
_CHOSEN = re.compile(
    r"(?:num_)?experts_per_tok(?:en)?|num_experts_per_tok(?:en)?|moe_(?:top)?k|top_?k|top_k_experts"
)
_PERIOD = re.compile(r".*(?:_period|_interval|sparse_step|_every|every_n_layers|_pattern)")
_HEADS = re.compile(r"(?:.*_)?(?:n_)?heads?|.*(?:attention_)?heads|n_head|num_query_groups")
_KEY_HEADS = re.compile(r".*(?:key_value|kv|key)(?:_attention)?_heads?")
_HEAD = re.compile(
    r"(?:.*_)?(?:head_dim|dim_head|d_head|d_kv|head_size|attention_head_dim|headdim|query_pre_attn_scalar)"
)
_INNER = re.compile(
    r".*(?:intermediate|inner|ffn|ff_dim|mlp_dim|d_ff|dff|feed_?forward|linear_units).*"
)
_WIDTH = re.compile(
    r".*(?:hidden|d_model|model_dim|n_embd|embed_dim|embedding_size|emb_dim|lru_width|width|output_dim"
    r"|projection|proj_size|out_dim|proj_dim|dim_model|hidden_dim|true_hidden_size|hidden_dimension).*"
    r"|dim|d_latents|.*_dim|.*_units"
)


def model_types() -> tuple[str, ...]:
    """Return every type of a model that has a class, in order."""
    from transformers.models.auto import modeling_auto  # noqa: PLC0415

    tables = [_table(modeling_auto, task) for task in HEADS_FIRST]
    return tuple(sorted({name for table in (*tables, _table(modeling_auto, "")) for name in table}))


def model_class(model_type: str) -> Any:
    """Return the class that a checkpoint of a type most likely names."""
    import transformers  # noqa: PLC0415
    from transformers.models.auto import modeling_auto  # noqa: PLC0415

    for task in (*HEADS_FIRST, ""):
        if name := _table(modeling_auto, task).get(model_type):
            return getattr(transformers, name if isinstance(name, str) else name[0])
    raise KeyError(model_type)


def _table(module: Any, task: str) -> Mapping[str, Any]:
    table: Mapping[str, Any] = getattr(
        module, f"MODEL_{'FOR_' + task + '_' if task else ''}MAPPING_NAMES"
    )
    return table


@cache
def tiny_config(model_type: str, cut: int = 0) -> Any:
    """Return a configuration of small sizes; `cut` names one of `CUTS`."""
    from transformers import CONFIG_MAPPING  # noqa: PLC0415

    kind = CONFIG_MAPPING[model_type]
    whole = kind().to_dict()
    return kind(**_cut(whole, CUTS[cut]) | WANTED.get(model_type, {}))


def build(model_type: str) -> Any:
    """Build a tiny model with random weights in bfloat16.

    Raises
    ------
    NotImplementedError
        No cut of its configuration builds.

    """
    import torch  # noqa: PLC0415

    reasons = []
    for cut in range(len(CUTS)):
        try:
            kind, config = model_class(model_type), tiny_config(model_type, cut)
            with torch.device("meta"):
                empty = kind(config)
            if sum(p.numel() for p in empty.parameters()) > MOST_PARAMETERS:
                reasons.append(f"{sum(p.numel() for p in empty.parameters())} parameters")
                continue
            torch.manual_seed(0)
            model = kind(config).to(torch.bfloat16).eval()
        except Exception as error:
            reasons.append(f"{type(error).__name__}: {error}"[:200])
        else:
            _fill(model)
            return model
    raise NotImplementedError(f"{model_type}: {reasons}")


def _fill(model: Any) -> None:
    """Give every matrix values of its own, of which many are 0 or alike at first."""
    import torch  # noqa: PLC0415

    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.is_floating_point() and parameter.ndim > 1:
                parameter.normal_(0, 0.05)


def _cut(config: Mapping[str, Any], rules: tuple[str, ...]) -> dict[str, Any]:
    """Cut every size of a configuration and of those in it."""
    sizes = dict(config)
    for name in DERIVED:
        sizes.pop(name, None)
    identifiers = iter(range(VOCABULARY - 1, 8, -1))
    for name, value in config.items():
        if name not in sizes or isinstance(value, (bool, str)) or value is None:
            continue
        if isinstance(value, dict):
            nested = "model_type" in value or name.endswith("_config")
            if nested:
                sizes[name] = _cut(value, rules) | (
                    {"model_type": value["model_type"]} if "model_type" in value else {}
                )
            elif "rope" in name:
                sizes[name] = _rope(value, config)
        elif isinstance(value, (list, tuple)):
            sizes[name] = _list(name, list(value), config, rules)
        elif isinstance(value, int) and value > 1:
            sizes[name] = _size(name, value, config, rules, identifiers)
    return sizes


def _layers(config: Mapping[str, Any]) -> int | None:
    for name in ("num_hidden_layers", "n_layer", "num_layers", "n_layers"):
        if isinstance(count := config.get(name), int):
            return count
    return None


def _chosen(config: Mapping[str, Any]) -> list[int]:
    """Number the layers that are left: one of each kind, at least two, at most four."""
    count = _layers(config)
    if not count:
        return []
    lists = [
        value
        for name, value in config.items()
        if isinstance(value, (list, tuple)) and len(value) == count and name != "depths"
    ]
    rows = list(map(repr, zip(*lists, strict=True))) if lists else []
    first = {row: place for place, row in reversed(list(enumerate(rows)))}
    chosen = sorted(first.values())[:4]
    return chosen if len(chosen) > 1 else list(range(min(2, count)))


def _list(
    name: str, value: list[Any], config: Mapping[str, Any], rules: tuple[str, ...]
) -> list[Any]:
    numbers = [v for v in value if isinstance(v, int) and not isinstance(v, bool)]
    if len(value) == _layers(config) and name != "depths":
        return [value[place] for place in _chosen(config)]
    if not value or len(numbers) < len(value):
        return value
    if name in {"depths", "num_blocks", "stage_num_blocks", "blocks_per_stage"}:
        return [1] * len(value)
    if _PLACES.fullmatch(name):
        return [place for place, layer in enumerate(_chosen(config)) if layer in value]
    widths = "hidden_sizes" in name or "embed_dims" in name
    if "lists" in rules and widths and all(v % 128 == 0 for v in numbers):
        return [v // 4 for v in value]
    return value


def _rope(value: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """Cut the sections of rotary embeddings as their head is cut."""
    whole = config.get("head_dim") or config.get("hidden_size", 1) // max(
        1, config.get("num_attention_heads", 1) or 1
    )
    return {
        key: [max(1, n * HEAD // whole) for n in each]
        if isinstance(each, list) and "section" in key
        else 10000.0
        if key == "rope_theta" and each is None
        else _rope(each, config)
        if isinstance(each, dict)
        else each
        for key, each in value.items()
    }


def _size(
    name: str,
    value: int,
    config: Mapping[str, Any],
    rules: tuple[str, ...],
    identifiers: Iterator[int],
) -> int:
    if _TOKEN.fullmatch(name):
        return value if value < 8 else next(identifiers)
    if "vocab" in name:
        return min(value, VOCABULARY)
    if _KEPT.fullmatch(name):
        return value
    for pattern, most in _sizes(config, rules):
        if pattern.fullmatch(name):
            return min(value, most(value) if callable(most) else most)
    return value


def _sizes(
    config: Mapping[str, Any], rules: tuple[str, ...]
) -> Iterator[tuple[re.Pattern[str], int | Callable[[int], int]]]:
    yield _CHOSEN, 2
    yield _EXPERTS, EXPERTS
    yield _PERIOD, 2
    yield re.compile(r".*_offset|first_k_dense_replace|moe_layer_start_index|num_dense_layers"), 1
    yield re.compile(r"n_group|topk_group|num_expert_group"), 1
    yield re.compile(r"max_window_layers"), 1
    yield re.compile(r"num_hidden_layers|n_layer|num_layers|n_layers"), len(_chosen(config))
    yield _LAYERS, 2
    yield re.compile(r"max_position_embeddings|n_positions|n_ctx|max_source_positions"), 128
    if "widths" not in rules:
        return
    yield re.compile(r".*qk_rope_head_dim"), 16
    yield re.compile(r"(?:.*_)?(?:kv|q|o)_lora_rank"), RANK
    rotary = config.get("qk_rope_head_dim")
    yield _HEAD, lambda value: 16 if value == rotary else HEAD
    heads = config.get("num_attention_heads")
    if "expand" in config or "mamba_expand" in config:
        yield (
            re.compile(
                r"mamba_(?:n|num)_heads|n_mamba_heads" + ("|num_heads" * ("state_size" in config))
            ),
            2 * HEADS,
        )
    yield re.compile("upsample_groups"), WIDTH
    yield _KEY_HEADS, lambda value: HEADS if value == heads else KEY_HEADS
    yield _HEADS, HEADS
    yield _INNER, lambda value: WIDTH if value <= 512 else INNER
    yield _WIDTH, WIDTH


DERIVED = (
    "model_type",
    "architectures",
    "transformers_version",
    "_name_or_path",
    "qk_head_dim",
    "stage_names",
    "out_features",
    "out_indices",
    "num_feat_extract_layers",
    "per_layer_config",
)
"""What a configuration derives of its sizes."""

WANTED: dict[str, dict[str, Any]] = {
    "dbrx": {"attn_config": {"kv_n_heads": 2, "clip_qkv": 8, "rope_theta": 1e4}},
    "dots1": {"n_routed_experts": 4, "n_shared_experts": 1},
    "esm": {"vocab_size": VOCABULARY, "pad_token_id": 1, "mask_token_id": 32},
    "gemma3n_text": {"num_kv_shared_layers": 0},
    "hunyuan_v1_dense": {"head_dim": HEAD},
    "hunyuan_v1_moe": {"head_dim": HEAD},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"], "num_hidden_layers": 2},
    "ministral": {"head_dim": HEAD},
    "nemotron": {"head_dim": HEAD},
    "autoformer": {"prediction_length": 8},
    "informer": {"prediction_length": 8},
    "time_series_transformer": {"prediction_length": 8},
    "chameleon": {"vocabulary_map": {"<image>": 8}},
}
"""What a class needs and its configuration has no value for."""

CUTS = (("widths", "lists"), ("widths",), ("lists",), ())
"""What is cut beside layers, experts and words: less and less, until a model builds."""


def inputs(model: Any) -> Iterator[dict[str, Any]]:
    """Give inputs that a model may take, likelier ones first."""
    import torch  # noqa: PLC0415

    config, takes = model.config, _arguments(model)
    text = getattr(config, "text_config", config)
    tokens = torch.arange(9, 21)[None] % max(
        2, min(VOCABULARY, getattr(text, "vocab_size", 32) or 32)
    )
    images = getattr(config, "vision_config", config)
    side = getattr(images, "image_size", None) or 64
    side = side if isinstance(side, int) else side[0]
    channels = getattr(images, "num_channels", None) or 3
    torch.manual_seed(1)
    image = torch.randn(1, channels, side, side) if side <= 384 else None
    decoder = {"decoder_input_ids": tokens} if "decoder_input_ids" in takes else {}
    mel = getattr(config, "num_mel_bins", None) or getattr(config, "input_feat_per_channel", 80)
    length = 2 * (getattr(config, "max_source_positions", None) or 64)
    candidates: list[dict[str, Any]] = [
        {"input_ids": tokens, **decoder},
        {"pixel_values": image},
        {"input_ids": tokens, "pixel_values": image, **decoder},
        {"input_features": torch.randn(1, mel, length), **decoder},
        {"input_features": torch.randn(1, length, mel), **decoder},
        {"input_values": torch.randn(1, 4000), **decoder},
        {"input_values": torch.randn(1, 1, 4000)},
        {"pixel_values": torch.randn(1, 4, channels, 64, 64)},
    ]
    for candidate in candidates:
        if candidate.keys() <= takes and all(value is not None for value in candidate.values()):
            yield {
                name: value.to(model.dtype) if value.is_floating_point() else value
                for name, value in candidate.items()
            }


def _arguments(model: Any) -> set[str]:
    import inspect  # noqa: PLC0415

    found = inspect.signature(model.forward).parameters
    names = set(found)
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in found.values()):
        names.update([main] if isinstance(main := model.main_input_name, str) else main)
    return names


def outputs(model: Any, values: dict[str, Any]) -> list[Any]:
    """Return the tensors that a model computes of inputs."""
    import torch  # noqa: PLC0415

    torch.manual_seed(2)
    with torch.no_grad():
        result = model(**values)
    found: list[Any] = []

    def collect(value: Any) -> None:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, Mapping):
            for each in value.values():
                collect(each)
        elif isinstance(value, (list, tuple)):
            for each in value:
                collect(each)

    collect(result)
    return found


def quiet() -> None:
    """Leave out what transformers logs of sizes that no tokenizer has."""
    logging.getLogger("transformers").setLevel(logging.ERROR)
