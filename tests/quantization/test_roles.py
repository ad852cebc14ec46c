"""What becomes of tensors by what they are in the code of their model, whatever their names are.

Axes are those of transformers 5.24, in `models/*/modeling_*.py`: `GptOssExperts` and
`Llama4TextExperts` multiply by (experts, in, out), the others by (experts, out, in).
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import offered
import pytest
from castwise import checkpoint
from castwise.checkpoint import CheckpointError
from castwise.cli import main
from castwise.models.model import Model
from castwise.quantization import dequantize, quantize
from checkpoint_samples import assert_same

HIDDEN, WIDE, EXPERTS = 64, 96, 3
OUT_IN, IN_OUT = (EXPERTS, 2 * WIDE, HIDDEN), (EXPERTS, HIDDEN, 2 * WIDE)
LAYER = "model.layers.0."
Q = f"{LAYER}self_attn.q_proj.weight"
EMBEDDING = "model.embed_tokens.weight"

STACKS: dict[str, tuple[str, tuple[int, ...]]] = {
    "gpt_oss": (f"{LAYER}mlp.experts.gate_up_proj", IN_OUT),
    "llama4_text": (f"{LAYER}feed_forward.experts.gate_up_proj", IN_OUT),
    "mistral4": (f"{LAYER}mlp.experts.gate_up_proj", OUT_IN),
    "gemma4_text": (f"{LAYER}experts.gate_up_proj", OUT_IN),
    "granitemoe": (f"{LAYER}block_sparse_moe.input_linear.weight", OUT_IN),
    "dbrx": ("transformer.blocks.0.ffn.experts.mlp.w1", (EXPERTS * WIDE, HIDDEN)),
}
"""Of models with all experts of a layer in one tensor: its name in their files, and its shape."""


def random(*shape: int) -> Any:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def write(folder: Path, shapes: dict[str, tuple[int, ...]], **config: Any) -> Path:
    folder.mkdir()
    checkpoint.save(
        folder / "model.safetensors", {name: random(*shape) for name, shape in shapes.items()}
    )
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def stacked(folder: Path, kind: str) -> tuple[Path, str]:
    """Write a model of a type, with experts in one tensor; returns its path and their name."""
    name, shape = STACKS[kind]
    query = {} if kind == "dbrx" else {Q: (64, 64)}
    return write(folder, {name: shape, **query}, model_type=kind, hidden_size=HIDDEN), name


@pytest.mark.parametrize("kind", STACKS)
def test_experts_in_one_tensor_are_refused_by_name_where_each_is_stored_alone(
    tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    source, name = stacked(tmp_path / "in", kind)
    command = ["quantize", str(source), str(tmp_path / "out"), "--scheme", "nvfp4"]
    assert main(command) == 2
    said = capsys.readouterr().err
    assert f"tensor {name!r}: it has the shape" in said
    is_known = Model({"model_type": kind}, {}).architecture is not None
    words = "stores the weight of each as a tensor of its own; leave" if is_known else "may be the"
    assert words in said
    assert "leave it as it is (--ignore)" in said
    assert not (tmp_path / "out").exists()
    assert main([*command, "--ignore", re.escape(name)]) == (2 if kind == "dbrx" else 0)


@pytest.mark.parametrize("kind", STACKS)
def test_only_the_experts_of_gpt_oss_are_stored_as_it_stores_them(
    tmp_path: Path, kind: str
) -> None:
    """Transformers builds such experts in `GptOssMLP` alone, and vLLM in `gpt_oss.py`."""
    source, name = stacked(tmp_path / "in", kind)
    out = tmp_path / "out"
    if kind != "gpt_oss":
        with pytest.raises(CheckpointError, match=re.escape(repr(name))):
            checkpoint.quantize_file(source, out, "mxfp4", recipe="gpt-oss")
        return
    checkpoint.quantize_file(source, out, "mxfp4", recipe="gpt-oss")
    made = quantize(random(*IN_OUT), "mxfp4", recipe="gpt-oss", axis=-2)
    assert_same(checkpoint.load(out)[f"{name}_blocks"], made.data)
    checkpoint.dequantize_file(out, tmp_path / "plain", dtype="float32")
    assert_same(checkpoint.load(tmp_path / "plain")[name], dequantize(made, np.float32))


def test_mlx_stores_the_experts_that_it_named_itself(tmp_path: Path) -> None:
    """`mlx_lm.models` load `switch_mlp`, (experts, out, in), and split others as they convert."""
    names = [f"{LAYER}mlp.switch_mlp.up_proj.weight", STACKS["granitemoe"][0]]
    for name, kind in zip(names, ("qwen3_moe", "granitemoe"), strict=True):
        source = write(tmp_path / kind, {name: OUT_IN}, model_type=kind)
        if kind == "qwen3_moe":
            checkpoint.quantize_file(source, tmp_path / "out", "mxfp4", recipe="mlx")
            made = quantize(random(*OUT_IN), "mxfp4", recipe="mlx")
            assert_same(checkpoint.load(tmp_path / "out")[name], made.data)
            continue
        with pytest.raises(CheckpointError, match=r"input_linear.*the library that loads it first"):
            checkpoint.quantize_file(source, tmp_path / "out", "mxfp4", recipe="mlx")


LINEAR = f"{LAYER}linear_attn."
JOINED = (
    ("qwen3_5_text", LINEAR, ("in_proj_qkv", "in_proj_z")),
    ("qwen3_5_text", LINEAR, ("in_proj_b", "in_proj_a")),
    ("qwen3_5_text", f"{LAYER}mlp.", ("gate_proj", "up_proj")),
    ("llama", f"{LAYER}self_attn.", ("q_proj", "k_proj", "v_proj")),
    ("frob", "blocks.0.attn.", ("to_q", "to_k", "to_v")),
)
"""What vLLM's `packed_modules_mapping` joins; of a model that nobody knows, by names."""


@pytest.mark.parametrize(("kind", "prefix", "names"), JOINED)
def test_what_engines_join_shares_a_scale_and_a_choice(
    tmp_path: Path, kind: str, prefix: str, names: tuple[str, ...]
) -> None:
    weights = [f"{prefix}{name}.weight" for name in names]
    source = write(tmp_path / "in", dict.fromkeys(weights, (64, 64)), model_type=kind)
    arrays = checkpoint.load(source)
    checkpoint.save(
        source / "model.safetensors",
        {name: array * 4**place for place, (name, array) in enumerate(arrays.items())},
        overwrite=True,
    )
    checkpoint.quantize_file(source, tmp_path / "out", "nvfp4", consumer="vllm")
    made = checkpoint.load(tmp_path / "out")
    scales = {made[name.replace("weight", "weight_global_scale")].item() for name in weights}
    assert len(scales) == 1
    advice = checkpoint.advise(source, bits=9, consumer="vllm")
    assert [sorted(choice.tensors) for choice in advice.choices] == [sorted(weights)]


@pytest.mark.parametrize("kind", ["deepseek_v32", "glm_moe_dsa"])
def test_what_engines_hold_unquantized_is_kept(tmp_path: Path, kind: str) -> None:
    """VLLM and SGLang build `weights_proj` with `quant_config=None`."""
    kept = f"{LAYER}self_attn.indexer.weights_proj.weight"
    source = write(
        tmp_path / "in",
        {kept: (64, 64), f"{LAYER}self_attn.o_proj.weight": (64, 64)},
        model_type=kind,
    )
    summary = checkpoint.quantize_file(source, tmp_path / "out", "fp8_channel")
    assert kept in checkpoint.load(tmp_path / "out")
    (row,) = summary.kept
    assert (row.role, row.count, row.share) == ("linear", 1, 0.5)
    section = json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]
    assert kept.removesuffix(".weight") in section["ignore"]


def test_the_output_says_what_stays_and_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prefix = "resnet.encoder.stages.0.layers.{}.layer.0.convolution.weight"
    shapes = {prefix.format(layer): (16, 16, 3, 3) for layer in range(8)}
    shapes |= {"classifier.1.weight": (16, 64), "fc.weight": (64, 64)}
    source = write(tmp_path / "in", shapes, model_type="resnet")
    assert main(["quantize", str(source), str(tmp_path / "out"), "--scheme", "fp8_channel"]) == 0
    said = capsys.readouterr().out
    assert "not quantized: 8 convolutions, 78 % of the bytes: no recipe stores them; 1 head" in said
    report = tmp_path / "report.json"
    again = ["--overwrite", "--quiet", "--report", str(report)]
    main(["quantize", str(source), str(tmp_path / "out"), "--scheme", "fp8_channel", *again])
    kept = json.loads(report.read_text())["kept"][0]
    assert kept | {"share": 0} == {
        "role": "convolution",
        "reason": "no recipe stores them",
        "count": 8,
        "nbytes": 8 * 16 * 16 * 9 * 4,
        "share": 0,
    }


EMBEDDED = {EMBEDDING: (96, 64), Q: (64, 64)}


def test_an_embedding_is_named_as_a_target_or_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source, out = write(tmp_path / "in", EMBEDDED, model_type="llama"), tmp_path / "out"
    named: Any = {"dtype_map": {".*embed_tokens.weight": "int8_channel"}}
    checkpoint.quantize_file(source, out, "int8_channel", **named)
    assert "is an embedding, and no library loads one" in caplog.text
    section = json.loads((out / "config.json").read_text())["quantization_config"]
    targets = [group["targets"] for group in section["config_groups"].values()]
    assert targets == [["Linear"], [r"re:model\.embed_tokens$"]]
    checkpoint.dequantize_file(out, tmp_path / "plain", dtype="float32")
    made = quantize(random(96, 64), "int8_channel", recipe="compressed-tensors")
    assert_same(checkpoint.load(tmp_path / "plain")[EMBEDDING], dequantize(made, np.float32))
    for consumer in ("transformers", "vllm", "sglang"):
        with pytest.raises(CheckpointError, match=rf"role: embed.*, and {consumer} does not load"):
            checkpoint.quantize_file(source, out, "int8_channel", **named, consumer=consumer)
    named = {"dtype_map": {".*embed_tokens.weight": "fp8_block"}}
    with pytest.raises(
        CheckpointError, match="no library loads one that is quantized as by deepseek"
    ):
        checkpoint.quantize_file(source, out, "fp8_block", **named, recipe="deepseek")
    named = {"dtype_map": {".*embed_tokens.weight": "mxfp4"}}
    checkpoint.quantize_file(source, tmp_path / "mlx", "mxfp4", **named, recipe="mlx")


@pytest.mark.parametrize(
    ("recipe", "consumer"), [("compressed-tensors", None), ("mlx", "mlx-lm"), (None, "llama.cpp")]
)
def test_embeddings_and_heads_get_the_scheme_too(
    tmp_path: Path, recipe: Any, consumer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """All that a library would look up, and no table of positions; --ignore leaves one again."""
    shapes = {EMBEDDING: (96, 64), "lm_head.weight": (96, 64), Q: (64, 64)}
    source = write(tmp_path / "model", shapes, model_type="llama", tie_word_embeddings=False)
    options: Any = {"recipe": recipe, "consumer": consumer, "overwrite": True}
    found = []
    for flags in (
        {},
        {"quantize_embeddings": True},
        {"quantize_embeddings": True, "ignore": EMBEDDING},
    ):
        caplog.clear()
        result = tmp_path / "small"
        checkpoint.quantize_file(source, result, "mxfp4", **options, **flags)
        quantization = checkpoint.inspect(result).quantization
        assert quantization is not None
        found.append({weight.name for weight in quantization.weights})
        warned = "no library loads one" in caplog.text
        assert warned == (consumer is None and EMBEDDING in found[-1])
        checkpoint.dequantize_file(result, tmp_path / "plain", overwrite=True)
        assert checkpoint.load(tmp_path / "plain").keys() == shapes.keys()
    assert found == [{Q}, set(shapes), {Q, "lm_head.weight"}]


def test_embeddings_are_not_quantized_for_who_loads_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write(tmp_path / "model", {EMBEDDING: (96, 64), Q: (64, 64)}, model_type="llama")
    words = ["quantize", str(source), str(tmp_path / "small"), "--scheme", "mxfp4"]
    assert main([*words, "--quantize-embeddings", "yes", "--for", "vllm"]) == 2
    text = "--quantize-embeddings yes: vllm loads no embeddings and heads that are quantized; leave"
    assert text in capsys.readouterr().err
    assert not (tmp_path / "small").exists()


def test_a_router_that_a_map_names_is_refused_where_no_library_replaces_it(tmp_path: Path) -> None:
    """`Qwen3MoeTopKRouter` has a parameter `weight`, and is no `nn.Linear`."""
    gate = f"{LAYER}mlp.gate.weight"
    source = write(tmp_path / "in", {gate: (64, 64), Q: (64, 64)}, model_type="qwen3_moe")
    named: Any = {"dtype_map": {".*gate.weight": "int8_channel"}}
    with pytest.raises(CheckpointError, match=r"gate.*role: router.*\(recipe\): mlx"):
        checkpoint.quantize_file(source, tmp_path / "out", "int8_channel", **named)
    named = {"dtype_map": {".*gate.weight": "int8_group"}, "recipe": "mlx"}
    checkpoint.quantize_file(source, tmp_path / "out", "int8_group", **named)


UNKNOWN = {"blocks.0.moe.w_in": OUT_IN, "blocks.0.fc.weight": (64, 64)}
FILE = """\
# castwise architectures 1

blocks.#.fc.weight linear
blocks.#.moe.w_in experts experts out in halves

frob - - Frob=0
"""


def test_what_may_be_experts_is_refused_until_somebody_says_what_it_is(tmp_path: Path) -> None:
    source, out = write(tmp_path / "in", UNKNOWN, model_type="frob"), tmp_path / "out"
    with pytest.raises(CheckpointError, match=r"'blocks\.0\.moe\.w_in'.*may be the weights of all"):
        checkpoint.quantize_file(source, out, "fp8_block")
    file = tmp_path / "frob.txt"
    file.write_text(FILE)
    named: Any = {"dtype_map": {r".*w_in": "mxfp4"}, "recipe": "gpt-oss"}
    checkpoint.quantize_file(source, tmp_path / "named", "mxfp4", **named)
    assert "blocks.0.moe.w_in_blocks" in checkpoint.load(tmp_path / "named")
    with pytest.raises(CheckpointError, match=r"w_in'.*, experts in one tensor"):
        checkpoint.quantize_file(source, out, "nvfp4", architecture=file)
    file.write_text(FILE.replace("experts experts out in halves", "recurrent"))
    for options in ({"ignore": r".*w_in"}, {"architecture": file}):
        checkpoint.quantize_file(source, out, "fp8_block", overwrite=True, **options)  # type: ignore[arg-type]
        made = checkpoint.load(out)
        assert "blocks.0.fc.weight_scale_inv" in made
        assert_same(made["blocks.0.moe.w_in"], random(*OUT_IN))
    checkpoint.quantize_file(source, out, "nvfp4", overwrite=True, ignore=r".*w_in")
    section = json.loads((out / "config.json").read_text())["quantization_config"]
    assert {"blocks.0.moe.w_in", "blocks.0.moe.experts"} <= {*section["ignore"]}
    assert checkpoint.advise(source, bits=20, architecture=file).choices
    with pytest.raises(CheckpointError, match=r"frob\.txt'?\)? goes with a map"):
        checkpoint.verify(source, out, architecture=file)
    checkpoint.cast_file(source, tmp_path / "cast", "bf16", dtype_map="llama", architecture=file)
    formats = {info.name: info.format for info in checkpoint.inspect(tmp_path / "cast").tensors}
    assert formats == {"blocks.0.moe.w_in": "float32", "blocks.0.fc.weight": "bfloat16"}
    summary = {"dtype": "bf16", "dtype_map": "llama", "architecture": file}
    assert checkpoint.verify(source, tmp_path / "cast", **summary).equal  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (FILE.replace("experts out in", "experts in"), "axes"),
        (FILE.replace(" linear", " lineal"), "lineal"),
        (FILE.replace("w_in", "w_out"), "is that of no tensor"),
        (
            FILE.replace("fc.weight linear", "fc.weight experts experts out in"),
            "correct architecture, or leave it",
        ),
        (FILE.replace("moe.w_in experts", "fc.weight experts"), "blocks.#.fc.weight"),
        (FILE[3:], "does not begin with"),
        ("", "does not begin with"),
    ],
)
def test_a_file_of_an_architecture_that_is_wrong(tmp_path: Path, text: str, words: str) -> None:
    source, file = write(tmp_path / "in", UNKNOWN, model_type="frob"), tmp_path / "frob.txt"
    file.write_text(text)
    with pytest.raises(CheckpointError, match=re.escape(words)) as error:
        checkpoint.quantize_file(source, tmp_path / "out", "fp8_block", architecture=file)
    assert "frob.txt" in str(error.value) or "architecture" in str(error.value)


@pytest.mark.parametrize(
    ("kind", "name", "shape"),
    [
        ("llama", Q, (2, 64, 64)),
        ("gpt_oss", f"{LAYER}mlp.experts.gate_up_proj", OUT_IN),
        ("mistral4", f"{LAYER}mlp.experts.gate_up_proj", IN_OUT),
        ("granitemoe", f"{LAYER}block_sparse_moe.input_linear.weight", (64, 64)),
    ],
)
def test_a_type_that_contradicts_the_shapes(
    tmp_path: Path, kind: str, name: str, shape: tuple[int, ...]
) -> None:
    source = write(
        tmp_path / "in",
        {name: shape, f"{LAYER}b.weight": (64, 64)},
        model_type=kind,
        hidden_size=64,
    )
    words = rf"{re.escape(repr(name))} has the shape .* correct architectures and model_type"
    with pytest.raises(CheckpointError, match=words):
        checkpoint.quantize_file(source, tmp_path / "out", "fp8_block")
    if kind != "llama":
        checkpoint.quantize_file(source, tmp_path / "out", "nvfp4", ignore=re.escape(name))
        assert f"{LAYER}b.weight_packed" in checkpoint.load(tmp_path / "out")


def test_experts_that_stay_are_excepted_for_all_engines(tmp_path: Path) -> None:
    name = f"{LAYER}mlp.experts.gate_up_proj"
    tensors = {name: OUT_IN, Q: (64, 64)}
    source = write(tmp_path / "in", tensors, model_type="qwen3_moe", hidden_size=64)
    for recipe in ("compressed-tensors", "modelopt"):
        out = tmp_path / recipe
        checkpoint.quantize_file(source, out, "nvfp4", recipe=recipe, ignore=".*experts.*")
        for engine in ("vllm", "sglang"):
            assert checkpoint.verify_loading(out, engine).loads  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kind", "name"),
    [("deepseek_v3", "model.layers.61.eh_proj.weight"), ("qwen3_next", "mtp.fc.weight")],
)
def test_what_joins_a_layer_of_further_tokens_stays(tmp_path: Path, kind: str, name: str) -> None:
    source = write(tmp_path / "in", {Q: (64, 64), name: (64, 128)}, model_type=kind)
    checkpoint.quantize_file(source, tmp_path / "out", "nvfp4")
    assert name in checkpoint.load(tmp_path / "out")
    section = json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]
    assert name.removesuffix(".weight") in section["ignore"]


def test_a_model_of_convolutions_says_that_they_are_the_reason(tmp_path: Path) -> None:
    tensors = {"resnet.encoder.stages.0.layers.0.layer.0.convolution.weight": (64, 64, 3, 3)}
    source = write(tmp_path / "in", tensors, model_type="resnet")
    with pytest.raises(CheckpointError, match=r"1 convolution, 100 % .*: no recipe stores them"):
        checkpoint.quantize_file(source, tmp_path / "out", "int8_channel")


@pytest.mark.parametrize(
    ("names", "is_head"),
    [((EMBEDDING, "lm_head.weight"), False), ((EMBEDDING,), True)],
)
def test_an_embedding_is_a_head_where_no_head_is_stored(
    names: tuple[str, ...], is_head: bool
) -> None:
    model = Model(
        {"model_type": "llama", "tie_word_embeddings": True}, dict.fromkeys(names, (192, 64))
    )
    assert model.is_head(EMBEDDING) is is_head


def test_a_package_offers_an_architecture(tmp_path: Path) -> None:
    source, site = write(tmp_path / "in", UNKNOWN, model_type="frob"), tmp_path / "site"
    (tmp_path / "frob.txt").write_text(FILE.replace("experts experts out in halves", "recurrent"))
    points = "[castwise.architectures]\nfrob = castwise_frob:PATH\n"
    offered.install(site, "castwise-frob", points, f"PATH = {str(tmp_path / 'frob.txt')!r}\n")
    offered.run_commands(site, f"quantize {source} {tmp_path / 'out'} --scheme fp8_block --quiet")
    assert "blocks.0.fc.weight_scale_inv" in checkpoint.load(tmp_path / "out")


def test_names_without_a_model_have_the_roles_of_the_words_in_them() -> None:
    roles = {
        "model.layers.0.mlp.gate.weight": "router",
        "encoder.conv1.weight": "convolution",
        "a.norm.weight": "norm",
        "wte.weight": "embedding",
        "lm_head.weight": "head",
        "a.b.weight": "linear",
        "a.b.blocks": "unknown",
    }
    shapes = {name: (64, 64, 3) if "conv" in name else (64, 64) for name in roles}
    model = Model({}, shapes)
    assert {name: model.role(name) for name in roles} == roles


def test_what_cannot_be_experts_is_kept() -> None:
    """A first axis of one, short axes, biases, convolutions, and kernels of Keras and flax."""
    shapes = {
        "pos": (1, 64, 64),
        "experts.0.up": (64, 64, 3),
        "experts.up_bias": (64, 64),
        "conv.weight": (64, 64, 64),
        "attention/query/kernel": (64, 16, 16),
        "experts.0.up_proj.weight": (64, 64),
    }
    model = Model({}, {**shapes, "mixture.w": (4, 64, 64), "experts.mlp.w": (64, 64)})
    assert [name for name in model.names if model.may_be_experts(name)] == [
        "mixture.w",
        "experts.mlp.w",
    ]


@pytest.mark.parametrize(("kind", "stores_head"), [("llama", True), ("own", True), ("own", False)])
def test_an_embedding_is_a_head_only_where_the_file_has_no_other(
    kind: str, *, stores_head: bool
) -> None:
    embedding, head = "model.embed_tokens.weight", "lm_head.weight"
    names = [embedding, *([head] if stores_head else [])]
    config = {"model_type": kind, "tie_word_embeddings": True}
    model = Model(config, dict.fromkeys(names, (64, 32)))
    assert model.is_head(embedding) != stores_head
    assert all(map(model.is_head, names[1:]))
