"""The table of architectures: what it says of known models, and how it is read when damaged."""

from __future__ import annotations

import re
import sys
import zlib
from collections import Counter
from pathlib import Path

import pytest
from castwise.models.architecture import (
    ROLES,
    UNEQUAL,
    Architecture,
    Kinds,
    Parameter,
    find_architecture,
    normalize_name,
    read_architecture,
)

TABLE = Path(sys.modules["castwise.models"].__file__ or "").with_name("architectures.txt")
EXPERTS = "model.layers.3.mlp.experts"

# By hand, from the forward methods, `use_experts_implementation(...)`, `_keep_in_fp32_modules` and
# conversion_mapping.py of transformers 5.24.
FACTS = [
    ("LlamaForCausalLM", "model.layers.31.self_attn.q_proj.weight", "linear", "out in", ""),
    ("LlamaForCausalLM", "layers.31.self_attn.q_proj.weight", "linear", "out in", ""),
    ("LlamaForCausalLM", "model.layers.0.self_attn.q_proj.bias", "bias", "", ""),
    ("LlamaForCausalLM", "model.embed_tokens.weight", "embedding", "", ""),
    ("LlamaForCausalLM", "lm_head.weight", "head", "out in", ""),
    ("LlamaForCausalLM", "model.norm.weight", "norm", "", ""),
    ("LlamaModel", "model.layers.0.mlp.up_proj.weight", "linear", "out in", ""),
    ("GPT2LMHeadModel", "transformer.h.0.attn.c_attn.weight", "linear", "in out", ""),
    ("GPT2LMHeadModel", "h.0.mlp.c_proj.weight", "linear", "in out", ""),
    ("GPT2LMHeadModel", "transformer.wpe.weight", "position", "", ""),
    ("GPT2LMHeadModel", "transformer.wte.weight", "embedding", "", ""),
    ("GptOssForCausalLM", f"{EXPERTS}.gate_up_proj", "experts", "experts in out", "interleaved"),
    ("GptOssForCausalLM", f"{EXPERTS}.down_proj", "experts", "experts in out", ""),
    ("GptOssForCausalLM", f"{EXPERTS}.down_proj_bias", "bias", "", ""),
    ("GptOssForCausalLM", "model.layers.3.mlp.router.weight", "router", "", ""),
    (
        "Llama4ForConditionalGeneration",
        "language_model.model.layers.1.feed_forward.experts.gate_up_proj",
        "experts",
        "experts in out",
        "halves",
    ),
    (
        "Llama4ForConditionalGeneration",
        "language_model.model.layers.1.feed_forward.router.weight",
        "router",
        "",
        "",
    ),
    ("Qwen3MoeForCausalLM", f"{EXPERTS}.127.up_proj.weight", "linear", "out in", ""),
    ("Qwen3MoeForCausalLM", f"{EXPERTS}.gate_up_proj", "experts", "experts out in", "halves"),
    ("Qwen3MoeForCausalLM", "model.layers.3.mlp.gate.weight", "router", "", ""),
    ("Qwen3MoeForCausalLM", "model.layers.0.mlp.gate_proj.weight", "linear", "out in", ""),
    (
        "Qwen3_5MoeForConditionalGeneration",
        "model.language_model.layers.0.mlp.experts.gate_up_proj",
        "experts",
        "experts out in",
        "halves",
    ),
    (
        "Qwen3_5MoeForConditionalGeneration",
        "model.language_model.layers.0.linear_attn.conv1d.weight",
        "recurrent",
        "",
        "",
    ),
    (
        "Qwen3_5MoeForConditionalGeneration",
        "model.language_model.layers.0.linear_attn.dt_bias",
        "recurrent",
        "",
        "",
    ),
    (
        "Qwen3_5MoeForConditionalGeneration",
        "model.language_model.layers.0.mlp.shared_expert_gate.weight",
        "router",
        "",
        "",
    ),
    (
        "Qwen3_5MoeForConditionalGeneration",
        "model.visual.patch_embed.proj.weight",
        "convolution",
        "",
        "",
    ),
    ("Qwen3_5MoeForConditionalGeneration", "model.visual.pos_embed.weight", "position", "", ""),
    (
        "Gemma4ForConditionalGeneration",
        "model.language_model.layers.0.experts.down_proj",
        "experts",
        "experts out in",
        "",
    ),
    (
        "Gemma4ForConditionalGeneration",
        "model.language_model.layers.0.router.proj.weight",
        "router",
        "",
        "",
    ),
    (
        "Gemma4ForConditionalGeneration",
        "model.vision_tower.encoder.layers.0.self_attn.q_proj.linear.weight",
        "linear",
        "out in",
        "",
    ),
    (
        "GraniteMoeForCausalLM",
        "model.layers.0.block_sparse_moe.input_linear.weight",
        "experts",
        "experts out in",
        "halves",
    ),
    (
        "GraniteMoeForCausalLM",
        "model.layers.0.block_sparse_moe.output_linear.weight",
        "experts",
        "experts out in",
        "",
    ),
    (
        "GraniteMoeForCausalLM",
        "model.layers.0.block_sparse_moe.router.layer.weight",
        "router",
        "",
        "",
    ),
    ("DbrxForCausalLM", "transformer.blocks.0.ffn.experts.mlp.w1", "experts", "experts*out in", ""),
    ("DbrxForCausalLM", "transformer.blocks.0.ffn.experts.mlp.w2", "experts", "experts*in out", ""),
    ("DbrxForCausalLM", "transformer.blocks.0.ffn.router.layer.weight", "router", "", ""),
    (
        "MixtralForCausalLM",
        "model.layers.0.block_sparse_moe.experts.7.w2.weight",
        "linear",
        "out in",
        "",
    ),
    ("MixtralForCausalLM", "model.layers.0.block_sparse_moe.gate.weight", "router", "", ""),
    (
        "DeepseekV32ForCausalLM",
        "model.layers.0.self_attn.indexer.weights_proj.weight",
        "linear",
        "out in",
        "",
    ),
    ("DeepseekV32ForCausalLM", "model.layers.9.mlp.gate.e_score_correction_bias", "router", "", ""),
    ("DeepseekV32ForCausalLM", "model.layers.0.mlp.gate_proj.weight", "linear", "out in", ""),
    ("DeepseekV2ForCausalLM", "model.layers.0.self_attn.q_proj.weight", "linear", "out in", ""),
    ("GlmMoeDsaForCausalLM", f"{EXPERTS}.0.down_proj.weight", "linear", "out in", ""),
    (
        "SwitchTransformersForConditionalGeneration",
        "encoder.block.1.layer.1.mlp.router.classifier.weight",
        "router",
        "",
        "",
    ),
    ("BertForMaskedLM", "bert.encoder.layer.0.output.LayerNorm.gamma", "norm", "", ""),
    ("BertForMaskedLM", "bert.embeddings.position_embeddings.weight", "position", "", ""),
    ("BertForMaskedLM", "cls.predictions.transform.dense.weight", "linear", "out in", ""),
    ("BertForSequenceClassification", "classifier.weight", "head", "out in", ""),
    (
        "T5ForConditionalGeneration",
        "encoder.block.0.layer.1.DenseReluDense.wi_0.weight",
        "linear",
        "out in",
        "",
    ),
    (
        "T5ForConditionalGeneration",
        "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight",
        "position",
        "",
        "",
    ),
    ("WhisperForConditionalGeneration", "model.encoder.conv1.weight", "convolution", "", ""),
    ("WhisperForConditionalGeneration", "model.decoder.embed_positions.weight", "position", "", ""),
    ("WhisperForConditionalGeneration", "proj_out.weight", "head", "out in", ""),
    ("ViTForImageClassification", "vit.embeddings.position_embeddings", "position", "", ""),
    ("ViTForImageClassification", "vit.embeddings.cls_token", "other", "", ""),
    (
        "ViTForImageClassification",
        "vit.embeddings.patch_embeddings.projection.weight",
        "convolution",
        "",
        "",
    ),
    ("CLIPModel", "text_model.encoder.layers.0.mlp.fc1.weight", "linear", "out in", ""),
    ("CLIPModel", "visual_projection.weight", "linear", "out in", ""),
    ("Wav2Vec2Model", "encoder.pos_conv_embed.conv.weight_v", "convolution", "", ""),
    ("MambaForCausalLM", "backbone.layers.0.mixer.A_log", "recurrent", "", ""),
    ("MambaForCausalLM", "backbone.layers.0.mixer.conv1d.weight", "recurrent", "", ""),
    ("MambaForCausalLM", "backbone.layers.0.mixer.dt_proj.weight", "recurrent", "", ""),
    ("MambaForCausalLM", "backbone.layers.0.mixer.in_proj.weight", "linear", "out in", ""),
    (
        "ResNetForImageClassification",
        "resnet.embedder.embedder.normalization.running_mean",
        "buffer",
        "",
        "",
    ),
    ("ResNetForImageClassification", "classifier.1.weight", "head", "out in", ""),
    (
        "ConvNextForImageClassification",
        "convnext.encoder.stages.0.layers.0.dwconv.weight",
        "convolution",
        "",
        "",
    ),
    (
        "Gemma3ForConditionalGeneration",
        "model.multi_modal_projector.mm_input_projection_weight",
        "linear",
        "in out",
        "",
    ),
    ("Phi3ForCausalLM", "model.layers.0.mlp.gate_up_proj.weight", "linear", "out in", "halves"),
    ("FluxTransformer2DModel", "transformer_blocks.0.attn.to_q.weight", "linear", "out in", ""),
    ("UNet2DConditionModel", "conv_in.weight", "convolution", "", ""),
]


@pytest.mark.parametrize(("name", "tensor", "role", "axes", "joint"), FACTS)
def test_the_table_says_what_the_code_does(
    name: str, tensor: str, role: str, axes: str, joint: str
) -> None:
    key = "_class_name" if name.endswith("2DModel") else "architectures"
    config = {key: name if key == "_class_name" else [name]}
    architecture = find_architecture(config)
    assert architecture is not None
    parameter = architecture.find(tensor)
    assert parameter is not None
    assert (parameter.role, parameter.axes, parameter.joint) == (role, axes, joint)


@pytest.mark.parametrize(
    ("name", "tensor", "kept"),
    [
        ("T5ForConditionalGeneration", "encoder.block.0.layer.1.DenseReluDense.wo.weight", True),
        ("T5ForConditionalGeneration", "encoder.block.0.layer.1.DenseReluDense.wi.weight", False),
        ("DeepseekV32ForCausalLM", "model.layers.0.mlp.gate.e_score_correction_bias", True),
        ("LlamaForCausalLM", "model.norm.weight", False),
    ],
)
def test_what_transformers_keeps_in_float32_is_marked(name: str, tensor: str, kept: bool) -> None:
    architecture = find_architecture({"architectures": [name]})
    assert architecture is not None
    parameter = architecture.find(tensor)
    assert parameter is not None
    assert parameter.float32 is kept


def test_what_transformers_splits_or_loads_only_as_plain_weights_is_marked() -> None:
    model = find_architecture({"architectures": ["Dinov2Model"]})
    assert model is not None
    joined = model.find("encoder.layer.0.mlp.weights_in.weight")  # Chunk to gate_proj and up_proj
    assert joined is not None
    assert joined.conversion == "split"
    assert model.needs_weights
    llama = find_architecture({"architectures": ["LlamaForCausalLM"]})
    assert llama is not None
    assert not llama.needs_weights
    assert not any(parameter.conversion for parameter in llama.parameters.values())


@pytest.mark.parametrize(
    ("name", "module", "inner"),
    [
        ("MixtralForCausalLM", "block_sparse_moe.experts.#.w2", "mlp.experts.down_proj"),
        ("MixtralForCausalLM", "block_sparse_moe.gate", "mlp.gate"),
        ("Dinov2Model", "attention.attention.key", "attention.k_proj"),
        ("LlamaForCausalLM", "self_attn.q_proj", ""),
    ],
)
def test_modules_that_transformers_calls_otherwise_have_both_names(
    name: str, module: str, inner: str
) -> None:
    architecture = find_architecture({"architectures": [name]})
    assert architecture is not None
    layer = "encoder.layer.#." if name == "Dinov2Model" else "model.layers.#."
    assert architecture.modules.get(layer + module, "") == (inner and layer + inner)


@pytest.mark.parametrize(
    ("config", "source"),
    [
        ({"architectures": ["LlamaForCausalLM"]}, ""),
        (
            {"architectures": ["LlamaForCausalLM"], "tie_word_embeddings": True},
            "model.embed_tokens.weight",
        ),
        ({"architectures": ["GemmaForCausalLM"]}, "model.embed_tokens.weight"),
        ({"architectures": ["GemmaForCausalLM"], "tie_word_embeddings": False}, ""),
        ({"model_type": "gemma"}, "model.embed_tokens.weight"),
    ],
)
def test_a_head_is_tied_as_its_configuration_says(config: dict[str, object], source: str) -> None:
    architecture = find_architecture(config)
    assert architecture is not None
    assert architecture.parameters["lm_head.weight"].tied == source


def test_the_class_comes_before_the_type_whose_classes_are_put_together() -> None:
    by_class = find_architecture({"architectures": ["BertModel"], "model_type": "llama"})
    by_type = find_architecture({"architectures": ["MyModel"], "model_type": "bert"})
    assert by_class is not None
    assert by_type is not None
    assert (by_class.name, by_class.find("classifier.weight")) == ("BertModel", None)
    assert {"classifier.weight", "qa_outputs.weight", "bert.pooler.dense.weight"} <= {
        *by_type.parameters
    }


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"architectures": []},
        {"architectures": None, "model_type": None},
        {"model_type": "x"},
        {"model_type": ""},
    ],
)
def test_a_model_without_a_row_is_none(config: dict[str, object]) -> None:
    assert find_architecture(config) is None


def test_the_table_is_small_and_has_no_equal_parts() -> None:
    blocks = TABLE.read_text("utf-8").strip("\n").split("\n\n")[1:]
    assert len(zlib.compress(TABLE.read_bytes())) <= 300_000  # as it is in the wheel
    assert len(set(blocks)) == len(blocks)


def test_every_architecture_of_the_table_is_read() -> None:
    names = [
        ("" if prefix == "-" else prefix) + entry.partition("=")[0]
        for line in TABLE.read_text("utf-8").strip("\n").rpartition("\n\n")[2].split("\n")
        for _, _, prefix, *entries in [line.split()]
        for entry in entries
    ]
    assert len(names) > 1800
    roles: Counter[str] = Counter()
    for name in names[::9]:
        architecture = find_architecture({"architectures": [name]})
        assert architecture is not None
        roles.update(parameter.role for parameter in architecture.parameters.values())
    assert set(roles) == set(ROLES)


def kinds_of(*kinds: str) -> Kinds:
    """Return sets of parts by their texts in the table; empty for none."""
    return frozenset(frozenset(filter(None, kind.split(","))) for kind in kinds)


# By hand, from the configurations and the layers of transformers 5.24.
LISTS = [
    ({"architectures": ["MixtralForCausalLM"]}, "model.layers.#", "num_hidden_layers"),
    (
        {"architectures": ["MixtralForCausalLM"]},
        "model.layers.#.block_sparse_moe.experts.#",
        "num_local_experts|num_experts",
    ),
    ({"architectures": ["GPT2LMHeadModel"]}, "transformer.h.#", "n_layer|num_hidden_layers"),
    ({"architectures": ["BartForCausalLM"]}, "model.decoder.layers.#", "decoder_layers"),
    (
        {
            "architectures": ["LlavaForConditionalGeneration"],
            "text_config": {"model_type": "qwen2"},
        },
        "language_model.model.layers.#",
        "text_config.num_hidden_layers",
    ),
    ({"architectures": ["EfficientNetModel"]}, "encoder.blocks.#", ""),
    ({"architectures": ["SwinModel"]}, "encoder.layers.#.blocks.#", UNEQUAL),
]
DENSE, EXPERT_PARTS = "down_proj,gate_proj,up_proj", "experts,gate,shared_experts"
KINDS = [
    ("DeepseekV3ForCausalLM", "model.layers.#.mlp", kinds_of(DENSE, EXPERT_PARTS)),
    ("Qwen3NextForCausalLM", "model.layers.#", kinds_of("linear_attn", "self_attn")),
    ("ModernBertModel", "layers.#", kinds_of("attn_norm", "")),
    ("Gemma3nForCausalLM", "model.layers.#.self_attn", kinds_of("k_norm,k_proj,v_proj", "")),
    ("LlamaForCausalLM", "model.layers.#", None),
]


@pytest.mark.parametrize(("config", "name", "number"), LISTS)
def test_a_number_of_the_configuration_counts_the_modules_of_a_list(
    config: dict[str, object], name: str, number: str
) -> None:
    architecture = find_architecture(config)
    assert architecture is not None
    assert architecture.lists[name] == number


@pytest.mark.parametrize(("model", "name", "kinds"), KINDS)
def test_the_kinds_of_layers_are_those_of_the_code(
    model: str, name: str, kinds: Kinds | None
) -> None:
    architecture = find_architecture({"architectures": [model]})
    assert architecture is not None
    assert architecture.kinds.get(name) == kinds


HEAD = "# castwise architectures 1"
MINE = f"""{HEAD}
# any words

q_proj.weight linear
k_proj.weight linear in out float32

embed.weight embedding
head.weight head
layers.#.attn>layers.#.self_attn 0
layers.#.mlp.experts.gate_up_proj experts experts in out interleaved split

head.weight =embed.weight

layers.# =text.num_layers
layers.#.mlp.experts.# *
layers.#.attn gate,q_proj k_proj -

mine model MyModel =1=2+3!
"""


def test_a_file_has_one_architecture_in_the_format_of_the_table(tmp_path: Path) -> None:
    file = tmp_path / "mine.txt"
    file.write_text(MINE)
    rows = [
        Parameter("embed.weight", "embedding"),
        Parameter("head.weight", "head", "out in", tied="embed.weight"),
        Parameter("layers.#.attn.q_proj.weight", "linear", "out in"),
        Parameter("layers.#.attn.k_proj.weight", "linear", "in out", float32=True),
        Parameter(
            "layers.#.mlp.experts.gate_up_proj",
            "experts",
            "experts in out",
            "interleaved",
            conversion="split",
        ),
        Parameter("layers.#.self_attn.q_proj.weight", "linear", "out in"),
        Parameter("layers.#.self_attn.k_proj.weight", "linear", "in out", float32=True),
    ]
    modules = {f"layers.#.attn.{name}_proj": f"layers.#.self_attn.{name}_proj" for name in "qk"}
    assert read_architecture(file) == Architecture(
        "MyModel",
        "mine",
        {row.name: row for row in rows},
        "model",
        modules,
        needs_weights=True,
        lists={"layers.#": "text.num_layers", "layers.#.mlp.experts.#": UNEQUAL},
        kinds={"layers.#.attn": kinds_of("gate,q_proj", "k_proj", "")},
    )
    assert read_architecture(file).find("model.layers.7.attn.q_proj.weight") == rows[2]


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        (HEAD, "# castwise architectures 2", "does not begin with"),
        (MINE.partition("\n\n")[2], "", "no index"),
        ("q_proj.weight linear", "q_proj.weight lineal", "role 'lineal'"),
        ("q_proj.weight linear", "q_proj.weight", "role ''"),
        ("q_proj.weight linear", "q_proj.weight linear out out", "axes 'out out'"),
        ("experts in out interleaved split", "interleaved", "axes ''"),
        ("q_proj.weight", "k_proj.weight", "claims layers.#.attn.k_proj.weight"),
        ("layers.#.attn>", "layers.0.attn>", "# stands for each layer"),
        ("attn 0", "attn 1", "within itself"),
        ("attn 0", "attn 9", "block '9'"),
        ("MyModel =1=2+3!", "MyModel =1=7", "block '7'"),
        ("MyModel =1=2+3!", "MyModel", "is not MODEL_TYPE BASE PREFIX"),
        ("MyModel =1=2+3!", "MyModel =one", "has '=one'"),
        ("MyModel =1=2+3!", "MyModel =1=2! =1=2!", "a second row of MyModel"),
        ("MyModel =1=2+3!", "MyModel =1=2 Two=1", "2 architectures (MyModel, MyModelTwo)"),
        ("=embed.weight", "=embedding.weight", "is no tie of MyModel's rows"),
        ("=embed.weight", "+embed.weight", "is no tie of MyModel's rows"),
        ("head.weight =embed", "heads.weight =embed", "ties no row of MyModel"),
        ("head.weight =embed.weight", "head.weight", "has one name in place of two"),
        ("layers.# =text", "layers =text", "is not LIST =NUMBER or MODULE a,b c -"),
        ("layers.# =text", "layers.#.mlp =text", "is not LIST =NUMBER or MODULE a,b c -"),
        ("gate,q_proj", "gate,,q_proj", "is not LIST =NUMBER or MODULE a,b c -"),
        ("2+3!", "2+4!", "block '4'"),
    ],
)
def test_a_damaged_file_is_named_with_the_fault_and_the_remedy(
    tmp_path: Path, old: str, new: str, fault: str
) -> None:
    file = tmp_path / "mine.txt"
    file.write_text(MINE.replace(old, new, 1))
    with pytest.raises(ValueError, match=re.escape(fault)) as caught:
        read_architecture(file)
    assert str(file) in str(caught.value)
    assert re.search("correct it|keep one", str(caught.value))


def test_blocks_without_end_are_refused(tmp_path: Path) -> None:
    blocks = [f"a {number + 1}\nb {number + 1}" for number in range(5000)]
    file = tmp_path / "mine.txt"
    file.write_text("\n\n".join([HEAD, *blocks, "a linear", "mine model MyModel =0\n"]))
    with pytest.raises(ValueError, match=r"mine\.txt: block .* 64 deep"):
        read_architecture(file)


def test_blocks_of_too_many_rows_are_refused(tmp_path: Path) -> None:
    blocks = [f"a {number + 1}\nb {number + 1}" for number in range(18)]
    file = tmp_path / "mine.txt"
    file.write_text("\n\n".join([HEAD, *blocks, "a linear", "mine model MyModel =0\n"]))
    with pytest.raises(ValueError, match=r"mine\.txt: block .* 100,000 rows"):
        read_architecture(file)


def test_a_file_that_is_no_text_is_named(tmp_path: Path) -> None:
    file = tmp_path / "mine.txt"
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match=r"mine\.txt is no text in UTF-8"):
        read_architecture(file)
    with pytest.raises(FileNotFoundError):
        read_architecture(tmp_path / "none.txt")


def test_of_a_table_only_the_blocks_of_one_class_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "architectures.txt"
    blocks = "a.weight linear\n\nb.weight of no role\n\n"
    file.write_text(f"{HEAD}\n\n{blocks}x - Whole =0\ny - Damaged =1\n")
    monkeypatch.setattr("castwise.models.architecture._TABLE", file)
    architecture = find_architecture({"architectures": ["Whole"]})
    assert architecture is not None
    assert [*architecture.parameters] == ["a.weight"]
    with pytest.raises(ValueError, match=r"'b\.weight of no role'"):
        find_architecture({"model_type": "y"})


def test_a_damaged_table_of_castwise_is_to_be_installed_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "architectures.txt"
    file.write_bytes(TABLE.read_bytes()[:100_000])
    monkeypatch.setattr("castwise.models.architecture._TABLE", file)
    with pytest.raises(ValueError, match=r"architectures\.txt.*install castwise anew"):
        find_architecture({"architectures": ["LlamaForCausalLM"]})


@pytest.mark.parametrize(
    ("name", "normal"),
    [
        ("model.layers.10.mlp.experts.3.w1.weight", "model.layers.#.mlp.experts.#.w1.weight"),
        ("mlp.experts.expert_12.wi.weight", "mlp.experts.expert_#.wi.weight"),
        ("conv1.weight", "conv1.weight"),
        ("0.1", "#.#"),
    ],
)
def test_numbers_of_layers_and_experts_are_left_out(name: str, normal: str) -> None:
    assert normalize_name(name) == normal


NUMBERED = f"""{HEAD}

0.weight>norm.weight norm
1.weight>up.weight linear
#.bias bias
qkv.weight>{{q,k}}.weight linear split*

x 0
fc linear

mine - MyModel =1
"""


def test_a_number_tells_modules_of_a_sequence_apart(tmp_path: Path) -> None:
    file = tmp_path / "mine.txt"
    file.write_text(NUMBERED)
    model = read_architecture(file)
    roles = {
        name: row.role
        for name in ("0.weight", "1.weight", "7.bias")
        if (row := model.find(f"x.{name}"))
    }
    assert roles == {"0.weight": "norm", "1.weight": "linear", "7.bias": "bias"}
    assert model.find("x.2.weight") is None
    assert model.module_names("x.1") == ["x.up"]
    assert model.module_names("x.qkv") == ["x.q", "x.k"]
    assert model.module_names("x.3") == ["x.3"]


def test_a_part_of_a_configuration_ties_its_module_and_chooses_its_type() -> None:
    """`VisionEncoderDecoderModel`, whose decoder has a class of its own."""
    config = {"architectures": ["VisionEncoderDecoderModel"], "tie_word_embeddings": False}
    bert = find_architecture({**config, "decoder": {"model_type": "bert"}})
    assert bert is not None
    head = bert.find("decoder.cls.predictions.decoder.weight")
    assert head is not None
    assert head.tied == "decoder.bert.embeddings.word_embeddings.weight"
    untied = {"model_type": "bert", "tie_word_embeddings": False}
    bert = find_architecture({**config, "decoder": untied})
    assert bert is not None
    head = bert.find("decoder.cls.predictions.decoder.weight")
    assert head is not None
    assert not head.tied
    gpt2 = find_architecture({**config, "decoder": {"model_type": "gpt2"}})
    assert gpt2 is not None
    row = gpt2.find("decoder.transformer.h.3.attn.c_attn.weight")
    assert row is not None
    assert row.axes == "in out"
    assert gpt2.find("decoder.cls.predictions.decoder.weight") is None


def test_a_class_is_that_of_the_type_that_a_configuration_states() -> None:
    """Of `sarvam_moe`, which has a class of GLM-4, queries, keys and values are in one tensor."""
    name = "model.layers.0.attention.query_key_value.weight"
    found = {}
    for kind in ("sarvam_moe", "glm4_moe"):
        config = {"architectures": ["Glm4MoeForCausalLM"], "model_type": kind}
        model = find_architecture(config)
        assert model is not None
        row = model.find(name)
        found[kind] = None if row is None else row.conversion
    assert found == {"sarvam_moe": "split*", "glm4_moe": None}


@pytest.mark.parametrize("name", ["ZambaForCausalLM", "Zamba2ForCausalLM"])
def test_files_may_leave_out_copies_of_a_layers_part(name: str) -> None:
    """The blocks that layers share are saved once, so that other layers of a file have none."""
    architecture = find_architecture({"architectures": [name]})
    assert architecture is not None
    kinds = architecture.kinds["model.layers.#"]
    assert {"linear", "mamba_decoder"} in kinds
    assert len(kinds) == 3
