"""One quantized weight on its way into another form: the tensors that it becomes."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from castwise._core import finfo
from castwise._numbers import BYTE_BITS
from castwise.checkpoint._errors import CheckpointError
from castwise.checkpoint._tensors import format_of, numpy_dtype
from castwise.checkpoint.planning.decode.losses import losses_of_codes, stored_losses, without_codes
from castwise.checkpoint.planning.derived_reader import (
    STACK_ELEMENTS,
    Arrays,
    DerivedTensor,
    SingleSlabs,
    WeightJob,
    WeightSlab,
    WeightStack,
    derived_info,
    slabs_of_one,
)
from castwise.checkpoint.planning.stored_tensors import StoredTensors
from castwise.checkpoint.planning.transcode._global_scales import (
    AGAIN,
    SLAB_ELEMENTS,
    Power,
    Reciprocal,
    cuts_of,
)
from castwise.checkpoint.results.report import DecodeReport
from castwise.quantization import QuantizedWeight
from castwise.quantization.arrays.conversion import (
    DATA,
    SCALES,
    ZEROS,
    converted_part,
    of_rows,
    of_shape,
    relative_scales,
    same_parts,
    widen_blocks,
    zeros_of,
)
from castwise.quantization.arrays.decode import scales_tell, wrapped_zeros
from castwise.quantization.arrays.named_parts import marker_of
from castwise.quantization.arrays.row_slices import rows_of, step_of
from castwise.quantization.arrays.views import Views, scale_dtype, views_of
from castwise.quantization.producers.layouts import ACTIVATION, E4M3, E8M0, GLOBAL, ZERO, Part
from castwise.quantization.producers.names import name_part
from castwise.quantization.producers.producer import Encoding
from castwise.quantization.producers.registry import TYPED, find_recipe
from castwise.quantization.producers.schemes import find_scheme
from castwise.quantization.weights.decoding import (
    Decoding,
    can_be_stacked,
    is_stacked_alike,
    stack_of,
)
from castwise.quantization.weights.decoding import Slab as Cut

Array = NDArray[Any]

# Stands for that of a weight until it is known which of its tensors change.
_NO_JOB = WeightJob("", lambda *_: ())


class _NewTensors(NamedTuple):
    """What a weight becomes."""

    tensors: Sequence[DerivedTensor]  # those that are not there as they are
    staying: Collection[str]  # the stored tensors that are


class TranscodedWeight:
    """A weight, and what it becomes."""

    form: Views  # the form that it gets, from `becomes` on

    def __init__(
        self,
        weight: QuantizedWeight,  # what was recognized
        scheme: str,  # how it will be quantized
        plan: Decoding,  # how it is read, its matrices as they are stored
        *,
        stored_tensors: StoredTensors,  # the tensors of all shards
        # The first of all weights that differ in names alone, by what tells them from others
        kinds: dict[object, TranscodedWeight],
        # Told of its payload if zero points are such as decoders do not agree on
        warn: Callable[[str], None],
    ) -> None:
        self.weight = weight
        self.scheme = scheme
        self.plan = plan
        # How it is stated that it is stored; None where its statements stay.
        self.encoding: Encoding | None = None
        # Its global scale, if that is another one.
        self.level: Power | Reciprocal | None = None
        self._stem = ""
        self.stored_tensors = stored_tensors
        self._kinds = kinds
        self._result = _NewTensors((), ())  # until `tensors` is called
        self._warn = warn
        self._names = {role: name for name, role in weight.parts.items()}
        whole = plan.alike  # one of several has no index
        self._index: Any = None if whole is None else whole.extras.get("group index")
        self._copies: set[str] = set()
        # The keys of codes, scales and zero points that change.
        self._keys: dict[str, str] = {}
        # What makes constants and single numbers, by the name of the tensor.
        self._single_slabs: dict[str, SingleSlabs] = {}

    def becomes(self, form: Views, stem: str) -> None:
        """Take note of the form that it gets, and of what its parameter is called there."""
        self.form, self._stem = form, stem
        formats = form.layout.parts[0].formats if form.layout.parts else ()
        name = self._format(SCALES, self.weight.scale or self.weight.payload)
        if formats and name not in formats:
            raise ValueError(
                f"{self.weight.scale!r} is {name}, and the other form has scales of "
                f"{' or '.join(formats)}; {AGAIN}"
            )
        self.plan = self.plan._replace(step=math.lcm(self.plan.step, step_of(form)))

    @property
    def index_name(self) -> str | None:
        """The stored tensor that says in which group each column is."""
        return None if self._index is None else str(self._index.name)

    @property
    def is_symmetric(self) -> bool:
        """True if all zero points are in the middle, so that codes with a sign need none."""
        whole = self.plan.whole
        if whole is None or whole.zero_point is None:
            return True
        middle = 1 << (views_of(whole).scheme.bits - 1)
        return bool((zeros_of(whole) == middle).all())

    @property
    def is_reordered(self) -> bool:
        """True if columns are not all in the groups in which they stand."""
        return self._index is not None and bool((np.asarray(self._index) != self._in_order()).any())

    def _in_order(self) -> Array:
        whole = self.plan.whole
        assert whole is not None, "of an array"  # noqa: S101
        return np.arange(self.plan.matrix_shape[-1], dtype=np.int32) // views_of(whole).block[1]

    def tensors(self) -> Sequence[DerivedTensor]:
        """List the tensors that it becomes and that are not there as they are."""
        first = None if self.plan.similar is None else self._kinds.setdefault(self._kind(), self)
        if first is None or first is self or self.level is not None:
            self._result = self._prepare()
        else:
            self._result = self._rename(first)
        return self._result.tensors

    def _kind(self) -> tuple[object, ...]:
        """Return what weights have in common that differ in names alone."""
        return id(self.plan.similar), id(self.form), type(self.level)

    def _rename(self, first: TranscodedWeight) -> _NewTensors:
        """Return the tensors of a weight that differs from another one in names alone."""
        homes = zip(
            *[(weight.weight.payload, *weight.weight.parts) for weight in (first, self)],
            strict=True,
        )
        names = dict(homes)
        rows, staying = first._result.tensors, {names[name] for name in first._result.staying}
        if not rows:
            return _NewTensors((), staying)
        new_names = [self._name_part(first._parts_by_name[row.info.name]) for row in rows]
        payload = next(
            (name for name, row in zip(new_names, rows, strict=True) if row.scheme), new_names[0]
        )
        job = WeightJob(payload, partial(self._slabs, payload), rows[0].job.stack, self, new_names)
        tensors = [
            DerivedTensor(
                row.info._replace(name=name),
                row.format,
                names[row.home],
                [names[source] for source in row.sources],
                job,
                row.scheme,
            )
            for name, row in zip(new_names, rows, strict=True)
        ]
        return _NewTensors(tensors, staying)

    @cached_property
    def _parts_by_name(self) -> Mapping[str, str]:
        """What the parts of its form are called behind its parameter, by their whole names."""
        layout = self.form.layout
        parts = [layout.payload, *[part.name for part in layout.parts]]
        return {self._name_part(part): part for part in parts}

    def _prepare(self) -> _NewTensors:
        """Return the tensors that it becomes, and keep what makes each of them."""
        stored_form = None if self.plan.whole is None else views_of(self.plan.whole)
        same = set() if stored_form is None else same_parts(stored_form, self.form)
        layout, payload = self.form.layout, self.weight.payload
        scale = self.weight.scale or payload
        candidates = [
            self._tensor(DATA, payload, layout.payload, is_same=DATA in same),
            self._tensor(SCALES, scale, layout.parts[0].name, is_same=SCALES in same),
            *map(self._other, layout.parts[1:]),
        ]
        tensors = [tensor for tensor in candidates if tensor is not None]
        homes = [tensor.home for tensor in tensors]
        new_tensors: list[DerivedTensor] = []
        staying: set[str] = set()
        for tensor in tensors:
            if homes.count(tensor.home) == 1 and self._stays(tensor):
                staying.add(tensor.info.name)
            else:
                new_tensors.append(tensor)
        if not new_tensors:
            return _NewTensors((), staying)
        # The row of the codes has what is lost, unless they stay where they are.
        codes = next((row for row in new_tensors if row.scheme is not None), None)
        name = (codes or new_tensors[0]).info.name
        names = [tensor.info.name for tensor in new_tensors]
        stack = self._stack_of(new_tensors)
        job = WeightJob(name, partial(self._slabs, name), stack, self, names)
        homeless = () if codes is None else self._without_place(new_tensors, staying)
        lost_bytes = sum(self.stored_tensors[name].nbytes for name in homeless)
        new_tensors = [
            # The bytes of tensors without a place count as those of the codes.
            row._replace(job=job, info=row.info._replace(nbytes=row.info.nbytes + lost_bytes))
            if row.scheme is not None
            else DerivedTensor(row.info, row.format, row.home, row.sources, job)
            for row in new_tensors
        ]
        return _NewTensors(new_tensors, staying)

    def _slabs(
        self, payload: str, names: Collection[str], _format: str | None
    ) -> Iterator[WeightSlab]:
        if not (self._keys or self._single_slabs):
            self._prepare()
        yield from self._converted_slabs(names)
        for name in self._single_slabs.keys() & names:
            yield from slabs_of_one(name, self._single_slabs[name])
        if payload in names and self._keys.get(payload) != DATA:
            yield WeightSlab({}, lambda: ({}, stored_losses(self.plan, SLAB_ELEMENTS)))

    def _converted_slabs(self, names: Collection[str]) -> Iterator[WeightSlab]:
        """List the slabs of codes, scales and zero points: each can be made by another thread."""
        keys = {name: key for name, key in self._keys.items() if name in names}
        plan, whole = self.plan, self.plan.whole
        widens = whole is None or self.form.scheme.bits != views_of(whole).scheme.bits
        # Slabs with codes are measured. Codes are read only where they or zero points change.
        if keys and not (widens or {DATA, ZEROS} & {*keys.values()}):
            scales = without_codes(whole)
            plan = plan._replace(
                rows=lambda slab: rows_of(scales, slab.start, slab.stop, slab.place)
            )
        for slab in plan.slabs(SLAB_ELEMENTS) if keys else ():
            form = of_rows(self.form, slab.stop - slab.start)
            shapes = {DATA: form.data_shape, SCALES: form.scale_shape, ZEROS: form.zero_shape}
            counts = {name: math.prod(shapes[key]) for name, key in keys.items()}
            yield WeightSlab(counts, partial(self._convert, plan, keys, form, slab))

    def _convert(
        self, plan: Decoding, keys: Mapping[str, str], form: Views, slab: Cut
    ) -> tuple[Arrays, DecodeReport | None]:
        q, level = plan.rows(slab), self.level
        if ZEROS in keys.values() and wrapped_zeros(q):
            self._warn(self.weight.payload)
        if form.scheme.bits != views_of(q).scheme.bits:
            try:
                parts = widen_blocks(q, form, slab.start)
            except ValueError as error:
                where = f" of matrix {slab.place}" if slab.place else ""
                raise CheckpointError(
                    f"tensor {self.weight.payload!r}: {error}{where}; {AGAIN}"
                ) from error
        else:
            parts = {
                key: relative_scales(q, form, level.power())
                if key == SCALES and isinstance(level, Power)
                else converted_part(q, form, key)
                for key in {*keys.values()}
            }
        report = losses_of_codes(q) if DATA in keys.values() else None
        return {name: parts[key] for name, key in keys.items()}, report

    def _stack_of(self, tensors: Sequence[DerivedTensor]) -> WeightStack | None:
        """Return what makes it with weights that differ in names alone; None if nothing does."""
        form, plan, stored = self.form, self.plan, [self.weight.payload, *self.weight.parts]
        elements = math.prod(plan.shape)
        is_stacked = (
            plan.similar is not None
            and can_be_stacked(plan.whole)
            and is_stacked_alike(form)
            and form.scheme.bits == find_scheme(self.weight.scheme or "").bits
            and not isinstance(self.level, Power)
            and all(map(self.stored_tensors.are_stacked, stored))
            and 2 * elements <= STACK_ELEMENTS
        )
        if not is_stacked:
            return None
        first = self._kinds[self._kind()]
        if first is self:
            return WeightStack(elements, self._make_stack)
        rows = first._result.tensors
        return rows[0].job.stack if len(tensors) == len(rows) else None

    def _make_stack(
        self, weights: Sequence[TranscodedWeight]
    ) -> tuple[Sequence[Array], Sequence[DecodeReport]] | None:
        """Make small weights; None if one of them loses values, or is warned of."""
        form, whole, tensors = self.form, self.plan.whole, self.stored_tensors
        names = [weight.plan.parts for weight in weights]
        q = stack_of(whole, [tensors.stack(part) for part in zip(*names, strict=True)])
        if not all(scales_tell(q, np.dtype(np.float32), reads_codes=True)) or wrapped_zeros(q):
            return None
        arrays = []
        for index, tensor in enumerate(self._result.tensors):
            others = [weight._result.tensors[index] for weight in weights]
            if (key := self._keys.get(tensor.info.name)) is not None:
                array = converted_part(q, of_shape(form, (len(weights), *form.shape)), key)
            elif tensor.info.name in self._copies:
                array = tensors.stack([other.home for other in others])
            else:
                each = [(self, tensor)]  # a constant is that of all
                if self.level is not None:
                    each = [*zip(weights, others, strict=True)]
                singles = np.stack([weight._make_single(single) for weight, single in each])
                array = np.broadcast_to(singles, (len(weights), *singles.shape[1:]))
            arrays.append(array)
        return arrays, [DecodeReport(math.prod(form.shape))] * len(weights)

    def _make_single(self, tensor: DerivedTensor) -> Array:
        ((_, make),) = self._single_slabs[tensor.info.name]()
        return make()

    def left_out(self, tensors: Sequence[DerivedTensor]) -> set[str]:
        """Name the stored tensors that have no place any more."""
        return self._without_place(tensors, self._result.staying)

    def _without_place(
        self, tensors: Sequence[DerivedTensor], staying: Collection[str]
    ) -> set[str]:
        homes = {tensor.home for tensor in tensors}
        return {self.weight.payload, *self.weight.parts}.difference(homes, staying)

    def _stays(self, tensor: DerivedTensor) -> bool:
        info, (name, *_), shape = self.stored_tensors[tensor.home], tensor.info, tensor.info.shape
        is_copied = name in self._copies
        return is_copied and (name, tensor.format, shape) == (info.name, info.format, info.shape)

    def _describe(
        self,
        home: str,
        name: str,
        format_name: str,
        shape: tuple[int, ...],
        *,
        sources: Collection[str],
        slabs: SingleSlabs | None,
        is_payload: bool = False,
    ) -> DerivedTensor:
        """Describe a new tensor; as stored it is what stands in its place."""
        info_of_home = self.stored_tensors[home]
        nbytes = info_of_home.nbytes if is_payload or home != self.weight.payload else 0
        info = derived_info(name, info_of_home.label, shape, nbytes)
        scheme = self.scheme if is_payload else None
        if slabs is not None:
            self._single_slabs[name] = slabs
        return DerivedTensor(info, format_name, home, sources, _NO_JOB, scheme=scheme)

    def _name_part(self, part: str) -> str:
        return name_part(part, self._stem) if part else self._stem

    def _tensor(self, key: str, home: str, part: str, *, is_same: bool = False) -> DerivedTensor:
        """Describe codes, scales or zero points."""
        name, format_name, form = self._name_part(part), self._format(key, home), self.form
        shape = {DATA: form.data_shape, SCALES: form.scale_shape}.get(key)
        shape = form.zero_shape if shape is None else shape
        if is_same and format_name == self.stored_tensors[home].format:
            return self._copy(home, name, shape)
        self._keys[name] = key
        sources = [self.weight.payload, *self.weight.parts]
        if key == SCALES and isinstance(self.level, Power):
            sources = self.level.sources
        return self._describe(
            home, name, format_name, shape, sources=sources, slabs=None, is_payload=key == DATA
        )

    def _format(self, key: str, home: str) -> str:
        """Return the format of codes, scales or zero points in the new form."""
        dtype, form = numpy_dtype(self.stored_tensors[home].format or ""), self.form
        if key != SCALES:
            is_float = finfo(dtype).kind == "float" and form.scheme.bits == BYTE_BITS
            return _format_of(dtype if is_float and key == DATA else form.container)
        if self.weight.scale is None:  # in blocks of bytes
            dtype = numpy_dtype(find_recipe(TYPED).scales)
        is_byte = form.scheme.scale in (E4M3, E8M0)
        return _format_of(scale_dtype(form, dtype, powers=False) if is_byte else dtype)

    def _copy(self, home: str, name: str, shape: tuple[int, ...]) -> DerivedTensor:
        info = self.stored_tensors[home]
        slabs = partial(_copy_slabs, self.stored_tensors, home, shape)
        is_payload = home == self.weight.payload
        self._copies.add(name)
        return self._describe(
            home, name, info.format or "", shape, sources=[home], slabs=slabs, is_payload=is_payload
        )

    def _constant(self, home: str, name: str, value: Array) -> DerivedTensor:
        slabs = [(value.size, lambda: value)]
        return self._describe(
            home, name, _format_of(value.dtype), value.shape, sources=[], slabs=lambda: slabs
        )

    def _scalar(
        self, home: str, name: str, value: Callable[[], Any], sources: Collection[str]
    ) -> DerivedTensor:
        shape = self._shape_of_scalars

        def scalar() -> Array:
            return np.asarray(value(), np.float32).reshape(shape)

        name_of_format, slabs = _format_of(np.dtype(np.float32)), [(math.prod(shape), scalar)]
        return self._describe(
            home, name, name_of_format, shape, sources=sources, slabs=lambda: slabs
        )

    @property
    def _shape_of_scalars(self) -> tuple[int, ...]:
        return () if self.form.recipe is None else self.form.recipe.scalar

    def _other(self, part: Part) -> DerivedTensor | None:
        """Describe a part of the new form beside codes and scales; None if it has none."""
        stored_name = self._names.get(part.role)
        if part.role == GLOBAL:
            return self._global(stored_name, self._name_part(part.name))
        if part.role == ACTIVATION:
            if stored_name is None:
                return None
            # A form may name several scales of inputs; a weight has the first of them.
            scales = [other for other in self.form.layout.parts if other.role == ACTIVATION]
            if part is not scales[0]:
                return None
            return self._inputs(stored_name, part)
        if part.role == ZERO:
            stays = (
                stored_name is not None
                and self.encoding is not None
                and not self.encoding.symmetric
            )
            return self._tensor(ZEROS, stored_name or "", part.name) if stays else None
        return self._constants(part)

    def _global(self, stored_name: str | None, name: str) -> DerivedTensor | None:
        if self.level is not None:
            home, level = stored_name or self.weight.payload, self.level
            return self._scalar(home, name, level.value, level.sources)
        return (
            None if stored_name is None else self._copy(stored_name, name, self._shape_of_scalars)
        )

    def _inputs(self, stored_name: str, part: Part) -> DerivedTensor:
        name = self._name_part(part.name)
        if not isinstance(self.level, Reciprocal):
            return self._copy(stored_name, name, self._shape_of_scalars)
        value = np.float32(self.stored_tensors.read(stored_name).reshape(()))
        reciprocal = partial(np.divide, np.float32(1), value)
        return self._scalar(stored_name, name, reciprocal, [stored_name])

    def _constants(self, part: Part) -> DerivedTensor | None:
        name, payload, form = self._name_part(part.name), self.weight.payload, self.form
        if part.use == "shape":
            return self._constant(payload, name, np.array(form.shape, np.int64))
        if part.use == "marker" and (marker := marker_of(form)) is not None:
            return self._constant(payload, name, marker)
        if part.use != "group index" or self.encoding is None or not self.encoding.has_index:
            return None
        if self._index is None:
            return self._constant(payload, name, self._in_order())
        return self._copy(self._index.name, name, self._index.shape)


def _format_of(dtype: np.dtype[Any]) -> str:
    row = format_of(dtype)
    assert row is not None, "of the table"  # noqa: S101
    return row.name


def _copy_slabs(
    tensors: StoredTensors, name: str, shape: tuple[int, ...]
) -> Iterator[tuple[int, Callable[[], Array]]]:
    """List the slabs of a tensor that stays as it is, but for its shape if it is one number."""
    if (count := math.prod(shape)) <= 1:
        whole = [(0, n) for n in tensors[name].shape]
        yield count, lambda: tensors.box(name, whole).reshape(shape)
        return
    for ranges in cuts_of(tensors, name):
        yield math.prod(end - begin for begin, end in ranges), partial(tensors.box, name, ranges)
