"""What is quantized is recognized, and nothing else is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from castwise import checkpoint
from castwise.checkpoint import Quantization, TensorInfo
from castwise.quantization.producers.registry import PRODUCERS
from castwise.quantization.weights.recognition import recognize
from producer_models import (
    FLOATS,
    FORMATS,
    LAYOUTS,
    RECORDED,
    Model,
    Tensors,
    as_tensors,
    in_config,
    record,
    recorded,
    write_zeros,
)
from producer_models.deepseek import BLOCKS_OF_128
from refusals import as_recorded

PLAIN = {"config.json": {"model_type": "llama"}}


def found_in(folder: Path, model: Model) -> Quantization | None:
    return checkpoint.inspect(write_zeros(folder, model)).quantization


def summary(found: Quantization | None) -> set[tuple[Any, ...]]:
    """Scheme, block and recipes of all weights; and each contradiction."""
    assert found is not None
    assert found.orphans == ()
    assert found.unknown is None
    return {(one.scheme, one.block, " ".join(one.recipes), one.problem) for one in found.weights}


def test_every_recorded_model_is_expected() -> None:
    assert set(RECORDED) == set(record()["quantized"])


@pytest.mark.parametrize("name", RECORDED)
def test_a_producer_s_model(tmp_path: Path, name: str) -> None:
    scheme, block, recipe, count, parts = RECORDED[name]
    found = found_in(tmp_path / "model", recorded(name))
    assert summary(found) == {(scheme, block, recipe, None)}
    assert found is not None
    assert len(found.weights) == count
    tails = {
        part.replace("/", ".").rpartition(".")[2] for one in found.weights for part in one.parts
    }
    assert tails == parts
    assert all(one.payload not in one.parts and one.name for one in found.weights)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("name", RECORDED)
def test_a_producer_s_model_without_its_configuration(tmp_path: Path, name: str) -> None:
    model = recorded(name)
    found = found_in(tmp_path / "model", Model(model.tensors, {}, {}))
    with_all = found_in(tmp_path / "with", model)
    assert found is not None
    assert with_all is not None
    assert [(one.payload, one.parts) for one in found.weights] == [
        (one.payload, one.parts) for one in with_all.weights
    ]
    for one, known in zip(found.weights, with_all.weights, strict=True):
        assert set(known.recipes) <= set(one.recipes)
        assert one.problem is None
        # What is not stated is not known: no other block is made up.
        assert one.block in (None, known.block)


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_layout(tmp_path: Path, name: str) -> None:
    model, scheme, block, recipe = LAYOUTS[name]
    assert summary(found_in(tmp_path / "model", model)) == {(scheme, block, recipe, None)}


def test_every_recipe_is_tested() -> None:
    tested = {recipe for _, _, recipe, *_ in RECORDED.values()}
    tested |= {recipe for *_, recipes in LAYOUTS.values() for recipe in recipes.split()}
    assert tested == {recipe.name for recipe in PRODUCERS}


def narrowed(tensors: Tensors, code: str, suffix: str) -> Tensors:
    """What a plain cast makes of a model's floating tensors whose name has this end."""
    return {
        name: (code if old in FLOATS and name.endswith(suffix) else old, shape)
        for name, (old, shape) in tensors.items()
    }


@pytest.mark.parametrize("name", record()["plain"])
def test_a_model_that_is_not_quantized(tmp_path: Path, name: str) -> None:
    tensors = as_tensors(record()["plain"][name])
    assert found_in(tmp_path / "model", Model(tensors, PLAIN, {"format": "pt"})) is None
    for code in ("F8_E4M3", "F8_E5M2", "I8", "U8"):
        for suffix in ("", "weight"):
            cast = narrowed(tensors, code, suffix).items()
            infos = [
                TensorInfo(name, FORMATS[code], "", code, shape, 0) for name, (code, shape) in cast
            ]
            assert recognize(infos, PLAIN, {}) is None


@pytest.mark.parametrize(
    "tensors",
    [
        {"norm.weight": ("F8_E4M3", (8,)), "norm.scale": ("F32", (8,))},
        {"logit": ("F32", (8,)), "logit_scale": ("F32", ()), "a.weight": ("F8_E4M3", (8, 8))},
        {"attn.bias": ("U8", (1, 1, 8, 8)), "attn.scales": ("F32", (8,))},
        {"a.weight": ("BF16", (8, 8)), "a._extra_state": ("U8", (100,))},
        {"layers/rng/vars/0": ("U32", (2,)), "layers/dense/vars/0": ("F32", (8, 8))},
    ],
)
def test_names_that_only_look_like_scales(tmp_path: Path, tensors: Tensors) -> None:
    assert found_in(tmp_path / "model", Model(tensors, PLAIN, {})) is None


def test_a_configuration_that_says_more_than_the_tensors(tmp_path: Path) -> None:
    """As a model keeps it that was decoded by a script; also one to be quantized on loading."""
    tensors: Tensors = {"a.weight": ("BF16", (8, 8)), "ids": ("I64", (8,))}
    for section in (BLOCKS_OF_128, in_config(load_in_4bit=True), in_config(quant_method="aqlm")):
        found = found_in(tmp_path / "model", Model(tensors, section, {}))
        assert found is not None
        assert len(found.stated) == 1
        assert (found.weights, found.orphans, found.unknown) == ((), (), None)


def orphans(found: Quantization | None) -> list[tuple[str, bool, str]]:
    assert found is not None
    return [(one.name, one.is_payload, one.missing[0]) for one in found.orphans]


def test_orphans_where_the_configuration_expects_more(tmp_path: Path) -> None:
    tensors: Tensors = {
        "a.weight": ("F8_E4M3", (8, 8)),
        "b.weight_scale_inv": ("F32", (1, 1)),
        "logit_scale": ("F32", ()),
        "norm.weight": ("BF16", (8,)),
    }
    found = found_in(tmp_path / "model", Model(tensors, BLOCKS_OF_128, {}))
    assert orphans(found) == [
        ("a.weight", True, "a.weight_scale_inv"),
        ("b.weight_scale_inv", False, "b.weight"),
    ]


def test_orphans_where_other_tensors_expect_more(tmp_path: Path) -> None:
    tensors: Tensors = {
        "a.weight": ("F8_E4M3", (256, 8)),
        "a.weight_scale_inv": ("F32", (2, 1)),
        "b.weight": ("F8_E4M3", (256, 8)),
        "c.weight": ("BF16", (8, 8)),
        "c.weight_scale_inv": ("F32", (1, 1)),
    }
    found = found_in(tmp_path / "model", Model(tensors, {}, {}))
    assert orphans(found) == [
        ("b.weight", True, "b.weight_scale_inv"),
        ("c.weight_scale_inv", False, "c.weight"),
    ]


@pytest.mark.thinned(2, 1)
@pytest.mark.parametrize("name", RECORDED)
def test_one_tensor_less_is_an_orphan_or_another_layout(tmp_path: Path, name: str) -> None:
    """Leave out the payload of a weight, then its scale: the rest is not taken for a weight."""
    model = recorded(name)
    whole = found_in(tmp_path / "model", model)
    assert whole is not None
    one = whole.weights[0]
    for lost in (one.payload, one.scale):
        tensors = {key: value for key, value in model.tensors.items() if key != lost}
        found = found_in(tmp_path / "model", Model(tensors, model.configs, model.metadata))
        if name.startswith("keras"):  # whose scales and biases are told by their number
            continue
        if found is None or not found.stated:  # nothing else is left that says so
            assert len(whole.weights) == 1
            continue
        left = {orphan.name for orphan in found.orphans}
        assert left & {one.payload, *one.parts}
        assert one.name not in {weight.name for weight in found.weights}


NAMED_AS_OTHERS = {
    "awq, by shapes": "scales",
    "gptq, whole columns, in a file of its own": "scales",
    "gptq, by shapes": "scales",
    "mlx affine": "scales and biases",
    "hqq": "scale and zero",
    "transformer-engine": "_extra_state, which plain models have too",
}
"""Models of whose parts none has a name of its own, once the payload is lost."""


@pytest.mark.thinned(3)
@pytest.mark.parametrize("name", [*LAYOUTS, *RECORDED])
def test_what_is_left_of_a_weight_where_nothing_says_that_it_is_quantized(
    tmp_path: Path, name: str
) -> None:
    model = LAYOUTS[name][0] if name in LAYOUTS else recorded(name)
    whole = found_in(tmp_path / "whole", model)
    assert whole is not None
    payloads = {one.payload for one in whole.weights}
    left = {key: value for key, value in model.tensors.items() if key not in payloads}
    found = found_in(tmp_path / "left", Model(left, {}, {}))
    if name in NAMED_AS_OTHERS:
        assert found is None
    elif "vars/" not in next(iter(payloads)):  # whose roles are told by their number
        assert found is not None
        assert payloads <= {name for one in found.orphans for name in one.missing}


@pytest.mark.parametrize(
    ("tensor", "what", "missing"),
    [
        (("a.up_blocks", "U8", (2, 8, 1, 16)), True, "a.up_scales"),
        (("a.up_scales", "U8", (2, 8, 1)), False, "a.up_blocks"),
        (("a.qweight", "I32", (8, 8)), True, "a.scales"),
        (("a.qzeros", "I32", (8, 1)), False, "a.qweight"),
        (("a.g_idx", "I32", (64,)), False, "a.qweight"),
        (("a.weight_packed", "U8", (8, 8)), True, "a.weight_scale"),
        (("a.scale_weight", "F32", (1,)), False, "a.weight"),
        (("a.qscale_act", "F32", ()), False, "a.weight"),
        (("a.pre_quant_scale", "BF16", (8,)), False, "a.weight"),
        (("a.weight_scale", "F32", ()), False, "a.weight"),
        (("a.weight_shape", "I64", (2,)), False, "a.weight_packed"),
        (("a.scale", "F8_E8M0", (1, 1)), False, "a.weight"),
        (("a.SCB", "F32", (8,)), False, "a.weight"),
    ],
)
def test_one_tensor_alone(
    tmp_path: Path, tensor: tuple[str, str, tuple[int, ...]], what: bool, missing: str
) -> None:
    name, code, shape = tensor
    plain: Tensors = {"a.weight": ("BF16", (8, 8)), "norm.weight": ("BF16", (8,))}
    for beside in (plain, {"norm.weight": ("BF16", (8,))}):
        found = found_in(tmp_path / "model", Model(beside | {name: (code, shape)}, {}, {}))
        assert orphans(found) == [(name, what, missing)]


def test_the_marker_of_comfyui_says_that_float8_has_scales(tmp_path: Path) -> None:
    tensors: Tensors = {"a.weight": ("F8_E4M3", (8, 8)), "scaled_fp8": ("F8_E4M3", (2,))}
    found = found_in(tmp_path / "model", Model(tensors, {}, {}))
    assert orphans(found) == [("a.weight", True, "a.scale_weight")]


def test_what_keras_keeps_of_float8_is_no_weight(tmp_path: Path) -> None:
    shapes = [(8, 16), (16,), *[(), (1024,)] * 3]
    state: Tensors = {f"layers/d/vars/{n}": ("F32", shape) for n, shape in enumerate(shapes)}
    found = found_in(tmp_path / "float8", Model(state, {}, {}))
    assert found is not None
    assert found.weights == found.orphans == ()
    assert found.others == tuple(f"layers/d/vars/{n}" for n in range(2, 8))
    # Neither are the variables of a layer that has some other number of them.
    del state["layers/d/vars/7"]
    assert found_in(tmp_path / "plain", Model(state, {}, {})) is None


def test_contradictions_are_named(tmp_path: Path) -> None:
    block: Tensors = {"a.weight": ("F8_E4M3", (192, 256)), "a.weight_scale_inv": ("F32", (3, 2))}
    found = found_in(tmp_path / "a", Model(block, BLOCKS_OF_128, {}))
    assert found is not None
    assert found.weights[0].problem == (
        "blocks of 128x128 need a scale of shape (2, 2), and it has (3, 2)"
    )
    found = found_in(tmp_path / "b", Model(block, in_config(quant_method="awq", bits=4), {}))
    assert found is not None
    assert found.weights[0].problem == (
        "config.json: awq is stated, but it is stored as by deepseek"
    )
    nvfp4 = {"hf_quant_config.json": {"quantization": {"quant_algo": "NVFP4", "group_size": 16}}}
    fp8: Tensors = {"a.weight": ("F8_E4M3", (8, 8)), "a.weight_scale": ("F32", ())}
    found = found_in(tmp_path / "c", Model(fp8, nvfp4, {}))
    assert summary(found) == {
        (
            "fp8_tensor",
            None,
            "modelopt",
            "hf_quant_config.json states nvfp4, but the payload is float8_e4m3fn",
        )
    }


@pytest.mark.parametrize(
    "config",
    [
        [],
        "text",
        {"quantization_config": None},
        {"quantization_config": {}},
        {"quantization_config": [1]},
        {"quantization": {"group_size": {}, "bits": "4", "mode": 5}},
        {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128]}},
        {"quantization_config": {"quant_method": "fp8", "weight_block_size": [-1, True]}},
        {"quantization_config": {"quant_method": "fp8", "weight_block_size": "128"}},
        {"quantization_config": {"quant_method": "compressed-tensors", "config_groups": [1]}},
        {
            "quantization_config": {
                "quant_method": "compressed-tensors",
                "config_groups": {
                    "a": {"targets": ["re:(", "re:(a+)+$", 5], "weights": {"num_bits": 1e9}},
                    "b": {"targets": "re:.*", "weights": {"type": [], "strategy": {}}},
                    "c": {"targets": ["re:.*"], "weights": {"scale_dtype": []}},
                },
            }
        },
        {
            "quantization_config": {
                "quant_method": "modelopt",
                "quant_algo": [],
                "quantized_layers": 1,
            }
        },
        {"quantization_config": {"quant_method": "quark", "layer_quant_config": {"a": 1}}},
        {"quantization_config": {"quant_method": "gptq", "bits": 10**30, "group_size": 0}},
    ],
)
def test_configurations_of_other_types(tmp_path: Path, config: Any) -> None:
    tensors: Tensors = {
        "a.weight": ("F8_E4M3", (256, 256)),
        "a.weight_scale_inv": ("F32", (2, 2)),
        "b.weight": ("F8_E4M3", (256, 256)),
        "b.weight_scale": ("F32", (2, 2)),
        "c.qweight": ("I32", (16, 64)),
        "c.scales": ("F16", (2, 64)),
    }
    metadata = {"_quantization_metadata": "[" * 100_000, "tensor_names": "{", "a.weight": "3"}
    for name in ("config.json", "hf_quant_config.json", "quantize_config.json"):
        folder = tmp_path / name
        found = found_in(folder, Model(tensors, {name: config}, metadata))
        assert found is not None
        assert {one.payload for one in found.weights} >= {"a.weight", "c.qweight"}


@pytest.mark.parametrize(
    "pattern", [r"(?=a)(a+)+b", r"(a)\1", r"(?<=a)b", r"a*+b", r"(?>a)b", "(?:a{500}){500}"]
)
def test_a_target_that_takes_more_than_linear_time_is_refused(tmp_path: Path, pattern: str) -> None:
    name = "a" * 60
    weights = {"num_bits": 8, "type": "int", "strategy": "channel"}
    model = Model(
        {f"{name}.weight": ("I8", (8, 64)), f"{name}.weight_scale": ("BF16", (8, 1))},
        in_config(
            quant_method="compressed-tensors",
            config_groups={"group_0": {"targets": [f"re:{pattern}"], "weights": weights}},
        ),
        {},
    )
    with pytest.raises(checkpoint.CheckpointError) as refused:
        found_in(tmp_path, model)
    assert f"the target 're:{pattern}' of the configuration: " in str(refused.value)
    assert "cannot be matched in linear time" in str(refused.value)


@pytest.mark.parametrize(
    "pattern",
    ["a+", "(?i)A+", "(?x) a+ # c", r"[\w-]+", "(?s:.+)", "(?:a+)+$", r"\N{LATIN SMALL LETTER A}"],
)
def test_a_target_is_matched_as_by_its_producer(tmp_path: Path, pattern: str) -> None:
    weights = {"num_bits": 8, "type": "int", "strategy": "channel"}
    found = found_in(
        tmp_path,
        Model(
            {"aa.weight": ("I8", (8, 64)), "aa.weight_scale": ("BF16", (8, 1))},
            in_config(
                quant_method="compressed-tensors",
                config_groups={"group_0": {"targets": [f"re:{pattern}"], "weights": weights}},
            ),
            {},
        ),
    )
    assert found is not None
    assert [one.scheme for one in found.weights] == ["int8_channel"]


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    folder = write_zeros(tmp_path / "model", Model({"a.weight": ("F32", (8,))}, {}, {}))
    for text, reason in (
        ("{", "Expecting"),
        ("[" * 100_000, "recursion"),
        (" " * 10**7 + "{}", "more"),
        (f'{{"a": {{"b": [{"9" * 5000}]}}}}', "999999999... is a whole number of 5,000 digits"),
        (f"[[[{'9' * 5000}]]]", "999999999... is a whole number of 5,000 digits"),
    ):
        (folder / "config.json").write_text(text)
        found = checkpoint.inspect(folder).quantization
        assert found is not None
        assert found.unreadable[0].startswith("config.json: ")
        assert reason in as_recorded(found.unreadable[0])
        assert found.weights == ()


def test_bits_per_weight(tmp_path: Path) -> None:
    for name, bits in (
        ("compressed-tensors W8A8", 8 + 16 / 256),
        ("compressed-tensors NVFP4", 4 + (128 * 16 + 4) * 8 / (128 * 256)),
        ("compressed-tensors MXFP6A16", 6 + 8 / 32),
        ("compressed-tensors W4AFP8", 8 + 16 / 128),
        ("mlx affine", 4 + 64 / 64),
        ("bitsandbytes fp4", 4 + (512 * 4 + 16 * 4 + 80) * 8 / 32768),
        ("keras int8", 8 + 32 / 16),
    ):
        found = checkpoint.inspect(write_zeros(tmp_path / name, recorded(name)))
        assert found.quantization is not None
        weight = found.quantization.weights[0]
        actual = found.bits_per_weight()[weight.payload]
        assert actual == (None if bits is None else pytest.approx(bits))
