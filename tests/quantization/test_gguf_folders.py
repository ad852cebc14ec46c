"""GGUF files become folders that transformers loads: names, rows, configuration, tokenizer."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from castwise import checkpoint
from castwise.checkpoint import CheckpointError
from castwise.checkpoint.containers.gguf import reader
from castwise.checkpoint.planning.decode import decode
from castwise.checkpoint.planning.transcode import _global_scales, _transcoded_weight, _whole_model
from castwise.cli import main
from checkpoint_samples import assert_same
from numpy.typing import NDArray
from producer_models.gguf import parsed
from whole_models import (
    AT,
    CONFIG,
    HEAD,
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
LLAMA = {"model_type": "llama", "head_dim": None}
NORMS = {f"{AT}self_attn.{one}_norm.weight" for one in "qk"}


def text(value: str) -> bytes:
    raw = value.encode()
    return struct.pack("<Q", len(raw)) + raw


def value(one: Any) -> bytes:
    """Write a value with its type, as the specification of GGUF says."""
    kinds = {str: 8, bool: 7, int: 4, float: 6}
    if isinstance(one, list):
        kind = 8 if isinstance(one[0], str) else 5
        items = [text(each) if kind == 8 else struct.pack("<i", each) for each in one]
        return struct.pack("<IIQ", 9, kind, len(one)) + b"".join(items)
    if isinstance(one, str):
        return struct.pack("<I", 8) + text(one)
    return struct.pack("<I" + {7: "?", 4: "I", 6: "f"}[kinds[type(one)]], kinds[type(one)], one)


def changed(
    path: Path, stated: dict[str, Any] | None = None, tensors: dict[str, Any] | None = None
) -> Path:
    """Write a file anew with other values and tensors, each a type and an array; None removes."""
    old, found = parsed(path)
    old, found = {**old, **(stated or {})}, {**found, **(tensors or {})}
    pairs = [text(key) + value(one) for key, one in old.items() if one is not None]
    rows, data = [], b""
    for name, one in found.items():
        if one is None:
            continue
        kind, array = one
        shape = array.shape
        if kind in (20, 39):
            shape = (*shape[:-2], shape[-2] * 32)
        data += bytes(-len(data) % 32)
        rows.append(text(name) + struct.pack("<I", len(shape)))
        rows[-1] += struct.pack(f"<{len(shape)}QIQ", *shape[::-1], kind, len(data))
        data += array.tobytes()
    head = struct.pack("<4sIQQ", b"GGUF", 3, len(rows), len(pairs)) + b"".join([*pairs, *rows])
    new = path.with_name("changed.gguf")
    new.write_bytes(head + bytes(-len(head) % 32) + data)
    return new


def assert_same_folders(first: Path, second: Path) -> None:
    one, other = checkpoint.load(first), checkpoint.load(second)
    assert one.keys() == other.keys()
    for name, array in one.items():
        assert_same(other[name], array)


def config_of(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "config.json").read_text())
    return found


def without_norms(folder: Path) -> Path:
    """Remove the norms that a Llama has not."""
    tensors = {name: one for name, one in checkpoint.load(folder).items() if name not in NORMS}
    config = config_of(folder)
    made = write(folder.with_name("llama"), tensors, config)
    return made


def models(name: str, tmp_path: Path) -> tuple[Path, str]:
    """Write a model in MXFP4; return its folder, and the producer."""
    if name == "gpt-oss":
        return model(tmp_path / "model"), name
    if name == "qwen3_moe":
        return of_experts(tmp_path / "model", Q)[1], "compressed-tensors"
    folder = dense(tmp_path / "model", {}, **(LLAMA if name == "llama" else {}))
    return folder if name == "qwen3" else without_norms(folder), "compressed-tensors"


NAMES = ["gpt-oss", "qwen3", "qwen3_moe", "llama"]


@pytest.mark.thinned(2)
@pytest.mark.parametrize(
    ("name", "elements"),
    [
        *((name, 1 << 20) for name in NAMES),
        ("llama", 1),
        *(pytest.param(name, 1, marks=pytest.mark.exhaustive) for name in NAMES[:-1]),
    ],
)
def test_there_and_back(
    tmp_path: Path, name: str, elements: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tensors are what they were, byte for byte, and so is what is decoded of them."""
    for module, size in (
        (_global_scales, "_SLAB_BYTES"),
        (decode, "_SLAB_ELEMENTS"),
        (_whole_model, "SLAB_ELEMENTS"),
        (_transcoded_weight, "SLAB_ELEMENTS"),
        (reader, "_GATHERED"),
    ):
        monkeypatch.setattr(module, size, elements)
    source, recipe = models(name, tmp_path)
    file, back = tmp_path / "out.gguf", tmp_path / "back"
    checkpoint.transcode_file(source, file, "gguf")
    checkpoint.transcode_file(file, back, recipe)
    assert_same_folders(source, back)
    assert checkpoint.metadata(back) == {"format": "pt"}
    again = tmp_path / "again" / "out.gguf"
    again.parent.mkdir()
    checkpoint.transcode_file(back, again, "gguf")
    (stated, tensors), (other, others) = parsed(file), parsed(again)
    assert stated | {"general.name": "back"} == other
    assert all(np.array_equal(tensors[n][1].view("u1"), others[n][1].view("u1")) for n in tensors)
    checkpoint.dequantize_file(source, tmp_path / "plain")
    summary = checkpoint.dequantize_file(file, tmp_path / "decoded")
    assert_same_folders(tmp_path / "plain", tmp_path / "decoded")
    assert checkpoint.verify(file, source).equal
    assert checkpoint.verify(tmp_path / "decoded", file).equal
    assert checkpoint.verify(back, tmp_path / "decoded").equal
    assert {row.name for row in summary.rows} == checkpoint.load(tmp_path / "plain").keys()
    assert "quantization_config" not in config_of(tmp_path / "decoded")


PROJECTIONS = {"q": WIDTH, "k": HEAD, "v": HEAD}
OF_LAYERS = ("attn_k", "attn_norm", "attn_output", "attn_q", "attn_v", "ffn_down", "ffn_up")
GATED = (*OF_LAYERS, "ffn_gate", "ffn_norm")
MULTIPLIERS = {
    "attention_multiplier": ("attention.scale", 0.25),
    "embedding_multiplier": ("embedding_scale", 12.0),
    "residual_multiplier": ("residual_scale", 0.5),
    "logits_scaling": ("logit_scale", 8.0),
}
BIASED = {f"{AT}self_attn.{one}_proj.bias": (rows,) for one, rows in PROJECTIONS.items()}
POST = {f"{AT}post_feedforward_layernorm.weight": (WIDTH,)}
LONG_NORMS = dict(zip(sorted(NORMS), ((HEAD,), (WIDTH,)), strict=True))
OTHERS: dict[str, tuple[set[str], dict[str, Any], dict[str, Any], set[str]]] = {
    "qwen2": (NORMS, BIASED, {}, {*GATED}),
    "arcee": (
        {*NORMS, f"{AT}mlp.gate_proj.weight"},
        {},
        {"hidden_act": "relu2"},
        {*OF_LAYERS, "ffn_norm"},
    ),
    "granite": (NORMS, {}, {key: value for key, (_, value) in MULTIPLIERS.items()}, {*GATED}),
    "seed_oss": (
        NORMS,
        BIASED,
        {"attention_bias": True},
        {*OF_LAYERS, "ffn_gate", "post_attention_norm"},
    ),
    "olmo2": (
        {f"{AT}input_layernorm.weight"},
        POST | LONG_NORMS | {"lm_head.weight": (TOKENS, WIDTH)},
        {"tie_word_embeddings": False},
        {*OF_LAYERS, "ffn_gate", "post_attention_norm", "post_ffw_norm"} - {"attn_norm"}
        | {"attn_q_norm", "attn_k_norm"},
    ),
    "smollm3": (NORMS, {}, {"no_rope_layers": [1]}, {*GATED}),
    "ernie4_5": (NORMS, {}, {}, {*GATED}),
}
"""What of a Qwen3 they lack, have beside, and state, and the tensors that llama.cpp has in a layer.

That it computes them as transformers does is tested in `peers/test_gguf_files.py`.
"""


@pytest.mark.parametrize("kind", OTHERS)
def test_other_architectures(tmp_path: Path, kind: str) -> None:
    """Names and hyperparameters are those of llama.cpp's converter, and tensors come back."""
    missing, extra, more, names = OTHERS[kind]
    folder = dense(tmp_path / "model", extra, model_type=kind, **more)
    tensors = {n: one for n, one in checkpoint.load(folder).items() if n not in missing}
    for name in missing & {f"{AT}mlp.gate_proj.weight"}:
        tensors = {n: one for n, one in tensors.items() if not n.startswith(name)}
    source = write(tmp_path / "source", tensors, config_of(folder))
    file, back = tmp_path / "out.gguf", tmp_path / "back"
    checkpoint.transcode_file(source, file, "gguf")
    stated, found = parsed(file)
    assert {name.split(".")[2] for name in found if name.startswith("blk.0.")} == names
    biases = {name for name in found if name.endswith(".bias")}
    assert biases == {f"blk.0.attn_{one}.bias" for one in PROJECTIONS if extra is BIASED}
    assert stated["general.architecture"] == kind
    assert stated[f"{kind}.attention.key_length"] == HEAD
    for key, value in MULTIPLIERS.values():
        assert stated.get(f"{kind}.{key}") == (value if kind == "granite" else None)
    checkpoint.transcode_file(file, back, "compressed-tensors")
    assert_same_folders(source, back)
    config = config_of(back)
    assert config["model_type"] == kind
    assert {key: config[key] for key in more} == more
    if "no_rope_layers" in more:
        (source / "config.json").write_text(json.dumps(config_of(source) | {"no_rope_layers": [0]}))
        with pytest.raises(
            CheckpointError, match=r"no_rope_layers \[0\], .* with 1, 1, 1, 0 in turn"
        ):
            checkpoint.transcode_file(source, tmp_path / "other.gguf", "gguf")


@pytest.mark.parametrize("name", ["gpt-oss", "qwen3", "qwen3_moe", "llama"])
def test_blocks_that_the_package_decodes(
    tmp_path: Path, name: str, framework: Callable[[str], ModuleType]
) -> None:
    """They take the places that plain weights of the same values take."""
    package = framework("gguf")
    source, _ = models(name, tmp_path)
    checkpoint.transcode_file(source, tmp_path / "out.gguf", "gguf")
    rng = np.random.default_rng(0)
    blocks: dict[str, Any] = {}
    for weight, (kind, array) in parsed(tmp_path / "out.gguf")[1].items():
        if kind == 39 or weight in ("token_embd.weight", "output.weight"):
            *rows, count = array.shape[:-1] if kind == 39 else (*array.shape[:-1], WIDTH // 32)
            raw = rng.integers(0, 256, (*rows, count, 18), np.uint8)
            raw[..., 1] = raw[..., 1] & 0x83 | 0x20
            blocks[weight] = raw
    made = changed(
        tmp_path / "out.gguf", None, {weight: (20, raw) for weight, raw in blocks.items()}
    )
    checkpoint.dequantize_file(made, tmp_path / "decoded", "float32")
    kind = package.GGMLQuantizationType.IQ4_NL
    plain = {
        weight: package.quants.dequantize(raw.reshape(*raw.shape[:-2], -1), kind)
        for weight, raw in blocks.items()
    }
    if name == "gpt-oss":  # whose experts are never plain in a GGUF file
        loaded = checkpoint.load(tmp_path / "decoded")
        experts = {weight: array for weight, array in plain.items() if array.ndim == 3}
        assert len(experts) == 3 * LAYERS
        for weight, array in experts.items():
            layer, part = re.fullmatch(r"blk\.(\d)\.ffn_(\w+)_exps\.weight", weight).groups()
            stem = f"model.layers.{layer}.mlp.experts."
            down, both = loaded[stem + "down_proj"], loaded[stem + "gate_up_proj"]
            parts = {"down": down, "gate": both[..., 0::2], "up": both[..., 1::2]}
            assert_same(np.ascontiguousarray(parts[part]), array.transpose(0, 2, 1).copy())
        return
    other = changed(
        tmp_path / "out.gguf", None, {weight: (0, array) for weight, array in plain.items()}
    )
    checkpoint.dequantize_file(other, tmp_path / "plain", "float32")
    one, loaded = checkpoint.load(tmp_path / "plain"), checkpoint.load(tmp_path / "decoded")
    assert one.keys() == loaded.keys()
    for weight, array in one.items():  # norms are of the dtype of the other weights
        assert_same(loaded[weight].astype(np.float32), array.astype(np.float32))


@pytest.mark.parametrize("name", ["gpt-oss", "qwen3_moe", "llama", "qwen3"])
def test_factors_beside_weights(tmp_path: Path, name: str) -> None:
    """A number for each expert, and for each of two tensors whose rows alternate in one."""
    source, recipe = models(name, tmp_path)
    checkpoint.transcode_file(source, tmp_path / "out.gguf", "gguf")
    plain, added, factors = tmp_path / "plain", {}, {}
    rng = np.random.default_rng(0)
    for weight, (kind, array) in parsed(tmp_path / "out.gguf")[1].items():
        if kind == 39:
            count = len(array) if array.ndim == 4 else 1
            factors[weight] = rng.random(count, np.float32) * 3 - 1
            stem = weight.removesuffix("weight")
            added |= {f"{stem}scale": (0, factors[weight])}
            added |= {f"{stem}input_scale": (0, np.ones(count, np.float32))}
    assert factors
    checkpoint.dequantize_file(tmp_path / "out.gguf", plain, "float32")
    made = changed(tmp_path / "out.gguf", None, added)
    checkpoint.dequantize_file(made, tmp_path / "decoded", "float32")
    expected, found = checkpoint.load(plain), checkpoint.load(tmp_path / "decoded")
    assert found.keys() == expected.keys()
    scaled = 0
    for tensor, array in expected.items():
        values, product = array.astype(np.float32), array.astype(np.float32)
        for weight, each in factors.items():
            layer = re.search(r"\d+", weight)[0]
            if f"layers.{layer}." not in tensor:
                continue
            part = weight.split(".")[2]
            if name == "gpt-oss" and part in ("ffn_gate_exps", "ffn_up_exps"):
                start = int(part == "ffn_up_exps")
                if tensor.endswith("gate_up_proj"):
                    product[..., start::2] = values[..., start::2] * each[:, None, None]
                    scaled += 1
                continue
            ends = {
                "ffn_down_exps": "down_proj",
                "ffn_gate_exps": "gate_proj",
                "ffn_up_exps": "up_proj",
                "ffn_down": "down_proj",
                "ffn_gate": "gate_proj",
                "ffn_up": "up_proj",
                "attn_q": "q_proj",
                "attn_k": "k_proj",
                "attn_v": "v_proj",
                "attn_output": "o_proj",
            }
            if not tensor.removesuffix(".weight").endswith(f".{ends[part]}"):
                continue
            expert = re.search(r"experts\.(\d+)", tensor)
            factor = each[int(expert[1])] if expert else each.reshape(-1, *[1] * (array.ndim - 1))
            product = values * factor
            scaled += 1
        assert_same(found[tensor], product.astype(array.dtype))
    assert scaled >= len(factors)
    with pytest.raises(CheckpointError, match="is multiplied by what is beside it"):
        checkpoint.transcode_file(made, tmp_path / "other", recipe)
    wrong = added | {next(iter(added)): (0, np.ones(7, np.float32))}
    lacking = changed(tmp_path / "out.gguf", None, wrong)
    with pytest.raises(CheckpointError, match=r"of shape \(7,\), and factors are"):
        checkpoint.dequantize_file(lacking, tmp_path / "no")


@pytest.mark.parametrize("name", NAMES)
def test_configurations(tmp_path: Path, name: str) -> None:
    """They state what they did, but for what transformers takes by default."""
    source, recipe = models(name, tmp_path)
    checkpoint.transcode_file(source, tmp_path / "out.gguf", "gguf")
    checkpoint.transcode_file(tmp_path / "out.gguf", tmp_path / "back", recipe)
    old, new = config_of(source), config_of(tmp_path / "back")
    if name == "llama":
        assert old.pop("head_dim") is None
        assert new["head_dim"] == HEAD
    if name in ("llama", "qwen3"):
        for key in ("moe_intermediate_size", "norm_topk_prob", "sliding_window"):
            old.pop(key, None)
    if name == "qwen3_moe":
        old["num_experts"] = old.pop("num_local_experts")
        del old["sliding_window"]
    del old["quantization_config"]
    section = new.pop("quantization_config")
    wanted = {"gpt-oss": "mxfp4"}.get(recipe, recipe)
    assert section["quant_method"] == wanted
    assert {key: new.get(key) for key in old} == old
    assert new["torch_dtype"] == "bfloat16"
    assert new["tie_word_embeddings"] is (name != "gpt-oss")
    (one,) = new["architectures"]
    assert one.removesuffix("ForCausalLM").lower() == old["model_type"].replace("_", "")


def test_rows_of_llama(tmp_path: Path) -> None:
    """The halves of each head of queries and keys are interleaved, as by llama.cpp's converter."""
    source, _ = models("llama", tmp_path)
    checkpoint.transcode_file(source, tmp_path / "out.gguf", "gguf")
    stated, found = parsed(tmp_path / "out.gguf")
    tensors = checkpoint.load(source)
    for one, heads in (("q", WIDTH // HEAD), ("k", 1), ("v", 0)):
        scales = tensors[f"{AT}self_attn.{one}_proj.weight_scale"].view(np.uint8)
        if heads:
            shape = (heads, 2, HEAD // 2, scales.shape[1])
            scales = scales.reshape(shape).swapaxes(1, 2).reshape(scales.shape)
        np.testing.assert_array_equal(found[f"blk.0.attn_{one}.weight"][1][..., 0], scales)
    assert stated["general.architecture"] == "llama"
    assert stated["llama.rope.dimension_count"] == stated["llama.attention.key_length"] == HEAD


def test_rows_of_plain_queries(tmp_path: Path) -> None:
    """Queries that stay plain are in the same order."""
    folder = dense(tmp_path / "model", {}, **LLAMA)
    source = without_norms(folder)
    plain = checkpoint.load(tmp_path / "model")[f"{AT}self_attn.q_proj.weight"]
    tensors = {n: one for n, one in checkpoint.load(source).items() if "q_proj" not in n}
    tensors[f"{AT}self_attn.q_proj.weight"] = plain
    source = write(tmp_path / "mixed", tensors, config_of(folder))
    checkpoint.transcode_file(source, tmp_path / "out.gguf", "gguf")
    shape = (WIDTH // HEAD, 2, HEAD // 2, WIDTH)
    kind, found = parsed(tmp_path / "out.gguf")[1]["blk.0.attn_q.weight"]
    assert kind == 30
    assert_same(found, plain.reshape(shape).swapaxes(1, 2).reshape(plain.shape))
    checkpoint.transcode_file(tmp_path / "out.gguf", tmp_path / "back", "compressed-tensors")
    assert_same_folders(source, tmp_path / "back")


@cache
def converted() -> bytes:
    """Return the contents of a file, which takes most of the time of a test to make."""
    with TemporaryDirectory() as folder:
        file = Path(folder, "out.gguf")
        checkpoint.transcode_file(model(Path(folder, "model")), file, "gguf")
        return file.read_bytes()


def gguf_of(tmp_path: Path) -> Path:
    file = tmp_path / "out.gguf"
    file.write_bytes(converted())
    return file


def test_tokenizer(tmp_path: Path) -> None:
    """It has the tokens, merges and split that it had, and the chat templates."""
    checkpoint.transcode_file(gguf_of(tmp_path), tmp_path / "back", "gpt-oss")
    made = json.loads((tmp_path / "back" / "tokenizer.json").read_text())
    added = {one["id"]: one for one in TOKENIZER["added_tokens"]}
    texts = {256: "<|startoftext|>", 257: "<|call|>", 258: " user"}
    assert made["model"]["vocab"] == TOKENIZER["model"]["vocab"] | {t: n for n, t in texts.items()}
    assert made["model"]["merges"] == [f"{A} {B}", f"{A + B} {C}"]
    assert [(one["id"], one["content"]) for one in made["added_tokens"]] == [*texts.items()]
    # What looks like a control token is one to llama.cpp, whatever it was.
    assert [one["special"] for one in made["added_tokens"]] == [True, True, False]
    assert added.keys() == texts.keys()
    split, of_bytes = made["pre_tokenizer"]["pretokenizers"]
    assert split == TOKENIZER["pre_tokenizer"]["pretokenizers"][0]
    assert (of_bytes["type"], of_bytes["use_regex"]) == ("ByteLevel", False)
    assert made["normalizer"] is None
    assert made["model"]["ignore_merges"] is False
    assert made["post_processor"]["single"] == [
        {"SpecialToken": {"id": "<|startoftext|>", "type_id": 0}},
        {"Sequence": {"id": "A", "type_id": 0}},
    ]
    stated = json.loads((tmp_path / "back" / "tokenizer_config.json").read_text())
    texts = [stated[f"{name}_token"] for name in ("bos", "eos", "pad")]
    assert texts == ["<|startoftext|>", "<|call|>", "<|call|>"]
    assert (stated["add_bos_token"], stated["add_eos_token"]) == (True, False)
    assert stated["chat_template"] == [
        {"name": "default", "template": "{{x}}"},
        {"name": "tool", "template": "y"},
    ]


def test_ends_of_texts(tmp_path: Path) -> None:
    """Generation ends at all tokens that end a text, a turn or a message."""
    file, found = gguf_of(tmp_path), []
    for number, more in enumerate(({}, {"eot_token_id": 5, "eom_token_id": 257})):
        own = {f"tokenizer.ggml.{key}": one for key, one in more.items()}
        out = tmp_path / str(number)
        checkpoint.dequantize_file(changed(file, own), out)
        found.append(json.loads((out / "generation_config.json").read_text()))
    ids = {"bos_token_id": 256, "eos_token_id": 257, "pad_token_id": 257}
    assert found == [ids, ids | {"eos_token_id": [257, 5]}]


TEMPLATES = "chat_templates"


def test_other_splits(tmp_path: Path) -> None:
    """Qwen's tokenizers normalize, those of Llama 3 take whole tokens and begin texts."""
    file = gguf_of(tmp_path)
    left_out = dict.fromkeys(("tokenizer.ggml.add_bos_token", "tokenizer.chat_templates"))
    found = {}
    for pre in ("qwen2", "llama-bpe", "tekken", "gpt-2"):
        out = tmp_path / pre
        one = changed(file, {"tokenizer.ggml.pre": pre, **left_out})
        checkpoint.transcode_file(one, out, "gpt-oss")
        made = json.loads((out / "tokenizer.json").read_text())
        *splits, of_bytes = made["pre_tokenizer"]["pretokenizers"]
        found[pre] = (
            (made["normalizer"] or {}).get("type"),
            made["model"]["ignore_merges"],
            made["post_processor"]["type"],
            len(splits),
            of_bytes["use_regex"],
        )
        stated = json.loads((out / "tokenizer_config.json").read_text())
        assert stated["chat_template"] == "{{x}}"
    assert found == {
        "qwen2": ("NFC", False, "ByteLevel", 1, False),
        "llama-bpe": (None, True, "TemplateProcessing", 1, False),
        "tekken": (None, True, "TemplateProcessing", 1, False),
        "gpt-2": (None, False, "ByteLevel", 0, True),
    }


@pytest.mark.parametrize(
    ("stated", "match"),
    [
        ({"pre": "viking"}, "its model is 'gpt2' and its split 'viking', and castwise knows gpt2"),
        ({"model": "llama"}, "its model is 'llama'"),
        ({"tokens": None}, "it lacks tokens or their types"),
        ({"tokens": [1] * 262}, "its tokens are not texts"),
        ({"token_type": [1] * 261}, "it has 262 tokens of 261 types, and 262 rows"),
        ({"token_type": [1] * 261 + [6]}, r"token '\[PAD261\]' is of the type 6"),
        ({"tokens": ["a"] * 262}, "a token is there twice"),
        ({"merges": ["a b"]}, "it merges 'a b'"),
        ({"merges": ["a"]}, "it merges 'a'"),
        ({"merges": None}, "it merges None"),
        ({"eos_token_id": 261}, "its eos token is 261, which is not a token"),
        ({"bos_token_id": None}, "it adds a bos token, and states none"),
        ({"add_eos_token": "no"}, "its add_eos_token is 'no', which is neither true nor false"),
        ({"pre": ["gpt-4o"]}, r"its model is 'gpt2' and its split \['gpt-4o'\]"),
        *(({TEMPLATES: one}, f"its chat_templates are {one}, which is not a") for one in (3, True)),
    ],
)
def test_tokenizers_that_are_left_out(
    tmp_path: Path, stated: dict[str, Any], match: str, caplog: pytest.LogCaptureFixture
) -> None:
    own = {f"tokenizer.ggml.{key}".replace("ggml.chat", "chat"): stated[key] for key in stated}
    checkpoint.transcode_file(changed(gguf_of(tmp_path), own), tmp_path / "back", "gpt-oss")
    assert not [*(tmp_path / "back").glob("tokenizer*")]
    assert re.search(rf"the tokenizer is left out, as {match}", caplog.text)
    assert "copy tokenizer.json and tokenizer_config.json" in caplog.text


def test_vectors_that_are_float32(tmp_path: Path) -> None:
    """If one is not bfloat16 exactly, all stay float32."""
    file = gguf_of(tmp_path)
    checkpoint.dequantize_file(file, tmp_path / "all")
    assert {one.dtype for one in checkpoint.load(tmp_path / "all").values()} == {np.dtype(BF16)}
    exact = np.full(WIDTH, 1 + 2**-20, np.float32)
    other = changed(file, tensors={"output_norm.weight": (0, exact)})
    checkpoint.dequantize_file(other, tmp_path / "some")
    found = checkpoint.load(tmp_path / "some")
    assert_same(found["model.norm.weight"], exact)
    assert found["model.layers.0.self_attn.q_proj.bias"].dtype == np.float32
    assert found["model.layers.0.self_attn.q_proj.weight"].dtype == BF16
    checkpoint.dequantize_file(file, tmp_path / "wide", "float32")
    wide = checkpoint.load(tmp_path / "wide")
    assert wide["model.norm.weight"].dtype == np.float32
    assert config_of(tmp_path / "wide")["torch_dtype"] == "float32"


@pytest.mark.parametrize("offset", [0, 2**-20])
def test_vectors_of_several_formats_come_back_in_one(tmp_path: Path, offset: float) -> None:
    """With the same values; bfloat16 if that holds them."""
    source, recipe = models("llama", tmp_path)
    tensors = checkpoint.load(source)
    name = "model.norm.weight"
    tensors[name] = tensors[name].astype(np.float32) + np.float32(offset)
    mixed = write(tmp_path / "mixed", tensors, config_of(source))
    checkpoint.transcode_file(mixed, tmp_path / "out.gguf", "gguf")
    checkpoint.transcode_file(tmp_path / "out.gguf", tmp_path / "back", recipe)
    found = checkpoint.load(tmp_path / "back")
    norms = {one for one in tensors if one.endswith("norm.weight")}
    assert {found[one].dtype for one in norms} == {np.dtype(np.float32 if offset else BF16)}
    for one, value in tensors.items():
        assert_same(found[one].astype(value.dtype) if one in norms else found[one], value)


def test_a_single_file_keeps_the_names(tmp_path: Path) -> None:
    file, out = gguf_of(tmp_path), tmp_path / "out.safetensors"
    checkpoint.dequantize_file(file, out)
    assert checkpoint.load(out).keys() == parsed(file)[1].keys()
    assert checkpoint.metadata(out)["gpt-oss.block_count"] == str(LAYERS)
    checkpoint.transcode_file(file, out, "compressed-tensors", overwrite=True)
    assert "blk.0.ffn_gate_exps.weight_packed" in checkpoint.load(out)


def split(file: Path, count: int) -> list[Path]:
    """Divide a file as llama.cpp's gguf-split does."""
    values, tensors = parsed(file)
    size, paths = -(-len(tensors) // count), []
    for index in range(count):
        stated = dict.fromkeys(values if index else ())
        others = dict.fromkeys(set(tensors) - set(list(tensors)[index * size :][:size]))
        stated |= dict(zip(SPLIT_KEYS, (index, count, len(tensors)), strict=True))
        paths.append(file.with_name(f"model-{index + 1:05d}-of-{count:05d}.gguf"))
        changed(file, stated, others).rename(paths[-1])
    return paths


SPLIT_KEYS = ("split.no", "split.count", "split.tensors.count")


def test_a_model_in_several_files(tmp_path: Path) -> None:
    """Its first file stands for all: each way of reading gives what the whole file gives."""
    file = gguf_of(tmp_path)
    first, *others = split(file, 3)
    for out, target in (("back", "gpt-oss"), ("out.safetensors", "compressed-tensors")):
        for source, folder in ((file, "of-one"), (first, "of-many")):
            (tmp_path / folder).mkdir(exist_ok=True)
            checkpoint.transcode_file(source, tmp_path / folder / out, target)
    one, many = tmp_path / "of-one", tmp_path / "of-many"
    for path in [path for path in one.rglob("*") if path.is_file()]:
        assert (many / path.relative_to(one)).read_bytes() == path.read_bytes()
    assert checkpoint.verify(first, file).equal
    capitals = [part.with_name(f"Y{part.name[5:-5]}.GGUF") for part in (first, *others)]
    for part, path in zip((first, *others), capitals, strict=True):
        path.write_bytes(part.read_bytes())
    assert checkpoint.verify(capitals[0], file).equal
    assert checkpoint.inspect(first).tensors[0] == checkpoint.inspect(file).tensors[0]
    with ThreadPoolExecutor(2) as executor:
        checkpoint.dequantize_file(first, tmp_path / "plain", executor=executor)
    checkpoint.dequantize_file(file, tmp_path / "wanted")
    assert_same_folders(tmp_path / "plain", tmp_path / "wanted")


def test_files_that_are_no_whole_model(tmp_path: Path) -> None:
    file = gguf_of(tmp_path)
    first, second, third = split(file, 3)
    out = tmp_path / "out.safetensors"

    def refused(path: Path, match: str) -> None:
        for run in (checkpoint.inspect, lambda path: checkpoint.dequantize_file(path, out)):
            with pytest.raises(CheckpointError, match=match):
                run(path)
        assert not out.exists()

    refused(second, r"one of 3 files of a model; give the first of them, model-00001-of-00003")
    renamed = first.rename(tmp_path / "part1.gguf")
    refused(renamed, r"one of 3 files .* must end with -00001-of-00003\.gguf and so on; .*--merge")
    renamed.rename(first)
    whole = third.read_bytes()
    third.unlink()
    refused(first, r"model-00003-of-00003\.gguf, of the same model, is missing beside it; fetch it")
    third.write_bytes(whole[:-40])
    refused(first, r"model-00003-of-00003\.gguf, of the same model: .* leaves no room for")
    third.write_bytes(second.read_bytes())
    refused(first, r"model-00003-of-00003\.gguf, of the same model: .* is there twice")
    for stated, match in (
        ({"split.no": 1}, "does not state that it is number 3 of 3 files"),
        ({"split.count": 4}, "does not state that it is number 3 of 3 files"),
    ):
        third.write_bytes(whole)
        changed(third, stated).rename(third)
        refused(first, match)
    third.write_bytes(whole)
    whole_first = first.read_bytes()
    for count in (0, 1):
        first.write_bytes(changed(first, {"split.count": count}).read_bytes())
        refused(first, "by its name it is one of 3 files of a model, and it does not state that")
        first.write_bytes(whole_first)
    for stated, match in (
        ({"split.tensors.count": 7}, r"states 7 tensors in 3 files, which have \d+; fetch"),
        ({"split.count": 4}, "one of 4 files of a model, whose names must end with"),
        ({"split.count": "x"}, "one of x files of a model, whose names must end with"),
    ):
        first.write_bytes(changed(first, stated).read_bytes())
        refused(first, match)


def test_ways_of_running(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A dry run, an executor and shards give what one run gives."""
    file = gguf_of(tmp_path)
    checkpoint.transcode_file(file, tmp_path / "whole", "gpt-oss")
    names = sorted(one.name for one in (tmp_path / "whole").iterdir())
    others = ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"]
    assert names == sorted(["model.safetensors", *others])
    plan = checkpoint.transcode_file(file, tmp_path / "dry", "gpt-oss", dry_run=True)
    assert {row.name for row in plan.rows} == gpt_oss()[0].keys()
    assert not (tmp_path / "dry").exists()
    with ThreadPoolExecutor(2) as executor:
        checkpoint.transcode_file(file, tmp_path / "many", "gpt-oss", executor=executor)
    for name in names:
        assert (tmp_path / "many" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    command = ["dequantize", str(file), str(tmp_path / "shards"), "--max-shard-size", "20KB"]
    assert main(command) == 0
    assert "does not state truncate of its rotary embedding" in caplog.text
    assert (tmp_path / "shards" / "model.safetensors.index.json").exists()
    checkpoint.dequantize_file(file, tmp_path / "plain")
    assert_same_folders(tmp_path / "plain", tmp_path / "shards")


def test_in_parts(tmp_path: Path) -> None:
    """So does a run in parts, unless plain tensors are put together of others."""
    source, recipe = models("qwen3_moe", tmp_path)
    file = tmp_path / "out.gguf"
    checkpoint.transcode_file(source, file, "gguf")
    for number in (2, 1):
        checkpoint.transcode_file(file, tmp_path / "parts", recipe, part=(number, 2))
    checkpoint.finish(tmp_path / "parts")
    checkpoint.transcode_file(file, tmp_path / "whole", recipe)
    for one in (tmp_path / "whole").iterdir():
        assert (tmp_path / "parts" / one.name).read_bytes() == one.read_bytes()
    (tmp_path / "gpt-oss").mkdir()
    other = gguf_of(tmp_path / "gpt-oss")
    with pytest.raises(CheckpointError, match="cannot be converted in parts"):
        checkpoint.transcode_file(other, tmp_path / "back", "gpt-oss", part=(1, 2))


GATE = "blk.0.ffn_gate_exps.weight"
KEY = "gpt-oss.attention.key_length"


@pytest.mark.thinned(2)
@pytest.mark.parametrize(
    ("stated", "tensors", "match"),
    [
        (
            {"general.architecture": "mamba"},
            {},
            "is 'mamba', and castwise knows what .* of gpt-oss,",
        ),
        ({"general.type": "adapter"}, {}, "it is not a model but adapter"),
        ({KEY: None}, {}, "states gpt-oss.attention.key_length None, and a model needs"),
        ({KEY: 16}, {}, r"value_length 32, and elsewhere 16 of the same \(head_dim\)"),
        ({"gpt-oss.rope.dimension_count": 16}, {}, "rope.dimension_count 16, and elsewhere 32"),
        ({"gpt-oss.attention.scale": 0.5}, {}, "attention.scale 0.5, which castwise knows no form"),
        ({"gpt-oss.rope.scaling.type": "longrope"}, {}, r"states gpt-oss\.rope\.scaling\.\w+ "),
        ({"gpt-oss.attention.head_count": [2, 2]}, {}, r"head_count \[2, 2\], and a model needs"),
        (
            {"gpt-oss.block_count": 1 << 31},
            {},
            r"it lacks 'blk\.2\.attn_norm.weight', which becomes",
        ),
        (
            {"gpt-oss.block_count": 1},
            {},
            r"'blk\.1\..*' has no place in a model of GptOssForCausal",
        ),
        ({"gpt-oss.expert_count": 4}, {}, r"has the shape \(3, 64\), and the .* state \(4, 64\)"),
        (
            {"gpt-oss.vocab_size": 300},
            {},
            r"has the shape \(262, 64\), and the .* state \(300, 64\)",
        ),
        *(
            ({}, {name: (26, np.ones(shape, "i4"))}, f"'{name}' is int32, and llama.*; castwise c")
            for name, shape in (("blk.0.attn_q.weight", (64, 64)), ("token_embd.weight", (262, 64)))
        ),
        ({}, {"output_norm.weight": (28, np.ones(64))}, "'output_norm.weight' is float64, and ll"),
        *(
            (
                {},
                {"token_embd.weight": (30, np.ones(shape, BF16))},
                rf"'token_embd.weight' has the shape \({said}\), and needs a row for each token",
            )
            for shape, said in (((), ""), ((0, 64), "0, 64"))
        ),
        ({}, {"token_embd.weight": (30, np.ones(262, BF16))}, r"shape \(262,\), and .*\(262, 64\)"),
        (
            {},
            {"blk.1.attn_sinks.weight": None},
            r"lacks 'blk\.1\.attn_sinks\.weight', which becomes",
        ),
        ({}, {"output.weight": None}, "it lacks 'output.weight', which becomes 'lm_head.weight'"),
        ({}, {"token_embd.weight": None}, "it lacks 'token_embd.weight', which becomes"),
        ({}, {"rope_freqs.weight": (0, np.ones(16, "f4"))}, "'rope_freqs.weight' has no place"),
        ({}, {GATE: (30, np.ones((3, 32, 64), BF16))}, r"\(bfloat16\) and .*\(MXFP4\) are one in"),
        (
            {},
            {"blk.0.ffn_down_exps.weight": (30, np.ones((3, 64, 32), BF16))},
            "'blk.0.ffn_down_exps.weight' is not quantized, and transformers has such experts",
        ),
    ],
)
def test_what_is_no_model_of_transformers(
    tmp_path: Path, stated: dict[str, Any], tensors: dict[str, Any], match: str
) -> None:
    """It is refused by name as a folder, and becomes a single file."""
    file = changed(gguf_of(tmp_path), stated, tensors)
    for function, more in (
        (checkpoint.dequantize_file, ()),
        (checkpoint.transcode_file, ["gpt-oss"]),
    ):
        with pytest.raises(CheckpointError, match=match) as caught:
            function(file, tmp_path / "back", *more)
        assert "a .safetensors file keeps the names of llama.cpp" in str(caught.value)
        assert not (tmp_path / "back").exists()
    checkpoint.dequantize_file(file, tmp_path / "out.safetensors")


def test_verify_finds_a_difference(tmp_path: Path) -> None:
    """Of rows that change places the one that differs is named by its place in transformers."""
    source, _ = models("llama", tmp_path)
    file = tmp_path / "out.gguf"
    checkpoint.transcode_file(source, file, "gguf")
    kind, codes = parsed(file)[1]["blk.0.attn_q.weight"]
    codes = codes.copy()
    codes[3, 0, 1] ^= 1  # the second of the other half
    other = changed(file, tensors={"blk.0.attn_q.weight": (kind, codes)})
    (found,) = checkpoint.verify(other, source).differences
    assert (found.name, found.different) == (f"{AT}self_attn.q_proj.weight", 1)
    assert found.index == (HEAD // 2 + 1, 0)


def test_a_quantized_embedding(tmp_path: Path) -> None:
    """It is decoded, as transformers has no other; nothing else of it could be loaded."""
    codes = np.random.default_rng(0).integers(0, 100, (262, 2, 17), np.uint8)
    file = changed(gguf_of(tmp_path), tensors={"token_embd.weight": (39, codes)})
    with pytest.raises(CheckpointError, match=r"'token_embd\.weight' is MXFP4, and .* dequantize"):
        checkpoint.transcode_file(file, tmp_path / "back", "compressed-tensors")
    checkpoint.dequantize_file(file, tmp_path / "plain")
    checkpoint.dequantize_file(file, tmp_path / "plain.safetensors")
    found = checkpoint.load(tmp_path / "plain")["model.embed_tokens.weight"]
    assert_same(found, checkpoint.load(tmp_path / "plain.safetensors")["token_embd.weight"])
    assert config_of(tmp_path / "plain")["vocab_size"] == len(found)


@pytest.mark.parametrize(("kind", "dtype"), [(0, "float32"), (1, "float16"), (30, "bfloat16")])
def test_plain_files(tmp_path: Path, kind: int, dtype: str) -> None:
    """One without quantized weights is a folder whose tensors are as they were, but vectors."""
    source, _ = models("llama", tmp_path)
    checkpoint.transcode_file(source, tmp_path / "out.gguf", "gguf")
    checkpoint.dequantize_file(tmp_path / "out.gguf", tmp_path / "wanted", "float32")
    checkpoint.cast_file(tmp_path / "wanted", tmp_path / "cast", dtype)
    to = {0: np.float32, 1: np.float16, 30: BF16}[kind]
    checkpoint.dequantize_file(tmp_path / "out.gguf", tmp_path / "out.safetensors", "float32")
    loaded = checkpoint.load(tmp_path / "out.safetensors")
    arrays = {
        name: (kind, one.astype(to)) if one.ndim > 1 else (0, one.astype(to).astype(np.float32))
        for name, one in loaded.items()
    }
    file = changed(tmp_path / "out.gguf", tensors=arrays)
    summary = checkpoint.dequantize_file(file, tmp_path / "plain")
    assert_same_folders(tmp_path / "cast", tmp_path / "plain")
    assert config_of(tmp_path / "plain")["torch_dtype"] == dtype
    assert summary.rows
    assert checkpoint.verify(file, tmp_path / "plain").equal
    checkpoint.dequantize_file(file, tmp_path / "plain.safetensors")
    assert checkpoint.load(tmp_path / "plain.safetensors")["blk.0.attn_q.weight"].dtype == to
    with pytest.raises(CheckpointError, match=r"castwise dequantize makes a folder or a \.saf"):
        checkpoint.cast_file(file, tmp_path / "other", "float16")
    assert main(["dequantize", str(file), str(tmp_path / "command")]) == 0


def test_experts_that_transformers_does_not_load(tmp_path: Path) -> None:
    """Those of gpt-oss are of gpt-oss in a folder."""
    with pytest.raises(CheckpointError, match=r"folder of compressed-tensors: .*recipe='gpt-oss'"):
        checkpoint.transcode_file(gguf_of(tmp_path), tmp_path / "back", "compressed-tensors")


def test_a_key_that_is_there_twice(tmp_path: Path) -> None:
    file = gguf_of(tmp_path)
    for key in ("gpt-oss.block_count", "tokenizer.ggml.merges"):
        raw = file.read_bytes()
        at = raw.index(text(key))
        end = at + len(text(key))
        pair = raw[at:end] + struct.pack("<II", 4, 2)
        (count,) = struct.unpack_from("<Q", raw, 16)
        head = raw[:16] + struct.pack("<Q", count + 1) + pair + raw[24:]
        (tmp_path / "twice.gguf").write_bytes(head)
        with pytest.raises(CheckpointError, match=f"key '{key}' is there twice in its header"):
            checkpoint.dequantize_file(tmp_path / "twice.gguf", tmp_path / "back")


def test_only_some_weights(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"only '\.\*down\.\*': .* no model of transf"):
        checkpoint.dequantize_file(gguf_of(tmp_path), tmp_path / "back", only=".*down.*")


@pytest.mark.parametrize("more", [(), ("rope.dimension_count", "attention.head_count_kv")])
def test_sizes_that_follow(tmp_path: Path, more: tuple[str, ...]) -> None:
    """Older files of Llama do not state the size of heads, or that keys have as many."""
    source, _ = models("llama", tmp_path)
    tensors = checkpoint.load(source)
    if more:  # as many keys and values as queries
        for one in ("k", "v"):
            for end in ("packed", "scale"):
                name = f"{AT}self_attn.{one}_proj.weight_{end}"
                tensors[name] = np.concatenate([tensors[name]] * 2)
    heads = {"num_key_value_heads": WIDTH // HEAD} if more else {}
    source = write(tmp_path / "more", tensors, config_of(source) | heads)
    checkpoint.transcode_file(source, tmp_path / "out.gguf", "gguf")
    left_out = [f"llama.{one}" for one in ("attention.key_length", "attention.value_length")]
    left_out += [f"llama.{one}" for one in more]
    older = changed(tmp_path / "out.gguf", dict.fromkeys(left_out))
    checkpoint.transcode_file(older, tmp_path / "back", "compressed-tensors")
    assert_same_folders(source, tmp_path / "back")
    assert config_of(tmp_path / "back")["head_dim"] == HEAD


def test_heads_without_halves(tmp_path: Path) -> None:
    source, _ = models("llama", tmp_path)
    config = config_of(source) | {"head_dim": 33}
    (source / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match="head_dim is 33, and heads have two halves"):
        checkpoint.transcode_file(source, tmp_path / "out.gguf", "gguf")


LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def of_llama3(tmp_path: Path, **changes: Any) -> Path:
    source, _ = models("llama", tmp_path)
    config = config_of(source) | {"rope_scaling": LLAMA3 | changes}
    (source / "config.json").write_text(json.dumps(config))
    return source


def test_rope_of_llama3(tmp_path: Path) -> None:
    """Its frequencies are divided by factors in a tensor, as llama.cpp's converter has them."""
    source, file = of_llama3(tmp_path), tmp_path / "out.gguf"
    checkpoint.transcode_file(source, file, "gguf")
    stated, found = parsed(file)
    kind, factors = found["rope_freqs.weight"]
    wanted = []
    for at in range(0, HEAD, 2):
        length = 2 * np.pi * float(CONFIG["rope_theta"]) ** (at / HEAD)
        smooth = (8192 / length - 1) / 3
        between = 1 / ((1 - smooth) / 8 + smooth)
        wanted.append(1 if length < 2048 else 8 if length > 8192 else between)
    assert kind == 0
    assert_same(factors, np.array(wanted, np.float32))
    assert {1, 8} < {*wanted}
    assert not [key for key in stated if "scaling" in key]
    checkpoint.transcode_file(file, tmp_path / "back", "compressed-tensors")
    assert config_of(tmp_path / "back")["rope_scaling"] == LLAMA3
    assert_same_folders(source, tmp_path / "back")
    other = changed(file, tensors={"rope_freqs.weight": (0, factors * np.float32(1.01))})
    with pytest.raises(CheckpointError, match=r"factors are not those of low_freq_factor 1\.0, hi"):
        checkpoint.dequantize_file(other, tmp_path / "other")
    for array, said in (
        (factors[:0], r"shape \(0,\), and heads of 32 \(head_dim\) need"),
        (factors[:-1], r"shape \(15,\)"),
        (factors * 0, "are not those"),
        (np.array(8, np.float32), r"shape \(\)"),
    ):
        other = changed(file, tensors={"rope_freqs.weight": (0, array)})
        with pytest.raises(CheckpointError, match=rf"its rotary factors .*{said}"):
            checkpoint.dequantize_file(other, tmp_path / "other")
    scaled = {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 2.0}
    with pytest.raises(CheckpointError, match="a scaled rotary embedding, and has rotary factors"):
        checkpoint.dequantize_file(changed(file, scaled), tmp_path / "other")


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"factor": None}, "states factor None, and GGUF needs rope_freqs.weight of it: a"),
        ({"low_freq_factor": 4.0}, "low_freq_factor is 4.0, and high_freq_factor 4.0, not more"),
        ({"mscale": 1.0}, "the rotary embedding {.*'mscale': 1.0"),
    ],
)
def test_rope_of_llama3_that_is_wrong(tmp_path: Path, changes: dict[str, Any], match: str) -> None:
    with pytest.raises(CheckpointError, match=match):
        checkpoint.transcode_file(of_llama3(tmp_path, **changes), tmp_path / "out.gguf", "gguf")


def test_rope_of_llama3_elsewhere(tmp_path: Path) -> None:
    source = model(tmp_path / "model", rope_scaling=LLAMA3)
    with pytest.raises(CheckpointError, match=r"the rotary embedding \{'rope_type': 'llama3'"):
        checkpoint.transcode_file(source, tmp_path / "out.gguf", "gguf")


def test_rope_that_is_not_scaled(tmp_path: Path) -> None:
    """What is left out is stated, as transformers takes it as YaRN; so is another spelling."""
    file = gguf_of(tmp_path)
    begin = "gpt-oss.rope.scaling."
    keys = ("factor", "original_context_length", "yarn_beta_fast")
    for spelling in ("none", None):
        none = {f"{begin}type": spelling, **{begin + key: None for key in keys}}
        out = tmp_path / str(spelling)
        checkpoint.transcode_file(changed(file, none), out, "gpt-oss")
        assert config_of(out)["rope_scaling"] == {"rope_type": "default"}
        assert config_of(out)["rope_theta"] == CONFIG["rope_theta"]
        checkpoint.transcode_file(out, tmp_path / "again.gguf", "gguf", overwrite=True)
        assert not [key for key in parsed(tmp_path / "again.gguf")[0] if "scaling" in key]
