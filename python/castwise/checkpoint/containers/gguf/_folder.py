"""A GGUF file as a model of transformers: what its tensors are there, and what is stated."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from castwise._core import cast
from castwise.arrays.dtype_map import DtypeMap
from castwise.checkpoint._errors import CheckpointError
from castwise.checkpoint._tensors import TensorInfo, numpy_dtype
from castwise.checkpoint.containers.gguf._architectures import (
    EMBEDDING,
    FLOAT32,
    HEAD,
    GgufArchitecture,
    experts_of,
)
from castwise.checkpoint.containers.gguf._ggml_types import COMPUTED, check_computed
from castwise.checkpoint.containers.gguf._hyperparameters import configuration, rotary_scaling
from castwise.checkpoint.containers.gguf._names import tensors
from castwise.checkpoint.containers.gguf._tokenizer_files import (
    Unstated,
    generation,
    special_numbers,
    tokenizer_files,
)
from castwise.checkpoint.containers.gguf.reader import Gathered, GatheredSource, GgufReader
from castwise.checkpoint.containers.whole_models import (
    MappedTensor,
    ModelFiles,
    NoFolderError,
    Place,
    WholeModelReader,
)
from castwise.models.model import WEIGHT
from castwise.quantization.producers.block_types import ROLES, names_beside

_F32 = COMPUTED[0]
# What transformers wants to read in a safetensors file.
_METADATA = {"format": "pt"}


def model_files(reader: WholeModelReader, dtype: str | None) -> ModelFiles:
    """Let a file that becomes a folder have the tensors of transformers."""
    # `dtype` is what weights are decoded to; if none is, they have that of the embedding.
    assert isinstance(reader, GgufReader), "by its format"  # noqa: S101
    try:
        return _model(reader, dtype)
    except CheckpointError as error:
        raise NoFolderError(
            f"{reader.path} cannot become a folder that transformers loads: {error}; a "
            ".safetensors file keeps the names of llama.cpp: name one",
            str(error),
        ) from error


def _model(reader: GgufReader, dtype: str | None) -> ModelFiles:
    path, values = reader.path, reader.values()
    if (kind := values.get("general.type", "model")) != "model":
        raise CheckpointError(f"it is not a model but {kind}")
    row, config = configuration(values)
    if not any(_is_blocks(info) for info in reader.tensors.values()):
        dtype = None
    if (embedding := reader.tensors.get(EMBEDDING)) is not None:
        shape = reader.logical_shape(EMBEDDING)
        if not shape or not shape[0]:
            raise CheckpointError(
                f"tensor {EMBEDDING!r} has the shape {shape}, and needs a row for each token"
            )
        config = {"vocab_size": shape[0], **config}
        if dtype is None and _is_blocks(embedding):
            raise CheckpointError(
                f"tensor {EMBEDDING!r} is {embedding.stored}, and transformers has no quantized "
                "embedding; castwise dequantize decodes it"
            )
        dtype = dtype or embedding.format
    if row.factors in reader.tensors:
        config["rope_scaling"] = rotary_scaling(config, reader.read(str(row.factors)))
    gathers, vectors = _gather_tensors(reader, row, config)
    config |= {
        "tie_word_embeddings": HEAD not in reader.tensors,
        **row.lists_of(config["num_hidden_layers"]),
        **special_numbers(values, config["vocab_size"]),
        "torch_dtype": dtype,
    }
    reader.gather(gathers, dict(_METADATA))
    is_exact = all(_is_exact(reader, name, dtype) for name in vectors)
    dtypes = DtypeMap.from_mapping(dict.fromkeys(vectors if is_exact else (), dtype))
    unknown = [
        f"{path} does not state {key} of its rotary embedding, and llama.cpp does not compute it; "
        f"config.json says {value!r}, as models of {row.name} have it: check it"
        for key, value in row.scaled.items()
        if key in config["rope_scaling"]
    ]
    files = generation(values, config["vocab_size"])
    try:
        files |= tokenizer_files(values, config["vocab_size"])
    except Unstated as error:
        unknown.append(
            f"{path}: the tokenizer is left out, as {error}; copy tokenizer.json and "
            "tokenizer_config.json of the model that it was made of"
        )
    return ModelFiles(config, files, dtypes, unknown)


def _gather_tensors(
    reader: GgufReader, row: GgufArchitecture, config: Mapping[str, Any]
) -> tuple[list[Gathered], list[str]]:
    """Return what the tensors are made of, and which are vectors in float32."""
    gathers: list[Gathered] = []
    vectors: list[str] = []
    names_left = set(reader.tensors) - {row.factors}
    for tensor in tensors(row, config):
        place_name = tensor.places[0].name
        if place_name == HEAD and row.tied and place_name not in reader.tensors:
            continue
        sources = [_source(reader, tensor, place, config) for place in tensor.places]
        names_left -= {source.name for source in sources}
        info = _info(reader, tensor, sources)
        if FLOAT32.fullmatch(place_name) and info.format == _F32:
            vectors.append(info.name)
        count = math.prod(tensor.shape[: tensor.axis + 1])
        gathers.append(Gathered(info, info.nbytes // count, tensor.places[0].rows.period, sources))
        for ending in ROLES if _is_blocks(reader.tensors[sources[0].name]) else ():
            side_tensors = _side_tensors(reader, tensor, ending, config)
            names_left -= {source.name for one in side_tensors for source in one.sources}
            gathers += side_tensors
    if names_left:
        raise CheckpointError(f"tensor {min(names_left)!r} has no place in a model of {row.model}")
    return gathers, vectors


def _source(
    reader: GgufReader, tensor: MappedTensor, place: Place, config: Mapping[str, Any]
) -> GatheredSource:
    """Find a tensor of the file, or an expert in it, and check its shape."""
    name, shape = place.name, list(tensor.shape)
    if name not in reader.tensors:
        raise CheckpointError(f"it lacks {name!r}, which becomes {tensor.name!r}")
    shape[tensor.axis] = place.rows.count(shape[tensor.axis])
    experts = 1 if place.expert is None else experts_of(config)
    whole_shape = (*([] if place.expert is None else [experts]), *shape)
    if (stored_shape := reader.logical_shape(name)) != whole_shape:
        raise CheckpointError(
            f"tensor {name!r} has the shape {stored_shape}, and the hyperparameters "
            f"state {whole_shape}"
        )
    begin = reader.tensors[name].nbytes // experts * (place.expert or 0)
    return GatheredSource(name, begin, place.rows.picks)


def _side_tensors(
    reader: GgufReader, tensor: MappedTensor, ending: str, config: Mapping[str, Any]
) -> list[Gathered]:
    """Return the numbers that are beside a tensor's weights: that of an expert, or all."""
    stored_names = [name for place in tensor.places for name in names_beside(place.name, ending, 1)]
    if not any(name in reader.tensors for name in stored_names):
        return []
    gathers: list[Gathered] = []
    names = names_beside(tensor.name, ending, len(stored_names))
    for place, name, new_name in zip(tensor.places, stored_names, names, strict=True):
        info = reader.tensors.get(name)
        if info is None:
            raise CheckpointError(f"it lacks {name!r}, and others of {tensor.name!r} are there")
        experts = math.prod(tensor.shape[: tensor.axis])
        whole_shape = (experts if place.expert is None else experts_of(config),)
        if info.shape != whole_shape or info.format != _F32:
            raise CheckpointError(
                f"tensor {name!r} is {info.stored} of shape {info.shape}, and factors are {_F32} "
                f"of shape {whole_shape}"
            )
        size = info.nbytes // info.shape[0]
        if place.expert is not None:
            info = info._replace(shape=(1,), nbytes=size)
        source = GatheredSource(name, size * (place.expert or 0), np.arange(1))
        gathers.append(Gathered(info._replace(name=new_name), size, 1, [source]))
    return gathers


def _info(reader: GgufReader, tensor: MappedTensor, sources: list[GatheredSource]) -> TensorInfo:
    leading = reader.tensors[sources[0].name]
    if not (is_blocks := _is_blocks(leading)):
        check_computed(leading)
    infos = (reader.tensors[source.name] for source in sources)
    different = next((info for info in infos if info.stored != leading.stored), None)
    if different is not None:
        raise CheckpointError(
            f"tensors {leading.name!r} ({leading.stored}) and "
            f"{different.name!r} ({different.stored}) are one in transformers"
        )
    if tensor.axis and not is_blocks and leading.name.endswith(WEIGHT):
        raise CheckpointError(
            f"tensor {leading.name!r} is not quantized, and transformers has such experts the "
            "other way round"
        )
    shape = tensor.shape
    if is_blocks:
        width = reader.logical_shape(leading.name)[-1] // leading.shape[-2]
        shape = (*shape[:-1], shape[-1] // width, leading.shape[-1])
    nbytes = math.prod(shape) * numpy_dtype(leading.format or "").itemsize
    return leading._replace(name=tensor.name, shape=shape, nbytes=nbytes)


def _is_blocks(info: TensorInfo) -> bool:
    return info.stored != info.format


def _is_exact(reader: GgufReader, name: str, dtype: str | None) -> bool:
    """Return True if all elements of a tensor of float32 are those of another format."""
    values = reader.read(name)
    copy = cast(cast(values, numpy_dtype(dtype or "")), np.float32)
    return bool(np.array_equal(copy.view(np.uint32), values.view(np.uint32)))
