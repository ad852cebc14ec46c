"""Policies for models that exist already: their layers obey them, their variables are cast."""

from __future__ import annotations

from typing import Any

from castwise._frameworks import require
from castwise.adapters._map_argument import as_policy_map
from castwise.adapters.keras._derived_state import derive_again
from castwise.adapters.keras._notes import (
    casts_that_stay,
    layers_not_built,
    layers_that_stay,
    overflows,
)
from castwise.adapters.keras._optimizers import known_variables, notes
from castwise.adapters.keras._plan import LayerPlan, planned, policy_in_force
from castwise.adapters.keras._policies import from_keras
from castwise.adapters.keras._quantization import quantized
from castwise.adapters.keras._report import AppliedPolicies
from castwise.adapters.keras._variables import recast, stored_dtype
from castwise.dtype_policies import DTypePolicyMap, get


def apply_policy_map(model: Any, policy_map: Any) -> AppliedPolicies:
    r"""Give each layer of a model the policy of its path, and cast the variables that it has.

    Parameters
    ----------
    model : keras.Model or keras.layers.Layer
        Built or not, compiled or not; changed in place. Apply it to the outermost model: one that
        holds this one keeps the functions it has traced.
    policy_map : DTypePolicyMap, keras.dtype_policies.DTypePolicyMap, or a map's config
        Asked for ``layer.path``, as Keras does; where a layer is not built yet, for the path that
        it will have. Layers that no key decides for get the default policy.

    Returns
    -------
    AppliedPolicies
        Which key decided for which layer, which for none, what was cast; it prints as a table.

    Raises
    ------
    TypeError
        `model` is no layer of Keras, or `policy_map` no map.
    ValueError
        Several keys match a path, and `on_overlap` is "raise"; a layer is quantized already in
        another way; a policy needs calibration (gptq, awq), is for no floats, or unknown to the
        installed Keras; one that quantizes is for a layer that is not built and holds others;
        layers that share a variable want different dtypes. Nothing was changed.
    ImportError
        Keras is not installed.

    Notes
    -----
    Afterwards the model is as one that was built with these policies and has these weights:

    - Variables in their layer's variable dtype are in the new one, each value rounded once; those
      with a dtype of their own, and integers, stay. They are the same objects, so that the
      optimizer goes on with them; its own variables keep values and dtypes, which `notes` says.
    - Layers that are not built yet get the map itself (a copy), for the layers that they will make.
    - Policies that quantize: layers that are built are quantized (``layer.quantize``), layers that
      are not will be built so. Layers whose class cannot be get the plain policy it stands on, for
      Keras fails to call them under another.
    - Layers that compute in no floats (Hashing) keep their policy: their numbers are not to be
      rounded.
    - An ``Input`` keeps its dtype; that which a Sequential model made for itself follows its first
      layer, where it would lose precision else.
    - Functions that the model has traced are traced anew.

    """
    policy_map = _map(policy_map)
    _check_model(model)
    explanation, plans = planned(model, policy_map)
    with known_variables(model):
        variables, overflowed = _recast_variables(plans)
    for plan in plans:
        plan.layer._dtype_policy = plan.policy
    unquantized = [plan.path for plan in plans if plan.quantize is not None and not quantized(plan)]
    layers = [plan.layer for plan in plans]
    derive_again(layers)
    _forget_traces(layers)
    return AppliedPolicies(
        explanation,
        {
            plan.path: (plan.before, after)
            for plan in plans
            if (after := policy_in_force(plan.layer).name) != plan.before
        },
        {variable.path: dtypes for variable, dtypes in variables.values()},
        tuple(unquantized),
        (
            *notes(model, set(variables)),
            *overflows(overflowed),
            *casts_that_stay(layers),
            *layers_that_stay(plans),
            *layers_not_built(plans, len(policy_map)),
        ),
    )


def cast_model(model: Any, policy: Any) -> AppliedPolicies:
    """Give every layer of a model one policy, and cast the variables that it has.

    Parameters
    ----------
    model : keras.Model or keras.layers.Layer
        As `apply_policy_map` takes it; changed in place.
    policy : DTypePolicy, keras.DTypePolicy, or what `castwise.dtype_policies.get` takes
        No map: that is for `apply_policy_map`.

    Returns
    -------
    AppliedPolicies
        What was changed and cast.

    Raises
    ------
    ValueError, TypeError, ImportError
        As `apply_policy_map`; `policy` is a map, or there is none such.

    """
    keras = require("keras")
    if isinstance(policy, keras.dtype_policies.DTypePolicy):
        policy = from_keras(policy)
    policy = get(policy)
    if isinstance(policy, DTypePolicyMap):
        raise ValueError(  # noqa: TRY004 - a policy, but of more than one
            f"policy={policy!r} is a map; use apply_policy_map(model, policy)"
        )
    return apply_policy_map(model, DTypePolicyMap(policy))


def _recast_variables(
    plans: list[LayerPlan],
) -> tuple[dict[int, tuple[Any, tuple[str, str]]], list[tuple[Any, str]]]:
    """Cast each variable once, also where layers share it; by identity, the dtypes.

    Also those that overflowed.
    """
    done: dict[int, tuple[Any, tuple[str, str]]] = {}
    overflowed = []
    for plan in plans:
        for variable, dtype in plan.recast:
            if id(variable) not in done:
                done[id(variable)] = variable, (stored_dtype(variable), dtype)
                if not recast(variable, dtype):
                    overflowed.append((variable, dtype))
    return done, overflowed


def _map(policy_map: Any) -> DTypePolicyMap:
    is_keras = isinstance(policy_map, require("keras").dtype_policies.DTypePolicy)
    return as_policy_map(from_keras(policy_map) if is_keras else policy_map, policy_map)


def _check_model(model: Any) -> None:
    if isinstance(model, require("keras").layers.Layer):
        return
    home = type(model).__module__.partition(".")[0]
    remedy = (
        f"castwise.adapters.{home} is for those of {home}"
        if home in ("tf_keras", "torch")
        else "give a keras.Model or a keras.layers.Layer"
    )
    raise TypeError(f"model={model!r} is no model or layer of Keras; {remedy}")


def _forget_traces(layers: list[Any]) -> None:
    """Forget the functions that models have compiled, in the dtypes of before."""
    for layer in layers:
        for name in ("train_function", "test_function", "predict_function"):
            if hasattr(layer, name):
                setattr(layer, name, None)
