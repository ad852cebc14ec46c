"""AWQ and GPTQ become compressed-tensors with the same values, or are refused."""

from __future__ import annotations

import json
import logging
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from castwise import checkpoint
from castwise.checkpoint import CheckpointError
from castwise.checkpoint.planning import stored_tensors
from castwise.checkpoint.planning.transcode import _transcoded_weight
from checkpoint_samples import assert_same, write_sharded
from numpy.typing import NDArray
from producer_models import KEPT, Decodable, write
from producer_models.awq_gptq import TRANSCODABLE, awq, gptq

Array = NDArray[Any]
CT = "compressed-tensors"


def unpacked(words: Array, bits: int) -> Array:
    """Take the codes out of words of 32 bits, the first one lowest."""
    shifts = np.arange(0, 32, bits, dtype=np.uint32)
    codes = words.view(np.uint32)[..., None] >> shifts & np.uint32((1 << bits) - 1)
    return codes.reshape(*words.shape[:-1], -1).astype(np.float32)


def decoded(found: dict[str, Array], bits: int, group: int) -> Array:
    """Decode what compressed-tensors calls a.weight: codes and zero points have half added."""
    rows, columns = found["a.weight_shape"].tolist()
    codes = unpacked(found["a.weight_packed"], bits)[:, :columns]
    index = found.get("a.weight_g_idx", np.arange(columns) // group)
    zero: Any = np.float32(1 << (bits - 1))
    if "a.weight_zero_point" in found:
        packed = np.ascontiguousarray(found["a.weight_zero_point"].T)
        zero = unpacked(packed, bits).T[:rows][:, index]
    scale = found["a.weight_scale"].astype(np.float32)[:, index]
    return ((codes - zero) * scale).astype(ml_dtypes.bfloat16)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("name", TRANSCODABLE)
@pytest.mark.parametrize("elements", [1, 1 << 20])
def test_values_stay(
    tmp_path: Path, name: str, elements: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_transcoded_weight, "SLAB_ELEMENTS", elements)
    make, bits, group = TRANSCODABLE[name]
    model, out = make(), tmp_path / "out"
    source = write(tmp_path / "model", model)
    summary = checkpoint.transcode_file(source, out, CT)
    found = checkpoint.load(out)
    for key, array in KEPT.items():
        assert_same(found.pop(key), array)
    assert_same(decoded(found, bits, group), model.plain["a.weight"])
    assert checkpoint.verify(source, out).equal
    symmetric, reordered = "symmetric" in name, "reordered" in name
    (rows, columns), groups = model.plain["a.weight"].shape, 128 // group
    shapes = {
        "a.weight_packed": (rows, columns * bits // 32),
        "a.weight_scale": (rows, groups),
        "a.weight_shape": (2,),
    }
    if not symmetric:
        shapes["a.weight_zero_point"] = (rows * bits // 32, groups)
    if reordered:
        shapes["a.weight_g_idx"] = (columns,)
    assert {key: array.shape for key, array in found.items()} == shapes
    assert found["a.weight_scale"].dtype == np.float16
    assert_same(found["a.weight_scale"], np.ascontiguousarray(model.tensors["a.scales"].T))
    if reordered:
        assert_same(found["a.weight_g_idx"], model.tensors["a.g_idx"])
    before = sum(array.nbytes for array in (model.tensors | KEPT).values())
    assert sum(row.nbytes_before for row in summary.rows) == before
    assert {one.name for one in out.iterdir()} == {"model.safetensors", "config.json"}


@pytest.mark.parametrize("name", TRANSCODABLE)
def test_what_is_stated(tmp_path: Path, name: str) -> None:
    make, bits, group = TRANSCODABLE[name]
    checkpoint.transcode_file(write(tmp_path / "model", make()), tmp_path / "out", CT)
    text = (tmp_path / "out" / "config.json").read_text()
    assert text.startswith('{\n  "model_type": "llama",\n  "dtype": "float32",\n  "quant')
    section = json.loads(text)["quantization_config"]
    assert section["quant_method"] == CT
    assert (section["format"], section["quantization_status"]) == ("pack-quantized", "compressed")
    assert section["ignore"] == ["lm_head"]
    (one,) = section["config_groups"].values()
    assert (one["targets"], one["input_activations"]) == (["Linear"], None)
    is_channel, symmetric = group == 128, "symmetric" in name
    assert one["weights"] == {
        "num_bits": bits,
        "type": "int",
        "symmetric": symmetric,
        "strategy": "channel" if is_channel else "group",
        "group_size": None if is_channel else group,
        "block_structure": None,
        "dynamic": False,
        "actorder": "group" if "reordered" in name else None,
        "scale_dtype": None,
        "zp_dtype": None if symmetric else "torch.int8",
    }


def test_all_weights_alike(tmp_path: Path) -> None:
    """One config holds for all: zero points and indices stand beside each, or beside none."""
    model = gptq(4, centered=True)()
    other = gptq(4, reordered=True)()
    tensors = model.tensors | {f"b{name[1:]}": array for name, array in other.tensors.items()}
    del tensors["a.g_idx"]
    model.tensors, out = tensors, tmp_path / "out"
    source = write(tmp_path / "model", model)
    text = (source / "config.json").read_text()
    (source / "config.json").write_text(text.replace('"desc_act": true', '"desc_act": false'))
    checkpoint.transcode_file(source, out, CT)
    found = checkpoint.load(out)
    assert_same(found["a.weight_g_idx"], np.arange(128, dtype=np.int32) // 32)
    assert (found["a.weight_zero_point"] == np.int32(0x88888888 - (1 << 32))).all()
    assert checkpoint.verify(source, out).equal
    (one,) = json.loads((out / "config.json").read_text())["quantization_config"][
        "config_groups"
    ].values()
    assert (one["weights"]["symmetric"], one["weights"]["actorder"]) == (False, "group")


def test_zero_points_that_wrap(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The largest code stands for 0 in the first version, and that is said once."""
    model = gptq(4)()
    model.tensors["a.qzeros"] |= np.int32(15)
    source = write(tmp_path / "model", model)
    with caplog.at_level(logging.WARNING):
        checkpoint.transcode_file(source, tmp_path / "out", CT)
    assert caplog.text.count("zero points of 'a.qweight'") == 1
    assert checkpoint.verify(source, tmp_path / "out").equal


def sharded(folder: Path, model: Decodable) -> Path:
    """Write a model whose parts are in three shards."""
    names = [f"model-0000{one}-of-00003.safetensors" for one in (1, 2, 3)]
    shards: dict[str, dict[str, Array]] = {name: {} for name in names}
    for place, (name, array) in enumerate((model.tensors | KEPT).items()):
        shards[names[place % 3]][name] = array
    write_sharded(folder, shards)
    config = {"model_type": "llama", **model.config}
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    return folder


@pytest.mark.parametrize("name", ["awq", "gptq, symmetric", "gptq, reordered"])
def test_shards(tmp_path: Path, name: str) -> None:
    """Parts may be in other shards than their weight; the index names what is there."""
    model, out, again = TRANSCODABLE[name][0](), tmp_path / "out", tmp_path / "again"
    source = sharded(tmp_path / "model", model)
    summary = checkpoint.transcode_file(source, out, CT)
    assert checkpoint.verify(source, out).equal
    index = json.loads((out / "model.safetensors.index.json").read_text())
    there = {
        tensor: path.name for path in out.glob("*.safetensors") for tensor in checkpoint.load(path)
    }
    assert index["weight_map"] == there
    total = sum(row.nbytes_after for row in summary.rows)
    assert index["metadata"] == {"total_size": total, "made_by": "test"}
    checkpoint.transcode_file(source, again, CT, max_shard_size="1kB")
    assert checkpoint.verify(source, again).equal
    checkpoint.transcode_file(source, tmp_path / "one.safetensors", CT)
    assert checkpoint.verify(source, tmp_path / "one.safetensors").equal


def test_it_resumes_and_says_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, out = sharded(tmp_path / "model", awq()), tmp_path / "out"
    plan = checkpoint.transcode_file(source, out, CT, dry_run=True)
    assert not out.exists()
    made, calls = _transcoded_weight.converted_part, []

    def stopped(*args: Any) -> Array:
        calls.append(args)
        if len(calls) > 1:
            raise RuntimeError("stopped")
        return made(*args)

    monkeypatch.setattr(_transcoded_weight, "converted_part", stopped)
    with pytest.raises(RuntimeError, match="stopped"):
        checkpoint.transcode_file(source, out, CT, resumable=True)
    assert not out.exists()
    monkeypatch.setattr(_transcoded_weight, "converted_part", made)
    summary = checkpoint.transcode_file(source, out, CT, resume=True)
    assert [row._replace(report=None) for row in summary.rows] == plan.rows
    assert checkpoint.verify(source, out).equal


def test_less_memory_than_one_tensor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_transcoded_weight, "SLAB_ELEMENTS", 1 << 17)
    monkeypatch.setattr(stored_tensors, "_RECENT_BYTES", 1 << 17)
    config = {"quant_method": "gptq", "bits": 4, "group_size": 128, "checkpoint_format": "gptq_v2"}
    outputs = 1 << 16
    source = tmp_path / "source"
    source.mkdir()
    codes = np.arange(64 * outputs, dtype=np.int32).reshape(64, outputs)
    tensors = {
        "a.qweight": codes,
        "a.qzeros": np.arange(4 * outputs // 8, dtype=np.int32).reshape(4, -1),
        "a.scales": np.ones((4, outputs), np.float16),
    }
    checkpoint.save(source / "model.safetensors", tensors)
    (source / "config.json").write_text(json.dumps({"quantization_config": config}))
    tracemalloc.start()
    checkpoint.transcode_file(source, tmp_path / "out", CT)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    # As many slabs at once as there are threads, and what is imported: 2 and 2 MB of the 16.
    assert peak < codes.nbytes / 3


def test_planted_faults(tmp_path: Path) -> None:
    """What is missing, of another shape or not for this form is named, and nothing is written."""

    def refused(name: str, model: Decodable, *parts: str) -> None:
        source = write(tmp_path / name, model)
        before = sorted(tmp_path.rglob("*"))
        for dry_run in (True, False):
            with pytest.raises(CheckpointError) as error:
                checkpoint.transcode_file(source, tmp_path / "out", CT, dry_run=dry_run)
            assert all(part in str(error.value) for part in parts), str(error.value)
        assert sorted(tmp_path.rglob("*")) == before

    def changed(make: Callable[[], Decodable], **tensors: Array | None) -> Decodable:
        model = make()
        for key, array in tensors.items():
            if array is None:
                del model.tensors[f"a.{key}"]
            else:
                model.tensors[f"a.{key}"] = array
        return model

    refused("no scale", changed(awq, scales=None), "a.qweight")
    refused("no zero points", changed(awq, qzeros=None), "a.qweight")
    refused("zeros", changed(awq, qzeros=np.zeros((2, 5), np.int32)), "a.qzeros", "(2, 5)")
    refused("scale", changed(gptq(4), scales=np.ones((3, 64), np.float16)), "a.scales", "(3, 64)")
    refused("index", changed(gptq(4), g_idx=np.zeros(127, np.int32)), "a.g_idx", "(127,)")
    refused("3 bits", gptq(3)(), "a.qweight", "int3_group", "gptq")
    marlin = gptq(4, "marlin")()
    refused("packing", marlin, "a.qweight", "'marlin'", "GPTQModel reads it")
    gemv = awq()
    gemv.config["quantization_config"]["version"] = "gemv"
    refused("gemv", gemv, "a.qweight", "'gemv'")
    ordered = gptq(4, reordered=True)()
    del ordered.tensors["a.g_idx"]
    refused("no index", ordered, "a.qweight", "g_idx")
    ragged = gptq(4, reordered=True)()
    ragged.config["quantization_config"]["group_size"] = 48
    ragged.files = {}
    ragged.tensors["a.qzeros"] = np.zeros((3, 8), np.int32)
    ragged.tensors["a.scales"] = np.ones((3, 64), np.float16)
    refused("groups", ragged, "'a.g_idx' has 3, and there are 3 groups")
    ragged.tensors["a.g_idx"] //= 2
    refused("ragged", ragged, "a.qweight", "group of 48")
    negative = gptq(4, reordered=True)()
    negative.tensors["a.g_idx"][5] = -1
    refused("negative groups", negative, "'a.g_idx' has -1, and there are 4 groups")
    marlin = gptq(4)()
    marlin.config["quantization_config"]["is_marlin_format"] = True
    marlin.files = {}
    refused("marlin flag", marlin, "a.qweight", "'marlin'", "GPTQModel")
    unknown = gptq(4)()
    unknown.config["quantization_config"]["quant_method"] = "marlin"
    refused("marlin method", unknown, "does not know the method 'marlin'", "library of that method")


@pytest.mark.parametrize("name", TRANSCODABLE)
def test_inputs_that_are_quantized_while_the_model_runs(tmp_path: Path, name: str) -> None:
    """Bytes in channels become those of W8A8; others have no preset, and are refused."""
    make, bits, group = TRANSCODABLE[name]
    source, out = write(tmp_path / "model", make()), tmp_path / "out"
    if (bits, group) == (8, 128) and "symmetric" in name and "reordered" not in name:
        checkpoint.transcode_file(source, out, CT, inputs="dynamic")
        found = checkpoint.load(out)
        assert found["a.weight"].dtype == np.int8
        assert {*found} == {"a.weight", "a.weight_scale", *KEPT}
        assert checkpoint.verify(source, out).equal
        section = json.loads((out / "config.json").read_text())["quantization_config"]
        assert section["format"] == "int-quantized"
        (one,) = section["config_groups"].values()
        assert (one["input_activations"]["strategy"], one["weights"]["actorder"]) == ("token", None)
        return
    with pytest.raises(CheckpointError, match="inputs"):
        checkpoint.transcode_file(source, out, CT, inputs="dynamic")
    assert not out.exists()


def test_zero_points_that_no_preset_with_inputs_has(tmp_path: Path) -> None:
    source = write(tmp_path / "model", gptq(8, group=128)())
    with pytest.raises(CheckpointError, match=r"inputs 'dynamic': 'a.qweight' .* with zero points"):
        checkpoint.transcode_file(source, tmp_path / "out", CT, inputs="dynamic")
