"""What stays plain beside quantized weights has the dtype that the configuration then states."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import castwise
import ml_dtypes
import numpy as np
import pytest
from castwise import checkpoint
from checkpoint_samples import assert_same, floats
from producer_models import MODELS, Decodable
from producer_models.comfy import comfy_old
from producer_models.deepseek import deepseek, two_weights
from small_llama import DOWN, EMBEDDING, HEAD, Q, weight

BF16 = ml_dtypes.bfloat16
WIDE = {"router.bias": floats(4, 1), "ids": np.arange(3)}


def plain(dtype: Any) -> dict[str, Any]:
    return {"norm.weight": floats(40).astype(dtype), "embed.weight": floats(6, 2).astype(dtype)}


def write(folder: Path, model: Decodable, dtype: Any, **config: Any) -> Path:
    """Write a model whose other tensors have a dtype, which is stated, and some float32."""
    folder.mkdir()
    tensors = model.tensors | plain(dtype) | WIDE
    checkpoint.save(folder / "model.safetensors", tensors, metadata=model.metadata)
    stated = {"model_type": "x", "dtype": np.dtype(dtype).name, **config, **model.config}
    (folder / "config.json").write_text(json.dumps(stated))
    for name, value in model.files.items():
        (folder / name).write_text(json.dumps(value))
    return folder


@pytest.mark.thinned(7, 2)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(
    ("dtype", "target"), [(BF16, "float16"), (np.float16, "bfloat16"), (BF16, "float32")]
)
def test_halves_become_what_is_stated(tmp_path: Path, name: str, dtype: Any, target: str) -> None:
    source, out = write(tmp_path / "in", MODELS[name](), dtype), tmp_path / "out"
    checkpoint.dequantize_file(source, out, target)
    loaded = checkpoint.load(out)
    config = json.loads((out / "config.json").read_text())
    assert config == {"model_type": "x", "dtype": target}
    for key, array in plain(dtype).items():
        assert_same(loaded[key], castwise.cast(array, target))
    for key, array in WIDE.items():
        assert_same(loaded[key], array)
    halves = {array.dtype.name for array in loaded.values()} & {"bfloat16", "float16"}
    assert halves <= {target}


def test_it_is_the_same_by_parts_workers_and_in_one_file(tmp_path: Path) -> None:
    source = write(tmp_path / "in", deepseek(np.float32)(), BF16)
    whole, out = tmp_path / "whole", tmp_path / "out"
    summary = checkpoint.dequantize_file(source, whole, "float16")
    checkpoint.dequantize_file(source, out, "float16", part="1/2")
    checkpoint.dequantize_file(source, out, "float16", part="2/2")
    assert checkpoint.finish(out).rows == summary.rows
    with ThreadPoolExecutor(2) as executor:
        checkpoint.dequantize_file(source, tmp_path / "workers", "float16", executor=executor)
    checkpoint.dequantize_file(source, tmp_path / "one.safetensors", "float16")
    names = ("model.safetensors", "config.json")
    for name in names:
        expected = (whole / name).read_bytes()
        assert (out / name).read_bytes() == expected
        assert (tmp_path / "workers" / name).read_bytes() == expected
    for name, array in checkpoint.load(whole).items():
        assert_same(checkpoint.load(tmp_path / "one.safetensors")[name], array)
    plan = checkpoint.dequantize_file(source, tmp_path / "dry", "float16", dry_run=True)
    assert {row.name: row.target for row in plan.rows} == {
        row.name: row.target for row in summary.rows
    }


def test_what_is_lost_by_it_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = deepseek(np.float32)()
    model.tensors["big.weight"] = np.array([1, 1e30], BF16)
    source = write(tmp_path / "in", model, BF16)
    summary = checkpoint.dequantize_file(source, tmp_path / "out", "float16")
    findings = [(one.kind, one.tensor, one.count) for one in summary.findings()]
    assert ("overflow", "big.weight", 1) in findings
    assert "will be float16, too, because config.json has one dtype" in caplog.text
    assert "load all of it: big.weight, embed.weight, norm.weight" in caplog.text


def test_a_part_that_states_float32_keeps_it(tmp_path: Path) -> None:
    """Its tensors do too."""
    parts = {"text_config": {"dtype": "bfloat16"}, "vision_config": {"torch_dtype": "float32"}}
    source = write(tmp_path / "in", deepseek(np.float32)(), BF16, **parts)
    checkpoint.dequantize_file(source, tmp_path / "out", "float16")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["dtype"] == config["text_config"]["dtype"] == "float16"
    assert config["vision_config"] == {"torch_dtype": "float32"}
    checkpoint.dequantize_file(source, tmp_path / "wide", "float32")
    config = json.loads((tmp_path / "wide" / "config.json").read_text())
    assert config["text_config"]["dtype"] == "float32"


def test_where_nothing_is_stated_all_others_stay(tmp_path: Path) -> None:
    model, path = comfy_old(), tmp_path / "in.safetensors"
    checkpoint.save(path, model.tensors | plain(BF16))
    checkpoint.dequantize_file(path, tmp_path / "out.safetensors", "float16")
    loaded = checkpoint.load(tmp_path / "out.safetensors")
    for key, array in plain(BF16).items():
        assert_same(loaded[key], array)


def test_some_weights_in_another_dtype_than_is_stated(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The others stay quantized, and so does the dtype that their model computes in."""
    source = write(tmp_path / "in", two_weights(), BF16)
    checkpoint.dequantize_file(source, tmp_path / "same", only="b.*")
    assert caplog.text == ""
    checkpoint.dequantize_file(source, tmp_path / "out", "float16", only="b.*")
    assert "its dtype still says 'bfloat16': a quantization is stated beside it" in caplog.text
    loaded = checkpoint.load(tmp_path / "out")
    assert loaded["b.weight"].dtype == np.float16
    for key, array in plain(BF16).items():
        assert_same(loaded[key], array)


@pytest.mark.parametrize("recipe", ["deepseek", "compressed-tensors", "modelopt", "mlx"])
def test_the_configuration_follows_what_a_map_casts_beside_quantized_weights(
    tmp_path: Path, recipe: str, caplog: pytest.LogCaptureFixture
) -> None:
    scheme = "mxfp8_e4m3" if recipe == "mlx" else "fp8_block"
    source = tmp_path / "in"
    source.mkdir()
    tensors = {Q: weight(256, 256), DOWN: weight(256, 384), HEAD: weight(32, 256)}
    checkpoint.save(source / "model.safetensors", tensors | {EMBEDDING: weight(32, 256)})
    config = '{"torch_dtype": "bfloat16", "text_config": {"dtype": "bfloat16"}}'
    (source / "config.json").write_text(config)

    def stated(out: str, **keys: str) -> list[str]:
        caplog.clear()
        checkpoint.quantize_file(source, tmp_path / out, scheme, recipe=recipe, dtype_map={**keys})
        made = json.loads((tmp_path / out / "config.json").read_text())
        assert {"quantization_config", "quantization"} & made.keys()
        return [made["torch_dtype"], made["text_config"]["dtype"]]

    assert stated("kept") == ["bfloat16"] * 2
    assert [one for one in caplog.messages if "is not for transformers" not in one] == []
    both = {"lm_head.*": "float16", ".*embed.*": "float16"}
    assert stated("all", **both) == ["float16"] * 2
    assert stated("one", **{"lm_head.*": "float16"}) == ["bfloat16"] * 2
    assert "the tensors are now bfloat16 and float16; set it to the one" in caplog.text


def test_transformers_loads_the_result_as_it_is(
    tmp_path: Path, framework: Callable[[str], ModuleType]
) -> None:
    torch, transformers = framework("torch"), framework("transformers")
    sizes = {"hidden_size": 128, "intermediate_size": 128, "num_hidden_layers": 1}
    config = transformers.LlamaConfig(**sizes, vocab_size=32, num_attention_heads=2)
    made = transformers.LlamaForCausalLM(config).to(torch.bfloat16)
    made.save_pretrained(tmp_path / "in")
    checkpoint.quantize_file(tmp_path / "in", tmp_path / "fp8", "fp8_block", block=64)
    checkpoint.dequantize_file(tmp_path / "fp8", tmp_path / "out", "float16")
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype="auto")
    tensors = checkpoint.load(tmp_path / "out")
    for name, parameter in loaded.named_parameters():
        assert_same(parameter.detach().numpy(), tensors[name])
        assert parameter.dtype == torch.float16


@pytest.mark.parametrize("compare", [checkpoint.verify, checkpoint.diff])
def test_comparisons_announce_no_conversion(
    tmp_path: Path, compare: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    """The dtype of the configuration is that of a result, and a comparison has none."""
    source = write(tmp_path / "in", MODELS["deepseek, scales of float32"](), np.float16)
    checkpoint.dequantize_file(source, tmp_path / "out", "bfloat16")
    assert "will be bfloat16, too" in caplog.text
    caplog.clear()
    compare(source, tmp_path / "out")
    assert "will be" not in caplog.text
