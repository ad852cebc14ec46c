"""What GPTQModel and auto-round state of single modules, and statements that differ."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from castwise import checkpoint
from castwise._core import PolicyMap
from castwise.cli import main
from castwise.quantization.producers import _module_entries
from castwise.quantization.producers._module_entries import module_values
from producer_models import MODELS, Decodable, write
from producer_models.awq_gptq import awq, gptq

KEY = "quantization_config"
AUTO_ROUND = {"quant_method": "auto-round", "data_type": "int", "sym": False}


def mixed(section: Mapping[str, Any], **modules: Decodable) -> Decodable:
    """A model of several modules, each as some other model stores "a"."""
    tensors = {
        f"model.{module}{name.removeprefix('a')}": array
        for module, model in modules.items()
        for name, array in model.tensors.items()
    }
    plain = {f"model.{name}.weight": model.plain["a.weight"] for name, model in modules.items()}
    return Decodable(tensors, plain, {KEY: dict(section)})


def equal(folder: Path, model: Decodable) -> None:
    checkpoint.dequantize_file(write(folder / "in", model), folder / "out")
    made = checkpoint.load(folder / "out")
    for name, plain in model.plain.items():
        np.testing.assert_array_equal(made[name], plain)
    assert checkpoint.inspect(folder / "out").quantization is None


GPTQ: dict[str, Any] = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False}
DYNAMICS: dict[str, Any] = {
    "bits": {"+:model\\.up": {"bits": 8}},
    "without a sign": {"model\\.up": {"bits": 8, "group_size": 32}},
    "the first that matches": {"+:.*up": {"bits": 8}, "+:model\\..*": {"bits": 4}},
    "others left out": {"-:.*norm.*": {}, "+:.*up": {"bits": 8}},
    "the beginning": {"+:up": {"bits": 2}, "+:model\\.u": {"bits": 8}},
}


@pytest.mark.parametrize("dynamic", DYNAMICS.values(), ids=DYNAMICS)
def test_bits_of_single_modules(tmp_path: Path, dynamic: dict[str, Any]) -> None:
    equal(tmp_path, mixed({**GPTQ, "dynamic": dynamic}, down=gptq(4)(), up=gptq(8)()))


@pytest.mark.parametrize("key", ["dynamic", "extra_config"])
def test_patterns_are_compiled_once(monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    method = "gptq" if key == "dynamic" else "auto-round"
    patterns = {f".*layers\\.{number}\\..*": {"bits": number % 7 + 2} for number in range(64)}
    maps: list[PolicyMap] = []

    def make(*arguments: Any, **options: Any) -> PolicyMap:
        maps.append(PolicyMap(*arguments, **options))
        return maps[-1]

    monkeypatch.setattr(_module_entries, "PolicyMap", make)
    for number in range(64):
        values = module_values({"quant_method": method, key: patterns})
        assert values(f"model.layers.{number}.up").values["bits"] == number % 7 + 2
    assert len(maps) == 1


def test_groups_of_single_modules(tmp_path: Path) -> None:
    section = {**GPTQ, "dynamic": {"+:.*up": {"group_size": 64}, "+:.*q": {"group_size": -1}}}
    equal(
        tmp_path,
        mixed(section, down=gptq(4)(), up=gptq(4, group=64)(), q=gptq(4, group=128)()),
    )


@pytest.mark.parametrize(
    ("dynamic", "said"),
    [
        ({"+:.*up": {"zeta": 1}}, "'zeta'"),
        ({"-:.*up": {}}, "is not quantized"),
        ({"+:.*up": 8}, "8"),
        ({"+:(up": {"bits": 8}}, "+:(up"),
        ({"+:.*up": {"bits": 2}}, "up"),
    ],
)
def test_refusals_of_dynamic(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], dynamic: dict[str, Any], said: str
) -> None:
    model = mixed({**GPTQ, "dynamic": dynamic}, down=gptq(4)(), up=gptq(8)())
    assert main(["dequantize", str(write(tmp_path / "in", model)), str(tmp_path / "out")]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("packing", ["auto_gptq", "auto_round:auto_gptq", "auto_round:gptq"])
def test_auto_round_of_integers(tmp_path: Path, packing: str) -> None:
    section = {
        **AUTO_ROUND,
        "packing_format": packing,
        "bits": 4,
        "group_size": 32,
        "extra_config": {
            "model.up": {"bits": 8, "act_bits": None},
            ".*q$": {"bits": 2, "group_size": 64},
            "lm_head": {"bits": 16},
        },
    }
    modules = {"down": gptq(4)(), "up": gptq(8)(), "q": gptq(2, group=64)()}
    equal(tmp_path, mixed(section, **modules))


def test_auto_round_in_the_words_of_awq(tmp_path: Path) -> None:
    model = awq()
    group = model.config[KEY]["group_size"]
    packing = {"packing_format": "auto_round:auto_awq", "bits": 4, "group_size": group}
    equal(tmp_path, mixed({**AUTO_ROUND, **packing}, q=model))


def test_auto_round_without_an_index(tmp_path: Path) -> None:
    model = mixed(
        {**AUTO_ROUND, "packing_format": "auto_round:auto_gptq", "bits": 4, "group_size": 32},
        up=gptq(4)(),
    )
    del model.tensors["model.up.g_idx"]
    equal(tmp_path, model)


@pytest.mark.parametrize("name", ["deepseek, scales of bfloat16", "autofp8"])
def test_auto_round_of_float8(tmp_path: Path, name: str) -> None:
    model = deepcopy(MODELS[name]())
    stated = model.config[KEY]
    block = stated.get("weight_block_size")
    model.config[KEY] = {
        "quant_method": "auto-round",
        "packing_format": "auto_round:fp8",
        "bits": 8,
        "data_type": "fp",
        "fmt": "e4m3",
        **({} if block is None else {"group_size": block, "weight_block_size": block}),
    }
    equal(tmp_path, model)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"packing_format": "auto_round:auto_awq_v9"}, "auto_round:auto_awq_v9"),
        ({"packing_format": None}, "auto-round"),
        ({"packing_format": ["auto_gptq"]}, "auto-round"),
        ({"extra_config": {"model.up": {"super_bits": 6}}}, "'super_bits'"),
        ({"extra_config": {"model.up": {"bits": 16}}}, "is not quantized"),
        ({"rotation_config": {"block_size": 32}}, "rotated"),
        ({"spinquant_config": {"r4": True}}, "rotated"),
        ({"bits": 8}, "model.up"),
    ],
)
def test_refusals_of_auto_round(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], keys: dict[str, Any], said: str
) -> None:
    section = {**AUTO_ROUND, "packing_format": "auto_round:auto_gptq", "bits": 4, "group_size": 32}
    model = mixed({**section, **keys}, up=gptq(4)())
    source = write(tmp_path / "in", model)
    for command in (["dequantize"], ["transcode", "--to", "compressed-tensors"]):
        assert main([command[0], str(source), str(tmp_path / "out"), *command[1:]]) == 2
        assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("zeros", ["weight_zp"])
def test_zero_points_of_float8_of_auto_round(tmp_path: Path, zeros: str) -> None:
    model = deepcopy(MODELS["autofp8"]())
    model.config[KEY] |= {"quant_method": "auto-round", "packing_format": "auto_round:fp8"}
    payload = next(iter(model.plain)).removesuffix("weight")
    model.tensors[payload + zeros] = np.ones(1, np.float32)
    with pytest.raises(checkpoint.CheckpointError, match=zeros):
        checkpoint.dequantize_file(write(tmp_path / "in", model), tmp_path / "out")


DIFFERENT: dict[str, tuple[str, dict[str, Any], str]] = {
    "form": ("gptq, 4 bits", {"checkpoint_format": "gptq_v2"}, "another format each"),
    "form by its new key": ("gptq, 4 bits", {"format": "gptq_v2"}, "another format each"),
    "marlin": ("gptq, 4 bits", {"is_marlin_format": True}, "is_marlin_format"),
    "bits": ("gptq, 4 bits", {"bits": 8}, "scheme"),
    "groups": ("gptq, 4 bits", {"group_size": 64}, "block"),
    "order": ("gptq, 4 bits", {"desc_act": True}, "desc_act"),
    "method": ("gptq, 4 bits", {"quant_method": "awq"}, "method"),
    "dynamic": ("gptq, 4 bits", {"dynamic": {"+:a": {"bits": 8}}}, "scheme"),
    "awq version": ("awq", {"version": "gemv"}, "another format each"),
    "awq zeros": ("awq", {"zero_point": False}, "zero_point"),
}


@pytest.mark.parametrize("case", DIFFERENT.values(), ids=DIFFERENT)
def test_two_files_that_differ(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], case: tuple[str, dict[str, Any], str]
) -> None:
    name, keys, said = case
    model = deepcopy(MODELS[name]())
    section = model.config[KEY]
    file = "quant_config.json" if name == "awq" else "quantize_config.json"
    model.files = {file: {**section, **keys}}
    source = write(tmp_path / "in", model)
    for command in (["dequantize"], ["transcode", "--to", "compressed-tensors"], ["verify"]):
        target = source if command == ["verify"] else tmp_path / "out"
        assert main([command[0], str(source), str(target), *command[1:]]) == 2
        errors = capsys.readouterr().err
        assert said in errors
        assert "config.json" in errors
        assert file in errors
    assert not (tmp_path / "out").exists()
    found = checkpoint.inspect(source).quantization
    assert found is not None
    assert all(one.problem for one in found.weights)


FORMATS: dict[str, tuple[str, dict[str, Any]]] = {
    "GPTQModel and transformers": ("gptq, v2", {"format": "gptq_v2"}),
    "both keys": ("gptq, v2", {"format": "gptq_v2", "checkpoint_format": "gptq_v2"}),
    "planar, whose 4 bits are v2": ("gptq, v2", {"format": "gptq_p", "pack_dtype": "int32"}),
    "the method by its new key": ("gptq, v2", {"format": "gptq_v2", "method": "gptq"}),
    "v1": ("gptq, 4 bits", {"format": "gptq", "method": "gptq"}),
    "awq": ("awq", {"format": "gemm", "version": "GEMM", "method": "awq"}),
}


@pytest.mark.parametrize("case", FORMATS.values(), ids=FORMATS)
@pytest.mark.parametrize("place", ["config.json", "own file", "both"])
def test_the_order_of_words_by_every_key(
    tmp_path: Path, case: tuple[str, dict[str, Any]], place: str
) -> None:
    name, keys = case
    model = deepcopy(MODELS[name]())
    section = {key: value for key, value in model.config[KEY].items() if "format" not in key} | keys
    model.config = {} if place == "own file" else {KEY: section}
    file = "quant_config.json" if name == "awq" else "quantize_config.json"
    model.files = {} if place == "config.json" else {file: section}
    equal(tmp_path, model)


WRONG_WORDS: dict[str, tuple[Callable[[], Decodable], dict[str, Any], str]] = {
    "formats": (gptq(4), {"format": "gptq_v2", "checkpoint_format": "gptq"}, "mean one thing"),
    "versions": (awq, {"format": "gemv", "version": "gemm"}, "mean one thing"),
    "methods": (gptq(4), {"method": "awq"}, "quant_method 'gptq' and method 'awq'"),
    "planar": (gptq(3), {"format": "gptq_p"}, "the format 'gptq_p' of GPTQ with 3 bits"),
    "gemv": (awq, {"version": None, "format": "gemv_fast"}, "the version 'gemv_fast'"),
    "llm-awq": (awq, {"backend": "llm-awq"}, "the version 'llm-awq'"),
    "rotated": (gptq(4), {"rotation": "hadamard"}, "rotated (rotation 'hadamard')"),
    "words": (gptq(4), {"pack_dtype": "int16"}, "words of 'int16'"),
    "no word": (gptq(4), {"format": 2}, "names no order of words"),
    "v1 of v2": (gptq(4, "gptq_v2", centered=True), {"format": "gptq", "sym": True}, "point of"),
    "v2 of v1": (gptq(4, centered=True), {"format": "gptq_v2", "sym": True}, "is 7 as"),
    "3 bits": (gptq(3, "gptq_v2", centered=True), {"format": "gptq", "sym": True}, "is 5 as"),
}


@pytest.mark.parametrize("case", WRONG_WORDS.values(), ids=WRONG_WORDS)
def test_words_that_their_statement_contradicts(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    case: tuple[Callable[[], Decodable], dict[str, Any], str],
) -> None:
    make, keys, said = case
    model = deepcopy(make())
    model.files = {}
    section = model.config[KEY]
    section.pop("checkpoint_format", None)
    section.update(keys)
    source = write(tmp_path / "in", model)
    # Of 3 bits compressed-tensors has no form of the same values.
    transcode = [] if section["bits"] == 3 else [["transcode", "--to", "compressed-tensors"]]
    for command in (["dequantize"], *transcode):
        assert main([command[0], str(source), str(tmp_path / "out"), *command[1:]]) == 2
        assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("form", [None, "gptq_v2"])
def test_zero_points_that_sym_states(tmp_path: Path, form: str | None) -> None:
    model = gptq(4, form, centered=True)()
    model.files = {}
    model.config[KEY]["sym"] = True
    equal(tmp_path, model)


@pytest.mark.parametrize("name", ["gptq, 4 bits", "awq"])
def test_two_files_that_agree(tmp_path: Path, name: str) -> None:
    """What one of them leaves open is no difference, nor is a default that the other states."""
    model = deepcopy(MODELS[name]())
    section = dict(model.config[KEY])
    file = "quant_config.json" if name == "awq" else "quantize_config.json"
    unstated = {"version": "gemm"} if name == "awq" else {"checkpoint_format": "gptq"}
    model.files = {file: json.loads(json.dumps({**section, **unstated}))}
    equal(tmp_path, model)
