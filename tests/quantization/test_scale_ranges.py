"""Weights of every magnitude, in every scheme as every recipe: kept, or it is said what is lost."""

from __future__ import annotations

import json
import math
import re
import warnings
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import scheme_oracle as oracle
from castwise import checkpoint
from castwise.checkpoint.planning.written_schemes import is_transcoded
from castwise.quantization import UnfitError, dequantize, quantize, schemes
from castwise.quantization.producers.block_types import WRITTEN_TYPES
from castwise.quantization.producers.registry import TYPED, WRITTEN
from safetensors.numpy import save_file
from scheme_oracle import E4M3, ELEMENTS, F32, MAPS, Array, full, reduced, spread
from support import run_castwise

BF16 = ml_dtypes.bfloat16
WEIGHTS: dict[str, Any] = {"float16": np.float16, "bfloat16": BF16, "float32": np.float32}
ROWS, COLUMNS = 8, 256
RECIPES = [(row.name, recipe) for row in schemes() for recipe in row.recipes]
NEAR_DB, EXACT_DB = 1.0, 100.0
IN_FOLDERS = [row for row in WRITTEN if row.recipe != TYPED]


def normal() -> Array:
    """Normal weights with the largest magnitude 1."""
    x = np.random.default_rng(0).standard_normal((ROWS, COLUMNS))
    return x / np.abs(x).max()


def exponents(dtype: str) -> list[int]:
    """Powers of two from 2^-24 to below the largest number; of float16 all, of others some."""
    most = math.frexp(float(ml_dtypes.finfo(WEIGHTS[dtype]).max))[1]
    middle = range(-24, most) if most < 20 else [*range(-24, 0, 2), *range(0, 20, 3)]
    return sorted({*middle, *range(20, most, 24), most - 4, most - 2, most - 1})


def decibels(x: Array, decoded: Array) -> float:
    """The ratio of the squares of weights and errors; -inf if a value is not finite."""
    wide, found = x.astype(np.float64), decoded.astype(np.float64)
    if not np.isfinite(found).all():
        return -math.inf
    scale = np.abs(wide).max()
    noise = np.square((wide - found) / scale).sum()
    return 10 * math.log10(np.square(wide / scale).sum() / noise) if noise else math.inf


def kept_by(scheme: str, x: Array) -> float:
    """What a scheme keeps by its definition: scales of amax / largest, and the nearest codes."""
    row = next(row for row in schemes() if row.name == scheme)
    wide = x.astype(np.float64)
    if row.code_map is not None:
        flat, values = wide.reshape(-1, row.block[1]), np.sort(MAPS[scheme].astype(np.float64))
        amax = np.abs(flat).max(1, keepdims=True)
        nearest = np.abs((flat / np.where(amax, amax, 1))[..., None] - values).argmin(-1)
        return decibels(wide, (values[nearest] * amax).reshape(wide.shape))
    block = full(x.shape, row.block)
    amax = reduced(np.abs(wide), block, np.maximum)
    kind = next((one for name, one in ELEMENTS.items() if _is_of(name, row.element)), None)
    largest = 127 / 64 if scheme == "mxint8" else 2.0 ** (row.bits - 1) - 1
    largest = largest if kind is None else kind.largest
    if row.rule is not None:
        rules = [oracle.mx_byte(amax.astype(F32), kind, rule) for rule in ("floor", "rceil", "ct")]
        return min(
            _decoded_db(wide, oracle.power(byte.astype(int) - 127), block, kind, row.bits)
            for byte in rules
        )
    scale = amax / largest
    if row.global_scale:
        level = amax.max() / largest / 448
        scale = E4M3.decode(E4M3.encode(scale / level)) * level
    return _decoded_db(wide, scale, block, kind, row.bits)


def _is_of(name: str, element: str) -> bool:
    return element.startswith("float") and f"_{name}" in element


def _decoded_db(x: Array, scale: Array, block: tuple[int, int], kind: Any, bits: int) -> float:
    each = spread(np.where(scale == 0, 1, scale), x.shape, block)
    if kind is not None:
        return decibels(x, kind.decode(kind.encode(x / each)) * each)
    unit = 64 if bits == 8 and block == (1, 32) else 1
    half = 2 ** (bits - 1)
    return decibels(x, np.clip(np.rint(x / each * unit), -half, half - 1) / unit * each)


@pytest.mark.parametrize("name", [name.lower() for name in WRITTEN_TYPES])
@pytest.mark.parametrize("exponent", range(-26, 1, 2))
def test_blocks_of_llama_cpp_of_every_magnitude_keep_or_warn(name: str, exponent: int) -> None:
    x = (normal() * 2.0**exponent).astype(np.float32)
    kept = quantize(normal().astype(np.float32), name).report(normal()).sqnr_db
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        lost = kept - quantize(x, name).report(x).sqnr_db
    said = [str(each.message) for each in caught]
    assert lost < NEAR_DB or said[0].startswith(
        f"x has scales of {name} beyond what llama.cpp stores in float16"
    )
    assert not caught or lost > NEAR_DB / 2


@pytest.mark.parametrize("magnitude", [1e-310, 1e-300, 1e39, 1e300])
@pytest.mark.parametrize(("scheme", "recipe"), RECIPES)
def test_weights_that_only_float64_holds_keep_or_warn(
    scheme: str, recipe: str, magnitude: float
) -> None:
    x = normal() * magnitude
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            q = quantize(x, scheme, recipe=recipe)
        except UnfitError:
            return
    if not q.report(x, arithmetic="exact").sqnr_db >= kept_by(scheme, normal()) - NEAR_DB:
        (said,) = (str(each.message) for each in caught)
        assert re.fullmatch(f"x has magnitudes that float32 .* {scheme} .*; divide x by .*", said)


@pytest.mark.thinned(7)
@pytest.mark.parametrize("dtype", WEIGHTS)
@pytest.mark.parametrize(("scheme", "recipe"), RECIPES)
def test_weights_of_every_magnitude_keep_what_the_scheme_keeps(
    scheme: str, recipe: str, dtype: str
) -> None:
    """Within 1 dB, or a warning, or infinities, which a report counts."""
    for exponent in exponents(dtype):
        x = (normal() * (1.9 * 2.0 ** (exponent - 1))).astype(WEIGHTS[dtype])
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            q = quantize(x, scheme, recipe=recipe)
        found, own = decibels(x, dequantize(q, "float64")), kept_by(scheme, x)
        said = [str(one.message) for one in caught]
        if found == -math.inf:
            assert q.report(x).not_finite > 0
        elif found < min(own, EXACT_DB) - NEAR_DB - _of_scales(scheme, recipe, dtype):
            (message,) = said
            assert f"x has scales of {scheme} beyond" in message, exponent
            assert "keeps them" in message
        assert exponent or not said


def _of_scales(scheme: str, recipe: str, dtype: str) -> float:
    """What scales and biases of the weight's own dtype cost integers at all magnitudes."""
    row = next(row for row in schemes() if row.name == scheme)
    is_coarse = row.scale == "weight" and dtype == "bfloat16" and row.bits > 4
    return 3.0 if is_coarse and recipe == "mlx" else 0.0


def _folder(path: Path, weights: dict[str, Array]) -> Path:
    """Save weights of layers, and of experts in one tensor, as transformers does."""
    path.mkdir()
    save_file(weights, path / "model.safetensors")
    experts = any(weight.ndim > 2 for weight in weights.values())
    model = {"model_type": "gpt_oss", "architectures": ["GptOssForCausalLM"]}
    (path / "config.json").write_text(json.dumps(model if experts else {"model_type": "llama"}))
    return path


def _name(row: Any) -> str:
    if row.recipe == "gpt-oss":
        return "model.layers.0.mlp.experts.gate_up_proj"
    return "model.layers.0.self_attn.q_proj.weight"


@pytest.mark.thinned(3)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("row", IN_FOLDERS, ids=lambda row: f"{row.recipe}-{row.scheme}")
def test_models_of_every_magnitude_have_a_finding_or_keep_their_values(
    tmp_path: Path, row: Any, dtype: str
) -> None:
    """A finding names the tensor, and the command line a scheme that keeps its values."""
    x = np.tile(normal(), (32, 1)) * 1.9
    shape = (1, 256, 256) if row.recipe == "gpt-oss" else x.shape
    for exponent in (-20, -12, -6, -1, 12):
        weights = {_name(row): (x * 2.0**exponent).astype(WEIGHTS[dtype]).reshape(shape)}
        source = _folder(tmp_path / f"in{exponent}", weights)
        out = tmp_path / f"out{exponent}"
        summary = checkpoint.quantize_file(source, out, row.scheme, recipe=row.recipe)
        if row.scheme == "fp8_block" and row.recipe == "modelopt":
            continue  # it states no block
        checkpoint.dequantize_file(out, tmp_path / f"plain{exponent}", dtype="float32")
        (found,) = checkpoint.load(tmp_path / f"plain{exponent}").values()
        own = kept_by(row.scheme, x.astype(WEIGHTS[dtype]))
        kept = decibels(weights[_name(row)], found)
        kinds = {finding.kind for finding in summary.findings()}
        if "scale" not in kinds:
            assert kept > min(own, EXACT_DB) - NEAR_DB - _of_scales(row.scheme, row.recipe, dtype)
        assert exponent != -1 or "scale" not in kinds


def test_a_finding_names_the_scheme_that_keeps_the_values(tmp_path: Path) -> None:
    x = (np.tile(normal(), (4, 1)) * 2.0**-9).astype(np.float32)
    source = _folder(tmp_path / "in", {"model.layers.0.self_attn.q_proj.weight": x})
    options = ("--scheme", "nvfp4", "--recipe", "mlx")
    run = run_castwise("quantize", source, tmp_path / "out", *options, code=1)
    said = run.stderr if hasattr(run, "stderr") else str(run)
    assert f"{x.size:,} values have scales beyond the range of their format" in said
    assert "--scheme mxfp4 --recipe mlx --overwrite" in said
    run_castwise("quantize", source, tmp_path / "kept", "--scheme", "mxfp4", "--recipe", "mlx")


SHAPES = {"one row": (1, 256), "one column": (256, 1)}
KINDS = ("zero", "minus zero", "constant", "zero ends", "zero columns", "signed zeros", *SHAPES)


def _of_kind(kind: str) -> Array:
    x = np.tile(normal(), (32, 1)).astype(np.float32)
    if kind in SHAPES:
        return x.reshape(-1)[:256].reshape(SHAPES[kind])
    if kind == "zero ends":
        x[[0, -1]] = 0
    elif kind == "zero columns":
        x[:, [0, -1]] = 0
    elif kind == "signed zeros":
        x[np.abs(x) < 0.3] *= 0
    return {"zero": x * 0 + 0, "minus zero": np.full_like(x, -0.0)}.get(
        kind, np.full_like(x, 0.3) if kind == "constant" else x
    )


def _read_back(folder: Path, out: Path, x: Array) -> None:
    """Decode a model and compare its weight with what was quantized."""
    checkpoint.dequantize_file(folder, out, dtype="float32")
    (found,) = checkpoint.load(out).values()
    wide = x.astype(np.float64)
    # Experts are stored (out, in) by others than gpt-oss.
    orders = [wide, *([wide.swapaxes(-1, -2)] if x.ndim > 2 else [])]
    errors = [np.abs(found - order).max() for order in orders if order.shape == found.shape]
    assert min(errors) <= 0.6 * np.abs(wide).max()


@pytest.mark.thinned(4)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("row", IN_FOLDERS, ids=lambda row: f"{row.recipe}-{row.scheme}")
def test_every_recipe_reads_its_own_weights(tmp_path: Path, row: Any, kind: str) -> None:
    """Of zeros, of one row or column, and so on; also in one file, and after transcoding."""
    x = _of_kind(kind).astype(BF16)
    x = x[None] if row.recipe == "gpt-oss" else x
    source = _folder(tmp_path / "in", {_name(row): x})
    quantized = tmp_path / "quantized"

    def quantize_it() -> None:
        checkpoint.quantize_file(source, quantized, row.scheme, recipe=row.recipe)

    if not _holds(row, x.shape):
        with pytest.raises(checkpoint.CheckpointError, match="it has the shape"):
            quantize_it()
        return
    quantize_it()
    if (row.scheme, row.recipe) == ("fp8_block", "modelopt"):
        pytest.skip("it states no block")
    _read_back(quantized, tmp_path / "plain", x)
    others = (one for one in WRITTEN if one.recipe != row.recipe and one.scheme == row.scheme)
    for other in others:
        form = (row.scheme, row.recipe), (row.scheme, other.recipe)
        if is_transcoded(*form) and _holds(other, x.shape):
            out = tmp_path / f"as-{other.recipe}"
            checkpoint.transcode_file(quantized, out, other.recipe)
            _read_back(out, tmp_path / f"plain-{other.recipe}", x)


def _holds(row: Any, shape: tuple[int, ...]) -> bool:
    """Whether a weight has whole blocks and tiles, which the producer stores."""
    if row.is_transposed:  # experts alone, as (in, out)
        shape = (*shape[:-2], shape[-1], shape[-2]) if len(shape) > 2 else (0, 1)
    block = row.block or row.row.block
    pairs = zip(shape[-2:], row.tile, strict=True)
    is_tiled = all(length % size == 0 for length, size in pairs)
    is_whole = not block[1] or block[0] > 1 or shape[-1] % block[1] == 0
    return is_tiled and is_whole


@pytest.mark.parametrize("scheme", ["nvfp4", "mxfp8_e4m3"])
def test_comfy_states_the_shape_of_padded_weights(tmp_path: Path, scheme: str) -> None:
    """As converters for ComfyUI do; what contradicts the codes is refused."""
    x = _of_kind("zero ends").astype(BF16)
    source = _folder(tmp_path / "in", {"blocks.0.q.weight": x})
    file = tmp_path / "out.safetensors"
    checkpoint.quantize_file(source / "model.safetensors", file, scheme, recipe="comfy")
    tensors = checkpoint.load(file)
    stated = json.loads(tensors["blocks.0.q.comfy_quant"].tobytes())
    assert stated["orig_shape"] == [256, 256]
    _read_back(file, tmp_path / "plain.safetensors", x)
    for shape in ([256, 1], [1, 256], [257, 256], [256], "256", [256.0, 256], [0, 256], None):
        text = json.dumps(stated | {"orig_shape": shape}).encode()
        marker = {"blocks.0.q.comfy_quant": np.frombuffer(text, np.uint8)}
        save_file({**tensors, **marker}, damaged := tmp_path / "damaged.safetensors")
        with pytest.raises(checkpoint.CheckpointError, match=r"orig_shape|may be padding"):
            checkpoint.dequantize_file(damaged, tmp_path / "wrong.safetensors")
    cut = {"blocks.0.q.bias": np.zeros(250, BF16)}
    save_file({**tensors, **cut}, damaged)
    with pytest.raises(checkpoint.CheckpointError, match=r"orig_shape=.* its bias has the shape"):
        checkpoint.dequantize_file(damaged, tmp_path / "wrong.safetensors")


@pytest.mark.parametrize("dtype", WEIGHTS)
@pytest.mark.parametrize("scheme", ["nvfp4", "fp8_tensor"])
def test_scales_that_a_decoder_multiplies_in_the_dtype_of_the_weight(
    tmp_path: Path, scheme: str, dtype: str
) -> None:
    """ComfyUI decodes to the dtype of the layer: what it loses there is a finding too."""
    lossy = []
    for exponent in (0, -8, -12, -16, -20):
        x = np.tile(normal() * (1.9 * 2.0 ** (exponent - 1)), (4, 1)).astype(WEIGHTS[dtype])
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            q = quantize(x, scheme, recipe="comfy")
        decoded = decibels(x, dequantize(q, x.dtype))
        is_lossy = decoded < min(kept_by(scheme, x), EXACT_DB) - NEAR_DB
        lossy += [exponent] if is_lossy else []
        assert len(said) == is_lossy, exponent
        source, made = tmp_path / f"{exponent}.safetensors", tmp_path / f"{exponent}-q.safetensors"
        checkpoint.save(source, {"fc.weight": x})
        summary = checkpoint.quantize_file(source, made, scheme, recipe="comfy")
        assert ("scale" in {finding.kind for finding in summary.findings()}) == is_lossy, exponent
    # The product of its scales is no normal float16 below 6 * 2^-14.
    assert lossy == ([-12, -16, -20] if (scheme, dtype) == ("nvfp4", "float16") else [])


@pytest.mark.parametrize("recipe", ["modelopt", "compressed-tensors"])
@pytest.mark.parametrize("scheme", ["nvfp4", "fp8_tensor"])
@pytest.mark.parametrize("small", [1e-320, 1e-300, 1e-40])
def test_rows_of_other_magnitudes_in_float64(
    tmp_path: Path, scheme: Any, recipe: str, small: float
) -> None:
    weight = np.random.default_rng(0).standard_normal((2048, 1024)) * 0.02
    weight[:1024] = small  # a slab of its own
    source = _folder(tmp_path / "a", {"model.layers.0.self_attn.q_proj.weight": weight})
    summary = checkpoint.quantize_file(source, tmp_path / "b", scheme, recipe=recipe)
    assert summary.findings()


def test_a_largest_magnitude_that_the_array_lacks() -> None:
    x = np.full((8, 64), 1e-300)
    for amax in (1.0, 1e10):
        with pytest.warns(RuntimeWarning, match="float32 does not hold"):
            quantize(x, "nvfp4", recipe="modelopt", amax=amax)
    with pytest.raises(ValueError, match=r"amax=1e\+39 is not valid for nvfp4"):
        quantize(normal(), "nvfp4", amax=1e39)
