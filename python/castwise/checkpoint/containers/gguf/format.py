"""What those who plan a GGUF file, or look at one, must know of it."""

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from castwise.checkpoint._errors import CheckpointError
from castwise.checkpoint._tensors import TensorInfo
from castwise.checkpoint.containers.gguf._architectures import (
    ARCHITECTURE,
    ARCHITECTURES,
    EMBEDDING,
    FLOAT32,
    HEAD,
)
from castwise.checkpoint.containers.gguf._folder import model_files
from castwise.checkpoint.containers.gguf._ggml_types import check_computed
from castwise.checkpoint.containers.gguf._hyperparameters import (
    architecture,
    hyperparameters,
    rotary_factors,
)
from castwise.checkpoint.containers.gguf._names import tensors
from castwise.checkpoint.containers.gguf._vocabulary import FILES, vocabulary
from castwise.checkpoint.containers.gguf.imatrix import input_names, is_stored_name, mean_squares
from castwise.checkpoint.containers.gguf.mixes import mix_metadata, mix_types
from castwise.checkpoint.containers.gguf.reader import count_named
from castwise.checkpoint.containers.gguf.writer import ALIGNMENT, file_bytes
from castwise.checkpoint.containers.whole_models import ModelFormat, ModelOutline

# llama.cpp numbers layers so: `blk.0.attn_q.weight`.
_LAYER = re.compile(r"blk\.([0-9]+)\.")
_REQUIRED = (EMBEDDING, "output_norm.weight")
_AGAIN = "transcode the model anew (castwise transcode --to gguf)"


def _check_name(path: Path) -> None:
    """Refuse a name for a whole model that would say it is one of several files."""
    count = count_named(path)
    if count > 1:
        raise CheckpointError(
            f"{path}: by its name it would be one of {count} files of a model, and all of the "
            "model becomes this file; choose a name that does not end with -00001-of-00002.gguf or "
            "the like"
        )


def _outline(folder: Path, config: Mapping[str, Any]) -> ModelOutline:
    row, config = architecture(config)
    factors = rotary_factors(row, config)
    is_tied = row.tied and bool(config.get("tie_word_embeddings"))
    return ModelOutline(
        row.name,
        hyperparameters(row, config, folder.absolute().name),
        {} if row.factors is None or factors is None else {row.factors: factors},
        tensors(row, config),
        frozenset((HEAD,) * is_tied),
        EMBEDDING,
        partial(vocabulary, folder, config),
    )


def _problems(
    tensors: Iterable[TensorInfo], metadata: Mapping[str, str]
) -> Iterator[tuple[str, str, str]]:
    """Yield what keeps llama.cpp from loading a file: module, problem, remedy."""
    # Its `src/llama-model-loader.cpp` asks for every tensor of every layer; its converter keeps
    # vectors in float32, which its graphs take for granted.
    infos = {info.name: info for info in tensors}
    if ARCHITECTURE not in metadata:
        yield "", f"the file states no {ARCHITECTURE}", _AGAIN
    for name in _REQUIRED:
        if name not in infos:
            yield name, "llama.cpp needs it, and the file has none", _AGAIN
    matches = (_LAYER.match(name) for name in infos)
    layers = {int(match[1]) for match in matches if match is not None}
    for number in range(max(layers, default=-1) + 1):
        if number not in layers:
            yield f"blk.{number}", "the file has no tensor of this layer", _AGAIN
    for info in infos.values():
        if len(info.shape) == 1 and info.format != "float32":
            problem = f"llama.cpp needs vectors in float32, and it is {info.label}"
            yield info.name, problem, _AGAIN


FORMAT = ModelFormat(
    "GGUF",
    (*ARCHITECTURES,),
    FLOAT32,
    FILES,
    _check_name,
    check_computed,
    _outline,
    model_files,
    _problems,
    mean_squares,
    is_stored_name,
    input_names,
    mix_types,
    mix_metadata,
    ALIGNMENT,
    file_bytes,
)
