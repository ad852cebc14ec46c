"""How a quantized checkpoint came of another one is named, and a conversion by a map is proved."""

from __future__ import annotations

import hashlib
import json
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from castwise import checkpoint
from castwise.checkpoint import CheckpointError, TensorDiff
from castwise.checkpoint.comparison._comparing import Comparing
from castwise.checkpoint.comparison._schemes import SchemeSearch
from castwise.cli import main
from castwise.quantization import dequantize, quantize
from castwise.quantization.producers.registry import CONVERTED_TO, TYPED, WRITTEN, find_recipe

BF16 = ml_dtypes.bfloat16
WEIGHT = "model.layers.0.mlp.up_proj.weight"


def weights(dtype: Any = BF16) -> Any:
    random = np.random.default_rng(11)
    rows = np.exp2(random.integers(-3, 3, (128, 1)))
    return (random.standard_normal((128, 256)) * 0.02 * rows).astype(dtype)


def saved(path: Path, array: Any) -> Path:
    checkpoint.save(path, {WEIGHT: array}, overwrite=True)
    return path


def compared(a: Path, b: Path) -> TensorDiff:
    (tensor,) = checkpoint.diff(a, b).tensors
    return tensor


@pytest.mark.parametrize("rule", ["floor", "rceil", "ceil", "even"])
@pytest.mark.parametrize("scheme", ["mxfp8_e4m3", "mxfp4"])
def test_scale_rules(tmp_path: Path, scheme: Any, rule: Any) -> None:
    array = weights()
    values = dequantize(quantize(array, scheme, scale_rule=rule), BF16)
    explanation = compared(
        saved(tmp_path / "a.safetensors", array), saved(tmp_path / "b.safetensors", values)
    ).explanation
    assert explanation is not None
    assert explanation.every_element
    options = explanation.options
    assert (options["scheme"], options["passes"]) == (scheme, 1)
    again = quantize(array, scheme, recipe=options["recipe"], scale_rule=options["scale_rule"])
    assert dequantize(again, BF16).tobytes() == values.tobytes()
    assert options["scale_rule"] == rule


@pytest.mark.parametrize("scheme", ["mxfp8_e4m3", "nvfp4", "fp8_block", "int4_group"])
def test_a_quantized_file(tmp_path: Path, scheme: Any) -> None:
    source, out = saved(tmp_path / "a.safetensors", weights()), tmp_path / "b.safetensors"
    checkpoint.quantize_file(source, out, scheme)
    tensor = compared(source, out)
    assert tensor.quantized == (False, True)
    assert tensor.explanation is not None
    assert tensor.explanation.every_element
    assert tensor.explanation.options["scheme"] == scheme


def test_a_global_scale_is_that_of_all_pieces(tmp_path: Path) -> None:
    """Also of a recipe whose layout names no parts: no piece has a scale of its own."""
    weight = np.random.default_rng(3).standard_normal((2048, 1024), np.float32)
    q = quantize(weight, "nvfp4", recipe="transformer-engine")
    checkpoint.save(tmp_path / "a.safetensors", {"weight": weight})
    checkpoint.save(tmp_path / "b.safetensors", {"weight": dequantize(q, np.float32)})
    (tensor,) = checkpoint.diff(tmp_path / "a.safetensors", tmp_path / "b.safetensors").tensors
    assert tensor.explanation is not None
    assert tensor.explanation.every_element
    assert tensor.explanation.options["scheme"] == "nvfp4"


ATTENTION, MLP = "model.layers.0.self_attn.", "model.layers.0.mlp."
EXPERTS = "model.layers.1.mlp.experts."
ROWS = {f"{row.scheme} {row.recipe}": row for row in WRITTEN if row.recipe != TYPED}


def model(folder: Path, *, stacked: str | None, dtype: Any = BF16) -> Path:
    """Weights that engines fuse, of other magnitudes each, and experts apart or in one tensor.

    `stacked` is the type of a model with experts in one tensor.
    """
    random = np.random.default_rng(5)
    names = [f"{ATTENTION}{part}_proj.weight" for part in "qkvo"]
    names += [f"{MLP}{part}_proj.weight" for part in ("gate", "up", "down")]
    shapes = dict.fromkeys(names, (128, 256))
    if stacked:
        shapes |= {f"{EXPERTS}gate_up_proj": (3, 192, 256), f"{EXPERTS}down_proj": (3, 256, 96)}
    else:
        parts = [f"{expert}.{part}_proj.weight" for expert in "01" for part in ("gate", "up")]
        shapes |= {EXPERTS + part: (128, 256) for part in parts}
    tensors = {
        name: (random.standard_normal(shape) * 0.02 * 2.0 ** random.integers(-3, 3)).astype(dtype)
        for name, shape in shapes.items()
    }
    folder.mkdir()
    checkpoint.save(folder / "model.safetensors", tensors)
    (folder / "config.json").write_text(json.dumps({"model_type": stacked or "llama"}))
    return folder


def explained(first: Path, second: Path) -> list[Any]:
    """Return what explains each tensor that differs, every element of it."""
    options = []
    for tensor in checkpoint.diff(first, second).tensors:
        assert not tensor.reason.startswith("only"), tensor
        if tensor.reason != "equal" or tensor.explanation is not None:
            assert tensor.explanation is not None, tensor
            assert tensor.explanation.every_element, tensor
            options.append(tensor.explanation.options)
    return options


@pytest.mark.thinned(3)
@pytest.mark.parametrize("stacked", [False, True])
@pytest.mark.parametrize("name", ROWS)
def test_every_scheme_that_is_written(tmp_path: Path, name: str, stacked: bool) -> None:
    """Quantized, decoded, and stored as other producers do: each is named, shared scales too."""
    row = ROWS[name]
    kind = "gpt_oss" if row.is_transposed else "mistral4"
    source, out = model(tmp_path / "source", stacked=kind if stacked else None), tmp_path / "out"
    try:
        checkpoint.quantize_file(source, out, row.scheme, recipe=row.recipe)  # type: ignore[arg-type]
    except CheckpointError:
        # Experts in one tensor are those of two producers, of which one writes nothing else.
        assert (stacked and not row.stacks) or row.is_transposed or row.only_named
        return
    found = explained(source, out)
    assert {options["scheme"] for options in found} == {row.scheme}
    assert {find_recipe(options["recipe"]) for options in found} == {find_recipe(row.recipe)}
    checkpoint.dequantize_file(out, tmp_path / "plain")
    assert explained(source, tmp_path / "plain")
    assert explained(out, tmp_path / "plain") == []
    for producer in CONVERTED_TO:
        other = tmp_path / producer.name
        for scheme in ("nvfp4", None):
            try:
                checkpoint.transcode_file(out, other, producer.name, scheme=scheme)  # type: ignore[arg-type]
            except (CheckpointError, ValueError):
                continue
            assert explained(source, other)
            # Of experts in one tensor names and axes are others, too.
            assert all({*each} <= {"transcoded", "transposed"} for each in explained(out, other))
            break


def odd_weight(kind: str) -> Any:
    weight = np.zeros((256, 256), np.float16)
    if kind == "constant":
        weight[:] = -0.37
    elif kind == "one element":
        weight[-1, -1] = 1e-3
    elif kind == "near the largest number":
        weight[::2] = np.random.default_rng(3).uniform(-6e4, 6e4, (128, 256))
    return weight


@pytest.mark.thinned(5)
@pytest.mark.parametrize("kind", ["zero", "one element", "constant", "near the largest number"])
@pytest.mark.parametrize("name", ROWS)
def test_a_weight_that_a_cast_fits_too(tmp_path: Path, name: str, kind: str) -> None:
    """Of a weight that is stored as quantized its scheme is named, also beside a factor that fits.

    Values may be infinite, or zeros of the other sign, as the producer decodes them.
    """
    row = ROWS[name]
    source, out = tmp_path / "source", tmp_path / "out"
    source.mkdir()
    projection = "model.layers.0.mlp.down_proj.weight"
    checkpoint.save(source / "model.safetensors", {projection: odd_weight(kind)})
    (source / "config.json").write_text('{"model_type": "llama"}')
    try:
        checkpoint.quantize_file(source, out, row.scheme, recipe=row.recipe)  # type: ignore[arg-type]
    except CheckpointError:
        assert row.only_named or row.stacks
        return
    assert {options.get("scheme") for options in explained(source, out)} <= {row.scheme}


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("recipe", ["compressed-tensors", "modelopt"])
def test_a_global_scale_of_fused_weights(tmp_path: Path, dtype: Any, recipe: Any) -> None:
    source = model(tmp_path / "source", stacked=None, dtype=dtype)
    checkpoint.quantize_file(source, tmp_path / "out", "nvfp4", recipe=recipe)
    found = explained(source, tmp_path / "out")
    assert {options["shares_global_scale"] for options in found} == {False, True}


@pytest.mark.parametrize("scheme", ["fp8_channel", "int8_channel", "fp8_block"])
def test_many_small_weights_are_compared_as_each_alone(tmp_path: Path, scheme: Any) -> None:
    """Of two shapes by turns; some are zero, not finite, or not what was quantized."""
    draw = np.random.default_rng(12)
    quantized, plain = {}, {}
    for number in range(24):
        name = f"model.layers.{number // 2}.mlp.{('up_proj', 'down_proj')[number % 2]}.weight"
        weight = draw.standard_normal([(128, 256), (256, 128)][number % 2], np.float32)
        if number % 5 == 4:
            weight[...] = 0
        quantized[name], plain[name] = weight.copy(), weight
        if number % 7 == 3:
            weight[1, 2] = (3, np.nan, np.inf)[number % 3]

    def pair(title: str, names: Any) -> tuple[Path, Path]:
        source, first, second = (tmp_path / f"{title} {end}.safetensors" for end in "sab")
        checkpoint.save(source, {name: quantized[name] for name in names})
        checkpoint.save(first, {name: plain[name] for name in names})
        checkpoint.quantize_file(source, second, scheme, recipe="compressed-tensors")
        return first, second

    both = pair("all", plain)
    tensors = {row.name: row.to_dict() for row in checkpoint.diff(*both).tensors}
    differences = {row.name: row.to_dict() for row in checkpoint.verify(*both).differences}
    assert {row["explanation"] is None for row in tensors.values()} == {True, False}
    for name in plain:
        alone = pair(name, [name])
        (tensor,) = checkpoint.diff(*alone).tensors
        assert json.dumps(tensors[name]) == json.dumps(tensor.to_dict())
        rows = [row.to_dict() for row in checkpoint.verify(*alone).differences]
        assert json.dumps(rows) == json.dumps([differences[name]] if name in differences else [])


def test_weights_that_nothing_explains_are_compared_as_each_alone(tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    a = {f"{place}.weight": rng.standard_normal((16, 32)).astype(np.float32) for place in range(9)}
    b = {
        name: array + rng.normal(0, 0.03, array.shape).astype(np.float32)
        for name, array in a.items()
    }
    checkpoint.save(tmp_path / "a.safetensors", a)
    checkpoint.save(tmp_path / "b.safetensors", b)
    found = checkpoint.diff(tmp_path / "a.safetensors", tmp_path / "b.safetensors").tensors
    assert {tensor.name for tensor in found} == {*a}
    for tensor in found:
        alone = compared(
            saved(tmp_path / f"{tensor.name}-a.safetensors", a[tensor.name]),
            saved(tmp_path / f"{tensor.name}-b.safetensors", b[tensor.name]),
        )
        assert tensor.explanation is None
        assert replace(tensor, name=alone.name) == alone


@pytest.mark.parametrize("kind", ["changed", "explained"])
def test_weights_after_some_that_nothing_explains_are_compared_in_stacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """As few of 64 are compared by themselves as the distances between stacks ask for."""
    a, b = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    draw = np.random.default_rng(8)
    arrays = {f"layers.{number}.mlp.up_proj.weight": weights()[:16, :64] for number in range(64)}
    changed = {name: array.copy() for name, array in arrays.items()}
    for name in [*arrays][: 2 if kind == "explained" else None]:
        changed[name] += draw.normal(0, 0.03, (16, 64)).astype(BF16)
    checkpoint.save(a, arrays)
    checkpoint.save(tmp_path / "changed.safetensors", changed)
    checkpoint.quantize_file(tmp_path / "changed.safetensors", b, "fp8_channel")
    alone, stacks = [], []
    compare, compare_stack = Comparing._compare, Comparing._compare_stack

    def count_pairs(self: Comparing, pair: Any, meter: Any) -> TensorDiff:
        alone.append(pair.names)
        return compare(self, pair, meter)

    def count_stacks(self: Comparing, pairs: Any) -> Any:
        results = [*compare_stack(self, pairs)]
        stacks.append(len(results))
        return results

    monkeypatch.setattr(Comparing, "_compare", count_pairs)
    monkeypatch.setattr(Comparing, "_compare_stack", count_stacks)
    tensors = checkpoint.diff(a, b).tensors
    explained = sum(tensor.explanation is not None for tensor in tensors)
    if kind == "explained":
        assert (explained, len(alone), stacks) == (62, 4, [1, 2, 2, 4, 8, 16, 30])
    else:
        assert (explained, len(alone), stacks) == (0, 64, [1, 2, 2, 2, 2, 2, 2])


@pytest.mark.parametrize("options", [{}, {"scales": "best"}], ids=["amax", "best"])
@pytest.mark.parametrize("shape", [(16, 64), (512, 512)], ids=["small", "large"])
def test_which_recipe_makes_zeros_does_not_depend_on_other_weights(
    tmp_path: Path, shape: tuple[int, int], options: Any
) -> None:
    """Zeros that lose their sign are made by every recipe."""
    weight = np.resize(weights(), shape)
    found = []
    for count in (0, 5):
        arrays = {f"layers.{number}.mlp.up_proj.weight": weight for number in range(count)}
        arrays["layers.9.mlp.up_proj.weight"] = np.full(shape, -0.0, BF16)
        a, b = tmp_path / f"a{count}.safetensors", tmp_path / f"b{count}.safetensors"
        checkpoint.save(a, arrays)
        checkpoint.quantize_file(a, b, "nvfp4", recipe="modelopt", **options)
        *others, zeros = sorted(checkpoint.diff(a, b).tensors, key=lambda tensor: tensor.name)
        assert [row.explanation.options["scales"] for row in others if row.explanation] == (
            [options.get("scales", "amax")] * count
        )
        assert zeros.explanation is not None
        assert zeros.explanation.every_element
        found.append(zeros.to_dict())
    assert found[0] == found[1]


@pytest.mark.parametrize("shape", [(64, 1, 4), (4, 1, 128), (2, 128, 128), (8, 64, 64)])
def test_stacks_of_plain_matrices_are_tried_with_every_recipe(
    tmp_path: Path, shape: tuple[int, ...]
) -> None:
    """The rows of some schemes' blocks are all of a matrix: of a convolution, or of an expert."""
    rng = np.random.default_rng(5)
    a = rng.standard_normal(shape).astype(np.float32)
    b = a + rng.normal(0, 0.03, shape).astype(np.float32)
    found = compared(saved(tmp_path / "a.safetensors", a), saved(tmp_path / "b.safetensors", b))
    assert found.explanation is None
    assert found.different == a.size


def test_results_share_no_options(tmp_path: Path) -> None:
    a = saved(tmp_path / "a.safetensors", weights())
    checkpoint.quantize_file(a, tmp_path / "b.safetensors", "fp8_channel")
    first = compared(a, tmp_path / "b.safetensors").explanation
    assert first is not None
    scheme = first.options["scheme"]
    first.options["scheme"] = "changed"
    second = compared(a, tmp_path / "b.safetensors").explanation
    assert second is not None
    assert second.options["scheme"] == scheme


def test_a_scheme_that_is_wrong_from_some_row_on(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    array = (random.standard_normal((1024, 640)) * 0.02).astype(BF16)
    values = dequantize(quantize(array, "fp8_block"), np.float32).reshape(-1)
    wrong = (np.arange(values.size) > 200_000) & (random.random(values.size) < 0.3)
    values = np.where(wrong, values * np.float32(1.02), values).astype(BF16)
    a = saved(tmp_path / "a.safetensors", array)
    assert (
        compared(a, saved(tmp_path / "b.safetensors", values.reshape(1024, 640))).explanation
        is None
    )


@pytest.mark.parametrize("scheme", ["fp8_block", "mxfp4", "nvfp4"])
def test_where_the_sign_of_a_zero_is_another(tmp_path: Path, scheme: Any) -> None:
    array = weights()
    array[30, 7] = 0
    values = np.array(dequantize(quantize(array, scheme), BF16))
    values[30, 7] = -values[30, 7]
    explanation = compared(
        saved(tmp_path / "a.safetensors", array), saved(tmp_path / "b.safetensors", values)
    ).explanation
    assert explanation is not None
    assert (explanation.disagreeing, explanation.index) == (1, (30, 7))


def changed_scales(tmp_path: Path, change: Any) -> tuple[Path, Path]:
    source, first = saved(tmp_path / "s.safetensors", weights()), tmp_path / "a.safetensors"
    checkpoint.quantize_file(source, first, "mxfp8_e4m3")
    tensors, metadata = checkpoint.load(first), checkpoint.metadata(first)
    (scale,) = (name for name in tensors if "scale" in name)
    tensors[scale] = change(tensors[scale].copy())
    checkpoint.save(tmp_path / "b.safetensors", tensors, metadata=metadata)
    return first, tmp_path / "b.safetensors"


def test_every_block_scale_one_code_lower(tmp_path: Path) -> None:
    tensor = compared(*changed_scales(tmp_path, lambda scale: scale - 1))
    assert tensor.explanation is not None
    assert "every block scale one code lower" in str(tensor.explanation)
    assert tensor.explanation.options == {"scale_shift": -1}
    assert tensor.scale_shifts == {-1: 1024}


def test_some_block_scales_one_code_higher(tmp_path: Path) -> None:
    def change(scale: Any) -> Any:
        scale[5, 3:6] += 1
        return scale

    paths = changed_scales(tmp_path, change)
    assert compared(*paths).scale_shifts == {0: 1021, 1: 3}
    assert "3 of 1,024 block scales one code higher" in str(checkpoint.diff(*paths))


def test_scales_rounded_after_the_codes_were_computed(tmp_path: Path) -> None:
    source, first = saved(tmp_path / "s.safetensors", weights()), tmp_path / "a.safetensors"
    checkpoint.quantize_file(source, first, "fp8_block")
    tensors, metadata = checkpoint.load(first), checkpoint.metadata(first)
    (scale,) = (name for name in tensors if "scale" in name)
    tensors[scale] = np.exp2(np.ceil(np.log2(tensors[scale]))).astype(np.float32)
    checkpoint.save(tmp_path / "b.safetensors", tensors, metadata=metadata)
    explanation = compared(source, tmp_path / "b.safetensors").explanation
    assert explanation is not None
    assert explanation.every_element
    assert (explanation.options["scheme"], explanation.options["late_scale"]) == (
        "fp8_block",
        "ceil",
    )


@pytest.mark.parametrize("factor", [1, 2, 1.01])
@pytest.mark.parametrize("recipe", ["modelopt", "compressed-tensors"])
def test_global_scales_of_large_weights(tmp_path: Path, recipe: Any, factor: float) -> None:
    """After the first weight, the largest magnitude is found while weights are compared."""
    places = [(0, "down_proj"), (1, "gate_proj"), (1, "up_proj"), (2, "down_proj")]
    names = [f"model.layers.{layer}.mlp.{part}.weight" for layer, part in places]
    random = np.random.default_rng(1)
    arrays = {
        name: (random.standard_normal((512, 512)) * (1 + index)).astype(BF16)
        for index, name in enumerate(names)
    }
    source, out = tmp_path / "source", tmp_path / "out"
    source.mkdir()
    checkpoint.save(source / "model.safetensors", arrays)
    (source / "config.json").write_text('{"model_type": "llama"}')
    checkpoint.quantize_file(source, out, "nvfp4", recipe=recipe)
    amax = float(np.abs(arrays[names[-1]].astype(float)).max())
    last = quantize(arrays[names[-1]], "nvfp4", recipe=recipe, amax=factor * amax)
    stem = names[-1].removesuffix("weight")
    parts = {stem + part: values for part, values in last.parts().items()}
    stored = checkpoint.load(out)
    assert parts.keys() <= stored.keys()
    checkpoint.save(out / "model.safetensors", {**stored, **parts}, overwrite=True)
    for tensor in checkpoint.diff(source, out).tensors:
        explanation = tensor.explanation
        if tensor.name == names[-1] and factor not in {1, 2}:  # twice as large has the same values
            assert explanation is None or not explanation.every_element
            continue
        assert explanation is not None
        assert explanation.every_element
        assert explanation.options["shares_global_scale"] == (tensor.name == names[1])


@pytest.mark.parametrize("factor", [2, 0.999, 0, -1, 1e-30, np.inf, np.nan])
@pytest.mark.parametrize("recipe", ["modelopt", "compressed-tensors"])
def test_no_recipe_explains_a_global_scale_that_is_wrong(
    tmp_path: Path, recipe: Any, factor: float
) -> None:
    """Not that of another producer either, whose codes and block scales are the same.

    The weights around the wrong one are of the recipe that is named for them.
    """
    random = np.random.default_rng(8)
    arrays = {
        f"layers.{number}.mlp.down_proj.weight": random.standard_normal((128, 128)).astype(BF16)
        for number in range(4)
    }
    source, out = tmp_path / "source.safetensors", tmp_path / "out.safetensors"
    checkpoint.save(source, arrays)
    checkpoint.quantize_file(source, out, "nvfp4", recipe=recipe)
    stored = checkpoint.load(out)
    end = {"modelopt": "weight_scale_2", "compressed-tensors": "weight_global_scale"}[recipe]
    name = f"layers.1.mlp.down_proj.{end}"
    stored[name] = (stored[name] * np.float32(factor)).astype(np.float32)
    wrong = tmp_path / "wrong.safetensors"
    checkpoint.save(wrong, stored, metadata=checkpoint.metadata(out))
    recipes = {
        tensor.name: tensor.explanation and tensor.explanation.options.get("recipe")
        for tensor in checkpoint.diff(source, wrong).tensors
    }
    assert recipes == {name: None if "layers.1" in name else recipe for name in arrays}


@pytest.mark.parametrize(
    ("recipe", "scales"), [("modelopt", "amax"), ("modelopt", "best"), ("comfy", "amax")]
)
def test_a_search_of_one_weight_serves_those_like_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recipe: Any, scales: Any
) -> None:
    """Also where the core encodes no rows with a global scale that is stored."""
    searches: list[object] = []
    agreeing = SchemeSearch.agreeing

    def count(search: SchemeSearch, **options: Any) -> Any:
        searches.append(search)
        return agreeing(search, **options)

    monkeypatch.setattr(SchemeSearch, "agreeing", count)
    random = np.random.default_rng(6)
    source, out = tmp_path / "source.safetensors", tmp_path / "out.safetensors"
    arrays = {
        f"layers.{number}.mlp.down_proj.weight": random.standard_normal((512, 512)).astype(BF16)
        for number in range(4)
    }
    checkpoint.save(source, arrays)
    checkpoint.quantize_file(source, out, "nvfp4", recipe=recipe, scales=scales)
    found = {(options["recipe"], options["scales"]) for options in explained(source, out)}
    assert found == {(recipe, scales)}
    assert len(searches) == 1


def test_quantized_twice(tmp_path: Path) -> None:
    """bf16 -> MXFP8 -> bf16 -> MXFP8, the second time with another rule."""
    array = weights()
    once = dequantize(quantize(array, "mxfp8_e4m3", scale_rule="rceil"), BF16)
    twice = quantize(once, "mxfp8_e4m3", recipe="compressed-tensors", scale_rule="floor")
    first = saved(tmp_path / "a.safetensors", once)
    second = saved(tmp_path / "b.safetensors", dequantize(twice, BF16))
    explanation = compared(first, second).explanation
    assert explanation is not None
    assert explanation.every_element
    assert explanation.options["scale_rule"] == "floor"


def converted(tmp_path: Path, text: str, **options: Any) -> tuple[Path, Path, Path]:
    source = tmp_path / "a.safetensors"
    tensors = {WEIGHT: weights(np.float32), "bias": np.linspace(0, 1, 50, dtype=np.float32)}
    checkpoint.save(source, tensors)
    dtypes, out = tmp_path / "map.toml", tmp_path / "b.safetensors"
    dtypes.write_text(text)
    if "mx" in text:
        checkpoint.quantize_file(source, out, dtype_map=dtypes)
    else:
        checkpoint.cast_file(source, out, dtype_map=dtypes, **options)
    return source, out, dtypes


CAST = "default = 'bfloat16'\nbias = 'keep'\n"


@pytest.mark.parametrize(
    "options",
    [{}, {"rounding": "towards-zero"}, {"rounding": "stochastic", "seed": 5}],
    ids=["plain", "rounding", "stochastic"],
)
def test_a_conversion_is_proved(tmp_path: Path, options: dict[str, Any]) -> None:
    source, out, dtypes = converted(tmp_path, CAST, **options)
    proof = checkpoint.verify(source, out, dtype_map=dtypes, **options)
    assert proof.equal
    assert proof.statement is not None
    for path in (source, out, dtypes):
        assert f"{path} sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}" in proof.statement
    assert "2 tensors, 1 converted, 32,818 values, 0 differences" in proof.statement
    assert json.loads(json.dumps(proof.to_dict()))["conversion"]["cast"] == 1
    with pytest.raises(checkpoint.CheckpointError, match="without the seed"):
        checkpoint.verify(source, out, dtype_map=dtypes, rounding="stochastic")
    assert not checkpoint.verify(source, out, dtype_map={"default": "float16"}).equal
    others = {"overflow": "ieee"} if options else {"rounding": "towards-zero"}
    assert not checkpoint.verify(source, out, dtype_map=dtypes, **others).equal


def test_a_quantization_is_proved(tmp_path: Path) -> None:
    source, out, dtypes = converted(tmp_path, "default = 'mxfp8_e4m3'\n")
    assert checkpoint.verify(source, out, dtype_map=dtypes).equal
    tensors, metadata = checkpoint.load(out), checkpoint.metadata(out)
    (scale,) = (name for name in tensors if "scale" in name)
    tensors[scale][3, 2] ^= 1
    checkpoint.save(out, tensors, metadata=metadata, overwrite=True)
    proof = checkpoint.verify(source, out, dtype_map=dtypes)
    (difference,) = proof.differences
    assert (difference.name, difference.index) == (scale, (3, 2))
    assert "is not what" in str(proof.statement)


def test_a_quantization_is_proved_with_its_options(tmp_path: Path) -> None:
    source, _, dtypes = converted(tmp_path, CAST)
    width = weights().shape[1]
    file = tmp_path / "importance.safetensors"
    checkpoint.save(file, {WEIGHT: np.geomspace(1, 1e4, width, dtype=np.float32)})
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    best = {"scales": "best", "importance": file}
    for number, (scheme, options, words) in enumerate(
        [
            ("fp8_tensor", {"recipe": "modelopt", "inputs": 0.5}, "recipe=modelopt inputs=0.5"),
            ("nvfp4", best, f"scales=best importance={file.name} sha256:{digest}"),
        ]
    ):
        dtypes.write_text(f"default = '{scheme}'\n")
        out = tmp_path / f"{number}.safetensors"
        checkpoint.quantize_file(source, out, dtype_map=dtypes, **options)
        proof = checkpoint.verify(source, out, dtype_map=dtypes, **options)
        assert proof.equal
        assert f" {words} makes of " in str(proof.statement)
        flags = [text for name, value in options.items() for text in (f"--{name}", str(value))]
        command = ["verify", str(source), str(out), "--map", str(dtypes), "--quiet"]
        assert main([*command, *flags]) == 0
        assert main(command) == 1
    dtypes.write_text(CAST)
    with pytest.raises(checkpoint.CheckpointError, match="recipe: options of a quantization go"):
        checkpoint.verify(source, out, dtype_map=dtypes, recipe="modelopt")
    with pytest.raises(
        checkpoint.CheckpointError, match=r"scales: .* quantization go with its map"
    ):
        checkpoint.verify(source, out, scales="best")


def test_options_go_with_a_map(tmp_path: Path) -> None:
    source, out, _ = converted(tmp_path, CAST)
    with pytest.raises(checkpoint.CheckpointError, match="rounding: options of a cast go with"):
        checkpoint.verify(source, out, rounding="towards-zero")
    assert checkpoint.verify(source, source).statement is None


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, out, dtypes = map(str, converted(tmp_path, CAST, rounding="towards-zero"))
    arguments = ["verify", source, out, "--map", dtypes]
    assert main([*arguments, "--rounding", "towards-zero"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith(f"{out} sha256:")
    assert main(arguments) == 1
    assert " is not what " in capsys.readouterr().out
    assert main([*arguments, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["conversion"]["options"]["rounding"] is None


@pytest.mark.parametrize("threads", [2, 16])
def test_a_comparison_with_quantized_weights_takes_little_memory(
    tmp_path: Path, threads: int
) -> None:
    draw = np.random.default_rng(0)
    weight = draw.standard_normal((4096, 2048), np.float32)
    checkpoint.save(tmp_path / "a.safetensors", {"layers.0.up_proj.weight": weight})
    del weight
    plain, quantized = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    checkpoint.quantize_file(plain, quantized, "nvfp4", recipe="compressed-tensors")
    tracemalloc.start()
    found = checkpoint.diff(plain, quantized, threads=threads)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found.tensors[0].explanation is not None
    assert peak < 26 << 20  # of slabs of twice as many elements it was 30 MiB
