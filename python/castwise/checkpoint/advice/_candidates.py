"""What each weight may become, with the bytes that this takes in a file."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

from castwise._core import finfo
from castwise.arrays.dtype_map import KEEP, DtypeMap
from castwise.checkpoint._errors import CheckpointError
from castwise.checkpoint._tensors import TensorInfo
from castwise.checkpoint.advice._consumers import Limits
from castwise.checkpoint.containers import whole_model_refusal
from castwise.checkpoint.containers.checkpoint import Checkpoint
from castwise.checkpoint.containers.registry import model_format
from castwise.checkpoint.containers.whole_models import ModelFormat, WholeModelReader
from castwise.checkpoint.planning.checkpoint_model import CheckpointModel
from castwise.checkpoint.planning.decode.options import FORMATS
from castwise.checkpoint.planning.derived_reader import DerivedTensor
from castwise.checkpoint.planning.encode.encode import Encode, candidate_parts
from castwise.checkpoint.planning.written_schemes import (
    is_scheme,
    most_versatile_recipe,
    written_schemes,
)
from castwise.models.architecture import Architecture
from castwise.models.model import MATRIX
from castwise.quantization.producers.block_types import BLOCK_TYPES
from castwise.quantization.producers.registry import SEVERAL, TYPED, WRITTEN
from castwise.text.spelling import suggestion
from castwise.text.wording import parenthesis, setting

_WIDE_BITS = 16
WIDE_FORMATS = tuple(name for name in FORMATS if finfo(name).bits == _WIDE_BITS)
"""Formats that need no scale, to which weights are cast."""

# The elements of the smallest blocks of llama.cpp.
_LEAST_BLOCK = min(elements for _, elements, _ in BLOCK_TYPES.values())

# Bytes of a tensor's entry in the header of a safetensors file, beside its name, at most.
_HEADER_ENTRY = 110

# Bytes of its entry in an index, beside its name and that of its shard.
_INDEX_ENTRY = 12


@dataclass(frozen=True, slots=True)
class Candidates:
    """What the weights of a checkpoint may become."""

    tensors: Mapping[str, TensorInfo]
    nbytes: Mapping[str, Mapping[str, int]]
    """Of each weight by "keep", format or scheme: codes, scales, and their entries at most."""
    recipe: str
    limits: Limits | None  # None if no consumer was named
    model: CheckpointModel
    embeddings: bool  # whether embeddings and heads may get schemes
    has_formats: bool  # whether the caller named formats
    architecture: Architecture | None  # as a user says; None if nobody does

    def _schemes(self) -> set[str]:
        return {*filter(is_scheme, {target for sizes in self.nbytes.values() for target in sizes})}

    def by_default(self) -> Candidates:
        """Return these without the schemes that the consumer loads only with an option."""
        if self.limits is None:
            return self
        loads = self.limits.loads_by_default
        optional = {scheme for scheme in self._schemes() if not loads(scheme)}
        return self._without(optional) if optional else self

    def each_alone(self) -> list[Candidates]:
        schemes = self._schemes()
        return [self._without(schemes - {scheme}) for scheme in sorted(schemes)]

    def alternatives(self) -> list[Candidates]:
        """Return what checkpoints may hold that can be stated, and loaded."""
        # A producer that states one scheme has each scheme alone. Where experts may not stay beside
        # quantized weights, they either get a scheme, or no weight does.
        schemes = self._schemes()
        if self.recipe not in SEVERAL and len(schemes) > 1:
            return self.each_alone()
        experts = [
            name
            for name, info in self.tensors.items()
            if self.model.layer_of_expert(name) is not None and len(info.shape) == MATRIX
        ]
        if self.limits is None or self.limits.loading.keeps_experts or not experts:
            return [self]
        plain = self._without(schemes)
        expert_schemes = schemes.intersection(*(self.nbytes[name] for name in experts))
        others = {target for sizes in self.nbytes.values() for target in sizes} - schemes
        return [self._without(others, experts), plain] if expert_schemes else [plain]

    def without(self, targets: Mapping[str, str]) -> Candidates:
        """Return these without one target of each of some weights."""
        nbytes = dict(self.nbytes)
        for name, target in targets.items():
            nbytes[name] = {other: size for other, size in nbytes[name].items() if other != target}
        return replace(self, nbytes=nbytes)

    def _without(self, targets: set[str], names: Iterable[str] | None = None) -> Candidates:
        weight_names = self.nbytes if names is None else names
        nbytes = {
            name: {
                target: size for target, size in self.nbytes[name].items() if target not in targets
            }
            for name in weight_names
        }
        return replace(self, nbytes={**self.nbytes, **nbytes})


def find_candidates(
    source: Checkpoint,
    formats: Sequence[str] | None,
    recipe: str | None,
    threads: int,
    limits: Limits | None = None,
    *,
    embeddings: bool,
    architecture: Architecture | None = None,
) -> Candidates:
    """List what each weight may become, of a consumer what it loads."""
    # `embeddings` says that embeddings and heads may get schemes, too.
    recipe = _recipe_of(source, recipe if limits is None else limits.recipe)
    schemes, wide = _targets(formats, recipe, limits)
    infos, entries = source.tensors, EntrySizes.of(source, recipe)
    model = CheckpointModel(source, architecture)
    model.check_rows(architecture)
    sizes: dict[str, dict[str, int]] = {}
    encode = plain_encode(recipe, threads)._replace(
        consumer=None if limits is None else limits.consumer.name,
        embeddings=embeddings,
        architecture=architecture,
    )
    encodes = [encode._replace(scheme=scheme) for scheme in schemes]
    entry_bytes = {name: entries.nbytes(name) for name in infos}
    for names, parts_by_scheme in candidate_parts(source, encodes):
        for encode in encodes:
            scheme = encode.scheme or ""
            if scheme not in parts_by_scheme:
                continue
            parts = parts_by_scheme[scheme]
            # The parts of all are named as those of the first, whose own name is as much longer.
            nbytes = sum(_part_bytes(part) + entries.nbytes(part.info.name) for part in parts)
            first = entry_bytes[names[0]]
            for name in names:
                if limits is not None and not limits.loading.holds(
                    scheme,
                    is_expert=model.layer_of_expert(name) is not None,
                    is_stack=len(infos[name].shape) > MATRIX,
                ):
                    continue
                longer = entry_bytes[name] - first
                sizes.setdefault(name, {})[scheme] = nbytes + len(parts) * longer
    for name, info in infos.items():
        for target in wide:
            if info.kind == "float" and info.format is not None and len(info.shape) > 1:
                narrower = finfo(target).bits < finfo(info.format).bits
                if narrower:
                    nbytes = math.prod(info.shape) * finfo(target).itemsize
                    nbytes += entry_bytes[name]
                    sizes.setdefault(name, {})[target] = nbytes
    if not sizes:
        weights = [info for info in infos.values() if info.kind == "float" and len(info.shape) > 1]
        remedy = "keep it as it is" if formats is None else "name others " + parenthesis("formats")
        if recipe == TYPED and all(info.shape[-1] % _LEAST_BLOCK for info in weights):
            remedy = (
                f"blocks have {_LEAST_BLOCK} elements or more, and no row in it has whole ones; "
                "keep it as it is"
            )
        raise CheckpointError(
            f"{source.path}: no weight in it may become {' or '.join([*schemes, *wide])}; " + remedy
        )
    tensors = {name: infos[name] for name in infos if name in sizes}
    all_sizes = {
        name: {KEEP: (keep_bytes := infos[name].nbytes + entry_bytes[name])}
        | {target: size for target, size in sizes[name].items() if size < keep_bytes}
        for name in tensors
    }
    return Candidates(
        tensors,
        all_sizes,
        recipe,
        limits,
        model,
        embeddings,
        has_formats=formats is not None,
        architecture=architecture,
    )


def _recipe_of(source: Checkpoint, recipe: str | None) -> str:
    """Return the producer of a name, or the usual one; refuse files of whole models of others."""
    is_whole = isinstance(source.file, WholeModelReader)
    if recipe is None:
        return TYPED if is_whole else most_versatile_recipe()
    if is_whole and recipe != TYPED:
        raise whole_model_refusal(source.path, source.suffix)
    return recipe


def _targets(
    formats: Sequence[str] | None, recipe: str, limits: Limits | None
) -> tuple[list[str], list[str]]:
    available = [
        scheme for scheme in written_schemes(recipe) if limits is None or limits.loads(scheme)
    ]
    # A file of a whole model has other weights as they are.
    wide_formats = () if recipe == TYPED else WIDE_FORMATS
    if formats is None:
        return available, list(wide_formats)
    if not isinstance(formats, Iterable):
        raise TypeError(setting("formats", formats) + " is not a list of names")
    if isinstance(formats, str | bytes):
        raise TypeError(setting("formats", formats) + " is a text; give a list of names")
    schemes: list[str] = []
    wide: list[str] = []
    for name in formats:
        if name in wide_formats:
            wide.append(name)
        elif name in available:
            schemes.append(name)
        else:
            candidate_names = [*available, *wide_formats]
            raise CheckpointError(
                setting("formats", name) + f" is not a candidate: {_reason(name, recipe, limits)}; "
                f"{suggestion(name, candidate_names)}use some of {', '.join(candidate_names)}"
            )
    return schemes, wide


def _reason(name: str, recipe: str, limits: Limits | None) -> str:
    if name in WIDE_FORMATS:
        return f"a .{recipe} file keeps the dtype of what is not quantized"
    if not is_scheme(name):
        return "no scheme or format has it"
    if limits is not None and not limits.loads(name):
        return f"{limits.consumer.name} does not load it as {recipe} stores it"
    if any((row.recipe, row.scheme) == (recipe, name) for row in WRITTEN):
        return f"{recipe} stores it with biases of groups, whose errors are not predicted"
    return f"{recipe} writes none of it"


def typed_format() -> ModelFormat:
    """Return the container of whole models whose files state the scheme of each tensor."""
    model = model_format(f".{TYPED}")
    assert model is not None, "it is in the table of containers"  # noqa: S101
    return model


def plain_encode(recipe: str, threads: int) -> Encode:
    """Return a request of a recipe that quantizes nothing, as it has no scheme."""
    return Encode(None, recipe, None, (), DtypeMap.from_mapping({}, "map"), {}, threads)


def _part_bytes(part: DerivedTensor) -> int:
    bits = math.prod(part.info.shape) * finfo(part.format).bits
    return -(-bits // 8)


@dataclass(frozen=True, slots=True)
class EntrySizes:
    """The entries of tensors in the headers of shards, and in an index."""

    index_bytes: int | None  # beside the name of the tensor, at most; None without an index
    # What may lie behind a tensor in a file of a whole model, whose header has one size whatever
    # the types of its tensors are; None for other files
    padding: int | None = None

    @classmethod
    def of(cls, source: Checkpoint, recipe: str) -> EntrySizes:
        """Return those of what a checkpoint becomes, whose shards keep their names."""
        if recipe == TYPED:
            file = source.file
            form = file if isinstance(file, WholeModelReader) else typed_format()
            return cls(None, form.alignment - 1)
        if not source.is_folder:
            return cls(None)
        longest = max((len(PurePosixPath(path).name) for path in source.shards), default=0)
        return cls(_INDEX_ENTRY + longest)

    def nbytes(self, name: str) -> int:
        """Return the bytes of the entries of a tensor, at most."""
        if self.padding is not None:
            return self.padding
        letters = len(json.dumps(name))
        header = letters + _HEADER_ENTRY
        return header if self.index_bytes is None else header + letters + self.index_bytes
