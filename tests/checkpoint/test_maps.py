"""The maps that come with castwise, on the names of real models.

`recorded/checkpoint_maps.json` has the names that transformers writes for models of each family,
and which of them are the matrices to cast; a star stands for the numbers of layers and experts.
With transformers, the same models are made from their configurations and compared with the record.
"""

import json
import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import castwise
import numpy as np
import pytest
from castwise import checkpoint
from castwise.checkpoint.maps import _families, named_map
from castwise.rendering.text import group_name
from checkpoint_samples import floats
from numpy.typing import NDArray
from support import run_castwise as run

RECORD: dict[str, dict[str, dict[str, list[str]]]] = json.loads(
    (Path(__file__).parents[1] / "recorded" / "checkpoint_maps.json").read_text()
)
MODELS = [(family, name) for family, models in RECORD.items() for name in models]


# Tensors of one axis, which every map keeps whatever their names are.
VECTOR = re.compile(
    r"(?i).*(norm[a-z_]*\d?|ln_\w+|\.norm_f)\.weight|.*(sinks|lambda1|logit_scale|bias|inv_freq)"
)


def matrix() -> NDArray[np.float32]:
    """A tensor of two axes."""
    return floats(4).reshape(2, 2)


def is_vector(pattern: str) -> bool:
    """Return True for the name of a tensor with one axis."""
    return VECTOR.fullmatch(pattern) is not None


def example(pattern: str) -> str:
    """A name that the pattern stands for."""
    return pattern.replace("*", "11")


@pytest.mark.parametrize(("family", "name"), MODELS)
def test_the_matrices_of_layers_are_cast_and_no_others(
    tmp_path: Path, family: str, name: str
) -> None:
    names = RECORD[family][name]
    # What a map casts has two axes; what it keeps by its name, too.
    arrays = {example(one): matrix() for one in names["cast"]}
    arrays |= {example(one): matrix() for one in names["kept"] if not is_vector(one)}
    arrays |= {example(one): floats(4) for one in names["kept"] if is_vector(one)}
    source = tmp_path / "in.safetensors"
    checkpoint.save(source, arrays)
    summary = checkpoint.cast_file(source, tmp_path / "out.safetensors", "fp8", dtype_map=family)
    assert summary.unused_patterns == {}
    rows = {row.name: row for row in summary.rows}
    for one in names["cast"]:
        assert (rows[example(one)].target, rows[example(one)].decided_by) == (
            "float8_e4m3fn",
            "dtype",
        ), one
    for one in names["kept"]:
        assert (rows[example(one)].target, rows[example(one)].decided_by) == (None, "map"), one


def test_every_family_is_tested_and_its_patterns_are_used() -> None:
    assert tuple(RECORD) == checkpoint.map_names()
    for family, models in RECORD.items():
        names = [example(one) for model in models.values() for one in model["kept"]]
        used = {named_map(family).decide(name, floating=True).key for name in names}
        # What transformers saves no longer, or not where it is tied; `test_older_names` has each.
        older = {
            "llama": {r"(.*\.)?(embed|head)\.weight"},
            "gpt2": {r".*\.masked_bias"},
            "whisper": {r"(.*\.)?(proj_out|output_projection)\.weight"},
        }
        assert set(_families()[family].keep) - used <= older.get(family, set())


def test_older_names() -> None:
    for family, kept in (
        ("llama", "model.layers.0.self_attn.rotary_emb.inv_freq"),
        ("llama", "model.layers.0.block_sparse_moe.gate.weight"),
        ("llama", "language_model.lm_head.weight"),
        ("t5", "lm_head.weight"),
        ("whisper", "proj_out.weight"),
        ("gpt2", "gpt_neox.layers.0.attention.rotary_emb.inv_freq"),
        ("gpt2", "h.0.attn.bias"),
        ("gpt2", "wte.weight"),
        ("bert", "classifier.out_proj.weight"),
        ("vit", "vit.encoder.layer.0.layernorm_before.weight"),
    ):
        decision = (
            named_map(family)
            .with_default("bfloat16")
            .decide(kept, True, (4,) if is_vector(kept) else (4, 4))
        )
        assert (decision.target, decision.by) == (None, "map"), kept
    for family, cast in (
        ("llama", "model.layers.0.block_sparse_moe.experts.0.w1.weight"),
        ("llama", "model.layers.0.mlp.experts.0.gate_proj.weight"),
        ("gpt2", "h.0.attn.c_attn.weight"),
        ("vit", "vit.encoder.layer.0.attention.attention.query.weight"),
    ):
        assert named_map(family).decide(cast, floating=True).key is None, cast


@pytest.mark.parametrize("url", ["s3://bucket/map.toml", "file:///tmp/policy.json"])
@pytest.mark.parametrize("argument", ["dtype_map", "policy"])
def test_a_map_or_policy_on_a_store_is_refused_by_name(
    tmp_path: Path, argument: str, url: str
) -> None:
    checkpoint.save(tmp_path / "in.safetensors", {"w": floats(4)})
    message = rf"{argument}='{url}' is a URL, .* copy it here and give its path"
    options: dict[str, Any] = {argument: url}
    with pytest.raises(checkpoint.CheckpointError, match=message):
        checkpoint.cast_file(tmp_path / "in.safetensors", tmp_path / "out.safetensors", **options)
    assert not (tmp_path / "out.safetensors").exists()


def test_named_maps_on_the_command_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    source, out = tmp_path / "in.safetensors", tmp_path / "out.safetensors"
    arrays = {"model.norm.weight": floats(4), "model.layers.0.k_proj.weight": matrix()}
    checkpoint.save(source, {**arrays, "model.embed_tokens.weight": matrix()})
    for name in checkpoint.map_names():
        assert name in run("cast", "--help").stdout
    assert run("cast", source, out, "--dtype", "fp8", "--map", "llama").stderr == ""
    stored = {info.name: info.format for info in checkpoint.inspect(out).tensors}
    assert set(stored.values()) == {"float32", "float8_e4m3fn"}
    said = run("cast", source, out, "--map", "llama", code=2).stderr
    assert "map 'llama' says what to keep; give the format of the others too" in said
    said = run("cast", source, out, "--dtype", "fp8", "--map", "lama", code=2).stderr
    assert "there is no map 'lama'; did you mean 'llama'? castwise has llama, bert" in said
    # Of another family: no tensor has one of its names.
    checkpoint.save(source, {"layers.0.kernel": matrix()}, overwrite=True)
    assert caplog.text == ""
    run("cast", source, out, "--dtype", "fp8", "--map", "t5", "--overwrite")
    said = "map 't5' is for T5 and Flan-T5; castwise does not know this model, and no tensor has"
    assert said in caplog.text


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"model_type": "gpt2"}, None),
        ({"model_type": "frob"}, "does not know this model (model_type 'frob'), and no tensor"),
        ({"model_type": "llama"}, None),
        ({"architectures": ["LlamaForCausalLM"]}, None),
        ({"model_type": {}}, "does not know this model, and no tensor"),
        ({"model_type": ["llama"]}, "does not know this model, and no tensor"),
        ([], "does not know this model, and no tensor"),
    ],
)
def test_a_map_says_what_it_is_for_where_the_model_is_unknown(
    tmp_path: Path, config: Any, said: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(config))
    arrays = {"model.layers.0.k_proj.weight": matrix()}
    checkpoint.save(tmp_path / "model" / "model.safetensors", arrays)
    out = {"dtype_map": "llama", "keep_config": True}
    checkpoint.cast_file(tmp_path / "model", tmp_path / "out", "bf16", **out)
    about = "map 'llama' is for Llama, Mistral, Qwen"
    assert (about in caplog.text) is (said is not None)
    assert (said or "") in caplog.text
    # By the names of its families it is taken for one of them.
    checkpoint.save(
        tmp_path / "model" / "model.safetensors",
        {**arrays, "model.embed_tokens.weight": matrix()},
        overwrite=True,
    )
    caplog.clear()
    checkpoint.cast_file(tmp_path / "model", tmp_path / "two", "bf16", **out)
    assert about not in caplog.text


def test_every_map_keeps_one_number_per_channel_and_states_whatever_their_names(
    tmp_path: Path,
) -> None:
    vectors = {"x": floats(4), "y.foo": floats(4).reshape(1, 1, 4), "scalar": floats(1)}
    states = (
        "l.0.mixer.A_log",
        "l.0.linear_attn.conv1d.weight",
        "l.0.hc_attn_fn",
        "hc_head_fn",
        "l.0.attn_hc.fn",
        "l.0.self_attn.q_conv1d.weight",
        "l.0.attn.compressor.ape",
    )
    arrays = {**vectors, **{name: matrix() for name in states}, "l.0.q_proj.weight": matrix()}
    checkpoint.save(tmp_path / "in.safetensors", arrays)
    for name in checkpoint.map_names():
        plan = checkpoint.cast_file(
            tmp_path / "in.safetensors", tmp_path / "out.npz", "fp8", dtype_map=name, dry_run=True
        )
        assert [row.name for row in plan.rows if row.target is not None] == ["l.0.q_proj.weight"]
        assert {row.decided_by for row in plan.rows if row.target is None} == {"map"}


VOCABULARY = 61
SIZES = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "vocab_size": VOCABULARY,
}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2}
PLAIN = {**SIZES, "num_attention_heads": 4}
GPT = {"n_embd": 16, "n_layer": 2, "n_head": 4, "vocab_size": VOCABULARY}
T5 = {
    "d_model": 16,
    "d_kv": 4,
    "d_ff": 32,
    "num_layers": 2,
    "num_heads": 4,
    "vocab_size": VOCABULARY,
}
SEQ2SEQ = {
    **{"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 4},
    **{"decoder_attention_heads": 4, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32},
    **{"vocab_size": VOCABULARY, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2},
    **{"decoder_start_token_id": 3},
}
IMAGE = {
    **{"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4},
    **{"image_size": 16, "patch_size": 8},
}
TEXT = {**PLAIN, "max_position_embeddings": 8, "projection_dim": 16}
EXPERTS = {"num_experts": 4, "moe_intermediate_size": 8, "shared_expert_intermediate_size": 8}
DEEPSEEK = {
    **{"n_routed_experts": 4, "n_group": 2, "topk_group": 1, "num_experts_per_tok": 2},
    **{"kv_lora_rank": 8, "q_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4},
    **{"v_head_dim": 4, "moe_intermediate_size": 8, "first_k_dense_replace": 1},
    **{"num_key_value_heads": 4},
}
MAMBA = {"hidden_size": 16, "num_hidden_layers": 2, "vocab_size": VOCABULARY, "state_size": 4}
JAMBA = {
    **{"num_experts": 4, "attn_layer_period": 2, "attn_layer_offset": 1, "mamba_d_state": 4},
    **{"expert_layer_period": 2, "expert_layer_offset": 1, "use_mamba_kernels": False},
}
CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "Llama": ("LlamaForCausalLM", {**SIZES, **HEADS}),
    "Qwen2": ("Qwen2ForCausalLM", {**SIZES, **HEADS}),
    "Qwen3": ("Qwen3ForCausalLM", {**SIZES, **HEADS, "head_dim": 4}),
    "Gemma2": ("Gemma2ForCausalLM", {**SIZES, **HEADS, "head_dim": 4}),
    "Phi-3": ("Phi3ForCausalLM", {**SIZES, **HEADS, "pad_token_id": 0}),
    "Mixtral": ("MixtralForCausalLM", {**SIZES, **HEADS, "num_local_experts": 4}),
    "Qwen2-MoE": ("Qwen2MoeForCausalLM", {**SIZES, **HEADS, **EXPERTS}),
    "DeepSeek-V3": ("DeepseekV3ForCausalLM", {**SIZES, **HEADS, **DEEPSEEK}),
    "gpt-oss": ("GptOssForCausalLM", {**SIZES, **HEADS, "head_dim": 4, "num_local_experts": 4}),
    "BERT": ("BertForPreTraining", PLAIN),
    "BERT, questions": ("BertForQuestionAnswering", PLAIN),
    "RoBERTa": ("RobertaForMaskedLM", PLAIN),
    "DistilBERT": (
        "DistilBertForMaskedLM",
        {"dim": 16, "hidden_dim": 32, "n_layers": 2, "n_heads": 4, "vocab_size": VOCABULARY},
    ),
    "ELECTRA": ("ElectraForPreTraining", PLAIN),
    "DeBERTa": ("DebertaV2ForSequenceClassification", PLAIN),
    "ModernBERT": ("ModernBertForMaskedLM", {**PLAIN, "pad_token_id": 0}),
    "GPT-2": ("GPT2LMHeadModel", GPT),
    "GPT-J": ("GPTJForCausalLM", {**GPT, "rotary_dim": 4}),
    "GPT-NeoX": ("GPTNeoXForCausalLM", PLAIN),
    "BLOOM": (
        "BloomForCausalLM",
        {"hidden_size": 16, "n_layer": 2, "n_head": 4, "vocab_size": VOCABULARY},
    ),
    "T5": ("T5ForConditionalGeneration", T5),
    "Flan-T5": (
        "T5ForConditionalGeneration",
        {**T5, "feed_forward_proj": "gated-gelu"},
    ),
    "Whisper": ("WhisperForConditionalGeneration", SEQ2SEQ),
    "BART": ("BartForConditionalGeneration", SEQ2SEQ),
    "ViT": ("ViTForImageClassification", {**IMAGE, "intermediate_size": 32}),
    "DINOv2": ("Dinov2Model", IMAGE),
    "CLIP": ("CLIPModel", {"text_config": TEXT, "vision_config": IMAGE, "projection_dim": 16}),
    "SigLIP": (
        "SiglipModel",
        {"text_config": TEXT, "vision_config": {**IMAGE, "intermediate_size": 32}},
    ),
    "Mamba": ("MambaForCausalLM", MAMBA),
    "Mamba-2": (
        "Mamba2ForCausalLM",
        {**MAMBA, "num_heads": 4, "head_dim": 8, "n_groups": 1, "tie_word_embeddings": False},
    ),
    "Jamba": ("JambaForCausalLM", {**SIZES, **HEADS, **JAMBA}),
}
"""A class of transformers and its configuration."""


IDS = "embeddings.position_ids"
NOT_FLOATS = {
    IDS: np.arange(2049)[None],
    "embeddings.mask": np.array([True, False]),
    "embeddings.phases": np.ones(3, np.complex64),
    "embeddings.packed": np.arange(8, dtype=np.uint8),
}
VECTORS = {
    "fc.bias": np.arange(64, dtype=np.float32) / 3,
    "embeddings.scale": np.float32(1 / 3).reshape(()),
}


def cast_by_map(door: str, folder: Path, mapping: dict[str, Any]) -> dict[str, NDArray[Any]]:
    """Cast or quantize a model by a map, and load the result."""
    tensors = {"embeddings.weight": floats(64).reshape(2, 32), **NOT_FLOATS, **VECTORS}
    if door == "cast_tree":
        tree: dict[str, NDArray[Any]] = castwise.cast_tree(tensors, mapping)
        return tree
    source, made = folder / "model", folder / "made"
    source.mkdir()
    checkpoint.save(source / "model.safetensors", {**tensors, "fc.weight": np.eye(64, dtype="f4")})
    (source / "config.json").write_text("{}")
    if door == "cast":
        checkpoint.cast_file(source, made, dtype_map=mapping)
    else:
        checkpoint.quantize_file(source, made, "int8_channel", dtype_map=mapping)
    loaded = checkpoint.load(made)
    return {name: loaded[name] for name in tensors if name in loaded}


@pytest.mark.parametrize("door", ["cast", "quantize", "cast_tree"])
@pytest.mark.parametrize("named", [None, IDS, re.escape(IDS)])
def test_floats_of_a_pattern_are_for_floating_tensors(
    tmp_path: Path, door: str, named: str | None
) -> None:
    """As those of a dtype are; a tensor that is named whole becomes what its key says."""
    mapping = {"embeddings[.].*": "float16"} if named is None else {named: "float16"}
    made = cast_by_map(door, tmp_path, mapping)
    assert made["embeddings.weight"].dtype == (np.float16 if named is None else np.float32)
    for name, array in NOT_FLOATS.items():
        is_cast = named is not None and name == IDS
        expected = array.astype(np.float16) if is_cast else array
        assert made[name].dtype == expected.dtype
        np.testing.assert_array_equal(made[name], expected)


@pytest.mark.parametrize("default", [None, "bfloat16"])
def test_a_scheme_of_a_pattern_is_for_floating_matrices(
    tmp_path: Path, default: str | None
) -> None:
    mapping = {"(embeddings|fc)[.].*": "int8_channel"}
    mapping |= {} if default is None else {"default": default}
    made = cast_by_map("quantize", tmp_path, mapping)
    for name, array in {**NOT_FLOATS, **VECTORS}.items():
        assert made[name].dtype == array.dtype
        np.testing.assert_array_equal(made[name], array)
    found = checkpoint.inspect(tmp_path / "made").quantization
    assert found is not None
    assert [weight.name for weight in found.weights] == ["embeddings.weight", "fc.weight"]
    (tmp_path / "named").mkdir()
    with pytest.raises(checkpoint.CheckpointError, match=r"position_ids.*is stored as I64"):
        cast_by_map("quantize", tmp_path / "named", {re.escape(IDS): "int8_channel"})
    (tmp_path / "vector").mkdir()
    with pytest.raises(checkpoint.CheckpointError, match=r"fc.bias.*a weight is a matrix"):
        cast_by_map("quantize", tmp_path / "vector", {r"fc\.bias": "int8_channel"})


def test_integers_of_a_pattern_are_for_all_tensors(tmp_path: Path) -> None:
    made = cast_by_map("cast", tmp_path, {"embeddings[.](position_ids|mask|packed)": "int32"})
    assert [made[name].dtype.name for name in NOT_FLOATS] == [
        *("int32", "int32", "complex64", "int32")
    ]


def test_a_pattern_of_floats_that_matches_integers_only_is_named(tmp_path: Path) -> None:
    checkpoint.save(tmp_path / "a.npz", NOT_FLOATS)
    made = checkpoint.cast_file(
        tmp_path / "a.npz", tmp_path / "b.npz", dtype_map={".*_ids": "fp16"}
    )
    assert made.unused_patterns == {".*_ids": IDS}


@pytest.mark.parametrize(("family", "name"), MODELS)
def test_the_names_are_those_that_transformers_writes(
    tmp_path: Path, framework: Callable[[str], ModuleType], family: str, name: str
) -> None:
    kind, config = CONFIGS[name]
    cls = getattr(framework("transformers"), kind)
    cls(cls.config_class(**config)).save_pretrained(tmp_path / "model")
    tensors = checkpoint.inspect(tmp_path / "model").tensors
    written = {group_name(info.name) for info in tensors}
    recorded = RECORD[family][name]
    assert written == {group_name(example(one)) for one in recorded["cast"] + recorded["kept"]}
    summary = checkpoint.cast_file(
        tmp_path / "model", tmp_path / "out", "fp8", dtype_map=family, keep_config=True
    )
    cast = [row for row in summary.rows if row.target is not None]
    assert {group_name(row.name) for row in cast} == {
        group_name(example(one)) for one in recorded["cast"]
    }
    # By shape, whatever the names: no norms and biases, no embeddings and heads of tokens.
    assert all(len(row.shape) > 1 and VOCABULARY not in row.shape for row in cast)
