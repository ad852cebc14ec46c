"""Plan what a quantised checkpoint is without quantisation, and refuse what would be a guess."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from castwise._core import PolicyMap
from castwise._dtype_map import DTYPE, DtypeMap
from castwise._spelling import nearest
from castwise._wording import about, argument, given
from castwise.checkpoint._errors import CheckpointError, listed
from castwise.checkpoint._tensors import Planned, TensorInfo, numpy_dtype
from castwise.checkpoint.containers._interface import Reader
from castwise.checkpoint.containers.checkpoint import Checkpoint, Component
from castwise.checkpoint.containers.gguf import GgufReader
from castwise.checkpoint.containers.safetensors import SafetensorsReader
from castwise.checkpoint.decoding._decode import FORMATS, Decode
from castwise.checkpoint.decoding._decoded import DecodedWeight, Slab
from castwise.checkpoint.decoding._decoded_files import decoded_reader
from castwise.checkpoint.decoding._losses import LossCounter
from castwise.checkpoint.decoding._plain_config import HALVES, Exceptions, follows
from castwise.checkpoint.plan import plan
from castwise.checkpoint.planning._component import ComponentPlan
from castwise.quantization import Quantization, QuantizedArray, QuantizedWeight, dequantize
from castwise.quantization.arrays._decode import wrapped_zeros
from castwise.quantization.producers._attention import scale_of_attention
from castwise.quantization.producers._configs import Statement
from castwise.quantization.producers._keras_names import KERAS_FLOAT8, numbered_kernel
from castwise.quantization.producers._names import tail
from castwise.quantization.producers._registry import CONFIGS, NOT_DECODED
from castwise.quantization.producers._stored_weight import Undecodable
from castwise.quantization.producers.torchao import described_in
from castwise.quantization.weights._decoding import Decoding, decoding
from castwise.quantization.weights._decoding import Slab as Cut

_LOGGER = logging.getLogger(__name__)
_CONFIG, _OWN, _KERAS = "config.json", "metadata", "keras"
_SLAB_ELEMENTS = 1 << 20
"""Elements of a slab, whose memory is used again: that of larger ones goes back to the system."""

METADATA = ("_quantization_metadata", "quantization_config", "tensor_names")
"""Keys of metadata that tell how tensors are quantised."""

WRAPPED = (
    "zero points of {!r} are stored as the largest code, one less than 0; they are taken as 0, as "
    "GPTQModel and exllamav2 do, while AutoGPTQ's torch code takes them for the largest code plus "
    "one"
)

_Check = Callable[[QuantizedArray], None]
"""Looks at what was read for a slab."""

_DECODED = "float"
"""Kind of a weight that is decoded; its format is None, as that of no other tensor of this kind."""

_OWN_NAMES = frozenset(("bitsandbytes", "gpt-oss", "comfy", "mistral", "keras"))
"""Recipes that names of tensors, or what they hold, tell as well as a configuration does."""


_EXCEPTIONS = {
    "compressed-tensors": "ignore",
    "fp8": "modules_to_not_convert",
    "mxfp8": "modules_to_not_convert",
    "mxfp4": "modules_to_not_convert",
    "fbgemm_fp8": "modules_to_not_convert",
    "bitsandbytes": "llm_int8_skip_modules",
}
"""The key of a method's section that lists the modules that are not quantised."""


class Plain(NamedTuple):
    """An opened checkpoint as it is without quantisation.

    Attributes
    ----------
    source
        The readers that decode.
    exceptions
        By the paths of configurations, the modules that they must except from it now.
    tell
        Warns of what a plain model does not have.
    following
        By the prefixes of components, the other tensors whose format becomes that of the weights.

    """

    source: Checkpoint
    exceptions: dict[str, Exceptions]
    tell: Callable[[], None]
    following: Mapping[str, Set[str]]


def decoded(source: Checkpoint, decode: Decode) -> Plain:
    """Return an opened checkpoint as it is without quantisation.

    Raises
    ------
    CheckpointError
        Nothing in it is quantised; or a weight cannot be decoded for certain: a part is missing or
        of another shape, nothing says how it is stored, or castwise does not decode it.

    """
    plans = [_Plain(source, component, decode) for component in source.components]
    # No other command reads a GGUF file.
    may_be_plain = decode.may_be_plain or isinstance(source.file, GgufReader)
    if not (
        may_be_plain
        or any(component_plan.names or component_plan.left_out for component_plan in plans)
    ):
        raise CheckpointError(
            f"{source.path}: no weight in it is quantised; castwise cast casts it"
        )
    _check_only(decode, plans)

    def tell() -> None:
        for component_plan in plans:
            component_plan.tell()

    following = {plan.prefix: plan.following for plan in plans if plan.following}
    consumed = {name for component_plan in plans for name in component_plan.consumed}
    components = [component_plan.component() for component_plan in plans]
    exceptions = {
        component.prefix + _CONFIG: plan.exceptions
        for component, plan in zip(components, plans, strict=True)
        if plan.exceptions is not None
    }
    plain = replace(source, components=components, consumed=frozenset(consumed))
    return Plain(plain, exceptions, tell, following)


def decide(
    decode: Decode, tensors: Iterable[TensorInfo], dtypes: DtypeMap, following: Set[str]
) -> list[Planned]:
    """Plan that weights are decoded, and what becomes of all other tensors.

    That is the same format for those of the names `following`, and else what a map says.
    """

    def planned(info: TensorInfo) -> Planned:
        is_decoded = info.format is None and info.kind == _DECODED
        if is_decoded or info.name in following:
            return Planned(info, decode.format, None, DTYPE, is_decoded=is_decoded)
        return plan([info], dtypes)[0]

    return [planned(info) for info in tensors]


class _Plain(ComponentPlan):
    """The plan for one component.

    Attributes
    ----------
    shards
        What stands for its shards, by path; those without any tensor are not there.
    consumed
        Paths of its files that tell how tensors were stored, and of shards without any tensor.
    left_out
        The tensors that a plain model does not have, each with what it is; "" for those that were
        needed to decode others.
    exceptions
        The modules that its configuration must except; None if all of it is decoded.
    following
        The names, as they will be, of other tensors that become what the weights become.

    """

    purpose = "decoded"
    statement_text = "what states how its tensors are stored"

    def __init__(self, source: Checkpoint, component: Component, decode: Decode) -> None:
        ComponentPlan.__init__(self, source, component)
        self._decode = decode
        is_folder = source.is_folder
        self.names: list[str] = []
        self.consumed: list[str] = []
        self.exceptions: Exceptions | None = None
        self.shards: dict[str, Reader] = dict(component.shards)
        self._weights: dict[str, DecodedWeight] = {}
        self._renamed: dict[str, str] = {}
        self.left_out: dict[str, str] = {}
        self.following: Set[str] = frozenset()
        self._warned: set[str] = set()
        if self.quantization is None:
            return
        self._check(self.quantization)
        self.names = [component.prefix + weight.name for weight in self.quantization.weights]
        chosen = self._chosen(self.quantization)
        is_partial = len(chosen) < len(self.quantization.weights)
        if is_partial and chosen:
            stating = [
                statement
                for statement in self._stated
                if is_folder or statement.origin == _OWN or statement.method == _KERAS
            ]
            self.exceptions = self._excepted(stating, chosen)
        self._plan(chosen)
        if is_folder and not is_partial:
            self.consumed = [
                component.prefix + name
                for name in CONFIGS
                if name in self._configs and name != _CONFIG
            ]
        if (is_folder or isinstance(source.file, SafetensorsReader)) and chosen and not is_partial:
            self.following = self._follow(self._configs.get(_CONFIG))
        self._stand_in()

    def _check(self, quantization: Quantization) -> None:
        """Refuse what does not say for certain how each weight is stored."""
        self._check_method(quantization)
        if quantization.orphans:
            orphan = max(quantization.orphans, key=lambda orphan_tensor: orphan_tensor.is_payload)
            raise self._refusal(f"{orphan} ({len(quantization.orphans):,} such tensors)")
        for statement in self._stated:
            self._check_decodable(statement)
        for weight in quantization.weights:
            if weight.problem is not None:
                raise self._refusal(f"{weight.payload!r}: {weight.problem}")
            if NOT_DECODED.issuperset(weight.recipes):
                producers = " or ".join(weight.recipes)
                raise self._refusal(
                    f"{weight.payload!r} is {weight.scheme or 'quantised'} as {producers} stores "
                    "it, which castwise cannot decode yet; that library reads it"
                )
            if not (quantization.stated or _OWN_NAMES.issuperset(weight.recipes)):
                raise self._refusal(
                    f"nothing says how {weight.payload!r} is stored, which may be as by "
                    f"{' or '.join(weight.recipes)}; put the configuration of the model beside it "
                    f"({', '.join(CONFIGS)})"
                )
        self._check_index()

    def _chosen(self, quantization: Quantization) -> list[QuantizedWeight]:
        if self._decode.only is None:
            return list(quantization.weights)
        pattern = PolicyMap("fullmatch", "first")
        try:
            pattern.insert(self._decode.only, True)
        except ValueError as error:
            raise ValueError(about(given("only", self._decode.only), error)) from error
        prefix = self._component.prefix
        return [
            weight
            for weight in quantization.weights
            if pattern.find(prefix + weight.name) is not None
        ]

    def _excepted(
        self, statements: Sequence[Statement], chosen: Sequence[QuantizedWeight]
    ) -> Exceptions | None:
        """Return what the configuration must except; refuse one that cannot."""
        if not statements:
            return None
        keys = {_EXCEPTIONS.get(statement.method) for statement in statements}
        key = keys.pop()
        if keys or key is None or any(statement.origin != _CONFIG for statement in statements):
            stated = ", ".join(
                f"{statement.origin}: {statement.method}" for statement in statements
            )
            raise self._refusal(
                f"{stated} cannot except single modules, so decode all of it ({argument('only')})"
            )
        return Exceptions(key, [weight.name.rpartition(".")[0] for weight in chosen])

    def _plan(self, chosen: Sequence[QuantizedWeight]) -> None:
        kept = {name for weight in self._kept(chosen) for name in (weight.payload, *weight.parts)}
        if self.quantization is not None and not kept:
            # Of weights that are computed in float8, but stored in full precision, Keras numbers
            # the scales; the names of others tell them only beside quantised weights.
            names = [name for name in self.quantization.others if chosen or numbered_kernel(name)]
            self.left_out |= {name: _kind_of_other(name) for name in names}
        for weight in chosen:
            self._weights[weight.payload] = self._weight(weight)
            for name in weight.parts:
                if name not in kept:
                    is_stated = name in weight.activations
                    self.left_out[name] = _kind_of_activation(name) if is_stated else ""
        for decoded_weight in self._weights.values():
            name = decoded_weight.info.name
            if name == decoded_weight.payload or name not in self._stored or name in self.left_out:
                continue
            if numbered_kernel(decoded_weight.payload) != name or name in self._weights:
                raise self._refusal(
                    f"{decoded_weight.payload!r} is to become {name!r}, which is there too"
                )
            self._renamed[name] = (
                decoded_weight.payload
            )  # the bias comes before codes, and after a kernel

    def _kept(self, chosen: Sequence[QuantizedWeight]) -> list[QuantizedWeight]:
        names = {weight.payload for weight in chosen}
        weights = () if self.quantization is None else self.quantization.weights
        return [weight for weight in weights if weight.payload not in names]

    def _weight(self, weight: QuantizedWeight) -> DecodedWeight:
        section = next(
            (
                statement.section
                for statement in self._stated
                if set(statement.recipes) & set(weight.recipes)
            ),
            {},
        )
        try:
            plan = decoding(
                weight, self._stored, self._stored.read, section, self._decode.arithmetic
            )
        except Undecodable as error:
            raise self._refusal(f"{weight.payload!r}: {error}") from error

        def rows(cut: Cut) -> QuantizedArray:
            try:
                return plan.rows(cut)
            except Undecodable as error:  # what codes are, only reading tells
                raise self._refusal(f"{weight.payload!r}: {error}") from error

        losses = LossCounter()
        nbytes = sum(self._stored[name].nbytes for name in (weight.payload, *weight.parts))
        info = TensorInfo(
            weight.name, None, _DECODED, weight.scheme or "quantised", plan.shape, nbytes
        )
        return DecodedWeight(
            info,
            self._decode.format,
            weight.payload,
            plan.parts,
            partial(
                _slabs,
                replace(plan, rows=rows),
                self._check_of(weight, section),
                self._decode.arithmetic,
                losses,
            ),
            losses.report,
            counts=partial(_counts, plan),
        )

    def _check_of(self, weight: QuantizedWeight, section: Mapping[str, Any]) -> _Check:
        """Return what warns, once, if scales or zero points are not what is stated of them.

        That is powers of two as `scale_fmt` has it, and zero points that decoders agree on.
        """
        scale = weight.scale
        is_stated = section.get("scale_fmt") == "ue8m0" and scale is not None
        are_powers = is_stated and self._stored[scale or ""].format in FORMATS

        def check(q: QuantizedArray) -> None:
            if are_powers and "scales" not in self._warned:
                significands, _ = np.frexp(np.abs(q.scale.astype(np.float32)))
                if not np.isin(significands, (0, 0.5)).all():
                    self._warn(
                        "scales",
                        f"scale_fmt says ue8m0, but the scales of {weight.payload!r} are not "
                        "powers of two; they are taken as they are",
                    )
            if "zero points" not in self._warned and wrapped_zeros(q):
                self._warn("zero points", WRAPPED.format(weight.payload))

        return check

    def _follow(self, config: Any) -> Set[str]:
        """Name the other tensors in a format that the configuration would contradict."""
        formats = (HALVES - {self._decode.format}) if follows(config) else ()
        used = {*self._weights, *self.left_out}
        return {
            self._renamed.get(name, name)
            for name in self._stored
            if name not in used and self._stored[name].format in formats
        }

    def _warn(self, kind: str, text: str) -> None:
        """Warn once of each kind."""
        self._warned.add(kind)
        _LOGGER.warning("%s: %s", self._path, text)

    def _stand_in(self) -> None:
        """Let readers stand for the shards."""
        is_plain = len(self._weights) == len(self.names)
        for path, reader in self._component.shards.items():
            removed = {*METADATA, *described_in(reader.metadata)} if is_plain else set()
            metadata = {key: text for key, text in reader.metadata.items() if key not in removed}
            weights = {
                name: [weight] for name, weight in self._weights.items() if name in reader.tensors
            }
            stays = not weights and self.left_out.keys().isdisjoint(reader.tensors)
            if stays and metadata == reader.metadata:
                continue
            self.shards[path] = decoded_reader(
                reader,
                self._stored,
                weights,
                left_out=self.left_out,
                metadata=metadata,
                threads=self._decode.threads,
                renamed={
                    stored_name: new_name
                    for stored_name, new_name in self._renamed.items()
                    if stored_name in reader.tensors
                },
            )
            if not self.shards[path].tensors:
                del self.shards[path]
                self.consumed.append(path)

    @property
    def is_changed(self) -> bool:
        """True if a weight is decoded."""
        return bool(self._weights)

    def component(self) -> Component:
        """Return the component as it is without quantisation."""
        index, prefix = dict(self._component.index), len(self._component.prefix)
        indexed = {path: self._component.indexed[path] for path in self.shards}
        if "weight_map" in index:
            index["weight_map"] = {
                self._weights[name].info.name
                if name in self._weights
                else self._renamed.get(name, name): shard
                for name, shard in index["weight_map"].items()
                if name not in self.left_out
            }
            homes: dict[str, list[str]] = {}
            for name, shard in index["weight_map"].items():
                homes.setdefault(shard, []).append(name)
            indexed = {path: tuple(homes[path[prefix:]]) for path in self.shards}
        return replace(self._component, index=index, shards=self.shards, indexed=indexed)

    def tell(self) -> None:
        """Say which tensors a plain model does not have, beside what decodes weights."""
        for description in filter(None, dict.fromkeys(self.left_out.values())):
            names = [name for name, kind in self.left_out.items() if kind == description]
            _LOGGER.warning(
                "%s: left out, as a plain model has none: %s, %d: %s",
                self._path,
                description,
                len(names),
                listed(names),
            )
        if self.following:
            _LOGGER.warning(
                "%s: other tensors become %s with the weights, as config.json will state, %d: %s",
                self._path,
                self._decode.format,
                len(self.following),
                listed(sorted(self.following)),
            )


def _kind_of_other(name: str) -> str:
    """Say what a tensor without a payload is."""
    is_scale = numbered_kernel(name) or tail(name) in KERAS_FLOAT8
    return scale_of_attention(name) or ("scales and maxima of layers" if is_scale else "markers")


def _kind_of_activation(name: str) -> str:
    """Say whose values a scale beside a payload is for."""
    named = "outputs" if tail(name).startswith("output_") else "inputs"
    return scale_of_attention(name) or f"scales of {named}"


def _check_only(decode: Decode, plans: Sequence[_Plain]) -> None:
    """Refuse a pattern that matches no weight."""
    if decode.only is None or any(component_plan.is_changed for component_plan in plans):
        return
    names = [name for component_plan in plans for name in component_plan.names]
    near = nearest([decode.only], names)[decode.only]
    raise CheckpointError(
        f"{given('only', decode.only)} matches no quantised weight"
        + (f"; did you mean {near!r}?" if near else "")
    )


def _counts(plan: Decoding) -> Iterator[int]:
    columns = plan.cut[-1]
    return ((cut.stop - cut.start) * columns for cut in plan.slabs(_SLAB_ELEMENTS))


def _slabs(
    plan: Decoding, check: _Check, arithmetic: Any, losses: LossCounter, name: str
) -> Iterator[Slab]:
    dtype = numpy_dtype(name)
    losses.begin()

    def decode(cut: Cut) -> NDArray[Any]:
        q = plan.rows(cut)
        check(q)
        values = dequantize(q, dtype, arithmetic=arithmetic, threads=1)
        losses.add(q, values, arithmetic)
        return values

    return (partial(decode, cut) for cut in plan.slabs(_SLAB_ELEMENTS))
