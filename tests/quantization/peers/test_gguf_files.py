# ruff: noqa: PLC0415 - a library is imported by the tests that need it
"""GGUF files are what gguf-py reads, and what llama.cpp computes as transformers does."""

from __future__ import annotations

from itertools import starmap
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
import transformers
from castwise import checkpoint
from castwise._core import block_types
from castwise.cli import main
from producer_libraries import array
from whole_models import GPT4O

PROMPT = [1, 5, 260, 33, 71, 200, 90, 12, *range(3, 21)]
"""More tokens than the window of attention has."""

NEXT, SHOWN = 5, 8
TOLERANCE = 0.1
"""Of logarithms of probabilities: llama.cpp rounds what it multiplies by MXFP4 to 8 bits. Those of
other models differ by units."""

TOLERANCE_OF_PARTS = 0.15
"""With inputs in bfloat16 beside those of 8 bits."""

PARTS = {
    "embedding": r"model\.embed_tokens\.weight",
    "head": r"lm_head\.weight",
    "attention": r".*self_attn\..*_proj\.weight",
    "feed forward": r".*mlp\..*_proj\.weight",
    "last layer": r"model\.layers\.1\..*_proj\.weight",
    "all": r"model\.embed_tokens\.weight|lm_head\.weight|.*_proj\.weight",
}

SIZES: dict[str, Any] = {
    "num_hidden_layers": 2,
    "hidden_size": 128,
    "intermediate_size": 96,
    "head_dim": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 320,
    "max_position_embeddings": 256,
    "bos_token_id": 256,
    "eos_token_id": 257,
    "pad_token_id": None,
    "tie_word_embeddings": False,
}
EXPERTS = {"num_experts_per_tok": 2, "sliding_window": 16}
YARN = {
    "rope_type": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": 64,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "rope_theta": 10000.0,
    "truncate": True,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
    "rope_theta": 500000.0,
}
HEADS = {"head_dim": 32}
"""For models whose heads have the width of the model together."""

MODELS: dict[str, tuple[str, dict[str, Any], str]] = {
    "gpt-oss": (
        "GptOss",
        {**EXPERTS, "num_local_experts": 4, "rope_parameters": YARN},
        "gpt-oss",
    ),
    "gpt-oss, of compressed-tensors": ("GptOss", {**EXPERTS, "num_local_experts": 4}, "gpt-oss"),
    "gpt-oss that is not scaled": (
        "GptOss",
        {**EXPERTS, "num_local_experts": 4, "rope_parameters": {"rope_type": "default"}},
        "gpt-oss",
    ),
    "qwen3": ("Qwen3", {}, "compressed-tensors"),
    "qwen3moe": (
        "Qwen3Moe",
        {
            "num_experts_per_tok": 2,
            "num_experts": 4,
            "moe_intermediate_size": 64,
            "norm_topk_prob": True,
        },
        "compressed-tensors",
    ),
    "llama": ("Llama", {}, "compressed-tensors"),
    "llama 3.1": ("Llama", {"rope_parameters": LLAMA3}, "compressed-tensors"),
    "mistral": ("Mistral", {"sliding_window": None}, "compressed-tensors"),
    "qwen2": ("Qwen2", HEADS, "compressed-tensors"),
    "arcee": ("Arcee", {}, "compressed-tensors"),
    "granite": (
        "Granite",
        {
            **HEADS,
            "attention_multiplier": 0.2,
            "embedding_multiplier": 3.0,
            "residual_multiplier": 0.5,
            "logits_scaling": 2.0,
        },
        "compressed-tensors",
    ),
    "seed_oss": (
        "SeedOss",
        {"attention_bias": True, "attention_out_bias": False},
        "compressed-tensors",
    ),
    "olmo2": ("Olmo2", HEADS, "compressed-tensors"),
    "olmoe": (
        "Olmoe",
        {**HEADS, "num_experts_per_tok": 2, "num_experts": 4, "num_key_value_heads": 4},
        "compressed-tensors",
    ),
    "smollm3": ("SmolLM3", {"num_hidden_layers": 4}, "compressed-tensors"),
    "ernie4_5": ("Ernie4_5", HEADS, "compressed-tensors"),
}


def save_tokenizer(folder: Path) -> None:
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

    bytes_of = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    vocab = {text: number for number, text in enumerate(sorted(bytes_of.alphabet()))}
    begin, end = "<|startoftext|>", "<|endoftext|>"
    merges = [("h", "e"), ("l", "l"), ("he", "ll"), ("Ġ", "w")]
    for text in (begin, end, *starmap("{}{}".format, merges)):
        vocab[text] = len(vocab)
    made = Tokenizer(models.BPE(vocab, merges))
    split = pre_tokenizers.Split(Regex(GPT4O), "isolated")
    made.pre_tokenizer = pre_tokenizers.Sequence([split, bytes_of])
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(one, special=True) for one in (begin, end)])
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, bos_token=begin, eos_token=end, pad_token=end
    )
    fast.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    fast.save_pretrained(folder)


def save_first(name: str, folder: Path, seed: int = 0, **options: Any) -> None:
    """Write a model with random weights in bfloat16, and its tokenizer."""
    kind, config, _ = MODELS[name]
    torch.manual_seed(seed)
    made = getattr(transformers, f"{kind}Config")(**SIZES | config | options)
    model = getattr(transformers, f"{kind}ForCausalLM")(made).to(torch.bfloat16)
    with torch.no_grad():
        for key, one in model.named_parameters():
            drawn = torch.randn(one.shape) * (0.1 if one.ndim > 1 else 0.5)
            one.copy_(drawn + ("norm" in key))
        # Bytes that are no characters are never the likeliest: llama.cpp would not answer them.
        model.lm_head.weight[94:256] = 0
    model.save_pretrained(folder)
    save_tokenizer(folder)


def save(name: str, folder: Path, seed: int = 0) -> None:
    """Write a model, plain and quantized to MXFP4, and as GGUF."""
    recipe = MODELS[name][2]
    for part in ("first", "plain", "mxfp4"):
        (folder / part).mkdir(parents=True)
    save_first(name, folder / "first", seed)
    quantized = folder / "mxfp4"
    checkpoint.quantize_file(folder / "first", quantized, "mxfp4", recipe=recipe, overwrite=True)
    if "of compressed-tensors" in name:
        checkpoint.transcode_file(quantized, quantized, "compressed-tensors", overwrite=True)
        checkpoint.transcode_file(quantized, folder / "back", "gpt-oss")
    back = folder / "back" if (folder / "back").exists() else quantized
    checkpoint.dequantize_file(back, folder / "plain", "float32", overwrite=True)
    checkpoint.transcode_file(quantized, folder / "model.gguf", "gguf")
    checkpoint.transcode_file(folder / "model.gguf", folder / "again", recipe)
    checkpoint.dequantize_file(folder / "model.gguf", folder / "decoded", "float32")


@pytest.fixture(scope="module", params=MODELS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("models") / "model"
    save(request.param, made)
    return made


def test_as_gguf_reads_them(folder: Path) -> None:
    """The values of up are those that are decoded here, and tokens those of gguf-py."""
    read = gguf.GGUFReader(folder / "model.gguf")
    tensors = {one.name: one for one in read.tensors}
    plain = checkpoint.load(folder / "plain")
    stacked = "model.layers.1.mlp.experts.gate_up_proj"
    ups = [name for name in tensors if name.startswith("blk.1.ffn_up")]
    found = next(tensors[name] for name in ups if name.endswith("weight"))
    values = gguf.quants.dequantize(found.data, found.tensor_type)
    if stacked in plain:
        wanted = plain[stacked].swapaxes(1, 2)[:, 1::2]
    else:
        pattern = "model.layers.1.mlp.{}up_proj.weight"
        one = plain.get(pattern.format(""))
        each = (plain[pattern.format(f"experts.{n}.")] for n in range(4)) if one is None else ()
        wanted = np.stack([*each]) if one is None else one
    assert found.tensor_type == gguf.GGMLQuantizationType.MXFP4
    np.testing.assert_array_equal(values, wanted)
    assert tensors["output_norm.weight"].tensor_type == gguf.GGMLQuantizationType.F32
    assert tensors["token_embd.weight"].tensor_type == gguf.GGMLQuantizationType.BF16
    vocabulary = gguf.SpecialVocab(folder / "mxfp4", load_merges=True, n_vocab=320)
    stated = {name: field.contents() for name, field in read.fields.items()}
    assert stated["tokenizer.ggml.merges"] == vocabulary.merges
    assert stated["tokenizer.chat_template"] == vocabulary.chat_template
    for name, key in (("bos", "bos"), ("eos", "eos"), ("pad", "padding")):
        assert stated[f"tokenizer.ggml.{key}_token_id"] == vocabulary.special_token_ids[name]


def theirs(path: Path, tokens: list[int]) -> list[dict[int, float]]:
    """Return the logarithms of probabilities of the next tokens, as llama.cpp computes them."""
    import xllamacpp

    asked = xllamacpp.CommonParams()
    asked.model.path = str(path)
    asked.n_ctx, asked.n_parallel, asked.warmup, asked.verbosity = 256, 1, False, 0
    asked.cpuparams.n_threads = 1
    asked.cache_type_k = asked.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    server = xllamacpp.Server(asked)
    found = []
    for count in range(NEXT):
        answer = server.handle_completions(
            {
                "prompt": tokens[: len(tokens) - NEXT + count],
                "n_predict": 1,
                "ignore_eos": True,
                "temperature": 0,
                "n_probs": SHOWN,
                "cache_prompt": False,
            }
        )
        (token,) = answer["choices"][0]["logprobs"]["content"]
        found.append({one["id"]: one["logprob"] for one in token["top_logprobs"]})
    return found


def differences(found: list[dict[int, float]], plain: Path, tokens: list[int]) -> list[float]:
    """Return how far these are from what transformers computes of the decoded model."""
    model = transformers.AutoModelForCausalLM.from_pretrained(plain, dtype=torch.float32)
    with torch.no_grad():
        logits = torch.log_softmax(model(torch.tensor([tokens])).logits[0], -1)
    own = array(logits)[len(tokens) - NEXT - 1 : -1]
    return [
        max(abs(float(row[token]) - value) for token, value in one.items())
        for row, one in zip(own, found, strict=True)
    ]


def test_as_llama_computes_them(folder: Path) -> None:
    found = theirs(folder / "model.gguf", PROMPT)
    assert max(differences(found, folder / "plain", PROMPT)) < TOLERANCE
    assert min(map(len, found)) == SHOWN


@pytest.mark.parametrize("name", ["olmo2", "olmoe"])
def test_a_head_that_llama_needs_is_not_left_out(name: str, tmp_path: Path) -> None:
    """Its graphs of these have no output that is tied to the embedding."""
    save_first(name, tmp_path / "first", tie_word_embeddings=True)
    checkpoint.quantize_file(tmp_path / "first", tmp_path / "small", "mxfp4")
    with pytest.raises(checkpoint.CheckpointError, match=r"lacks what becomes 'output\.weight'"):
        checkpoint.transcode_file(tmp_path / "small", tmp_path / "model.gguf", "gguf")
    assert not (tmp_path / "model.gguf").exists()


@pytest.mark.parametrize(
    ("name", "tied"),
    [
        (name, tied)
        for name in MODELS
        for tied in (False, True)
        if MODELS[name][0] != "GptOss" and not (tied and name in {"olmo2", "olmoe"})
    ],
)
def test_parts_as_llama_computes_them(name: str, tied: bool, tmp_path: Path) -> None:
    """Whatever weights are MXFP4, those of tokens too, it computes as transformers does."""
    first, found = tmp_path / "first", dict[str, float]()
    save_first(name, first, tie_word_embeddings=tied)
    for part, pattern in PARTS.items():
        if part == "head" and tied:
            continue
        folder = tmp_path / part
        folder.mkdir()
        quantized, path = folder / "quantized", folder / "model.gguf"
        maps: Any = {"dtype_map": {pattern: "mxfp4"}, "consumer": "llama.cpp"}
        checkpoint.quantize_file(first, quantized, recipe="compressed-tensors", **maps)
        checkpoint.transcode_file(quantized, path, "gguf")
        checkpoint.dequantize_file(quantized, folder / "plain", "float32")
        read = {tensor.name: tensor.tensor_type for tensor in gguf.GGUFReader(path).tensors}
        if part in {"embedding", "head"}:
            token_tensor = {"embedding": "token_embd.weight", "head": "output.weight"}[part]
            assert read[token_tensor] == gguf.GGMLQuantizationType.MXFP4
        found[part] = max(differences(theirs(path, PROMPT), folder / "plain", PROMPT))
    assert max(found.values()) < TOLERANCE_OF_PARTS, found


WIDE = {"hidden_size": 256, "intermediate_size": 512}
"""Rows are whole blocks of 256."""


TOLERANCE_OF_BLOCKS = 0.4
"""Inputs of 8 bits share a scale by 32, or by 256. (A router would choose others by that.)"""


@pytest.mark.parametrize("scheme", [name.lower() for name, *_ in block_types()])
def test_blocks_as_llama_computes_them(scheme: str, tmp_path: Path) -> None:
    """Of a folder, with embeddings and heads, whose rows change places."""
    save_first("llama", tmp_path / "first", **WIDE)
    path, plain = tmp_path / "model.gguf", tmp_path / "plain"
    options: dict[str, Any] = {"consumer": "llama.cpp", "quantize_embeddings": True}
    checkpoint.quantize_file(tmp_path / "first", path, scheme, **options)
    checkpoint.dequantize_file(path, plain, "float32")
    read = {tensor.name: tensor.tensor_type.name for tensor in gguf.GGUFReader(path).tensors}
    assert read["output.weight"] == read["blk.0.attn_q.weight"] == scheme.upper()
    found = max(differences(theirs(path, PROMPT), plain, PROMPT))
    assert found < TOLERANCE_OF_BLOCKS, found


def test_advised_for_it(folder: Path, tmp_path: Path) -> None:
    """Advice for it is carried out by two commands, and computes as transformers does."""
    source, map_file = folder / "first", tmp_path / "map.toml"
    has_stacks = '"gpt_oss"' in (source / "config.json").read_text()
    # llama.cpp rounds to 8 bits what each of these is multiplied by: of more, more than TOLERANCE.
    options: Any = {"consumer": "llama.cpp", "error": 1.0 if has_stacks else 0.005}
    recipe: Any = None if has_stacks else "compressed-tensors"
    advice = checkpoint.advise(source, recipe=recipe, **options)
    assert {choice.target for choice in advice.choices} == {"mxfp4", *["keep"] * (not has_stacks)}
    advice.save(map_file)
    places = {
        "THIS": map_file,
        "QUANTIZED": tmp_path / "quantized",
        "DST.gguf": tmp_path / "m.gguf",
    }
    for command in advice.commands:
        words = (str(places.get(word, word)) for word in command.split()[1:])
        assert main([*words, "--quiet", "--exit-zero"]) == 0
    checkpoint.dequantize_file(places["QUANTIZED"], tmp_path / "plain", "float32")
    found = theirs(places["DST.gguf"], PROMPT)
    assert max(differences(found, tmp_path / "plain", PROMPT)) < TOLERANCE


def test_advised_types_as_llama_computes_them(tmp_path: Path) -> None:
    """A file of several types, by the command that advice names."""
    source, map_file, path = tmp_path / "first", tmp_path / "map.toml", tmp_path / "m.gguf"
    save_first("llama", source, **WIDE)
    advice = checkpoint.advise(source, bits=6, consumer="llama.cpp")
    advice.save(map_file)
    assert len({*advice.map.values()}) > 1
    (command,) = advice.commands
    places = {"THIS": map_file, "DST.gguf": path}
    words = (str(places.get(word, word)) for word in command.split()[1:])
    assert main([*words, "--quiet", "--exit-zero"]) == 0
    assert path.stat().st_size <= advice.nbytes
    checkpoint.dequantize_file(path, tmp_path / "plain", "float32")
    found = max(differences(theirs(path, PROMPT), tmp_path / "plain", PROMPT))
    assert found < TOLERANCE_OF_BLOCKS, found


def same_bytes(first: Path, second: Path) -> bool:
    """Return True if two folders have the same tensors."""
    one, other = checkpoint.load(first), checkpoint.load(second)
    return one.keys() == other.keys() and all(
        (one[name].dtype, one[name].shape, one[name].tobytes())
        == (other[name].dtype, other[name].shape, other[name].tobytes())
        for name in one
    )


def test_back_in_a_folder(folder: Path) -> None:
    """A GGUF file becomes the folder that it was made of: tensors, configuration and tokenizer."""
    first = folder / "back"
    assert same_bytes(first if first.exists() else folder / "mxfp4", folder / "again")
    path = folder / "decoded" / "config.json"
    text = path.read_text()
    if '"truncate": true' in (folder / "mxfp4" / "config.json").read_text():
        text = text.replace('"truncate": false', '"truncate": true')  # GGUF does not have it
    path.write_text(text)
    tokens = torch.tensor([PROMPT])
    found = []
    for name in ("plain", "decoded"):
        model = transformers.AutoModelForCausalLM.from_pretrained(folder / name, dtype="float32")
        with torch.no_grad():
            found.append(array(model(tokens).logits))
    np.testing.assert_array_equal(*found)
    first, second = (
        transformers.AutoTokenizer.from_pretrained(folder / name) for name in ("mxfp4", "decoded")
    )
    text = "hello world <|endoftext|> 12345 \t\n\n It's é ÜBER 你好 \U0001f600"
    assert first(text).input_ids == second(text).input_ids
    assert first.decode(PROMPT) == second.decode(PROMPT)
    assert (first.bos_token, first.eos_token) == (second.bos_token, second.eos_token)
    messages = [{"role": "user", "content": "hello"}]
    chats = [one.apply_chat_template(messages, tokenize=False) for one in (first, second)]
    assert chats == ["hello"] * 2


def test_rotary_factors(folder: Path) -> None:
    """They are those by which transformers divides the frequencies of Llama 3.1."""
    read = {one.name: one.data for one in gguf.GGUFReader(folder / "model.gguf").tensors}
    config = transformers.AutoConfig.from_pretrained(folder / "plain")
    kind = config.rope_parameters["rope_type"]
    assert ("rope_freqs.weight" in read) == (kind == "llama3")
    if kind == "llama3":
        model = transformers.AutoModelForCausalLM.from_pretrained(folder / "plain")
        plain = 500000.0 ** (-np.arange(0, 64, 2) / 64)
        found = plain / array(model.model.rotary_emb.inv_freq)
        np.testing.assert_allclose(read["rope_freqs.weight"], found, rtol=1e-5)
        assert read["rope_freqs.weight"].max() == 8


def test_other_weights_would_be_told(tmp_path: Path, folder: Path) -> None:
    """What llama.cpp computes is not that of any model of these sizes."""
    save("qwen3", tmp_path / "other", seed=1)
    found = theirs(folder / "model.gguf", PROMPT)
    assert max(differences(found, tmp_path / "other" / "plain", PROMPT)) > 10 * TOLERANCE
