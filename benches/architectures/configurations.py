"""The configurations that a class is built from: its default, and what changes its parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

from kinds import counts, other_counts
from transformers import PreTrainedConfig, PreTrainedModel

_TIMM = {"use_pretrained_backbone": False}
_SERIES = {"prediction_length": 24}

NEEDED_VALUES: Mapping[str, Mapping[str, Any]] = {
    "autoformer": _SERIES,
    "informer": _SERIES,
    "time_series_transformer": _SERIES,
    "aya_vision": {
        "vision_config": {"model_type": "siglip_vision_model", "num_attention_heads": 16}
    },
    "beit": {"out_indices": [3, 5, 7, 11]},
    "bridgetower": {"contrastive_hidden_size": 512},
    "conditional_detr": _TIMM,
    "dab-detr": _TIMM,
    "deformable_detr": _TIMM,
    "detr": _TIMM,
    "table-transformer": _TIMM,
    "dbrx": {"attn_config": {"rope_theta": 500000.0}},
    "dots1": {"n_routed_experts": 128, "n_shared_experts": 1, "first_k_dense_replace": 1},
    "esm": {"vocab_size": 33, "mask_token_id": 32, "pad_token_id": 1},
    "hunyuan_v1_dense": {"head_dim": 128},
    "hunyuan_v1_moe": {"head_dim": 128},
    "hunyuan_vl": {"text_config": {"head_dim": 128}},
    "hunyuan_vl_text": {"head_dim": 128},
    "ministral": {"head_dim": 128},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 16, "num_hidden_layers": 32},
    "nemotron": {"num_key_value_heads": 8},
    "reformer": {"is_decoder": True},
    "vilt": {"num_images": 2, "modality_type_vocab_size": 3},
    "wav2vec2-bert": {"vocab_size": 32},
    "wav2vec2-conformer": {"vocab_size": 32},
    "qwen3_omni_moe_talker_text": {"shared_expert_intermediate_size": 512},
    "qwen3_omni_moe_talker": {"text_config": {"shared_expert_intermediate_size": 512}},
    "qwen3_omni_moe": {"talker_config": {"text_config": {"shared_expert_intermediate_size": 512}}},
    "cohere_compass_text": {"layer_types": ["sliding_attention", "full_attention"] * 20},
    "diffusion_gemma": {
        "text_config": {"num_experts": 128, "moe_intermediate_size": 704, "top_k_experts": 8}
    },
    "diffusion_gemma_text": {"num_experts": 128, "moe_intermediate_size": 704, "top_k_experts": 8},
    "perceiver": {"d_latents": 1280},
    "chameleon": {"vq_config": {}, "vocabulary_map": {"<image>": 8711}},
    "emu3": {"vocabulary_map": {"<image>": 151851}},
    "cohere_compass": {
        "text_config": {"layer_types": ["sliding_attention", "full_attention"] * 20}
    },
    "deepseek_ocr2": {"text_config": {"mlp_layer_types": ["dense", *["sparse"] * 11]}},
    "deepseek_ocr2_text": {"mlp_layer_types": ["dense", *["sparse"] * 11]},
}
"""What the default of a type leaves out, without which it does not build."""

FORMS: Mapping[str, tuple[Mapping[str, Any], ...]] = {
    "t5": ({"feed_forward_proj": "gated-gelu"},),
    "mt5": ({"feed_forward_proj": "relu"},),
    "umt5": ({"feed_forward_proj": "relu"},),
    "longt5": ({"feed_forward_proj": "gated-gelu"}, {"encoder_attention_type": "transient-global"}),
    "switch_transformers": ({"feed_forward_proj": "gated-gelu"},),
    "pop2piano": ({"feed_forward_proj": "relu"},),
    "deepseek_v2": ({"q_lora_rank": None}, {"first_k_dense_replace": 1}),
    "deepseek_v3": ({"q_lora_rank": None},),
    "longcat_flash": ({"q_lora_rank": None},),
    "minicpm3": ({"q_lora_rank": None},),
    "glm4_moe_lite": ({"q_lora_rank": None},),
    "qwen2_moe": ({"mlp_only_layers": [0]}, {"decoder_sparse_step": 2}),
    "qwen3_moe": ({"mlp_only_layers": [0]},),
    "qwen3_next": ({"mlp_only_layers": [0]},),
    "qwen3_vl_moe": ({"text_config": {"mlp_only_layers": [0]}},),
    "llama4": ({"text_config": {"interleave_moe_layer_step": 2}},),
    "llama4_text": ({"interleave_moe_layer_step": 2},),
    "gemma4": (
        {
            "text_config": {
                "enable_moe_block": True,
                "num_experts": 128,
                "moe_intermediate_size": 704,
                "top_k_experts": 8,
            }
        },
        {
            "vision_config": {"model_type": "gemma4_vision"},
            "audio_config": {"model_type": "gemma4_audio"},
        },
    ),
    "gemma4_text": (
        {
            "enable_moe_block": True,
            "num_experts": 128,
            "moe_intermediate_size": 704,
            "top_k_experts": 8,
        },
    ),
    "granitemoehybrid": (
        {"layer_types": ["mamba", "attention"] * 16, "num_local_experts": 0},
        {"layer_types": ["mamba", "attention"] * 16, "num_local_experts": 64},
    ),
    "jamba": ({"num_experts": 1},),
    "falcon": (
        {"new_decoder_architecture": True},
        {"new_decoder_architecture": True, "num_ln_in_parallel_attn": 1},
        {"parallel_attn": False},
    ),
    "opt": ({"word_embed_proj_dim": 512},),
    "deberta": (
        {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "talking_head": True},
        {"position_biased_input": False, "embedding_size": 128},
    ),
    "deberta-v2": (
        {
            "relative_attention": True,
            "pos_att_type": ["c2p", "p2c"],
            "norm_rel_ebd": "layer_norm",
            "share_att_key": True,
            "conv_kernel_size": 3,
            "conv_act": "gelu",
        },
    ),
    "resnet": ({"layer_type": "basic"},),
    "regnet": ({"layer_type": "x"},),
    "wav2vec2": (
        {
            "feat_extract_norm": "layer",
            "do_stable_layer_norm": True,
            "adapter_attn_dim": 16,
            "conv_bias": True,
            "add_adapter": True,
            "output_hidden_size": 512,
        },
    ),
    "hubert": ({"feat_extract_norm": "layer", "do_stable_layer_norm": True, "conv_bias": True},),
    "wavlm": ({"feat_extract_norm": "layer", "do_stable_layer_norm": True, "conv_bias": True},),
    "stablelm": ({"qk_layernorm": True, "use_parallel_residual": False},),
    "nemotron_h": (),
    "dinov2": ({"use_swiglu_ffn": True},),
    "electra": ({"embedding_size": 256},),
    "gpt_bigcode": ({"multi_query": False},),
    "persimmon": ({"qk_layernorm": False},),
    "mamba2": ({"use_bias": True},),
    "esm": (
        {
            "position_embedding_type": "absolute",
            "vocab_size": 33,
            "mask_token_id": 32,
            "pad_token_id": 1,
            "emb_layer_norm_before": True,
        },
    ),
    "clip": ({"vision_config": {"hidden_size": 1024}},),
}
"""Values other than flags that bring other parameters, by type: as published models have them."""

_DENSE_FIRST = {"first_k_dense_replace": 1}
_DENSE_LAYER = {"mlp_only_layers": [0]}
_SHARED_KEYS = ({"num_kv_shared_layers": 10}, {"attention_k_eq_v": True})

MIXTURES: Mapping[str, tuple[Mapping[str, Any], ...]] = {
    "bamba": ({"attn_layer_indices": [9, 18, 27]},),
    "cohere2_moe": ({"mlp_layer_types": ["dense", *["sparse"] * 39]},),
    "gemma4": tuple({"text_config": each} for each in _SHARED_KEYS),
    "gemma4_text": _SHARED_KEYS,
    "gemma4_unified": tuple({"text_config": each} for each in _SHARED_KEYS),
    "gemma4_unified_text": _SHARED_KEYS,
    "inkling_text": ({"mlp_layer_types": ["dense", *["sparse"] * 65]},),
    "lfm2": ({"layer_types": ["conv", "full_attention"] * 16},),
    "mellum": ({"mlp_layer_types": ["dense", *["sparse"] * 27]},),
    "minimax_m3_vl_text": ({"mlp_layer_types": ["dense", *["sparse"] * 59]},),
    "mistral4": (_DENSE_FIRST,),
    "muse_spark_text": ({"mlp_layer_types": ["dense", *["sparse"] * 61]},),
    "qwen3_omni_moe_talker_text": (_DENSE_LAYER,),
    "qwen3_omni_moe_text": (_DENSE_LAYER,),
    "qwen3_vl_moe_text": (_DENSE_LAYER,),
}
"""Values that make some layers of a type differ, in what other layers of it have, too."""

_FLAG = (
    "bias",
    "qk_norm",
    "norm",
    "use_",
    "add_",
    "has_",
    "gate",
    "shared",
    "moe",
    "enable_",
    "relative",
    "projection",
    "parallel",
    "cross_attention",
    "conv",
    "mlp",
    "per_layer",
    "double",
    "layer_scale",
    "with_",
    "decoder",
    "pool",
    "adapter",
    "embed",
)
_NO_FLAG = (
    "use_cache",
    "is_encoder_decoder",
    "tie_",
    "gradient",
    "output_",
    "return_",
    "_pretrained_backbone",
    "timm",
    "jit",
    "kernel",
    "flash",
    "fused",
    "fast",
    "norm_topk",
    "is_decoder_only",
    "loss",
    "mup",
)


_XL = {
    "addition_embed_type": "text_time",
    "addition_time_embed_dim": 256,
    "projection_class_embeddings_input_dim": 2816,
    "use_linear_projection": True,
    "cross_attention_dim": 2048,
    "transformer_layers_per_block": [1, 2, 10, 10],
}

DIFFUSION: Mapping[str, tuple[Mapping[str, Any], ...]] = {
    "UNet2DConditionModel": ({}, _XL, {"class_embed_type": "timestep", "attention_type": "gated"}),
    "ControlNetModel": ({}, _XL),
    "ControlNetUnionModel": (
        {
            "addition_embed_type": "text_time",
            "addition_time_embed_dim": 256,
            "projection_class_embeddings_input_dim": 2816,
        },
    ),
    "Transformer2DModel": (
        {"in_channels": 320},
        {
            "sample_size": 32,
            "patch_size": 2,
            "in_channels": 4,
            "norm_type": "ada_norm_zero",
            "num_embeds_ada_norm": 1000,
        },
    ),
    "TransformerTemporalModel": ({"in_channels": 320},),
    "HunyuanDiT2DModel": (
        {
            "in_channels": 4,
            "patch_size": 2,
            "sample_size": 128,
            "activation_fn": "gelu-approximate",
        },
    ),
    "HunyuanDiT2DControlNetModel": (
        {
            "in_channels": 4,
            "patch_size": 2,
            "sample_size": 128,
            "activation_fn": "gelu-approximate",
        },
    ),
    "LatteTransformer3DModel": (
        {
            "in_channels": 4,
            "sample_size": 64,
            "patch_size": 2,
            "norm_type": "ada_norm_single",
            "caption_channels": 4096,
            "cross_attention_dim": 1152,
            "attention_head_dim": 72,
        },
    ),
    "LuminaNextDiT2DModel": ({"num_kv_heads": 8, "hidden_size": 2304, "num_attention_heads": 32},),
    "HiDreamImageTransformer2DModel": (
        {
            "patch_size": 2,
            "in_channels": 16,
            "num_layers": 16,
            "num_single_layers": 32,
            "attention_head_dim": 128,
            "num_attention_heads": 20,
            "caption_channels": [4096, 4096],
            "text_emb_dim": 2048,
            "num_routed_experts": 4,
            "num_activated_experts": 2,
            "axes_dims_rope": (64, 32, 32),
            "max_resolution": (128, 128),
            "llama_layers": [0, 1],
        },
    ),
    "OmniGenTransformer2DModel": (
        {"rope_scaling": {"short_factor": [1.0] * 48, "long_factor": [1.0] * 48}},
    ),
    "EasyAnimateTransformer3DModel": ({"in_channels": 16, "patch_size": 2, "out_channels": 16},),
    "DreamLiteTransformer2DModel": ({"in_channels": 320},),
    "ZImageControlNetModel": (
        {
            "control_layers_places": [0, 5],
            "control_refiner_layers_places": [0, 1],
            "control_in_dim": 16,
        },
    ),
    "UniDiffuserModel": ({"sample_size": 64, "patch_size": 2, "in_channels": 4},),
    "AutoencoderKLHunyuanImage": (
        {
            "in_channels": 3,
            "out_channels": 3,
            "latent_channels": 64,
            "block_out_channels": (128, 256, 512, 512, 1024, 1024),
            "layers_per_block": 2,
            "spatial_compression_ratio": 32,
            "sample_size": 384,
        },
    ),
    "FluxTransformer2DModel": ({"guidance_embeds": True},),
    "SD3Transformer2DModel": ({"dual_attention_layers": (0, 1), "qk_norm": "rms_norm"},),
}
"""Arguments of diffusers' classes: those without which they do not build, and other forms."""


def diffusion_arguments(name: str) -> tuple[Mapping[str, Any], ...]:
    """Return the arguments of each form of a class of diffusers."""
    return DIFFUSION.get(name, ({},))


def configurations(kind: type[PreTrainedModel]) -> Iterator[Callable[[], PreTrainedConfig]]:
    """Yield makers of configurations: the default, those of FORMS, and with every flag turned."""
    config_class = kind.config_class
    model_type = getattr(config_class, "model_type", "")
    needed_values = NEEDED_VALUES.get(model_type, {})
    yield partial(config_class, **needed_values)
    for form in FORMS.get(model_type, ()):
        yield partial(config_class, **{**needed_values, **form})


def flagged_configurations(kind: type[PreTrainedModel]) -> Iterator[Callable[[], PreTrainedConfig]]:
    """Yield makers of configurations with flags of parameters turned: all at once, then each."""
    config_class = kind.config_class
    needed_values = NEEDED_VALUES.get(getattr(config_class, "model_type", ""), {})
    flags = _flags(config_class(**needed_values))
    if flags:
        yield partial(_turn_flags, config_class, needed_values, flags)
    if len(flags) > 1:
        for flag in flags:
            yield partial(_turn_flags, config_class, needed_values, [flag])


def mixed_configurations(
    kind: type[PreTrainedModel], paths: Iterable[str]
) -> Iterator[Callable[[], PreTrainedConfig]]:
    """Yield makers of configurations that tell layers: no two counts of some paths are equal.

    Those of MIXTURES follow.
    """
    config_class = kind.config_class
    model_type = getattr(config_class, "model_type", "")
    needed_values = NEEDED_VALUES.get(model_type, {})
    config = config_class(**needed_values)
    other_values = other_counts(config.to_dict(), numbers_of(config), paths)
    for values in (other_values, *MIXTURES.get(model_type, ())):
        yield partial(config_class, **_merge(needed_values, values))


def numbers_of(config: PreTrainedConfig) -> dict[str, int]:
    """Return the numbers of a configuration that may count layers or experts, by their paths."""
    return counts(config.to_dict(), {path: part.attribute_map for path, part in parts_of(config)})


def parts_of(config: PreTrainedConfig, path: str = "") -> Iterator[tuple[str, PreTrainedConfig]]:
    """Yield a configuration, and those within it, each with its path."""
    yield path, config
    for name, part in vars(config).items():
        if isinstance(part, PreTrainedConfig):
            yield from parts_of(part, f"{path}.{name}" if path else name)


def _merge(values: Mapping[str, Any], others: Mapping[str, Any]) -> dict[str, Any]:
    """Return values with others within them in their places."""
    return {**values} | {
        name: _merge(values[name], value)
        if isinstance(value, Mapping) and isinstance(values.get(name), Mapping)
        else value
        for name, value in others.items()
    }


def _flags(config: PreTrainedConfig, prefix: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """List the paths of the flags of a configuration, and of those within it."""
    paths = []
    for name, value in sorted(vars(config).items()):
        if isinstance(value, PreTrainedConfig):
            paths += _flags(value, (*prefix, name))
        elif isinstance(value, bool) and _is_of_parameters(name):
            paths.append((*prefix, name))
    return paths


def _is_of_parameters(flag: str) -> bool:
    return any(part in flag for part in _FLAG) and not any(part in flag for part in _NO_FLAG)


def _turn_flags(
    config_class: type[PreTrainedConfig],
    needed_values: Mapping[str, Any],
    flags: list[tuple[str, ...]],
) -> PreTrainedConfig:
    config = config_class(**needed_values)
    for *path, name in flags:
        part = config
        for step in path:
            part = getattr(part, step)
        setattr(part, name, not getattr(part, name))
    return config
