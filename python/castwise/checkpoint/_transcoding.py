"""Plan what a quantised checkpoint is in the form of another producer, its codes and scales kept.

What changes are names, shapes, and whether a global scale multiplies or divides. A reciprocal is a
division that is rounded, so one is taken only if with it each code decodes to the same value at
every scale that there is, in bfloat16 and in float16.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from threading import Lock
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from castwise._dtype_map import DtypeMap
from castwise.checkpoint._config import CONFIG
from castwise.checkpoint._decoded import DecodedWeight, Slab, decoded_reader
from castwise.checkpoint._encoding import KIND, Encoded, Part
from castwise.checkpoint._errors import CheckpointError, listed
from castwise.checkpoint._layers import is_matrix, kept_modules
from castwise.checkpoint._quantized import found_in, stated_of
from castwise.checkpoint._quantizing import Made
from castwise.checkpoint._stored import Range, StoredTensors
from castwise.checkpoint._tensors import TensorInfo
from castwise.checkpoint._written_configs import statements
from castwise.checkpoint._written_schemes import Form, encoding, form_names, form_of, written
from castwise.checkpoint.containers._interface import Reader
from castwise.checkpoint.containers.folder import CheckpointFolder, Component, components_of
from castwise.quantization import Quantization, QuantizedWeight
from castwise.quantization._configs import CONFIGS, undecodable
from castwise.quantization._configs import statements as statements_in
from castwise.quantization._layouts import ACTIVATION, GLOBAL, SCALE

_WEIGHT = "weight"
_SECTION = "quantization_config"
_SLAB_BYTES = 4 << 20
_NUMBERS = (ml_dtypes.bfloat16, np.float16)
_CODES = np.arange(8, dtype=np.uint8).view(ml_dtypes.float4_e2m1fn).astype(np.float32)
"""The values of the codes without a sign."""

Array = NDArray[Any]


def transcoded(
    source: Reader | CheckpointFolder, recipe: str, threads: int, *, is_file: bool
) -> Made:
    """Return an opened checkpoint in the form of another producer.

    `is_file` says that it becomes one file, which states in its metadata how weights are stored.

    Raises
    ------
    CheckpointError
        It is not quantised, or not in a form that can be laid anew; or it has tensors that the
        other form has no place for.

    """
    made = Encoded(source, DtypeMap.from_mapping({}))
    plans = [_Relaid(source, one, recipe) for one in components_of(source)]
    if not any(one.weights for one in plans):
        raise CheckpointError(
            f"{source.path}: no weight in it is quantised; castwise quantize quantises it"
        )
    components = [one.component(made, threads, is_file=is_file) for one in plans]
    if not isinstance(source, CheckpointFolder):
        (made.source,) = components[0].shards.values()
        return made.made()
    consumed = {
        one.prefix + name
        for one, plan in zip(components, plans, strict=True)
        for name in CONFIGS
        if plan.weights and name != CONFIG
    }
    made.source = replace(source, components=components, consumed=frozenset(consumed))
    return made.made()


@dataclass(slots=True)
class _Reciprocal:
    """The reciprocal of a global scale that some weights have.

    Attributes
    ----------
    value
        The global scale.
    divides
        True if it divides; then the reciprocal multiplies.
    stored
        The tensors of all shards.
    scales
        The names of the scales beside it.
    found
        The reciprocal.

    """

    value: np.float32
    divides: bool
    stored: StoredTensors
    scales: list[str] = field(default_factory=list)
    found: np.float32 | None = None
    lock: Lock = field(default_factory=Lock)

    def get(self) -> np.float32:
        """Find it, the first time, with the scales that are there."""
        with self.lock:
            if self.found is None:
                self.found = self._search()
            return self.found

    def _search(self) -> np.float32:
        there = np.zeros(256, bool)
        for name in self.scales:
            for array in _slabs_of(self.stored, name):
                there |= np.bincount(array.reshape(-1).view(np.uint8), minlength=256) > 0
        scales = np.flatnonzero(there).astype(np.uint8).view(ml_dtypes.float8_e4m3fn)
        with np.errstate(all="ignore"):
            first = np.float32(1) / self.value
            near = (first, np.nextafter(first, np.float32(np.inf)), np.nextafter(first, first * 0))
            for one in near:
                divisor, factor = (self.value, one) if self.divides else (one, self.value)
                if np.isfinite(one) and _is_same(scales.astype(np.float32), divisor, factor):
                    return one
        raise CheckpointError(
            f"tensor {self.scales[0]!r}: with no reciprocal of its global scale {self.value!r} do "
            "all values stay what they are; decode it (castwise dequantize) and quantise that"
        )


def _is_same(scales: Array, divisor: np.float32, factor: np.float32) -> bool:
    """Return True if all codes at these scales decode to the same, dividing and multiplying."""
    values = (_CODES * (scales / divisor)[:, None], _CODES * (scales * factor)[:, None])
    return all(
        np.array_equal(*(one.astype(dtype).view(np.uint16) for one in values)) for dtype in _NUMBERS
    )


class _Relaid:
    """The plan for one component."""

    def __init__(
        self, source: Reader | CheckpointFolder, component: Component, recipe: str
    ) -> None:
        self._component = component
        self._recipe = recipe
        self._path = source.path / component.prefix if component.prefix else source.path
        tensors, configs, pairs, unreadable = stated_of(source, component)
        if unreadable:
            raise self._refusal(f"what states how it is stored cannot be read: {unreadable[0]}")
        found = found_in(component, tensors, configs, pairs)
        self.weights: Sequence[QuantizedWeight] = () if found is None else found.weights
        self._tensors = tensors
        if found is not None:
            self._check(found, configs, pairs)

    def _refusal(self, reason: str) -> CheckpointError:
        return CheckpointError(f"{self._path} cannot be transcoded to {self._recipe}: {reason}")

    def _check(
        self, found: Quantization, configs: Mapping[str, Any], pairs: Mapping[str, str]
    ) -> None:
        """Refuse what the other form has no place for."""
        again = "decode it (castwise dequantize), and quantise that (castwise quantize)"
        if found.unknown is not None or found.orphans or not found.weights:
            names = [one.name for one in found.orphans] or list(found.stated)
            raise self._refusal(f"{listed(names)} is not known, or not complete; {again}")
        for one in statements_in(configs, pairs):
            if one.section.get("kv_cache_quant_algo") or one.section.get("kv_cache_scheme"):
                raise self._refusal(f"caches are stated otherwise there ({one.origin})")
            if (reason := undecodable(one)) is not None:
                raise self._refusal(f"{one.origin}: {reason}")
        if found.others:
            raise self._refusal(f"scales of caches are stored otherwise there: {found.others[0]!r}")
        forms = {self._form(one, again) for one in found.weights}
        if len(forms) > 1:
            raise self._refusal(f"its weights are stored in several ways; {again}")
        (self._old,) = forms
        inputs = {ACTIVATION in one.parts.values() for one in found.weights}
        if len(inputs) > 1:
            raise self._refusal("some weights have scales of their inputs, and others none")
        self._has_inputs = inputs == {True}

    def _form(self, weight: QuantizedWeight, again: str) -> Form:
        """Return the form that a weight has; refuse one that cannot be laid anew."""
        if weight.problem is not None:
            raise self._refusal(f"{weight.payload!r}: {weight.problem}")
        old = form_of(weight.recipes[0], weight.scheme) if len(weight.recipes) == 1 else None
        new = form_of(self._recipe, weight.scheme)
        if old is None or new is None:
            raise self._refusal(
                f"{weight.payload!r} is {weight.scheme} as by {' or '.join(weight.recipes)}, and "
                f"castwise lays anew what {', '.join(form_names())} store; {again}"
            )
        if old is new:
            raise self._refusal(f"{weight.payload!r} is stored so already")
        roles = {SCALE, GLOBAL, ACTIVATION}
        for name, role in weight.parts.items():
            if role not in roles or (role == ACTIVATION and not new.inputs):
                raise self._refusal(f"{name!r} has no place there; {again}")
        return old

    @cached_property
    def _new(self) -> Form:
        new = form_of(self._recipe, self._old.scheme)
        assert new is not None, "by `_form`"  # noqa: S101
        return new

    def component(self, made: Encoded, threads: int, *, is_file: bool) -> Component:
        """Return the component in the new form, and note what it has."""
        component, prefix = self._component, self._component.prefix
        if not self.weights:
            return component
        stored = StoredTensors(component.shards)
        parts, payloads = self._parts(stored), {one.payload for one in self.weights}
        for name, one in parts.items():
            new = one.info.name
            if new in stored and new not in parts and new != name:
                raise self._refusal(f"{name!r} is to become {new!r}, which is there too")
            label = self._old.scheme if name in payloads else one.format
            made.parts[prefix + new] = Part(one.format, label)
        row = encoding(written(self._old.scheme, self._recipe), None)
        modules = {one.name.removesuffix(f".{_WEIGHT}"): row for one in self.weights}
        left = [one.name for one in self._tensors if one.name not in payloads and is_matrix(one)]
        kept = kept_modules(left, modules)
        stated = made.stated[prefix] = statements(modules, kept, inputs=self._has_inputs)
        shards: dict[str, Reader] = {}
        for path, reader in component.shards.items():
            metadata = {key: text for key, text in reader.metadata.items() if key != _SECTION}
            shards[path] = decoded_reader(
                reader,
                stored,
                {name: [one] for name, one in parts.items() if name in reader.tensors},
                left_out=(),
                metadata={**metadata, **((stated.metadata or {}) if is_file else {})},
                threads=threads,
            )
        made_of = {name: one.info.name for name, one in parts.items()}
        index = dict(component.index)
        if "weight_map" in index:
            index["weight_map"] = {
                made_of.get(name, name): shard for name, shard in index["weight_map"].items()
            }
        indexed = {
            path: tuple(made_of.get(name, name) for name in names)
            for path, names in component.indexed.items()
        }
        return replace(component, index=index, shards=shards, indexed=indexed)

    def _parts(self, stored: StoredTensors) -> dict[str, DecodedWeight]:
        """Return what becomes of the tensors that are named or laid otherwise."""
        old, new = self._old, self._new
        found: dict[str, DecodedWeight] = {}
        shared: dict[bytes, _Reciprocal] = {}
        for weight in self.weights:
            stem = weight.name.removesuffix(_WEIGHT)
            names = {role: name for name, role in weight.parts.items()}
            if (payload := stem + new.payload) != weight.payload:
                info = stored[weight.payload]
                slabs = partial(_copied, stored, weight.payload)
                found[weight.payload] = _renamed(info, payload, info.shape, [info.name], slabs)
            if (level := names.get(GLOBAL)) is not None:
                value = np.float32(self._scalar(stored, level))
                one = shared.setdefault(
                    value.tobytes(), _Reciprocal(value, divides=old.divides, stored=stored)
                )
                one.scales.append(names[SCALE])
                slabs = partial(_scalar_of, one.get, new.scalar)
                found[level] = _renamed(
                    stored[level], stem + new.level, new.scalar, one.scales, slabs
                )
            if (inputs := names.get(ACTIVATION)) is not None:
                value = np.float32(self._scalar(stored, inputs))
                slabs = partial(_scalar_of, partial(np.divide, np.float32(1), value), new.scalar)
                found[inputs] = _renamed(
                    stored[inputs], stem + new.inputs, new.scalar, [inputs], slabs
                )
        return found

    def _scalar(self, stored: StoredTensors, name: str) -> Any:
        array = stored.read(name)
        if array.size != 1 or not np.isfinite(array).all() or not (array > 0).all():
            raise self._refusal(f"{name!r} is not one positive number")
        return array.reshape(())


def _renamed(
    info: TensorInfo, name: str, shape: tuple[int, ...], needed: Sequence[str], slabs: Any
) -> DecodedWeight:
    assert info.format is not None, "by the layouts"  # noqa: S101
    described = TensorInfo(name, None, KIND, info.label, shape, info.nbytes)
    return DecodedWeight(described, info.format, info.name, needed, slabs)


def _copied(stored: StoredTensors, name: str, _format: str) -> Iterator[Slab]:
    for cut in _cuts_of(stored, name):
        yield partial(stored.box, name, cut)


def _scalar_of(value: Any, shape: tuple[int, ...], _format: str) -> Iterator[Slab]:
    yield lambda: np.asarray(value(), np.float32).reshape(shape)


def _cuts_of(stored: StoredTensors, name: str) -> Iterator[Sequence[Range]]:
    """Cut a tensor of bytes along its first axis."""
    shape = stored[name].shape
    rest: list[Range] = [(0, count) for count in shape[1:]]
    high = max(_SLAB_BYTES * shape[0] // max(stored[name].nbytes, 1), 1)
    for first in range(0, shape[0], high):
        yield [(first, min(first + high, shape[0])), *rest]


def _slabs_of(stored: StoredTensors, name: str) -> Iterator[Array]:
    return (stored.box(name, cut) for cut in _cuts_of(stored, name))
