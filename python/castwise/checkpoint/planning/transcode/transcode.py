"""Transcode an opened checkpoint: let readers store its weights as another producer does."""

from functools import partial

from castwise.arrays.dtype_map import DtypeMap
from castwise.checkpoint._errors import CheckpointError
from castwise.checkpoint.containers import model_files
from castwise.checkpoint.containers.checkpoint import Checkpoint
from castwise.checkpoint.containers.registry import model_format
from castwise.checkpoint.planning.checkpoint_model import check_rows
from castwise.checkpoint.planning.component import SourceComponent
from castwise.checkpoint.planning.derived_checkpoint import DerivedCheckpoint
from castwise.checkpoint.planning.transcode._transcode_plan import (
    TranscodingPlan,
    derive_transcoded,
    find_forms,
)
from castwise.models.architecture import Architecture
from castwise.quantization.producers.registry import find_recipe, producer_of_model
from castwise.text.wording import parenthesis


def transcode_checkpoint(
    source: Checkpoint,
    recipe: str,
    scheme: str | None,
    threads: int,
    architecture: Architecture | None = None,
    *,
    inputs: str | None = None,
    is_file: bool,
) -> DerivedCheckpoint:
    """Return an opened checkpoint in the form of another producer, or of another scheme."""
    # `is_file` says that it becomes one file, which states in its metadata how weights are stored;
    # `inputs` is what is to be stated of inputs, None for what the producer states.
    target = model_format(f".{recipe}")
    if target is not None:
        from castwise.checkpoint.planning.transcode.to_whole_model import (  # noqa: PLC0415
            check_whole,
            derive_whole_model,
        )

        check_whole(source, target, recipe, is_file=is_file)
    model = model_files(source, None, is_file=is_file)
    storing = producer_of_model(model.config.get("model_type"))
    if storing is not None and find_recipe(recipe).writing.is_loaded:
        raise CheckpointError(
            f"{source.path} cannot become a folder of {recipe}: transformers loads experts of "
            f"{storing.name} as {storing.name} stores them "
            + parenthesis("recipe", storing.name, option="--to")
            + ", or as castwise dequantize decodes them"
        )
    dtypes, derive = model.dtypes, derive_transcoded
    if target is not None:
        derive = partial(derive_whole_model, target)
        dtypes = DtypeMap.from_mapping({target.float32.pattern: "float32"})
    purpose = f"transcoded to {recipe}{'' if scheme is None else f' {scheme}'}"
    components = (
        SourceComponent(
            source, component, "transcode", purpose, "what states how it is stored", architecture
        )
        for component in source.components
    )
    plans = [
        find_forms(source, TranscodingPlan(facts, recipe, scheme, threads, inputs=inputs))
        for facts in components
    ]
    names = [name for plan in plans for name in plan.facts.model.names]
    names += [weight.name for plan in plans for weight in plan.weights]
    check_rows(names, architecture)
    if not any(plan.weights for plan in plans):
        raise CheckpointError(
            f"{source.path}: no weight in it is quantized; castwise quantize quantizes it"
        )
    parts = [derive(plan) for plan in plans]
    return DerivedCheckpoint(source, parts, dtypes, is_file=is_file, recipe=recipe, model=model)
