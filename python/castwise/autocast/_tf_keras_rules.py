"""The rules of TF 2: the first argument of `call` is cast, and only weights of mixed layers are.

Each call has the scope of its layer's compute dtype, if that is a float.
"""

import inspect
from typing import Any

import numpy as np
from numpy.typing import NDArray

from castwise._core import cast
from castwise._numbers import is_floating
from castwise.autocast import _structures as structures
from castwise.autocast._narrow import narrow, plain
from castwise.autocast._numpy_protocol import NumpyProtocol
from castwise.autocast._rules import Ruled
from castwise.autocast._scope import FLOATS, AutocastScope, numpy_dtype, scope_of
from castwise.autocast._variable import AutoCastVariable
from castwise.dtype_policies import DTypePolicyMap
from castwise.dtype_policies._tf_policy import Policy, dtype_name, get_policy, serialize
from castwise.environment.defaults import floatx

# Integers of Python become int32 in TensorFlow if they are in this range.
_INT32 = range(-(2**31), 2**31)


class TfKerasVariable(AutoCastVariable):
    """A variable of TF: numpy converts the stored value, and assignments return the variable."""

    @staticmethod
    def _named_dtype(dtype: object) -> np.dtype[Any]:
        return numpy_dtype(dtype_name(dtype))

    # On bits, as TF's integer variables.
    __and__, __rand__ = NumpyProtocol.__and__, NumpyProtocol.__rand__
    __or__, __ror__ = NumpyProtocol.__or__, NumpyProtocol.__ror__
    __xor__, __rxor__ = NumpyProtocol.__xor__, NumpyProtocol.__rxor__

    def numpy(self) -> NDArray[Any]:
        return np.array(plain(self._array))

    def _as_array(self) -> NDArray[Any]:
        array: NDArray[Any] = plain(self._array)
        return array

    def assign(self, value: object, read_value: bool = True) -> Any:
        """Store another value, rounded once; returns the variable, or None without `read_value`."""
        super().assign(value)
        return self if read_value else None

    def assign_add(self, value: object, read_value: bool = True) -> Any:
        super().assign_add(value)
        return self if read_value else None

    def assign_sub(self, value: object, read_value: bool = True) -> Any:
        """Subtract from what is stored, in its precision."""
        super().assign_sub(value)
        return self if read_value else None


class TfKerasRules:
    """What is cast in TF 2: the first argument of a call, and weights of mixed layers."""

    variable_class: type[AutoCastVariable] = TfKerasVariable
    locks = False
    forgets_replaced = True
    sets_policy = False
    wrong_type: type[Exception] = TypeError

    def policy(self, dtype: object) -> Policy:
        """Call `castwise.compat.tf_keras.mixed_precision.get_policy`; refuse maps."""
        if isinstance(dtype, DTypePolicyMap):
            raise TypeError(
                f"dtype={dtype!r} is a map, which TF 2 does not have; give the layer's policy, or "
                "use Keras' dialect."
            )
        return get_policy(dtype)

    def serialize(self, policy: object) -> Any:
        """Return the name of the dtype for a policy of one dtype, else its dictionary."""
        return serialize(policy)

    def arguments(
        self, layer: Ruled, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Make arrays of the first argument's leaves and cast them; it becomes positional."""
        if args:
            inputs, others_after = args[0], args[1:]
        else:
            name = next(iter(inspect.signature(layer.call).parameters), None)
            if name not in kwargs:
                raise ValueError(
                    f"layer {layer.name!r} was called without its first argument"
                    f"{f' {name!r}' if name else ''}; it is the one that is cast, so give it."
                )
            inputs, others_after = kwargs[name], ()
            kwargs = {key: value for key, value in kwargs.items() if key != name}
        inputs = structures.map_leaves(_as_array, inputs)
        if layer.compute_dtype is None and not layer.built:
            self._infer(layer, inputs)
        # Layers may cast otherwise, to plain arrays.
        return (structures.map_leaves(narrow, layer.cast_inputs(inputs)), *others_after), kwargs

    def _infer(self, layer: Ruled, inputs: object) -> None:
        """Set the policy of a layer that has left it open, from the dtype of the first input."""
        leaf = next(structures.leaves(inputs), None)
        if isinstance(leaf, np.ndarray):
            layer._set_policy(get_policy(leaf.dtype))

    def cast_inputs(self, layer: Ruled, inputs: object) -> Any:
        """Cast floating arrays to the compute dtype, if that is a float."""
        compute = layer.compute_dtype
        if not layer.autocast or compute is None or not compute.startswith(FLOATS):
            return structures.map_leaves(narrow, inputs)
        dtype = numpy_dtype(compute)

        def convert(leaf: object) -> Any:
            if not isinstance(leaf, np.ndarray) or leaf.dtype == dtype:
                return narrow(leaf)
            return narrow(cast(leaf, dtype)) if is_floating(leaf.dtype) else leaf

        return structures.map_leaves(convert, inputs)

    def shapes(self, layer: Ruled, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        parameters = list(inspect.signature(layer.build).parameters)
        return {
            name: structures.map_leaves(structures.shape_of, args[0]) for name in parameters[:1]
        }

    def scope(self, layer: Ruled, outer: AutocastScope | None) -> AutocastScope | None:
        """Return the layer's own scope, whatever `outer` is."""
        return scope_of(layer.compute_dtype or "")

    def autocasts(self, layer: Ruled, dtype: str, wants_cast: bool) -> bool:
        """Tell whether it is a float, and the layer stores and computes in different dtypes."""
        is_mixed = layer.compute_dtype != layer.variable_dtype
        return wants_cast and is_mixed and dtype.startswith(FLOATS)

    def weight_dtype(self, layer: Ruled, dtype: object) -> str:
        """Return the argument's dtype, else the layer's; set an open policy of the layer to it."""
        if dtype is None:
            dtype = layer.variable_dtype or floatx()
        name = get_policy(dtype_name(dtype)).name
        if layer.variable_dtype is None:
            layer._set_policy(get_policy(name))
        return name


def _as_array(leaf: object) -> Any:
    """Make an array of a number, of a Python number with the dtype that TensorFlow uses."""
    if isinstance(leaf, np.generic | bool) and not isinstance(leaf, np.flexible):
        return np.asarray(leaf)
    if isinstance(leaf, float):
        return np.asarray(leaf, np.float32)
    if isinstance(leaf, int):
        return np.asarray(leaf, np.int32 if leaf in _INT32 else np.int64)
    return leaf
