"""`Layer`: computes in one dtype with variables in another, by its policy."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

from castwise.autocast._building import Builder
from castwise.autocast._holder import Holder, held_by
from castwise.autocast._keras_rules import KerasRules
from castwise.autocast._narrow import NarrowArray, plain
from castwise.autocast._scope import current, enter, leave
from castwise.autocast._structures import is_structure, leaves, map_leaves
from castwise.autocast._tf_keras_rules import TfKerasRules
from castwise.autocast._values import automatic_name, check_name, checked_shape, given_once
from castwise.autocast._variable import AutoCastVariable
from castwise.dtype_policies import DTypePolicyMap

# What arguments of Keras' layers are called that ask for nothing if they are None.
_OF_KERAS = (
    *("activity_regularizer", "input_shape", "input_dim", "batch_input_shape", "batch_size"),
    *("weights", "implementation", "quantization_config", "lora_rank", "lora_alpha"),
)
_ENDS_OF_KERAS = ("_regularizer", "_constraint")

_RULES: dict[str, KerasRules | TfKerasRules] = {"keras": KerasRules(), "tf_keras": TfKerasRules()}

_INIT_FIRST = "call super().__init__() first in its __init__."


class Layer(Builder):
    """A layer on numpy arrays, with the casting rules of Keras.

    Subclasses write `call`, and `build` if they have weights of a shape that depends on the input;
    neither needs a cast. During the call, floating inputs and weights have the compute dtype;
    weights are stored in the variable dtype.

    Parameters
    ----------
    trainable : bool
        Whether an optimizer is to change its weights.
    dtype : policy, str, dict, dtype or None
        As for `castwise.dtype_policies.get`; None is the policy in force. With a `DTypePolicyMap`
        the layer has the policy of its path.
    autocast : bool
        Whether inputs are cast.
    name : str, optional
        By default derived from the name of the class.
    dialect : {"keras", "tf_keras"}
        The rules of casting: in Keras 3 every floating argument is cast, in TF 2 the first argument
        only. By default the class attribute of that name.
    **unknown
        Arguments of Keras' layers that castwise's do not have, such as ``activity_regularizer``, if
        they are None, as they are in configs.

    Raises
    ------
    ValueError
        An invalid argument; in TF's dialect a TypeError.

    Notes
    -----
    The first call, or `build`, sets the path: the path of the layer whose call or build it happens
    in, a "/", and the name. Several threads may call a layer; each call has its own scope. The body
    of a generator or coroutine runs after the call, outside of its scope.

    Arithmetic is numpy's, which multiplies matrices of float16 without a BLAS. Arrays of bfloat16
    and float8 keep their dtype in arithmetic, as those of float16 do, if they are arguments of a
    call or computed from these, also by `numpy.zeros_like` or `AutoCastVariable.astype`. Give
    arrays that a call creates, as by `numpy.zeros`, to `cast_inputs` first.

    Examples
    --------
    >>> class Dense(Layer):
    ...     def build(self, input_shape):
    ...         self.kernel = self.add_weight((input_shape[-1], 2), "ones")
    ...     def call(self, inputs):
    ...         return np.maximum(inputs @ self.kernel, 0)
    >>> dense = Dense(dtype="mixed_bfloat16")
    >>> dense(np.ones((1, 3), np.float32))
    array([[3, 3]], dtype=dtype(bfloat16))
    >>> dense.kernel.dtype, dense.compute_dtype
    ('float32', 'bfloat16')

    """

    dialect: Literal["keras", "tf_keras"] = "keras"
    autocast: bool = True

    def __init__(
        self,
        *,
        trainable: bool = True,
        dtype: object = None,
        autocast: bool = True,
        name: str | None = None,
        dialect: Literal["keras", "tf_keras"] | None = None,
        **unknown: object,
    ) -> None:
        self.dialect = dialect or type(self).dialect
        rules = _rules_of(self.dialect)
        wrong = [
            key for key, value in unknown.items() if value is not None or not _is_of_keras(key)
        ]
        if wrong:
            raise rules.wrong_type(
                f"{type(self).__name__} does not take {', '.join(f'{key}=' for key in wrong)}; "
                "a layer takes trainable=, dtype=, autocast=, name= and dialect=."
            )
        if not isinstance(trainable, bool):
            raise rules.wrong_type(f"trainable={trainable!r} is not a bool; use True or False.")
        self._name = (
            automatic_name(type(self).__name__)
            if name is None
            else check_name(name, rules.wrong_type)
        )
        self._trainable = trainable
        self.autocast = autocast
        self._variables: list[AutoCastVariable] = []
        self._set_policy(rules.policy(dtype))
        self._rules = rules  # type: ignore[misc] # last: until then, __init__ has not run

    # Dtypes.

    def _set_policy(self, policy: object) -> None:
        self._dtype_policy: Any = policy
        self._by_path = isinstance(policy, DTypePolicyMap)

    @property
    def dtype_policy(self) -> Any:
        """The policy or map. If it is a map, setting this sets the map's policy of the path."""
        return self._dtype_policy

    @dtype_policy.setter
    def dtype_policy(self, value: object) -> None:
        rules = self._checked_rules()
        if not rules.sets_policy:
            raise AttributeError(
                f"dtype_policy of layer {self.name!r} cannot be set; give dtype= when you make it."
            )
        policy = rules.policy(value)
        if self._by_path and self._path is not None:
            self._dtype_policy.pop(self._path, None)
            self._dtype_policy[self._path] = policy
        else:
            self._set_policy(policy)

    def _policy_here(self) -> Any:
        if self._by_path and self._path is not None:
            return self._dtype_policy[self._path]
        return self._dtype_policy

    @property
    def _mixed_precision_policy(self) -> Any:
        """The policy, by its name in TF 1.14, for layers that were written for it."""
        return self.dtype_policy

    @property
    def compute_dtype(self) -> str:
        """The name of the dtype in which the layer computes."""
        dtype: str = self._policy_here().compute_dtype
        return dtype

    @property
    def variable_dtype(self) -> str:
        """The name of the dtype in which its weights are stored."""
        dtype: str = self._policy_here().variable_dtype
        return dtype

    @property
    def dtype(self) -> str:
        """The same as `variable_dtype`."""
        return self.variable_dtype

    @property
    def input_dtype(self) -> str:
        """What inputs are cast to: `compute_dtype`, unless a subclass says otherwise."""
        return self.compute_dtype

    @property
    def quantization_mode(self) -> str | None:
        """The quantization mode of the policy, or None."""
        mode: str | None = getattr(self._policy_here(), "quantization_mode", None)
        return mode

    # Weights.

    @given_once
    def add_weight(
        self,
        shape: Iterable[int] | None = None,
        initializer: object = None,
        dtype: object = None,
        *,
        trainable: bool = True,
        autocast: bool | None = None,
        name: str | None = None,
        experimental_autocast: bool | None = None,
    ) -> AutoCastVariable:
        """Make a variable of the layer, in `__init__` or `build`.

        Parameters
        ----------
        shape : int sequence
            By default ``()``.
        initializer : str, callable, array_like
            As for `AutoCastVariable`; by default "glorot_uniform" for floats, else "zeros".
        dtype : dtype
            What it is stored in; by default the layer's `variable_dtype`.
        trainable : bool
            Whether an optimizer is to change it.
        autocast, experimental_autocast : bool
            False: calls see it in the dtype in which it is stored. The second name is TF's older
            one of the first, which is used if both are given.
        name : str, optional
            Without "/".

        Raises
        ------
        ValueError
            The layer is built (TF's dialect allows that), or an argument is invalid; in TF's
            dialect a wrong type is a TypeError.
        RuntimeError
            ``super().__init__()`` was not called.

        """
        rules = self._checked_rules()
        if name:
            check_name(name, rules.wrong_type)
        if isinstance(shape, str):
            raise rules.wrong_type(f"shape={shape!r} is a name; pass it as name={shape!r}.")
        if self._takes_no_more():
            raise ValueError(
                f"layer {self.name!r} is built and takes no weight {name or ''!r}; call "
                "add_weight in __init__ or in build."
            )
        is_cast = experimental_autocast if autocast is None else autocast
        dtype_of_weight = rules.weight_dtype(self, dtype)
        if initializer is None:
            initializer = "glorot_uniform" if "float" in dtype_of_weight else "zeros"
        variable: AutoCastVariable = rules.variable_class(
            initializer,
            checked_shape(() if shape is None else shape, rules.wrong_type),
            dtype_of_weight,
            trainable,
            rules.autocasts(self, dtype_of_weight, True if is_cast is None else bool(is_cast)),
            name=name,
            path=self._path or self._name,
        )
        self._variables.append(variable)
        return variable

    def _check_new(self, name: str, value: AutoCastVariable | Holder) -> None:
        if self._takes_no_more() and not any(value is weight for weight in held_by(self)):
            kind = "weight" if isinstance(value, AutoCastVariable) else "layer"
            raise ValueError(
                f"layer {self.name!r} is built and takes no other {kind}, as {name}={value!r}; set "
                "it in __init__ or in build."
            )

    def _takes_no_more(self) -> bool:
        return self._is_locked and not self._building

    def _forgets_replaced(self) -> bool:
        return self._rules is not None and self._rules.forgets_replaced

    # Calls.

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """Compute the outputs; for subclasses. NotImplementedError if they do not."""
        raise NotImplementedError(
            f"{type(self).__name__} has no call; write `def call(self, inputs)`, which computes "
            "the outputs."
        )

    def cast_inputs(self, inputs: Any) -> Any:
        """Cast the floating arrays of an argument, also in structures, to the compute dtype.

        Override it in layers that cast otherwise. In Keras' dialect it is called for each argument,
        in TF's for the first.
        """
        return self._checked_rules().cast_inputs(self, inputs)

    def __call__(self, *args: object, **kwargs: object) -> Any:
        """Build the layer if necessary, cast the inputs, and return what `call` returns.

        Raises
        ------
        ValueError
            Arguments that the dialect does not accept, such as positional ones other than arrays in
            Keras'.
        TypeError
            Arguments that `call` does not have; a float for a layer that computes in strings.
        RuntimeError
            ``super().__init__()`` was not called.

        """
        rules = self._checked_rules()
        outer = current()
        if self._path is None or not self.built:
            args, kwargs = self._first_call(outer, args, kwargs)
        else:
            args, kwargs = rules.arguments(self, args, kwargs)
        frame = enter(rules.scope(self, outer.scope), self._path or "", True)
        try:
            outputs = self.call(*args, **kwargs)
        finally:
            leave(frame)
        # Outer layers get arrays that stay narrow, callers get numpy's.
        return outputs if outer.in_call else _without_rules(outputs)

    def _checked_rules(self) -> Any:
        if self._rules is None:
            raise RuntimeError(f"{type(self).__name__} has no policy yet: {_INIT_FIRST}")
        return self._rules

    def __getattr__(self, name: str) -> Any:
        # Called if there is no such attribute, or if a property raised AttributeError.
        if self._rules is None and not name.startswith("__"):
            raise AttributeError(f"{type(self).__name__} has no {name!r} yet: {_INIT_FIRST}")
        return object.__getattribute__(self, name)  # raises Python's message, or the property's

    # Configs.

    def get_config(self) -> dict[str, Any]:
        """Return the arguments of the constructor, fit for JSON; subclasses add theirs.

        Those that Keras leaves out, `autocast` and `dialect`, are in it if they are not the usual.
        """
        config = {
            "name": self._name,
            "trainable": self._trainable,
            "dtype": self._rules.serialize(self._dtype_policy),
        }
        if not self.autocast:
            config["autocast"] = False
        if self.dialect != type(self).dialect:
            config["dialect"] = self.dialect
        return config

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Layer:
        """Return a layer as `get_config` described it."""
        return cls(**config)

    def __repr__(self) -> str:
        policy = getattr(self._dtype_policy, "name", None) if self._rules else None
        return f"<{type(self).__name__} {getattr(self, '_name', '')!r}, dtype={policy!r}>"


def _is_of_keras(argument: str) -> bool:
    return argument in _OF_KERAS or argument.endswith(_ENDS_OF_KERAS)


def _without_rules(outputs: object) -> Any:
    if not is_structure(outputs):
        return plain(outputs)
    if any(isinstance(leaf, NarrowArray) for leaf in leaves(outputs)):
        return map_leaves(plain, outputs)
    return outputs  # of the author's own classes


def _rules_of(dialect: str) -> KerasRules | TfKerasRules:
    """Return the rules of a dialect. ValueError if there is no such dialect."""
    if not isinstance(dialect, str) or dialect not in _RULES:
        raise ValueError(
            f"dialect={dialect!r} is not known; use one of {', '.join(map(repr, _RULES))}."
        )
    return _RULES[dialect]


def get_layer_policy(layer: object) -> Any:
    """Return the policy of a layer of any framework.

    Raises
    ------
    ValueError
        `layer` has no policy.

    Examples
    --------
    >>> from castwise import autocast
    >>> class Layer:
    ...     dtype_policy = castwise.DTypePolicy("mixed_float16")
    >>> autocast.get_layer_policy(Layer()).compute_dtype
    'float16'

    """
    policy = getattr(layer, "dtype_policy", None)
    if not hasattr(policy, "compute_dtype"):
        raise ValueError(f"layer={layer!r} has no `dtype_policy`; give a layer that has one")
    return policy
