"""`DTypePolicy`, and the policy in force."""

from __future__ import annotations

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
    """Return the name of the plain policy in a policy."""
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
