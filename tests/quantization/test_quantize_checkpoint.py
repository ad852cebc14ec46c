"""Checkpoints are quantized as a producer stores them, or refused."""

from __future__ import annotations

import json
import math
import re
import tracemalloc
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from castwise import checkpoint
from castwise.checkpoint import CastPlan, CheckpointError, Progress
from castwise.checkpoint.containers.safetensors import SafetensorsReader
from castwise.checkpoint.planning.encode import encoded_weight
from castwise.cli import main
from castwise.models.model import Model
from castwise.quantization import dequantize, quantize
from castwise.quantization.arrays import quantize as quantize_module
from checkpoint_samples import assert_same, write_sharded
from small_llama import (
    DOWN,
    FIRST,
    GATE,
    HEAD,
    INDEX,
    KEPT,
    LAYER,
    OUT,
    RECIPES,
    ROUTER,
    UP,
    WEIGHTS,
    Array,
    K,
    Q,
    V,
    options,
    weight,
    write,
)


def one_file(path: Path, **tensors: Array) -> Path:
    checkpoint.save(path, {f"{name}.weight": array for name, array in tensors.items()})
    return path


def fused(name: str) -> list[str]:
    groups = [Q, K, V], [GATE, UP]
    return next((group for group in groups if name in group), [name])


def expected(name: str, recipe: str, scheme: str) -> Any:
    """Quantize one weight as an array, with the largest magnitude of all that it is fused with."""
    more = options(recipe, scheme)
    if scheme == "nvfp4" and recipe in ("compressed-tensors", "modelopt"):
        largest = [np.abs(WEIGHTS[one].astype(np.float64)).max() for one in fused(name)]
        more["amax"] = float(max(largest))
    if recipe == "mlx" and scheme.startswith("int"):
        more |= {"symmetric": False, "block": 64}
    return quantize(WEIGHTS[name], scheme, recipe=recipe, **more)


def assert_values(actual: Array, wanted: Array) -> None:
    assert actual.dtype == wanted.dtype
    np.testing.assert_array_equal(actual, wanted)  # of zeros the sign does not matter


@pytest.mark.thinned(2)
@pytest.mark.parametrize(("recipe", "scheme"), RECIPES)
def test_a_folder(tmp_path: Path, recipe: str, scheme: str) -> None:
    """Parts are those of the array, whatever the shards; what is written decodes to its values."""
    source, out, again = write(tmp_path / "model"), tmp_path / "out", tmp_path / "again"
    more = options(recipe, scheme)
    summary = checkpoint.quantize_file(source, out, scheme, recipe=recipe, **more)
    found = checkpoint.load(out)
    for name, array in KEPT.items():
        assert_same(found.pop(name), array)
    decoded = {}
    for name in WEIGHTS:
        made = expected(name, recipe, scheme)
        decoded[name] = dequantize(made, "float32")
        for key, part in made.parts().items():
            assert_same(found.pop(name.removesuffix("weight") + key), part)
    assert not found
    quantization = checkpoint.inspect(out).quantization
    assert quantization is not None
    assert {(one.name, one.scheme) for one in quantization.weights} == {
        (name, scheme) for name in WEIGHTS
    }
    assert not quantization.orphans
    checkpoint.dequantize_file(out, again, "float32")
    for name, values in decoded.items():
        assert_values(checkpoint.load(again)[name], values)
    rows = {row.name: row for row in summary.rows}
    assert {row.target for row in rows.values() if row.report} == {scheme}
    sizes = (
        sum(getattr(row, f"nbytes_{when}") for row in summary.rows) for when in ("before", "after")
    )
    before, after = sizes
    assert before == sum(array.nbytes for array in (WEIGHTS | KEPT).values())
    index = json.loads((out / INDEX).read_text())
    assert index["metadata"] == {"total_size": after, "made_by": "test"}
    assert set(index["weight_map"]) == set(rows)
    config = json.loads((again / "config.json").read_text())
    assert config == {"model_type": "llama", "dtype": "float32"}


@pytest.mark.thinned(2, 1)
@pytest.mark.parametrize(
    ("recipe", "scheme"),
    [("compressed-tensors", "int4_group"), ("comfy", "nvfp4"), ("modelopt", "fp8_tensor")],
)
@pytest.mark.parametrize("elements", [1, 60_000])
def test_slabs_and_threads_do_not_matter(
    tmp_path: Path, recipe: str, scheme: str, elements: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write(tmp_path / "model")
    whole = checkpoint.quantize_file(source, tmp_path / "whole", scheme, recipe=recipe, threads=1)
    monkeypatch.setattr(encoded_weight, "_FLIGHT_ELEMENTS", elements)
    cut = checkpoint.quantize_file(source, tmp_path / "cut", scheme, recipe=recipe, threads=3)
    assert cut.rows == whole.rows
    for path in (tmp_path / "whole").rglob("*.*"):
        assert (
            tmp_path / "cut" / path.relative_to(tmp_path / "whole")
        ).read_bytes() == path.read_bytes()


@pytest.mark.parametrize(
    ("scheme", "recipe", "readings"),
    [
        ("fp8_block", "deepseek", 1),
        ("fp8_channel", "compressed-tensors", 1),
        ("int4_group", "compressed-tensors", 1),
        ("mxfp4", "compressed-tensors", 1),
        ("nvfp4", "modelopt", 2),
        ("nvfp4", "compressed-tensors", 2),
        ("fp8_tensor", "modelopt", 2),
    ],
)
def test_each_weight_is_read_and_quantized_once(
    tmp_path: Path, scheme: str, recipe: str, readings: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scale of the whole tensor costs one more reading; wide scales stand before payloads."""
    source, done = tmp_path / "model", Counter[str]()
    source.mkdir()
    shapes = {f"model.layers.{n}.mlp.up_proj.weight": (1024, 512) for n in range(4)}
    checkpoint.save(
        source / "model.safetensors",
        {name: np.ones(shape, ml_dtypes.bfloat16) for name, shape in shapes.items()},
    )
    (source / "config.json").write_text("{}")
    read, quantize = SafetensorsReader.read_into, quantize_module._encode

    def count_bytes(self: Any, name: str, begin: int, data: memoryview) -> None:
        done["read"] += len(data)
        read(self, name, begin, data)

    def count_elements(array: Any, *arguments: Any) -> Any:
        done["quantized"] += array.size
        return quantize(array, *arguments)

    checkpoint.quantize_file(source, tmp_path / "first", scheme, recipe=recipe)  # plans the parts
    monkeypatch.setattr(SafetensorsReader, "read_into", count_bytes)
    monkeypatch.setattr(quantize_module, "_encode", count_elements)
    monkeypatch.setattr(encoded_weight, "_FLIGHT_ELEMENTS", 1 << 18)
    checkpoint.quantize_file(source, tmp_path / "second", scheme, recipe=recipe, threads=2)
    elements = sum(map(math.prod, shapes.values()))
    assert done["read"] == readings * 2 * elements
    assert elements <= done["quantized"] <= 1.001 * elements
    stored = sum(array.nbytes for array in checkpoint.load(tmp_path / "second").values())
    done.clear()
    checkpoint.dequantize_file(tmp_path / "second", tmp_path / "third")
    assert 0.99 * stored <= done["read"] <= 1.01 * stored


@pytest.mark.parametrize(
    ("scheme", "recipe"),
    [("fp8_block", "deepseek"), ("nvfp4", "modelopt"), ("int4_group", "compressed-tensors")],
)
def test_a_store_gets_the_bytes_of_a_folder(
    tmp_path: Path, scheme: str, recipe: str, framework: Callable[[str], ModuleType]
) -> None:
    """Jobs become a stream: what stands before a payload, or after it, waits in a file."""
    files, source = framework("fsspec").filesystem("memory"), write(tmp_path / "model")
    here = checkpoint.quantize_file(source, tmp_path / "new", scheme, recipe=recipe)
    there = checkpoint.quantize_file(source, f"memory://{tmp_path}", scheme, recipe=recipe)
    assert there.rows == here.rows
    for path in (tmp_path / "new").glob("*.safetensors"):
        assert files.cat(f"memory://{tmp_path}/{path.name}") == path.read_bytes()


def test_memory_does_not_grow_with_tensors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    elements = 1 << 18  # a sixteenth of what is used
    monkeypatch.setattr(encoded_weight, "_FLIGHT_ELEMENTS", elements)
    for rows in (1 << 10, 4 << 10):
        array = np.arange(rows * 1024, dtype=np.float32).reshape(rows, 1024)
        source = one_file(tmp_path / f"{rows}.safetensors", a=array)
        del array
        tracemalloc.start()
        checkpoint.quantize_file(source, tmp_path / f"out {rows}.safetensors", "nvfp4", threads=2)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < elements * 15


def compressed(**weights: Any) -> dict[str, Any]:
    same = {"symmetric": True, "dynamic": False, "actorder": None, "block_structure": None}
    return {"group_size": None, "scale_dtype": None, "zp_dtype": None, **same, **weights}


def test_what_compressed_tensors_states(tmp_path: Path) -> None:
    source = write(tmp_path / "model")
    bytes_of = {"scale_dtype": "torch.uint8", "zp_dtype": "torch.uint8"}
    for scheme, form, weights in (
        ("fp8_channel", "naive-quantized", {"type": "float", "num_bits": 8, "strategy": "channel"}),
        (
            "mxfp4",
            "mxfp4-pack-quantized",
            {"type": "float", "num_bits": 4, "strategy": "group", "group_size": 32, **bytes_of},
        ),
        ("int8_channel", "pack-quantized", {"type": "int", "num_bits": 8, "strategy": "channel"}),
        (
            "int4_group",
            "pack-quantized",
            {"type": "int", "num_bits": 4, "strategy": "group", "group_size": 64},
        ),
    ):
        out, block = tmp_path / scheme, 64 if scheme == "int4_group" else None
        checkpoint.quantize_file(source, out, scheme, recipe="compressed-tensors", block=block)
        text = (out / "config.json").read_text()
        assert text.startswith('{\n  "model_type": "llama",\n  "dtype": "bfloat16",\n  "quant')
        section = json.loads(text)["quantization_config"]
        assert section["quant_method"] == "compressed-tensors"
        assert (section["format"], section["quantization_status"]) == (form, "compressed")
        (group,) = section["config_groups"].values()
        assert (group["targets"], group["format"]) == (["Linear"], form)
        assert group["weights"] == compressed(**weights)
        assert sorted(section["ignore"]) == ["lm_head", f"{LAYER}mlp.router"]


def test_integers_of_channels_are_packed(tmp_path: Path) -> None:
    """Integers of eight bits are packed like others: what is not has quantized inputs."""
    source, out = write(tmp_path / "model"), tmp_path / "out"
    checkpoint.quantize_file(source, out, "int8_channel")
    found = checkpoint.load(out)
    assert found[f"{OUT}_packed"].shape == (128, 64)
    assert found[f"{OUT}_shape"].tolist() == [128, 256]
    plain = quantize(WEIGHTS[OUT], "int8_channel", recipe="compressed-tensors")
    assert_same(found[f"{OUT}_scale"], plain.scale)
    unpacked = found[f"{OUT}_packed"].view(np.uint8).astype(np.int16) - 128
    np.testing.assert_array_equal(unpacked, plain.data)
    checkpoint.dequantize_file(out, tmp_path / "again")
    assert_values(checkpoint.load(tmp_path / "again")[OUT], dequantize(plain))


def test_what_others_state(tmp_path: Path) -> None:
    source = write(tmp_path / "model")
    kept = ["lm_head", f"{LAYER}mlp.router"]

    def section(recipe: str, scheme: str, key: str = "quantization_config") -> Any:
        out = tmp_path / f"{recipe} {scheme}"
        checkpoint.quantize_file(source, out, scheme, recipe=recipe, **options(recipe, scheme))
        return json.loads((out / "config.json").read_text()).get(key)

    assert section("deepseek", "fp8_block") == {
        "activation_scheme": "dynamic",
        "fmt": "e4m3",
        "quant_method": "fp8",
        "weight_block_size": [128, 128],
        "modules_to_not_convert": kept,
    }
    assert section("mlx", "int4_group", "quantization") == {
        "group_size": 64,
        "bits": 4,
        "mode": "affine",
    }
    assert section("comfy", "fp8_tensor") is None
    stated = section("modelopt", "nvfp4")
    assert (stated["quant_method"], stated["quant_algo"]) == ("modelopt", "W4A16_NVFP4")
    assert stated["ignore"] == kept
    assert section("modelopt", "int4_group")["config_groups"]["group_0"]["weights"] == {
        "dynamic": False,
        "num_bits": 4,
        "type": "int",
        "group_size": 128,
    }
    stated = section("modelopt", "fp8_block")
    assert (stated["quant_algo"], stated["weight_block_size"]) == ("fp8_pb_wo", [64, 64])
    own = json.loads((tmp_path / "modelopt nvfp4" / "hf_quant_config.json").read_text())
    assert own["producer"]["name"] == "modelopt"
    assert own["quantization"] == {
        "quant_algo": "W4A16_NVFP4",
        "kv_cache_quant_algo": None,
        "group_size": 16,
        "exclude_modules": kept,
    }


def test_a_map_and_what_is_ignored(tmp_path: Path) -> None:
    """A scheme may stand wherever a dtype may; the configuration states both schemes."""
    source, out, path = write(tmp_path / "model"), tmp_path / "out", tmp_path / "map.json"
    keys = {
        "default": "mxfp4",
        re.escape(HEAD): "fp8_channel",
        re.escape(ROUTER): "float32",
        re.escape(OUT): "keep",
        "no such": "nvfp4",
    }
    path.write_text(json.dumps(keys))
    ignore = [".*down_proj", f"{LAYER}mlp.up_proj.weight"]
    summary = checkpoint.quantize_file(source, out, dtype_map=path, ignore=ignore)
    assert set(summary.unused_patterns) == {"no such"}
    found = checkpoint.load(out)
    assert_same(found[OUT], WEIGHTS[OUT])
    assert_same(found[DOWN], WEIGHTS[DOWN])
    assert_same(found[UP], WEIGHTS[UP])
    assert_same(found[ROUTER], KEPT[ROUTER].astype(np.float32))
    assert found[f"{Q}_packed"].shape == (256, 64)
    head = quantize(KEPT[HEAD], "fp8_channel", recipe="compressed-tensors")
    assert_same(found[HEAD], head.data)
    section = json.loads((out / "config.json").read_text())["quantization_config"]
    assert section["format"] == "mixed-precision"
    modules = [name.removesuffix(".weight") for name in (OUT, DOWN, UP, ROUTER)]
    assert sorted(section["ignore"]) == sorted(modules)
    again = tmp_path / "again"
    checkpoint.dequantize_file(out, again)
    assert_values(checkpoint.load(again)[HEAD], dequantize(head))


def test_experts_in_one_tensor(tmp_path: Path) -> None:
    """Those of gpt-oss are (in, out) in the plain model, and (out, in) in blocks."""
    tensors = {
        "model.layers.0.mlp.experts.gate_up_proj": weight(3, 64, 40),
        "model.layers.0.mlp.experts.down_proj": weight(3, 96, 64),
        "model.layers.0.mlp.experts.down_proj_bias": weight(3, 64),
        "model.layers.0.self_attn.q_proj.weight": weight(64, 64),
    }
    source = write(tmp_path / "model", tensors, model_type="gpt_oss")
    out, again = tmp_path / "out", tmp_path / "again"
    checkpoint.quantize_file(source, out, "mxfp4", recipe="gpt-oss")
    found = checkpoint.load(out)
    checkpoint.dequantize_file(out, again)
    decoded = checkpoint.load(again)
    for name, array in tensors.items():
        if array.ndim < 3 or name.endswith("bias"):
            assert_same(found[name], array)
            continue
        made = quantize(array, "mxfp4", recipe="gpt-oss", axis=-2)
        assert_same(found[f"{name}_blocks"], made.data)
        assert_same(found[f"{name}_scales"], made.scale)
        assert_values(decoded[name], dequantize(made))
    section = json.loads((out / "config.json").read_text())["quantization_config"]
    kept = [f"{LAYER}self_attn.q_proj", "lm_head"]
    assert section == {"quant_method": "mxfp4", "modules_to_not_convert": kept}
    name = "model.layers.0.mlp.experts.down_proj"
    with pytest.raises(CheckpointError, match="deepseek stores the weight of each as a tensor"):
        checkpoint.quantize_file(source, tmp_path / "fp8", "fp8_block", block=(32, 32))
    source = write(tmp_path / "other", tensors, model_type="mistral4")  # whose are (out, in)
    with pytest.raises(CheckpointError, match=r"model_type 'mistral4', and gpt-oss stores experts"):
        checkpoint.quantize_file(source, tmp_path / "fp8", "mxfp4", recipe="gpt-oss")


def test_files(tmp_path: Path) -> None:
    """One file states in its metadata how it is stored; divided, in a configuration of its own."""
    source = one_file(tmp_path / "a.safetensors", a=weight(64, 128), b=weight(64, 128, seed=1))
    made = [quantize(weight(64, 128, seed=one), "fp8_block", recipe="deepseek") for one in (0, 1)]
    for out, limit in ((tmp_path / "b.safetensors", None), (tmp_path / "shards", 10_000)):
        checkpoint.quantize_file(source, out, "fp8_block", max_shard_size=limit)
        checkpoint.dequantize_file(out, tmp_path / "again.safetensors", overwrite=True)
        found = checkpoint.load(tmp_path / "again.safetensors")
        assert_values(found["a.weight"], dequantize(made[0]))
        assert_values(found["b.weight"], dequantize(made[1]))
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) == 2
    with pytest.raises(CheckpointError, match=r"out\.npz: a quantized checkpoint is a folder"):
        checkpoint.quantize_file(source, tmp_path / "out.npz", "fp8_block")
    with pytest.raises(CheckpointError, match="mlx states how weights are stored"):
        checkpoint.quantize_file(source, tmp_path / "out.safetensors", "mxfp4", recipe="mlx")


def test_shards_and_pipelines(tmp_path: Path) -> None:
    source, out = write(tmp_path / "model"), tmp_path / "out"
    checkpoint.quantize_file(source, out, "nvfp4")
    checkpoint.quantize_file(source, tmp_path / "divided", "nvfp4", max_shard_size=60_000)
    assert len(list((tmp_path / "divided").glob("*.safetensors"))) > 1
    for name, array in checkpoint.load(out).items():
        assert_same(checkpoint.load(tmp_path / "divided")[name], array)
    pipeline, new = tmp_path / "pipeline", tmp_path / "new"
    for name in ("transformer", "text_encoder"):
        (pipeline / name).mkdir(parents=True)
        one_file(pipeline / name / "model.safetensors", a=weight(64, 64))
        (pipeline / name / "config.json").write_text('{"a": 1e2}')
    (pipeline / "model_index.json").write_text("{}")
    checkpoint.quantize_file(pipeline, new, "mxfp4", ignore="text_encoder/.*")
    assert (new / "text_encoder" / "config.json").read_text() == '{"a": 1e2}'
    assert (new / "transformer" / "config.json").read_text().startswith('{"a": 1e2,\n  "quant')
    found = checkpoint.inspect(new).quantization
    assert found is not None
    assert [one.name for one in found.weights] == ["transformer/a.weight"]


@pytest.mark.parametrize(
    ("name", "stays"),
    [
        ("model.layers.0.mlp.gate.weight", True),
        ("model.layers.0.mlp.gate_proj.weight", False),
        ("model.layers.0.mlp.shared_expert_gate.weight", True),
        ("model.layers.0.mlp.shared_experts.up_proj.weight", False),
        ("model.layers.0.block_sparse_moe.experts.3.w1.weight", False),
        ("model.layers.0.self_attn.q_norm.weight", True),
        ("model.layers.0.self_attn.kv_a_proj_with_mqa.weight", False),
        ("language_model.lm_head.weight", True),
        ("model.layers.61.shared_head.head.weight", True),
        ("output.weight", True),
        ("bert.encoder.layer.0.attention.output.dense.weight", False),
        ("model.decoder.layers.0.fc1.weight", False),
        ("shared.weight", True),
        ("transformer.wte.weight", True),
        ("time_text_embed.timestep_embedder.linear_1.weight", True),
        ("transformer_blocks.0.norm1.linear.weight", True),
        ("transformer_blocks.0.attn.to_out.0.weight", False),
        ("base_model.model.q_proj.lora_A.default.weight", True),
    ],
)
def test_what_stays(name: str, stays: bool) -> None:
    assert Model({}, {name: (64, 64)}).is_kept(name) is stays


def test_in_place_and_again(tmp_path: Path) -> None:
    source = write(tmp_path / "model")
    checkpoint.quantize_file(source, tmp_path / "out", "fp8_block")
    checkpoint.quantize_file(source, source, "fp8_block", resumable=True, overwrite=True)
    for path in (tmp_path / "out").iterdir():
        if path.is_file():
            assert (source / path.name).read_bytes() == path.read_bytes()
    with pytest.raises(CheckpointError, match=r"quantized already .*: castwise dequantize"):
        checkpoint.quantize_file(source, source, "fp8_block")


@pytest.mark.parametrize("resumable", [False, True])
def test_an_interrupted_run(tmp_path: Path, resumable: bool) -> None:
    """Nothing is left, or what goes on to the same bytes and the same report."""
    source, out = write(tmp_path / "model"), tmp_path / "out"
    whole = checkpoint.quantize_file(source, tmp_path / "whole", "nvfp4")
    last = next(row.name for row in reversed(whole.rows) if row.report is not None)

    def stop(progress: Progress) -> None:
        if progress.name == last:
            raise KeyboardInterrupt

    before = set(tmp_path.rglob("*"))
    with pytest.raises(KeyboardInterrupt):
        checkpoint.quantize_file(source, out, "nvfp4", resumable=resumable, progress=stop)
    assert not out.exists()
    assert (set(tmp_path.rglob("*")) == before) is not resumable
    summary = checkpoint.quantize_file(source, out, "nvfp4", resume=resumable)
    assert summary.rows == whole.rows
    for path in (tmp_path / "whole").rglob("*.*"):
        assert (out / path.relative_to(tmp_path / "whole")).read_bytes() == path.read_bytes()


def test_what_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, out = write(tmp_path / "model"), tmp_path / "out"
    command = ["quantize", str(source), str(out), "--scheme", "fp8_block"]
    plan = checkpoint.quantize_file(source, out, "fp8_block", dry_run=True)
    assert isinstance(plan, CastPlan)
    assert main([*command, "--dry-run"]) == 0
    assert not out.exists()
    assert "fp8_block" in capsys.readouterr().out
    assert main([*command, "--report", str(tmp_path / "report.json")]) == 0
    assert "7 tensors quantized, 6 kept" in capsys.readouterr().out
    report = json.loads((tmp_path / "report.json").read_text())
    assert [one["name"] for one in report["tensors"]] == [row.name for row in plan.rows]
    (row,) = (one for one in report["tensors"] if one["name"] == DOWN)
    made = quantize(WEIGHTS[DOWN], "fp8_block", recipe="deepseek")
    lost = made.report(WEIGHTS[DOWN])
    assert row["report"]["exact"] == lost.equal
    assert row["report"]["underflowed"] == lost.zeroed
    assert row["report"]["max_abs_error"] == pytest.approx(lost.max_abs_error, rel=1e-6)
    assert row["report"]["sqnr_db"] == pytest.approx(lost.sqnr_db, abs=1e-4)
    assert report["options"]["recipe"] == "deepseek"


def test_losses_speak_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One value makes the scale so large that others become zero."""
    array = weight(64, 128, dtype=np.float32)
    array[0, 0] = 1e6
    source = one_file(tmp_path / "a.safetensors", a=array)
    command = ["quantize", str(source), str(tmp_path / "b.safetensors"), "--scheme"]
    assert main([*command, "fp8_tensor", "--quiet"]) == 1
    assert "nonzero values became zero in 'a.weight'" in capsys.readouterr().err
    assert main([*command, "fp8_tensor", "--quiet", "--max-zeros", "1", "--overwrite"]) == 0
    assert main([*command, "fp8_channel", "--quiet", "--overwrite"]) == 0
    assert main([*command, "mxfp4", "--quiet", "--overwrite"]) == 0
    assert capsys.readouterr().err == ""


def stacked(folder: Path) -> Path:
    return write(folder, {"a.mlp.experts.gate_up_proj": weight(2, 64, 64), "b.weight": weight(4)})


def quantized(folder: Path) -> Path:
    checkpoint.quantize_file(write(folder), folder, "mxfp4", overwrite=True)
    return folder


def with_infinity(folder: Path) -> Path:
    array = WEIGHTS[OUT].copy()
    array[100, 3] = np.inf
    return write(folder, {**WEIGHTS, **KEPT, OUT: array})


def with_nan(folder: Path) -> Path:
    array = WEIGHTS[K].copy()
    array[1, 3] = np.nan
    return write(folder, {**WEIGHTS, **KEPT, K: array})


def of_another_width(folder: Path) -> Path:
    return write(folder, {**WEIGHTS, "a.weight": weight(16, 40)})


def of_odd_rows(folder: Path) -> Path:
    return write(folder, {**WEIGHTS, "a.weight": weight(15, 128)})


def of_two_formats(folder: Path) -> Path:
    return write(folder, {**WEIGHTS, K: WEIGHTS[K].astype(np.float32)})


REFUSED: dict[str, tuple[Any, list[str], list[str]]] = {
    "nearest scheme": (write, ["nvfp5"], ["--scheme nvfp5 is", "did you mean 'nvfp4'?"]),
    "scheme not written": (write, ["bnb_nf4"], ["--scheme bnb_nf4: ", "no checkpoint", "nvfp4"]),
    "recipe and scheme": (
        write,
        ["nvfp4", "--recipe", "deepseek"],
        [
            "--recipe deepseek",
            "--scheme nvfp4",
            "compressed-tensors, modelopt, comfy, mlx",
            "fp8_block",
        ],
    ),
    "nearest recipe": (write, ["mxfp4", "--recipe", "gptoss"], ["did you mean 'gpt-oss'?"]),
    "block": (write, ["mxfp4", "--block", "64"], ["block 1x64", "mxfp4", "1x32"]),
    "one block": (
        write,
        ["fp8_block", "--recipe", "modelopt"],
        ["(64, 128), which is one block", "--ignore", "a smaller block"],
    ),
    "block that is not square": (
        write,
        ["fp8_block", "--recipe", "modelopt", "--block", "64x32"],
        ["block 64x32", "fp8_block", "128x128"],
    ),
    "ignore": (
        write,
        ["mxfp4", "--ignore", "q_prj"],
        ["--ignore q_prj matches no tensor; did you mean", "q_proj"],
    ),
    "quantized": (quantized, ["nvfp4"], ["quantized already", "castwise dequantize"]),
    "infinite": (with_infinity, ["fp8_channel"], [repr(OUT), "infinite", "--ignore"]),
    "infinite, first pass": (with_infinity, ["fp8_tensor"], [repr(OUT), "infinite"]),
    "NaN beside what is fused": (with_nan, ["nvfp4"], [repr(K), "NaN"]),
    "width": (of_another_width, ["mxfp4"], ["'a.weight'", "(16, 40)", "whole blocks of 32"]),
    "padding": (
        of_another_width,
        ["nvfp4", "--recipe", "comfy"],
        ["'a.weight'", "(16, 40)", "--ignore"],
    ),
    "odd rows": (
        of_odd_rows,
        ["int4_group", "--recipe", "modelopt"],
        ["'a.weight'", "(15, 128)", "multiples of 2x1", "--ignore"],
    ),
    "experts": (stacked, ["mxfp4"], ["'a.mlp.experts.gate_up_proj'", "a tensor of its own"]),
    "no experts": (write, ["mxfp4", "--recipe", "gpt-oss"], ["no weight in it would be"]),
    "two formats": (of_two_formats, ["nvfp4"], [repr(K), "fused", "float32"]),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2, the tensor named, nothing written."""
    make, options, parts = REFUSED[case]
    folder = make(tmp_path / "model")
    before = sorted(tmp_path.rglob("*"))
    assert main(["quantize", str(folder), str(tmp_path / "out"), "--scheme", *options]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert all(part in said.err for part in parts), said.err
    assert sorted(tmp_path.rglob("*")) == before


def test_what_else_is_refused(tmp_path: Path) -> None:
    names = [f"transformer.h.0.{name}.weight" for name in ("attn.c_attn", "mlp.c_fc")]
    source = write(tmp_path / "gpt2", {name: weight(64, 192) for name in names}, model_type="gpt2")
    for named in (None, {re.escape(names[0]): "fp8_channel"}):  # which no library would load
        with pytest.raises(CheckpointError, match=r"'trans.*c_attn.*keeps it as \(in, out\)"):
            checkpoint.quantize_file(source, tmp_path / "out", "fp8_channel", dtype_map=named)
    source = write(tmp_path / "model")
    for given, words in (
        ({}, "give a scheme"),
        ({"scheme": "nvfp4", "dtype_map": {"default": "mxfp4"}}, "is another"),
        ({"dtype_map": {".*norm.*": "fp8_channel"}}, "no weight in it would be quantized"),
        (
            {"dtype_map": {"model.layers.0.input_layernorm.weight": "fp8_channel"}},
            "a weight is a matrix",
        ),
        ({"scheme": "fp8_block", "dtype_map": {".*q_proj.*": "nvfp4"}}, "do not go together"),
        (
            {"scheme": "nvfp4", "recipe": "modelopt", "dtype_map": {".*q_proj.w.*": "fp8_tensor"}},
            "one scheme for a whole checkpoint",
        ),
    ):
        with pytest.raises(CheckpointError, match=words):
            checkpoint.quantize_file(write(tmp_path / words), tmp_path / "no", **given)
    wrong: dict[str, tuple[dict[str, Any], type[Exception]]] = {
        r"block=1\.5 is not valid; use \(rows, columns\)": (
            {"scheme": "fp8_block", "block": 1.5},
            ValueError,
        ),
        "dtype_map must be a mapping .* the path of one": ({"dtype_map": ["a"]}, TypeError),
        'key .*: "nvfp44" is not a format': ({"dtype_map": {".*": "nvfp44"}}, TypeError),
    }
    for words, (given, error) in wrong.items():
        with pytest.raises(error, match=words):
            checkpoint.quantize_file(source, tmp_path / "no", **given)
    assert not (tmp_path / "no").exists()


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (("modelopt", "nvfp4", "bfloat16"), "is not for transformers"),
        (("modelopt", "fp8_tensor", "float32"), "is not for transformers"),
        ((None, "nvfp4", "float32"), "needs dtype=torch.bfloat16 in transformers"),
        ((None, "mxfp8_e4m3", "float16"), "cast the model to bfloat16 first"),
        ((None, "nvfp4", "bfloat16"), None),
        ((None, "fp8_channel", "float32"), None),
        (("deepseek", "fp8_block", "float32"), None),
    ],
)
def test_what_transformers_does_not_run_is_said(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    model: tuple[str | None, str, str],
    words: str | None,
) -> None:
    recipe, scheme, dtype = model
    tensors = {name: weight(128, 128, seed=i).astype(dtype) for i, name in enumerate((Q, K, V))}
    tensors |= {"model.norm.weight": np.ones(128, dtype), "steps": np.arange(3)}
    write_sharded(tmp_path / "plain", {FIRST: tensors})
    for run in ({"dry_run": True}, {}):
        caplog.clear()
        checkpoint.quantize_file(tmp_path / "plain", tmp_path / "out", scheme, recipe=recipe, **run)
        said = [one for one in caplog.messages if "transformers" in one]
        assert len(said) == (words is not None), said
        assert words is None or words in said[0]
    caplog.clear()
    if recipe == "modelopt":
        return  # states nothing in one file
    checkpoint.quantize_file(tmp_path / "plain", tmp_path / "out.safetensors", scheme)
    assert not any("in transformers" in one for one in caplog.messages)


def test_a_transcoded_model_that_transformers_does_not_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_sharded(tmp_path / "plain", {FIRST: {Q: weight(128, 128)}})
    checkpoint.quantize_file(tmp_path / "plain", tmp_path / "nvfp4", "nvfp4")
    assert "transformers" not in caplog.text
    checkpoint.transcode_file(tmp_path / "nvfp4", tmp_path / "modelopt", "modelopt")
    assert "not for transformers" in caplog.text
