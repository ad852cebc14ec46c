"""Copy models of TF 2 under other policies: from their configs, with the weights cast."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from castwise._core import cast
from castwise.adapters.keras._layer_state import loses
from castwise.adapters.keras._matching import as_policy_map, refuse_unused
from castwise.adapters.keras._report import AppliedPolicies
from castwise.adapters.tf_keras._policies import to_tf_keras
from castwise.config import is_float_dtype
from castwise.dtype_policies import DTypePolicyMap
from castwise.environment.frameworks import require


def apply_policy_map(model: Any, policy_map: Any) -> tuple[Any, AppliedPolicies]:
    """Copy a model, give each layer the policy of its path, and cast the weights.

    Parameters
    ----------
    model : tf_keras.Model
        Functional or Sequential, also with such models within; it is not changed. In TF 2 the
        dtype of a variable, and whether it is cast in calls, cannot be changed, so new layers are
        made from the configs.
    policy_map : DTypePolicyMap, or a map's config
        A path is the names of the layers on the way from the model to the layer, joined by ``/``,
        without the model's own; the model itself has its name. The layer within a wrapper
        (Bidirectional) has a path below it.

    Returns
    -------
    model : tf_keras.Model
        Not compiled.
    report : AppliedPolicies
        The key of each layer, unused keys, and the variables that were cast; prints as a table.

    Raises
    ------
    TypeError
        `model` is not a model of tf_keras, or `policy_map` not a map.
    ValueError
        The model, or one within, is subclassed; several keys match a path, or none matches any;
        TF 2 has no such policy; a layer cannot be made from its config; an operation would get
        several dtypes.
    ImportError
        tf_keras is not installed.

    Notes
    -----
    Weights in their layer's variable dtype are cast to the new one, each value rounded once. An
    ``Input`` keeps its dtype, and layers that compute in other dtypes than floats (Hashing,
    TextVectorization) keep their policy. Other state of layers, such as a vocabulary, is copied.

    Examples
    --------
    >>> import tf_keras
    >>> from castwise.adapters.tf_keras import apply_policy_map
    >>> model = tf_keras.Sequential([tf_keras.Input((4,)), tf_keras.layers.Dense(2, name="head")])
    >>> policies = castwise.DTypePolicyMap("float32", {"head": "mixed_bfloat16"})
    >>> copy, _ = apply_policy_map(model, policies)
    >>> copy.layers[0].compute_dtype
    'bfloat16'

    """
    policy_map = as_policy_map(policy_map, policy_map)
    _check_model(model)
    cloner = _Cloner(policy_map)
    clone = cloner.clone(model, "")
    explanation = policy_map.explain(cloner.paths)
    refuse_unused(explanation)
    variables = _give_weights(model, clone) if model.built else {}
    for layer, copied_layer in cloner.pairs():
        give_state(layer, copied_layer)
    notes = []
    if getattr(model, "optimizer", None) is not None:
        notes.append("The model that was given is compiled, the new one is not: compile it.")
    return clone, AppliedPolicies(explanation, cloner.changes, variables, notes=tuple(notes))


def cast_model(model: Any, policy: Any) -> tuple[Any, AppliedPolicies]:
    """Copy a model, give all layers one policy, and cast the weights.

    Parameters
    ----------
    model : tf_keras.Model
        As for `apply_policy_map`.
    policy : tf_keras.mixed_precision.Policy, or what `to_tf_keras` takes
        Not a map, which is for `apply_policy_map`.

    Returns
    -------
    model : tf_keras.Model
        Not compiled.
    report : AppliedPolicies
        What was changed and cast.

    Raises
    ------
    ValueError, TypeError, ImportError
        As `apply_policy_map` and `to_tf_keras`.

    Examples
    --------
    >>> import tf_keras
    >>> from castwise.adapters.tf_keras import cast_model
    >>> model = tf_keras.Sequential([tf_keras.Input((4,)), tf_keras.layers.Dense(2)])
    >>> copy, _ = cast_model(model, "mixed_bfloat16")
    >>> copy.layers[0].compute_dtype
    'bfloat16'

    """
    keras_policy = to_tf_keras(policy)
    if keras_policy.compute_dtype is None:
        raise ValueError(f"policy={keras_policy.name!r} leaves the dtypes open; name them")
    is_mixed = keras_policy.compute_dtype != keras_policy.variable_dtype
    # TF 2 has names of dtypes, such as "half", that maps do not know.
    return apply_policy_map(
        model, DTypePolicyMap(keras_policy.name if is_mixed else keras_policy.compute_dtype)
    )


def _give_weights(model: Any, clone: Any) -> dict[str, tuple[str, str]]:
    """Copy the weights to another model, cast to its dtypes; return what was cast, by name."""
    changes = {}
    for variable, copied_variable in zip(model.weights, clone.weights, strict=True):
        if not hasattr(variable, "dtype"):
            continue  # the table of a lookup layer; see `give_state`
        source, target = variable.dtype.name, copied_variable.dtype.name
        value = variable.numpy()
        if source != target and is_float_dtype(source):
            value = cast(value, target)
            changes[variable.name] = source, target
        copied_variable.assign(value)
    return changes


@dataclass
class _Cloner:
    """Copy models; each layer once, however many models it is in."""

    policy_map: DTypePolicyMap
    paths: list[str] = field(default_factory=list)
    changes: dict[str, tuple[str, str]] = field(default_factory=dict)
    _copies: dict[int, tuple[Any, Any]] = field(default_factory=dict)

    def pairs(self) -> Iterable[tuple[Any, Any]]:
        """Return each layer, and the one made of it."""
        return self._copies.values()

    def clone(self, model: Any, prefix: str) -> Any:
        """Copy a model, whose layers have paths that begin with `prefix`."""
        path = prefix.removesuffix("/") or model.name
        if not (model._is_graph_network or isinstance(model, require("tf_keras").Sequential)):
            raise ValueError(
                f"{path!r} is a subclassed model, which cannot be copied; make it under "
                "tf_keras.mixed_precision.set_global_policy(...), and load its weights"
            )
        clone = self._clone(model, prefix)
        # The config of a model of layers has no policy of the model's own.
        clone._set_dtype_policy(self._decide(path, model.dtype_policy.name))
        return clone

    def _clone(self, model: Any, prefix: str) -> Any:
        """Copy the layers of a model by Keras, and of a Sequential without an input one by one."""
        keras = require("tf_keras")

        def clone_layer(layer: Any) -> Any:
            return self._layer(layer, prefix + layer.name)

        if isinstance(model, keras.Sequential) and not model._has_explicit_input_shape:
            clone = keras.Sequential([clone_layer(layer) for layer in model.layers], model.name)
            if model.inputs:
                # Its own input was made for the old layers.
                source, target = model.inputs[0].dtype.name, clone.layers[0].compute_dtype
                clone._build_graph_network_for_inferred_shape(
                    model.inputs[0].shape, target if loses(source, target) else source
                )
            return clone
        try:
            return keras.models.clone_model(model, clone_function=clone_layer)
        except TypeError as error:
            raise ValueError(
                f"{model.name!r} cannot be copied with these policies: {error} TensorFlow does "
                "not promote dtypes, so that inputs of one operation need layers of one compute "
                "dtype; an Input keeps its own."
            ) from error

    def _layer(self, layer: Any, path: str) -> Any:
        if id(layer) not in self._copies:
            if hasattr(layer, "_flatten_layers") and isinstance(layer, require("tf_keras").Model):
                copied_layer = self.clone(layer, f"{path}/")
            else:
                copied_layer = self._layer_from_config(layer, path)
            self._copies[id(layer)] = layer, copied_layer
        return self._copies[id(layer)][1]

    def _layer_from_config(self, layer: Any, path: str) -> Any:
        before, config = layer.dtype_policy, layer.get_config()
        if before.compute_dtype is None or is_float_dtype(before.compute_dtype):
            config = self._config(config, path, before.name)
        try:
            return type(layer).from_config(config)
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"{path!r} cannot be copied by its config, {config!r}: {error}"
            ) from error

    def _config(self, config: dict[str, Any], path: str, before: str | None) -> dict[str, Any]:
        """Return a layer's config with the policies of its path, also for layers within."""
        if "dtype" not in config:
            return config  # an operation on tensors has the dtype of its inputs
        serialize = require("tf_keras").src.mixed_precision.policy.serialize
        changes = {**config, "dtype": serialize(self._decide(path, before))}
        for key, value in config.items():
            inner = value.get("config") if isinstance(value, dict) else None
            if isinstance(inner, dict) and "dtype" in inner and "name" in inner:
                below = self._config(inner, f"{path}/{inner['name']}", None)
                changes[key] = {**value, "config": below}
        return changes

    def _decide(self, path: str, before: str | None) -> Any:
        policy = to_tf_keras(self.policy_map[path])
        self.paths.append(path)
        if before is not None and before != policy.name:
            self.changes[path] = before, policy.name
        return policy


def _check_model(model: Any) -> None:
    if not isinstance(model, require("tf_keras").Model):
        raise TypeError(
            f"model={model!r} is not a model of tf_keras; castwise.adapters.keras is for Keras 3"
        )


def give_state(source: Any, target: Any) -> None:
    """Copy the rest of a layer's state to another layer of its class, after the weights."""
    # Lookup layers hold a vocabulary in a table, which is neither a weight nor, after `adapt`, in
    # the config. `Normalization` and `Discretization` compute with constants that they derive from
    # their weights.
    if hasattr(source, "save_assets"):
        store: dict[str, Any] = {}
        source.save_own_variables(store)
        with tempfile.TemporaryDirectory() as folder:
            source.save_assets(folder)
            target.load_assets(folder)
        target.load_own_variables(store)
    elif target.built:
        target.finalize_state()
