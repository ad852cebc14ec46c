"""The rules of Keras 3: every floating argument is cast, and most calls have a scope.

```text
scope around the call    the layer                        scope in the call
none                     computes as it stores            none
none                     mixed                            its compute dtype
any                      autocast=False, or not a float   none is cast
any                      else                             its compute dtype
```
"""

import inspect
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import numpy as np

from castwise import dtype_policies
from castwise._numbers import is_floating
from castwise.autocast import _structures as structures
from castwise.autocast._narrow import narrow
from castwise.autocast._rules import Ruled
from castwise.autocast._scope import DISABLED, FLOATS, AutocastScope, scope_of
from castwise.autocast._variable import AutoCastVariable
from castwise.dtype_policies import DTypePolicy
from castwise.dtype_policies._keras_objects import standardize_dtype


class KerasRules:
    """What is cast in Keras 3: every floating argument of a call, and weights by its scope."""

    variable_class: type[AutoCastVariable] = AutoCastVariable
    locks = True  # a built layer refuses further weights
    forgets_replaced = False  # a layer forgets a weight when its attribute gets another value
    sets_policy = True  # the policy of a layer can be set after it was made
    wrong_type: type[Exception] = ValueError  # for constructor arguments that are not valid

    def policy(self, dtype: object) -> DTypePolicy:
        return dtype_policies.get(dtype)

    def serialize(self, policy: object) -> Any:
        return dtype_policies.serialize(policy)

    def arguments(
        self, layer: Ruled, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        # Positional ones must be arrays, and structures must not mix arrays with other values.
        args = tuple([layer.cast_inputs(value) for value in args])
        for place, value in enumerate(args):
            if type(value) is not np.ndarray:
                _check_positional(layer, place, value)
        if kwargs:
            kwargs = {name: layer.cast_inputs(value) for name, value in kwargs.items()}
            for name, value in kwargs.items():
                if structures.is_structure(value):
                    _check_unmixed(layer, name, value)
        return args, kwargs

    def cast_inputs(self, layer: Ruled, inputs: object) -> Any:
        """Cast floats to the layer's compute dtype, by `DTypePolicy.convert_input`."""
        policy, target = layer.dtype_policy, layer.input_dtype
        return structures.map_leaves(lambda leaf: _convert(policy, leaf, layer, target), inputs)

    def shapes(self, layer: Ruled, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Return the first argument's shape, or for several parameters each by its name."""
        shapes = dict(_shapes_of_arguments(layer, args, kwargs))
        parameters = [
            name
            for name, parameter in inspect.signature(layer.build).parameters.items()
            if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        ]
        if len(parameters) == 1:
            return {parameters[0]: next(iter(shapes.values()), None)}
        for name in parameters:
            if name.removesuffix("_shape") not in inspect.signature(layer.call).parameters:
                raise ValueError(
                    f"build of layer {layer.name!r} has the parameter {name!r}, which is not an "
                    "argument of call with '_shape' after it; rename it, or take input_shape only."
                )
        return {name: shapes[name] for name in parameters if name in shapes}

    def scope(self, layer: Ruled, outer: AutocastScope | None) -> AutocastScope | None:
        """Return the scope of the table above."""
        compute = layer.compute_dtype
        if outer is None:
            return None if compute == layer.variable_dtype else scope_of(compute)
        if not layer.autocast or not compute.startswith(FLOATS):
            return DISABLED
        return scope_of(compute)

    def autocasts(self, layer: Ruled, dtype: str, wants_cast: bool) -> bool:
        """Return what the author asked for: layers of one dtype cast their weights, too."""
        return wants_cast

    def weight_dtype(self, layer: Ruled, dtype: object) -> str:
        """Return the argument's dtype, else the layer's."""
        return layer.variable_dtype if dtype is None else standardize_dtype(dtype)


def _convert(policy: DTypePolicy, leaf: object, layer: Ruled, target: str) -> Any:
    # The same as `convert_input`, but faster: this runs for each array of each call.
    usual = type(policy).convert_input is DTypePolicy.convert_input
    if usual and type(leaf) is np.ndarray and _is_unchanged(leaf.dtype, target):
        return narrow(leaf)
    try:
        return narrow(policy.convert_input(leaf, layer.autocast, target))
    except TypeError as error:
        if structures.is_array(leaf) and is_floating(leaf.dtype):
            raise TypeError(
                f"layer {layer.name!r} computes in {target}, to which {leaf.dtype} cannot be cast "
                f"({error}); give it another dtype=, or autocast=False."
            ) from error
        raise TypeError(
            f"layer {layer.name!r} got a {type(leaf).__name__}, of which numpy makes no array "
            f"({error}); give it an array of numpy."
        ) from error


@lru_cache(maxsize=256)
def _is_unchanged(dtype: np.dtype[Any], target: str) -> bool:
    """Tell whether an array of this dtype is not cast; cached, because names of dtypes are slow."""
    return dtype.name == target or not is_floating(dtype)


def _check_positional(layer: Ruled, place: int, value: object) -> None:
    for leaf in structures.leaves(value):
        if leaf is not None and not structures.is_array(leaf):
            raise ValueError(
                f"argument {place} of layer {layer.name!r} holds {leaf!r} of type "
                f"{type(leaf).__name__}; positional arguments are arrays: pass it as a keyword, "
                "or numpy.asarray of it."
            )


def _check_unmixed(layer: Ruled, name: str, value: object) -> None:
    kinds = {structures.is_array(leaf) for leaf in structures.leaves(value) if leaf is not None}
    if len(kinds) > 1:
        other = next(
            leaf
            for leaf in structures.leaves(value)
            if leaf is not None and not structures.is_array(leaf)
        )
        raise ValueError(
            f"argument {name!r} of layer {layer.name!r} holds arrays and {other!r} of type "
            f"{type(other).__name__}; a structure holds arrays and None only, or none of them."
        )


def _shapes_of_arguments(
    layer: Ruled, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Iterator[tuple[str, Any]]:
    """Yield the shapes of the arguments that are arrays or structures of arrays, in order."""
    arguments = inspect.signature(layer.call).bind(*args, **kwargs)
    arguments.apply_defaults()
    for name, value in arguments.arguments.items():
        kind = arguments.signature.parameters[name].kind
        catches_all = kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        arrays = [leaf for leaf in structures.leaves(value) if leaf is not None]
        if name == "mask" or catches_all or not arrays:
            continue
        if all(structures.is_array(leaf) for leaf in arrays):
            yield f"{name}_shape", structures.map_leaves(structures.shape_of, value)
