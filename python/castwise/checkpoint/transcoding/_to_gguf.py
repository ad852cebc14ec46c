"""A model of transformers as a GGUF file: what its tensors become there, and what is stated."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from castwise._core import cast
from castwise.checkpoint._errors import CheckpointError
from castwise.checkpoint._layers import STACK
from castwise.checkpoint._tensors import TensorInfo, numpy_dtype
from castwise.checkpoint.containers.gguf import COMPUTED
from castwise.checkpoint.decoding._decoded import DecodedWeight, Slab
from castwise.checkpoint.decoding._stored import Range, StoredTensors
from castwise.checkpoint.encoding._encoding import KIND
from castwise.checkpoint.encoding._global_scales import AGAIN, SLAB_ELEMENTS, cuts_of
from castwise.checkpoint.gguf._architectures import (
    EMBEDDING,
    FLOAT32,
    Place,
    architecture,
    check_complete,
    experts_of,
    hyperparameters,
    places,
    shape_of,
)
from castwise.checkpoint.gguf._tokens import vocabulary
from castwise.checkpoint.transcoding._transcoded_weight import NewTensor, TranscodedWeight
from castwise.quantization.arrays._relaying import blocks_of, of_rows
from castwise.quantization.arrays._views import Views
from castwise.quantization.weights._decoding import Slab as Cut

_NAN = 255
_F32 = "float32"
_CODES = np.dtype(np.uint8).name
"""The format of blocks of bytes."""


class _Source(NamedTuple):
    """A stored tensor, and which of its rows go where; the name is that of its weight."""

    stored: str
    place: Place


class GgufModel:
    """What a model is in a GGUF file.

    Parameters
    ----------
    folder
        That of the model.
    config
        Its parsed configuration.
    stored
        The tensors of all shards.
    weights
        Those that are quantised, by their payloads.

    Attributes
    ----------
    metadata
        What the file states.
    renamed
        What plain tensors are called there that stay as they are, or are cast.
    left_out
        Plain tensors that become part of what stands in the place of another.

    Raises
    ------
    CheckpointError
        castwise does not know what llama.cpp calls it, or part of it; or it is not complete.

    """

    def __init__(
        self,
        folder: Path,
        config: Mapping[str, Any],
        stored: StoredTensors,
        weights: Mapping[str, TranscodedWeight],
    ) -> None:
        row = architecture(config)
        self.metadata = hyperparameters(row, config, folder.absolute().name)
        self._stored, self._weights = stored, weights
        parts = {
            name for one in weights.values() for name in (one.weight.payload, *one.weight.parts)
        }
        named = {payload: one.weight.name for payload, one in weights.items()}
        named |= {name: name for name in stored if name not in parts}
        becomes: dict[str, list[_Source]] = {}
        homes: dict[Place, str] = {}
        for home, name in named.items():
            for place in places(row, name):
                if (other := homes.setdefault(place, home)) != home:
                    raise CheckpointError(
                        f"tensors {other!r} and {home!r} would both become {place.name!r}; remove "
                        "one of them"
                    )
                becomes.setdefault(place.name, []).append(_Source(home, place))
        check_complete(row, set(becomes), config)
        self._becomes: dict[str, dict[str, Sequence[_Source]]] = {}
        self.renamed: dict[str, str] = {}
        self.left_out: set[str] = set()
        for name, sources in becomes.items():
            sources.sort(key=lambda one: one.place.expert or 0)
            for one in sources:
                self._check(one, config)
            self._check_experts(name, sources, config)
            first, *others = sources
            if first.stored not in weights:
                self.left_out |= {one.stored for one in others}
                if first.place.expert is None and first.place.step == 1:
                    self.renamed[first.stored] = name
                    continue
            self._becomes.setdefault(first.stored, {})[name] = sources
        ((embedding, _),) = becomes[EMBEDDING]
        self.metadata |= vocabulary(folder, config, stored[embedding].shape[0])

    def _check(self, one: _Source, config: Mapping[str, Any]) -> None:
        """Refuse a tensor of another shape or format than it must have."""
        shape, wanted = self._shape(one), shape_of(one.place, config)
        found, is_plain = self._stored[one.stored].format, one.stored not in self._weights
        if is_plain and len(shape) == STACK:
            raise CheckpointError(
                f"tensor {one.stored!r} is not quantised, and GGUF has such experts the other "
                f"way round; {AGAIN}"
            )
        if shape != wanted:
            raise CheckpointError(
                f"tensor {one.stored!r} has the shape {shape}, and config.json states {wanted}: "
                f"{', '.join(one.place.axes)}; mend the one that is wrong"
            )
        if is_plain and found not in COMPUTED:
            raise CheckpointError(
                f"tensor {one.stored!r} is {found}, and llama.cpp computes with "
                f"{', '.join(COMPUTED)}; castwise cast makes it one of them"
            )

    def _check_experts(
        self, name: str, sources: Sequence[_Source], config: Mapping[str, Any]
    ) -> None:
        """Refuse experts that cannot become one tensor."""
        experts = [one.place.expert for one in sources]
        if experts == [None]:
            return
        count = experts_of(config)
        if experts != [*range(min(count, len(experts) + 1))]:
            raise CheckpointError(
                f"{name!r} would be of {len(experts)} experts, and config.json states {count}; "
                "mend the one that is wrong"
            )
        if len({(one.stored in self._weights, self._format(one)) for one in sources}) > 1:
            raise CheckpointError(
                f"{name!r} would be of experts of several formats; give all of them the same"
            )

    def _shape(self, one: _Source) -> tuple[int, ...]:
        weight = self._weights.get(one.stored)
        return self._stored[one.stored].shape if weight is None else weight.plan.cut

    def _format(self, one: _Source) -> str | None:
        return None if one.stored in self._weights else self._stored[one.stored].format

    def tensors(self, one: TranscodedWeight) -> list[NewTensor]:
        """List what comes in the place of the payload of a weight."""
        found = self._becomes.get(one.weight.payload, {})
        return [
            self._blocks(name, sources, is_further=number > 0)
            for number, (name, sources) in enumerate(found.items())
        ]

    def _blocks(self, name: str, sources: Sequence[_Source], *, is_further: bool) -> NewTensor:
        weights = [self._weights[one.stored] for one in sources]
        home, place = sources[0]
        form = _form(weights[0])
        *stack, rows, blocks, _ = form.data_shape
        size = sum(size for _, size in form.storage.fields)
        stack = stack if place.expert is None else [len(sources)]
        needed = [part for one in weights for part in (one.weight.payload, *one.weight.parts)]
        slabs = partial(self._slabs, sources)
        shape = (*stack, rows // place.step, blocks, size)
        return NewTensor(
            home, name, _CODES, shape, needed, slabs, is_payload=True, is_further=is_further
        )

    def _slabs(self, sources: Sequence[_Source], _format: str) -> Iterator[Slab]:
        for stored, place in sources:
            weight = self._weights[stored]
            plan = replace(weight.plan, step=math.lcm(weight.plan.step, place.step))
            for cut in plan.slabs(SLAB_ELEMENTS):
                yield partial(_blocks_of, weight, cut, place)

    def plain(self) -> dict[str, list[DecodedWeight]]:
        """Describe what is made of plain tensors, by the one in whose place it comes."""
        return {
            home: [
                self._plain(name, sources, number) for number, (name, sources) in enumerate(some)
            ]
            for home, found in self._becomes.items()
            if home not in self._weights and (some := found.items())
        }

    def _plain(self, name: str, sources: Sequence[_Source], number: int) -> DecodedWeight:
        home, place = sources[0]
        info = self._stored[home]
        *rest, last = info.shape
        stack = () if place.expert is None else (len(sources),)
        nbytes = 0 if number else sum(self._stored[one.stored].nbytes for one in sources)
        shape = (*stack, *rest, last // place.step)
        made = TensorInfo(name, None, KIND, info.label, shape, nbytes)
        to = _F32 if re.fullmatch(FLOAT32, name) else info.format or ""
        slabs = partial(self._plain_slabs, sources, to)
        return DecodedWeight(made, to, home, [one.stored for one in sources], slabs)

    def _plain_slabs(self, sources: Iterable[_Source], to: str, _format: str) -> Iterator[Slab]:
        for stored, place in sources:
            for cut in cuts_of(self._stored, stored):
                yield partial(self._box, stored, cut, place, to)

    def _box(self, stored: str, cut: Sequence[Range], place: Place, to: str) -> NDArray[Any]:
        found = self._stored.box(stored, cut)[..., place.first :: place.step]
        return cast(np.ascontiguousarray(found), numpy_dtype(to))


def _form(weight: TranscodedWeight) -> Views:
    assert weight.form is not None, "by `becomes`"  # noqa: S101
    return weight.form


def _blocks_of(weight: TranscodedWeight, cut: Cut, place: Place) -> NDArray[Any]:
    """Return the blocks of rows of one matrix, those that go to a place."""
    q = weight.plan.rows(cut)
    wrong = q.scale.view(np.uint8) == _NAN
    if wrong.any():
        row, block = (int(one) for one in np.argwhere(wrong.reshape(cut.stop - cut.start, -1))[0])
        where = (*cut.place, cut.start + row, block)
        raise CheckpointError(
            f"tensor {weight.weight.payload!r}: the scale of the block at {where} is NaN, which "
            f"llama.cpp takes for a number; {AGAIN}"
        )
    form = of_rows(_form(weight), (cut.stop - cut.start) // place.step)
    return blocks_of(q, form, slice(place.first, None, place.step))
