"""Plan what a quantised checkpoint is in the form of another producer, its values kept.

What changes are names, shapes, where codes and scales lie, and whether a global scale multiplies or
divides. A reciprocal is a division that is rounded, so one is taken only if with it each code
decodes to the same value at every scale that there is, in bfloat16 and in float16, computed in
float32 and exactly. Another scheme is taken only where it has all values.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from castwise._wording import function
from castwise.checkpoint._config import CONFIG
from castwise.checkpoint.containers import Reader
from castwise.checkpoint.containers.checkpoint import Checkpoint, Component
from castwise.checkpoint.planning._component import ComponentPlan
from castwise.checkpoint.planning._derived_reader import DerivedTensor
from castwise.checkpoint.planning._new_statements import statements
from castwise.checkpoint.planning._written_schemes import encoding, is_transcoded, written
from castwise.checkpoint.planning.decode._decode import decode_refusal
from castwise.checkpoint.planning.transcode._global_scales import (
    AGAIN,
    Power,
    Reciprocal,
)
from castwise.checkpoint.planning.transcode._new_forms import (
    check_parts,
    form_of_experts,
    give_form,
)
from castwise.checkpoint.planning.transcode._transcoded_weight import TranscodedWeight
from castwise.models import WEIGHT, Architecture
from castwise.quantization import Quantization, QuantizedWeight
from castwise.quantization.producers import (
    ACTIVATION,
    CACHE_KEYS,
    CONFIGS,
    GLOBAL,
    MARKERS,
    METADATA_KEYS,
    SEVERAL,
    WRAPPED,
    Encoding,
    Statements,
    find_recipe,
    find_scheme,
)

_LOGGER = logging.getLogger(__name__)
_MARKERS = tuple(MARKERS)
"""Tensors that only tell that a model is quantised."""


class TranscodePlan(ComponentPlan):
    """The plan for one component.

    Attributes
    ----------
    weights
        What of it is quantised.

    """

    derivation = "transcode"
    purpose = "transcoded"
    statement_text = "what states how it is stored"

    def __init__(  # noqa: PLR0917
        self,
        source: Checkpoint,
        component: Component,
        recipe: str,
        scheme: str | None,
        threads: int,
        architecture: Architecture | None = None,
    ) -> None:
        self._source, self._recipe, self._scheme = source, recipe, scheme
        self.purpose = f"transcoded to {recipe}{'' if scheme is None else f' {scheme}'}"
        ComponentPlan.__init__(self, source, component, architecture)
        self.threads = threads
        quantization = self.quantization
        self.weights: Sequence[QuantizedWeight] = (
            () if quantization is None else quantization.weights
        )
        self._warned = False
        if quantization is None:
            return
        self._check(quantization)
        self.left_out = {name: "" for name in quantization.others if name.endswith(_MARKERS)}
        self._staying = [weight for weight in self.weights if self._stays(weight)]
        if len(self._staying) == len(self.weights):
            raise self._refusal(f"{self.weights[0].payload!r} is stored so already")
        self._transcoded = [
            self._plan(weight) for weight in self.weights if not self._stays(weight)
        ]
        self._state_integers()
        self._share_scales()
        self._complete(source)

    def _complete(self, source: Checkpoint) -> None:
        """Plan what becomes of the rest, once it is known what becomes of the weights."""

    def _warn(self, payload: str) -> None:
        """Warn once of zero points that decoders do not agree on."""
        if not self._warned:
            self._warned = True
            _LOGGER.warning("%s: %s", self._path, WRAPPED.format(payload))

    def _check(self, quantization: Quantization) -> None:
        """Refuse what the other form has no place for."""
        self._check_orphans(quantization)
        stated = ", ".join(quantization.stated)
        self._check_method(quantization)
        for statement in self._stated:
            self._check_decodable(statement)
            if any(statement.section.get(key) for key in CACHE_KEYS):
                raise self._refusal(f"caches are stated otherwise there ({statement.origin})")
        if not quantization.weights:
            raise self._refusal(
                f"no weight is quantised, and {stated} states it; {function('dequantize')} of the "
                "folder removes that"
            )
        caches = [name for name in quantization.others if not name.endswith(_MARKERS)]
        if caches:
            raise self._refusal(f"scales of caches are stored otherwise there: {caches[0]!r}")
        for weight in quantization.weights:
            self._check_problem(weight)
        inputs = {ACTIVATION in weight.parts.values() for weight in quantization.weights}
        if len(inputs) > 1:
            raise self._refusal("some weights have scales of their inputs, and others none")
        self._has_inputs = inputs == {True}

    def _scheme_of(self, weight: QuantizedWeight) -> str:
        return self._scheme or weight.scheme or ""

    def _stays(self, weight: QuantizedWeight) -> bool:
        """Return True for a weight that is stored so already, beside others that are not."""
        return weight.recipes == (self._recipe,) and weight.scheme == self._scheme_of(weight)

    def _plan(self, weight: QuantizedWeight) -> TranscodedWeight:
        """Plan what becomes of a weight; refuse one that cannot be transcoded."""
        scheme, producers = self._scheme_of(weight), " or ".join(weight.recipes)
        stored_form = weight.scheme or "", producers
        if not is_transcoded(stored_form, (scheme, self._recipe)):
            reason = decode_refusal(self._source)
            remedy = AGAIN if reason is None else f"{function('dequantize')} refuses it: {reason}"
            raise self._refusal(
                f"{weight.payload!r} is {weight.scheme or 'quantised'} as by {producers}, of which "
                f"castwise makes no {scheme or 'form'} of {self._recipe}; {remedy}"
            )
        stored_scheme = find_scheme(stored_form[0])
        if stored_scheme.global_scale and weight.block not in (None, stored_scheme.block):
            size = "x".join(map(str, weight.block))
            raise self._refusal(
                f"{weight.payload!r} has blocks of {size}, which {self._recipe} has not; {AGAIN}"
            )
        axis = -1 if form_of_experts(weight, scheme, self._recipe, self.model) is None else -2
        plan = self._decoding(weight, "peer", axis)
        transcoded_weight = TranscodedWeight(
            weight, scheme, plan, stored=self._stored, warn=self._warn
        )
        try:
            check_parts(transcoded_weight, self._recipe, self.model)
            give_form(transcoded_weight, self._recipe, self._section(weight), self.model)
        except ValueError as error:
            raise self._refusal(str(error)) from error
        return transcoded_weight

    def _state_integers(self) -> None:
        """Decide for all integers alike whether they have zero points and an index of groups."""
        integers = [weight for weight in self._transcoded if weight.scheme.startswith("int")]
        symmetric = all(weight.is_symmetric for weight in integers)
        reordered = any(weight.is_reordered for weight in integers)
        for weight in integers:
            if weight.encoding is not None:
                weight.encoding = replace(weight.encoding, symmetric=symmetric, reordered=reordered)

    def _share_scales(self) -> None:
        """Find which global scales change, and which weights must have the same."""
        powers: dict[tuple[str, ...], Power] = {}
        reciprocals: dict[bytes, Reciprocal] = {}
        shared: dict[tuple[str, ...], tuple[str, np.ndarray[Any, Any]]] = {}
        divides = find_recipe(self._recipe).divides
        for transcoded_weight in self._transcoded:
            weight = transcoded_weight.weight
            if not find_scheme(transcoded_weight.scheme).global_scale:
                continue
            level = next((name for name, role in weight.parts.items() if role == GLOBAL), None)
            if level is None:
                power = powers.setdefault(self.model.partners(weight.name), Power(divides=divides))
                power.add(weight, transcoded_weight.plan)
                transcoded_weight.level = power
                continue
            if all(
                find_recipe(name).transcoding.is_fused for name in (*weight.recipes, self._recipe)
            ):
                scale = self._stored.read(level)
                other, first_scale = shared.setdefault(
                    self.model.partners(weight.name), (level, scale)
                )
                if first_scale.tobytes() != scale.tobytes():
                    raise self._refusal(
                        f"{other!r} and {level!r} are of weights that engines fuse, and differ; "
                        f"{AGAIN}"
                    )
            if divides != all(find_recipe(name).divides for name in weight.recipes):
                value = np.float32(self._stored.read(level).reshape(()))
                reciprocal = Reciprocal(value, divides=not divides, stored=self._stored)
                transcoded_weight.level = reciprocals.setdefault(value.tobytes(), reciprocal)
                transcoded_weight.level.scales.append(weight.scale or "")

    def _derive(self) -> None:
        for weight in self._transcoded if self.weights else ():
            tensors = self._new_tensors(weight)
            self.left_out |= dict.fromkeys(weight.left_out(tensors), "")
            for tensor in tensors:
                self.derived.setdefault(tensor.home, []).append(tensor)

    def _new_tensors(self, weight: TranscodedWeight) -> list[DerivedTensor]:
        """List what comes in the place of the parts of a weight."""
        return weight.tensors()

    def component(self, *, is_file: bool) -> Component:
        """Return the component in the new form, without files that state the old one."""
        component = ComponentPlan.component(self, is_file=is_file)
        if self.statements is not None and self.statements.edit is None:
            self.consumed += [self.prefix + name for name in CONFIGS if name != CONFIG]
        return component

    def new_schemes(self) -> set[str]:
        return {self._scheme_of(weight) for weight in self.weights}

    def new_statements(self, *, is_file: bool) -> Statements | None:
        del is_file
        if not self.weights:
            return None
        transcoding = find_recipe(self._recipe).transcoding
        if transcoding.statements_of_form is not None:
            return transcoding.statements_of_form
        modules: dict[str, Encoding] = {}
        for transcoded_weight in self._transcoded:
            assert transcoded_weight.encoding is not None, "by `give_form`"  # noqa: S101
            modules[transcoded_weight.weight.name.removesuffix(WEIGHT)] = transcoded_weight.encoding
        for weight in self._staying:
            modules[weight.name.removesuffix(WEIGHT)] = encoding(
                written(weight.scheme, self._recipe), None
            )
        if len(set(modules.values())) > 1 and self._recipe not in SEVERAL:
            names = dict.fromkeys(encoding.written.scheme for encoding in modules.values())
            raise self._refusal(
                f"its weights are stored in several ways ({', '.join(names)}), and "
                f"{self._recipe} states one for all; {AGAIN}"
            )
        payloads = {weight.payload for weight in self.weights}
        left = [
            info.name
            for info in self._tensors
            if info.name not in payloads
            and (self._is_matrix(info) or self.model.may_be_experts(info.name))
        ]
        return statements(
            modules, self.model.excepted_modules(left, modules), inputs=self._has_inputs
        )

    def _metadata(self, reader: Reader) -> dict[str, str]:
        if self.statements is None:
            return reader.metadata
        if self.statements.edit is not None:
            edit = self.statements.edit
            return {key: edit(text) for key, text in reader.metadata.items()}
        return {key: text for key, text in reader.metadata.items() if key not in METADATA_KEYS}
