"""Advice is the best within its limit, fits, and loses what it says when it is carried out."""

from __future__ import annotations

import itertools
import json
import os
import random
import re
import shutil
import time
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from castwise import cast, checkpoint, compare
from castwise.checkpoint import CheckpointError, advise
from castwise.checkpoint.advice._knapsack import Option, front, solve
from castwise.checkpoint.advice.advice import patterns
from castwise.checkpoint.advice.advise import _MARGIN as MARGIN
from castwise.checkpoint.containers import open_checkpoint
from castwise.checkpoint.planning.written_schemes import written_schemes
from castwise.checkpoint.surveying import Predictor, survey_tensors
from castwise.cli import main
from castwise.models.model import Model
from castwise.quantization import dequantize, quantize
from castwise.quantization.producers.registry import TYPED, WRITTEN
from castwise.quantization.producers.schemes import SCALES
from castwise.surveys import survey
from oracle import Array
from refusals import as_recorded
from system_parts import LINKS, need

LAYERS = 3
SHAPES = {
    "self_attn.q_proj": (128, 128),
    "self_attn.k_proj": (64, 128),
    "self_attn.v_proj": (64, 128),
    "self_attn.o_proj": (128, 128),
    "mlp.gate_proj": (256, 128),
    "mlp.up_proj": (256, 128),
    "mlp.down_proj": (128, 256),
}


def weights() -> dict[str, Array]:
    """A small model, whose later layers have fewer outliers."""
    random_numbers = np.random.default_rng(3)
    tensors = {"model.embed_tokens.weight": random_numbers.standard_normal((100, 128)) * 0.02}
    for layer in range(LAYERS):
        for module, shape in SHAPES.items():
            weight = random_numbers.standard_t(3 + 2 * layer, shape) * 0.02
            tensors[f"model.layers.{layer}.{module}.weight"] = weight
        tensors[f"model.layers.{layer}.input_layernorm.weight"] = np.ones(128)
    return {name: array.astype(ml_dtypes.bfloat16) for name, array in tensors.items()}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of such a model."""
    folder = tmp_path_factory.mktemp("advised") / "model"
    folder.mkdir()
    checkpoint.save(folder / "model.safetensors", weights())
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def folder_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


def relative_errors(source: Path, result: Path, folder: Path) -> dict[str, float]:
    """What decoding the result gives, against the source."""
    decoded = folder / "decoded"
    checkpoint.dequantize_file(result, decoded, dtype="float32")
    before, after = checkpoint.load(source), checkpoint.load(decoded)
    errors = {}
    for name, array in before.items():
        exact = array.astype(float)
        noise = np.square(after[name].astype(float) - exact).sum()
        errors[name] = noise / np.square(exact).sum()
    return errors


def random_problem(numbers: random.Random) -> tuple[list[list[Option]], float]:
    groups = [
        [
            Option(
                numbers.choice([numbers.random(), numbers.random() ** 4, numbers.randint(0, 9)]),
                numbers.choice([numbers.randint(1, 50), 50 * numbers.random()]),
            )
            for _ in range(numbers.randint(1, 6))
        ]
        for _ in range(numbers.randint(1, 6))
    ]
    return groups, numbers.uniform(0, sum(max(o.weight for o in group) for group in groups))


def test_the_solver_equals_brute_force() -> None:
    numbers = random.Random(1)
    for _ in range(1000):
        groups, limit = random_problem(numbers)
        sums = (
            (sum(option.cost for option in row), sum(option.weight for option in row))
            for row in itertools.product(*groups)
        )
        best = min((cost for cost, weight in sums if weight <= limit), default=None)
        solution = solve(groups, limit)
        if best is None:
            assert solution is None
            continue
        assert solution is not None
        assert solution.weight <= limit
        chosen = [group[index] for group, index in zip(groups, solution.indices, strict=True)]
        assert solution.cost == pytest.approx(sum(option.cost for option in chosen))
        assert solution.cost == pytest.approx(best)
        assert solution.gap == 0


def test_a_gap_is_never_too_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("castwise.checkpoint.advice._knapsack._NODES", 3)
    numbers = random.Random(2)
    gaps = 0
    for _ in range(300):
        groups, limit = random_problem(numbers)
        bounded = solve(groups, limit)
        if bounded is None:
            continue
        monkeypatch.undo()
        exact = solve(groups, limit)
        monkeypatch.setattr("castwise.checkpoint.advice._knapsack._NODES", 3)
        assert exact is not None
        assert bounded.cost - bounded.gap <= exact.cost * (1 + 1e-9) + 1e-12
        gaps += bounded.gap > 0
    assert gaps > 10


def test_the_front_is_below_every_choice() -> None:
    numbers = random.Random(3)
    groups, _ = random_problem(numbers)
    points = front(groups)
    for row in itertools.product(*groups):
        cost, weight = sum(o.cost for o in row), sum(o.weight for o in row)
        costs = [point.cost for point in points]
        expected = np.interp(weight, [point.weight for point in points], costs)
        assert cost >= expected - 1e-9


def test_files_beside_shards_count_if_they_are_copied(model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(model, folder)
    alone = advise(folder, bits=9.0).nbytes
    (folder / "consolidated.00.pth").write_bytes(bytes(10_000))  # the same model, left out
    (folder / "original").mkdir()
    (folder / "original" / "consolidated.00.pth").write_bytes(bytes(10_000))
    (folder / "tokenizer").mkdir()
    (folder / "tokenizer" / "vocab.json").write_bytes(bytes(1_000))
    advice = advise(folder, budget=alone + 1_000, formats=["fp8_channel"])
    assert advice.nbytes_before == advise(model, bits=9.0).nbytes_before + 1_000
    advice.save(tmp_path / "map.toml")
    result = tmp_path / "result"
    checkpoint.quantize_file(
        folder, result, dtype_map=tmp_path / "map.toml", recipe="compressed-tensors"
    )
    sizes = sum(path.stat().st_size for path in result.rglob("*") if path.is_file())
    assert 0.97 * advice.nbytes <= sizes <= advice.nbytes


@pytest.mark.parametrize("share", [0.45, 0.6, 0.8])
def test_advice_fits_and_loses_what_it_says(model: Path, tmp_path: Path, share: float) -> None:
    budget = int(share * folder_bytes(model))
    advice = advise(model, budget=budget)
    assert advice.nbytes <= budget
    result = tmp_path / "result"
    advice.save(tmp_path / "map.toml")
    summary = checkpoint.quantize_file(
        model, result, dtype_map=tmp_path / "map.toml", recipe="compressed-tensors"
    )
    assert not summary.unused_patterns
    assert folder_bytes(result) <= advice.nbytes
    assert folder_bytes(result) >= 0.97 * advice.nbytes
    errors = relative_errors(model, result, tmp_path)
    names = [name for choice in advice.choices for name in choice.tensors]
    assert len(names) == len({*names}) == LAYERS * len(SHAPES) + 1
    measured = sum(errors[name] for name in names) / len(names)
    assert advice.error == pytest.approx(measured, rel=0.1)
    kept = set(errors) - {name for choice in advice.choices for name in choice.tensors}
    assert all(errors[name] == 0 for name in kept)


def test_an_index_grows_with_the_scales(model: Path, tmp_path: Path) -> None:
    """In several shards as in one, the result is no larger than advised."""
    sharded = tmp_path / "sharded"
    checkpoint.cast_file(model, sharded, "bfloat16", max_shard_size="200KB")
    advice = advise(sharded, error=2e-4)
    assert len([*sharded.glob("*.safetensors")]) > 2
    checkpoint.quantize_file(
        sharded, tmp_path / "result", dtype_map=advice.map, recipe="compressed-tensors"
    )
    assert 0.95 * advice.nbytes <= folder_bytes(tmp_path / "result") <= advice.nbytes


def test_more_bytes_never_lose_more(model: Path) -> None:
    sizes = [share * folder_bytes(model) for share in (0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)]
    errors = [advise(model, budget=int(size)).error for size in sizes]
    # One scheme for all is chosen where it is about as good, so by that much, errors may rise.
    assert all(more <= (1 + MARGIN) * fewer for fewer, more in itertools.pairwise(errors))
    whole = advise(model, budget="1GB")
    assert whole.map == {}
    assert whole.error == 0
    assert not whole.quantizes


@pytest.mark.parametrize("limit", [{"bits": 6}, {"bits": 40}, {"error": 0.01}, {"budget": 40_000}])
def test_magnitudes_beyond_most_formats_are_advised(tmp_path: Path, limit: Any) -> None:
    """Choices by which values would be infinite are left out."""
    source, rng = tmp_path / "a.safetensors", np.random.default_rng(0)
    arrays = {f"layers.{i}.up_proj.weight": rng.normal(0, 1e39, (64, 128)) for i in range(3)}
    checkpoint.save(source, arrays)
    choices = checkpoint.advise(source, **limit).choices
    assert sum(len(choice.tensors) for choice in choices) == len(arrays)
    assert all(np.isfinite(choice.error) for choice in choices)
    with pytest.raises(CheckpointError, match="of the smallest choices"):
        checkpoint.advise(source, bits=16, formats=["float16"])


def test_bits_and_errors_limit_too(model: Path) -> None:
    advice = advise(model, bits=9.0)
    assert advice.bits <= 9.0
    least = advise(model, error=advice.error)
    assert least.error <= advice.error
    assert least.nbytes <= advice.nbytes
    assert advice.gap is not None
    assert advice.nbytes_gap is None
    assert least.gap is None
    assert least.nbytes_gap is not None
    assert 0 <= least.nbytes_gap <= least.nbytes
    assert "fewest" in least.total_lines()[0]
    assert "least" in advice.total_lines()[1]
    assert advise(model, error=1e-9).nbytes > least.nbytes


def test_fused_weights_share_a_choice(model: Path) -> None:
    advice = advise(model, budget=int(0.5 * folder_bytes(model)))
    by_module = [{name.rsplit(".", 2)[1] for name in choice.tensors} for choice in advice.choices]
    assert by_module.count({"q_proj", "k_proj", "v_proj"}) == LAYERS
    assert by_module.count({"gate_proj", "up_proj"}) == LAYERS
    names = {choice.name for choice in advice.choices}
    assert "model.layers.0.mlp.(gate_proj|up_proj).weight" in names


def test_groups_share_a_choice(model: Path) -> None:
    advice = advise(model, bits=9.0, groups=[r"model\.layers\.(\d+)\..*"])
    assert len(advice.choices) == LAYERS + 1
    whole = advise(model, bits=9.0, groups={"all": r"model\..*"})
    assert len(whole.choices) == 1
    assert whole.error >= advice.error >= advise(model, bits=9.0).error


def test_importance_moves_bytes(model: Path, tmp_path: Path) -> None:
    names = [name for name in weights() if "layernorm" not in name]
    numbers = {name: 1.0 if ".0." in name else 2.0**-20 for name in names}
    advice = advise(model, bits=9.0, importance=numbers)
    errors = {name: choice.error for choice in advice.choices for name in choice.tensors}
    first = [choice for choice in advice.choices if ".0." in choice.tensors[0]]
    rest = [choice for choice in advice.choices if ".0." not in choice.tensors[0]]
    assert min(choice.sqnr_db for choice in first) > max(choice.sqnr_db for choice in rest)
    assert set(errors) == set(names)
    (tmp_path / "numbers.json").write_text(json.dumps(numbers))
    np.savez(tmp_path / "numbers.npz", **numbers)
    checkpoint.save(
        tmp_path / "numbers.safetensors", {key: np.float64(n) for key, n in numbers.items()}
    )
    bfloat16 = {key: np.array(n, ml_dtypes.bfloat16) for key, n in numbers.items()}
    checkpoint.save(tmp_path / "bfloat16.safetensors", bfloat16)
    for file in ("numbers.json", "numbers.npz", "numbers.safetensors", "bfloat16.safetensors"):
        assert advise(model, bits=9.0, importance=tmp_path / file) == advice


TABLE = "model.embed_tokens.weight"


@pytest.mark.parametrize(
    ("options", "is_quantized", "reason"),
    [
        ({}, True, ""),
        ({"consumer": "mlx-lm"}, True, ""),
        ({"consumer": "vllm"}, False, "vllm loads none that is quantized"),
        ({"quantize_embeddings": False}, False, "quantize_embeddings says so"),
        ({"consumer": "mlx-lm", "quantize_embeddings": False}, False, "quantize_embeddings says"),
    ],
)
def test_embeddings_get_schemes_where_they_are_loaded(
    model: Path, options: dict[str, Any], is_quantized: bool, reason: str
) -> None:
    advice = advise(model, error=0.1, **options)
    targets = {name: choice.target for choice in advice.choices for name in choice.tensors}
    assert (targets.get(TABLE, "keep") in written_schemes(advice.recipe)) == is_quantized
    stays = {stay.role: stay for stay in advice.stays}
    assert ("embedding" not in stays) == is_quantized
    if not is_quantized:
        assert reason in stays["embedding"].reason
        assert "not quantized: 1 embedding, 2.8 % of the bytes" in advice.total_lines()[-1]
        assert stays["embedding"].nbytes == weights()[TABLE].nbytes
    assert advice.to_dict()["stays"] == [stay.to_dict() for stay in advice.stays]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"consumer": "vllm"}, r"linear [\d,]+, embedding [\d,]+, .*\. Use more$"),
        ({"quantize_embeddings": False}, r"or quantize .* \(quantize_embeddings=True\)$"),
        ({"formats": ["int8_channel"]}, r"or consider more formats \(formats\)$"),
        ({}, r"Use more$"),
    ],
)
def test_the_floor_is_said_by_role_with_what_lowers_it(
    model: Path, options: dict[str, Any], text: str
) -> None:
    with pytest.raises(CheckpointError, match=text) as refusal:
        advise(model, bits=2.0, **options)
    told = str(refusal.value).partition("less than the ")[2]
    numbers = [int(text.replace(",", "")) for text in re.findall(r"[\d,]+\d(?= bytes|[,.] )", told)]
    assert numbers[0] == sum(numbers[1:])
    assert advise(model, budget=numbers[0], **options).nbytes <= numbers[0]


def test_a_head_and_an_embedding_of_one_shape_are_chosen_apart(tmp_path: Path) -> None:
    source = tmp_path / "model"
    source.mkdir()
    head = {"lm_head.weight": weights()[TABLE]}
    checkpoint.save(source / "model.safetensors", weights() | head)
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}
    (source / "config.json").write_text(json.dumps(config))
    advice = advise(source, error=0.1, recipe="modelopt", quantize_embeddings=True)
    targets = {name: choice.target for choice in advice.choices for name in choice.tensors}
    assert targets["lm_head.weight"] in written_schemes("modelopt")
    assert targets.get(TABLE, "keep") not in written_schemes("modelopt")
    checkpoint.quantize_file(
        source, tmp_path / "result", recipe=advice.recipe, dtype_map=advice.map
    )
    assert folder_bytes(tmp_path / "result") <= advice.nbytes


def test_embeddings_are_not_for_consumers_that_load_none(model: Path) -> None:
    with pytest.raises(CheckpointError, match=r"quantize_embeddings True: vllm loads .* mlx-lm"):
        advise(model, bits=9.0, consumer="vllm", quantize_embeddings=True)


def test_one_scheme_is_the_floor_where_what_states_a_mixture_takes_more(model: Path) -> None:
    with pytest.raises(CheckpointError, match="smallest choices") as refusal:
        advise(model, bits=1.0)
    floor = int(re.findall(r"the ([\d,]+) bytes", str(refusal.value))[0].replace(",", ""))
    advice = advise(model, budget=floor)
    assert len({choice.target for choice in advice.choices}) == 1
    assert advice.nbytes == floor
    for below in (1, 100, 400, 2000):
        with pytest.raises(CheckpointError, match=f"the {floor:,} bytes"):
            advise(model, budget=floor - below)


@pytest.mark.parametrize("ignore", [r".*1\.mlp\.down_proj", r"model\.layers\.1\.mlp", ".*1.mlp"])
def test_ignored_weights_get_the_fewest_bytes(model: Path, ignore: str) -> None:
    """A weight is named by its own name, or by that of a module that holds it."""
    name = "model.layers.1.mlp.down_proj"
    advice = advise(model, bits=9.0, ignore=ignore)
    plain = advise(model, bits=9.0)
    chosen, before = (
        next(choice for choice in each.choices if choice.tensors == (f"{name}.weight",))
        for each in (advice, plain)
    )
    assert chosen.cheaper is None
    assert chosen.error == 0
    assert chosen.nbytes < before.nbytes


@pytest.mark.thinned(3)
@pytest.mark.parametrize("seed", range(6))
def test_no_single_scheme_that_fits_is_better(tmp_path: Path, seed: int) -> None:
    numbers = np.random.default_rng(seed)
    tensors = {
        f"layers.{place}.weight": (
            numbers.standard_t(numbers.integers(3, 9), 128 * numbers.integers(1, 4, 2))
        ).astype(np.float32)
        for place in range(6)
    }
    source = tmp_path / "model.safetensors"
    checkpoint.save(source, tensors)
    for scheme in written_schemes("compressed-tensors"):
        if scheme == "fp8_block":  # which refuses weights of one block
            continue
        result = tmp_path / f"{scheme}.safetensors"
        checkpoint.quantize_file(source, result, scheme, recipe="compressed-tensors")
        decoded = tmp_path / f"{scheme}-decoded.safetensors"
        checkpoint.dequantize_file(result, decoded, dtype="float32")
        values = checkpoint.load(decoded)
        errors = [
            float(
                np.square(values[name] - array).sum(dtype=float) / np.square(array).sum(dtype=float)
            )
            for name, array in tensors.items()
        ]
        # Headers are counted at most, which is a part of such small files.
        budget = int(1.04 * result.stat().st_size)
        advice = advise(source, budget=budget, recipe="compressed-tensors")
        counts = [np.log1p(array.size) for array in tensors.values()]
        assert advice.error <= 1.02 * np.average(errors, weights=counts), scheme
        assert advice.nbytes <= budget


def test_one_scheme_for_all_where_it_is_as_good(tmp_path: Path) -> None:
    weight = np.random.default_rng(0).standard_normal((128, 256)).astype(np.float32)
    source = tmp_path / "model.safetensors"
    checkpoint.save(source, {f"layers.{place}.weight": weight for place in range(4)})
    for scheme in ("nvfp4", "int8_channel", "int8_group"):
        result = tmp_path / f"{scheme}.safetensors"
        checkpoint.quantize_file(source, result, scheme, recipe="compressed-tensors")
        advice = advise(source, budget=result.stat().st_size + 2000, recipe="compressed-tensors")
        assert {choice.target for choice in advice.choices} == {scheme}


def test_no_weight_is_below_one_scheme_for_all_for_hardly_any_gain(tmp_path: Path) -> None:
    """With mxfp4 for one matrix, the rest gains 0.06 % more in sum than with nvfp4 for all."""
    numbers = np.random.default_rng(0)
    shapes = [(512, 128)] * 3 + [(128, 128)] * 12
    tensors = {
        f"layers.{place}.weight": numbers.standard_t(5, shape).astype(np.float32)
        for place, shape in enumerate(shapes)
    }
    source = tmp_path / "model.safetensors"
    checkpoint.save(source, tensors)
    budget = int(0.64 * sum(array.size for array in tensors.values())) + 4000
    formats = ["mxfp4", "nvfp4", "mxfp6_e2m3"]
    advice = advise(source, budget=budget, recipe="compressed-tensors", formats=formats)
    assert {choice.target for choice in advice.choices} == {"nvfp4", "mxfp6_e2m3"}


@pytest.mark.parametrize(
    ("dtype", "formats", "needs_option"),
    [
        ("float32", None, False),
        ("bfloat16", None, True),
        ("float32", ["mxfp6_e2m3", "mxfp4"], True),
    ],
)
def test_schemes_that_need_an_option_are_the_last_resort(
    model: Path, tmp_path: Path, dtype: str, formats: list[str] | None, needs_option: bool
) -> None:
    shutil.copy(model / "config.json", tmp_path)
    tensors = {name: array.astype(dtype) for name, array in weights().items()}
    checkpoint.save(tmp_path / "model.safetensors", tensors)
    budget = int(0.4 * 2 * sum(array.size for array in tensors.values()))
    advice = advise(tmp_path, budget=budget, consumer="transformers", formats=formats)
    targets = {choice.target for choice in advice.choices}
    assert any(target.startswith(("mxfp", "nvfp4")) for target in targets) == needs_option


def test_one_element_beyond_float16_is_not_cast_to_it(tmp_path: Path) -> None:
    source, rng = tmp_path / "a.safetensors", np.random.default_rng(0)
    weight = np.clip(9000 * rng.standard_normal((256, 256)), -55_000, 55_000).astype(np.float32)
    weight[3, 4] = 65530  # in the binade of the largest float16, and beyond its range
    checkpoint.save(source, {"layers.0.up_proj.weight": weight})
    advice = advise(source, bits=17.0, formats=["bfloat16", "float16"])
    assert set(advice.map.values()) == {"bfloat16"}
    with pytest.raises(CheckpointError, match="of the smallest choices"):
        advise(source, bits=17.0, formats=["float16"])


def test_every_choice_says_what_else_there_was(model: Path) -> None:
    for choice in advise(model, budget=int(0.6 * folder_bytes(model))).choices:
        if choice.cheaper is not None:
            assert choice.cheaper.nbytes < choice.nbytes
            assert choice.cheaper.error > choice.error
        if choice.dearer is not None:
            assert choice.dearer.nbytes > choice.nbytes
            assert choice.dearer.error < choice.error


def test_a_model_in_float32_is_cast(tmp_path: Path) -> None:
    single = tmp_path / "single.safetensors"
    checkpoint.save(single, {name: array.astype(np.float32) for name, array in weights().items()})
    advice = advise(single, bits=17.0, formats=["bfloat16", "float16"])
    assert set(advice.map.values()) <= {"bfloat16", "float16"}
    assert not advice.quantizes
    advice.save(tmp_path / "map.toml")
    checkpoint.cast_file(single, tmp_path / "o.safetensors", dtype_map=tmp_path / "map.toml")
    assert os.path.getsize(tmp_path / "o.safetensors") <= advice.nbytes


def test_patterns_match_their_names_only() -> None:
    names = [f"a.{layer}.b.{expert}.c" for layer in (0, 10) for expert in (1, 2)]
    assert patterns(names) == [r"a\.(0|10)\.b\.(1|2)\.c"]
    assert patterns(names[:3]) == [r"a\.0\.b\.1\.c", r"a\.0\.b\.2\.c", r"a\.10\.b\.1\.c"]
    assert patterns(["x", "y.weight"]) == ["x", r"y\.weight"]
    assert patterns(["a.0.1.b", "a.0.2.b"]) == [r"a\.0\.(1|2)\.b"]
    assert patterns(["a.*.b"]) == [r"a\.\*\.b"]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "give one of budget, bits, error"),
        ({"bits": 4, "error": 0.1}, "give one of budget, bits, error, not 2"),
        ({"budget": "big"}, "budget 'big' is not a size in bytes such as 33000000, '5GB'"),
        ({"budget": -1}, "budget must be positive, not -1"),
        ({"bits": 0.0}, "bits 0.0 is not valid"),
        ({"bits": 1.0}, r"bits 1.0 is less than the [\d,]+ bytes .* of the smallest choices"),
        ({"bits": 9, "formats": ["fp7"]}, "formats 'fp7' is not a candidate"),
        ({"bits": 9, "formats": ["bnb_nf4"]}, "compressed-tensors writes none of it"),
        ({"bits": 9, "recipe": "nobody"}, "recipe 'nobody' is not one of"),
        ({"bits": 9, "groups": ["("]}, r"groups '\(' is not a regular expression"),
        ({"bits": 9, "groups": ["nothing"]}, "groups 'nothing' matches no weight"),
        (
            {"bits": 9, "groups": {"a": ".*", "b": r".*layers\.0.*"}},
            r"matches weights of groups before it alone, as 'model.layers.0.*put it first",
        ),
        ({"bits": 9, "importance": {"x": 1}}, "importance names no weight"),
        (
            {"bits": 9, "ignore": "model.layer"},
            "ignore '.*' matches no weight that may change; did",
        ),
        ({"bits": 9, "ignore": ".*"}, "ignore '.*' matches every weight that may change"),
    ],
)
def test_bad_input(model: Path, options: dict[str, Any], text: str) -> None:
    with pytest.raises((ValueError, CheckpointError), match=text):
        advise(model, **options)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (-1.0, "is -1.0; use a finite number that is not negative"),
        (np.nan, "is nan; use a finite number that is not negative"),
        (np.inf, "is inf; use a finite number that is not negative"),
        ("much", "is 'much'; use a number such as 0.5"),
        (None, "is None; use a number such as 0.5"),
        (True, "is True; use a number such as 0.5"),
        ([1.0, 2.0], "has 2 elements; give one number for each weight"),
        (np.ones(128), "has 128 elements; .* by input channel are not taken"),
        ([[1.0], [1.0, 2.0]], "has 2 elements"),
        ([], "has 0 elements"),
    ],
)
def test_importance_of_no_use(model: Path, value: Any, text: str) -> None:
    name = "model.layers.0.mlp.up_proj.weight"
    with pytest.raises(CheckpointError, match=f"importance: '{name}' {text}"):
        advise(model, bits=9.0, importance={name: value})


def test_importance_of_some_or_none_of_the_weights(model: Path) -> None:
    names = [name for name in weights() if "layernorm" not in name]
    with pytest.raises(CheckpointError, match="importance is 0 for every weight"):
        advise(model, bits=9.0, importance=dict.fromkeys(names, 0))
    name = names[0]
    with pytest.raises(CheckpointError, match="has no number for"):
        advise(model, bits=9.0, importance={name: 1.0})
    with pytest.raises(CheckpointError, match="importance adds up to more than a float holds; div"):
        advise(model, bits=9.0, importance=dict.fromkeys(names, 1e308))


def test_one_group_is_a_list_of_one(model: Path) -> None:
    with pytest.raises(TypeError, match=r"groups must be a list .*not 'a\.\*'; give \['a\.\*'\]"):
        advise(model, bits=9.0, groups="a.*")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"groups": 5}, "groups 5 is not a list of regular expressions, or names with one each"),
        ({"formats": 5}, "formats 5 is not a list of names"),
        ({"formats": "nvfp4"}, "formats 'nvfp4' is a text; give a list of names"),
    ],
)
def test_options_of_another_type(model: Path, options: dict[str, Any], text: str) -> None:
    with pytest.raises(TypeError, match=f"^{text}$"):
        advise(model, bits=9.0, **options)


def test_weights_that_no_scheme_holds(tmp_path: Path) -> None:
    tensors = weights()
    tensors["model.layers.0.mlp.up_proj.weight"][3, 3] = np.nan
    checkpoint.save(tmp_path / "model.safetensors", tensors)
    with pytest.raises(CheckpointError, match="has 0 infinite and 1 NaN elements"):
        advise(tmp_path / "model.safetensors", bits=9.0)


def test_a_quantized_model_needs_option(model: Path, tmp_path: Path) -> None:
    checkpoint.quantize_file(model, tmp_path / "fp8", "fp8_channel")
    with pytest.raises(CheckpointError, match="it is quantized already"):
        advise(tmp_path / "fp8", bits=9.0)


def test_the_command(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "map.toml"
    assert main(["advise", str(model), "--bits", "9", "-o", str(output)]) == 0
    shown = capsys.readouterr().out
    assert "mean relative squared error" in shown
    assert main(["advise", str(model), "--bits", "9", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    advice = advise(model, bits=9.0)
    assert printed == json.loads(json.dumps(advice.to_dict()))
    assert output.read_text("utf-8") == advice.to_toml()
    groups = tmp_path / "groups.toml"
    groups.write_text("layer = 'model\\.layers\\.(\\d+)\\..*'")
    assert main(["advise", str(model), "--bits", "9", "--groups", str(groups), "--quiet"]) == 0
    assert main(["quantize", str(model), str(tmp_path / "q"), "--map", str(output)]) == 0


def test_a_map_replaces_maps_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    need(LINKS)
    monkeypatch.chdir(tmp_path)
    checkpoint.save("model.safetensors", weights())
    Path("mine.toml").write_text("'a' = 'bfloat16'\n")
    Path("groups.toml").write_text("# castwise \nlayer = 'model'\n")
    os.symlink("model.safetensors", "link.toml")
    before = {path: path.read_bytes() for path in Path().iterdir()}
    words = ["advise", "model.safetensors", "--bits", "9", "-o"]
    for name, said in (
        ("model.safetensors", "name it such as map.toml"),
        ("link.toml", "would replace the checkpoint"),
        ("mine.toml", "is not a map of castwise advise"),
        ("groups.toml", "is the file of --groups, too"),
        ("map.json", "name it such as map.toml"),
        ("none/map.toml", "there is no folder none"),
    ):
        assert main([*words, name, "--groups", "groups.toml"]) == 2
        assert said in capsys.readouterr().err
    assert main([*words, "page.toml", "--html", "page.toml"]) == 2
    assert "--html, too" in capsys.readouterr().err
    advice = advise("model.safetensors", bits=9.0)
    for name in ("model.safetensors", "mine.toml"):
        with pytest.raises(CheckpointError):
            advice.save(name)
    assert before == {path: path.read_bytes() for path in Path().iterdir()}
    for _ in range(2):
        assert main([*words, "map.toml"]) == 0
        advice.save("map.toml")
    assert Path("map.toml").read_text("utf-8") == advice.to_toml()


@pytest.mark.thinned(5)  # each form, and three of these bits
@pytest.mark.parametrize("form", ["file", "folder", "shards"])
@pytest.mark.parametrize("bits", [6.6, 8.2, 9.0, 12.0])
def test_small_checkpoints_fit_with_what_states_the_schemes(
    tmp_path: Path, form: str, bits: float
) -> None:
    source = tmp_path / "source"
    arrays = {name.replace("model", "a_long_name_of_a_model"): x for name, x in weights().items()}
    if form == "file":
        source = source.with_suffix(".safetensors")
        checkpoint.save(source, arrays, metadata={"made by": 'hand, and "quoted"' * 20})
    else:
        source.mkdir()
        checkpoint.save(source / "model.safetensors", arrays)
        (source / "config.json").write_text('{"model_type": "llama"}')
    if form == "shards":
        shards = tmp_path / "shards"
        checkpoint.cast_file(source, shards, "bfloat16", max_shard_size="100kB")
        source = shards
    advice = advise(source, bits=bits)
    result = tmp_path / ("result.safetensors" if form == "file" else "result")
    checkpoint.quantize_file(source, result, dtype_map=advice.map)
    size = result.stat().st_size if form == "file" else folder_bytes(result)
    elements = sum(array.size for array in arrays.values())
    assert size <= advice.nbytes <= bits * elements / 8
    assert size > 0.9 * advice.nbytes
    before = source.stat().st_size if form == "file" else folder_bytes(source)
    assert advice.nbytes_before == pytest.approx(before, rel=0.01)


@pytest.mark.parametrize("file", ["[1]", "3", "{"])
def test_groups_of_no_use(
    model: Path, tmp_path: Path, file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    groups = tmp_path / "groups.json"
    groups.write_text(file)
    assert main(["advise", str(model), "--bits", "9", "--groups", str(groups)]) == 2
    assert "groups.json" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "content", "text"),
    [
        ("deep.json", b"[" * 100_000, "recursion"),
        ("deep.toml", b"a = " + b"[" * 20_000, "recursion"),
        ("dots.toml", b"a." * 30_000 + b"b = 1", "dots outside of quotes"),
        ("twice.json", b'{"a": 1, "a": 2}', "key 'a' stands twice"),
        ("bytes.json", b"\xff\xfe{}", "is not UTF-8"),
        ("device.json", None, "is not a regular file"),
    ],
)
def test_hostile_files_of_options(
    model: Path, name: str, content: bytes | None, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = model.with_name(name)
    if content is None:
        need(LINKS, "/dev/zero")
        path.symlink_to("/dev/zero")
    else:
        path.write_bytes(content)
    for option in ("--groups", "--importance"):
        assert main(["advise", str(model), "--bits", "9", "--quiet", option, str(path)]) == 2
        error = capsys.readouterr().err
        assert error.startswith(f"castwise: error: {path}")
        assert text in as_recorded(error)
        assert error.count("\n") == 1


def test_a_survey_of_a_tensor_in_bands_is_that_of_the_array(tmp_path: Path) -> None:
    from castwise.checkpoint import surveying  # noqa: PLC0415

    array = np.random.default_rng(0).standard_normal((300, 256)).astype(np.float32)
    path = tmp_path / "a.safetensors"
    checkpoint.save(path, {"layers.0.q_proj.weight": array})
    from castwise.checkpoint.containers import open_checkpoint  # noqa: PLC0415
    from castwise.checkpoint.planning.stored_tensors import StoredTensors  # noqa: PLC0415

    with open_checkpoint(path) as opened, pytest.MonkeyPatch.context() as patch:
        patch.setattr(surveying, "_BYTES", 1 << 16)
        stored = StoredTensors(opened.components[0].shards)
        info = stored["layers.0.q_proj.weight"]
        tensor = surveying.survey_stored(stored, info, Model({}, {info.name: info.shape}), 1)
        assert tensor.counts == survey(array)
        assert len([*tensor.pieces()]) == 3


ORDERS = {
    "layers.0.conv.weight": (64, 6, 3, 3),
    "layers.0.conv1d.weight": (32, 40, 5),
    "conv/vars/0": (3, 3, 32, 64),
    "layers.0.mlp.experts.down_proj": (4, 48, 64),
    "layers.0.norm.weight": (300,),
    "layers.0.fc.weight": (300, 256),
    "constant": (130, 160),
    "scalar": (),
}
"""Tensors whose predictions are those of a matrix, or a stack of them, and their shapes."""


def as_quantized(name: str, array: np.ndarray) -> np.ndarray:
    """The matrices of a tensor."""
    if "experts" in name or array.ndim <= 1:
        return np.atleast_2d(array)
    return array.reshape(-1, array.shape[-1]) if "vars" in name else array.reshape(len(array), -1)


def test_predictions_of_a_file_are_of_what_quantize_would_do(tmp_path: Path) -> None:
    draw = np.random.default_rng(7)
    arrays = {name: np.asarray(draw.standard_normal(shape)) for name, shape in ORDERS.items()}
    arrays["constant"] = np.full(ORDERS["constant"], 0.0371)
    arrays = {name: array.astype(np.float32) for name, array in arrays.items()}
    path = tmp_path / "model.safetensors"
    checkpoint.save(path, arrays)
    targets = ["float8_e4m3fn", "fp8_channel", "int4_channel", "fp8_tensor", "nvfp4"]
    for row in checkpoint.survey_file(path, targets).tensors:
        x = as_quantized(row.name, arrays[row.name]).astype(float)
        for target, prediction in row.predictions.items():
            wide = x.astype(np.float32)
            if target == "float8_e4m3fn":
                values = wide.astype(ml_dtypes.float8_e4m3fn).astype(float)
            else:
                values = np.asarray(dequantize(quantize(wide, target), "float32")).astype(float)
            noise = np.square(values - x).sum()
            ratio = 10 * np.log10(np.square(x).sum() / noise) if noise else np.inf
            assert prediction.sqnr_db == pytest.approx(ratio, abs=1), (row.name, target)
            assert prediction.count == x.size


def test_a_tensor_is_surveyed_at_once(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    checkpoint.save(path, {name: np.ones(shape, np.float32) for name, shape in ORDERS.items()})
    with open_checkpoint(path) as opened:
        tensors = opened.tensors
        (surveyed,) = survey_tensors(opened, tensors, 1, None)
        assert list(surveyed) == list(tensors)
        for name, tensor in surveyed.items():
            assert len([*tensor.pieces()]) == 1, name


@pytest.mark.parametrize("recipe", sorted({row.recipe for row in WRITTEN} - {TYPED}))
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_small_weights_are_measured_together_as_alone(
    tmp_path: Path, recipe: str, dtype: str
) -> None:
    draw = np.random.default_rng(3)
    arrays = {
        f"layers.{number}.{kind}.weight": cast(draw.standard_normal(shape) * 2.0**number, dtype)
        for number in range(4)
        for kind, shape in (("fc", (32, 64)), ("experts.down_proj", (2, 32, 64)))
    }
    arrays |= {
        "zero.weight": np.zeros_like(arrays["layers.0.fc.weight"]),
        "none": arrays["layers.0.fc.weight"][:0],
        "large.weight": np.full_like(arrays["layers.0.fc.weight"], 3.71, shape=(130, 160)),
    }
    path = tmp_path / "model.safetensors"
    checkpoint.save(path, arrays)
    with open_checkpoint(path) as opened:
        (surveyed,) = survey_tensors(opened, opened.tensors, 1, None)
        for scheme in written_schemes(recipe):
            predictor = Predictor([*surveyed.values()])
            predictions = predictor.predict(scheme, recipe)
            assert predictor.decibels(scheme, recipe) == pytest.approx(
                [prediction.sqnr_db for prediction in predictions], abs=0, rel=0, nan_ok=True
            )
            for name, prediction in zip(surveyed, predictions, strict=True):
                x = arrays[name]
                decoded = dequantize(quantize(x, scheme, recipe=recipe), "float32")
                expected = compare(x, decoded).sqnr_db
                assert repr(prediction.sqnr_db) == repr(expected), (scheme, name)


@pytest.mark.parametrize(
    ("pattern", "sizes"),
    [
        (r"layers\.(\d+)\.(?:q|k)_proj\.weight|(a+)+b", [2, 2, 1, 1]),
        (r"layers\.\d+\.(.)_proj\.weight", [2, 2, 2]),
        ("(a+)+b", None),
        (r"layers\.(?=.)(.)\..*", None),
        ("(" * 2000 + "a" + ")" * 2000, None),
        (3, None),
    ],
)
def test_groups_are_matched_in_linear_time(
    tmp_path: Path, pattern: str, sizes: list[int] | None
) -> None:
    names = [f"layers.{layer}.{kind}_proj.weight" for layer in (0, 1) for kind in "qko"]
    names[0:0] = ["a" * 5000 + ".weight"] if sizes is None else []
    draw = np.random.default_rng(0)
    path = tmp_path / "model.safetensors"
    weights = {name: draw.standard_normal((32, 64)).astype(np.float32) for name in names}
    checkpoint.save(path, weights)
    began = time.process_time()
    if sizes is None:
        with pytest.raises(
            (CheckpointError, ValueError, TypeError),
            match=r"groups .*(matches no weight|is not a regular expression|linear time)",
        ):
            checkpoint.advise(path, bits=40, groups=[pattern])
    else:
        choices = checkpoint.advise(path, bits=40, groups=[pattern]).choices
        assert sorted((len(choice.tensors) for choice in choices), reverse=True) == sizes
    assert time.process_time() - began < 5


def test_a_limit_just_below_the_largest_choices() -> None:
    """Rounding may leave less than nothing between the bound and the solution."""
    numbers = random.Random(0)
    for _ in range(200):
        groups = []
        for _ in range(numbers.choice((2, 3, 5, 20))):
            weights = sorted(numbers.sample(range(1, 30), 3))
            costs = sorted((numbers.random() for _ in weights), reverse=True)
            groups.append([*map(Option, costs, map(float, weights))])
        limit = sum(group[-1].weight for group in groups)
        for below in (0, 1, 2, 3):
            solution = solve(groups, limit - below)
            assert solution is not None
            assert solution.weight <= limit - below


def test_advice_with_searched_scales(model: Path, tmp_path: Path) -> None:
    """Errors are those of the scales, and the command that carries it out has the option."""
    formats = ["nvfp4", "fp8_channel"]
    usual, searched = (
        advise(model, error=0.5, recipe="compressed-tensors", formats=formats, scales=choice)
        for choice in SCALES[:2]
    )
    assert [choice.target for choice in searched.choices] == ["nvfp4"] * len(searched.choices)
    assert searched.nbytes == usual.nbytes
    assert searched.error < 0.85 * usual.error
    (command,) = searched.commands
    assert command.endswith("--recipe compressed-tensors --scales best")
    assert "--scales" not in usual.commands[0]
    assert searched.to_dict()["scales"] == "best"
    result = tmp_path / "out"
    checkpoint.quantize_file(
        model, result, recipe="compressed-tensors", dtype_map=searched.map, scales="best"
    )
    ratios = {row.name: row.sqnr_db for row in checkpoint.diff(model, result).tensors}
    for choice in searched.choices:
        measured = min(ratios[name] for name in choice.tensors)
        assert choice.sqnr_db == pytest.approx(measured, abs=0.5)


def test_scales_that_no_candidate_has_are_refused(model: Path) -> None:
    with pytest.raises(ValueError, match=r"scales='best' is not valid for fp8_channel"):
        advise(model, bits=9.0, formats=["fp8_channel"], scales="best")
