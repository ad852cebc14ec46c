"""Change the policies of existing models, and cast their variables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from castwise.adapters.keras import _notes as notes
from castwise.adapters.keras._layer_state import derive_again, known_variables, recast, stored_dtype
from castwise.adapters.keras._matching import as_policy_map
from castwise.adapters.keras._plan import LayerPlan, can_be_quantized, plan_layers, policy_in_force
from castwise.adapters.keras._policies import from_keras
from castwise.adapters.keras._report import AppliedPolicies
from castwise.dtype_policies import DTypePolicyMap, get
from castwise.environment.frameworks import require

# Why a layer was not quantized, in the words of Keras 3.16's `QuantizationReport`.
_NO_SUPPORT = "no quantize support"
_ALREADY_QUANTIZED = "already quantized"


def apply_policy_map(model: Any, policy_map: Any) -> AppliedPolicies:
    r"""Give each layer of a model the policy of its path, and cast its variables.

    Parameters
    ----------
    model : keras.Model or keras.layers.Layer
        Built or not, compiled or not; changed in place. Give the outermost model: a model that
        holds this one keeps its traced functions.
    policy_map : DTypePolicyMap, keras.dtype_policies.DTypePolicyMap, or a map's config
        Looked up by ``layer.path``, as Keras does, or by the path that a layer will have once it
        is built. Where no key matches that, a path with more of the names of what holds the layer
        is looked up, because layers of loaded and cloned models have shorter paths: "net/one" is
        "one" there. Layers that no key matches get the default policy.

    Returns
    -------
    AppliedPolicies
        The key of each layer, unused keys, and the variables that were cast; prints as a table.

    Raises
    ------
    TypeError
        `model` is not a layer of Keras, or `policy_map` not a map.
    ValueError
        Several keys match a path, or the paths of one layer, and `on_overlap` is "raise"; all
        layers are built, and no key matches any; a layer is already quantized in another way; a
        policy needs calibration (gptq, awq), computes in other dtypes than floats, or is unknown to
        the installed Keras; a policy quantizes a layer that is not built and holds others; layers
        that share a variable have different dtypes. Nothing was changed.
    ImportError
        Keras is not installed.

    Notes
    -----
    Afterwards the model equals one that was built with these policies and given these weights:

    - Variables in their layer's variable dtype are cast to the new one, each value rounded once;
      those with a dtype of their own, and integers, are not. They are the same objects, so that
      the optimizer still updates them; its own variables keep values and dtypes (see `notes`).
    - Layers that are not built get a copy of the map, for the layers that they will make.
    - For policies that quantize, built layers are quantized (``layer.quantize``), and other layers
      will be built quantized. A layer whose class cannot be quantized gets the plain policy,
      because Keras fails to call it under the quantized one.
    - Layers that compute in other dtypes than floats (Hashing) keep their policy, because their
      numbers must not be rounded.
    - An ``Input`` keeps its dtype. The input that a Sequential model made itself gets that of its
      first layer, where it would otherwise lose precision.
    - Functions that the model has traced are traced again.

    Examples
    --------
    >>> import keras
    >>> from castwise.adapters.keras import apply_policy_map
    >>> layers = [keras.layers.Dense(2, name=name) for name in ("up", "head")]
    >>> model = keras.Sequential([keras.Input((4,)), *layers], name="net")
    >>> policies = castwise.DTypePolicyMap("float32", {"net/up": "mixed_bfloat16"})
    >>> _ = apply_policy_map(model, policies)
    >>> [layer.compute_dtype for layer in model.layers]
    ['bfloat16', 'float32']

    """
    policy_map = _map(policy_map)
    _check_model(model)
    matching, plans = plan_layers(model, policy_map)
    with known_variables(model):
        variables, overflow_names = _recast_variables(plans)
    for plan in plans:
        plan.layer._dtype_policy = plan.policy
    quantized, skipped = _quantize_layers(plans)
    with_weights = {plan.path for plan in plans if plan.layer.weights and not plan.layer._layers}
    layers = [plan.layer for plan in plans]
    derive_again(layers)
    _forget_traces(layers)
    return AppliedPolicies(
        matching.explanation,
        {
            plan.path: (plan.before, after)
            for plan in plans
            if (after := policy_in_force(plan.layer).name) != plan.before
        },
        {variable.path: dtypes for variable, dtypes in variables.values()},
        quantized,
        skipped,
        tuple(path for path, reason in skipped if reason == _NO_SUPPORT and path in with_weights),
        (
            *notes.paths_that_changed(matching),
            *notes.optimizers_that_stay(model, set(variables)),
            *notes.overflows(overflow_names),
            *notes.casts_that_stay(layers),
            *notes.layers_that_stay(plans),
            *notes.layers_not_built(plans, len(policy_map)),
        ),
    )


def cast_model(model: Any, policy: Any) -> AppliedPolicies:
    """Give every layer of a model one policy, and cast its variables.

    Parameters
    ----------
    model : keras.Model or keras.layers.Layer
        As for `apply_policy_map`; changed in place.
    policy : DTypePolicy, keras.DTypePolicy, or what `castwise.dtype_policies.get` takes
        Not a map, which is for `apply_policy_map`.

    Returns
    -------
    AppliedPolicies
        What was changed and cast.

    Raises
    ------
    ValueError, TypeError, ImportError
        As `apply_policy_map`; `policy` is a map, or there is no such policy.

    Examples
    --------
    >>> import keras
    >>> from castwise.adapters.keras import cast_model
    >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    >>> _ = cast_model(model, "mixed_bfloat16")
    >>> model.layers[0].compute_dtype
    'bfloat16'

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
    """Cast each variable once, shared or not; return dtypes by identity, and overflows."""
    recast_layers: dict[int, tuple[Any, tuple[str, str]]] = {}
    overflow_names = []
    for plan in plans:
        for variable, dtype in plan.recast:
            if id(variable) not in recast_layers:
                recast_layers[id(variable)] = variable, (stored_dtype(variable), dtype)
                if not recast(variable, dtype):
                    overflow_names.append((variable, dtype))
    return recast_layers, overflow_names


def _quantize_layers(
    plans: Sequence[LayerPlan],
) -> tuple[tuple[tuple[str, str, str], ...], tuple[tuple[str, str], ...]]:
    """Quantize layers; return those that were, and those that were not with the reason."""
    # As in Keras' report, models are in neither: they are what their layers are.
    quantized, skipped = [], []
    model = require("keras").Model
    for plan in plans:
        if isinstance(plan.layer, model):
            continue
        if plan.is_quantized:
            skipped.append((plan.path, _ALREADY_QUANTIZED))
        elif plan.quantize is not None and not _quantize(plan):
            skipped.append((plan.path, _NO_SUPPORT))
        elif plan.quantize is not None:
            name = policy_in_force(plan.layer).name
            quantized.append((plan.path, plan.layer.quantization_mode, name))
    return tuple(quantized), tuple(skipped)


def _quantize(plan: LayerPlan) -> bool:
    """Quantize a layer; return False if its class does not support that."""
    # Keras sets the policy of the layer: since 3.15 an ``int4`` without a block size is "int4/128".
    layer, policy = plan.layer, plan.quantize
    if not can_be_quantized(layer):
        return False
    try:
        if policy.quantization_mode == "float8":
            layer.dtype_policy = policy  # as Keras: the setter quantizes, with the policy's history
        elif hasattr(policy, "block_size"):
            config = require("keras").quantizers.Int4QuantizationConfig
            layer.quantize(config=config(block_size=policy.block_size))
        else:
            layer.quantize(policy.quantization_mode)
    except NotImplementedError:  # a subclass of a class that can be quantized
        layer._dtype_policy = plan.policy
        return False
    return True


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
    raise TypeError(f"model={model!r} is not a model or layer of Keras; {remedy}")


def _forget_traces(layers: list[Any]) -> None:
    """Make models forget their compiled functions, which have the old dtypes."""
    for layer in layers:
        for name in ("train_function", "test_function", "predict_function"):
            if hasattr(layer, name):
                setattr(layer, name, None)
