"""A model of transformers as one file: what its tensors become there, and what is stated."""

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from castwise._core import cast
from castwise.checkpoint._errors import CheckpointError
from castwise.checkpoint._tensors import numpy_dtype
from castwise.checkpoint.containers.whole_models import (
    MappedTensor,
    ModelFormat,
    ModelOutline,
    Place,
    Rows,
)
from castwise.checkpoint.planning.decode.losses import stored_losses
from castwise.checkpoint.planning.derived_reader import (
    Arrays,
    DerivedTensor,
    WeightJob,
    WeightSlab,
    derived_info,
)
from castwise.checkpoint.planning.encode.blocks import blocks_of_row, encode_rows
from castwise.checkpoint.planning.importance import ChannelNumbers
from castwise.checkpoint.planning.stored_tensors import Range, StoredTensors
from castwise.checkpoint.planning.transcode._global_scales import AGAIN, SLAB_ELEMENTS, cuts_of
from castwise.checkpoint.planning.transcode._transcoded_weight import TranscodedWeight
from castwise.checkpoint.planning.written_schemes import written_schemes
from castwise.checkpoint.results.report import Report
from castwise.models.model import STACK, WEIGHT
from castwise.quantization.arrays.conversion import blocks_of, of_rows
from castwise.quantization.producers.producer import Encoding
from castwise.quantization.producers.registry import producer_of_model
from castwise.quantization.weights.decoding import Slab as Cut

# The code of NaN in E8M0, which llama.cpp takes for a number.
_NAN = 255
_F32 = "float32"
# The format of blocks of bytes.
_CODES = np.dtype(np.uint8).name


class _Source(NamedTuple):
    """A stored tensor, the axis of its rows, and which of them go where."""

    stored_name: str
    axis: int
    place: Place


class WholeModel:
    """What a model is in a file of all of it."""

    def __init__(  # noqa: PLR0917
        self,
        model: ModelFormat,
        outline: ModelOutline,
        config: Mapping[str, Any],
        stored_tensors: StoredTensors,
        weights: Mapping[str, TranscodedWeight],  # by their payloads
        encodings: Mapping[str, Encoding],  # of plain weights, by name
        numbers: Mapping[str, ChannelNumbers],  # of their channels
    ) -> None:
        self._format, self._stored_tensors, self._weights = model, stored_tensors, weights
        self._encodings, self._numbers = encodings, numbers
        self._producer = producer_of_model(config.get("model_type"))
        self._constants = outline.constants
        self._becomes: dict[str, dict[str, Sequence[_Source]]] = {}
        self.new_names: dict[str, str] = {}  # plain tensors that stay as they are, or are cast
        self.left_out: set[str] = set()  # plain tensors that become part of what another becomes
        becomes = self._sources(outline, config)
        for name, sources in becomes.items():
            self._check_experts(name, sources)
            leading, *following = sources
            if leading.stored_name not in weights:
                self.left_out |= {source.stored_name for source in following}
                is_whole = leading.place.expert is None and leading.place.rows == Rows()
                if is_whole and leading.stored_name not in encodings:
                    self.new_names[leading.stored_name] = name
                    continue
            self._becomes.setdefault(leading.stored_name, {})[name] = sources
        (embedding,) = becomes[outline.embedding]
        tokens = outline.tokens(stored_tensors[embedding.stored_name].shape[0])
        self.metadata = {**outline.metadata, **tokens}  # what the file states

    def _remedy(self) -> str:
        """Return what makes experts of a model that are not quantized those of a file."""
        if self._weights or self._producer is None:
            return AGAIN  # what is quantized otherwise is decoded; a plain model is not
        recipe = self._producer.name
        scheme = written_schemes(recipe)[0]
        return (
            f"make them {scheme} in a folder (castwise quantize --scheme {scheme} --recipe "
            f"{recipe}), and transcode that (castwise transcode)"
        )

    def _sources(
        self, outline: ModelOutline, config: Mapping[str, Any]
    ) -> dict[str, list[_Source]]:
        """Return what each tensor of the file is made of; refuse a model that is not complete."""
        weights = self._weights
        parts = {
            name
            for weight in weights.values()
            for name in (weight.weight.payload, *weight.weight.parts)
        }
        payloads = {weight.weight.name: payload for payload, weight in weights.items()}
        homes: dict[str, list[str]] = {}
        for name in (*payloads, *(name for name in self._stored_tensors if name not in parts)):
            homes.setdefault(name.removesuffix(WEIGHT), []).append(payloads.get(name, name))
        becomes: dict[str, list[_Source]] = {}
        for tensor in outline.tensors:
            names = homes.pop(tensor.name.removesuffix(WEIGHT), [])
            new_name = tensor.places[0].name
            if not names and new_name in outline.optional:
                continue
            if not names:
                raise CheckpointError(
                    f"it lacks what becomes {new_name!r} of {outline.architecture}: "
                    f"{tensor.name!r}; add it, or mend num_hidden_layers, the number of experts or "
                    "tie_word_embeddings"
                )
            if len(names) > 1:
                raise CheckpointError(
                    f"tensors {names[0]!r} and {names[1]!r} would both become {new_name!r}; remove "
                    "one of them"
                )
            self._check(names[0], tensor)
            for place in tensor.places:
                becomes.setdefault(place.name, []).append(_Source(names[0], tensor.axis, place))
        for name, *_ in homes.values():
            raise CheckpointError(
                f"tensor {name!r} has no place in a {self._format.label} file of "
                f"{outline.architecture}; if the model does not need it, remove it, or mend "
                f"num_hidden_layers ({config['num_hidden_layers']})"
            )
        return becomes

    def _check(self, name: str, tensor: MappedTensor) -> None:
        """Refuse a tensor of another shape or format than it must have."""
        weight, info = self._weights.get(name), self._stored_tensors[name]
        shape = info.shape if weight is None else weight.plan.matrix_shape
        if weight is None and len(shape) == STACK:
            raise CheckpointError(
                f"tensor {name!r} is not quantized, and {self._format.label} has such experts the "
                f"other way round; {self._remedy()}"
            )
        if shape != tensor.shape:
            raise CheckpointError(
                f"tensor {name!r} has the shape {shape}, and config.json states {tensor.shape}: "
                f"{', '.join(tensor.axes)}; mend the one that is wrong"
            )
        if weight is None:
            self._format.check_plain(info)

    def _check_experts(self, name: str, sources: Sequence[_Source]) -> None:
        """Refuse experts that cannot become one tensor."""
        forms = {
            source.stored_name in self._weights
            or self._encodings.get(source.stored_name)
            or self._stored_tensors[source.stored_name].format
            for source in sources
        }
        if len(forms) > 1:
            raise CheckpointError(
                f"{name!r} would be of experts of several formats; give all of them the same"
            )

    def tensors(self, weight: TranscodedWeight) -> list[DerivedTensor]:
        """List what comes in the place of the payload of a weight."""
        becomes, payload = self._becomes.get(weight.weight.payload, {}), weight.weight.payload
        tensors = [
            self._blocks(name, sources, is_further=number > 0)
            for number, (name, sources) in enumerate(becomes.items())
        ]
        is_first = payload == next(iter(self._weights))
        return [*tensors, *(self._constants_beside(payload) if is_first else ())]

    def _constants_beside(self, home: str) -> Iterator[DerivedTensor]:
        """Describe tensors that are made of no stored one, so that they come with the first."""
        for name, array in self._constants.items():
            info = derived_info(name, self._stored_tensors[home].label, array.shape, 0)
            job = WeightJob.of_one(name, partial(_constant, array))
            yield DerivedTensor(info, array.dtype.name, home, [], job)

    def _blocks(self, name: str, sources: Sequence[_Source], *, is_further: bool) -> DerivedTensor:
        weights = [self._weights[source.stored_name] for source in sources]
        home, _, place = sources[0]
        form = weights[0].form
        *stack, rows, blocks, _ = form.data_shape
        size = sum(size for _, size in form.storage.fields)
        stack = stack if place.expert is None else [len(sources)]
        parts = [
            part for weight in weights for part in (weight.weight.payload, *weight.weight.parts)
        ]
        nbytes = 0 if is_further else sum(self._stored_tensors[part].nbytes for part in parts)
        shape = (*stack, place.rows.count(rows), blocks, size)
        info = derived_info(name, self._stored_tensors[home].label, shape, nbytes)
        job = WeightJob(name, partial(self._slabs, name, sources, shape[-2] * size))
        return DerivedTensor(info, _CODES, home, parts, job, scheme=weights[0].scheme)

    def _slabs(
        self,
        name: str,
        sources: Sequence[_Source],
        row_bytes: int,
        _names: Collection[str],
        _format: str | None,
    ) -> Iterator[WeightSlab]:
        """List the slabs of a tensor; what the first of its weights loses is reported."""
        for stored_name, _, place in sources:
            weight = self._weights[stored_name]
            plan = weight.plan._replace(step=math.lcm(weight.plan.step, place.rows.period))
            for slab in plan.slabs(SLAB_ELEMENTS):
                count = place.rows.count(slab.stop - slab.start) * row_bytes
                yield WeightSlab({name: count}, partial(_blocks_of, name, weight, slab, place.rows))
        if name == next(iter(self._becomes[sources[0].stored_name])):
            plan = self._weights[sources[0].stored_name].plan
            yield WeightSlab({}, lambda: ({}, stored_losses(plan, SLAB_ELEMENTS)))

    def plain(self) -> dict[str, list[DerivedTensor]]:
        """Describe what is made of plain tensors, by the one in whose place it comes."""
        tensors = {
            home: [
                self._plain(name, sources, number)
                for number, (name, sources) in enumerate(new_tensors)
            ]
            for home, becomes in self._becomes.items()
            if home not in self._weights and (new_tensors := becomes.items())
        }
        if self._encodings:
            first = next(iter(tensors))
            tensors[first] += self._constants_beside(first)
        return tensors

    def _plain(self, name: str, sources: Sequence[_Source], number: int) -> DerivedTensor:
        home, axis, place = sources[0]
        info = self._stored_tensors[home]
        stack = () if place.expert is None else (len(sources),)
        nbytes = (
            0
            if number
            else sum(self._stored_tensors[source.stored_name].nbytes for source in sources)
        )
        shape = list(info.shape)
        shape[axis] = place.rows.count(shape[axis])
        source_names = [source.stored_name for source in sources]
        if (encoding := self._encodings.get(home)) is not None:
            block_shape = (*stack, *shape[:-1], *blocks_of_row(encoding, shape[-1]))
            new_info = derived_info(name, info.label, block_shape, nbytes)
            slabs = partial(self._encoded_slabs, name, sources, encoding)
            scheme = encoding.written.scheme
            return DerivedTensor(
                new_info, _CODES, home, source_names, WeightJob(name, slabs), scheme=scheme
            )
        new_info = derived_info(name, info.label, (*stack, *shape), nbytes)
        to = _F32 if self._format.float32.fullmatch(name) else info.format or ""
        job = WeightJob.of_one(name, partial(self._plain_slabs, sources, to))
        return DerivedTensor(new_info, to, home, source_names, job)

    def _encoded_slabs(
        self,
        name: str,
        sources: Iterable[_Source],
        encoding: Encoding,
        _names: Collection[str],
        _format: str | None,
    ) -> Iterator[WeightSlab]:
        """List the slabs of a tensor of blocks that plain weights become."""
        for source in sources:
            stored_name, rows = source.stored_name, source.place.rows
            info = self._stored_tensors[stored_name]
            for ranges in cuts_of(self._stored_tensors, stored_name, rows.period):
                (start, stop), _ = ranges
                count = rows.count(stop - start) * math.prod(
                    blocks_of_row(encoding, info.shape[-1])
                )
                read = partial(self._box, source, ranges, info.format or "")
                numbers = self._numbers.get(stored_name)
                place = stored_name, start
                make = partial(_encoded_blocks, name, read, place, encoding, numbers)
                yield WeightSlab({name: count}, make)

    def _plain_slabs(
        self, sources: Iterable[_Source], to: str
    ) -> Iterator[tuple[int, Callable[[], NDArray[Any]]]]:
        for source in sources:
            rows = source.place.rows
            for ranges in cuts_of(
                self._stored_tensors, source.stored_name, 1 if source.axis else rows.period
            ):
                shape = [end - begin for begin, end in ranges]
                shape[source.axis] = rows.count(shape[source.axis])
                yield math.prod(shape), partial(self._box, source, ranges, to)

    def _box(self, source: _Source, ranges: Sequence[Range], to: str) -> NDArray[Any]:
        array, rows = self._stored_tensors.box(source.stored_name, ranges), source.place.rows
        part = array[*[slice(None)] * source.axis, rows.of(array.shape[source.axis])]
        return cast(np.ascontiguousarray(part), numpy_dtype(to))


def _constant(array: NDArray[Any]) -> list[tuple[int, Callable[[], NDArray[Any]]]]:
    return [(array.size, lambda: array)]


def _encoded_blocks(
    name: str,
    read: Callable[[], NDArray[Any]],
    place: tuple[str, int],
    encoding: Encoding,
    numbers: ChannelNumbers | None,
) -> tuple[Arrays, Report | None]:
    """Quantize rows of a plain weight, whose name and first row are the place."""
    importance = None if numbers is None else numbers.of(0)
    is_weighted = numbers is not None
    blocks, report = encode_rows(read(), *place, encoding, importance, is_weighted=is_weighted)
    return {name: blocks}, report


def _blocks_of(name: str, weight: TranscodedWeight, slab: Cut, rows: Rows) -> tuple[Arrays, None]:
    """Return the blocks of rows of one matrix, those that go to a place."""
    q, count = weight.plan.rows(slab), slab.stop - slab.start
    wrong = q.scale.view(np.uint8) == _NAN
    if wrong.any():
        row, block = (int(index) for index in np.argwhere(wrong.reshape(count, -1))[0])
        where = (*slab.place, slab.start + row, block)
        raise CheckpointError(
            f"tensor {weight.weight.payload!r}: the scale of the block at {where} is NaN, which "
            f"llama.cpp takes for a number; {AGAIN}"
        )
    blocks = blocks_of(q, of_rows(weight.form, rows.count(count)), rows.of(count))
    return {name: blocks}, None
