"""The files to be written, and which tensors of the source go into each."""

from __future__ import annotations

import io
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from math import prod
from pathlib import Path
from typing import Any, BinaryIO, cast

from castwise._wording import argument, given
from castwise.checkpoint._errors import CheckpointError, listed
from castwise.checkpoint._tensors import Planned, format_info
from castwise.checkpoint.containers import container_of, new_writer
from castwise.checkpoint.containers._interface import Reader, Writer
from castwise.checkpoint.containers._weight_files import safetensors_name
from castwise.checkpoint.containers.checkpoint import Component
from castwise.checkpoint.containers.folder import new_index
from castwise.checkpoint.containers.safetensors import (
    JoinedShards,
    SafetensorsReader,
    SafetensorsWriter,
    check_codes,
)
from castwise.checkpoint.files._remote import Upload
from castwise.checkpoint.files._replacing import folder_of
from castwise.checkpoint.plan import CastOptions
from castwise.checkpoint.report import CastRow, ProgressMeter
from castwise.checkpoint.running._pieces import Conversion, nbytes_after, row_of

_LOGGER = logging.getLogger(__name__)
_SUFFIX = ".safetensors"
_LOADED = ("model", "diffusion_pytorch_model", "adapter_model")
"""What the names of the files begin with that transformers, diffusers and peft load."""

_NUMBERED = re.compile(r"-\d{5}-of-\d{5}$")
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?(?:([kKMGT])(i?)B|([kmgt])(i?)b|B)")
_POWERS = {"K": 1, "M": 2, "G": 3, "T": 4}
_BYTE_BITS = 8
_WITH_PLACES = (_SUFFIX, ".npy", ".gguf")
"""Containers whose header tells all places, so that several processes can write one file."""


Source = tuple[Reader, list[Planned]]
"""A file, and what becomes of those of its tensors that go into one target."""


@dataclass(frozen=True, slots=True)
class Target:
    """A file to be written.

    Attributes
    ----------
    name
        Its path in the new folder; of a single file its name.
    sources
        Where its tensors come from.
    metadata
        Its metadata.

    """

    name: str
    sources: Sequence[Source]
    metadata: Mapping[str, str]

    @property
    def planned(self) -> list[Planned]:
        """All that becomes of tensors in it."""
        return [planned for _, plans in self.sources for planned in plans]

    def least_nbytes(self) -> int:
        """Return the bytes that its tensors take at least."""
        return sum(_least_nbytes(planned) for planned in self.planned)

    def write(
        self, file: BinaryIO, options: CastOptions, meter: ProgressMeter, shard: str | None
    ) -> list[CastRow]:
        """Write it into an empty file; `shard` is what the rows call it."""
        if isinstance(file, Upload) and len(self.sources) > 1:
            return self._upload(file, options, meter, shard)
        rows: list[CastRow] = []
        folder = folder_of(file)
        *earlier, last = self.sources
        # The last stays open until the writer is done: it may have more than tensors to copy.
        with opened(last[0]):
            with self._writer(file) as writer:
                for reader, plans in earlier:
                    with opened(reader):
                        conversion = _conversion(reader, plans, writer, options)
                        rows += conversion.rows(conversion.here(meter, folder), shard)
                        reader.check_unchanged()
                conversion = _conversion(*last, writer, options)
                rows += conversion.rows(conversion.here(meter, folder), shard)
            last[0].check_unchanged()
        return self.in_order(rows, writer.order)

    def _upload(
        self, file: Upload, options: CastOptions, meter: ProgressMeter, shard: str | None
    ) -> list[CastRow]:
        """Write an object from end to end: each source again wherever its tensors come."""
        rows: list[CastRow] = []
        readers = {plan.info.name: reader for reader, plans in self.sources for plan in plans}
        with self._writer(cast("BinaryIO", file)) as writer:
            for reader, names in groupby(writer.order, readers.__getitem__):
                with opened(reader):
                    conversion = Conversion(reader, writer, options, set(names))
                    rows += conversion.rows(conversion.here(meter), shard)
                    reader.check_unchanged()
        return rows

    def in_order(self, rows: list[CastRow], names: Sequence[str]) -> list[CastRow]:
        """Return rows, given source by source, in the order of the tensors in the file."""
        if len(self.sources) == 1:
            return rows
        places = {name: place for place, name in enumerate(names)}
        return sorted(rows, key=lambda row: places[row.name])

    def check_codes(self) -> None:
        """CheckpointError naming the first tensor that safetensors could only hold as bytes."""
        if container_of(Path(self.name)) == _SUFFIX:
            for reader, plans in self.sources:
                check_codes(plans, keeps=isinstance(reader, SafetensorsReader))

    def conversions(self, options: CastOptions) -> list[Conversion] | None:
        """Return what is to be converted into the file at its places; None if there are not all."""
        if container_of(Path(self.name)) not in _WITH_PLACES:
            return None
        conversions = []
        with self._writer(io.BytesIO()) as writer:
            for source in self.sources:
                conversions.append(_conversion(*source, writer, options))
                if not conversions[-1].is_placed:
                    return None
        return conversions

    def write_header(self, file: BinaryIO) -> None:
        """Write what stands before the tensors."""
        with self._writer(file):
            file.flush()

    def preview(self, shard: str | None) -> list[CastRow]:
        """Return the rows of the tensors as they will be, without their reports."""
        with self._writer_of_nothing() as writer:
            return [row_of(writer, name, None, shard) for name in writer.order]

    @property
    def has_other_orders(self) -> bool:
        """True if tensors of the source are not in C order."""
        return any(
            reader.arrangement(plan.info.name) is not None
            for reader, plans in self.sources
            for plan in plans
        )

    def sizes(self, options: CastOptions) -> list[tuple[int, int]]:
        """Return what `Conversion.sizes` does, for all its tensors."""
        with self._writer_of_nothing() as writer:
            conversions = [_conversion(*source, writer, options) for source in self.sources]
            return [size for conversion in conversions for size in conversion.sizes()]

    @contextmanager
    def _writer_of_nothing(self) -> Iterator[Writer]:
        """Make the writer for a block that writes nothing."""
        # The error makes the writer leave the container as it is.
        with suppress(_PreviewDone), self._writer(io.BytesIO()) as writer:
            yield writer
            raise _PreviewDone

    def _writer(self, file: BinaryIO) -> Writer:
        return new_writer(Path(self.name), file, self.planned, self.metadata, _source(self))


class _PreviewDone(Exception):  # noqa: N818  (it is no error)
    """Ends a block."""


@dataclass(frozen=True, slots=True)
class TargetComponent:
    """The files that become of one component of the source.

    Attributes
    ----------
    component
        That component.
    targets
        The files.
    index_name
        Path of their index in the new folder, None if there is none.
    divided
        True if their tensors are divided otherwise than in the source.

    """

    component: Component
    targets: Sequence[Target]
    index_name: str | None
    divided: bool

    @property
    def names(self) -> set[str]:
        """The paths of the files."""
        return {target.name for target in self.targets}

    def index(self, rows: Sequence[CastRow]) -> str:
        """Return the index for rows of these files."""
        cut = len(self.component.prefix)
        if self.divided:
            weight_map = {row.name: (row.shard or "")[cut:] for row in rows}
            total = sum(row.nbytes_after for row in rows)
            return new_index(self.component, dict(sorted(weight_map.items())), total)
        weights: Mapping[str, str] = self.component.index["weight_map"]
        weight_map = {name: safetensors_name(shard) for name, shard in weights.items()}
        total = sum(
            row.nbytes_after for row in rows if weight_map.get(row.name) == (row.shard or "")[cut:]
        )
        return new_index(self.component, weight_map, total)


def meanwhile_nbytes(targets: Sequence[Target], options: CastOptions, following: int = 0) -> int:
    """Return how many bytes more files take as they are written, one by one, than in the end.

    They are those of temporary files, for tensors that are brought into another order;
    `following` is how many bytes are written after the files.
    """
    most = 0
    if any(target.has_other_orders for target in targets):
        sizes = [size for target in targets for size in target.sizes(options)]
        for nbytes, temporary in reversed(sizes):
            most = max(most, temporary - following)
            following += nbytes
    return most


def shard_bytes(size: Any) -> int | None:
    """Return the size of a shard in bytes: an int, or text such as "5GB" or "2GiB".

    Raises
    ------
    ValueError, TypeError
        It is not the size of anything.

    """
    if size is None:
        return None
    if isinstance(size, str):
        match = _SIZE.fullmatch(size.strip())
        if match is None:
            raise ValueError(
                f"{given('max_shard_size', size)} is not a size in bytes such as '5GB' or '2GiB'"
            )
        number, unit, binary = match[1], match[2] or match[4], match[3] or match[5]
        power = _POWERS[unit.upper()] if unit else 0
        size = int(float(number) * (1024 if binary else 1000) ** power)
    if isinstance(size, bool) or not isinstance(size, int):
        raise TypeError(f"max_shard_size must be an int or a str, not {size!r}")
    if size <= 0:
        raise ValueError(f"max_shard_size must be positive, not {size}")
    return size


def same_files(component: Component, planned: Mapping[str, list[Planned]]) -> TargetComponent:
    """Make each file of a component from one of the source, with its name in safetensors."""
    targets = [
        Target(safetensors_name(name), [(reader, planned[name])], reader.metadata)
        for name, reader in component.shards.items()
    ]
    index_name = component.index_name and safetensors_name(component.index_name)
    component_targets = TargetComponent(component, targets, index_name, divided=False)
    if len(component_targets.names) < len(targets):
        raise CheckpointError(
            f"shards would have the same name as safetensors: {listed([*component.shards])}; "
            f"divide the tensors anew ({argument('max_shard_size')})"
        )
    return component_targets


def one_file(
    name: str, shards: Mapping[str, Reader], planned: Mapping[str, list[Planned]]
) -> Target:
    """Make one file of all shards."""
    _check_distinct(planned)
    sources = [(reader, planned[shard]) for shard, reader in shards.items()]
    return Target(name, sources, _metadata(shards))


def divided(
    component: Component, planned: Mapping[str, list[Planned]], limit: int, *, is_file: bool
) -> TargetComponent:
    """Divide the tensors of a component, in their order, into shards of at most `limit` bytes.

    The rule is that of huggingface_hub: the sizes are those of the tensors, and one that is larger
    than the limit has a shard of its own. Tensors that the index did not name are in the new one.
    Shards are named as transformers does it, after the files that they come from; if that
    `is_file` without a folder, and of a name that no library loads, "model".
    """
    stem, variant = _stem(component, is_file=is_file)
    whole = one_file(f"{stem}{variant}{_SUFFIX}", component.shards, planned)
    writer = SafetensorsWriter(io.BytesIO(), whole.planned, {}, _source(whole))
    shards: list[list[Source]] = []
    shard: list[Source] = []
    size = 0
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
        Target(f"{component.prefix}{stem}{variant}{suffix}{_SUFFIX}", sources, whole.metadata)
        for suffix, sources in zip(suffixes, shards, strict=True)
    ]
    index_name = f"{component.prefix}{stem}{_SUFFIX}.index{variant}.json" if count > 1 else None
    return TargetComponent(component, targets, index_name, divided=True)


def _stem(component: Component, *, is_file: bool) -> tuple[str, str]:
    """Return what the names of the files begin with, and the variant with a dot before it."""
    file_name = component.index_name or next(iter(component.shards))
    file_name = safetensors_name(file_name[len(component.prefix) :])
    stem, _, ending = file_name.rpartition(f"{_SUFFIX}.index")
    if stem:
        return stem, ending.removesuffix(".json")
    stem = _NUMBERED.sub("", file_name.rpartition(".")[0])
    loaded, dot, variant = stem.partition(".")
    if loaded in _LOADED:
        return loaded, dot + variant
    return ("model" if is_file else stem), ""


def _check_distinct(planned: Mapping[str, list[Planned]]) -> None:
    """CheckpointError if two shards have a tensor of the same name."""
    homes: dict[str, str] = {}
    for shard, plans in planned.items() if len(planned) > 1 else ():
        for name in (plan.info.name for plan in plans):
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


def opened(reader: Reader) -> AbstractContextManager[Reader]:
    """Open the file of a shard for a block; that of another container is open as the run lasts."""
    return reader if reader.reopens else nullcontext(reader)


def _source(target: Target) -> Reader | None:
    """Return what says how the tensors of a target stand in their files."""
    readers = [reader for reader, _ in target.sources]
    if len(readers) == 1:
        return readers[0]
    shards = [reader for reader in readers if isinstance(reader, SafetensorsReader)]
    return JoinedShards(shards) if len(shards) == len(readers) else None


def _least_nbytes(plan: Planned) -> int:
    if plan.target is None:
        return plan.info.nbytes
    return prod(plan.info.shape) * _least_bits(plan.target) // _BYTE_BITS


@lru_cache
def _least_bits(name: str) -> int:
    """Return the bits of an element in the container that packs it most densely."""
    info = format_info(name)
    return _BYTE_BITS if info.kind == "bool" else int(info.bits)


def _conversion(
    reader: Reader, plans: Sequence[Planned], writer: Writer, options: CastOptions
) -> Conversion:
    is_part = len(plans) < len(writer.planned)
    names = {plan.info.name for plan in plans} if is_part else None
    return Conversion(reader, writer, options, names)
