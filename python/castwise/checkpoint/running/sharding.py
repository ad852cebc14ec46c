"""Divide tensors into the files to be written, of sizes as users give them, and name these."""

import io
import logging
import re
from collections.abc import Collection, Mapping
from fractions import Fraction

from castwise._numbers import is_integer
from castwise._options import SAFETENSORS
from castwise.checkpoint._errors import CheckpointError, join_names
from castwise.checkpoint._tensors import Planned
from castwise.checkpoint.containers.checkpoint import Component
from castwise.checkpoint.containers.interface import Reader
from castwise.checkpoint.containers.safetensors import SafetensorsWriter
from castwise.checkpoint.containers.weight_files import safetensors_name
from castwise.checkpoint.plan import CastOptions
from castwise.checkpoint.running._conversion import nbytes_after
from castwise.checkpoint.running.output_files import (
    OutputComponent,
    OutputFile,
    Source,
    joined_source,
)
from castwise.text.wording import argument, parenthesis, setting

# At most 18 digits: the largest such number is below 2^63.
_SIZE = r"([0-9]{1,18}(?:\.[0-9]+)?) ?(?:([kKMGT])(i?)B|([kmgt])(i?)b|B)|([0-9]{1,18})"
# Of 1000, or of 1024 where "i" stands before "B", as of IEC 80000-13.
_POWERS = {"K": 1, "M": 2, "G": 3, "T": 4}


def size_in_bytes(name: str, size: object) -> int:
    """Return the size that an argument states: an int, or text such as "5GB" or "2GiB"."""
    # Text that is a whole number counts bytes, as an int does.
    if isinstance(size, str):
        match = re.fullmatch(_SIZE, size.strip())
        if match is None:
            raise ValueError(
                setting(name, size) + " is not a size in bytes such as 33000000, '5GB' or '2GiB'"
            )
        number, unit, binary = match[1] or match[6], match[2] or match[4], match[3] or match[5]
        power = _POWERS[unit.upper()] if unit else 0
        # Exact: the product of a float may be just below a whole number, which int would cut.
        size = int(Fraction(number) * (1024 if binary else 1000) ** power)
    if not is_integer(size):
        raise TypeError(argument(name) + f" must be an int or a str, not {size!r}")
    if size <= 0:
        raise ValueError(argument(name) + f" must be positive, not {size}")
    return int(size)


def shard_bytes(size: object) -> int | None:
    """Return the size of a shard in bytes; None for shards of any size."""
    return None if size is None else size_in_bytes("max_shard_size", size)


_LOGGER = logging.getLogger(__name__)
# What the names of the files begin with that transformers, diffusers and peft load.
_LOADED = ("model", "diffusion_pytorch_model", "adapter_model")

# The end of `model-00001-of-00004`, as transformers names shards.
_NUMBERED = r"-\d{5}-of-\d{5}$"


def same_files(
    component: Component, plans_of_shards: Mapping[str, list[Planned]], options: CastOptions
) -> OutputComponent:
    """Make each file of a component from one of the source, with its name in safetensors."""
    targets = [
        OutputFile(
            safetensors_name(name), [(reader, plans_of_shards[name])], reader.metadata, options
        )
        for name, reader in component.shards.items()
    ]
    index_name = component.index_name and safetensors_name(component.index_name)
    component_targets = OutputComponent(component, targets, index_name, is_divided=False)
    if len(component_targets.names) < len(targets):
        raise CheckpointError(
            f"shards would have the same name as safetensors: {join_names([*component.shards])}; "
            "divide the tensors anew " + parenthesis("max_shard_size")
        )
    return component_targets


def one_file(
    name: str,
    shards: Mapping[str, Reader],
    plans_of_shards: Mapping[str, list[Planned]],
    options: CastOptions,
) -> OutputFile:
    _check_distinct(shards, plans_of_shards)
    sources = [(reader, plans_of_shards[shard]) for shard, reader in shards.items()]
    return OutputFile(name, sources, _metadata(shards), options)


def divide(
    component: Component,
    plans_of_shards: Mapping[str, list[Planned]],
    options: CastOptions,
    limit: int,
    *,
    is_file: bool,
) -> OutputComponent:
    """Divide the tensors of a component, in their order, into shards of at most `limit` bytes."""
    # Shards are named as transformers does it, after the files that they come from; if that
    # `is_file` without a folder, and of a name that no library loads, "model".
    stem, variant = _stem(component, is_file=is_file)
    whole = one_file(f"{stem}{variant}{SAFETENSORS}", component.shards, plans_of_shards, options)
    writer = SafetensorsWriter(io.BytesIO(), whole.plans, {}, joined_source(whole))
    shards: list[list[Source]] = []
    shard: list[Source] = []
    size = 0
    # The rule is that of huggingface_hub: the sizes are those of the tensors, and one that is
    # larger than the limit has a shard of its own.
    for reader, plans in whole.sources:
        for plan in plans:
            nbytes = nbytes_after(writer, plan.info.name)
            if nbytes > limit:
                shards.append([(reader, [plan])])
                continue
            if size + nbytes > limit:
                shards.append(shard)
                shard, size = [], 0
            if not shard or shard[-1][0] is not reader:
                shard.append((reader, []))
            shard[-1][1].append(plan)
            size += nbytes
    if shard or not shards:
        shards.append(shard or [(reader, []) for reader, _ in whole.sources[:1]])
    count = len(shards)
    suffixes = (
        [f"-{number:05d}-of-{count:05d}" for number in range(1, count + 1)] if count > 1 else [""]
    )
    targets = [
        whole._replace(
            name=f"{component.prefix}{stem}{variant}{suffix}{SAFETENSORS}", sources=sources
        )
        for suffix, sources in zip(suffixes, shards, strict=True)
    ]
    index_name = f"{component.prefix}{stem}{SAFETENSORS}.index{variant}.json" if count > 1 else None
    return OutputComponent(component, targets, index_name, is_divided=True)


def _stem(component: Component, *, is_file: bool) -> tuple[str, str]:
    """Return what the names of the files begin with, and the variant with a dot before it."""
    file_name = component.index_name or next(iter(component.shards))
    file_name = safetensors_name(file_name[len(component.prefix) :])
    stem, _, ending = file_name.rpartition(f"{SAFETENSORS}.index")
    if stem:
        return stem, ending.removesuffix(".json")
    stem = re.sub(_NUMBERED, "", file_name.rpartition(".")[0])
    library_stem, dot, variant = stem.partition(".")
    if library_stem in _LOADED:
        return library_stem, dot + variant
    return ("model" if is_file else stem), ""


def _check_distinct(shards: Collection[str], plans_of_shards: Mapping[str, list[Planned]]) -> None:
    """CheckpointError if two shards have a tensor of the same name."""
    homes: dict[str, str] = {}
    for shard in shards if len(shards) > 1 else ():
        for name in (plan.info.name for plan in plans_of_shards[shard]):
            if name in homes:
                raise CheckpointError(
                    f"tensor {name!r} is in {homes[name]} and in {shard}, which cannot become one "
                    "file, or be divided anew; remove one of them"
                )
            homes[name] = shard


def _metadata(shards: Mapping[str, Reader]) -> dict[str, str]:
    """Return the metadata of all shards; a warning names a key on which they differ."""
    pairs: dict[str, str] = {}
    for shard, reader in shards.items():
        for key, text in reader.metadata.items():
            if pairs.setdefault(key, text) != text:
                _LOGGER.warning(
                    "metadata %r of %s is not that of the shards before it and was left out",
                    key,
                    shard,
                )
    return pairs
