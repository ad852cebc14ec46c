"""What is incomplete, or contradicts itself, is refused: exit code 2, a name, nothing written."""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import copy
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from castwise import checkpoint
from castwise.checkpoint import CheckpointError
from castwise.cli import main
from producer_models import (
    LAYOUTS,
    MODELS,
    MORE,
    RECORDED,
    Decodable,
    recorded,
    write,
    write_in_shards,
    write_zeros,
)
from producer_models.quark import quark
from small_llama import INDEX

WEIGHT, SCALE = "a.weight", "a.weight_scale_inv"
ALL = MODELS | MORE


def refused(folder: Path, capsys: pytest.CaptureFixture[str], *parts: str) -> None:
    before = sorted(folder.parent.rglob("*"))
    assert main(["dequantize", str(folder), str(folder.parent / "out")]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert all(part in said.err for part in parts), said.err
    assert sorted(folder.parent.rglob("*")) == before


def replaced(model: Decodable, **tensors: Any) -> Decodable:
    """Change some tensors; None removes one."""
    changed = model.tensors | tensors
    model.tensors = {name: array for name, array in changed.items() if array is not None}
    return model


def without_scale(model: Decodable) -> Decodable:
    return replaced(model, **{SCALE: None})


def with_renamed_scale(model: Decodable) -> Decodable:
    return replaced(model, **{SCALE: None, "b.weight_scale_inv": model.tensors[SCALE]})


def with_transposed_scale(model: Decodable) -> Decodable:
    return replaced(model, **{SCALE: np.ascontiguousarray(model.tensors[SCALE].T)})


def without_weight(model: Decodable) -> Decodable:
    return replaced(model, **{WEIGHT: None})


def with_another_block(model: Decodable) -> Decodable:
    model.config["quantization_config"]["weight_block_size"] = [64, 128]
    return model


def without_block(model: Decodable) -> Decodable:
    del model.config["quantization_config"]["weight_block_size"]
    return model


def without_config(model: Decodable) -> Decodable:
    model.config = {}
    return model


def of_another_method(model: Decodable) -> Decodable:
    model.config = {"quantization_config": {"quant_method": "awq", "bits": 4}}
    return model


def of_an_unknown_method(model: Decodable) -> Decodable:
    model.config = {"quantization_config": {"quant_method": "aqlm"}}
    return model


FAULTS: dict[Callable[[Decodable], Decodable], tuple[str, ...]] = {
    without_scale: (f"'{WEIGHT}' is a payload without its scale '{SCALE}'",),
    with_renamed_scale: (f"'{WEIGHT}' is a payload without its scale '{SCALE}'",),
    with_transposed_scale: (WEIGHT, "need a scale of shape (5, 3), and it has (3, 5)"),
    without_weight: (f"'{SCALE}' is a scale without its payload '{WEIGHT}'",),
    with_another_block: (WEIGHT, "blocks of 64x128 need a scale of shape (9, 3)"),
    without_block: (WEIGHT, "nothing states how many elements share a scale"),
    without_config: (WEIGHT, "no file states which producer", "config.json"),
    of_another_method: (WEIGHT, "config.json: awq is stated, but it is stored as by deepseek"),
    of_an_unknown_method: ("does not know the method 'aqlm'",),
}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda one: one.__name__)
@pytest.mark.parametrize("put", [write, write_in_shards], ids=["write", "sharded"])
def test_a_fault(tmp_path: Path, capsys: pytest.CaptureFixture[str], fault: Any, put: Any) -> None:
    model = fault(MODELS["deepseek, scales of float32"]())
    refused(put(tmp_path / "model", model), capsys, *FAULTS[fault])


@pytest.mark.thinned(3, 1)
@pytest.mark.parametrize("name", [name for name in MODELS if name != "comfy, old"])
def test_no_part_can_be_left_out(tmp_path: Path, name: str) -> None:
    """Each tensor beside a payload, but for what belongs to inputs or is not needed, is missed."""
    model = MODELS[name]()
    found = checkpoint.inspect(write(tmp_path / "whole", model)).quantization
    assert found is not None
    needless = {"weight_format", "bias", "pre_quant_scale"}
    if "order" not in name:
        needless.add("g_idx")
    for place, weight in enumerate(found.weights):
        for part in (weight.payload, *weight.parts):
            if part in weight.activations or part.rpartition(".")[2] in needless:
                continue
            less = replaced(copy(model), **{part: None})
            folder = write(tmp_path / f"{place} {part}", less)
            with pytest.raises(CheckpointError):
                checkpoint.dequantize_file(folder, tmp_path / "out")
            assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "name",
    [
        "compressed-tensors, words of 4",
        "compressed-tensors, words of 5, as of old",
        "compressed-tensors, nvfp4",
        "compressed-tensors, mxfp6",
        "modelopt, nvfp4",
        "gpt-oss",
        "comfy, nvfp4, marker",
        "awq",
        "gptq, 4 bits",
        "bitsandbytes, nf4",
        "mlx, 4 bits",
    ],
)
@pytest.mark.parametrize("axis", [0, -1])
def test_a_payload_that_is_narrower(tmp_path: Path, name: str, axis: int) -> None:
    model = MODELS[name]()
    found = checkpoint.inspect(write(tmp_path / "whole", model)).quantization
    assert found is not None
    payload = found.weights[0].payload
    array = model.tensors[payload]
    if name.startswith("bitsandbytes") and axis:
        pytest.skip("it has one column")
    less = np.ascontiguousarray(np.delete(array, -1, axis))
    folder = write(tmp_path / "less", replaced(model, **{payload: less}))
    with pytest.raises(CheckpointError, match=payload.replace(".", r"\.")):
        checkpoint.dequantize_file(folder, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.thinned(3)
@pytest.mark.parametrize("name", MODELS)
def test_no_part_is_of_another_kind(tmp_path: Path, name: str) -> None:
    """A part of integers that are floats, or the other way round, and a payload of one item."""
    model = MODELS[name]()
    found = checkpoint.inspect(write(tmp_path / "whole", model)).quantization
    assert found is not None
    out = tmp_path / "out"
    for place, weight in enumerate(found.weights):
        for part, role in {weight.payload: "", **weight.parts}.items():
            array = np.asarray(model.tensors[part])
            if role == "activation" or part.endswith("weight_format"):
                continue
            is_int = array.dtype.kind in "iu"
            other = array.astype(np.float64 if is_int else np.int64)
            less = [] if weight.scheme == "fp8_tensor" else [array.reshape(-1)[:1].reshape(())]
            for kind, wrong in enumerate([other, *less] if part == weight.payload else [other]):
                folder = tmp_path / f"{place} {part} {kind}"
                write(folder, replaced(copy(model), **{part: wrong}))
                with pytest.raises(CheckpointError):
                    checkpoint.dequantize_file(folder, out)
                assert not out.exists()


def test_an_element_that_is_not_the_stated_one(tmp_path: Path) -> None:
    model = MODELS["deepseek, scales of float32"]()
    model.tensors[WEIGHT] = model.tensors[WEIGHT].astype(ml_dtypes.float8_e5m2)
    model.config["quantization_config"]["fmt"] = "e4m3"
    with pytest.raises(CheckpointError, match="states e4m3, but the payload is float8_e5m2"):
        checkpoint.dequantize_file(write(tmp_path / "model", model), tmp_path / "out")
    model.config["quantization_config"]["fmt"] = "e5m2"
    checkpoint.dequantize_file(write(tmp_path / "other", model), tmp_path / "out")


def edit_index(folder: Path, edit: Callable[[dict[str, str]], None]) -> None:
    path = folder / INDEX
    index = json.loads(path.read_text())
    edit(index["weight_map"])
    path.write_text(json.dumps(index))


def test_an_index_that_lies(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = MODELS["deepseek, scales of float32"]
    first, second, third = (f"model-0000{n}-of-00003.safetensors" for n in (1, 2, 3))
    lies: tuple[tuple[Callable[[dict[str, str]], Any], tuple[str, ...]], ...] = (
        (lambda index: index.update({SCALE: first}), (SCALE, first)),
        (lambda index: index.update({SCALE: "gone.safetensors"}), (SCALE, "gone.safetensors")),
        (lambda index: index.update({"b.weight": third}), ("b.weight", third)),
        (lambda index: index.pop("norm.weight"), ("norm.weight", third)),
        (lambda index: index.pop(WEIGHT), (WEIGHT, first)),
    )
    for place, (lie, parts) in enumerate(lies):
        folder = write_in_shards(tmp_path / str(place), model())
        edit_index(folder, lie)
        if parts:
            refused(folder, capsys, *parts)
    both = write_in_shards(tmp_path / "both", model())
    checkpoint.save(
        both / third, model().tensors | {"norm.weight": np.ones(4, np.float32)}, overwrite=True
    )
    refused(both, capsys, SCALE, second, third)
    hidden = write_in_shards(tmp_path / "hidden", model())
    checkpoint.save(
        hidden / third, {"norm.weight": np.ones(4, np.float32), "x": np.ones(1)}, overwrite=True
    )
    refused(hidden, capsys, "'x'", third)
    for command in (["quantize", "--scheme", "int8_channel"], ["transcode", "--to", "modelopt"]):
        out = str(tmp_path / "out")
        assert main([command[0], str(hidden), out, *command[1:]]) == 2
        assert "tensor 'x' is in" in capsys.readouterr().err


def test_an_index_without_a_shard(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second, third = (f"model-0000{n}-of-00003.safetensors" for n in (1, 2, 3))
    lies: tuple[tuple[str, dict[str, str]], ...] = (
        (third, {WEIGHT: first, SCALE: second}),
        (first, {}),
    )
    for place, (shard, weights) in enumerate(lies):
        folder = write_in_shards(tmp_path / str(place), MODELS["deepseek, scales of float32"]())
        (folder / INDEX).write_text(json.dumps({"weight_map": weights}))
        name = WEIGHT if shard == first else "norm.weight"
        refused(folder, capsys, f"tensor '{name}' is in '{shard}'", INDEX)
        assert main(["verify", str(folder), str(folder)]) == 2
        assert main(["cast", str(folder), str(tmp_path / "out"), "--dtype", "float16"]) == 2
    out = tmp_path / "out"
    whole = write_in_shards(tmp_path / "whole", MODELS["deepseek, scales of float32"]())
    (whole / INDEX).write_text(json.dumps({"weight_map": lies[0][1]}))
    checkpoint.dequantize_file(whole, out, exclude=third)
    assert set(checkpoint.load(out)) == {WEIGHT}


@pytest.mark.parametrize(
    ("name", "section", "words"),
    [
        ("gptq, 4 bits", {"is_marlin_format": True}, ("'marlin'", "GPTQModel")),
        ("gptq, 4 bits", {"quant_method": "gptq_marlin"}, ("'gptq_marlin'", "library")),
        ("awq", {"bits": 3}, ("AWQ with 3 bits", "AutoAWQ")),
        ("awq", {"version": "gemv"}, ("'gemv'", "AutoAWQ")),
    ],
)
def test_other_packings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, section: Any, words: Any
) -> None:
    model = MODELS[name]()
    model.config["quantization_config"] |= section
    model.files = {}
    refused(write(tmp_path / "model", model), capsys, *words)


@pytest.mark.parametrize("group", [-1, 2**31 - 1])
@pytest.mark.parametrize(
    "name", ["gptq, order of activations", "compressed-tensors, order of activations"]
)
def test_an_index_of_other_groups(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, group: int
) -> None:
    model = MODELS[name]()
    part = next(one for one in model.tensors if one.endswith("g_idx"))
    model.tensors[part] = model.tensors[part].copy()
    model.tensors[part][3] = group
    refused(write(tmp_path / "model", model), capsys, f"'{part}' has {group}")


def test_nothing_to_decode(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write(tmp_path / "model", Decodable({"a.weight": np.ones((8, 8), np.float32)}, {}))
    refused(folder, capsys, "no weight in it is quantized")


def test_a_name_that_is_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = MODELS["gpt-oss"]()
    name = "mlp.experts.gate_up_proj"
    folder = write(tmp_path / "model", model, **{name: np.ones(3, np.float32)})
    refused(folder, capsys, f"is to become '{name}'")


def test_padding_that_nothing_tells(tmp_path: Path) -> None:
    """The rows of ComfyUI's blocks are padded with zeros, and only a bias counts the others."""
    model = replaced(MODELS["comfy, nvfp4, marker"](), **{"a.bias": None})
    with pytest.raises(CheckpointError, match="its last row is zero, which may be padding"):
        checkpoint.dequantize_file(write(tmp_path / "rows", model), tmp_path / "out")
    model = MODELS["comfy, nvfp4, marker"]()
    model.tensors["a.weight"][:, -1] &= 0xF0
    with pytest.raises(CheckpointError, match="its last column is zero"):
        checkpoint.dequantize_file(write(tmp_path / "columns", model), tmp_path / "out")
    model = replaced(MODELS["comfy, nvfp4, marker"](), **{"a.bias": np.ones(100, np.float32)})
    with pytest.raises(CheckpointError, match="its bias has 100 elements"):
        checkpoint.dequantize_file(write(tmp_path / "bias", model), tmp_path / "out")


@pytest.mark.parametrize(
    ("name", "section", "match"),
    [
        ("awq", {"version": "gemv"}, "the version 'gemv' of AWQ"),
        ("gptq, 4 bits", {"checkpoint_format": "marlin"}, "the format 'marlin' of GPTQ"),
        ("gptq, 4 bits", {"bits": 5}, "with 5 bits"),
        ("gptq, 4 bits", {"dynamic": {"-:b": {}, "+:.*a": {"bits": 8}}}, "scales"),
        ("mlx, 4 bits", {"bits": 8}, "group|shape"),
    ],
)
def test_other_variants(tmp_path: Path, name: str, section: dict[str, Any], match: str) -> None:
    model = MODELS[name]()
    model.files = {}
    for key in ("quantization_config", "quantization"):
        model.config.get(key, {}).update(section)
    with pytest.raises(CheckpointError, match=match):
        checkpoint.dequantize_file(write(tmp_path / "model", model), tmp_path / "out")


@pytest.mark.parametrize("module", ["model.embed_tokens", "wte"])
def test_an_embedding_of_gptqmodel(tmp_path: Path, module: str) -> None:
    """Its `TorchQuantEmbeddings` decodes to (tokens, features), others to (outputs, inputs)."""
    model = MODELS["gptq, 4 bits"]()
    model.tensors = {
        f"{module}.{name[2:]}" if name.startswith("a.") else name: array
        for name, array in model.tensors.items()
    }
    with pytest.raises(CheckpointError, match=f"'{module}.qweight'.*it is an embedding"):
        checkpoint.dequantize_file(write(tmp_path / "model", model), tmp_path / "out")


@pytest.mark.parametrize("module", ["embed_out", "context_embedder"])
def test_a_linear_layer_called_after_embeddings(tmp_path: Path, module: str) -> None:
    """GPT-NeoX's head and a projection of diffusers are no embeddings."""
    model = MODELS["gptq, 4 bits"]()
    plain = model.plain["a.weight"]
    model.tensors = {
        f"{module}.{name[2:]}" if name.startswith("a.") else name: array
        for name, array in model.tensors.items()
    }
    checkpoint.dequantize_file(write(tmp_path / "model", model), tmp_path / "out")
    np.testing.assert_array_equal(checkpoint.load(tmp_path / "out")[f"{module}.weight"], plain)


@pytest.mark.parametrize(
    ("section", "match"),
    [
        ({"format": "sparse-24-bitmask"}, "'sparse-24-bitmask'; compressed-tensors reads it"),
        ({"sparsity_config": {"format": "sparse-bitmask"}}, "'sparse-bitmask'"),
        ({"transform_config": {"config_groups": {"u": {}}}}, "its weights are transformed"),
        ({"moe_sparsity_config": {"method": "prune"}}, "which experts are left"),
    ],
)
def test_what_concerns_all_weights(tmp_path: Path, section: dict[str, Any], match: str) -> None:
    model = MODELS["compressed-tensors, words of 4"]()
    model.config["quantization_config"].update({"format": "pack-quantized", "sparsity_config": {}})
    checkpoint.dequantize_file(write(tmp_path / "whole", model), tmp_path / "out")
    model.config["quantization_config"].update(section)
    with pytest.raises(CheckpointError, match=match):
        checkpoint.dequantize_file(write(tmp_path / "model", model), tmp_path / "no")


@pytest.mark.parametrize(
    ("name", "section", "match"),
    [
        (
            "deepseek, scales of float32",
            {"weight_scale_semantics": "inverse", "weight_scale_method": "block"},
            "weight_scale_semantics 'inverse', by which scales divide",
        ),
        ("quark, fp4", {"algo_config": [{"name": "rotation", "r4": True}]}, r"\(rotation\)"),
        ("quark, fp4", {"algo_config": [{"name": "svdquant"}]}, r"\(svdquant\)"),
        ("quark, fp4", {"pre_quant_opt_config": {"name": "quarot"}}, r"\(quarot\)"),
        ("quark, fp4", {"global_quant_config": {"weight": [{}, {}]}}, "several steps"),
    ],
)
def test_what_newer_releases_state(
    tmp_path: Path, name: str, section: dict[str, Any], match: str
) -> None:
    """GPTQModel 7.7 multiplies float8 by what it stores; Quark 0.13 rotates inputs."""
    model = MODELS[name]()
    model.config["quantization_config"].update(section)
    with pytest.raises(CheckpointError, match=match):
        checkpoint.dequantize_file(write(tmp_path / "model", model), tmp_path / "out")


def test_what_newer_releases_state_of_no_weight(tmp_path: Path) -> None:
    """The fields of Quark 0.13 that change no code, and a rotation that its weights contain."""
    model = MODELS["quark, fp4"]()
    section = model.config["quantization_config"]
    section["global_quant_config"]["weight"] |= {
        "enable_buffer_reuse": False,
        "max_input_numel": 4 << 20,
    }
    section["algo_config"] = [{"name": "rotation", "r1": True, "r4": False}, {"name": "awq"}]
    checkpoint.dequantize_file(write(tmp_path / "model", model), tmp_path / "out")
    for name, plain in model.plain.items():
        np.testing.assert_array_equal(checkpoint.load(tmp_path / "out")[name], plain)


@pytest.mark.parametrize(
    ("name", "recipe"),
    [
        ("keras int4", "shapes do not tell; save the model with it"),
        ("keras, by name", "shapes do not tell"),
        ("transformer-engine", "transformer-engine"),
        ("modelopt FP8_2D_BLOCKWISE_WEIGHT_ONLY", "ModelOpt states no block.*weight_block_size"),
        ("modelopt, for ComfyUI", "modelopt or comfy"),
        ("gptq, by shapes", "put the configuration"),
    ],
)
def test_what_is_not_decoded_is_refused_by_name(tmp_path: Path, name: str, recipe: str) -> None:
    model = recorded(name) if name in RECORDED else LAYOUTS[name][0]
    folder = write_zeros(tmp_path / "model", model)
    with pytest.raises(CheckpointError, match=recipe):
        checkpoint.dequantize_file(folder, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("element", ["fp6_e2m3", "fp6_e3m2"])
def test_codes_of_six_bits_of_quark(tmp_path: Path, element: str) -> None:
    folder = write(tmp_path / "model", quark(element)())
    with pytest.raises(
        CheckpointError, match=f"'a.weight': .* mx{element} of Quark, whose releases"
    ):
        checkpoint.dequantize_file(folder, tmp_path / "out")
    found = checkpoint.inspect(folder).quantization
    assert found is not None
    assert [(one.scheme, one.block) for one in found.weights] == [(f"mx{element}", (1, 32))]


def test_options_are_checked(tmp_path: Path) -> None:
    folder = write(tmp_path / "model", MODELS["awq"]())
    out = tmp_path / "out"
    for options, kind, match in (
        ({"dtype": "float8_e4m3fn"}, ValueError, "weights are decoded to bfloat16"),
        ({"arithmetic": "fast"}, ValueError, "use peer or exact"),
        ({"threads": 0}, ValueError, "threads"),
        ({"only": 5}, TypeError, "only must be a regular expression"),
        ({"only": "("}, ValueError, "only"),
        ({"only": "b.*"}, CheckpointError, "matches no quantized weight"),
    ):
        with pytest.raises(kind, match=match):
            checkpoint.dequantize_file(folder, out, **options)
        assert not out.exists()


@pytest.mark.parametrize(
    ("algorithm", "level", "match"),
    [
        ("W4A16_AWQ", np.float32(1), "'a.weight_scale_2' is a scale of W4A8_AWQ"),
        ("W4A16_AWQ", np.float16(1), "'a.weight_scale_2' is float16; decoding needs float32"),
        (
            "W4A8_AWQ",
            ml_dtypes.bfloat16(1),
            "'a.weight_scale_2' is bfloat16; decoding needs float32",
        ),
        ("W4A8_AWQ", np.float32(np.inf), r"'float8 scale'\] is inf"),
        ("W4A8_AWQ", np.float32(2**127), r"'float8 scale'\] is 1\.7"),
        ("W4A8_AWQ", np.float32(np.nan), r"'float8 scale'\] is nan"),
    ],
)
def test_scales_of_float8(tmp_path: Path, algorithm: str, level: Any, match: str) -> None:
    model = ALL["modelopt, w4a8"]()
    model.tensors["a.weight_scale_2"] = np.asarray(level)
    of_layer = {"a": {"quant_algo": algorithm, "group_size": 32}}
    section = {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"}
    model.config["quantization_config"] = {**section, "quantized_layers": of_layer}
    source = write(tmp_path / "model", model)
    with pytest.raises(CheckpointError, match=match):
        checkpoint.dequantize_file(source, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_one_scale_where_each_row_is_stated_to_have_one(tmp_path: Path) -> None:
    weights = {"num_bits": 8, "type": "float", "strategy": "channel"}
    groups = {"g": {"targets": ["Linear"], "weights": weights}}
    section = {"quant_method": "compressed-tensors", "config_groups": groups}
    for place, shape in enumerate(((64, 96), (3, 3, 8))):
        codes = np.zeros(shape, ml_dtypes.float8_e4m3fn)
        scale = np.ones(shape[:-2], np.float32)
        model = Decodable(
            {WEIGHT: codes, "a.weight_scale": scale}, {}, {"quantization_config": section}
        )
        source = write(tmp_path / str(place), model)
        with pytest.raises(CheckpointError, match=r"'a\.weight'"):
            checkpoint.dequantize_file(source, tmp_path / "out")


WORDS = "compressed-tensors, words of 4, zero points"
IN_ORDER = "compressed-tensors, order of activations"


@pytest.mark.parametrize(
    ("name", "part", "array"),
    [
        *(
            (model, "a.weight_shape", np.zeros(count, np.int64))
            for model in (WORDS, IN_ORDER)
            for count in (0, 1, 5)
        ),
        ("mlx, 4 bits", "a.weight", np.uint32(7)),
        ("modelopt, nvfp4", "a.weight", np.uint8(7)),
        ("deepseek-v4", "w1.weight", np.int8(7)),
        ("bitsandbytes, int8", "a.weight_format", np.zeros(0, np.uint8)),
        *(
            (model, part, np.arange(96).astype(dtype))
            for model, part, dtype in (
                ("awq", "a.qweight", np.int32),
                ("gptq, 4 bits", "a.qweight", np.int32),
                (WORDS, "a.weight_packed", np.int32),
                ("mlx, 4 bits", "a.weight", np.uint32),
                ("gpt-oss", "mlp.experts.gate_up_proj_blocks", np.uint8),
            )
        ),
    ],
)
def test_parts_without_rows_and_columns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, part: str, array: Any
) -> None:
    model = MODELS[name]()
    assert part in model.tensors
    refused(write(tmp_path / "model", replaced(model, **{part: np.asarray(array)})), capsys, part)
