"""The dtype in config.json follows the tensors, or a warning says what to set."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from castwise import checkpoint
from checkpoint_samples import floats
from system_parts import PERMISSIONS, need

CONFIG = "config.json"


def model(tmp_path: Path, config: Any, **more: Any) -> Path:
    """A folder with float32 tensors, others, and a configuration."""
    folder = tmp_path / "model"
    folder.mkdir()
    tensors = {"w": floats(8), "norm": floats(2), "ids": np.arange(3), **more}
    checkpoint.save(folder / "model.safetensors", tensors)
    text = config if isinstance(config, str) else json.dumps(config)
    (folder / CONFIG).write_text(text, "utf-8")
    return folder


def cast(folder: Path, *arguments: Any, **options: Any) -> Any:
    """The configuration after a cast."""
    out = folder.with_name("out")
    checkpoint.cast_file(folder, out, *arguments, **options)
    return json.loads((out / CONFIG).read_text("utf-8"))


def test_it_is_parsed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever asks for what it states: the model, its quantization, its dtype."""
    matrix = {"model.layers.0.mlp.up_proj.weight": np.ones((256, 128), np.float32)}
    folder = model(tmp_path, {"model_type": "llama", "torch_dtype": "float32"}, **matrix)
    parse, count = json.loads, 0

    def count_texts(text: Any, **options: Any) -> Any:
        nonlocal count
        count += '"model_type": ' in str(text)
        return parse(text, **options)

    monkeypatch.setattr(json, "loads", count_texts)
    for convert in (
        lambda: checkpoint.cast_file(folder, tmp_path / "cast", "bfloat16"),
        lambda: checkpoint.quantize_file(folder, tmp_path / "codes", "fp8_channel"),
        lambda: checkpoint.dequantize_file(tmp_path / "codes", tmp_path / "plain"),
    ):
        count = 0
        convert()
        assert count == 1


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("key", ["torch_dtype", "dtype"])
def test_it_follows_the_tensors(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, key: str, dtype: str
) -> None:
    config = {
        "name": "größe",
        key: "float32",
        "hidden_size": 8,
        "text_config": {key: "torch.float32", "rope": {"theta": 1e-06}},
        "vision_config": {key: None},
        "layers": ["float32"],
    }
    folder = model(tmp_path, config)
    changed = cast(folder, dtype)
    assert changed == {
        **config,
        key: dtype,
        "text_config": {key: f"torch.{dtype}", "rope": {"theta": 1e-06}},
    }
    assert list(changed) == list(config)
    assert caplog.text == ""


def test_permissions_stay_and_a_line_ends_where_it_did(tmp_path: Path) -> None:
    need(PERMISSIONS)
    folder = model(tmp_path, '{"dtype": "float32"}\n')
    (folder / CONFIG).chmod(0o440)
    cast(folder, "bfloat16")
    written = tmp_path / "out" / CONFIG
    assert written.read_bytes() == b'{"dtype": "bfloat16"}\n'
    assert written.stat().st_mode & 0o777 == 0o440


@pytest.mark.parametrize(
    ("arguments", "config"),
    [
        (({"default": "keep"},), {"dtype": "float32"}),
        (("float32",), {"dtype": "float32"}),
        (("bfloat16",), {"dtype": "bfloat16"}),
        (("bfloat16",), {"hidden_size": 8}),
        (("bfloat16",), {"dtype": "int8"}),
    ],
)
def test_what_is_true_or_unknown_stays_byte_for_byte(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, arguments: tuple[Any], config: Any
) -> None:
    folder = model(tmp_path, config)
    checkpoint.cast_file(folder, tmp_path / "out", *arguments)
    assert (tmp_path / "out" / CONFIG).read_bytes() == (folder / CONFIG).read_bytes()
    assert caplog.text == ""


@pytest.mark.parametrize(
    ("mapping", "more", "reason"),
    [
        ({"w": "bfloat16", "norm": "float16"}, {}, "bfloat16 and float16; set it to the one"),
        ({"w": "bfloat16"}, {}, "bfloat16 and float32; set it to the one"),
        ({"default": "float8_e4m3fn"}, {}, "no model is loaded in float8_e4m3fn"),
        ({"default": "bfloat16"}, {"quantization_config": {}}, "a quantization is stated"),
    ],
)
def test_a_warning_says_what_to_set(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    mapping: dict[str, str],
    more: dict[str, Any],
    reason: str,
) -> None:
    config = {"torch_dtype": "float32", **more}
    assert cast(model(tmp_path, config), mapping) == config
    assert "config.json was copied unchanged; its torch_dtype still says 'float32'" in caplog.text
    assert reason in caplog.text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # Numbers, escapes, keys that stand twice, spaces and line ends stay as they are.
        (
            '{"dtype" :\t"float32","a":1e400,"b":1.10,"c":-0.0e-7,"d":"\\ud800\\"]","e":NaN}\r\n',
            '{"dtype" :\t"bfloat16","a":1e400,"b":1.10,"c":-0.0e-7,"d":"\\ud800\\"]","e":NaN}\r\n',
        ),
        (f'{{"dtype":"float32","n":{"9" * 5000}}}', f'{{"dtype":"bfloat16","n":{"9" * 5000}}}'),
        ('{"dtype":"float32","dtype":"float16"}', '{"dtype":"bfloat16","dtype":"bfloat16"}'),
        ('\ufeff{"dtype":"float32"}', '\ufeff{"dtype":"bfloat16"}'),
        ('{"\\u0064type":"float\\u0033\\u0032"}', '{"\\u0064type":"bfloat16"}'),
        # Parts in lists, and a dtype for each part.
        ('{"parts":[[],{"dtype":"float32"}]}', '{"parts":[[],{"dtype":"bfloat16"}]}'),
        (
            '{"dtype":{"text":"float32","":["torch.float16"]},"other":"float32"}',
            '{"dtype":{"text":"bfloat16","":["torch.bfloat16"]},"other":"float32"}',
        ),
    ],
)
def test_only_the_dtype_changes_in_the_text(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, text: str, expected: str
) -> None:
    checkpoint.cast_file(model(tmp_path, text), tmp_path / "out", "bfloat16")
    assert (tmp_path / "out" / CONFIG).read_bytes() == expected.encode()
    assert caplog.text == ""


@pytest.mark.parametrize("other", ["quantization_config", "compression_config"])
def test_a_part_that_is_quantized_stays(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, other: str
) -> None:
    quantized = {"torch_dtype": "float32", "inner": [{"dtype": "float16"}], other: {"bits": 4}}
    config = {"text": quantized, "vision": {"torch_dtype": "float32"}, "torch_dtype": "float32"}
    expected = {"text": quantized, "vision": {"torch_dtype": "bfloat16"}, "torch_dtype": "bfloat16"}
    assert cast(model(tmp_path, config), "bfloat16") == expected
    stale, record = caplog.records
    assert "no weight is quantized, and config.json: " in stale.getMessage()
    assert record.getMessage().startswith(
        "config.json was changed elsewhere; its torch_dtype still says 'float32': a quantization "
        "is stated beside it"
    )


@pytest.mark.parametrize(
    "content",
    [
        b'{"dtype": "float32"',
        b'{"dtype": "float32"}}',
        b'{"dtype": "float32", "name": "\xe9"}',
        b"[" * 200_000,
        b'["float32"]',
        b'{"dtype": "float32"}' + b" " * 10_000_000,
    ],
)
def test_what_cannot_be_read_is_copied_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, content: bytes
) -> None:
    folder = model(tmp_path, {})
    (folder / CONFIG).write_bytes(content)
    checkpoint.cast_file(folder, tmp_path / "out", "bfloat16")
    assert (tmp_path / "out" / CONFIG).read_bytes() == content
    (record,) = caplog.records
    assert record.getMessage().startswith("config.json was copied unchanged: it ")
    assert "check the dtype" in record.getMessage()


def test_a_folder_of_its_name_is_copied_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = model(tmp_path, {})
    (folder / CONFIG).unlink()
    (folder / CONFIG).mkdir()
    checkpoint.cast_file(folder, tmp_path / "out", "bfloat16")
    assert caplog.messages[0].startswith("config.json was copied unchanged: it is a folder; check")


def test_it_can_be_kept(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = {"dtype": "float32"}
    assert cast(model(tmp_path, config), "bfloat16", keep_config=True) == config
    assert caplog.text == ""


def test_the_source_may_be_the_destination(tmp_path: Path) -> None:
    folder = model(tmp_path, {"dtype": "float32"})
    checkpoint.cast_file(folder, folder, "bfloat16", overwrite=True)
    assert json.loads((folder / CONFIG).read_text()) == {"dtype": "bfloat16"}


SIZES = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "vocab_size": 40}
HEADS = {"num_attention_heads": 2, "num_key_value_heads": 2}
LAYERS = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1}
DEEPSEEK = {
    **{"n_routed_experts": 4, "n_group": 1, "topk_group": 1, "num_experts_per_tok": 2},
    **{"kv_lora_rank": 8, "q_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4},
    **{"v_head_dim": 8, "moe_intermediate_size": 16, "first_k_dense_replace": 1},
}
WHISPER = {
    **{"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2},
    **{"decoder_attention_heads": 2, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32},
    **{"vocab_size": 40, "max_source_positions": 10, "num_mel_bins": 8, "pad_token_id": 0},
    **{"bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 3},
}
TOKENS = {"input_ids": (2, 6)}
MODELS: dict[str, tuple[str, dict[str, Any], dict[str, tuple[int, ...]]]] = {
    "Llama": ("LlamaForCausalLM", {**SIZES, **HEADS}, TOKENS),
    "Llama, tied": ("LlamaForCausalLM", {**SIZES, **HEADS, "tie_word_embeddings": True}, TOKENS),
    "BERT": ("BertForMaskedLM", {**SIZES, "num_attention_heads": 2}, TOKENS),
    "Mixtral": (
        "MixtralForCausalLM",
        {**SIZES, **HEADS, "num_local_experts": 2, "num_experts_per_tok": 1},
        TOKENS,
    ),
    "DeepSeek-V3": ("DeepseekV3ForCausalLM", {**SIZES, **HEADS, **DEEPSEEK}, TOKENS),
    "ViT": (
        "ViTForImageClassification",
        {**LAYERS, "num_attention_heads": 2, "image_size": 8, "patch_size": 4},
        {"pixel_values": (1, 3, 8, 8)},
    ),
    "Whisper": (
        "WhisperForConditionalGeneration",
        WHISPER,
        {"input_features": (1, 8, 20), "decoder_input_ids": (1, 4)},
    ),
}
"""A class of transformers, its configuration, and the shapes of its inputs."""


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", MODELS)
def test_transformers_loads_the_result_with_the_new_dtype(
    tmp_path: Path, framework: Callable[[str], ModuleType], name: str, dtype: str
) -> None:
    torch, transformers = framework("torch"), framework("transformers")
    kind, config, shapes = MODELS[name]
    cls = getattr(transformers, kind)
    torch.manual_seed(0)
    cls(cls.config_class(**config)).save_pretrained(tmp_path / "model")
    checkpoint.cast_file(tmp_path / "model", tmp_path / "out", dtype)
    ours = cls.from_pretrained(tmp_path / "out", dtype="auto").eval()
    theirs = cls.from_pretrained(tmp_path / "model", dtype=getattr(torch, dtype)).eval()
    assert ours.dtype == theirs.dtype == getattr(torch, dtype)
    inputs = {
        name: torch.arange(np.prod(shape)).reshape(shape) % 40
        if name.endswith("ids")
        else torch.randn(shape).to(ours.dtype)
        for name, shape in shapes.items()
    }
    with torch.no_grad():
        assert torch.equal(ours(**inputs).logits, theirs(**inputs).logits)
