"""`DTypePolicy`, and which policy is in force."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from castwise._core import PolicyBase, cast
from castwise._floating import is_floating
from castwise._global_state import current_policy, default_policy
from castwise._standard_dtype import standardize_dtype


class DTypePolicy(PolicyBase):
    """Which dtype a layer computes in, and which its variables are kept in.

    Parameters
    ----------
    name : str, optional
        A dtype of Keras ("float32", "bfloat16", ...), for both; or "mixed_float16" or
        "mixed_bfloat16", to compute in 16 bits with variables in float32. None is the policy in
        force (`castwise.config.dtype_policy`); of a quantized one or a map, the plain policy in it.

    Raises
    ------
    TypeError
        `name` is not a str.
    ValueError
        There is no such policy.

    Notes
    -----
    The policies of Keras 3: same names, same configs, and they hash. They cannot be changed.

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
    """Where Keras keeps the class; it stands in configs."""

    if TYPE_CHECKING:  # properties of the base; Keras' policies leave no dtype open

        @property
        def compute_dtype(self) -> str:
            """The dtype that layers compute in."""

        @property
        def variable_dtype(self) -> str:
            """The dtype that layers keep their variables in."""

    @property
    def quantization_mode(self) -> str | None:
        """How weights are kept: "int8", "float8", "int4", "gptq", "awq", "ternary", or None."""
        return self._quantization_mode

    @staticmethod
    def _name_in_force() -> str:
        return plain_name(dtype_policy())

    def convert_input(self, x: Any, autocast: bool, dtype: Any) -> Any:
        """An argument of a layer in the dtype that the layer computes in.

        Parameters
        ----------
        x : any object
            Arrays of real floats, numpy's scalars, and what has ``__array__`` are cast; all else,
            integers, bools and complex numbers too, is returned as it is.
        autocast : bool
            False leaves floats as they are.
        dtype : dtype
            What to cast to, as `standardize_dtype` takes it; None is floatx.

        Returns
        -------
        `x` itself where nothing is to be done.

        """
        target = standardize_dtype(dtype)
        if not isinstance(x, np.ndarray | np.generic):
            if not hasattr(x, "__array__"):
                return x
            x = np.asarray(x)
        if not autocast or not is_floating(x.dtype) or x.dtype.name == target:
            return x
        return cast(x, target)

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> DTypePolicy:
        """The policy that `get_config` came from. TypeError for keys that are no arguments."""
        return cls(**config)

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
    """A `DTypePolicy` under the name that it once had.

    >>> FloatDTypePolicy("mixed_float16") == DTypePolicy("mixed_float16")
    True
    """


def _family(policy: DTypePolicy) -> type:
    """Policies of one family are equal if they mean the same."""
    return DTypePolicy if type(policy) is FloatDTypePolicy else type(policy)


def plain_name(policy: DTypePolicy) -> str:
    """The name of the policy without quantization that a policy stands on."""
    plain: DTypePolicy = getattr(policy, "default_policy", policy)
    return plain._plain_name


def dtype_policy() -> DTypePolicy:
    """The policy in force in this scope or thread.

    The first call in a thread where none was set makes one of `floatx`, and keeps it.

    >>> from castwise.config import dtype_policy_scope
    >>> with dtype_policy_scope("mixed_float16"):
    ...     dtype_policy()
    <DTypePolicy "mixed_float16">
    """
    policy: DTypePolicy | None = current_policy()
    return default_policy(DTypePolicy) if policy is None else policy
