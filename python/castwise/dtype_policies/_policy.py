"""`DTypePolicy`, policies of quantized layers, and the policy in force."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from castwise._core import PolicyBase, cast, read_array
from castwise._numbers import is_floating
from castwise.dtype_policies._keras_objects import checked_arguments, standardize_dtype
from castwise.environment.defaults import current_policy, default_policy


class DTypePolicy(PolicyBase):
    """The dtype in which a layer computes, and the dtype of its variables.

    Parameters
    ----------
    name : str, optional
        A dtype of Keras ("float32", "bfloat16", ...), for both; or "mixed_float16" or
        "mixed_bfloat16", to compute in 16 bits with variables in float32. None is the policy in
        force (`castwise.config.dtype_policy`), or the plain policy in it if that is a quantized
        one or a map.

    Raises
    ------
    TypeError
        `name` is not a str.
    ValueError
        There is no such policy.

    Notes
    -----
    These are the policies of Keras 3, with the same names and configs. They are immutable, and have
    hashes.

    Examples
    --------
    >>> policy = DTypePolicy("mixed_bfloat16")
    >>> policy
    <DTypePolicy "mixed_bfloat16">
    >>> policy.compute_dtype, policy.variable_dtype
    ('bfloat16', 'float32')
    >>> DTypePolicy("float64").variable_dtype
    'float64'

    """

    module: ClassVar[str | None] = "keras"
    """Keras' module of the class, for configs."""

    if TYPE_CHECKING:  # properties of the base; in Keras' policies they are never None

        @property
        def compute_dtype(self) -> str:
            """The dtype in which layers compute."""

        @property
        def variable_dtype(self) -> str:
            """The dtype of layers' variables."""

    @property
    def quantization_mode(self) -> str | None:
        """How weights are stored: "int8", "float8", "int4", "gptq", "awq", "ternary", or None."""
        return self._quantization_mode

    @staticmethod
    def _name_in_force() -> str:
        return plain_name(dtype_policy())

    def convert_input(self, x: object, autocast: bool, dtype: object) -> Any:  # noqa: ANN401  (as it is given)
        """Cast an argument of a layer to the dtype in which the layer computes.

        Parameters
        ----------
        x : any object
            Real floats in arrays, numpy's scalars and objects with ``__array__`` are cast; all
            else, also integers, bools and complex numbers, is returned as it is.
        autocast : bool
            False: nothing is cast.
        dtype : dtype
            The target, as for `standardize_dtype`; None is floatx.

        Returns
        -------
        `x` itself if it is not cast.

        """
        target = standardize_dtype(dtype)
        if not isinstance(x, np.ndarray | np.generic):
            if not hasattr(x, "__array__"):
                return x
            x = read_array("x", x)
        if not autocast or not is_floating(x.dtype) or x.dtype.name == target:
            return x
        return cast(x, target)

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> DTypePolicy:
        """Make the policy of a config. TypeError for keys that are not arguments."""
        return cls(**checked_arguments(cls, config))

    def __repr__(self) -> str:
        name = "DTypePolicy" if type(self) is FloatDTypePolicy else type(self).__name__
        return f'<{name} "{self.name}">'

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, DTypePolicy):
            return NotImplemented
        return _family(self) is _family(other) and self._means(other)

    def __hash__(self) -> int:
        return hash((_family(self), self.name))


class FloatDTypePolicy(DTypePolicy):
    """A `DTypePolicy` under an older name of Keras.

    >>> FloatDTypePolicy("mixed_float16") == DTypePolicy("mixed_float16")
    True
    """


def _family(policy: DTypePolicy) -> type:
    """Return the class by which policies are compared."""
    return DTypePolicy if type(policy) is FloatDTypePolicy else type(policy)


def plain_name(policy: DTypePolicy) -> str:
    plain: DTypePolicy = getattr(policy, "default_policy", policy)
    return plain._plain_name


def dtype_policy() -> DTypePolicy:
    """Return the policy in force in this scope or thread.

    If none was set in a thread, the first call makes one of `floatx`, which later calls return.

    >>> from castwise.config import dtype_policy_scope
    >>> with dtype_policy_scope("mixed_float16"):
    ...     dtype_policy()
    <DTypePolicy "mixed_float16">
    """
    policy: DTypePolicy | None = current_policy()
    return default_policy(DTypePolicy) if policy is None else policy


class QuantizedDTypePolicy(DTypePolicy):
    """A policy whose layers store their weights quantized.

    Parameters
    ----------
    mode : str
        "int8", "int4", "float8", "gptq", "awq" or "ternary", which is new in Keras 3.16.
    source_name : str, optional
        The plain policy for all else; None is the one in force.

    Raises
    ------
    ValueError
        An unknown mode, a source that is itself quantized or unknown, or a mode that does not work
        with the source's compute dtype.
    TypeError
        `source_name` is not a str.

    Examples
    --------
    >>> policy = QuantizedDTypePolicy("int8", "mixed_bfloat16")
    >>> policy
    <QuantizedDTypePolicy "int8_from_mixed_bfloat16">
    >>> policy.quantization_mode, policy.compute_dtype, policy.variable_dtype
    ('int8', 'bfloat16', 'float32')

    """

    module: ClassVar[str | None] = "keras.dtype_policies"

    keras_class: ClassVar[str] = "QuantizedDTypePolicy"
    """The class of Keras that has these arguments, also for subclasses."""

    has_parameters: ClassVar[bool] = False
    """Whether the mode has integers after slashes, so that it is checked to be a text first."""

    def __init__(self, mode: str, source_name: str | None = None) -> None:
        if self.has_parameters and not isinstance(mode, str):
            raise TypeError(f"mode={mode!r} must be a str, such as 'gptq/4/128'")
        if source_name is None:
            source_name = self._name_in_force()
        self._set_quantized(self.keras_class, mode, source_name)


class _WithParameters(QuantizedDTypePolicy):
    """A policy whose mode has integers after slashes."""

    has_parameters = True

    @property
    def mode(self) -> str:
        """The mode without its integers."""
        return self.quantization_mode or ""


class _WithGroups(_WithParameters):
    """A policy of weights that are quantized in groups."""

    @property
    def weight_bits(self) -> int:
        """The number of bits of a weight."""
        return dict(self._parameters)["weight_bits"]

    @property
    def group_size(self) -> int:
        """The number of weights that share a scale; -1 for all."""
        return dict(self._parameters)["group_size"]


class Int4DTypePolicy(_WithParameters):
    """A policy of weights in 4-bit integers, with a scale for each block.

    `mode` is "int4/<block_size>": how many elements share a scale, or -1 for a scale per channel.

    >>> policy = Int4DTypePolicy("int4/128", "float32")
    >>> policy.name, policy.block_size
    ('int4/128_from_float32', 128)
    """

    keras_class = "Int4DTypePolicy"

    @property
    def block_size(self) -> int:
        """The number of elements that share a scale; -1 for a whole channel."""
        return dict(self._parameters)["block_size"]


class GPTQDTypePolicy(_WithGroups):
    """A policy of weights quantized by GPTQ.

    `mode` is "gptq/<weight_bits>/<group_size>": 2, 3, 4 or 8 bits; how many elements share a scale,
    or -1 for all.

    >>> policy = GPTQDTypePolicy("gptq/4/64", "mixed_bfloat16")
    >>> policy.weight_bits, policy.group_size
    (4, 64)
    """

    keras_class = "GPTQDTypePolicy"


class AWQDTypePolicy(_WithGroups):
    """A policy of weights quantized by AWQ, with regard to activations.

    `mode` is "awq/4/<group_size>": how many elements share a scale, or -1 for all.

    >>> AWQDTypePolicy("awq/4/-1", "float32").get_config()
    {'mode': 'awq/4/-1', 'source_name': 'float32'}
    """

    keras_class = "AWQDTypePolicy"


class QuantizedFloat8DTypePolicy(QuantizedDTypePolicy):
    """A policy of matrix products in float8, with scales from previous maxima (delayed scaling).

    Parameters
    ----------
    mode : str
        "float8".
    source_name : str, optional
        The plain policy for all else; None is the one in force.
    amax_history_length : int
        How many maxima are stored, 1 or more.

    Raises
    ------
    ValueError
        Another mode, an unknown source, a length below 1.
    TypeError
        `source_name` is not a str, or the length not an integer.

    Examples
    --------
    >>> policy = QuantizedFloat8DTypePolicy("float8", "mixed_bfloat16", amax_history_length=512)
    >>> policy.compute_dtype, policy.amax_history_length
    ('bfloat16', 512)

    """

    keras_class = "QuantizedFloat8DTypePolicy"
    default_amax_history_length: ClassVar[int] = 1024

    def __init__(
        self,
        mode: str,
        source_name: str | None = None,
        amax_history_length: int = default_amax_history_length,
    ) -> None:
        super().__init__(mode, source_name)
        refusal = f"amax_history_length={amax_history_length!r} must be an int of 1 or more"
        if isinstance(amax_history_length, bool):
            raise TypeError(refusal)
        try:
            self._amax_history_length = operator.index(amax_history_length)
        except TypeError as error:
            raise TypeError(refusal) from error
        if self._amax_history_length < 1:
            raise ValueError(refusal)

    @property
    def amax_history_length(self) -> int:
        """The number of maxima from which the scale is computed."""
        return self._amax_history_length

    def get_config(self) -> dict[str, Any]:
        """Return the arguments of this policy, as Keras writes them."""
        return {**super().get_config(), "amax_history_length": self.amax_history_length}

    def __eq__(self, other: object) -> bool:
        equal = super().__eq__(other)
        if equal is not True:
            return equal
        return self.amax_history_length == getattr(other, "amax_history_length", None)

    def __hash__(self) -> int:
        return hash((super().__hash__(), self.amax_history_length))
