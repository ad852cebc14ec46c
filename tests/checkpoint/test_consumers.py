"""Advice for a consumer gives what this loads: by the table, carried out, and loaded."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from castwise import checkpoint
from castwise.checkpoint import Advice, CheckpointError, advise
from castwise.checkpoint.containers.gguf.reader import GgufReader
from castwise.checkpoint.loading.check import CHECKED
from castwise.cli import main
from castwise.quantization import Consumer, Loading, consumers
from castwise.quantization.producers.consumers import find_consumer
from castwise.quantization.producers.registry import WRITTEN
from castwise.quantization.producers.schemes import bits_of_schemes
from oracle import Array
from plain_models import CONFIGS, TEXT, same_results
from whole_models import QWEN, TOKENS, write

ROOT = Path(__file__).parents[2]
NOT_LOADED = "would not be loaded as it would be written"
ALL = consumers()
CELLS = [(consumer, loading) for consumer in ALL for loading in consumer.loads]
WIDTH, HEAD, EXPERTS, LAYERS = 256, 128, 3, 2
SHAPES = {
    "self_attn.q_proj": (WIDTH, WIDTH),
    "self_attn.k_proj": (HEAD, WIDTH),
    "self_attn.v_proj": (HEAD, WIDTH),
    "self_attn.o_proj": (WIDTH, WIDTH),
    "self_attn.q_norm": (HEAD,),
    "self_attn.k_norm": (HEAD,),
    "input_layernorm": (WIDTH,),
    "post_attention_layernorm": (WIDTH,),
    "mlp.gate": (EXPERTS, WIDTH),
    **{
        f"mlp.experts.{expert}.{name}_proj": (WIDTH, WIDTH)
        for expert in range(EXPERTS)
        for name in ("gate", "up", "down")
    },
}
CONFIG = {key: value for key, value in QWEN.items() if key != "quantization_config"} | {
    "num_hidden_layers": LAYERS,
    "hidden_size": WIDTH,
    "intermediate_size": WIDTH,
    "moe_intermediate_size": WIDTH,
    "head_dim": HEAD,
    "num_local_experts": EXPERTS,
}

Framework = Callable[[str], ModuleType]


def named(cell: object) -> str | None:
    """Name a consumer, or a producer whose checkpoints it loads."""
    if isinstance(cell, Consumer):
        return cell.name
    return cell.recipe if isinstance(cell, Loading) else None


def weights() -> dict[str, Array]:
    """A small mixture of experts, whose matrices differ in their outliers."""
    numbers = np.random.default_rng(5)
    tensors = {
        "model.embed_tokens.weight": numbers.standard_normal((TOKENS, WIDTH)),
        "model.norm.weight": np.ones(WIDTH),
    }
    for layer in range(LAYERS):
        for module, shape in SHAPES.items():
            degrees = 6 if module.endswith(("down_proj", "o_proj")) else 30
            tensors[f"model.layers.{layer}.{module}.weight"] = numbers.standard_t(degrees, shape)
    return {name: (array * 0.02).astype(ml_dtypes.bfloat16) for name, array in tensors.items()}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("consumers") / "model", weights(), CONFIG)


def carry_out(advice: Advice, folder: Path) -> Path:
    """Run the commands that a saved map names; returns what a consumer is given."""
    map_file = folder / "map.toml"
    advice.save(map_file)
    comments = re.findall("^# (castwise .*)$", map_file.read_text("utf-8"), re.MULTILINE)
    assert tuple(comments) == advice.commands
    places = {"THIS": map_file, "QUANTIZED": folder / "quantized", "DST": folder / "result"}
    result = places["DST"]
    for comment in comments:
        words = [str(places.get(word, word)) for word in shlex.split(comment)[1:]]
        if "DST.gguf" in words:
            result = folder / "result.gguf"
            words[words.index("DST.gguf")] = str(result)
        assert main([*words, "--quiet"]) == 0
    return result


def test_names_are_unique() -> None:
    assert len({consumer.name for consumer in ALL}) == len(ALL)
    for consumer in ALL:
        recipes = [loading.recipe for loading in consumer.loads]
        assert len(set(recipes)) == len(recipes) > 0


@pytest.mark.parametrize(("consumer", "loading"), CELLS, ids=named)
def test_every_cell_is_a_scheme_that_is_written(consumer: Consumer, loading: Loading) -> None:
    written = {row.scheme for row in WRITTEN if row.recipe == loading.recipe}
    for names in (loading.schemes, loading.experts, loading.stacks):
        assert len(set(names)) == len(names), consumer
        assert set(names) <= written & {*bits_of_schemes()}
    assert loading.all_schemes


@pytest.mark.parametrize(("consumer", "loading"), CELLS, ids=named)
def test_every_cell_has_a_source(consumer: Consumer, loading: Loading) -> None:
    if loading.source.startswith("https://"):
        assert re.fullmatch(r"https://github\.com/[\w./-]+\.py", loading.source)
        return
    text = (ROOT / loading.source).read_text("utf-8")
    assert f'"{consumer.name}"' in text  # it takes its cases from the table


@pytest.mark.parametrize("error", [1e-3, 5e-3])
@pytest.mark.parametrize(
    ("consumer", "recipe"),
    [*((consumer, None) for consumer in ALL), (find_consumer("llama.cpp"), "compressed-tensors")],
    ids=lambda value: getattr(value, "name", value),
)
def test_advice_is_carried_out(
    model: Path, tmp_path: Path, consumer: Consumer, recipe: str | None, error: float
) -> None:
    loading = next(row for row in consumer.loads if recipe in {None, row.recipe})
    options: Any = {"consumer": consumer.name, "recipe": recipe}
    advice = advise(model, error=error, **options)
    assert (advice.consumer, advice.recipe) == (consumer.name, loading.recipe)
    for choice in advice.choices:
        are_experts = ".experts." in choice.tensors[0]
        loaded = loading.experts if are_experts else loading.schemes
        assert choice.target in ("keep", *loaded)
    assert advice.map
    result = carry_out(advice, tmp_path)
    is_transcoded = consumer.form not in {None, advice.recipe}
    quantized = tmp_path / "quantized" if is_transcoded else result
    found = checkpoint.inspect(quantized).quantization
    assert found is not None
    if advice.recipe == "gguf":  # in which q8_0 is reported as int8_group
        with GgufReader(result) as reader:
            written = {info.stored.lower() for info in reader.tensors.values()}
        assert written - {"float32", "bfloat16"} == set(advice.map.values())
    else:
        assert {weight.scheme for weight in found.weights} == set(advice.map.values())
    files = quantized.iterdir() if quantized.is_dir() else [quantized]
    size = sum(path.stat().st_size for path in files)
    assert 0.97 * advice.nbytes <= size <= advice.nbytes
    if is_transcoded:
        assert checkpoint.verify(quantized, result).equal
    if consumer.name in CHECKED:
        check = checkpoint.verify_loading(result, consumer.name)  # type: ignore[arg-type]
        assert check.loads, check.problems


@pytest.mark.parametrize(("consumer", "loading"), CELLS, ids=named)
def test_a_scheme_is_advised_where_it_is_loaded(
    model: Path, tmp_path: Path, consumer: Consumer, loading: Loading
) -> None:
    symmetric = {row.scheme for row in WRITTEN if row.recipe == loading.recipe and row.symmetric}
    if loading.recipe == "gpt-oss":  # of experts in one tensor, which this model has not
        return
    for scheme in sorted(symmetric):
        options: Any = {"consumer": consumer.name, "recipe": loading.recipe, "formats": [scheme]}
        if scheme not in loading.all_schemes:
            with pytest.raises(CheckpointError, match=f"{consumer.name} does not load it as"):
                advise(model, error=1.0, **options)
            continue
        try:
            choices = advise(model, error=1.0, **options).choices
        except CheckpointError:  # of a model whose experts have no such scheme
            assert scheme not in loading.experts
            linear: Any = {r".*self_attn\..*_proj\.weight": scheme}
            del options["formats"]
            with pytest.raises(CheckpointError, match=NOT_LOADED):
                checkpoint.quantize_file(model, tmp_path / "q", dtype_map=linear, **options)
            continue
        names = {name for choice in choices for name in choice.tensors}
        assert {choice.target for choice in choices} == {scheme}
        assert any(".experts." in name for name in names) == (scheme in loading.experts)
        assert any(".experts." not in name for name in names) == (scheme in loading.schemes)


def test_experts_share_a_scheme_where_they_must(model: Path) -> None:
    """By default gate and up may differ from down, and layers from others."""
    free, layers, together = (
        [choice.tensors for choice in advise(model, error=2e-3, consumer=name).choices]
        for name in (None, "vllm", "transformers")
    )
    experts = {name for name in weights() if ".experts." in name}
    layer = {name for name in experts if ".layers.0." in name}
    assert not any(layer <= set(names) for names in free)
    assert sum(layer == set(names) for names in layers) == 1
    assert sum(experts == set(names) for names in together) == 1


def test_experts_that_may_not_stay_beside_quantized_weights(model: Path) -> None:
    for error in (1e-9, 1e-5, 1e-3, 1.0):
        advice = advise(model, error=error, consumer="transformers")
        kept = {n for choice in advice.choices if choice.target == "keep" for n in choice.tensors}
        assert any(".experts." in name for name in kept) == (advice.map == {})
    with pytest.raises(CheckpointError, match="is less than the"):
        advise(model, bits=1.0, consumer="transformers")


def test_a_recipe_of_one_scheme_gets_the_best_alone(model: Path, tmp_path: Path) -> None:
    several: Any = ("fp8_channel", "fp8_block", "nvfp4", "mxfp8_e4m3", "int8_channel")
    size = advise(model, bits=9.0, recipe="modelopt", formats=["mxfp8_e4m3"]).nbytes
    best = advise(model, budget=size, recipe="modelopt", formats=several)
    alone = []
    for name in several:
        try:
            alone.append(advise(model, budget=size, recipe="modelopt", formats=[name]))
        except CheckpointError:  # nobody loads all of it, and the rest is too large
            assert name not in best.map.values()
    assert best == min(alone, key=lambda advice: advice.error)
    least = advise(model, error=best.error, recipe="modelopt", formats=several)
    assert least.nbytes <= best.nbytes
    assert len(set(best.map.values())) == 1
    carry_out(best, tmp_path)
    with pytest.raises(CheckpointError, match="is less than the"):
        advise(model, bits=1.0, recipe="modelopt")


def test_experts_in_one_tensor_have_the_recipe_of_their_model(tmp_path: Path) -> None:
    numbers = np.random.default_rng(1)
    tensors = {
        f"model.layers.0.mlp.experts.{name}_proj": numbers.standard_normal((2, 64, 64)).astype("f4")
        for name in ("gate_up", "down")
    }
    source = tmp_path / "model"
    source.mkdir()
    checkpoint.save(source / "model.safetensors", tensors)
    (source / "config.json").write_text(json.dumps({"model_type": "gpt_oss"}))
    for consumer in ("transformers", "vllm", "sglang", "tensorrt-llm"):
        advice = advise(source, error=1.0, consumer=consumer)  # type: ignore[arg-type]
        assert (advice.recipe, set(advice.map.values())) == ("gpt-oss", {"mxfp4"})
        (choice,) = advice.choices  # all of them, or none
        assert set(choice.tensors) == set(tensors)
    with pytest.raises(CheckpointError, match="recipe 'compressed-tensors' is not one that llama"):
        advise(source, error=1.0, consumer="llama.cpp", recipe="compressed-tensors")
    text = "llama.cpp loads of gpt_oss: castwise makes only mxfp4 of .* as gpt-oss stores it; use g"
    with pytest.raises(CheckpointError, match=text):
        advise(source, error=1.0, consumer="llama.cpp", recipe="gguf")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("model.norm.weight", "lacks what becomes 'output_norm.weight' of qwen3moe: 'model.norm"),
        ("tokenizer.json", "tokenizer.json is missing, and a GGUF file has the tokens"),
        ("model.layers.0.mlp.gate.weight", "'model.layers.0.mlp.gate.weight'; add it, or mend"),
    ],
)
def test_advice_for_llama_is_refused_as_transcode_does(
    model: Path, tmp_path: Path, name: str, text: str
) -> None:
    """Before weights are read, as what castwise transcode would say of what is advised."""
    for_llama: Any = {"error": 1.0, "consumer": "llama.cpp", "recipe": "compressed-tensors"}
    assert set(advise(model, **for_llama).map.values()) == {"mxfp4"}
    quantized = tmp_path / "quantized"
    tensors = {key: value for key, value in weights().items() if key != name}
    source = write(tmp_path / "model", tensors, CONFIG)
    (source / name).unlink(missing_ok=True)
    seen: list[Any] = []
    with pytest.raises(CheckpointError, match=text) as advised:
        advise(source, progress=seen.append, **for_llama)
    checkpoint.quantize_file(source, quantized, "mxfp4", recipe="compressed-tensors")
    with pytest.raises(CheckpointError) as refused:
        checkpoint.transcode_file(quantized, tmp_path / "model.gguf", "gguf")
    assert str(advised.value) == str(refused.value).replace(str(quantized), str(source))
    assert not seen


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"consumer": "vlm"}, "consumer 'vlm' is not known: did you mean 'vllm'.*tensorrt-llm"),
        ({"consumer": 3}, "consumer 3 is not known: use one of transformers, vllm"),
        (
            {"consumer": "vllm", "recipe": "mlx"},
            "recipe 'mlx' is not one that vllm loads; use compressed-tensors, modelopt",
        ),
        (
            {"consumer": "vllm", "formats": ["mxfp6_e2m3"]},
            "formats 'mxfp6_e2m3' is not a candidate: vllm does not load it as .* use some of fp8",
        ),
        ({"consumer": "vllm", "formats": ["nf4"]}, "formats 'nf4' is not a candidate: no scheme"),
        (
            {"consumer": "mlx-lm", "formats": ["int4_group"]},
            "formats 'int4_group' is not a candidate: mlx stores it with biases of groups",
        ),
        ({"consumer": "llama.cpp", "error": 1e-9}, "use llama.cpp's own converter, or limit more"),
    ],
)
def test_what_is_not_loaded(model: Path, options: dict[str, Any], text: str) -> None:
    with pytest.raises(CheckpointError, match=text):
        advise(model, **{"error": 1.0, **options})


@pytest.mark.parametrize("consumer", [None, "transformers"])
def test_a_warning_names_the_option_that_loads_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, consumer: str | None
) -> None:
    """What `verify` refuses without that option is not written without a word."""
    size, name = 192, "model.layers.0.mlp.{}_proj.weight"
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": size,
        "intermediate_size": size,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "vocab_size": 8,
        "tie_word_embeddings": True,
    }
    square = np.ones((size, size), ml_dtypes.bfloat16)
    tensors = {name.format(part): square for part in ("gate", "up", "down")}
    source = write(tmp_path / "model", tensors, config)
    options = {"recipe": "deepseek", "consumer": consumer}
    checkpoint.quantize_file(source, tmp_path / "out", "fp8_block", **options)
    reason = "decodes a matrix of 192x192 right only on a GPU"
    assert f"transformers {reason}" in caplog.text
    assert reason in str(checkpoint.verify_loading(tmp_path / "out", "transformers").problems)


def test_a_model_that_cannot_be_converted(model: Path, tmp_path: Path) -> None:
    for config in ({"model_type": "bert"}, {}):
        other = write(tmp_path / str(len(config)), weights(), config)
        with pytest.raises(CheckpointError, match=r"makes of the model_type gpt_oss.*, not of"):
            advise(other, error=1.0, consumer="llama.cpp")


def test_the_command(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "map.toml"
    command = ["advise", str(model), "--error", "1"]
    assert main([*command, "--for", "llama.cpp", "--json", "-o", str(output)]) == 0
    advice = advise(model, error=1.0, consumer="llama.cpp")
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(advice.to_dict()))
    (text,) = advice.commands
    assert text.endswith(" DST.gguf --map THIS --recipe gguf --for llama.cpp")
    assert f"# {text}\n" in output.read_text("utf-8")
    transcoded = [*command, "--for", "llama.cpp", "--recipe", "compressed-tensors", "--quiet"]
    assert main([*transcoded, "-o", str(output)]) == 0
    assert "# castwise transcode QUANTIZED DST.gguf --to gguf" in output.read_text("utf-8")
    assert main([*command, "--for", "ollama"]) == 2
    assert "--for ollama is not known" in capsys.readouterr().err
    assert main([*command, "--for", "vllm", "--recipe", "mlx"]) == 2
    assert "--recipe mlx is not one that vllm loads" in capsys.readouterr().err


@pytest.mark.parametrize("recipe", ["deepseek", "gpt-oss"])
def test_transformers_loads_it(
    tmp_path: Path, framework: Framework, monkeypatch: pytest.MonkeyPatch, recipe: str
) -> None:
    """It decodes it as castwise does; of compressed-tensors, whose package it needs, see peers."""
    torch, transformers = framework("torch"), framework("transformers")
    name = {"deepseek": "Qwen3Moe", "gpt-oss": "GptOss"}[recipe]
    sizes = dict.fromkeys(("hidden_size", "intermediate_size", "moe_intermediate_size"), 256)
    sizes["num_experts_per_tok"] = 2
    settings = {**CONFIGS[f"{name}Model"], **TEXT, **sizes}
    kind = getattr(transformers, f"{name}Model")
    kind(kind.config_class(**settings)).to(torch.bfloat16).save_pretrained(tmp_path / "model")
    options: Any = {"consumer": "transformers", "recipe": recipe}
    result = carry_out(advise(tmp_path / "model", error=1.0, **options), tmp_path)
    checkpoint.dequantize_file(result, tmp_path / "decoded")
    quantizer = transformers.quantizers.auto.AUTO_QUANTIZER_MAPPING["fp8"]
    # It refuses a machine without a GPU; decoding needs none.
    monkeypatch.setattr(quantizer, "validate_environment", lambda *_, **__: None)
    decoding = {"deepseek": "FineGrainedFP8Config", "gpt-oss": "Mxfp4Config"}[recipe]
    peer = kind.from_pretrained(
        result,
        quantization_config=getattr(transformers, decoding)(dequantize=True),
        dtype=torch.bfloat16,
    )
    same_results(torch, kind.from_pretrained(tmp_path / "decoded"), peer)
