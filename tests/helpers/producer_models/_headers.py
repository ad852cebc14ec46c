"""Headers of quantized models, as producers wrote them or of layouts; every element is zero."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import castwise
from checkpoint_samples import safetensors_file

from ._decodable import stated

BITS = {"F4": 4, "F6_E2M3": 6, "BOOL": 8, "U8": 8, "I8": 8, "I16": 16, "U32": 32, "I32": 32}
BITS |= {"F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "BF16": 16, "F16": 16, "F32": 32, "I64": 64}
EXPERTS = "model.layers.0.mlp.experts"
FLOATS = {"BF16", "F16", "F32"}
FORMATS = {castwise.finfo(name).safetensors: name for name in castwise.formats()}
Tensors = dict[str, tuple[str, tuple[int, ...]]]
Recorded = dict[str, tuple[str, tuple[int, ...] | None, str, int, set[str]]]


@dataclass(frozen=True)
class Model:
    """Headers of a model, the configurations beside it, and what is expected of its weights."""

    tensors: Tensors
    configs: dict[str, Any]
    metadata: dict[str, str]


@cache
def record() -> dict[str, Any]:
    """What real producers wrote, and what models hold that none of them touched."""
    path = Path(__file__).parents[2] / "recorded" / "quantization" / "models.json"
    found: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return found


def recorded(name: str) -> Model:
    """One model that a producer wrote."""
    one = record()["quantized"][name]
    return Model(as_tensors(one["tensors"]), one["configs"], one["metadata"])


def as_tensors(entries: dict[str, Any]) -> Tensors:
    return {name: (code, tuple(shape)) for name, (code, shape) in entries.items()}


def write_zeros(folder: Path, model: Model) -> Path:
    """A folder with the model; every element is zero."""
    folder.mkdir(exist_ok=True)
    header: dict[str, Any] = {"__metadata__": model.metadata} if model.metadata else {}
    end = 0
    for name, (code, shape) in model.tensors.items():
        count = BITS[code]
        for axis in shape:
            count *= axis
        begin, end = end, end + count // 8
        header[name] = {"dtype": code, "shape": list(shape), "data_offsets": [begin, end]}
    (folder / "model.safetensors").write_bytes(safetensors_file(header, bytes(end)))
    for name, config in model.configs.items():
        (folder / name).write_text(json.dumps(config), "utf-8")
    return folder


def in_config(**section: Any) -> dict[str, Any]:
    """State a method in config.json."""
    return {"config.json": stated(**section)}


Layouts = dict[str, tuple[Model, str | None, tuple[int, ...] | None, str]]
