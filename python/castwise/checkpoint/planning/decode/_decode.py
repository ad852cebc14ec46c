"""Plan what a quantised checkpoint is without quantisation, and refuse what would be a guess."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from castwise._core import cast
from castwise._options import Arithmetic
from castwise._spelling import nearest
from castwise._wording import argument, given
from castwise.checkpoint._config import CONFIG, Config
from castwise.checkpoint._errors import CheckpointError, listed
from castwise.checkpoint._tensors import numpy_dtype
from castwise.checkpoint.containers import Reader
from castwise.checkpoint.containers.checkpoint import Checkpoint, Component
from castwise.checkpoint.containers.gguf import GgufReader
from castwise.checkpoint.containers.safetensors import SafetensorsReader
from castwise.checkpoint.gguf import model_of
from castwise.checkpoint.planning._component import ComponentPlan, pattern_of
from castwise.checkpoint.planning._derived_checkpoint import DerivedCheckpoint
from castwise.checkpoint.planning._derived_reader import DerivedTensor, Slab, derived_info
from castwise.checkpoint.planning._stated_quantization import stale_statement
from castwise.checkpoint.planning.decode._losses import LossCounter
from castwise.checkpoint.planning.decode._options import FORMATS, Decode
from castwise.checkpoint.planning.decode._unquantized_config import (
    HALVES,
    Exceptions,
    UnquantizedConfig,
    follows,
)
from castwise.quantization import Quantization, QuantizedArray, QuantizedWeight, dequantize
from castwise.quantization.arrays import wrapped_zeros
from castwise.quantization.producers import (
    BF16,
    CONFIGS,
    EVIDENT,
    KEPT_KEYS,
    KERAS_FLOAT8,
    METADATA_KEYS,
    MODEL,
    NOT_DECODED,
    WRAPPED,
    Statement,
    Undecodable,
    described_in,
    numbered_kernel,
    powers_stated,
    scale_of_attention,
    tail,
)
from castwise.quantization.weights import Decoding
from castwise.quantization.weights import Slab as Cut

_LOGGER = logging.getLogger(__name__)
_IN_METADATA = "metadata"
_SLAB_ELEMENTS = 1 << 19
"""Elements of a slab, whose memory is used again: that of larger ones goes back to the system.
A comparison holds some of each thread, with what they were made of: of twice as many 68 MiB."""

_Check = Callable[[QuantizedArray], None]
"""Looks at what was read for a slab."""


def decode_checkpoint(source: Checkpoint, decode: Decode, *, is_file: bool) -> DerivedCheckpoint:
    """Return an opened checkpoint as it is without quantisation; `is_file` if it becomes one file.

    Raises
    ------
    CheckpointError
        Nothing in it is quantised; or a weight cannot be decoded for certain: a part is missing or
        of another shape, nothing says how it is stored, or castwise does not decode it.

    """
    model = model_of(source, decode.format, is_file=is_file)
    if model.config and decode.only is not None:
        raise CheckpointError(
            f"{given('only', decode.only)}: what stays quantised of {source.path} is no model of "
            "transformers; leave it out, or name a .safetensors file"
        )
    plans = [DecodePlan(source, component, decode) for component in source.components]
    # No other command reads a GGUF file.
    may_be_plain = decode.may_be_plain or isinstance(source.file, GgufReader)
    if not (may_be_plain or any(plan.names or plan.left_out or plan.stale for plan in plans)):
        raise CheckpointError(
            f"{source.path}: no weight in it is quantised; castwise cast casts it"
        )
    _check_only(decode, plans)
    return DerivedCheckpoint(source, plans, model.dtypes, is_file=is_file, model=model)


def decode_refusal(source: Checkpoint) -> str | None:
    """Say why a quantised checkpoint is not decoded; None if it is."""
    try:
        plan = Decode(BF16, "peer", None, 1, may_be_plain=True)
        decode_checkpoint(source, plan, is_file=not source.is_folder)
    except CheckpointError as error:
        return str(error).partition(" cannot be decoded: ")[2] or str(error)
    return None


class DecodePlan(ComponentPlan):
    """The plan for one component.

    Attributes
    ----------
    names
        The full names of its quantised weights, as they will be.
    exceptions
        The modules that its configuration must except; None if all of it is decoded.
    stale
        What states a quantisation that no tensor has, and is removed; None if nothing does.

    """

    derivation = "decode"
    purpose = "decoded"
    statement_text = "what states how its tensors are stored"

    def __init__(self, source: Checkpoint, component: Component, decode: Decode) -> None:
        ComponentPlan.__init__(self, source, component)
        self._decode = decode
        is_folder = source.is_folder
        self.names: list[str] = []
        self.exceptions: Exceptions | None = None
        self.stale = stale_statement(source, self.quantization)
        self.threads = decode.threads
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
                if is_folder
                or statement.origin == _IN_METADATA
                or statement.section is self._configs.get(MODEL)
            ]
            self.exceptions = self._excepted(stating, chosen)
        self._plan(chosen)
        if is_folder and not is_partial:
            self.consumed = [
                component.prefix + name
                for name in CONFIGS
                if name in self._configs and name != CONFIG
            ]
        if (is_folder or isinstance(source.file, SafetensorsReader)) and chosen and not is_partial:
            self.followers = self._follow(self._configs.get(CONFIG))

    def _check(self, quantization: Quantization) -> None:
        """Refuse what does not say for certain how each weight is stored."""
        self._check_method(quantization)
        self._check_orphans(quantization)
        for statement in self._stated:
            self._check_decodable(statement)
        for weight in quantization.weights:
            self._check_problem(weight)
            if NOT_DECODED.issuperset(weight.recipes):
                producers = " or ".join(weight.recipes)
                raise self._refusal(
                    f"{weight.payload!r} is {weight.scheme or 'quantised'} as {producers} stores "
                    "it, which castwise cannot decode yet; that library reads it"
                )
            is_evident = weight.by_shapes or EVIDENT.issuperset(weight.recipes)
            if not (quantization.stated or is_evident):
                raise self._refusal(
                    f"nothing says how {weight.payload!r} is stored, which may be as by "
                    f"{' or '.join(weight.recipes)}; put the configuration of the model beside it "
                    f"({', '.join(CONFIGS)})"
                )

    def _chosen(self, quantization: Quantization) -> list[QuantizedWeight]:
        if self._decode.only is None:
            return list(quantization.weights)
        pattern = pattern_of("only", self._decode.only)
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
        keys = {KEPT_KEYS.get(statement.method) for statement in statements}
        key = keys.pop()
        if keys or key is None or any(statement.origin != CONFIG for statement in statements):
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
            self.derived[weight.payload] = [self._weight(weight)]
            for name in weight.parts:
                if name not in kept:
                    is_stated = name in weight.activations
                    self.left_out[name] = _kind_of_activation(name) if is_stated else ""
        for tensor in self.tensors():
            name = tensor.info.name
            if name == tensor.home or name not in self._stored or name in self.left_out:
                continue
            if numbered_kernel(tensor.home) != name or name in self.derived:
                raise self._refusal(f"{tensor.home!r} is to become {name!r}, which is there too")
            self.renamed[name] = tensor.home  # the bias comes before codes, and after a kernel

    def _kept(self, chosen: Sequence[QuantizedWeight]) -> list[QuantizedWeight]:
        names = {weight.payload for weight in chosen}
        weights = () if self.quantization is None else self.quantization.weights
        return [weight for weight in weights if weight.payload not in names]

    def _weight(self, weight: QuantizedWeight) -> DerivedTensor:
        unchecked = self._decoding(weight, self._decode.arithmetic)
        check = self._check_of(weight, self._section(weight))

        def rows(cut: Cut) -> QuantizedArray:
            try:
                q = unchecked.rows(cut)
            except Undecodable as error:  # what codes are, only reading tells
                raise self._refusal(f"{weight.payload!r}: {error}") from error
            check(q)
            return q

        plan = replace(unchecked, rows=rows)
        losses = LossCounter() if self._decode.counts_losses else None
        nbytes = sum(self._stored[name].nbytes for name in (weight.payload, *weight.parts))
        return DerivedTensor(
            derived_info(weight.name, weight.scheme or "quantised", plan.shape, nbytes),
            self._decode.format,
            weight.payload,
            plan.parts,
            partial(_slabs, plan, self._decode.arithmetic, losses),
            None if losses is None else losses.report,
            counts=partial(_counts, plan),
            decoding=plan,
        )

    def _check_of(self, weight: QuantizedWeight, section: Mapping[str, Any]) -> _Check:
        """Return what warns, once, if scales or zero points are not what is stated of them.

        That is powers of two where a section has it, and zero points that decoders agree on.
        """
        scale = weight.scale
        text = None if scale is None else powers_stated(section)
        are_powers = text is not None and self._stored[scale or ""].format in FORMATS

        def check(q: QuantizedArray) -> None:
            if are_powers and "scales" not in self._warned:
                significands, _ = np.frexp(np.abs(q.scale.astype(np.float32)))
                if not np.isin(significands, (0, 0.5)).all():
                    self._warn_once(
                        "scales",
                        f"{text}, but the scales of {weight.payload!r} are not "
                        "powers of two; they are taken as they are",
                    )
            if "zero points" not in self._warned and wrapped_zeros(q):
                self._warn_once("zero points", WRAPPED.format(weight.payload))

        return check

    def _follow(self, config: object) -> dict[str, str]:
        """Name the other tensors in a format that the configuration would contradict."""
        formats = (HALVES - {self._decode.format}) if follows(config) else ()
        used = {*self.derived, *self.left_out}
        return {
            self.renamed.get(name, name): self._decode.format
            for name in self._stored
            if name not in used and self._stored[name].format in formats
        }

    def _warn_once(self, kind: str, text: str) -> None:
        """Warn once of each kind."""
        self._warned.add(kind)
        _LOGGER.warning("%s: %s", self._path, text)

    def _metadata(self, reader: Reader) -> dict[str, str]:
        if self.quantization is None or len(self.derived) < len(self.names):
            return reader.metadata
        removed = {*METADATA_KEYS, *described_in(reader.metadata)}
        return {key: text for key, text in reader.metadata.items() if key not in removed}

    def config(self, path: Path, label: str) -> Config:
        """Read a `config.json` that states no quantisation of what is decoded."""
        return UnquantizedConfig(path, label, self.exceptions, is_stale=self.stale is not None)

    def warn(self) -> None:
        """Warn of what is left out or removed, and of tensors that follow the weights."""
        ComponentPlan.warn(self)
        if self.stale is not None:
            _LOGGER.warning(
                "%s: no weight is quantised as %s states; that is removed, and tensors stay as "
                "they are",
                self._path,
                self.stale,
            )
        if self.followers:
            _LOGGER.warning(
                "%s: other tensors become %s with the weights, as config.json will state, %d: %s",
                self._path,
                self._decode.format,
                len(self.followers),
                listed(sorted(self.followers)),
            )


def _kind_of_other(name: str) -> str:
    """Say what a tensor without a payload is."""
    is_scale = numbered_kernel(name) or tail(name) in KERAS_FLOAT8
    return scale_of_attention(name) or ("scales and maxima of layers" if is_scale else "markers")


def _kind_of_activation(name: str) -> str:
    """Say whose values a scale beside a payload is for."""
    named = "outputs" if tail(name).startswith("output_") else "inputs"
    return scale_of_attention(name) or f"scales of {named}"


def _check_only(decode: Decode, plans: Sequence[DecodePlan]) -> None:
    """Refuse a pattern that matches no weight."""
    if decode.only is None or any(component_plan.derived for component_plan in plans):
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
    plan: Decoding, arithmetic: Arithmetic, losses: LossCounter | None, name: str
) -> Iterator[Slab]:
    dtype = numpy_dtype(name)
    if losses is not None:
        losses.begin()

    def decode(cut: Cut) -> NDArray[Any]:
        if plan.values is not None:
            exact = plan.values(cut)
            values = cast(exact, dtype, threads=1)
            if losses is not None:
                losses.add_rounded(exact, values)
            return values
        q = plan.rows(cut)
        values = dequantize(q, dtype, arithmetic=arithmetic, threads=1)
        if losses is not None:
            losses.add(q, values, arithmetic)
        return values

    return (partial(decode, cut) for cut in plan.slabs(_SLAB_ELEMENTS))
