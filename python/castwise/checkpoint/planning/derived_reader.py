"""The shards of a checkpoint as they are derived: decoded, encoded or transcoded.

A reader stands for each of them: its tensors are made by jobs, one for each weight, in slabs of
whole blocks by several threads, and all other tensors lie in the file as they are. What others are
made of is not there any more.
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
from itertools import chain, islice
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, NamedTuple, Self, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from castwise._core import OpenFile
from castwise.checkpoint._errors import CheckpointError
from castwise.checkpoint._tensors import TensorInfo, numpy_dtype
from castwise.checkpoint.containers.array_bytes import to_bytes
from castwise.checkpoint.containers.checkpoint import Component
from castwise.checkpoint.containers.interface import Arrangement, Elements, Reader, runs
from castwise.checkpoint.files.source_files import handle
from castwise.checkpoint.planning.stored_tensors import StoredTensors
from castwise.checkpoint.results.report import ProgressMeter, Report, add_report

if TYPE_CHECKING:
    from castwise.quantization.weights.decoding import Decoding

_Result = TypeVar("_Result")

# Elements of slabs that one thread makes before another one is told: that takes longer.
_FEW = 1 << 14
# Elements of a stack of weights: as many as one thread makes of a large weight in its cache.
STACK_ELEMENTS = 1 << 17

# Rows of several tensors, by their names.
Arrays = Mapping[str, NDArray[Any]]


class WeightSlab(NamedTuple):
    """Rows of a weight: they are read once, and all that they become is made of them at once."""

    # The elements that it makes of each tensor; slabs follow each other in C order
    counts: Mapping[str, int]
    # Reads and derives them; returns also what that lost, if it is measured
    make: Callable[[], tuple[Arrays, Report | None]]


class WeightStack(NamedTuple):
    """Weights that differ in names and places alone: many small ones are made at once."""

    elements: int  # of each weight
    # Reads and derives weights, given the `WeightJob.member` of each. Returns an array for each
    # of its `names`, with the weights along its first axis, and what each weight lost; None if each
    # is to be made by itself, as one is refused or has a finding.
    make: Callable[[Sequence[Any]], tuple[Sequence[NDArray[Any]], Sequence[Report | None]] | None]


@dataclass(slots=True, eq=False)  # not frozen, which takes longer to make, for each weight
class WeightJob:
    """Makes the tensors that a weight becomes."""

    payload: str  # the one with the codes or values, whose row has what was lost
    # Lists the slabs that make tensors of these names, in a format if it is not their own
    slabs: Callable[[Collection[str], str | None], Iterable[WeightSlab]]
    stack: WeightStack | None = None  # what makes it with others; None if nothing does
    member: Any = None  # what that takes of it, and the tensors that it becomes, in that order
    names: Sequence[str] = ()

    @classmethod
    def of_one(cls, name: str, slabs: SingleSlabs) -> WeightJob:
        return cls(name, lambda *_: slabs_of_one(name, slabs))


# Lists the slabs of a tensor that is made by itself, with the number of their elements.
SingleSlabs = Callable[[], Iterable[tuple[int, Callable[[], NDArray[Any]]]]]


def slabs_of_one(name: str, slabs: SingleSlabs) -> Iterator[WeightSlab]:
    """List the slabs of a tensor that is made by itself; nothing is measured."""

    def make_arrays(make: Callable[[], NDArray[Any]]) -> tuple[Arrays, None]:
        return {name: make()}, None

    return (WeightSlab({name: count}, partial(make_arrays, make)) for count, make in slabs())


class DerivedTensor(NamedTuple):
    """A tensor that is decoded, encoded or transcoded as it is read."""

    # Its name and shape as derived; as stored what it is made of, and the bytes of that
    info: TensorInfo
    format: str  # the format that it is derived in
    home: str  # the stored tensor in whose place it comes, such as that with the codes
    sources: Collection[str]  # all stored tensors that it is made of
    job: WeightJob  # what makes it, and others of the same weight
    scheme: str | None = None  # how its codes are quantized; None for other tensors
    decoding: Decoding | None = None  # how its values are decoded; None for other tensors


def derived_info(name: str, source_format: str, shape: tuple[int, ...], nbytes: int) -> TensorInfo:
    """Describe a derived tensor, without a format as stored; `source_format` is of its source."""
    return TensorInfo(name, None, "float", source_format, shape, nbytes)


# How tensors are derived of those that are stored.
Derivation = Literal["decode", "encode", "transcode"]

# Plans the readers of a run again, in another process; with what tells runs apart.
Replan = tuple[bytes, Callable[[], Mapping[Path, "DerivedReader"]]]


class ShardPlan(NamedTuple):
    """What becomes of one shard."""

    derivation: Derivation  # how its tensors are derived
    stored_tensors: StoredTensors  # the tensors of all shards
    # What tensors of this shard become, by their names: a payload that is decoded one weight, a
    # weight that is encoded several parts
    new_tensors: Mapping[str, Sequence[DerivedTensor]]
    left_out: Collection[str]  # tensors that have no place in the new shard
    new_names: Mapping[str, str]  # tensors that stay as they are under another name
    metadata: dict[str, str]  # the metadata of the new shard
    threads: int  # how many threads may read and derive


class DerivedReader:
    """One shard, of which some tensors are decoded, encoded or transcoded."""

    reopens = True

    def __init__(
        self,
        reader: Reader,  # the shard as it is
        plan: ShardPlan,  # what becomes of it
    ) -> None:
        self.path = reader.path
        # "decode", "encode" or "transcode".
        self.derivation = plan.derivation
        self.metadata = plan.metadata
        self.other_entries = reader.other_entries
        self.tensors: dict[str, TensorInfo] = {}
        self._reader = reader
        self._new_tensors = {
            tensor.info.name: tensor for group in plan.new_tensors.values() for tensor in group
        }
        self._stored_tensors = plan.stored_tensors
        self._threads = plan.threads
        for name, info in reader.tensors.items():
            if name in plan.new_tensors:
                self.tensors |= {tensor.info.name: tensor.info for tensor in plan.new_tensors[name]}
            elif name not in plan.left_out:
                new_name = plan.new_names.get(name, name)
                self.tensors[new_name] = info if new_name == name else info._replace(name=new_name)
        self._stored_names = {new_name: name for name, new_name in plan.new_names.items()}
        self._jobs: dict[WeightJob, list[str]] = {}
        for name, tensor in self._new_tensors.items():
            self._jobs.setdefault(tensor.job, []).append(name)
        lists = {id(tensor.sources): tensor.sources for tensor in self._new_tensors.values()}
        parts = {part for names in lists.values() for part in names}  # many may share one
        other_readers = [
            other for other in self._stored_tensors.readers(parts) if other is not reader
        ]
        # In one order in all processes, which compare their states.
        other_readers.sort(key=lambda other: str(other.path))
        self._files: Sequence[Reader] = [reader, *other_readers]
        self._open = ExitStack()
        self._pool: ThreadPoolExecutor | None = None
        # What plans it in another process; None if nobody asks for that.
        self.replan: Replan | None = None

    @property
    def state(self) -> list[int]:
        return [number for file in self._files for number in file.state]

    def check_unchanged(self) -> None:
        """CheckpointError if a file was changed since it was first opened."""
        for file in self._files:
            file.check_unchanged()

    def lost_entries(self) -> list[str]:
        """List what would be lost if a file of its tensors took its place."""
        return self._reader.lost_entries()

    def find_derived(self, name: str) -> DerivedTensor | None:
        return self._new_tensors.get(name)

    def job(self, name: str) -> tuple[str, Sequence[str]]:
        """Return the payload of the job that makes a tensor, and all that it makes here."""
        job = self._new_tensors[name].job
        return job.payload, self._jobs[job]

    def stored_name(self, name: str) -> str:
        """Return what a tensor that is not derived is called in the file."""
        return self._stored_names.get(name, name)

    def stored_tensor(self, name: str) -> tuple[Reader, str]:
        """Return the file of a tensor that is not derived, and what the tensor is called there."""
        return self._reader, self.stored_name(name)

    def elements(self, name: str) -> Elements | None:
        """Return the format and order in which a tensor is read."""
        tensor = self._new_tensors.get(name)
        return Elements(tensor.format) if tensor else self._reader.elements(self.stored_name(name))

    def stated(self) -> Any:  # noqa: ANN401  (of JSON)
        """Say that nothing is stated of quantized layers: the plan was made from the source's."""
        return None

    def arrangement(self, name: str) -> Arrangement | None:
        """Return where the items of a tensor stand; None if they are in C order, without gaps."""
        is_made = name in self._new_tensors
        return None if is_made else self._reader.arrangement(self.stored_name(name))

    def place(self, name: str) -> tuple[BinaryIO, int] | None:
        """Return file and offset of a tensor's bytes; None if they pass through `pieces`."""
        is_made = name in self._new_tensors
        return None if is_made else self._reader.place(self.stored_name(name))

    def expect(self, names: Iterable[str]) -> None:
        """Take note of the tensors that will be read by pieces, in this order."""
        self._reader.expect(
            self.stored_name(name) for name in names if name not in self._new_tensors
        )

    def pieces(self, name: str, nbytes: int) -> Iterator[bytes]:
        """Read a tensor's bytes; those of a derived one come in slabs."""
        tensor = self._new_tensors.get(name)
        if tensor is None:
            yield from self._reader.pieces(self.stored_name(name), nbytes)
            return
        for array in self.slabs(name):
            yield cast("bytes", to_bytes(array).data)  # as good to write

    def read(self, name: str) -> NDArray[Any]:
        tensor = self._new_tensors.get(name)
        if tensor is None:
            return self._reader.read(self.stored_name(name))
        whole = np.empty(math.prod(tensor.info.shape), numpy_dtype(tensor.format))
        offset = 0
        for array in self.slabs(name):
            whole[offset : offset + array.size] = array.reshape(-1)
            offset += array.size
        return whole.reshape(tensor.info.shape)

    def slabs(self, name: str, to: str | None = None) -> Iterator[NDArray[Any]]:
        """Derive the slabs of a tensor in C order, in the format `to` if it is not its own."""
        return (arrays[name] for arrays, _ in self.make_tensors([name], to) if name in arrays)

    def make_tensors(
        self, names: Sequence[str], to: str | None = None
    ) -> Iterator[tuple[Arrays, Report | None]]:
        """Make tensors of one job, slab by slab, as many at a time as there are threads."""
        slabs = self._new_tensors[names[0]].job.slabs(names, to)
        return self._run_tasks(slab.make for slab in slabs)

    def write(
        self, places: Iterable[tuple[str, int]], file: BinaryIO, meter: ProgressMeter | None = None
    ) -> dict[str, Report | None]:
        """Make tensors, each at its place in a file; returns what each lost."""
        # What is measured is what the payload of a weight lost.
        file.flush()  # what stands before
        target = OpenFile(handle(file))
        reports: dict[str, Report | None] = {}
        for jobs in self._group_jobs(places):
            if meter is not None:
                meter.starts(self._payload_of(jobs[0]))
            stack = self._write_stack(jobs, target) if len(jobs) > 1 else None
            for index, job in enumerate(jobs):
                if meter is not None and index:
                    meter.starts(self._payload_of(job))
                report = self._write(job, target) if stack is None else stack[index]
                payload = self._new_tensors[next(iter(job))].job.payload
                reports |= {name: report if name == payload else None for name in job}
                if meter is not None:
                    meter.finish(sum(self.tensors[name].nbytes for name in job))
        return reports

    def _payload_of(self, places: Mapping[str, int]) -> str:
        """Return the payload of a job, or another tensor where that is not made."""
        first = next(iter(places))
        payload = self._new_tensors[first].job.payload
        return payload if payload in places else first

    def _group_jobs(self, places: Iterable[tuple[str, int]]) -> Iterator[list[dict[str, int]]]:
        """List the tensors of each job with their places: small weights of one stack together."""
        jobs: dict[WeightJob, dict[str, int]] = {}
        for name, place in places:
            jobs.setdefault(self._new_tensors[name].job, {})[name] = place
        stacks: dict[WeightStack, list[dict[str, int]]] = {}
        for job, places_of_job in jobs.items():
            stack = job.stack
            if stack is None or len(places_of_job) < len(job.names):
                yield [places_of_job]
                continue
            group = stacks.setdefault(stack, [])
            group.append(places_of_job)
            if (len(group) + 1) * stack.elements > STACK_ELEMENTS:
                yield stacks.pop(stack)
        yield from stacks.values()

    def _write_stack(
        self, jobs: Sequence[Mapping[str, int]], target: OpenFile
    ) -> Sequence[Report | None] | None:
        """Make small weights of one stack; None if each is to be made by itself."""
        weights = [self._new_tensors[next(iter(places))].job for places in jobs]
        stack = weights[0].stack
        assert stack is not None, "by `_group_jobs`"  # noqa: S101
        result = stack.make([weight.member for weight in weights])
        if result is None:
            return None
        arrays, reports = result
        for index, array in enumerate(arrays):
            offsets = [
                places[weight.names[index]] for weight, places in zip(weights, jobs, strict=True)
            ]
            _write_neighbors(to_bytes(array), offsets, target)
        return reports

    def _write(self, job: Mapping[str, int], target: OpenFile) -> Report | None:
        places = dict(job)
        sizes = {name: numpy_dtype(self._new_tensors[name].format).itemsize for name in places}

        def tasks() -> Iterator[Callable[[], Report | None]]:
            slabs: list[tuple[WeightSlab, dict[str, int]]] = []
            count = 0
            for slab in self._new_tensors[next(iter(places))].job.slabs(places, None):
                slabs.append((slab, {name: places[name] for name in slab.counts}))
                for name in slab.counts:
                    places[name] += slab.counts[name] * sizes[name]
                count += sum(slab.counts.values())
                if count >= _FEW:
                    yield partial(_write, slabs, target)
                    slabs, count = [], 0
            if slabs:
                yield partial(_write, slabs, target)

        whole: Report | None = None
        # Each thread writes the slabs that it makes.
        for report in self._run_tasks(tasks()):
            whole = add_report(whole, report)
        return whole

    def _run_tasks(self, tasks: Iterable[Callable[[], _Result]]) -> Iterator[_Result]:
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
        assert self.replan is not None, "of a request"  # noqa: S101
        return RemoteShard, (self.replan, Path(os.path.abspath(self.path)), self.state)

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(self._stored_tensors.open_files(self._files))
            self._pool = stack.enter_context(ThreadPoolExecutor(self._threads))
            self._open = stack.pop_all()
        return self

    def __exit__(self, *_error: object) -> None:
        self._open.close()


def _write_neighbors(data: NDArray[np.uint8], offsets: Sequence[int], target: OpenFile) -> None:
    """Write pieces of one size, neighbors at once."""
    size = len(data) // len(offsets)
    for first, last in runs(offsets, size):
        target.write_at(data[first * size : last * size], offsets[first])


def _write(
    slabs: Sequence[tuple[WeightSlab, Mapping[str, int]]], target: OpenFile
) -> Report | None:
    whole: Report | None = None
    for slab, places in slabs:
        arrays, report = slab.make()
        for name, array in arrays.items():
            target.write_at(to_bytes(array), places[name])
        whole = add_report(whole, report)
    return whole


class RemoteShard(NamedTuple):
    """Stands for a `DerivedReader` in another process, and plans it again there."""

    replan: Replan  # what plans it
    path: Path  # its file
    state: Sequence[int]  # size and time of the files, which must still hold

    @contextmanager
    def beside_others(self) -> Iterator[DerivedReader]:
        """Open its files for a block of one of several threads."""
        run, replan = self.replan
        # A process that is forked meanwhile has another lock.
        with _PLANNING.setdefault(os.getpid(), Lock()):
            readers = _PLANNED.get(run)
            if readers is None:
                _PLANNED.clear()
                readers = _PLANNED[run] = replan()
        reader = readers.get(self.path)
        if reader is None or reader.state != self.state:
            raise CheckpointError(f"{self.path} was changed while it was read; run again")
        with reader.beside_others() as copy:
            yield copy


# What this process planned last for others, for all batches of that run.
_PLANNED: dict[bytes, Mapping[Path, DerivedReader]] = {}

# By process, held while that is read or replaced: threads of a worker convert batches of one run.
_PLANNING: dict[int, Lock] = {}


def with_tensors(
    component: Component, shards: Mapping[str, Reader], made_of: Mapping[str, Sequence[str]]
) -> Component:
    """Return a component with other shards, whose index follows."""
    # `made_of` names what tensors become; those that it does not have stay.

    def names(stored_names: Iterable[str]) -> Iterator[tuple[str, str]]:
        return ((name, new_name) for name in stored_names for new_name in made_of.get(name, [name]))

    index = dict(component.index)
    if (weight_map := index.get("weight_map")) is not None:
        index["weight_map"] = {new_name: weight_map[name] for name, new_name in names(weight_map)}
    names_of_shards = {
        path: tuple(new_name for _, new_name in names(component.indexed[path])) for path in shards
    }
    return replace(component, index=index, shards=shards, indexed=names_of_shards)
