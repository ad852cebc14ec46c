"""The codes, scales and zero points of a quantized weight in another form, slab by slab."""

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from numpy.typing import NDArray

from castwise.checkpoint._errors import CheckpointError
from castwise.checkpoint.planning.decode.losses import losses_of_codes, without_codes
from castwise.checkpoint.planning.derived_reader import Arrays, WeightSlab
from castwise.checkpoint.planning.stored_tensors import StoredTensors
from castwise.checkpoint.planning.transcode._global_scales import (
    AGAIN,
    SLAB_ELEMENTS,
    Power,
    Reciprocal,
    cuts_of,
)
from castwise.checkpoint.results.report import DecodeReport
from castwise.quantization import QuantizedArray, QuantizedWeight
from castwise.quantization.arrays.conversion import (
    DATA,
    SCALES,
    ZEROS,
    converted_part,
    of_rows,
    relative_scales,
    widen_blocks,
)
from castwise.quantization.arrays.decode import wrapped_zeros
from castwise.quantization.arrays.row_slices import rows_of
from castwise.quantization.arrays.views import Views, views_of
from castwise.quantization.weights.decoding import Decoding
from castwise.quantization.weights.decoding import Slab as Cut


@dataclass(frozen=True, slots=True)
class SlabMaker:
    """Makes the parts of a weight in another form."""

    weight: QuantizedWeight  # what was recognized
    plan: Decoding  # how it is read
    form: Views  # the other form
    level: Power | Reciprocal | None  # its global scale there, if that is another one
    # Takes the name of a payload with zero points that decoders do not agree on
    warn: Callable[[str], None]
    # Which parts are made, by the tensors that they become: the others are copied
    keys: dict[str, str] = field(default_factory=dict)

    def slabs(self, names: Collection[str]) -> Iterator[WeightSlab]:
        """List the slabs that make parts, each of which can be made by another thread."""
        keys = {name: key for name, key in self.keys.items() if name in names}
        plan = self.plan
        # Slabs with codes are measured. Codes are read only where they or zero points change.
        if keys and not (self._widens or {DATA, ZEROS} & {*keys.values()}):
            whole = without_codes(plan.whole)
            plan = plan._replace(
                rows=lambda slab: rows_of(whole, slab.start, slab.stop, slab.place)
            )
        for slab in plan.slabs(SLAB_ELEMENTS) if keys else ():
            form = of_rows(self.form, slab.stop - slab.start)
            shapes = {DATA: form.data_shape, SCALES: form.scale_shape, ZEROS: form.zero_shape}
            counts = {name: math.prod(shapes[key]) for name, key in keys.items()}
            yield WeightSlab(counts, partial(self._make, plan, keys, form, slab))

    @property
    def _widens(self) -> bool:
        whole = self.plan.whole
        return whole is None or self.form.scheme.bits != views_of(whole).scheme.bits

    def _make(
        self, plan: Decoding, keys: Mapping[str, str], form: Views, slab: Cut
    ) -> tuple[Arrays, DecodeReport | None]:
        q = plan.rows(slab)
        if ZEROS in keys.values() and wrapped_zeros(q):
            self.warn(self.weight.payload)
        parts = self._parts(q, {*keys.values()}, form, slab)
        report = losses_of_codes(q) if DATA in keys.values() else None
        return {name: parts[key] for name, key in keys.items()}, report

    def _parts(
        self, q: QuantizedArray, keys: Iterable[str], form: Views, slab: Cut
    ) -> dict[str, NDArray[Any]]:
        level = self.level
        if form.scheme.bits != views_of(q).scheme.bits:
            try:
                return widen_blocks(q, form, slab.start)
            except ValueError as error:
                where = f" of matrix {slab.place}" if slab.place else ""
                raise CheckpointError(
                    f"tensor {self.weight.payload!r}: {error}{where}; {AGAIN}"
                ) from error
        return {
            key: relative_scales(q, form, level.power())
            if key == SCALES and isinstance(level, Power)
            else converted_part(q, form, key)
            for key in keys
        }


def copy_slabs(
    tensors: StoredTensors, name: str, shape: tuple[int, ...]
) -> Iterator[tuple[int, Callable[[], NDArray[Any]]]]:
    """List the slabs of a tensor that stays as it is, but for its shape if it is one number."""
    if (count := math.prod(shape)) <= 1:
        whole = [(0, n) for n in tensors[name].shape]
        yield count, lambda: tensors.box(name, whole).reshape(shape)
        return
    for ranges in cuts_of(tensors, name):
        yield math.prod(end - begin for begin, end in ranges), partial(tensors.box, name, ranges)
