"""The quantized weights of a checkpoint, which a cast must not take for numbers.

Files beside the tensors say how they are quantized; where they say nothing, names, formats and
shapes do.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from castwise.checkpoint._errors import CheckpointError
from castwise.checkpoint._tensors import Planned
from castwise.checkpoint.containers.checkpoint import Checkpoint, Component
from castwise.checkpoint.containers.whole_models import WholeModelReader
from castwise.models.model import Model
from castwise.quantization import Quantization, QuantizedWeight
from castwise.quantization.producers.found import add_prefix, join_components
from castwise.quantization.producers.typed_tensors import quantization_by_types
from castwise.quantization.weights.recognition import recognize
from castwise.text.brief import counted
from castwise.text.wording import function, parenthesis

_LOGGER = logging.getLogger(__name__)


def quantization_of(source: Checkpoint) -> Quantization | None:
    quantizations = [
        add_prefix(quantization, component.prefix)
        for component in source.components
        if (quantization := _of_component(component)) is not None
    ]
    return join_components(quantizations) if quantizations else None


def stale_statement(source: Checkpoint, quantization: Quantization | None) -> str | None:
    """Name what states a quantization that no tensor has; None if nothing does."""
    # For a file, only its metadata count: a statement beside it may be of another file.
    if quantization is None or replace(quantization, stated=(), inputs=None) != Quantization():
        return None
    prefix = "" if source.is_folder else "metadata: "
    return ", ".join(text for text in quantization.stated if text.startswith(prefix)) or None


def refuse_changes(
    source: Checkpoint, plans: Mapping[str, Sequence[Planned]], refusal: Callable[[], str | None]
) -> None:
    """Refuse a plan that casts a part of a quantized weight as if it were an array of numbers."""
    # `plans` are those of the shards, by path; `refusal` says why the source cannot be decoded.
    # Warn of a statement that no tensor is stored by, as it stays.
    for component in source.components:
        new_formats = {
            tensor.info.name: tensor.target
            for shard in component.shards
            for tensor in plans[shard]
            if tensor.target is not None and tensor.target != tensor.info.format
        }
        quantization = _of_component(component) if new_formats else None
        if (stale := stale_statement(source, quantization)) is not None:
            _LOGGER.warning(
                "%s: no weight is quantized, and %s stays, which states it: %s removes that",
                source.path_of(component),
                stale,
                function("dequantize"),
            )
        text = None if quantization is None else _changed_text(quantization, new_formats)
        if text is not None:
            reason = refusal()
            decode = function("dequantize")
            remedy = (
                "To decode it: " + decode if reason is None else decode + " refuses it: " + reason
            )
            raise CheckpointError(
                f"{source.path_of(component)} is quantized: {text}. "
                + remedy
                + ". Else map payloads and scales to 'keep' "
                + parenthesis("dtype_map")
                + ", or cast them as if they were plain numbers "
                + parenthesis("raw", True)
            )


def _of_component(component: Component) -> Quantization | None:
    quantization = found_in(component)
    if not (unreadable := component.statement.unreadable):
        return quantization
    return replace(quantization or Quantization(), unreadable=unreadable)


def found_in(component: Component) -> Quantization | None:
    statement = component.statement
    if all(isinstance(reader, WholeModelReader) for reader in component.shards.values()):
        return quantization_by_types(statement.tensors, component.prefix)
    configs, metadata = statement.configs, statement.metadata
    try:
        quantization = recognize(statement.tensors, configs, metadata)
        if quantization is not None and any(weight.foreign for weight in quantization.weights):
            # Buffers of the model, as those of I-BERT, may be beside a weight.
            model = Model(statement.config, {info.name: info.shape for info in statement.tensors})
            others = [info for info in statement.tensors if model.role(info.name) != "buffer"]
            quantization = recognize(others, configs, metadata)
    except ValueError as error:
        where = component.prefix or "the checkpoint"
        raise CheckpointError(f"castwise cannot tell how {where} is quantized: {error}") from error
    return quantization


def not_indexed(component: Component) -> str | None:
    """Say which tensor of a shard the index leaves out; None if it has all."""
    if component.index_name is None:
        return None
    weight_map = component.index["weight_map"]
    return next(
        (
            f"tensor {name!r} is in {shard}, and its index has it nowhere"
            for shard, reader in component.shards.items()
            for name in reader.tensors
            if name not in weight_map
        ),
        None,
    )


def _changed_text(quantization: Quantization, new_formats: Mapping[str, str]) -> str | None:
    """Say of the first part of a quantized weight that is changed what it is, and how many are."""
    weights = [
        weight
        for weight in quantization.weights
        if not new_formats.keys().isdisjoint((weight.payload, *weight.parts, *weight.foreign))
    ]
    orphans = [orphan for orphan in quantization.orphans if orphan.name in new_formats]
    scales = [name for name in quantization.others if name in new_formats]
    if weights:
        weight = weights[0]
        names = (weight.payload, *weight.parts, *weight.foreign)
        name = next(name for name in names if name in new_formats)
        description, count = (
            _weight_text(weight),
            f"{len(weights):,} of {len(quantization.weights):,} weights",
        )
    elif orphans:
        name, count = orphans[0].name, counted(len(orphans), "such tensor")
        description = str(orphans[0])
    elif scales:
        name, count = scales[0], counted(len(scales), "such tensor")
        description = f"{name!r} is a scale of it"
    elif quantization.unknown is not None:
        name, count = next(iter(new_formats)), f"{len(new_formats):,} tensors"
        origins = ", ".join(quantization.stated)
        description = (
            f"any tensor may be part of it, as castwise does not know the method ({origins})"
        )
    else:
        return None
    return f"{description}; {name!r} would become {new_formats[name]} ({count} would change)"


def _weight_text(weight: QuantizedWeight) -> str:
    block = "" if weight.block is None else f" in blocks of {'x'.join(map(str, weight.block))}"
    producers = " or ".join(weight.recipes)
    scale = "" if weight.scale is None else f" with the scale {weight.scale!r}"
    scheme = weight.scheme or "an unknown scheme"
    return f"the payload {weight.payload!r} is {scheme}{block} ({producers}){scale}"
