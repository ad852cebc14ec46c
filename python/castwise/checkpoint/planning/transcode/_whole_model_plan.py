"""Plan what the component of a quantized model becomes in a file of the whole model."""

from collections.abc import Collection, Mapping
from typing import Any

from castwise.checkpoint._errors import CheckpointError, join_names
from castwise.checkpoint.containers.checkpoint import Checkpoint
from castwise.checkpoint.containers.whole_models import ModelFormat
from castwise.checkpoint.planning.component import Derived, SourceComponent
from castwise.checkpoint.planning.derived_reader import DerivedTensor
from castwise.checkpoint.planning.encode.encode import WeightChoice
from castwise.checkpoint.planning.importance import ChannelNumbers
from castwise.checkpoint.planning.transcode._transcode_plan import TranscodingPlan, new_tensors
from castwise.checkpoint.planning.transcode._whole_model import WholeModel
from castwise.quantization.producers.producer import Statements
from castwise.quantization.producers.registry import CONFIGS
from castwise.quantization.producers.stated import CONFIG
from castwise.text.wording import parenthesis


def check_whole(source: Checkpoint, target: ModelFormat, recipe: str, *, is_file: bool) -> None:
    """Refuse what does not become one file of one model."""
    several = [component.place for component in source.components]
    if not is_file:
        raise CheckpointError(f"{target.label} is one file; name one that ends with .{recipe}")
    if len(several) > 1:
        raise CheckpointError(
            f"{source.path} has tensors in {join_names(several)}, and a {target.label} file is of "
            "one model; leave out the others " + parenthesis("exclude")
        )


def derive_encoded_model(
    target: ModelFormat, choice: WeightChoice, numbers: Mapping[str, ChannelNumbers], threads: int
) -> Derived:
    """Derive a plain component that becomes a file whose chosen weights are quantized.

    CheckpointError: as `derive_whole_model`.
    """
    facts, config = choice.facts, config_of(choice.facts)
    encodings = choice.encodings
    try:
        folder, stored = facts.component.folder, facts.stored_tensors
        model = WholeModel(target, folder, config, stored, {}, encodings, numbers)
        model.metadata |= choice.encode.mix_metadata
    except CheckpointError as error:
        raise facts.refusal(str(error)) from error
    schemes = {encoding.written.scheme for encoding in encodings.values()}
    return _derived(target, facts, model, {}, {}, threads, schemes)


def derive_whole_model(target: ModelFormat, plan: TranscodingPlan) -> Derived:
    """Derive a component that becomes a file of a whole model, in the format `target`.

    CheckpointError: the file has no place for something of it, or it is not complete.
    """
    facts = plan.facts
    if not plan.weights:
        return Derived(source=facts, threads=plan.threads)
    config = config_of(facts)
    weights = {weight.weight.payload: weight for weight in plan.new_weights}
    try:
        model = WholeModel(target, facts.component.folder, config, facts.stored_tensors, weights)
    except CheckpointError as error:
        raise facts.refusal(str(error)) from error
    tensors, left_out = new_tensors(plan, model.tensors)
    schemes = {plan.scheme_of(weight) for weight in plan.weights}
    return _derived(target, facts, model, tensors, left_out, plan.threads, schemes)


def config_of(facts: SourceComponent) -> Mapping[str, Any]:
    """Return the configuration of a folder."""
    config = facts.statement.configs.get(CONFIG)
    if not isinstance(config, dict):
        raise facts.refusal("no config.json states its hyperparameters; name its folder")
    return config


def _derived(  # noqa: PLR0917
    target: ModelFormat,
    facts: SourceComponent,
    model: WholeModel,
    tensors: dict[str, list[DerivedTensor]],
    left_out: dict[str, str],
    threads: int,
    schemes: Collection[str],
) -> Derived:
    """Return what a component becomes, with what is made of plain tensors, too."""
    tensors |= model.plain()
    left_out |= dict.fromkeys(model.left_out, "")
    facts.check_names(tensors, left_out, model.new_names)
    return Derived(
        source=facts,
        tensors=tensors,
        left_out=left_out,
        new_names=model.new_names,
        threads=threads,
        consumed_paths=[facts.prefix + name for name in (*CONFIGS, *target.tokenizer_files)],
        statements=Statements({}, {}, model.metadata),
        schemes=schemes,
        metadata=lambda _: {},
    )
