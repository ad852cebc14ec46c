"""Write notes on what the caller may have to do after policies were applied to a model."""

import itertools
from collections.abc import Iterator
from typing import Any

from castwise.adapters.keras._layer_state import optimizers_of
from castwise.adapters.keras._matching import Matching
from castwise.adapters.keras._plan import LayerPlan, policy_in_force
from castwise.config import is_float_dtype
from castwise.environment.frameworks import require


def paths_that_changed(matching: Matching) -> Iterator[str]:
    """Write of layers that have several paths, and of keys that match none of them."""
    for paths, words in (
        (matching.renamed, "matched by the path of a model that is not loaded or cloned"),
        (matching.shortened, "matched by the path of a model that is loaded or cloned"),
    ):
        if paths:
            path, other = next(iter(paths.items()))
            count = f"{len(paths)} layers are" if len(paths) > 1 else "1 layer is"
            used_path = other if paths is matching.renamed else path
            yield f"{count} {words}, such as {used_path!r} of the paths {path!r} and {other!r}."
    for reason in matching.reasons:
        yield f"{reason[0].upper()}{reason[1:]}."


def optimizers_that_stay(model: Any, recast_ids: set[int]) -> Iterator[str]:
    """Write of optimizers that do not follow the variables of a compiled model."""
    optimizers = optimizers_of(model)
    scaling = require("keras").optimizers.LossScaleOptimizer
    has_scaling = any(isinstance(optimizer, scaling) for optimizer in optimizers)
    if optimizers and model.dtype_policy.name == "mixed_float16" and not has_scaling:
        yield (
            "The model was compiled before it became mixed_float16, so that its optimizer scales "
            "no loss; compile it again, or wrap the optimizer in keras.optimizers."
            "LossScaleOptimizer."
        )
    for optimizer in optimizers:
        recast = [
            variable for variable in optimizer._trainable_variables if id(variable) in recast_ids
        ]
        if recast and not isinstance(optimizer, scaling):
            yield (
                f"The optimizer {optimizer.name!r} keeps its own variables as they are, for "
                f"{len(recast)} variables that were cast; compile the model again to have them "
                "made anew."
            )


def casts_that_stay(layers: list[Any]) -> Iterator[str]:
    """Write of casts that are layers in the graph of a functional model."""
    for layer in layers:
        nodes = itertools.chain(*getattr(layer, "_nodes_by_depth", {}).values())
        casts = [node for node in nodes if type(node.operation).__name__ == "Cast"]
        if casts:
            dtypes = sorted({str(node.output_tensors[0].dtype) for node in casts})
            yield (
                f"The graph of {layer.name!r} holds {len(casts)} casts to {', '.join(dtypes)}, "
                "which stay; if they should not, build the model again."
            )


def layers_that_stay(plans: list[LayerPlan]) -> Iterator[str]:
    """Write of layers that compute in other dtypes than floats, and are not changed."""
    for plan in plans:
        policy = policy_in_force(plan.layer)
        if policy.name == plan.before and not is_float_dtype(policy.compute_dtype):
            yield f"{plan.path!r} computes in {policy.compute_dtype}, and keeps its policy."


def layers_not_built(plans: list[LayerPlan], keys: int) -> Iterator[str]:
    """Write of layers that hold a map with so many keys, and look their paths up later."""
    count = sum(not plan.layer.built for plan in plans)
    if count and keys:
        yield (
            f"{count} layers are not built, and hold the map itself. When the model is saved and "
            "loaded, Keras may give them other paths, for which the map says something else: "
            "apply it again once the model is built."
        )


def overflows(variables: list[tuple[Any, str]]) -> Iterator[str]:
    """Write of variables, with their dtypes, whose values overflowed."""
    for variable, dtype in variables:
        yield f"{variable.path!r} held values beyond the range of {dtype}: they are not finite now."
