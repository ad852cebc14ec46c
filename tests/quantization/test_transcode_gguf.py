"""MXFP4 models become GGUF files: blocks, names, hyperparameters, tokens as of llama.cpp."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from castwise import checkpoint
from castwise.checkpoint import CheckpointError
from castwise.checkpoint.containers.gguf._vocabulary import SPLITS
from castwise.checkpoint.planning.transcode import _whole_model
from castwise.cli import main
from checkpoint_samples import assert_same
from numpy.typing import NDArray
from object_store import BUCKET, Store
from producer_models.gguf import blocks, parsed
from whole_models import (
    AT,
    CONFIG,
    EXPERTS,
    HEAD,
    HEADS,
    INNER,
    LAYERS,
    TOKENIZER,
    TOKENS,
    WIDTH,
    A,
    B,
    C,
    Q,
    dense,
    gpt_oss,
    model,
    of_experts,
    write,
)

Array = NDArray[Any]
BF16 = ml_dtypes.bfloat16


def expected() -> dict[str, Array]:
    """Return the tensors that llama.cpp's converter would write of `gpt_oss`."""
    tensors, found = gpt_oss()
    names = {
        "model.embed_tokens.weight": "token_embd.weight",
        "lm_head.weight": "output.weight",
        "model.norm.weight": "output_norm.weight",
    }
    made: dict[str, Array] = {}
    for layer in range(LAYERS):
        old, new = f"model.layers.{layer}.", f"blk.{layer}."
        modules = {f"self_attn.{one}_proj": f"attn_{one}" for one in "qkv"}
        modules |= {"self_attn.o_proj": "attn_output", "mlp.router": "ffn_gate_inp"}
        for end in ("weight", "bias"):
            names |= {f"{old}{a}.{end}": f"{new}{b}.{end}" for a, b in modules.items()}
        names[f"{old}self_attn.sinks"] = f"{new}attn_sinks.weight"
        names[f"{old}input_layernorm.weight"] = f"{new}attn_norm.weight"
        names[f"{old}post_attention_layernorm.weight"] = f"{new}post_attention_norm.weight"
        names[f"{old}mlp.experts.down_proj_bias"] = f"{new}ffn_down_exps.bias"
        for first, half in enumerate(("gate", "up")):
            bias = tensors[f"{old}mlp.experts.gate_up_proj_bias"]
            made[f"{new}ffn_{half}_exps.bias"] = bias[:, first::2].astype(np.float32)
            codes, powers = found[f"{old}mlp.experts.gate_up_proj"]
            every = slice(first, None, 2)
            made[f"{new}ffn_{half}_exps.weight"] = blocks(codes[:, every], powers[:, every])
        made[f"{new}ffn_down_exps.weight"] = blocks(*found[f"{old}mlp.experts.down_proj"])
    plain = ("token_embd", "output", "attn_q", "attn_k", "attn_v", "attn_output")
    for name, new in names.items():
        stays = new.endswith(".weight") and new.split(".")[-2] in plain
        made[new] = tensors[name] if stays else tensors[name].astype(np.float32)
    return made


@pytest.mark.parametrize("name", ["x-00001-of-00002.gguf", "x-00002-of-00002.GGUF"])
@pytest.mark.parametrize("more", [{}, {"dry_run": True}, {"part": "1/1"}], ids=repr)
def test_a_name_of_one_of_several_files_is_refused(
    tmp_path: Path, name: str, more: dict[str, Any]
) -> None:
    """It would be refused as a source, by castwise and by llama.cpp."""
    source = model(tmp_path / "model")
    with pytest.raises(CheckpointError, match=rf"{name}: by its name it would be one of 2 files"):
        checkpoint.transcode_file(source, tmp_path / name, "gguf", **more)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    one = tmp_path / "x-00001-of-00001.gguf"
    checkpoint.transcode_file(source, one, "gguf")
    assert checkpoint.inspect(one).quantization is not None


@pytest.mark.parametrize("elements", [1, 1 << 20])
@pytest.mark.parametrize("recipe", ["gpt-oss", "compressed-tensors"])
def test_tensors(
    tmp_path: Path, recipe: str, elements: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_whole_model, "SLAB_ELEMENTS", elements)
    source, out = model(tmp_path / "model"), tmp_path / "out.gguf"
    if recipe != "gpt-oss":
        checkpoint.transcode_file(source, tmp_path / "other", recipe)
        source = tmp_path / "other"
    summary = checkpoint.transcode_file(source, out, "gguf")
    _, found = parsed(out)
    wanted = expected()
    assert found.keys() == wanted.keys()
    for name, (kind, array) in found.items():
        assert_same(array, wanted[name])
        assert kind == (39 if array.shape[-1] == 17 else 30 if array.dtype == BF16 else 0)
    rows = {row.name: row for row in summary.rows}
    before = sum(row.nbytes_before for row in rows.values())
    assert before == sum(array.nbytes for array in checkpoint.load(source).values())
    assert sum(row.nbytes_after for row in rows.values()) == sum(a.nbytes for a in wanted.values())
    assert rows["blk.1.ffn_up_exps.weight"].target == "mxfp4"


def test_what_is_stated(tmp_path: Path) -> None:
    source, out = model(tmp_path / "model"), tmp_path / "out.gguf"
    checkpoint.transcode_file(source, out, "gguf")
    stated, _ = parsed(out)
    tokens = [*(chr(0x100 + n) for n in range(256)), "<|startoftext|>", "<|call|>", " user"]
    assert stated == {
        "general.architecture": "gpt-oss",
        "general.type": "model",
        "general.name": "model",
        "general.file_type": 38,
        "general.quantization_version": 2,
        "gpt-oss.block_count": LAYERS,
        "gpt-oss.context_length": 256,
        "gpt-oss.embedding_length": WIDTH,
        "gpt-oss.feed_forward_length": INNER,
        "gpt-oss.attention.head_count": HEADS,
        "gpt-oss.attention.head_count_kv": 1,
        "gpt-oss.attention.key_length": HEAD,
        "gpt-oss.attention.value_length": HEAD,
        "gpt-oss.attention.layer_norm_rms_epsilon": float(np.float32(1e-5)),
        "gpt-oss.attention.sliding_window": 16,
        "gpt-oss.rope.freq_base": 150000.0,
        "gpt-oss.rope.scaling.type": "yarn",
        "gpt-oss.rope.scaling.factor": 32.0,
        "gpt-oss.rope.scaling.original_context_length": 64,
        "gpt-oss.rope.scaling.yarn_beta_fast": 32.0,
        "gpt-oss.expert_count": EXPERTS,
        "gpt-oss.expert_used_count": 2,
        "gpt-oss.expert_feed_forward_length": INNER,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-4o",
        "tokenizer.ggml.tokens": [*tokens, A + B, A + B + C, "[PAD261]"],
        "tokenizer.ggml.token_type": [*[1] * 256, 3, 3, 4, 1, 1, 5],
        "tokenizer.ggml.merges": [f"{A} {B}", f"{A + B} {C}"],
        "tokenizer.ggml.bos_token_id": 256,
        "tokenizer.ggml.eos_token_id": 257,
        "tokenizer.ggml.padding_token_id": 257,
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.ggml.add_eos_token": False,
        "tokenizer.chat_template": "{{x}}",
        "tokenizer.chat_template.tool": "y",
        "tokenizer.chat_templates": ["tool"],
    }


def test_golden_file(tmp_path: Path) -> None:
    """A file that llama.cpp (xllamacpp 2026.10.11549) loaded, and gguf 0.19.0 read."""
    counted = np.arange(251, dtype=np.uint8)
    tensors = {
        name: np.resize(counted, array.nbytes).view(array.dtype).reshape(array.shape)
        for name, array in gpt_oss()[0].items()
    }
    out = tmp_path / "out.gguf"
    checkpoint.transcode_file(write(tmp_path / "model", tensors, CONFIG), out, "gguf")
    first = parsed(out)[1]["blk.0.ffn_down_exps.weight"][1][0, 0, 0]
    # Scale 0, and bytes 0 to 15: even elements have the codes 0 to 15, and odd ones 0.
    assert first.tobytes().hex() == "0080009100a200b300c400d500e600f700"
    assert sha256(out.read_bytes()).hexdigest()[:24] == "5c982f40965ef2c3d1853acd"


def test_ways_of_running(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A dry run, parts, an executor and one file give what one run gives."""
    source, out = model(tmp_path / "model"), tmp_path / "out.gguf"
    checkpoint.transcode_file(source, out, "gguf")
    whole = out.read_bytes()
    plan = checkpoint.transcode_file(source, tmp_path / "dry.gguf", "gguf", dry_run=True)
    assert not (tmp_path / "dry.gguf").exists()
    assert {row.name for row in plan.rows} == set(expected())
    parts = tmp_path / "parts.gguf"
    for number in (2, 1):
        checkpoint.transcode_file(source, parts, "gguf", part=(number, 2))
    (file,) = tmp_path.glob(".parts.gguf*/files/*")
    pages = [json.loads(page.read_text()) for page in file.parents[1].glob("part-*.json")]
    spans = sorted(span[1:3] for page in pages for span in page["spans"])
    gap = next(end for (_, end), (begin, _) in pairwise(spans) if end < begin)
    file.write_bytes(whole[:gap] + b"\1" + whole[gap + 1 :])  # padding, which no part wrote
    with pytest.raises(checkpoint.CheckpointError, match=r"has other bytes from .*part='1/2'"):
        checkpoint.finish(parts)
    checkpoint.transcode_file(source, parts, "gguf", part=(1, 2))
    checkpoint.finish(parts)
    assert parts.read_bytes() == whole
    with ThreadPoolExecutor(2) as executor:
        checkpoint.transcode_file(source, tmp_path / "many.gguf", "gguf", executor=executor)
    assert (tmp_path / "many.gguf").read_bytes() == whole
    alone = write(tmp_path / "alone", gpt_oss()[0], CONFIG, shards=1)
    (file,) = alone.glob("*.safetensors")
    command = ["transcode", str(file), str(tmp_path / "command.gguf"), "--to", "gguf"]
    assert main(command) == 0
    assert "mxfp4" in capsys.readouterr().out
    assert parsed(tmp_path / "command.gguf")[1].keys() == expected().keys()


def test_it_is_a_gguf_file_already(tmp_path: Path) -> None:
    source, out = model(tmp_path / "model"), tmp_path / "out.gguf"
    checkpoint.transcode_file(source, out, "gguf")
    with pytest.raises(CheckpointError, match="is stored so already"):
        checkpoint.transcode_file(out, tmp_path / "again.gguf", "gguf")


def test_experts_of_their_own(tmp_path: Path) -> None:
    """Experts that compressed-tensors stores one by one are stacked in their order."""
    tensors, quantized = of_experts(tmp_path / "model", r".*(up|q)_proj\.weight")
    at, out = AT, tmp_path / "out.gguf"
    checkpoint.transcode_file(quantized, out, "gguf")
    stored = checkpoint.load(quantized)
    stated, found = parsed(out)
    assert stated["general.architecture"] == "qwen3moe"
    assert stated["qwen3moe.expert_feed_forward_length"] == INNER
    assert "output.weight" not in found
    for half in ("gate", "down"):
        kind, array = found[f"blk.0.ffn_{half}_exps.weight"]
        wanted = []
        for number in range(12):
            name = f"{at}mlp.experts.{number}.{half}_proj.weight"
            raw = stored[f"{name}_packed"]
            codes = np.stack([raw & 15, raw >> 4], -1).reshape(len(raw), -1)
            wanted.append(blocks(codes, stored[f"{name}_scale"].view(np.uint8)))
        assert kind == 39
        assert_same(array, np.stack(wanted))
    kind, array = found["blk.0.ffn_up_exps.weight"]
    ups = [tensors[f"{at}mlp.experts.{number}.up_proj.weight"] for number in range(12)]
    assert kind == 30
    assert_same(array, np.stack(ups))
    before = sum(array.nbytes for array in stored.values())
    rows = checkpoint.transcode_file(quantized, out, "gguf", overwrite=True).rows
    assert sum(row.nbytes_before for row in rows) == before


# What is refused


def refused(source: Path, match: str) -> None:
    out = source.parent / "out.gguf"
    with pytest.raises(CheckpointError, match=match) as caught:
        checkpoint.transcode_file(source, out, "gguf")
    assert "writes it: CheckpointError" not in str(caught.value)
    assert not [*source.parent.glob("*.gguf*")]


def test_a_key_that_means_something_else_if_it_is_left_out(tmp_path: Path) -> None:
    _, quantized = of_experts(tmp_path / "model", Q)
    config = json.loads((quantized / "config.json").read_text())
    del config["norm_topk_prob"]
    (quantized / "config.json").write_text(json.dumps(config))
    refused(quantized, "leaves out norm_topk_prob, which transformers takes as False, and llama")


@pytest.mark.parametrize("scheme", ["q8_0", "q4_k_m"])
def test_a_model_is_refused_before_its_tensors(tmp_path: Path, scheme: str) -> None:
    """Types and mixes are refused alike, with the model and what else makes a file of it."""
    source = tmp_path / "model"
    of_experts(source, Q, norm_topk_prob=False)
    with pytest.raises(CheckpointError) as error:
        checkpoint.quantize_file(source, tmp_path / "out.gguf", scheme, ignore="nomatch")
    assert str(error.value) == (
        f"{source} cannot be quantized: config.json states norm_topk_prob False, and llama.cpp "
        "computes qwen3moe with True alone; no GGUF file makes it compute this model"
    )


@pytest.mark.parametrize(
    ("config", "match"),
    [
        ({"model_type": "mamba"}, "'mamba', and castwise writes GGUF of gpt_oss, qwen3, qwen3_moe"),
        ({"layer_types": ["full_attention"] * 2}, r"layer_types \['full_attention'"),
        ({"swiglu_limit": 5.0}, "states swiglu_limit 5.0, and llama.cpp computes gpt-oss with 7.0"),
        ({"hidden_size": None}, "hidden_size None, and GGUF needs embedding_length"),
        ({"hidden_size": 64.5}, r"hidden_size 64\.5"),
        ({"num_attention_heads": True}, "num_attention_heads True"),
        (
            {"rope_scaling": {"rope_type": "dynamic"}},
            "the rotary embedding {'rope_type': 'dynamic'",
        ),
        ({"rope_scaling": {"full_attention": {}}}, "the rotary embedding {'full_attention'"),
        *(
            ({"rope_scaling": one}, "neither rope_parameters nor .* as yarn for gpt-oss; state rop")
            for one in (None, {})
        ),
        (
            {"rope_parameters": {"rope_type": "default"}},
            r"rope_parameters \{'rope_type': 'default'\} and rope_scaling \{.*'yarn'.* differ; rem",
        ),
        (
            {"original_max_position_embeddings": 32},
            "states original_max_position_embeddings 32, and 64 in its rotary embedding; remove",
        ),
        (
            {
                "rope_scaling": {"rope_type": "linear"},
                "factor": 2.0,
            },
            "states factor None, and GGUF needs rope.scaling.factor of it",
        ),
        ({"rope_scaling": CONFIG["rope_scaling"] | {"mscale": 2.0}}, "'mscale': 2.0"),
        ({"rope_scaling": CONFIG["rope_scaling"] | {"attention_factor": 1.5}}, "'attention_factor"),
        *(({"rope_scaling": one}, f"rotary embedding {one!r}, and") for one in ("", False, 0)),
        ({"num_hidden_layers": 1 << 31, "layer_types": None}, r"lacks what becomes 'blk\."),
        ({"num_hidden_layers": 3, "layer_types": None}, r"lacks what becomes 'blk\.2\."),
        (
            {"num_hidden_layers": 1, "layer_types": None},
            r"layers\.1\..* no place.*_layers \(1\)",
        ),
        ({"layer_types": "x"}, "layer_types 'x', and llama.cpp computes gpt-oss with sliding_att"),
        ({"layer_types": ["sliding_attention"]}, r"layer_types \['sliding_attention'\], and.*each"),
        ({"layer_types": CONFIG["layer_types"] * 2}, "one for each layer .num_hidden_layers"),
        ({"num_local_experts": 4}, r"shape \(3, .*\), and config.json states \(4, .*num_local_exp"),
        ({"num_local_experts": "x"}, "states num_local_experts 'x', and GGUF needs expert_count"),
        ({"num_local_experts": None}, "states num_local_experts None, and GGUF needs exp"),
        ({"rms_norm_eps": 1e-60}, "rms_norm_eps 1e-60, and.*: a number from 1.18e-38 to 3.4e"),
        *(({"rope_theta": one}, f"theta {one}, .*a number from") for one in (0, -1.0)),
        ({"rope_theta": 1e39}, r"theta 1e\+39, .*a number from"),
        ({"rope_scaling": []}, r"rotary embedding \[\], and"),
        ({"head_dim": 0}, r"head_dim 0, and.*: a whole number from 1, below 2\^32"),
        ({"hidden_size": 1 << 32}, r"hidden_size 4294967296, and.*: a whole number from 1, below"),
        ({"hidden_size": 32}, r"'.*' has the shape \(.*64.*\), and config.json states \(.*32"),
        ({"intermediate_size": 64}, r"experts.* has the shape .*intermediate_size, hidden"),
        ({"num_attention_heads": 4}, "has the shape .*num_attention_heads"),
        ({"num_key_value_heads": 2}, r"has the shape .*: num_key_value_heads \* head_dim"),
        ({"head_dim": 16}, r"has the shape .*\* head_dim"),
        ({"vocab_size": 300}, r"shape \(262, 64\), and config.json states \(300, 64\): vocab_size"),
        *(
            ({"eos_token_id": one}, f"config.json states eos_token_id {one}, and.*from 0 to 261,")
            for one in (-1, 262, True, 1.5)
        ),
    ],
)
def test_configurations(tmp_path: Path, config: dict[str, Any], match: str) -> None:
    refused(model(tmp_path / "model", **config), match)


SPLIT, BYTES = TOKENIZER["pre_tokenizer"]["pretokenizers"]


@pytest.mark.parametrize(
    ("key", "value", "match"),
    [
        ("model", {"type": "Unigram", "vocab": {}}, "is of the type 'Unigram'"),
        *(
            ("normalizer", {"type": one}, f"the normalizer '{one}', and .* gpt-4o have None in .*s")
            for one in ("Lowercase", "NFC")
        ),
        (
            "model",
            TOKENIZER["model"] | {"merges": [[A, B]], "ignore_merges": True},
            f"ignore_merges True, and llama.cpp does the other for gpt-4o.* the token '{A}{B}{C}'",
        ),
        *(
            (
                "added_tokens",
                [{"id": 261, "content": "x", one: True}],
                f"{one} True of .* 'x', .*fa",
            )
            for one in ("lstrip", "rstrip", "single_word")
        ),
        ("pre_tokenizer", {"type": "Whitespace"}, "splits text by {'type': 'Whitespace'}"),
        ("post_processor", {"type": "BertProcessing"}, "a post-processor of the type 'BertPro"),
        ("added_tokens", [{"id": 262, "content": "a"}], "from 0 to 262, and the embedding has 262"),
        ("added_tokens", [{"id": 261, "content": "\ud800"}], "has no UTF-8 form"),
        ("added_tokens", [{"id": 5, "content": "x"}], "numbers 'x' with 5, and.*; number it anew"),
        *(
            ("added_tokens", [{"id": one, "content": "x"}], f"numbers 'x' with {one}, and llama")
            for one in (True, 261.0)
        ),
        ("added_tokens", [{"id": 260, "content": "[PAD261]"}], r"numbers '\[PAD261\]' with 260"),
        ("added_tokens", [{"id": 258, "content": "[PAD261]"}], r"2 tokens are '\[PAD2.*; rename"),
        *(
            ("model", TOKENIZER["model"] | {"merges": [one]}, f"json merges .*{said}.*; remove it")
            for one, said in (
                ([A], "Ā"),
                ([A, 1], "1"),
                ([A, B, C], C),
                (f"{A}  {B}", "  "),
                (f"{A}{B}", "'Āā'"),
                (["x", B], "x"),
                ([A, "x"], "x"),
                ([B, A], "'ā', 'Ā'"),
                (None, "None"),
            )
        ),
        *(
            ("model", TOKENIZER["model"] | {one: value}, f"json states {one} {value!r}, and castw")
            for one, value in (
                ("end_of_word_suffix", "</w>"),
                ("continuing_subword_prefix", "##"),
                ("byte_fallback", True),
            )
        ),
        *(
            (
                "pre_tokenizer",
                {"type": "Sequence", "pretokenizers": [SPLIT | changed, BYTES]},
                "splits text by {.*behavior",
            )
            for changed in ({"behavior": "Removed"}, {"invert": True})
        ),
        *(
            (
                "model",
                {"type": "BPE", "vocab": {A: 0, f"{A}x": 1, f"x{A}": 2}, "merges": [pair]},
                "merges .*'x'.*; remove it",
            )
            for pair in ([A, "x"], ["x", A])
        ),
        (
            "model",
            {"type": "BPE"},
            r"tokenizer\.json is not as tokenizer.save_pretrained .*: KeyError: 'vocab'",
        ),
    ],
)
def test_tokenizers(tmp_path: Path, key: str, value: Any, match: str) -> None:
    source = model(tmp_path / "model")
    (source / "tokenizer.json").write_text(json.dumps(TOKENIZER | {key: value}))
    refused(source, match)


@pytest.mark.parametrize(
    ("ignore", "missing", "config", "match"),
    [
        (
            Q,
            f"{AT}mlp.experts.5.up_proj.weight",
            {},
            "lacks what becomes 'blk.0.ffn_up_exps.weight' of qwen3moe: '.*experts.5.up_proj",
        ),
        (r".*\.7\.up_proj\.weight", "", {}, "ffn_up_exps.weight' would be of experts of several"),
        (
            Q,
            "",
            {"num_experts": 13},
            r"shape \(12, 64\), and config.json states \(13, 64\): num_experts",
        ),
        (Q, "", {"moe_intermediate_size": 64}, r"\(64, 64\): moe_intermediate_size, hidden_size"),
        (Q, "", {"num_local_experts": [12]}, r"states num_local_experts \[12\], and GGUF"),
    ],
)
def test_experts_that_are_wrong(
    tmp_path: Path, ignore: str, missing: str, config: dict[str, Any], match: str
) -> None:
    refused(of_experts(tmp_path / "model", ignore, missing, **config)[1], match)


@pytest.mark.parametrize("stated", ["x", [1], 1.5, None, 0])
def test_experts_that_there_are_none_of(tmp_path: Path, stated: Any) -> None:
    """A dense model needs no number of experts, whatever states one."""
    source, out = dense(tmp_path / "model", {}, num_experts=stated), tmp_path / "out.gguf"
    checkpoint.transcode_file(source, out, "gguf")
    assert not [key for key in parsed(out)[0] if "expert" in key]


def test_truncate_of_others(tmp_path: Path) -> None:
    """GGUF has no key for it: of all but gpt-oss it is true, as llama.cpp computes."""
    yarn = CONFIG["rope_scaling"]
    source = dense(tmp_path / "model", {}, rope_scaling=yarn)
    refused(source, "states truncate False of its .* computes qwen3 as if it were true; state true")
    config = json.loads((source / "config.json").read_text())
    config["rope_scaling"]["truncate"] = True
    (source / "config.json").write_text(json.dumps(config))
    checkpoint.transcode_file(source, tmp_path / "out.gguf", "gguf")
    assert parsed(tmp_path / "out.gguf")[0]["qwen3.rope.scaling.type"] == "yarn"


@pytest.mark.parametrize("stated", [{}, {"tie_word_embeddings": False}])
def test_embeddings_that_are_not_tied(tmp_path: Path, stated: dict[str, Any]) -> None:
    """Left out, they are not: so transformers takes it for all of these models."""
    source = dense(tmp_path / "model", {})
    config = json.loads((source / "config.json").read_text())
    assert config.pop("tie_word_embeddings") is True
    (source / "config.json").write_text(json.dumps(config | stated))
    refused(source, "lacks what becomes 'output.weight' of qwen3: 'lm_head.weight'; .*tie_word_em")


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("self_attn.q_proj.bias", (WIDTH,)),
        ("self_attn.q_norm.bias", (HEAD,)),
        ("self_attn.sinks", (HEADS,)),
        ("mlp.norm.weight", (WIDTH,)),
    ],
)
def test_parameters_that_it_must_not_have(
    tmp_path: Path, name: str, shape: tuple[int, ...]
) -> None:
    source = dense(tmp_path / "model", {AT + name: shape})
    refused(source, rf"'{AT}{name}' has no place in a GGUF file of qwen3; .*remove it")


@pytest.mark.parametrize("begins", [True, False])
def test_template_of_tokens(tmp_path: Path, *, begins: bool) -> None:
    """A tokenizer that puts a token before each text says so, unless it is not that of begins."""
    source = model(tmp_path / "model")
    token = "<|startoftext|>" if begins else "<|call|>"
    single = [{"SpecialToken": {"id": token}}, {"Sequence": {"id": "A"}}]
    post = {"type": "TemplateProcessing", "single": single}
    (source / "tokenizer.json").write_text(json.dumps(TOKENIZER | {"post_processor": post}))
    (source / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<|startoftext|>"}))
    if not begins:
        refused(source, r"puts \['<|call|>', None\] around a text")
        return
    checkpoint.transcode_file(source, tmp_path / "out.gguf", "gguf")
    assert parsed(tmp_path / "out.gguf")[0]["tokenizer.ggml.add_bos_token"] is True


@pytest.mark.parametrize("adds", [True, False])
@pytest.mark.parametrize("end", ["bos", "eos"])
def test_tokens_that_are_added_and_are_not(tmp_path: Path, end: str, *, adds: bool) -> None:
    """Of the two files that say it transformers reads one, or the other, by its version."""
    source = model(tmp_path / "model")
    token = [{"SpecialToken": {"id": "<|call|>"}}] * adds
    single = [*token, {"Sequence": {}}] if end == "bos" else [{"Sequence": {}}, *token]
    post = {"type": "TemplateProcessing", "single": single}
    (source / "tokenizer.json").write_text(json.dumps(TOKENIZER | {"post_processor": post}))
    stated = {f"{end}_token": "<|call|>", f"add_{end}_token": not adds}
    (source / "tokenizer_config.json").write_text(json.dumps(stated))
    refused(source, rf"add_{end}_token {not adds}, and .* other with '<\|call\|>'; mend the one")


def with_split(folder: Path, name: str, **more: Any) -> Path:
    """Write a model whose tokenizer splits as those that llama.cpp gives a name."""
    source, found = model(folder), json.loads(json.dumps(TOKENIZER))
    found["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = SPLITS[name].expressions[0]
    found["model"] |= {key: one for key, one in more.items() if key != "normalizer"}
    found["normalizer"] = more.get("normalizer")
    (source / "tokenizer.json").write_text(json.dumps(found))
    return source


NFC = {"type": "NFC"}


@pytest.mark.parametrize(
    ("name", "more", "match"),
    [
        ("qwen2", {"normalizer": NFC}, None),
        ("qwen2", {}, "the normalizer None, and all that .* as qwen2 have 'NFC' in GGUF; state"),
        ("llama-bpe", {"ignore_merges": True, "merges": []}, "has no merges, and castwise writes"),
        ("llama-bpe", {"ignore_merges": True, "normalizer": NFC}, "the normalizer 'NFC', .* None"),
        ("llama-bpe", {"merges": [[A, B]]}, "ignore_merges False.* make the .*; state True if th"),
        ("llama-bpe", {}, None),
        ("gpt-4o", {"ignore_merges": True}, None),
    ],
)
def test_what_the_name_of_a_split_states(
    tmp_path: Path, name: str, more: dict[str, Any], match: str | None
) -> None:
    """A tokenizer does what others of its split do, or what makes no difference to its tokens."""
    source = with_split(tmp_path / "model", name, **more)
    if match is not None:
        refused(source, match)
        return
    checkpoint.transcode_file(source, tmp_path / "out.gguf", "gguf")
    assert parsed(tmp_path / "out.gguf")[0]["tokenizer.ggml.pre"] == name


def test_files_that_are_missing(tmp_path: Path) -> None:
    source = model(tmp_path / "model")
    (source / "tokenizer.json").unlink()
    refused(source, r"tokenizer\.json is missing, and a GGUF file has the tokens of its model")
    (source / "tokenizer.json").write_text("{")
    refused(source, r"tokenizer\.json is not JSON")
    (source / "tokenizer.json").unlink()
    (source / "tokenizer.json").mkdir()
    refused(source, r"tokenizer\.json is not a regular file; give one")


@pytest.mark.parametrize(
    ("stated", "match"),
    [
        ([], "AttributeError"),
        ({"bos_token": 5}, "bos_token is 5, which is not a text"),
        ({"eos_token": {"id": 5}}, "KeyError: 'content'"),
        ({"chat_template": ["x"]}, "TypeError"),
        (
            {"chat_template": [{"name": "default", "template": 5}]},
            "chat_template has 5, which is not a text",
        ),
        (
            {"chat_template": [{"name": None, "template": "x"}]},
            "chat_template has None, which is not a text",
        ),
        ({"chat_template": 5}, "TypeError"),
    ],
)
def test_other_files_of_tokenizers(tmp_path: Path, stated: Any, match: str) -> None:
    """What is wrong in them is not said of tokenizer.json."""
    source = model(tmp_path / "model")
    (source / "tokenizer_config.json").write_text(json.dumps(stated))
    refused(
        source,
        rf"tokenizer_config\.json is not as tokenizer.save_pretrained .*: .*{match}",
    )
    (source / "tokenizer_config.json").write_text("{}")
    (source / "chat_template.jinja").write_bytes(b"\xff")
    refused(
        source,
        r"chat_template\.jinja is not as tokenizer.save_pretrained .*: UnicodeDecodeError",
    )


def test_tensors_that_are_wrong(tmp_path: Path) -> None:
    """One removed, too many, there twice, not quantized, of another shape, a scale of NaN."""
    at = "model.layers.1."

    def without(folder: str, *names: str, **more: Array) -> Path:
        tensors = {name: one for name, one in gpt_oss()[0].items() if name not in names}
        return write(tmp_path / folder, tensors | more, CONFIG)

    refused(
        without("a", f"{at}self_attn.sinks"), r"lacks what becomes 'blk\.1\.attn_sinks\.weight'"
    )
    refused(
        without("b", f"{at}self_attn.q_proj.bias"), r"lacks what becomes 'blk\.1\.attn_q\.bias'"
    )
    extra = {"model.layers.0.self_attn.extra.weight": np.ones(3, BF16)}
    refused(without("c", **extra), r"extra\.weight' has no place in a GGUF file of gpt-oss")
    down = f"{at}mlp.experts.down_proj"
    plain = {down: np.ones((EXPERTS, INNER, WIDTH), BF16)}
    refused(without("d", f"{down}_blocks", f"{down}_scales", **plain), "'.*' is not quantized, and")
    biases = [name for name in gpt_oss()[0] if name.endswith("router.bias")]
    refused(without("f", *biases), r"lacks what becomes 'blk\.0\.ffn_gate_inp\.bias'")
    vector, norm = np.ones(WIDTH, BF16), "model.norm.weight"
    refused(
        without("g", **{"model.norm": vector}),
        "tensors 'model.norm' and 'model.norm.weight' would both become 'output_norm.weight'; rem",
    )
    again = f"{at}input_layernorm.weight"
    refused(without("h", **{again.replace("1", "01"): vector}), r"layers\.01\..* has no place")
    refused(without("i", **{"model.norm.bias": vector}), "norm.bias' has no place.*; if the mod")
    for folder, wrong in (("j", np.ones((WIDTH, 1), BF16)), ("k", BF16(1)), ("l", vector[1:])):
        refused(without(folder, **{norm: np.asarray(wrong)}), "'model.norm.weight' has the shape")
    refused(
        without("m", **{"model.embed_tokens.weight": np.ones(TOKENS, BF16)}),
        r"'model.embed_tokens.weight' has the shape \(262,\), and config.json states \(262, 64\)",
    )
    for folder, name in (("n", "int64"), ("o", "float64")):
        refused(without(folder, **{norm: vector.astype(name)}), f"norm.weight' is {name}, and llam")
    scales = gpt_oss()[0][f"{down}_scales"].copy()
    scales[2, 5, 0] = 255
    wrong = without("e", **{f"{down}_scales": scales})
    refused(wrong, r"down_proj_blocks': the scale of the block at \(2, 5, 0\) is NaN")


def test_other_forms_beside_it(tmp_path: Path) -> None:
    """OpenAI's own form, which its repositories have in a folder, is left out by name."""
    source = model(tmp_path / "model")
    (source / "original").mkdir()
    raw = {"block.0.mlp.mlp1_weight.blocks": np.zeros((2, 4, 1, 16), np.uint8)}
    checkpoint.save(source / "original" / "model.safetensors", raw)
    refused(source, r"has tensors in \., original/, and a GGUF file is of one model; leave out")
    checkpoint.transcode_file(source, tmp_path / "out.gguf", "gguf", exclude="original/*")
    assert parsed(tmp_path / "out.gguf")[1].keys() == expected().keys()


def test_other_ways_to_gguf(tmp_path: Path) -> None:
    """What is no model, or is not transcoded, becomes no GGUF file."""
    source = model(tmp_path / "model")
    with pytest.raises(CheckpointError, match=r"GGUF is one file; name one that ends with \.gguf"):
        checkpoint.transcode_file(source, tmp_path / "out", "gguf")
    with pytest.raises(CheckpointError, match=r"is a folder or a \.gguf file; name one"):
        checkpoint.transcode_file(source, tmp_path / "out.safetensors", "gguf")
    with pytest.raises(CheckpointError, match=r"is a folder or a \.safetensors file; name one"):
        checkpoint.transcode_file(source, tmp_path / "out.gguf", "compressed-tensors")
    plain = tmp_path / "plain.safetensors"
    checkpoint.save(plain, {"a": np.ones(3, np.float32)})
    for origin in (source, plain):
        with pytest.raises(CheckpointError, match=r"a folder or a \.safetensors file; name one"):
            checkpoint.dequantize_file(origin, tmp_path / "out.gguf", "float32")
    with pytest.raises(CheckpointError, match="castwise writes one only of a model folder"):
        checkpoint.cast_file(source, tmp_path / "out.gguf", "float32")
    with pytest.raises(CheckpointError, match="castwise writes one only of a model folder"):
        checkpoint.cast_file(plain, tmp_path / "out.gguf", "float16")
    with pytest.raises(CheckpointError, match="castwise writes one only of a model folder"):
        checkpoint.save(tmp_path / "out.gguf", {"a": np.ones(3, np.float32)})
    for text in ("[x", "[]", '["s", "gpt-oss"]', '["q", 1]', '["I", "x"]', '["s", 1]', "gpt-oss"):
        with pytest.raises(CheckpointError, match="castwise writes one only of a model folder"):
            checkpoint.save(
                tmp_path / "out.gguf",
                {"a": np.ones(3, np.float32)},
                metadata={"general.architecture": text},
            )
    assert not [*tmp_path.glob("*.gguf*")]


def test_of_a_store(tmp_path: Path, store: Store) -> None:
    """A model of an object store becomes a file of this machine, and of no store."""
    source = model(tmp_path / "source")
    store.put(source, "source")
    checkpoint.transcode_file(source, tmp_path / "out.gguf", "gguf")
    url = f"s3://{BUCKET}"
    checkpoint.transcode_file(f"{url}/source", tmp_path / "same.gguf", "gguf")
    assert (tmp_path / "same.gguf").read_bytes() == (tmp_path / "out.gguf").read_bytes()
    with pytest.raises(CheckpointError, match=r"\.gguf files cannot be read from a store or writ"):
        checkpoint.transcode_file(source, f"{url}/out.gguf", "gguf")
