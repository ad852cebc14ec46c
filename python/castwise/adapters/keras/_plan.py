"""Plan the change of each layer of a model; everything is checked before anything is changed."""

import copy
import functools
from dataclasses import dataclass
from typing import Any

from castwise.adapters.keras._layer_state import own_variables, stored_dtype
from castwise.adapters.keras._matching import Matching, match_layers, placed_layers
from castwise.adapters.keras._policies import from_keras, map_view, to_keras
from castwise.config import is_float_dtype
from castwise.dtype_policies import DTypePolicy, DTypePolicyMap, Explanation
from castwise.dtype_policies._configs import policy_named
from castwise.dtype_policies._policy import plain_name

_CALIBRATED = ("gptq", "awq")  # modes of quantization that need a data set

# What a class defines that can be quantized: a method up to Keras 3.15, a description since.
_SUPPORT = {"quantize", "_quantization_geometry"}


@dataclass(frozen=True, slots=True)
class LayerPlan:
    """The planned change of one layer."""

    # path, layer: The layer and its path.
    path: str
    layer: Any
    before: str  # the name of its present policy
    # Its new policy, of Keras; if that quantizes and the layer is built, the plain policy in it.
    policy: Any
    # The variables that change their dtype, each with the new one.
    recast: tuple[tuple[Any, str], ...] = ()
    quantize: Any = None  # the quantized policy, of Keras, that a built layer gets afterwards
    # Whether the layer is built and quantized already, as its policy wants it.
    is_quantized: bool = False


def plan_layers(model: Any, policy_map: DTypePolicyMap) -> tuple[Matching, list[LayerPlan]]:
    matching = match_layers(policy_map, placed_layers(model))
    own_map = copy.copy(policy_map)
    converted = functools.cache(to_keras)
    plans = []
    for path, layer in matching.layers:
        target = _policy_at(path, matching.explanation)
        plans.append(_plan(path, layer, target, converted(target), own_map))
    _refuse_conflicts(plans)
    return matching, plans


def _policy_at(path: str, explanation: Explanation) -> DTypePolicy:
    policy = explanation.paths[path].policy
    if isinstance(policy, DTypePolicyMap):  # a map can be a value of the map, or in force
        policy = policy[path]
    if policy is None or isinstance(policy, DTypePolicyMap):
        raise ValueError(f"{path!r}: a map in a map in a map does not give a policy")
    return policy


def _plan(
    path: str, layer: Any, target: DTypePolicy, policy: Any, policy_map: DTypePolicyMap
) -> LayerPlan:
    """Plan the change of a layer to `target`, in Keras `policy`. ValueError for the impossible."""
    before = policy_in_force(layer)
    if not is_float_dtype(before.compute_dtype):
        return LayerPlan(path, layer, before.name, layer._dtype_policy)
    if not layer.built and target.quantization_mode is not None and not can_be_quantized(layer):
        raise ValueError(
            f"{path!r} is not built, so that it is unknown what in it can be quantized with "
            f"policy={target.name!r}; build the model first"
        )
    if not layer.built:
        # Layers that it makes when it is built look up their own paths in the map.
        if len(policy_map):
            policy = map_view(policy_map, until_built=policy)
        recasts = _recasts(path, layer, policy.variable_dtype)
        return LayerPlan(path, layer, before.name, policy, recasts)
    quantize = None
    if before.quantization_mode is not None:
        if from_keras(before) == target:
            return LayerPlan(path, layer, before.name, layer._dtype_policy, is_quantized=True)
        raise ValueError(
            f"{path!r} is quantized ({before.name!r}), which cannot be undone; give its path a "
            f"key with {before.name!r}, or load the model from before it was quantized"
        )
    if target.quantization_mode is not None:
        policy, quantize = to_keras(policy_named(plain_name(target))), policy
        if can_be_quantized(layer) and target.quantization_mode in _CALIBRATED:
            raise ValueError(
                f"{path!r}: policy={target.name!r} needs a data set to calibrate with; call "
                f"quantize({target.quantization_mode!r}, config=...) of the layer or the model"
            )
    recasts = _recasts(path, layer, policy.variable_dtype)
    return LayerPlan(path, layer, before.name, policy, recasts, quantize)


def policy_in_force(layer: Any) -> Any:
    """Return the policy of Keras that a layer obeys; of a map, that of its path."""
    policy = layer._dtype_policy
    is_map = hasattr(policy, "default_policy")
    return policy[layer.path] if is_map and layer.path else policy


def can_be_quantized(layer: Any) -> bool:
    """Tell whether a layer's class defines how; Keras quantizes layers that hold no others."""
    if layer._layers:
        return False
    definers = [cls for cls in type(layer).__mro__ if _SUPPORT & set(vars(cls))]
    return definers[0].__name__ not in ("Layer", "Model")


def _recasts(path: str, layer: Any, target: str) -> tuple[tuple[Any, str], ...]:
    """List the variables that change; one with a dtype of its own keeps it."""
    source = layer.variable_dtype
    if source == target or not is_float_dtype(source):
        return ()
    recast = [variable for variable in own_variables(layer) if stored_dtype(variable) == source]
    if recast and not is_float_dtype(target):
        raise ValueError(
            f"{path!r}: variable_dtype={target!r} would lose the values of its "
            f"{len(recast)} variables in {source}; use a policy of floats"
        )
    return tuple((variable, target) for variable in recast)


def _refuse_conflicts(plans: list[LayerPlan]) -> None:
    """Refuse to cast a shared variable to the dtype of only one of its layers."""
    dtypes: dict[int, tuple[str, str]] = {}
    for plan in plans:
        targets = {id(variable): dtype for variable, dtype in plan.recast}
        for variable in own_variables(plan.layer):
            dtype = targets.get(id(variable), stored_dtype(variable))
            path, other = dtypes.setdefault(id(variable), (plan.path, dtype))
            if other != dtype:
                raise ValueError(
                    f"{path!r} and {plan.path!r} share the variable {variable.path!r}, and would "
                    f"keep it in {other} and in {dtype}; give them one policy"
                )
