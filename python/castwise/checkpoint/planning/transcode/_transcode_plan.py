"""Plan what a quantized checkpoint is in the form of another producer, its values kept.

What changes are names, shapes, where codes and scales lie, and whether a global scale multiplies or
divides. A reciprocal is a division that is rounded, so one is taken only if with it each code
decodes to the same value at every scale that there is, in bfloat16 and in float16, computed in
float32 and exactly. Another scheme is taken only where it has all values.
"""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from castwise.checkpoint.containers.checkpoint import Checkpoint
from castwise.checkpoint.containers.interface import Reader
from castwise.checkpoint.planning.component import Derived, SourceComponent
from castwise.checkpoint.planning.decode import decode_refusal
from castwise.checkpoint.planning.derived_reader import DerivedTensor
from castwise.checkpoint.planning.transcode._global_scales import AGAIN, Power, Reciprocal
from castwise.checkpoint.planning.transcode._new_forms import (
    check_parts,
    form_of_experts,
    give_form,
)
from castwise.checkpoint.planning.transcode._transcoded_weight import TranscodedWeight
from castwise.checkpoint.planning.written_schemes import (
    encoding,
    is_transcoded,
    statements,
    written_row,
)
from castwise.models.model import WEIGHT
from castwise.quantization import Quantization, QuantizedWeight
from castwise.quantization.producers.layouts import ACTIVATION, GLOBAL
from castwise.quantization.producers.producer import Encoding, Statements
from castwise.quantization.producers.registry import (
    CACHE_KEYS,
    CONFIGS,
    MARKERS,
    METADATA_KEYS,
    SEVERAL,
    WRAPPED,
    find_recipe,
)
from castwise.quantization.producers.schemes import find_scheme
from castwise.quantization.producers.stated import CONFIG
from castwise.text.wording import function, setting

_LOGGER = logging.getLogger(__name__)
# Tensors that only tell that a model is quantized.
_MARKERS = tuple(MARKERS)


class TranscodingPlan(NamedTuple):
    """Which weights of a component get another form."""

    facts: SourceComponent  # the component as it is
    recipe: str  # the producer, and the scheme of all weights if it is another one
    scheme: str | None
    threads: int  # how many threads may derive tensors
    staying: Sequence[QuantizedWeight] = ()  # the weights that are stored so already
    new_weights: Sequence[TranscodedWeight] = ()  # the others
    has_inputs: bool = False  # whether there are scales of their inputs
    inputs: str | None = None  # what is to be stated of them; None for what the producer states

    @property
    def weights(self) -> Sequence[QuantizedWeight]:
        quantization = self.facts.quantization
        return () if quantization is None else quantization.weights

    @property
    def left_out(self) -> dict[str, str]:
        """Tensors that only tell that it is quantized."""
        quantization = self.facts.quantization
        others = () if quantization is None else quantization.others
        return {name: "" for name in others if name.endswith(_MARKERS)}

    def scheme_of(self, weight: QuantizedWeight) -> str:
        return self.scheme or weight.scheme or ""


def find_forms(source: Checkpoint, plan: TranscodingPlan) -> TranscodingPlan:
    """Return the plan of a component with the forms that its weights get."""
    facts, inputs = plan.facts, plan.inputs
    quantization = facts.quantization
    if quantization is None:
        return plan
    has_inputs = _check(facts, quantization)
    if has_inputs and inputs is not None:
        raise facts.refusal(
            setting("inputs", inputs)
            + ": it has scales of inputs, which are constant; leave it out"
        )

    def stays(weight: QuantizedWeight) -> bool:  # beside others that do not
        return weight.recipes == (plan.recipe,) and weight.scheme == plan.scheme_of(weight)

    staying = [weight for weight in quantization.weights if stays(weight)]
    if len(staying) == len(quantization.weights):
        raise facts.refusal(f"{quantization.weights[0].payload!r} is stored so already")
    payloads: list[str] = []

    def warn(payload: str) -> None:
        """Warn once of zero points that decoders do not agree on."""
        if not payloads:
            payloads.append(payload)
            _LOGGER.warning("%s: %s", facts.path, WRAPPED.format(payload))

    kinds: dict[object, TranscodedWeight] = {}
    new_weights = [
        _transcode(source, plan, weight, warn, kinds)
        for weight in quantization.weights
        if not stays(weight)
    ]
    _state_integers(new_weights)
    if inputs == "dynamic":
        _check_preset(facts, new_weights)
    _share_scales(facts, plan.recipe, new_weights)
    return plan._replace(staying=staying, new_weights=new_weights, has_inputs=has_inputs)


def _check(facts: SourceComponent, quantization: Quantization) -> bool:
    """Refuse what the other form has no place for; returns whether inputs have scales."""
    facts.check_orphans(quantization)
    origins = ", ".join(quantization.stated)
    facts.check_method(quantization)
    for statement in facts.statements:
        facts.check_decodable(statement)
        if any(statement.section.get(key) for key in CACHE_KEYS):
            raise facts.refusal(f"caches are stated otherwise there ({statement.origin})")
    if not quantization.weights:
        raise facts.refusal(
            f"no weight is quantized, and {origins} states it; "
            + function("dequantize")
            + " of the folder removes that"
        )
    caches = [name for name in quantization.others if not name.endswith(_MARKERS)]
    if caches:
        raise facts.refusal(f"scales of caches are stored otherwise there: {caches[0]!r}")
    for weight in quantization.weights:
        facts.check_problem(weight)
    inputs = {ACTIVATION in weight.parts.values() for weight in quantization.weights}
    if len(inputs) > 1:
        raise facts.refusal("some weights have scales of their inputs, and others none")
    return inputs == {True}


def _transcode(
    source: Checkpoint,
    plan: TranscodingPlan,
    weight: QuantizedWeight,
    warn: Callable[[str], None],
    kinds: dict[object, TranscodedWeight],
) -> TranscodedWeight:
    """Plan what becomes of a weight; refuse one that cannot be transcoded."""
    facts, recipe = plan.facts, plan.recipe
    scheme, producers = plan.scheme_of(weight), " or ".join(weight.recipes)
    stored_form = weight.scheme or "", producers
    if not is_transcoded(stored_form, (scheme, recipe)):
        reason = decode_refusal(source)
        remedy = AGAIN if reason is None else function("dequantize") + " refuses it: " + reason
        raise facts.refusal(
            f"{weight.payload!r} is {weight.scheme or 'quantized'} as by {producers}, of which "
            f"castwise makes no {scheme or 'form'} of {recipe}; " + remedy
        )
    stored_scheme = find_scheme(stored_form[0])
    if stored_scheme.global_scale and weight.block not in (None, stored_scheme.block):
        size = "x".join(map(str, weight.block))
        raise facts.refusal(
            f"{weight.payload!r} has blocks of {size}, which {recipe} has not; {AGAIN}"
        )
    experts = form_of_experts(weight, scheme, recipe, facts.model)
    reading = facts.decoding(weight, "peer", -1 if experts is None else -2)
    transcoded_weight = TranscodedWeight(
        weight, scheme, reading, stored_tensors=facts.stored_tensors, kinds=kinds, warn=warn
    )
    try:
        check_parts(transcoded_weight, recipe, are_experts=experts is not None)
        section, inputs = facts.section(weight), plan.inputs
        give_form(transcoded_weight, recipe, section, facts.model, experts, inputs=inputs)
    except ValueError as error:
        raise facts.refusal(str(error)) from error
    return transcoded_weight


def _state_integers(weights: Sequence[TranscodedWeight]) -> None:
    """Decide for all integers alike whether they have zero points and an index of groups."""
    integers = [weight for weight in weights if weight.scheme.startswith("int")]
    symmetric = all(weight.is_symmetric for weight in integers)
    is_reordered = any(weight.is_reordered for weight in integers)
    for weight in integers:
        if weight.encoding is not None:
            weight.encoding = weight.encoding._replace(symmetric=symmetric, has_index=is_reordered)


def _check_preset(facts: SourceComponent, weights: Sequence[TranscodedWeight]) -> None:
    """Refuse integers that no preset with inputs that are quantized while a model runs has."""
    for weight in weights:
        form = weight.encoding
        if form is not None and (form.has_index or not form.symmetric):
            parts = "an index of groups" if form.has_index else "zero points"
            raise facts.refusal(
                setting("inputs", "dynamic")
                + f": {weight.weight.payload!r} is stored with {parts}, "
                "which no preset with such inputs has; leave it out"
            )


def _share_scales(facts: SourceComponent, recipe: str, weights: Sequence[TranscodedWeight]) -> None:
    """Find which global scales change, and which weights must have the same."""
    powers: dict[tuple[str, ...], Power] = {}
    reciprocals: dict[bytes, Reciprocal] = {}
    first_levels: dict[tuple[str, ...], tuple[str, np.ndarray[Any, Any]]] = {}
    divides, model, tensors = find_recipe(recipe).divides, facts.model, facts.stored_tensors
    for transcoded_weight in weights:
        weight = transcoded_weight.weight
        if not find_scheme(transcoded_weight.scheme).global_scale:
            continue
        level = next((name for name, role in weight.parts.items() if role == GLOBAL), None)
        if level is None:
            power = powers.setdefault(model.partners(weight.name), Power(divides=divides))
            power.add(weight, transcoded_weight.plan)
            transcoded_weight.level = power
            continue
        if all(find_recipe(name).transcoding.is_fused for name in (*weight.recipes, recipe)):
            scale = tensors.read(level)
            other, first_scale = first_levels.setdefault(
                model.partners(weight.name), (level, scale)
            )
            if first_scale.tobytes() != scale.tobytes():
                raise facts.refusal(
                    f"{other!r} and {level!r} are of weights that engines fuse, and differ; {AGAIN}"
                )
        if divides != all(find_recipe(name).divides for name in weight.recipes):
            value = np.float32(tensors.read(level).reshape(()))
            reciprocal = Reciprocal(value, divides=not divides, stored_tensors=tensors)
            transcoded_weight.level = reciprocals.setdefault(value.tobytes(), reciprocal)
            transcoded_weight.level.scales.append(weight.scale or "")


def new_tensors(
    plan: TranscodingPlan, make: Callable[[TranscodedWeight], Sequence[DerivedTensor]]
) -> tuple[dict[str, list[DerivedTensor]], dict[str, str]]:
    """Return what comes in the place of stored tensors, and those that are left out."""
    tensors: dict[str, list[DerivedTensor]] = {}
    left_out = plan.left_out
    for weight in plan.new_weights:
        parts = make(weight)
        left_out |= dict.fromkeys(weight.left_out(parts), "")
        for tensor in parts:
            tensors.setdefault(tensor.home, []).append(tensor)
    return tensors, left_out


def derive_transcoded(plan: TranscodingPlan) -> Derived:
    """Derive a component in the form of another producer."""
    facts = plan.facts
    if not plan.weights:
        return Derived(source=facts, threads=plan.threads)
    tensors, left_out = new_tensors(plan, TranscodedWeight.tensors)
    facts.check_names(tensors, left_out, {})
    new_statements = _statements(plan)
    consumed_paths = [facts.prefix + name for name in CONFIGS if name != CONFIG]
    return Derived(
        source=facts,
        tensors=tensors,
        left_out=left_out,
        threads=plan.threads,
        consumed_paths=consumed_paths if new_statements.edit is None else (),
        statements=new_statements,
        schemes={plan.scheme_of(weight) for weight in plan.weights},
        metadata=partial(_metadata, new_statements),
    )


def _statements(plan: TranscodingPlan) -> Statements:
    """Return what states how the weights are stored."""
    facts, recipe = plan.facts, plan.recipe
    transcoding = find_recipe(recipe).transcoding
    if transcoding.statements_of_form is not None:
        return transcoding.statements_of_form
    modules: dict[str, Encoding] = {}
    for transcoded_weight in plan.new_weights:
        assert transcoded_weight.encoding is not None, "by `give_form`"  # noqa: S101
        modules[transcoded_weight.weight.name.removesuffix(WEIGHT)] = transcoded_weight.encoding
    for weight in plan.staying:
        modules[weight.name.removesuffix(WEIGHT)] = encoding(
            written_row(weight.scheme, recipe), None
        )
    if len(set(modules.values())) > 1 and recipe not in SEVERAL:
        names = dict.fromkeys(encoding.written.scheme for encoding in modules.values())
        raise facts.refusal(
            f"its weights are stored in several ways ({', '.join(names)}), and "
            f"{recipe} states one for all; {AGAIN}"
        )
    payloads = {weight.payload for weight in plan.weights}
    plain_matrices = [
        info.name
        for info in facts.tensors
        if info.name not in payloads
        and (facts.is_matrix(info) or facts.model.may_be_experts(info.name))
    ]
    exceptions = facts.model.excepted_modules(plain_matrices, modules)
    return statements(modules, exceptions, inputs=plan.has_inputs)


def _metadata(new_statements: Statements, reader: Reader) -> dict[str, str]:
    if new_statements.edit is not None:
        edit = new_statements.edit
        return {key: edit(text) for key, text in reader.metadata.items()}
    return {key: text for key, text in reader.metadata.items() if key not in METADATA_KEYS}
