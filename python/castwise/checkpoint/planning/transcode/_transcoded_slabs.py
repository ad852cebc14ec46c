"""The codes, scales and zero points of a quantised weight in another form, slab by slab."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from numpy.typing import NDArray

from castwise.checkpoint._errors import CheckpointError
from castwise.checkpoint.planning._derived_reader import Slab
from castwise.checkpoint.planning._stored_tensors import StoredTensors
from castwise.checkpoint.planning.encode._encoded_weight import Kept
from castwise.checkpoint.planning.transcode._global_scales import (
    AGAIN,
    SLAB_ELEMENTS,
    Power,
    Reciprocal,
    cuts_of,
)
from castwise.quantization import QuantizedArray, QuantizedWeight
from castwise.quantization.arrays import (
    DATA,
    SCALES,
    ZEROS,
    Views,
    converted_part,
    of_rows,
    relative_scales,
    views_of,
    widened,
    wrapped_zeros,
)
from castwise.quantization.weights import Decoding
from castwise.quantization.weights import Slab as Cut


@dataclass(frozen=True, slots=True)
class SlabMaker:
    """Makes the parts of a weight in another form.

    Attributes
    ----------
    weight
        What was recognised.
    plan
        How it is read.
    form
        The other form.
    level
        Its global scale there, if that is another one.
    kept
        Keeps the parts of a slab that are made with its codes.
    warn
        Takes the name of a payload with zero points that decoders do not agree on.
    keys
        Which parts are made: the others are copied.

    """

    weight: QuantizedWeight
    plan: Decoding
    form: Views
    level: Power | Reciprocal | None
    kept: Kept
    warn: Callable[[str], None]
    keys: set[str] = field(default_factory=set)

    def slabs(self, key: str, _format: str) -> Iterator[Slab]:
        """List the slabs of a part, each of which can be made by another thread."""
        for number, cut in enumerate(self.plan.slabs(SLAB_ELEMENTS)):
            yield partial(self._part_of_slab, key, number, cut)

    def _part_of_slab(self, key: str, number: int, cut: Cut) -> NDArray[Any]:
        """Make one part of a slab."""
        payload = self.weight.payload
        kept = None if key == DATA else self.kept.taken(payload, number, key)
        if kept is not None:
            return kept
        q = self.plan.rows(cut)
        keys = self.keys if key == DATA else {key}
        if ZEROS in keys and wrapped_zeros(q):
            self.warn(payload)
        parts = self._parts(q, keys, cut)
        if key == DATA:
            made_beside = {part_key: part for part_key, part in parts.items() if part_key != DATA}
            self.kept.put(payload, number, made_beside)
        return parts[key]

    def _parts(self, q: QuantizedArray, keys: Iterable[str], cut: Cut) -> dict[str, NDArray[Any]]:
        level, form = self.level, of_rows(self.form, cut.stop - cut.start)
        if form.scheme.bits != views_of(q).scheme.bits:
            try:
                return widened(q, form, cut.start)
            except ValueError as error:
                where = f" of matrix {cut.place}" if cut.place else ""
                raise CheckpointError(
                    f"tensor {self.weight.payload!r}: {error}{where}; {AGAIN}"
                ) from error
        return {
            key: relative_scales(q, form, level.power())
            if key == SCALES and isinstance(level, Power)
            else converted_part(q, form, key)
            for key in keys
        }


def copied(
    stored: StoredTensors, name: str, shape: tuple[int, ...], _format: str
) -> Iterator[Slab]:
    """List the slabs of a tensor that stays as it is, but for its shape if it is one number."""
    if math.prod(shape) <= 1:
        yield lambda: stored.box(name, [(0, n) for n in stored[name].shape]).reshape(shape)
        return
    for cut in cuts_of(stored, name):
        yield partial(stored.box, name, cut)
