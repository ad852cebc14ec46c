"""What every conversion writes, byte for byte, or says when it refuses, as it was recorded.

The matrix is recipe x scheme x command x container, on the small models of these tests. It finds
what a change of the code's structure does to results; what they must be is tested elsewhere.

    python -m pytest -m "" --record tests/quantization/test_conversions.py    # writes the record
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import castwise
import pytest
from castwise import checkpoint
from castwise.checkpoint.planning.written_schemes import form_names
from checkpoint_samples import floats
from producer_models import MODELS, MORE, Decodable, write
from recorded import FOLDER
from small_llama import RECIPES, options
from small_llama import write as write_plain

RECORD = FOLDER / "quantization" / "conversions.json"
DECODABLE = MODELS | MORE
DIGITS = 16  # of a digest
CASTS: dict[str, dict[str, Any]] = {
    "bfloat16": {"dtype": "bfloat16"},
    "float16 saturate": {"dtype": "float16", "overflow": "saturate"},
    "float8 stochastic": {"dtype": "float8_e5m2", "rounding": "stochastic", "seed": 7},
    "map": {"dtype_map": {"default": "bfloat16", ".*ids": "keep", ".*norm": "float32"}},
    "policy": {"policy": "mixed_float16"},
    "max_shard_size": {"dtype": "bfloat16", "max_shard_size": 1_000},
}
WRITTEN = (".safetensors", ".npz", ".npy", "")


def written(path: Path) -> str:
    """A digest of a file, or of all files of a folder with their names."""
    total = hashlib.sha256()
    for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
        if file.is_file():
            name = file.relative_to(path).as_posix()
            total.update(json.dumps([name, file.stat().st_size]).encode() + file.read_bytes())
    return total.hexdigest()[:DIGITS]


def outcome(call: Callable[[], object], target: Path, folder: Path) -> str:
    """What a conversion wrote, or why it refused to."""
    try:
        call()
    except (checkpoint.CheckpointError, ValueError) as error:
        assert not target.exists()
        return str(error).replace(str(folder), "")
    return written(target)


def containers(folder: Path, model: Decodable) -> Iterator[Path]:
    """A model as a folder, and as one file that states the same in its metadata."""
    yield write(folder / "model", model)
    stated = {key: json.dumps(value) for key, value in (model.config | model.files).items()}
    path = folder / "model.safetensors"
    checkpoint.save(path, model.tensors, metadata={**stated, **model.metadata})
    yield path


def decodable_outcomes(folder: Path, name: str) -> Iterator[tuple[str, str]]:
    """What every command makes of a quantized model in every container."""
    for source in containers(folder, DECODABLE[name]()):
        kind = "file" if source.suffix else "folder"
        for dtype, arithmetic in (
            ("bfloat16", "peer"),
            ("float32", "peer"),
            ("float16", "exact"),
        ):
            target = folder / f"decoded-{kind}-{dtype}{source.suffix}"
            yield (
                f"{kind}, dequantize {dtype} {arithmetic}",
                outcome(
                    lambda source=source, target=target, dtype=dtype, arithmetic=arithmetic: (
                        checkpoint.dequantize_file(source, target, dtype, arithmetic=arithmetic)
                    ),
                    target,
                    folder,
                ),
            )
        for recipe in form_names():
            suffix = source.suffix and (".gguf" if recipe == "gguf" else source.suffix)
            target = folder / f"{recipe}-{kind}{suffix}"
            yield (
                f"{kind}, transcode {recipe}",
                outcome(
                    lambda source=source, target=target, recipe=recipe: checkpoint.transcode_file(
                        source, target, recipe
                    ),
                    target,
                    folder,
                ),
            )
        found = json.dumps(checkpoint.inspect(source).to_dict()).replace(str(folder), "")
        yield f"{kind}, inspect", hashlib.sha256(found.encode()).hexdigest()[:DIGITS]


def plain_outcomes(folder: Path, recipe: str, scheme: str) -> Iterator[tuple[str, str]]:
    """What becomes of an unquantized model by a recipe and scheme."""
    source = write_plain(folder / "model")
    for suffix in ("", ".safetensors"):
        target = folder / f"out{suffix}"
        yield (
            f"folder, quantize to a {'file' if suffix else 'folder'}",
            outcome(
                lambda target=target: checkpoint.quantize_file(
                    source, target, scheme, recipe=recipe, **options(recipe, scheme)
                ),
                target,
                folder,
            ),
        )


def compare(request: pytest.FixtureRequest, name: str, found: dict[str, str]) -> None:
    """Compare what was found of a model with the record, or write it there."""
    record = json.loads(RECORD.read_text("utf-8")) if RECORD.exists() else {}
    if request.config.getoption("record"):
        RECORD.write_text(json.dumps({**record, name: found}, indent=0) + "\n", "utf-8")
        return
    assert found == record[name]


@pytest.mark.thinned(5)
@pytest.mark.parametrize("name", DECODABLE)
def test_a_quantized_model(request: pytest.FixtureRequest, tmp_path: Path, name: str) -> None:
    compare(request, name, dict(decodable_outcomes(tmp_path, name)))


@pytest.mark.thinned(5)
@pytest.mark.parametrize(("recipe", "scheme"), RECIPES)
def test_a_plain_model(
    request: pytest.FixtureRequest, tmp_path: Path, recipe: str, scheme: str
) -> None:
    compare(request, f"{recipe} {scheme}", dict(plain_outcomes(tmp_path, recipe, scheme)))


def tensors() -> dict[str, Any]:
    """Tensors of the formats that a model has."""
    return {
        "layer.weight": floats(600).reshape(20, 30) * 70_000,
        "layer.norm": floats(30, seed=1),
        "layer.half": castwise.cast(floats(64, seed=2).reshape(8, 8), "float16"),
        "layer.eighth": castwise.cast(floats(9, seed=3), "float8_e4m3fn"),
        "ids": castwise.cast(floats(40, seed=4) * 100, "int64"),
    }


def cast_outcomes(folder: Path, suffix: str) -> Iterator[tuple[str, str]]:
    """What casts make of a container in every container."""
    source = folder / f"model{suffix}"
    if suffix:
        stored = tensors() if suffix != ".npy" else tensors()["layer.weight"]
        checkpoint.save(source, stored)
    else:
        source.mkdir()
        (source / "config.json").write_text('{"torch_dtype": "float32"}')
        checkpoint.save(source / "model.safetensors", tensors(), metadata={"format": "pt"})
    for options_name, options_given in CASTS.items():
        for target_suffix in WRITTEN:
            target = folder / f"{options_name}{target_suffix}"
            yield (
                f"cast {options_name} to {target_suffix or 'folder'}",
                outcome(
                    lambda target=target, given=options_given: checkpoint.cast_file(
                        source, target, **given
                    ),
                    target,
                    folder,
                ),
            )


@pytest.mark.parametrize("suffix", WRITTEN)
def test_a_cast(request: pytest.FixtureRequest, tmp_path: Path, suffix: str) -> None:
    compare(request, f"cast {suffix or 'folder'}", dict(cast_outcomes(tmp_path, suffix)))
