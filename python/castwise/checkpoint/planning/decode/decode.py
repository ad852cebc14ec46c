"""Plan what a quantized checkpoint is without quantization, and refuse what would be a guess."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from castwise._core import cast
from castwise.checkpoint._config import HALVES, Exceptions, UnquantizedConfig, follows
from castwise.checkpoint._errors import CheckpointError, join_names
from castwise.checkpoint._tensors import numpy_dtype
from castwise.checkpoint.containers import model_files
from castwise.checkpoint.containers.checkpoint import Checkpoint, Component
from castwise.checkpoint.containers.interface import Reader
from castwise.checkpoint.containers.safetensors import SafetensorsReader
from castwise.checkpoint.containers.whole_models import WholeModelReader
from castwise.checkpoint.planning.component import Derived, SourceComponent, pattern_of
from castwise.checkpoint.planning.decode.losses import rounding_losses, slab_losses
from castwise.checkpoint.planning.decode.options import FORMATS, Decode
from castwise.checkpoint.planning.derived_checkpoint import DerivedCheckpoint
from castwise.checkpoint.planning.derived_reader import (
    STACK_ELEMENTS,
    Arrays,
    DerivedTensor,
    WeightJob,
    WeightSlab,
    WeightStack,
    derived_info,
)
from castwise.checkpoint.planning.stated_quantization import stale_statement
from castwise.checkpoint.results.report import DecodeReport
from castwise.quantization import Quantization, QuantizedArray, QuantizedWeight, dequantize
from castwise.quantization.arrays.decode import NOTHING, losses_of, scales_tell, wrapped_zeros
from castwise.quantization.producers.block_types import BLOCK_TYPES
from castwise.quantization.producers.configs import MODEL
from castwise.quantization.producers.foreign import scale_of_attention
from castwise.quantization.producers.keras import KERAS_FLOAT8, numbered_kernel
from castwise.quantization.producers.names import tail
from castwise.quantization.producers.registry import (
    CONFIGS,
    EVIDENT,
    KEPT_KEYS,
    METADATA_KEYS,
    NOT_DECODED,
    WRAPPED,
    described_in,
    powers_stated,
)
from castwise.quantization.producers.stated import CONFIG
from castwise.quantization.producers.stored_weight import Undecodable
from castwise.quantization.weights.decoding import Decoding, can_be_stacked, stack_of
from castwise.quantization.weights.decoding import Slab as Cut
from castwise.text.brief import counted
from castwise.text.spelling import nearest
from castwise.text.wording import parenthesis, setting

_LOGGER = logging.getLogger(__name__)
_IN_METADATA = "metadata"
# Elements of a slab, whose memory is used again: that of larger ones goes back to the system.
# Python takes 0.2 ms for each slab, and a comparison holds some slabs of each thread. Each thread
# adds some 4 MB to the peak of `dequantize`: that is 53 MB with 2 threads, and 78 MB with 8.
_SLAB_ELEMENTS = 1 << 20


def decode_checkpoint(source: Checkpoint, decode: Decode, *, is_file: bool) -> DerivedCheckpoint:
    """Return an opened checkpoint without quantization; `is_file` if it becomes one file."""
    model = model_files(source, decode.format, is_file=is_file)
    if model.config and decode.only is not None:
        raise CheckpointError(
            setting("only", decode.only)
            + f": what stays quantized of {source.path} is no model of "
            "transformers; leave it out, or name a .safetensors file"
        )
    plans = [derive_decoded(source, component, decode) for component in source.components]
    # No other command reads a file of a whole model.
    may_be_plain = decode.may_be_plain or isinstance(source.file, WholeModelReader)
    are_quantized = (
        plan.left_out or (plan.quantization is not None and plan.quantization.weights)
        for plan in plans
    )
    are_stale = (stale_statement(source, plan.quantization) for plan in plans)
    if not (may_be_plain or any(are_quantized) or any(are_stale)):
        raise CheckpointError(
            f"{source.path}: no weight in it is quantized; castwise cast casts it"
        )
    _check_only(decode, plans)
    return DerivedCheckpoint(source, plans, model.dtypes, is_file=is_file, model=model)


def derive_decoded(source: Checkpoint, component: Component, decode: Decode) -> Derived:
    facts = SourceComponent(
        source, component, "decode", "decoded", "what states how its tensors are stored"
    )
    quantization = facts.quantization
    if quantization is None:
        plain = partial(UnquantizedConfig, exceptions=None, is_stale=False)
        return Derived(source=facts, threads=decode.threads, config=plain)
    _check(facts, quantization)
    weights = _choose_weights(facts, quantization, decode.only)
    is_whole = len(weights) == len(quantization.weights)
    exceptions = None if is_whole or not weights else _exceptions(source, facts, weights)
    warn = _WarnOnce(facts.path)
    tensors: dict[str, list[DerivedTensor]] = {}
    kinds: dict[int, _DecodedKind] = {}
    for weight in weights:
        reading = facts.decoding(weight, decode.arithmetic)
        kind = kinds.get(id(reading.similar)) if reading.similar is not None else None
        if kind is None:
            kind = _DecodedKind(facts, decode, weight, reading, warn)
            kinds[id(reading.similar)] = kind
        tensors[weight.payload] = [kind.tensor(weight, reading)]
    left_out = _left_out(quantization, weights)
    new_names = _names_without_suffix(facts, tensors, left_out)
    facts.check_names(tensors, left_out, new_names)
    consumed_paths, followers = [], {}
    if source.is_folder and is_whole:
        consumed_paths = [
            facts.prefix + name for name in CONFIGS if name in facts.statement.configs
        ]
        consumed_paths = [path for path in consumed_paths if path != facts.prefix + CONFIG]
    is_usual = source.is_folder or isinstance(source.file, SafetensorsReader)
    if is_usual and weights and is_whole and follows(facts.statement.configs.get(CONFIG)):
        formats, used = HALVES - {decode.format}, {*tensors, *left_out}
        followers = {
            new_names.get(name, name): decode.format
            for name, info in facts.stored_tensors.items()
            if name not in used and info.format in formats
        }
    stale, warnings = stale_statement(source, quantization), []
    if stale is not None:
        warnings.append(
            f"no weight is quantized as {stale} states"
            + (
                "; the statement is left out, and tensors do not change"
                if decode.is_written
                else ""
            )
        )
    if followers and decode.is_written:
        warnings.append(
            f"{counted(len(followers), 'other tensor')} will be {decode.format}, too, because "
            "config.json has one dtype for the model, in which libraries load all of it: "
            f"{join_names(sorted(followers))}"
        )
    return Derived(
        source=facts,
        tensors=tensors,
        left_out=left_out,
        new_names=new_names,
        followers=followers,
        threads=decode.threads,
        consumed_paths=consumed_paths,
        metadata=_plain_metadata if is_whole else attrgetter("metadata"),
        config=partial(UnquantizedConfig, exceptions=exceptions, is_stale=stale is not None),
        warnings=warnings,
    )


def _check(facts: SourceComponent, quantization: Quantization) -> None:
    """Refuse what does not say for certain how each weight is stored."""
    facts.check_method(quantization)
    facts.check_orphans(quantization)
    for statement in facts.statements:
        facts.check_decodable(statement)
    for weight in quantization.weights:
        facts.check_problem(weight)
        if NOT_DECODED.issuperset(weight.recipes):
            producers = " or ".join(weight.recipes)
            raise facts.refusal(
                f"{weight.payload!r} is {weight.scheme or 'quantized'} as {producers} stores "
                "it, which castwise cannot decode yet; that library reads it"
            )
        is_evident = weight.by_shapes or EVIDENT.issuperset(weight.recipes)
        if not (quantization.stated or is_evident):
            raise facts.refusal(
                f"no file states which producer stored {weight.payload!r}: it may be "
                f"{' or '.join(weight.recipes)}; put the configuration of the model beside it "
                f"({', '.join(CONFIGS)})"
            )


def _choose_weights(
    facts: SourceComponent, quantization: Quantization, only: str | None
) -> list[QuantizedWeight]:
    if only is None:
        return list(quantization.weights)
    pattern = pattern_of("only", only)
    names = ((weight, facts.prefix + weight.name) for weight in quantization.weights)
    return [weight for weight, name in names if pattern.find(name) is not None]


def _exceptions(
    source: Checkpoint, facts: SourceComponent, weights: Sequence[QuantizedWeight]
) -> Exceptions | None:
    """Return what the configuration must except; refuse one that cannot."""
    statements = [
        statement
        for statement in facts.statements
        if source.is_folder
        or statement.origin == _IN_METADATA
        or statement.section is facts.statement.configs.get(MODEL)
    ]
    if not statements:
        return None
    keys = {KEPT_KEYS.get(statement.method) for statement in statements}
    key = keys.pop()
    if keys or key is None or any(statement.origin != CONFIG for statement in statements):
        methods = ", ".join(f"{statement.origin}: {statement.method}" for statement in statements)
        raise facts.refusal(
            f"{methods} cannot except single modules, so decode all of it " + parenthesis("only")
        )
    return Exceptions(key, [weight.name.rpartition(".")[0] for weight in weights])


def _left_out(quantization: Quantization, weights: Sequence[QuantizedWeight]) -> dict[str, str]:
    """Name the tensors that an unquantized model has not, each with what it is."""
    payloads, left_out = {weight.payload for weight in weights}, {}
    staying = [weight for weight in quantization.weights if weight.payload not in payloads]
    if not staying:
        # Of weights that are computed in float8, but stored in full precision, Keras numbers
        # the scales; the names of others tell them only beside quantized weights.
        names = [name for name in quantization.others if weights or numbered_kernel(name)]
        left_out = {name: _kind_of_other(name) for name in names}
    used = {name for weight in staying for name in (weight.payload, *weight.parts)}
    for weight in weights:
        for name in weight.parts:
            if name not in used:
                is_stated = name in weight.activations
                left_out[name] = _kind_of_activation(name) if is_stated else ""
    return left_out


def _names_without_suffix(
    facts: SourceComponent,
    tensors: Mapping[str, Sequence[DerivedTensor]],
    left_out: Collection[str],
) -> dict[str, str]:
    """Return the new names of tensors whose names decoded weights get."""
    new_names = {}
    for home, (tensor,) in tensors.items():
        name = tensor.info.name
        if name == home or name not in facts.stored_tensors or name in left_out:
            continue
        if numbered_kernel(home) != name or name in tensors:
            raise facts.refusal(f"{home!r} is to become {name!r}, which is there too")
        new_names[name] = home  # the bias comes before codes, and after a kernel
    return new_names


def _plain_metadata(reader: Reader) -> dict[str, str]:
    keys = {*METADATA_KEYS, *described_in(reader.metadata)}
    return {key: text for key, text in reader.metadata.items() if key not in keys}


class _DecodedKind:
    """Weights that differ in names alone, as they are decoded."""

    def __init__(
        self,
        facts: SourceComponent,
        decode: Decode,
        weight: QuantizedWeight,  # one of them
        plan: Decoding,  # how it is decoded
        warn: _WarnOnce,
    ) -> None:
        self._facts, self._decode, self._warn = facts, decode, warn
        tensors, parts = facts.stored_tensors, (weight.payload, *weight.parts)
        stored = tensors[weight.payload].stored  # a type of blocks goes by its own name
        self._source_name = stored if stored in BLOCK_TYPES else weight.scheme or "quantized"
        self._whole, self._dtype = plan.whole, numpy_dtype(decode.format)
        self.nbytes = sum(tensors[name].nbytes for name in parts)
        text = None if weight.scale is None else powers_stated(facts.section(weight))
        are_powers = text is not None and tensors[weight.scale or ""].format in FORMATS
        self._powers = text if are_powers else None
        elements = math.prod(plan.shape)
        self.stack = (
            WeightStack(elements, self._decode_stack)
            if plan.similar is not None
            and can_be_stacked(plan.whole)
            and all(map(tensors.are_stacked, parts))
            and 2 * elements <= STACK_ELEMENTS
            else None
        )

    def tensor(self, weight: QuantizedWeight, reading: Decoding) -> DerivedTensor:
        is_stacked = self.stack is not None
        plan = reading._replace(
            rows=partial(self._rows, reading.rows, weight.payload),
            stack=self._read_stack if is_stacked else None,
        )
        slabs = partial(_slabs, plan, self._decode, weight.name)
        member = plan.parts if is_stacked else None
        return DerivedTensor(
            derived_info(weight.name, self._source_name, plan.shape, self.nbytes),
            self._decode.format,
            weight.payload,
            plan.parts,
            WeightJob(weight.name, slabs, self.stack, member, [weight.name]),
            decoding=plan,
        )

    def _rows(
        self, read: Callable[[Cut], QuantizedArray], payload: str, slab: Cut
    ) -> QuantizedArray:
        """Read a slab, and warn of what it has."""
        try:
            q = read(slab)
        except Undecodable as error:  # what codes are, only reading tells
            raise self._facts.refusal(f"{payload!r}: " + str(error)) from error
        for kind, text in self._doubts(q, payload):
            self._warn(kind, text)
        return q

    def _doubts(self, q: QuantizedArray, payload: str) -> Iterator[tuple[str, str]]:
        """Yield what a slab is warned of, unless another one was, by its kind."""
        if self._powers is not None and "scales" not in self._warn.kinds:
            significands, _ = np.frexp(np.abs(q.scale.astype(np.float32)))
            if not np.isin(significands, (0, 0.5)).all():
                yield (
                    "scales",
                    f"{self._powers}, but the scales of {payload!r} are not "
                    "powers of two; they are taken as they are",
                )
        if "zero points" not in self._warn.kinds and wrapped_zeros(q):
            yield "zero points", WRAPPED.format(payload)

    def _read_stack(self, names: Sequence[Sequence[str]]) -> QuantizedArray | None:
        """Read small weights; None if one is warned of."""
        tensors = self._facts.stored_tensors
        q = stack_of(self._whole, [tensors.stack(part) for part in zip(*names, strict=True)])
        return None if any(self._doubts(q, "")) else q

    def _decode_stack(
        self, names: Sequence[Sequence[str]]
    ) -> tuple[Sequence[NDArray[Any]], Sequence[DecodeReport | None]] | None:
        """Read and decode small weights; None if one loses values, or is warned of."""
        q, arithmetic = self._read_stack(names), self._decode.arithmetic
        if q is None:
            return None
        values, report = dequantize(q, self._dtype, arithmetic=arithmetic, threads=1), None
        if self._decode.is_written:
            keeps, is_finite = scales_tell(q, self._dtype)
            if not keeps or losses_of(q, values, arithmetic, (keeps, is_finite)) != NOTHING:
                return None
            report = DecodeReport(values[0].size)
        return [values], [report] * len(values)


@dataclass(frozen=True, slots=True)
class _WarnOnce:
    """Warns of what slabs hold, once of each kind."""

    path: Path
    kinds: set[str] = field(default_factory=set)

    def __call__(self, kind: str, text: str) -> None:
        self.kinds.add(kind)
        _LOGGER.warning("%s: %s", self.path, text)


def _kind_of_other(name: str) -> str:
    """Say what a tensor without a payload is."""
    is_scale = numbered_kernel(name) or tail(name) in KERAS_FLOAT8
    return scale_of_attention(name) or ("scales and maxima of layers" if is_scale else "markers")


def _kind_of_activation(name: str) -> str:
    """Say whose values a scale beside a payload is for."""
    kind = "outputs" if tail(name).startswith("output_") else "inputs"
    return scale_of_attention(name) or f"scales of {kind}"


def _check_only(decode: Decode, plans: Sequence[Derived]) -> None:
    if decode.only is None or any(plan.tensors for plan in plans):
        return
    weights = [(plan, plan.quantization.weights) for plan in plans if plan.quantization]
    names = [plan.prefix + weight.name for plan, each in weights for weight in each]
    near = nearest([decode.only], names)[decode.only]
    raise CheckpointError(
        setting("only", decode.only)
        + " matches no quantized weight"
        + (f"; did you mean {near!r}?" if near else "")
    )


def _slabs(
    plan: Decoding, options: Decode, name: str, _names: Collection[str], to: str | None
) -> Iterator[WeightSlab]:
    """List the slabs of a weight, which is decoded to the format of the request or another."""
    dtype, arithmetic = numpy_dtype(to or options.format), options.arithmetic

    def decode(slab: Cut) -> tuple[Arrays, DecodeReport | None]:
        report = None
        if plan.values is not None:
            exact = plan.values(slab)
            values = cast(exact, dtype, threads=1)
            if options.is_written:
                report = rounding_losses(exact, values)
            return {name: values}, report
        q = plan.rows(slab)
        values = dequantize(q, dtype, arithmetic=arithmetic, threads=1)
        if options.is_written:
            report = slab_losses(q, values, arithmetic)
        return {name: values}, report

    for slab in plan.slabs(_SLAB_ELEMENTS):
        count = (slab.stop - slab.start) * plan.matrix_shape[-1]
        yield WeightSlab({name: count}, partial(decode, slab))
