"""The shards of a checkpoint as they are derived: decoded, encoded or transcoded.

A reader stands for each of them: its tensors are derived as they are read, in slabs of whole blocks
by several threads, and all other tensors lie in the file as they are. What others are made of is
not there any more.
"""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, chain, islice
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, Self, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from castwise._core import OpenFile
from castwise.checkpoint._errors import CheckpointError
from castwise.checkpoint._tensors import TensorInfo, numpy_dtype
from castwise.checkpoint.containers import Arrangement, Elements, Reader, to_bytes
from castwise.checkpoint.containers.checkpoint import Component
from castwise.checkpoint.files import handle
from castwise.checkpoint.planning._stored_tensors import StoredTensors
from castwise.checkpoint.report import Report

if TYPE_CHECKING:
    from castwise.quantization.weights import Decoding

_Result = TypeVar("_Result")

Slab = Callable[[], NDArray[Any]]
"""Reads and derives a slab of a tensor; slabs follow each other in C order."""


@dataclass(frozen=True, slots=True)
class DerivedTensor:
    """A tensor that is decoded, encoded or transcoded as it is read.

    Attributes
    ----------
    info
        Its name and shape as derived; as stored what it is made of, and the bytes of that.
    format
        The format that it is derived in.
    home
        The stored tensor in whose place it comes, such as that with the codes.
    sources
        All stored tensors that it is made of.
    slabs
        Lists the slabs that make it, in a format.
    measured
        Tells, when all slabs are made, what encoding or decoding lost; None for others.
    counts
        Lists the elements of each slab; None if only making a slab tells.
    scheme
        How its codes are quantised; None for other tensors.
    decoding
        How its values are decoded; None for other tensors.

    """

    info: TensorInfo
    format: str
    home: str
    sources: Collection[str]
    slabs: Callable[[str], Iterable[Slab]]
    measured: Callable[[], Report] | None = None
    counts: Callable[[], Iterable[int]] | None = None
    scheme: str | None = None
    decoding: Decoding | None = None


def derived_info(name: str, stored: str, shape: tuple[int, ...], nbytes: int) -> TensorInfo:
    """Describe a derived tensor, whose format as stored is None; `stored` is what it is made of."""
    return TensorInfo(name, None, "float", stored, shape, nbytes)


Derivation = Literal["decode", "encode", "transcode"]
"""How tensors are derived of those that are stored."""

PlanAgain = Callable[[], Mapping[Path, "DerivedReader"]]
"""Plans the readers of a run again, in another process; equal only to that of the same run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardPlan:
    """What becomes of one shard.

    Attributes
    ----------
    derivation
        How its tensors are derived.
    stored
        The tensors of all shards.
    derived
        What tensors of this shard become, by their names: a payload that is decoded one weight, a
        weight that is encoded several parts.
    left_out
        Tensors that have no place in the new shard.
    renamed
        Tensors that stay as they are under another name.
    metadata
        The metadata of the new shard.
    threads
        How many threads may read and derive.

    """

    derivation: Derivation
    stored: StoredTensors
    derived: Mapping[str, Sequence[DerivedTensor]]
    left_out: Collection[str]
    renamed: Mapping[str, str]
    metadata: dict[str, str]
    threads: int


class DerivedReader:
    """One shard, of which some tensors are decoded, encoded or transcoded.

    Parameters
    ----------
    reader
        The shard as it is.
    plan
        What becomes of it.

    Attributes
    ----------
    derivation
        "decode", "encode" or "transcode".
    again
        What plans it in another process; None if nobody asks for that.

    """

    reopens = True

    def __init__(self, reader: Reader, plan: ShardPlan) -> None:
        self.path = reader.path
        self.derivation = plan.derivation
        self.metadata = plan.metadata
        self.other_entries = reader.other_entries
        self.tensors: dict[str, TensorInfo] = {}
        self._reader = reader
        self._derived = {
            tensor.info.name: tensor for group in plan.derived.values() for tensor in group
        }
        self._stored = plan.stored
        self._threads = plan.threads
        for name, info in reader.tensors.items():
            if name in plan.derived:
                self.tensors |= {tensor.info.name: tensor.info for tensor in plan.derived[name]}
            elif name not in plan.left_out:
                new_name = plan.renamed.get(name, name)
                self.tensors[new_name] = info if new_name == name else info._replace(name=new_name)
        self._stored_names = {new_name: name for name, new_name in plan.renamed.items()}
        lists = {id(tensor.sources): tensor.sources for tensor in self._derived.values()}
        parts = {part for names in lists.values() for part in names}  # many may share one
        other_readers = [other for other in self._stored.readers(parts) if other is not reader]
        self._files: Sequence[Reader] = [reader, *other_readers]
        self._open = ExitStack()
        self._pool: ThreadPoolExecutor | None = None
        self.again: PlanAgain | None = None

    @property
    def state(self) -> list[int]:
        """Size and time of the files."""
        return [number for file in self._files for number in file.state]

    def check_unchanged(self) -> None:
        """CheckpointError if a file was changed since it was first opened."""
        for file in self._files:
            file.check_unchanged()

    def lost_entries(self) -> list[str]:
        """List what would be lost if a file of its tensors took its place."""
        return self._reader.lost_entries()

    def derived(self, name: str) -> DerivedTensor | None:
        """Return the tensor of this name if it is derived."""
        return self._derived.get(name)

    def report(self, name: str) -> Report | None:
        """Return what making a tensor lost, once it has been read; None for others."""
        tensor = self._derived.get(name)
        return None if tensor is None or tensor.measured is None else tensor.measured()

    def stored_name(self, name: str) -> str:
        """Return what a tensor that is not derived is called in the file."""
        return self._stored_names.get(name, name)

    def elements(self, name: str) -> Elements | None:
        """Return the format and order in which a tensor is read."""
        tensor = self._derived.get(name)
        return Elements(tensor.format) if tensor else self._reader.elements(self.stored_name(name))

    def stated(self) -> Any:  # noqa: ANN401  (of JSON)
        """Say that nothing is stated of quantised layers: the plan was made from the source's."""
        return None

    def arrangement(self, name: str) -> Arrangement | None:
        """Return where the items of a tensor stand; None if they are in C order, without gaps."""
        is_made = name in self._derived
        return None if is_made else self._reader.arrangement(self.stored_name(name))

    def place(self, name: str) -> tuple[BinaryIO, int] | None:
        """Return file and offset of a tensor's bytes; None if they pass through `pieces`."""
        is_made = name in self._derived
        return None if is_made else self._reader.place(self.stored_name(name))

    def expect(self, names: Iterable[str]) -> None:
        """Take note of the tensors that will be read by pieces, in this order."""
        self._reader.expect(self.stored_name(name) for name in names if name not in self._derived)

    def pieces(self, name: str, nbytes: int) -> Iterator[bytes]:
        """Read a tensor's bytes; those of a derived one come in slabs."""
        tensor = self._derived.get(name)
        if tensor is None:
            yield from self._reader.pieces(self.stored_name(name), nbytes)
            return
        for array in self.slabs(name):
            yield cast("bytes", to_bytes(array).data)  # as good to write

    def read(self, name: str) -> NDArray[Any]:
        """Read a tensor as an array of its format."""
        tensor = self._derived.get(name)
        if tensor is None:
            return self._reader.read(self.stored_name(name))
        whole = np.empty(math.prod(tensor.info.shape), numpy_dtype(tensor.format))
        done = 0
        for array in self.slabs(name):
            whole[done : done + array.size] = array.reshape(-1)
            done += array.size
        return whole.reshape(tensor.info.shape)

    def slabs(self, name: str, to: str | None = None) -> Iterator[NDArray[Any]]:
        """Derive the slabs of a tensor, as many at a time as there are threads.

        They are in C order, in the format `to` if it is not the tensor's own.
        """
        tensor = self._derived[name]
        return self._carried_out(tensor.slabs(to or tensor.format))

    def write(self, name: str, file: BinaryIO, begin: int) -> bool:
        """Make a tensor at its place in a file: each thread writes the slabs that it makes.

        Returns False, and writes nothing, if it is not such a tensor, or the places of its slabs
        are not known before.
        """
        tensor = self._derived.get(name)
        if tensor is None or tensor.counts is None:
            return False
        file.flush()  # what stands before
        target, itemsize = OpenFile(handle(file)), numpy_dtype(tensor.format).itemsize
        places = accumulate((count * itemsize for count in tensor.counts()), initial=begin)
        slabs = zip(tensor.slabs(tensor.format), places, strict=False)  # one place more: the end
        for _ in self._carried_out(partial(_write, *arguments, target) for arguments in slabs):
            pass
        return True

    def _carried_out(self, tasks: Iterable[Callable[[], _Result]]) -> Iterator[_Result]:
        """Return the results of tasks in their order, as many at a time as there are threads."""
        first, second, *_ = *islice(following := iter(tasks), 2), None, None
        if second is None:  # another thread would take longer to be told than a small slab
            yield from [] if first is None else [first()]
            return
        waiting: deque[Future[_Result]] = deque()
        assert self._pool is not None, "it is open"  # noqa: S101
        try:
            for task in chain([first, second], following):
                waiting.append(self._pool.submit(task))
                if len(waiting) > self._threads:
                    yield waiting[0].result()
                    waiting.popleft()
            while waiting:
                yield waiting[0].result()
                waiting.popleft()
        finally:
            for future in waiting:
                future.cancel()
            wait(waiting)  # they may be writing

    @contextmanager
    def beside_others(self) -> Iterator[DerivedReader]:
        """Open its files for a block of one of several threads."""
        copy = object.__new__(type(self))
        copy.__dict__ |= self.__dict__
        with copy:
            yield copy

    def __reduce__(self) -> tuple[Any, ...]:
        """In another process it is planned again, when it is needed there."""
        assert self.again is not None, "of a request"  # noqa: S101
        return PlannedElsewhere, (self.again, Path(os.path.abspath(self.path)), self.state)

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(self._stored.opened(self._files))
            self._pool = stack.enter_context(ThreadPoolExecutor(self._threads))
            self._open = stack.pop_all()
        return self

    def __exit__(self, *_error: object) -> None:
        self._open.close()


def _write(slab: Slab, place: int, target: OpenFile) -> None:
    """Make a slab at its place."""
    target.write_at(to_bytes(slab()), place)


@dataclass(frozen=True, slots=True)
class PlannedElsewhere:
    """Stands for a `DerivedReader` in another process, and plans it again there.

    Attributes
    ----------
    again
        What plans it.
    path
        Its file.
    state
        Size and time of the files, which must still hold.

    """

    again: PlanAgain
    path: Path
    state: Sequence[int]

    @contextmanager
    def beside_others(self) -> Iterator[DerivedReader]:
        """Open its files for a block of one of several threads.

        Raises
        ------
        CheckpointError
            One of them was changed since they were first opened.

        """
        with _PLANNING:
            planned = next((readers for again, readers in _PLANNED if again == self.again), None)
            if planned is None:
                planned = self.again()
                _PLANNED[:] = [(self.again, planned)]
        reader = planned.get(self.path)
        if reader is None or reader.state != self.state:
            raise CheckpointError(f"{self.path} was changed while it was read; run again")
        with reader.beside_others() as reopened:
            yield reopened


_PLANNED: list[tuple[PlanAgain, Mapping[Path, DerivedReader]]] = []
"""What another process planned last, for all batches of a run."""

_PLANNING = Lock()
"""Held while that is read or replaced: the threads of a worker convert batches of one run."""


def _renew_lock() -> None:
    """Let a forked process plan: the thread that held the lock may not be in it."""
    global _PLANNING  # noqa: PLW0603
    _PLANNING = Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock)


def with_tensors(
    component: Component, shards: Mapping[str, Reader], made_of: Mapping[str, Sequence[str]]
) -> Component:
    """Return a component with other shards, whose index follows.

    `made_of` names what tensors become; those that it does not have stay.
    """

    def names(stored_names: Iterable[str]) -> Iterator[tuple[str, str]]:
        return ((name, new_name) for name in stored_names for new_name in made_of.get(name, [name]))

    index = dict(component.index)
    if (weight_map := index.get("weight_map")) is not None:
        index["weight_map"] = {new_name: weight_map[name] for name, new_name in names(weight_map)}
    indexed = {
        path: tuple(new_name for _, new_name in names(component.indexed[path])) for path in shards
    }
    return replace(component, index=index, shards=shards, indexed=indexed)
