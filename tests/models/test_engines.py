"""What engines join and build unquantized, beside what their sources say, read by hand.

The sources are those of vLLM 0.33.0, SGLang 0.5.23 and mlx-lm 0.32.2.
"""

import re
from pathlib import Path

import pytest
from castwise.models import engines as engines_module
from castwise.models.engines import find_engines, read_engines

TABLE = Path(engines_module.__file__).with_name("engines.txt")
QKV = " ".join(f"model.layers.3.self_attn.{part}_proj" for part in "qkv")
GATE_UP = "model.layers.3.mlp.gate_proj model.layers.3.mlp.up_proj"
EXPERTS = "model.layers.3.mlp.experts.7.gate_proj model.layers.3.mlp.experts.7.up_proj"
MLA = "model.layers.3.self_attn.q_a_proj model.layers.3.self_attn.kv_a_proj_with_mqa"
QWEN = "model.language_model.layers.3.linear_attn"
VLLM, SGLANG, BOTH = ("vllm",), ("sglang",), ("vllm", "sglang")


@pytest.mark.parametrize(
    ("engines", "model", "group"),
    [
        (BOTH, "LlamaForCausalLM", QKV),
        (BOTH, "LlamaForCausalLM", GATE_UP),
        (BOTH, "MistralForCausalLM", QKV),
        (BOTH, "Qwen2ForCausalLM", QKV),
        (BOTH, "Gemma3ForCausalLM", GATE_UP),
        (BOTH, "Qwen3MoeForCausalLM", EXPERTS),
        (BOTH, "DeepseekV3ForCausalLM", EXPERTS),
        (BOTH, "DeepseekV3ForCausalLM", MLA),
        (BOTH, "DeepseekV32ForCausalLM", MLA),
        (BOTH, "GlmMoeDsaForCausalLM", MLA),
        (BOTH, "Qwen3NextForCausalLM", QKV),
        (
            BOTH,
            "Qwen3_5MoeForConditionalGeneration",
            f"{QWEN}.in_proj_qkv {QWEN}.in_proj_z",
        ),
        (BOTH, "Qwen3_5ForConditionalGeneration", f"{QWEN}.in_proj_b {QWEN}.in_proj_a"),
        (
            BOTH,
            "MixtralForCausalLM",
            "model.layers.0.block_sparse_moe.experts.1.w1"
            " model.layers.0.block_sparse_moe.experts.1.w3",
        ),
        (
            BOTH,
            "DbrxForCausalLM",
            "transformer.blocks.0.ffn.experts.mlp.w1 transformer.blocks.0.ffn.experts.mlp.v1",
        ),
        (VLLM, "Step3p5ForCausalLM", "model.layers.4.moe.gate_proj model.layers.4.moe.up_proj"),
        (
            VLLM,
            "BertModel",
            " ".join(
                f"bert.encoder.layer.1.attention.self.{end}" for end in ("query", "key", "value")
            ),
        ),
        (
            VLLM,
            "Gemma3ForConditionalGeneration",
            "language_model.model.layers.1.self_attn.q_proj"
            " language_model.model.layers.1.self_attn.k_proj"
            " language_model.model.layers.1.self_attn.v_proj",
        ),
        (
            VLLM,
            "Llama4ForConditionalGeneration",
            "language_model.model.layers.0.feed_forward.shared_expert.gate_proj"
            " language_model.model.layers.0.feed_forward.shared_expert.up_proj",
        ),
    ],
)
def test_modules_that_an_engine_joins(engines: tuple[str, ...], model: str, group: str) -> None:
    names = tuple(group.split())
    for engine in engines:
        rules = find_engines(model)[engine]
        for name in names:
            assert set(rules.partners(name)) == set(names), engine


@pytest.mark.parametrize(
    ("engines", "model", "module"),
    [
        (BOTH, "LlamaForCausalLM", "model.embed_tokens"),
        (BOTH, "MixtralForCausalLM", "model.layers.0.block_sparse_moe.gate"),
        (VLLM, "Qwen3NextForCausalLM", "lm_head"),
        (BOTH, "Qwen3NextForCausalLM", "model.layers.0.mlp.shared_expert_gate"),
        (BOTH, "Qwen3NextForCausalLM", "model.layers.0.linear_attn.conv1d"),
        (BOTH, "Qwen3_5MoeForConditionalGeneration", "model.language_model.layers.0.mlp.gate"),
        (BOTH, "DeepseekV3ForCausalLM", "model.layers.9.mlp.gate"),
        (BOTH, "DeepseekV32ForCausalLM", "model.layers.9.self_attn.indexer.weights_proj"),
        (BOTH, "GlmMoeDsaForCausalLM", "model.layers.9.self_attn.indexer.weights_proj"),
        (VLLM, "GlmMoeDsaForCausalLM", "model.layers.9.self_attn.indexer.wk"),
        (BOTH, "GptOssForCausalLM", "model.layers.0.mlp.router"),
        (VLLM, "GraniteMoeForCausalLM", "model.layers.0.block_sparse_moe.router.layer"),
        (BOTH, "DbrxForCausalLM", "transformer.blocks.0.ffn.router.layer"),
        (VLLM, "Step3p5ForCausalLM", "model.layers.4.moe.gate"),
        (BOTH, "Llama4ForCausalLM", "model.layers.0.feed_forward.router"),
        (VLLM, "Mamba2ForCausalLM", "lm_head"),
        (BOTH, "NemotronHForCausalLM", "backbone.layers.1.mixer.conv1d"),
        (("mlx-lm",), "deepseek_v3", "model.layers.9.mlp.gate"),
        # Towers and their projectors.
        (VLLM, "Llama4ForConditionalGeneration", "vision_model.model.layers.0.mlp.fc1"),
        (VLLM, "Llama4ForConditionalGeneration", "multi_modal_projector.linear_1"),
        (VLLM, "InternVLForConditionalGeneration", "model.vision_tower.encoder.layer.0.mlp.fc1"),
        (
            VLLM,
            "PixtralForConditionalGeneration",
            "vision_encoder.transformer.layers.0.attention.wq",
        ),
        (VLLM, "Gemma4ForConditionalGeneration", "model.vision_tower.encoder.layers.0.mlp.up_proj"),
        (VLLM, "LlavaOnevisionForConditionalGeneration", "multi_modal_projector.linear_1"),
        (
            VLLM,
            "LlavaForConditionalGeneration",
            "vision_tower.vision_model.encoder.layers.0.mlp.fc1",
        ),
        (VLLM, "PaliGemmaForConditionalGeneration", "multi_modal_projector.linear"),
    ],
)
def test_modules_that_an_engine_builds_unquantized(
    engines: tuple[str, ...], model: str, module: str
) -> None:
    for engine in engines:
        rules = find_engines(model)[engine]
        assert rules.keeps(module), engine
        assert not any(rules.keeps_alone(name) for name in QKV.split()), engine


@pytest.mark.parametrize(
    ("engine", "model", "module"),
    [
        ("vllm", "LlamaForCausalLM", "lm_head"),
        ("vllm", "Qwen3MoeForCausalLM", "model.layers.0.mlp.gate"),
        ("vllm", "Phi3ForCausalLM", "model.layers.0.self_attn.qkv_proj"),
        ("vllm", "Mamba2ForCausalLM", "backbone.layers.0.mixer.in_proj"),
        ("vllm", "DeepseekV32ForCausalLM", "model.layers.9.self_attn.indexer.wq_b"),
        ("vllm", "Qwen3_5MoeForConditionalGeneration", "model.visual.blocks.0.attn.qkv"),
        # Towers.
        ("vllm", "Qwen2VLForConditionalGeneration", "visual.blocks.0.mlp.fc1"),
        ("vllm", "Qwen2_5_VLForConditionalGeneration", "model.visual.blocks.0.attn.qkv"),
        ("vllm", "Qwen2_5_VLForConditionalGeneration", "visual.blocks.0.mlp.down_proj"),
        ("vllm", "Exaone4_5_ForConditionalGeneration", "model.visual.blocks.0.mlp.down_proj"),
        ("vllm", "Qwen3VLForConditionalGeneration", "model.visual.blocks.0.mlp.linear_fc1"),
        (
            "vllm",
            "LlavaForConditionalGeneration",
            "vision_tower.vision_model.encoder.layers.0.self_attn.out_proj",
        ),
        (
            "vllm",
            "Gemma3ForConditionalGeneration",
            "model.vision_tower.vision_model.encoder.layers.0.self_attn.out_proj",
        ),
        ("vllm", "Idefics3ForConditionalGeneration", "model.vision_model.encoder.layers.0.mlp.fc1"),
        ("vllm", "InternVLChatModel", "vision_model.encoder.layers.0.attn.qkv"),
        (
            "vllm",
            "Mistral3ForConditionalGeneration",
            "model.vision_tower.transformer.layers.0.attention.o_proj",
        ),
        ("mlx-lm", "llama", "model.embed_tokens"),
        ("mlx-lm", "gpt_oss", "model.layers.0.mlp.router"),
    ],
)
def test_modules_that_an_engine_quantizes_alone(engine: str, model: str, module: str) -> None:
    rules = find_engines(model)[engine]
    assert not rules.keeps(module)
    assert rules.partners(module) == (module,)


def test_a_decision_of_the_format_counts_as_unquantized() -> None:
    """SGLang's Qwen3-Next has no quantized qkv_proj in one format (`get_name()`)."""
    rules = find_engines("Qwen3NextForCausalLM")["sglang"]
    assert "model.layers.#.self_attn.q_proj" in rules.open_modules
    assert rules.keeps("model.layers.0.self_attn.q_proj")


def test_names_of_base_models_and_of_composites() -> None:
    """Files leave the first part off, and releases of transformers put `model.` elsewhere."""
    llama = find_engines("LlamaForCausalLM")["vllm"]
    assert llama.partners("layers.3.mlp.up_proj") == (
        "layers.3.mlp.gate_proj",
        "layers.3.mlp.up_proj",
    )
    gemma = find_engines("Gemma3ForConditionalGeneration")["vllm"]
    for parent in ("model.language_model", "language_model.model"):
        assert gemma.partners(f"{parent}.layers.1.mlp.up_proj") == (
            f"{parent}.layers.1.mlp.gate_proj",
            f"{parent}.layers.1.mlp.up_proj",
        )


def test_a_class_that_no_engine_has() -> None:
    assert find_engines("NoSuchModel", "no_such_type") == {}
    assert set(find_engines("NoSuchModel", "llama")) == {"mlx-lm"}


def test_every_block_of_the_table_can_be_read() -> None:
    head, _, index = TABLE.read_text("utf-8").partition("first part.\n")
    assert re.search(r"vllm [0-9.]+, sglang [0-9.]+, mlx_lm [0-9.]+", head)
    names = [line.split("\t")[0] for line in index.partition("\n\n")[0].splitlines()]
    assert len(names) == len(set(names)) > 500
    for name in names:
        assert find_engines(name), name


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("\n\n", "\n", "parts in place of 3"),
        ("LlamaForCausalLM\tvllm ", "LlamaForCausalLM\tllvm ", "unknown engine 'llvm'"),
        ("LlamaForCausalLM\tvllm ", "LlamaForCausalLM\tvllm 99999", "a line '99999"),
        ("LlamaForCausalLM\t", "LlamaForCausalLM\tvllm 0\nLlamaForCausalLM\t", "2 lines of"),
        ("{q_proj,k_proj,v_proj}", "{q_proj k_proj}", "is no row of its column"),
    ],
)
def test_a_damaged_table(tmp_path: Path, old: str, new: str, fault: str) -> None:
    text = TABLE.read_text("utf-8")
    assert old in text
    path = tmp_path / "engines.txt"
    path.write_text(
        re.sub(f"(?m)^{re.escape(old)}", new, text) if "\t" in old else text.replace(old, new)
    )
    with pytest.raises(ValueError, match=re.escape(f"{path} is damaged: ") + f".*{fault}.*anew"):
        read_engines(path, "LlamaForCausalLM")
