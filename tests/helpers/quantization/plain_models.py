"""Models of many architectures, none of them quantized: what must not be taken for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

TEXT = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "vocab_size": 32,
    "pad_token_id": 0,
}
IMAGE = {**TEXT, "image_size": 32, "patch_size": 8}
EXPERTS = {"num_experts": 2, "num_local_experts": 2, "moe_intermediate_size": 8}
WINDOWS = {"embed_dim": 8, "depths": [1, 1], "num_heads": [1, 2], "window_size": 4}

CONFIGS: dict[str, dict[str, Any]] = {
    "LlamaModel": TEXT,
    "GemmaModel": TEXT,
    "Qwen3MoeModel": {**TEXT, **EXPERTS},
    "MixtralModel": {**TEXT, **EXPERTS},
    "GptOssModel": {**TEXT, **EXPERTS},
    "DeepseekV3Model": {
        **TEXT,
        "n_routed_experts": 4,
        "n_group": 2,
        "topk_group": 1,
        "num_experts_per_tok": 2,
        "first_k_dense_replace": 0,
        "kv_lora_rank": 8,
        "q_lora_rank": 8,
        "qk_rope_head_dim": 4,
        "qk_nope_head_dim": 4,
        "v_head_dim": 8,
        "moe_intermediate_size": 8,
    },
    "MambaModel": {**TEXT, "state_size": 4},
    "BertModel": TEXT,
    "T5Model": {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 2},
    "GPT2Model": {"n_embd": 16, "n_layer": 1, "n_head": 2, "vocab_size": 32},
    "WhisperModel": {
        "d_model": 16,
        "encoder_layers": 1,
        "decoder_layers": 1,
        "encoder_attention_heads": 2,
        "decoder_attention_heads": 2,
        "encoder_ffn_dim": 32,
        "decoder_ffn_dim": 32,
        "vocab_size": 64,
        "pad_token_id": 0,
    },
    "Wav2Vec2Model": {
        **TEXT,
        "conv_dim": [8, 8],
        "conv_stride": [2, 2],
        "conv_kernel": [3, 3],
        "num_conv_pos_embeddings": 4,
        "num_conv_pos_embedding_groups": 2,
    },
    "ViTModel": IMAGE,
    "BeitModel": {**IMAGE, "use_relative_position_bias": True, "layer_scale_init_value": 0.1},
    "Data2VecVisionModel": {**IMAGE, "use_shared_relative_position_bias": True},
    "Dinov2Model": IMAGE,
    "SwinModel": {**WINDOWS, "image_size": 32, "patch_size": 4},
    "Swinv2Model": {**WINDOWS, "image_size": 32, "patch_size": 4},
    "ConvNextModel": {"hidden_sizes": [8, 8, 8, 8], "depths": [1, 1, 1, 1]},
    "ResNetModel": {
        "embedding_size": 8,
        "hidden_sizes": [8, 8],
        "depths": [1, 1],
        "layer_type": "basic",
    },
    "CLIPModel": {"text_config": TEXT, "vision_config": IMAGE, "projection_dim": 8},
    "SiglipModel": {"text_config": TEXT, "vision_config": IMAGE},
    "EncodecModel": {"num_filters": 4, "hidden_size": 16, "codebook_size": 16},
}
"""For each architecture, a configuration as small as it can be."""


def save(architecture: str, folder: Path) -> None:
    """Write a model with random weights, as transformers does."""
    import transformers  # noqa: PLC0415

    model = getattr(transformers, architecture)
    model(model.config_class(**CONFIGS[architecture])).save_pretrained(folder)


def same_results(torch: Any, one: Any, other: Any) -> None:
    """Two models have the same parameters, and the same results to the last bit."""
    parameters = dict(other.named_parameters())
    assert set(parameters) == {name for name, _ in one.named_parameters()}
    for name, parameter in one.named_parameters():
        assert parameter.dtype == parameters[name].dtype
        assert torch.equal(parameter, parameters[name]), name
    tokens = torch.arange(1, 9).reshape(1, 8)
    with torch.no_grad():
        results = [model.eval()(tokens).last_hidden_state for model in (one, other)]
    assert torch.isfinite(results[0]).all()
    assert torch.equal(*results)
